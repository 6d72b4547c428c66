"""Vergence: probabilistic joint-embedding learning."""

import importlib
from typing import TYPE_CHECKING, Any

from vergence.utils.version import __version__

_NAMES = {
    "Embedder": "runs.callables",
    "PatchFeatures": "encoders.patches",
    "Run": "runs.run",
    "Scorer": "runs.callables",
    "check": "runs.check",
    "compare": "runs.compare",
    "evaluate": "runs.evaluate",
    "load": "runs.run",
    "score": "runs.score",
    "train": "runs.train",
    "write_report": "report.page",
}
_ROOMS: tuple[str, ...] = ("data", "densities", "detection", "encoders", "evaluation", "linear", "methods", "mixtures")
_ROOMS += ("objectives", "report", "runs", "training", "utils")

__all__ = [
    "Embedder",
    "PatchFeatures",
    "Run",
    "Scorer",
    "__version__",
    "check",
    "compare",
    "evaluate",
    "load",
    "score",
    "train",
    "write_report",
    *_ROOMS,
]

if TYPE_CHECKING:
    from vergence.encoders.patches import PatchFeatures
    from vergence.report.page import write_report
    from vergence.runs.callables import Embedder, Scorer
    from vergence.runs.check import check
    from vergence.runs.compare import compare
    from vergence.runs.evaluate import evaluate
    from vergence.runs.run import Run, load
    from vergence.runs.score import score
    from vergence.runs.train import train


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that ``import vergence`` costs nothing."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"vergence.{_NAMES[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"vergence.{name}")
    raise AttributeError(f"module 'vergence' has no attribute '{name}'")
