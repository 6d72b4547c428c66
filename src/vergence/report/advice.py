"""Advice in the terminal and as one page: the verdict in words, then what it rests on."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vergence.linear.advice.summary import NAMES, SPACES
from vergence.report.charts import Chart, Series, chart
from vergence.report.rendering import count, percent, write
from vergence.utils import terminal

__all__ = ["show_advice", "write_advice"]

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
Table = tuple[list[str], list[list[str]]]  # head and rows


def write_advice(advice: Mapping[str, Any], path: Path, *, name: str, command: str) -> Path:
    """Writes the page.

    Args:
        advice: The result of `vergence.linear.Advice.to_dict`.
        path: File to write.
        name: Name of the data, for the title.
        command: Command that reproduces the advice.

    Returns:
        ``path``. The page appears in one step.
    """
    return write(
        path,
        "advice",
        SECTIONS,
        title=f"Advice: {name}",
        verdict=NAMES[advice["verdict"]].capitalize(),
        words=advice["words"],
        facts=_facts(advice, name),
        figures=_figures(advice),
        components=_components(advice["components"]),
        directions=_directions(advice["directions"]),
        augmentations=_augmentations(advice["augmentations"]) if len(advice["augmentations"]) > 1 else None,
        command=command,
    )


def show_advice(advice: Mapping[str, Any]) -> None:
    """Prints the result of `vergence.linear.Advice.to_dict`: its words, and the tables that they rest on."""
    facts = advice["facts"]
    part = f" of the training part (test part: {facts['part']})" if facts.get("part") else ""
    print("\n\n".join(advice["words"]) + f"\n\n{facts['items']:,} items{part}, {facts['draws'] or 'no'} views of each\n")
    title = "directions kept and classes found (JE joint embedding, RC reconstruction)"
    terminal.table(title, *_brief(_components(advice["components"])))
    print(
        "strength: share of a view's variance; unchanged: share of directions that joint embedding keeps as before; "
        "alignment: share of the class information that it keeps"
    )
    if "joint_embedding" in advice["augmentations"][0]:
        print("this table uses fewer views, so its accuracies differ slightly from those above")
    terminal.table("the augmentation", *_brief(_augmentations(advice["augmentations"])))


def _brief(table: Table) -> Table:
    """Returns a table with shorter names, for the terminal."""
    short = {"joint embedding": "JE", "reconstruction": "RC", "components": "kept", ", %": " %", ", points": ""}
    head, rows = table
    titles = [functools.reduce(lambda title, name: title.replace(name, short[name]), short, title) for title in head]
    return titles, [[row[0].replace("without ", "no ", 1), *row[1:]] for row in rows]


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


def _figures(advice: Mapping[str, Any]) -> dict[str, Chart]:
    components, sizes = advice["components"], advice["sizes"]
    figures = {"directions": _directions_chart(advice["directions"]), "spectra": _spectra_chart(advice["spectrum"])}

    def over(rows: Rows, x: str, titles: Mapping[str, str], ytitle: str) -> Chart:
        at = [row[x] for row in rows]
        series = [Series(title, at, [row.get(key) for row in rows]) for key, title in titles.items()]
        return chart(series, {"k": "components"}.get(x, x), ytitle, log=True, ticks=at)

    if "margin" in components[0]:
        figures["accuracy"] = over(components, "k", METHODS, "accuracy")
    if sizes:
        settled = {f"{key}_settled": f"{METHODS[key]}, agreement" for key in ("joint_embedding", "reconstruction")}
        figures["settled"] = over(sizes, "items", settled, "overlap with all items")
        if "margin" in sizes[-1]:
            figures["sizes"] = over(sizes, "items", METHODS, "accuracy")
    return figures


def _components(rows: Rows) -> Table:
    """Returns the table of numbers of components."""
    head, shown = ["components", "overlap, %"], [[str(row["k"]), percent(row["overlap"])] for row in rows]
    if "margin" in rows[0]:
        head += [*(f"{title}, %" for title in METHODS.values()), "margin, points", "95 %"]
        for cells, row in zip(shown, rows, strict=True):
            low, high, margin = (percent(x, "+.1f") for x in (*row["interval"], row["margin"]))
            cells += [*(percent(row[key]) for key in METHODS), margin, f"{low} to {high}"]
    return head, shown


def _directions(rows: Rows) -> list[list[str]]:
    """Returns the table's rows: the first directions, and those that the two methods treat most differently."""
    half = LISTED // 2
    different = sorted(range(len(rows)), key=lambda i: -abs(rows[i]["joint_embedding"] - rows[i]["reconstruction"]))[:half]
    keys = ("variance", "invariance", "label", "joint_embedding", "reconstruction")
    return [[str(i + 1), *(percent(rows[i][key]) for key in keys)] for i in sorted({*different, *range(min(half, len(rows)))})]


def _directions_chart(rows: Rows) -> Chart:
    keepers = {(True, True): "both", (True, False): "joint embedding", (False, True): "reconstruction", (False, False): "neither"}
    series = []
    for keeps, name in keepers.items():
        of = {i: row for i, row in enumerate(rows) if keeps == (row["joint_embedding"] >= 0.5, row["reconstruction"] >= 0.5)}
        x, y = ([row[key] for row in of.values()] for key in ("variance", "invariance"))
        series.append(Series(name, x, y, [f"direction {i + 1}" for i in of], line=False))
    return chart([s for s in series if s.x], "share of the variance", "invariance", size=(760, 400), log=True)


def _spectra_chart(spectrum: Mapping[str, Any]) -> Chart:
    x = [float(i + 1) for i in range(len(spectrum["omega"]))]
    first, total = spectrum["phi"][0] ** 2, spectrum["variance"][0]
    series = {
        "joint embedding: invariance": spectrum["omega"],
        "reconstruction: explained, relative to its first": [phi**2 / first for phi in spectrum["phi"]],
        "variance, relative to the first direction": [v / total for v in spectrum["variance"]],
    }
    return chart([Series(name, x, y) for name, y in series.items()], "component", "share", log=True)


def _augmentations(rows: Rows) -> Table:
    """Returns the table of operations."""
    keys = {"strength": "strength", "unchanged": "unchanged", "alignment": "alignment"}
    keys |= {"joint_embedding": "joint embedding finds", "reconstruction": "reconstruction finds"}
    keys = {key: title for key, title in keys.items() if key in rows[0]}
    names = ["all", *(f"without {row['operation']}" for row in rows[1:])]
    shown = [[name, *(percent(row[key]) for key in keys)] for name, row in zip(names, rows, strict=True)]
    return ["", *(f"{title}, %" for title in keys.values())], shown
