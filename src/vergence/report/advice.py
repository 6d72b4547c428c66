"""Advice as one page: the verdict in words, then what it rests on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vergence.linear.advice.summary import NAMES, SPACES
from vergence.report.charts import COLORS, SYMBOLS, Figure, lines
from vergence.report.rendering import count, percent, write

__all__ = ["write_page"]

LISTED = 24  # directions in the table
METHODS = {key: NAMES[key] for key in ("joint_embedding", "reconstruction", "pca")}
SECTIONS = {
    "components": "How many components, and how well they predict the classes",
    "directions": "What each method keeps of each direction",
    "spectra": "The two spectra",
    "augmentations": "What each operation contributes",
    "sizes": "Would fewer items have led to the same advice?",
    "command": "Reproduce this advice",
}
Rows = Sequence[Mapping[str, Any]]


def write_page(advice: Mapping[str, Any], path: Path, *, name: str, command: str) -> Path:
    """Writes the page.

    Args:
        advice: The result of `vergence.linear.Advice.to_dict`.
        path: File to write.
        name: Name of the data, for the title.
        command: Command that reproduces the advice.

    Returns:
        ``path``. The page appears in one step.
    """
    components, sizes = advice["components"], advice["sizes"]
    return write(
        path,
        "advice",
        SECTIONS,
        _figures(advice),
        title=f"Advice: {name}",
        verdict=NAMES[advice["verdict"]].capitalize(),
        words=advice["words"],
        facts=_facts(advice, name),
        components=_components(components),
        labeled="margin" in components[0],
        directions=_directions(advice["directions"]),
        augmentations=_augmentations(advice["augmentations"]),
        sized=bool(sizes),
        measured=bool(sizes) and "margin" in sizes[-1],
        command=command,
    )


def _facts(advice: Mapping[str, Any], name: str) -> dict[str, Any]:
    facts = advice["facts"]
    return {
        "Data": name,
        "Items": count(facts["items"]),
        "Features": count(facts["features"]) + SPACES.get(facts.get("space", "raw"), ""),
        "Directions": f"{count(facts['directions'])}, {percent(facts['variance_kept'])}% of the variance",
        "Part of the data": f"the training part (test part: {facts['part']})" if facts.get("part") else None,
        "Unreadable, left out": count(facts["skipped"]) if facts.get("skipped") else None,
        "Components": count(facts["k"]),
        "Views of each item": count(facts["draws"]) if facts["draws"] else "covariance given",
        "Labeled items": count(facts["labeled"]),
        "Evidence": "a probe on labels" if advice["basis"] == "labels" else "the spectra alone",
    }


def _figures(advice: Mapping[str, Any]) -> dict[str, Figure]:
    components, sizes = advice["components"], advice["sizes"]
    figures = {"directions": _directions_figure(advice["directions"]), "spectra": _spectra_figure(advice["spectrum"])}
    if "margin" in components[0]:
        series = {title: [row[key] for row in components] for key, title in METHODS.items()}
        figures["accuracy"] = lines([row["k"] for row in components], series, "components", "accuracy")
    if sizes:
        x = [row["items"] for row in sizes]
        keys = ("joint_embedding", "reconstruction")
        settled = {f"{METHODS[key]}, agreement": [row[f"{key}_settled"] for row in sizes] for key in keys}
        figures["settled"] = lines(x, settled, "items", "overlap with all items")
        if "margin" in sizes[-1]:
            series = {title: [row.get(key) for row in sizes] for key, title in METHODS.items()}
            figures["sizes"] = lines(x, series, "items", "accuracy")
    return figures


def _components(rows: Rows) -> dict[str, Any]:
    """Returns head and rows of the table of numbers of components."""
    head, shown = ["components", "overlap, %"], [[str(row["k"]), percent(row["overlap"])] for row in rows]
    if "margin" in rows[0]:
        head += [*(f"{title}, %" for title in METHODS.values()), "margin, points", "95 %"]
        for cells, row in zip(shown, rows, strict=True):
            low, high = (_signed(end) for end in row["interval"])
            cells += [*(percent(row[key]) for key in METHODS), _signed(row["margin"]), f"{low} to {high}"]
    return {"head": head, "rows": shown}


def _directions(rows: Rows) -> list[list[str]]:
    """Returns the table's rows: the first directions, and those that the two methods treat most differently."""
    half = LISTED // 2
    different = sorted(range(len(rows)), key=lambda i: -abs(rows[i]["joint_embedding"] - rows[i]["reconstruction"]))[:half]
    keys = ("variance", "invariance", "label", "joint_embedding", "reconstruction")
    return [[str(i + 1), *(percent(rows[i][key]) for key in keys)] for i in sorted({*different, *range(min(half, len(rows)))})]


def _directions_figure(rows: Rows) -> Figure:
    kept: dict[str, list[int]] = {"both": [], "joint embedding": [], "reconstruction": [], "neither": []}
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
    return {"data": traces, "layout": {"height": 400, "dragmode": False, "showlegend": True, **axes}}


def _keeper(row: Mapping[str, Any]) -> str:
    je, rc = row["joint_embedding"] >= 0.5, row["reconstruction"] >= 0.5
    return "both" if je and rc else "joint embedding" if je else "reconstruction" if rc else "neither"


def _spectra_figure(spectrum: Mapping[str, Any]) -> Figure:
    x = [float(i + 1) for i in range(len(spectrum["omega"]))]
    first, total = spectrum["phi"][0] ** 2, spectrum["variance"][0]
    series = {
        "joint embedding: invariance": spectrum["omega"],
        "reconstruction: explained, relative to its first": [phi**2 / first for phi in spectrum["phi"]],
        "variance, relative to the first direction": [v / total for v in spectrum["variance"]],
    }
    return lines(x, series, "component", "share", ticks=False)


def _augmentations(rows: Rows) -> dict[str, Any] | None:
    """Returns head and rows of the table of operations; None where the augmentation has no parts."""
    if len(rows) == 1:
        return None
    keys = {"strength": "strength", "unchanged": "unchanged", "alignment": "alignment"}
    keys |= {"joint_embedding": "joint embedding finds", "reconstruction": "reconstruction finds"}
    keys = {key: title for key, title in keys.items() if key in rows[0]}
    names = ["all", *(f"without {row['operation']}" for row in rows[1:])]
    shown = [[name, *(percent(row[key]) for key in keys)] for name, row in zip(names, rows, strict=True)]
    return {"head": ["", *(f"{title}, %" for title in keys.values())], "rows": shown}


def _signed(x: float) -> str:
    return percent(x, "+.1f")
