"""Generates the tables of the README and the docs from the ledger (``experiments/*/results.jsonl``).

python -m experiments.tables            # writes them
python -m experiments.tables --check    # exits with 1 if a page disagrees with the ledger
"""

import importlib
import re
import statistics
import sys
import types
from collections import defaultdict
from functools import partial
from typing import Any

from experiments.accuracy import table as accuracy_tables
from experiments.advice import alignment
from experiments.advice import table as advice_tables
from experiments.calibration import table as calibration_tables
from experiments.corruption import table as corruption_tables
from experiments.detection import table as detection_tables
from experiments.folder import table as folder_tables
from experiments.ledger import HERE, ROOT, grid, plus_minus, read, rows
from experiments.methods import table as methods_tables
from experiments.one_class import table as one_class_tables
from experiments.pairs import table as pairs_tables
from experiments.speed import table as speed_tables
from experiments.uncertainty import table as uncertainty_tables

from vergence import methods, objectives


def objectives_table() -> str:
    """A line for each objective and method on images: title and source from its docstring, and how it was tested."""
    trained = {row["config"]["model"]["objective"] for row in rows("training")} | {row["objective"] for row in rows("joint")}
    trained |= {row["method"] for row in rows("methods")}
    body = []
    for folder, option in ((objectives, "--objective"), (methods, "--method")):
        files = (ROOT / "tests" / folder.__name__.split(".")[1]).glob("test_*.py")
        tests = " ".join(file.stem.removeprefix("test_") + " " + file.read_text() for file in files)
        for name in folder.names():
            text = importlib.import_module(f"{folder.__name__}.{name}").__doc__
            title = re.split(r" \(|:|, arXiv", text.splitlines()[0])[0].rstrip(".")
            paper = re.search(r"arXiv:\d{4}\.\d{4,5}( version \d)?|ICML\s\d{4}", text)
            tested = re.search(rf"\b{name}\b", tests)
            state = "not tested" if not tested else "tested, measured on real data" if name in trained else "tested"
            body.append([f"`{name}`", f"`{option}`", title, " ".join(paper[0].split()) if paper else "", state])
    return grid(["name", "option", "what", "source", "status"], body)


LEDGER = {"detection": "out_of_distribution"}  # of the experiments whose tables read a ledger of another name


def summary(module: types.ModuleType, name: str, **settings: Any) -> str:
    """A summary of an experiment's ``table.py``; says so where nothing was measured yet."""
    folder = module.__name__.split(".")[1]
    header, body = getattr(module, name)(rows(LEDGER.get(folder, folder)), **settings)
    return grid(header, body) if body else "Not measured yet."


corruption_table = partial(summary, corruption_tables)
methods_table = partial(summary, methods_tables, "of_budget")


def notes_table() -> str:
    """A line for each note on old rows."""
    body = []
    for one in read(HERE / "notes.jsonl"):
        lines = ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in one["lines"])
        body.append([f"`{one['ledger']}.jsonl`", lines, one["note"]])
    return grid(["ledger", "lines", "note"], body)


DEFAULT = "default 5"  # name of the current default detector in the ledger
FOREIGN = {  # columns of the tables of out-of-distribution detection
    "cifar10": ("cifar100", "omniglot", "inverted", "fashion_mnist", "mnist", "noise", "blurred"),
    "fashion_mnist": ("mnist", "omniglot", "cifar10", "noise", "blurred", "inverted"),
}


def foreign_rows(data: str, peers: bool = False) -> list[dict]:
    """The last row of each encoder, level and detector of our own, or with ``peers`` of all, on a set, with means over its seeds.

    ``seeds`` has the mean AUROC over the foreign sets of each seed. A series begins with seed 0: rows of before the last one of
    that seed, whose encoder may have had other settings, do not count.
    """
    found: dict[tuple, dict[int, dict]] = defaultdict(dict)
    for row in rows("out_of_distribution"):
        if row["data"] == data and (peers or not row["detector"].startswith(detection_tables.PEERS)):
            key = row["encoder"], row["level"], row["detector"]
            found[key] = {row["seed"]: row} if row["seed"] == 0 else found[key] | {row["seed"]: row}
    return [_over_seeds(list(of.values())) for of in found.values()]


