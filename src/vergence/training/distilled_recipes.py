"""Recipes of small networks that learn to predict a closed form's embedding before the objective; see ``docs/trained.md``."""

import dataclasses

from vergence.training.config import FitConfig, ModelConfig, RunConfig
from vergence.training.patches_recipes import patches

__all__ = ["distilled_contrastive", "distilled_gje", "distilled_gmje", "distilled_gmje_smc", "distilled_vje"]


def distilled_vje(source: str = "cifar10") -> RunConfig:
    """VJE of a small network that learned to predict the embedding of `patches` before.

    Command: ``vergence train cifar10 --recipe distilled_vje --limit 10000 --out runs/distilled_vje``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _distilled(source, ModelConfig(objective="vje"))


def _distilled(source: str, model: ModelConfig) -> RunConfig:
    """Returns the settings that these recipes share, for a model's objective and its head."""
    base = patches(source)
    fit = FitConfig(
        epochs=2,
        warmup_epochs=0.2,
        batch_size=64,
        optimizer="adamw",
        lr=2e-3,
        encoder_lr=0.03,
        weight_decay=1e-4,
        clip=5.0,
        knn_every=1,
    )
    views = dataclasses.replace(base.views, crop=(0.5, 1.0))
    return dataclasses.replace(base, views=views, model=dataclasses.replace(model, encoder="small", distill="patches"), fit=fit)
