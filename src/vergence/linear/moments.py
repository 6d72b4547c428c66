r"""Second moments of items and of their augmentations, in one pass over data of any size.

Sums are taken around an origin c (the mean of the first block), so that a mean far from zero costs no digits; products are of
the data's own precision (float32 items are multiplied as float32, block by block), and blocks are added in float64. Blocks
have a fixed number of rows and draw their views from (seed, number of the block): neither the size of the batches that
items come in nor the number of processes changes the result.

Shapes: N items, D features, L targets, m draws of the augmentation for each item.
"""

import math
import mmap
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence import linalg
from vergence.data_items import Items
from vergence.views import ImageViews, Views, centre_crop

__all__ = ["Augmentation", "Moments", "Statistics", "as_table", "as_tensor", "blocks", "draw", "flat"]

Augmentation = Callable[[Tensor, torch.Generator], Tensor]

BLOCK = 1 << 22  # numbers in a block of items: 16 MiB of float32


@dataclass(frozen=True)
class Statistics:
    """The moments of `vergence.linear.solutions`, float64, around the means where ``centred``.

    Attributes:
        n: Items.
        mean: Of the items, (D,).
        mean_seen: Of the augmented items, (D,).
        mean_target: Of the targets, (L,); empty without any.
        G: (D, D), unbiased where the augmentation was sampled.
        S: (D, D).
        M: (D, D).
        N: (L, D).
        clean: 1/n sum_i x_i x_i^T, (D, D).
        power: 1/n |X|^2.
        power_target: 1/n |Y|^2.
        variance: (D,), of each feature, around its mean in any case.
        eps: Rounding of the sums, relative.
        constant: (D,) bool, the features in which all items are equal.
    """

    n: int
    mean: Tensor
    mean_seen: Tensor
    mean_target: Tensor
    G: Tensor
    S: Tensor
    M: Tensor
    N: Tensor
    clean: Tensor
    power: float
    power_target: float
    variance: Tensor
    eps: float
    constant: Tensor

    def unchanged(self) -> bool:
        """Says whether the augmentation leaves all items as they are (S = G), up to rounding."""
        return bool(((self.S - self.G).diagonal() <= 64 * self.eps * self.S.diagonal()).all())


