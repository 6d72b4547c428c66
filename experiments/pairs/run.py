"""Fits conditional densities to data in which one context has several answers, and compares them with the true density.

README.md says how.
"""

import argparse
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from experiments import figures
from experiments.joint.two_sample import fit
from experiments.runner import SEEDS, Option, first, parse, some
from experiments.runner import run as measure_cells
from experiments.shared import Timer
from scipy.special import logsumexp
from scipy.stats import kstest
from sklearn.decomposition import PCA
from sklearn.neural_network import MLPRegressor

from vergence import mixtures
from vergence.data.sources import open_items
from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians

EPS, TRAIN, TEST = 0.05, 3000, 5000
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


def branch_set(name: str, n: int, seed: int) -> Set:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    if name == "heteroscedastic":
        f, s, k = np.sin(np.pi * x)[:, None], 0.02 + 0.48 * (x + 1) / 2, np.zeros(n, dtype=int)
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


HALVES = ((16, slice(0, 14)), (8, slice(14, 28)))  # components and rows of the top and of the bottom half


def halves_set(root: str, seed: int) -> tuple[Set, Set]:
    """Returns training and test part: 16 components of the top half, 8 of the bottom half, fitted to the training part."""
    halves = []
    for part, n in (("train", 10_000), ("test", TEST)):
        items = open_items(f"fashion_mnist:{part}", shape=(1, 28, 28), root=root)
        chosen = np.random.default_rng(seed).permutation(len(items))[:n]
        x = items.read(torch.from_numpy(chosen))[:, 0].numpy().astype(np.float64) / 255
        halves.append([x[:, where].reshape(len(x), -1) for _, where in HALVES])
    pca = [PCA(k, random_state=0).fit(x) for (k, _), x in zip(HALVES, halves[0], strict=True)]
    train, test = (Set(*(model.transform(x) for model, x in zip(pca, part, strict=True))) for part in halves)
    return train, test


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
    "density network": lambda seed: mixtures.MixtureDensityNetwork(n_components=3, random_state=seed),
}


SAMPLERS: dict[str, Callable[[int], Any]] = {
    "one Gaussian": MODELS["EM, K = 1"],
    **{name: MODELS[name] for name in ("EM, K = 3", "EM, K = 30")},
}
SETS = ("separated", "intersecting", "heteroscedastic", "arm", "halves")


@functools.lru_cache(maxsize=2)
def data(name: str, seed: int, root: str | None) -> tuple[Set, Set]:
    """Returns training and test part."""
    if name == "halves":
        assert root is not None, "halves needs --data-root"
        return halves_set(root, seed)
    if name == "arm":
        return arm_set(TRAIN, seed, truth=False), arm_set(1000, seed + 1000, truth=True)
    return branch_set(name, TRAIN, seed), branch_set(name, TEST, seed + 1000)


def conditional(name: str, label: str, seed: int, train: Set, test: Set) -> dict[str, Any]:
    """Returns what a model's density given a context is measured by."""
    model, timer = MODELS[label](seed), Timer()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(train.context, train.target)
    seconds = timer.seconds()
    t = torch.from_numpy(test.target.reshape(len(test.target), -1))
    columns: list[list[torch.Tensor]] = [[], [], []]
    for c, b in zip(torch.from_numpy(test.context).split(500), t.split(500), strict=True):
        with torch.no_grad():
            p = model.conditional(c.numpy())
            for column, value in zip(columns, (p.log_prob(b), p.marginal_cdf(b), (p.mean - b).square()), strict=True):
                column.append(value)
    log_p, pit, squared = map(torch.cat, columns)
    return {
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
        **answers(name, model, test),
    }


def answers(name: str, model: Any, test: Set) -> dict[str, Any]:
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


def sampling(name: str, label: str, seed: int, train: Set, test: Set) -> dict[str, Any]:
    """Returns how unconditional samples of [context; target] compare with held-out pairs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SAMPLERS[label](seed).fit(train.context, train.target)
    real = torch.from_numpy(np.column_stack([test.context, test.target]))[:2000]
    scale = real.std(0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fake = model.joint().sample(torch.Size((2000,)))
    row: dict[str, Any] = fit(real / scale, fake / scale)
    row["sliced_wasserstein"] = row.pop("wasserstein")
    if name in BRANCHES:
        x, y = fake[:, 0].numpy(), fake[:, 1].numpy()
        apart = np.abs(y[:, None] - BRANCHES[name](np.clip(x, -1, 1)))
        good = (apart.min(1) < 3 * EPS) & (np.abs(x) <= 1)
        row |= {"on_branch": float(good.mean()), "branches": np.bincount(apart.argmin(1)[good], minlength=3).tolist()}
    return row


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in a.sets:
        for seed in a.seeds:
            yield from ({"data": name, "model": label, "seed": seed} for label in MODELS if label in a.models)
            samplers = SAMPLERS if name in ("separated", "halves") else ()
            yield from ({"data": name, "sampler": label, "seed": seed} for label in samplers if label in a.models)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    name, seed = cell["data"], cell["seed"]
    most = 200 if a.tiny else None
    train, test = (Set(*(v if v is None else v[:most] for v in part)) for part in data(name, seed, a.data_root))
    work = conditional if "model" in cell else sampling
    return work(name, cell.get("model") or cell["sampler"], seed, train, test)


def draw(names: list[str], models: list[str], items: int, tiny: bool) -> None:
    """Draws the models' densities on sets of one context and target, and the density network's parameters along the context."""
    plt = figures.pyplot()
    x, y = np.linspace(-1, 1, 240), np.linspace(-1.7, 1.7, 340)
    for name in names:
        train = branch_set(name, items, 0)
        fig, axes = plt.subplots(2, 3, figsize=(10.5, 6.4), sharex=True, sharey=True, layout="constrained")
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
        figures.save(fig, f"pairs/branches_{name}", tiny=tiny, dpi=80)
    if "density network" in models:
        draw_routing(plt, x, tiny)


def draw_routing(plt: Any, x: np.ndarray, tiny: bool) -> None:
    """Draws weights, means and standard deviations of the density network along the context."""
    train = branch_set("separated", TRAIN, 0)
    routing = MODELS["density network"](0).fit(train.context, train.target).routing(x[:, None])
    fig, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    truths = (np.full_like(x, 1 / 3), separated(x), np.full_like(x, EPS))
    limits = ((0, 1), (None, None), (0, 0.15))
    titles = ("weights", "means", "standard deviations")
    for ax, values, truth, limit, title in zip(axes, routing, truths, limits, titles, strict=True):
        ax.plot(x, values.reshape(len(x), 3))
        ax.plot(x, truth, color="0.4", ls=":")
        ax.set(title=title, xlabel="context x", ylim=limit)
    figures.save(fig, "pairs/branches_routing", tiny=tiny, dpi=80)


if __name__ == "__main__":
    options = {"what": Option(choices=("run", "draw"), shape="first"), "data_root": str, "sets": some(SETS), "seeds": SEEDS}
    options["models"] = some(dict.fromkeys((*MODELS, *SAMPLERS)))
    a = parse(__doc__, "branches", options, {"sets": first, "seeds": first, "models": ["EM, K = 1", "one Gaussian"]})
    if a.what == "run":
        measure_cells(a, cells, measure)
    else:
        draw(["separated"] if a.tiny else [*BRANCHES, "heteroscedastic"], a.models[:1] if a.tiny else list(MODELS), TRAIN, a.tiny)
