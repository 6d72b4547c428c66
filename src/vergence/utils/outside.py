"""Names of code outside the library, and what they name."""

import importlib
from typing import Any

__all__ = ["is_factory", "load_outside"]


def is_factory(encoder: str) -> bool:
    """Returns whether an encoder's name is that of a function outside the library, ``package.module:factory``.

    Example:
        >>> [is_factory(name) for name in ("torchvision.models:alexnet", "timm:resnet18", "patches:atoms=8", "small")]
        [True, False, False, False]
    """
    family, colon, _ = encoder.partition(":")
    return bool(colon) and family not in ("timm", "patches", "patches-mlp")


def load_outside(what: str, name: str, expected: str) -> Any:
    """Returns the object of a name ``package.module:attribute``; importing runs the module, so the name has to be trusted.

    Args:
        what: The kind of thing that is named, for instance ``objective``.
        name: The name.
        expected: Form of the name, for the error.

    Raises:
        ValueError: There is no such module or attribute.

    Example:
        >>> load_outside("encoder", "math:sqrt", "package.module:factory")(4)
        2.0
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"cannot import {what} '{name}': {error}; expected '{expected}'") from None
