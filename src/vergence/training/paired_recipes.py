"""Recipes of published methods on pairs of views: a paper's setting, and NAME_small for two CPU cores; see ``docs/methods.md``.

What the published settings have and these lack: a learning rate of its own for biases and normalization (Barlow Twins) or for the
predictor (SimSiam), a learning rate that ends above zero (VICReg, Barlow Twins and SwAV: 0.001 of the peak), small crops (SwAV,
LeJEPA), and views of unlike strengths (BYOL, MoCo v3, Barlow Twins), where each view gets the mean strength here.

Those that end in ``_solo_learn`` are solo-learn's settings on CIFAR-10: ResNet-18, 1,000 epochs, batches of 256. Its LARS has a
trust coefficient of 0.02, and no layer's rate is above the schedule's (``trust_clip``); where a layer's rate is
eta |w| / (|g| + wd |w|) there, it is eta |w| / |g + wd w| here. solo-learn trains on all 50,000 images
(``--calibration-share 0``); its figures are those of an online classifier.
"""

import dataclasses
from typing import Any

from vergence.data.config import DataConfig, ViewConfig
from vergence.training.config import FitConfig, ModelConfig, RunConfig

__all__ = [
    "barlow_twins_imagenet",
    "barlow_twins_small",
    "barlow_twins_solo_learn",
    "byol_cifar10",
    "byol_imagenet",
    "byol_imagenet100",
    "byol_small",
    "byol_solo_learn",
    "contrastive_cifar10",
    "contrastive_imagenet",
    "contrastive_small",
    "contrastive_solo_learn",
    "lejepa_imagenette",
    "lejepa_small",
    "moco_imagenet",
    "moco_small",
    "simsiam_cifar10",
    "simsiam_imagenet",
    "simsiam_small",
    "simsiam_solo_learn",
    "simsiam_vje_cifar10",
    "swav_imagenet",
    "swav_small",
    "vicreg_cifar10",
    "vicreg_imagenet",
    "vicreg_small",
    "vicreg_solo_learn",
    "vicreg_vje_cifar10",
]

ASYMMETRIC = ViewConfig(crop=(0.08, 1.0), jitter=(0.4, 0.4, 0.2, 0.1), blur=0.55, solarize=0.1)  # means of BYOL's two views
MOCO = ViewConfig()  # MoCo v2's
NO_BLUR = ViewConfig(blur=0.0)
UNLIKE = dataclasses.replace(ASYMMETRIC, blur=0.0)  # the same on CIFAR-10
SOLARIZED = dataclasses.replace(NO_BLUR, jitter=(0.4, 0.4, 0.2, 0.1), solarize=0.1)  # VICReg's in solo-learn, on CIFAR-10
VJES: dict[str, Any] = {"epochs": 800, "optimizer": "sgd", "lr": 0.05, "weight_decay": 5e-6, "warmup_epochs": 0}
LARC: dict[str, Any] = {"trust": 0.02, "trust_clip": True}
SIMCLR = ViewConfig(crop=(0.08, 1.0), jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5)


def byol_imagenet(source: str = "imagenet") -> RunConfig:
    """BYOL on ImageNet-1K for 100 epochs: ResNet-50, heads of 4096 and 256, LARS 0.45 per 256 images at batch 4096.

    Command: ``vergence train PATH --recipe byol_imagenet --devices 8 --out runs/byol_imagenet``
    Device and time: eight data-center GPUs, about 46 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (arXiv:2006.07733): linear probe 74.3 (top-1) after 1,000 epochs. This is lightly's setting for 100 epochs: momentum
    from 0.99 to 1, weight decay 1e-6, 10 epochs of warm-up.
    """
    model = _model("byol", (4096, 256), "batch", {"hidden": 4096})
    return _imagenet(source, model, ASYMMETRIC, epochs=100, batch_size=4096, optimizer="lars", lr=0.45 * 16, weight_decay=1e-6)


def byol_cifar10(source: str = "cifar10") -> RunConfig:
    """BYOL on CIFAR-10 as in the comparison of arXiv:2505.12477: LARS 5, batch 256, 1,000 epochs; here ResNet-18.

    Command: ``vergence train cifar10 --recipe byol_cifar10 --out runs/byol_cifar10``
    Device and time: one data-center GPU, about 2.5 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (solo-learn, ResNet-18, 1,000 epochs, LARS 1.0 with a trust coefficient of 0.02): online classifier 92.58.
    """
    model = _model("byol", (2048, 128), "batch", {"hidden": 2048}, "resnet18-cifar")
    return _cifar10(source, model, UNLIKE, lr=5.0)


