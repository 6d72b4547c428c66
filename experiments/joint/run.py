"""Compares all objectives under one protocol (same network, views, epochs and seeds): accuracy of encoders, fit of densities.

README.md says how.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from experiments.joint.two_sample import fit
from experiments.runner import DATA, SEEDS, SETTINGS, first, hidden, main, some
from experiments.shared import Timer, embedded, seeded
from sklearn.mixture import GaussianMixture
from torch import Tensor

import vergence
from vergence.data.items import Items
from vergence.data.sources import Data, open_data
from vergence.densities.gaussian import JointGaussian
from vergence.learn.evaluation import accuracy, collapse, features
from vergence.learn.objectives.core import ConditionalObjective
from vergence.learn.training import build

OBJECTIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "gje": ("gje", {}),
    "gmje": ("gmje", {}),
    "gmje_em": ("gmje_em", {}),
    "gmje_gng": ("gmje_gng", {}),
    "gmje_mdn": ("gmje_mdn", {}),
    "gmje_smc": ("gmje_smc", {}),
    "gmje_smc, fifo (MoCo)": ("gmje_smc", {"mode": "fifo"}),
    "contrastive (InfoNCE)": ("contrastive", {}),
    "jepa": ("jepa", {}),
    "vje": ("vje", {}),
    "VICReg (lightly)": ("vicreg", {}),
    "SimSiam (lightly)": ("simsiam", {"hidden": 16}),
    "untrained": ("experiments.methods.baselines:Nothing", {}),
}
COMPONENTS = {f"gmje, K = {K}": ("gmje", {"components": K}) for K in (1, 3, 10, 30)}  # run by name only
PCA = (16, 32, 64, 128, 256)  # sizes of the baseline that are tried
PROTOCOL = {"projector": (256, 32), "batch_size": 256, "lr": 2e-3, "encoder_lr": 1.0, "clip": 1.0, "knn_every": 0}
PROTOCOL |= {"calibration_share": 0.0}


def measured(a: argparse.Namespace, run: vergence.Run, opened: Data) -> dict[str, Any]:
    """Returns measurements of a run: accuracies on clean images, samples of densities against embeddings of views."""
    test, held_out = part(opened.test, a.tested), part(opened.test, 2 * a.samples)
    row = readings(opened.train, test, *embedded(run, opened.train, test))
    za, zt = (views_of(run, opened, items).double() for items in (opened.train, held_out))
    row |= {"std": zt.std(0).mean().item(), "effective_rank": collapse.effective_rank(zt).item()}
    unit, seed = zt.std(0).clamp(min=1e-9), run.folder.config.fit.seed
    torch.manual_seed(seed)
    gaussian = JointGaussian(za.mean(0), torch.cov(za.T) + 1e-6 * torch.diag(unit.square()))
    drawn = {"gaussian": gaussian.sample(torch.Size((a.samples,))) / unit, "mixture": mixture_samples(za / unit, a.samples, seed)}
    if isinstance(run.method.objective, ConditionalObjective):
        drawn["own"] = run.method.objective.sample(a.samples)[0].double() / unit
    real, drawn["real"] = (zt / unit)[torch.randperm(len(zt))].split(a.samples)  # the limit for any density
    return row | {f"{name}_{key}": value for name, z in drawn.items() for key, value in fit(real, z).items()}


def mixture_samples(z: Tensor, n: int, seed: int) -> Tensor:
    """Returns samples of scikit-learn's mixture of ten Gaussians with full covariances, fitted to embeddings (N, D)."""
    model = GaussianMixture(min(10, len(z) // 4), reg_covar=1e-6, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that stops at its last iteration is used as it is
        return torch.from_numpy(model.fit(z.numpy()).sample(n)[0])


def part(items: Items, limit: int) -> Items:
    """Returns the first items."""
    return items if len(items) <= limit else items.subset(torch.arange(limit))


@torch.no_grad()
def views_of(run: vergence.Run, opened: Data, items: Items) -> Tensor:
    """Returns the embeddings of one view of each item in the objective's space."""
    views = build.make_views(opened, run.folder.config.views, run.folder.metadata.shape)
    net, g = run.method.branch("context").eval(), seeded(0)
    return torch.cat([net(views(x.to(run.device), g)).cpu() for _, x in items.stream(iter(torch.arange(len(items)).split(500)))])


def readings(train: Items, test: Items, z: Tensor, t: Tensor) -> dict[str, float]:
    """Returns the accuracies of kNN and of a linear probe on features of training and of test items."""
    assert train.labels is not None and test.labels is not None
    near = accuracy.knn_accuracy(z, train.labels, t, test.labels, ks=(30,))
    probe = accuracy.linear_probe(z, train.labels, t, test.labels)["accuracy"]
    return {"knn": next(iter(near.values()))["majority"], "probe": probe}


class Pixels(torch.nn.Module):
    """The pixels as features."""

    def forward(self, x: Tensor) -> Tensor:
        return features.pixels(x)


def pixel_baselines(a: argparse.Namespace, run: vergence.Run, opened: Data) -> dict[str, dict[str, float]]:
    """Returns the accuracies of pixels and of their principal components, for several numbers of components."""
    items = opened.train, part(opened.test, a.tested)
    z, t = embedded(run, *items, net=Pixels())
    sizes = [k for k in PCA if k <= min(z.shape)]
    pca = {f"pca, {k} components": readings(*items, *features.pca(z, t, k)) for k in sizes}
    return {"pixels": readings(*items, z, t)} | pca


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    words = [f"{name}={value}" for name, value in a.set.items()]
    for seed in a.seeds:
        for data in a.data:
            for name in a.only:
                kind, options = (OBJECTIVES | COMPONENTS)[name]
                options = {**options, **a.set.get("options", {})}
                key = {"measurement": "joint", "data": data, "setting": ", ".join([name, *words]), "objective": kind}
                key |= {"options": options, "encoder": a.encoder, "size": a.size, "n_train": a.limit, "epochs": a.epochs}
                yield {**key, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains and measures one setting; ``untrained`` keeps the encoder as it is initialized."""
    timer, untrained = Timer(), cell["setting"].startswith("untrained")
    settings = {**PROTOCOL, **a.set, **({"weight_decay": 0.0, "epochs": 1} if untrained else {"epochs": a.epochs})}
    settings |= {name: cell[name] for name in ("objective", "options", "encoder", "size", "seed")}
    settings |= {"root": a.data_root, "limit": a.limit}
    name = f"{cell['data']} {cell['setting']} {cell['seed']}"
    run = vergence.train(cell["data"], out=a.scratch / name, **settings)
    row, opened = {"train_seconds": round(timer.seconds(), 1)}, open_data(run.folder.config.data)
    row |= measured(a, run, opened)
    row["baselines"] = pixel_baselines(a, run, opened) if untrained and cell["seed"] == a.seeds[0] else {}
    metadata = run.folder.metadata
    return {**row, "seconds": round(timer.seconds(), 1), "precision": metadata.precision, "device": metadata.device}


OPTIONS = {"data_root": DATA, "data": ["fashion_mnist", "cifar10"], "only": some([*OBJECTIVES, *COMPONENTS], OBJECTIVES)}
OPTIONS |= {"seeds": SEEDS, "encoder": "small", "size": 16, "limit": 5000, "epochs": 15, "set": SETTINGS}
OPTIONS |= {"samples": hidden(2000), "tested": hidden(10_000)}  # of each density; test images
TINY = {"data": first, "only": lambda names: sorted({names[0], names[-1]}), "seeds": [0]}
TINY |= {"encoder": "small", "size": 8, "limit": 256, "epochs": 1, "samples": 100, "tested": 500}
TINY |= {"set": lambda settings: settings | {"batch_size": 128}}

if __name__ == "__main__":
    shown = ("data", "setting", "seed", "knn", "probe", "own_coverage", "mixture_coverage", "seconds")
    main(__doc__, "joint", OPTIONS, cells, measure, tiny=TINY, shown=shown)
