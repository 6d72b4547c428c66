"""Collections of pictures with planted outliers, copies, faults and local defects."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from experiments.photographs import blood_cells
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter
from torchvision.datasets import CIFAR10, MNIST, FashionMNIST

SIDE = 32
TILE = (320, 240)


@dataclass
class Collection:
    """Pictures with what each is, and for a copy the place of its original."""

    pictures: list[Any] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    original: list[int] = field(default_factory=list)

    def add(self, picture: Any, kind: str = "ordinary", original: int = -1) -> None:
        self.pictures.append(picture)
        self.kind.append(kind)
        self.original.append(original)

    def odd(self) -> np.ndarray:
        return np.array([kind not in ("ordinary", "copy") and not kind.startswith("near ") for kind in self.kind])

    def ordinary(self) -> np.ndarray:
        return np.array([kind == "ordinary" for kind in self.kind])


def gray(x: np.ndarray) -> Image.Image:
    return Image.fromarray(np.pad(x, 2)).convert("RGB")


def again(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer).convert("RGB")


def marked(image: Image.Image) -> Image.Image:
    image = image.copy()
    ImageDraw.Draw(image).text((2, image.height - 12), "(c)", fill=(255, 255, 255))
    return image


NEAR = {
    "resized": lambda im: im.resize((48, 48), Image.Resampling.BICUBIC),
    "saved again": again,
    "cropped": lambda im: im.crop((2, 2, 31, 31)).resize((32, 32), Image.Resampling.BICUBIC),
    "mirrored": lambda im: im.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "brightened": lambda im: ImageEnhance.Brightness(im).enhance(1.35),
    "marked": marked,
}


def photographs(root: str, n: int, rng: np.random.Generator) -> list[Image.Image]:
    x = CIFAR10(root).data
    return [Image.fromarray(x[i]) for i in rng.permutation(len(x))[:n]]


def outliers(kind: str, root: str, n: int, rng: np.random.Generator) -> list[Any]:
    """Returns n unusual pictures of 32 x 32 pixels."""
    if kind in ("digit", "zero", "clothes"):
        data = (FashionMNIST if kind == "clothes" else MNIST)(root, train=False)
        among = np.flatnonzero(data.targets.numpy() == 0) if kind == "zero" else np.arange(len(data))
        return [gray(data.data[int(i)].numpy()) for i in rng.permutation(among)[:n]]
    if kind in ("noise", "black"):
        return [
            Image.fromarray(rng.integers(0, 256 if kind == "noise" else 4, (SIDE, SIDE, 3), dtype=np.uint8)) for _ in range(n)
        ]
    base, stripes = photographs(root, n, rng), np.arange(SIDE)[:, None, None] // 2 % 2
    change = {
        "blurred": lambda im: im.filter(ImageFilter.GaussianBlur(2.5)),
        "stripes": lambda im: Image.fromarray(np.where(stripes, np.asarray(im), 40).astype(np.uint8)),
        "one color": lambda im: Image.new("RGB", im.size, tuple(rng.integers(0, 255, 3).tolist())),
        "tinted": lambda im: Image.fromarray((np.asarray(im) * [1.0, 0.2, 0.2]).astype(np.uint8)),
        "blocks": lambda im: im.resize((6, 6)).resize((SIDE, SIDE), Image.Resampling.NEAREST),
        "drawing": lambda im: im.convert("L").filter(ImageFilter.FIND_EDGES).point(lambda v: 255 - 255 * (v > 60)).convert("RGB"),
    }[kind]
    return [change(im) for im in base]


FOLDERS = {  # outliers by kind and number: the first was developed on, the second was not
    "first": {"digit": 40, "clothes": 20, "noise": 10, "black": 10, "blurred": 20, "zero": 60},
    "other": {"stripes": 15, "one color": 15, "tinted": 20, "blocks": 20, "drawing": 30, "noise": 10},
    "few": {"digit": 3, "clothes": 3, "noise": 2, "black": 2},
    "clean": {},
}


def folder(name: str, root: str, seed: int, n: int = 2000) -> Collection:
    """Returns photographs with outliers and, in the first two kinds of folders, copies."""
    rng, made = np.random.default_rng(seed), Collection()
    for picture in photographs(root, n, rng):
        made.add(picture)
    for kind, count in FOLDERS[name].items():
        for picture in outliers(kind, root, count, rng):
            made.add(picture, kind)
    return with_copies(made, rng, n) if name in ("first", "other") else made


def with_copies(made: Collection, rng: np.random.Generator, n: int) -> Collection:
    picked = iter(rng.permutation(n)[:120].tolist())
    for i in (next(picked) for _ in range(30)):
        made.add(made.pictures[i].copy(), "copy", i)
    for kind, change in NEAR.items():
        for i in (next(picked) for _ in range(10)):
            made.add(change(made.pictures[i]), f"near {kind}", i)
    for i in (next(picked) for _ in range(30)):
        made.add(made.pictures[i].transpose(Image.Transpose.ROTATE_90), "near turned", i)
    return made


def mixture(root: str, seed: int) -> Collection:
    """Returns 1,000 photographs with random kinds of outliers in random numbers, at most a tenth."""
    rng, made = np.random.default_rng(10_000 + seed), Collection()
    for picture in photographs(root, 1000, rng):
        made.add(picture)
    kinds = sorted({*FOLDERS["first"], *FOLDERS["other"]})
    for kind in rng.permutation(kinds)[: rng.integers(1, 5)]:
        for picture in outliers(str(kind), root, int(rng.integers(1, 26)), rng):
            made.add(picture, str(kind))
    return made


def cells(root: str) -> list[Image.Image]:
    return [Image.open(file).convert("RGB") for file in sorted(blood_cells(Path(root))[0].glob("*.jpg"))]


def faults(root: str, seed: int) -> Collection:
    """Returns 159 photographs of 640 x 480 pixels, three with each of ten faults."""
    rng, whole, made = np.random.default_rng(seed), cells(root), Collection()

    def dust(im: Image.Image) -> Image.Image:
        x, y = rng.integers(150, 450), rng.integers(60, 400)
        ImageDraw.Draw(im).ellipse((x, y, x + 22, y + 22), fill=(10, 160, 30))
        return im

    def scratch(im: Image.Image) -> Image.Image:
        ImageDraw.Draw(im).line((100, rng.integers(0, 480), 540, rng.integers(0, 480)), fill=(20, 20, 20), width=2)
        return im

    def stamp(im: Image.Image) -> Image.Image:
        ImageDraw.Draw(im).text((4, 460), "2019-04-02 12:31:07", fill=(255, 255, 0))
        return im

    def edge(im: Image.Image) -> Image.Image:
        x = np.array(im)
        x[:, :60] = 0
        return Image.fromarray(x)

    def noisy(im: Image.Image) -> Image.Image:
        return Image.fromarray(np.clip(np.asarray(im) + rng.normal(0, 25, (480, 640, 3)), 0, 255).astype(np.uint8))

    changes = {
        "blur 2": lambda im: im.filter(ImageFilter.GaussianBlur(2)),
        "blur 6": lambda im: im.filter(ImageFilter.GaussianBlur(6)),
        "dust": dust, "scratch": scratch, "stamp": stamp, "edge": edge, "noise": noisy,
        "cast": lambda im: Image.fromarray(np.clip(np.asarray(im) * [1.0, 0.8, 1.05], 0, 255).astype(np.uint8)),
        "dark": lambda im: ImageEnhance.Brightness(im).enhance(0.35),
        "gray": lambda im: im.convert("L").convert("RGB"),
    }  # fmt: skip
    order = rng.permutation(len(whole)).tolist()
    for kind, change in changes.items():
        for _ in range(3):
            made.add(saved(change(whole[order.pop()].copy())), kind)
    for i in order:
        made.add(saved(whole[i]))
    return made


def saved(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return Image.open(buffer).convert("RGB")


DEFECTS = ("scratch", "spot", "erased", "blot", "text", "blur", "cut-out", "missing")  # not developed on


def defects(root: str, seed: int) -> tuple[list[Image.Image], Collection, list[np.ndarray | None]]:
    """Returns 400 known tiles of blood cells, 236 new ones, a third with a defect of .1 to 2 % of the area, and its mask."""
    rng, new, masks = np.random.default_rng(seed), Collection(), []
    tiles = [[im.crop((x, y, x + 320, y + 240)) for x in (0, 320) for y in (0, 240)] for im in cells(root)]
    order = rng.permutation(len(tiles)).tolist()
    foreign = photographs(root, 200, rng)
    for n, tile in enumerate(tile for i in order[100:] for tile in tiles[i]):
        kind = DEFECTS[n // 3 % len(DEFECTS)] if n % 3 == 0 else "ordinary"
        picture, mask = (tile, None) if kind == "ordinary" else planted(kind, tile, rng, foreign)
        new.add(picture, kind)
        masks.append(mask)
    return [tile for i in order[:100] for tile in tiles[i]], new, masks


def planted(kind: str, tile: Image.Image, rng: np.random.Generator, foreign: list[Any]) -> tuple[Image.Image, np.ndarray]:
    """Returns a tile with a defect, and where it is."""
    while True:
        area = float(np.exp(rng.uniform(np.log(0.001), np.log(0.02)))) * TILE[0] * TILE[1]
        mask, fill = shape_and_fill(kind, tile, area, rng, foreign)
        where = np.asarray(mask) > 127
        if where.mean() >= 0.001:
            out = tile.copy()
            out.paste(fill, (0, 0), mask)
            return out, where


def shape_and_fill(kind: str, tile: Image.Image, area: float, rng: np.random.Generator, foreign: list[Any]) -> tuple[Any, Any]:
    mask, x, y = Image.new("L", TILE, 0), int(rng.integers(30, 290)), int(rng.integers(30, 210))
    draw, r = ImageDraw.Draw(mask), float(np.sqrt(area / np.pi)) * (1.5 if kind == "blur" else 1.0)
    color = tuple(rng.integers(0, 255, 3).tolist())
    if kind == "scratch":
        angle = rng.uniform(0, 2 * np.pi)
        draw.line((x, y, x + area / 2 * np.cos(angle), y + area / 2 * np.sin(angle)), fill=255, width=2)
    elif kind == "text":
        draw.text((x - 20, y), "REJECT 12", fill=255)
    elif kind in ("erased", "cut-out"):
        side = max(8.0, float(np.sqrt(area)))
        draw.rectangle((x, y, x + side, y + side), fill=255)
    else:
        draw.ellipse((x - r, y - r, x + r, y + r), fill=255)
    fills: dict[str, Any] = {
        "scratch": color, "spot": tuple(rng.integers(100, 255, 3).tolist()), "text": (20, 20, 20), "missing": (0, 0, 0),
        "erased": tuple(np.asarray(tile).reshape(-1, 3).mean(0).astype(int).tolist()),
    }  # fmt: skip
    if kind in fills:
        return mask, Image.new("RGB", TILE, fills[kind])
    if kind == "blot":
        return mask, Image.blend(tile, Image.new("RGB", TILE, color), 0.5)
    if kind == "blur":
        return mask, tile.filter(ImageFilter.GaussianBlur(4))
    fill = tile.copy()
    side = int(max(8.0, float(np.sqrt(area)))) + 1
    fill.paste(foreign[int(rng.integers(len(foreign)))].resize((side, side)), (x, y))
    return mask, fill


def leaks(root: str, seed: int) -> tuple[list[Any], Collection]:
    """Returns 120 photographs, and 20 changed copies of some of them among 39 others."""
    rng, whole, test = np.random.default_rng(seed), cells(root), Collection()
    order = rng.permutation(len(whole)).tolist()
    train = [whole[i] for i in order[:120]]

    def moved(im: Image.Image) -> Image.Image:
        return Image.fromarray(np.pad(np.asarray(im), ((12, 0), (12, 0), (0, 0)), mode="edge")[:480, :640])

    def stamped(im: Image.Image) -> Image.Image:
        im = im.copy()
        ImageDraw.Draw(im).text((20, 420), "(c) SAMPLE", fill=(255, 255, 255), font_size=48)
        return im

    changes = {
        "exact": lambda im: im, "half": lambda im: im.resize((320, 240)), "saved again": again, "moved": moved, "marked": stamped,
        "mirrored": NEAR["mirrored"], "turned": lambda im: im.transpose(Image.Transpose.ROTATE_90),
        "brightened": lambda im: ImageEnhance.Brightness(im).enhance(1.3), "gray": lambda im: im.convert("L"),
        "cropped": lambda im: im.crop((32, 24, 608, 456)),
    }  # fmt: skip
    for k, (kind, change) in enumerate(changes.items()):
        for i in (2 * k, 2 * k + 1):
            test.add(change(train[i]), kind, i)
    for i in order[120:]:
        test.add(whole[i])
    return train, test