def byol_imagenet100(source: str = "imagenet100") -> RunConfig:
    """BYOL on ImageNet-100 as in the comparison of arXiv:2505.12477: ResNet-50, LARS 0.45, batch 256, 500 epochs.

    Command: ``vergence train PATH --recipe byol_imagenet100 --devices 2 --out runs/byol_imagenet100``
    Device and time: two data-center GPUs, about 23 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (arXiv:2505.12477, table 1), on corrupted images: linear probe 66.7 (pixelate, severity 1) to 56.4 (noise, severity 5).
    """
    model = _model("byol", (4096, 256), "batch", {"hidden": 4096})
    return _imagenet(source, model, ASYMMETRIC, epochs=500, batch_size=256, optimizer="lars", lr=0.45, weight_decay=1e-6)


def simsiam_imagenet(source: str = "imagenet") -> RunConfig:
    """SimSiam on ImageNet-1K for 100 epochs: ResNet-50, three layers of 2048, SGD 0.05 per 256 images at batch 512.

    Command: ``vergence train PATH --recipe simsiam_imagenet --devices 8 --out runs/simsiam_imagenet``
    Device and time: eight data-center GPUs, about 35 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (arXiv:2011.10566): linear probe 68.1 (top-1), with the predictor's learning rate kept constant; 67.7 without.
    """
    model = _model("simsiam", (2048, 2048, 2048), "batch_last", {"hidden": 512})
    return _imagenet(source, model, MOCO, epochs=100, batch_size=512, lr=0.1, weight_decay=1e-4, warmup_epochs=0)


def simsiam_cifar10(source: str = "cifar10") -> RunConfig:
    """SimSiam on CIFAR-10 as in its paper's appendix: ResNet-18, two layers of 2048, SGD 0.03 per 256 images, 800 epochs.

    Command: ``vergence train cifar10 --recipe simsiam_cifar10 --out runs/simsiam_cifar10``
    Device and time: one data-center GPU, about 1.5 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (solo-learn, ResNet-18, 1,000 epochs, its own setting): online classifier 90.51.
    """
    model = _model("simsiam", (2048, 2048), "batch_last", {"hidden": 512}, "resnet18-cifar")
    fit = {"epochs": 800, "batch_size": 512, "optimizer": "sgd", "lr": 0.06, "weight_decay": 5e-4, "warmup_epochs": 0}
    return _cifar10(source, model, NO_BLUR, **fit)


def simsiam_vje_cifar10(source: str = "cifar10") -> RunConfig:
    """SimSiam as VJE's paper compares with it: ResNet-18, two layers of 2048, and VJE's schedule (`vje_cifar10`).

    Command: ``vergence train cifar10 --recipe simsiam_vje_cifar10 --out runs/simsiam_vje``
    Device and time: one data-center GPU, about 1.5 GPU-hours by its operations (``docs/methods.md``); not run by us.
    VJE's paper (table 2): kNN (k = 30) 90.60, linear probe 91.8.
    """
    return _cifar10(source, _model("simsiam", (2048, 2048), "batch_last", {"hidden": 512}, "resnet18-cifar"), NO_BLUR, **VJES)


def vicreg_vje_cifar10(source: str = "cifar10") -> RunConfig:
    """VICReg as VJE's paper compares with it: ResNet-18, three layers of 4096, and VJE's schedule (`vje_cifar10`).

    Command: ``vergence train cifar10 --recipe vicreg_vje_cifar10 --out runs/vicreg_vje``
    Device and time: one data-center GPU, about 1.6 GPU-hours by its operations (``docs/methods.md``); not run by us.
    VJE's paper (table 2): kNN (k = 30) 86.37, linear probe 89.4. That schedule is not VICReg's own, with which solo-learn reports
    92.07 (`vicreg_solo_learn`).
    """
    return _cifar10(source, _model("vicreg", (4096, 4096, 4096), "batch", {}, "resnet18-cifar"), NO_BLUR, **VJES)


def vicreg_imagenet(source: str = "imagenet") -> RunConfig:
    """VICReg on ImageNet-1K: ResNet-50, three layers of 8192, LARS 0.2 per 256 images at batch 2048, 1,000 epochs.

    Command: ``vergence train PATH --recipe vicreg_imagenet --devices 32 --out runs/vicreg_imagenet``
    Device and time: 32 data-center GPUs, about 360 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (arXiv:2105.04906): linear probe 73.2 (top-1).
    """
    model = _model("vicreg", (8192, 8192, 8192), "batch")
    return _imagenet(source, model, ASYMMETRIC, epochs=1000, batch_size=2048, optimizer="lars", lr=1.6, weight_decay=1e-6)


