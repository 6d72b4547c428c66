"""The demonstration: tiles of blood-cell photographs with planted anomalies, duplicates and leaks, next to a reference.

The reference shows red blood cells alone: tiles with a white cell or a platelet are anomalies that nobody planted. What is true
stands in ``truth.csv``, so the last lines say truthfully what was found.
"""

import csv
import io
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vergence.decide import GaussianDetector, cross_fit
from vergence.images.check import check
from vergence.images.measurements import MEASUREMENTS, measure
from vergence.images.result import ENCODER
from vergence.utils.checks import expect
from vergence.utils.files import as_path
from vergence.utils.parts import write_table

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

    from vergence.images.result import CheckResult

__all__ = ["demo"]

DATA = Path(__file__).parent / "demo_data"
SIDE, FINE = 88, 4  # pixels of a tile; pixels of a pixel in which anomalies are drawn
REFERENCE = 60  # images, each of another photograph, since tiles of one are not independent examples
UNCHANGED = 50  # new images of the other photographs
EACH = 3  # images of each planted anomaly
REAL = {"white cell": 6, "platelet": 3}  # images of anomalies that nobody planted
PAIRS = 2  # duplicates of each kind; leaks are half as many
NORMAL, DUPLICATE, LEAK = "normal", "duplicate", "leak"
PARTS = ("reference", "new", "check")
TABLES = ("truth.csv", "cells.csv", "reference_scores.csv", "new_scores.csv")
# Columns of cells.csv, from which the scores are made
COLORS = ("red", "green", "blue", "saturation", "contrast", "light_01", "light_99")
FOLDS = 10  # parts of the reference; each is scored by a Gaussian of the others, as new images are
Change = Callable[["Image"], "Image"]


@dataclass(frozen=True)
class _New:
    """A new image, what is true of it, and the place of the one that it duplicates: in the reference, or among the new ones."""

    image: "Image"
    kind: str = NORMAL
    of: int = -1


def demo(out: str | Path, *, encoder: str = ENCODER, seed: int = 0) -> "CheckResult":
    """Writes a reference and new images, checks the new ones, and returns what was found.

    Args:
        out: Folder for images (``reference``, ``new``), ``truth.csv`` (path, kind, of), results (``check``), colors of the cells
            (``cells.csv``) and scores of a Gaussian over them (``reference_scores.csv``, ``new_scores.csv``) to try other
            commands on; an earlier demo is replaced.
        encoder: As of `check`.
        seed: Seed of the choice of photographs, and of what is planted.

    Raises:
        ValueError: ``out`` holds something that is no demo.

    Example:
        >>> found = demo("vergence-demo")  # doctest: +SKIP
        >>> found.report("page.html")  # doctest: +SKIP
    """
    out, ours = as_path(out, "the folder"), {*PARTS, *TABLES}
    others = sorted(path.name for path in out.iterdir() if path.name not in ours) if out.is_dir() else []
    expect(not others, f"{out} to be empty or an earlier demo", others[0] if others else "", "choose another `out`")
    reference, new = _images(np.random.default_rng(seed))
    names = {part: [f"{part}_{i:03d}.png" for i in range(len(some))] for part, some in (("reference", reference), ("new", new))}
    images: dict[str, list[Image]] = {"reference": reference, "new": [one.image for one in new], "check": []}
    for part, some in images.items():
        shutil.rmtree(out / part, ignore_errors=True)
        (out / part).mkdir(parents=True)
        for name, image in zip(names.get(part, []), some, strict=True):
            image.save(out / part / name)
    of = ["" if one.of < 0 else names["reference" if one.kind.startswith(LEAK) else "new"][one.of] for one in new]
    write_table(out / "truth.csv", {"path": names["new"], "kind": [one.kind for one in new], "of": of})
    columns = [MEASUREMENTS.index(name) for name in COLORS]
    x = {part: np.array([measure(np.array(one).transpose(2, 0, 1))[columns] for one in images[part]]) for part in names}
    colors = np.concatenate([x["reference"], x["new"]]).round(4)
    write_table(out / "cells.csv", {"path": [*names["reference"], *names["new"]], **dict(zip(COLORS, colors.T, strict=True))})
    scores, _, detectors = cross_fit(GaussianDetector(), x["reference"], FOLDS)
    for part, values in (("reference", scores), ("new", np.mean([-one.score_samples(x["new"]) for one in detectors], axis=0))):
        write_table(out / f"{part}_scores.csv", {"path": names[part], "score": values.round(4)})
    return check(out / "new", against=out / "reference", out=out / "check", encoder=encoder)


