"""Judges decisions on synthetic plates: the share of false flags, and the power for each kind of error.

README.md says how.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from experiments.plates.layout import SETS, Plate, layout
from experiments.plates.peers import fixed_cuts, image_quality, judge
from experiments.plates.plate import image, truth
from experiments.runner import first, main, some
from experiments.shared import Timer


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in a.sets:
        for seed in range(a.plates):
            yield {"set": name, "seed": seed, "wells": a.rows * a.columns, "sites": a.sites, "side": a.side}


def plate(a: argparse.Namespace, cell: dict[str, Any]) -> Plate:
    shape = {"rows": a.rows, "columns": a.columns, "sites": a.sites, "side": a.side}
    blood = {"blood": a.data_root} if cell["set"] == "cells" else {}
    return replace(SETS[cell["set"]], seed=cell["seed"], **shape, **blood)


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each rule on one plate."""
    made, timer = plate(a, cell), Timer()
    sites = layout(made)
    features = [image_quality(image(made, site)) for site in sites]
    table = {name: np.array([one[name] for one in features]) for name in features[0]}
    answer, control = truth(sites), np.array([not site.treated for site in sites])
    found = []
    for rule, flagged in fixed_cuts(table, control).items():
        decisions = [{**row, "flagged": int(flag)} for row, flag in zip(answer, flagged, strict=True)]
        found.append({"rule": rule, **judge(decisions, answer)})
    return [{**row, **timer.both()} for row in found]


OPTIONS = {"data_root": str, "sets": some(SETS), "plates": 40, "rows": 16, "columns": 24, "sites": 2, "side": 256}
TINY = {"sets": first, "plates": 1, "rows": 4, "columns": 6, "sites": 1, "side": 64}

if __name__ == "__main__":
    main(__doc__, "plates", OPTIONS, cells, measure, tiny=TINY, shown=("set", "seed", "rule", "false_share", "power_seen"))
