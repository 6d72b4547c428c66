"""Vergence: probabilistic joint-embedding learning."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

_NAMES = {"Run": "api", "evaluate": "protocol", "load": "api", "train": "api", "write_report": "report"}
_MODULES = (
    "decoding",
    "densities",
    "evaluation",
    "linalg",
    "linear",
    "mixtures",
    "networks",
    "neural_gas",
    "objectives",
    "recipes",
    "report",
    "resampling",
    "training",
    "views",
)

__all__ = ["Run", "__version__", "evaluate", "load", "train", "write_report", *_MODULES]

if TYPE_CHECKING:
    from vergence.api import Run, load, train
    from vergence.protocol import evaluate
    from vergence.report import write_report


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that ``import vergence`` costs nothing."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"vergence.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"vergence.{name}")
    raise AttributeError(f"module 'vergence' has no attribute '{name}'")
