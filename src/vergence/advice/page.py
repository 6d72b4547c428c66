"""Advice in the terminal and as one page: the verdict in words, then what it rests on."""

from collections.abc import Sequence
from pathlib import Path

from vergence.advice.candidates import CANDIDATES, best_first
from vergence.advice.closed_forms import SPACES, VERDICTS, Advice, say_directions
from vergence.report.charts import Chart, Series, chart
from vergence.report.rendering import count, percent, write
from vergence.utils import terminal

__all__ = ["show_advice", "write_advice"]

METHODS = {"joint_embedding": "joint embedding", "reconstruction": "reconstruction", "pca": "PCA"}
BESIDE = ("items", "epochs", "effective rank", "LiDAR")  # columns of candidates that the page alone shows
SECTIONS = {
    "trials": "What was tried",
    "shared": "What the views share and perhaps should not",
    "components": "How many components, and how well they predict the classes",
    "spectra": "The two spectra",
    "augmentations": "What each operation contributes",
    "command": "Reproduce this advice",
}
Table = tuple[list[str], list[list[str]]]  # head and rows


def show_advice(advice: Advice) -> None:
    """Prints the words of an advice and the tables that they rest on."""
    facts = advice.facts
    part = f" of the training part (test part: {facts.part})" if facts.part else ""
    print("\n\n".join(advice.words) + f"\n\n{facts.items:,} items{part}, {facts.draws or 'no'} views of each\n")
    if advice.trials:
        head, rows = _trials(advice)
        kept = [i for i, name in enumerate(head) if name not in BESIDE]
        order = "the best first" if advice.trials[0].knn is not None else "those that recognize views best first"
        terminal.table(f"what was tried, {order}", [head[i] for i in kept], [[row[i] for i in kept] for row in rows])
    terminal.table("components, and the classes that a linear probe predicts", *_components(advice))
    print(
        "strength: share of a view's variance; unchanged: share of directions that joint embedding keeps as before; "
        "alignment: share of the class information that joint embedding keeps"
    )
    if advice.basis == "labels":
        print("this table uses fewer views, so its accuracies differ slightly from those above")
    terminal.table("the augmentation", *_augmentations(advice))


def write_advice(advice: Advice, path: Path, *, name: str, command: str, marks: Sequence[str] = ()) -> Path:
    """Writes the page.

    Args:
        advice: The advice.
        path: File to write.
        name: Name of the data, for the title.
        command: Command that reproduces the advice.
        marks: A picture of each place in ``advice.shared``, as a data address.

    Returns:
        ``path``. The page appears in one step.
    """
    return write(
        path,
        "advice",
        SECTIONS,
        title=f"Advice: {name}",
        verdict=f"Joint embedding or reconstruction: {VERDICTS[advice.verdict]}",
        words=advice.words,
        facts=_facts(advice, name),
        figures=_figures(advice),
        trials=_trials(advice) if advice.trials else None,
        marks=list(zip(marks, _places(advice)[1], strict=True)),
        shared=say_directions(advice.shared),
        components=_components(advice),
        augmentations=_augmentations(advice) if len(advice.augmentations) > 1 else None,
        command=command,
    )


def _figures(advice: Advice) -> dict[str, Chart]:
    spectra, rows = advice.spectrum, advice.components
    x = [float(i + 1) for i in range(len(spectra.omega))]
    curves = {
        "joint embedding: invariance": list(spectra.omega),
        "reconstruction: explained, relative to its first": [phi**2 / spectra.phi[0] ** 2 for phi in spectra.phi],
        "variance, relative to the first direction": [v / spectra.variance[0] for v in spectra.variance],
    }
    figures = {"spectra": chart([Series(name, x, y) for name, y in curves.items()], "component", "share", log=True)}
    if advice.basis == "labels":
        ks = [row.k for row in rows]
        series = [Series(title, ks, [getattr(row, key) for row in rows]) for key, title in METHODS.items()]
        figures["accuracy"] = chart(series, "components", "accuracy", log=True, ticks=ks)
    return figures


def _facts(advice: Advice, name: str) -> dict[str, str | None]:
    facts = advice.facts
    return {
        "Data": name,
        "Items": count(facts.items),
        "Features": count(facts.features) + SPACES[facts.space],
        "Directions": f"{count(facts.directions)}, {percent(facts.variance_kept)}% of the variance",
        "Part of the data": f"the training part (test part: {facts.part})" if facts.part else None,
        "Unreadable, left out": count(facts.skipped) if facts.skipped else None,
        "Components": count(facts.k),
        "Views of each item": count(facts.draws) if facts.draws else "covariance given",
        "Labeled items": count(facts.labeled),
        "Evidence": "a probe on labels" if advice.basis == "labels" else "the spectra alone",
    }


def _components(advice: Advice) -> Table:
    """Returns the table of numbers of components."""
    head = ["components", "overlap, %"]
    rows = [[str(row.k), percent(row.overlap)] for row in advice.components]
    if advice.basis == "labels":
        head += [*(f"{title}, %" for title in METHODS.values()), "margin, points"]
        for cells, row in zip(rows, advice.components, strict=True):
            cells += [*(percent(getattr(row, key)) for key in METHODS), percent(row.margin, "+.1f")]
    return head, rows


def _trials(advice: Advice) -> Table:
    """Returns the table of candidates, those that recognize views best first; with labels by their accuracy."""
    labeled = advice.trials[0].knn is not None
    head = ["", "items", "epochs", "seconds", "views lost, %", "effective rank", "LiDAR"]
    head += ["kNN, %", "probe, %", "+-, points"] if labeled else []
    rows = []
    for trial in best_first(advice.trials):
        cells = [CANDIDATES[trial.kind], count(trial.items), str(trial.epochs), f"{trial.seconds:.0f}", percent(trial.rank_error)]
        cells += [f"{trial.effective_rank:.0f}", f"{trial.lidar:.0f}"]
        rows.append(cells + ([percent(value) for value in (trial.knn, trial.probe, trial.interval)] if labeled else []))
    return head, rows


def _places(advice: Advice) -> Table:
    """Returns the table of marks in fixed places."""
    head = ["top", "left", "height", "width", "share, %", "usual, %", "change, %", "accuracy, %", "covered, %"]
    rows = [
        [*map(str, place.box), *(percent(x) for x in (place.share, place.usual, place.change, place.accuracy, place.covered))]
        for place in advice.shared.places
    ]
    return head, rows


def _augmentations(advice: Advice) -> Table:
    """Returns the table of operations."""
    titles = {"strength": "strength", "unchanged": "unchanged", "alignment": "alignment"}
    titles |= {key: METHODS[key] for key in ("joint_embedding", "reconstruction")}
    titles = {key: title for key, title in titles.items() if getattr(advice.augmentations[0], key) is not None}
    names = ["all", *(f"without {row.operation}" for row in advice.augmentations[1:])]
    rows = [
        [name, *(percent(getattr(row, key)) for key in titles)] for name, row in zip(names, advice.augmentations, strict=True)
    ]
    return ["", *(f"{title}, %" for title in titles.values())], rows
