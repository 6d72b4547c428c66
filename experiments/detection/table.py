"""Tables of detectors: on foreign images, on tables next to those of PyOD and pytorch-ood, blood cells and digits.

If a cell was measured more than once, the last row counts.
"""

import re
import statistics
from collections import defaultdict
from functools import partial

from experiments.ledger import Row, by_setting, grid, plus_minus, rows
from scipy.stats import sem

PEERS = ("pyod ", "pytorch-ood ")  # how the names of other packages' detectors begin in the ledger
FEATURES = {  # columns: encoder and level
    "`vje`": ("vje", "z"),
    "`patches`": ("patches", "z"),
    "statistics": ("pixels", "statistics"),
}
DEFAULT = "default 5"  # name in the ledger of the detector of runs until 2026-11-28
FOREIGN = {  # columns of the tables of out-of-distribution detection
    "cifar10": ("cifar100", "omniglot", "inverted", "fashion_mnist", "mnist", "noise", "blurred"),
    "fashion_mnist": ("mnist", "omniglot", "cifar10", "noise", "blurred", "inverted"),
}


def foreign_rows(data: str, peers: bool = False) -> list[Row]:
    """The last row of each encoder, level and detector of our own, or with ``peers`` of all, on a set, with means over its seeds.

    ``seeds`` has the mean AUROC over the foreign sets of each seed. A series begins with seed 0: rows of before the last one of
    that seed, whose encoder may have had other settings, do not count.
    """
    found: dict[tuple, dict[int, Row]] = defaultdict(dict)
    for row in rows("out_of_distribution"):
        if row["data"] == data and (peers or not row["detector"].startswith(PEERS)):
            key = row["encoder"], row["level"], row["detector"]
            found[key] = {row["seed"]: row} if row["seed"] == 0 else found[key] | {row["seed"]: row}
    return [_over_seeds(list(of.values())) for of in found.values()]


def _over_seeds(of: list[Row]) -> Row:
    last = max(of, key=lambda row: row.get("date", ""))
    means = {name: statistics.mean(row[name] for row in of) for name in ("mean_foreign", "mean_corrupted")}
    auroc = {name: statistics.mean(row["auroc"][name] for row in of) for name in last["auroc"]}
    return {**last, **means, "auroc": auroc, "seeds": [row["mean_foreign"] for row in of]}


def foreign_table(data: str) -> str:
    """AUROC of each detector on the features of `vje` and on what needs no encoder: the default first, then the baselines."""
    shown = [row for row in foreign_rows(data) if row["encoder"] in ("vje", "pixels")]
    shown = [row for row in shown if not re.match("default [23].", row["detector"])]  # parts of rules that are no longer used
    shown.sort(key=lambda row: (row["detector"] != DEFAULT, not row["detector"].startswith("default"), -row["mean_foreign"]))
    best = max(row["mean_foreign"] for row in shown)
    body = []
    for row in shown:
        values = [f"{row['auroc'][name]:.3f}" for name in FOREIGN[data]]
        mean = f"**{row['mean_foreign']:.3f}**" if row["mean_foreign"] == best else f"{row['mean_foreign']:.3f}"
        level = f"`vje`: {row['level'].removeprefix('own_')}" if row["level"].startswith("own_") else row["level"]
        name = f"**{DEFAULT}**" if row["detector"] == DEFAULT else row["detector"]
        body.append([level, name, *values, mean, f"{row['mean_corrupted']:.3f}"])
    return grid(["level", "detector", *FOREIGN[data], "mean", "corruptions"], body)


def encoders_table(data: str) -> str:
    """Mean AUROC over foreign sets: each encoder with each detector on its embedding, and with the default."""
    found = foreign_rows(data)
    columns = [
        ("z", "Gaussian"),
        ("z", "Gaussian, 64 directions"),
        ("z", "subspace"),
        ("z", "mixture"),
        ("z", "kNN"),
        ("z", "kNN, cosine"),
        ("statistics + patches + z", "default"),
        ("statistics + patches + z", "default 2"),
        ("statistics + patches + z", "default 3"),
        ("statistics + patches + z", "default 4"),
        ("statistics + patches + z", DEFAULT),
    ]
    columns = [key for key in columns if any((row["level"], row["detector"]) == key for row in found)]
    body = []
    for encoder in dict.fromkeys(row["encoder"] for row in found if row["encoder"] != "pixels"):
        own = {(row["level"], row["detector"]): row for row in found if row["encoder"] == encoder}
        epochs = {row.get("epochs") for row in own.values()} - {None}
        name = f"{encoder}, {epochs.pop()} epochs" if epochs and encoder not in ("untrained", "patches") else encoder
        body.append([name, *(f"{own[key]['mean_foreign']:.3f}" if key in own else "" for key in columns)])
    return grid(["encoder", *(how if how.startswith("default") else f"{how} on z" for _, how in columns)], body)


