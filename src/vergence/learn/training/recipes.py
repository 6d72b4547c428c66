"""Recipes: complete run configurations by name.

Names are put together from a base and what an objective or a method says of itself (``Objective.small``, ``Objective.behind``):

- ``NAME_small``: four 3x3 convolutions (D = 256) or a small transformer with AdamW 2e-3, for CPUs and for a first try;
- ``patches_NAME``: a network on top of the closed form of `patches` (``docs/guides/trained.md``);
- ``distilled_NAME``: a small network that learns to predict that closed form's embedding first.

``patches_large`` is `patches` with a larger second layer, mirrored views and stronger colors: more accurate, and slower in
training and use. The others are the table `PUBLISHED`; ``docs/reference/methods.md`` has what their sources report, and what they
cost. `override` changes single settings.
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vergence.data.config import DataConfig, ViewConfig, default_flip
from vergence.learn import methods, objectives, outline
from vergence.learn.encoders.config import PatchSettings, as_encoder
from vergence.learn.training.config import FitConfig, ModelConfig, RunConfig
from vergence.utils.checks import require_choice

__all__ = ["DISTILLED", "PUBLISHED", "Facts", "defaults", "get", "names", "override", "require_no_steps", "suggested"]

NEUTRAL = "jepa_small"  # it has no head and no rates of its own
PAIRED = {"pairs": "gmje_small", "modalities": "gje_small"}  # they have p(target | context), the first with several answers
CLOSED_FORM = {"seed", "device", "devices", "nodes", "workers", "checkpoint_seconds", "threads", "strict"}  # of its settings
ALL = "vergence list recipes lists all"
NAMES_MODEL = ("encoder", "objective", "method", "distill", "freeze", "init", "weights", "pretrained")  # settings that do
ATOMS = [field.name for field in dataclasses.fields(PatchSettings)]
SETTINGS = [field.name for part in (DataConfig, ViewConfig, ModelConfig, FitConfig) for field in dataclasses.fields(part)]
SMALLEST = 7  # pixels: a side of two cells of patches of six pixels

ADAMW: dict[str, Any] = {"optimizer": "adamw", "lr": 2e-3, "weight_decay": 1e-4}
SMALL: dict[str, Any] = {**ADAMW, "epochs": 30, "batch_size": 64, "warmup_epochs": 1, "blur": 0.0}
PATCHES: dict[str, Any] = {  # views: the whole image, mirrored, brighter or darker, a fifth of them gray
    **{"crop": (1.0, 1.0), "jitter": (0.4, 0.0, 0.4, 0.0), "jitter_p": 1.0, "blur": 0.0},
    **{"encoder": "patches", "objective": "gje", "epochs": 1, "precision": "fp32", "knn_every": 0},
}
LARGE: dict[str, Any] = {  # of patches, in place of PATCHES
    "encoder": "patches:second=4096,directions=4500,dim=1024,ridge=0.003,power=2,copies=2,mirror=1",
    "jitter": (0.4, 0.2, 0.4, 0.1),
}
BEHIND: dict[str, Any] = {  # of a network on top of the closed form
    **{"encoder": "patches-mlp", "epochs": 2, "warmup_epochs": 0.2, "batch_size": 128, "encoder_lr": 0.03, "clip": 5.0},
    **{**ADAMW, "knn_every": 1, "precision": "auto"},
}
DISTILLED: dict[str, Any] = {  # of a network that is distilled from the closed form; a larger encoder_lr costs neighbors
    **{"encoder": "small-deep", "distill": "patches", "batch_size": 64, "encoder_lr": 0.003},
    **{"crop": (0.6, 1.0), "jitter": (0.3, 0.3, 0.2, 0.08), "jitter_p": 0.8, "grayscale": 0.05},
}

# What the rows of one protocol share.
IMAGENET: dict[str, Any] = {"size": 224, "encoder": "resnet50-imagenet", "warmup_epochs": 10, "workers": 8, "knn_every": 10}
CIFAR: dict[str, Any] = {
    **{"encoder": "resnet18-cifar", "epochs": 1000, "batch_size": 256, "optimizer": "lars", "weight_decay": 1e-6},
    **{"warmup_epochs": 10, "knn_every": 20, "blur": 0.0},
}
VJE: dict[str, Any] = {**CIFAR, "epochs": 800, "optimizer": "sgd", "lr": 0.05, "weight_decay": 5e-6, "warmup_epochs": 0}
LARC: dict[str, Any] = {"trust": 0.02, "trust_clip": True, "weight_decay": 1e-4}
LARS: dict[str, Any] = {"optimizer": "lars", "weight_decay": 1e-6}
VIT: dict[str, Any] = {
    **{"size": 224, "objective": "none", "epochs": 500, "batch_size": 256, "optimizer": "adamw", "lr": 1.5e-4},
    **{"weight_decay": 0.05, "workers": 8},
}
VIT_B = "timm:vit_base_patch16_224"
ASYMMETRIC: dict[str, Any] = {"crop": (0.08, 1.0), "jitter": (0.4, 0.4, 0.2, 0.1), "blur": 0.55, "solarize": 0.1}  # BYOL's, mean
UNLIKE: dict[str, Any] = {**ASYMMETRIC, "blur": 0.0}  # the same on CIFAR-10
SOLARIZED: dict[str, Any] = {"jitter": (0.4, 0.4, 0.2, 0.1), "solarize": 0.1}  # VICReg's in solo-learn
SIMCLR: dict[str, Any] = {"crop": (0.08, 1.0), "jitter": (0.8, 0.8, 0.8, 0.2)}
CROPS: dict[str, Any] = {"jitter_p": 0.0, "grayscale": 0.0, "blur": 0.0}


def _head(objective: str, *widths: int, norm: str = "batch", **options: Any) -> dict[str, Any]:
    return {"objective": objective, "projector": widths, "projector_norm": norm, "options": options}


class Row(NamedTuple):
    """Published settings: the data they are for, where they are from, and their values."""

    data: str
    source: str
    settings: dict[str, Any]


# What the sources have and these lack: a rate of its own for biases and normalization (Barlow Twins) or for the predictor
# (SimSiam), a rate that ends above zero (VICReg, Barlow Twins, SwAV), small crops (SwAV, LeJEPA), views of two strengths (BYOL,
# MoCo v3, Barlow Twins; each view has their mean here), a decay that grows (DINO, I-JEPA). solo-learn trains on all of CIFAR-10
# (--calibration-share 0), and adds VICReg's variance terms of the two views, which are averaged here: its weight is 50.
# VJE's one-class rate is as printed, and perhaps a misprint.
PUBLISHED: dict[str, Row] = {
    "vje_cifar10": Row("cifar10", "VJE's paper, table 2", VJE),
    "vje_cifar10_200": Row("cifar10", "VJE's paper, table 5", {**VJE, "epochs": 200}),
    "vje_oneclass_cifar10": Row("cifar10", "VJE's paper, table 3",
        {**VJE, "keep_classes": (0,), "batch_size": 64, "lr": 5e-6, "knn_every": 0, "options": {"nu": 0.5}}),
    "vje_stl10": Row("stl10", "VJE's paper, table 5", {**VJE, "epochs": 200, "encoder": "resnet18-imagenet", "workers": 8}),
    "vje_imagenet": Row("imagenet", "VJE's paper, table 1",
        {**IMAGENET, "epochs": 100, "batch_size": 256, "lr": 0.05, "weight_decay": 5e-6}),
    "byol_imagenet": Row("imagenet", "arXiv:2006.07733; lightly's for 100 epochs",
        {**IMAGENET, **ASYMMETRIC, **LARS, **_head("byol", 4096, 256, hidden=4096),
         "epochs": 100, "batch_size": 4096, "lr": 7.2}),
    "byol_cifar10": Row("cifar10", "arXiv:2505.12477", {**CIFAR, **UNLIKE, **_head("byol", 2048, 128, hidden=2048), "lr": 5.0}),
    "byol_imagenet100": Row("imagenet100", "arXiv:2505.12477",
        {**IMAGENET, **ASYMMETRIC, **LARS, **_head("byol", 4096, 256, hidden=4096),
         "epochs": 500, "batch_size": 256, "lr": 0.45}),
    "byol_solo_learn": Row("cifar10", "solo-learn",
        {**CIFAR, **UNLIKE, **LARC, **_head("byol", 4096, 256, hidden=4096), "lr": 1.0, "weight_decay": 1e-5}),
    "simsiam_imagenet": Row("imagenet", "arXiv:2011.10566",
        {**IMAGENET, **_head("simsiam", 2048, 2048, 2048, norm="batch_last", hidden=512),
         "epochs": 100, "batch_size": 512, "lr": 0.1, "weight_decay": 1e-4, "warmup_epochs": 0}),
    "simsiam_cifar10": Row("cifar10", "arXiv:2011.10566, appendix",
        {**VJE, **_head("simsiam", 2048, 2048, norm="batch_last", hidden=512),
         "batch_size": 512, "lr": 0.06, "weight_decay": 5e-4}),
    "simsiam_vje_cifar10": Row("cifar10", "VJE's paper, table 2",
        {**VJE, **_head("simsiam", 2048, 2048, norm="batch_last", hidden=512)}),
    "simsiam_solo_learn": Row("cifar10", "solo-learn",
        {**CIFAR, **_head("simsiam", 2048, 2048, 2048, norm="batch_last", hidden=512),
         "crop": (0.08, 1.0), "blur": 0.5, "optimizer": "sgd", "lr": 0.5, "weight_decay": 1e-5}),
    "vicreg_imagenet": Row("imagenet", "arXiv:2105.04906",
        {**IMAGENET, **ASYMMETRIC, **LARS, **_head("vicreg", 8192, 8192, 8192), "epochs": 1000, "batch_size": 2048, "lr": 1.6}),
    "vicreg_cifar10": Row("cifar10", "arXiv:2505.12477",
        {**CIFAR, **SOLARIZED, **_head("vicreg", 2048, 2048, 2048), "crop": (0.08, 1.0), "lr": 5.0}),
    "vicreg_vje_cifar10": Row("cifar10", "VJE's paper, table 2", {**VJE, **_head("vicreg", 4096, 4096, 4096)}),
    "vicreg_solo_learn": Row("cifar10", "solo-learn",
        {**CIFAR, **SOLARIZED, **LARC, **_head("vicreg", 2048, 2048, 2048, variance=50.0), "lr": 0.3}),
    "barlow_twins_imagenet": Row("imagenet", "arXiv:2103.03230",
        {**IMAGENET, **ASYMMETRIC, **LARS, **_head("barlow_twins", 8192, 8192, 8192, redundancy=0.0051),
         "epochs": 1000, "batch_size": 2048, "lr": 1.6}),
    "barlow_twins_solo_learn": Row("cifar10", "solo-learn",
        {**CIFAR, **UNLIKE, **LARC, **_head("barlow_twins", 2048, 2048, 2048, redundancy=0.0051, scale=0.1), "lr": 0.3}),
    "contrastive_imagenet": Row("imagenet", "arXiv:2011.10566, table 4, of SimCLR (arXiv:2002.05709)",
        {**IMAGENET, **SIMCLR, **LARS, **_head("contrastive", 2048, 128, temperature=0.1),
         "epochs": 100, "batch_size": 4096, "lr": 4.8}),
    "contrastive_cifar10": Row("cifar10", "arXiv:2505.12477, there with a ResNet-50",
        {**CIFAR, **SIMCLR, **_head("contrastive", 2048, 2048, 256, temperature=0.5), "lr": 5.0}),
    "contrastive_solo_learn": Row("cifar10", "solo-learn, whose head has no normalization",
        {**CIFAR, **SIMCLR, **LARC, **_head("contrastive", 2048, 256, temperature=0.2), "blur": 0.5, "lr": 0.4}),
    "moco_imagenet": Row("imagenet", "facebookresearch/moco-v3, 300 epochs",
        {**IMAGENET, **ASYMMETRIC, **LARS,
         **_head("moco", 4096, 256, norm="batch_last", hidden=4096, temperature=1.0, last_norm=False),
         "crop": (0.2, 1.0), "epochs": 300, "batch_size": 4096, "lr": 4.8}),
    "swav_imagenet": Row("imagenet", "facebookresearch/swav, 2 x 224 pixels",
        {**IMAGENET, **SIMCLR, **LARS, **_head("swav", 2048, 128), "epochs": 400, "batch_size": 4096, "lr": 4.8}),
    "lejepa_imagenette": Row("imagenette", "rbalestr-lab/lejepa, minimal example",
        {**SIMCLR, **_head("lejepa", 2048, 2048, 16, weight=0.02, slices=256), "solarize": 0.2, "size": 128,
         "encoder": "timm:vit_small_patch8_224", "epochs": 800, "batch_size": 256, "optimizer": "adamw", "lr": 2e-3,
         "weight_decay": 0.05, "warmup_epochs": 1, "workers": 8}),
    "masked_autoencoder": Row("imagenet", "arXiv:2505.12477, appendix D",
        {**VIT, **CROPS, "method": "masked_autoencoder", "encoder": VIT_B, "betas": (0.9, 0.95), "warmup_epochs": 40}),
    "dino": Row("imagenet", "arXiv:2505.12477, appendix D; lightly's and DINO's defaults where it names none",
        {**VIT, "method": "dino", "encoder": f"{VIT_B},dynamic_img_size=True", "crop": (0.4, 1.0), "local_views": 8,
         "jitter": (0.4, 0.4, 0.2, 0.1), "warmup_epochs": 10, "clip": 3.0}),
    "i_jepa": Row("imagenet", "arXiv:2301.08243, table 1",
        {**VIT, **CROPS, "method": "i_jepa", "encoder": f"{VIT_B},class_token=False,global_pool=avg", "crop": (0.3, 1.0),
         "flip": 0.0, "epochs": 600, "batch_size": 2048, "lr": 1e-3, "weight_decay": 0.04, "warmup_epochs": 15}),
}  # fmt: skip


def names() -> list[str]:
    """Returns the recipes' names, sorted.

    Example:
        >>> {"vje_small", "patches", "patches_large", "patches_gje", "distilled_vje", "dino"} <= set(names())
        True
    """
    small = [f"{name}_small" for name in (*objectives.names(), *methods.names())]
    behind = ["patches", "patches_large", *(f"patches_{name}" for name in objectives.names())]
    distilled = [f"distilled_{name}" for name in objectives.names() if "behind" in outline(name).settings]
    return sorted([*PUBLISHED, *small, *behind, *distilled])


def get(name: str, source: str | None = None) -> RunConfig:
    """Returns the run description of a recipe for a data source.

    Args:
        name: One of `names`, such as ``patches`` or ``vje_small``.
        source: Data, as of `vergence.data.config.DataConfig`; by default those that it is published for, or CIFAR-10.

    Example:
        >>> get("patches_gje", "digits").model.projector, get("vje_cifar10").fit.epochs
        ((64,), 800)
    """
    if name in PUBLISHED:
        return _config(source or PUBLISHED[name].data, **PUBLISHED[name].settings)
    require_choice("a recipe", name, names(), ALL)
    source = source or "cifar10"
    if name.endswith("_small"):
        return _small(source, name.removesuffix("_small"))
    base, _, objective = name.partition("_")
    closed = _config(source, **PATCHES, flip=default_flip(source))
    if objective in ("", "large"):
        return override(closed, **LARGE) if objective else closed
    behind = override(closed, **BEHIND, **_behind(objective))
    return behind if base == "patches" else override(behind, **DISTILLED)


def defaults() -> dict[str, RunConfig]:
    """Returns what is used where no recipe is named, by the kind of data; torch is not imported."""
    return {"images": _config("cifar10", **PATCHES), "vectors": _config("cifar10", **SMALL, encoder="mlp")}


def _config(source: str, **settings: Any) -> RunConfig:
    return override(RunConfig(data=DataConfig(source=source)), **settings)


def _small(source: str, name: str) -> RunConfig:
    """Returns ``NAME_small``; a method's transformer has patches of 4 pixels, of digits 2."""
    if name in objectives.names():
        return _config(source, **{**SMALL, "objective": name, **outline(name).settings.get("small", {})})
    own = outline(name).settings["small"]
    encoder = str(own.get("encoder", "small")).format(patch=2 if source.partition(":")[0] == "digits" else 4)
    common = {**SMALL, "method": name, "objective": "none", "flip": default_flip(source)}
    return _config(source, **{**common, **own, "encoder": encoder})


