"""Evaluations and advice as tables in the terminal: every number beside its controls."""

import dataclasses
from typing import Any

from vergence.evaluation.parts.errors import accuracy_error, auroc_error
from vergence.evaluation.parts.symptoms import warning
from vergence.report.comparison import representations
from vergence.report.reference import reference
from vergence.training.records import Anomaly, Evaluation, Uncertainty
from vergence.utils.terminal import table

__all__ = ["show_advice", "show_anomalies", "show_evaluation", "show_representations", "show_uncertainty"]

PREDICTIVE = {  # field of `vergence.training.records.Predictive` -> title
    "log_prob": "log-density",
    "pit_ks": "PIT distance",
    "inside_50": "in 50 % intervals",
    "inside_90": "in 90 % intervals",
    "region_50": "in the 50 % region",
    "region_90": "in the 90 % region",
    "energy_score": "energy score",
    "elbo": "ELBO",
    "gap": "log marginal less ELBO",
    "effective_samples": "effective samples",
}
RIGHT = {"pit_ks": 0, "inside_50": 0.5, "inside_90": 0.9, "region_50": 0.5, "region_90": 0.9}  # where the density is right
MEANINGS = {  # of the columns of uncertainties
    "R-AUROC": "R-AUROC: ranks items whose nearest other item has another class",
    "AURC": "AURC: mean error of what is kept, as the least certain items are left out one by one; smaller is better",
}
FEWEST = 10  # test items whose spread says that an embedding collapses
FEW = 100  # test items below which one of them moves an accuracy by more than a point
HEADS = {"joint_embedding": "JE", "reconstruction": "RC", "pca": "PCA"}


def show_evaluation(record: Evaluation) -> None:
    """Prints the result of `vergence.evaluate`."""
    show_representations(record)
    _say_who_is_ahead(record)
    trained = record.representations.get("z")
    enough = record.protocol.test >= FEWEST
    if enough and trained is not None and (message := warning(dataclasses.asdict(trained.collapse), trained.dim)):
        print(f"warning: {message}")
    if record.posterior is not None:
        p = record.posterior
        regime = reference(record.protocol.objective).regime
        print(f"posterior variance: mean {p.variance_mean:.3f}, CV {p.variance_cv:.2f}{regime}")
    if record.anomaly is not None:
        show_anomalies(record.anomaly)
    if record.uncertainty is not None:
        show_uncertainty(record.uncertainty)


def show_representations(record: Evaluation) -> None:
    """Prints accuracies and spread of each representation and control."""
    rows: list[list[Any]] = []
    for name, r in record.representations.items():
        near = [r.knn[k].majority if r.knn and k in r.knn else None for k in (1, 30)]
        probe = None if r.probe is None else r.probe.accuracy
        rows.append([_label(name, r.kind), r.dim, *near, probe, r.collapse.effective_rank])
    title = f"{record.protocol.bank:,} training items, {record.protocol.test:,} test items; {record.protocol.note}"
    table(title, *_filled(["representation", "D", "kNN 1", "kNN 30", "linear probe", "effective rank"], rows))
    if all(r.knn is None and r.probe is None for r in record.representations.values()):
        print("no labels of two classes, so no accuracies; the effective rank counts the directions that a representation uses")


