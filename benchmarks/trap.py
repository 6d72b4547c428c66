"""Shows which losses collapse when encoders learn: likelihoods with each published remedy, and losses with a volume term.

Toy: 20-d views of a 4-d latent signal, an independent nuisance in each view, and noise; MLP encoder, 4-d embedding, 3,000 Adam
steps. Fashion: two views of Fashion-MNIST images at 16 pixels, four convolutions, 32-d embedding, 5,000 images, 5 epochs.

    python benchmarks/trap.py toy                            # adds rows to results/trap.jsonl; about 15 minutes on two cores
    python benchmarks/trap.py fashion --data-root DATA       # about 25 minutes
    python benchmarks/tables.py                              # the tables of docs/joint_embeddings.md
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ledger
import numpy as np
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.nn import functional as F

import vergence
from vergence import objectives
from vergence.data.sources import open_data
from vergence.densities.gaussian import JointGaussian
from vergence.densities.moments import BatchMoments
from vergence.evaluation import collapse, features, knn, probe
from vergence.methods.paired import PairedMethod
from vergence.objectives.gje import GJE
from vergence.training.monitor import labeled
from vergence.utils.devices import as_device, describe_device

SHOWN = ("setting", "seed", "variance", "effective_rank", "probe", "seconds")
STEPS, BATCH, LATENT, SEEN, WIDTH = 3000, 256, 4, 20, 4


class RidgeGJE(GJE):
    """The naive loss with S + lambda I in place of S; used by this study only."""

    def __init__(self, dim: int, ridge: float = 1e-3) -> None:
        super().__init__(dim, loss="naive", shrinkage=0.0)
        self.ridge = ridge

    def _likelihood(self, m: BatchMoments) -> JointGaussian:
        return super()._likelihood(BatchMoments(m.mean, m.S + self.ridge * torch.eye(len(m.mean)).to(m.S)))


class OnTheSphere(GJE):
    """The naive loss on embeddings of unit norm; used by this study only."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, loss="naive", shrinkage=0.0)

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        return super().forward(F.normalize(za), F.normalize(zb))


HERE = "benchmarks.trap"
NONE = {"shrinkage": 0.0}
LEARNED = {"loss": "naive", "fit": "gradient", "covariance": "full"}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "naive": ("gje", {"loss": "naive", **NONE}),
    "naive, ridge 1e-3": (f"{HERE}:RidgeGJE", {}),
    "naive, stop-gradient": ("gje", {"loss": "naive", "stop_gradient": True, **NONE}),
    "naive, moving covariance": ("gje", {"loss": "naive", "likelihood": "ema", **NONE}),
    "naive, learned covariance": ("gje", {"loss": "naive", "likelihood": "learned", **NONE}),
    "naive, learned covariance, floor 0.3": ("gmje", {**LEARNED, "components": 1}),
    "naive, 8 prototypes, floor 0.05": ("gmje", {**LEARNED, "components": 8, "floor": 0.05}),
    "naive, EM on a bank": ("gmje_em", {"loss": "naive", "components": 8, "floor": 0.05, "covariance": "full"}),
    "naive, growing gas on a bank": ("gmje_gng", {"loss": "naive", "floor": 0.05, "covariance": "full"}),
    "naive, density network": ("gmje_mdn", {"marginal": "none"}),
    "density network, marginal likelihood": ("gmje_mdn", {"marginal": "nll"}),
    "naive, unit norm": (f"{HERE}:OnTheSphere", {}),
    "joint + KL, beta 1": ("gje", {"loss": "joint_kl", "beta": 1.0, **NONE}),
    "joint + KL, beta 2": ("gje", {"loss": "joint_kl", "beta": 2.0, **NONE}),
    "joint + KL, beta 5": ("gje", {"loss": "joint_kl", "beta": 5.0, **NONE}),
    "joint + KL, beta 2, moving covariance": ("gje", {"loss": "joint_kl", "beta": 2.0, "likelihood": "ema", **NONE}),
    "joint + KL, beta 2, learned covariance": ("gje", {"loss": "joint_kl", "beta": 2.0, "likelihood": "learned", **NONE}),
    "conditional + KL, beta 1": ("gje", {"loss": "conditional_kl", "beta": 1.0, **NONE}),
    "conditional + KL, beta 2": ("gje", {"loss": "conditional_kl", "beta": 2.0, **NONE}),
    "information + KL, eta 0.1": ("gje", {"eta": 0.1, **NONE}),
    "information + KL, eta 0.5": ("gje", {"eta": 0.5, **NONE}),
    "information + KL, eta 1": ("gje", {"eta": 1.0, **NONE}),
    "prototypes, information + KL": ("gmje", {"fit": "gradient"}),
    "prototypes, entropies + KL": ("gmje", {"fit": "gradient", "loss": "entropy_kl"}),
    "prototypes by EM, information + KL": ("gmje", {"fit": "em"}),
    "prototypes by EM, entropies + KL": ("gmje", {"fit": "em", "loss": "entropy_kl"}),
    "EM on a bank, information + KL": ("gmje_em", {}),
    "growing gas, information + KL": ("gmje_gng", {}),
    "density network + KL, stopped target": ("gmje_mdn", {}),
    "density network + KL, target learns": ("gmje_mdn", {"target": "through"}),
    "particle bank": ("gmje_smc", {}),
    "queue (MoCo)": ("gmje_smc", {"mode": "fifo"}),
    "InfoNCE": ("contrastive", {}),
    "predictor (JEPA)": ("jepa", {}),
}
PREDICTED = {  # stationary mean variance, from the losses' behavior under scaling
    **{f"joint + KL, beta {b}": 1 - 1 / b for b in (1, 2, 5)},
    **{f"conditional + KL, beta {b}": 1 - 1 / (2 * b) for b in (1, 2)},
    **{f"information + KL, eta {e}": 1.0 for e in ("0.1", "0.5", "1")},
}


