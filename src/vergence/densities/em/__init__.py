"""Expectation maximization of Gaussian mixtures."""

from vergence.densities.em.fit import (
    Data,
    Mixture,
    Outcome,
    Structure,
    expectation,
    log_joint,
    maximization,
    polish,
    require_settings,
    run,
    start,
    structure,
)

__all__ = [
    "Data",
    "Mixture",
    "Outcome",
    "Structure",
    "expectation",
    "log_joint",
    "maximization",
    "polish",
    "require_settings",
    "run",
    "start",
    "structure",
]
