"""A run as one page: what was learned, how it compares with its controls, and what stands out. It works offline.

Names, classes and notes belong to the user: every string passes `html.escape` on its way into the page.
"""

import json
import math
import shlex
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.report.parts import (
    AGAIN,
    CHOICE,
    MAP,
    Columns,
    assemble,
    chart,
    count,
    curve,
    definitions,
    duel,
    finite,
    histogram,
    missing,
    number,
    picture,
    ranking,
    scatter,
    table,
    verdict,
)
from vergence.report.reading import RunFiles, read
from vergence.utils.files import replacing

if TYPE_CHECKING:
    from vergence.objectives import Objective

__all__ = ["write_report"]

GALLERY, LISTED, LEGEND = 18, 100, 30  # items a side; rows of skipped items; classes in a legend
HINTS = {
    "loss": ("Loss", "the sum of its terms"),
    "knn": ("Online kNN accuracy", "on part of the test items"),
    "std": ("Spread of the embedding", "standard deviation per direction; near 0 is collapse"),
    "effective_rank": ("Effective rank", "directions in use; near 1 is collapse"),
    "variance_mean": ("Posterior variance, mean", "the prior's is 1"),
    "variance_cv": ("Posterior variance, CV", "0: every feature is equally sure"),
    "images_per_second": ("Items per second", "training speed"),
    "lr": ("Learning rate", ""),
}
POSTERIOR = {
    "variance_mean": ("Variance, mean", "1 is the prior: nothing was learned about the item; 0 is false certainty"),
    "variance_cv": ("Variance, coefficient of variation", "how much certainty differs from feature to feature"),
    "entropy": ("Entropy, nats", "larger is less sure; grows with the number of features"),
    "norm_z": ("Norm of z, mean", "length of the embedding"),
    "norm_mu": ("Norm of the posterior mean, mean", "length of what is believed of it"),
}
OTHERS = {"variance_mean": "how unsure it is, a feature"}  # of objectives without a prior


def write_report(run: Path) -> Path:
    """Writes ``report.html`` into a run folder: one interactive page that loads nothing from elsewhere.

    Only files are read: ``config.json`` and, as far as they are there, ``metrics.jsonl``, ``evaluation.json``,
    ``examples.npz`` and ``skipped.csv``. For what is missing or damaged the page has a sentence instead.

    Args:
        run: The run folder.

    Returns:
        The page's path. It appears in one step; an older page stays until then.

    Raises:
        ValueError: ``config.json`` is missing or damaged.

    Example:
        >>> import tempfile
        >>> run = Path(tempfile.mkdtemp())
        >>> parts = {"data": {"source": "digits"}, "views": {}, "model": {}, "fit": {}, "facts": {}}
        >>> _ = (run / "config.json").write_text(json.dumps(parts))
        >>> write_report(run).name
        'report.html'
    """
    page = _page(read(run))
    with replacing(run / "report.html") as part:
        part.write_text(page, encoding="utf-8")
    return run / "report.html"


def _page(run: RunFiles) -> str:
    parts = (
        ("quality", "How good is the representation?", _quality(run)),
        ("anomalies", "Does it notice what is unusual?", _anomalies(run)),
        ("gallery", "The most unusual and the most typical", _gallery(run)),
        ("map", "A map of the test items", _map(run)),
        ("neighbors", "Nearest neighbors", _neighbors(run)),
        ("posterior", "How sure is the model?", _posterior(run)),
        ("training", "Training", _training(run)),
        ("skipped", "What was skipped", _skipped_items(run)),
        ("again", "Settings, and how to have these numbers again", _again(run)),
    )
    title = f"{run.path.resolve().name}: {run.config['data'].get('source', '')}"
    return assemble(title, _header(run), parts, run.figures)


