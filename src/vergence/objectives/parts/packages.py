"""Packages of an extra that losses come from; imported where a loss is computed, since that takes some seconds."""

import importlib
import importlib.util
from typing import Any

__all__ = ["require_package"]


def require_package(kind: str, package: str | None, *, what: str = "objective") -> None:
    """Raises a ValueError unless the package that a loss comes from is installed; imports nothing.

    Args:
        kind: The objective's or method's name, for the message.
        package: Name of the package; None for none.
        what: What the name is of, ``objective`` or ``method``.
    """
    if package is not None and importlib.util.find_spec(package) is None:
        raise ValueError(f"{what} '{kind}' needs {package}: pip install 'vergence[baselines]'")


def lightly_module(kind: str, name: str) -> Any:
    """Returns the module ``lightly.loss.NAME``; importing it takes some seconds, so only losses that are computed do."""
    require_package(kind, "lightly")
    try:
        return importlib.import_module(f"lightly.loss.{name}")
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"objective '{kind}' needs lightly 1.6 or newer ({reason}): pip install 'vergence[baselines]'") from None
