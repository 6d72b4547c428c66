"""A run's report: one page with what was learned, how it compares with its baselines, and what stands out.

Nothing in the folder is trusted: sizes are bounded before anything is read, and a value of a wrong type leaves its file out,
with a sentence.
"""

import csv
import json
import math
import shlex
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence.learn.evaluation.judgment import collapse_warning
from vergence.learn.runs.tables import headlines, paper, tables, verdict
from vergence.learn.training.folder import RunFolder
from vergence.learn.training.records import Evaluation
from vergence.report.charts import Series, chart, histogram, shades, thumbnail
from vergence.report.rendering import count, is_number, number, workbench, write
from vergence.report.tiles import image_of, sheets, side_of, tile, unit
from vergence.utils.checks import expect, is_count
from vergence.utils.files import DAMAGE, as_path, read_object

__all__ = ["write_report"]

LARGEST = 2**28  # bytes of a file, and of the arrays that an archive unpacks to
CLASS_LIMIT = 2**31  # of a label
UNREADABLE: tuple[type[Exception], ...] = (*DAMAGE, csv.Error)
LISTED, GALLERY, LEGEND = 100, 18, 30  # rows of skipped items; items a side; classes in a legend
SECTIONS = {
    "gallery": "The most and the least anomalous",
    "map": "A map of the test items",
    "neighbors": "Nearest neighbors",
    "anomalies": "Does it detect anomalies?",
    "quality": "How good is the representation?",
    "posterior": "How certain is the model?",
    "uncertainty": "Does the uncertainty mean anything?",
    "training": "Training",
    "skipped": "What was skipped",
    "settings": "Settings, and how to reproduce this run",
}
HIDDEN = ("lr", "images_per_second", "threads")  # of the rows of metrics: they say how, not how well
CURVES = {  # title and hint by name; a quantity that is not listed is a term of the loss
    "loss": ("Loss", "the sum of its terms"),
    "knn": ("Online kNN accuracy", "on training items that are held out of its neighbors"),
    "std": ("Spread of the embedding", "standard deviation per direction; near 0 is collapse"),
    "effective_rank": ("Effective rank", "directions in use; near 1 is collapse"),
    "variance_mean": ("Posterior variance, mean", ""),
    "variance_cv": ("Posterior variance, CV", "0: all features are equally certain"),
    "mean_eigenvalue": ("Mean eigenvalue", "of the joint embedding; 1: the views of an item agree"),
}


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder."""

    folder: RunFolder
    rows: list[dict[str, Any]]  # metrics.jsonl
    evaluation: Evaluation | None  # evaluation.json; None where there is none
    examples: dict[str, Any]  # arrays of examples.npz; empty where there are none
    skipped: list[tuple[str, str]]  # name and reason of each item that could not be read
    notes: list[str]  # one sentence for each file that is damaged


def write_report(run: str | Path) -> Path:
    """Writes ``report.html`` into a run folder: one interactive page that loads nothing from elsewhere.

    Only files are read: ``config.json`` and, where they are there, ``metrics.jsonl``, ``evaluation.json``,
    ``examples.npz`` and ``skipped.csv``. For what is missing or damaged the page has a sentence instead.

    Args:
        run: The run folder.

    Returns:
        The page's path. It appears in one step; an older page stays until then.

    Example:
        >>> import tempfile
        >>> run = Path(tempfile.mkdtemp())
        >>> parts = {"data": {"source": "digits"}, "views": {}, "model": {}, "fit": {}}
        >>> items = {"kind": "image", "n_train": 9, "n_test": 1, "read_shape": [1, 8, 8], "shape": [1, 8, 8]}
        >>> _ = (run / "config.json").write_text(json.dumps(parts | {"metadata": items}))
        >>> write_report(run).name
        'report.html'
    """
    expect(not hasattr(run, "folder"), "the path of a run folder", f"a {type(run).__name__}", "give run.folder.path")
    run = as_path(run, "the run folder")
    files = _read(run)
    examples, name, record = _Examples(files), run.resolve().name, files.evaluation
    prior = paper(files.folder.config.model.objective)[1]
    shown = {} if record is None else tables(record)
    absent = {"skipped": not files.skipped, "uncertainty": record is None or record.uncertainty is None}
    note = "the run was not evaluated" if record is None else record.protocol.note
    measured = [row for row in files.rows if is_number(row.get("std")) and is_number(row.get("effective_rank"))]
    threads = next((row["threads"] for row in reversed(files.rows) if is_count(row.get("threads"), 1)), None)
    return write(
        run / "report.html",
        "run",
        {name: heading for name, heading in SECTIONS.items() if not absent.get(name, False)},
        steps=examples.steps(),
        title=f"Run {name} on {files.folder.config.data.title}",
        config=files.folder.config,
        metadata=files.folder.metadata,
        facts=_facts(files),
        notes=[*(f"The training ended, but {one}." for one in map(collapse_warning, measured[-1:]) if one), *files.notes],
        evaluation=record,
        unmeasured=f": {note}" if note else "",
        tables=shown,
        verdicts={key: verdict(table) for key, table in shown.items()},
        headlines=headlines(shown),
        prior=prior,
        gallery=examples.gallery(),
        neighbors=examples.neighbors(),
        histogram=examples.histogram(),
        map=examples.map(),
        items=examples.write_items(run / "items.html", f"Test items of {name}"),
        curves=_curves(files.rows, prior),
        skipped=files.skipped,
        listed=LISTED,
        settings=_settings(files),
        again={"run": _argument(str(run)), "out": _argument(f"{run}-again"), "threads": threads},
    )


def _argument(path: str) -> str:
    """Returns a path as a shell passes it on whole, and as no command reads it as an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _facts(run: RunFiles) -> dict[str, Any]:
    metadata, fit, model = run.folder.metadata, run.folder.config.fit, run.folder.config.model
    weights = None if metadata.weights is None else metadata.weights.in_words()
    encoders = [kind for kind in (model.encoder, model.target_encoder) if kind]
    return {
        "Data": run.folder.config.data.title,  # the whole path is among the settings
        "Training items": count(metadata.n_train),
        "Calibration items": count(metadata.n_calibration) if metadata.n_calibration else None,
        "Test items": count(metadata.n_test),
        "Test part": metadata.note,
        "Item": " → ".join(" × ".join(map(str, shape)) for shape in (metadata.shape, metadata.target_shape) if shape),
        "Method" if model.method else "Objective": model.method or model.objective,
        "Encoder": " → ".join(kind.kind if kind.closed_form else str(kind) for kind in encoders),  # settings stand below
        "Initial weights": None if model.encoder.closed_form and not model.freeze else weights,
        "Distilled from": model.distill and f"{model.distill}, {fit.distill_epochs} epochs",
        "Epochs": fit.epochs if model.takes_steps else None,
        "Seed": str(fit.seed),
        "Device": ", ".join(word for word in (metadata.device, metadata.precision) if word),
        "Code": " ".join(word for word in ("vergence", run.folder.version, metadata.commit) if word),
    }


