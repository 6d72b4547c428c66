"""Recipes of the methods on images: the published setting under the method's name, and NAME_small for two CPU cores.

The denoising and the variational autoencoder have no published setting here: their papers' networks are fully connected.
"""

from typing import Any

from vergence.data.config import DataConfig, ViewConfig, usual_flip
from vergence.training.config import FitConfig, ModelConfig, RunConfig

__all__ = [
    "denoising_autoencoder_small",
    "dino",
    "dino_small",
    "i_jepa",
    "i_jepa_small",
    "masked_autoencoder",
    "masked_autoencoder_small",
    "variational_autoencoder_small",
]

BASE = "timm:vit_base_patch16_224"
TINY = "embed_dim=96,depth=4,num_heads=3"


def masked_autoencoder(source: str = "imagenet") -> RunConfig:
    """Masked autoencoder with ViT-B/16 at 224 pixels: 75 % masked, a decoder of width 512 and depth 8, 500 epochs.

    Command: ``vergence train PATH --recipe masked_autoencoder --out runs/mae``
    Device and time: one data-center GPU, about 21 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (arXiv:2505.12477, table 1): linear probe 64.9 on ImageNet-100 with pixelation of severity 1, 46.8 with 5.

    Settings are those of that paper's appendix D, with lightly's defaults where it names none: crops of (0.2, 1), AdamW 1.5e-4 of
    momenta 0.9 and 0.95, decay 0.05, 40 epochs of warm-up, the error of raw pixels. Biases and normalization decay here, too.
    """
    return RunConfig(
        data=DataConfig(source=source, size=224),
        views=_only_crops((0.2, 1.0), 0.5),
        model=_model("masked_autoencoder", BASE),
        fit=_published(betas=(0.9, 0.95), warmup_epochs=40),
    )


def dino(source: str = "imagenet") -> RunConfig:
    """DINO with ViT-B/16 at 224 pixels: large crops of (0.4, 1), 8 small ones of (0.05, 0.4) at 96 pixels, 500 epochs.

    Command: ``vergence train PATH --recipe dino --out runs/dino``
    Device and time: one data-center GPU, about 150 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (arXiv:2505.12477, table 1): linear probe 68.7 on ImageNet-100 with pixelation of severity 1, 60.2 with 5.

    Settings are those of that paper's appendix D, with lightly's and DINO's defaults where it names none: AdamW 1.5e-4, decay
    0.05, 10 epochs of warm-up, momentum from 0.996 to 1, temperatures 0.1 and 0.04. DINO's own decay grows from 0.04 to 0.4, its
    teacher's temperature from 0.04 to 0.07, and its gradients are clipped weight by weight; here all together.
    """
    return RunConfig(
        data=DataConfig(source=source, size=224),
        views=ViewConfig(crop=(0.4, 1.0), jitter=(0.4, 0.4, 0.2, 0.1)),
        model=_model("dino", f"{BASE},dynamic_img_size=True"),
        fit=_published(warmup_epochs=10, clip=3.0),
    )


def i_jepa(source: str = "imagenet") -> RunConfig:
    """I-JEPA with ViT-B/16 at 224 pixels: 4 target blocks, a predictor of width 384 and depth 6, 600 epochs at batch 2048.

    Command: ``vergence train PATH --recipe i_jepa --devices 8 --out runs/i_jepa``
    Device and time: eight data-center GPUs, about 430 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (arXiv:2301.08243, table 1): linear probe 72.9 on ImageNet-1K.

    AdamW 1e-3, 15 epochs of warm-up, momentum from 0.996 to 1. The released code's decay grows from 0.04 to 0.4 and its warm-up
    starts at 2e-4; here the decay is 0.04 throughout.
    """
    encoder = f"{BASE},class_token=False,global_pool=avg"
    fit = {"epochs": 600, "batch_size": 2048, "lr": 1e-3, "weight_decay": 0.04}
    return RunConfig(
        data=DataConfig(source=source, size=224),
        views=_only_crops((0.3, 1.0), 0.0),
        model=_model("i_jepa", encoder),
        fit=_published(warmup_epochs=15, **fit),
    )


