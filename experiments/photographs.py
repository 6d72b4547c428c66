"""Photographs of blood cells (640 x 480, folder ``bccd``) with boxes of cells: tiles of them, and the cells alone.

The boxes are in ``bccd/boxes.csv``, whose own split keeps photographs apart. Tiles are of 64 pixels, averaged down to 32. Odd
are tiles of which a white cell's box covers at least half, and those that hold at least half of a platelet's box; tiles that
touch such a box and are neither are left out. The boxes serve this truth alone.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

TILE, SIDE, CELL_SIDE = 64, 32, 64  # pixels of a photograph, of what is left of a tile, and of a cell
ORDINARY, WHITE_CELL, PLATELET = range(3)
LABELS = {"WBC": WHITE_CELL, "Platelets": PLATELET}
CELLS = ("RBC", "WBC", "Platelets")
COVERED = 0.5  # share of a tile that a white cell's box covers, or of a platelet's box that a tile holds


class Box(NamedTuple):
    """A box around a cell: what it holds, and its left, upper, right and lower edge."""

    label: str
    x0: int
    y0: int
    x1: int
    y1: int


def blood_cells(root: Path) -> tuple[Path, Path]:
    """Returns the folder of the photographs and the file of their boxes, which only the original layout has."""
    folder = root / "bccd"
    return folder / "images" if (folder / "images").is_dir() else folder, folder / "boxes.csv"


def read_boxes(root: Path, split: str) -> list[tuple[Path, Box]]:
    """Returns the boxes of a part of the photographs, ``val`` or ``test``, each with the file of its photograph."""
    photographs, boxes = blood_cells(root)
    with boxes.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    edges = ("xmin", "ymin", "xmax", "ymax")
    return [(photographs / row["file"], Box(row["label"], *(int(row[edge]) for edge in edges))) for row in rows]


def label(left: int, top: int, boxes: list[Box]) -> int | None:
    """Returns what a tile shows, by the boxes of its photograph; None where it touches a box without being odd."""
    touched, shown = False, ORDINARY
    for name, x0, y0, x1, y1 in boxes:
        width, height = min(left + TILE, x1) - max(left, x0), min(top + TILE, y1) - max(top, y0)
        if name not in LABELS or width <= 0 or height <= 0:
            continue
        whole = TILE**2 if LABELS[name] == WHITE_CELL else (x1 - x0) * (y1 - y0)
        odd = width * height >= COVERED * whole
        touched, shown = touched or not odd, max(shown, LABELS[name]) if odd else shown
    return None if touched and shown == ORDINARY else shown


def tiles(boxes: list[tuple[Path, Box]], most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tiles (N, 32, 32, 3) of at most so many photographs and their labels (N,), where these can be told."""
    x, y = [], []
    for file in sorted({file for file, _ in boxes})[:most]:
        here = [box for path, box in boxes if path == file]
        with Image.open(file) as image:
            small, (width, height) = np.asarray(image.convert("RGB").reduce(TILE // SIDE)), image.size
        for top in range(0, height - TILE + 1, TILE):
            for left in range(0, width - TILE + 1, TILE):
                if (shown := label(left, top, here)) is not None:
                    a, b = top * SIDE // TILE, left * SIDE // TILE
                    x.append(small[a : a + SIDE, b : b + SIDE])
                    y.append(shown)
    return np.stack(x), np.array(y)


def labeled_tiles(root: Path, most: int | None = None) -> dict[str, np.ndarray]:
    """Returns the tiles of at most so many photographs of both parts, with their labels."""
    (x, y), (other, labels) = (tiles(read_boxes(root, split), most) for split in ("val", "test"))
    return {"x_train": x, "y_train": y, "x_test": other, "y_test": labels}


def ordinary_tiles(root: Path, most: int | None = None) -> dict[str, np.ndarray]:
    """Returns ordinary tiles for the training, and all tiles of the other photographs with their labels."""
    found = labeled_tiles(root, most)
    ordinary = found["y_train"] == ORDINARY
    return found | {name: found[name][ordinary] for name in ("x_train", "y_train")}


def cells(root: Path) -> dict[str, np.ndarray]:
    """Returns the cells in the boxes as images with labels, as many of each kind."""
    arrays = {}
    for part, split in (("train", "val"), ("test", "test")):
        boxes = [(file, box) for file, box in read_boxes(root, split) if box.x1 > box.x0 and box.y1 > box.y0]
        kinds = [[pair for pair in boxes if pair[1].label == kind] for kind in CELLS]
        least = min(map(len, kinds))
        some = [(kind, pair) for kind, pairs in enumerate(kinds) for pair in pairs[:: len(pairs) // least][:least]]
        arrays[f"x_{part}"] = np.stack([cell(*pair) for _, pair in some])
        arrays[f"y_{part}"] = np.array([kind for kind, _ in some])
    return arrays


def cell(file: Path, box: Box) -> np.ndarray:
    """Returns the square around a box, (64, 64, 3) uint8: moved into the photograph, and cut where it is larger."""
    side = max(box.x1 - box.x0, box.y1 - box.y0, 16)
    with Image.open(file) as image:
        centers = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
        x, y = (max(0.0, min(middle - side / 2, whole - side)) for middle, whole in zip(centers, image.size, strict=True))
        edges = (x, y, min(image.width, x + side), min(image.height, y + side))
        small = image.convert("RGB").resize((CELL_SIDE, CELL_SIDE), Image.Resampling.BILINEAR, box=edges)
    return np.asarray(small)