def _behind(name: str) -> dict[str, Any]:
    """Returns an objective with its head and options on top of the closed form: those of ``NAME_small`` unless it says others."""
    own, model = outline(name).settings, {field.name for field in dataclasses.fields(ModelConfig)}
    settings = own.get("behind", own.get("small", {}))
    return {"objective": name, "options": {}, **{key: value for key, value in settings.items() if key in model}}


@dataclass(frozen=True)
class Facts:
    """What opened data says of itself: its kind, the shape of an item as the encoder sees it, the number of training items."""

    kind: str
    shape: tuple[int, ...]
    n: int
    read: tuple[int, ...] | None = None  # shape of an item as it is read, if known

    @property
    def roomy(self) -> bool:
        """Whether the items are images that have room for pooled patches."""
        return self.kind == "image" and min(self.shape[1:]) >= SMALLEST


def suggested(settings: Mapping[str, Any], facts: Facts | None = None) -> str:
    """Returns the name of the recipe that settings and data suggest where none is named.

    It is ``NAME_small`` for ``method="NAME"`` and for an objective of that name, ``patches`` for an encoder ``patches``,
    ``patches_OBJECTIVE`` for ``patches-mlp`` (VJE by default), and ``jepa_small`` for other objectives, whose settings are not
    special to one. Where the settings name no model, it is ``patches`` for images, ``gmje_small`` for pairs (people ask for
    p(target | context)), ``gje_small`` for modalities, and ``vje_small`` for other data, for images that are too small, and
    before the data are opened.

    Example:
        >>> suggested({"encoder": "patches:atoms=64"}), suggested({"encoder": "patches-mlp", "objective": "gje"})
        ('patches', 'patches_gje')
        >>> suggested({"objective": "simsiam"}), suggested({"objective": "package.module:Mine"}), suggested({"epochs": 3})
        ('simsiam_small', 'jepa_small', 'vje_small')
        >>> suggested({"seed": 3}, Facts("image", (3, 32, 32), 100)), suggested({"epochs": 3}, Facts("pairs", (5,), 100))
        ('patches', 'gmje_small')
    """
    encoder, objective = as_encoder(settings.get("encoder") or "small"), settings.get("objective") or "vje"
    if settings.get("method") is not None:
        require_choice("a method", settings["method"], methods.names(), methods.HINT)
        return f"{settings['method']}_small"
    if settings.get("distill") is not None and f"distilled_{objective}" in names():
        return f"distilled_{objective}"
    if encoder.closed_form and settings.get("init") is None:
        behind = f"patches_{objective}"
        return "patches" if not encoder.takes_steps else behind if behind in names() else "patches_contrastive"
    named = {name for name in NAMES_MODEL if settings.get(name)}
    if facts is not None and facts.kind in PAIRED and not named & {"objective", "freeze", "init", "distill"}:
        return PAIRED[facts.kind]
    if facts is None or named or not facts.roomy:
        return f"{objective}_small" if f"{objective}_small" in names() else NEUTRAL
    require_no_steps(settings, "the default for images is a closed form", ["precision"])
    return "patches"


