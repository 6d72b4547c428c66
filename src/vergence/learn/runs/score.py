"""`score`: how anomalous is each item, compared with a run's calibration part, or with pairs.

Each reference is a small class that computes `Decisions`; `score` checks what is given and writes the page.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.items import Items, PairItems, batches
from vergence.data.pixels import center_crop
from vergence.data.sources import with_shape
from vergence.decide import explain, fpr_threshold, label_trim, needed_for_fpr, select, surprise, tail_p_values
from vergence.decide.conformal import TAIL, Certificate, counts_of, ranked
from vergence.decide.decisions import Decisions, Tally
from vergence.decide.page import write_decisions
from vergence.learn.methods.core import Method
from vergence.learn.objectives.core import ConditionalObjective
from vergence.learn.runs.calibrated import RunDetector
from vergence.learn.runs.detector import calibrating_pairs, opened
from vergence.learn.runs.features import RunFeatures
from vergence.learn.runs.rows import Columns, Images, Reading, collected, objective_scores, of_items, of_model, write_rows
from vergence.learn.runs.run import Run, objective_of
from vergence.learn.runs.shards import Counted, shard_written
from vergence.learn.training.calibration import FEWEST, digests
from vergence.report.rendering import require_page
from vergence.utils import terminal
from vergence.utils.checks import counted, expect, refuse, require_within, shown
from vergence.utils.digests import digest_of, of_array
from vergence.utils.files import as_path
from vergence.utils.parts import Shard, open_parts, require_table

__all__ = ["Calibration", "PairReference", "score"]

NOT_FINITE = "NaN or infinity among the values"
SHOWN = 5  # calibration items that are named
EXCESS = 0.5  # deviations beyond the quantile in which a Gaussian's tail falls to 1 / e
SAMPLES = 64  # of each conditional density
ADVICE = "; for a run's own data: vergence check DATA --encoder RUN"
CONDITIONAL = "target given context"  # the feature set of pairs


def score(
    images: Images,
    reference: "Calibration | PairReference | Run",
    out: str | Path | None = None,
    *,
    fdr: float = 0.1,
    name: str | None = None,
) -> Decisions:
    """Returns which items are anomalous; its ``sentences`` say what to be aware of.

    Given ``out``, finished parts of the work are kept next to it; the same call after a kill continues from them.

    Args:
        images: Items to score, as `Run` takes them.
        reference: What they are compared with: a run, by its calibration part; `Calibration`, for a run's other settings;
            or `PairReference`.
        out: ``.npz``, ``.csv`` or ``.parquet`` file to write; a page with images, ``OUT.html``, is written next to it. The result
            then holds the 48 most anomalous items; without a file it holds all, in their order.
        fdr: Share of false alarms among the flags, at most, on average over tables, in (0, 1).
        name: Name of the items, for the page; that of ``out`` by default.

    Raises:
        ValueError: A setting is out of its range, the items do not fit the run, or ``out`` cannot be written.

    Example:
        >>> import vergence
        >>> run = vergence.train(np.random.default_rng(0).normal(size=(300, 4)), objective="gje", epochs=1, device="cpu")
        >>> score(np.float32([[0, 0, 0, 1], [99, 99, 99, 99]]), run).flag.tolist()
        [False, True]
    """
    require_within("(0, 1)", fdr=fdr)
    reference = Calibration(reference) if isinstance(reference, Run) else reference
    expect(hasattr(reference, "decisions"), "a run as the reference", shown(reference), "open its folder with vergence.load")
    with tempfile.TemporaryDirectory() if out is None else nullcontext() as folder:
        table = as_path(out, "out") if folder is None else Path(folder) / "scores.npz"
        require_table(table, (images,), holds="p_value")
        require_page(Path(f"{table}.html"), (images,))
        items = reference.run.items(images)
        found = reference.decisions(items, table, fdr)
        if folder is None:
            write_decisions(Path(f"{table}.html"), found, name=name or table.stem, items=items)
        else:  # in the order of the items; of a file the most anomalous, since it can be larger than memory
            with np.load(table) as file:
                found = replace(found, columns={column: file[column].tolist() for column in found.columns})
    return found


@dataclass(frozen=True)
class Work:
    """What `Calibration` computes of items: columns of a batch; their job; n calibration items and their own counts; notes."""

    function: Callable[[Tensor], Columns]
    job: dict[str, Any]
    reading: Reading
    calibration: int
    own: np.ndarray
    certificate: Certificate | None
    notes: list[str]


@dataclass(frozen=True)
class Calibration:
    """The calibration part of a run, or other normal items: p-values hold for new items of the same source.

    Attributes:
        run: The run, whose detector scores.
        fpr: Rate at which normal items are flagged, in (0, 1), instead of the false-discovery rate.
        confidence: Probability that the rate is at most ``fpr``, over calibration sets, in (0, 1).
        calibration: Normal items that calibrate instead of the run's own part.
        confirmed: Names of the most anomalous calibration items that a person found to be anomalies; they are left out.
        all_scores: Whether the score of each feature set and every score of the objective's own are written, too.
        batch_size: Items at a time.
        workers: Processes that decode images.
    """

    run: Run
    fpr: float | None = None
    confidence: float = 0.95
    calibration: Images | None = None
    confirmed: Sequence[str] = ()
    all_scores: bool = False
    batch_size: int = 256
    workers: int = 2

    def decisions(self, items: Items, out: Path, fdr: float) -> Decisions:
        """Returns what the run's detector finds; its table is written row by row."""
        work = self.work(items, fdr)
        tally = Tally(work.calibration, fdr, work.certificate, own=work.own)
        write_rows(work.function, items, out, work.job, work.reading, derived=tally)
        return tally.found(ADVICE)

    def shard(self, items: Items, folder: Path, shard: Shard, fdr: float, about: Mapping[str, str], files: int = 0) -> int | None:
        """Writes a shard of the items, for ``vergence merge``; see `vergence.learn.runs.shards.shard_written`."""
        work = self.work(items, fdr)
        tally = Counted(work.calibration, fdr, work.certificate, own=work.own)

        def write(some: Items, file: Path) -> int:
            return write_rows(work.function, some, file, work.job, work.reading, derived=tally)

        kind: dict[str, Any] = {"verb": "score", "job": digest_of([json.dumps(work.job, sort_keys=True, default=str)]), **about}
        kind |= {"notes": work.notes, "advice": ADVICE}
        return shard_written(shard, folder, items, write, kind, batch_size=self.batch_size, tally=tally, files=files)

    def work(self, items: Items, fdr: float) -> Work:
        """Returns what is computed of the items, and prints notes."""
        run, reading = self.run, Reading(**self.run.where(), batch_size=self.batch_size, workers=self.workers)
        features_of = run.detector().of_batches(run.method, run.folder.metadata.shape)
        detector, refused = self._calibrated(features_of, reading)
        certificate = None if self.fpr is None else fpr_threshold(detector.calibration, self.fpr, self.confidence)
        n = len(detector.calibration)
        notes = _about_run(run, detector, items)
        notes += _suspects(detector.calibration, detector.names)
        if notes:
            print(terminal.wording("\n".join(notes)), file=sys.stderr)
        job: dict[str, Any] = {"job": "score", "fdr": fdr, "fpr": self.fpr or 0.0}
        job |= {"confidence": self.confidence, "all": self.all_scores, **of_model(run.folder, run.method)}
        job["detector"] = of_array(np.frombuffer(detector.content(), np.uint8))
        function = columns_of(run.method, features_of, detector, 1.0 if certificate else fdr, self.all_scores, refused)
        own = counts_of(ranked(detector.calibration, detector.calibration), n)
        return Work(function, job, reading, n, own, certificate, notes)

    def _calibrated(self, features_of: RunFeatures, reading: Reading) -> tuple[RunDetector, dict[int, str]]:
        """Returns the detector with the items that calibrate, and the names of given ones by digest: they cannot be scored."""
        detector, refused = self.run.detector(), {}
        if self.calibration is not None:
            items = self.run.items(self.calibration)
            require_calibration(len(items), None, self.fpr, self.confidence)
            given = collected(features_of, items, reading)
            refused = dict(zip(given.digests.tolist(), given.names, strict=True))
            new = _unseen(given.digests, detector.seen)
            names = [given.names[i] for i in np.flatnonzero(new)]
            deviations = detector.deviations_of(given.features)[new]
            detector = replace(detector, deviations=deviations, names=names, held_out=True, gap=None)
        if self.confirmed:
            detector = _without_confirmed(detector, self.confirmed)
        require_calibration(len(detector.calibration), detector.calibration)
        return detector, refused


