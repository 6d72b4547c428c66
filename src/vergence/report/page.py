"""A run's report: one page with what was learned, how it compares with its controls, and what stands out."""

import json
import shlex
from pathlib import Path
from typing import Any

from vergence.encoders.config import Encoder
from vergence.evaluation.parts.symptoms import warning
from vergence.report.charts import Figure, curve
from vergence.report.examples import Examples
from vergence.report.reading import RunFiles, read
from vergence.report.rendering import count, is_number, number, write
from vergence.report.tables import ResultTable, paper, rival, tables, verdict
from vergence.utils.files import as_path

__all__ = ["write_report"]

LISTED = 100  # rows of skipped items
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
    examples, name = Examples(files), run.resolve().name
    shown = {} if files.evaluation is None else tables(files.evaluation)
    histogram, histogram_figure = examples.histogram()
    map_words, map_figure = examples.map()
    curves, curve_figures = _curves(files)
    return write(
        run / "report.html",
        "run",
        SECTIONS,
        {**histogram_figure, **map_figure, **curve_figures},
        title=f"{name}: {files.folder.config.data.source}",
        name=name,
        lead=_lead(files),
        facts=_facts(files),
        notes=[*_collapsed(files.rows), *files.notes],
        evaluation=files.evaluation,
        unmeasured=_reason(files),
        tables=shown,
        verdicts={key: verdict(table) for key, table in shown.items()},
        headlines=_headlines(shown),
        variance=_variance(files),
        gallery=examples.gallery(),
        neighbors=examples.neighbors(),
        histogram=histogram,
        map=map_words,
        curves=curves,
        skipped=files.skipped,
        listed=LISTED,
        settings=_settings(files),
        again={"run": _argument(str(run)), "out": _argument(f"{run}-again")},
    )


def _argument(path: str) -> str:
    """Returns a path as a shell passes it on whole, and as no command reads it as an option."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _collapsed(rows: list[dict[str, Any]]) -> list[str]:
    """Returns a sentence where the last row that measured the embedding's spread shows a collapse; otherwise nothing."""
    measured = [row for row in rows if is_number(row.get("std")) and is_number(row.get("effective_rank"))]
    message = warning(measured[-1]) if measured else None
    return [] if message is None else [f"The training ended, but {message}."]


def _short(encoder: Encoder) -> str:
    """Returns an encoder in words, without a closed form's settings, which stand below."""
    return encoder.kind if encoder.closed_form else str(encoder)


def _lead(run: RunFiles) -> dict[str, Any]:
    config, metadata = run.folder.config, run.folder.metadata
    closed_form = not config.model.encoder.takes_steps
    return {
        "encoder": _short(config.model.encoder),
        "objective": config.model.method or config.model.objective,
        "method": config.model.method,
        "parameters": metadata.parameters,
        "n_train": metadata.n_train,
        "noun": metadata.kind.removesuffix("s") + "s",
        "epochs": config.fit.epochs,
        "distilled": None if config.model.distill is None else config.fit.distill_epochs,
        "frozen": config.model.freeze,
        "closed_form": closed_form,
        "weights": None if closed_form or metadata.weights is None else metadata.weights.in_words(),
        "classes": None if config.data.keep_classes is None else len(config.data.keep_classes),
    }


def _facts(run: RunFiles) -> dict[str, Any]:
    metadata, fit, model = run.folder.metadata, run.folder.config.fit, run.folder.config.model
    weights = None if metadata.weights is None else metadata.weights.in_words()
    return {
        "Data": Path(run.folder.config.data.source).name,  # the whole path is among the settings
        "Training items": count(metadata.n_train),
        "Calibration items": count(metadata.n_calibration) if metadata.n_calibration else None,
        "Test items": count(metadata.n_test),
        "Test part": metadata.note,
        "Item": " → ".join(" × ".join(map(str, shape)) for shape in (metadata.shape, metadata.target_shape) if shape),
        "Method" if model.method else "Objective": model.method or model.objective,
        "Encoder": " → ".join(_short(kind) for kind in (model.encoder, model.target_encoder) if kind),
        "Starts from weights": "none: a closed form" if model.encoder.closed_form and not model.freeze else weights,
        "Learned before the objective": model.distill and f"{model.distill}, {fit.distill_epochs} epochs",
        "Epochs, seed": f"{fit.epochs if model.takes_steps else 'none'}, {fit.seed}",
        "Device": ", ".join(word for word in (metadata.device, metadata.precision) if word),
        "Code": " ".join(word for word in ("vergence", run.folder.version, metadata.commit) if word),
    }


