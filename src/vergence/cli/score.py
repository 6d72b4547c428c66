"""``vergence score``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.cli.use import print_written, write_shard
from vergence.utils import terminal
from vergence.utils.checks import expect
from vergence.utils.files import require_apart

if TYPE_CHECKING:
    from vergence.decide.decisions import Decisions
    from vergence.learn.runs.run import Run
    from vergence.learn.runs.score import Calibration

FDR, CONFIDENCE = 0.1, 0.95
SHOWN = 10  # items that are printed


@dataclass(kw_only=True)
class Score:
    """Score items with a run: how anomalous is each one, with a p-value and a flag.

    For images or vectors without a run, and for a run's own data, use ``vergence check``.
    """

    run: options.RunFolder
    images: Annotated[Positional[str], arg(metavar="IMAGES", help=options.ANY_SOURCE)]
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: scores-IMAGES.csv)")] = None
    """File to write: .npz, .csv or .parquet. A page with images is written next to it, OUT.html."""
    fdr: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="(default: 0.1)")] = None
    """Largest share of false alarms among the flags, on average over tables."""
    fpr: Annotated[float | None, arg(metavar="RATE", help_behavior_hint="(default: flag by --fdr)")] = None
    """Instead, flag at most this share of normal items, with --confidence."""
    confidence: Annotated[float | None, arg(metavar="P", help_behavior_hint="(default: 0.95)")] = None
    """Probability that --fpr holds for the calibration items."""
    calibration: Annotated[str | None, arg(metavar="DATA", help_behavior_hint="(default: the run's own part)")] = None
    """Normal items for the calibration; any source without items of IMAGES."""
    confirm: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Text file with the names of calibration items that are anomalies, one per line; they are left out."""
    fail_on: options.FailOn = None
    """Exit with code 1, with all results written, if there are any: flagged, shift, errors, several with commas, or any."""
    all_scores: bool = False
    """Also write the score of each feature set, and every score of the objective's own."""
    pairs: bool = False
    """Score the target of each pair given its context, p(target | context), with a run that was trained on pairs."""
    data_root: options.DataRoot = None
    batch_size: options.BatchSize = 256
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False
    shard: options.ShardOf = None


APART = ("--fpr", "--calibration", "--confirm", "--all-scores", "--shard")  # options that --pairs excludes


def score(command: Score) -> None:
    """Runs ``vergence score``."""
    from vergence.learn.runs.run import load
    from vergence.learn.runs.score import PairReference
    from vergence.learn.runs.score import score as score_items
    from vergence.utils.parts import read_names

    _require_suitable(command)
    failing = options.failing(command.fail_on, options.OF_DECISIONS)
    out = command.out or Path(f"scores-{options.stem(command.images)}.csv")
    fdr = FDR if command.fdr is None else command.fdr
    confirmed = () if command.confirm is None else read_names(command.confirm)
    if command.calibration is not None:
        _require_apart(command.calibration, command.images)
    run = load(command.run, device=command.device, trust_code=command.trust_code)
    if command.shard is not None:
        by = _reference(command, run, confirmed)
        return write_shard(command, run, "scores", lambda items, folder, of: by.shard(items, folder, fdr=fdr, **of))
    items = run.items(command.images, root=command.data_root, gaps=True)
    reference = PairReference(run, command.batch_size) if command.pairs else _reference(command, run, confirmed)
    found = score_items(items, reference, out, fdr=fdr)
    _show(found)
    print_written(out, found.rows, page=True)
    print(f"next: open {out}.html")
    options.stop_on({name: options.OF_DECISIONS[name](found) for name in failing})


def _require_suitable(command: Score) -> None:
    """Raises a ValueError where options exclude each other."""
    rate, gate = command.fpr is not None, command.fail_on is None or command.shard is None
    expect(gate, "--fail-on without --shard, since decisions need all parts", "both", "leave one out")
    expect(rate or command.confidence is None, "--fpr with --confidence", "none", "add --fpr RATE, or leave --confidence out")
    expect(not rate or command.fdr is None, "--fdr or --fpr", "both", "leave one out")
    for option in APART if command.pairs else ():
        given = getattr(command, option[2:].replace("-", "_")) not in (None, False)
        expect(not given, f"--pairs without {option}", "both", "leave one out")


def _require_apart(reference: str, scored: str) -> None:
    """Raises a ValueError if two sources are one, or one lies within the other."""
    from vergence.data.sources import part_named

    what = "calibration items that are not among the scored ones"
    advice = "give normal items of another folder, or leave --calibration out"
    same = reference == scored or (part_named(reference) or 0) == (part_named(scored) or 1)
    expect(not same, what, f"{reference} and {scored}", advice)
    require_apart(Path(reference), (scored,), inside=True, around=True, what=what, advice=advice)


def _reference(command: Score, run: "Run", confirmed: Sequence[str]) -> "Calibration":
    from vergence.learn.runs.score import Calibration

    confidence = CONFIDENCE if command.confidence is None else command.confidence
    own = None if command.calibration is None else run.items(command.calibration, root=command.data_root)
    return Calibration(run, command.fpr, confidence, own, confirmed, command.all_scores, command.batch_size)


def _show(found: "Decisions") -> None:
    """Prints what was found, and the most anomalous items without columns that are empty."""
    for line in found.sentences:
        print(line)
    rows = found.most_anomalous(SHOWN)
    columns = {"name": "name", "score": "score", "p": "p_value", "feature set": "feature_set", "nearest": "nearest"}
    shown: dict[str, Callable[[Any], str]] = {"p_value": "{:.2g}".format, "score": lambda score: terminal.number(score, ".1f")}
    shown["nearest"] = lambda names: str(names).partition("; ")[0]
    filled = {title: name for title, name in columns.items() if any(str(row[name]) for row in rows)}
    table = [[shown.get(name, str)(row[name]) for name in filled.values()] for row in rows]
    if rows:
        terminal.table("The most anomalous:", list(filled), table)
