"""Densities on pairs of embeddings, each with the way it is fitted: one paper, one file. The folder is the register."""

import difflib
import importlib
import inspect
import pkgutil

from vergence.objectives.core import DensityObjective, Objective

__all__ = ["DensityObjective", "Objective", "get", "names"]


def names() -> list[str]:
    """Returns the names of the objectives in this folder, sorted.

    Example:
        >>> from vergence import objectives
        >>> "vje" in objectives.names()
        True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in ("core", "parts"))


def get(name: str) -> type[Objective]:
    """Returns an objective's class by its file's name, or by ``package.module:Class`` for one kept elsewhere.

    Raises:
        ValueError: There is no such objective; the nearest known name is suggested.

    Example:
        >>> from vergence import objectives
        >>> objectives.get("vje")(8).dim
        8
    """
    if ":" in name:
        return _outside(name)
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "an objective of your own is named 'package.module:Class'."
        raise ValueError(f"unknown objective '{name}'; known: {', '.join(names())}; {hint}")
    return _defined_in(importlib.import_module(f"{__name__}.{name}"))


def _defined_in(module: object) -> type[Objective]:
    found = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Objective) and member.__module__ == getattr(module, "__name__", None)
    ]
    assert len(found) == 1, f"{module} holds {len(found)} objectives; one paper, one file"
    return found[0]


def _outside(name: str) -> type[Objective]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot import objective '{name}': {error}; expected 'package.module:Class'") from None
    if not (inspect.isclass(found) and issubclass(found, Objective)):
        raise ValueError(f"'{name}' is not a vergence.objectives.Objective; subclass it")
    return found
