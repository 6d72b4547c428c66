"""Conditional densities p(target | context) of fixed data with the interface of scikit-learn, and a Gaussian mixture.

An independent implementation of ideas in arXiv 2603.26799. A model is a file of this folder; the imports here are the register.
"""

import sys
from pathlib import Path
from typing import Any

from vergence.mixtures.conditional_gaussian import ConditionalGaussian
from vergence.mixtures.conditional_mixture import ConditionalMixture
from vergence.mixtures.gaussian_mixture import GaussianMixture
from vergence.mixtures.growing_neural_gas import GrowingNeuralGas
from vergence.mixtures.kernel_conditional import KernelConditional
from vergence.mixtures.mixture_density_network import MixtureDensityNetwork
from vergence.mixtures.particle_mixture import ParticleMixture
from vergence.utils.names import unknown

__all__ = ["ConditionalGaussian", "ConditionalMixture", "GaussianMixture", "GrowingNeuralGas", "KernelConditional"]
__all__ += ["MixtureDensityNetwork", "ParticleMixture", "get", "load", "names", "short_names"]

MODELS: tuple[type, ...] = (ConditionalGaussian, ConditionalMixture, GaussianMixture, GrowingNeuralGas, KernelConditional)
MODELS += (MixtureDensityNetwork, ParticleMixture)


def _file(model: type) -> str:
    return model.__module__.rpartition(".")[2]


def names() -> list[str]:
    """Returns the file names of the models in this folder, sorted.

    Example:
        >>> "conditional_gaussian" in names()
        True
    """
    return sorted(map(_file, MODELS))


def short_names() -> dict[str, str]:
    """Returns the short name of each conditional model, which its file declares, with the name of its file.

    Example:
        >>> short_names()["mdn"]
        'mixture_density_network'
    """
    short = {getattr(sys.modules[model.__module__], "SHORT_NAME", ""): _file(model) for model in MODELS}
    return {name: file for name, file in short.items() if name}


def class_files() -> dict[str, str]:
    """Returns the class name of each file with the file's name, for instance GrowingNeuralGas and growing_neural_gas."""
    return {model.__name__: _file(model) for model in MODELS}


def get(name: str) -> Any:
    """Returns a model's class by the name of the class, its file or its short name; the nearest one is suggested for others.

    Example:
        >>> get("gaussian").__name__
        'ConditionalGaussian'
    """
    short, files = short_names(), class_files()
    file = files.get(name, short.get(name, name))
    if file not in names():
        raise unknown("model", name, short, also=[*names(), *files])
    return next(model for model in MODELS if _file(model) == file)


def load(path: str | Path) -> Any:
    """Returns the model that ``save`` wrote to a file. Loading executes no code from the file.

    Raises:
        ValueError: The file is missing, damaged, from another version, or names an unknown model.
    """
    from vergence.mixtures.storage import read_model

    return read_model(path)