def _header(run: RunFiles) -> str:
    facts, fit, model = run.facts, run.config["fit"], run.config["model"]
    shown = {
        "Data": run.config["data"].get("source"),
        "Training items": count(facts.get("n_train")),
        "Test items": count(facts.get("n_test")),
        "Test part": facts.get("note"),
        "Item": " → ".join(" × ".join(map(str, facts[key])) for key in ("shape", "target_shape") if facts.get(key)),
        "Objective": model.get("objective"),
        "Encoder": " → ".join(str(model[key]) for key in ("encoder", "target_encoder") if model.get(key)),
        "Epochs, seed": f"{fit.get('epochs', '–')}, {fit.get('seed', '–')}",
        "Device": ", ".join(str(facts[key]) for key in ("device", "precision") if facts.get(key)),
        "Code": " ".join(str(v) for v in ("vergence", run.config.get("vergence"), facts.get("commit")) if v),
    }
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in run.notes)
    said = "".join(f"<p>{sentence}</p>" for sentence in (_learned(run), _recognized(run), _noticed(run)))
    return f'<h1>{escape(run.path.resolve().name)}</h1><div class="lead">{said}</div>{notes}{definitions(shown)}'


def _learned(run: RunFiles) -> str:
    facts, fit, model = run.facts, run.config["fit"], run.config["model"]
    size = f" ({count(facts['parameters'])} parameters)" if facts.get("parameters") else ""
    noun = str(facts.get("kind", "item")).removesuffix("s") + "s"
    kept = run.config["data"].get("keep_classes")
    labels = f"labels only chose the {len(kept)} classes that it saw" if kept else "no labels were used"
    encoder, objective = (escape(str(model.get(name, "?"))) for name in ("encoder", "objective"))
    return (
        f"The encoder <b>{encoder}</b>{size} looked at {count(facts.get('n_train'))} {noun} for {fit.get('epochs', '–')} "
        f"epochs under the objective <b>{objective}</b>; {labels}."
    )


def _recognized(run: RunFiles) -> str:
    kinds, columns = _representations(run)
    if not columns:
        return f"How well classes can be told apart was not measured{_because(run)}."
    title = next((title for title in columns if title.startswith("k = 30")), next(iter(columns)))
    return f"Recognizing by what is most similar ({title}): {duel(kinds, columns[title], 'of test items get the right class')}"


def _noticed(run: RunFiles) -> str:
    kinds, columns = _detectors(run)
    if "AUROC" in columns and "model" not in kinds.values():
        return "The objective is no density: it has no score that would notice what is unusual; its controls are below."
    if "AUROC" in columns:
        meaning = "of pairs of an anomaly and an ordinary item are ranked rightly (AUROC)"
        return f"Noticing what is unusual: {duel(kinds, columns['AUROC'], meaning)}"
    mean = (run.evaluation.get("posterior") or {}).get("variance_mean")
    if not run.evaluation:
        return "How well unusual items are noticed was not measured either."
    if mean is None:
        return "Nothing was held out as an anomaly, so how well unusual items are noticed is not known."
    known = f", where {_prior(run):g} would be knowing nothing" if _prior(run) is not None else ""
    return f"What the model believes of an item has a variance of {mean:.2f} on average{known}."


def _representations(run: RunFiles) -> tuple[dict[str, str], Columns]:
    found: dict[str, Any] = run.evaluation.get("representations") or {}
    ks = sorted({k for r in found.values() for k in r.get("knn") or {}}, key=int)
    columns = {
        f"k = {k}, {vote}": {n: r["knn"][k][vote] for n, r in found.items() if vote in (r.get("knn") or {}).get(k, {})}
        for vote in ("majority", "weighted")
        for k in ks
    }
    columns["linear probe"] = {name: r["probe"]["accuracy"] for name, r in found.items() if r.get("probe")}
    return _kinds(found), {title: column for title, column in columns.items() if column}


def _detectors(run: RunFiles) -> tuple[dict[str, str], Columns]:
    found: dict[str, Any] = (run.evaluation.get("anomaly") or {}).get("scores") or {}
    titles = {"AUROC": "auroc", "average precision": "aupr", "false alarms at 95 % detection": "fpr95"}
    columns = {title: {n: s[key] for n, s in found.items() if s.get(key) is not None} for title, key in titles.items()}
    return _kinds(found), {title: column for title, column in columns.items() if column}


def _kinds(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.get("kind", "model") for name, entry in found.items()}


