"""Conditional densities p(target | context) of fixed data with the interface of scikit-learn, and a Gaussian mixture.

An independent implementation of ideas in arXiv 2603.26799. Each model is a file of this folder.
"""

from pathlib import Path
from typing import Any

from vergence.mixtures.conditional_mixture import ConditionalGaussian, ConditionalMixture
from vergence.mixtures.gaussian_mixture import GaussianMixture
from vergence.mixtures.growing_neural_gas import GrowingNeuralGas
from vergence.mixtures.kernel_conditional import KernelConditional
from vergence.mixtures.mixture_density_network import MixtureDensityNetwork
from vergence.mixtures.models import MODELS, get
from vergence.mixtures.others import NormalRegressor
from vergence.mixtures.particle_mixture import ParticleMixture
from vergence.mixtures.plots import plot
from vergence.mixtures.selection import Importance, Selection, choose, folds, importance
from vergence.mixtures.storage import read_model

__all__ = [
    "MODELS",
    "ConditionalGaussian",
    "ConditionalMixture",
    "GaussianMixture",
    "GrowingNeuralGas",
    "Importance",
    "KernelConditional",
    "MixtureDensityNetwork",
    "NormalRegressor",
    "ParticleMixture",
    "Selection",
    "choose",
    "folds",
    "get",
    "importance",
    "load",
    "plot",
]


def load(path: str | Path) -> Any:
    """Returns the model that ``save`` wrote to a file. Loading executes no code from the file.

    Raises:
        ValueError: The file is missing, damaged, from another version, or names an unknown model.
    """
    return read_model(path)
