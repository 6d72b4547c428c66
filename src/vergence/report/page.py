"""A run's report: one page with what was learned, how it compares with its controls, and what stands out."""

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vergence.encoders.names import is_closed_form, is_only_closed_form
from vergence.evaluation.parts.errors import auroc_error
from vergence.evaluation.parts.symptoms import warning
from vergence.report.charts import Figure, curve
from vergence.report.comparison import Comparison, detections, representations, uncertainties
from vergence.report.examples import Examples
from vergence.report.reading import RunFiles, read
from vergence.report.reference import Reference, reference
from vergence.report.rendering import count, is_number, number, write
from vergence.report.show import PREDICTIVE
from vergence.utils.checks import is_count
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
POSTERIOR = {  # title and meaning by name
    "variance_mean": ("Variance, mean", "how uncertain it is, per feature"),
    "variance_cv": ("Variance, coefficient of variation", "how much certainty differs between features"),
    "entropy": ("Entropy, nats", "larger is less certain; grows with the number of features"),
    "norm_z": ("Norm of z, mean", "length of the embedding"),
    "norm_mu": ("Norm of the posterior mean, mean", "length of the posterior mean"),
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
        >>> parts = {"data": {"source": "digits"}, "views": {}, "model": {}, "fit": {}, "metadata": {}}
        >>> _ = (run / "config.json").write_text(json.dumps(parts))
        >>> write_report(run).name
        'report.html'
    """
    if hasattr(run, "folder"):
        raise ValueError(f"expected the path of a run folder, found a {type(run).__name__}; give run.folder.path")
    run = as_path(run, "the run folder")
    files = read(run)
    examples, about = Examples(files), reference(files.config["model"].get("objective"))
    histogram, histogram_figure = examples.histogram()
    map_words, map_figure = examples.map()
    curves, curve_figures = _curves(files.rows, about)
    name = run.resolve().name
    return write(
        run / "report.html",
        "run",
        SECTIONS,
        {**histogram_figure, **map_figure, **curve_figures},
        title=f"{name}: {files.config['data'].get('source', '')}",
        name=name,
        lead=_lead(files),
        facts=_facts(files),
        notes=[*_collapsed(files.rows), *files.notes],
        evaluated=bool(files.evaluation),
        unmeasured=_reason(files),
        quality=_quality(files),
        anomalies=_anomalies(files),
        posterior=_posterior(files, about),
        uncertainty=_uncertainty(files),
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


def _short(encoder: str) -> str:
    """Returns an encoder's name without a closed form's settings, which stand below."""
    return encoder.partition(":")[0] if is_closed_form(encoder) else encoder


def _lead(run: RunFiles) -> dict[str, Any]:
    metadata, fit, model = run.metadata, run.config["fit"], run.config["model"]
    kept = run.config["data"].get("keep_classes")
    closed_form = is_only_closed_form(str(model.get("encoder")))
    return {
        "encoder": _short(model.get("encoder") or "?"),
        "objective": model.get("method") or model.get("objective") or "?",
        "method": model.get("method"),
        "parameters": metadata.get("parameters"),
        "n_train": metadata.get("n_train"),
        "noun": (metadata.get("kind") or "item").removesuffix("s") + "s",
        "epochs": fit.get("epochs", "–"),
        "distilled": fit.get("distill_epochs", "–") if model.get("distill") else None,
        "frozen": model.get("freeze") is True,
        "closed_form": closed_form,
        "weights": None if closed_form else run.weights,
        "kept": len(kept) if kept else None,
    }


def _facts(run: RunFiles) -> dict[str, Any]:
    metadata, fit, model = run.metadata, run.config["fit"], run.config["model"]
    start = "none: a closed form" if is_closed_form(str(model.get("encoder"))) and not model.get("freeze") else run.weights
    untrained = model.get("freeze") is True or is_only_closed_form(str(model.get("encoder")))
    return {
        "Data": Path(str(run.config["data"].get("source", "–"))).name,  # the whole path is among the settings
        "Training items": count(metadata.get("n_train")),
        "Calibration items": count(metadata["n_calibration"]) if metadata.get("n_calibration") else None,
        "Test items": count(metadata.get("n_test")),
        "Test part": metadata.get("note"),
        "Item": " → ".join(" × ".join(map(str, metadata[key])) for key in ("shape", "target_shape") if metadata.get(key)),
        "Method" if model.get("method") else "Objective": model.get("method") or model.get("objective"),
        "Encoder": " → ".join(_short(model[key]) for key in ("encoder", "target_encoder") if model.get(key)),
        "Starts from weights": start,
        "Learned before the objective": f"{model['distill']}, {fit.get('distill_epochs', '–')} epochs"
        if model.get("distill")
        else None,
        "Epochs, seed": f"{'none' if untrained else fit.get('epochs', '–')}, {fit.get('seed', '–')}",
        "Device": ", ".join(metadata[key] for key in ("device", "precision") if metadata.get(key)),
        "Code": " ".join(str(v) for v in ("vergence", run.config.get("vergence"), metadata.get("commit")) if v),
    }


def _quality(run: RunFiles) -> dict[str, Any]:
    comparison, protocol = representations(run.evaluation), run.evaluation.get("protocol") or {}
    entries = {name: entry for name, entry in (run.evaluation.get("representations") or {}).items() if entry}
    n = protocol.get("test")
    return {
        "comparison": comparison,
        "headline": _headline(comparison),
        "test": n,
        "bank": protocol.get("bank"),
        "note": protocol.get("note"),
        "chance": 50 / math.sqrt(n) if n else None,  # percentage points
        "unconverged": [name for name, entry in entries.items() if (entry.get("probe") or {}).get("converged") is False],
        "spread": [_spread(name, entry) for name, entry in entries.items()],
    }


def _headline(comparison: Comparison) -> str | None:
    """Returns the column of accuracies that stands for all: k = 30 as in the literature, else the first."""
    titles = list(comparison.columns)
    return next((title for title in titles if title.startswith("k = 30")), titles[0] if titles else None)


def _spread(name: str, entry: Mapping[str, Any]) -> list[str]:
    collapse = entry.get("collapse") or {}
    return [name, str(entry.get("dim", "–")), *(number(collapse.get(key)) for key in ("std", "effective_rank", "norm"))]


def _anomalies(run: RunFiles) -> dict[str, Any]:
    found = run.evaluation.get("anomaly") or {}
    comparison = detections(run.evaluation)
    return {
        "comparison": comparison,
        "chance": _auroc_error(comparison, found.get("n_anomalies"), found.get("n_inliers")),
        "inliers": found.get("inliers") or [],
        "anomalies": found.get("anomalies") or [],
        "n_inliers": found.get("n_inliers"),
        "n_anomalies": found.get("n_anomalies"),
    }


def _auroc_error(comparison: Comparison, n: Any, m: Any) -> float | None:
    """Returns the standard error of the model's AUROC in percentage points; None where it or a number of items is not known."""
    model = comparison.rivals("AUROC")[0] if "AUROC" in comparison.columns else None
    own = None if model is None else comparison.columns["AUROC"][model]
    if own is None or not 0 <= own <= 1 or not is_count(n, 1) or not is_count(m, 1):
        return None
    return 100 * auroc_error(own, n, m)


def _posterior(run: RunFiles, about: Reference) -> dict[str, Any]:
    found = run.evaluation.get("posterior") or {}
    rows = []
    for key, (title, meaning) in POSTERIOR.items():
        if found.get(key) is not None:
            paper = [f"about {about.values[key]:g}" if key in about.values else "–"] if about.values else []
            rows.append([title, number(found[key]), *paper, about.meanings.get(key, meaning)])
    return {
        "variance": found.get("variance_mean"),
        "scale": about.scale,
        "head": ["", "this run", *(["the paper's"] if about.values else []), "meaning"],
        "rows": rows,
        "source": about.source,
    }


def _uncertainty(run: RunFiles) -> dict[str, Any]:
    found = run.evaluation.get("uncertainty") or {}
    predictive = found.get("predictive") or {}
    return {
        **{key: found.get(key) for key in ("items", "crops", "recall_at_1", "recall_at_1_crops")},
        "comparison": uncertainties(run.evaluation),
        "pairs": predictive.get("pairs"),
        "predictive": [[title, number(predictive[key])] for key, title in PREDICTIVE.items() if predictive.get(key) is not None],
    }


def _curves(rows: list[dict[str, Any]], about: Reference) -> tuple[list[dict[str, str]], dict[str, Figure]]:
    """Returns the words of each training curve, and their figures: the loss, its terms, and everything else."""
    names = dict.fromkeys(name for row in rows for name in row if name not in ("step", "epoch", "seconds"))
    terms = [name for name in names if name not in CURVES]
    shown, figures = [], {}
    for k, name in enumerate(name for name in ("loss", *terms, *list(CURVES)[1:]) if name in names):
        pairs = [(row.get("epoch", row.get("step")), row.get(name)) for row in rows]
        points = [(x, y) for x, y in pairs if is_number(x) and is_number(y)]
        if points:
            x, y = map(list, zip(*points, strict=True))
            title, hint = CURVES.get(name, (name, "term of the loss, nats"))
            words = f"{title}: from {number(y[0])} to {number(y[-1])}, epoch {number(x[0])} to {number(x[-1])}"
            figures[f"curve{k}"] = curve(x, y)
            shown.append({"name": f"curve{k}", "title": title, "hint": about.hints.get(name, hint), "words": words})
    return shown, figures


def _settings(run: RunFiles) -> list[list[str]]:
    return [
        [f"{part}: {key}", json.dumps(value, ensure_ascii=False)]
        for part in ("data", "views", "model", "fit", "metadata")
        for key, value in run.config[part].items()
    ]


def _reason(run: RunFiles) -> str:
    """Returns why something was not measured, as the end of a sentence."""
    note = (run.evaluation.get("protocol") or {}).get("note") if run.evaluation else "the run was not evaluated"
    return f": {note}" if note else ""
