"""Tables of uncertainties: which errors, foreign images and degradations they rank; each reads its ledger."""

import statistics

from experiments.ledger import by_setting, grid, plus_minus, rows


def uncertainty_rows() -> dict[str, list[dict]]:
    """Returns the rows of ``experiments/uncertainty/run.py`` by encoder, one for each seed: the last one."""
    return by_setting(rows("uncertainty"), lambda row: row["encoder"])


def uncertainty_table(what: str) -> str:
    """A line for each uncertainty, a column for each encoder: R-AUROC, or the mean AUROC of foreign images."""
    groups = uncertainty_rows()
    names = list(dict.fromkeys(name for group in groups.values() for row in group for name in row["scores"]))

    def value(row: dict, name: str) -> float | None:
        if what != "foreign":
            return row["scores"].get(name, {}).get(what)
        found = [scores[name] for scores in row["foreign"].values() if name in scores]
        return statistics.mean(found) if found else None

    body = []
    tops = {"r_auroc": {"R@1": "recall_at_1", "R@1, mean of 8 views": "recall_at_1_crops"}}
    tops["r_auroc_equalized"] = {"R@1, equalized": "recall_at_1_equalized"}
    for title, key in tops.get(what, {}).items():
        body.append([f"*{title}*", *(plus_minus([row[key] for row in group], 3) for group in groups.values())])
    for name in names:
        found = [[v for v in (value(row, name) for row in group) if v is not None] for group in groups.values()]
        one = next(row["scores"][name] for group in groups.values() for row in group if name in row["scores"])
        kind = "" if one["kind"] == "model" else " (control, labels)" if one["labels"] else " (control)"
        if any(found):
            body.append([name + kind, *(plus_minus(values, 3) if values else "" for values in found)])
    return grid(["", *groups], body)


def degradations_table() -> str:
    """A line for each uncertainty and encoder that has one: rank correlations with the strength of each degradation."""
    kinds, body = ("crop", "blur", "noise", "occlusion"), []
    for encoder, group in uncertainty_rows().items():
        for name, one in group[0]["scores"].items():
            if one["strengths"]:
                values = [[row["scores"][name]["strengths"][kind] for row in group] for kind in kinds]
                body.append([encoder, name, *(plus_minus(v, 2) for v in values)])
    return grid(["encoder", "uncertainty", *kinds], body)


def predictive_table() -> str:
    """A line for each encoder with a density: calibration of p(z_b | z_a) on held-out pairs of views."""
    keys = {"log_prob": 1, "pit_ks": 3, "inside_50": 3, "inside_90": 3, "region_50": 3, "region_90": 3, "energy_score": 2}
    keys |= {"elbo": 1, "gap": 1, "effective_samples": 1}
    body = []
    for encoder, group in uncertainty_rows().items():
        found = [row["predictive"] for row in group if row["predictive"] is not None]
        if found:
            values = {key: [one[key] for one in found if one[key] is not None] for key in keys}
            body.append([encoder, *(plus_minus(v, keys[key]) if v else "" for key, v in values.items())])
    head = ["log-density, nats", "PIT distance", "in 50 %", "in 90 %", "in the 50 % region", "in the 90 % region", "energy score"]
    return grid(["encoder", *head, "ELBO, nats", "log marginal less ELBO", "effective samples of 64"], body)
