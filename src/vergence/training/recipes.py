"""Recipes: complete run configurations, each with its command, device, time and results; a paper's numbers are marked as such.

A recipe is a public function that returns a `RunConfig` and can be called without arguments; most take a data source. Recipes
are here, in `vergence.training.patches_recipes` (encoders in closed form), in `vergence.training.paired_recipes` (published
methods on pairs), and in `vergence.training.image_recipes` (methods on images). `override` changes single settings.
"""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from vergence.data.config import DataConfig, ViewConfig
from vergence.encoders.names import is_closed_form, is_refined
from vergence.training import distilled_recipes, image_recipes, paired_recipes, patches_recipes
from vergence.training.config import FitConfig, ModelConfig, RunConfig
from vergence.utils.names import unknown

__all__ = [
    "default",
    "get",
    "gje_small",
    "gmje_em_small",
    "gmje_gng_small",
    "gmje_mdn_small",
    "gmje_small",
    "gmje_smc_small",
    "jepa_small",
    "names",
    "of_method",
    "of_networks",
    "override",
    "suggested",
    "unused",
    "vi_simsiam_small",
    "vje_cifar10",
    "vje_cifar10_200",
    "vje_imagenet",
    "vje_oneclass_cifar10",
    "vje_small",
    "vje_stl10",
    "vssl_small",
]

DEFAULT, NEUTRAL = "vje_small", "jepa_small"  # the second has no head and no rates of its own
PAIRED = "gmje_small"  # for pairs: it has p(target | context), with several answers
HEAD = (256, 32)  # widths of the projector before a Gaussian or a mixture of pairs
FILES = (patches_recipes, distilled_recipes, paired_recipes, image_recipes)
CLOSED_FORM = {"seed", "device", "devices", "nodes", "workers", "checkpoint_seconds", "threads", "strict"}  # of its settings
ALL = 'this lists all: python -c "from vergence.training import recipes; print(*recipes.names())"'
SMALLEST = 7  # pixels: a side of two cells of patches of six pixels
NO_BLUR = ViewConfig(blur=0.0)


def vje_small(source: str = "cifar10") -> RunConfig:
    """VJE with four 3x3 convolutions (D = 256), for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe vje_small --limit 10000 --out runs/small``
    Device and time: two CPU cores, about 5 minutes for 10,000 images; results are in the README, from the ledger.
    Expected: kNN about 47 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).

    The inference network has a larger learning rate than the encoder, 5e-3 and 1e-3, which keeps more directions of the embedding
    than equal rates do: on held-out training images (10,000 others, 20 epochs, one seed) kNN is 47.9 and the effective rank 16.7,
    with 2e-3 for both 46.1 and 13.8; ``docs/trained.md`` has more. Why not the paper's SGD 0.05 at batch 256: a small budget
    lacks steps, not images, and with such a budget that setting stays below an untrained encoder.
    """
    return override(_small(source, "vje"), lr=5e-3, encoder_lr=0.2)


def gje_small(source: str = "cifar10") -> RunConfig:
    """GJE with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe gje_small --limit 10000 --out runs/gje``
    Device and time: two CPU cores, about 5 minutes for 10,000 images.
    Expected: kNN about 45 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, "gje", HEAD)


def gmje_small(source: str = "cifar10") -> RunConfig:
    """GMJE, a mixture of prototypes, with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe gmje_small --limit 10000 --out runs/gmje``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 48 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, "gmje", HEAD)


def gmje_em_small(source: str = "cifar10") -> RunConfig:
    """GMJE, fitted by EM on a bank, with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe gmje_em_small --limit 10000 --out runs/gmje_em``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 40 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, "gmje_em", HEAD)


def gmje_gng_small(source: str = "cifar10") -> RunConfig:
    """GMJE, fitted by growing neural gas, with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe gmje_gng_small --limit 10000 --out runs/gmje_gng``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 42 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, "gmje_gng", HEAD)


def gmje_mdn_small(source: str = "cifar10") -> RunConfig:
    """GMJE with a mixture density network, with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe gmje_mdn_small --limit 10000 --out runs/gmje_mdn``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 46 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, "gmje_mdn", HEAD)


def gmje_smc_small(source: str = "cifar10") -> RunConfig:
    """GMJE with a bank of particles, with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe gmje_smc_small --limit 10000 --out runs/gmje_smc``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 49 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, "gmje_smc", HEAD)


