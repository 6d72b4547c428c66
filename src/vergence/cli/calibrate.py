"""``vergence calibrate``."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.utils.checks import counted

# Options that are passed on as they are given
PASSED = ("against_where", "column", "groups", "fdr", "fpr", "confidence", "adaptive", "append", "lower_is_anomalous")


@dataclass(kw_only=True)
class Calibrate:
    """Decide from the scores of any model which items are anomalous, at a stated error rate.

    CALIBRATION has scores of normal items that the model was not fitted to, NEW those of new items. One table may hold both.
    """

    calibration: Annotated[Positional[Path], arg(metavar="CALIBRATION")]
    """Table (.csv, .jsonl, .parquet, ...), .npy or .npz with scores."""
    new: Annotated[Positional[Path | None], arg(metavar="NEW")] = None
    """The same, of new items, also none; all its columns are written again. - reads JSON lines of standard input."""
    against_where: Annotated[str | None, arg(metavar="CONDITION", help_behavior_hint="")] = None
    """Without NEW: rows of CALIBRATION that are normal, as 'compound = DMSO'; the others are new and written."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: decisions-NEW.csv, or - of -)")] = None
    """File to write: .csv, .jsonl, .parquet or .npz, and a page next to it, OUT.html. - writes JSON lines to standard output."""
    append: Annotated[Path | None, arg(metavar="LOG", help_behavior_hint="(default: none)")] = None
    """Log of JSON lines to which the decisions are added, with the time, the digest of CALIBRATION and the rates."""
    fail_on: options.FailOn = None
    """Exit with code 1, with all results written, if there are any: flagged, shift, errors, several with commas, or any."""
    column: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: score)")] = None
    """Column of the scores."""
    groups: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """Column of groups: items are compared with calibration items of the same group."""
    fdr: Annotated[float, arg(help="Largest share of false alarms among the flags, on average over tables.")] = 0.1
    fpr: Annotated[float | None, arg(metavar="RATE", help_behavior_hint="(default: flag by --fdr)")] = None
    """Instead, flag at most this share of normal items, with --confidence."""
    confidence: Annotated[float | None, arg(metavar="P", help_behavior_hint="(default: 0.95 with --fpr)")] = None
    """Probability that --fpr, or --fdr, holds for these calibration items."""
    adaptive: bool = False
    """Flag more where anomalies are many, by an estimate of their share."""
    lower_is_anomalous: bool = False
    """Lower scores are more anomalous, as of log-likelihoods."""


def calibrate(command: Calibrate) -> None:
    """Runs ``vergence calibrate``."""
    from vergence.data.table_files import STREAM
    from vergence.decide.files import calibrate_files

    failing = options.failing(command.fail_on, options.OF_DECISIONS)
    new = command.new or command.calibration
    out = command.out or (STREAM if new == STREAM else Path(f"decisions-{options.stem(new)}.csv"))
    to = sys.stderr if out == STREAM else sys.stdout  # where standard output has the decisions
    how: dict[str, Any] = {name: getattr(command, name) for name in PASSED}
    found = calibrate_files(command.calibration, command.new, out, **how)
    for sentence in found.sentences:
        print(sentence, file=to)
    if out != STREAM:
        print(f"wrote {counted(found.rows, 'row')} to {out}\nnext: open {out}.html")
    options.stop_on({name: options.OF_DECISIONS[name](found) for name in failing})