def vicreg_cifar10(source: str = "cifar10") -> RunConfig:
    """VICReg on CIFAR-10 as in the comparison of arXiv:2505.12477: LARS 5, batch 256, 1,000 epochs; here ResNet-18.

    Command: ``vergence train cifar10 --recipe vicreg_cifar10 --out runs/vicreg_cifar10``
    Device and time: one data-center GPU, about 1.9 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (solo-learn, ResNet-18, 1,000 epochs, LARS 0.3 with a trust coefficient of 0.02): online classifier 92.07.
    """
    model = _model("vicreg", (2048, 2048, 2048), "batch", {}, "resnet18-cifar")
    return _cifar10(source, model, dataclasses.replace(SOLARIZED, crop=(0.08, 1.0)), lr=5.0)


def barlow_twins_imagenet(source: str = "imagenet") -> RunConfig:
    """Barlow Twins on ImageNet-1K: ResNet-50, three layers of 8192, LARS 0.2 per 256 images at batch 2048, 1,000 epochs.

    Command: ``vergence train PATH --recipe barlow_twins_imagenet --devices 32 --out runs/barlow_twins_imagenet``
    Device and time: 32 data-center GPUs, about 360 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (arXiv:2103.03230): linear probe 73.2 (top-1), with 0.0048 per 256 images for biases and normalization.
    """
    model = _model("barlow_twins", (8192, 8192, 8192), "batch", {"redundancy": 0.0051})
    return _imagenet(source, model, ASYMMETRIC, epochs=1000, batch_size=2048, optimizer="lars", lr=1.6, weight_decay=1e-6)


def moco_imagenet(source: str = "imagenet") -> RunConfig:
    """MoCo v3 on ImageNet-1K: ResNet-50, heads of 4096 and 256, LARS 0.3 per 256 images at batch 4096, 300 epochs, tau = 1.

    As the released code, with crops from 0.2 of the image and no batch normalization behind the predictor.

    Command: ``vergence train PATH --recipe moco_imagenet --devices 16 --out runs/moco_imagenet``
    Device and time: 16 data-center GPUs, about 140 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (facebookresearch/moco-v3): linear probe 72.8 (top-1).
    """
    model = _model("moco", (4096, 256), "batch_last", {"hidden": 4096, "temperature": 1.0, "last_norm": False})
    views = dataclasses.replace(ASYMMETRIC, crop=(0.2, 1.0))
    return _imagenet(source, model, views, epochs=300, batch_size=4096, optimizer="lars", lr=4.8, weight_decay=1e-6)


def swav_imagenet(source: str = "imagenet") -> RunConfig:
    """SwAV on ImageNet-1K without small crops: ResNet-50, 3,000 prototypes, LARS 4.8 at batch 4096, 400 epochs.

    Command: ``vergence train PATH --recipe swav_imagenet --devices 64 --out runs/swav_imagenet``
    Device and time: 64 data-center GPUs, about 140 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (facebookresearch/swav, 2 x 224 pixels): linear probe 70.1 (top-1).
    """
    model = _model("swav", (2048, 128), "batch")
    views = ViewConfig(crop=(0.08, 1.0), jitter=(0.8, 0.8, 0.8, 0.2))
    return _imagenet(source, model, views, epochs=400, batch_size=4096, optimizer="lars", lr=4.8, weight_decay=1e-6)


def lejepa_imagenette(source: str = "imagenette") -> RunConfig:
    """LeJEPA on Imagenette as in its authors' minimal example, with two views: ViT-S/8, 128 pixels, AdamW 2e-3, 800 epochs.

    Command: ``vergence train PATH --recipe lejepa_imagenette --out runs/lejepa_imagenette`` (needs the extra timm)
    Device and time: one data-center GPU, about 3.1 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (rbalestr-lab/lejepa, four views, lambda 0.02, 256 directions): linear probe 90.7, 200 minutes.
    """
    model = _model("lejepa", (2048, 2048, 16), "batch", {"weight": 0.02, "slices": 256}, "timm:vit_small_patch8_224")
    views = ViewConfig(crop=(0.08, 1.0), jitter=(0.8, 0.8, 0.8, 0.2), solarize=0.2)
    fit = FitConfig(epochs=800, batch_size=256, optimizer="adamw", lr=2e-3, weight_decay=0.05, warmup_epochs=1, workers=8)
    return RunConfig(data=DataConfig(source=source, size=128), views=views, model=model, fit=fit)


