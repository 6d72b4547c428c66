"""Marks and lights that are planted in real pictures: does the advice name them, and what do marks do to networks?

README.md says how.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from experiments.advice.choices import of_torchvision
from experiments.photographs import ordinary_tiles
from experiments.runner import DATA, hidden, main, some
from experiments.shared import Timer, knn, seeded
from torch import Tensor

import vergence
from vergence.advice.lighting import lit
from vergence.advice.views import advise
from vergence.data.config import ViewConfig
from vergence.data.pixels import to_unit
from vergence.learn.views.images import ImageViews

SETS = ("cifar10", "fashion_mnist", "blood_cells")
CLEAN = (*SETS, "mnist")  # the rates of false alarms, with other halves of each set
KINDS = ("stamp", "frame", "bar", "lamp", "logo")  # none of which settings were chosen on, but for a bar
METHODS: dict[str, dict[str, Any]] = {
    "contrastive": {"objective": "contrastive"},
    "vicreg": {"objective": "vicreg"},
    "vje": {"objective": "vje"},
    "denoising_autoencoder": {"method": "denoising_autoencoder"},
    "masked_autoencoder": {"recipe": "masked_autoencoder_small"},
}
FIRST, CASES, EPOCHS, ITEMS, GRADIENT = 20, 20, 20, 2_000, 0.3  # limits were chosen after the cases 0 to 19
Box = tuple[int, int, int, int]
Put = Callable[[Tensor, torch.Generator], Tensor]


def pictures(name: str, root: str, items: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns images (N, C, H, W) of bytes of both parts, and their labels."""
    if name == "blood_cells":
        found = ordinary_tiles(Path(root))
        x, y = torch.from_numpy(found["x_test"]), torch.from_numpy(found["y_test"])
        order = torch.randperm(len(x), generator=seeded(0))
        parts = [x[order[::2]], y[order[::2]], x[order[1::2]], y[order[1::2]]]
    else:
        found = of_torchvision(name, root)
        parts = [torch.from_numpy(found[f"{k}_{part}"]) for part in ("train", "test") for k in "xy"]
    for i in (0, 2):
        parts[i] = parts[i].permute(0, 3, 1, 2) if parts[i].ndim == 4 else parts[i][:, None]
    return tuple(part[:items] for part in parts)  # type: ignore[return-value]


def glyphs(n: int, generator: torch.Generator) -> Tensor:
    """Returns random black and white marks of 5 x 3 pixels, two side by side, (N, 5, 7): like two digits of a date."""
    shapes = (torch.rand(10, 5, 3, generator=seeded(7)) < 0.6).float()
    first, second = (shapes[torch.randint(10, (n,), generator=generator)] for _ in range(2))
    return torch.cat([first, torch.zeros(n, 5, 1), second], 2)


def drawn(
    kind: str, shape: tuple[int, int], generator: torch.Generator
) -> tuple[Box, Callable[[Tensor, torch.Generator], Tensor]]:
    """Returns a mark's place and what puts it on images (N, C, H, W) of bytes, another value on each."""
    H, W = shape

    def place(h: int, w: int) -> Box:
        top = int(torch.randint(H - h + 1, (), generator=generator))
        return top, int(torch.randint(W - w + 1, (), generator=generator)), h, w

    if kind == "frame":  # one side of a frame, of a gray that differs
        side, thin = int(torch.randint(4, (), generator=generator)), int(torch.randint(1, 3, (), generator=generator))
        box: Box = [(0, 0, thin, W), (H - thin, 0, thin, W), (0, 0, H, thin), (0, W - thin, H, thin)][side]
    elif kind == "bar":  # of another length on each, horizontal or upright
        length = int(torch.randint(8, 13, (), generator=generator))
        box = place(1, length) if float(torch.rand((), generator=generator)) < 0.5 else place(length, 1)
    else:
        box = place(*{"stamp": (5, 7), "lamp": (2, 2), "logo": (4, 4)}[kind])
    top, left, h, w = box

    def put(x: Tensor, g: torch.Generator) -> Tensor:
        x, n, C = x.clone(), len(x), x.shape[1]
        if kind == "stamp":  # white digits on black
            mark = 255 * glyphs(n, g)[:, None].expand(n, C, 5, 7)
        elif kind == "bar":
            long = torch.randint(1, max(h, w) + 1, (n, 1), generator=g) > torch.arange(max(h, w))
            mark = 255 * long.float().view(n, 1, h, w).expand(n, C, h, w)
        elif kind == "logo":  # there or not: two values
            there = (torch.rand(n, 1, 1, 1, generator=g) < 0.5).expand(n, C, h, w)
            checks = 255 * ((torch.arange(h)[:, None] + torch.arange(w)) % 2).float().expand(n, C, h, w)
            mark = torch.where(there, checks, x[:, :, top : top + h, left : left + w].float())
        else:  # a color, or of a frame a gray
            mark = 255 * torch.rand(n, 1 if kind == "frame" else C, 1, 1, generator=g).expand(n, C, h, w)
        x[:, :, top : top + h, left : left + w] = mark.to(x.dtype)
        return x

    return box, put


def overlap(a: Box, b: Box) -> float:
    """Returns the intersection of two rectangles as a share of the smaller one."""
    sides = [max(0, min(a[i] + a[i + 2], b[i] + b[i + 2]) - max(a[i], b[i])) for i in range(2)]
    return sides[0] * sides[1] / min(a[2] * a[3], b[2] * b[3])