def denoising_autoencoder_small(source: str = "cifar10") -> RunConfig:
    """Denoising autoencoder with four 3x3 convolutions (D = 256), for two CPU cores.

    Command: ``vergence train cifar10 --recipe denoising_autoencoder_small --limit 10000 --out runs/denoising``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 43 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return RunConfig(
        data=DataConfig(source=source),
        views=_only_crops((1.0, 1.0), 0.0),
        model=_model("denoising_autoencoder", "small"),
        fit=_small(),
    )


def variational_autoencoder_small(source: str = "cifar10") -> RunConfig:
    """Variational autoencoder with four 3x3 convolutions (D = 256) and 128 latent features, for two CPU cores.

    Command: ``vergence train cifar10 --recipe variational_autoencoder_small --limit 10000 --out runs/variational``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 43 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return RunConfig(
        data=DataConfig(source=source),
        views=_only_crops((1.0, 1.0), usual_flip(source)),
        model=_model("variational_autoencoder", "small"),
        fit=_small(),
    )


def masked_autoencoder_small(source: str = "cifar10") -> RunConfig:
    """Masked autoencoder with a transformer of width 96 and depth 4 on patches of 4 pixels (2 of digits), for two CPU cores.

    Command: ``vergence train cifar10 --recipe masked_autoencoder_small --limit 10000 --out runs/mae``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 37 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    options = {"decoder_width": 64, "decoder_depth": 2, "decoder_heads": 4}
    return RunConfig(
        data=DataConfig(source=source),
        views=_only_crops((0.6, 1.0), usual_flip(source)),
        model=_model("masked_autoencoder", _tiny(source, "global_pool=avg"), **options),
        fit=_small(betas=(0.9, 0.95)),
    )


def dino_small(source: str = "cifar10") -> RunConfig:
    """DINO with four 3x3 convolutions (D = 256), 2 small crops and 1,024 prototypes, for two CPU cores.

    Command: ``vergence train cifar10 --recipe dino_small --limit 10000 --out runs/dino``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 45 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    options = {"outputs": 1024, "hidden": 512, "bottleneck": 128, "batch_norm": True, "local_crops": 2, "asymmetric": False}
    return RunConfig(
        data=DataConfig(source=source),
        views=ViewConfig(crop=(0.4, 1.0), flip=usual_flip(source), blur=0.0),
        model=_model("dino", "small", **options, momentum=0.99),
        fit=_small(lr=5e-4),
    )


def i_jepa_small(source: str = "cifar10") -> RunConfig:
    """I-JEPA with a transformer of width 96 and depth 4 on patches of 4 pixels (2 of digits), for two CPU cores.

    Command: ``vergence train cifar10 --recipe i_jepa_small --limit 10000 --out runs/i_jepa``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 37 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    options = {"predictor_width": 48, "predictor_depth": 2, "predictor_heads": 4, "momentum": 0.97}
    options["min_context"] = 4
    return RunConfig(
        data=DataConfig(source=source),
        views=_only_crops((0.6, 1.0), usual_flip(source)),
        model=_model("i_jepa", _tiny(source, "class_token=False,global_pool=avg"), **options),
        fit=_small(),
    )


def _model(method: str, encoder: str, **options: Any) -> ModelConfig:
    return ModelConfig(method=method, objective="none", encoder=encoder, options=options)


def _tiny(source: str, settings: str) -> str:
    patch = 2 if source.partition(":")[0] == "digits" else 4
    return f"timm:vit_tiny_patch16_224,patch_size={patch},{TINY},{settings}"


def _only_crops(crop: tuple[float, float], flip: float) -> ViewConfig:
    return ViewConfig(crop=crop, flip=flip, jitter_p=0.0, grayscale=0.0, blur=0.0)


def _published(**changes: Any) -> FitConfig:
    """Returns AdamW 1.5e-4 with decay 0.05, 500 epochs at batch 256."""
    settings = {"epochs": 500, "batch_size": 256, "optimizer": "adamw", "lr": 1.5e-4, "weight_decay": 0.05, "workers": 8}
    return FitConfig(**{**settings, **changes})


def _small(**changes: Any) -> FitConfig:
    """Returns AdamW 2e-3 at batch 64, 30 epochs."""
    settings = {"epochs": 30, "batch_size": 64, "optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4, "warmup_epochs": 1}
    return FitConfig(**{**settings, **changes})
