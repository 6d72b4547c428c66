"""Which recipe suits pairs where none is named: neighbors of the contexts' embedding, and how well mismatched pairs are found.

    python benchmarks/pairs_recipes.py

A row of ``results/pairs_recipes.jsonl`` for each set, number of pairs, recipe and seed; rows that the ledger has from the same
commit are skipped. Sets:

demo       two noisy photographs of each of the digits 0 to 8, as in ``vergence demo``: 12,365 train; kNN on the test contexts
circle     two vectors of three numbers with one cause, an angle
branches   contexts of five numbers; targets have one of two signs, so that each context has two answers
linear     contexts of ten numbers and targets of eight that share 20 causes, with noise

Vectors take the encoder ``mlp``. ``auroc``: 600 other pairs (of the demo the 359 of the test part) against the same contexts with
the targets in random order, by p(target | context). VJE has no such density.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import ledger
import numpy as np
from sklearn.metrics import roc_auc_score

import vergence
from vergence.objectives.core import ConditionalObjective
from vergence.runs.demo import SETTINGS, write_pairs
from vergence.runs.score import pair_scores

RECIPES = ("vje_small", "gje_small", "gmje_small")
SIZES, OTHERS = (600, 4_000), 600
Pairs = tuple[np.ndarray, np.ndarray]


def circle(n: int, seed: int) -> Pairs:
    r = np.random.default_rng(seed)
    a, noise = r.uniform(0, 2 * np.pi, n), 0.05 * r.normal(size=(2, n, 3))
    return np.stack([np.cos(a), np.sin(a), np.cos(2 * a)], 1) + noise[0], np.stack(
        [np.sin(a), np.cos(a), np.sin(2 * a)], 1
    ) + noise[1]


def branches(n: int, seed: int) -> Pairs:
    r = np.random.default_rng(seed)
    c, sign = r.normal(size=(n, 5)), r.choice([-1.0, 1.0], n)
    return c, np.stack([sign * (1 + np.abs(c[:, 0])), c[:, 1], sign * c[:, 2]], 1) + 0.1 * r.normal(size=(n, 3))


def linear(n: int, seed: int) -> Pairs:
    mixing, r = np.random.default_rng(9).normal(size=(20, 8)), np.random.default_rng(seed)
    cause = r.normal(size=(n, 20))
    return cause[:, :10] + 0.3 * r.normal(size=(n, 10)), cause @ mixing + 0.5 * r.normal(size=(n, 8))


SETS = {"circle": circle, "branches": branches, "linear": linear}


def save(path: Path, pairs: Pairs) -> str:
    """Writes pairs to a ``.npz`` file; returns its path."""
    np.savez(path, **{name: side.astype(np.float32) for name, side in zip(("context", "target"), pairs, strict=True)})
    return str(path)


def mismatched(run: vergence.Run, place: Path, pairs: Pairs, seed: int) -> float | None:
    """Returns the AUROC of pairs whose targets are in random order; None without p(target | context)."""
    if not isinstance(run.method.objective, ConditionalObjective):
        return None
    context, target = pairs
    order = np.random.default_rng(seed).permutation(len(target))
    found = []
    for name, side in (("right", target), ("wrong", target[order])):
        np.savez(place / f"{name}.npz", context=context, target=side)
        found.append(pair_scores(run, run.items(str(place / f"{name}.npz"))))
    return round(float(roc_auc_score(np.repeat([0, 1], len(target)), np.concatenate(found))), 4)


def measured(name: str, n: int | None, recipe: str, seed: int, tiny: bool) -> dict[str, Any]:
    """Trains one run; returns its numbers."""
    common = {"recipe": recipe, "seed": seed, "device": "cpu", "threads": 1, "knn_every": 0} | ({"epochs": 1} if tiny else {})
    with tempfile.TemporaryDirectory() as folder:
        place, used = Path(folder), time.process_time()
        if name == "demo":
            write_pairs(place / "pairs.npz", seed)
            shared = {key: SETTINGS[key] for key in ("epochs", "batch_size", "warmup_epochs")}
            run = vergence.train(
                str(place / "pairs.npz"), out=place / "run", **{**common, **shared}, keep_classes=tuple(range(9))
            )
            record = vergence.evaluate(run, probes=False)
            knn = {key: one.knn[30].majority for key, one in record.representations.items() if one.knn is not None}
            with np.load(place / "pairs.npz") as arrays:
                others = arrays["context_test"], arrays["target_test"]
            values = {"knn30": {key: round(100 * value, 2) for key, value in knn.items()}}
            values["detector_auroc"] = round(record.anomaly.scores["detector"].auroc, 4)
        else:
            source = save(place / "pairs.npz", SETS[name](n, seed))
            run = vergence.train(source, out=place / "run", encoder="mlp", **common)
            others, values = tuple(side.astype(np.float32) for side in SETS[name](OTHERS, seed + 100)), {}
        values |= {
            "auroc": mismatched(run, place, others, seed),
            "collapse": run.collapse,
            "epochs": run.folder.config.fit.epochs,
        }
        return values | {"cpu_seconds": round(time.process_time() - used, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["demo", *SETS], choices=["demo", *SETS])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    a = ledger.parse(parser, "pairs_recipes")
    if a.tiny:
        a.sets, a.recipes, a.seeds = ["circle"], ["gmje_small"], [0]
    for seed, name, recipe in itertools.product(a.seeds, a.sets, a.recipes):
        if name != "demo" and recipe == "vje_small":
            continue
        for n in (None,) if name == "demo" else SIZES[: 1 if a.tiny else None]:
            key = {"set": name, "pairs": n, "recipe": recipe}
            if not ledger.holds(a.out, **key, seed=seed):
                ledger.add(a.out, ledger.row(key | measured(name, n, recipe, seed, a.tiny), seed=seed))


if __name__ == "__main__":
    main()
