"""Recipes of solo-learn's comparison on CIFAR-10: ResNet-18, 1,000 epochs, batches of 256; see ``docs/methods.md``.

LARS has a trust coefficient of 0.02, and no layer's rate is above the schedule's (``trust_clip``). Where a layer's rate is
eta |w| / (|g| + wd |w|) in solo-learn, it is eta |w| / |g + wd w| here. Each view of BYOL and Barlow Twins has the mean strength
of the two unlike ones. solo-learn trains on all 50,000 images (``--calibration-share 0``); its figures are those of an online
classifier.
"""

from typing import Any

from vergence.data.config import DataConfig, ViewConfig
from vergence.training.config import FitConfig, ModelConfig, RunConfig

__all__ = [
    "barlow_twins_solo_learn",
    "byol_solo_learn",
    "contrastive_solo_learn",
    "simsiam_solo_learn",
    "vicreg_solo_learn",
]

UNLIKE = ViewConfig(crop=(0.08, 1.0), jitter=(0.4, 0.4, 0.2, 0.1), blur=0.0, solarize=0.1)


def barlow_twins_solo_learn(source: str = "cifar10") -> RunConfig:
    """Barlow Twins on CIFAR-10 as in solo-learn: three layers of 2048, a tenth of the loss, LARS 0.3.

    Command: ``vergence train cifar10 --recipe barlow_twins_solo_learn --calibration-share 0 --out runs/barlow_twins``
    Device and time: one data-center GPU; not run by us.
    Reference (solo-learn): online classifier 92.10.
    """
    model = _model("barlow_twins", (2048, 2048, 2048), "batch", {"redundancy": 0.0051, "scale": 0.1})
    return _recipe(source, model, UNLIKE, lr=0.3, weight_decay=1e-4)


def byol_solo_learn(source: str = "cifar10") -> RunConfig:
    """BYOL on CIFAR-10 as in solo-learn: heads of 4096 and 256, momentum from 0.99 to 1, LARS 1.0.

    Command: ``vergence train cifar10 --recipe byol_solo_learn --calibration-share 0 --out runs/byol``
    Device and time: one data-center GPU; not run by us.
    Reference (solo-learn): online classifier 92.58.
    """
    return _recipe(source, _model("byol", (4096, 256), "batch", {"hidden": 4096}), UNLIKE, lr=1.0, weight_decay=1e-5)


def contrastive_solo_learn(source: str = "cifar10") -> RunConfig:
    """SimCLR on CIFAR-10 as in solo-learn: a head of 2048 and 256, temperature 0.2, LARS 0.4.

    Command: ``vergence train cifar10 --recipe contrastive_solo_learn --calibration-share 0 --out runs/contrastive``
    Device and time: one data-center GPU; not run by us.
    Reference (solo-learn, whose head has no normalization): online classifier 90.74.
    """
    views = ViewConfig(crop=(0.08, 1.0), jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5)
    return _recipe(source, _model("contrastive", (2048, 256), "batch", {"temperature": 0.2}), views, lr=0.4, weight_decay=1e-4)


def simsiam_solo_learn(source: str = "cifar10") -> RunConfig:
    """SimSiam on CIFAR-10 as in solo-learn: three layers of 2048, a predictor of 512, SGD 0.5.

    Command: ``vergence train cifar10 --recipe simsiam_solo_learn --calibration-share 0 --out runs/simsiam``
    Device and time: one data-center GPU; not run by us.
    Reference (solo-learn, with the predictor's learning rate kept constant): online classifier 90.51.
    """
    views = ViewConfig(crop=(0.08, 1.0), blur=0.5)
    model = _model("simsiam", (2048, 2048, 2048), "batch_last", {"hidden": 512})
    return _recipe(source, model, views, optimizer="sgd", lr=0.5, weight_decay=1e-5)


def vicreg_solo_learn(source: str = "cifar10") -> RunConfig:
    """VICReg on CIFAR-10 as in solo-learn: three layers of 2048, weights 25, 25, 1, LARS 0.3.

    Command: ``vergence train cifar10 --recipe vicreg_solo_learn --calibration-share 0 --out runs/vicreg``
    Device and time: one data-center GPU; not run by us.
    Reference (solo-learn): online classifier 92.07. It adds the variances' terms of the two views, which are averaged here: the
    weight is 50 for that reason.
    """
    views = ViewConfig(jitter=(0.4, 0.4, 0.2, 0.1), blur=0.0, solarize=0.1)
    return _recipe(source, _model("vicreg", (2048, 2048, 2048), "batch", {"variance": 50.0}), views, lr=0.3, weight_decay=1e-4)


def _model(objective: str, projector: tuple[int, ...], norm: Any, options: dict[str, Any]) -> ModelConfig:
    return ModelConfig(encoder="resnet18-cifar", objective=objective, options=options, projector=projector, projector_norm=norm)


def _recipe(source: str, model: ModelConfig, views: ViewConfig, **fit: Any) -> RunConfig:
    common = {"epochs": 1000, "batch_size": 256, "optimizer": "lars", "warmup_epochs": 10, "knn_every": 20}
    trust = {"trust": 0.02, "trust_clip": True} if "optimizer" not in fit else {}
    return RunConfig(data=DataConfig(source=source), views=views, model=model, fit=FitConfig(**{**common, **trust, **fit}))
