"""What kind of encoder a name stands for; torch is not needed to tell."""

__all__ = ["is_closed_form", "is_factory", "is_refined"]


def is_closed_form(name: str) -> bool:
    """Returns whether an encoder is fitted in closed form, at least in part: ``patches`` or ``patches-mlp``, or with settings."""
    return name.partition(":")[0] in ("patches", "patches-mlp")


def is_refined(name: str) -> bool:
    """Returns whether an encoder has a network behind its closed form: ``patches-mlp``, or with settings."""
    return name.partition(":")[0] == "patches-mlp"


def is_factory(encoder: str) -> bool:
    """Returns whether an encoder's name is that of a function outside the library, ``package.module:factory``.

    Example:
        >>> [is_factory(name) for name in ("torchvision.models:alexnet", "timm:resnet18", "patches:atoms=8", "small")]
        [True, False, False, False]
    """
    family, colon, _ = encoder.partition(":")
    return bool(colon) and family != "timm" and not is_closed_form(encoder)
