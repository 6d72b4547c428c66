"""White cells and platelets among tiles of blood-cell photographs, by encoders that have seen neither.

    python -m experiments.detection.blood_cells --data-root DATA           # rows of results/blood_cells.jsonl, seeds 0, 1 and 2
    python -m experiments.detection.blood_cells --data-root DATA --draw    # docs/figures/blood_cells.png: 50 unusual tiles

Photographs (640 x 480) are cut into tiles of 64 pixels, which are averaged down to 32. The file's own split keeps photographs
apart: tiles of one part that touch no box of a white cell or a platelet train the encoder and calibrate its detector; all tiles
of the other part are ranked. Odd are tiles of which a white cell's box covers at least half, and those that hold at least half
of a platelet's box; tiles that touch a box and are neither are left out. The boxes serve this truth alone.

Columns: AUROC of every score for all odd tiles, for white cells and for platelets alone; odd tiles among the first 50; and of
what the run's detector reports at a false-discovery rate of 0.1 how many are odd. Nothing was chosen on these photographs.
"""

import argparse
import csv
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.accuracy.pretrained import PEERS, SIZE, blood_cells, network
from experiments.one_class.run import of_pixels, of_run
from PIL import Image
from sklearn.metrics import roc_auc_score

import vergence
from experiments import ledger
from vergence.data.arrays import from_array
from vergence.data.config import DataConfig
from vergence.data.sources import open_data
from vergence.detection import p_values, select

TILE, SIDE = 64, 32  # pixels of a photograph, and of what is left of a tile
ORDINARY, WHITE_CELL, PLATELET = range(3)
LABELS = {"WBC": WHITE_CELL, "Platelets": PLATELET}
COVERED = 0.5  # share of a tile that a white cell's box covers, or of a platelet's box that a tile holds
SHOWN, FDR = 50, 0.1
ENCODERS: dict[str, dict[str, Any]] = {
    "pixels": {},
    "patches": {"recipe": "patches"},
    "vje": {"recipe": "vje_small", "knn_every": 0},
    "gje": {"recipe": "gje_small", "knn_every": 0},
    "contrastive": {"recipe": "contrastive_small", "knn_every": 0},
    "pretrained": {"size": SIZE},  # and those of the network
}
FRAMES = {ORDINARY: "0.6", WHITE_CELL: "tab:blue", PLATELET: "tab:orange"}
Box = tuple[str, int, int, int, int]


def label(left: int, top: int, boxes: list[Box]) -> int | None:
    """Returns what a tile shows, by the boxes of its photograph; None where it touches a box without being odd."""
    touched, found = False, ORDINARY
    for name, x0, y0, x1, y1 in boxes:
        width, height = min(left + TILE, x1) - max(left, x0), min(top + TILE, y1) - max(top, y0)
        if name not in LABELS or width <= 0 or height <= 0:
            continue
        whole = TILE**2 if LABELS[name] == WHITE_CELL else (x1 - x0) * (y1 - y0)
        odd = width * height >= COVERED * whole
        touched, found = touched or not odd, max(found, LABELS[name]) if odd else found
    return None if touched and found == ORDINARY else found


