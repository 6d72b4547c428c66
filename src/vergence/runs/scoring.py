"""A run's scores of items with decisions: what the calibration allows, the file, and what is worth looking at first."""

import hashlib
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vergence.data.builtin import part_named
from vergence.data.items import Items, PairItems
from vergence.detection import fpr_threshold, label_trim, needed_for_fpr, reportable, select, tail_p_values
from vergence.detection.conformal import TAIL
from vergence.runs.detector import RunDetector
from vergence.runs.findings import write_run_page
from vergence.runs.identity import of_module
from vergence.runs.levels import Found, collected
from vergence.runs.score import Decisions, write_scores
from vergence.training.calibration import FEWEST
from vergence.utils import terminal
from vergence.utils.checks import require_within
from vergence.utils.files import original, require_table

if TYPE_CHECKING:
    from vergence.runs.run import Run

SHOWN = 5  # calibration items

__all__ = ["overlap", "read_names", "require_apart", "require_calibration", "score_items"]


def score_items(
    run: "Run",
    items: Items,
    out: Path,
    *,
    fdr: float = 0.1,
    fpr: float | None = None,
    confidence: float = 0.95,
    calibration: Items | None = None,
    confirmed: list[str] | None = None,
    all_scores: bool = False,
    batch_size: int = 256,
    workers: int = 2,
) -> Decisions:
    """Writes what a run's detector says of each item, and returns what was decided. Notes are printed on stderr first.

    Args:
        run: The run.
        items: Items to score.
        out: ``.npz``, ``.csv`` or ``.parquet`` file.
        fdr: Share of the flagged items that is ordinary, on average at most, in (0, 1).
        fpr: Rate at which ordinary items are flagged, in (0, 1), instead of ``fdr``.
        confidence: Probability that the rate is at most ``fpr``, over calibration sets, in (0, 1).
        calibration: Ordinary items that calibrate instead of the run's own part.
        confirmed: Names of calibration items that a person looked at, the strangest ones first, and found odd; they are left out.
        all_scores: Whether the score of each level and every score of the objective's own are written, too.
        batch_size: Items at a time.
        workers: Processes that decode images.

    Raises:
        ValueError: There are too few calibration items, they are among the scored ones, or their scores are all equal; a setting
            is out of its range; no item could be read, or the file cannot be written.
    """
    require_table(out)
    require_within("(0, 1)", fdr=fdr)
    found, refused = run.detector(), None
    levels = found.of_batches(run.method, run.folder.metadata.shape)
    where: dict[str, Any] = {"batch_size": batch_size, "workers": workers, **run.where()}
    if calibration is not None:
        _require_enough(len(calibration), fpr, confidence)
        own = collected(levels, calibration, **where)
        found, refused = _calibrated(found, own, [calibration.names[i] for i in own.index.tolist()])
    if confirmed is not None:
        found = without_confirmed(found, confirmed)
    require_calibration(found.calibration)
    certificate = None if fpr is None else fpr_threshold(found.calibration, fpr, confidence)
    decisions = Decisions(len(found.calibration), fdr, certificate)
    for note in [*_before(run, found, items, decisions), *_odd_ones(found)]:
        print(note, file=sys.stderr)
    digest = hashlib.sha256(found.content()).hexdigest()
    job = {"job": "score", "model": of_module(run.method), "detector": digest, "fdr": fdr, "fpr": fpr or 0.0}
    job |= {"confidence": confidence, "all": all_scores, **run.recorded()}
    settings = {"levels": levels, "found": found, "decisions": decisions, "all_scores": all_scores, "refused": refused, **where}
    write_scores(run.method, items, out, job=job, **settings)
    write_run_page(Path(f"{out}.html"), decisions, items, name=out.stem)
    return decisions


def _calibrated(found: RunDetector, own: Found, names: list[str]) -> tuple[RunDetector, dict[Any, str]]:
    """Returns the detector with other calibration items, by their features and names, and these names by digest.

    Items that the run was fitted to or calibrated on are left out where enough others remain: their scores say nothing about new
    ones.
    """
    new = ~np.isin(own.digests, found.seen)
    if known := int((~new).sum()):
        words = f"{known:,} of {len(names):,} calibration items equal ones that the run was fitted to or calibrated on"
        if enough := int(new.sum()) >= FEWEST:
            print(f"warning: {words}; they are left out", file=sys.stderr)
        else:
            print(f"warning: {words}: scores of items of a fit say nothing about new ones; give others", file=sys.stderr)
        new = new if enough else np.ones_like(new)
    kept = [name for name, is_new in zip(names, new.tolist(), strict=True) if is_new]
    calibrated = found.with_calibration(found.scores(own.levels)[0][new], kept)
    return calibrated, dict(zip(own.digests.tolist(), names, strict=True))


def _require_enough(n: int, fpr: float | None = None, confidence: float = 0.95) -> None:
    """Raises a ValueError if n calibration items are too few, for a false-positive rate where one is given."""
    needed = FEWEST if fpr is None else max(FEWEST, needed_for_fpr(fpr, confidence))
    if n < needed:
        why = "" if fpr is None or needed == FEWEST else f" for a false-positive rate of {fpr:g} with {confidence:g} confidence"
        raise ValueError(f"expected at least {needed:,} calibration items{why}, found {n:,}; give more with --calibration DATA")


