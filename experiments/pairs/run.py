"""Fits conditional densities to data in which one context has several answers, and compares them with the true density.

Data sets (context -> target):
    separated        x -> y, three branches 1 + .3 sin(pi x), .3 sin(2 pi x), -1 + .3 cos(pi x), noise .05
    intersecting     x -> y, three branches sin(pi x), -sin(pi x), 0 that cross, noise .05
    heteroscedastic  x -> y, one branch sin(pi x) whose noise grows from .02 to .5
    arm              hand position -> two joint angles of an arm of two links: elbow up or down; noise .02 on the position
    halves           top half of a Fashion-MNIST image -> its bottom half, both in principal components (true density unknown)

The first set follows the description of figure 4 of arXiv:2603.26799; its formulas are ours.

    python -m experiments.pairs.run run --data-root DATA      # adds rows to results/branches.jsonl; about 25 minutes on two cores
    python -m experiments.pairs.run draw                      # docs/figures/branches_*.png (needs matplotlib)
    python -m experiments.tables                             # the tables of docs/branches.md
"""

import argparse
import math
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from experiments.joint.two_sample import maximum_mean_discrepancy, overlap, sliced_wasserstein
from scipy.special import logsumexp
from scipy.stats import kstest
from sklearn.decomposition import PCA
from sklearn.neural_network import MLPRegressor

from experiments import ledger
from vergence import mixtures
from vergence.data.sources import open_items
from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians

FIGURES = ledger.ROOT / "docs" / "figures"
EPS, TRAIN, TEST, SEEDS = 0.05, 3000, 5000, (0, 1, 2)
LINKS = (1.0, 0.8)  # lengths of the arm
DRAWS = 200  # samples for each context, from which the shares of branches are computed


class Set(NamedTuple):
    """A data set, and its true conditional density where that is known."""

    context: np.ndarray
    target: np.ndarray
    log_truth: np.ndarray | None = None  # log p(t | c) of each pair


def separated(x: np.ndarray) -> np.ndarray:
    """Returns the branches at x, (N, 3)."""
    return np.stack([1 + 0.3 * np.sin(np.pi * x), 0.3 * np.sin(2 * np.pi * x), -1 + 0.3 * np.cos(np.pi * x)], 1)


def intersecting(x: np.ndarray) -> np.ndarray:
    """Returns the branches at x, (N, 3)."""
    return np.stack([np.sin(np.pi * x), -np.sin(np.pi * x), np.zeros_like(x)], 1)


BRANCHES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"separated": separated, "intersecting": intersecting}


def noise(x: np.ndarray) -> np.ndarray:
    """Returns the noise of the heteroscedastic set."""
    return 0.02 + 0.48 * (x + 1) / 2


def branch_set(name: str, n: int, seed: int) -> Set:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    if name == "heteroscedastic":
        f, s, k = np.sin(np.pi * x)[:, None], noise(x), np.zeros(n, dtype=int)
    else:
        f, s, k = BRANCHES[name](x), np.full(n, EPS), rng.integers(3, size=n)
    y = f[np.arange(n), k] + s * rng.normal(size=n)
    terms = -0.5 * ((y[:, None] - f) / s[:, None]) ** 2 - np.log(s)[:, None] - 0.5 * math.log(2 * math.pi)
    return Set(x[:, None], y, logsumexp(terms, axis=1) - math.log(f.shape[1]))


def hand(angles: np.ndarray) -> np.ndarray:
    """Returns the position of the arm's hand, (..., 2)."""
    a, b = angles[..., 0], angles[..., 0] + angles[..., 1]
    return np.stack([LINKS[0] * np.cos(a) + LINKS[1] * np.cos(b), LINKS[0] * np.sin(a) + LINKS[1] * np.sin(b)], -1)


ANGLES = np.array([[0.0, math.pi], [-2.5, 2.5]])  # the shoulder's and the elbow's range
REACH = 0.02  # noise of the hand's position


