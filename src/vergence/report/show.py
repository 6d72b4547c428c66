"""Evaluations and advice as tables in the terminal: every number beside its controls."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vergence.evaluation.parts.symptoms import warning
from vergence.report.tables import ResultTable, tables, uncertainty_tables, verdict
from vergence.training.records import Evaluation, Uncertainty
from vergence.utils.terminal import table

__all__ = ["show_advice", "show_evaluation", "show_uncertainty"]

FEWEST = 10  # test items whose spread says that an embedding collapses
HEADS = {"joint_embedding": "JE", "reconstruction": "RC", "pca": "PCA"}


def show_evaluation(record: Evaluation) -> None:
    """Prints the result of `vergence.evaluate`."""
    shown = tables(record)
    _show(shown)
    if "accuracies" not in shown:
        print("no labels of two classes, so no accuracies; the effective rank counts the directions that a representation uses")
    embedding = record.representations.get("z")
    if embedding is not None and record.protocol.test >= FEWEST:
        message = warning(dataclasses.asdict(embedding.collapse), embedding.dim)
        print("" if message is None else f"warning: {message}\n", end="")


def show_uncertainty(record: Uncertainty) -> None:
    """Prints which uncertainties rank errors, and how well p(z_b | z_a) is calibrated."""
    _show(uncertainty_tables(record))


def _show(shown: Mapping[str, ResultTable]) -> None:
    for part in shown.values():
        columns = [column for column in part.columns if column.brief]
        rows: list[list[Any]] = [
            [name if kind == "model" else f"{name} (control)", *(column.text(name) for column in columns)]
            for name, kind in part.kinds.items()
        ]
        table(part.title, ["", *(column.title for column in columns)], rows)
        for sentence in (verdict(part)[1], *part.notes):
            print(f"{sentence}\n" if sentence else "", end="")


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


def _interval(row: dict[str, Any]) -> str:
    return f"{row['interval'][0]:+.3f} {row['interval'][1]:+.3f}"
