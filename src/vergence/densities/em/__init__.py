"""Expectation maximization for Gaussian mixtures."""

from vergence.densities.em.fit import (
    Data,
    Outcome,
    expectation,
    initialize,
    log_joint,
    maximization,
    refine,
    require_settings,
    run,
    structure,
)
from vergence.densities.em.structures import Mixture, Structure

__all__ = [
    "Data",
    "Mixture",
    "Outcome",
    "Structure",
    "expectation",
    "initialize",
    "log_joint",
    "maximization",
    "refine",
    "require_settings",
    "run",
    "structure",
]