def without_confirmed(found: RunDetector, confirmed: list[str]) -> RunDetector:
    """Returns the detector without the calibration items that a person confirmed to be odd (Label-Trim).

    The person looks at the strangest calibration items; the last one confirmed says how many.

    Raises:
        ValueError: A name is not that of a calibration item.
    """
    place = {name: i for i, name in enumerate(found.names)}
    if unknown := [name for name in confirmed if name not in place]:
        raise ValueError(
            f"expected names of calibration items, found {len(unknown)} others (first: {unknown[0]}); write them as "
            f"in the column name of the scores of the calibration items"
        )
    if not confirmed:
        return found
    rows = np.array([place[name] for name in dict.fromkeys(confirmed)])
    budget = int((found.calibration >= found.calibration[rows].min()).sum())
    kept = label_trim(found.calibration, rows, budget)
    looked = f"the {budget:,} strangest calibration items" if budget > 1 else "the strangest calibration item"
    terminal.note(f"{len(rows):,} calibration items are left out; this is right if you looked at {looked}")
    out = set(rows.tolist())
    return replace(found, calibration=kept, names=[name for i, name in enumerate(found.names) if i not in out])


def read_names(file: Path) -> list[str]:
    """Returns the lines of a text file that are not empty, as names.

    A name may stand as in a ``.csv`` file of the library (`vergence.utils.files.neutral`).

    Raises:
        ValueError: The file cannot be read as text.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # a name may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"expected a text file with one name a line, cannot read {file}: {reason}") from None
    return [original(line.strip()) for line in lines if line.strip()]


def overlap(one: str, other: str) -> bool:
    """Returns whether two sources are one, or one lies within the other."""
    a, b = (Path(source).expanduser().resolve() for source in (one, other))
    if (named := part_named(one)) is not None and named == part_named(other):
        return True
    return one == other or (a.exists() and b.exists() and (a == b or a in b.parents or b in a.parents))


def require_apart(calibration: str, scored: str) -> None:
    """Raises a ValueError if two sources overlap."""
    if overlap(calibration, scored):
        raise ValueError(
            f"expected calibration items that are not among the scored ones, found {calibration} to overlap {scored}; give "
            f"ordinary items of another folder, or leave --calibration out"
        )


def require_calibration(scores: np.ndarray) -> None:
    """Raises a ValueError if calibration scores are too few, or all equal."""
    n = len(scores)
    _require_enough(n)
    if float(np.ptp(scores)) == 0:
        raise ValueError(
            f"expected calibration scores that differ, found {scores[0]:g} for all {n}; give items that differ, or train longer"
        )


def _odd_ones(found: RunDetector) -> list[str]:
    """Returns a line where calibration items look odd themselves, by the tail of the others.

    The tail is at most as light as exp(-s): scores are means of -log p over levels, and of `patches`, of which one level hardly
    varies, the bulk ends so early that a tail fitted to it would be too light.
    """
    s = found.calibration
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of p-values of a selection: these are all there are
            p = np.maximum(tail_p_values(s), np.minimum(1.0, TAIL * np.exp(np.quantile(s, 1 - TAIL) - s)))
            n = int(select(p, fdr=0.1).sum())
    except ValueError:  # too few, or without a tail
        return []
    order = np.argsort(-s, kind="stable")
    first = ", ".join(found.names[i] for i in order[: min(n, SHOWN)])
    some = "1 of the calibration items looks odd itself" if n == 1 else f"{n:,} of the calibration items look odd themselves"
    hides = f"note: {some}, which hides others like {'it' if n == 1 else 'them'}; look at"
    return [f"{hides} {first}: a file that names those that are odd, one a line, goes to --confirm"] if n else []


def _before(run: "Run", found: RunDetector, items: Items, decisions: Decisions) -> list[str]:
    """Returns what is to be known before the work starts."""
    lines = [f"warning: {note}" for note in found.notes]
    if items.conversion is not None:
        lines.append(f"note: images are changed from {items.conversion}, as the run reads them; what that hides is not judged")
    about = run.folder.metadata
    if len(about.shape) == 3 and about.read_shape[1] > about.shape[1]:
        share = about.shape[1] / about.read_shape[1]
        lines.append(
            f"note: the run sees the middle square of each image, {share:.0%} of the shorter side: the rest is not judged"
        )
    if isinstance(items, PairItems) and run.folder.metadata.kind == "pairs":
        lines.append("note: of these pairs the contexts alone are judged; --pairs judges each target given its context")
    if not found.held_out:
        gap = "" if found.gap is None else f"; of test items {found.gap:.1%} have p <= 0.05 instead of 5 %"
        lines.append(
            f"warning: {run.folder.path} kept no calibration part, so {len(found.calibration)} of the items that its encoder was "
            f"trained on calibrate{gap}: train with --calibration-share, or give --calibration DATA"
        )
    n_top = int((found.calibration == found.calibration.max()).sum())
    if n_top > max(2, len(found.calibration) / 100):
        lines.append(
            f"warning: {n_top:,} of {len(found.calibration):,} calibration items share the largest score, so that few items can "
            "be reported; give items that differ with --calibration DATA"
        )
    n = len(found.calibration)
    allowed = reportable(n, len(items), decisions.fdr) if decisions.certificate is None else decisions.certificate
    return [*lines, f"note: {allowed}"]
