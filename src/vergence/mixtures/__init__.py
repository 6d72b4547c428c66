"""Conditional densities on fixed data, scikit-learn style: p(target | context) with as many modes as there are.

An independent implementation of ideas in arXiv 2603.26799. The folder is the register: one model, one file.
"""

import difflib
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

__all__ = ["SHORT", "get", "load", "names"]

SHORT = {  # names for the command line
    "gaussian": "conditional_gaussian",
    "mixture": "conditional_mixture",
    "gng": "growing_neural_gas",
    "mdn": "mixture_density_network",
    "kernel": "kernel_conditional",
    "particles": "particle_mixture",
}


def names() -> list[str]:
    """Returns the names of the conditional models in this folder, sorted.

    Example:
        >>> from vergence import mixtures
        >>> "conditional_gaussian" in mixtures.names()
        True
    """
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in ("core", "storage"))


def _classes() -> dict[str, str]:
    """Returns the class of each file: its name in capitals, as in growing_neural_gas, GrowingNeuralGas."""
    return {"".join(part.capitalize() for part in name.split("_")): name for name in names()}


def get(name: str) -> Any:
    """Returns a model's class by its own, its file's or its short name.

    Raises:
        ValueError: There is no such model; the nearest known name is suggested.

    Example:
        >>> from vergence import mixtures
        >>> mixtures.get("conditional_gaussian").__name__
        'ConditionalGaussian'
    """
    file = _classes().get(name, SHORT.get(name, name))
    if file not in names():
        near = difflib.get_close_matches(name, [*SHORT, *names()], n=1)
        hint = f"did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"unknown model '{name}'; known: {', '.join(names())}; {hint}".rstrip("; "))
    module = importlib.import_module(f"{__name__}.{file}")
    found = [c for n, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__ and n in module.__all__]
    assert len(found) == 1, f"{module} holds {len(found)} models; one model, one file"
    return found[0]


def load(path: str | Path) -> Any:
    """Returns the model that ``save`` wrote to a file. Loading runs no code.

    Raises:
        ValueError: The file is missing, damaged, from another version, or names an unknown model.
    """
    from vergence.mixtures.storage import read_model

    return get(read_model(path)[0]["class"]).load(path)


def __getattr__(name: str) -> Any:
    """Loads a model's file when its class is asked for."""
    if name in _classes():
        return get(name)
    raise AttributeError(f"module 'vergence.mixtures' has no attribute '{name}'")
