"""Accuracy of recipes with a network that follows the closed form of patches, next to the closed form itself.

README.md says how.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from experiments.accuracy.run import IMAGES, TINY_PATCHES, costly
from experiments.runner import SETTINGS, first, main
from experiments.shared import Timer, accuracies, embedded, images, knn, parts, seeded
from torch import Tensor, nn
from torch.nn import functional

import vergence
from vergence.data.arrays import from_array
from vergence.data.items import Items
from vergence.data.pixels import resize, to_bytes, to_unit
from vergence.learn.evaluation.collapse import effective_rank
from vergence.learn.runs.evaluate import closed_form_encoder, untrained_encoder
from vergence.learn.runs.train import collapse_of

COPIES = 40
RECIPES = ["patches_contrastive", "patches_vje", "patches_gje", "patches_gmje"]
OPTIONS = IMAGES | {"recipes": RECIPES, "set": SETTINGS, "note": ""}


def duplicates(net: nn.Module, run: vergence.Run, items: Items) -> int:
    """Returns how many of 40 training images are the first neighbor of their copy that was reduced to half its side and back."""
    x = images(items)
    order = torch.randperm(len(x), generator=seeded(0))[:COPIES]
    height, width = x.shape[2:]
    copies: Tensor = to_bytes(resize(resize(to_unit(x[order]), height // 2, width // 2), height, width))
    both = embedded(run, *(from_array(part.numpy()) for part in (x, copies)), net=net)
    bank, query = (functional.normalize(z, dim=1) for z in both)
    return int(((query @ bank.T).argmax(1) == order).sum())


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for recipe in a.recipes:
        yield {"data": a.source, "limit": a.limit, "recipe": recipe, "set": a.set, "seed": a.seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains one run; returns its numbers next to those of its baseline."""
    torch.manual_seed(a.seed)
    recipe, tiny = cell["recipe"], {}
    if a.tiny:
        short = {"distill": f"patches:{TINY_PATCHES}", "distill_epochs": 1}
        tiny = short if recipe.startswith("distilled") else {"encoder": f"patches-mlp:{TINY_PATCHES}"}
    settings = {"root": a.data_root, "limit": a.limit, "seed": a.seed, "device": "cpu", **a.set, **tiny}
    run, costs = costly(a.source, recipe=recipe, out=a.scratch / recipe, **settings)
    items, config = parts(run.folder.config, a.choose), run.folder.config
    labels, closed_form = tuple(part.labels for part in items), closed_form_encoder(run)
    baseline = untrained_encoder(run) if closed_form is None else closed_form
    timer = Timer()
    z = embedded(run, *items)
    embed_cpu = timer.processor_seconds() / sum(map(len, items))
    c = embedded(run, *items, net=baseline)
    return {
        "encoder": str(config.model.encoder),
        "distill": config.model.distill and str(config.model.distill),
        "distill_epochs": None if config.model.distill is None else config.fit.distill_epochs,
        "objective": config.model.objective,
        "epochs": config.fit.epochs,
        "encoder_lr": config.fit.encoder_lr,
        **costs,
        "embed_cpu_milliseconds": round(1000 * embed_cpu, 2),
        **accuracies("", *z, labels),
        "baseline": "untrained" if closed_form is None else "closed_form",
        "baseline_knn30": knn(*c, labels),
        "effective_rank": round(float(effective_rank(z[1])), 1),
        "baseline_effective_rank": round(float(effective_rank(c[1])), 1),
        "duplicates_of_40": duplicates(run.method.encoder, run, items[0]),
        "baseline_duplicates_of_40": duplicates(baseline, run, items[0]),
        "collapse": collapse_of(run),
    }


if __name__ == "__main__":
    main(__doc__, "trained", OPTIONS, cells, measure, tiny={"limit": 200, "recipes": first})