def _filled(header: list[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Returns header and rows without the columns that are empty."""
    kept = [i for i in range(len(header)) if any(row[i] is not None for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _say_who_is_ahead(record: Evaluation) -> None:
    """Prints by which accuracies a control is better than the model, or that none is."""
    found = representations(record.to_dict())
    level: dict[str, list[str]] = {}
    for title, name in {"k = 30, majority": "kNN 30", "linear probe": "linear probe"}.items():
        model, control = found.rivals(title) if title in found.columns else (None, None)
        if model is None or control is None:
            continue
        own, other = (found.columns[title][one] for one in (model, control))
        if other > own:
            print(_behind(model, name, control, own, other, accuracy_error(own, record.protocol.test)))
        else:
            level.setdefault(model, []).append(name)
    for model, names in level.items():
        print(f"{model} is at least level with every control by {' and '.join(names)}")
    if found.columns and (n := record.protocol.test) < FEW:
        print(f"caution: of {n} test items a single one changes an accuracy by {100 / n:.1f} points")


def show_anomalies(anomaly: Anomaly) -> None:
    """Prints how well each score detects anomalies."""
    rows = [[_label(name, s.kind), s.auroc, s.aupr, s.fpr95] for name, s in anomaly.scores.items()]
    title = f"anomalies: {', '.join(anomaly.anomalies)} ({anomaly.n_anomalies} among {anomaly.n_inliers} others)"
    table(title, ["score", "AUROC", "average precision", "FPR at 95 %"], rows)
    first = next((name for name, s in anomaly.scores.items() if s.kind == "model"), None)
    if first is None:
        return
    better = [name for name, s in anomaly.scores.items() if s.kind == "control" and s.auroc > anomaly.scores[first].auroc]
    own, n, m = anomaly.scores[first].auroc, anomaly.n_anomalies, anomaly.n_inliers
    error = auroc_error(own, n, m) if n and m else None
    if better:
        best = max(better, key=lambda name: anomaly.scores[name].auroc)
        print(_behind(first, "AUROC", best, own, anomaly.scores[best].auroc, error))
    else:
        print(f"{first} is at least level with every control by AUROC{_remark(error)}")


def _behind(model: str, measure: str, control: str, own: float, other: float, error: float | None) -> str:
    """Returns the line that names the control that is ahead of the model, and whether by more than a standard error."""
    line = f"a control is better than {model} by {measure}: {control}, {other:.3f}{_remark(error)}"
    if error is None or other - own > error:
        return line
    return f"on these test items alone {line}, no clear difference from {model}'s {own:.3f}"


def _remark(error: float | None) -> str:
    return "" if error is None else f" (standard error {error:.3f})"


def show_uncertainty(record: Uncertainty) -> None:
    """Prints which uncertainties rank errors, and how well p(z_b | z_a) is calibrated."""
    right = "" if record.recall_at_1 is None else f"; R@1 {record.recall_at_1:.3f}"
    crops = "" if record.recall_at_1_crops is None else f", of the mean over {record.crops} views {record.recall_at_1_crops:.3f}"
    rows = [[_label(name, s.kind), s.r_auroc, s.aurc] for name, s in record.scores.items()]
    columns, rows = _filled(["uncertainty", "R-AUROC", "AURC"], rows)
    table(f"uncertainty of {record.items} test items{right}{crops}", columns, rows)
    if meanings := [MEANINGS[name] for name in columns if name in MEANINGS]:
        print(f"{'; '.join(meanings)}.")
    if record.predictive is not None:
        p = record.predictive
        found = {key: getattr(p, key) for key in PREDICTIVE if getattr(p, key) is not None}
        wanted = {key: f" (right: {value:g})" for key, value in RIGHT.items()}
        shown = [f"{PREDICTIVE[key]} {value:.3g}{wanted.get(key, '')}" for key, value in found.items()]
        print(f"p(z_b | z_a) on {p.pairs} held-out pairs: {', '.join(shown)}")


def show_advice(advice: dict[str, Any]) -> None:
    """Prints the result of `vergence.linear.Advice.to_dict`: its words, and the tables that they rest on."""
    facts = advice["facts"]
    part = f" of the training part (test part: {facts['part']})" if facts.get("part") else ""
    print("\n\n".join(advice["words"]) + f"\n\n{facts['items']:,} items{part}, {facts['draws'] or 'no'} views of each\n")
    _show_components(advice["components"])
    _show_augmentations(advice["augmentations"])


def _show_components(rows: list[dict[str, Any]]) -> None:
    if "margin" not in rows[0]:
        table("directions that both keep", ["kept", "overlap"], [[str(row["k"]), row["overlap"]] for row in rows])
        return
    body = [[str(row["k"]), row["overlap"], *(row[key] for key in HEADS), row["margin"], _interval(row)] for row in rows]
    head = ["kept", "overlap", *HEADS.values(), "margin", "95 %"]
    table("classes found (JE joint embedding, RC reconstruction)", head, body)


def _show_augmentations(rows: list[dict[str, Any]]) -> None:
    keys = [key for key in ("strength", "unchanged", "alignment", "joint_embedding", "reconstruction") if key in rows[0]]
    body = [["all" if i == 0 else f"no {row['operation']}", *(row[key] for key in keys)] for i, row in enumerate(rows)]
    print(
        "strength: share of a view's variance; unchanged: share of directions that JE keeps as before; "
        "alignment: share of the class information that JE keeps"
    )
    if "joint_embedding" in keys:
        print("this table uses fewer views, so its accuracies differ slightly from those above")
    table("the augmentation", ["", *(HEADS.get(key, key) for key in keys)], body)


def _label(name: str, kind: str) -> str:
    return name if kind == "model" else f"{name} (control)"


def _interval(row: dict[str, Any]) -> str:
    return f"{row['interval'][0]:+.3f} {row['interval'][1]:+.3f}"
