"""The tables of an evaluation, for the terminal and for the page: every number with its baselines, and what they say."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vergence.learn.evaluation.judgment import accuracy_error, auroc_error, collapse_warning
from vergence.learn.training.records import Anomaly, Detection, Evaluation, Kind, Uncertainty
from vergence.utils import terminal

__all__ = ["show_evaluation", "tables"]

CLEAR = 2.0  # standard errors that a difference has to exceed
FEW = 100  # test items below which one of them moves an accuracy by more than a point
FEWEST = 10  # test items whose spread says that an embedding collapses
PAPER = "“The paper's” are values that the objective's paper reports for its own networks."
R_AUROC = "R-AUROC: how well it ranks items whose nearest other item has another class; 50 % is chance."
POSTERIOR = {  # title and meaning by field
    "variance_mean": ("variance, mean", "how uncertain it is, per feature"),
    "variance_cv": ("variance, coefficient of variation", "how much certainty differs between features"),
    "entropy": ("entropy, nats", "larger is less certain; grows with the number of features"),
    "norm_z": ("norm of z, mean", "length of the embedding"),
    "norm_mu": ("norm of the posterior mean, mean", "length of the posterior mean"),
}


def percent(share: float) -> str:
    """Returns a share in [0, 1] as people read it."""
    return f"{100 * share:.1f} %"


@dataclass(frozen=True)
class Measure:
    """One measure."""

    title: str
    values: dict[str, float]  # value by the name of the row; rows that were not measured are missing
    better: int = 0  # 1 where larger is better, -1 where smaller is, 0 where neither is
    error: Callable[[float], float] | None = None  # standard error of a value, where the number of items gives one
    share: bool = False  # whether the values are shares in [0, 1]
    brief: bool = True  # whether the terminal shows the column, which has less room than the page

    @property
    def best(self) -> float | None:
        """The best value; None where none is better than another."""
        return self.better * max(self.better * value for value in self.values.values()) if self.better else None

    def text(self, row: str) -> str:
        """Returns a value in digits: a share in percent; a dash where it was not measured."""
        value = self.values.get(row)
        return "–" if value is None else percent(value) if self.share else terminal.number(value)


@dataclass(frozen=True)
class ResultTable:
    """A table."""

    title: str  # what it shows, in words
    kinds: dict[str, Kind]  # kind of each row by its name, in order; the model's rows stand first
    columns: tuple[Measure, ...]  # measures; none is empty
    meanings: Mapping[str, str] = field(default_factory=dict)  # what each row means, for the page
    notes: tuple[str, ...] = ()  # sentences on the whole

    def column(self, title: str) -> Measure | None:
        """Returns the column of a title; None for none."""
        return next((column for column in self.columns if column.title == title), None)


def tables(evaluation: Evaluation) -> dict[str, ResultTable]:
    """Returns the tables of an evaluation by what they show; what was not measured has none.

    They are ``accuracies``, ``space``, ``anomalies``, ``posterior`` and ``uncertainty`` (which uncertainties rank errors).

    Example:
        >>> protocol = {"bank": 9, "test": 200, "epoch": 1, "seed": 0, "note": ""}
        >>> spread = {"std": 1.0, "std_min": 0.9, "effective_rank": 3.0, "norm": 2.0}
        >>> z = {"kind": "model", "dim": 8, "collapse": spread}
        >>> shown = tables(Evaluation.from_dict({"protocol": protocol, "representations": {"z": z}}))
        >>> {name: [column.title for column in table.columns] for name, table in shown.items()}
        {'space': ['features', 'spread', 'effective rank', 'norm']}
    """
    shown = {"accuracies": _accuracies(evaluation), "space": _space(evaluation)}
    if evaluation.anomaly is not None:
        shown["anomalies"] = _anomalies(evaluation.anomaly)
    if evaluation.posterior is not None:
        shown["posterior"] = _posterior(evaluation)
    if evaluation.uncertainty is not None:
        shown["uncertainty"] = _uncertainty(evaluation.uncertainty)
    return {name: table for name, table in shown.items() if table.columns}


def _accuracies(evaluation: Evaluation) -> ResultTable:
    """Returns accuracies of nearest neighbors, with equal votes and with weighted ones, and of the linear probes.

    One neighbor has one vote, so k = 1 is one column.
    """
    parts, protocol = evaluation.representations, evaluation.protocol
    error = functools.partial(accuracy_error, n=protocol.test)

    def column(title: str, values: dict[str, float], brief: bool) -> Measure:
        return Measure(title, values, 1, error if protocol.test else None, share=True, brief=brief)

    def votes(k: int, how: str) -> dict[str, float]:
        return {name: getattr(part.knn[k], how) for name, part in parts.items() if part.knn and k in part.knn}

    ks = sorted({k for part in parts.values() for k in part.knn or ()})
    columns = [column(f"kNN {k}", votes(k, "majority"), k in (1, 30)) for k in ks]
    columns += [column(f"weighted kNN {k}", votes(k, "weighted"), False) for k in ks if k > 1]
    probes = {name: part.probe for name, part in parts.items() if part.probe is not None}
    columns.append(column("linear probe", {name: probe.accuracy for name, probe in probes.items()}, True))
    columns.append(column("ridge probe", {name: part.ridge for name, part in parts.items() if part.ridge is not None}, True))
    notes = []
    if 0 < protocol.test < FEW:
        notes.append(f"One of {protocol.test} test items changes an accuracy by {100 / protocol.test:.1f} points.")
    if unconverged := [name for name, probe in probes.items() if not probe.converged]:
        notes.append(f"The probe did not converge on {', '.join(unconverged)}.")
    return _table(f"accuracy ({protocol.bank:,} training items, {protocol.test:,} test items)", parts, columns, notes)


def _space(evaluation: Evaluation) -> ResultTable:
    parts = {name: part for name, part in evaluation.representations.items() if part.collapse is not None}
    columns = [Measure("features", {name: part.dim for name, part in parts.items()})]
    for key, title in {"std": "spread", "effective_rank": "effective rank", "norm": "norm"}.items():
        columns.append(Measure(title, {name: getattr(part.collapse, key) for name, part in parts.items()}))
    return _table("use of the space", parts, columns)


def _anomalies(anomaly: Anomaly) -> ResultTable:
    n, m = anomaly.n_anomalies, anomaly.n_inliers
    title = f"anomalies: {', '.join(anomaly.anomalies)} ({n:,} among {m:,} others)"
    return _table(title, anomaly.scores, _detections(anomaly.scores, n, m))


def _detections(scores: Mapping[str, Detection], n: int, m: int, auroc: str = "AUROC") -> list[Measure]:
    """Returns the columns of scores that tell n items from m others."""
    error = functools.partial(auroc_error, n_anomalies=n, n_others=m)

    def values(key: str) -> dict[str, float]:
        return {name: getattr(score, key) for name, score in scores.items()}

    return [
        Measure(auroc, values("auroc"), 1, error if n and m else None, share=True),
        Measure("average precision", values("aupr"), 1, share=True),
        Measure("false alarms at 95 %", values("fpr95"), -1, share=True),
    ]


def _posterior(evaluation: Evaluation) -> ResultTable:
    declared, prior = paper(evaluation.protocol.objective)
    values = {title: getattr(evaluation.posterior, key) for key, (title, _) in POSTERIOR.items()}
    theirs = {title: declared[key] for key, (title, _) in POSTERIOR.items() if key in declared}
    meanings = dict(POSTERIOR.values())
    if prior is not None:
        meanings[POSTERIOR["variance_mean"][0]] = (
            f"{prior:g}, the prior's: nothing was learned about the item; 0: false certainty"
        )
    columns = (Measure("this run", values), *([Measure("the paper's, about", theirs)] if theirs else []))
    notes = (PAPER,) if theirs else ()
    return ResultTable("posterior, means over the test items", dict.fromkeys(values, "model"), columns, meanings, notes)


def paper(objective: str) -> tuple[Mapping[str, float], float | None]:
    """Returns what an objective's paper reports of its posterior, and the prior's variance; neither where it declares none."""
    from vergence.learn import objectives  # imports torch

    kind = objectives.get(objective) if objective in objectives.names() else None
    return ({}, None) if kind is None else (kind.reference, kind.reference.get("prior_variance"))


def _uncertainty(record: Uncertainty) -> ResultTable:
    wrong = round((1 - record.recall_at_1) * record.items)
    title = f"uncertainty of {record.items:,} test items; R@1 {percent(record.recall_at_1)}"
    columns = _detections(record.scores, wrong, record.items - wrong, "R-AUROC")
    return _table(title, record.scores, columns, (R_AUROC,))


def _table(title: str, rows: Mapping[str, Any], columns: Iterable[Measure], notes: Iterable[str] = ()) -> ResultTable:
    """Returns a table of records with a ``kind``, the model's rows first, without empty columns."""
    kinds: dict[str, Kind] = {name: row.kind for name, row in sorted(rows.items(), key=lambda row: row[1].kind != "model")}
    return ResultTable(title, kinds, tuple(column for column in columns if column.values), notes=tuple(notes))


