"""``vergence calibrate``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vergence.cli import options

__all__: list[str] = []


@dataclass(kw_only=True)
class Calibrate:
    """Decide from the scores of any model which items are unusual, at a stated rate.

    CALIBRATION has scores of ordinary items that the model was not fitted to, NEW those of the items to judge.
    """

    calibration: Annotated[Positional[Path], arg(metavar="CALIBRATION")]
    """Table (.csv, .parquet, ...), .npy or .npz with scores."""
    new: Annotated[Positional[Path], arg(metavar="NEW")]
    """The same, of the items to judge; all its columns are written again."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: decisions-NEW.csv)")] = None
    """File to write: .csv, .parquet or .npz. A page is written next to it, OUT.html."""
    column: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: score)")] = None
    """Column of the scores."""
    groups: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """Column of groups: items are compared with calibration items of the same group."""
    fdr: Annotated[float, arg(help="Share of false alarms among the flags, at most, on average over tables.")] = 0.1
    fpr: Annotated[float | None, arg(metavar="RATE", help_behavior_hint="(default: flag by --fdr)")] = None
    """Flag at most this share of ordinary items, with --confidence, instead."""
    confidence: Annotated[float | None, arg(metavar="P", help_behavior_hint="(default: 0.95 with --fpr)")] = None
    """Probability that --fpr, or --fdr for tables judged by these calibration items, holds."""
    adaptive: bool = False
    """Use what many anomalies leave of --fdr, by an estimate of their share."""
    lower_is_stranger: bool = False
    """Lower scores are stranger, as of log-likelihoods."""


def calibrate(command: Calibrate) -> None:
    """Runs ``vergence calibrate``."""
    from vergence.decide.files import calibrate_files

    out = command.out or Path(f"decisions-{options.stem(command.new)}.csv")
    found = calibrate_files(
        command.calibration,
        command.new,
        out,
        column=command.column,
        groups=command.groups,
        fdr=command.fdr,
        fpr=command.fpr,
        confidence=command.confidence,
        adaptive=command.adaptive,
        lower_is_stranger=command.lower_is_stranger,
    )
    for sentence in found.sentences:
        print(sentence)
    print(f"wrote {len(found.flag):,} rows to {out}")
    print(f"next: open {out}.html")
