"""``vergence score``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vergence.cli import options
from vergence.cli.use import print_written
from vergence.utils import terminal

if TYPE_CHECKING:
    from vergence.data.items import Items
    from vergence.runs.folder import Judged
    from vergence.runs.run import Run
    from vergence.runs.score import Decisions

__all__ = ["Score", "score"]


@dataclass(kw_only=True)
class Score:
    """Write how anomalous each item is, with a p-value and a flag; larger is more anomalous.

    RUN IMAGES scores images by a run. FOLDER alone, or RUN alone for the data that it was trained on, is judged by itself: no
    reference is needed, and oddities may be among the items.
    """

    run: Annotated[Positional[str], arg(metavar="RUN|FOLDER")]
    """Run folder; or, without IMAGES, any source that train takes."""
    images: Annotated[Positional[str | None], arg(metavar="[IMAGES]", help_behavior_hint="")] = None
    """Any source that train takes; of a built-in name the test part is read (cifar10:train reads the other)."""
    out: Path
    """File to write: .npz, .csv or .parquet. A page with pictures is written beside it, OUT.html."""
    fdr: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="(default: 0.1)")] = None
    """Share of the flagged items that is ordinary, on average at most."""
    fpr: Annotated[float | None, arg(metavar="RATE", help_behavior_hint="(default: flag by --fdr)")] = None
    """Flag at most this share of ordinary items, with --confidence, instead."""
    confidence: Annotated[float | None, arg(metavar="P", help_behavior_hint="(default: 0.95)")] = None
    """Probability that --fpr holds, over calibration parts."""
    calibration: Annotated[str | None, arg(metavar="DATA", help_behavior_hint="(default: the run's own part)")] = None
    """Ordinary items that calibrate, none of them among IMAGES; any source."""
    confirm: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Text file with the names, one a line, of calibration items (of FOLDER: of any items) that you looked at and found odd."""
    leaks_from: Annotated[str | None, arg(metavar="DATA", help_behavior_hint="")] = None
    """Other items, such as those of a training: says which of FOLDER's are copies or near-duplicates of them; any source."""
    all_scores: bool = False
    """Also write the score of each level, and every score of the objective's own."""
    pairs: bool = False
    """Judge the target of each pair given its context, p(target | context), by a run that was trained on pairs."""
    data_root: options.DataRoot = None
    batch_size: int = 256
    """Items at a time."""
    device: options.Device = "auto"
    threads: options.Threads = None
    trust_code: options.TrustCode = False


def score(command: Score) -> None:
    """Runs ``vergence score``."""
    from vergence.runs.scoring import read_names

    if command.fpr is None and command.confidence is not None:
        raise ValueError("expected --fpr with --confidence, found none; add --fpr RATE, or leave --confidence out")
    if command.fpr is not None and command.fdr is not None:
        raise ValueError("expected --fdr or --fpr, found both; leave one out")
    confirmed = None if command.confirm is None else read_names(command.confirm)
    found = _by_itself(command, confirmed) if command.images is None else _by_run(command, command.images, confirmed)
    _show(found)


def _by_run(command: Score, images: str, confirmed: list[str] | None) -> "Decisions":
    from vergence.runs.run import load
    from vergence.runs.scoring import require_apart, score_items

    if command.leaks_from is not None:
        raise ValueError(f"expected FOLDER alone with --leaks-from, found {command.run} and {images}; leave one out")
    if command.calibration is not None:
        require_apart(command.calibration, images)
    run = load(Path(command.run), device=command.device, trust_code=command.trust_code)
    items = run.items(images, root=command.data_root)
    if command.pairs:
        return _of_pairs(command, run, items, confirmed)
    given = None if command.calibration is None else run.items(command.calibration, root=command.data_root)
    settings: dict[str, Any] = {**_rates(command), "fpr": command.fpr}
    settings |= {"all_scores": command.all_scores, "batch_size": command.batch_size}
    found = score_items(run, items, command.out, calibration=given, confirmed=confirmed, **settings)
    print_written(command.out, found.rows, page=True)
    return found


def _of_pairs(command: Score, run: "Run", items: "Items", confirmed: list[str] | None) -> "Decisions":
    from vergence.runs.pairs import score_pairs

    wrong = {"--fpr": command.fpr is not None, "--calibration": command.calibration is not None}
    wrong |= {"--confirm": confirmed is not None, "--all-scores": command.all_scores}
    if given := [name for name, used in wrong.items() if used]:
        raise ValueError(f"expected --pairs without {given[0]}, found both; leave one out")
    found = score_pairs(run, items, command.out, batch_size=command.batch_size, **_rates(command))
    print_written(command.out, found.rows, page=True)
    return found


def _by_itself(command: Score, confirmed: list[str] | None) -> "Judged":
    from vergence.data.sources import BUILT_IN
    from vergence.runs.folder import score_folder
    from vergence.runs.run import load

    wrong = {"--fpr": command.fpr is not None, "--calibration": command.calibration is not None}
    wrong |= {"--all-scores": command.all_scores, "--pairs": command.pairs}
    if given := [name for name, used in wrong.items() if used]:
        raise ValueError(f"expected RUN IMAGES with {given[0]}, found {command.run} alone; name the items to score, too")
    run = None
    source = command.run
    if (Path(source) / "config.json").is_file():
        run = load(Path(source), device=command.device, trust_code=command.trust_code)
        data = run.folder.config.data
        if data.keep_classes is not None or data.limit is not None:
            terminal.note("every item of the run's data is judged, those that it was not trained on, too")
        source = f"{data.source}:train" if data.source in BUILT_IN else data.source
    settings: dict[str, Any] = {"confirmed": confirmed, "leaks_from": command.leaks_from, "root": command.data_root}
    found = score_folder(source, command.out, run=run, **_rates(command), **settings)
    print_written(command.out, len(found.names), page=True)
    return found


def _rates(command: Score) -> dict[str, Any]:
    """Returns the rates that are given; for the others the functions have their own."""
    given = {"fdr": command.fdr, "confidence": command.confidence}
    return {name: value for name, value in given.items() if value is not None}


def _show(found: "Decisions | Judged") -> None:
    """Prints the strangest items and what to do with them; without a column that is empty."""
    from vergence.utils.terminal import table

    columns = {"name": "name", "score": "score", "p": "p_value", "level": "level", found.near: "nearest"}
    shown: dict[str, Callable[[Any], str]] = {"score": "{:.1f}".format, "p_value": "{:.2g}".format}
    shown["nearest"] = lambda names: str(names).partition("; ")[0]
    kept = {title: name for title, name in columns.items() if any(str(row[name]) for row in found.first)}
    rows = [[shown.get(name, str)(row[name]) for name in kept.values()] for row in found.first]
    table("the most unusual first", list(kept), rows)
    for line in found.lines():
        print(line)
