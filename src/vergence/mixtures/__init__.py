"""Conditional densities p(target | context) of fixed data with the interface of scikit-learn, and a Gaussian mixture.

An independent implementation of ideas in arXiv 2603.26799. Each model is a file of this folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vergence.mixtures.conditional_mixture import ConditionalGaussian, ConditionalMixture
from vergence.mixtures.core import Conditional
from vergence.mixtures.gaussian_mixture import GaussianMixture
from vergence.mixtures.growing_neural_gas import GrowingNeuralGas
from vergence.mixtures.kernel_conditional import KernelConditional
from vergence.mixtures.mixture_density_network import MixtureDensityNetwork
from vergence.mixtures.others import NormalRegressor
from vergence.mixtures.particle_mixture import ParticleMixture
from vergence.mixtures.plots import plot
from vergence.mixtures.selection import Importance, Selection, choose, folds, importance
from vergence.mixtures.storage import read_model
from vergence.utils.checks import require_choice

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

# The conditional models by their names on the command line
MODELS: Mapping[str, type[Conditional]] = {
    "gaussian": ConditionalGaussian,
    "gng": GrowingNeuralGas,
    "kernel": KernelConditional,
    "mdn": MixtureDensityNetwork,
    "mixture": ConditionalMixture,
    "particles": ParticleMixture,
}


def get(name: str) -> type[Conditional]:
    """Returns a conditional model by its short name or the name of its class.

    Raises:
        ValueError: There is no such model; the nearest known name is suggested.

    Example:
        >>> get("gaussian").__name__
        'ConditionalGaussian'
    """
    kinds = {**MODELS} | {kind.__name__: kind for kind in MODELS.values()}
    if name not in kinds:
        require_choice("a model", name, MODELS, also=kinds)
    return kinds[name]


def load(path: str | Path) -> Any:
    """Returns the model that ``save`` wrote to a file. Loading executes no code from the file.

    Raises:
        ValueError: The file is missing, damaged, from another version, or names an unknown model.
    """
    return read_model(path)