@dataclass(frozen=True)
class Rival:
    """A row of the model next to the best baseline in one column.

    ``lead`` is by how much the model is better, and ``error`` the standard error of this difference. It takes both values for
    independent; on the same items it is smaller.
    """

    title: str
    model: str
    baseline: str
    ours: float
    theirs: float
    error: float
    lead: float

    @property
    def clear(self) -> bool:
        """Whether the difference exceeds two standard errors."""
        return abs(self.lead) > CLEAR * self.error

    @property
    def words(self) -> str:
        """Which of the two is better, and whether clearly, in a sentence."""
        better = "The model is better" if self.lead > 0 else "The baseline is better" if self.lead < 0 else "They are equal"
        close = "" if self.clear or not self.lead else f", but within two standard errors ({100 * CLEAR * self.error:.1f} points)"
        return f"{better}{close}."


def rival(table: ResultTable, title: str, model: str | None = None) -> Rival | None:
    """Returns a row of the model, its best by default, next to the best baseline.

    None without both, and without a standard error.
    """
    column = table.column(title)
    if column is None or column.error is None:
        return None
    ours = {name: value for name, value in column.values.items() if table.kinds[name] == "model" and model in (None, name)}
    theirs = {name: value for name, value in column.values.items() if table.kinds[name] == "baseline"}
    if not ours or not theirs:
        return None
    best = max if column.better > 0 else min
    first, second = best(ours, key=ours.__getitem__), best(theirs, key=theirs.__getitem__)
    error = math.hypot(column.error(ours[first]), column.error(theirs[second]))
    return Rival(title, first, second, ours[first], theirs[second], error, column.better * (ours[first] - theirs[second]))


