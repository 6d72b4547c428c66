"""``vergence score``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.cli.use import print_written

if TYPE_CHECKING:
    from vergence.runs.score import Decisions

__all__ = ["Score", "score"]


@dataclass(kw_only=True)
class Score:
    """Write how anomalous each item is, with a p-value and a flag; larger is more anomalous."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    images: Annotated[Positional[str], arg(metavar="IMAGES")]
    """Any source that train takes; of a built-in name the test part is read (cifar10:train reads the other)."""
    out: Path
    """File to write: .npz, .csv or .parquet."""
    fdr: Annotated[float, arg(metavar="SHARE")] = 0.1
    """Share of the flagged items that is ordinary, on average at most."""
    fpr: Annotated[float | None, arg(metavar="RATE", help_behavior_hint="(default: flag by --fdr)")] = None
    """Flag at most this share of ordinary items, with --confidence, instead."""
    confidence: Annotated[float, arg(metavar="P")] = 0.95
    """Probability that --fpr holds, over calibration parts."""
    calibration: Annotated[str | None, arg(metavar="DATA", help_behavior_hint="(default: the run's own part)")] = None
    """Ordinary items that calibrate, none of them among IMAGES; any source."""
    confirm: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Text file with the names of calibration items that you looked at, the strangest first, and found odd, one a line."""
    all_scores: bool = False
    """Also write the score of each level, and every score of the objective's own."""
    data_root: options.DataRoot = None
    batch_size: int = 256
    """Items at a time."""
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False


def score(command: Score) -> None:
    """Runs ``vergence score``."""
    from vergence.runs.run import load
    from vergence.runs.scoring import read_names, require_apart, score_items

    if command.calibration is not None:
        require_apart(command.calibration, command.images)
    confirmed = None if command.confirm is None else read_names(command.confirm)
    run = load(command.run, device=command.device, trust_code=command.trust_code)
    items = run.items(command.images, root=command.data_root)
    given = None if command.calibration is None else run.items(command.calibration, root=command.data_root)
    settings: dict[str, Any] = {
        "fdr": command.fdr,
        "fpr": command.fpr,
        "confidence": command.confidence,
        "all_scores": command.all_scores,
    }
    settings |= {"calibration": given, "confirmed": confirmed, "batch_size": command.batch_size}
    decisions = score_items(run, items, command.out, **settings)
    show(decisions)
    print_written(command.out, decisions.total)


def show(decisions: "Decisions") -> None:
    """Prints the strangest items and what to do with them."""
    from vergence.utils.terminal import table

    rows = [
        [row["name"], f"{row['score']:.1f}", f"{row['p_value']:.2g}", row["level"], row["nearest"].partition("; ")[0]]
        for row in decisions.first
    ]
    table("the most unusual first", ["name", "score", "p", "level", "nearest typical item"], rows)
    for line in decisions.lines():
        print(line)
