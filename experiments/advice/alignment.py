"""Reproduces figure 3 of arXiv:2505.12477 version 2: how far noise moves three linear methods from their solution without it.

Items are images, reduced to their 50 principal components, with 50 components of pure noise appended. The augmentation adds
noise of covariance Theta + alpha^2 Gamma, where Gamma is the covariance of the noise in the items and alpha says how well the
augmentation knows it. Each method is solved in closed form (`vergence.linear.solutions`) on the clean and on the noisy items;
the distance to optimality is |loss(clean) - loss(noisy)|. The loss is that of the best linear probe on what the method keeps
(eq. 93: in-sample, no intercept, one-hot targets, summed over them), and for supervised learning that of its own predictions.
The predicted thresholds on alpha^2 (`vergence.linear.alignment_thresholds`) say which curves fall.

    python -m experiments.advice.alignment --data-root DATA             (needs matplotlib)

adds its rows to the ledger and draws docs/figures/alignment_*.png; `experiments.tables` writes the tables of docs/alignment.md.
"""

import argparse
import io
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments import ledger
from vergence.data.items import batches
from vergence.data.sources import open_items
from vergence.linear import alignment_thresholds, solutions

K = 50  # principal components, and as many of noise
ALPHAS = (0.1, 1.0, 10.0)
NOISE = {"weak": 1e3, "strong": 1e6}  # the largest variance of a noise component
THETA = 1e4  # the largest variance of what the augmentation does besides
METHODS = {
    "supervised": "Supervised",
    "joint_embedding": "Joint embedding",
    "reconstruction": "Reconstruction",
    "left_singular_vectors": "Left singular vectors",  # no method of the paper's: see docs/alignment.md
}
PANELS = list(itertools.product(NOISE, list(METHODS)[:3]))
SHOWN = (100, 800, 12800, 51200)  # items, in the tables
N_SHOWN = ("n = 100", "800", "12,800", "51,200")
PREDICTED_FROM = 500  # draws that give the thresholds' spread

# The paper's figure 3 (MNIST), read by eye off the picture, not tabulated there: n about 100, 800, 10,000 and 50,000.
PAPER = {
    ("supervised", "weak", 0.1): (2.8e-2, 7e-3, 5e-4, 1.5e-4),
    ("supervised", "weak", 1.0): (2.1e-2, 6e-3, 4e-4, 1.2e-4),
    ("supervised", "weak", 10.0): (1.7e-3, 5e-4, 4e-5, 9e-6),
    ("supervised", "strong", 0.1): (0.14, 0.03, 2e-3, 5e-4),
    ("supervised", "strong", 1.0): (0.08, 0.02, 1.5e-3, 4e-4),
    ("supervised", "strong", 10.0): (2e-3, 6e-4, 4e-5, 1e-5),
    ("joint_embedding", "weak", 0.1): (3e-3, 2.7e-3, 2e-3, 1.7e-3),
    ("joint_embedding", "weak", 1.0): (1.4e-3, 1.2e-4, 4e-6, 2e-6),
    ("joint_embedding", "weak", 10.0): (2e-5, 2.8e-6, 1e-7, 1e-8),
    ("joint_embedding", "strong", 0.1): (0.11, 0.20, 0.22, 0.22),
    ("joint_embedding", "strong", 1.0): (5e-3, 1.8e-3, 8e-5, 2e-5),
    ("joint_embedding", "strong", 10.0): (2.6e-5, 2.6e-6, 1.6e-7, 1e-8),
    ("reconstruction", "weak", 0.1): (1.9e-2, 2e-3, 1e-4, 1.2e-5),
    ("reconstruction", "weak", 1.0): (1.3e-2, 1.3e-3, 7e-5, 1.1e-5),
    ("reconstruction", "weak", 10.0): (1.4e-3, 3.3e-4, 3e-5, 6e-6),
    ("reconstruction", "strong", 0.1): (0.187, 0.183, 0.192, 0.192),
    ("reconstruction", "strong", 1.0): (0.155, 0.123, 0.13, 0.15),
    ("reconstruction", "strong", 10.0): (0.24, 0.25, 0.12, 0.055),
}
PAPER_N = (100, 800, 10_000, 50_000)


