"""Tables of this folder's page. The paper's numbers (arXiv:2602.05639v1, tables 5 to 7) are ResNet-18's after 200 epochs."""

import statistics
from functools import partial

from experiments.ledger import Row, by_setting, column, grid, plus_minus, rows

PAPER = {  # CIFAR-10: kNN, linear, variance, its coefficient of variation
    "nu 1": (86.18, 89.23),
    "nu 3": (86.18, 88.91, 0.32, 0.78),
    "nu 7": (86.02, 88.71),
    "nu 20": (85.82, 88.50),
    "nu 50": (85.40, 88.08),
    "nu inf": (29.0, 62.0),
    "directional + kl": (86.08, 88.97, 0.32, 0.77),
    "directional + radial": (19.86, 22.68, 0.0),
    "radial + kl": (25.41, 31.63, 0.99, 0.0),
    "radial": (18.19, 19.13, 0.07, 0.06),
    "directional": (13.44, 15.66, 0.0),
}
SHOWN = {"knn30": 1, "probe": 1, "mu_knn30": 1, "variance": 3, "cv": 2, "length_z": 1, "length_mu": 1, "rank": 1}
HEAD = ["kNN, %", "linear, %", "kNN of mu, %", "variance", "its CV", "length of z", "of mu", "rank"]
CORRELATIONS = {"entropy": 0.896, "variance": 0.817}  # the paper's, over 56 cells
WHOLE = 50 * 50_000  # images of the medium point


def settings_table(data: str) -> str:
    """A line for each setting, with the paper's values for CIFAR-10."""
    body = []
    for name, group in by_setting([row for row in rows("vje") if row["data"] == data], lambda row: row["setting"]).items():
        paper = [f"{value:g}" for value in PAPER.get(name, ())]
        values = [column(group, key, digits) for key, digits in SHOWN.items()]
        body.append([name, str(len(group)), *values, *paper, *[""] * (4 - len(paper))])
    return grid(["setting", "seeds", *HEAD, "the paper's kNN", "linear", "variance", "CV"], body)


def course_table(data: str) -> str:
    """A line for z and one for the posterior's mean: the accuracy of kNN at steps of the training, mean over seeds."""
    courses = [row["course"] for row in rows("vje") if row["data"] == data and "course" in row]
    points = [[statistics.mean(values) for values in zip(*at, strict=True)] for at in zip(*courses, strict=True)]
    lines = [[name, *(f"{point[i]:.1f}" for point in points)] for i, name in ((1, "z"), (2, "mu"))]
    return grid(["step", *(f"{point[0]:.0f}" for point in points)], lines)


def cells_table() -> str:
    """A line for each beta and nu: mean AUROC over the ten digits, and the posterior's entropy on the class."""
    groups = by_setting(rows("vje_grid"), lambda row: (row["beta"], row["nu"]))
    keys = {"auroc_joint": 3, "auroc_variance": 3, "auroc_entropy": 3, "entropy": 1, "variance": 2}
    body = [[f"{b:g}", f"{nu:g}", *(column(g, key, digits) for key, digits in keys.items())] for (b, nu), g in groups.items()]
    return grid(["beta", "nu", "AUROC, joint score", "variance", "entropy", "mean entropy, nats", "mean variance, summed"], body)


def correlation_table() -> str:
    """Correlations over the cells between the joint score's AUROC and the posterior's entropy or summed variance."""
    seeds: dict[int, list[Row]] = {}
    for group in by_setting(rows("vje_grid"), lambda row: (row["beta"], row["nu"])).values():
        for row in group:
            seeds.setdefault(row["seed"], []).append(row)
    body = []
    for name, paper in CORRELATIONS.items():
        pairs = [[(row["auroc_joint"], row[name]) for row in cells] for cells in seeds.values()]
        found = [statistics.correlation(*zip(*cells, strict=True)) for cells in pairs]
        body.append([name, plus_minus(found, 2), str(len(next(iter(seeds.values())))), f"{paper}"])
    return grid(["r of AUROC with", "digits", "cells", "the paper's, CIFAR-10"], body)


def medium_table() -> str:
    """A line for each run of the medium point, with what 50 epochs of 50,000 images would cost at its speed."""
    body = []
    for row in rows("medium"):
        cost = row.get("ms_an_image")
        hours = "" if cost is None else f"{cost * WHOLE / 3.6e6:.0f}"
        size = [row["method"], str(row["limit"] or "all"), str(row["epochs"]), str(row["batch_size"])]
        body.append([*size, "" if cost is None else f"{cost:.0f}", hours, f"{row['knn30']:.1f}", f"{row['probe']:.1f}"])
    head = ["method", "images", "epochs", "batch", "CPU ms an image", "CPU hours of 50 epochs (estimated)", "kNN, %", "linear, %"]
    return grid(head, body)


TABLES = {
    "experiments/vje/README.md": {
        **{f"vje-{data}": partial(settings_table, data) for data in ("digits", "cifar10")},
        **{f"vje-course-{data}": partial(course_table, data) for data in ("digits", "cifar10")},
        "vje-cells": cells_table,
        "vje-correlation": correlation_table,
        "medium": medium_table,
    }
}