@dataclass(frozen=True)
class PairReference:
    """Calibration pairs of a run that was trained on pairs: how anomalous is each target, given its context.

    The score is `vergence.decide.surprise` of the target's embedding under the run's p(z_b | z_a).

    Attributes:
        run: The run, with an objective that has a conditional density.
        batch_size: Pairs at a time.
    """

    run: Run
    batch_size: int = 256

    def decisions(self, items: Items, out: Path, fdr: float) -> Decisions:
        """Returns which pairs are anomalous; their table is written row by row."""
        run, size = self.run, self.batch_size
        given = _as_pairs(run, items)
        has, objective = isinstance(run.method.objective, ConditionalObjective), run.folder.config.model.objective
        advice = "train again with `objective='gje'`, or `objective='gmje'` where a context has several answers"
        expect(has, "a run with p(target | context) for `pairs=True`", f"objective '{objective}', which has none", advice)
        data = opened(run.folder)
        pairs = calibrating_pairs(run.folder, data)
        what, n = f"a run with at least {FEWEST} calibration pairs", 0 if pairs is None else len(pairs)
        expect(n >= FEWEST, f"{what}, of contexts and targets of their own", n, "train with `calibration_share`")
        assert pairs is not None and data.calibration is not None
        calibration = pair_scores(run, _as_pairs(run, pairs), size)
        require_calibration(len(calibration), calibration)
        tally = Tally(n, fdr, own=counts_of(ranked(calibration, calibration), n))
        fitted_to = np.unique(np.concatenate([_digests_of_pairs(part) for part in (data.train, data.calibration)]))
        job: dict[str, Any] = {"job": "score pairs", "fdr": fdr, "batch_size": size}
        job |= {"calibration": of_array(calibration), "source": of_items(given), **of_model(run.folder, run.method)}
        with open_parts(out, job, derived=tally) as kept, terminal.bar(out.name, len(given)) as advance:
            advance(kept.done)
            for start in range(kept.done, len(given), size):
                part = given.subset(torch.arange(start, min(start + size, len(given))))
                total = pair_scores(run, part, size)
                columns: Columns = {"name": list(part.names), "score": total, "p_value": ranked(calibration, total)}
                columns |= {"feature_set": [CONDITIONAL] * len(part), "nearest": [""] * len(part), "reason": [""] * len(part)}
                columns["seen"] = np.isin(_digests_of_pairs(part), fitted_to).astype(np.uint8)
                kept.append(columns, len(part))
                advance(len(part))
        return tally.found()


