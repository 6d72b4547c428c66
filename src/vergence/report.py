"""A run as one page: what was learnt, how it compares with its controls, and what stands out. It works offline.

Names, classes and notes belong to the user: every string passes `html.escape` on its way into the page.
"""

import json
import math
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from vergence.files import replacing
from vergence.report_files import RunFiles, read
from vergence.report_page import (
    AGAIN,
    CHOICE,
    MAP,
    SCRIPT,
    STYLE,
    TEMPLATE,
    count,
    curve,
    finite,
    histogram,
    missing,
    number,
    picture,
    scatter,
    table,
)

__all__ = ["write_report"]

Columns = dict[str, dict[str, float]]  # column title -> row name -> value

GALLERY, LISTED, LEGEND = 18, 100, 30  # items a side; rows of skipped items; classes in a legend
NOUNS = {"image": "images", "vector": "vectors", "pairs": "pairs"}
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
    "variance_mean": ("Variance, mean", "0.3", "1 is the prior: nothing was learnt about the item; 0 is false certainty"),
    "variance_cv": ("Variance, coefficient of variation", "0.75", "how much certainty differs from feature to feature"),
    "entropy": ("Entropy, nats", "", "larger is less sure; grows with the number of features"),
    "norm_z": ("Norm of z, mean", "", "length of the embedding"),
    "norm_mu": ("Norm of the posterior mean, mean", "", "length of what is believed of it"),
}


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
    from plotly.offline import get_plotlyjs

    parts = (
        ("quality", "How good is the representation?", _quality(run)),
        ("anomalies", "Does it notice what is unusual?", _anomalies(run)),
        ("gallery", "The most unusual and the most typical", _gallery(run)),
        ("map", "A map of the test items", _map(run)),
        ("neighbours", "Nearest neighbours", _neighbours(run)),
        ("posterior", "How sure is the model?", _posterior(run)),
        ("training", "Training", _training(run)),
        ("skipped", "What was skipped", _skipped_items(run)),
        ("again", "Settings, and how to have these numbers again", _again(run)),
    )
    figures = json.dumps(run.figures, allow_nan=False).replace("<", "\\u003c")  # a name cannot end the script
    return TEMPLATE.substitute(
        title=escape(f"{run.name}: {run.config['data'].get('source', '')}"),
        style=STYLE,
        header=_header(run),
        nav="".join(f'<a href="#{anchor}">{title}</a>' for anchor, title, _ in parts),
        main="".join(f'<section id="{anchor}"><h2>{title}</h2>{body}</section>' for anchor, title, body in parts),
        plotly=get_plotlyjs(),
        figures=figures,
        script=SCRIPT,
    )


