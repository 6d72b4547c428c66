"""Evaluations as tables in the terminal: every number beside its controls."""

from typing import Any

from vergence.utils.terminal import table

__all__ = ["show_advice", "show_anomalies", "show_evaluation", "show_representations"]


HEADS = {"joint_embedding": "JE", "reconstruction": "RC", "pca": "PCA"}


def show_evaluation(record: dict[str, Any]) -> None:
    """Prints what `vergence.runs.evaluate.evaluate` returned."""
    show_representations(record)
    if record["posterior"] is not None:
        p = record["posterior"]
        paper = _reference(record["protocol"]["objective"])
        print(f"posterior variance: mean {p['variance_mean']:.3f}, CV {p['variance_cv']:.2f}{paper}")
    if record["anomaly"] is not None:
        show_anomalies(record)


def _reference(objective: str) -> str:
    """Returns the values that the objective's paper reports, in parentheses; empty where it reports none."""
    from vergence import objectives  # imports torch

    kind = objectives.find(objective)
    values = " and ".join(
        f"{kind.reference[key]:g}" for key in ("variance_mean", "variance_cv") if kind and key in kind.reference
    )
    return f" (in the objective's paper about {values})" if values else ""


def show_advice(advice: dict[str, Any]) -> None:
    """Prints what `vergence.linear.Advice.to_dict` gives: the words, and the tables that they rest on."""
    facts = advice["facts"]
    part = f" of the training part (test part: {facts['part']})" if facts.get("part") else ""
    print("\n\n".join(advice["words"]) + f"\n\n{facts['items']:,} items{part}, {facts['draws'] or 'no'} views of each\n")
    rows, keys = advice["components"], list(HEADS)
    if "margin" in rows[0]:
        body = [[str(row["k"]), row["overlap"], *(row[key] for key in keys), row["margin"], _interval(row)] for row in rows]
        table(
            "classes found (JE joint embedding, RC reconstruction)", ["kept", "overlap", *HEADS.values(), "margin", "95 %"], body
        )
    else:
        table("what both keep", ["kept", "overlap"], [[str(row["k"]), row["overlap"]] for row in rows])
    rows = advice["augmentations"]
    keys = [key for key in ("strength", "unchanged", "alignment", *keys[:2]) if key in rows[0]]
    body = [["all" if i == 0 else f"no {row['operation']}", *(row[key] for key in keys)] for i, row in enumerate(rows)]
    print("strength: its share of a view's variance; unchanged: JE keeps the same; alignment: readable of the classes in JE")
    table("the augmentation", ["", *(HEADS.get(key, key) for key in keys)], body)


def _interval(row: dict[str, Any]) -> str:
    return f"{row['interval'][0]:+.3f} {row['interval'][1]:+.3f}"


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