def tiles(photographs: Path, rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tiles (N, 32, 32, 3) of some photographs and their labels (N,), without those that cannot be told."""
    boxes: dict[str, list[Box]] = {}
    for row in rows:
        x0, y0, x1, y1 = (int(row[name]) for name in ("xmin", "ymin", "xmax", "ymax"))
        boxes.setdefault(row["file"], []).append((row["label"], x0, y0, x1, y1))
    x, y = [], []
    for name in sorted(boxes):
        with Image.open(photographs / name) as image:
            small = np.asarray(image.convert("RGB").reduce(TILE // SIDE))
            width, height = image.size
        for top in range(0, height - TILE + 1, TILE):
            for left in range(0, width - TILE + 1, TILE):
                if (found := label(left, top, boxes[name])) is not None:
                    a, b = top * SIDE // TILE, left * SIDE // TILE
                    x.append(small[a : a + SIDE, b : b + SIDE])
                    y.append(found)
    return np.stack(x), np.array(y)


def labeled(root: Path, most: int | None = None) -> dict[str, np.ndarray]:
    """Returns the tiles of at most so many photographs of both parts, with their labels."""
    photographs, boxes = blood_cells(root)
    with boxes.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {part: sorted({row["file"] for row in rows if row["split"] == part})[:most] for part in ("val", "test")}
    (x, y), (other, labels) = (
        tiles(photographs, [row for row in rows if row["file"] in names[part]]) for part in ("val", "test")
    )
    return {"x_train": x, "y_train": y, "x_test": other, "y_test": labels}


def parts(root: Path, most: int | None) -> dict[str, np.ndarray]:
    """Returns ordinary tiles for the training, and all tiles of the other photographs with their labels."""
    found = labeled(root, most)
    ordinary = found["y_train"] == ORDINARY
    return found | {name: found[name][ordinary] for name in ("x_train", "y_train")}


def aurocs(scores: dict[str, np.ndarray], labels: np.ndarray) -> ledger.Row:
    """Returns by score the AUROC of all odd tiles and of each kind, and how many of the first 50 are odd."""
    rows: dict[str, np.ndarray] = {
        "auroc": np.full(len(labels), True),
        "white_cells": labels != PLATELET,
        "platelets": labels != WHITE_CELL,
    }
    odd = labels != ORDINARY
    found: ledger.Row = {
        name: {how: round(float(roc_auc_score(odd[kept], s[kept])), 4) for how, s in scores.items()}
        for name, kept in rows.items()
        if len(set(odd[kept])) == 2
    }
    return found | {"odd_of_first_50": {how: int(odd[np.argsort(-s)[:SHOWN]].sum()) for how, s in scores.items()}}


def measured(file: Path, folder: Path, encoder: str, seed: int, changes: ledger.Row) -> tuple[ledger.Row, np.ndarray]:
    """Trains an encoder on the tiles of a file and ranks the others; returns its numbers, and the scores of its detector."""
    start, used = time.perf_counter(), time.process_time()
    with np.load(file) as stored:
        test, labels = from_array(stored["x_test"]), stored["y_test"]
    if encoder == "pixels":
        scores = of_pixels(open_data(DataConfig(source=str(file))), test, seed)
        detector, about = scores["detector without an encoder"], {}
    else:
        more = network() if encoder == "pretrained" else {}
        settings = {**ENCODERS[encoder], **more, "seed": seed, "device": "cpu", **changes}
        run = vergence.train(str(file), out=folder / f"{encoder} {seed}", trust_code=True, **settings)
        scores = of_run(run, test, seed, untrained=encoder == "vje")
        detector, known = scores["detector"], run.detector().calibration
        flags = select(p_values(known, detector), fdr=FDR)
        about = {"calibration": len(known), "reported": int(flags.sum()), "reported_odd": int((labels[flags] != ORDINARY).sum())}
        about |= {"collapse": run.collapse, "epochs": run.folder.config.fit.epochs}
    seconds = {"seconds": round(time.perf_counter() - start, 1), "cpu_seconds": round(time.process_time() - used, 1)}
    counts = {name: int((labels == kind).sum()) for name, kind in (("n_white_cells", WHITE_CELL), ("n_platelets", PLATELET))}
    return {**counts, "n_ordinary": int((labels == ORDINARY).sum()), **about, **seconds, **aurocs(scores, labels)}, detector


def draw(x: np.ndarray, labels: np.ndarray, scores: np.ndarray, out: Path | None) -> None:
    """Draws the 50 most unusual tiles, the most unusual first, in frames by what they show."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    fig, axes = plt.subplots(5, 10, figsize=(9, 5.1), layout="constrained")
    for ax, i in zip(axes.flat, np.argsort(-scores), strict=False):
        ax.imshow(x[i])
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set(color=FRAMES[int(labels[i])], linewidth=3)
    handles = [Patch(color=color) for color in FRAMES.values()]
    fig.legend(handles, ["neither", "white cell", "platelet"], loc="outside lower center", ncols=3, frameon=False)
    if out is not None:
        fig.savefig(out, dpi=110)


def main() -> None:
    """Adds a row for each encoder and seed that the ledger lacks, or draws the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with bccd/boxes.csv and the photographs")
    parser.add_argument("--encoders", nargs="+", default=list(ENCODERS), choices=list(ENCODERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--draw", action="store_true", help="train `patches` with the first seed and draw; no rows")
    a = ledger.parse(parser, "blood_cells")
    if not (boxes := blood_cells(a.data_root)[1]).exists():
        parser.error(f"expected {boxes} beside the photographs")
    changes: dict[str, Any] = {}
    if a.tiny or a.draw:
        a.encoders, a.seeds = ["patches"], a.seeds[:1]
    if a.tiny:
        changes = {"encoder": "patches:atoms=16,second=16,directions=32,dim=16,views=2"}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        file, found = Path(scratch) / "tiles.npz", parts(a.data_root, 4 if a.tiny else None)
        np.savez(file, **found)
        for seed in a.seeds:
            for encoder in a.encoders:
                fields = {"encoder": encoder, "tile": TILE, "side": SIDE}
                if not a.draw and ledger.holds(a.out, **fields, seed=seed):
                    continue
                row, detector = measured(file, Path(scratch), encoder, seed, changes)
                if a.draw:
                    picture = None if a.tiny else ledger.ROOT / "docs" / "figures" / "blood_cells.png"
                    draw(found["x_test"], found["y_test"], detector, picture)
                else:
                    peers = PEERS if encoder == "pretrained" else ()
                    ledger.add(a.out, ledger.row({**fields, "n_train": len(found["x_train"]), **row}, seed=seed, peers=peers))


if __name__ == "__main__":
    main()
