"""Reproduces figure 3 of arXiv:2505.12477 version 2: how far noise moves three linear methods from their solution without it.

README.md says how.
"""

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from experiments import figures, ledger
from experiments.advice.thresholds import alignment_thresholds
from experiments.runner import DATA, parse, run, some
from experiments.shared import Timer, images
from torch import Tensor

from vergence.data.sources import open_items
from vergence.linear import solutions
from vergence.utils.linalg import covariance_cholesky

K = 50  # principal components, and as many of noise
ALPHAS = (0.1, 1.0, 10.0)
NOISE = {"weak": 1e3, "strong": 1e6}  # the largest variance of a noise component
THETA = 1e4  # the largest variance of what the augmentation does besides
METHODS = {
    "supervised": "Supervised",
    "joint_embedding": "Joint embedding",
    "reconstruction": "Reconstruction",
    "left_singular_vectors": "Left singular vectors",  # no method of the paper's: see alignment.md
}
PANELS = list(itertools.product(NOISE, list(METHODS)[:3]))
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


class Moments(NamedTuple):
    """Of n items z (2K components) with one-hot targets y: G = 1/n sum z z^T, N = 1/n sum y z^T."""

    G: Tensor
    N: Tensor


class Draw(NamedTuple):
    """What one seed decides: variances of noise (K,) in units of the largest, Theta's (2K,), and the generator that goes on."""

    noise: Tensor
    theta: Tensor
    generator: torch.Generator


