"""Predicts the bottom half of an image from its top half, as a distribution, with two encoders that are trained together.

Every objective trains two encoders (four convolutions, projector 256 -> 256 -> 16) on 3,000 pairs for 8 epochs. Measured on the
test pairs: the conditional negative log-likelihood of 5,000 pairs minus that of one Gaussian fitted to the embeddings of the
other 5,000 (spaces differ, so only the difference can be compared); on 1,000 pairs, the effective number of components of a
conditional, the share of true targets among the 1, 5 and 20 most likely of the 1,000, the Kolmogorov-Smirnov distance of the
features' PIT from uniform (mean over features), and the share of features inside their 50 and 90 % intervals.

    python benchmarks/halves.py run --data-root DATA         # adds rows to results/halves.jsonl; about 25 minutes on two cores
    python benchmarks/halves.py draw --data-root DATA        # docs/figures/halves_*.png (needs matplotlib)
    python benchmarks/tables.py                              # the tables of docs/joint_embeddings.md
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import ledger
import numpy as np
import torch
from scipy.stats import kstest
from torch import Tensor

import vergence
from vergence import objectives
from vergence.data.config import DataConfig
from vergence.data.sources import open_data
from vergence.densities.gaussian import GaussianMixture
from vergence.densities.retrieval import retrieve
from vergence.mixtures import ConditionalGaussian
from vergence.objectives.core import ConditionalObjective

TEACHER = 0.95  # momentum of objectives that have a teacher; runs of 180 steps are too short for 0.99
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "deterministic predictor (jepa)": ("jepa", {}),
    "K = 1 (gje)": ("gje", {}),
    "gmje": ("gmje", {}),
    "gmje_em": ("gmje_em", {}),
    "gmje_gng": ("gmje_gng", {}),
    "gmje_mdn": ("gmje_mdn", {}),
    "gmje_mdn, floor 0.05": ("gmje_mdn", {"floor": 0.05}),
    "gmje_smc": ("gmje_smc", {"bank": 1024}),
    "contrastive": ("contrastive", {"components": "pairs"}),
}
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
PRINTED = ("data", "setting", "seed", "nll_less_gaussian", "at_1", "pit_ks", "seconds")
RANKS, LEVELS, BANK = (1, 5, 20), (0.5, 0.9), 1000


def halves(data: str, root: str, where: Path, limit: int) -> Path:
    """Writes the top and bottom halves of a set's images as pairs; returns the file."""
    opened = open_data(DataConfig(source=data, root=root, limit=limit))
    parts = {}
    for suffix, items in (("", opened.train), ("_test", opened.test)):
        images = torch.cat([x for _, x in items.stream(iter(torch.arange(len(items)).split(1000)))])
        half = images.shape[2] // 2
        parts |= {f"context{suffix}": images[:, :, :half].numpy(), f"target{suffix}": images[:, :, half:].numpy()}
    np.savez(where, **parts)
    return where


def trained(path: Path, out: Path, setting: str, seed: int, epochs: int) -> vergence.Run:
    """Trains two encoders on the pairs of a file."""
    kind, options = SETTINGS[setting]
    return vergence.train(
        str(path),
        out=out,
        objective=kind,
        options=options,
        encoder="small",
        target_encoder="small",
        projector=(256, 16),
        calibration_share=0.0,
        batch_size=128,
        teacher=TEACHER if objectives.get(kind).teacher is not None else None,
        lr=2e-3,
        clip=1.0,
        epochs=epochs,
        seed=seed,
        knn_every=0,
    )