def _quality(run: RunFiles) -> str:
    kinds, columns = _representations(run)
    if not run.evaluation:
        return missing("This run was not evaluated yet: <code>vergence evaluate</code> adds accuracies and controls.")
    if not columns:
        return missing(f"There are no accuracies{_because(run)}.") + _collapse(run)
    probes = {name: r["probe"] for name, r in run.evaluation["representations"].items() if r.get("probe")}
    loose = [name for name, probe in probes.items() if not probe.get("converged", True)]
    unsure = f"<p>The probe had not converged on {escape(', '.join(loose))}.</p>" if loose else ""
    note = (run.evaluation.get("protocol") or {}).get("note")
    said = f"<p>Protocol: {escape(str(note))}.</p>" if note else ""
    return verdict(kinds, columns) + _protocol(run) + ranking("Accuracies", kinds, columns) + unsure + said + _collapse(run)


def _protocol(run: RunFiles) -> str:
    protocol = run.evaluation.get("protocol") or {}
    n, bank = protocol.get("test"), protocol.get("bank")
    chance = f" Chance alone moves a figure by up to {50 / math.sqrt(n):.1f} points (one standard error)." if n else ""
    return (
        f"<p>Share of {count(n)} test items whose class is found, in %: by the k most similar of {count(bank)} "
        "training items, each with one vote or weighted by similarity, and by a linear probe. <b>z</b> is the embedding, "
        "<b>mu</b> the mean of what is believed of it. A control has learned nothing: what it reaches needs no training. "
        f"The best of each column is bold.{chance}</p>"
    )


def _collapse(run: RunFiles) -> str:
    titles = {"std": "spread", "effective_rank": "effective rank", "norm": "norm"}
    rows = [
        [escape(name), str(entry.get("dim", "–")), *(number((entry.get("collapse") or {}).get(key)) for key in titles)]
        for name, entry in (run.evaluation.get("representations") or {}).items()
    ]
    words = "<h3>Is the space used?</h3><p>A spread near 0 or an effective rank near 1: all items became one (collapse).</p>"
    return words + table("Use of the space", ["", "features", *titles.values()], rows) if rows else ""


def _anomalies(run: RunFiles) -> str:
    kinds, columns = _detectors(run)
    if not columns:
        nothing = "No class was held out as an anomaly, so there is nothing to detect; <code>--keep-classes</code> does it."
        words = nothing if run.evaluation else "Not measured yet: <code>vergence evaluate</code> does."
        return missing(words) + _histogram(run)
    found = run.evaluation["anomaly"]
    inliers, anomalies = (escape(", ".join(map(str, found.get(key, [])))) for key in ("inliers", "anomalies"))
    words = (
        f"<p>{count(found.get('n_anomalies'))} items of classes never seen in training ({anomalies}) hide among "
        f"{count(found.get('n_inliers'))} of those seen ({inliers}). Larger scores are more unusual. All in %: AUROC 50 is "
        "chance; of false alarms, fewer are better. Scores that are not controls are the model's.</p>"
    )
    return verdict(kinds, columns) + words + ranking("Detection of anomalies", kinds, columns) + _histogram(run)


def _histogram(run: RunFiles) -> str:
    scores = _scores(run)
    if not scores:
        return ""
    names = ("ordinary items", "anomalies") if "anomalous" in run.examples else ("items",)
    groups: dict[str, list[float]] = {name: [] for name in names}
    for i, score in scores.items():
        groups[names[_held_out(run, i)]].append(score)
    words = f"Scores of the examples on this page: {', '.join(f'{len(x)} {name}' for name, x in groups.items())}"
    drawn = _figure(run, "scores", histogram(groups, "score, nats (larger is more unusual)"), f"Histogram. {words}")
    return f"<h3>{words}</h3>{drawn}"


