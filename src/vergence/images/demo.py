"""The demonstration: pictures with planted outliers, defects, copies and a group, compared with known ones.

The pictures are scikit-learn's scanned digits. What was planted is known, so the last lines say truthfully what was found.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vergence.images.check import check
from vergence.utils.checks import counted, expect
from vergence.utils.parts import write_table

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    from vergence.images.result import CheckResult

__all__ = ["demo"]

SIDE, KNOWN, NEW, GROUP = 64, 600, 200, 8  # pixels; known pictures, new ones, and pictures on colored paper
TWICE = 2  # pictures of each kind of outlier
PAPER = (255, 235, 170)
PARTS = ("known", "new", "check")


@dataclass(frozen=True)
class Planted:
    """A picture, and what was done to it: empty for nothing; ``copy of`` and a name for a copy."""

    picture: "Picture"
    kind: str


def demo(out: Path, *, seed: int = 0) -> "CheckResult":
    """Writes known and new pictures, checks the new ones, and prints which of the planted ones were found.

    Args:
        out: Folder for pictures (``known``, ``new``), ``planted.csv`` and results (``check``); an earlier demo is replaced.
        seed: Seed of the choice of pictures.

    Raises:
        ValueError: ``out`` holds something that is no demo.
    """
    ours = {*PARTS, "planted.csv"}
    others = sorted(path.name for path in out.iterdir() if path.name not in ours) if out.is_dir() else []
    expect(not others, f"{out} to be empty or an earlier demo", others[0] if others else "", "choose another --out")
    for part in PARTS:
        shutil.rmtree(out / part, ignore_errors=True)
    known, new = _pictures(seed)
    for part, pictures in (("known", known), ("new", [one.picture for one in new])):
        (out / part).mkdir(parents=True)
        for i, picture in enumerate(pictures):
            picture.save(out / part / f"{part}_{i:03d}.png")
    kind = {f"new_{i:03d}.png": one.kind for i, one in enumerate(new) if one.kind}
    write_table(out / "planted.csv", {"path": list(kind), "kind": list(kind.values())})
    return check(out / "new", against=out / "known", out=out / "check")


def planted(found: "CheckResult", out: Path) -> list[str]:
    """Returns in sentences which of the planted pictures were found, by ``planted.csv``."""
    import csv

    with (out / "planted.csv").open(encoding="utf-8", newline="") as file:
        kind = {row["path"]: row["kind"] for row in csv.DictReader(file)}
    copies = [path for path, what in kind.items() if what.startswith("copy")]
    odd = [path for path in kind if path not in copies]
    first = {found.items["path"][i] for i in found.strangest(len(odd))}
    flagged = {path for path, flag in zip(found.items["path"], found.items["flag"], strict=True) if flag}
    c = found.duplicates
    pairs = [(a, b) for a, b, other in zip(c["path"], c["duplicate_of"], c["source"], strict=True) if other == "same"]
    right = {path for pair in pairs for path in pair if path in copies}
    others = [pair for pair in pairs if not {*pair} & right]
    missed = [f"{path} ({kind[path]})" for path in odd if path not in flagged]
    fine = len(flagged) - (len(odd) - len(missed))
    text = f"Planted: {len(odd) - len(missed)} of {counted(len(odd), 'unusual picture')} are among those to look at"
    return [
        f"{text}, {len(first & {*odd})} among the first {len(odd)}; missed: {', '.join(missed) or 'none'}.",
        f"{fine} of those to look at are fine. {len(right)} of {len(copies)} planted copies were found; "
        f"{len(others)} other pairs are scans of one digit that look nearly the same.",
    ]


def _pictures(seed: int) -> tuple[list["Picture"], list[Planted]]:
    """Returns known pictures, and new ones in random order."""
    from sklearn.datasets import load_digits

    rng, scans = np.random.default_rng(seed), load_digits().images
    digits = iter([_digit(scans[i]) for i in rng.permutation(len(scans))[: KNOWN + NEW + 4 * len(_changes(rng)) + 2 * GROUP]])
    known = [next(digits) for _ in range(KNOWN)]
    new = [Planted(next(digits), "") for _ in range(NEW)]
    new += [Planted(change(next(digits)), kind) for kind, change in _changes(rng).items() for _ in range(TWICE)]
    new += [Planted(_photograph(), "photograph")]
    new += [Planted(_on_paper(next(digits)), "on yellow paper") for _ in range(GROUP)]
    new += [Planted(change(new[10 * k].picture), f"copy, {kind}") for k, (kind, change) in enumerate(_copies().items())]
    return known, [new[i] for i in rng.permutation(len(new))]


def _digit(scan: np.ndarray) -> "Picture":
    """Returns a scan (8, 8) of gray values up to 16 as black ink on white."""
    from PIL import Image

    ink = Image.fromarray((255 - scan * 255 / 16).astype(np.uint8))
    return ink.resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB")


def _changes(rng: np.random.Generator) -> dict[str, Callable[["Picture"], "Picture"]]:
    """Returns what makes a picture unusual, by its name."""
    from PIL import Image, ImageDraw, ImageFilter

    def noisy(picture: Any) -> Any:
        noise = rng.normal(0, 60, (SIDE, SIDE, 3))
        return Image.fromarray(np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8))

    def scratched(picture: Any) -> Any:
        ImageDraw.Draw(picture).line(rng.integers(0, SIDE, 4).tolist(), fill=(60, 20, 20), width=2)
        return picture

    def stained(picture: Any) -> Any:
        x, y = rng.integers(8, SIDE - 14, 2).tolist()
        ImageDraw.Draw(picture).ellipse([x, y, x + 7, y + 7], fill=(150, 75, 20))
        return picture

    return {
        "noisy": noisy,
        "scratched": scratched,
        "stained": stained,
        "negative": lambda picture: Image.fromarray(255 - np.asarray(picture)),
        "blurred": lambda picture: picture.filter(ImageFilter.GaussianBlur(4)),
        "turned": lambda picture: picture.rotate(45, fillcolor=(255, 255, 255)),
    }


def _copies() -> dict[str, Callable[["Picture"], "Picture"]]:
    from PIL import Image

    return {
        "exact": lambda picture: picture,
        "larger": lambda picture: picture.resize((96, 96)),
        "mirrored": lambda picture: picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "rotated": lambda picture: picture.transpose(Image.Transpose.ROTATE_90),
    }


def _photograph() -> "Picture":
    from PIL import Image
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image("china.jpg")[150:310, 300:460]).resize((SIDE, SIDE))


def _on_paper(picture: "Picture") -> "Picture":
    from PIL import Image

    return Image.fromarray((np.asarray(picture) * (np.array(PAPER) / 255)).astype(np.uint8))
