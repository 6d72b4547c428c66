r"""Second moments of items and of their augmentations, in one pass over data of any size.

Sums are around an origin c (the mean of the first block), those of targets around another one o, so that a mean far from zero
costs no digits. Products are in the
precision of the data (float32 items are multiplied as float32, block by block), and blocks are added in float64. Blocks have a
fixed number of rows and sample their views from (seed, number of the block): neither the batch size of the source nor the
number of processes changes the result.

Shapes: N items, D features, L targets, m draws of the augmentation for each item.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from vergence.utils.distributed import several

__all__ = [
    "Moments",
    "Sums",
]


@dataclass(frozen=True)
class Moments:
    """The moments of `vergence.linear.solutions`, float64, around the means where ``centered``.

    Attributes:
        n: Number of items.
        mean: Mean of the items, (D,).
        mean_seen: Mean of the augmented items, (D,).
        mean_target: Mean of the targets, (L,); empty without targets.
        G: (D, D), unbiased where the augmentation was sampled.
        S: (D, D).
        M: (D, D).
        N: (L, D).
        clean: 1/n sum_i x_i x_i^T, (D, D).
        power: 1/n |X|^2.
        power_target: 1/n |Y|^2.
        variance: (D,), of each feature, around its mean also without ``centered``.
        eps: Relative rounding error of the sums.
        constant: (D,) bool, whether all items are equal in a feature.
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
        """Returns whether the augmentation leaves all items unchanged (S = G), up to rounding."""
        return bool(((self.S - self.G).diagonal() <= 64 * self.eps * self.S.diagonal()).all())


def origin_of(x: Tensor) -> Tensor:
    """Returns the mean (D,) of items (B, D) as a number of their type, in float64; zeros of no items."""
    return (x.double().mean(0) if len(x) else x.new_zeros(x.shape[1], dtype=torch.float64)).to(x.dtype).double()


class Sums:
    """Sums over items, their augmentations and targets; add blocks, or other sums, in any order.

    Args:
        dim: D.
        draws: m >= 2 if the augmentation is sampled; 0 if the caller adds its covariance to S.
        device: Device of the sums.
        origin: c (D,); by default the mean of the first items that are added.
        targets: First targets (B, L), whose mean is o; by default those that are added first.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [2.0, 4.0]], dtype=torch.float64)
        >>> sums = Sums(2)
        >>> sums.add(x)
        >>> sums.moments(centered=True).G.tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """

    def __init__(
        self,
        dim: int,
        draws: int = 0,
        device: str | torch.device = "cpu",
        origin: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> None:
        self.draws = draws
        self.n = 0
        self.eps = 0.0
        self.origin = origin

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self.x, self.xx = zeros(dim), zeros(dim, dim)
        self.y, self.yy, self.yv = zeros(0), zeros(1), zeros(0, dim)
        self.origin_target = zeros(0)
        if targets is not None:
            self._start_targets(targets)
        shape = (dim, dim) if draws else (0, 0)
        self.v, self.vv, self.tt, self.xv = zeros(dim if draws else 0), zeros(*shape), zeros(*shape), zeros(*shape)

    def add(self, x: Tensor, views: Iterable[Tensor] = (), y: Tensor | None = None) -> None:
        """Adds items (B, D), their m views, each (B, D), and targets (B, L), which may have more columns than those before."""
        if self.origin is None:
            self.origin = origin_of(x)
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
        self._start_targets(y)
        self._widen(y.shape[1])
        y = pad(y.double(), (0, len(self.y) - y.shape[1])) - self.origin_target  # columns that it lacks are zeros
        self.y += y.sum(0)
        self.yy += y.square().sum()
        self.yv += y.to(v.dtype).T @ v

    def _start_targets(self, y: Tensor) -> None:
        """Takes the mean of targets (B, L) as the origin of theirs where there is none; columns that come later have origin 0."""
        if not len(self.origin_target):
            self.origin_target = origin_of(y.double()).to(self.y)

    def _widen(self, targets: int) -> None:
        more = max(0, targets - len(self.y))
        self.y = torch.cat([self.y, self.y.new_zeros(more)])
        self.origin_target = torch.cat([self.origin_target, self.y.new_zeros(max(0, targets - len(self.origin_target)))])
        self.yv = torch.cat([self.yv, self.yv.new_zeros(more, self.yv.shape[1])])

    def reduce(self, targets: int = 0) -> None:
        """Adds up the sums of all processes of ``torch.distributed``, if there are several, for L = ``targets``."""
        self._widen(targets)
        if not several():
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
    def weighted(cls, parts: Sequence["Sums"], weights: Sequence[float]) -> "Sums":
        """Returns the weighted total of sums that share their origin, their draws and their numbers of targets."""
        whole = cls(len(parts[0].x), parts[0].draws, parts[0].x.device, parts[0].origin)
        whole.eps, whole.origin_target = max(part.eps for part in parts), parts[0].origin_target
        whole.n = round(sum(w * part.n for w, part in zip(weights, parts, strict=True)))
        for name in ("x", "xx", "y", "yy", "yv", "v", "vv", "tt", "xv"):
            setattr(whole, name, sum(w * getattr(part, name) for w, part in zip(weights, parts, strict=True) if w))
        return whole

    def moments(self, *, centered: bool) -> Moments:
        """Returns the moments, around the means or around zero.

        Raises:
            ValueError: An item or a view holds NaN or infinity.
        """
        assert self.origin is not None, "no items were added"
        n, m, c = self.n, self.draws, self.origin
        sampled = m > 0
        mx, xx = self.x / n, self.xx / n
        mv, xv = (self.v / n, self.xv / n) if sampled else (mx, xx)
        S = self.tt / (n * m) if sampled else xx
        G = S - (S - self.vv / n) * (m / (m - 1)) if sampled else xx  # the variance among m draws, over m - 1
        my, yv, o = self.y / n, self.yv / n, self.origin_target
        a, b, t = (-mx, -mv, -my) if centered else (c, c, o)  # offsets of every item, of every view and of every target
        if sampled and centered:  # the mean of n m views carries a variance of (S - G) / (n m) itself
            G, S = G + (S - G) / (n * m), S + (S - G) / (n * m)

        def shifted(second: Tensor, p: Tensor, q: Tensor, left: Tensor, right: Tensor) -> Tensor:
            return second + torch.outer(left, q) + torch.outer(p, right) + torch.outer(left, right)

        clean = shifted(xx, mx, mx, a, a)
        moments = Moments(
            n=n,
            mean=c + mx,
            mean_seen=c + mv,
            mean_target=o + my,
            G=shifted(G, mv, mv, b, b),
            S=shifted(S, mv, mv, b, b),
            M=shifted(xv, mx, mv, a, b),
            N=shifted(yv, my, mv, t, b),
            clean=clean,
            power=float(clean.trace()),
            power_target=float(self.yy / n + (2 * my + t) @ t),
            variance=xx.diagonal() - mx.square(),
            eps=self.eps,
            constant=xx.diagonal() - mx.square() <= (8 * self.eps * c).square(),
        )
        _require_finite(moments)
        return moments


def _require_finite(moments: Moments) -> None:
    bad = ~(moments.mean.isfinite() & moments.S.diagonal().isfinite() & moments.G.diagonal().isfinite())
    if bool(bad.any()):
        where = bad.nonzero().flatten().tolist()
        some = ", ".join(map(str, where[:5])) + (", ..." if len(where) > 5 else "")
        raise ValueError(
            f"Input X contains NaN or infinity (or numbers too large to square), in {len(where)} of {len(bad)} columns ({some}): "
            "leave those rows out, or fill them in"
        )
