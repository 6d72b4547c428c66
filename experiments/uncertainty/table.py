"""Tables of uncertainties: which errors, foreign images and degradations they rank."""

import statistics
from functools import partial

from experiments.ledger import Row, by_setting, column, grid, plus_minus, rows

TOPS = {"r_auroc": {"R@1": "recall_at_1", "R@1, mean of 8 views": "recall_at_1_crops"}}
TOPS["r_auroc_equalized"] = {"R@1, equalized": "recall_at_1_equalized"}
KINDS = ("crop", "blur", "noise", "occlusion")


def by_encoder() -> dict[str, list[Row]]:
    """Returns the rows of ``experiments/uncertainty/run.py`` by encoder, one for each seed: the last one."""
    return by_setting(rows("uncertainty"), lambda row: row["encoder"])


def value(row: Row, name: str, what: str) -> float | None:
    """Returns the R-AUROC of an uncertainty, or the mean AUROC of foreign images."""
    if what != "foreign":
        return row["scores"].get(name, {}).get(what)
    found = [scores[name] for scores in row["foreign"].values() if name in scores]
    return statistics.mean(found) if found else None


def uncertainty_table(what: str) -> str:
    """A line for each uncertainty, a column for each encoder: R-AUROC, or the mean AUROC of foreign images."""
    groups, body = by_encoder(), []
    for title, key in TOPS.get(what, {}).items():
        body.append([f"*{title}*", *(column(group, key, 3) for group in groups.values())])
    for name in dict.fromkeys(name for group in groups.values() for row in group for name in row["scores"]):
        cells = [column([{name: value(row, name, what)} for row in group], name, 3) for group in groups.values()]
        about = next(row["scores"][name] for group in groups.values() for row in group if name in row["scores"])
        kind = "" if about["kind"] == "model" else " (baseline, labels)" if about["labels"] else " (baseline)"
        if any(cells):
            body.append([name + kind, *cells])
    return grid(["", *groups], body)


def degradations_table() -> str:
    """A line for each uncertainty and encoder that has one: rank correlations with the strength of each degradation."""
    body = []
    for encoder, group in by_encoder().items():
        for name, about in group[0]["scores"].items():
            if about["strengths"]:
                values = [[row["scores"][name]["strengths"][kind] for row in group] for kind in KINDS]
                body.append([encoder, name, *(plus_minus(v, 2) for v in values)])
    return grid(["encoder", "uncertainty", *KINDS], body)


def predictive_table() -> str:
    """A line for each encoder with a density: calibration of p(z_b | z_a) on held-out pairs of views."""
    digits = {"log_prob": 1, "pit_ks": 3, "inside_50": 3, "inside_90": 3, "region_50": 3, "region_90": 3, "energy_score": 2}
    digits |= {"elbo": 1, "gap": 1, "effective_samples": 1}
    body = []
    for encoder, group in by_encoder().items():
        if found := [row["predictive"] for row in group if row["predictive"] is not None]:
            body.append([encoder, *(column(found, key, n) for key, n in digits.items())])
    head = ["log-density, nats", "PIT distance", "in 50 %", "in 90 %", "in the 50 % region", "in the 90 % region", "energy score"]
    return grid(["encoder", *head, "ELBO, nats", "log marginal less ELBO", "effective samples of 64"], body)


TABLES = {
    "experiments/uncertainty/README.md": {
        "errors": partial(uncertainty_table, "r_auroc"),
        "errors-equalized": partial(uncertainty_table, "r_auroc_equalized"),
        "foreign": partial(uncertainty_table, "foreign"),
        "degradations": degradations_table,
        "predictive": predictive_table,
    }
}
