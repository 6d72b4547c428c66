"""Small networks from random weights: flips, crops, first weights, widths and depths, with VJE, GJE and InfoNCE.

    python benchmarks/from_random.py --data-root DATA
    python benchmarks/from_random.py --data-root DATA --variants recipe small_crops --objectives vje

A row of ``results/from_random.jsonl`` for each variant, objective and seed; rows that the ledger has from the same commit are
skipped. 10,000 CIFAR-10 images of 16 pixels train for 20 epochs (the two other networks for about as long) in batches of 128,
with the settings of the objective's small recipe; 4,000 other **training** images are classified, since choices follow. Variants:

recipe          two views, crops of 0.2 to 1 of the image, each mirrored at random
opposite_flips  of the two views exactly one is mirrored
small_crops     four crops of 8 pixels, 0.1 to 0.4 of the image; a pair is a crop's embedding and the mean of the others'
identity        convolutions that pass on their input at first: the first filters are the identity, as far as channels go
wide_shallow    three convolutions of 64, 128 and 256 channels instead of four of 32 to 256
deep            five convolutions of 32, 64, 128, 256 and 256 channels
"""

import argparse
import itertools
import time
from typing import Any

import ledger
import torch
import two_cores
from torch import Tensor, nn

from vergence.data.views import ImageViews, Views
from vergence.encoders.networks import small_convnet
from vergence.evaluation import features
from vergence.evaluation.parts.spread import effective_rank
from vergence.methods.core import Gather, ImageMethod
from vergence.methods.paired import PairedMethod
from vergence.methods.parts.views import Draws, MultiView, SeveralViews
from vergence.runs.train import describe
from vergence.training import build, loop
from vergence.training.config import RunConfig
from vergence.training.metrics import MemoryRecorder

OBJECTIVES = {"vje": {"lr": 8e-3}, "gje": {}, "contrastive": {}}  # VJE's rate is that of the table in docs/trained.md
WIDTHS = {"wide_shallow": (64, 128, 256), "deep": (32, 64, 128, 256, 256)}
EPOCHS = {"wide_shallow": 12, "deep": 18}  # of the time that the recipe's 20 take
VARIANTS = ("recipe", "opposite_flips", "small_crops", "identity", *WIDTHS)
SIZE, CROPS = 16, 4


class OppositeFlips(SeveralViews):
    """Two views, of which exactly one is mirrored."""

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        first, second = super().draw(n, generator)
        return first, {**second, "flip": ~first["flip"]}


class Crops(ImageMethod):
    """An objective on pairs of an embedding and the mean of the other views' embeddings; of two views, on one pair.

    Args:
        paired: Encoder, head and objective.
        shape: Shape of the images.
        kinds: What a step shows of each image.
    """

    def __init__(self, paired: PairedMethod, shape: tuple[int, ...], kinds: MultiView) -> None:
        super().__init__(paired.encoder, shape)
        self.objective, self.projector, self.kinds = paired.objective, paired.projector, kinds

    def inputs(self, views: Views) -> MultiView:
        return self.kinds

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        z = torch.stack([gather(self.projector(self.encoder(view)).float()) for view in views])
        self.observe(z[0], gather)
        others = (z.sum(0) - z) / (len(z) - 1)
        pairs = range(1 if len(z) == 2 else len(z))
        with torch.autocast(z.device.type, enabled=False):
            terms = [self.objective(z[i], others[i]) for i in pairs]
        return {name: torch.stack([one[name] for one in terms]).mean() for name in terms[0]}


def kinds(variant: str, config: RunConfig) -> MultiView:
    """Returns what a step of a variant shows of each image."""
    views = ImageViews(config.views, SIZE)
    if variant == "small_crops":
        return SeveralViews([views.changed(SIZE // 2, crop=(0.1, 0.4))] * CROPS)
    return (OppositeFlips if variant == "opposite_flips" else SeveralViews)((views, views))


def network(variant: str, method: PairedMethod) -> None:
    """Gives a method the network, or the first weights, of a variant."""
    if variant in WIDTHS:
        wide = small_convnet(3, WIDTHS[variant])  # at its end as the recipe's
        method.encoder[1] = wide.to(memory_format=torch.channels_last)
    if variant == "identity":
        for layer in method.encoder.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.dirac_(layer.weight[: layer.in_channels].data)


def measured(a: argparse.Namespace, variant: str, objective: str, seed: int) -> dict[str, Any]:
    """Trains one network; returns its accuracies on held-out training images, and the untrained network's."""
    also = {"root": a.data_root, "limit": a.limit, "size": SIZE, "batch_size": a.batch_size, "device": "cpu", "seed": seed}
    fit = {"epochs": min(a.epochs, EPOCHS.get(variant, a.epochs)), "threads": 1, "knn_every": 0, "checkpoint_seconds": 1e9}
    config = describe("cifar10", f"{objective}_small", {**also, **fit, **OBJECTIVES[objective]})
    parts = two_cores.parts(a, config)
    shape, moments = (3, SIZE, SIZE), build.statistics(parts[0])
    paired = build.initial_method(config, shape, None, *moments)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network(variant, paired)
    method = Crops(paired, shape, kinds(variant, config))

    def embedded() -> list[Tensor]:
        return [features.collect(method.encoder.eval(), part, size=SIZE, device=torch.device("cpu"))[0] for part in parts]

    labels, first = tuple(part.labels for part in parts), embedded()
    start = time.process_time()
    loop.fit(
        loop.launch(config.fit),
        method,
        parts[0],
        ImageViews(config.views, SIZE),
        config.fit,
        MemoryRecorder(),
        warn=lambda message: None,
    )
    used, z = time.process_time() - start, embedded()
    values = {"trained_epochs": config.fit.epochs, "lr": config.fit.lr, "cpu_seconds": round(used, 1)}
    values |= two_cores.accuracies("", *z, labels) | {"effective_rank": round(float(effective_rank(z[1])), 1)}
    return values | {"untrained_knn30": two_cores.knn(*first, labels)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES), choices=list(OBJECTIVES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, default=10_000, help="training images")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=128)
    a = ledger.parse(parser, "from_random")
    if a.tiny:
        a.variants, a.objectives, a.limit, a.epochs, a.batch_size = ["small_crops", "identity"], ["vje"], 64, 1, 32
    a.choose = True  # held-out training images
    for seed, variant, objective in itertools.product(a.seeds, a.variants, a.objectives):
        key = {"variant": variant, "objective": objective, "n_train": a.limit, "epochs": a.epochs, "batch_size": a.batch_size}
        if not ledger.holds(a.out, **key, seed=seed):
            ledger.add(a.out, ledger.row(key | measured(a, variant, objective, seed), seed=seed))


if __name__ == "__main__":
    main()
