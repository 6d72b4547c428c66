"""Checks collections of pictures with planted outliers, copies, faults and local defects: what is ranked, flagged and found.

README.md says how.
"""

import argparse
import contextlib
import io
import itertools
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from experiments.check.pictures import DEFECTS, Collection, defects, faults, folder, leaks, mixture
from experiments.runner import DATA, first, main, some
from experiments.shared import Timer, auroc
from torchvision.datasets import CIFAR10

import vergence

SEEDS = {"first": range(5), "other": range(5), "few": range(5), "clean": range(5), "mixture": range(50)}
SEEDS |= {"faults": range(3), "defects": range(3), "leaks": range(3), "thumbnails": range(1)}
MOST_FALSE = 0.3  # of the pixels of ordinary places, up to which AUPRO is integrated


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for kind in a.kinds:
        for seed in range(1) if a.tiny else SEEDS[kind]:
            yield {"kind": kind, "seed": seed, "n": 150 if a.tiny else 50_000 if kind == "thumbnails" else 2000}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of one collection."""
    kind, seed = cell["kind"], cell["seed"]
    if kind == "defects":
        return of_defects(a.data_root, seed, a.tiny)
    if kind == "leaks":
        return of_leaks(a.data_root, seed)
    if kind == "thumbnails":
        timer = Timer()
        found = vergence.check(CIFAR10(a.data_root).data[: cell["n"]])
        return {
            "seconds": round(timer.seconds(), 1),
            "mb": peak(),
            "flagged": found.summary["flagged"],
            "copies": len(found.duplicates),
        }
    if kind == "faults":
        made = faults(a.data_root, seed)
    else:
        made = mixture(a.data_root, seed) if kind == "mixture" else folder(kind, a.data_root, seed, cell["n"])
    timer = Timer()
    found = vergence.check(made.pictures)
    row = {"seconds": round(timer.seconds(), 1), **ranked(made, found)}
    return {**row, **copied(made, found), **peers(made)} if kind in ("first", "other") else row


def peak() -> int:
    return round(sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024)


def ranked(made: Collection, found: Any) -> dict[str, Any]:
    """Returns how outliers are ranked among ordinary pictures, and what is flagged."""
    score, flag = np.array(found.items["score"]), np.array(found.items["flag"]).astype(bool)
    kind, odd, ordinary = np.array(made.kind), made.odd(), made.ordinary()
    row: dict[str, Any] = {"odd": int(odd.sum()), "flagged": int(flag.sum()), "false": int((flag & ~odd).sum())}
    if not odd.any():
        return row
    among = odd | ordinary
    first_ones = np.flatnonzero(among)[np.argsort(-score[among], kind="stable")[: odd.sum()]]
    row |= {"auroc": auroc(odd[among], score[among]), "first": int(odd[first_ones].sum())}
    row["kinds"] = {
        name: {"auroc": auroc(odd[one := ordinary | (kind == name)], score[one]), "flagged": int(flag[kind == name].sum())}
        for name in sorted(set(kind[odd]))
    }
    return row


def copied(made: Collection, found: Any) -> dict[str, Any]:
    """Returns recall of the planted copies, by kind, and the pairs of unusual pictures that are none."""
    place = {path: i for i, path in enumerate(found.items["path"])}
    pairs = {
        frozenset((place[p], place[q])) for p, q in zip(found.duplicates["path"], found.duplicates["duplicate_of"], strict=True)
    }
    return recall(made, pairs)


def recall(made: Collection, pairs: set[frozenset[int]]) -> dict[str, Any]:
    wanted = {frozenset((i, j)): made.kind[i] for i, j in enumerate(made.original) if j >= 0}
    odd = made.odd()
    by_kind = {name: [pair in pairs for pair, kind in wanted.items() if kind == name] for name in sorted(set(wanted.values()))}
    return {
        "recall": round(float(np.mean([pair in pairs for pair in wanted])), 4),
        "recall_by_kind": {name: float(np.mean(values)) for name, values in by_kind.items()},
        "wrong_pairs": sum(bool(odd[list(pair)].any()) for pair in pairs),  # CIFAR-10 has copies of its own
        "other_pairs": sum(not odd[list(pair)].any() and pair not in wanted for pair in pairs),
    }


def peers(made: Collection) -> dict[str, Any]:
    """Returns the same of perceptual hashes and of PyOD's ECOD on pixels, where they are installed."""
    try:
        import imagehash
        from pyod.models.ecod import ECOD
    except ImportError:
        return {}
    row: dict[str, Any] = {}
    for name, hashed, most in (("phash", imagehash.phash, 8), ("dhash", imagehash.dhash, 6)):
        bits = np.array([hashed(picture).hash.ravel() for picture in made.pictures]).astype(np.float32)
        distance = bits @ (1 - bits).T + (1 - bits) @ bits.T
        pairs = {frozenset(pair) for pair in np.argwhere(np.triu(distance <= most, 1)).tolist()}
        row[name] = recall(made, pairs)
    x = np.array([np.asarray(picture.resize((32, 32))).ravel() for picture in made.pictures], dtype=np.float64)
    among = made.odd() | made.ordinary()
    row["ecod_auroc"] = auroc(made.odd()[among], ECOD().fit(x).decision_scores_[among])
    return {**row, **cleaned(made, among)}


