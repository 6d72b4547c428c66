"""Recipes of small networks that learn to predict a closed form's embedding before the objective; see ``docs/trained.md``."""

import dataclasses

from vergence.data.config import ViewConfig
from vergence.training import patches_recipes
from vergence.training.config import RunConfig

__all__ = [
    "distilled_contrastive",
    "distilled_gje",
    "distilled_gmje",
    "distilled_gmje_em",
    "distilled_gmje_gng",
    "distilled_gmje_mdn",
    "distilled_gmje_smc",
    "distilled_vje",
]


ENCODER_LR = 0.003  # of the objective's rate: more costs neighbors (docs/trained.md)


def distilled_contrastive(source: str = "cifar10") -> RunConfig:
    """InfoNCE of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_contrastive --limit 10000 --out runs/distilled_contrastive``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(patches_recipes.patches_contrastive(source))


def distilled_gje(source: str = "cifar10") -> RunConfig:
    """GJE of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_gje --limit 10000 --out runs/distilled_gje``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(patches_recipes.patches_gje(source))


def distilled_gmje(source: str = "cifar10") -> RunConfig:
    """GMJE with prototypes of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_gmje --limit 10000 --out runs/distilled_gmje``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(patches_recipes.patches_gmje(source))


def distilled_gmje_em(source: str = "cifar10") -> RunConfig:
    """GMJE-EM of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_gmje_em --limit 10000 --out runs/distilled_gmje_em``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(patches_recipes.patches_gmje_em(source))


def distilled_gmje_gng(source: str = "cifar10") -> RunConfig:
    """GMJE-GNG of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_gmje_gng --limit 10000 --out runs/distilled_gmje_gng``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(patches_recipes.patches_gmje_gng(source))


def distilled_gmje_mdn(source: str = "cifar10") -> RunConfig:
    """GMJE-MDN of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_gmje_mdn --limit 10000 --out runs/distilled_gmje_mdn``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(patches_recipes.patches_gmje_mdn(source))


def distilled_gmje_smc(source: str = "cifar10") -> RunConfig:
    """GMJE-SMC of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_gmje_smc --limit 10000 --out runs/distilled_gmje_smc``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(patches_recipes.patches_gmje_smc(source))


def distilled_vje(source: str = "cifar10") -> RunConfig:
    """VJE of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_vje --limit 10000 --out runs/distilled_vje``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(patches_recipes.patches_vje(source))


def _distilled(behind: RunConfig) -> RunConfig:
    """Returns the settings that these recipes share, from those of the same objective behind the closed form."""
    fit = dataclasses.replace(behind.fit, batch_size=64, encoder_lr=ENCODER_LR)
    views = ViewConfig(crop=(0.5, 1.0), flip=behind.views.flip, jitter=(0.4, 0.4, 0.2, 0.1), grayscale=0.1, blur=0.0)
    model = dataclasses.replace(behind.model, encoder="small", distill="patches")
    return dataclasses.replace(behind, views=views, model=model, fit=fit)