def jepa_small(source: str = "cifar10") -> RunConfig:
    """Prediction of a teacher's embedding (JEPA) with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe jepa_small --limit 10000 --out runs/jepa``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 40 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).
    """
    return _small(source, "jepa")


def vi_simsiam_small(source: str = "cifar10") -> RunConfig:
    """VI-SimSiam with four 3x3 convolutions, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe vi_simsiam_small --limit 10000 --out runs/vi_simsiam``
    Device and time: two CPU cores, minutes, as `vje_small`.
    Expected: kNN about 46 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).

    The settings of the paper (arXiv:2203.11437) were not recovered, and these were not tuned for it.
    """
    return _small(source, "vi_simsiam")


def vssl_small(source: str = "cifar10") -> RunConfig:
    """VSSL, cosine form, with four 3x3 convolutions and a teacher of momentum 0.99, for CPUs and for a first try.

    Command: ``vergence train cifar10 --recipe vssl_small --limit 10000 --out runs/vssl``
    Device and time: two CPU cores, minutes.
    Expected: kNN about 47 % on CIFAR-10 at 16 pixels after five minutes, rate searched (``docs/methods_measured.md``).

    The settings of the paper (arXiv:2504.04318) were not recovered, and these were not tuned for it.
    """
    return _small(source, "vssl")


def _small(source: str, objective: str, projector: tuple[int, ...] = ()) -> RunConfig:
    """Returns the setting for two CPU cores that these recipes start from: AdamW 2e-3, batches of 64.

    On 10,000 CIFAR-10 images and 12 epochs, VJE's online kNN was 0.447 with it, 0.431 with 1e-3, and 0.426 with 2e-3 at batches
    of 128 (one seed each).
    """
    fit = FitConfig(epochs=30, batch_size=64, optimizer="adamw", lr=2e-3, weight_decay=1e-4, warmup_epochs=1)
    model = ModelConfig(encoder="small", objective=objective, projector=projector)
    return RunConfig(data=DataConfig(source=source), views=NO_BLUR, model=model, fit=fit)


def vje_cifar10(source: str = "cifar10") -> RunConfig:
    """VJE as in the paper's CIFAR-10 experiment: ResNet-18 (3x3 stem, no max-pool), SGD 0.05, 800 epochs.

    Command: ``vergence train cifar10 --recipe vje_cifar10 --out runs/vje_cifar10``
    Device and time: one data-center GPU, about 1.5 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (table 2): kNN (k = 30) 89.98 and linear probe 92.1 on z; 89.02 and 90.8 on the posterior mean.
    """
    return RunConfig(
        data=DataConfig(source=source),
        views=NO_BLUR,
        model=ModelConfig(encoder="resnet18-cifar"),
        fit=FitConfig(epochs=800, batch_size=256, optimizer="sgd", lr=0.05, weight_decay=5e-6, knn_every=20),
    )


def vje_cifar10_200(source: str = "cifar10") -> RunConfig:
    """`vje_cifar10` for 200 epochs, the setting of the paper's ablations.

    Command: ``vergence train cifar10 --recipe vje_cifar10_200 --out runs/vje_cifar10_200``
    Device and time: one data-center GPU, about 0.37 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (table 5, nu = 3): kNN (k = 30) 86.2, linear probe 88.9; posterior variance mean 0.32, CV 0.78 (table 7).
    """
    return override(vje_cifar10(source), epochs=200)


def vje_oneclass_cifar10(source: str = "cifar10", inlier: int = 0) -> RunConfig:
    """VJE on one class of CIFAR-10; the other nine are the anomalies of the evaluation.

    Command: ``vergence train cifar10 --recipe vje_oneclass_cifar10 --keep-classes 3 --out runs/oneclass_3``
    Device and time: one data-center GPU, about 0.15 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (table 3, nu = 0.5, beta = 1): AUROC of the joint score .872 .976 .851 .828 .884 .897 .909 .935 .940 .937 for classes
    0 to 9, mean 0.903. The paper prints a learning rate of 5e-6, equal to its weight decay and perhaps a misprint; it is used as
    printed: also run ``--lr 5e-4`` and ``--lr 5e-3`` for comparison.
    """
    base = vje_cifar10(source)
    return override(base, keep_classes=(inlier,), batch_size=64, lr=5e-6, knn_every=0, options={"nu": 0.5})


