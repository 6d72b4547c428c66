"""Summaries for docs/detection_measured.md: detectors beside those of PyOD and pytorch-ood on tables and features; blood cells.

Each summary returns the header and the lines of a table, best mean first. If a cell was measured more than once, the last row
counts.
"""

import statistics
from typing import Any

from experiments.ledger import plus_minus
from scipy.stats import sem

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
PEERS = ("pyod ", "pytorch-ood ")  # how the names of other packages' detectors begin in the ledger
FEATURES = {  # columns: encoder and level
    "`vje`": ("vje", "z"),
    "`patches`": ("patches", "z"),
    "statistics": ("pixels", "statistics"),
}


def title(name: str) -> str:
    """Returns the name of a detector for readers; classes and functions as code."""
    for start, package in zip(PEERS, ("PyOD's ", "pytorch-ood's "), strict=True):
        if name.startswith(start):
            return package + name.removeprefix(start)
    first, comma, rest = name.partition(", ")
    return f"`{first}`{comma}{rest}" if "Detector" in first or "(" in first else name


def held_out_classes(rows: list[Row]) -> Table:
    """Returns the mean AUROC of each detector on each set, and its standard error over classes and seeds."""
    last = {(row["data"], row["held_out"], row["seed"]): row["auroc"] for row in rows}
    sets = list(dict.fromkeys(data for data, _, _ in last))
    values = {
        name: {data: [auroc[name] for (own, *_), auroc in last.items() if own == data] for data in sets}
        for name in next(iter(last.values()), {})
    }
    equal = [f"{name}, raw" for name, own in values.items() if values.get(f"{name}, raw") == own]  # units play no part
    means = {name: statistics.mean(map(statistics.mean, own.values())) for name, own in values.items() if name not in equal}
    body = []
    for name, mean in sorted(means.items(), key=lambda pair: -pair[1]):
        cells = [f"{statistics.mean(v):.3f} ± {sem(v):.3f}" for v in values[name].values()]
        body.append([title(name), *cells, f"{mean:.3f}"])
    return ["detector", *(f"{data}, {len({c for d, c, _ in last if d == data})} classes" for data in sets), "mean"], body


def same_features(rows: list[Row], default: str) -> Table:
    """Returns the mean AUROC over CIFAR-10's seven foreign sets and that of CIFAR-100, of detectors on the same features."""
    last = {(row["encoder"], row["level"], row["detector"]): row for row in rows if row["data"] == "cifar10"}
    found: dict[str, dict[str, Row]] = {}
    for column, key in FEATURES.items():
        for (encoder, level, name), row in last.items():
            if (encoder, level) == key:
                found.setdefault(name, {})[column] = row
            elif encoder == key[0] and name == default:
                found.setdefault("the default on all levels", {})[column] = row
    body = []
    for name, own in sorted(found.items(), key=lambda pair: -max(row["mean_foreign"] for row in pair[1].values())):
        cells = {column: (row["mean_foreign"], row["auroc"]["cifar100"]) for column, row in own.items()}
        shown = ["" if value is None else f"{value:.3f}" for column in FEATURES for value in cells.get(column, (None, None))]
        body.append([title(name), *shown])
    return ["detector", *(f"{column}: {what}" for column in FEATURES for what in ("mean", "CIFAR-100"))], body


def blood_cells(rows: list[Row], least: float = 0.7) -> Table:
    """Returns a line for each encoder and score on tiles of photographs, over seeds; scores below ``least`` are left out.

    Every run's detector is shown, and of an objective's own scores only the best one.
    """
    last = {(row["encoder"], row["seed"]): row for row in rows}
    runs: dict[str, list[Row]] = {}
    for (encoder, _), row in last.items():
        runs.setdefault(encoder, []).append(row)
    body = []
    for encoder, found in runs.items():
        means = {name: statistics.mean(row["auroc"][name] for row in found) for name in found[0]["auroc"]}
        own = sorted((name for name in means if name.startswith("own ")), key=lambda name: -means[name])
        for name in means:
            detector = name.startswith("detector")
            if name not in own[1:] and (detector or means[name] >= least):
                values = (plus_minus([row[what][name] for row in found], 3) for what in ("auroc", "white_cells", "platelets"))
                first = f"{statistics.mean(row['odd_of_first_50'][name] for row in found):.0f}"
                body.append((means[name], [f"`{encoder}`", f"**{name}**" if detector else name, *values, first]))
    columns = ["encoder", "score", "AUROC, all", "white cells", "platelets", "odd among the first 50"]
    return columns, [line for _, line in sorted(body, key=lambda pair: -pair[0])]