def cleaned(made: Collection, among: np.ndarray) -> dict[str, Any]:
    """Returns the same of CleanVision: its copies, and its least score of a plain property, where it is installed."""
    try:
        from cleanvision import Imagelab
    except ImportError:
        return {}
    with tempfile.TemporaryDirectory() as name:
        for i, picture in enumerate(made.pictures):
            picture.save(Path(name) / f"{i:05d}.png")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            lab = Imagelab(data_path=name)
            lab.find_issues(n_jobs=1, verbose=False)
    sets = [group for kind in ("exact", "near") for group in lab.info[f"{kind}_duplicates"]["sets"]]
    numbers = [[int(Path(path).stem) for path in group] for group in sets]
    pairs = {frozenset(pair) for group in numbers for pair in itertools.combinations(group, 2)}
    issues = lab.issues.sort_index()
    scores = [column for column in issues if column.endswith("_score") and "duplicates" not in column]
    return {
        "cleanvision": recall(made, pairs),
        "cleanvision_auroc": auroc(made.odd()[among], -issues[scores].to_numpy().min(1)[among]),
    }


def of_defects(root: str, seed: int, tiny: bool) -> dict[str, Any]:
    """Returns how local defects are ranked and placed, next to known pictures."""
    known, new, masks = defects(root, seed)
    if tiny:
        known, new.pictures, new.kind, masks = known[:60], new.pictures[:24], new.kind[:24], masks[:24]
    timer = Timer()
    found = vergence.check(new.pictures, against=known)
    row = {"seconds": round(timer.seconds(), 1), **ranked(new, found)}
    maps = [found.map(i) for i in range(len(new.pictures))]
    ordinary = [m for m, kind in zip(maps, new.kind, strict=True) if kind not in DEFECTS]
    row["marked_ordinary"] = round(float(np.mean([(m > 1).any() for m in ordinary])), 4)
    return {**row, "aupro": round(aupro(maps, masks), 4)}


def aupro(maps: list[np.ndarray], masks: list[np.ndarray | None]) -> float:
    """Returns the area under the share of each defect that is found over the share of other pixels, up to 0.3."""
    large = [np.kron(m, np.ones((8, 8))) for m in maps]
    cut = [
        np.zeros(m.shape, dtype=bool) if mask is None else mask[: m.shape[0], : m.shape[1]]
        for m, mask in zip(large, masks, strict=True)
    ]
    ordinary = np.sort(np.concatenate([m[~mask] for m, mask in zip(large, cut, strict=True)]))
    false = np.linspace(0, MOST_FALSE, 301)
    threshold = ordinary[((1 - false) * (len(ordinary) - 1)).astype(int)]
    overlap = [[(m[mask] >= t).mean() for t in threshold] for m, mask in zip(large, cut, strict=True) if mask.any()]
    return float(np.trapezoid(np.mean(overlap, 0), false) / MOST_FALSE)


def of_leaks(root: str, seed: int) -> dict[str, Any]:
    """Returns which of changed copies of known pictures are found."""
    train, test = leaks(root, seed)
    found = vergence.check(test.pictures, against=train, leaks=True)
    leak = [int(name) if name else -1 for name in found.items["leak_of"]]
    right = [got == wanted for got, wanted in zip(leak, test.original, strict=True) if wanted >= 0]
    return {
        "planted": len(right),
        "found": sum(right),
        "wrong": sum(g >= 0 > w for g, w in zip(leak, test.original, strict=True)),
    }


if __name__ == "__main__":
    options = {"data_root": DATA, "kinds": some(SEEDS)}
    main(__doc__, "check", options, cells, measure, tiny={"kinds": first}, peers=("imagehash", "pyod", "cleanvision"))