def arm_set(n: int, seed: int, *, truth: bool) -> Set:
    rng = np.random.default_rng(seed)
    angles = rng.uniform(ANGLES[:, 0], ANGLES[:, 1], (n, 2))
    place = hand(angles) + REACH * rng.normal(size=(n, 2))
    if not truth:
        return Set(place, angles)
    steps = [np.linspace(*ends, 1200) for ends in ANGLES]
    positions = hand(np.stack(np.meshgrid(*steps, indexing="ij"), -1)).reshape(-1, 2)
    cell = math.log((steps[0][1] - steps[0][0]) * (steps[1][1] - steps[1][0]))
    own = -0.5 * (((place - hand(angles)) / REACH) ** 2).sum(1)
    order = np.argsort(positions[:, 0])
    positions = positions[order]
    total = []
    for p in place:  # the evidence by quadrature: only positions within 8 deviations count
        near = positions[slice(*np.searchsorted(positions[:, 0], [p[0] - 8 * REACH, p[0] + 8 * REACH]))]
        total.append(logsumexp(-0.5 * (((near - p) / REACH) ** 2).sum(1)) + cell)
    return Set(place, angles, own - np.array(total))


def halves_set(root: str, seed: int) -> tuple[Set, Set]:
    """Returns training and test part: 16 components of the top half, 8 of the bottom half, fitted to the training part."""
    parts = []
    for part in ("train", "test"):
        items = open_items(f"fashion_mnist:{part}", shape=(1, 28, 28), root=root)
        rows = np.random.default_rng(seed).permutation(len(items))[: 10_000 if part == "train" else TEST]
        parts.append(items.read(torch.from_numpy(rows))[:, 0].numpy().astype(np.float64) / 255)
    top, bottom = (PCA(k, random_state=0).fit(parts[0][:, where].reshape(len(parts[0]), -1)) for k, where in HALVES)
    sets = [
        Set(top.transform(x[:, HALVES[0][1]].reshape(len(x), -1)), bottom.transform(x[:, HALVES[1][1]].reshape(len(x), -1)))
        for x in parts
    ]
    return sets[0], sets[1]


HALVES = ((16, slice(0, 14)), (8, slice(14, 28)))


class Deterministic:
    """A predictor by squared error, as in joint-embedding prediction; its density is the Gaussian of its residuals."""

    def __init__(self, random_state: int) -> None:
        self.net = MLPRegressor(hidden_layer_sizes=(64, 64), random_state=random_state, max_iter=300, early_stopping=True)

    def fit(self, c: np.ndarray, t: np.ndarray) -> "Deterministic":
        self.net.fit(c, t)
        self.variance = ((t - self.net.predict(c)) ** 2).reshape(len(t), -1).mean(0)
        return self

    def conditional(self, c: np.ndarray) -> MixtureOfGaussians:
        mean = torch.from_numpy(np.asarray(self.net.predict(np.asarray(c)), dtype=np.float64).reshape(len(c), 1, -1))
        return MixtureOfGaussians(torch.zeros(1, dtype=torch.float64), mean, Diagonal(torch.from_numpy(self.variance)))


MODELS: dict[str, Callable[[int], Any]] = {
    "deterministic": Deterministic,
    "RBF (Gaussian process)": lambda seed: mixtures.KernelConditional(random_state=seed),
    "EM, K = 1": lambda seed: mixtures.ConditionalGaussian(random_state=seed),
    "EM, K = 3": lambda seed: mixtures.ConditionalMixture(3, random_state=seed),
    "EM, K = 30": lambda seed: mixtures.ConditionalMixture(30, n_init=3, tol=1e-5, random_state=seed),
    "growing neural gas": lambda seed: mixtures.GrowingNeuralGas(max_nodes=60, random_state=seed),
    "density network": lambda seed: mixtures.MixtureDensityNetwork(n_components=3, random_state=seed),
    "particles": lambda seed: mixtures.ParticleMixture(random_state=seed),
}


def data(name: str, seed: int, root: str | None) -> tuple[Set, Set]:
    """Returns training and test part."""
    if name == "halves":
        assert root is not None, "halves needs --data-root"
        return halves_set(root, seed)
    if name == "arm":
        return arm_set(TRAIN, seed, truth=False), arm_set(1000, seed + 1000, truth=True)
    return branch_set(name, TRAIN, seed), branch_set(name, TEST, seed + 1000)


