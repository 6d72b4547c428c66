"""Compares all objectives under one protocol (same network, views, epochs and seeds): accuracy of encoders, fit of densities.

The encoder is four convolutions, the projector 256 -> 256 -> 32, images are 16 pixels wide, 5,000 of each set train for 15 epochs
(AdamW, batch 256). The frozen encoder is evaluated by kNN (k = 30) and a linear probe on these and the 10,000 test images. The
density over the projector's output is evaluated by samples: MMD, sliced Wasserstein, precision, recall and coverage of 2,000
samples against embeddings of views of as many held-out images (each feature in units of its standard deviation). For comparison:
a Gaussian and scikit-learn's mixture of ten full Gaussians, both fitted after training to embeddings of views of the training
images, and views of other held-out images, which no density can improve on.

    python -m experiments.joint.run --data-root DATA              # adds rows to results/joint.jsonl; 40 minutes on two cores
    python -m experiments.joint.run --data-root DATA --only "gmje, K = 1" "gmje, K = 3" "gmje, K = 10" "gmje, K = 30"
    python -m experiments.joint.run --data-root DATA --data cifar10 --encoder resnet18 --size 32 --limit 50000 --epochs 200
    python -m experiments.tables                              # the tables of docs/joint_embeddings.md
"""

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from experiments.joint.two_sample import maximum_mean_discrepancy, overlap, sliced_wasserstein
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

import vergence
from experiments import ledger
from vergence.data.items import Items
from vergence.data.sources import Data, open_data
from vergence.densities.gaussian import JointGaussian
from vergence.evaluation import accuracy, collapse, features
from vergence.objectives.core import ConditionalObjective
from vergence.training import build

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
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
SAMPLES, TEST = 2000, 10_000  # of each density, and test images
PCA = (16, 32, 64, 128, 256)  # sizes of the control that are tried


def measured(run: vergence.Run, seed: int) -> dict[str, Any]:
    """Returns measurements of a run: accuracies on clean images, samples of densities against embeddings of views."""
    opened = open_data(run.folder.config.data)
    train, test = (_read(run, run.method.encoder, part) for part in (opened.train, _part(opened.test, TEST)))
    held_out = _part(opened.test, 2 * SAMPLES)
    za, zt = (_views(run, opened, part).double() for part in (opened.train, held_out))
    row = readings(*train, *test)
    row |= {"std": zt.std(0).mean().item(), "effective_rank": collapse.effective_rank(zt).item()}
    unit = zt.std(0).clamp(min=1e-9)
    torch.manual_seed(seed)
    gaussian = JointGaussian(za.mean(0), torch.cov(za.T) + 1e-6 * torch.diag(unit.square()))
    samples = {"gaussian": gaussian.sample(torch.Size((SAMPLES,))), "mixture": unit * _mixture_samples(za / unit, seed)}
    if isinstance(run.method.objective, ConditionalObjective):
        samples["own"] = run.method.objective.sample(SAMPLES)[0].double()
    real, other = (zt / unit)[torch.randperm(len(zt))].split(SAMPLES)
    row |= {f"real_{key}": v for key, v in fit(real, other).items()}  # the limit for any density
    return row | {f"{name}_{key}": v for name, z in samples.items() for key, v in fit(real, z / unit).items()}


