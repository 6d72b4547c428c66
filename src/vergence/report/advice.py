"""Advice as one page that works offline: the verdict in words, then what it rests on."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vergence.linear.advice.summary import NAMES
from vergence.report.parts import COLORS, SYMBOLS, assemble, chart, count, definitions, lines, missing, table
from vergence.utils.files import replacing

__all__ = ["write_page"]

METHODS = {key: NAMES[key] for key in ("joint_embedding", "reconstruction", "pca")}
LISTED = 24  # directions in the table


def write_page(advice: Mapping[str, Any], path: Path, *, name: str, command: str) -> Path:
    """Writes the page.

    Args:
        advice: What `vergence.linear.Advice.to_dict` gives.
        path: Of the page.
        name: Of the data, for the title.
        command: What repeats it.

    Returns:
        ``path``. The page appears in one step.
    """
    figures: dict[str, Any] = {}
    parts = (
        ("components", "How many components, and what can be read from them", _components(advice, figures)),
        ("directions", "How each direction of the data fares", _directions(advice, figures)),
        ("spectra", "The two spectra", _spectra(advice, figures)),
        ("augmentations", "What each operation contributes", _augmentations(advice["augmentations"])),
        ("sizes", "Would fewer items have said the same?", _sizes(advice["sizes"], figures)),
        ("again", "To have these numbers again", f"<pre><code>{escape(command)}</code></pre>"),
    )
    page = assemble(f"Advice: {name}", _header(advice, name), parts, figures)
    with replacing(path) as part:
        part.write_text(page, encoding="utf-8")
    return path


def _header(advice: Mapping[str, Any], name: str) -> str:
    facts = advice["facts"]
    shown = {
        "Data": name,
        "Items": count(facts["items"]),
        "Features": count(facts["features"]),
        "Directions": f"{count(facts['directions'])}, {facts['variance_kept']:.1%} of the variance",
        "Of the data": f"the training part (test part: {facts['part']})" if facts.get("part") else None,
        "Left out, unreadable": count(facts["skipped"]) if facts.get("skipped") else None,
        "Components": count(facts["k"]),
        "Views of each item": count(facts["draws"]) if facts["draws"] else "covariance given",
        "Labeled items": count(facts["labeled"]),
        "Judged by": "a probe on labels" if advice["basis"] == "labels" else "the spectra alone",
    }
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in advice["words"])
    return f'<h1>{NAMES[advice["verdict"]].capitalize()}</h1><div class="lead">{said}</div>{definitions(shown)}'


def _components(advice: Mapping[str, Any], figures: dict[str, Any]) -> str:
    rows, ks = advice["components"], [row["k"] for row in advice["components"]]
    words = (
        "<p>Overlap: how far joint embedding and reconstruction keep the same directions (100 %: exactly). With labels: share of "
        "held-out items whose class a least-squares probe finds, with its margin (joint embedding minus reconstruction) and the "
        "margin's 95 % interval.</p>"
    )
    if "margin" not in rows[0]:
        body = [[str(row["k"]), _percent(row["overlap"])] for row in rows]
        return words + table("Components", ["components", "overlap, %"], body)
    series = {title: [row[key] for row in rows] for key, title in METHODS.items()}
    drawn = chart(figures, "accuracy", lines(ks, series, "components", "accuracy"), "Accuracy over the number of components")
    body = [
        [str(row["k"]), _percent(row["overlap"]), *(_percent(row[key]) for key in METHODS), _signed(row["margin"]), _range(row)]
        for row in rows
    ]
    head = ["components", "overlap, %", *(f"{title}, %" for title in METHODS.values()), "margin, points", "95 %"]
    return words + drawn + table("Components", head, body)


def _directions(advice: Mapping[str, Any], figures: dict[str, Any]) -> str:
    rows = advice["directions"]
    words = (
        "<p>Each point is a principal direction of the data: to the right, more variance; up, less of it is shaken. "
        "Joint embedding ranks by invariance alone, reconstruction by variance times invariance.</p>"
    )
    kept = {"both": [], "joint embedding": [], "reconstruction": [], "neither": []}  # type: dict[str, list[int]]
    for i, row in enumerate(rows):
        kept[_keeper(row)].append(i)
    traces = [
        {"x": [rows[i]["variance"] for i in index], "y": [rows[i]["invariance"] for i in index], "mode": "markers", "name": name}
        | {"marker": {"color": COLORS[j], "symbol": SYMBOLS[j], "size": 8}}
        | {"text": [f"direction {i + 1}" for i in index]}
        for j, (name, index) in enumerate(kept.items())
        if index
    ]
    axes = {"xaxis": {"title": {"text": "share of the variance"}, "type": "log"}, "yaxis": {"title": {"text": "invariance"}}}
    figure = {"data": traces, "layout": {"height": 400, "dragmode": False, "showlegend": True, **axes}}
    order = sorted(range(len(rows)), key=lambda i: -abs(rows[i]["joint_embedding"] - rows[i]["reconstruction"]))
    chosen = sorted(order[: LISTED // 2] + [i for i in range(min(LISTED // 2, len(rows))) if i not in order[: LISTED // 2]])
    head = [
        "direction",
        "variance, %",
        "invariance, %",
        "between classes, %",
        "kept by joint embedding, %",
        "by reconstruction, %",
    ]
    keys = ("variance", "invariance", "label", "joint_embedding", "reconstruction")
    body = [[str(i + 1), *(_percent(rows[i][key]) for key in keys)] for i in chosen]
    said = "<p>The first directions, and those that joint embedding (JE) and reconstruction (RC) treat most differently:</p>"
    return (
        words
        + chart(figures, "directions", figure, "Variance and invariance of each direction")
        + said
        + table("Directions", head, body)
    )


def _keeper(row: Mapping[str, Any]) -> str:
    je, rc = row["joint_embedding"] >= 0.5, row["reconstruction"] >= 0.5
    return "both" if je and rc else "joint embedding" if je else "reconstruction" if rc else "neither"


def _spectra(advice: Mapping[str, Any], figures: dict[str, Any]) -> str:
    spectrum = advice["spectrum"]
    x = [float(i + 1) for i in range(len(spectrum["omega"]))]
    first, total = spectrum["phi"][0] ** 2, spectrum["variance"][0]
    series = {
        "joint embedding: invariance": spectrum["omega"],
        "reconstruction: explained, of its first": [phi**2 / first for phi in spectrum["phi"]],
        "variance, of the first direction's": [v / total for v in spectrum["variance"]],
    }
    figure = lines(x, series, "component", "share")
    del figure["layout"]["xaxis"]["tickvals"]
    words = "<p>Where a curve falls steeply, its method has a natural number of components; where it is flat, any is as good.</p>"
    return words + chart(figures, "spectra", figure, "Spectra of both problems and of the data")


def _augmentations(rows: Sequence[Mapping[str, Any]]) -> str:
    if len(rows) == 1:
        return missing("The augmentation is one piece: nothing can be left out. A dictionary of named functions has parts.")
    words = (
        "<p>Strength: the augmentation's share of a view's variance. Unchanged: how far joint embedding keeps the same "
        "directions as with the whole. Alignment: of what is linearly readable of the classes, the share that its components "
        "keep. All on the same part of the items.</p>"
    )
    keys = {"strength": "strength", "unchanged": "unchanged", "alignment": "alignment"}
    keys |= {"joint_embedding": "joint embedding finds", "reconstruction": "reconstruction finds"}
    keys = {key: title for key, title in keys.items() if key in rows[0]}
    body = [
        ["all" if i == 0 else f"without {escape(row['operation'])}", *(_percent(row[key]) for key in keys)]
        for i, row in enumerate(rows)
    ]
    return words + table("Operations", ["", *(f"{title}, %" for title in keys.values())], body)


def _sizes(rows: Sequence[Mapping[str, Any]], figures: dict[str, Any]) -> str:
    if not rows:
        return missing("There are too few items for a curve.")
    x = [row["items"] for row in rows]
    settled = {
        f"{METHODS[key]}, settled": [row[f"{key}_settled"] for row in rows] for key in ("joint_embedding", "reconstruction")
    }
    words = "<p>Settled: how far the directions that so many items give are those that all items give.</p>"
    drawn = chart(figures, "settled", lines(x, settled, "items", "overlap with all items"), "How settled the directions are")
    if "margin" not in rows[-1]:
        return words + drawn
    series = {title: [row.get(key) for row in rows] for key, title in METHODS.items()}
    more = "<p>Accuracy on items that were never used, when so many items (and their labels) were:</p>"
    return (
        words + drawn + more + chart(figures, "sizes", lines(x, series, "items", "accuracy"), "Accuracy over the number of items")
    )


def _percent(x: float | None) -> str:
    return "–" if x is None or not math.isfinite(x) else f"{100 * x:.1f}"


def _signed(x: float) -> str:
    return f"{100 * x:+.1f}"


def _range(row: Mapping[str, Any]) -> str:
    return f"{_signed(row['interval'][0])} to {_signed(row['interval'][1])}"
