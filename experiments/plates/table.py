"""The table of decisions on synthetic plates."""

import statistics
from collections.abc import Callable

from experiments.ledger import Out, Row, by_setting, grid, rows
from experiments.plates.layout import ERRORS


def mean(group: list[Row], value: Callable[[Row], float | None], digits: int = 2) -> str:
    values = [found for row in group if (found := value(row)) is not None]
    return f"{statistics.mean(values):.{digits}f}" if values else ""


def plates_table(source: str | Out = "plates") -> str:
    """Lines of ``run.py``: means over plates; power of errors that are not small."""
    body = []
    for (name, rule), group in by_setting(rows(source), lambda row: (row["set"], row["rule"])).items():
        kinds = [mean(group, lambda r, kind=kind: r["seen_by_kind"][kind]) for kind in ERRORS]
        shares = [
            mean(group, lambda r, key=key: r[key]) for key in ("false_share", "power_seen", "control_flags", "treated_flags")
        ]
        body.append([name, rule, str(len(group)), *shares, *kinds])
    head = ["set", "rule", "plates", "false share", "power", "flags of normal controls", "of normal treated sites", *ERRORS]
    return grid(head, body)


TABLES: dict[str, dict[str, Callable[[], str]]] = {}  # the page gets `plates_table` with the first rows of the results log
