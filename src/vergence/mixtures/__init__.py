"""Conditional densities p(target | context) of fixed data with the interface of scikit-learn, and a Gaussian mixture.

An independent implementation of ideas in arXiv 2603.26799. Each model is a file of this folder, which is found by its name.
"""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

from vergence.utils.names import unknown

__all__ = ["get", "load", "names", "short_names"]


def names() -> list[str]:
    """Returns the file names of the models in this folder, sorted.

    Example:
        >>> from vergence import mixtures
        >>> "conditional_gaussian" in mixtures.names()
        True
    """
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in ("core", "storage"))


def short_names() -> dict[str, str]:
    """Returns the short name of each conditional model with the name of its file.

    A file declares it as ``SHORT_NAME = "..."``. The text is searched for that line, so that no file is imported.

    Example:
        >>> from vergence import mixtures
        >>> mixtures.short_names()["mdn"]
        'mixture_density_network'
    """
    texts = {name: Path(__path__[0], f"{name}.py").read_text(encoding="utf-8") for name in names()}
    lines = {name: re.search(r'^SHORT_NAME = "(\w+)"$', text, re.MULTILINE) for name, text in texts.items()}
    return {line[1]: name for name, line in lines.items() if line}


def class_files() -> dict[str, str]:
    """Returns the class name of each file with the file's name, for instance GrowingNeuralGas and growing_neural_gas."""
    return {"".join(part.capitalize() for part in name.split("_")): name for name in names()}


def get(name: str) -> Any:
    """Returns a model's class by the name of the class, its file or its short name.

    Raises:
        ValueError: There is no such model; the nearest known name is suggested.

    Example:
        >>> from vergence import mixtures
        >>> mixtures.get("gaussian").__name__
        'ConditionalGaussian'
    """
    short = short_names()
    file = class_files().get(name, short.get(name, name))
    if file not in names():
        raise unknown("model", name, short, also=[*names(), *class_files()])
    module = importlib.import_module(f"{__name__}.{file}")
    members = inspect.getmembers(module, inspect.isclass)
    models = [c for n, c in members if c.__module__ == module.__name__ and n in module.__all__]
    assert len(models) == 1, f"{module} holds {len(models)} models; one model, one file"
    return models[0]


def load(path: str | Path) -> Any:
    """Returns the model that ``save`` wrote to a file. Loading executes no code from the file.

    Raises:
        ValueError: The file is missing, damaged, from another version, or names an unknown model.
    """
    from vergence.mixtures.storage import read_model

    return read_model(path)


def __dir__() -> list[str]:
    """Returns the public names, with the classes of the models."""
    return sorted([*__all__, *class_files()])


def __getattr__(name: str) -> Any:
    """Imports a model's file when its class is first used."""
    if name in class_files():
        return get(name)
    raise AttributeError(f"module 'vergence.mixtures' has no attribute '{name}'")
