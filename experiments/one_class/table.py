"""Tables of this folder's page: AUROC of one class against the other nine.

If a cell was measured more than once, the last row counts. Values are means over seeds. The paper's numbers (arXiv:2602.05639v1,
table 3) are marked as such: ResNet-18, 800 epochs, all 5,000 images of a class and all test images.
"""

import statistics
from collections import defaultdict
from functools import partial
from typing import Any

from experiments.ledger import Row, grid, rows

CLASSES = range(10)
PAPER = (0.872, 0.976, 0.851, 0.828, 0.884, 0.897, 0.909, 0.935, 0.940, 0.937)  # beta = 1, nu = 0.5, CIFAR-10
PAPER_MEANS = {(1.0, 0.5): 0.903, (1.0, 1.0): 0.899, (1.0, 0.25): 0.897}  # CIFAR-10, by beta and nu
NAMES = {"detector": "**the run's detector**", "z: Gaussian": "z: Mahalanobis distance"}
LEFT_OUT = ("own directional", "own radial", "own score")  # of the table of classes
GRID = 1000  # images of a class in the grid of beta and nu, which has a table of its own
Setting = tuple[Any, ...]


def setting(row: Row) -> Setting:
    """Returns what rows that are averaged have in common."""
    sizes = (row["limit"], row["tests"], row["epochs"])
    return (row["encoder"], row["recipe"], tuple(row["set"]), *sizes, row["beta"], row["nu"])


def grouped(data: str) -> dict[Setting, dict[str, dict[int, list[float]]]]:
    """Returns by setting, score and class the AUROC of each seed."""
    last = {(setting(row), row["label"], row["seed"]): row for row in rows("one_class") if row["data"] == data}
    groups: dict[Setting, dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for (key, label, _), row in last.items():
        for name, value in row["auroc"].items():
            groups[key][name][label].append(value)
    return groups


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


def classes_table(data: str) -> str:
    """A line for each encoder and score, with a column for each class; VJE at beta = 1 and nu = 0.5."""
    body = []
    for key, scores in grouped(data).items():
        if key[3] == GRID or key[-2:] not in ((None, None), (1.0, 0.5)):
            continue
        for name, of_class in scores.items():
            if name not in LEFT_OUT:
                values = [f"{statistics.mean(of_class[c]):.3f}" if c in of_class else "" for c in CLASSES]
                seeds = min(len(values) for values in of_class.values())
                body.append([named(key), NAMES.get(name, name), str(seeds), *values, mean(of_class)])
    if data == "cifar10":
        paper = [f"{value:.3f}" for value in (*PAPER, PAPER_MEANS[1.0, 0.5])]
        body.append(["the paper's ResNet-18 (all x 800)", "own joint, the paper's", "", *paper])
    return grid(["encoder (images of a class x epochs)", "score", "seeds", *map(str, CLASSES), "mean"], body)


def ridge_table() -> str:
    """A line for each beta and nu on CIFAR-10: means over classes of VJE's own scores and of the run's detector."""
    body = []
    groups = {key: scores for key, scores in grouped("cifar10").items() if key[0] == "vje"}
    for key, scores in sorted(groups.items(), key=lambda pair: (str(pair[0][:-2]), *pair[0][-2:])):
        beta, nu = key[-2:]
        names = ("own joint", "own variance", "own entropy", "detector", "z: kNN, cosine")
        values = [mean(scores[name]) if name in scores else "" for name in names]
        paper = f"{PAPER_MEANS[beta, nu]:.3f}" if (beta, nu) in PAPER_MEANS else ""
        body.append([f"{beta:g}", f"{nu:g}", named((*key[:-2], None, None)), *values, paper])
    head = ["beta", "nu", "encoder (images of a class x epochs)", "own joint", "own variance", "own entropy"]
    return grid([*head, "the run's detector", "kNN on z", "own joint, the paper's ResNet-18"], body)


TABLES = {
    "experiments/one_class/README.md": {
        **{f"one-class-{data}": partial(classes_table, data) for data in ("cifar10", "fashion_mnist")},
        "one-class-ridge": ridge_table,
    }
}
