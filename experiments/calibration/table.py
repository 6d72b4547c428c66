"""Summaries of ``results/calibration.jsonl`` for docs/detection_measured.md: false-discovery proportion and power over splits.

Each summary returns the header and the lines of a table; without measurements, the table has no lines. If a setting was measured
more than once, the last row counts.
"""

import statistics
from collections import defaultdict
from typing import Any

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
LEVELS = ("0.05", "0.1", "0.2")
SHOWN = {"calibration": 2000, "share": 0.1}  # what the table of single sets shows
NAMES = {"detector": "default detector", "joint": "VJE's joint score"}
DATA = ("cifar10", "fashion_mnist", "blood_cells", "digits")  # in the order of the tables; the first two have means over sets
FIELDS = ("fdp", "fdp_error", "above", "power", "nothing")  # of a result, in the order in which a row lists them
PARTS = {"same part": "", "training part": ", of the training part"}
SETTING = ("data", "encoder", "score", "unusual_set", "calibration", "items", "share", "calibrated_on")


def last(rows: list[Row]) -> list[Row]:
    """Returns the last row of each setting, with the names of what was found at each level."""
    newest = {tuple(row[name] for name in SETTING): row for row in rows}
    return [{**row, "found": {method: _named(of) for method, of in row["found"].items()}} for row in newest.values()]


def _named(levels: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {level: dict(zip(FIELDS, values, strict=True)) for level, values in levels.items()}


def cell(one: Row) -> str:
    """Returns false-discovery proportion with its standard error, how many splits are above the level, and power."""
    if one["nothing"] == 1:
        return "nothing reported"
    return f"{one['fdp']:.3f} ± {one['fdp_error']:.3f} (above: {100 * one['above']:.0f} %), power {one['power']:.2f}"


def sets(rows: list[Row], method: str = "bh") -> Table:
    """Returns a line for each encoder and set at 2,000 calibration items, for the digits, and for cells by what calibrates."""
    body = []
    for row in sorted(last(rows), key=lambda row: DATA.index(row["data"])):
        if row["score"] == "joint" or not _in_sets(row):
            continue
        sizes = [f"{row['calibration']:,}{PARTS[row['calibrated_on']]}", f"{row['unusual']} of {row['items']:,}"]
        found = row["found"][method]
        where = f"{row['data']}, `{row['encoder']}`"
        body.append([where, row["unusual_set"], f"{row['auroc']:.3f}", *sizes, *(cell(found[a]) for a in LEVELS)])
    return [
        "typical, encoder",
        "unusual",
        "AUROC",
        "calibration items",
        "unusual in the batch",
        *(f"at {a}" for a in LEVELS),
    ], body


def _in_sets(row: Row) -> bool:
    if row["data"] == "blood_cells":
        return row["share"] == SHOWN["share"] and row["calibration"] != 200
    return row["data"] == "digits" or (row["calibrated_on"] == "same part" and all(row[k] == v for k, v in SHOWN.items()))


def means(rows: list[Row]) -> Table:
    """Returns a line for each number of calibration items and share, and one with Storey's method: means over unusual sets."""
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in last(rows):
        if row["data"] in DATA[:2]:
            for method in row["found"]:
                key = (row["data"], row["score"], row["encoder"], row["calibrated_on"], row["calibration"], row["share"], method)
                groups[key].append(row)
    body = []
    for (data, score, encoder, part, n, share, method), group in sorted(
        groups.items(), key=lambda kv: (DATA.index(kv[0][0]), list(NAMES).index(kv[0][1]), *kv[0][2:])
    ):
        if (score == "joint" or method == "storey") and {"calibration": n, "share": share} != SHOWN:
            continue
        cells = []
        for a in LEVELS:
            found = [row["found"][method][a] for row in group]
            fewest = group[0]["fewest"][a]
            worst = max(one["fdp"] for one in found)
            power = statistics.mean(one["power"] for one in found)
            cells.append(
                f"{statistics.mean(one['fdp'] for one in found):.3f}, at most {worst:.3f}; power {power:.2f}"
                if fewest <= group[0]["unusual"]
                else f"at least {fewest} would have to be reported"
            )
        name = f"{NAMES[score]}, `{encoder}`"
        counts = [
            f"{n:,}{PARTS[part]}",
            f"{100 * share:g} %",
            {"bh": "Benjamini-Hochberg", "storey": "Storey"}[method],
        ]
        body.append([data, name, str(len(group)), *counts, *cells])
    return ["typical", "score", "unusual sets", "calibration items", "unusual", "method", *(f"at {a}" for a in LEVELS)], body
