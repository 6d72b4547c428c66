"""Operations of the published recipes: those of a training step's networks, losses and gradients, counted for each image.

    python benchmarks/recipe_costs.py            # two minutes; no data, no training

A row of ``results/recipe_costs.jsonl`` for each recipe that needs a GPU. Products of matrices, convolutions and attention are
counted, as torch's counter does (2 for a multiplication with its addition); views, normalizations and the optimizer are not.
`HOURS` are those of a device that sustains 50 teraFLOP/s: an assumption, a sixth of an NVIDIA A100's 312 in bfloat16 (its
datasheet), not a measurement. What depends on the batch's size squared, as the similarities of a contrastive loss, is that of a
batch of four, which is less than a hundredth of the whole.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import ledger
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vergence.data.views import ImageViews
from vergence.training import build, recipes
from vergence.training.config import RunConfig

ITEMS = {
    "imagenet": 1_281_167,
    "imagenet100": 126_689,
    "imagenette": 9_469,
    "stl10": 105_000,
    "cifar10": 50_000,
}  # training images
SIDES = {"stl10": 96, "cifar10": 32}  # of sets whose recipes take images as they are
CLASSES = 10  # of CIFAR-10, of which some recipes keep one
REPORTED = {
    "masked_autoencoder": "imagenet100",
    "dino": "imagenet100",
}  # recipes whose figure is of other data than their default
RATE = 5e13  # operations per second
BATCH = 4  # batch normalization needs several


def published() -> list[str]:
    """Returns the names of the recipes that have a published setting and a network from random weights."""
    own = ("patches", "distilled")
    return [name for name in recipes.names() if not name.endswith("_small") and not name.startswith(own)]


def operations(config: RunConfig, shape: Sequence[int]) -> float:
    """Returns the operations of a training step, its gradients included, for each image of a batch."""
    torch.manual_seed(0)
    method = build.initial_method(config, shape, None, torch.zeros(shape[0]), torch.ones(shape[0])).train()
    inputs = method.inputs(ImageViews(config.views, shape[1]))
    views = inputs.apply(torch.rand(BATCH, *shape), inputs.draw(BATCH, torch.Generator().manual_seed(0)))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # torch does not count the CPU's own attention
        terms = method(views, gather=lambda x: x)
        torch.stack(list(terms.values())).sum().backward()
    return counter.get_total_flops() / BATCH


def cost(name: str) -> dict[str, Any]:
    """Returns what a recipe's training takes."""
    config = recipes.get(name)
    source = REPORTED.get(name, config.data.source)
    side = config.data.size or SIDES[source]
    items = ITEMS[source] * len(kept) // CLASSES if (kept := config.data.keep_classes) else ITEMS[source]
    each = operations(config, (3, side, side))
    total = each * items * config.fit.epochs
    values = {"items": items, "epochs": config.fit.epochs, "size": side, "encoder": str(config.model.encoder)}
    return {**values, "source": source, "gflop": round(each / 1e9, 2), "exaflop": total / 1e18, "hours": total / RATE / 3600}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=published(), choices=published(), metavar="RECIPE")
    a = ledger.parse(parser, "recipe_costs")
    for name in ["vje_cifar10"] if a.tiny else a.only:
        key = {"measurement": "recipe_costs", "recipe": name}
        if not ledger.holds(a.out, **key):
            row = ledger.row({**key, **cost(name)}, seed=0, peers=("timm",))
            ledger.add(a.out, row, shown=("recipe", "encoder", "gflop", "exaflop", "hours"))


if __name__ == "__main__":
    main()
