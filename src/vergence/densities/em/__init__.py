"""Expectation maximization for Gaussian mixtures."""

from vergence.densities.em.fit import (
    Data,
    Mixture,
    Outcome,
    Structure,
    expectation,
    initialize,
    log_joint,
    maximization,
    refine,
    require_settings,
    run,
    structure,
)

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