def _over_seeds(of: list[dict]) -> dict:
    last = max(of, key=lambda row: row.get("date", ""))
    means = {name: statistics.mean(row[name] for row in of) for name in ("mean_foreign", "mean_corrupted")}
    auroc = {name: statistics.mean(row["auroc"][name] for row in of) for name in last["auroc"]}
    return {**last, **means, "auroc": auroc, "seeds": [row["mean_foreign"] for row in of]}


def foreign_table(data: str) -> str:
    """AUROC of each detector on the features of `vje` and on what needs no encoder: the default first, then the controls."""
    shown = [row for row in foreign_rows(data) if row["encoder"] in ("vje", "pixels")]
    shown = [row for row in shown if not re.match("default [23].", row["detector"])]  # parts of rules that are no longer used
    shown.sort(key=lambda row: (row["detector"] != DEFAULT, not row["detector"].startswith("default"), -row["mean_foreign"]))
    best = max(row["mean_foreign"] for row in shown)
    body = []
    for row in shown:
        values = [f"{row['auroc'][name]:.3f}" for name in FOREIGN[data]]
        mean = f"**{row['mean_foreign']:.3f}**" if row["mean_foreign"] == best else f"{row['mean_foreign']:.3f}"
        level = f"`vje`: {row['level'].removeprefix('own_')}" if row["level"].startswith("own_") else row["level"]
        name = f"**{DEFAULT}, current**" if row["detector"] == DEFAULT else row["detector"]
        body.append([level, name, *values, mean, f"{row['mean_corrupted']:.3f}"])
    return grid(["level", "detector", *FOREIGN[data], "mean", "corruptions"], body)


def encoders_table(data: str) -> str:
    """Mean AUROC over foreign sets: each encoder with each detector on its embedding, and with the default."""
    found = foreign_rows(data)
    columns = [
        ("z", "Gaussian"),
        ("z", "Gaussian, 64 directions"),
        ("z", "subspace"),
        ("z", "mixture"),
        ("z", "kNN"),
        ("z", "kNN, cosine"),
        ("statistics + patches + z", "default"),
        ("statistics + patches + z", "default 2"),
        ("statistics + patches + z", "default 3"),
        ("statistics + patches + z", "default 4"),
        ("statistics + patches + z", DEFAULT),
    ]
    columns = [key for key in columns if any((row["level"], row["detector"]) == key for row in found)]
    body = []
    for encoder in dict.fromkeys(row["encoder"] for row in found if row["encoder"] != "pixels"):
        own = {(row["level"], row["detector"]): row for row in found if row["encoder"] == encoder}
        epochs = {row.get("epochs") for row in own.values()} - {None}
        name = f"{encoder}, {epochs.pop()} epochs" if epochs and encoder not in ("untrained", "patches") else encoder
        body.append([name, *(f"{own[key]['mean_foreign']:.3f}" if key in own else "" for key in columns)])
    return grid(["encoder", *(how if how.startswith("default") else f"{how} on z" for _, how in columns)], body)