def _headlines(shown: dict[str, ResultTable]) -> list[str]:
    """Returns sentences that compare the run's embedding and its detector with their best controls."""
    accuracies, sentences = shown.get("accuracies"), []
    if accuracies is not None:
        title = next((column.title for column in accuracies.columns if column.title == "kNN 30"), accuracies.columns[0].title)
        found = _headline(accuracies, title, "of the test items get the right class")
        sentences.append(f"Classification by the most similar items ({title}): {found}.")
    if "anomalies" in shown:
        found = _headline(shown["anomalies"], "AUROC", "of pairs of an anomaly and an ordinary item are ranked correctly (AUROC)")
        sentences.append(f"Anomaly detection: {found}.")
    return sentences


def _headline(table: ResultTable, title: str, meaning: str) -> str:
    name, kind = next(iter(table.kinds.items()))
    column = table.column(title)
    if kind != "model" or column is None or name not in column.values:
        return "this run has no result; its controls are below"
    ours = f"with {name}, {column.values[name]:.1%} {meaning}"
    best = rival(table, title, name)
    return f"{ours}; with the best control, {best.control}, {best.theirs:.1%}: {best.words}" if best else ours


def _variance(run: RunFiles) -> str | None:
    """Returns the mean posterior variance in words; None where there is none."""
    if run.evaluation is None or run.evaluation.posterior is None:
        return None
    prior = paper(run.folder.config.model.objective)[1]
    scale = "" if prior is None else f"; a variance of {prior:g} is the prior's, so nothing was learned"
    return f"The variance of the posterior is {run.evaluation.posterior.variance_mean:.2f} on average{scale}."


def _curves(run: RunFiles) -> tuple[list[dict[str, str]], dict[str, Figure]]:
    """Returns the words of each training curve, and their figures: the loss, its terms, and everything else."""
    names = dict.fromkeys(name for row in run.rows for name in row if name not in ("step", "epoch", "seconds"))
    terms = [name for name in names if name not in CURVES]
    prior = paper(run.folder.config.model.objective)[1] if "variance_mean" in names else None
    shown, figures = [], {}
    for k, name in enumerate(name for name in ("loss", *terms, *list(CURVES)[1:]) if name in names):
        pairs = [(row.get("epoch", row.get("step")), row.get(name)) for row in run.rows]
        points = [(x, y) for x, y in pairs if is_number(x) and is_number(y)]
        if points:
            x, y = map(list, zip(*points, strict=True))
            title, hint = CURVES.get(name, (name, "term of the loss, nats"))
            if name == "variance_mean" and prior is not None:
                hint = f"the prior's is {prior:g}"
            words = f"{title}: from {number(y[0])} to {number(y[-1])}, epoch {number(x[0])} to {number(x[-1])}"
            figures[f"curve{k}"] = curve(x, y)
            shown.append({"name": f"curve{k}", "title": title, "hint": hint, "words": words})
    return shown, figures


def _settings(run: RunFiles) -> list[list[str]]:
    parts = {**run.folder.config.to_dict(), "metadata": run.folder.metadata.to_dict()}
    return [
        [f"{part}: {key}", json.dumps(value, ensure_ascii=False)]
        for part, values in parts.items()
        for key, value in values.items()
    ]


def _reason(run: RunFiles) -> str:
    """Returns why something was not measured, as the end of a sentence."""
    note = "the run was not evaluated" if run.evaluation is None else run.evaluation.protocol.note
    return f": {note}" if note else ""