def verdict(table: ResultTable) -> tuple[bool, str]:
    """Returns whether a baseline wins, and a sentence that says so.

    A baseline wins a column if it is better than every row of the model by more than two standard errors of the difference.
    Columns without a standard error are not judged.
    """
    rivals = [pair for column in table.columns if (pair := rival(table, column.title)) is not None]
    if not rivals:
        return False, ""
    if lost := [pair for pair in rivals if pair.lead < 0 and pair.clear]:
        words = (f"{r.baseline} in {r.title} ({percent(r.theirs)}, {r.model} {percent(r.ours)})" for r in lost)
        return True, f"A baseline is better than the model in {len(lost)} of {len(rivals)} columns: {'; '.join(words)}."
    if ahead := [pair.title for pair in rivals if pair.lead < 0]:
        return False, f"No baseline is clearly better; in {', '.join(ahead)} one is, within two standard errors."
    return False, "No baseline is better than the model."


def headlines(shown: Mapping[str, ResultTable]) -> list[str]:
    """Returns sentences that compare the run's embedding and its detector with their best baselines."""
    found = []
    if (table := shown.get("accuracies")) is not None:
        title = "kNN 30" if table.column("kNN 30") else table.columns[0].title
        found.append(_headline(table, title, f"of the test items get the right class ({title})"))
    if (table := shown.get("anomalies")) is not None:
        found.append(_headline(table, "AUROC", "is the AUROC of anomalies"))
    return found


def _headline(table: ResultTable, title: str, meaning: str) -> str:
    name, kind = next(iter(table.kinds.items()))
    column = table.column(title)
    if kind != "model" or column is None or name not in column.values:
        return "This run has no result; its baselines are below."
    best = rival(table, title, name)
    baseline = "" if best is None else f" The best baseline, {best.baseline}, reaches {percent(best.theirs)}. {best.words}"
    return f"{percent(column.values[name])} {meaning} with {name}.{baseline}"


def show_evaluation(record: Evaluation, collapse: str | None = None) -> None:
    """Prints the result of `vergence.evaluate`, and a collapse of the embedding, or else one that the training ended with."""
    shown, embedding = tables(record), record.representations.get("z")
    for sentence in headlines(shown):
        print(sentence)
    if "accuracies" not in shown:
        print("No accuracies: they need test items of two or more classes of the training items.")
    if embedding is not None and embedding.collapse is not None and record.protocol.test >= FEWEST:
        collapse = collapse_warning(dataclasses.asdict(embedding.collapse), embedding.dim) or collapse
    print("" if collapse is None else f"warning: {terminal.wording(collapse)}\n", end="")
    print(f"Protocol: {record.protocol.note}.\n" if record.protocol.note else "", end="")
    for table in shown.values():
        columns = [column for column in table.columns if column.brief]
        rows = [
            [name + " *" * (kind != "model"), *(column.text(name) for column in columns)] for name, kind in table.kinds.items()
        ]
        terminal.table(table.title, ["", *(column.title for column in columns)], rows)
        for sentence in (verdict(table)[1], "* baseline" * ("baseline" in table.kinds.values()), *table.notes):
            print(f"{sentence}\n" if sentence else "", end="")
