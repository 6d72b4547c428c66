"""``vergence compare``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vergence.utils import terminal


@dataclass(kw_only=True)
class Compare:
    """Print runs on one data set side by side: mean and deviation over those that differ in the seed alone."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Run folders; those without an evaluation are evaluated first."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Table to write, too: .csv, .parquet or .npz."""
    figure: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Figure to write, too: a point for each run (.png, .svg or .pdf; needs vergence[figures])."""
    measure: Annotated[str, arg(help="What the figure shows: knn, probe, effective_rank, auroc or seconds.")] = "knn"
    probes: Annotated[bool, arg(help="Fit linear probes in runs that are evaluated now.")] = True


def compare(command: Compare) -> None:
    """Runs ``vergence compare``."""
    import numpy as np

    from vergence.learn.runs.compare import MEASURES
    from vergence.learn.runs.compare import compare as run
    from vergence.utils.parts import require_table, write_table

    if command.out is not None:
        require_table(command.out)
    found = run(command.runs, probes=command.probes)
    table = found.table()
    shown = [key for key in MEASURES if key in table]
    rows = [
        [name, str(n), *(_text(table[key][i], table[f"{key}_deviation"][i]) for key in shown)]
        for i, (name, n) in enumerate(zip(found.name, found.runs, strict=True))
    ]
    terminal.table("runs, mean and standard deviation over seeds", ["", "runs", *(key.replace("_", " ") for key in shown)], rows)
    if command.out is not None:
        numbers = {key: np.array(values, dtype=np.float64) for key, values in table.items() if key != "name"}  # None as NaN
        write_table(command.out, {"name": found.name, **numbers})
        print(f"wrote {len(found.name)} rows to {command.out}")
    if command.figure is not None:
        found.plot(command.measure).figure.savefig(command.figure)
        print(f"wrote {command.figure}")


def _text(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.3g}" if deviation is None else f"{mean:.3g} ± {deviation:.2g}"