def detection_table() -> str:
    """Mean AUROC over CIFAR-10's foreign sets and that of CIFAR-100: detectors of runs first, then the controls."""
    found = {(row["encoder"], row["level"], row["detector"]): row for row in foreign_rows("cifar10", peers=True)}
    whole, plain = "statistics + patches + z", "statistics + z"
    shown = [
        ("patches", whole, DEFAULT, "**`vergence score` of a `patches` run**"),
        ("patches", whole, "default", "**`vergence score` of a `patches` run, detector of format 1**"),
        ("patches", "z", "kNN", "control: kNN distance on its embedding"),
        ("patches", "z", "Gaussian, 64 directions", "control: one Gaussian on 64 directions of it"),
        ("vje", whole, DEFAULT, "**`vergence score` of a `vje_small` run**"),
        ("vje", plain, "default without patches", "**`vergence score` of a `vje_small` run, detector of format 1**"),
        ("vje", "z", "kNN", "control: kNN distance on its embedding"),
        ("vje", "z", "Gaussian, 64 directions", "control: one Gaussian on 64 directions of it"),
        ("vje", "own_joint", "own score", "control: VJE's joint score"),
        ("distilled", whole, DEFAULT, "**`vergence score` of a `distilled_vje` run**"),
        ("distilled", "z", "kNN", "control: kNN distance on its embedding"),
        ("distilled", "z", "Gaussian, 64 directions", "control: one Gaussian on 64 directions of it"),
        ("pretrained", whole, DEFAULT, "**`vergence score` of a frozen ImageNet network**, at 96 pixels"),
        ("pretrained", "z", "kNN, cosine", "control: cosine distance to the 5th neighbor on its embedding"),
        ("pretrained", "z", "Gaussian, 64 directions", "control: one Gaussian on 64 directions of it"),
        ("pixels", "statistics", "pyod KNN", "control: PyOD's kNN distance on statistics of the pixels"),
        ("pixels", "statistics", "kNN", "control: our kNN distance on them, to 2,000 items"),
        ("pixels", "statistics", "Gaussian", "control: one Gaussian on them"),
        ("pixels", "pixels", "kNN, cosine, 2,000 items", "control: kNN distance on pixels"),
    ]
    body = []
    for *key, label in shown:
        if "format 1" in label and (key[0], whole, DEFAULT) in found:
            continue
        if (row := found.get(tuple(key))) is not None:
            body.append([label, str(len(row["seeds"])), plus_minus(row["seeds"], 3), f"{row['auroc']['cifar100']:.3f}"])
    return grid(["score", "seeds", "mean AUROC, seven sets", "CIFAR-100"], body)


def digits_table() -> str:
    """AUROC of the demo's detector for each digit that is held out, beside the best controls; a digit's last row of each seed."""
    last = {(row["held_out"], row["seed"]): row["auroc"] for row in rows("digits")}
    digits = sorted({digit for digit, _ in last})
    shown = {"detector": "**the run's detector**", "joint": "VJE's joint score"}
    shown |= {f"kNN, {name}": f"control: kNN distance on {name}" for name in ("z", "untrained", "pixels", "pca")}
    shown["Mahalanobis, z"] = "control: Mahalanobis distance on z"
    body = []
    for name, label in shown.items():
        found = [statistics.mean(auroc[name] for (d, _), auroc in last.items() if d == digit) for digit in digits]
        body.append([label, *(f"{value:.3f}" for value in found), f"{statistics.mean(found):.3f}" if found else ""])
    return grid(["score", *map(str, digits), "mean"], body)


def severity_table() -> str:
    """AUROC of the default on `vje`'s features by corruption and severity."""
    found = {row["detector"]: row for row in foreign_rows("cifar10") if row["encoder"] == "vje"}
    row = found.get(DEFAULT, found["default"])
    kinds = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in row["auroc"] if name[-2:-1] == " "))
    body = [[kind, *(f"{row['auroc'][f'{kind} {s}']:.3f}" for s in range(1, 6))] for kind in kinds]
    return grid(["corruption", "1", "2", "3", "4", "5"], body)


def same_features_table() -> str:
    """Other packages' detectors beside ours on the same features of seed 0: the last rows."""
    of = [row for row in rows("out_of_distribution") if row["seed"] == 0]
    return grid(*detection_tables.same_features(of, DEFAULT))


