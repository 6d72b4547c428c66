"""Every objective under one protocol: same network, views, epochs and seeds; what its embedding and its density are worth.

The encoder is four convolutions, the projector 256 -> 256 -> 32, images are 16 pixels wide, 5,000 of each set train for 15 epochs
(AdamW, batch 256). The frozen encoder is read by kNN (k = 30) and a linear probe on these and the 10,000 test images. The density
over the projector's output is read by samples: MMD, sliced Wasserstein, precision, recall and coverage of 2,000 samples against
embeddings of views of as many held-out images (each feature in units of its deviation), beside a Gaussian fitted afterwards to
embeddings of views of the training images, and beside views of other held-out images, which nothing can beat.

    python benchmarks/joint.py --data-root DATA              # adds rows to results/joint.jsonl; 40 minutes on two cores
    python benchmarks/joint.py --data-root DATA --data cifar10 --encoder resnet18 --size 32 --limit 50000 --epochs 200  # a GPU's
    python benchmarks/tables.py                              # the tables of docs/joint_embeddings.md
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vergence
from vergence.data.items import Items
from vergence.data.sources import Data, open_data
from vergence.densities.gaussian import JointGaussian
from vergence.evaluation import controls, features, knn, probe
from vergence.evaluation.sampling import maximum_mean_discrepancy, overlap, sliced_wasserstein
from vergence.objectives.core import ConditionalObjective
from vergence.training import build
from vergence.utils import linalg

LEDGER = Path(__file__).parent / "results" / "joint.jsonl"
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
    "VICReg (lightly)": ("benchmarks.baselines:VICReg", {}),
    "SimSiam (lightly)": ("benchmarks.baselines:SimSiam", {}),
    "untrained": ("benchmarks.baselines:Nothing", {}),
}
SAMPLES = 2000
COMMIT = build.commit()  # of the code that was loaded, whatever happens to the checkout while it runs


def measured(run: vergence.Run, seed: int) -> dict[str, Any]:
    """Returns what a run's encoder and density are worth: readings of clean images, samples against embeddings of views."""
    opened = open_data(run.folder.config.data)
    train, test = (_read(run, run.method.encoder, part) for part in (opened.train, opened.test))
    za, zt = (_views(run, opened, part).double() for part in (opened.train, opened.test.subset(torch.arange(2 * SAMPLES))))
    found = readings(*train, *test)
    found |= {"std": zt.std(0).mean().item(), "effective_rank": linalg.effective_rank(zt).item()}
    unit = zt.std(0).clamp(min=1e-9)
    torch.manual_seed(seed)
    gaussian = JointGaussian(za.mean(0), torch.cov(za.T) + 1e-6 * torch.diag(unit.square()))
    samples = {"gaussian": gaussian.sample(torch.Size((SAMPLES,)))}
    if isinstance(run.method.objective, ConditionalObjective):
        samples["own"] = run.method.objective.sample(SAMPLES)[0].double()
    real, other = (zt / unit)[torch.randperm(len(zt))].split(SAMPLES)
    found |= {f"real_{key}": v for key, v in fit(real, other).items()}  # what no sample can beat
    return found | {f"{name}_{key}": v for name, z in samples.items() for key, v in fit(real, z / unit).items()}


@torch.no_grad()
def _views(run: vergence.Run, opened: Data, items: Items) -> Tensor:
    """Returns the embeddings of one view of each item in the objective's space."""
    views = build.make_views(opened, run.folder.config.views, run.folder.metadata.shape, torch.zeros(1), torch.ones(1))
    net, g = run.method.branch("context").eval(), torch.Generator().manual_seed(0)
    parts = [net(views(x.to(run.device), g)).cpu() for _, x in items.stream(iter(torch.arange(len(items)).split(500)))]
    return torch.cat(parts)


def _read(run: vergence.Run, net: nn.Module, items: Items) -> tuple[Tensor, Tensor]:
    z, index = features.collect(net, items, size=run.size, device=run.device)
    assert items.labels is not None
    return z.cpu(), items.labels[index]


def readings(z: Tensor, y: Tensor, t: Tensor, u: Tensor) -> dict[str, float]:
    """Returns the accuracies of kNN and of a linear probe."""
    near = knn.knn_accuracy(z, y, t, u, ks=(30,))
    return {"knn": next(iter(near.values()))["majority"], "probe": probe.linear_probe(z, y, t, u)["accuracy"]}


def fit(real: Tensor, fake: Tensor) -> dict[str, float]:
    """Returns how far samples are from held-out embeddings."""
    return {
        "mmd": maximum_mean_discrepancy(real, fake),
        "wasserstein": sliced_wasserstein(real, fake, generator=torch.Generator().manual_seed(0)),
        **overlap(real, fake),
    }


def pixel_controls(run: vergence.Run, dim: int) -> dict[str, dict[str, float]]:
    """Returns the readings of pixels and of their principal components."""
    opened = open_data(run.folder.config.data)

    class Pixels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return controls.pixels(x)

    (z, y), (t, u) = (_read(run, Pixels(), part) for part in (opened.train, opened.test))
    return {"pixels": readings(z, y, t, u), "pca": readings(*_alternated(controls.pca(z, t, dim), y, u))}


def _alternated(pair: tuple[Tensor, Tensor], y: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return pair[0], y, pair[1], u


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--data", nargs="+", default=["fashion_mnist", "cifar10"])
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--limit", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of the run or of every objective")
    parser.add_argument("--out", type=Path, default=LEDGER)
    a = parser.parse_args()
    from vergence.cli.options import parse_settings

    also = parse_settings(a.set)
    options_too = also.pop("options", {})
    for seed in a.seeds:
        for data in a.data:
            for name in a.only:
                kind, options = SETTINGS[name]
                options = {**options, **options_too}
                began = time.monotonic()
                with tempfile.TemporaryDirectory() as place:
                    run = vergence.train(
                        data,
                        out=Path(place) / "run",
                        root=a.data_root,
                        objective=kind,
                        options=options,
                        encoder=a.encoder,
                        size=a.size,
                        limit=a.limit,
                        epochs=1 if name == "untrained" else a.epochs,
                        seed=seed,
                        **{"projector": (256, 32), "batch_size": 256, "lr": 2e-3, "clip": 1.0, "knn_every": 0, **also},
                        **({"weight_decay": 0.0} if name == "untrained" else {}),
                    )
                    trained = time.monotonic() - began
                    found = measured(run, seed)
                    extra = pixel_controls(run, 256) if name == "untrained" and seed == a.seeds[0] else {}
                row = {
                    "measurement": "joint",
                    "command": "python benchmarks/joint.py --data-root DATA"
                    + "".join(f" --{k} {getattr(a, k)}" for k in ("encoder", "size", "limit", "epochs"))
                    + "".join(f" --set {s}" for s in a.set),
                    "data": data,
                    "setting": ", ".join([name, *a.set]),
                    "objective": kind,
                    "options": options,
                    "seed": seed,
                    "encoder": a.encoder,
                    "size": a.size,
                    "n_train": a.limit,
                    "epochs": a.epochs,
                    **found,
                    "controls": extra,
                    "train_seconds": round(trained, 1),
                    "seconds": round(time.monotonic() - began, 1),
                    "device": run.folder.metadata.device,
                    "precision": run.folder.metadata.precision,
                    "torch": torch.__version__,
                    "commit": COMMIT,
                }
                with a.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(data, seed, name, {k: round(v, 4) for k, v in found.items()}, row["seconds"], flush=True)


if __name__ == "__main__":
    main()
