"""``vergence compare``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vergence.utils import terminal


@dataclass(kw_only=True)
class Compare:
    """Print runs side by side: mean and deviation over those that differ in the seed alone, and differences with intervals."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Run folders; those without an evaluation are evaluated first."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Table to write, too: .csv, .parquet or .npz."""
    figure: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Figure to write, too: a point for each run, and a learning curve where runs differ in --limit (.png, .svg or .pdf; needs
    vergence[figures])."""
    measure: Annotated[str, arg(help="What the figure shows: knn, probe, effective_rank, auroc or seconds.")] = "knn"
    baseline: Annotated[str | None, arg(metavar="NAME", help="Row that others are compared with; by default the first.")] = None
    probes: Annotated[bool, arg(help="Fit linear probes in runs that are evaluated now.")] = True


def compare(command: Compare) -> None:
    """Runs ``vergence compare``."""
    import numpy as np

    from vergence.learn.runs.compare import MEASURES
    from vergence.learn.runs.compare import compare as run
    from vergence.utils.parts import require_table, write_table

    if command.out is not None:
        require_table(command.out)
    found = run(command.runs, probes=command.probes, baseline=command.baseline)
    table = found.table()
    shown = [key for key in MEASURES if key in table]
    more = [key for key in shown if f"{key}_low" in table]
    header = ["", "runs", *(key.replace("_", " ") for key in shown), *(f"{key}: difference" for key in more)]
    for test in dict.fromkeys(found.test):
        own = [i for i, on in enumerate(found.test) if on == test]
        texts = [[*(_text(table, key, i) for key in shown), *(_interval(table, key, i) for key in more)] for i in own]
        rows = [[found.name[i], str(found.runs[i]), *row] for i, row in zip(own, texts, strict=True)]
        terminal.table(f"{test}: mean and standard deviation over seeds", header, rows)
    for note in found.notes:
        print(f"note: {note}")
    if command.out is not None:
        numbers = {key: np.array(values, dtype=np.float64) for key, values in table.items() if key not in ("name", "test")}
        write_table(command.out, {"name": found.name, "test": found.test, **numbers})
        print(f"wrote {len(found.name)} rows to {command.out}")
    if command.figure is not None:
        found.plot(command.measure).figure.savefig(command.figure)
        print(f"wrote {command.figure}")


def _text(table: Mapping[str, Any], key: str, i: int) -> str:
    mean, deviation = table[key][i], table[f"{key}_deviation"][i]
    if mean is None:
        return ""
    digits = 3 if mean <= 1 else 1
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def _interval(table: Mapping[str, Any], key: str, i: int) -> str:
    difference, low, high = (table[f"{key}_{end}"][i] for end in ("difference", "low", "high"))
    return "" if difference is None else f"{difference:+.3f} ({low:+.3f} to {high:+.3f})"