def detection_table() -> str:
    """Mean AUROC over CIFAR-10's foreign sets and that of CIFAR-100: detectors of runs first, then the baselines."""
    found = {(row["encoder"], row["level"], row["detector"]): row for row in foreign_rows("cifar10", peers=True)}
    whole, plain = "statistics + patches + z", "statistics + z"
    shown = [
        ("patches", whole, DEFAULT, "**`vergence score` of a `patches` run**"),
        ("patches", whole, "default", "**`vergence score` of a `patches` run, detector of format 1**"),
        ("patches", "z", "kNN", "baseline: kNN distance on its embedding"),
        ("patches", "z", "Gaussian, 64 directions", "baseline: one Gaussian on 64 directions of it"),
        ("vje", whole, DEFAULT, "**`vergence score` of a `vje_small` run**"),
        ("vje", plain, "default without patches", "**`vergence score` of a `vje_small` run, detector of format 1**"),
        ("vje", "z", "kNN", "baseline: kNN distance on its embedding"),
        ("vje", "z", "Gaussian, 64 directions", "baseline: one Gaussian on 64 directions of it"),
        ("vje", "own_joint", "own score", "baseline: VJE's joint score"),
        (
            "distilled",
            whole,
            DEFAULT,
            "**`vergence score` of a `distilled_vje` run**, network of four convolutions (before 2026-11-28)",
        ),
        ("distilled", "z", "kNN", "baseline: kNN distance on its embedding"),
        ("distilled", "z", "Gaussian, 64 directions", "baseline: one Gaussian on 64 directions of it"),
        ("pretrained", whole, DEFAULT, "**`vergence score` of a frozen ImageNet network**, at 96 pixels"),
        ("pretrained", "z", "kNN, cosine", "baseline: cosine distance to the 5th neighbor on its embedding"),
        ("pretrained", "z", "Gaussian, 64 directions", "baseline: one Gaussian on 64 directions of it"),
        ("pixels", "statistics", "pyod KNN", "baseline: PyOD's kNN distance on statistics of the pixels"),
        ("pixels", "statistics", "kNN", "baseline: our kNN distance on them, to 2,000 items"),
        ("pixels", "statistics", "Gaussian", "baseline: one Gaussian on them"),
        ("pixels", "pixels", "kNN, cosine, 2,000 items", "baseline: kNN distance on pixels"),
    ]
    body = []
    for *key, label in shown:
        if "format 1" in label and (key[0], whole, DEFAULT) in found:
            continue
        if (row := found.get(tuple(key))) is not None:
            body.append([label, str(len(row["seeds"])), plus_minus(row["seeds"], 3), f"{row['auroc']['cifar100']:.3f}"])
    return grid(["score", "seeds", "mean AUROC, seven sets", "CIFAR-100"], body)


def digits_table() -> str:
    """AUROC of the detector for each noisy digit that is held out, next to the best baselines; its last row of each seed."""
    last = {(row["held_out"], row["seed"]): row["auroc"] for row in rows("digits")}
    digits = sorted({digit for digit, _ in last})
    shown = {"detector": "**the run's detector**", "joint": "VJE's joint score"}
    shown |= {f"kNN, {name}": f"baseline: kNN distance on {name}" for name in ("z", "untrained", "pixels", "pca")}
    shown["Mahalanobis, z"] = "baseline: Mahalanobis distance on z"
    body = []
    for name, label in shown.items():
        found = [statistics.mean(auroc[name] for (d, _), auroc in last.items() if d == digit) for digit in digits]
        body.append([label, *(f"{value:.3f}" for value in found), f"{statistics.mean(found):.3f}" if found else ""])
    return grid(["score", *map(str, digits), "mean"], body)


def severity_table() -> str:
    """AUROC of the default on `vje`'s features by corruption and severity."""
    found = {row["detector"]: row for row in foreign_rows("cifar10") if row["encoder"] == "vje"}
    row = found.get(DEFAULT, found["default"])
    kinds = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in row["auroc"] if name[-2:-1] == " "))
    body = [[kind, *(f"{row['auroc'][f'{kind} {s}']:.3f}" for s in range(1, 6))] for kind in kinds]
    return grid(["corruption", "1", "2", "3", "4", "5"], body)


def title(name: str) -> str:
    """Returns the name of a detector for readers; classes and functions as code."""
    for start, package in zip(PEERS, ("PyOD's ", "pytorch-ood's "), strict=True):
        if name.startswith(start):
            return package + name.removeprefix(start)
    first, comma, rest = name.partition(", ")
    return f"`{first}`{comma}{rest}" if "Detector" in first or "(" in first else name