class Moments:
    """Sums over items, their augmentations and targets; add blocks, or other sums, in any order.

    Args:
        dim: D.
        draws: m >= 2 where the augmentation is sampled; 0 where its covariance is added by the caller to S.
        device: Where the sums lie.
        origin: c (D,); by default the mean of the first items that are added.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [2.0, 4.0]], dtype=torch.float64)
        >>> moments = Moments(2)
        >>> moments.add(x)
        >>> moments.statistics(centred=True).G.tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """

    def __init__(self, dim: int, draws: int = 0, device: str | torch.device = "cpu", origin: Tensor | None = None) -> None:
        self.draws = draws
        self.n = 0
        self.eps = 0.0
        self.origin = origin

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.x, self.xx = zeros(dim), zeros(dim, dim)
        self.y, self.yy, self.yv = zeros(0), zeros(1), zeros(0, dim)
        shape = (dim, dim) if draws else (0, 0)
        self.v, self.vv, self.tt, self.xv = zeros(dim if draws else 0), zeros(*shape), zeros(*shape), zeros(*shape)

    def add(self, x: Tensor, views: Iterable[Tensor] = (), y: Tensor | None = None) -> None:
        """Adds items (B, D), their m views, each (B, D), and targets (B, L), which may have more columns than those before."""
        if self.origin is None:
            self.origin = x.double().mean(0)
        self.eps = torch.finfo(x.dtype).eps
        c = self.origin.to(x.dtype)
        x = x - c
        self.n += len(x)
        self.x += x.sum(0)
        self.xx += x.T @ x
        v = x
        if self.draws:
            v = self._add_views(x, (view - c for view in views))
        if y is not None:
            self._add_targets(y, v)

    def _add_views(self, x: Tensor, views: Iterator[Tensor]) -> Tensor:
        total = torch.zeros_like(x)
        for view in views:
            self.tt += view.T @ view
            total += view
        v = total / self.draws
        self.v += v.sum(0)
        self.vv += v.T @ v
        self.xv += x.T @ v
        return v

    def _add_targets(self, y: Tensor, v: Tensor) -> None:
        self._widen(y.shape[1])
        self.y[: y.shape[1]] += y.sum(0, dtype=torch.float64)
        self.yy += y.double().square().sum()
        self.yv[: y.shape[1]] += y.to(v.dtype).T @ v

    def _widen(self, targets: int) -> None:
        more = max(0, targets - len(self.y))
        self.y = torch.cat([self.y, self.y.new_zeros(more)])
        self.yv = torch.cat([self.yv, self.yv.new_zeros(more, self.yv.shape[1])])

    def reduce(self, targets: int = 0) -> None:
        """Makes the sums those of all processes of ``torch.distributed``, where there are several, for L = ``targets``."""
        self._widen(targets)
        if not _several():
            return
        parts = [self.x, self.xx, self.y, self.yy, self.yv, self.v, self.vv, self.tt, self.xv]
        whole = torch.cat([self.x.new_tensor([self.n]), *(part.flatten() for part in parts)])
        torch.distributed.all_reduce(whole)
        self.n = int(whole[0])
        for part, total in zip(parts, whole[1:].split([p.numel() for p in parts]), strict=True):
            part.copy_(total.view_as(part))
        eps = self.x.new_tensor(self.eps)
        torch.distributed.all_reduce(eps, op=torch.distributed.ReduceOp.MAX)
        self.eps = float(eps)

    @classmethod
    def weighted(cls, parts: Sequence["Moments"], weights: Sequence[float]) -> "Moments":
        """Returns the weighted sum of moments that share their origin, their draws and their numbers of targets."""
        whole = cls(len(parts[0].x), parts[0].draws, parts[0].x.device, parts[0].origin)
        whole.eps = max(part.eps for part in parts)
        whole.n = round(sum(w * part.n for w, part in zip(weights, parts, strict=True)))
        for name in ("x", "xx", "y", "yy", "yv", "v", "vv", "tt", "xv"):
            setattr(whole, name, sum(w * getattr(part, name) for w, part in zip(weights, parts, strict=True)))
        return whole

    def statistics(self, *, centred: bool) -> Statistics:
        """Returns the moments, around the means or around zero.

        Raises:
            ValueError: An item or a view holds NaN or infinity.
        """
        assert self.origin is not None, "nothing was added"
        n, m, c = self.n, self.draws, self.origin
        sampled = m > 0
        mx, xx = self.x / n, self.xx / n
        mv, xv = (self.v / n, self.xv / n) if sampled else (mx, xx)
        S = self.tt / (n * m) if sampled else xx
        G = S - (S - self.vv / n) * (m / (m - 1)) if sampled else xx  # the variance among m draws, over m - 1
        my, yv = self.y / n, self.yv / n
        a, b = (-mx, -mv) if centred else (c, c)  # what is added to every item and to every view
        if sampled and centred:  # the mean of n m views carries a variance of (S - G) / (n m) itself
            G, S = G + (S - G) / (n * m), S + (S - G) / (n * m)

        def moved(second: Tensor, p: Tensor, q: Tensor, left: Tensor, right: Tensor) -> Tensor:
            return second + torch.outer(left, q) + torch.outer(p, right) + torch.outer(left, right)

        clean = moved(xx, mx, mx, a, a)
        found = Statistics(
            n=n,
            mean=c + mx,
            mean_seen=c + mv,
            mean_target=my,
            G=moved(G, mv, mv, b, b),
            S=moved(S, mv, mv, b, b),
            M=moved(xv, mx, mv, a, b),
            N=yv + torch.outer(my, b),
            clean=clean,
            power=float(clean.trace()),
            power_target=float(self.yy / n - (my.square().sum() if centred else 0)),
            variance=xx.diagonal() - mx.square(),
            eps=self.eps,
            constant=xx.diagonal() - mx.square() <= (8 * self.eps * c).square(),
        )
        _require_finite(found)
        return found


def _require_finite(found: Statistics) -> None:
    bad = ~(found.mean.isfinite() & found.S.diagonal().isfinite() & found.G.diagonal().isfinite())
    if bool(bad.any()):
        where = bad.nonzero().flatten().tolist()
        some = ", ".join(map(str, where[:5])) + (", ..." if len(where) > 5 else "")
        raise ValueError(
            f"Input X contains NaN or infinity (or numbers too large to square), in {len(where)} of {len(bad)} columns ({some}): "
            "leave those rows out, or fill them in"
        )


# Reading


