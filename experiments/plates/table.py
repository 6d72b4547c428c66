"""The tables of decisions on synthetic plates."""

from collections.abc import Callable, Mapping
from typing import Any

from experiments.ledger import Out, grid, rows
from experiments.plates.layout import ERRORS
from experiments.plates.run import RULE

NUMBERS = {
    "false_share": "false share", "power_seen": "power",
    "control_flags": "normal control sites flagged", "treated_flags": "normal treated sites flagged",
}  # fmt: skip


def plates_table(source: str | Out = "plates") -> str:
    """Lines of ``run.py`` in percent: means over plates, of Vergence and of every fixed cut."""
    return _of_rules(source, lambda row: row["cuts"])


def kinds_table(source: str | Out = "plates") -> str:
    """Power of errors that are not small, by kind."""
    body = [[row["set"], *(_percent(row["seen_by_kind"][kind]) for kind in ERRORS)] for row in rows(source)]
    return grid(["set", *(f"{kind}, %" for kind in ERRORS)], body)


def short_table(source: str | Out = "plates") -> str:
    """Vergence, and the fixed cut that has the smallest false share of each set."""
    return _of_rules(source, _best)


def _of_rules(source: str | Out, cuts: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> str:
    """Returns a line for Vergence and for some of the fixed cuts, of each set."""
    body = []
    for row in rows(source):
        for rule, of in {RULE: row, **cuts(row)}.items():
            body.append([row["set"], rule, str(row["plates"]), *(_percent(of[key]) for key in NUMBERS)])
    return grid(["set", "rule", "plates", *(f"{name}, %" for name in NUMBERS.values())], body)


def plates_fact(source: str | Out = "plates") -> list[str]:
    """A line for the README: errors that a person sees, and false flags, on plates that nothing was chosen on."""
    row = next(row for row in rows(source) if row["set"] == "judge")
    (cut,) = _best(row).values()
    ours, theirs = (
        f"{100 * of['power_seen']:.0f} % flagged, {100 * of['false_share']:.0f} % of flags false" for of in (row, cut)
    )
    return [
        f"{row['plates']} simulated microscopy plates, strong treatments among them",
        ours,
        f"best of {len(row['cuts'])} fixed cuts: {theirs}",
    ]


def _best(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fixed cut that has the smallest false share."""
    best = min(row["cuts"], key=lambda rule: row["cuts"][rule]["false_share"])
    return {best: row["cuts"][best]}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


TABLES = {
    "experiments/plates/README.md": {"plates": plates_table, "plates_kinds": kinds_table},
    "docs/background/plates.md": {"plates_short": short_table},
}
