"""A run's report: one page with what was learned, how it compares with its controls, and what stands out."""

import json
import math
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vergence.evaluation.judgment import collapse_warning
from vergence.report.charts import Series, chart, histogram, shades, thumbnail
from vergence.report.reading import RunFiles, read
from vergence.report.rendering import count, is_number, number, write
from vergence.report.tables import ResultTable, paper, rival, tables, verdict
from vergence.utils.checks import is_count
from vergence.utils.files import as_path

__all__ = ["headlines", "write_report"]

LISTED, GALLERY, LEGEND = 100, 18, 30  # rows of skipped items; items a side; classes in a legend
SECTIONS = {
    "quality": "How good is the representation?",
    "anomalies": "Does it detect anomalies?",
    "gallery": "The most unusual and the most typical",
    "map": "A map of the test items",
    "neighbors": "Nearest neighbors",
    "posterior": "How certain is the model?",
    "uncertainty": "Does the uncertainty mean anything?",
    "training": "Training",
    "skipped": "What was skipped",
    "settings": "Settings, and how to reproduce this run",
}
CURVES = {  # title and hint by name; a quantity that is not listed is a term of the loss
    "loss": ("Loss", "the sum of its terms"),
    "knn": ("Online kNN accuracy", "on training items that are held out of its neighbors"),
    "std": ("Spread of the embedding", "standard deviation per direction; near 0 is collapse"),
    "effective_rank": ("Effective rank", "directions in use; near 1 is collapse"),
    "variance_mean": ("Posterior variance, mean", ""),
    "variance_cv": ("Posterior variance, CV", "0: all features are equally certain"),
    "images_per_second": ("Items per second", "training speed"),
    "lr": ("Learning rate", ""),
    "mean_eigenvalue": ("Mean eigenvalue", "of the joint embedding; 1: the views of an item agree"),
    "threads": ("Threads", ""),
}


def write_report(run: str | Path) -> Path:
    """Writes ``report.html`` into a run folder: one interactive page that loads nothing from elsewhere.

    Only files are read: ``config.json`` and, where they are there, ``metrics.jsonl``, ``evaluation.json``,
    ``examples.npz`` and ``skipped.csv``. For what is missing or damaged the page has a sentence instead.

    Args:
        run: The run folder.

    Returns:
        The page's path. It appears in one step; an older page stays until then.

    Raises:
        ValueError: ``config.json`` is missing or damaged, or ``run`` is not a path.

    Example:
        >>> import tempfile
        >>> run = Path(tempfile.mkdtemp())
        >>> parts = {"data": {"source": "digits"}, "views": {}, "model": {}, "fit": {}}
        >>> items = {"kind": "image", "n_train": 9, "n_test": 1, "read_shape": [1, 8, 8], "shape": [1, 8, 8]}
        >>> _ = (run / "config.json").write_text(json.dumps(parts | {"metadata": items}))
        >>> write_report(run).name
        'report.html'
    """
    if hasattr(run, "folder"):
        raise ValueError(f"expected the path of a run folder, found a {type(run).__name__}; give run.folder.path")
    run = as_path(run, "the run folder")
    files = read(run)
    examples, name, record = _Examples(files), run.resolve().name, files.evaluation
    shown = {} if record is None else tables(record)
    note = "the run was not evaluated" if record is None else record.protocol.note
    return write(
        run / "report.html",
        "run",
        SECTIONS,
        steps=examples.steps(),
        title=f"{name}: {files.folder.config.data.source}",
        name=name,
        config=files.folder.config,
        metadata=files.folder.metadata,
        facts=_facts(files),
        notes=[*_collapsed(files.rows), *files.notes],
        evaluation=record,
        unmeasured=f": {note}" if note else "",
        tables=shown,
        verdicts={key: verdict(table) for key, table in shown.items()},
        headlines=headlines(shown),
        prior=_prior(files),
        gallery=examples.gallery(),
        neighbors=examples.neighbors(),
        histogram=examples.histogram(),
        map=examples.map(),
        curves=_curves(files),
        skipped=files.skipped,
        listed=LISTED,
        settings=_settings(files),
        again={"run": _argument(str(run)), "out": _argument(f"{run}-again"), "threads": _threads(files.rows)},
    )


def _threads(rows: list[dict[str, Any]]) -> int | None:
    """Returns the number of threads that trained; None where it is not known."""
    return next((row["threads"] for row in reversed(rows) if is_count(row.get("threads"), 1)), None)


def _argument(path: str) -> str:
    """Returns a path as a shell passes it on whole, and as no command reads it as an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _collapsed(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a sentence where the last row that measured the embedding's spread shows a collapse; otherwise nothing."""
    measured = [row for row in rows if is_number(row.get("std")) and is_number(row.get("effective_rank"))]
    message = collapse_warning(measured[-1]) if measured else None
    return [] if message is None else [f"The training ended, but {message}."]


