"""A second layer on the pooled maps of the closed form: what each layer adds to kNN, for some numbers of atoms and thresholds.

    python benchmarks/second_layer.py cifar10 --data-root DATA --limit 10000

Both layers are those of `vergence.encoders.patch_maps`. Joint embedding of two views follows on the features of the first layer,
of the second, and of both, each with a mean squared length of 1. One row goes to ``results/second_layer.jsonl``; with
``--choose`` images are held-out training images, and nothing is written.
"""

import argparse
import time

import ledger
import torch
import two_cores
from torch import Tensor

from vergence.data.config import DataConfig
from vergence.data.pixels import to_unit
from vergence.data.sources import open_data
from vergence.data.views import ImageViews
from vergence.densities.moments import ViewSums, principal_directions
from vergence.encoders.config import PatchSettings
from vergence.encoders.dictionary import learn_dictionary
from vergence.encoders.patch_maps import PatchMaps, sampled_patches
from vergence.linear.solutions import joint_embedding
from vergence.training import recipes
from vergence.training.closed_form import SECOND_FROM, directions_from, moved

POWERS = (1.5, 2.0, 2.5, 3.0)
BLOCK, SHOWN = 250, 10_000  # images at a time; for the dictionary


def learned(x: Tensor, settings: PatchSettings) -> PatchMaps:
    """Returns both layers, learned from images (N, C, H, W) in [0, 1]."""
    maps = PatchMaps(x.shape[1], settings)
    maps.set(*learn_dictionary(sampled_patches([x], maps), settings.atoms))
    if maps.second is not None:
        parts = [maps.second.patches(maps.layers(part)[1]).flatten(0, 1) for part in x[:SECOND_FROM].split(BLOCK)]
        maps.second.learn([part.bfloat16() for part in parts], torch.Generator().manual_seed(1))
    return maps


def components(parts: list[Tensor], settings: PatchSettings, widths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns components of the training images and of the others, from features of both and of two views, and eigenvalues."""
    some = parts[0][: directions_from(settings)]
    k = min(settings.directions, len(some) - 1, sum(widths))
    mean, V = principal_directions([some.clone()], k, torch.float32, widths)
    x, y, a, b = ((f - mean) @ V for f in parts)
    sums = ViewSums(k, 2)
    sums.add([a.double(), b.double()])
    center, S, G = sums.moments()
    ridge = settings.ridge * S.diagonal().mean() * torch.eye(k, dtype=S.dtype)
    W, omega, _ = joint_embedding(G, S + ridge)
    W, omega = W[: settings.dim].float(), omega[: settings.dim].float()
    return (x - center.float()) @ W.T, (y - center.float()) @ W.T, omega


def measure(a: argparse.Namespace) -> ledger.Row:
    """Returns kNN (30) in percent for each exponent: of the first layer's features, the second's and both."""
    data = open_data(DataConfig(source=a.source, root=a.data_root))
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(a.seed))
    train = data.train.subset(order[: a.limit].sort().values)
    other = data.train.subset(order[a.limit :][: two_cores.HELD_OUT].sort().values) if a.choose else data.test
    x, y = (next(part.stream([torch.arange(len(part))]))[1] for part in (train, other))
    began, generator = time.process_time(), torch.Generator().manual_seed(a.seed)
    views = ImageViews(recipes.get("patches", a.source).views, x.shape[2])
    shift = PatchSettings().shift
    pair = [torch.cat([views(moved(part, shift, generator), generator) for part in x.split(BLOCK)]) for _ in range(2)]
    settings = PatchSettings(**{name: getattr(a, name) for name in ("atoms", "second", "second_threshold", "directions", "dim")})
    maps = learned(to_unit(x[:SHOWN], torch.float32), settings)
    f = [torch.cat([maps.responses(to_unit(p, torch.float32)) for p in part.split(BLOCK)]) for part in (x, y, *pair)]
    first, second = ([part.split(settings.widths, 1)[i] for part in f] for i in range(2))
    found = {}
    for name, parts in {"first": first, "second": second, "both": f}.items():
        z, t, omega = components(parts, settings, list(settings.widths) if name == "both" else [parts[0].shape[1]])
        for power in a.powers:
            w = omega**power
            found[f"{name}, power {power:g}"] = two_cores.knn(w * z, w * t, (train.labels, other.labels))
    return {"knn30": found, "cpu_seconds": round(time.process_time() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    two_cores.arguments(parser)
    parser.add_argument("--atoms", type=int, default=512, help="of the first layer")
    parser.add_argument("--second", type=int, default=2048, help="atoms of the second layer")
    parser.add_argument("--second-threshold", type=float, default=0.25, help="of the second layer")
    parser.add_argument("--directions", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--powers", type=float, nargs="+", default=list(POWERS))
    a = ledger.parse(parser, "second_layer")
    if a.tiny:
        a.limit, a.atoms, a.second, a.directions, a.dim, a.powers = 120, 16, 16, 32, 16, [2.0]
    shared = {name: getattr(a, name) for name in ("limit", "atoms", "second", "second_threshold", "directions", "dim")}
    row = ledger.row({"data": a.source, **shared, **measure(a)}, seed=a.seed)
    ledger.add(None if a.choose else a.out, row)


if __name__ == "__main__":
    main()