def measured(run: vergence.Run, path: Path) -> dict[str, Any]:
    """Returns measurements of the conditional density on the test pairs."""
    with np.load(path) as arrays:
        pairs = {key: torch.from_numpy(arrays[key]) for key in arrays}
    c, t = (run.project(pairs[f"{name}_test"], side=name).double() for name in ("context", "target"))  # type: ignore[arg-type]
    objective = run.method.objective.double()
    assert isinstance(objective, ConditionalObjective)
    (x, other_x), (y, other_y) = c.split(len(c) // 2), t.split(len(t) // 2)
    alone = -float(ConditionalGaussian().fit(other_x.numpy(), other_y.numpy()).score(x.numpy(), y.numpy()))
    with torch.inference_mode():
        nll = -torch.cat([objective.log_prob(*part[::-1]) for part in zip(x.split(500), y.split(500), strict=True)]).mean().item()
        ranked = retrieve(objective.conditional, c[:BANK], t[:BANK], n=RANKS[-1], modes=1).ranked
        row = calibration(objective, c[:BANK], t[:BANK])
    rank = (ranked == torch.arange(len(ranked))[:, None]).double()
    row |= {f"at_{n}": rank[:, :n].sum(1).mean().item() for n in RANKS}
    spread = {"std_context": c.std(0).mean().item(), "std_target": t.std(0).mean().item()}
    return {"nll": nll, "nll_gaussian": alone, "nll_less_gaussian": nll - alone, **row, **spread}


def calibration(objective: ConditionalObjective, c: Tensor, t: Tensor) -> dict[str, float]:
    """Returns PIT distance and interval coverage, means over features, and a conditional's effective number of components."""
    parts = [(objective.conditional(x), y) for x, y in zip(c.split(100), t.split(100), strict=True)]
    pit = torch.cat([p.marginal_cdf(y) for p, y in parts]).numpy()
    ks = float(np.mean([kstest(u, "uniform").statistic for u in pit.T]))
    inside = {f"inside_{round(100 * q)}": float((abs(pit - 0.5) < q / 2).mean()) for q in LEVELS}
    answers = [torch.special.entr(p.weights).sum(-1).exp() if isinstance(p, GaussianMixture) else y.new_ones(1) for p, y in parts]
    return {"pit_ks": ks, **inside, "answers": torch.cat(answers).mean().item()}


def run_all(a: argparse.Namespace) -> None:
    """Adds a row for each seed, set and setting, except those that the ledger has from this commit."""
    with tempfile.TemporaryDirectory() as place:
        for seed in a.seeds:
            for data in a.data:
                path = halves(data, a.data_root, Path(place) / f"{data}.npz", a.limit)
                for setting in a.only:
                    kind, options = SETTINGS[setting]
                    key = {"measurement": "halves", "data": data, "setting": setting, "objective": kind, "options": options}
                    key |= {"seed": seed, "n_train": a.limit, "epochs": a.epochs}
                    if ledger.holds(a.out, **key):
                        continue
                    began = time.monotonic()
                    run = trained(path, Path(place) / f"{data}-{seed}-{setting}", setting, seed, a.epochs)
                    values = measured(run, path) | {"seconds": round(time.monotonic() - began, 1)}
                    ledger.add(a.out, ledger.row(key | values, seed=seed, device=run.folder.metadata.device), shown=PRINTED)


DRAWN_SETTINGS = ("deterministic predictor (jepa)", "K = 1 (gje)", "gmje_em", "gmje_mdn, floor 0.05")
DRAWS, SHOWN = 6, (11, 23, 42, 57, 78, 91)


def draw(a: argparse.Namespace) -> None:
    """Plots contexts, their true other halves, and the training halves nearest to samples of each conditional."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    settings = a.only if a.tiny else DRAWN_SETTINGS
    for data in a.data:
        with tempfile.TemporaryDirectory() as place:
            path = halves(data, a.data_root, Path(place) / "pairs.npz", a.limit)
            with np.load(path) as arrays:
                top, bottom = arrays["context_test"][list(SHOWN)], arrays["target_test"][list(SHOWN)]
                bank = arrays["target"]
            columns = [np.concatenate([top, bottom], 2)]
            for setting in settings:
                run = trained(path, Path(place) / setting, setting, 0, a.epochs)
                columns += completions(run, top, bank)
        size = len(columns), len(SHOWN)
        figure, axes = plt.subplots(size[1], size[0], figsize=(0.55 * size[0], 0.6 * size[1]))
        for j, column in enumerate(columns):
            for i, image in enumerate(column):
                axes[i, j].imshow(image.transpose(1, 2, 0).squeeze(), cmap="gray")
                axes[i, j].axis("off")
        axes[0, 0].set_title("image", fontsize=7)
        for k, setting in enumerate(settings):
            axes[0, 1 + k * DRAWS].set_title(setting, fontsize=7, loc="left")
        figure.suptitle(f"{NAMES[data]}: the top half, completed by the training halves nearest to {DRAWS} samples", fontsize=8)
        if not a.tiny:
            figure.savefig(ledger.ROOT / "docs" / "figures" / f"halves_{data}.png", dpi=130, bbox_inches="tight")
        plt.close(figure)


def completions(run: vergence.Run, top: np.ndarray, bank: np.ndarray) -> list[np.ndarray]:
    """Returns images whose bottom halves are the training halves nearest to samples of the conditional."""
    z = run.project(torch.from_numpy(bank), side="target")
    torch.manual_seed(0)
    drawn = run.conditional(torch.from_numpy(top)).sample(torch.Size((DRAWS,))).float().cpu()
    nearest = torch.cdist(drawn.flatten(0, 1), z).argmin(1).view(DRAWS, len(top))
    return [np.concatenate([top, bank[index.numpy()]], 2) for index in nearest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--data", nargs="+", default=list(NAMES))
    parser.add_argument("--only", nargs="*", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--limit", type=int, default=3000)
    a = ledger.parse(parser, "halves")
    if a.tiny:
        a.data, a.only, a.seeds, a.epochs, a.limit = ["fashion_mnist"], ["K = 1 (gje)"], [0], 1, 256
    run_all(a) if a.what == "run" else draw(a)


if __name__ == "__main__":
    main()