def columns_of(
    method: Method, features_of: RunFeatures, detector: RunDetector, limit: float, all_scores: bool, refused: Mapping[int, str]
) -> Callable[[Tensor], Columns]:
    """Returns the function of a batch of items that computes what is written of each.

    The method is in evaluation mode. ``limit`` is the p-value up to which nearest normal items and a reason are given;
    ``all_scores`` adds each feature set's score and every score of the objective's own, whose ``score`` becomes ``own_score``;
    ``refused`` are names of items that must not be among those that are scored, by their digests.
    """

    def function(x: Tensor) -> Columns:
        lost = ~(x.isfinite().all(1).cpu().numpy() if x.ndim == 2 else np.ones(len(x), dtype=bool))
        features = features_of(torch.where(torch.from_numpy(lost).to(x.device)[:, None], 0, x) if lost.any() else x)
        each = detector.deviations_of(features)
        total, own = detector.sets.combined(each), digests(x)
        if equal := [refused[one] for one in own.tolist() if one in refused] if refused else []:
            also = f" and {len(equal) - 1:,} more among {len(own):,} items" if len(equal) > 1 else ""
            expected = "calibration items that are not among the scored ones"
            refuse(expected, f"an equal one of {equal[0]}{also}", "leave such items out of `calibration`")
        total[lost], p = np.nan, ranked(detector.calibration, total)
        p[lost] = np.nan
        written = {"score": total, "p_value": p, **_explained(detector, features["z"], each, p <= limit)}
        written["seen"] = np.isin(own, detector.seen).astype(np.uint8)
        if x.ndim == 2:
            written["error"] = np.where(lost, NOT_FINITE, "").tolist()
        if all_scores:
            written |= {f"feature_set_{name}": each[:, i] for i, name in enumerate(detector.feature_sets)}
            scores = objective_scores(method, features["z"])
            written |= {f"own_{name}" if name in written else name: value for name, value in scores.items()}
        return written

    return function


