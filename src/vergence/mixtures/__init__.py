"""p(target | context) and p(x) as mixtures: estimators in scikit-learn's style on fixed vectors, and the choice among them.

Names are loaded when they are asked for, so that who needs a Gaussian does not load a network.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.densities.storage import read_model

if TYPE_CHECKING:
    from vergence.mixtures.bayesian_line import BayesianLine
    from vergence.mixtures.boosted_trees import BoostedTrees
    from vergence.mixtures.conditional_mixture import ConditionalGaussian, ConditionalMixture
    from vergence.mixtures.gaussian_mixture import GaussianMixture
    from vergence.mixtures.growing_neural_gas import GrowingNeuralGas
    from vergence.mixtures.kernel_conditional import KernelConditional
    from vergence.mixtures.log_scale import LogScale
    from vergence.mixtures.mixture_density_network import MixtureDensityNetwork
    from vergence.mixtures.models import MODELS, get
    from vergence.mixtures.others import NormalRegressor
    from vergence.mixtures.particle_mixture import ParticleMixture
    from vergence.mixtures.plots import plot
    from vergence.mixtures.selection import Importance, Selection, choose, folds, importance

_HOMES = {
    "bayesian_line": ("BayesianLine",),
    "boosted_trees": ("BoostedTrees",),
    "conditional_mixture": ("ConditionalGaussian", "ConditionalMixture"),
    "gaussian_mixture": ("GaussianMixture",),
    "growing_neural_gas": ("GrowingNeuralGas",),
    "kernel_conditional": ("KernelConditional",),
    "log_scale": ("LogScale",),
    "mixture_density_network": ("MixtureDensityNetwork",),
    "models": ("MODELS", "get"),
    "others": ("NormalRegressor",),
    "particle_mixture": ("ParticleMixture",),
    "plots": ("plot",),
    "selection": ("Importance", "Selection", "choose", "folds", "importance"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["MODELS", "BayesianLine", "BoostedTrees", "ConditionalGaussian", "ConditionalMixture", "GaussianMixture"]
__all__ += ["GrowingNeuralGas", "Importance", "KernelConditional", "LogScale", "MixtureDensityNetwork", "NormalRegressor"]
__all__ += ["ParticleMixture", "Selection", "choose", "folds", "get", "importance", "load", "plot"]


def __getattr__(name: str) -> Any:
    """Loads the file of a name."""
    if name in _HOME:
        return getattr(importlib.import_module(f"vergence.mixtures.{_HOME[name]}"), name)
    raise AttributeError(f"module 'vergence.mixtures' has no attribute '{name}'")


def load(path: str | Path) -> Any:
    """Returns the model that ``save`` wrote to a file. Loading executes no code from the file."""
    return read_model(path)