def _scores(run: RunFiles) -> dict[int, float]:
    """Returns the finite scores by item, most unusual first."""
    scores = {i: float(s) for i, s in enumerate(run.examples.get("score", ())) if math.isfinite(s)}
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def _gallery(run: RunFiles) -> str:
    order = list(_scores(run))
    if not order:
        return missing("No example items have scores: <code>vergence evaluate</code> picks some, if the objective is a density.")
    n = min(GALLERY, len(order) // 2 or 1)
    high, low = (_items(run, part) for part in (order[:n], order[: -n - 1 : -1]))
    return f"<h3>Most unusual</h3>{high}<h3>Most typical</h3>{low}"


def _items(run: RunFiles, index: Iterable[int], query: int | None = None) -> str:
    return f'<div class="items{" near" if query is not None else ""}">{"".join(_item(run, i, query) for i in index)}</div>'


def _item(run: RunFiles, i: int, query: int | None) -> str:
    label, caption, address = escape(_label(run, i)), escape(_caption(run, i)), picture(run.examples.get("thumbnail"), i)
    other = query is not None and run.examples["label"][i] != run.examples["label"][query]
    image = f'<img src="{address}" alt="{caption}" title="{caption}" loading="lazy">'
    words = label if query is not None else f"{label}<br>{number(run.examples['score'][i])}{'<br>held out' * _held_out(run, i)}"
    mark = '<span class="query">query</span> ' if i == query else "≠ " if other else ""
    shown = image if address else f"<span>{caption}</span>"
    return f"<figure{' class=other' if other else ''}>{shown}<figcaption>{mark}{words}</figcaption></figure>"


def _held_out(run: RunFiles, i: int) -> bool:
    return "anomalous" in run.examples and bool(run.examples["anomalous"][i])


def _label(run: RunFiles, i: int) -> str:
    label, classes = int(run.examples["label"][i]), run.facts.get("classes") or []
    return "no label" if label < 0 else str(classes[label]) if label < len(classes) else str(label)


def _caption(run: RunFiles, i: int) -> str:
    held_out = ", held out as an anomaly" * _held_out(run, i)
    return f"{run.examples['name'][i]}: {_label(run, i)}, score {number(run.examples['score'][i])}{held_out}"


def _map(run: RunFiles) -> str:
    n = len(run.examples.get("xy", ()))
    if not n:
        return missing("There are no example items to draw; <code>vergence evaluate</code> picks them.")
    captions, scores = [_caption(run, i) for i in range(n)], _scores(run)
    run.figures["items"] = [[picture(run.examples.get("thumbnail"), i), captions[i]] for i in range(n)]
    run.figures["order"] = [*scores, *(i for i in range(n) if i not in scores)]
    alt = f"Map of {n} test items; the slider steps through them"
    drawn = _figure(run, "map", _map_figure(run, captions, list(scores)), alt)
    ordered = {"choice": CHOICE, "order": ", most unusual first"} if scores else {"choice": "", "order": ""}
    return MAP.substitute(n=n, last=n - 1, chart=drawn, **ordered)


def _map_figure(run: RunFiles, captions: list[str], scored: list[int]) -> dict[str, Any]:
    import numpy as np

    xy, label = run.examples["xy"], run.examples["label"]
    groups = [np.flatnonzero(label == value).tolist() for value in np.unique(label)]
    traces = [scatter(xy, index, captions, _label(run, index[0]), k) | {"meta": "label"} for k, index in enumerate(groups)]
    if scored:
        by_score = scatter(xy, scored, captions, "score", 0, run.examples["score"])
        traces.append(by_score | {"meta": "score", "visible": False, "showlegend": False})
    ring = {"size": 18, "symbol": "circle-open", "color": "#000", "line": {"width": 3}}
    traces.append({"meta": "ring", "x": [], "y": [], "mode": "markers", "marker": ring, "showlegend": False, "hoverinfo": "skip"})
    axes = {f"{a}axis": {"title": {"text": f"principal component {i}"}} for a, i in (("x", 1), ("y", 2))}
    return {"data": traces, "layout": {"height": 520, "hovermode": "closest", "showlegend": len(groups) <= LEGEND, **axes}}


def _neighbors(run: RunFiles) -> str:
    rows = run.examples.get("neighbors")
    if rows is None or not len(rows):
        return missing("There are no rows of neighbors for this run.")
    label = run.examples["label"]
    known = rows[label[rows[:, 0]] >= 0]
    same = int((label[known[:, 1:]] == label[known[:, :1]]).sum())
    said = f" {same} of {known[:, 1:].size} neighbors have their query's label; ≠ marks the others." if known.size else ""
    words = f"<p>First the query, then the items whose embeddings are most similar to its own.{said}</p>"
    return words + "".join(_items(run, row, row[0]) for row in rows.tolist())


def _posterior(run: RunFiles) -> str:
    found = run.evaluation.get("posterior")
    if not found:
        return missing("There are no posterior statistics: the run was not evaluated, or its objective keeps no posterior.")
    paper, prior = _reference(run), _prior(run)
    rows = [
        [
            title,
            number(found[key]),
            *([f"about {paper[key]:g}" if key in paper else "–"] if paper else []),
            OTHERS.get(key, meaning) if prior is None else meaning,
        ]
        for key, (title, meaning) in POSTERIOR.items()
        if found.get(key) is not None
    ]
    head = ["", "this run", *(["the paper's"] if paper else []), "what it says"]
    words = "<p>“The paper's” is what the objective's paper reports of its own networks; it was not measured here.</p>"
    before = "<p>Of every item the model keeps a belief with a width. Means over the test items:</p>"
    return before + table("Posterior", head, rows, "words") + words * bool(paper)


def _reference(run: RunFiles) -> Mapping[str, float]:
    """Returns the values that the objective's paper reports, by statistic."""
    kind = _objective(run)
    return {} if kind is None else kind.reference


def _prior(run: RunFiles) -> float | None:
    """Returns the variance of the latent's prior; None for an objective without one."""
    kind = _objective(run)
    return None if kind is None else kind.prior_variance


def _objective(run: RunFiles) -> type["Objective"] | None:
    from vergence import objectives  # imports torch

    return objectives.find(str(run.config["model"].get("objective")))


def _training(run: RunFiles) -> str:
    names = dict.fromkeys(name for row in run.rows for name in row if name not in ("step", "epoch", "seconds"))
    terms = [name for name in names if name not in HINTS]
    order = [name for name in ("loss", *terms, *list(HINTS)[1:]) if name in names]
    charts = "".join(_curve(run, k, name) for k, name in enumerate(order))
    if not charts:
        return missing("There are no training curves: metrics.jsonl is missing or holds no numbers.")
    return f'<p>One quantity each, over the epochs. Point at a line to read it.</p><div class="curves">{charts}</div>'


def _curve(run: RunFiles, k: int, name: str) -> str:
    points = [(row.get("epoch", row.get("step")), row.get(name)) for row in run.rows]
    points = [(x, y) for x, y in points if finite(x) and finite(y)]
    if not points:
        return ""
    x, y = map(list, zip(*points, strict=True))
    title, hint = HINTS.get(name, (name, "term of the loss, nats"))
    alt = f"{title}: from {number(y[0])} to {number(y[-1])}, epoch {number(x[0])} to {number(x[-1])}"
    return f"<div><h3>{escape(title)} <small>{hint}</small></h3>{_figure(run, f'curve{k}', curve(x, y), alt)}</div>"


def _skipped_items(run: RunFiles) -> str:
    if not run.skipped:
        return "<p>Nothing is listed as skipped.</p>"
    more = f" The first {LISTED} are shown; skipped.csv lists all." if len(run.skipped) > LISTED else ""
    rows = [[escape(name), escape(reason)] for name, reason in run.skipped[:LISTED]]
    words = f"<p>{count(len(run.skipped))} items could not be read and were left out.{more}</p>"
    return words + table("Skipped", ["item", "reason"], rows, "words")


def _again(run: RunFiles) -> str:
    rows = [
        [f"{part}: {escape(str(key))}", escape(json.dumps(value, ensure_ascii=False))]
        for part in ("data", "views", "model", "fit", "facts")
        for key, value in run.config[part].items()
    ]
    config, again = (escape(shlex.quote(str(p))) for p in (run.path / "config.json", f"{run.path}-again"))
    command = AGAIN.substitute(config=config, again=again)
    everything = table("Settings", ["setting", "value"], rows, "words")
    return f"{command}<details><summary>All settings and facts</summary>{everything}</details>"


def _figure(run: RunFiles, key: str, figure: dict[str, Any], alt: str) -> str:
    return chart(run.figures, key, figure, alt)


def _because(run: RunFiles) -> str:
    note = (run.evaluation.get("protocol") or {}).get("note") if run.evaluation else "the run was not evaluated"
    return f": {escape(str(note))}" if note else ""