def _explained(detector: RunDetector, z: Tensor, each: np.ndarray, rare: np.ndarray) -> dict[str, list[str]]:
    """Returns each item's feature set of largest deviation and, of anomalies, the nearest normal items and a reason."""
    names = np.asarray(detector.feature_sets)
    nearest, reason = ([""] * len(each) for _ in range(2))
    rows = np.flatnonzero(rare)
    similar = detector.nearest(z[torch.from_numpy(rows)].float().cpu().numpy())
    why = explain(names.tolist(), detector.p_values_by_set(each[rows]), len(detector.calibration))
    for i, near, text in zip(rows, similar, why, strict=True):
        nearest[i], reason[i] = near, text
    return {"feature_set": names[each.argmax(1)].tolist(), "nearest": nearest, "reason": reason}


def _unseen(given: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Returns which calibration items to use, by digests: not those of the fit or the calibration, if enough others remain."""
    new = ~np.isin(given, seen)
    if equal := int((~new).sum()):
        words = f"{equal:,} of {len(given):,} calibration items equal ones that the run was fitted to or calibrated on"
        enough = int(new.sum()) >= FEWEST
        what = "; they are left out" if enough else "; their scores say nothing about new items: give others"
        print(f"warning: {words}{what}", file=sys.stderr)
        return new if enough else np.ones_like(new)
    return new


def require_calibration(n: int, scores: np.ndarray | None = None, fpr: float | None = None, confidence: float = 0.95) -> None:
    """Raises a ValueError if n calibration items are too few, for a false-positive rate where it is given, or scores equal."""
    needed = FEWEST if fpr is None else max(FEWEST, needed_for_fpr(fpr, confidence))
    why = "" if needed == FEWEST else f" for a false-positive rate of {fpr:g} with {confidence:g} confidence"
    expect(n >= needed, f"at least {needed:,} calibration items{why}", f"{n:,}", "give more with `calibration=DATA`")
    if scores is not None:
        equal = f"{scores[0]:g} for all {n}"
        expect(np.ptp(scores) > 0, "calibration scores that differ", equal, "give items that differ, or train longer")


def _without_confirmed(detector: RunDetector, confirmed: Sequence[str]) -> RunDetector:
    """Returns the detector without the most anomalous calibration items that a person confirmed (Label-Trim)."""
    position = {name: i for i, name in enumerate(detector.names)}
    if others := [name for name in confirmed if name not in position]:
        advice = "write them as in the column name of the scores of the calibration items"
        refuse("names of calibration items", f"{len(others)} others (first: {others[0]})", advice)
    rows = np.array([position[name] for name in dict.fromkeys(confirmed)])
    budget = int((detector.calibration >= detector.calibration[rows].min()).sum())
    label_trim(detector.calibration, rows, budget)  # raises where others than the most anomalous are named
    terminal.note(f"{counted(len(rows), 'calibration item')} left out; look at the {budget:,} with the largest scores")
    kept = np.setdiff1d(np.arange(len(detector.names)), rows)
    return replace(detector, deviations=detector.deviations[kept], names=[detector.names[i] for i in kept.tolist()])


def _about_run(run: Run, detector: RunDetector, items: Items) -> list[str]:
    """Returns notes on the run and on how it reads the items."""
    notes = [f"warning: {note}" for note in detector.notes]
    about = run.folder.metadata
    if len(about.shape) == 3 and about.read_shape[1] > about.shape[1]:
        share = about.shape[1] / about.read_shape[1]
        notes.append(f"note: the run sees the central square of each image, {share:.0%} of the shorter side".replace("%", " %"))
    if isinstance(items, PairItems) and about.kind == "pairs":
        notes.append("note: only the contexts of these pairs are scored; `pairs=True` scores each target given its context")
    if not detector.held_out:
        gap = "" if detector.gap is None else f"; {100 * detector.gap:.1f} % of test items have p <= 0.05 instead of 5 %"
        notes.append(
            f"warning: {run.folder.path} has no calibration part, so {len(detector.calibration)} training items calibrate{gap}: "
            "train with `calibration_share`, or give `calibration=DATA`"
        )
    n_top = int((detector.calibration == detector.calibration.max()).sum())
    if n_top > max(2, len(detector.calibration) / 100):
        notes.append(
            f"warning: {n_top:,} of {len(detector.calibration):,} calibration items share the largest score, so few items can be "
            "flagged; give items that differ with `calibration=DATA`"
        )
    return notes


def _suspects(scores: np.ndarray, names: Sequence[str]) -> list[str]:
    """Returns a line where calibration items seem to be anomalies, by the tail of the others."""
    # The tail is at most as light as a Gaussian's: where one feature set hardly varies, the bulk ends so early that a tail fitted
    # to it would be too light.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of p-values of a selection: these are all there are
            gaussian = np.minimum(1.0, TAIL * np.exp((np.quantile(scores, 1 - TAIL) - scores) / EXCESS))
            n = int(select(np.maximum(tail_p_values(scores), gaussian), fdr=0.1).sum())
    except ValueError:  # too few, or without a tail
        return []
    order = np.argsort(-scores, kind="stable")
    first = ", ".join(names[i] for i in order[: min(n, SHOWN)])
    found = f"note: {counted(n, 'calibration item')} may be anomalies, which hides similar ones: {first}. "
    return [f"{found}Look at them, and give `confirm` a file that names the anomalies, one per line"] if n else []


def _as_pairs(run: Run, items: Items) -> PairItems:
    both = run.folder.metadata.kind == "pairs" and isinstance(items, PairItems)
    expect(both, "a run that was trained on pairs, and pairs to score (arrays context and target)", "others")
    assert isinstance(items, PairItems)
    return PairItems(items.context, with_shape(items.target, run.folder.metadata.item_shape("target"), "the targets"))


def _digests_of_pairs(pairs: Items) -> np.ndarray:
    sides_of = (sides for _, sides in pairs.stream(batches(len(pairs), 1024)))
    parts = [digests(torch.cat([side.flatten(1).float() for side in sides], 1)) for sides in sides_of]
    return np.concatenate([np.zeros(0, dtype=np.uint64), *parts])


@torch.inference_mode()
def pair_scores(run: Run, pairs: PairItems, batch_size: int = 256) -> np.ndarray:
    """Returns how anomalous the target of each pair is, given its context, (N,)."""
    objective: ConditionalObjective = objective_of(run, ConditionalObjective)
    networks = run.method.branch("context").eval(), run.method.target_network().eval()
    sizes = run.where("context")["size"], run.where("target")["size"]
    parts = [np.zeros(0)]
    for _, sides in pairs.stream(batches(len(pairs), batch_size)):
        za, zb = (
            net(x.to(run.device) if size is None or x.ndim != 4 else center_crop(x.to(run.device), size)).float()
            for net, x, size in zip(networks, sides, sizes, strict=True)
        )
        density = objective.conditional(run.to_device(za))
        parts.append(surprise(density, run.to_device(zb), SAMPLES).cpu().double().numpy())
    return np.concatenate(parts)
