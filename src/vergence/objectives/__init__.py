"""Densities on pairs of embeddings, each with the way it is fitted: one paper, one file. The folder lists the objectives."""

import importlib
import inspect
import pkgutil

from vergence.objectives.core import ConditionalObjective, DensityObjective, LatentObjective, Objective, PredictiveObjective
from vergence.utils.names import quoted, unknown
from vergence.utils.outside import load_outside

__all__ = [
    "ConditionalObjective",
    "DensityObjective",
    "LatentObjective",
    "Objective",
    "PredictiveObjective",
    "find",
    "get",
    "names",
]

HINT = "methods on images are chosen by --method, an objective of your own is named 'package.module:Class'"
KNOWN_AS = {"simclr": "SimCLR is 'contrastive'", "sigreg": "SIGReg is the loss of 'lejepa'"}  # by other names of what is here


def names() -> list[str]:
    """Returns the names of the objectives in this folder, sorted.

    Example:
        >>> from vergence import objectives
        >>> "vje" in objectives.names()
        True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in ("core", "parts"))


def get(name: str) -> type[Objective]:
    """Returns an objective's class by its file's name, or by ``package.module:Class`` for a class outside this folder.

    A class outside is imported, which runs its module: the name has to come from somebody who is trusted.

    Raises:
        ValueError: There is no such objective; the error suggests the nearest known name.

    Example:
        >>> from vergence import objectives
        >>> objectives.get("vje")(8).dim
        8
    """
    if ":" in name:
        return _outside(name)
    if name not in names():
        raise unknown("objective", name, names(), KNOWN_AS.get(name.lower(), HINT))
    return _defined_in(importlib.import_module(f"{__name__}.{name}"))


def find(name: str) -> type[Objective] | None:
    """Returns the class of one of this folder's objectives, or None for any other name; imports nothing from elsewhere.

    Example:
        >>> from vergence import objectives
        >>> objectives.find("vje").reference["variance_mean"], objectives.find("package.module:Objective")
        (0.3, None)
    """
    return get(name) if name in names() else None


def _defined_in(module: object) -> type[Objective]:
    classes = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Objective) and member.__module__ == getattr(module, "__name__", None)
    ]
    assert len(classes) == 1, f"{module} defines {len(classes)} objectives; one paper, one file"
    return classes[0]


def _outside(name: str) -> type[Objective]:
    cls = load_outside("objective", name, "package.module:Class")
    if not (inspect.isclass(cls) and issubclass(cls, Objective)):
        raise ValueError(f"expected a subclass of vergence.objectives.Objective, found {quoted(name)}; subclass it")
    return cls