def measure(name: str, label: str, seed: int, train: Set, test: Set) -> dict:
    """Returns a row of the ledger."""
    model, began = MODELS[label](seed), time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(train.context, train.target)
    seconds = time.perf_counter() - began
    t = torch.from_numpy(test.target.reshape(len(test.target), -1))
    columns: list[list[torch.Tensor]] = [[], [], []]
    for c, b in zip(torch.from_numpy(test.context).split(500), t.split(500), strict=True):
        with torch.no_grad():
            p = model.conditional(c.numpy())
            for column, value in zip(columns, (p.log_prob(b), p.marginal_cdf(b), (p.mean - b).square()), strict=True):
                column.append(value)
    log_p, pit, squared = map(torch.cat, columns)
    row = {
        "data": name,
        "model": label,
        "seed": seed,
        "train": len(train.context),
        "test": len(test.context),
        "nll": -float(log_p.mean()),
        "nll_error": float(log_p.std() / len(log_p) ** 0.5),
        "truth": None if test.log_truth is None else -float(test.log_truth.mean()),
        "rmse": float(squared.sum(-1).mean().sqrt()),
        "inside_90": float(((pit > 0.05) & (pit < 0.95)).double().mean()),
        "pit_ks": max(float(kstest(column, "uniform").statistic) for column in pit.T.numpy()),
        "seconds": seconds,
        "warnings": sorted({str(w.message)[:120] for w in said}),
    }
    return row | answers(name, model, test)


def answers(name: str, model: Any, test: Set) -> dict:
    """Returns the share of samples on a true answer, and the share of true answers with at least half of their due samples."""
    if name not in (*BRANCHES, "arm"):
        return {"on_branch": None, "covered": None}
    c = test.context[:300]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        draws = model.conditional(c).sample(torch.Size((DRAWS,))).movedim(0, 1).numpy()  # (B, n, T)
    if name == "arm":
        good = np.linalg.norm(hand(draws) - c[:, None], axis=-1) < 5 * REACH
        branch = np.where(draws[..., 1] > 0, 0, 1)
        due = np.stack([elbow(c, side) for side in (1, -1)], 1)
    else:
        f = BRANCHES[name](c[:, 0])
        apart = np.abs(draws - f[:, None])
        good, branch = apart.min(-1) < 3 * EPS, apart.argmin(-1)
        due = np.abs(f[:, :, None] - f[:, None]).min(-1, where=~np.eye(3, dtype=bool), initial=9) > 6 * EPS
    share = np.stack([(good & (branch == k)).mean(1) for k in range(due.shape[1])], 1)
    fair = 0.5 / np.maximum(due.sum(1, keepdims=True), 1) if name == "arm" else 0.5 / 3
    return {"on_branch": float(good.mean()), "covered": float((share >= fair)[due].mean())}


def elbow(c: np.ndarray, side: int) -> np.ndarray:
    """Returns whether the arm reaches c with its elbow on one side, well within its range."""
    a, b = LINKS
    cosine = ((c**2).sum(1) - a**2 - b**2) / (2 * a * b)
    bend = side * np.arccos(np.clip(cosine, -1, 1))
    shoulder = np.arctan2(c[:, 1], c[:, 0]) - np.arctan2(b * np.sin(bend), a + b * np.cos(bend))
    inside = (np.abs(cosine) < 0.99) & (np.abs(bend) < ANGLES[1, 1] - 0.1) & (shoulder > 0.1) & (shoulder < math.pi - 0.1)
    return inside & (np.abs(bend) > 0.3)


SAMPLERS: dict[str, Callable[[int], Any]] = {
    "one Gaussian": lambda seed: mixtures.ConditionalGaussian(random_state=seed),
    "EM, K = 3": MODELS["EM, K = 3"],
    "EM, K = 30": MODELS["EM, K = 30"],
    "growing neural gas": MODELS["growing neural gas"],
}


