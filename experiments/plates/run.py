"""Judges decisions on synthetic plates: the share of false flags, and the power for each kind of error.

README.md says how.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from experiments.plates.layout import SETS, Plate
from experiments.plates.peers import fixed_cuts, image_quality, judge
from experiments.plates.plate import truth, write
from experiments.runner import first, main, some
from experiments.shared import Timer

from vergence.images.plates import check_plate

RULE = "vergence check"
CUT = ("false_share", "power_seen", "control_flags", "treated_flags")  # what the log has of fixed cuts


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in a.sets:
        yield {"set": name, "seed": 0, "plates": a.plates, "wells": a.rows * a.columns, "sites_of_well": a.sites, "side": a.side}


def plate(a: argparse.Namespace, name: str, seed: int) -> Plate:
    blood = {"blood": a.data_root} if name == "cells" else {}
    return replace(SETS[name], seed=seed, rows=a.rows, columns=a.columns, sites=a.sites, side=a.side, **blood)


def judged(made: Plate) -> dict[str, dict[str, Any]]:
    """Returns what each rule does on one plate, and the seconds that `check_plate` took."""
    with tempfile.TemporaryDirectory() as folder:
        sites = write(made, Path(folder))
        answer, timer = truth(sites), Timer()
        found = check_plate(folder, plate=Path(folder) / "plate.csv", against_where="compound = DMSO", workers=0)
        seconds = timer.both()
        quality = [image_quality(found.source.images.read(i).pixels) for i in range(len(sites))]
    names = zip(found.sites["Metadata_Well"], found.sites["Metadata_Site"], found.column("flag"), strict=True)
    order = {(well, int(site)): k for k, (well, site, _) in enumerate(names)}
    flags = {RULE: np.asarray(found.column("flag"))}
    control = np.asarray(found.sites["Metadata_control"], dtype=bool)
    flags |= fixed_cuts({name: np.array([one[name] for one in quality]) for name in quality[0]}, control)
    rows = [order[row["Metadata_Well"], row["Metadata_Site"]] for row in answer]
    each = {
        rule: judge([{**row, "flagged": int(flag[k])} for row, k in zip(answer, rows, strict=True)], answer)
        for rule, flag in flags.items()
    }
    each[RULE] |= seconds
    return each


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns means over plates, of seeds from 0, with the standard error of false share and power; those of cuts by rule."""
    plates = [judged(plate(a, cell["set"], seed)) for seed in range(a.plates)]
    rules = {rule: means([one[rule] for one in plates]) for rule in plates[0]}
    own = rules.pop(RULE)
    del own["sites"], own["power"]
    return {**own, "cuts": {rule: {key: of[key] for key in CUT} for rule, of in rules.items()}}


def means(plates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mean of each entry over the plates that have it, and standard errors."""
    found: dict[str, Any] = {}
    for name, value in plates[0].items():
        if isinstance(value, dict):
            found[name] = means([one[name] for one in plates])
            continue
        values = [one[name] for one in plates if one[name] is not None]
        found[name] = round(float(np.mean(values)), 4) if values else None
        if name in ("false_share", "power_seen") and len(values) > 1:
            found[f"{name}_error"] = round(float(np.std(values, ddof=1) / len(values) ** 0.5), 4)
    return found


OPTIONS = {"data_root": str, "sets": some(SETS), "plates": 40, "rows": 16, "columns": 24, "sites": 4, "side": 192}
TINY = {"sets": first, "plates": 1, "rows": 4, "columns": 6, "sites": 6, "side": 64}

if __name__ == "__main__":
    main(__doc__, "plates", OPTIONS, cells, measure, tiny=TINY, shown=("set", "false_share", "power_seen"))
