"""Recipes of the encoder in closed form, and of networks behind it; see ``docs/patches.md`` and ``docs/trained.md``."""

import dataclasses

from vergence.data.config import DataConfig, ViewConfig, usual_flip
from vergence.training import paired_recipes
from vergence.training.config import FitConfig, ModelConfig, RunConfig

__all__ = [
    "patches",
    "patches_barlow_twins",
    "patches_byol",
    "patches_contrastive",
    "patches_gje",
    "patches_gmje",
    "patches_gmje_em",
    "patches_gmje_gng",
    "patches_gmje_mdn",
    "patches_gmje_smc",
    "patches_jepa",
    "patches_lejepa",
    "patches_moco",
    "patches_simsiam",
    "patches_swav",
    "patches_vi_simsiam",
    "patches_vicreg",
    "patches_vje",
    "patches_vssl",
]


def patches(source: str = "cifar10") -> RunConfig:
    """Two layers of patches and linear joint embedding, all without gradients, with the joint Gaussian of the views (GJE).

    Command: ``vergence train cifar10 --recipe patches --limit 10000 --out runs/patches``
    Device and time: two CPU cores; results and times are in ``docs/patches.md``.

    It has no epochs and no optimizer. Of the training settings, only ``seed``, ``device``, ``devices``, ``workers`` and
    ``checkpoint_seconds`` apply. The encoder's settings follow its name, as in ``--encoder patches:atoms=256,second=1024``
    (`vergence.encoders.patch_maps.PatchSettings`); what a run uses is in its ``config.json``.

    Views are the whole image, moved by up to two of 32 pixels (the encoder's ``shift``), mirrored half of the time, with
    brightness and saturation changed, a fifth of them gray. Digits and Fashion-MNIST are not mirrored; set ``flip=0`` for other
    data whose mirror images do not occur, such as letters.
    """
    return RunConfig(
        data=DataConfig(source=source),
        views=ViewConfig(crop=(1.0, 1.0), flip=usual_flip(source), jitter=(0.4, 0.0, 0.4, 0.0), jitter_p=1.0, blur=0.0),
        model=ModelConfig(encoder="patches", objective="gje"),
        fit=FitConfig(epochs=1, precision="fp32", knn_every=0),
    )


def patches_barlow_twins(source: str = "cifar10") -> RunConfig:
    """Barlow Twins on the closed form of `patches`, with a network behind it; the head is that of ``barlow_twins_small``.

    Command: ``vergence train cifar10 --recipe patches_barlow_twins --limit 10000 --out runs/patches_barlow_twins``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, paired_recipes.barlow_twins_small().model)


def patches_byol(source: str = "cifar10") -> RunConfig:
    """BYOL on the closed form of `patches`, with a network behind it; the head is that of ``byol_small``.

    Command: ``vergence train cifar10 --recipe patches_byol --limit 10000 --out runs/patches_byol``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, paired_recipes.byol_small().model)


def patches_contrastive(source: str = "cifar10") -> RunConfig:
    """InfoNCE on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_contrastive --limit 10000 --out runs/patches_contrastive``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="contrastive", options={"temperature": 0.1}))


def patches_gje(source: str = "cifar10") -> RunConfig:
    """GJE on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_gje --limit 10000 --out runs/patches_gje``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="gje", projector=(64,)))


def patches_gmje(source: str = "cifar10") -> RunConfig:
    """GMJE on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_gmje --limit 10000 --out runs/patches_gmje``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="gmje", projector=(32,)))


def patches_gmje_em(source: str = "cifar10") -> RunConfig:
    """GMJE, fitted by EM on a bank, on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_gmje_em --limit 10000 --out runs/patches_gmje_em``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="gmje_em", projector=(16,)))


def patches_gmje_gng(source: str = "cifar10") -> RunConfig:
    """GMJE, fitted by growing neural gas, on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_gmje_gng --limit 10000 --out runs/patches_gmje_gng``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="gmje_gng", projector=(16,)))


def patches_gmje_mdn(source: str = "cifar10") -> RunConfig:
    """GMJE with a mixture density network on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_gmje_mdn --limit 10000 --out runs/patches_gmje_mdn``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="gmje_mdn", projector=(32,)))


def patches_gmje_smc(source: str = "cifar10") -> RunConfig:
    """GMJE with a bank of particles on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_gmje_smc --limit 10000 --out runs/patches_gmje_smc``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="gmje_smc", projector=(64,)))


def patches_jepa(source: str = "cifar10") -> RunConfig:
    """Prediction of a teacher's embedding (JEPA) on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_jepa --limit 10000 --out runs/patches_jepa``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="jepa"))


def patches_lejepa(source: str = "cifar10") -> RunConfig:
    """LeJEPA on the closed form of `patches`, with a network behind it; the head is that of ``lejepa_small``.

    Command: ``vergence train cifar10 --recipe patches_lejepa --limit 10000 --out runs/patches_lejepa``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, paired_recipes.lejepa_small().model)


def patches_moco(source: str = "cifar10") -> RunConfig:
    """MoCo v3 on the closed form of `patches`, with a network behind it; the head is that of ``moco_small``.

    Command: ``vergence train cifar10 --recipe patches_moco --limit 10000 --out runs/patches_moco``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, paired_recipes.moco_small().model)


def patches_simsiam(source: str = "cifar10") -> RunConfig:
    """SimSiam on the closed form of `patches`, with a network behind it; the head is that of ``simsiam_small``.

    Command: ``vergence train cifar10 --recipe patches_simsiam --limit 10000 --out runs/patches_simsiam``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, paired_recipes.simsiam_small().model)


def patches_swav(source: str = "cifar10") -> RunConfig:
    """SwAV on the closed form of `patches`, with a network behind it; the head is that of ``swav_small``.

    Command: ``vergence train cifar10 --recipe patches_swav --limit 10000 --out runs/patches_swav``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, paired_recipes.swav_small().model)


def patches_vi_simsiam(source: str = "cifar10") -> RunConfig:
    """VI-SimSiam on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_vi_simsiam --limit 10000 --out runs/patches_vi_simsiam``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="vi_simsiam"))


def patches_vicreg(source: str = "cifar10") -> RunConfig:
    """VICReg on the closed form of `patches`, with a network behind it; the head is that of ``vicreg_small``.

    Command: ``vergence train cifar10 --recipe patches_vicreg --limit 10000 --out runs/patches_vicreg``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, paired_recipes.vicreg_small().model)


def patches_vje(source: str = "cifar10") -> RunConfig:
    """VJE on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_vje --limit 10000 --out runs/patches_vje``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="vje", options={"hidden": 512}))


def patches_vssl(source: str = "cifar10") -> RunConfig:
    """VSSL, cosine form, on the closed form of `patches`, with a network behind it.

    Command: ``vergence train cifar10 --recipe patches_vssl --limit 10000 --out runs/patches_vssl``
    Device and time: two CPU cores; results and times are in ``docs/trained.md``.
    """
    return _refined(source, ModelConfig(objective="vssl"))


def _refined(source: str, model: ModelConfig) -> RunConfig:
    """Returns the settings that the recipes of networks behind a closed form share, for a model's objective and its heads."""
    fit = FitConfig(
        epochs=2,
        warmup_epochs=0.2,
        batch_size=128,
        optimizer="adamw",
        lr=2e-3,
        encoder_lr=0.03,
        weight_decay=1e-4,
        clip=5.0,
        knn_every=1,
    )
    return dataclasses.replace(patches(source), model=dataclasses.replace(model, encoder="patches-mlp"), fit=fit)
