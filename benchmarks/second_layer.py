"""A second layer on the pooled maps of the closed form: what it adds to kNN, for some numbers of atoms, patches and thresholds.

    python benchmarks/second_layer.py cifar10 --data-root DATA --limit 10000

The first layer is that of the recipe ``patches`` (2 x 2 windows). The second one reads the responses to 256 atoms in a grid of
6 x 6 windows: patches of 2 x 2 windows, of length 1, whitened in 192 dimensions; a spherical k-means dictionary, soft threshold
in units of the responses' deviation, 2 x 2 windows and cube root, as in the first layer. Joint embedding of two views follows on
the first features, on the second, and on both, each group with a mean squared length of 1. One row goes to
``results/second_layer.jsonl``; with ``--choose`` images are held-out training images, and nothing is written.
"""

import argparse
import time

import ledger
import torch
import two_cores
from torch import Tensor
from torch.nn import functional as F

from vergence.data.config import DataConfig
from vergence.data.pixels import to_unit
from vergence.data.sources import open_data
from vergence.data.views import ImageViews
from vergence.encoders.dictionary import learn_dictionary, spherical_k_means
from vergence.encoders.patch_maps import PatchMaps, PatchSettings, sampled_patches
from vergence.encoders.pooling import ROOT, cells
from vergence.linear.solutions import joint_embedding
from vergence.training import recipes
from vergence.training.closed_form import ViewSums, moved

GRID, FIRST, DIMENSIONS, SAMPLE = 6, 256, 192, 40_000  # windows per side; atoms below the second layer; of its patches
RIDGE, POWERS = 0.01, (1.5, 2.0, 2.5, 3.0)
BLOCK, SHOWN = 250, 10_000  # images at a time; for the dictionaries


def maps(images: Tensor, atoms: int, pool: int) -> PatchMaps:
    """Returns the first layer with a dictionary that is learned from images."""
    found = PatchMaps(images.shape[1], PatchSettings(atoms=atoms, pool=pool))
    found.set(*learn_dictionary(sampled_patches([images], found), atoms))
    return found


class SecondLayer:
    """Features (B, 8 K) of a dictionary of K patches of the first layer's maps.

    Args:
        images: Images (N, C, H, W) that both dictionaries are learned from.
        a: ``atoms`` of the first layer at most, ``second`` K, ``size`` of a patch in windows, ``threshold``.
    """

    def __init__(self, images: Tensor, a: argparse.Namespace) -> None:
        self.first, self.size, self.threshold = maps(images, min(FIRST, a.atoms), GRID), a.size, a.threshold
        generator = torch.Generator().manual_seed(1)
        p = torch.cat([self.patches(part).flatten(0, 1) for part in images[:2_000].split(BLOCK)])
        p = p[torch.randperm(len(p), generator=generator)[:SAMPLE]]
        self.mean = p.mean(0)
        w, U = torch.linalg.eigh(torch.cov(p.T))
        w, U = w[-DIMENSIONS:], U[:, -DIMENSIONS:]
        self.Z = U / (w + 0.1 * w.mean()).sqrt()
        q = (p - self.mean) @ self.Z
        self.D = spherical_k_means(q, F.normalize(q[: a.second], dim=1))
        self.scale = (q @ self.D.T).std()

    def patches(self, x: Tensor) -> Tensor:
        """Returns patches of windows (B, L, F) of images, each centered and of length 1."""
        f = self.first.responses(x).unflatten(1, (-1, GRID, GRID)).unfold(2, self.size, 1).unfold(3, self.size, 1)
        p = f.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return F.normalize(p - p.mean(2, keepdim=True), dim=2)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the features of images (B, C, H, W) in [0, 1]."""
        r = ((self.patches(x) - self.mean) @ self.Z) @ self.D.T / self.scale
        a, side = F.softshrink(r, self.threshold), GRID - self.size + 1
        A = cells(side, side, 2).T.to(a)
        both = [(A @ part.clamp(min=0)).mT.flatten(1) for part in (a, -a)]
        return torch.cat(both, 1).clamp(min=0).pow(1 / ROOT)


def components(parts: list[list[Tensor]], directions: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns components of the training images and of the others, from features of both and of two views, and eigenvalues.

    Args:
        parts: Groups of features, each a list: training images, the others, first and second views.
        directions: Principal directions of the training images' features, from at most 3,000 of them.
        dim: Components of the joint embedding.
    """
    centers = [f[0].mean(0) for f in parts]
    some = [f[0][:3_000] - center for f, center in zip(parts, centers, strict=True)]
    some = [part / part.square().sum(1).mean().sqrt() for part in some]
    w, U = torch.linalg.eigh(sum(part @ part.T for part in some).double())
    k = min(directions, len(some[0]) - 1)
    inner = U[:, -k:] / w[-k:].sqrt()
    W = [(part.T.double() @ inner).float() for part in some]
    scales = [part.norm() / (f[0][:3_000] - center).norm() for part, f, center in zip(some, parts, centers, strict=True)]
    groups = list(zip(parts, centers, scales, W, strict=True))
    x, y, a, b = (sum((f[i] - center) @ (scale * own) for f, center, scale, own in groups).double() for i in range(4))
    sums = ViewSums(a.shape[1], 2)
    sums.add([a, b])
    mean, S, G = sums.moments()
    W, omega, _ = joint_embedding(G, S + RIDGE * S.diagonal().mean() * torch.eye(len(S), dtype=S.dtype))
    return ((x - mean) @ W[:dim].T).float(), ((y - mean) @ W[:dim].T).float(), omega[:dim].float()