def sampling(name: str, label: str, seed: int, train: Set, test: Set) -> dict:
    """Returns a row on unconditional samples of [context; target] against held-out pairs."""
    model = SAMPLERS[label](seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train.context, train.target)
    real = torch.from_numpy(np.column_stack([test.context, test.target]))[:2000]
    scale = real.std(0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fake = model.joint().sample(torch.Size((2000,)))
        g = torch.Generator().manual_seed(0)
        row = {
            "mmd": maximum_mean_discrepancy(real / scale, fake / scale),
            "sliced_wasserstein": sliced_wasserstein(real / scale, fake / scale, 256, g),
            **overlap(real / scale, fake / scale),
        }
    if name in BRANCHES:
        x, y = fake[:, 0].numpy(), fake[:, 1].numpy()
        apart = np.abs(y[:, None] - BRANCHES[name](np.clip(x, -1, 1)))
        good = (apart.min(1) < 3 * EPS) & (np.abs(x) <= 1)
        counts = np.bincount(apart.argmin(1)[good], minlength=3)
        row |= {"on_branch": float(good.mean()), "branches": counts.tolist()}
    return {"data": name, "sampler": label, "seed": seed, **row}


def run(a: argparse.Namespace) -> None:
    """Adds a row for each set, seed and model, except those that the ledger has from this commit."""
    for name in a.sets:
        for seed in a.seeds:
            train, test = data(name, seed, a.data_root)
            if a.tiny:
                train, test = (Set(*(v if v is None else v[:200] for v in part)) for part in (train, test))
            jobs = [(measure, "model", label) for label in MODELS if label in a.models]
            jobs += [(sampling, "sampler", label) for label in SAMPLERS if name in ("separated", "halves") and label in a.models]
            for job, kind, label in jobs:
                if not ledger.holds(a.out, **{"data": name, kind: label, "seed": seed}):
                    ledger.add(a.out, ledger.row(job(name, label, seed, train, test), seed=seed))


def draw(names: list[str], models: list[str], items: int, folder: Path) -> None:
    """Draws the models' densities on sets of one context and target, and the density network's parameters along the context."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    x, y = np.linspace(-1, 1, 240), np.linspace(-1.7, 1.7, 340)
    for name in names:
        train = branch_set(name, items, 0)
        fig, axes = plt.subplots(2, 4, figsize=(14, 6.4), sharex=True, sharey=True, layout="constrained")
        for ax, label in zip(axes.flat, models, strict=False):
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                given = MODELS[label](0).fit(train.context, train.target).conditional(x[:, None])
                grid = torch.from_numpy(y)[:, None, None].expand(-1, len(x), 1)
                p = torch.cat([given.log_prob(part) for part in grid.split(20)]).exp().numpy()
                mean = given.mean[:, 0].numpy()
            ax.scatter(*np.column_stack([train.context, train.target])[:600].T, s=1, color="0.6", zorder=1)
            ax.imshow(p**0.5, extent=(-1, 1, -1.7, 1.7), origin="lower", aspect="auto", cmap="Blues", alpha=0.85, zorder=2)
            ax.plot(x, mean, color="C3", lw=1, label="mean", zorder=3)
            ax.set_title(label, fontsize=10)
        axes[0, 0].legend(loc="lower left", fontsize=8)
        fig.supxlabel("context x")
        fig.supylabel("target y")
        _save(fig, folder / f"branches_{name}.png")
        plt.close(fig)
    if "density network" in models:
        _routing(plt, x, folder)


def _routing(plt: Any, x: np.ndarray, folder: Path) -> None:
    train = branch_set("separated", TRAIN, 0)
    found = mixtures.MixtureDensityNetwork(n_components=3, random_state=0).fit(train.context, train.target).routing(x[:, None])
    fig, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    titles = ("weights", "means", "standard deviations")
    for ax, values, title in zip(axes, found, titles, strict=True):
        ax.plot(x, values.reshape(len(x), 3))
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("context x")
    axes[0].axhline(1 / 3, color="0.4", ls=":")
    axes[1].plot(x, separated(x), color="0.4", ls=":")
    axes[2].axhline(EPS, color="0.4", ls=":")
    axes[0].set_ylim(0, 1)
    axes[2].set_ylim(0, 0.15)
    _save(fig, folder / "branches_routing.png")


def _save(fig: Any, file: Path) -> None:
    fig.savefig(file, dpi=80)
    print(f"wrote {file.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "draw"))
    parser.add_argument("--data-root")
    parser.add_argument("--sets", nargs="+", default=["separated", "intersecting", "heteroscedastic", "arm", "halves"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--models", nargs="+", default=[*MODELS, *SAMPLERS])
    a = ledger.parse(parser, "branches")
    if a.tiny:
        a.sets, a.seeds, a.models = a.sets[:1], a.seeds[:1], ["EM, K = 1", "one Gaussian"]
    if a.what == "run":
        run(a)
    elif a.tiny:
        with tempfile.TemporaryDirectory() as place:
            draw(a.sets, ["EM, K = 1"], 200, Path(place))
    else:
        draw([*BRANCHES, "heteroscedastic"], list(MODELS), TRAIN, FIGURES)


if __name__ == "__main__":
    main()
