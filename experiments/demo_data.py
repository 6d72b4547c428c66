"""The data of ``vergence demo``, from the photographs of BCCD: ``python -m experiments.demo_data FOLDER``.

FOLDER holds ``boxes.csv``, ``LICENSE`` and ``images``: https://github.com/Shenggan/BCCD_Dataset, MIT. Kept are 90 photographs at
half of their size, none of a field that another one shows too, and where their tiles lie: around a white cell, around a
platelet, or apart from all of them (``normal``), with boxes and without.
"""

import csv
import io
import sys
import zipfile
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
from experiments.ledger import ROOT
from PIL import Image

DATA = ROOT / "src" / "vergence" / "images" / "demo_data"
NUMBERS, QUALITY = range(130, 411), 88  # of photographs of one kind; of JPEG
SIZE, TILE, STEP, MARGIN = (320, 240), 88, 4, 3  # pixels
VIOLET, FEW = 20, 20  # blue above red of a pixel of a platelet; pixels
LEFT_OUT = {
    *(253, 260, 261, 262, 391, 397),  # fields of 236, 227, 226, 225, 386 and 381
    *(132, 135, 152, 157, 171, 178, 193, 228, 249, 269, 290, 327, 338, 340, 350, 389, 390),  # debris, blur, no boxes
}
SOURCE = "photographs.zip holds photographs of BCCD (https://github.com/Shenggan/BCCD_Dataset) at half of their size.\n"
SOURCE += "tiles.csv follows from their annotations. Both are under the license of BCCD:"
Box = tuple[float, float, float, float]


def boxes(folder: Path) -> dict[str, list[tuple[str, Box]]]:
    """Returns kinds and boxes (left, top, right, bottom) at the kept size, by the name of the photograph."""
    found = defaultdict(list)
    with (folder / "boxes.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            box = tuple(int(row[name]) / 2 for name in ("xmin", "ymin", "xmax", "ymax"))
            found[row["file"]].append((row["label"], box))
    return found


def apart(a: Box, b: Box, margin: float) -> bool:
    """Returns whether two boxes lie apart."""
    return a[2] + margin <= b[0] or b[2] + margin <= a[0] or a[3] + margin <= b[1] or b[3] + margin <= a[1]


def square(left: float, top: float) -> Box:
    return left, top, left + TILE, top + TILE


def around(box: Box) -> tuple[int, int]:
    """Returns left and top of the tile around a cell."""
    left, top = ((box[k] + box[k + 2] - TILE) / 2 for k in (0, 1))
    return round(min(max(0, left), SIZE[0] - TILE)), round(min(max(0, top), SIZE[1] - TILE))


def tiles(photograph: Image.Image, about: list[tuple[str, Box]]) -> list[tuple[str, int, int]]:
    """Returns the kind, left and top of tiles of a photograph that lie apart."""
    pixels = np.asarray(photograph).astype(int)
    violet = pixels[..., 2] - pixels[..., 0] > VIOLET

    def plain(left: int, top: int) -> bool:
        return bool(violet[top : top + TILE, left : left + TILE].sum() < FEW)

    white, platelets = ([box for kind, box in about if kind == name] for name in ("WBC", "Platelets"))
    found = [("white cell", *around(box)) for box in white]
    no = [*white, *(square(*xy) for _, *xy in found)]
    seen = [xy for xy in map(around, platelets) if not plain(*xy) and all(apart(square(*xy), box, 0) for box in no)]
    found += [("platelet", *xy) for xy in seen[:1]]
    no += [*platelets, *(square(*xy) for xy in seen[:1])]
    for top, left in product(range(0, SIZE[1] - TILE + 1, STEP), range(0, SIZE[0] - TILE + 1, STEP)):
        if plain(left, top) and all(apart(square(left, top), box, MARGIN) for box in no):
            found.append(("normal", left, top))
            no.append(square(left, top))
    return found


def main(folder: Path) -> None:
    about, rows = boxes(folder), []
    DATA.mkdir(exist_ok=True)
    (DATA / "LICENSE").write_text(f"{SOURCE}\n\n{(folder / 'LICENSE').read_text()}")
    with zipfile.ZipFile(DATA / "photographs.zip", "w") as archive:
        for path in sorted((folder / "images").glob("*.jpg")):
            if int(path.stem[-5:]) not in NUMBERS or int(path.stem[-5:]) in LEFT_OUT:
                continue
            file = io.BytesIO()
            with Image.open(path) as photograph:
                small = photograph.convert("RGB").resize(SIZE, Image.Resampling.BOX)
            small.save(file, "JPEG", quality=QUALITY, optimize=True)
            archive.writestr(zipfile.ZipInfo(path.name), file.getvalue())
            rows += [(path.name, *tile) for tile in tiles(small, about[path.name])]
    with (DATA / "tiles.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("photograph", "kind", "left", "top"), *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