def measure(a: argparse.Namespace) -> ledger.Row:
    """Returns kNN (30) in percent for each exponent: of the first layer's features, the second's and both."""
    data = open_data(DataConfig(source=a.source, root=a.data_root))
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(a.seed))
    train = data.train.subset(order[: a.limit].sort().values)
    other = data.train.subset(order[a.limit :][: two_cores.HELD_OUT].sort().values) if a.choose else data.test
    x, y = (next(part.stream([torch.arange(len(part))]))[1] for part in (train, other))
    began, generator = time.process_time(), torch.Generator().manual_seed(a.seed)
    views = ImageViews(recipes.get("patches")(a.source).views, x.shape[2])
    shift = PatchSettings().shift
    pair = [torch.cat([views(moved(part, shift, generator), generator) for part in x.split(BLOCK)]) for _ in range(2)]
    images, unit = (x, y, *pair), to_unit(x[:SHOWN], torch.float32)
    layers = maps(unit, a.atoms, 2).responses, SecondLayer(unit, a)
    first, second = ([torch.cat([of(to_unit(p, torch.float32)) for p in part.split(BLOCK)]) for part in images] for of in layers)
    found = {}
    for name, parts in {"first": [first], "second": [second], "both": [first, second]}.items():
        z, t, omega = components(parts, a.directions, a.dim)
        for power in a.powers:
            w = omega**power
            found[f"{name}, power {power:g}"] = two_cores.knn(w * z, w * t, (train.labels, other.labels))
    return {"knn30": found, "cpu_seconds": round(time.process_time() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    two_cores.arguments(parser)
    parser.add_argument("--atoms", type=int, default=1024, help="of the first layer")
    parser.add_argument("--second", type=int, default=1024, help="atoms of the second layer")
    parser.add_argument("--size", type=int, default=2, help="windows per side of a patch of the second layer")
    parser.add_argument("--threshold", type=float, default=0.5, help="of the second layer")
    parser.add_argument("--directions", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--powers", type=float, nargs="+", default=list(POWERS))
    a = ledger.parse(parser, "second_layer")
    if a.tiny:
        a.limit, a.atoms, a.second, a.directions, a.dim, a.powers = 120, 16, 16, 32, 16, [2.0]
    shared = {name: getattr(a, name) for name in ("limit", "atoms", "second", "size", "threshold", "directions", "dim")}
    row = ledger.row({"data": a.source, **shared, **measure(a)}, seed=a.seed)
    ledger.add(None if a.choose else a.out, row)


if __name__ == "__main__":
    main()