def blocks(source: Any, targets: Any = None, *, shared: bool = True) -> Iterator[tuple[int, Tensor, Any]]:
    """Yields (number, items, their targets or None) of this process's blocks, the last one shorter; of all where not ``shared``.

    Every process names the same source; block b belongs to process b mod their number. Block 0, which gives the origin, and
    the targets of an iterable are shown to all, under the number -1 to those to whom the block does not belong.

    Args:
        source: `Items`; an array or tensor (N, ...); or an iterable of batches, each an array or a tuple (items, targets).
        targets: (N, ...), beside all but an iterable.
        shared: Whether the processes share the work.
    """
    rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if shared and _several() else (0, 1)
    if not isinstance(source, (Items, np.ndarray, Tensor)):
        for b, (x, y) in enumerate(_regrouped(source)):
            yield (b if b % world == rank else -1), x, y
        return
    size = _rows(source.shape if isinstance(source, Items) else source.shape[1:])
    mine = sorted({0, *range(rank, -(-len(source) // size), world)})
    index = [torch.arange(b * size, min((b + 1) * size, len(source))) for b in mine]
    read = source.stream(iter(index)) if isinstance(source, Items) else _read(source, index)
    for b, (i, x) in zip(mine, read, strict=True):
        yield (b if b % world == rank else -1), x, None if targets is None else targets[i.numpy()]


def _rows(shape: Sequence[int]) -> int:
    """Returns how many items of a shape make a block."""
    size = max(1, math.prod(shape))
    return max(256 if size <= 1 << 16 else 8, BLOCK // size)


def _read(array: Any, index: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    for i in index:
        yield i, as_tensor(array[int(i[0]) : int(i[-1]) + 1])
        if isinstance(array, np.memmap):
            _forget(array)


def as_table(data: Any) -> Any:
    """Returns items as an array or a tensor (N, D), or images (N, C, H, W); a memory map stays one.

    Raises:
        ValueError: They have another shape, or there are none.
    """
    table = data if isinstance(data, (Tensor, np.memmap)) else np.asarray(data)
    if table.ndim not in (2, 4) or 0 in table.shape:
        raise ValueError(f"expected items (N, D) or images (N, C, H, W), found shape {tuple(table.shape)}")
    return table


def as_tensor(x: Any) -> Tensor:
    """Returns items as floats of at least single precision, images of bytes as they are; shares memory where it can."""
    if isinstance(x, Tensor):
        x = linalg.wide(x.detach())
        kept: Tensor = x if x.is_floating_point() or (x.dtype == torch.uint8 and x.ndim == 4) else x.double()
        return kept
    x = np.asarray(x)
    keep = x.dtype in (np.float32, np.float64) or (x.dtype == np.uint8 and x.ndim == 4)
    x = np.ascontiguousarray(x, dtype=x.dtype if keep else np.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing here writes; `draw` hands out copies
        return torch.from_numpy(x)


def _forget(array: Any) -> None:
    """Lets go of the pages of a file that was read: they would otherwise count as this process's memory."""
    pages = getattr(array, "_mmap", None)
    if array.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED") and isinstance(pages, mmap.mmap):
        pages.madvise(mmap.MADV_DONTNEED)


def _regrouped(source: Iterable[Any]) -> Iterator[tuple[Tensor, Any]]:
    """Cuts a stream of batches of any sizes into blocks."""
    xs: list[Tensor] = []
    ys: list[Any] = []
    held = 0
    for batch in source:
        x, y = (batch[0], batch[1] if len(batch) > 1 else None) if isinstance(batch, (tuple, list)) else (batch, None)
        x = as_tensor(x)
        if x.ndim not in (2, 4):
            raise ValueError(f"expected batches of items (B, D) or images (B, C, H, W), found shape {tuple(x.shape)}")
        if y is not None and len(y) != len(x):
            raise ValueError(f"expected one target for each item in every batch, found {len(y)} for {len(x)} items")
        if xs and x.shape[1:] != xs[0].shape[1:]:
            raise ValueError(f"expected batches of one shape, found items {tuple(xs[0].shape[1:])} and {tuple(x.shape[1:])}")
        xs.append(x)
        ys.append(None if y is None else np.asarray(y))
        held += len(x)
        size = _rows(x.shape[1:])
        if held >= size:
            x, y = torch.cat(xs), _joined(ys)
            full = held - held % size
            yield from ((x[i : i + size], None if y is None else y[i : i + size]) for i in range(0, full, size))
            xs, ys, held = [x[full:]], [None if y is None else y[full:]], held - full
    if held:
        yield torch.cat(xs), _joined(ys)


def _joined(ys: list[Any]) -> Any:
    return None if any(y is None for y in ys) else np.concatenate(ys)


def flat(x: Tensor, augmentation: Augmentation | None) -> Tensor:
    """Returns items as the model sees them without augmentation, (B, D): floats, images in [0, 1], cropped as views are."""
    if isinstance(augmentation, ImageViews):
        x = centre_crop(x, augmentation.size)
    return (x.float() / 255 if x.dtype == torch.uint8 else x).flatten(1)  # only images are uint8 here


def draw(x: Tensor, augmentation: Augmentation, m: int, seed: int, block: int) -> Iterator[Tensor]:
    """Yields m views (B, D) of raw items, from generators seeded by (seed, block).

    Raises:
        ValueError: The augmentation returns another number of items or features.
    """
    state = np.random.SeedSequence([seed, block]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
    shape = tuple(flat(x[:1], augmentation).shape[1:])
    if not isinstance(augmentation, Views) and x.dtype == torch.uint8:
        x = x.float() / 255
    for _ in range(m):
        view = augmentation(x.clone(), generator)
        view = view.detach() if isinstance(view, Tensor) else torch.as_tensor(np.asarray(view), device=x.device)
        if view.ndim < 2 or len(view) != len(x) or tuple(view.flatten(1).shape[1:]) != shape:
            raise ValueError(
                f"expected the augmentation to return {len(x)} items of {shape[0]} features, found shape {tuple(view.shape)}; "
                "it must keep the number of items and of features"
            )
        yield view.flatten(1)


def _several() -> bool:
    return bool(
        torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    )