def _curves(rows: list[dict[str, Any]], prior: float | None) -> list[dict[str, Any]]:
    """Returns words and chart of each training curve: the loss, its terms, and everything else, by the prior's variance."""
    names = dict.fromkeys(name for row in rows for name in row if name not in ("step", "epoch", "seconds", *HIDDEN))
    terms = [name for name in names if name not in CURVES]
    shown = []
    for k, name in enumerate(name for name in ("loss", *terms, *list(CURVES)[1:]) if name in names):
        pairs = [(row.get("epoch", row.get("step")), row.get(name)) for row in rows]
        points = [(x, y) for x, y in pairs if is_number(x) and is_number(y)]
        if points:
            x, y = map(list, zip(*points, strict=True))
            title, hint = CURVES.get(name, (name, "term of the loss, nats"))
            if name == "variance_mean" and prior is not None:
                hint = f"the prior's is {prior:g}"
            words = f"{title}: from {number(y[0])} to {number(y[-1])}, epoch {number(x[0])} to {number(x[-1])}"
            figure = chart([Series(title, x, y)], "epoch", "", size=(360, 210), legend=False)
            shown.append({"name": f"curve{k}", "title": title, "hint": hint, "words": words, "figure": figure})
    return shown


def _settings(run: RunFiles) -> list[list[str]]:
    parts = {**run.folder.config.to_dict(), "metadata": run.folder.metadata.to_dict()}
    return [[f"{part}: {key}", json.dumps(v, ensure_ascii=False)] for part, values in parts.items() for key, v in values.items()]


