"""The conditional models by name: a row here gives one its name on the command line and in the contract test."""

from collections.abc import Mapping

from vergence.mixtures.bayesian_line import BayesianLine
from vergence.mixtures.boosted_trees import BoostedTrees
from vergence.mixtures.conditional_mixture import ConditionalGaussian, ConditionalMixture
from vergence.mixtures.core import Conditional
from vergence.mixtures.kernel_conditional import KernelConditional
from vergence.mixtures.mixture_density_network import MixtureDensityNetwork
from vergence.utils.checks import require_choice

# The conditional models by their names on the command line
MODELS: Mapping[str, type[Conditional]] = {
    "gaussian": ConditionalGaussian,
    "kernel": KernelConditional,
    "line": BayesianLine,
    "mdn": MixtureDensityNetwork,
    "mixture": ConditionalMixture,
    "trees": BoostedTrees,
}


def get(name: str) -> type[Conditional]:
    """Returns a conditional model by its short name or the name of its class.

    Args:
        name: One of `MODELS`, such as ``line`` or ``mixture``, or the name of a class, such as ``BayesianLine``.

    Example:
        >>> get("gaussian").__name__
        'ConditionalGaussian'
    """
    kinds = {**MODELS} | {kind.__name__: kind for kind in MODELS.values()}
    if name not in kinds:
        require_choice("a model", name, MODELS, also=kinds)
    return kinds[name]
