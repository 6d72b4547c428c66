"""What a name of code outside the library stands for."""

import importlib
from typing import Any

__all__ = ["load_outside"]


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
    except ModuleNotFoundError as error:
        itself = f"{module}.".startswith(f"{error.name}.")  # the module that is named, not one that it imports
        advice = ": install the package, or put its folder on PYTHONPATH" if itself else ""
        raise ValueError(f"cannot import {what} '{name}': {error}; expected '{expected}'{advice}") from None
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"cannot import {what} '{name}': {error}; expected '{expected}'") from None