def byol_small(source: str = "cifar10") -> RunConfig:
    """BYOL with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe byol_small --limit 10000 --out runs/byol``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 43 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, _model("byol", (512, 128), "batch", {"hidden": 512}, "small"))


def contrastive_cifar10(source: str = "cifar10") -> RunConfig:
    """SimCLR on CIFAR-10: ResNet-18, a head of 2048, 2048 and 256, temperature 0.5, LARS 5, 1,000 epochs.

    Command: ``vergence train cifar10 --recipe contrastive_cifar10 --out runs/contrastive_cifar10``
    Device and time: one data-center GPU, about 1.9 GPU-hours by its operations (``docs/methods.md``); not run by us.
    It is the CIFAR-10 setting of arXiv:2505.12477, there with a ResNet-50; solo-learn reports 90.74 for another setting.
    """
    model = _model("contrastive", (2048, 2048, 256), "batch", {"temperature": 0.5}, "resnet18-cifar")
    return _cifar10(source, model, dataclasses.replace(SIMCLR, blur=0.0), lr=5.0)


def contrastive_imagenet(source: str = "imagenet") -> RunConfig:
    """SimCLR on ImageNet-1K for 100 epochs: ResNet-50, a head of 2048 and 128, temperature 0.1, LARS 0.075 sqrt(4096).

    Command: ``vergence train PATH --recipe contrastive_imagenet --devices 8 --out runs/contrastive_imagenet``
    Device and time: eight data-center GPUs, about 35 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reported (arXiv:2011.10566, table 4): linear probe 66.5 (top-1), reproduced by its authors, of SimCLR (arXiv:2002.05709).
    """
    model = _model("contrastive", (2048, 128), "batch", {"temperature": 0.1})
    return _imagenet(source, model, SIMCLR, epochs=100, batch_size=4096, optimizer="lars", lr=4.8, weight_decay=1e-6)


def contrastive_small(source: str = "cifar10") -> RunConfig:
    """SimCLR with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe contrastive_small --limit 10000 --out runs/contrastive``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 51 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    The temperature is 0.2, as in MoCo v2.
    """
    return _small(source, _model("contrastive", (512, 128), "batch", {}, "small"))


def simsiam_small(source: str = "cifar10") -> RunConfig:
    """SimSiam with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe simsiam_small --limit 10000 --out runs/simsiam``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 46 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, _model("simsiam", (512, 512), "batch_last", {"hidden": 128}, "small"))


def vicreg_small(source: str = "cifar10") -> RunConfig:
    """VICReg with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe vicreg_small --limit 10000 --out runs/vicreg``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 48 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, _model("vicreg", (512, 512, 512), "batch", {}, "small"))


def barlow_twins_small(source: str = "cifar10") -> RunConfig:
    """Barlow Twins with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe barlow_twins_small --limit 10000 --out runs/barlow_twins``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 48 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, _model("barlow_twins", (512, 512, 512), "batch", {}, "small"))


def moco_small(source: str = "cifar10") -> RunConfig:
    """MoCo v3 with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe moco_small --limit 10000 --out runs/moco``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 47 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, _model("moco", (512, 128), "batch_last", {"hidden": 512}, "small"))


def swav_small(source: str = "cifar10") -> RunConfig:
    """SwAV with four 3x3 convolutions and as many prototypes as the batch has items, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe swav_small --limit 10000 --out runs/swav``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 47 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, _model("swav", (512, 128), "batch", {"prototypes": 128, "frozen_steps": 62}, "small"))