def vje_stl10(source: str = "stl10") -> RunConfig:
    """VJE on STL-10's 105,000 training and unlabeled images at 96 pixels, ResNet-18 with its standard stem, 200 epochs.

    Command: ``vergence train stl10 --recipe vje_stl10 --out runs/vje_stl10``
    Device and time: one data-center GPU, about 0.46 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (table 5, nu = 3): kNN (k = 30) 79.7, linear probe 85.1. The paper does not name its pre-training split.
    """
    return override(vje_cifar10_200(source), encoder="resnet18-imagenet", workers=8)


def vje_imagenet(source: str = "imagenet") -> RunConfig:
    """VJE on ImageNet-1K as a folder of classes: ResNet-50, 100 epochs with 10 of warm-up, MoCo v2 views with blur.

    Command: ``vergence train PATH --recipe vje_imagenet --devices 8 --out runs/vje_imagenet``
    Device and time: eight data-center GPUs, about 35 GPU-hours by its operations (``docs/methods.md``); not run by us.
    Paper (table 1): linear probe 65.6 (top-1). Images are decoded to 256 pixels, short side, and cropped to the center square
    before the random crop; the paper crops the whole image.
    """
    return RunConfig(
        data=DataConfig(source=source, size=224),
        model=ModelConfig(encoder="resnet50-imagenet"),
        fit=FitConfig(epochs=100, batch_size=256, lr=0.05, weight_decay=5e-6, warmup_epochs=10, workers=8, knn_every=10),
    )


def suggested(settings: Mapping[str, Any]) -> str:
    """Returns the name of the recipe that settings suggest before the data is known.

    It is ``NAME_small`` for ``method="NAME"`` and for an objective that has one, ``patches`` for an encoder ``patches``,
    ``patches_OBJECTIVE`` for ``patches-mlp`` (VJE by default), ``jepa_small`` for other objectives, whose settings are not
    special to one, and ``vje_small`` otherwise. See `default` for what follows from the data.

    Example:
        >>> suggested({"encoder": "patches:atoms=64"}), suggested({"encoder": "patches-mlp", "objective": "gje"})
        ('patches', 'patches_gje')
        >>> suggested({"objective": "simsiam"}), suggested({"objective": "package.module:Mine"}), suggested({"epochs": 3})
        ('simsiam_small', 'jepa_small', 'vje_small')
    """
    encoder = str(settings.get("encoder") or "")
    if settings.get("method") is not None:
        return of_method(settings["method"])
    if settings.get("distill") is not None and (own := f"distilled_{settings.get('objective') or 'vje'}") in names():
        return own
    if not is_closed_form(encoder) or settings.get("init") is not None:
        small = f"{settings.get('objective') or 'vje'}_small"
        return small if small in names() else NEUTRAL
    own = f"patches_{settings.get('objective') or 'vje'}"
    return "patches" if not is_refined(encoder) else own if own in names() else "patches_contrastive"


def default(kind: str, shape: Sequence[int], settings: Collection[str]) -> str:
    """Returns the name of the recipe for data where none is named: ``patches`` for images, and ``gmje_small`` for pairs.

    Other data have ``vje_small``. On held-out training images no recipe for two CPU cores was clearly better than ``patches``:
    ``docs/trained.md``. Of pairs people ask for p(target | context), which GMJE has and VJE has not:
    ``docs/joint_embeddings.md``.

    Args:
        kind: Kind of the data, ``image``, ``vector`` or ``pairs``.
        shape: Shape of an item as the encoder sees it.
        settings: Names of the settings that are given. With one that only networks and optimizers have, such as ``epochs``,
            or ``encoder``, the recipe is ``vje_small``; so for images that are smaller than the pooled patches. What an
            objective, a method or another run's weights ask for comes first (`suggested`).

    Example:
        >>> default("image", (3, 32, 32), ["seed"]), default("image", (3, 32, 32), ["epochs"]), default("vector", (5,), [])
        ('patches', 'vje_small', 'vje_small')
        >>> default("pairs", (5,), ["epochs"]), default("pairs", (5,), ["objective"])
        ('gmje_small', 'vje_small')
    """
    if kind == "pairs" and not {"objective", "method", "freeze", "init", "distill"} & set(settings):
        return PAIRED
    if kind != "image" or of_networks(settings) or min(shape[1:]) < SMALLEST:
        return DEFAULT
    return "patches"