def _mixture_samples(z: Tensor, seed: int) -> Tensor:
    """Returns samples of scikit-learn's mixture of ten Gaussians with full covariances, fitted to embeddings (N, D)."""
    model = GaussianMixture(min(10, len(z) // 4), reg_covar=1e-6, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that stops at its last iteration is used as it is
        drawn = model.fit(z.numpy()).sample(SAMPLES)[0]
    return torch.from_numpy(drawn)


def _part(items: Items, limit: int) -> Items:
    """Returns the first items."""
    return items if len(items) <= limit else items.subset(torch.arange(limit))


@torch.no_grad()
def _views(run: vergence.Run, opened: Data, items: Items) -> Tensor:
    """Returns the embeddings of one view of each item in the objective's space."""
    views = build.make_views(opened, run.folder.config.views, run.folder.metadata.shape)
    net, g = run.method.branch("context").eval(), torch.Generator().manual_seed(0)
    parts = [net(views(x.to(run.device), g)).cpu() for _, x in items.stream(iter(torch.arange(len(items)).split(500)))]
    return torch.cat(parts)


def _read(run: vergence.Run, net: nn.Module, items: Items) -> tuple[Tensor, Tensor]:
    z, index = features.collect_features(net, items, size=run.size, device=run.device)
    assert items.labels is not None
    return z.cpu(), items.labels[index]


def readings(z: Tensor, y: Tensor, t: Tensor, u: Tensor) -> dict[str, float]:
    """Returns the accuracies of kNN and of a linear probe."""
    near = accuracy.knn_accuracy(z, y, t, u, ks=(30,))
    return {"knn": next(iter(near.values()))["majority"], "probe": accuracy.linear_probe(z, y, t, u)["accuracy"]}


def fit(real: Tensor, fake: Tensor) -> dict[str, float]:
    """Returns distances between samples and held-out embeddings."""
    return {
        "mmd": maximum_mean_discrepancy(real, fake),
        "wasserstein": sliced_wasserstein(real, fake, generator=torch.Generator().manual_seed(0)),
        **overlap(real, fake),
    }


def pixel_controls(run: vergence.Run) -> dict[str, dict[str, float]]:
    """Returns the accuracies of pixels and of their principal components, for several numbers of components."""
    opened = open_data(run.folder.config.data)

    class Pixels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return features.pixels(x)

    (z, y), (t, u) = (_read(run, Pixels(), part) for part in (opened.train, _part(opened.test, TEST)))
    sizes = [k for k in PCA if k <= min(z.shape)]
    pca = {f"pca, {k} components": readings(*_alternated(features.pca(z, t, k), y, u)) for k in sizes}
    return {"pixels": readings(z, y, t, u)} | pca


def _alternated(pair: tuple[Tensor, Tensor], y: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return pair[0], y, pair[1], u


def trained(a: argparse.Namespace, data: str, name: str, options: dict[str, Any], seed: int, out: Path) -> vergence.Run:
    """Trains one setting; ``untrained`` keeps the encoder as it is initialized."""
    untrained = name == "untrained"
    protocol = {
        "projector": (256, 32),
        "batch_size": 256,
        "lr": 2e-3,
        "encoder_lr": 1.0,
        "clip": 1.0,
        "knn_every": 0,
        "calibration_share": 0.0,
        **a.settings,
    }
    return vergence.train(
        data,
        out=out,
        root=a.data_root,
        objective=(SETTINGS | COMPONENTS)[name][0],
        options=options,
        encoder=a.encoder,
        size=a.size,
        limit=a.limit,
        epochs=1 if untrained else a.epochs,
        seed=seed,
        **protocol | ({"weight_decay": 0.0} if untrained else {}),
    )


def run_one(a: argparse.Namespace, data: str, name: str, seed: int) -> None:
    """Trains and measures one setting, and adds its row, unless the ledger has it from this commit."""
    kind, options = (SETTINGS | COMPONENTS)[name]
    options = {**options, **a.options}
    key = {"measurement": "joint", "data": data, "setting": ", ".join([name, *a.set]), "objective": kind, "options": options}
    key |= {"seed": seed, "encoder": a.encoder, "size": a.size, "n_train": a.limit, "epochs": a.epochs}
    if ledger.holds(a.out, **key):
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        run = trained(a, data, name, options, seed, Path(place) / "run")
        seconds = {"train_seconds": round(time.monotonic() - began, 1)}
        values = measured(run, seed)
        extra = {"controls": pixel_controls(run) if name == "untrained" and seed == a.seeds[0] else {}}
    seconds |= {"seconds": round(time.monotonic() - began, 1), "precision": run.folder.metadata.precision}
    row = ledger.row(key | values | extra | seconds, seed=seed, peers=("lightly",), device=run.folder.metadata.device)
    ledger.add(a.out, row, shown=("data", "setting", "seed", "knn", "probe", "own_coverage", "mixture_coverage", "seconds"))


def main() -> None:
    global SAMPLES, TEST
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--data", nargs="+", default=["fashion_mnist", "cifar10"])
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), choices=[*SETTINGS, *COMPONENTS], metavar="SETTING")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--limit", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the run or of every objective")
    a = ledger.parse(parser, "joint")
    from vergence.cli.options import parse_settings

    a.settings = parse_settings(a.set)
    a.options = a.settings.pop("options", {})
    if a.tiny:
        a.data, a.only, a.seeds = a.data[:1], sorted({a.only[0], a.only[-1]}), [0]
        a.encoder, a.size, a.limit, a.epochs = "small", 8, 256, 1
        a.settings["batch_size"], SAMPLES, TEST = 128, 100, 500
    for seed in a.seeds:
        for data in a.data:
            for name in a.only:
                run_one(a, data, name, seed)


if __name__ == "__main__":
    main()