def held_out_classes_table() -> str:
    """The mean AUROC of each detector on each set, and its standard error over classes and seeds; best mean first."""
    last = {(row["data"], row["held_out"], row["seed"]): row["auroc"] for row in rows("held_out_classes")}
    sets = list(dict.fromkeys(data for data, _, _ in last))
    values = {
        name: {data: [auroc[name] for (own, *_), auroc in last.items() if own == data] for data in sets}
        for name in next(iter(last.values()), {})
        if not name.startswith("default_detector")  # of before 2026-11-28
    }
    equal = [f"{name}, raw" for name, own in values.items() if values.get(f"{name}, raw") == own]  # units play no part
    means = {name: statistics.mean(map(statistics.mean, own.values())) for name, own in values.items() if name not in equal}
    body = []
    for name, mean in sorted(means.items(), key=lambda pair: -pair[1]):
        cells = [f"{statistics.mean(v):.3f} ± {sem(v):.3f}" for v in values[name].values()]
        body.append([title(name), *cells, f"{mean:.3f}"])
    return grid(["detector", *(f"{data}, {len({c for d, c, _ in last if d == data})} classes" for data in sets), "mean"], body)


def same_features_table() -> str:
    """The mean AUROC over CIFAR-10's foreign sets and that of CIFAR-100, of detectors on the same features of seed 0."""
    measured = [row for row in rows("out_of_distribution") if row["seed"] == 0 and row["data"] == "cifar10"]
    last = {(row["encoder"], row["level"], row["detector"]): row for row in measured}
    found: dict[str, dict[str, Row]] = {}
    for column, key in FEATURES.items():
        for (encoder, level, name), row in last.items():
            if (encoder, level) == key:
                found.setdefault(name, {})[column] = row
            elif encoder == key[0] and name == DEFAULT:
                found.setdefault("the default on all levels", {})[column] = row
    body = []
    for name, own in sorted(found.items(), key=lambda pair: -max(row["mean_foreign"] for row in pair[1].values())):
        cells = {column: (row["mean_foreign"], row["auroc"]["cifar100"]) for column, row in own.items()}
        shown = ["" if value is None else f"{value:.3f}" for column in FEATURES for value in cells.get(column, (None, None))]
        body.append([title(name), *shown])
    return grid(["detector", *(f"{column}: {what}" for column in FEATURES for what in ("mean", "CIFAR-100"))], body)


def blood_cells_table(least: float = 0.7) -> str:
    """A line for each encoder and score on tiles of photographs, over seeds; scores below ``least`` are left out.

    Every run's detector is shown, and of an objective's own scores only the best one.
    """
    body = []
    for encoder, found in by_setting(rows("blood_cells"), lambda row: row["encoder"]).items():
        means = {name: statistics.mean(row["auroc"][name] for row in found) for name in found[0]["auroc"]}
        own = sorted((name for name in means if name.startswith("own ")), key=lambda name: -means[name])
        for name in means:
            detector = name.startswith("detector")
            if name not in own[1:] and (detector or means[name] >= least):
                values = (plus_minus([row[what][name] for row in found], 3) for what in ("auroc", "white_cells", "platelets"))
                first = f"{statistics.mean(row['odd_of_first_50'][name] for row in found):.0f}"
                body.append((means[name], [f"`{encoder}`", f"**{name}**" if detector else name, *values, first]))
    columns = ["encoder", "score", "AUROC, all", "white cells", "platelets", "odd among the first 50"]
    return grid(columns, [line for _, line in sorted(body, key=lambda pair: -pair[0])])


def jacobian_table() -> str:
    """The AUROC of JEPA-SCORE and of other scores of the same encoder, means over the classes; the last row of each cell."""
    last = {(row["set"], row["encoder"], row["label"]): row for row in rows("jacobian")}
    names = ("Jacobian", "Jacobian behind the projector", "z: kNN, cosine", "z: Mahalanobis", "run's detector")
    body = []
    for name, encoder in dict.fromkeys(key[:2] for key in last):
        own = [row for key, row in last.items() if key[:2] == (name, encoder)]
        short = [{how.replace(" of z", "").split(", 32")[0]: value for how, value in row["auroc"].items()} for row in own]
        means = [f"{statistics.mean(row[how] for row in short):.3f}" if how in short[0] else "" for how in names]
        n = (sum(row[count] for row in own) for count in ("n_typical", "n_anomalous"))
        classes = ", ".join(str(row["label"]) for row in own if row["label"] is not None)
        body.append([name + (f", {classes}" if classes else ""), f"`{encoder}`", " + ".join(map(str, n)), *means])
    return grid(["set, classes", "encoder", "normal + anomalous items", *names], body)


TABLES = {
    "experiments/detection/README.md": {"detection": detection_table, "jacobian": jacobian_table},
    "experiments/detection/measured.md": {
        **{f"foreign-{data}": partial(foreign_table, data) for data in FOREIGN},
        **{f"encoders-{data}": partial(encoders_table, data) for data in FOREIGN},
        "same-features": same_features_table,
        "held-out-classes": held_out_classes_table,
        "blood-cells": blood_cells_table,
        "severity": severity_table,
        "digits": digits_table,
    },
}