def _facts(run: RunFiles) -> dict[str, Any]:
    metadata, fit, model = run.folder.metadata, run.folder.config.fit, run.folder.config.model
    weights = None if metadata.weights is None else metadata.weights.in_words()
    encoders = [kind for kind in (model.encoder, model.target_encoder) if kind]
    return {
        "Data": Path(run.folder.config.data.source).name,  # the whole path is among the settings
        "Training items": count(metadata.n_train),
        "Calibration items": count(metadata.n_calibration) if metadata.n_calibration else None,
        "Test items": count(metadata.n_test),
        "Test part": metadata.note,
        "Item": " → ".join(" × ".join(map(str, shape)) for shape in (metadata.shape, metadata.target_shape) if shape),
        "Method" if model.method else "Objective": model.method or model.objective,
        "Encoder": " → ".join(kind.kind if kind.closed_form else str(kind) for kind in encoders),  # settings stand below
        "Starts from weights": "none: a closed form" if model.encoder.closed_form and not model.freeze else weights,
        "Learned before the objective": model.distill and f"{model.distill}, {fit.distill_epochs} epochs",
        "Epochs, seed": f"{fit.epochs if model.takes_steps else 'none'}, {fit.seed}",
        "Device": ", ".join(word for word in (metadata.device, metadata.precision) if word),
        "Code": " ".join(word for word in ("vergence", run.folder.version, metadata.commit) if word),
    }


def headlines(shown: dict[str, ResultTable]) -> list[str]:
    """Returns sentences that compare the run's embedding and its detector with their best controls."""
    sentences = []
    if (table := shown.get("accuracies")) is not None:
        title = "kNN 30" if table.column("kNN 30") else table.columns[0].title
        words = _headline(table, title, "of the test items get the right class")
        sentences.append(f"Classification by the most similar items ({title}): {words}.")
    if (table := shown.get("anomalies")) is not None:
        words = _headline(table, "AUROC", "of pairs of an anomaly and an ordinary item are ranked correctly (AUROC)")
        sentences.append(f"Anomaly detection: {words}.")
    return sentences


def _headline(table: ResultTable, title: str, meaning: str) -> str:
    name, kind = next(iter(table.kinds.items()))
    column = table.column(title)
    if kind != "model" or column is None or name not in column.values:
        return "this run has no result; its controls are below"
    ours = f"with {name}, {column.values[name]:.1%} {meaning}"
    best = rival(table, title, name)
    return f"{ours}; with the best control, {best.control}, {best.theirs:.1%}: {best.words}" if best else ours


def _prior(run: RunFiles) -> float | None:
    """Returns the variance of the objective's prior; None where it declares none."""
    return paper(run.folder.config.model.objective)[1]


def _curves(run: RunFiles) -> list[dict[str, Any]]:
    """Returns words and chart of each training curve: the loss, its terms, and everything else."""
    names = dict.fromkeys(name for row in run.rows for name in row if name not in ("step", "epoch", "seconds"))
    terms = [name for name in names if name not in CURVES]
    shown = []
    for k, name in enumerate(name for name in ("loss", *terms, *list(CURVES)[1:]) if name in names):
        pairs = [(row.get("epoch", row.get("step")), row.get(name)) for row in run.rows]
        points = [(x, y) for x, y in pairs if is_number(x) and is_number(y)]
        if points:
            x, y = map(list, zip(*points, strict=True))
            title, hint = CURVES.get(name, (name, "term of the loss, nats"))
            if name == "variance_mean" and (prior := _prior(run)) is not None:
                hint = f"the prior's is {prior:g}"
            words = f"{title}: from {number(y[0])} to {number(y[-1])}, epoch {number(x[0])} to {number(x[-1])}"
            figure = chart([Series(title, x, y)], "epoch", "", size=(360, 210), legend=False)
            shown.append({"name": f"curve{k}", "title": title, "hint": hint, "words": words, "figure": figure})
    return shown


def _settings(run: RunFiles) -> list[list[str]]:
    parts = {**run.folder.config.to_dict(), "metadata": run.folder.metadata.to_dict()}
    return [[f"{part}: {key}", json.dumps(v, ensure_ascii=False)] for part, values in parts.items() for key, v in values.items()]


