"""Random views of whole batches: each sample has its own parameters, from one generator.

Sampling the parameters and applying them are separate steps. Every process samples for the global batch and applies its own
part, so that several processes make the same views as one. Applying is deterministic, treats every sample separately, and does
not wait for the device.
"""

import abc
import contextlib
import copy
import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.config import ViewConfig
from vergence.data.pixels import center_crop, luma, resize, to_unit
from vergence.utils.checks import expect, refuse

__all__ = ["GivenViews", "ImageViews", "Views"]

TRIES = 10
ASPECT = (3 / 4, 4 / 3)
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
LARGE = 96  # pixels per side from which a CPU resizes one image at a time faster than a batch by products of matrices
BLURRED = 1 << 20  # numbers that are blurred at a time, which a CPU's cache holds


class Views(abc.ABC):
    """Random views of the samples of a batch."""

    n_views, local_views = 2, 0  # of a whole sample, and small crops that follow them

    def kinds(self) -> tuple["Views", ...]:
        """Returns the views of a sample, one after the other: those of the whole, then small crops."""
        return (self,) * self.n_views

    @abc.abstractmethod
    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the parameters of n samples, on the CPU, each of shape (n, ...); ``generator`` is a CPU generator."""

    @abc.abstractmethod
    def apply(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Returns the views (B, ...) of samples (B, ...) that B sampled parameters (any part of a `draw`) describe."""

    def several(self, x: Tensor, draws: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Returns all views of samples where they are made at once, else those of `apply` alone."""
        return (self.apply(x, draws),)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Returns a new view of each sample of ``x``, shape (B, ...)."""
        return self.apply(x, self.draw(len(x), generator))

    def unchanged(self, x: Tensor) -> Tensor:
        """Returns samples as their views would be without a change: floats, cropped where views are."""
        return to_unit(x)


class GivenViews(Views):
    """Views by a function of one's own.

    A function ``(batch, generator) -> batch`` gets a batch at a time; a function of one argument, such as a transform of
    torchvision v2, gets one item at a time, under a seed of torch. Images are floats in [0, 1], other items are as they are read.
    The first batch is checked. A function is called once for each view; one that returns a tuple or a list of all views is
    called once.

    Args:
        function: The function, or several, one for each view.
        shape: Shape of one item as the encoder sees it, which each view must have.
        n_views: Number of views by one function.

    Example:
        >>> views = GivenViews(lambda x, generator: x + 0.1 * torch.randn(x.shape, generator=generator), (6,))
        >>> views(torch.zeros(4, 6), torch.Generator().manual_seed(0)).shape
        torch.Size([4, 6])
    """

    def __init__(self, function: Any, shape: Sequence[int], n_views: int = 2) -> None:
        functions = tuple(function) if isinstance(function, tuple | list) else (function,)
        fits = all(map(callable, functions)) and len(functions) > 0
        expect(fits, "views to be a function, or a tuple of functions, one for each view", type(function).__name__)
        others = tuple(GivenViews(other, shape) for other in functions[1:])
        self.function, self.shape, self.checked, self.n_views = functions[0], tuple(shape), False, n_views
        self.each = (self, *others) if others else (self,) * n_views
        parameters = inspect.signature(self.function).parameters.values()
        named = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.of_batches = len(named) > 1

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns a seed for each item."""
        return {"seed": torch.randint(2**62, (n,), generator=generator)}

    def apply(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Returns the function's views, or the first one of each item; see `Views.apply`."""
        return self.several(x, draws)[0]

    def kinds(self) -> tuple[Views, ...]:
        """Returns the views of an item, by one function each."""
        return self.each

    def several(self, x: Tensor, draws: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Returns all views that the function makes at once, each (B, ...)."""
        x, seed = to_unit(x) if x.ndim == 4 else x, int(draws["seed"][0]) if len(x) else 0
        if self.of_batches:
            y = self.function(x, torch.Generator().manual_seed(seed))
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                y = [self.function(item) for item in x]
            at_once = len(y) > 0 and isinstance(y[0], tuple | list)
            y = tuple(map(list, zip(*y, strict=True))) if at_once else y
        at_once = isinstance(y, tuple | list) and any(isinstance(v, list) or getattr(v, "ndim", 0) == x.ndim for v in y)
        views = tuple(self._checked(view, x).to(x) for view in (y if at_once else (y,)))
        self.checked = True
        return views

    def _checked(self, y: Any, x: Tensor) -> Tensor:
        if isinstance(y, list) and all(isinstance(item, Tensor) and item.shape == y[0].shape for item in y):
            y = torch.stack(y) if y else torch.zeros(0, *self.shape)
        if not self.checked:
            wanted = (len(x), *self.shape)
            numbers = "floats" if x.is_floating_point() else "whole numbers"
            if not isinstance(y, Tensor) or tuple(y.shape) != wanted or y.is_floating_point() != x.is_floating_point():
                what = f"{tuple(y.shape)} of {y.dtype}" if isinstance(y, Tensor) else f"{type(y).__name__}"
                raise ValueError(f"expected views of shape {wanted}, of {numbers}, found {what}; change the function of views")
            expect(bool(y.isfinite().all()), "finite views", "nan or infinity", "change the function of views")
        views: Tensor = y
        return views


class ImageViews(Views):
    """Crop, flip, color jitter, grayscale, blur and solarization of images, as torchvision (v2, floats) defines each.

    The steps, in this order, with parameters of their own for each image:

    0. Fixed rectangles (``cover``) get a random color, another one in each view.
    1. Random resized crop: up to 10 tries of an area uniform in ``crop`` and a log-uniform aspect ratio in [3/4, 4/3],
       then the largest central crop that has such a ratio; bilinear with antialiasing (torchvision's default; it
       changes only crops larger than ``size``: photographs of 96 pixels reduced to 32 by 0.03 root mean square).
    2. Horizontal flip. MoCo v2 flips last, which is equivalent: the flip commutes with the steps that follow.
    3. Color jitter: brightness, contrast and saturation factors uniform in [max(0, 1 - s), 1 + s], hue uniform in
       [-s, s] turns, in one of the 24 orders with equal probability.
    4. Grayscale with the luma 0.2989 R + 0.587 G + 0.114 B.
    5. Gaussian blur, sigma uniform in ``blur_sigma`` pixels, reflected borders; the kernel is a tenth of ``size`` made
       odd, at least 3 (3 at 32 pixels; 23 at 224 pixels, as SimCLR's).
    6. Solarization: values of at least 0.5 become 1 - value.

    Saturation, hue and grayscale do not change images of one channel. Steps of strength or probability 0 take no time. On
    the CPU the views of a part of a batch are bitwise equal to that part of the batch's views.

    Example:
        >>> views = ImageViews(ViewConfig(), size=32)
        >>> x = torch.randint(256, (4, 3, 40, 48), dtype=torch.uint8)
        >>> draws = views.draw(4, torch.Generator().manual_seed(0))
        >>> views.apply(x, draws).shape
        torch.Size([4, 3, 32, 32])
        >>> half = {name: draw[2:] for name, draw in draws.items()}
        >>> torch.equal(views.apply(x[2:], half), views.apply(x, draws)[2:])
        True
    """

    def __init__(self, config: ViewConfig, size: int) -> None:
        """Sets the strengths of ``config`` for views of ``size`` x ``size`` pixels, at least 2."""
        check_strengths(config)
        expect(size >= 2, "views of at least 2 pixels per side", f"size = {size}", "choose a larger size")
        self.config, self.size, self.n_views, self.local_views = config, size, config.n_views, config.local_views
        self.kernel = max(3, size // 10 | 1)

    def changed(self, size: int | None = None, **strengths: Any) -> "ImageViews":
        """Returns views of this class with another size in pixels or other strengths, by the names of `ViewConfig`.

        Example:
            >>> ImageViews(ViewConfig(), size=32).changed(16, flip=0.0).config.flip
            0.0
        """
        new = copy.copy(self)
        ImageViews.__init__(new, dataclasses.replace(self.config, **strengths), self.size if size is None else size)
        return new

    def kinds(self) -> tuple["ImageViews", ...]:
        """Returns the views of whole images, then the small crops."""
        small = [self.changed(local_side(self.config, self.size), crop=self.config.local_crop)] if self.local_views else []
        return (*[self] * self.n_views, *small * self.local_views)

    def unchanged(self, x: Tensor) -> Tensor:
        """Returns the middle squares of images, floats in [0, 1]."""
        return to_unit(center_crop(x, self.size))

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the parameters of n images; the random numbers do not depend on the strengths.

        These are ``area`` (n, 10) shares of the image, ``aspect`` (n, 10) ratios width / height, ``place`` (n, 2) in [0, 1):
        vertical and horizontal; ``factors`` (n, 4) of brightness, contrast, saturation, and the hue's shift in turns; ``order``
        (n, 4): the order of these four; ``sigma`` (n,) in pixels; and ``flip``, ``jitter``, ``grayscale``, ``blur``,
        ``solarize`` (n,) bool: whether the step is applied; where rectangles are covered ``cover`` (n, 4), a color.
        """

        def u(low: float, high: float, *shape: int) -> Tensor:
            return torch.rand(n, *shape, generator=generator, dtype=torch.float64).mul_(high - low).add_(low)

        c = self.config
        drawn = {
            "area": u(*c.crop, TRIES),
            "aspect": u(math.log(ASPECT[0]), math.log(ASPECT[1]), TRIES).exp_(),
            "place": u(0, 1, 2),
            "factors": torch.stack([u(max(0, 1 - s), 1 + s) for s in c.jitter[:HUE]] + [u(-c.jitter[HUE], c.jitter[HUE])], 1),
            "order": u(0, 1, 4).argsort(1),
            "sigma": u(*c.blur_sigma),
            "flip": u(0, 1) < c.flip,
            "jitter": u(0, 1) < c.jitter_p,
            "grayscale": u(0, 1) < c.grayscale,
            "blur": u(0, 1) < c.blur,
            "solarize": u(0, 1) < c.solarize,
        }
        return drawn | ({"cover": torch.rand(n, 4, generator=aside(generator))} if c.cover else {})

    @torch.no_grad()
    def apply(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Returns the views of images that parameters on the CPU describe: float32 (B, C, size, size) in [0, 1], laid out as x.

        Images are (B, C, H, W), C = 1 or 3: uint8, or floats in [0, 1] (the range is checked on the CPU only: on another device
        the training loop would have to wait for it).
        """
        _check_images(x, len(draws["flip"]))
        if self.config.cover:
            x = cover(x, draws["cover"][:, : x.shape[1]], self.config.cover)
        known = torch.amp.is_autocast_available(x.device.type)  # whose bfloat16 would leave 8 bits a pixel in matrix products
        with torch.autocast(x.device.type, enabled=False) if known else contextlib.nullcontext():
            y = self._frame(x, draws)
            if self.config.jitter_p > 0:
                _jitter(y.flatten(2), draws, self.config.jitter)
            if x.shape[1] == 3:
                _change(y, draws["grayscale"], lambda part: luma(part).expand_as(part))
            _change(y, draws["blur"], self._blur, draws["sigma"])
            _change(y, draws["solarize"], lambda part: torch.where(part >= 0.5, 1 - part, part))
        last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return y.contiguous(memory_format=torch.channels_last) if last else y

    def _frame(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Crops, resizes and flips (B, C, H, W); returns new contiguous float32 (B, C, size, size) in [0, 1]."""
        if x.shape[2:] == (self.size, self.size) and self.config.crop == (1, 1) and self.config.flip == 0:
            return to_unit(x, torch.float32).clone(memory_format=torch.contiguous_format)
        top, left, height, width = _boxes(draws, *x.shape[2:])
        if self.size >= LARGE and x.device.type == "cpu":
            return _each(x, torch.stack((top, left, height, width), 1), draws["flip"], self.size)
        y = to_unit(x, torch.float32)
        rows = _resizing(top, height, torch.zeros_like(draws["flip"]), self.size, x.shape[2], x.device)
        columns = _resizing(left, width, draws["flip"], self.size, x.shape[3], x.device)
        b, c, h, w = y.shape
        # Channels are further columns, then further rows: one product per sample is up to 20 times faster than one per plane.
        y = torch.bmm(rows, y.transpose(1, 2).reshape(b, h, c * w))
        y = torch.bmm(y.view(b, -1, w), columns.mT)
        return y.view(b, -1, c, columns.shape[1]).transpose(1, 2).contiguous().clamp_(0, 1)

    def _blur(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Returns (n, C, size, size) blurred by Gaussians of sigma (n,) in pixels."""
        r, (c, h, w) = self.kernel // 2, x.shape[1:]
        t = torch.arange(-r, r + 1, device=x.device)
        weight = torch.softmax(-0.5 * (t / sigma[:, None]) ** 2, dim=1).repeat_interleave(c, 0)[:, None]
        parts, n = [], max(1, BLURRED // (c * h * w))
        for part, k in zip(x.split(n), weight.split(n * c), strict=True):
            y = F.pad(part, (r, r, r, r), mode="reflect").view(1, -1, h + 2 * r, w + 2 * r)
            if len(k) == 1:  # a convolution without groups rounds in another order
                y, k = y.expand(-1, 2, -1, -1), k.expand(2, -1, -1)
            y = F.conv2d(y, k[..., None], groups=len(k))
            parts.append(F.conv2d(y, k[..., None, :], groups=len(k))[0, : len(part) * c].view_as(part))
        return torch.cat(parts).clamp_(0, 1)


def local_side(config: ViewConfig, size: int) -> int:
    """Returns the side of small crops of images of ``size`` pixels; by default 3/7 of it, rounded to a multiple of 4.

    Example:
        >>> [local_side(ViewConfig(), size) for size in (224, 32, 8)]
        [96, 12, 4]
    """
    return max(4, 4 * round(size * 3 / 28)) if config.local_size is None else config.local_size


def aside(generator: torch.Generator) -> torch.Generator:
    """Returns a generator of its own that follows from another one's state, which does not change."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=copy)))


def cover(x: Tensor, color: Tensor, box: Sequence[int]) -> Tensor:
    """Returns new images (B, C, H, W), bytes or floats in [0, 1], in which rectangles have a color (B, C) in [0, 1].

    ``box`` has top, left, height and width of each rectangle in pixels, one after the other; what lies outside is ignored.
    """
    x = x.clone()
    paint = ((255 * color).round() if x.dtype == torch.uint8 else color).to(x)
    for i in range(0, len(box), 4):
        top, left, height, width = box[i : i + 4]
        x[:, :, top : top + height, left : left + width] = paint[:, :, None, None]
    return x


def _boxes(draws: dict[str, Tensor], height: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns top, left, height and width (B,) in whole pixels: the first try that fits, or else the largest central crop."""
    area, aspect, place = draws["area"] * height * width, draws["aspect"], draws["place"]
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first, any_fits = fits.int().argmax(1, keepdim=True), fits.any(1)
    h = torch.where(any_fits, h.gather(1, first)[:, 0], min(height, round(width / ASPECT[0])))
    w = torch.where(any_fits, w.gather(1, first)[:, 0], min(width, round(height * ASPECT[1])))
    top = torch.where(any_fits, place[:, 0] * (height - h + 1), (height - h) / 2).floor()
    left = torch.where(any_fits, place[:, 1] * (width - w + 1), (width - w) / 2).floor()
    return top, left, h, w


def _resizing(start: Tensor, length: Tensor, flip: Tensor, out: int, size: int, device: torch.device) -> Tensor:
    """Returns weights (B, out, size) that resize pixels start .. start + length of a line, antialiased by triangles."""
    s, n, mirror = (_to(part.float(), device)[:, None] for part in (start, length, flip))
    i = (mirror * (out - 1) - torch.arange(out, device=device)).abs_()
    center = (s + (i + 0.5) * (n / out))[..., None]
    j = torch.arange(size, device=device, dtype=torch.float32) + 0.5
    w = (j - center).abs_().div_(-(n / out).clamp(min=1)[..., None]).add_(1).clamp_(min=0)
    w.mul_(((j > s) & (j < s + n))[:, None])
    return w.div_(w.sum(-1, keepdim=True))


def _each(x: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """Returns boxes (B, 4) of images (B, C, H, W), top, left, height and width, resized one by one: float32 in [0, 1]."""
    y = torch.empty(len(x), x.shape[1], size, size)
    for i, ((top, left, height, width), mirror) in enumerate(zip(boxes.long().tolist(), flip.tolist(), strict=True)):
        part = resize(to_unit(x[i : i + 1, :, top : top + height, left : left + width], torch.float32), size, size)
        y[i] = part.flip(-1) if mirror else part
    return y.clamp_(0, 1)


def _jitter(x: Tensor, draws: dict[str, Tensor], strengths: tuple[float, float, float, float]) -> None:
    """Applies the color jitter to planes (B, C, P), in place: one blend of all images at a time, with the hue in between."""
    color = x.shape[1] == 3
    active = [o for o in (BRIGHTNESS, CONTRAST, SATURATION) if strengths[o] > 0 and (color or o != SATURATION)]
    f = torch.where(draws["jitter"][:, None], draws["factors"], 1.0)
    rank = draws["order"].argsort(1)
    blends = torch.tensor(active, dtype=torch.long)[rank[:, active].argsort(1)]
    turn = (rank[:, active] < rank[:, HUE:]).sum(1)
    for k in range(len(active) + 1):
        if color and strengths[HUE] > 0:
            _change(x, draws["jitter"] & (turn == k), _rotate_hue, draws["factors"][:, HUE])
        if k < len(active):
            _blend(x, blends[:, k], f.gather(1, blends[:, k : k + 1])[:, 0])


def _blend(x: Tensor, operation: Tensor, factor: Tensor) -> None:
    """Blends planes (B, C, P) in place, x <- f x + (1 - f) base, where base is black, the mean gray or the pixel's gray."""
    rest = 1 - factor
    f, to_mean, to_gray = (
        _to(part.float(), x.device)[:, None, None]
        for part in (factor, rest * (operation == CONTRAST), rest * (operation == SATURATION))
    )
    gray = luma(x)
    base = (gray * to_gray).add_(gray.mean(-1, keepdim=True) * to_mean)
    x.mul_(f).add_(base).clamp_(0, 1)


def _rotate_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Returns planes (n, 3, P) with the hue rotated by shift (n,) turns; each pixel keeps its largest and smallest value.

    With v, u the largest and smallest value and c = v - u, the hue in sixths of a turn is t = (G - B)/c, 2 + (B - R)/c
    or 4 + (R - G)/c where R, G or B is the largest: in all cases |t| = 1 + (G + B - R - u)/c and the sign of G - B, in [-3, 3].
    After the rotation of t, R = u + c clamp(|t - 3| - 1), G = u + c clamp(2 - |t - 2|) and B = u + c clamp(2 - |t - 4|), where
    t is in [0, 6) and clamp is to [0, 1].
    """
    r, g, b = x.unbind(1)
    u = torch.minimum(torch.minimum(r, g), b)
    c = torch.maximum(torch.maximum(r, g), b).sub_(u)
    t = (g + b).sub_(r).sub_(u).div_(c.clamp(min=torch.finfo(c.dtype).tiny)).add_(1)
    t = t.copysign_(g - b).add_(6 * shift[:, None])
    t.sub_((t / 6).floor_().mul_(6))
    share = torch.empty_like(x)
    for i, (middle, sign, offset) in enumerate(((3, 1, -1), (2, -1, 2), (4, -1, 2))):
        torch.sub(t, middle, out=share[:, i]).abs_().mul_(sign).add_(offset)
    return share.clamp_(0, 1).mul_(c[:, None]).add_(u[:, None])


def _change(x: Tensor, chosen: Tensor, change: Callable[..., Tensor], *parameters: Tensor) -> None:
    """Changes the chosen samples of x in place; ``chosen`` is on the CPU, so that nothing waits for the device."""
    index = chosen.nonzero()[:, 0]
    if len(index) > 0:
        where = _to(index, x.device)
        x.index_copy_(0, where, change(x.index_select(0, where), *(_to(p[index].float(), x.device) for p in parameters)))


def _to(x: Tensor, device: torch.device) -> Tensor:
    return x.to(device, non_blocking=True)


def _check_images(x: Tensor, n: int) -> None:
    shape = f"shape {tuple(x.shape)}"
    expect(x.ndim == 4 and x.shape[1] in (1, 3), "images (B, C, H, W) with C = 1 or 3", shape, "reorder the dimensions")
    expect(len(x) == n, f"{n} images, one for each sampled parameter", len(x), "use the same part of both")
    if x.dtype == torch.uint8:
        return
    expect(x.is_floating_point(), "uint8 images or floats in [0, 1]", str(x.dtype), "convert them")
    if x.device.type == "cpu" and not (x.min() >= 0 and x.max() <= 1):
        refuse("floats in [0, 1]", f"[{x.min():.4g}, {x.max():.4g}]", "scale the images, or give uint8")


def check_strengths(c: ViewConfig) -> None:
    """Raises a ValueError that names a strength out of its range."""
    rules = {
        "jitter": (min(c.jitter) >= 0 and c.jitter[HUE] <= 0.5, "four strengths >= 0, the hue's at most 0.5"),
        "blur_sigma": (0 < c.blur_sigma[0] <= c.blur_sigma[1], "0 < smallest <= largest"),
        "cover": (len(c.cover) % 4 == 0 and min(c.cover, default=0) >= 0, "top, left, height and width in pixels, >= 0"),
        "phases": (0 <= c.phases <= 1, "a share in [0, 1]"),
    }
    ranges = {"crop": c.crop, "local_crop": c.local_crop, "window": c.window}
    rules |= {name: (0 < low <= high <= 1, "0 < smallest <= largest <= 1") for name, (low, high) in ranges.items()}
    rules |= {name: (0 <= getattr(c, name) < 1, "a share in [0, 1)") for name in ("thin", "shift")}
    rules |= {name: (getattr(c, name) >= 0, "a number >= 0") for name in ("baseline", "warp", "noise", "scale")}
    probabilities = ("flip", "jitter_p", "grayscale", "blur", "solarize", "mask", "swap")
    rules |= {name: (0 <= getattr(c, name) <= 1, "a probability in [0, 1]") for name in probabilities}
    for name, (holds, expected) in rules.items():
        expect(holds, f"{name} to be {expected}", getattr(c, name), f"change {name}")
