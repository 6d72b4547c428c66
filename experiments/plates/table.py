"""The table of decisions on synthetic plates."""

from experiments.ledger import Out, grid, rows
from experiments.plates.layout import ERRORS
from experiments.plates.run import RULE

CUTS = ("blur and saturation", "every feature")
SHOWN = (
    RULE,
    *(f"{features}, {scores}, 3" for features in ("blur and saturation", "every feature") for scores in ("plain", "robust")),
)
NUMBERS = {
    "false_share": "false share", "power_seen": "power",
    "control_flags": "normal control sites flagged", "treated_flags": "normal treated sites",
}  # fmt: skip


def plates_table(source: str | Out = "plates") -> str:
    """Lines of ``run.py`` in percent: means over plates; power of errors that are not small."""
    body = []
    for row in (row for row in rows(source) if row["rule"] in SHOWN):
        values = [*(row[key] for key in NUMBERS), *(row["seen_by_kind"][kind] for kind in ERRORS)]
        body.append([row["set"], row["rule"], str(row["plates"]), *("" if x is None else f"{100 * x:.0f}" for x in values)])
    return grid(["set", "rule", "plates", *(f"{name}, %" for name in NUMBERS.values()), *ERRORS], body)


TABLES = {"experiments/plates/README.md": {"plates": plates_table}}