class Stamped:
    """Views in which a rectangle is as in the item: a mark of the sensor, which no view changes; or of a random color.

    Args:
        size: Side of the images.
        box: The rectangle.
        varied: Whether it gets a random color in each view.
        flip: Probability of a flip.
    """

    def __init__(self, size: int, box: Box | None, varied: bool, flip: float) -> None:
        self.views, self.box, self.varied = ImageViews(ViewConfig(flip=flip), size), box, varied

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        y = self.views(x, generator)
        if self.box is not None:
            top, left, h, w = self.box
            color = torch.rand(len(x), x.shape[1], 1, 1, generator=generator)
            inside = x[:, :, top : top + h, left : left + w]
            y[:, :, top : top + h, left : left + w] = color if self.varied else to_unit(inside)
        return y


def named(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns whether the advice names the mark of a case; its number is the generator's seed. Case None: clean pictures."""
    x = pictures(cell["data"], a.data_root, 2 * a.items)[2 * (cell["half"] // 2)]  # halves 2 and 3 are of the test part
    x, flip = x[cell["half"] % 2 :: 2][: a.items], 0.5 if cell["data"] != "mnist" and cell["data"] != "fashion_mnist" else 0.0
    box = None
    if cell["case"] is not None:
        generator = seeded(100 + cell["case"])
        box, put = drawn(cell["kind"], tuple(x.shape[2:]), generator)
        x = put(x, generator)
    timer = Timer()
    views = ImageViews(ViewConfig(flip=flip), x.shape[-1]).__call__  # a plain function, of which no operation is left out in turn
    advice = advise(x, views, n_draws=8)
    found = [mark.box for mark in advice.shared.fixed_marks]
    right = box is not None and any(overlap(box, one) >= 0.5 for one in found)
    values = {"valued": len(advice.shared.valued), "places": found, "lights": len(advice.shared.lights)}
    return {"box": box, "named": right, "others": len(found) - right, **values, "seconds": timer.seconds()}


def lighted(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the gradients of light that the advice finds where half of the pictures have one; along no axis: clean pictures."""
    x = pictures(cell["data"], a.data_root, a.items)[0]
    second = torch.rand(len(x), 1, 1, 1, generator=seeded(cell["seed"])) < 0.5
    if cell["axis"] != "none":
        n = x.shape[2 if cell["axis"] == "rows" else 3]
        ramp = torch.linspace(1 - GRADIENT, 1 + GRADIENT, n).view((-1, 1) if cell["axis"] == "rows" else (1, -1))
        x = torch.where(second, (x * ramp).clamp(0, 255).to(x.dtype), x)
    found = lit(to_unit(x))
    return {"named": any(one.axis == cell["axis"] for one in found), "others": sum(one.axis != cell["axis"] for one in found)}


def harmed(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Returns the accuracy of kNN, clean, with a mark that the views share, and with one that they vary."""
    x, y, t, ty = pictures(cell["data"], a.data_root, a.items)
    generator = seeded(5)
    side = max(1, round(math.sqrt(0.0031 * x.shape[2] * x.shape[3])))
    box: Box = (20, 5, side, side)
    flip = 0.0 if cell["data"] == "fashion_mnist" else 0.5
    colors = [torch.randint(256, (len(part), part.shape[1], 1, 1), generator=generator).to(torch.uint8) for part in (x, t)]
    marked = [part.clone() for part in (x, t)]
    for part, color in zip(marked, colors, strict=True):
        part[:, :, 20 : 20 + side, 5 : 5 + side] = color
    found = {}
    for how, (train, test), views in (
        ("clean", (x, t), Stamped(x.shape[-1], None, False, flip)),
        ("shared", marked, Stamped(x.shape[-1], box, False, flip)),
        ("varied", marked, Stamped(x.shape[-1], box, True, flip)),
    ):
        if cell["method"] == "closed_form":
            model = vergence.linear.JointEmbedding(32, augmentation=views, n_draws=8).fit(train)
            z, zt = (torch.from_numpy(model.transform(part)).float() for part in (train, test))
        else:
            run = vergence.train(train, views=views, device="cpu", epochs=a.epochs, knn_every=0, **METHODS[cell["method"]])
            z, zt = run.embed(train), run.embed(test)
        found[how] = knn(z, zt, (y, ty))
    return found


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if "named" in a.parts:
        for case in range(FIRST, FIRST + a.cases):
            generator = seeded(1_000 + case)
            kind, name = (names[int(torch.randint(len(names), (), generator=generator))] for names in (KINDS, SETS))
            yield {"what": "named", "data": name, "kind": kind, "case": case, "half": 0, "seed": 0}
        for name, half in itertools.product(CLEAN, range(4)):
            yield {"what": "named", "data": name, "kind": "none", "case": None, "half": half, "seed": 0}
    if "lit" in a.parts:
        for name, axis in itertools.product(CLEAN, ("none", "rows", "columns")):
            yield {"what": "lit", "data": name, "axis": axis, "seed": 0}
    if "harmed" in a.parts:
        for name, method in itertools.product(a.sets, a.methods):
            yield {"what": "harmed", "data": name, "method": method, "epochs": a.epochs, "seed": 0}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    return {"named": named, "lit": lighted, "harmed": harmed}[cell["what"]](a, cell)


if __name__ == "__main__":
    options = {
        "data_root": DATA,
        "parts": some(("named", "lit", "harmed")),
        "sets": some(SETS),
        "methods": some(("closed_form", *METHODS)),
        "cases": CASES,
        "epochs": EPOCHS,
        "items": hidden(ITEMS),
    }
    small = {"items": 300, "epochs": 1, "cases": 1}
    main(__doc__, "planted", options, cells, measure, tiny=small)