def _header(run: RunFiles) -> str:
    facts, fit, model = run.facts, run.config["fit"], run.config["model"]
    shown = {
        "Data": run.config["data"].get("source"),
        "Training items": count(facts.get("n_train")),
        "Test items": count(facts.get("n_test")),
        "Test part": facts.get("note"),
        "Item": " × ".join(map(str, facts.get("shape") or [])),
        "Objective": model.get("objective"),
        "Encoder": model.get("encoder"),
        "Epochs, seed": f"{fit.get('epochs', '–')}, {fit.get('seed', '–')}",
        "Device": ", ".join(str(facts[key]) for key in ("device", "precision") if facts.get(key)),
        "Code": " ".join(str(v) for v in ("vergence", run.config.get("vergence"), facts.get("commit")) if v),
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{escape(str(value))}</dd></div>" for name, value in shown.items() if value)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in run.notes)
    said = "".join(f"<p>{sentence}</p>" for sentence in (_learnt(run), _recognised(run), _noticed(run)))
    return f'<h1>{escape(run.name)}</h1><div class="lead">{said}</div>{notes}<dl>{cells}</dl>'


def _learnt(run: RunFiles) -> str:
    facts, fit, model = run.facts, run.config["fit"], run.config["model"]
    size = f" ({count(facts['parameters'])} parameters)" if facts.get("parameters") else ""
    noun = NOUNS.get(facts.get("kind", ""), "items")
    kept = run.config["data"].get("keep_classes")
    labels = f"labels only chose the {len(kept)} classes that it saw" if kept else "no labels were used"
    encoder, objective = escape(str(model.get("encoder", "?"))), escape(str(model.get("objective", "?")))
    return (
        f"The encoder <b>{encoder}</b>{size} looked at {count(facts.get('n_train'))} {noun} for {fit.get('epochs', '–')} epochs "
        f"under the objective <b>{objective}</b>; {labels}."
    )


def _recognised(run: RunFiles) -> str:
    kinds, columns = _representations(run)
    if not columns:
        return f"How well classes can be told apart was not measured{_because(run)}."
    title = next((title for title in columns if title.startswith("k = 30")), next(iter(columns)))
    return (
        f"Told apart by what lies nearest ({title}): {_duel(kinds, columns[title], 'of test items get their right class')}"
    )


def _noticed(run: RunFiles) -> str:
    kinds, columns = _detectors(run)
    if columns:
        return f"Unusual items: {_duel(kinds, columns['AUROC'], 'of pairs of an anomaly and an ordinary item are ranked rightly')}"
    mean = (run.evaluation.get("posterior") or {}).get("variance_mean")
    if mean is None:
        return "Nothing was held out as an anomaly, so how well unusual items are noticed is not known."
    return f"What the model believes of an item has a variance of {mean:.2f} on average, where 1 would be knowing nothing."


def _duel(kinds: Mapping[str, str], column: Mapping[str, float], meaning: str) -> str:
    """Says how the first of the model's rows does beside the best control."""
    name = next((name for name in column if kinds[name] == "model"), None)
    control = max((name for name in column if kinds[name] != "model"), key=column.__getitem__, default=None)
    if name is None:
        return "the model itself was not measured."
    said = f"with <b>{escape(name)}</b>, <b>{column[name]:.1%}</b> {meaning}"
    if control is None:
        return f"{said}; there is no control beside it."
    verdict = (
        "; the model is ahead."
        if column[name] > column[control]
        else ": <strong>the control does at least as well.</strong>"
    )
    return f"{said}; with the best control, {escape(control)}, {column[control]:.1%}{verdict}"


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
        return missing(
            f"This run was not evaluated yet: <code>vergence evaluate {escape(run.name)}</code> adds accuracies and controls."
        )
    if not columns:
        return missing(f"There are no accuracies{_because(run)}.") + _collapse(run)
    protocol = run.evaluation.get("protocol") or {}
    found = run.evaluation["representations"]
    loose = [name for name, r in found.items() if r.get("probe") and not r["probe"].get("converged", True)]
    words = (
        f"<p>Share of {count(protocol.get('test'))} test items whose class is found, in %: by the k most similar of {count(protocol.get('bank'))} "
        "training items (each with one vote, or weighted by similarity), and by a linear probe. <b>z</b> is the embedding, <b>mu</b> the mean of what "
        "is believed of it. Controls learnt nothing: what they reach needs no training. The best of a column is bold.</p>"
    )
    unsure = f"<p>The probe had not converged on {escape(', '.join(loose))}.</p>" if loose else ""
    note = f'<p class="note">{escape(str(protocol["note"]))}</p>' if protocol.get("note") else ""
    return _verdict(kinds, columns) + words + _ranking("Accuracies", kinds, columns) + unsure + note + _collapse(run)


def _collapse(run: RunFiles) -> str:
    titles = {"std": "spread", "effective_rank": "effective rank", "norm": "norm"}
    rows = [
        [escape(name), str(entry.get("dim", "–")), *(number((entry.get("collapse") or {}).get(key)) for key in titles)]
        for name, entry in (run.evaluation.get("representations") or {}).items()
    ]
    words = (
        "<p>Is the space used? A spread near 0 or an effective rank near 1 says that all items became one (collapse).</p>"
    )
    return words + table("Use of the space", ["", "features", *titles.values()], rows) if rows else ""


def _anomalies(run: RunFiles) -> str:
    kinds, columns = _detectors(run)
    chart = _histogram(run)
    if not columns:
        return (
            missing(
                "No class was held out as an anomaly (<code>--keep-classes</code> does it), so there is nothing to detect here."
            )
            + chart
        )
    found = run.evaluation["anomaly"]
    inliers, anomalies = (escape(", ".join(map(str, found.get(key, [])))) for key in ("inliers", "anomalies"))
    words = (
        f"<p>{count(found.get('n_anomalies'))} items of classes never seen in training ({anomalies}) among {count(found.get('n_inliers'))} of those seen "
        f"({inliers}). Larger scores are more unusual. All in %; AUROC 50 is chance; of false alarms, fewer are better.</p>"
    )
    return _verdict(kinds, columns) + words + _ranking("Detection of anomalies", kinds, columns) + chart


def _verdict(kinds: Mapping[str, str], columns: Columns) -> str:
    """Says in words where a control is strictly better than everything of the model's."""
    won: dict[str, list[str]] = {}
    for title, column in columns.items():
        best = _best(title, column)
        winners = [name for name, value in column.items() if value == best]
        if all(kinds[name] != "model" for name in winners):
            won.setdefault(" and ".join(winners), []).append(title)
    if not won:
        return "<p>In every column the trained model is at least level with its controls.</p>"
    said = "; ".join(
        f"<b>{escape(name)}</b> in {len(titles)} of {len(columns)} columns ({', '.join(titles)})"
        for name, titles in won.items()
    )
    return f'<p class="note"><strong>A control wins:</strong> {said}. There, training has not paid.</p>'


def _best(title: str, column: Mapping[str, float]) -> float:
    return (min if title.startswith("false alarms") else max)(column.values())


def _ranking(label: str, kinds: Mapping[str, str], columns: Columns) -> str:
    def cell(title: str, name: str) -> str:
        value = columns[title].get(name)
        shown = "–" if value is None else f"{100 * value:.1f}"
        return f"<b>{shown}</b>" if value is not None and value == _best(title, columns[title]) else shown

    tag = ' <span class="tag">control</span>'
    rows = [
        [escape(name) + ("" if kind == "model" else tag), *(cell(title, name) for title in columns)]
        for name, kind in kinds.items()
    ]
    return table(label, ["", *columns], rows)


def _histogram(run: RunFiles) -> str:
    scores, anomalous = _scores(run), run.examples.get("anomalous")
    if not scores:
        return ""
    names = ("items",) if anomalous is None else ("ordinary items", "anomalies")
    groups: dict[str, list[float]] = {name: [] for name in names}
    for i, score in scores.items():
        groups[names[0 if anomalous is None else int(anomalous[i])]].append(score)
    words = f"Scores of the examples on this page: {', '.join(f'{len(x)} {name}' for name, x in groups.items())}"
    chart = _figure(run, "scores", histogram(groups, "score, nats (larger is more unusual)"), f"Histogram. {words}")
    return f"<p>{words}.</p>{chart}"


def _scores(run: RunFiles) -> dict[int, float]:
    """Returns the finite scores by item, most unusual first."""
    scores = {i: float(s) for i, s in enumerate(run.examples.get("score", ())) if math.isfinite(s)}
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def _gallery(run: RunFiles) -> str:
    order = list(_scores(run))
    if not order:
        return missing("There are no scored example items; <code>vergence evaluate</code> picks them.")
    n = min(GALLERY, len(order) // 2 or 1)
    high, low = (_items(run, part) for part in (order[:n], order[: -n - 1 : -1]))
    return f"<h3>Most unusual</h3>{high}<h3>Most typical</h3>{low}"


def _items(run: RunFiles, index: Iterable[int], query: int | None = None) -> str:
    return f'<div class="items">{"".join(_item(run, i, query) for i in index)}</div>'


def _item(run: RunFiles, i: int, query: int | None) -> str:
    label, caption = _label(run, i), escape(_caption(run, i))
    other = query is not None and run.examples["label"][i] != run.examples["label"][query]
    picture = _picture(run, i)
    seen = (
        f'<img src="{picture}" alt="{caption}" title="{caption}" loading="lazy">' if picture else f"<span>{caption}</span>"
    )
    words = escape(label) if query is not None else f"{escape(label)} {number(run.examples['score'][i])}"
    mark = '<span class="query">query</span> ' if i == query else "≠ " if other else ""
    return f"<figure{' class=other' if other else ''}>{seen}<figcaption>{mark}{words}</figcaption></figure>"


def _label(run: RunFiles, i: int) -> str:
    label, classes = int(run.examples["label"][i]), run.facts.get("classes") or []
    return "no label" if label < 0 else str(classes[label]) if label < len(classes) else str(label)


def _caption(run: RunFiles, i: int) -> str:
    anomalous = run.examples.get("anomalous")
    held_out = ", held out as an anomaly" if anomalous is not None and anomalous[i] else ""
    return f"{run.examples['name'][i]}: {_label(run, i)}, score {number(run.examples['score'][i])}{held_out}"


def _picture(run: RunFiles, i: int) -> str:
    return picture(run.examples["thumbnail"][i]) if "thumbnail" in run.examples else ""


def _map(run: RunFiles) -> str:
    n = len(run.examples.get("xy", ()))
    if not n:
        return missing("There are no example items to draw; <code>vergence evaluate</code> picks them.")
    captions, scores = [_caption(run, i) for i in range(n)], _scores(run)
    run.figures["items"] = [[_picture(run, i), captions[i]] for i in range(n)]
    run.figures["order"] = [*scores, *(i for i in range(n) if i not in scores)]
    chart = _figure(
        run, "map", _map_figure(run, captions, list(scores)), f"Map of {n} test items; the slider steps through them"
    )
    return MAP.substitute(n=n, last=n - 1, chart=chart, choice=CHOICE if scores else "")


def _map_figure(run: RunFiles, captions: list[str], scored: list[int]) -> dict[str, Any]:
    import numpy as np

    xy, label = run.examples["xy"], run.examples["label"]
    groups = [np.flatnonzero(label == value).tolist() for value in np.unique(label)]
    traces = [scatter(xy, index, captions, _label(run, index[0]), k) | {"meta": "label"} for k, index in enumerate(groups)]
    if scored:
        by_score = scatter(xy, scored, captions, "score", 0, run.examples["score"])
        traces.append(by_score | {"meta": "score", "visible": False, "showlegend": False})
    ring = {"size": 18, "symbol": "circle-open", "color": "#000", "line": {"width": 3}}
    traces.append(
        {"meta": "ring", "x": [], "y": [], "mode": "markers", "marker": ring, "showlegend": False, "hoverinfo": "skip"}
    )
    axes = {f"{a}axis": {"title": {"text": f"principal component {i}"}, "zeroline": False} for a, i in (("x", 1), ("y", 2))}
    return {"data": traces, "layout": {"height": 520, "hovermode": "closest", "showlegend": len(groups) <= LEGEND, **axes}}


def _neighbours(run: RunFiles) -> str:
    rows = run.examples.get("neighbours")
    if rows is None or not len(rows):
        return missing("There are no rows of neighbours for this run.")
    label = run.examples["label"]
    known = rows[label[rows[:, 0]] >= 0]
    same = int((label[known[:, 1:]] == label[known[:, :1]]).sum())
    count = f" {same} of {known[:, 1:].size} neighbours have their query's label; ≠ marks the others." if known.size else ""
    words = f"<p>First the query, then the items whose embeddings are most similar to its own.{count}</p>"
    return words + "".join(_items(run, row, row[0]) for row in rows.tolist())


def _posterior(run: RunFiles) -> str:
    found = run.evaluation.get("posterior")
    if not found:
        return missing("There are no posterior statistics: the run was not evaluated, or its objective keeps no posterior.")
    ours = run.config["model"].get("objective") == "vje"
    rows = [
        [title, number(found[key]), *([f"about {paper}" if paper else "–"] if ours else []), meaning]
        for key, (title, paper, meaning) in POSTERIOR.items()
        if found.get(key) is not None
    ]
    head = ["", "this run", *(["the paper's regime"] if ours else []), "what it says"]
    words = "<p>The paper's regime is what the VJE paper reports of its own runs on CIFAR and STL-10; it was not measured here.</p>"
    return (
        "<p>For every item the model keeps a belief with a width. Means over the test items:</p>"
        + table("Posterior", head, rows, "words")
        + (words if ours else "")
    )


def _training(run: RunFiles) -> str:
    names = dict.fromkeys(name for row in run.rows for name in row if name not in ("step", "epoch", "seconds"))
    terms = [name for name in names if name not in HINTS]
    order = [name for name in ("loss", *terms, *list(HINTS)[1:]) if name in names]
    charts = "".join(_curve(run, k, name) for k, name in enumerate(order))
    if not charts:
        return missing("There are no training curves: metrics.jsonl is missing or holds no numbers.")
    return f"<p>Each line is one quantity over the epochs; what is not named otherwise is a term of the loss.</p><div class='curves'>{charts}</div>"


def _curve(run: RunFiles, k: int, name: str) -> str:
    points = [(row.get("epoch", row.get("step")), row.get(name)) for row in run.rows]
    points = [(x, y) for x, y in points if finite(x) and finite(y)]
    if not points:
        return ""
    x, y = (list(part) for part in zip(*points, strict=True))
    title, hint = HINTS.get(name, (name, "term of the loss, nats"))
    alt = f"{title}: from {number(y[0])} to {number(y[-1])}, epoch {number(x[0])} to {number(x[-1])}"
    return f"<div><h3>{escape(title)} <small>{hint}</small></h3>{_figure(run, f'curve{k}', curve(x, y), alt)}</div>"


def _skipped_items(run: RunFiles) -> str:
    if not run.skipped:
        return "<p>Nothing is listed as skipped.</p>"
    more = f"<p>The first {LISTED} are shown; skipped.csv lists all.</p>" if len(run.skipped) > LISTED else ""
    rows = [[escape(name), escape(reason)] for name, reason in run.skipped[:LISTED]]
    return f"<p>{count(len(run.skipped))} items could not be read and were left out.</p>{more}" + table(
        "Skipped", ["item", "reason"], rows, "words"
    )


def _again(run: RunFiles) -> str:
    rows = [
        [f"{part}: {escape(str(key))}", escape(json.dumps(value, ensure_ascii=False))]
        for part in ("data", "views", "model", "fit", "facts")
        for key, value in run.config[part].items()
    ]
    return (
        AGAIN
        + f"<details><summary>All settings and facts</summary>{table('Settings', ['setting', 'value'], rows, 'words')}</details>"
    )


def _figure(run: RunFiles, key: str, figure: dict[str, Any], alt: str) -> str:
    run.figures[key] = figure
    return f'<div class="figure" data-figure="{key}" role="img" aria-label="{escape(alt)}"></div>'


def _because(run: RunFiles) -> str:
    note = (run.evaluation.get("protocol") or {}).get("note") if run.evaluation else "the run was not evaluated"
    return f": {escape(str(note))}" if note else ""