# The experiment


class Moments(NamedTuple):
    """Of n items z (2K components) with one-hot targets y: G = 1/n sum z z^T, N = 1/n sum y z^T."""

    G: Tensor
    N: Tensor


class Draw(NamedTuple):
    """What one seed decides: variances of noise (K,) in units of the largest, Theta's (2K,), and the generator that goes on."""

    noise: Tensor
    theta: Tensor
    generator: torch.Generator


def principal(x: Tensor, k: int = K) -> tuple[Tensor, Tensor]:
    """Returns the first k principal components of centered items (N, k), and their variances (k,), the largest first."""
    x = x.flatten(1).double()
    x -= x.mean(0)
    variances, Q = torch.linalg.eigh(x.T @ x / len(x))
    return x @ Q.flip(1)[:, :k], variances.flip(0)[:k]


def read(name: str, root: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a data set's training part as principal components of its pixels (0 to 255), one-hot labels, and variances."""
    items = open_items(f"{name}:train", shape=(1, 28, 28), root=root)
    x = torch.cat([part for _, part in items.stream(batches(len(items), 4096))])
    assert x.dtype == torch.uint8
    assert items.labels is not None
    scores, variances = principal(x)
    return scores, torch.nn.functional.one_hot(items.labels).double(), variances


def sizes(largest: int) -> list[int]:
    """Returns 100, 200, 400, ... up to the largest."""
    return [100 * 2**i for i in range((largest // 100).bit_length())]


def drawn(seed: int, k: int = K, theta: float = THETA) -> Draw:
    """Returns a seed's variances, uniform on [0, 1] and [0, theta]."""
    g = torch.Generator().manual_seed(seed)
    noise = torch.rand(k, generator=g, dtype=torch.float64)
    return Draw(noise, theta * torch.rand(2 * k, generator=g, dtype=torch.float64), g)


def nested(x: Tensor, y: Tensor, grid: Sequence[int], draw: Draw) -> list[Moments]:
    """Returns the moments of the first n items of one random order, n in the grid, with unit noise appended to each item."""
    rows = torch.randperm(len(x), generator=draw.generator)[: grid[-1]]
    e = torch.randn(len(rows), x.shape[1], generator=draw.generator, dtype=torch.float64)
    z, y = torch.cat([x[rows], e], 1), y[rows]
    G, N, found = torch.zeros(z.shape[1], z.shape[1]).double(), torch.zeros(y.shape[1], z.shape[1]).double(), []
    for start, stop in zip((0, *grid), grid, strict=False):
        G, N = G + z[start:stop].T @ z[start:stop], N + y[start:stop].T @ z[start:stop]
        found.append(Moments(G / stop, N / stop))
    return found


def with_noise(unit: Moments, variances: Tensor) -> Moments:
    """Returns the moments of the items with noise of these variances (K,) in place of unit noise; zeros give clean items."""
    scale = torch.cat([torch.ones_like(variances), variances.sqrt()])
    return Moments(unit.G * scale[:, None] * scale, unit.N * scale)


def fit(method: str, seen: Moments, sigma: Tensor) -> Tensor:
    """Returns the rows that a method finds: V (L, 2K) of supervised learning, W or E (K, 2K) of the others.

    Args:
        method: One of METHODS.
        seen: The items' moments.
        sigma: (2K,), the variances that the augmentation adds: the diagonal of Theta + alpha^2 Gamma.
    """
    S, k = seen.G + torch.diag(sigma), len(sigma) // 2
    if method == "supervised":
        return solutions.supervised(seen.N, S)[0]
    if method == "joint_embedding":
        return solutions.joint_embedding(seen.G, S)[0][:k]
    E, D, _, _ = solutions.reconstruction(seen.G, S)
    return E[:k] if method == "reconstruction" else D[:, :k].T  # D = R Phi, and a probe does not see the scales Phi


def loss(method: str, rows: Tensor, seen: Moments) -> float:
    """Returns the squared error of a supervised model's predictions, or of the best linear probe on the others' (eq. 93)."""
    V = rows if method == "supervised" else solutions.supervised(seen.N @ rows.T, rows @ seen.G @ rows.T)[0] @ rows
    return float(solutions.supervised_objective(V, seen.N, seen.G, 1.0))  # 1/n |Y|^2 = 1: targets are one-hot


def distance(method: str, unit: Moments, noise: Tensor, theta: Tensor, alpha: float) -> float:
    """Returns |loss(clean) - loss(noisy)|, each method fitted to and scored on the items that it has."""
    sigma = theta + alpha**2 * torch.cat([torch.zeros_like(noise), noise])
    clean, noisy = (with_noise(unit, variances) for variances in (torch.zeros_like(noise), noise))
    return abs(loss(method, fit(method, clean, sigma), clean) - loss(method, fit(method, noisy, sigma), noisy))


def curves(
    x: Tensor,
    y: Tensor,
    seeds: Sequence[int],
    grid: Sequence[int],
    *,
    noise: dict[str, float] = NOISE,
    theta: float = THETA,
    methods: Sequence[str] = tuple(METHODS),
) -> dict[tuple[str, str, float], list[list[float]]]:
    """Returns for each (method, noise, alpha) a list over seeds of the distances at each n of the grid.

    Args:
        x: (N, K), centered, in the coordinates of its principal components.
        y: (N, L), one-hot.
        seeds: Each draws its items (without replacement), noise, Gamma and Theta; weak and strong noise differ in scale only.
        grid: Numbers of items, ascending.
        noise: Largest variance of a noise component, by name.
        theta: Largest variance of the augmentation's other part.
        methods: Some of METHODS.
    """
    found: dict[tuple[str, str, float], list[list[float]]] = {}
    for seed in seeds:
        draw = drawn(seed, x.shape[1], theta)
        units = nested(x, y, grid, draw)
        for method, (name, largest), alpha in itertools.product(methods, noise.items(), ALPHAS):
            curve = [distance(method, unit, largest * draw.noise, draw.theta, alpha) for unit in units]
            found.setdefault((method, name, alpha), []).append(curve)
    return found


# What the theory predicts, and the rows


def thresholds(method: str, largest: float, variances: Tensor, seeds: Sequence[int]) -> list[float]:
    """Returns what alpha^2 must exceed, for each seed's draw (propositions 4.3 and 4.4)."""
    k, found = len(variances), []
    for draw in (drawn(seed, k) for seed in seeds):
        t = alignment_thresholds(variances, largest * draw.noise, draw.theta[:k], draw.theta[k:])
        found.append(t.joint_embedding if method == "joint_embedding" else t.reconstruction)
    return found


def prediction(method: str, largest: float, alpha: float, variances: Tensor, seeds: Sequence[int]) -> dict | None:
    """Returns the spread of the threshold on alpha^2 and the share of draws in which alpha^2 is above it; None without one."""
    if method not in ("joint_embedding", "reconstruction"):
        return None
    values = np.array(thresholds(method, largest, variances, seeds))
    low, median, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return {"draws": len(values), "median": median, "q05": low, "q95": high, "above": float((alpha**2 > values).mean())}


def measured(dataset: str, root: str, seeds: Sequence[int], grid: Sequence[int]) -> Iterator[dict]:
    """Yields a data set's rows, one a (method, noise, alpha)."""
    began = time.monotonic()
    x, y, variances = read(dataset, root)
    found = curves(x, y, seeds, grid)
    seconds = round(time.monotonic() - began, 1)
    for (method, noise, alpha), values in found.items():
        predicted = prediction(method, NOISE[noise], alpha, variances, seeds)
        over_seeds = list(zip(*values, strict=True))
        yield {
            "measurement": "figure 3 of arXiv:2505.12477",
            **{"dataset": dataset, "method": method, "noise": noise, "alpha": alpha, "n": list(grid)},
            "mean": [statistics.mean(v) for v in over_seeds],
            "std": [statistics.stdev(v) for v in over_seeds],
            "seeds": list(seeds),
            "threshold": predicted,
            "threshold_of_many_draws": prediction(method, NOISE[noise], alpha, variances, range(PREDICTED_FROM)),
            "seconds": seconds,
        }


def latest() -> dict[tuple[str, str, str, float], dict]:
    """Returns the newest row of each (data set, method, noise, alpha)."""
    return {(r["dataset"], r["method"], r["noise"], r["alpha"]): r for r in ledger.rows("figure_alignment")}


# The page's tables


def number(value: float | None) -> str:
    """Returns 2.8e-2 for 0.028."""
    if value is None:
        return "-"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def at(row: dict, n: int) -> float | None:
    return row["mean"][row["n"].index(n)] if n in row["n"] else None


def share(row: dict) -> str:
    """Returns in how many of a row's draws alpha^2 is above the threshold."""
    t = row.get("threshold")
    return "every α" if t is None else f"{round(t['above'] * t['draws'])} of {t['draws']}"


def distances_table(dataset: str, paper: dict | None = None) -> str:
    """A data set's distances, where given beside the paper's values and with the ratio to them."""
    body, found = [], latest()
    for (noise, method), alpha in itertools.product(PANELS, ALPHAS):
        row = found.get((dataset, method, noise, alpha))
        if row:
            theirs = paper[method, noise, alpha] if paper else (None,) * len(SHOWN)
            cells = [beside(at(row, n), p) for n, p in zip(SHOWN, theirs, strict=True)]
            body.append([noise, METHODS[method].lower(), f"{alpha:g}", share(row), *cells])
    return ledger.grid(["noise", "method", "α", "α² above threshold", *N_SHOWN], body)


def beside(ours: float | None, paper: float | None) -> str:
    if ours is None or paper is None:
        return number(ours)
    return f"{number(ours)} / {number(paper)} ({ours / paper:#.2g})"


def thresholds_table() -> str:
    """One line a (data set, noise, method): the spread over many draws, and the share of them that each alpha satisfies."""
    body, found = [], latest()
    for (dataset, method, noise, alpha), row in found.items():
        if row.get("threshold") and alpha == ALPHAS[0]:
            t = row["threshold_of_many_draws"]
            above = [found[dataset, method, noise, a]["threshold_of_many_draws"]["above"] for a in ALPHAS]
            spread = f"{t['median']:.3g} [{t['q05']:.3g}, {t['q95']:.3g}]"
            body.append([dataset, noise, METHODS[method].lower(), spread, *(f"{100 * a:.0f} %" for a in above)])
    return ledger.grid(["data", "noise", "method", "threshold on α²: median [5–95 %]", *(f"α = {a:g}" for a in ALPHAS)], body)


def left_table() -> str:
    """The reconstruction panels on MNIST: theorem 3.1, the left singular vectors, and the paper's figure."""
    body, found = [], latest()
    for noise, alpha in itertools.product(NOISE, ALPHAS):
        pair = [found.get(("mnist", method, noise, alpha)) for method in ("reconstruction", "left_singular_vectors")]
        if all(pair):
            triples = [
                (*(at(row, n) for row in pair), p) for n, p in zip(SHOWN, PAPER["reconstruction", noise, alpha], strict=True)
            ]
            body.append([noise, f"{alpha:g}", *(" / ".join(map(number, triple)) for triple in triples)])
    return ledger.grid(["noise", "α", *N_SHOWN], body)


TABLES = {
    "alignment": partial(distances_table, "mnist", PAPER),
    "fashion_mnist": partial(distances_table, "fashion_mnist"),
    "thresholds": thresholds_table,
    "left": left_table,
}


# The figure

TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
COLORS = {0.1: "#d55e00", 1.0: "#0072b2", 10.0: "#009e73"}
CONVERGES, FAILS = "-", (0, (4, 2))


def figure(found: dict, dataset: str, file: Path) -> None:
    """Draws a data set's six panels: mean and deviation over seeds, dashed where it is predicted that a curve does not fall."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        fig, axes = plt.subplots(len(NOISE), 3, figsize=(10, 6.4), sharex=True, sharey=True, layout="constrained")
        for ax, (noise, method) in zip(axes.flat, PANELS, strict=True):
            lines = [found[dataset, method, noise, alpha] for alpha in ALPHAS if (dataset, method, noise, alpha) in found]
            _panel(ax, lines, f"{METHODS[method]}, {noise} noise")
        for ax in axes[-1]:
            ax.set_xlabel("items n")
        for ax in axes[:, 0]:
            ax.set_ylabel("distance to optimality")
        _legend(fig, paper=dataset == "mnist")
        draws = len(lines[0]["seeds"])
        note = f"{TITLES[dataset]}. Lines: mean over {draws} draws; bands: one standard deviation; thresholds: their median."
        fig.suptitle(note, fontsize=9, x=0.01, ha="left")
        file.parent.mkdir(parents=True, exist_ok=True)
        _save(fig, file)
        plt.close(fig)


def _save(fig, file: Path) -> None:
    """Writes a PNG of 128 colors, a third of the size of one with all."""
    from PIL import Image

    picture = io.BytesIO()
    fig.savefig(picture, dpi=150, format="png")
    Image.open(picture).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)


def _panel(ax, lines: list[dict], title: str) -> None:
    for row in lines:
        color, t = COLORS[row["alpha"]], row.get("threshold")
        style = CONVERGES if t is None or row["alpha"] ** 2 > t["median"] else FAILS
        mean, std = np.array(row["mean"]), np.array(row["std"])
        ax.fill_between(row["n"], (mean - std).clip(1e-9), mean + std, color=color, alpha=0.13, linewidth=0)
        ax.plot(row["n"], row["mean"], color=color, linestyle=style, linewidth=1.8)
        if row["dataset"] == "mnist":
            read_by_eye = PAPER[row["method"], row["noise"], row["alpha"]]
            ax.plot(PAPER_N, read_by_eye, "o", markersize=5, markerfacecolor="white", markeredgecolor=color, zorder=3)
    if lines[0]["method"] == "supervised":
        ax.plot((100, 51200), (1e-5, 1e-5 / 512), color="0.6", linestyle=":", linewidth=1.2)
        ax.text(300, 1e-7, "slope −1", color="0.4", ha="left", va="center")
    ax.set(xscale="log", yscale="log", ylim=(3e-9, 1))
    ax.grid(color="0.92", linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    ax.set_title(f"{title}\n{_predicted(lines[0].get('threshold'))}", fontsize=9, loc="left")


def _predicted(threshold: dict | None) -> str:
    if threshold is None:
        return "predicted to converge for every α"
    median = threshold["median"]
    shown = f"{median:.2f}" if abs(median) < 10 else f"{median:.0f}"
    every = " (every α)" if median <= 0 else ""
    return f"predicted to converge for α² > {shown.replace('-', '−')}{every}"


def _legend(fig, *, paper: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c, linewidth=1.8, label=f"α = {a:g}") for a, c in COLORS.items()]
    for style, label in ((CONVERGES, "predicted to converge"), (FAILS, "predicted to fail")):
        handles.append(Line2D([], [], color="0.3", linestyle=style, linewidth=1.8, label=label))
    if paper:
        circle = {"marker": "o", "linestyle": "", "markersize": 5, "markerfacecolor": "white", "markeredgecolor": "0.3"}
        handles.append(Line2D([], [], **circle, label="the paper's figure, read by eye"))
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, handlelength=2.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--datasets", nargs="+", default=["mnist", "fashion_mnist"], choices=["mnist", "fashion_mnist"])
    parser.add_argument("--seeds", type=int, default=5, help="how many, at least 2")
    parser.add_argument("--largest", type=int, default=51200, help="most items, at least 100")
    a = ledger.parse(parser, "figure_alignment")
    if a.tiny:
        a.datasets, a.seeds, a.largest = a.datasets[:1], 2, 100
    for dataset in a.datasets:
        for values in measured(dataset, a.data_root, range(a.seeds), sizes(a.largest)):
            ledger.add(a.out, ledger.row(values, seed=values["seeds"]), shown=("dataset", "method", "noise", "alpha", "mean"))
    for dataset in a.datasets if not a.tiny else ():
        figure(latest(), dataset, ledger.ROOT / "docs" / "figures" / f"alignment_{dataset}.png")


if __name__ == "__main__":
    main()