def with_implied(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with those that a frozen encoder, a method or an objective excludes."""
    if settings.get("freeze") or settings.get("method") is not None:
        settings = {"objective": "none", "projector": (), "target_encoder": None, "teacher": None, **settings}
        return {"options": {}, "method": None, **settings}
    if settings.get("distill") is not None:
        settings = {"encoder_lr": DISTILLED["encoder_lr"], **settings}
    return {"method": None, **settings} if settings.get("objective", "none") != "none" else {**settings}


def require_known(recipe: str | None, settings: Mapping[str, Any]) -> None:
    """Raises a ValueError for a wrong name or value before torch is loaded, but for ``init``, which needs another run."""
    if settings.get("init") is not None:
        return
    if settings.get("objective", "none") != "none":
        objectives.require(settings["objective"])
    model = override(get(recipe or suggested(settings)), **with_implied(settings)).model
    every = {*objectives.names(), *methods.names()}
    owners = {model.method or model.objective} if recipe or {"objective", "method"} & settings.keys() else every
    known = sorted(name for owner in owners & every for name in outline(owner).options)
    for name in set(settings.get("options", ())) - {*ATOMS} if owners & every else ():
        require_choice(f"an option of {owners.pop()}" if len(owners) == 1 else "an option", name, known, also=SETTINGS)


def require_no_steps(settings: Mapping[str, Any], why: str, also: Collection[str] = ("precision", "batch_size")) -> None:
    """Raises a ValueError where settings of networks and optimizers are given, but for ``also``, and there is none: ``why``."""
    network = {field.name for part in (ModelConfig, FitConfig) for field in dataclasses.fields(part)} - CLOSED_FORM
    asked = sorted(network & set(settings) - set(also))
    if not asked:
        return
    options = settings.get("options") or {}
    words = [f"`{name}`" for name in (*(n for n in asked if n != "options"), *sorted(options if "options" in asked else ()))]
    given, verb = ", ".join(words), "applies" if len(words) == 1 else "apply"
    raise ValueError(f"{given} {verb} to networks, and {why}; add `recipe='vje_small'`, or leave {given} out")


def override(config: RunConfig, **changes: Any) -> RunConfig:
    """Returns a configuration with single settings changed, each given by the name of its field.

    ``options`` are merged with the configuration's, unless the objective or the method changes: another one has other options.

    Example:
        >>> override(get("vje_small"), epochs=3, encoder="resnet18").fit.epochs
        3
    """
    parts = {part.name: getattr(config, part.name) for part in dataclasses.fields(config)}
    fields = {key: {f.name for f in dataclasses.fields(part)} for key, part in parts.items()}
    for name in changes:
        require_choice("a setting", name, sorted(set().union(*fields.values())))
    for key, names in fields.items():  # all changes of a part at once, since some are checked together
        parts[key] = dataclasses.replace(parts[key], **{name: changes[name] for name in changes if name in names})
    same = (parts["model"].objective, parts["model"].method) == (config.model.objective, config.model.method)
    if "options" in changes and same:
        merged = {**config.model.options, **changes["options"]}
        parts["model"] = dataclasses.replace(parts["model"], options=merged)
    elif "options" not in changes and not same:
        parts["model"] = dataclasses.replace(parts["model"], options={})
    return RunConfig(**parts)