class _Examples:
    """The items in ``examples.npz`` by their index, with finite ``scores`` by item, most unusual first, and ``captions``."""

    def __init__(self, run: RunFiles) -> None:
        self.arrays, self.classes = run.examples, run.folder.metadata.classes
        finite = {i: float(s) for i, s in enumerate(self.arrays.get("score", ())) if math.isfinite(s)}
        self.scores = dict(sorted(finite.items(), key=lambda item: -item[1]))
        self.captions = [self._caption(i) for i in range(len(self.arrays.get("xy", ())))]

    def gallery(self) -> dict[str, Any] | None:
        """Returns the most unusual and the most typical items; None where no item has a score."""
        order = list(self.scores)
        n = min(GALLERY, len(order) // 2 or 1)
        return {"unusual": self._shown(order[:n]), "typical": self._shown(order[: -n - 1 : -1])} if order else None

    def neighbors(self) -> dict[str, Any] | None:
        """Returns rows of a query and its nearest neighbors, and how many of these have the query's label."""
        rows = self.arrays.get("neighbors")
        if rows is None or not rows.size:
            return None
        label = self.arrays["label"]
        labeled = rows[label[rows[:, 0]] >= 0]
        same = int((label[labeled[:, 1:]] == label[labeled[:, :1]]).sum())
        return {"rows": [self._shown(row, row[0]) for row in rows.tolist()], "same": same, "known": labeled[:, 1:].size}

    def histogram(self) -> dict[str, Any] | None:
        """Returns words and chart of the scores' histogram; None where no item has a score."""
        names = ("ordinary items", "anomalies") if "anomalous" in self.arrays else ("items",)
        groups: dict[str, list[float]] = {name: [] for name in names}
        for i, score in self.scores.items():
            groups[names[self._held_out(i)]].append(score)
        words = f"Scores of the examples on this page: {', '.join(f'{len(x)} {name}' for name, x in groups.items())}"
        figure = histogram(groups, "score, nats (larger is more anomalous)")
        return {"words": words, "figure": figure} if self.scores else None

    def steps(self) -> dict[str, Any] | None:
        """Returns picture and caption of each item of the map, and the slider's order; None without items."""
        items = [[thumbnail(self.arrays.get("thumbnail"), i), caption] for i, caption in enumerate(self.captions)]
        order = [*self.scores, *(i for i in range(len(items)) if i not in self.scores)]
        return {"items": items, "order": order} if items else None

    def map(self) -> dict[str, Any] | None:
        """Returns chart, number of items and legend of the scores of the map; None without items."""
        import numpy as np

        if not self.captions:
            return None
        xy, label, scores = self.arrays["xy"], self.arrays["label"], list(self.scores.values())
        # one extreme score would make all others one color
        low, high = np.quantile(scores, [0.01, 0.99]).tolist() if scores else (0.0, 1.0)
        colors = dict(zip(self.scores, shades(scores, low, high), strict=True))
        series = []
        for value in np.unique(label):
            index = np.flatnonzero(label == value).tolist()
            titles, second = [self.captions[i] for i in index], [colors.get(i, "") for i in index]
            x, y = xy[index].T.tolist()
            series.append(Series(self._label(index[0]), x, y, titles, line=False, items=index, shades=second))
        axes = "principal component 1", "principal component 2"
        steps = [low + k * (high - low) / 4 for k in range(5)]
        legend = list(zip(map(number, steps), shades(steps, low, high), strict=True)) if scores else []
        return {
            "n": len(self.captions),
            "scores": legend,
            "figure": chart(series, *axes, size=(760, 520), legend=len(series) <= LEGEND),
        }

    def _shown(self, index: Iterable[int], query: int | None = None) -> list[dict[str, Any]]:
        """Returns what the page shows of some items; ``other`` marks a label that is not the query's."""
        label = self.arrays["label"]
        return [
            {
                "picture": thumbnail(self.arrays.get("thumbnail"), i),
                "caption": self.captions[i],
                "label": self._label(i) if label[i] >= 0 else str(self.arrays["name"][i]),
                "score": self._score(i),
                "held_out": self._held_out(i),
                "query": i == query,
                "other": query is not None and bool(label[i] != label[query]),
            }
            for i in index
        ]

    def _score(self, i: int) -> float:
        """Returns an item's score; of items that no level finds rare 0, since no more can be read from it."""
        return round(float(self.arrays["score"][i]), 4) + 0.0

    def _held_out(self, i: int) -> bool:
        return "anomalous" in self.arrays and bool(self.arrays["anomalous"][i])

    def _label(self, i: int) -> str:
        label = int(self.arrays["label"][i])
        return "no label" if label < 0 else str(self.classes[label]) if label < len(self.classes) else str(label)

    def _caption(self, i: int) -> str:
        held_out = ", held out as an anomaly" * self._held_out(i)
        return f"{self.arrays['name'][i]}: {self._label(i)}, score {number(self._score(i))}{held_out}"
