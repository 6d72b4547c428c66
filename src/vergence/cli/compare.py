"""``vergence compare``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vergence.utils import terminal


@dataclass(kw_only=True)
class Compare:
    """Compare runs: mean and deviation over seeds, and differences with 95 % intervals."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
    """Run folders; those without an evaluation are evaluated first."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Table to write, too: .csv, .parquet or .npz."""
    figure: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Figure to write, too: a point per run, and a learning curve where runs differ in --limit (.png, .svg or .pdf; needs
    vergence[figures])."""
    measure: Annotated[str, arg(help="What the figure shows: knn, probe, effective_rank, auroc or seconds.")] = "knn"
    baseline: Annotated[str | None, arg(metavar="NAME", help="Setting that others are compared with; by default the first.")] = (
        None
    )
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
    more = [key for key in MEASURES if f"{key}_low" in table]
    for key, i in ((key, i) for i in range(len(found.name)) for key in more if table[f"{key}_low"][i] is not None):
        difference, low, high = (100 * table[f"{key}_{end}"][i] for end in ("difference", "low", "high"))
        text = f"{difference:+.1f} ({low:+.1f} to {high:+.1f})"
        print(f"{found.name[i]}: {key} differs by {text} points from {found.baseline[i]} (95 % interval).")
    for note in found.notes:
        print(f"note: {note}")
    for test in dict.fromkeys(found.test):
        keys = [key for key in MEASURES if key in table]
        header = ["", "runs", *(key.replace("_", " ") + ", %" * (key in found.shares) for key in keys)]
        own = [i for i, on in enumerate(found.test) if on == test]
        rows = [[found.name[i], str(found.runs[i]), *(_text(table, key, i, key in found.shares) for key in keys)] for i in own]
        terminal.table(f"{test}: mean ± standard deviation over seeds", header, rows)
    if command.out is not None:
        numbers = {key: np.array(values, dtype=np.float64) for key, values in table.items() if key not in ("name", "test")}
        write_table(command.out, {"name": found.name, "test": found.test, **numbers})
        print(f"wrote {len(found.name)} rows to {command.out}")
    if command.figure is not None:
        found.plot(command.measure).figure.savefig(command.figure)
        print(f"wrote {command.figure}")


def _text(table: Mapping[str, Any], key: str, i: int, share: bool) -> str:
    both = (table[key][i], table[f"{key}_deviation"][i])
    return " ± ".join(f"{value * (100 if share else 1):.1f}" for value in both if value is not None)
