"""p(target | context) and p(x) as mixtures: estimators in scikit-learn's style on fixed vectors, and the choice among them.

Names are loaded when they are asked for, so that who needs a Gaussian does not load a network.
"""

import importlib
import re
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
    from vergence.mixtures.others import FromQuantiles, GaussianRegressor
    from vergence.mixtures.particle_mixture import ParticleMixture
    from vergence.mixtures.plots import plot
    from vergence.mixtures.random_intercepts import RandomIntercepts
    from vergence.mixtures.selection import Importance, Selection, choose, folds, importance

_HOME = dict.fromkeys(("Importance", "Selection", "choose", "folds", "importance"), "selection")  # where it is not the name's
_HOME |= {"MODELS": "models", "get": "models", "plot": "plots", "ConditionalGaussian": "conditional_mixture"}
_HOME |= dict.fromkeys(("FromQuantiles", "GaussianRegressor"), "others")

__all__ = ["MODELS", "BayesianLine", "BoostedTrees", "ConditionalGaussian", "ConditionalMixture", "FromQuantiles"]
__all__ += ["GaussianMixture", "GrowingNeuralGas", "Importance", "KernelConditional", "LogScale", "MixtureDensityNetwork"]
__all__ += ["GaussianRegressor", "ParticleMixture", "RandomIntercepts", "Selection", "choose", "folds", "get", "importance"]
__all__ += ["load", "plot"]


def __getattr__(name: str) -> Any:
    """Loads the file of a name, which a class is named after."""
    if name in __all__:
        home = _HOME.get(name) or re.sub("(?<=.)(?=[A-Z])", "_", name).lower()
        return getattr(importlib.import_module(f"vergence.mixtures.{home}"), name)
    raise AttributeError(f"module 'vergence.mixtures' has no attribute '{name}'")


def load(path: str | Path) -> Any:
    """Returns the model that ``save`` wrote to a file. Loading executes no code from the file.

    Args:
        path: ``.safetensors`` file.

    Example:
        >>> import tempfile, vergence
        >>> file = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> vergence.mixtures.get("gaussian")().fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).save(file)
        >>> load(file).predict([[3.0]]).round(2)
        array([3.])
    """
    return read_model(path)