PAGES = {
    ROOT / "docs" / "joint_embeddings.md": {
        "trap-toy": partial(pairs_tables.trap_table, "toy"),
        "trap-fashion": partial(pairs_tables.trap_table, "fashion"),
        **{f"joint-{data}": partial(pairs_tables.joint_table, data) for data in ("fashion_mnist", "cifar10")},
        **{f"sampling-{data}": partial(pairs_tables.sampling_table, data) for data in ("fashion_mnist", "cifar10")},
        **{f"answers-{data}": partial(pairs_tables.answers_table, data) for data in ("mnist", "fashion_mnist", "cifar10")},
        **{f"components-{data}": partial(pairs_tables.components_table, data) for data in ("fashion_mnist", "cifar10")},
        "cost": speed_tables.cost_table,
        "pairs-recipes": pairs_tables.pairs_recipes_table,
    },
    ROOT / "experiments" / "README.md": {"notes": notes_table},
    ROOT / "docs" / "detection_measured.md": {
        **{f"foreign-{data}": partial(foreign_table, data) for data in FOREIGN},
        **{f"encoders-{data}": partial(encoders_table, data) for data in FOREIGN},
        "same-features": same_features_table,
        "held-out-classes": lambda: grid(*detection_tables.held_out_classes(rows("held_out_classes"))),
        "blood-cells": lambda: grid(*detection_tables.blood_cells(rows("blood_cells"))),
        "severity": severity_table,
        "digits": digits_table,
        "findings": folder_tables.findings_table,
        "folder": folder_tables.folder_table,
        "discoveries": partial(summary, calibration_tables, "means"),
        "discoveries-sets": partial(summary, calibration_tables, "sets"),
        **{f"one-class-{data}": partial(summary, one_class_tables, "classes", data=data) for data in FOREIGN},
        "one-class-ridge": partial(summary, one_class_tables, "ridge"),
    },
    ROOT / "README.md": {
        "objectives": objectives_table,
        "two-cores": accuracy_tables.two_cores_table,
        "methods": partial(summary, methods_tables, "short"),
        "detection": detection_table,
        "training": accuracy_tables.training_table,
        "speed": speed_tables.speed_table,
        "linear": advice_tables.linear_table,
        "mixtures": pairs_tables.mixtures_table,
    },
    ROOT / "docs" / "branches.md": {
        **{
            name: partial(pairs_tables.branches_table, name)
            for name in ("separated", "intersecting", "heteroscedastic", "arm", "halves")
        },
        "samples": pairs_tables.samples_table,
    },
    ROOT / "docs" / "methods.md": {"recipe-costs": speed_tables.recipe_costs_table},
    ROOT / "docs" / "methods_measured.md": {
        "thirty-minutes": partial(methods_table, seconds=1800.0),
        "five-minutes": partial(methods_table, seconds=300.0),
        "thirty-minutes-published": partial(methods_table, seconds=1800.0, settings=("published",)),
        "five-minutes-published": partial(methods_table, seconds=300.0, settings=("published",)),
        "steps": partial(methods_table, seconds=None),
        "steps-published": partial(methods_table, seconds=None, settings=("published",)),
        "peers": speed_tables.peers_table,
    },
    ROOT / "docs" / "trained.md": {
        "distilled": accuracy_tables.distilled_table,
        "from-random": accuracy_tables.from_random_table,
    },
    ROOT / "docs" / "encoders.md": {
        "pretrained": accuracy_tables.pretrained_table,
        "duplicates": accuracy_tables.duplicates_table,
    },
    ROOT / "docs" / "advice.md": {
        "agreement": advice_tables.agreement_table,
        "ties": advice_tables.ties_table,
        "overlaps": advice_tables.overlap_table,
        "failures": advice_tables.failures_table,
        "features": advice_tables.features_table,
    },
    ROOT / "docs" / "alignment.md": alignment.TABLES,
    ROOT / "docs" / "corruption.md": {
        "corrupted": partial(corruption_table, "accuracies"),
        "clean": partial(corruption_table, "accuracies", measure="clean_probe"),
        "neighbors": partial(corruption_table, "accuracies", measure="knn30"),
        **{name: partial(corruption_table, name) for name in ("leads", "closed_forms", "drops", "helped", "longer", "predicted")},
    },
    ROOT / "docs" / "uncertainty.md": {
        "errors": partial(uncertainty_tables.uncertainty_table, "r_auroc"),
        "errors-equalized": partial(uncertainty_tables.uncertainty_table, "r_auroc_equalized"),
        "foreign": partial(uncertainty_tables.uncertainty_table, "foreign"),
        "degradations": uncertainty_tables.degradations_table,
        "predictive": uncertainty_tables.predictive_table,
    },
}


def written(text: str, tables: dict) -> str:
    """Returns a page's text with its tables generated again."""
    for name, make in tables.items():
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, lambda m, make=make: f"{m[1]}{make()}\n{m[2]}", text, flags=re.S)
        assert count == 1, f"expected one table '{name}' in the page, found {count}"
    return text


def main() -> None:
    for page, tables in PAGES.items():
        text = page.read_text()
        new = written(text, tables)
        if "--check" not in sys.argv:
            page.write_text(new)
        elif new != text:
            sys.exit(f"{page.name} disagrees with the ledger: run python -m experiments.tables")


if __name__ == "__main__":
    main()
