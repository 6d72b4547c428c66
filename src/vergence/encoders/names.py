"""What kind of encoder a name stands for; torch is not needed to tell."""

from typing import Any

from vergence.utils.names import unknown

__all__ = ["is_closed_form", "is_factory", "is_only_closed_form", "is_refined", "timm_settings"]

FLAGS = {"True": True, "true": True, "False": False, "false": False}
TIMM: dict[str, int | dict[str, Any]] = {  # settings of timm's transformers: the largest number, or the words that are known
    **{"patch_size": 256, "embed_dim": 8192, "depth": 256, "num_heads": 256},
    **{"class_token": FLAGS, "dynamic_img_size": FLAGS, "global_pool": {"token": "token", "avg": "avg"}},
}


def is_closed_form(name: str) -> bool:
    """Returns whether an encoder is fitted in closed form, at least in part: ``patches`` or ``patches-mlp``, or with settings."""
    return name.partition(":")[0] in ("patches", "patches-mlp")


def is_refined(name: str) -> bool:
    """Returns whether an encoder has a network behind its closed form: ``patches-mlp``, or with settings."""
    return name.partition(":")[0] == "patches-mlp"


def is_only_closed_form(name: str) -> bool:
    """Returns whether an encoder is fitted in closed form and has no network behind it: ``patches``, or with settings.

    Example:
        >>> [is_only_closed_form(name) for name in ("patches:atoms=8", "patches-mlp", "small")]
        [True, False, False]
    """
    return is_closed_form(name) and not is_refined(name)


def is_factory(encoder: str) -> bool:
    """Returns whether an encoder's name is that of a function outside the library, ``package.module:factory``.

    Example:
        >>> [is_factory(name) for name in ("torchvision.models:alexnet", "timm:resnet18", "patches:atoms=8", "small")]
        [True, False, False, False]
    """
    family, colon, _ = encoder.partition(":")
    return bool(colon) and family != "timm" and not is_closed_form(encoder)


def timm_settings(name: str) -> tuple[str, dict[str, Any]]:
    """Returns timm's own name and the settings of a transformer in a name ``NAME,patch_size=4,depth=6,...``.

    Settings are ``patch_size``, ``embed_dim``, ``depth``, ``num_heads``, ``class_token``, ``dynamic_img_size`` (other sizes of
    images than the first) and ``global_pool`` (``token`` or ``avg``).

    Raises:
        ValueError: A setting is unknown, or its value is.

    Example:
        >>> timm_settings("vit_tiny_patch16_224,patch_size=4,class_token=False")
        ('vit_tiny_patch16_224', {'patch_size': 4, 'class_token': False})
    """
    own, *pairs = name.split(",")
    found: dict[str, Any] = {}
    for key, _, value in (pair.partition("=") for pair in pairs):
        if key not in TIMM:
            raise unknown("setting of timm's transformers", key, TIMM)
        known = TIMM[key]
        if isinstance(known, dict):
            if value not in known:
                raise ValueError(f"expected {key} to be one of {', '.join(known)}, found '{value}'; change the encoder's name")
            found[key] = known[value]
        elif value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= known:
            found[key] = int(value[:9])
        else:
            raise ValueError(f"expected {key} to be a number from 1 to {known}, found '{value}'; change the encoder's name")
    return own, found
