"""Summaries of ``results/one_class.jsonl`` for docs/detection_measured.md: AUROC of one class against the other nine.

Each summary returns the header and the lines of a table; without measurements, the table has no lines. If a cell was measured
more than once, the last row counts. Values are means over seeds. The paper's numbers (arXiv:2602.05639v1, table 3) are marked
as such: ResNet-18, 800 epochs, all 5,000 images of a class and all test images.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
CLASSES = range(10)
PAPER = (0.872, 0.976, 0.851, 0.828, 0.884, 0.897, 0.909, 0.935, 0.940, 0.937)  # beta = 1, nu = 0.5, CIFAR-10
PAPER_MEANS = {(1.0, 0.5): 0.903, (1.0, 1.0): 0.899, (1.0, 0.25): 0.897}  # CIFAR-10, by beta and nu
OWN = ("own joint", "own variance", "own entropy")
NAMES = {"detector": "**the run's detector**", "z: Gaussian": "z: Mahalanobis distance"}
LEFT_OUT = ("own directional", "own radial", "own score")  # of the table of classes
GRID = 1000  # images of a class in the grid of beta and nu, which has a table of its own
Setting = tuple[Any, ...]


def setting(row: Row) -> Setting:
    """Returns what rows that are averaged have in common."""
    sizes = (row["limit"], row["tests"], row["epochs"])
    return (row["encoder"], row["recipe"], tuple(row["set"]), *sizes, row["beta"], row["nu"])


def grouped(rows: Iterable[Row], data: str) -> dict[Setting, dict[str, dict[int, list[float]]]]:
    """Returns by setting, score and class the AUROC of each seed."""
    last = {(setting(row), row["label"], row["seed"]): row for row in rows if row["data"] == data}
    found: dict[Setting, dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for (key, label, _), row in last.items():
        for name, value in row["auroc"].items():
            found[key][name][label].append(value)
    return found


def mean(of_class: dict[int, list[float]]) -> str:
    """Returns the mean over the classes that were measured, and how many these are where some are missing."""
    value = statistics.mean(statistics.mean(values) for values in of_class.values())
    return f"{value:.3f}" if len(of_class) == len(CLASSES) else f"{value:.3f} of {len(of_class)}"


def named(key: Setting) -> str:
    """Returns a setting in words: encoder, images of a class and epochs."""
    encoder, recipe, changes, limit, _, epochs, beta, nu = key
    images = "all" if limit is None else f"{limit:,}"
    size = images if epochs is None else f"{images} x {epochs}"
    network = ", ResNet-18" if recipe is not None and "oneclass" in recipe else ""
    options = "" if beta is None or (beta, nu) == (1.0, 0.5) else f", beta {beta:g}, nu {nu:g}"
    return f"{encoder}{network}{options}{''.join(f', {change}' for change in changes)} ({size})"


def of_classes(key: Setting) -> bool:
    """Returns whether a setting belongs to the table of classes: VJE at beta = 1 and nu = 0.5, and not of the grid."""
    return key[3] != GRID and key[-2:] in ((None, None), (1.0, 0.5))


def classes(rows: list[Row], data: str) -> Table:
    """Returns a line for each encoder and score, with a column for each class; VJE at beta = 1 and nu = 0.5."""
    body = []
    found = grouped(rows, data)
    for key, scores in found.items():
        if not of_classes(key):
            continue
        for name, of_class in scores.items():
            if name not in LEFT_OUT:
                values = [f"{statistics.mean(of_class[c]):.3f}" if c in of_class else "" for c in CLASSES]
                seeds = min(len(values) for values in of_class.values())
                body.append([named(key), NAMES.get(name, name), str(seeds), *values, mean(of_class)])
    if body and data == "cifar10":
        paper = [f"{value:.3f}" for value in PAPER]
        body.append(["the paper's ResNet-18 (all x 800)", "own joint, the paper's", "", *paper, f"{PAPER_MEANS[1.0, 0.5]:.3f}"])
    return ["encoder (images of a class x epochs)", "score", "seeds", *map(str, CLASSES), "mean"], body


def ridge(rows: list[Row], data: str = "cifar10") -> Table:
    """Returns a line for each beta and nu: means over classes of VJE's own scores and of the run's detector."""
    body = []
    found = {key: scores for key, scores in grouped(rows, data).items() if key[0] == "vje"}
    for key, scores in sorted(found.items(), key=lambda pair: (str(pair[0][:-2]), *pair[0][-2:])):
        beta, nu = key[-2:]
        values = [mean(scores[name]) if name in scores else "" for name in (*OWN, "detector", "z: kNN, cosine")]
        published = PAPER_MEANS.get((beta, nu))
        paper = f"{published:.3f}" if data == "cifar10" and published is not None else ""
        body.append([f"{beta:g}", f"{nu:g}", named((*key[:-2], None, None)), *values, paper])
    columns = [*OWN, "the run's detector", "kNN on z", "own joint, the paper's ResNet-18"]
    return ["beta", "nu", "encoder (images of a class x epochs)", *columns], body