def read(name: str, root: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a data set's training part as its first K principal components (N, K), one-hot labels, and variances (K,)."""
    items = open_items(f"{name}:train", shape=(1, 28, 28), root=root)
    assert items.labels is not None
    x = images(items).flatten(1).double()
    x -= x.mean(0)
    variances, Q = torch.linalg.eigh(x.T @ x / len(x))
    return x @ Q.flip(1)[:, :K], torch.nn.functional.one_hot(items.labels).double(), variances.flip(0)[:K]


def sizes(largest: int) -> list[int]:
    """Returns 100, 200, 400, ... up to the largest."""
    return [100 * 2**i for i in range((largest // 100).bit_length())]


def drawn(seed: int) -> Draw:
    """Returns a seed's variances, uniform on [0, 1] and [0, THETA]."""
    g = torch.Generator().manual_seed(seed)
    noise = torch.rand(K, generator=g, dtype=torch.float64)
    return Draw(noise, THETA * torch.rand(2 * K, generator=g, dtype=torch.float64), g)


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
        return supervised(seen.N, S)
    if method == "joint_embedding":
        return solutions.joint_embedding(seen.G, S)[0][:k]
    E, D, _, _ = solutions.reconstruction(seen.G, S)
    return E[:k] if method == "reconstruction" else D[:, :k].T  # D = R Phi, and a probe does not see the scales Phi


def supervised(N: Tensor, S: Tensor) -> Tensor:
    """Returns V = N S^{-1} (L, D), which minimizes 1/n sum_i E|y_i - V tau(x_i)|^2 for N = 1/n sum_i y_i xbar_i^T (lemma B.1)."""
    return torch.cholesky_solve(N.T, covariance_cholesky(S)[0]).T


def loss(method: str, rows: Tensor, seen: Moments) -> float:
    """Returns the squared error of a supervised model's predictions, or of the best linear probe on the others' (eq. 93)."""
    V = rows if method == "supervised" else supervised(seen.N @ rows.T, rows @ seen.G @ rows.T) @ rows
    return float(1 - 2 * (V * seen.N).sum() + ((V @ seen.G) * V).sum())  # 1/n |Y|^2 = 1: targets are one-hot


def distance(method: str, unit: Moments, noise: Tensor, theta: Tensor, alpha: float) -> float:
    """Returns |loss(clean) - loss(noisy)|, each method fitted to and scored on the items that it has."""
    sigma = theta + alpha**2 * torch.cat([torch.zeros_like(noise), noise])
    clean, noisy = (with_noise(unit, variances) for variances in (torch.zeros_like(noise), noise))
    return abs(loss(method, fit(method, clean, sigma), clean) - loss(method, fit(method, noisy, sigma), noisy))


def curves(x: Tensor, y: Tensor, seeds: Sequence[int], grid: Sequence[int]) -> dict[tuple[str, str, float], list[list[float]]]:
    """Returns for each (method, noise, alpha) a list over seeds of the distances at each n of the grid.

    Args:
        x: (N, K), centered, in the coordinates of its principal components.
        y: (N, L), one-hot.
        seeds: Each draws its items (without replacement), noise, Gamma and Theta; weak and strong noise differ in scale only.
        grid: Numbers of items, ascending.
    """
    every: dict[tuple[str, str, float], list[list[float]]] = {}
    for draw in map(drawn, seeds):
        units = nested(x, y, grid, draw)
        for method, (name, largest), alpha in itertools.product(METHODS, NOISE.items(), ALPHAS):
            curve = [distance(method, unit, largest * draw.noise, draw.theta, alpha) for unit in units]
            every.setdefault((method, name, alpha), []).append(curve)
    return every


def prediction(method: str, largest: float, alpha: float, variances: Tensor, seeds: Sequence[int]) -> dict[str, Any] | None:
    """Returns the spread of the threshold on alpha^2 and the share of draws in which alpha^2 is above it; None without one."""
    if method not in ("joint_embedding", "reconstruction"):
        return None
    every = [alignment_thresholds(variances, largest * d.noise, d.theta[:K], d.theta[K:]) for d in map(drawn, seeds)]
    values = np.array([getattr(thresholds, method) for thresholds in every])
    low, median, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return {"draws": len(values), "median": median, "q05": low, "q95": high, "above": float((alpha**2 > values).mean())}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for dataset in a.datasets:
        yield {"dataset": dataset, "n": sizes(a.largest), "seed": list(range(a.seeds))}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a data set's rows, one a (method, noise, alpha)."""
    timer, (x, y, variances) = Timer(), read(cell["dataset"], a.data_root)
    every = curves(x, y, cell["seed"], cell["n"])
    seconds, rows = round(timer.seconds(), 1), []
    for (method, noise, alpha), values in every.items():
        over_seeds = list(zip(*values, strict=True))
        predicted = [prediction(method, NOISE[noise], alpha, variances, seeds) for seeds in (cell["seed"], range(PREDICTED_FROM))]
        row = {"measurement": "figure 3 of arXiv:2505.12477", "method": method, "noise": noise, "alpha": alpha}
        row |= {"mean": [statistics.mean(v) for v in over_seeds], "std": [statistics.stdev(v) for v in over_seeds]}
        row |= {"seeds": cell["seed"], "threshold": predicted[0], "threshold_of_many_draws": predicted[1], "seconds": seconds}
        rows.append(row)
    return rows


def latest() -> dict[tuple[str, str, str, float], dict[str, Any]]:
    """Returns the newest row of each (data set, method, noise, alpha)."""
    return {(r["dataset"], r["method"], r["noise"], r["alpha"]): r for r in ledger.rows("figure_alignment")}


TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
COLORS = {0.1: "#d55e00", 1.0: "#0072b2", 10.0: "#009e73"}
STYLES = {True: "-", False: "--"}  # by whether alpha^2 is above the threshold


def draw(rows: dict[tuple[str, str, str, float], dict[str, Any]], dataset: str) -> None:
    """Draws a data set's six panels: mean and deviation over seeds, dashed where it is predicted that a curve does not fall."""
    plt = figures.pyplot()
    fig, axes = plt.subplots(len(NOISE), 3, figsize=(10, 6.4), sharex=True, sharey=True, layout="constrained")
    for ax, (noise, method) in zip(axes.flat, PANELS, strict=True):
        lines = [rows[dataset, method, noise, alpha] for alpha in ALPHAS]
        panel(ax, lines, f"{METHODS[method]}, {noise} noise")
    for ax in axes[-1]:
        ax.set_xlabel("items n")
    for ax in axes[:, 0]:
        ax.set_ylabel("distance to optimality")
    handles = [plt.Line2D([], [], color=color, label=f"α = {alpha:g}") for alpha, color in COLORS.items()]
    for style, label in ((STYLES[True], "predicted to converge"), (STYLES[False], "predicted to fail")):
        handles.append(plt.Line2D([], [], color="0.3", linestyle=style, label=label))
    if dataset == "mnist":
        circle = {"marker": "o", "linestyle": "", "markerfacecolor": "white", "markeredgecolor": "0.3"}
        handles.append(plt.Line2D([], [], **circle, label="the paper's figure, read by eye"))
    fig.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    draws = len(lines[0]["seeds"])
    note = f"Lines: mean over {draws} draws; bands: one standard deviation; thresholds: their median."
    fig.suptitle(f"{TITLES[dataset]}. {note}", fontsize=9)
    figures.save(fig, f"advice/alignment_{dataset}", tiny=False, dpi=150, colors=128)


def panel(ax: Any, lines: list[dict[str, Any]], title: str) -> None:
    """Draws the curves of one method and noise."""
    threshold = lines[0].get("threshold")
    for row in lines:
        color = COLORS[row["alpha"]]
        converges = threshold is None or row["alpha"] ** 2 > threshold["median"]
        mean, std = np.array(row["mean"]), np.array(row["std"])
        ax.fill_between(row["n"], (mean - std).clip(1e-9), mean + std, color=color, alpha=0.13, linewidth=0)
        ax.plot(row["n"], row["mean"], color=color, linestyle=STYLES[converges])
        if row["dataset"] == "mnist":
            paper = PAPER[row["method"], row["noise"], row["alpha"]]
            ax.plot(PAPER_N, paper, "o", markerfacecolor="white", markeredgecolor=color)
    predicted = "every α" if threshold is None else f"α² > {threshold['median']:.3g}"
    ax.set(xscale="log", yscale="log", ylim=(3e-9, 1))
    ax.set_title(f"{title}\npredicted to converge for {predicted}", fontsize=9, loc="left")


if __name__ == "__main__":
    options = {"data_root": DATA, "datasets": some(TITLES), "seeds": 5, "largest": 51200}
    a = parse(__doc__, "figure_alignment", options, {"datasets": lambda names: names[:1], "seeds": 2, "largest": 100})
    run(a, cells, measure, shown=("dataset", "method", "noise", "alpha", "mean"))
    for dataset in a.datasets if not a.tiny else ():
        draw(latest(), dataset)