class _Examples:
    """The items in ``examples.npz`` by their index, with finite ``scores`` by item, most anomalous first, and ``captions``."""

    def __init__(self, run: RunFiles) -> None:
        self.arrays, self.classes = run.examples, run.folder.metadata.classes
        finite = {i: float(s) for i, s in enumerate(self.arrays.get("score", ())) if math.isfinite(s)}
        self.scores = dict(sorted(finite.items(), key=lambda item: -item[1]))
        self.captions = [
            f"{self.arrays['name'][i]}: {self._label(i)}, score {number(self._score(i))}"
            + ", held out as an anomaly" * self._held_out(i)
            for i in range(len(self.arrays.get("xy", ())))
        ]

    def gallery(self) -> dict[str, Any] | None:
        """Returns the most and the least anomalous items; None where no item has a score."""
        order = list(self.scores)
        n = min(GALLERY, len(order) // 2 or 1)
        return {"most": self._shown(order[:n]), "least": self._shown(order[: -n - 1 : -1])} if order else None

    def neighbors(self) -> dict[str, Any] | None:
        """Returns rows of a query and its nearest neighbors, and how many of these have the query's label."""
        rows = self.arrays.get("neighbors")
        if rows is None or not rows.size:
            return None
        label = self.arrays["label"]
        labeled = rows[label[rows[:, 0]] >= 0]
        same = int((label[labeled[:, 1:]] == label[labeled[:, :1]]).sum())
        return {"rows": [self._shown(row, row[0]) for row in rows.tolist()], "same": same, "labeled": labeled[:, 1:].size}

    def histogram(self) -> dict[str, Any] | None:
        """Returns words and chart of the scores' histogram; None where no item has a score."""
        names = ("normal items", "anomalies") if "anomalous" in self.arrays else ("items",)
        groups: dict[str, list[float]] = {name: [] for name in names}
        for i, score in self.scores.items():
            groups[names[self._held_out(i)]].append(score)
        words = f"Scores of the examples on this page: {', '.join(f'{len(x)} {name}' for name, x in groups.items())}"
        figure = histogram(groups, "score, nats (larger is more anomalous)")
        return {"words": words, "figure": figure} if self.scores else None

    def steps(self) -> dict[str, Any] | None:
        """Returns image and caption of each item of the map, and the slider's order; None without items."""
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

    def write_items(self, path: Path, title: str) -> str:
        """Writes the page on which the test items are looked at one by one; returns its name, empty without images."""
        import numpy as np

        images = self.arrays.get("thumbnail")
        if not self.captions or images is None:
            path.unlink(missing_ok=True)
            return ""
        n, label, rows = len(self.captions), self.arrays["label"], self.arrays.get("neighbors")
        classes = {int(value): k for k, value in enumerate(np.unique(label))}
        near = {int(row[0]): [int(j) for j in row[1:]] for row in ([] if rows is None else rows)}  # of the queries
        data = {
            "n": n,
            "noun": "item",
            "key": f"vergence items {path.resolve().parent.name}",
            "ranked": bool(self.scores),
            "name": [str(name) for name in self.arrays["name"]],
            "score": [self.scores.get(i, 0.0) for i in range(n)],
            "reason": [self._label(i) for i in range(n)],
            "properties": [int(self._held_out(i)) for i in range(n)],
            "propertyNames": ["held out as an anomaly"] if "anomalous" in self.arrays else [],
            "near": [near.get(i, []) for i in range(n)],
            "folderWord": "label",
            "folders": [self._label(int(np.flatnonzero(label == value)[0])) for value in classes],
            "inFolder": [classes[int(value)] for value in label],
            "x": unit(self.arrays["xy"][:, 0]),
            "y": unit(self.arrays["xy"][:, 1]),
            **sheets(np.stack([tile(image_of(image), side_of(n)) for image in images])),
        }
        words = "The test items of the report, the most anomalous first. Larger scores are more anomalous."
        meaning = ["report.html next to this page says how the scores were measured."]
        workbench(path, data, title=title, sentences=[words], input=f"{n:,} items", encoder="that of the run", meaning=meaning)
        return path.name

    def _shown(self, index: Iterable[int], query: int | None = None) -> list[dict[str, Any]]:
        """Returns what the page shows of some items; ``other`` marks a label that is not the query's."""
        label = self.arrays["label"]
        return [
            {
                "image": thumbnail(self.arrays.get("thumbnail"), i),
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
        """Returns an item's score; of items that no feature set finds rare 0, since no more can be read from it."""
        return round(float(self.arrays["score"][i]), 4) + 0.0

    def _held_out(self, i: int) -> bool:
        return "anomalous" in self.arrays and bool(self.arrays["anomalous"][i])

    def _label(self, i: int) -> str:
        label = int(self.arrays["label"][i])
        return "no label" if label < 0 else str(self.classes[label]) if label < len(self.classes) else str(label)


# Reading: nothing in the folder is trusted


def _read(run: Path) -> RunFiles:
    """Reads a run folder; imports nothing that its files name."""
    folder = RunFolder.open(run, trust_code=True)
    notes: list[str] = []
    return RunFiles(
        folder=folder,
        rows=_part(run / "metrics.jsonl", lambda file: _metrics(folder, file, notes), notes) or [],
        evaluation=_part(run / "evaluation.json", lambda file: Evaluation.from_dict(read_object(file)), notes),
        examples=_part(run / "examples.npz", _examples, notes) or {},
        skipped=_part(run / "skipped.csv", lambda file: folder.skipped(), notes) or [],
        notes=notes,
    )


def _part(file: Path, read: Callable[[Path], Any], notes: list[str]) -> Any:
    """Returns what ``read`` returns; None where there is no file, and where it is damaged, which adds a note."""
    if not file.is_file():
        return None
    try:
        expect((size := file.stat().st_size) <= LARGEST, f"at most {LARGEST:,} bytes", f"{size:,}")
        return read(file)
    except UNREADABLE as error:
        notes.append(f"{file.name} is damaged and left out ({' '.join(str(error).split()) or type(error).__name__}).")
    return None


def _metrics(folder: RunFolder, file: Path, notes: list[str]) -> list[dict[str, Any]]:
    rows = folder.metrics()
    if bad := sum(map(bool, map(str.strip, file.read_text(encoding="utf-8", errors="replace").splitlines()))) - len(rows):
        lost = f"{bad} line(s) of metrics.jsonl could not be read and are left out"
        notes.append(f"{lost} (a killed run leaves an incomplete one).")
    return rows


ARRAYS = {  # name -> kinds of its dtype (NumPy's letters) and number of axes
    "xy": ("f", 2),
    "label": ("iu", 1),
    "score": ("f", 1),
    "name": ("U", 1),
    "anomalous": ("b", 1),
    "thumbnail": ("u", 4),
    "neighbors": ("iu", 2),
}


def _examples(file: Path) -> dict[str, Any]:
    import numpy as np

    with zipfile.ZipFile(file) as archive:
        expect(sum(member.file_size for member in archive.infolist()) <= LARGEST, f"at most {LARGEST:,} bytes of arrays")
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        arrays = {name: np.asarray(archive[name]) for name in archive.files}  # bytes, where a member is no array
    for name, (kinds, ndim) in ARRAYS.items():
        if name in arrays:
            kind, axes = arrays[name].dtype.kind, arrays[name].ndim
            expect(kind in kinds and axes == ndim, f"{ndim} axes of kind {kinds} in {name}", f"{axes} of {arrays[name].dtype}")
    columns = ("xy", "label", "score", "name", *({"anomalous", "thumbnail"} & arrays.keys()))
    lengths = {name: len(arrays[name]) for name in columns}
    n = lengths["xy"]
    expect(len(set(lengths.values())) == 1, "arrays of one length", str(lengths))
    expect(arrays["xy"].shape[1] == 2 and np.isfinite(arrays["xy"]).all(), "two finite coordinates per item in xy")
    label, neighbors, images = arrays["label"], arrays.get("neighbors"), arrays.get("thumbnail")
    expect(not n or -CLASS_LIMIT < int(label.min()) <= int(label.max()) < CLASS_LIMIT, f"labels below {CLASS_LIMIT:,}")
    if neighbors is not None and neighbors.size:
        expect(0 <= neighbors.min() <= neighbors.max() < n, f"neighbors among the {n} items")
    if images is not None:
        right = images.dtype == np.uint8 and images.shape[1] >= 1 and 0 not in images.shape[2:]
        expect(right, "uint8 thumbnails (n, C, height, width)", f"{images.dtype} {images.shape}")
    return arrays