def setting(name: str) -> tuple[str, dict[str, Any]]:
    """Returns objective and options of a named setting, or of words ``objective NAME=VALUE ...``; any other name gives GJE's."""
    kind, *options = name.split()
    if name not in SETTINGS and options:
        from vergence.cli.options import parse_settings

        return kind, parse_settings(options).get("options", {})
    return SETTINGS.get(name, ("gje", {}))


def batches(seed: int, n: int, mix: Tensor, nuisance: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields the latent (n, 4) and two views (n, 20) of it."""
    g = torch.Generator().manual_seed(seed)
    while True:
        s = torch.randn(n, LATENT, generator=g)
        views = [
            torch.tanh(s @ mix) + torch.randn(n, LATENT, generator=g) @ nuisance + 0.1 * torch.randn(n, SEEN, generator=g)
            for _ in range(2)
        ]
        yield s, views[0], views[1]


def toy(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Trains one setting on the toy; returns measurements of the embedding."""
    g = torch.Generator().manual_seed(1000 + seed)
    mix, nuisance = (torch.randn(LATENT, SEEN, generator=g) * scale for scale in (0.7, 0.7))
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(SEEN, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, WIDTH))
    kind, options = setting(name)
    cls = objectives.get(kind)
    method = PairedMethod(encoder, cls(WIDTH, **options), teacher=cls.teacher)
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], lr=1e-3)
    stream = batches(seed, BATCH, mix, nuisance)
    for _ in range(0 if name == "untrained" else steps):
        _, a, b = next(stream)
        loss = torch.stack(list(method((a, b), gather=lambda z: z).values())).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(method.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        method.after_step()
    with torch.no_grad():
        s, a, _ = next(batches(10_000 + seed, 4000, mix, nuisance))
        z = encoder(a)
    scaled = z.double() - z.double().mean(0)
    scaled = (scaled / scaled.std().clamp(min=1e-12)).numpy()
    target = s.numpy()
    r2 = Ridge(1e-3).fit(scaled[:2000], target[:2000]).score(scaled[2000:], target[2000:])
    variance = z.double().var(0, correction=0).mean().item()
    return {
        "std": variance**0.5,
        "variance": variance,
        "effective_rank": collapse.effective_rank(z).item(),
        "probe": float(r2),
    }


def fashion(name: str, seed: int, root: str, epochs: int, limit: int) -> dict[str, Any]:
    """Trains one setting on Fashion-MNIST with the library's loop; returns measurements of the embedding."""
    kind, options = setting(name)
    with tempfile.TemporaryDirectory() as place:
        run = vergence.train(
            "fashion_mnist",
            out=Path(place) / "run",
            root=root,
            limit=limit,
            epochs=1 if name == "untrained" else epochs,
            lr=0.0 if name == "untrained" else 2e-3,
            batch_size=256,
            clip=1.0,
            objective=kind,
            options=options,
            projector=(32,),
            seed=seed,
            knn_every=0,
            calibration_share=0.0,
            size=16,
        )
        opened = open_data(run.folder.config.data)
    train, test = labeled(opened.train), labeled(opened.test, 2000)
    assert train is not None and test is not None and train.labels is not None and test.labels is not None
    net = nn.Sequential(run.method.encoder, run.method.projector)
    (h, i), (t, j) = (features.collect(run.method.encoder, part, size=run.size, device=run.device) for part in (train, test))
    z, y = (features.collect(net, part, size=run.size, device=run.device)[0] for part in (train, test))
    variance = y.double().var(0, correction=0).mean().item()
    near = knn.knn_accuracy(h, train.labels[i], t, test.labels[j], ks=(min(30, len(h)),))
    return {
        "std": variance**0.5,
        "variance": variance,
        "effective_rank": collapse.effective_rank(y).item(),
        "probe": probe.linear_probe(z, train.labels[i], y, test.labels[j])["accuracy"],
        "probe_encoder": probe.linear_probe(h, train.labels[i], t, test.labels[j])["accuracy"],
        "knn_encoder": next(iter(near.values()))["majority"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["toy", "fashion"])
    parser.add_argument("--data-root")
    parser.add_argument("--only", nargs="*", default=["untrained", *SETTINGS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--limit", type=int, default=5000)
    a = ledger.parse(parser, "trap")
    steps = STEPS
    if a.tiny:
        a.only, a.seeds, a.epochs, a.limit, steps = ["naive, ridge 1e-3"], [0], 1, 256, 3
    for name in a.only:
        for seed in a.seeds:
            kind, options = setting(name)
            key = {"measurement": f"trap {a.what}", "setting": name, "objective": kind, "options": options, "seed": seed}
            key |= {"epochs": a.epochs, "n_train": a.limit} if a.what == "fashion" else {"steps": steps}
            if ledger.holds(a.out, **key):
                continue
            began = time.monotonic()
            values = toy(name, seed, steps) if a.what == "toy" else fashion(name, seed, a.data_root, a.epochs, a.limit)
            values = {k: float(np.round(v, 8)) for k, v in values.items()} | {"predicted_variance": PREDICTED.get(name)}
            values |= {"seconds": round(time.monotonic() - began, 1)}
            where = describe_device(as_device("auto" if a.what == "fashion" else "cpu"))
            ledger.add(a.out, ledger.row(key | values, seed=seed, device=where), shown=SHOWN)


if __name__ == "__main__":
    main()
