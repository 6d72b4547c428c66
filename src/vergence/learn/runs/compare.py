"""`compare`: several runs in one table, mean and deviation over seeds."""

import importlib.util
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.run import Run, load
from vergence.learn.training.records import Evaluation
from vergence.utils.checks import expect, require_choice
from vergence.utils.terminal import Tabular

__all__ = ["Comparison", "compare"]

NEIGHBORS = (20, 5, 1)  # k of the accuracy by neighbors, the first that was measured
APART = ("seed", "device", "threads", "workers", "checkpoint_seconds")  # settings that do not tell runs apart
MEASURES = ("knn", "probe", "effective_rank", "auroc", "seconds")


@dataclass(frozen=True)
class Comparison(Tabular):
    """A row for each setting, over the seeds that were trained.

    Measures are ``knn`` and ``probe``, accuracies of the embedding in [0, 1]; ``effective_rank``; ``auroc`` of the classes that
    training left out; and ``seconds`` of the training.
    """

    name: list[str]  # what tells the setting from the others: objective or method, encoder, and the settings that differ
    runs: list[int]  # number of its runs
    values: list[dict[str, list[float]]]  # of each measure that was taken, one for each run

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns mean and standard deviation of each measure, as columns; None where there is none."""
        columns: dict[str, list[Any]] = {"name": self.name, "runs": self.runs}
        for key in MEASURES:
            if not any(key in row for row in self.values):
                continue
            columns[key] = [statistics.fmean(row[key]) if key in row else None for row in self.values]
            columns[f"{key}_deviation"] = [
                statistics.stdev(row[key]) if len(row.get(key, ())) > 1 else None for row in self.values
            ]
        return columns

    def plot(self, measure: str = "knn", ax: Any = None) -> Any:
        """Draws one measure on matplotlib's axes, by default new ones, which are returned.

        There is a point for each run, and a line for mean and deviation of each setting.
        """
        there = importlib.util.find_spec("matplotlib") is not None
        expect(there, "matplotlib for a figure", "none", "install vergence[figures]")
        import matplotlib.pyplot as plt

        known = [key for key in MEASURES if any(key in row for row in self.values)]
        require_choice("measure", measure, known)
        ax = plt.subplots(figsize=(6, 1 + 0.4 * len(self.name)), layout="constrained")[1] if ax is None else ax
        for i, row in enumerate(self.values):
            if values := row.get(measure, []):
                reach = statistics.stdev(values) if len(values) > 1 else 0.0
                ax.errorbar(statistics.fmean(values), i, xerr=reach, fmt="none", ecolor="0.4", capsize=4)
                ax.plot(values, [i] * len(values), "o", alpha=0.7)
        ax.set_yticks(range(len(self.name)), self.name)
        ax.invert_yaxis()
        ax.set_xlabel(measure.replace("_", " "))
        return ax


def compare(runs: Sequence[Run | str | Path], *, probes: bool = True) -> Comparison:
    """Returns the evaluations of runs side by side; a run without one is evaluated first.

    Runs whose descriptions differ in the seed alone are one row.

    Args:
        runs: Runs, or their folders.
        probes: Whether runs that are evaluated now get linear probes.

    Raises:
        ValueError: There is no run, the runs were trained on different data, or one of them cannot be evaluated.
    """
    opened = [run if isinstance(run, Run) else load(run, device="cpu") for run in runs]
    expect(opened, "at least 1 run", "none")
    data = {(run.folder.config.data.source, run.folder.metadata.n_test) for run in opened}
    there = " and ".join(sorted({f"{Path(source).name} ({n:,} test items)" for source, n in data}))
    expect(len(data) == 1, "runs on the same data", there, "compare those on one set")
    groups: dict[str, list[Run]] = {}
    for run in opened:
        groups.setdefault(json.dumps(_settings(run), sort_keys=True, default=str), []).append(run)
    settings = [json.loads(key) for key in groups]
    differ = {key for key in set().union(*settings) if len({json.dumps(one.get(key), sort_keys=True) for one in settings}) > 1}
    each = zip(groups.values(), settings, strict=True)
    names = [_name(own[0], {key: one[key] for key in sorted(differ & set(one))}) for own, one in each]
    return Comparison(names, [len(own) for own in groups.values()], [_values(own, probes) for own in groups.values()])


def _settings(run: Run) -> dict[str, Any]:
    """Returns what tells a run's description from others, but for the seed."""
    whole = run.folder.config.to_dict()
    flat = {key: value for part in ("views", "model", "fit") for key, value in whole[part].items()}
    return {key: value for key, value in flat.items() if key not in APART}


def _name(run: Run, differing: Mapping[str, Any]) -> str:
    model = run.folder.config.model
    first = f"{model.method or model.objective}, {model.encoder.kind}"
    rest = {key: value for key, value in differing.items() if key not in ("objective", "method", "encoder", "options")}
    return ", ".join([first, *(f"{key}={value}" for key, value in list(rest.items())[:3])])


def _values(runs: Sequence[Run], probes: bool) -> dict[str, list[float]]:
    """Returns the measures of runs of one setting."""
    found: dict[str, list[float]] = {}
    for run in runs:
        record = run.folder.evaluation() or evaluate(run, probes=probes)
        for key, value in _measures(run, record).items():
            found.setdefault(key, []).append(value)
    return found


def _measures(run: Run, record: Evaluation) -> dict[str, float]:
    z, found = record.representations["z"], {}
    if z.collapse:
        found["effective_rank"] = float(z.collapse.effective_rank)
    if z.knn:
        k = next((k for k in NEIGHBORS if k in z.knn), min(z.knn))
        found["knn"] = float(z.knn[k].majority)
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
