"""p(target | context) and p(x) as mixtures: estimators in scikit-learn's style on fixed vectors, and the choice among them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.densities.storage import read_model
from vergence.utils.lazy import on_request

if TYPE_CHECKING:
    from vergence.mixtures.bayesian_line import BayesianLine
    from vergence.mixtures.boosted_trees import BoostedTrees
    from vergence.mixtures.conditional_mixture import ConditionalGaussian, ConditionalMixture
    from vergence.mixtures.gaussian_mixture import GaussianMixture
    from vergence.mixtures.kernel_conditional import KernelConditional
    from vergence.mixtures.mixture_density_network import MixtureDensityNetwork
    from vergence.mixtures.models import MODELS, get
    from vergence.mixtures.others import FromQuantiles, GaussianRegressor, LogScale
    from vergence.mixtures.random_intercepts import RandomIntercepts
    from vergence.mixtures.selection import Importance, Selection, choose, folds, importance
else:
    __getattr__, __dir__ = on_request(__name__)

__all__ = ["MODELS", "BayesianLine", "BoostedTrees", "ConditionalGaussian", "ConditionalMixture", "FromQuantiles"]
__all__ += ["GaussianMixture", "GaussianRegressor", "Importance", "KernelConditional", "LogScale", "MixtureDensityNetwork"]
__all__ += ["RandomIntercepts", "Selection", "choose", "folds", "get", "importance", "load"]


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