def planted(found: "CheckResult", out: Path) -> list[str]:
    """Returns in sentences what of ``truth.csv`` was found, and what else was."""
    rows = _read(out / "truth.csv")
    leaks, duplicates = ({(r["path"], r["of"]) for r in rows if r["kind"].startswith(kind)} for kind in (LEAK, DUPLICATE))
    normal = {r["path"] for r in rows if r["kind"].startswith((NORMAL, DUPLICATE, LEAK))}
    flagged = {path for path, flag in zip(found.items["path"], found.items["flag"], strict=True) if flag}
    d = found.duplicates
    pairs = [(source != "same", path, of) for path, of, source in zip(d["path"], d["duplicate_of"], d["source"], strict=True)]
    leaked = {(path, of) for outside, path, of in pairs if outside}
    same = {(path, of) if (path, of) in duplicates else (of, path) for outside, path, of in pairs if not outside}
    missed = [f"{r['path']} ({r['kind']})" for r in rows if r["path"] not in normal | flagged]
    anomalies = len(rows) - len(normal)
    return [
        f"Anomalies: {anomalies - len(missed)} of {anomalies} flagged; missed: {', '.join(missed) or 'none'}.",
        f"Normal images: {len(flagged & normal)} of {len(normal)} flagged.",
        f"Duplicates: {len(same & duplicates)} of {len(duplicates)} found, {len(same - duplicates)} false pairs. "
        f"Leaks: {len(leaked & leaks)} of {len(leaks)} found, {len(leaked - leaks)} false pairs.",
    ]


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _images(rng: np.random.Generator) -> tuple[list["Image"], list[_New]]:
    """Returns the reference, and new images in random order: no photograph is in both."""
    tiles = _tiles()
    order = rng.permutation(sorted(tiles)).tolist()

    def some(names: list[str], n: int, kind: str = NORMAL) -> list["Image"]:
        images = [image for name in names for its, image in tiles[name] if its == kind]
        return [images[i] for i in rng.permutation(len(images))[:n].tolist()]

    reference = [image for name in order[:REFERENCE] for image in some([name], 1)]
    anomalies = _anomalies(rng)
    images = some(order[REFERENCE:], UNCHANGED + EACH * len(anomalies))
    new = [_New(change(images.pop()), kind) for kind, change in anomalies.items() for _ in range(EACH)]
    new += [_New(image, kind) for kind, n in REAL.items() for image in some(order[REFERENCE:], n, kind)]
    first, changes = len(new), [*_changes().items()]
    new += [_New(image) for image in images]
    new += [_New(change(images[i]), f"{DUPLICATE}, {kind}", first + i) for i, (kind, change) in enumerate(PAIRS * changes)]
    new += [_New(change(reference[i]), f"{LEAK}, {kind}", i) for i, (kind, change) in enumerate(changes)]
    place = rng.permutation(len(new))
    at = np.argsort(place).tolist()
    moved = [one if one.of < 0 or one.kind.startswith(LEAK) else _New(one.image, one.kind, at[one.of]) for one in new]
    return reference, [moved[i] for i in place.tolist()]


def _tiles() -> dict[str, list[tuple[str, "Image"]]]:
    """Returns kinds and tiles by the name of their photograph."""
    from PIL import Image

    found: dict[str, list[tuple[str, Image.Image]]] = {}
    with zipfile.ZipFile(DATA / "photographs.zip") as archive:
        photographs = {name: Image.open(io.BytesIO(archive.read(name))).convert("RGB") for name in archive.namelist()}
    for row in _read(DATA / "tiles.csv"):
        left, top = int(row["left"]), int(row["top"])
        tile = photographs[row["photograph"]].crop((left, top, left + SIDE, top + SIDE))
        found.setdefault(row["photograph"], []).append((row["kind"], tile))
    return found


def _anomalies(rng: np.random.Generator) -> dict[str, Change]:
    """Returns what makes an image anomalous, by its name."""
    from PIL import ImageFilter, ImageOps

    def hair(draw: "ImageDraw") -> None:
        a, b, c = rng.uniform(0, FINE * SIDE, (3, 2))
        t = np.linspace(0, 1, 50)[:, None]
        draw.line([*map(tuple, (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c)], 255, width=2 * FINE)

    def dust(draw: "ImageDraw") -> None:
        for x, y, r in zip(*rng.uniform(0.1, 0.9, (2, 5)) * FINE * SIDE, rng.uniform(2, 4, 5) * FINE, strict=True):
            draw.ellipse([x - r, y - r, x + r, y + r], 255)

    def stain(draw: "ImageDraw") -> None:
        (x, y), (a, b) = rng.uniform(0.2, 0.8, 2) * FINE * SIDE, rng.uniform(10, 20, 2) * FINE
        draw.ellipse([x - a, y - b, x + a, y + b], 130)

    def scratch(draw: "ImageDraw") -> None:
        (a, b), s = rng.uniform(0, FINE * SIDE, (2, 2)), FINE * SIDE
        draw.line([(a[0], 0), (b[0], s)] if a[1] < b[1] else [(0, a[0]), (s, b[0])], 255, width=2 * FINE)

    return {
        "hair": lambda image: _painted(image, hair, (45, 35, 30)),
        "dust": lambda image: _painted(image, dust, (40, 40, 45)),
        "stain": lambda image: _painted(image, stain, (120, 80, 20)),
        "scratch": lambda image: _painted(image, scratch, (250, 250, 245)),
        "defocus": lambda image: image.filter(ImageFilter.GaussianBlur(4)),
        "negative": ImageOps.invert,
    }


def _painted(image: "Image", paint: Callable[["ImageDraw"], None], color: tuple[int, int, int]) -> "Image":
    """Returns an image with a color where something is drawn, with smooth edges."""
    from PIL import Image, ImageDraw

    mask = Image.new("L", (FINE * SIDE, FINE * SIDE))
    paint(ImageDraw.Draw(mask))
    return Image.composite(Image.new("RGB", image.size, color), image, mask.resize(image.size, Image.Resampling.BOX))


def _changes() -> dict[str, Change]:
    """Returns what leaves an image a duplicate, by its name."""
    from PIL import Image

    def saved_again(image: "Image.Image") -> "Image.Image":
        image.save(file := io.BytesIO(), "JPEG", quality=90)
        return Image.open(file).convert("RGB")

    return {
        "exact": lambda image: image,
        "resized": lambda image: image.resize((132, 132), Image.Resampling.BICUBIC),
        "saved again": saved_again,
        "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "rotated": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    }