def of_networks(settings: Collection[str]) -> list[str]:
    """Returns the names of the settings that only networks and optimizers have, sorted."""
    network = {field.name for part in (ModelConfig, FitConfig) for field in dataclasses.fields(part)} - CLOSED_FORM
    return sorted(network & set(settings))


def unused(config: RunConfig, settings: Collection[str]) -> list[str]:
    """Returns the names of settings that have no effect on a run: those of steps, where an encoder is fitted in closed form.

    Example:
        >>> unused(get("patches")(), ["lr", "seed"]), unused(vje_small(), ["lr"])
        (['lr'], [])
    """
    fit = {field.name for field in dataclasses.fields(FitConfig)} - {"precision", "batch_size"}
    return [name for name in of_networks(settings) if not config.model.takes_steps and name in fit]


def names() -> list[str]:
    """Returns the recipes' names, sorted.

    Example:
        >>> "vje_small" in names()
        True
    """
    return sorted(name for name, value in _all().items() if not name.startswith("_") and _is_recipe(value))


def _all() -> dict[str, Any]:
    return {name: value for file in FILES for name, value in vars(file).items()} | globals()


def _is_recipe(value: object) -> bool:
    """Returns whether a value is a function of the recipes' files that needs no arguments and returns a run configuration."""
    files = {__name__, *(file.__name__ for file in FILES)}
    if not inspect.isfunction(value) or value.__module__ not in files:
        return False
    signature = inspect.signature(value)
    needed = [p for p in signature.parameters.values() if p.default is p.empty]
    return signature.return_annotation is RunConfig and not needed


def get(name: str) -> Callable[..., RunConfig]:
    """Returns a recipe by name.

    Raises:
        ValueError: There is no recipe of that name; the error suggests the nearest one.
    """
    if name not in names():
        raise unknown("recipe", name, names(), ALL)
    recipe: Callable[..., RunConfig] = _all()[name]
    return recipe


def of_method(name: str) -> str:
    """Returns the name of the recipe for a method on images where none is named: one for two CPU cores.

    Raises:
        ValueError: There is no method of that name; the error suggests the nearest one.

    Example:
        >>> of_method("dino")
        'dino_small'
    """
    from vergence import methods

    known = [recipe.removesuffix("_small") for recipe in names() if hasattr(image_recipes, recipe) and recipe.endswith("_small")]
    if name in known:
        return f"{name}_small"
    if name not in methods.names():
        raise unknown("method", name, known, methods.HINT)
    found = f"found none of method '{name}'; write it in training/image_recipes.py, or name another with --recipe"
    raise ValueError(f"expected a recipe {name}_small, {found}")


def override(config: RunConfig, **changes: Any) -> RunConfig:
    """Returns a configuration with single settings changed, each given by the name of its field.

    ``options`` are merged with the configuration's, unless the objective or the method changes: another one has other options.

    Raises:
        ValueError: There is no setting of that name.

    Example:
        >>> override(vje_small(), epochs=3, encoder="resnet18").fit.epochs
        3
    """
    parts = {part.name: getattr(config, part.name) for part in dataclasses.fields(config)}
    known = {key: {f.name for f in dataclasses.fields(part)} for key, part in parts.items()}
    for name in changes:
        if not any(name in names for names in known.values()):
            raise unknown("setting", name, sorted(set().union(*known.values())))
    for key, names in known.items():  # all changes of a part at once, since some are checked together
        parts[key] = dataclasses.replace(parts[key], **{name: changes[name] for name in changes if name in names})
    same = (parts["model"].objective, parts["model"].method) == (config.model.objective, config.model.method)
    if "options" in changes and same:
        merged = {**config.model.options, **changes["options"]}
        parts["model"] = dataclasses.replace(parts["model"], options=merged)
    elif "options" not in changes and not same:
        parts["model"] = dataclasses.replace(parts["model"], options={})
    return RunConfig(**parts)