def lejepa_small(source: str = "cifar10") -> RunConfig:
    """LeJEPA with four 3x3 convolutions and 256 directions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe lejepa_small --limit 10000 --out runs/lejepa``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 50 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, _model("lejepa", (512, 512, 64), "batch", {"slices": 256}, "small"))


def barlow_twins_solo_learn(source: str = "cifar10") -> RunConfig:
    """Barlow Twins on CIFAR-10 as in solo-learn: three layers of 2048, a tenth of the loss, LARS 0.3.

    Command: ``vergence train cifar10 --recipe barlow_twins_solo_learn --calibration-share 0 --out runs/barlow_twins``
    Device and time: one data-center GPU, about 1.9 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (solo-learn): online classifier 92.10.
    """
    model = _model("barlow_twins", (2048, 2048, 2048), "batch", {"redundancy": 0.0051, "scale": 0.1}, "resnet18-cifar")
    return _cifar10(source, model, UNLIKE, **LARC, lr=0.3, weight_decay=1e-4)


def byol_solo_learn(source: str = "cifar10") -> RunConfig:
    """BYOL on CIFAR-10 as in solo-learn: heads of 4096 and 256, momentum from 0.99 to 1, LARS 1.0.

    Command: ``vergence train cifar10 --recipe byol_solo_learn --calibration-share 0 --out runs/byol``
    Device and time: one data-center GPU, about 2.5 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (solo-learn): online classifier 92.58.
    """
    model = _model("byol", (4096, 256), "batch", {"hidden": 4096}, "resnet18-cifar")
    return _cifar10(source, model, UNLIKE, **LARC, lr=1.0, weight_decay=1e-5)


def contrastive_solo_learn(source: str = "cifar10") -> RunConfig:
    """SimCLR on CIFAR-10 as in solo-learn: a head of 2048 and 256, temperature 0.2, LARS 0.4.

    Command: ``vergence train cifar10 --recipe contrastive_solo_learn --calibration-share 0 --out runs/contrastive``
    Device and time: one data-center GPU, about 1.9 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (solo-learn, whose head has no normalization): online classifier 90.74.
    """
    model = _model("contrastive", (2048, 256), "batch", {"temperature": 0.2}, "resnet18-cifar")
    return _cifar10(source, model, SIMCLR, **LARC, lr=0.4, weight_decay=1e-4)


def simsiam_solo_learn(source: str = "cifar10") -> RunConfig:
    """SimSiam on CIFAR-10 as in solo-learn: three layers of 2048, a predictor of 512, SGD 0.5.

    Command: ``vergence train cifar10 --recipe simsiam_solo_learn --calibration-share 0 --out runs/simsiam``
    Device and time: one data-center GPU, about 1.9 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (solo-learn, with the predictor's learning rate kept constant): online classifier 90.51.
    """
    views = ViewConfig(crop=(0.08, 1.0), blur=0.5)
    model = _model("simsiam", (2048, 2048, 2048), "batch_last", {"hidden": 512}, "resnet18-cifar")
    return _cifar10(source, model, views, optimizer="sgd", lr=0.5, weight_decay=1e-5)


def vicreg_solo_learn(source: str = "cifar10") -> RunConfig:
    """VICReg on CIFAR-10 as in solo-learn: three layers of 2048, weights 25, 25, 1, LARS 0.3.

    Command: ``vergence train cifar10 --recipe vicreg_solo_learn --calibration-share 0 --out runs/vicreg``
    Device and time: one data-center GPU, about 1.9 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Reference (solo-learn): online classifier 92.07. It adds the variances' terms of the two views, which are averaged here: the
    weight is 50 for that reason.
    """
    model = _model("vicreg", (2048, 2048, 2048), "batch", {"variance": 50.0}, "resnet18-cifar")
    return _cifar10(source, model, SOLARIZED, **LARC, lr=0.3, weight_decay=1e-4)


def _model(
    objective: str,
    projector: tuple[int, ...],
    norm: Any,
    options: dict[str, Any] | None = None,
    encoder: str = "resnet50-imagenet",
) -> ModelConfig:
    return ModelConfig(encoder=encoder, objective=objective, options=options or {}, projector=projector, projector_norm=norm)


def _imagenet(source: str, model: ModelConfig, views: ViewConfig, **fit: Any) -> RunConfig:
    settings = FitConfig(**{"warmup_epochs": 10, "workers": 8, "knn_every": 10, **fit})
    return RunConfig(data=DataConfig(source=source, size=224), views=views, model=model, fit=settings)


def _cifar10(source: str, model: ModelConfig, views: ViewConfig, **fit: Any) -> RunConfig:
    common = {"epochs": 1000, "batch_size": 256, "optimizer": "lars", "weight_decay": 1e-6, "warmup_epochs": 10, "knn_every": 20}
    return RunConfig(data=DataConfig(source=source), views=views, model=model, fit=FitConfig(**{**common, **fit}))


def _small(source: str, model: ModelConfig) -> RunConfig:
    """Returns the setting that all methods share on two CPU cores: AdamW 2e-3 with batches of 128."""
    fit = FitConfig(epochs=30, batch_size=128, optimizer="adamw", lr=2e-3, weight_decay=1e-4, warmup_epochs=1)
    return RunConfig(data=DataConfig(source=source), views=NO_BLUR, model=model, fit=fit)
