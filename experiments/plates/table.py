"""The table of decisions on synthetic plates."""

from collections.abc import Callable

from experiments.ledger import Out, grid, rows
from experiments.plates.layout import ERRORS


def plates_table(source: str | Out = "plates") -> str:
    """Lines of ``run.py``: means over plates; power of errors that are not small."""
    body = []
    for row in rows(source):
        numbers = [row[key] for key in ("false_share", "power_seen", "control_flags", "treated_flags")]
        kinds = [row["seen_by_kind"][kind] for kind in ERRORS]
        body.append(
            [
                row["set"],
                row["rule"],
                str(row["plates"]),
                *(f"{100 * x:.0f}" if x is not None else "" for x in [*numbers, *kinds]),
            ]
        )
    head = [
        "set",
        "rule",
        "plates",
        "false share, %",
        "power, %",
        "normal control sites flagged, %",
        "normal treated sites, %",
        *ERRORS,
    ]
    return grid(head, body)


TABLES: dict[str, dict[str, Callable[[], str]]] = {}  # the page gets `plates_table` with the first rows of the results log
