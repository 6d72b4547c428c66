"""Evaluations as tables in the terminal: every number beside its controls."""

from typing import Any

from vergence.terminal import table

__all__ = ["show_anomalies", "show_evaluation", "show_representations"]


def show_evaluation(record: dict[str, Any]) -> None:
    """Prints what `vergence.protocol.evaluate` returned."""
    show_representations(record)
    if record["posterior"] is not None:
        p = record["posterior"]
        print(
            f"posterior variance: mean {p['variance_mean']:.3f}, CV {p['variance_cv']:.2f} "
            "(the paper's trained regime: about 0.3 and 0.75)"
        )
    if record["anomaly"] is not None:
        show_anomalies(record)


def show_representations(record: dict[str, Any]) -> None:
    """Prints accuracies and spread of each representation and control."""
    rows: list[list[Any]] = []
    for name, r in record["representations"].items():
        label = name if r["kind"] == "model" else f"{name} (control)"
        near = [_majority(r["knn"], k) for k in ("1", "30")]
        rows.append([label, r["dim"], *near, r["probe"] and r["probe"]["accuracy"], r["collapse"]["effective_rank"]])
    protocol = record["protocol"]
    title = f"{protocol['bank']} training items, {protocol['test']} test items; {protocol['note']}"
    table(title, ["representation", "D", "kNN 1", "kNN 30", "linear probe", "effective rank"], rows)


def show_anomalies(record: dict[str, Any]) -> None:
    """Prints how well each score tells anomalies from the rest."""
    a = record["anomaly"]
    rows = [
        [name if s["kind"] == "model" else f"{name} (control)", s["auroc"], s["aupr"], s["fpr95"]]
        for name, s in a["scores"].items()
    ]
    names = ", ".join(a["anomalies"])
    title = f"anomalies: {names} ({a['n_anomalies']} among {a['n_inliers']} others)"
    table(title, ["score", "AUROC", "average precision", "FPR at 95 %"], rows)


def _majority(found: dict[str, Any] | None, k: str) -> float | None:
    return found[k]["majority"] if found and k in found else None
