"""From JPEG files to two views of 224 pixels, here and with the transforms of torchvision and lightly, by processor time.

README.md says how.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.runner import DATA, hidden, parse, run
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from vergence.data.config import ViewConfig
from vergence.data.images import ImageFiles
from vergence.learn.views.images import ImageViews

Pair = tuple[Tensor, Tensor]
VIEWS = ViewConfig()


def written(a: argparse.Namespace, side: int) -> list[Path]:
    """Returns JPEG files of the photographs' central squares, ``side`` pixels a side."""
    folder = a.scratch / f"squares of {side}"
    folder.mkdir(exist_ok=True)
    for i, file in enumerate(sorted((Path(a.data_root) / "bccd").glob("*.jpg"))[: a.images]):
        with Image.open(file) as image:
            least = min(image.size)
            left, top = (image.width - least) // 2, (image.height - least) // 2
            square = image.convert("RGB").crop((left, top, left + least, top + least)).resize((side, side))
            square.save(folder / f"{i:03}.jpg", quality=90)
    return sorted(folder.glob("*.jpg"))


def here(files: list[Path], size: int) -> Callable[[], Pair]:
    """Returns the two views of this library, of files that are decoded each time."""
    side = size * 8 // 7
    items = ImageFiles(files[0].parent, [file.name for file in files], (3, side, side))
    views, generator = ImageViews(VIEWS, size), torch.Generator().manual_seed(0)

    def once() -> Pair:
        ((_, x),) = items.stream([torch.arange(len(items))])
        return views(x, generator), views(x, generator)

    return once


def steps(size: int) -> list[Any]:
    """Returns the same operations of torchvision."""
    jitter = v2.RandomApply([v2.ColorJitter(*VIEWS.jitter)], VIEWS.jitter_p)
    blur = v2.RandomApply([v2.GaussianBlur(max(3, size // 10 | 1), VIEWS.blur_sigma)], VIEWS.blur)
    crop = v2.RandomResizedCrop(size, scale=VIEWS.crop, antialias=True)
    return [crop, v2.RandomHorizontalFlip(VIEWS.flip), jitter, v2.RandomGrayscale(VIEWS.grayscale), blur]


def each(files: list[Path], transform: Callable[[Any], Any]) -> Callable[[], Pair]:
    """Returns two views of a transform of one image."""

    def once() -> Pair:
        pairs = []
        for file in files:
            with Image.open(file) as image:
                pairs.append(transform(image.convert("RGB")))
        a, b = zip(*pairs, strict=True)
        return torch.stack(a), torch.stack(b)

    return once


def paths(files: list[Path], size: int) -> dict[str, Callable[[], Pair]]:
    """Returns each library's way from the files to two views."""
    from lightly.transforms import SimCLRTransform

    floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    pil, tensors = v2.Compose([*steps(size), *floats]), v2.Compose([v2.ToImage(), *steps(size), floats[1]])
    names = ("cj_bright", "cj_contrast", "cj_sat", "cj_hue")
    same = {
        "cj_prob": VIEWS.jitter_p,
        "min_scale": VIEWS.crop[0],
        "random_gray_scale": VIEWS.grayscale,
        "gaussian_blur": VIEWS.blur,
    }
    same |= {"sigmas": VIEWS.blur_sigma, "normalize": None, **dict(zip(names, VIEWS.jitter, strict=True))}
    both = {"torchvision, PIL": pil, "torchvision, tensors": tensors}
    found = {name: each(files, lambda image, one=one: (one(image), one(image))) for name, one in both.items()}
    return {"here": here(files, size), **found, "lightly": each(files, SimCLRTransform(size, **same))}


def seconds(once: Callable[[], Pair]) -> float:
    """Returns the processor seconds of one call."""
    start = time.process_time()
    once()
    return time.process_time() - start


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for side in a.sides:
        yield {"measurement": "photographs", "side": side, "size": a.size, "images": a.images, "rounds": a.rounds, "seed": 0}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns milliseconds an image, and how many times longer the others take: medians of rounds in which all take turns."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    files = written(a, cell["side"])
    ways = paths(files, a.size)
    rounds = [{name: seconds(once) for name, once in ways.items()} for _ in range(a.rounds + 1)][1:]  # the first one warms up
    middle = {name: round(1e3 * statistics.median(found[name] for found in rounds) / len(files), 2) for name in ways}
    ratios = {name: [found[name] / found["here"] for found in rounds] for name in ways if name != "here"}
    return {"milliseconds": middle, "ratio": {name: round(float(np.median(found)), 2) for name, found in ratios.items()}}


OPTIONS = {"data_root": DATA, "sides": [256, 480], "size": 224, "images": 48, "rounds": 5, "scratch": hidden(None)}
TINY = {"sides": [64], "size": 32, "images": 4, "rounds": 1}

if __name__ == "__main__":
    run(parse(__doc__, "photographs", OPTIONS, TINY), cells, measure, peers=("torchvision", "lightly"))
