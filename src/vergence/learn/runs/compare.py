"""`compare`: several runs in one table, mean and deviation over seeds, and differences with paired intervals."""

import importlib.util
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from vergence.learn.runs.evaluate import VOTERS, evaluate
from vergence.learn.runs.run import Run, load
from vergence.learn.training.records import Evaluation
from vergence.utils.checks import expect, require_choice
from vergence.utils.terminal import Tabular

__all__ = ["Comparison", "compare"]

# Settings that do not tell runs apart: where things are, what computes, and how often it looks.
APART = ("seed", "device", "threads", "workers", "checkpoint_seconds", "knn_every", "strict", "root", "download")
DIGESTS = ("code", "training_items", "test_items")  # settings that names have only where others do not tell rows apart
MEASURES = ("knn", "probe", "effective_rank", "auroc", "seconds")
OUTSIDE = re.compile(r"^[\w.]+:(?=[\w.<>]+([#~]\w+)?$)|#\w+$|(?<=~)\w+$")  # what surrounds the name of code outside the library
DRAWS, ENDS = 10_000, (0.025, 0.975)  # of the bootstrap


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """A row for each setting, over the seeds that were trained.

    Measures are ``knn`` and ``probe``, accuracies of the embedding in [0, 1]; ``effective_rank``; ``auroc`` of the classes that
    training left out; and ``seconds`` of the training.

    Attributes:
        name: What tells the setting from the others: objective or method, and the settings that differ.
        runs: Number of its runs.
        values: Of each measure that was taken, one for each run.
        test: Test items: only rows of the same ones can be compared.
        train: Number of training items, those kept for calibration included.
        curve: The setting but for the number of training items.
        difference: Of knn and probe: difference to the row that is compared with, and the ends of its interval of 95 %.
        baseline: Name of the row that is compared with; empty for none.
        notes: What the numbers do not show.
    """

    name: list[str]
    runs: list[int]
    values: list[dict[str, list[float]]]
    test: list[str]
    train: list[int]
    curve: list[str]
    difference: list[dict[str, tuple[float, float, float]]]
    baseline: list[str]
    notes: list[str] = field(default_factory=list)
    shares: ClassVar[tuple[str, ...]] = ("knn", "probe", "auroc")

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns mean and deviation of each measure, and differences with their intervals, as columns; None for none."""
        columns: dict[str, list[Any]] = {"name": self.name, "test": self.test, "train": self.train, "runs": self.runs}
        for key in (key for key in MEASURES if any(key in row for row in self.values)):
            columns[key] = [statistics.fmean(row[key]) if key in row else None for row in self.values]
            deviations = [statistics.stdev(row[key]) if len(row.get(key, ())) > 1 else None for row in self.values]
            columns[f"{key}_deviation"] = deviations
            if any(key in row for row in self.difference):
                for i, end in enumerate(("difference", "low", "high")):
                    columns[f"{key}_{end}"] = [row[key][i] if key in row else None for row in self.difference]
        return columns

    def plot(self, measure: str = "knn", ax: Any = None) -> Any:
        """Draws one measure on matplotlib's axes, by default new ones, which are returned.

        There is a point for each run, and a line for mean and deviation of each setting. Where settings differ in the number of
        training items alone, that number is the horizontal axis, and a line joins their means: a learning curve.
        """
        there = importlib.util.find_spec("matplotlib") is not None
        expect(there, "matplotlib for a figure", "none", "install vergence[figures]")
        import matplotlib.pyplot as plt

        measured = [key for key in MEASURES if any(key in row for row in self.values)]
        require_choice("measure", measure, measured)
        curves = len(set(self.curve)) < len(self.curve)
        size = (6, 4) if curves else (6, 1 + 0.4 * len(self.name))
        ax = plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax
        (self._draw_curves if curves else self._draw_rows)(measure, measure.replace("_", " "), ax)
        return ax

    def _draw_rows(self, measure: str, label: str, ax: Any) -> None:
        for i, row in enumerate(self.values):
            if values := row.get(measure, []):
                reach = statistics.stdev(values) if len(values) > 1 else 0.0
                ax.errorbar(statistics.fmean(values), i, xerr=reach, fmt="none", ecolor="0.4", capsize=4)
                ax.plot(values, [i] * len(values), "o", alpha=0.7)
        ax.set_yticks(range(len(self.name)), self.name)
        ax.invert_yaxis()
        ax.set_xlabel(label)

    def _draw_curves(self, measure: str, label: str, ax: Any) -> None:
        for j, curve in enumerate(dict.fromkeys(self.curve)):
            own = [(self.train[i], row.get(measure, [])) for i, row in enumerate(self.values) if self.curve[i] == curve]
            own = sorted(point for point in own if point[1])
            ax.plot([n for n, _ in own], [statistics.fmean(values) for _, values in own], color=f"C{j}", label=curve)
            ax.plot([n for n, values in own for _ in values], [v for _, values in own for v in values], "o", color=f"C{j}")
        ax.set(xscale="log", xlabel="training items", ylabel=label)
        ax.set_xticks(sorted(set(self.train)), sorted(set(self.train)))
        ax.minorticks_off()
        ax.legend()


class _One(NamedTuple):
    """A run with its evaluation, and what tells it from others but for the seed."""

    run: Run
    record: Evaluation
    settings: dict[str, Any]
    test: str  # its test items
    seed: int


Row = list[_One]  # the runs of one setting, by seed


def compare(runs: Sequence[Run | str | Path], *, probes: bool = True, baseline: str | None = None) -> Comparison:
    """Returns the evaluations of runs side by side; a run without one is evaluated first.

    Runs are one row where all but the seed is equal: the content of the training and the test items, every setting, and the code
    of functions and networks of one's own. The difference of a row to a chosen one has an interval of 95 % by the bootstrap over
    test items, where both have the same test items and the same seeds: items are drawn again, all seeds together.

    Args:
        runs: Runs, or their folders.
        probes: Whether runs that are evaluated now get linear probes.
        baseline: Name of the row that others are compared with; by default the first one of each set of test items.

    Raises:
        ValueError: There is no run, one is not finished, or no row has the name ``baseline``.

    Example:
        >>> import vergence
        >>> run = vergence.train(np.random.default_rng(0).normal(size=(300, 4)), objective="gje", epochs=1, device="cpu")
        >>> compare([run], probes=False).name
        ['gje']
    """
    opened = [run if isinstance(run, Run) else load(run, device="cpu") for run in runs]
    expect(opened, "at least 1 run", "none")
    found = [_one(run, probes) for run in {run.folder.path.resolve(): run for run in opened}.values()]
    tests = [one.test for one in found]
    groups: dict[str, Row] = {}
    for one in sorted(found, key=lambda one: tests.index(one.test)):
        groups.setdefault(json.dumps(one.settings, sort_keys=True, default=repr), []).append(one)
    rows = [sorted(row, key=lambda one: one.seed) for row in groups.values()]
    names = _names(rows, *DIGESTS)
    names = names if len(set(names)) == len(names) else _names(rows)
    require_choice("baseline", names[0] if baseline is None else baseline, names)
    bases = {row[0].test: (row, name) for row, name in [*zip(rows, names, strict=True)][::-1] if baseline in (None, name)}
    based = [bases.get(row[0].test, (None, ""))[0] for row in rows]
    measured = [[_measures(one.run, one.record) for one in row] for row in rows]
    return Comparison(
        name=names,
        runs=[len(row) for row in rows],
        values=[{key: [one[key] for one in row if key in one] for key in MEASURES if key in row[0]} for row in measured],
        test=[row[0].test for row in rows],
        train=[row[0].record.protocol.bank for row in rows],
        curve=_names(rows, "limit", "training_items"),
        difference=[_differences(row, base) for row, base in zip(rows, based, strict=True)],
        baseline=[bases.get(row[0].test, (None, ""))[1] for row in rows],
        notes=_notes(rows, names, based),
    )


def _one(run: Run, probes: bool) -> _One:
    """Returns a run with its evaluation; one that says nothing of its test items is made again."""
    record = run.folder.evaluation()
    if record is None or not record.protocol.test_content:
        record = evaluate(run, probes=probes or (record is not None and record.representations["z"].probe is not None))
    config, model = run.folder.config, run.folder.config.model
    parts = config.to_dict()
    flat = {key: value for part in ("data", "views", "model", "fit") for key, value in parts[part].items() if key not in APART}
    options = flat.pop("options")
    encoders = {key: getattr(model, key) for key in ("encoder", "target_encoder", "distill")}
    unknown = f"not recorded, {run.folder.path}" if model.outside or config.views.function else ""
    about = {"source": config.data.title, "code": "-".join(run.folder.metadata.code) or unknown}
    about["function"] = re.sub(r"#\w+", "", config.views.function or "")  # an object's name has its address; its code is compared
    digests = {"training_items": record.protocol.content, "test_items": record.protocol.test_content}
    test = f"{about['source']}, {record.protocol.test:,} test items ({record.protocol.test_content})"
    return _One(run, record, flat | options | encoders | about | digests, test, config.fit.seed)


def _names(rows: Sequence[Row], *without: str) -> list[str]:
    """Returns objective or method of each row, and the settings in which rows of the same one differ, but for some."""
    each = [row[0].settings for row in rows]
    heads = [str(one["method"] or one["objective"]).rpartition(":")[2] for one in each]
    found = []
    for head, own in zip(heads, each, strict=True):
        same = [one for name, one in zip(heads, each, strict=True) if name == head]
        keys = dict.fromkeys(key for one in same for key in one if key not in without)
        differ = {key.replace("_", " "): own.get(key) for key in keys if len({repr(one.get(key)) for one in same}) > 1}
        texts = [f"no {key}" if value is None else f"{key} {OUTSIDE.sub('', str(value))}" for key, value in differ.items()]
        found.append(", ".join([head, *texts]))
    return found


def _right(row: Row, measure: str) -> Any:
    """Returns which test items each run is right about, (runs, M); None where that was not kept."""
    kept = [bytes.fromhex(one.record.representations["z"].right.get(measure, "")) for one in row]
    n = row[0].record.protocol.labeled
    return np.stack([np.unpackbits(np.frombuffer(bits, np.uint8), count=n) for bits in kept]) * 1.0 if all(kept) else None


def _differences(row: Row, base: Row | None) -> dict[str, tuple[float, float, float]]:
    """Returns the difference to another row with the same seeds and test items, and its interval, of each measure of items."""
    found: dict[str, tuple[float, float, float]] = {}
    if base is None or base is row or [one.seed for one in row] != [one.seed for one in base]:
        return found
    for measure in ("knn", "probe"):
        own, other = _right(row, measure), _right(base, measure)
        if own is not None and other is not None:
            each, times = np.unique((own - other).mean(0), return_counts=True)
            n = times.sum()
            low, high = np.quantile(np.random.default_rng(0).multinomial(n, times / n, DRAWS) @ each / n, ENDS)
            found[measure] = float((own - other).mean()), float(low), float(high)
    return found


def _notes(rows: Sequence[Row], names: Sequence[str], based: Sequence[Row | None]) -> list[str]:
    """Returns what the numbers of a comparison do not show."""
    several = len({row[0].test for row in rows}) > 1
    notes = ["settings on different test items cannot be compared"] if several else []
    pairs = [(name, row, base) for name, row, base in zip(names, rows, based, strict=True) if base and base is not row]
    others = [name for name, row, base in pairs if [one.seed for one in row] != [one.seed for one in base]]
    if len(others) < len(pairs):
        notes.append("95 % intervals are for new test items and the same seeds")
    notes += [f"{name}: no interval, since its seeds differ" for name in others]
    if any(len(row) == 1 for row in rows):
        notes.append("one run per setting does not show what another seed changes")
    for name, row in zip(names, rows, strict=True):
        if len({one.seed for one in row}) < len(row):
            notes.append(f"{name}: some runs have the same seed, so the deviation is not over seeds alone")
        elif len(row) > 1 and _same_start(row):
            notes.append(f"{name}: all runs start from the same weights, so the deviation leaves out the initialization")
    return notes


def _same_start(row: Row) -> bool:
    """Returns whether the encoders of all runs started from the same weights, which were not random."""
    states = ({k: x for k, x in (one.run.folder.load_initial() or {}).items() if k.startswith("encoder.1.")} for one in row)
    first = next(states)
    return bool(first) and all(first.keys() == s.keys() and all(torch.equal(s[k], x) for k, x in first.items()) for s in states)


def _measures(run: Run, record: Evaluation) -> dict[str, float]:
    z, found = record.representations["z"], {}
    if z.collapse:
        found["effective_rank"] = float(z.collapse.effective_rank)
    if z.knn:
        found["knn"] = float(z.knn[next(k for k in VOTERS if k in z.knn)].majority)
    if z.probe:
        found["probe"] = float(z.probe.accuracy)
    if record.anomaly is not None and "detector" in record.anomaly.scores:
        found["auroc"] = float(record.anomaly.scores["detector"].auroc)
    if (seconds := _seconds(run)) is not None:
        found["seconds"] = seconds
    return found


def _seconds(run: Run) -> float | None:
    """Returns the seconds of a training: as a closed form noted them, or by its speed."""
    rows, batch = run.folder.metrics(), run.folder.config.fit.batch_size
    noted = max((float(row["seconds"]) for row in rows if "seconds" in row), default=None)
    speeds = [row["images_per_second"] for row in rows if row.get("images_per_second")]
    if not speeds:
        return noted
    steps = max(int(row["step"]) for row in rows)
    return (noted or 0.0) + steps * int(batch) / statistics.fmean(speeds)
