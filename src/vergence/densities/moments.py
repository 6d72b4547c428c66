r"""Moments: means, covariances and their shrinkage, of batches, of streams and of moving windows; principal directions.

Sums of a stream are in float64; products are in the precision of the data, block by block.

Shapes: N items, D features, m views of each item.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vergence.densities.gaussian import JointGaussian
from vergence.utils.checks import expect, require_choice, require_within
from vergence.utils.devices import several
from vergence.utils.linalg import upcast_half

__all__ = ["BatchMoments", "Deviations", "Moments", "MovingMoments", "StandardizedMoments", "Sums", "ViewSums", "batch_moments"]
__all__ += ["blocks", "leading", "origin_of", "principal", "principal_directions", "standardized_moments"]

JITTER = {torch.float32: 1e-6, torch.float64: 1e-10}  # in units of the mean variance; added to every covariance
RIDGE = 1e-9  # the same of standardized moments, for features that are constant or linearly dependent
BLOCK = 1 << 21  # numbers in a block of items
COLUMNS = 4096  # features at a time
CONSTANT = 1e-3  # scale of a constant feature, in units of the constant


@dataclass(frozen=True)
class BatchMoments:
    """Mean (D,) and covariance (D, D) of a batch."""

    mean: Tensor
    S: Tensor

    def block(self, where: slice) -> "BatchMoments":
        """Returns the mean and the covariance of some features."""
        return BatchMoments(self.mean[where], self.S[where, where])


def batch_moments(z: Tensor, shrinkage: float | None = 0.0) -> BatchMoments:
    """Returns mean and covariance (divided by N) of embeddings (N, D), `shrunk`, with gradient."""
    z = upcast_half(z)
    mean = z.mean(0)
    x = z - mean
    S = x.mT @ x / len(z)
    return BatchMoments(mean, shrunk(S, len(z), shrinkage))


def shrunk(S: Tensor, n: int | Tensor, shrinkage: float | None) -> Tensor:
    """Returns (1 - a) S + (a + jitter) tr(S) / D I of n items; a = ``shrinkage`` in [0, 1], or `oas` for None."""
    a = oas(S.detach(), n) if shrinkage is None else shrinkage
    scale = S.diagonal().mean()
    eye = torch.eye(S.shape[0], dtype=S.dtype, device=S.device)
    return (1 - a) * S + (a + JITTER[S.dtype]) * scale * eye


def oas(S: Tensor, n: float | Tensor) -> Tensor:
    """Returns the oracle-approximating shrinkage of a covariance of n Gaussian items, in (0, 1].

    Y. Chen, A. Wiesel, Y. C. Eldar, A. O. Hero, "Shrinkage algorithms for MMSE covariance estimation", IEEE Transactions on
    Signal Processing, 2010, equation 23.
    """
    D = S.shape[0]
    squares, trace = S.square().sum(), S.trace().square()
    above = (1 - 2 / D) * squares + trace
    below = (n + 1 - 2 / D) * (squares - trace / D)
    return torch.where(below > 0, above / below, 1.0).clamp(max=1.0)


class MovingMoments(nn.Module):
    """Exponential moving averages of mean and covariance; the first 1 / (1 - momentum) batches have equal weights.

    Args:
        dim: Features D.
        momentum: Weight m of the past, in [0, 1).
        shrinkage: Shrinkage of the covariance in `density`, in [0, 1]; None estimates it from the effective number of items, so
            that it vanishes after many batches.

    Example:
        >>> moving = MovingMoments(2, momentum=0.9, shrinkage=0.0)
        >>> for start in (0, 10):
        ...     moving.update(torch.tensor([[0.0, 0.0], [2.0, 2.0]]) + start)
        >>> moving.density().mean.tolist(), moving.density().variance.round(decimals=2).tolist()
        ([6.0, 6.0], [26.0, 26.0])
    """

    mean: Tensor
    covariance: Tensor
    steps: Tensor
    items: Tensor

    def __init__(self, dim: int, *, momentum: float = 0.99, shrinkage: float | None = None) -> None:
        super().__init__()
        require_within("[0, 1)", momentum=momentum)
        if shrinkage is not None:
            require_within("[0, 1]", shrinkage=shrinkage)
        self.momentum, self.shrinkage = momentum, shrinkage
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("covariance", torch.eye(dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("items", torch.ones(()))  # effective number of items: 1 / sum of squared weights

    @torch.no_grad()
    def update(self, z: Tensor) -> None:
        """Updates the averages with a batch (B, D)."""
        m = batch_moments(z.to(self.mean))
        self.steps += 1
        keep = self.keep()
        shift = m.mean - self.mean
        spread = keep * (1 - keep) * torch.outer(shift, shift)  # of the two means around the common one
        self.covariance.lerp_(m.S, 1 - keep).add_(spread)
        self.mean.lerp_(m.mean, 1 - keep)
        self.items.copy_(1 / (keep**2 / self.items + (1 - keep) ** 2 / len(z)))

    def keep(self) -> Tensor:
        """Returns the weight that the last batch left to the past, a scalar: 1 - 1 / steps, at most the momentum."""
        return torch.clamp(1 - 1 / self.steps, max=self.momentum).to(self.mean)

    def moments(self) -> BatchMoments:
        """Returns the mean and the shrunk covariance."""
        return BatchMoments(self.mean, shrunk(self.covariance, self.items, self.shrinkage))

    def density(self, context: int = 0) -> JointGaussian:
        """Returns the Gaussian over (D,), with the first ``context`` features as the context."""
        m = self.moments()
        return JointGaussian(m.mean, m.S, context)


class Deviations:
    """Mean and deviation of each feature over items that come in batches, in float64 (Chan, Golub and LeVeque's update).

    The rounding of the type of the data decides what is constant.

    Example:
        >>> deviations = Deviations(1, torch.float32)
        >>> for x in (torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])):
        ...     deviations.add(x.double())
        >>> deviations.mean.item(), round(deviations.std().item(), 3)
        (4.0, 2.236)
    """

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        self.dtype, self.n = dtype, 0
        self.mean, self.squares, self.largest = torch.zeros(3, dim, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Adds items (B, D) of float64."""
        x = x.T.contiguous()
        variance, mean = torch.var_mean(x, dim=1, correction=0)
        step, n = mean - self.mean, self.n + x.shape[1]
        self.mean = self.mean + step * (x.shape[1] / n)
        self.squares = self.squares + x.shape[1] * variance + step.square() * (self.n * x.shape[1] / n)
        self.largest = torch.maximum(self.largest, x.abs().amax(1))
        self.n = n

    def std(self) -> Tensor:
        """Returns the deviations (D,), in float64; those of constant features are 0."""
        std = (self.squares / self.n).sqrt()
        return torch.where(std <= 4 * torch.finfo(self.dtype).eps * self.largest, 0.0, std)  # in any unit


@dataclass(frozen=True)
class Moments:
    """The moments of `vergence.linear.solutions`, float64, around the means."""

    n: int  # number of items
    mean: Tensor  # of the items, (D,)
    mean_seen: Tensor  # of the augmented items, (D,)
    G: Tensor  # (D, D), unbiased where the augmentation was sampled
    S: Tensor  # (D, D)
    M: Tensor  # (D, D)
    clean: Tensor  # covariance of the items, (D, D)
    power: float  # its trace
    variance: Tensor  # of each feature, (D,)
    eps: float  # relative rounding error of the sums
    constant: Tensor  # whether all items are equal in a feature, (D,) of bool

    def unchanged(self) -> bool:
        """Returns whether the augmentation leaves all items unchanged (S = G), up to rounding."""
        return bool(((self.S - self.G).diagonal() <= 64 * self.eps * self.S.diagonal()).all())


def origin_of(x: Tensor) -> Tensor:
    """Returns the mean (D,) of items (B, D) as a number of their type, in float64; zeros of no items."""
    return (x.double().mean(0) if len(x) else x.new_zeros(x.shape[1], dtype=torch.float64)).to(x.dtype).double()


class ViewSums:
    """Sums over items of their m >= 2 views (``draws``), of the views' products, and of the products of each item's mean view.

    Example:
        >>> sums = ViewSums(1, 2)
        >>> sums.add_views([torch.tensor([[1.0], [5.0]]), torch.tensor([[3.0], [7.0]])])
        >>> [part.flatten().tolist() for part in sums.view_moments()]
        [[4.0], [5.5], [3.5]]
    """

    FIELDS: ClassVar[tuple[str, ...]] = ("v", "vv", "tt")

    def __init__(self, dim: int, draws: int, device: str | torch.device = "cpu") -> None:
        self.draws, self.n = draws, 0
        self.v = torch.zeros(dim, dtype=torch.float64, device=device)
        self.vv, self.tt = (torch.zeros(dim, dim, dtype=torch.float64, device=device) for _ in range(2))

    def add_views(self, views: Iterable[Tensor]) -> None:
        """Adds the m views, each (B, D), of B items."""
        self.n += len(self._add_views(views))

    def _add_views(self, views: Iterable[Tensor]) -> Tensor:
        """Adds the views, and returns each item's mean view (B, D)."""
        total: Tensor | float = 0.0
        for view in views:
            self.tt += view.T @ view
            total = total + view
        mean = torch.as_tensor(total) / self.draws
        self.v += mean.sum(0)
        self.vv += mean.T @ mean
        return mean

    def state(self) -> dict[str, Any]:
        """Returns what `load` sets."""
        return {"n": self.n, **{name: getattr(self, name) for name in self.FIELDS}}

    def load(self, state: dict[str, Any]) -> None:
        """Sets the sums."""
        self.n = state["n"]
        for name in self.FIELDS:
            getattr(self, name).copy_(state[name])

    def reduce(self) -> None:
        """Adds up the sums of all processes of ``torch.distributed``, if there are several."""
        if not several():
            return
        parts = [getattr(self, name) for name in self.FIELDS]
        whole = torch.cat([self.v.new_tensor([self.n]), *(part.flatten() for part in parts)])
        torch.distributed.all_reduce(whole)
        self.n = int(whole[0])
        for part, total in zip(parts, whole[1:].split([p.numel() for p in parts]), strict=True):
            part.copy_(total.view_as(part))

    def view_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the mean of the views (D,), and S and G of `vergence.linear.solutions`, around it and without bias."""
        center = self.v / self.n
        square = torch.outer(center, center)
        S = self.tt / (self.n * self.draws) - square
        within = (S - self.vv / self.n + square) * (self.draws / (self.draws - 1))  # among m views, over m - 1
        S += within / (self.n * self.draws)  # the variance of the mean of all views
        return center, S, S - within


class Sums(ViewSums):
    """Sums over items and their augmentations; add blocks in any order.

    They are around an origin c (D,), by default the mean of the first block, so that a mean far from zero costs no digits. There
    are m >= 2 ``draws`` if the augmentation is sampled, and 0 if the caller adds its covariance to S.
    """

    FIELDS: ClassVar[tuple[str, ...]] = (*ViewSums.FIELDS, "x", "xx", "xv")

    def __init__(self, dim: int, draws: int = 0, device: str | torch.device = "cpu", origin: Tensor | None = None) -> None:
        super().__init__(dim if draws else 0, draws, device)
        self.eps = 0.0
        self.origin = origin
        self.x = torch.zeros(dim, dtype=torch.float64, device=device)
        self.xx, self.xv = torch.zeros(dim, dim, dtype=torch.float64, device=device), torch.zeros_like(self.vv)

    def add(self, x: Tensor, views: Iterable[Tensor] = ()) -> None:
        """Adds items (B, D) and their m views, each (B, D)."""
        if self.origin is None:
            self.origin = origin_of(x)
        self.eps = torch.finfo(x.dtype).eps
        c = self.origin.to(x.dtype)
        x = x - c
        self.n += len(x)
        self.x += x.sum(0)
        self.xx += x.T @ x
        if self.draws:
            self.xv += x.T @ self._add_views(view - c for view in views)

    def moments(self) -> Moments:
        """Returns the moments around the means; raises a ValueError if an item holds NaN or infinity."""
        assert self.origin is not None, "no items were added"
        n, c, mx = self.n, self.origin, self.x / self.n
        clean = self.xx / n - torch.outer(mx, mx)
        mv, S, G = self.view_moments() if self.draws else (mx, clean, clean)
        M, variance = self.xv / n - torch.outer(mx, mv) if self.draws else clean, clean.diagonal()
        bad = ~(mx.isfinite() & S.diagonal().isfinite() & G.diagonal().isfinite())
        columns = bad.nonzero().flatten().tolist()
        some = ", ".join(map(str, columns[:5])) + ", ..." * (len(columns) > 5)
        where = f"NaN or infinity (or numbers too large to square), in {len(columns)} of {len(bad)} columns ({some})"
        expect(not columns, "finite items", where, "leave those rows out, or fill them in")
        constant = variance <= (8 * self.eps * c).square()
        return Moments(n, c + mx, c + mv, G, S, M, clean, float(clean.trace()), variance, self.eps, constant)


@dataclass(frozen=True)
class StandardizedMoments:
    """Moments of items x = location + scale x', float64."""

    n: float  # sum of the weights
    location: Tensor  # mean (D,)
    scale: Tensor  # deviation (D,) of each feature, > 0; all 1 where items are not standardized
    covariance: Tensor  # (D, D) of x', divided by n
    fourth: float  # mean of |x'|^4

    def shrunk(self, shrinkage: str | float) -> Tensor:
        """Returns the covariance (1 - a) S + a v I, v = tr(S) / D, with a tiny ridge where S is singular.

        The shrinkage is a in [0, 1], or ``ledoit_wolf`` (Ledoit, Wolf, 2004), as scikit-learn's.
        """
        S, D = self.covariance, len(self.covariance)
        v = S.trace() / D
        if not isinstance(shrinkage, str):
            require_within("[0, 1]", shrinkage=shrinkage)
            a = float(shrinkage)
        else:
            require_choice("shrinkage", shrinkage, ["ledoit_wolf"])
            square = float(S.square().sum())  # d and b: squared distance of S to v I, and mean squared error of S, over D
            d, b = square / D - float(v) ** 2, (self.fourth - square) / (D * self.n)
            a = min(b, d) / d if d > 0 and b > 0 else 0.0
        return (1 - a) * S + (a + RIDGE) * v * torch.eye(D, dtype=S.dtype, device=S.device)


def standardized_moments(X: Any, w: Any = None, *, standardize: bool = True) -> StandardizedMoments:
    """Returns the moments of items (N, D) with weights (N,), read twice, block by block, in float64.

    A constant feature has a thousandth of its constant for its scale, or of 1 for 0: what never varied is far off when it does.
    Without ``standardize`` features are not divided by their deviations.
    """
    origin = _float64(X[:1])[0]
    D, n = len(origin), float(len(X)) if w is None else float(w.sum())
    first, second = torch.zeros_like(origin), torch.zeros_like(origin)
    for x, v in _blocks(X, w):
        x = x - origin
        first += x.sum(0) if v is None else v @ x
        second += x.square().sum(0) if v is None else v @ x.square()
    shift = first / n
    variance = (second / n - shift.square()).clamp(min=0)
    expect(bool(variance.isfinite().all()), "features whose squares can be summed", "larger ones", "divide them by a number")
    location = origin + shift
    constant = variance <= 1e-20 * location.square()
    expect(not bool(constant.all()), "features that vary", f"{D} constant ones", "check the features")
    location = torch.where(constant, origin, location)
    unit = CONSTANT * torch.where(location != 0, location.abs(), 1.0)
    scale = torch.where(constant, unit, variance.sqrt()) if standardize else torch.ones_like(location)
    covariance, fourth = torch.zeros(D, D).to(origin), 0.0
    for x, v in _blocks(X, w):
        x = (x - location) / scale
        square = x.square().sum(1)
        if v is not None:
            x, square = x * v.sqrt()[:, None], square * v.sqrt()
        covariance += x.T @ x
        fourth += float(square @ square)
    return StandardizedMoments(n, location, scale, covariance / n, fourth / n)


def _float64(x: Any) -> Tensor:
    return x.double() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float64))


def blocks(X: Any) -> Iterator[slice]:
    """Yields slices of rows with about two million numbers each, which bounds the memory of what is computed from them."""
    rows = max(1, BLOCK // max(1, X.shape[1]))
    return (slice(start, start + rows) for start in range(0, len(X), rows))


def _blocks(X: Any, w: Any) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yields blocks of items and of their weights, in float64."""
    return ((_float64(X[rows]), None if w is None else _float64(w[rows])) for rows in blocks(X))


def principal(S: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the eigenvalues of a covariance in descending order, (D,), at least 0, and the eigenvectors as columns, (D, D).

    Example:
        >>> principal(torch.diag(torch.tensor([1.0, 4.0])))[0].tolist()
        [4.0, 1.0]
    """
    values, vectors = torch.linalg.eigh(S)
    return values.clamp(min=0).flip(0), vectors.flip(1)


def leading(x: Tensor, k: int | None) -> Tensor:
    """Returns centered items (N, D) in their k principal directions, (N, k), ascending, by subspace iteration; x for k >= D."""
    if k is None or k >= x.shape[1]:
        return x
    width = min(x.shape[1], k + 10)
    Q = torch.randn(x.shape[1], width, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)
    for _ in range(8):
        Q = torch.linalg.qr(x.T @ (x @ Q)).Q
    z: Tensor = x @ Q
    coordinates: Tensor = z @ torch.linalg.eigh(z.T @ z).eigenvectors[:, -k:]
    return coordinates


def principal_directions(
    parts: list[Tensor], k: int, dtype: torch.dtype, widths: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the mean (F,) of n features and their first k < n principal directions (F, k), in the type of the features.

    The smaller of the two matrices of products is decomposed: of the F features, or of the n images. Of several groups of
    features, of these widths, each is divided by the root mean squared distance from its mean first, and V^T (f - mean) are the
    components. The parts (B, F) are centered and divided in place; sums and products have the type ``dtype``.
    """
    n, width = sum(len(f) for f in parts), parts[0].shape[1]
    mean = torch.stack([f.to(dtype).sum(0) for f in parts]).sum(0) / n
    gains = _gains(parts, mean, widths) if widths is not None and len(widths) > 1 else None
    for f in parts:
        centered = f.to(dtype) - mean
        f.copy_(centered if gains is None else centered * gains)
    if width <= n:
        covariance = torch.zeros(width, width, dtype=dtype, device=parts[0].device)
        for f in parts:
            covariance.addmm_(f.to(dtype).T, f.to(dtype))
        V = _leading(covariance, k)[1].to(parts[0].dtype)
    else:
        V = _of_images(parts, k, dtype)
    return mean, V if gains is None else V.mul_(gains[:, None])


def _gains(parts: list[Tensor], mean: Tensor, widths: Sequence[int]) -> Tensor:
    """Returns for each feature one over the root mean squared distance of its group from the mean, (F,); 1 where it is 0."""
    square = torch.stack([(f.to(mean) - mean).square().sum(0) for f in parts]).sum(0) / sum(len(f) for f in parts)
    lengths = [group.sum().sqrt() for group in square.split(list(widths))]
    gains = [(1 / length if length > 0 else length + 1).expand(n) for length, n in zip(lengths, widths, strict=True)]
    return torch.cat(gains)


def _of_images(parts: list[Tensor], k: int, dtype: torch.dtype) -> Tensor:
    """Returns k principal directions of centered features from the n x n matrix of the images' products."""
    n, width = sum(len(f) for f in parts), parts[0].shape[1]
    products = torch.zeros(n, n, dtype=dtype, device=parts[0].device)
    for f in _columns(parts, dtype):
        products.addmm_(f, f.T)
    w, U = _leading(products, k)
    del products
    U *= w.clamp(min=max(float(w[0]) * torch.finfo(dtype).eps, torch.finfo(dtype).tiny)).rsqrt()
    V = parts[0].new_empty(width, k)
    for rows, f in zip(V.split(COLUMNS), _columns(parts, dtype), strict=True):
        rows.copy_(f.T @ U)
    return V


def _columns(parts: list[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields blocks of columns of a matrix that is given in parts of its rows."""
    for start in range(0, parts[0].shape[1], COLUMNS):
        yield torch.cat([f[:, start : start + COLUMNS] for f in parts]).to(dtype)


def _leading(a: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k largest eigenvalues (k,), descending, and their eigenvectors (D, k) of a symmetric matrix (D, D)."""
    w, U = torch.linalg.eigh(a)
    return w[-k:].flip(0), U[:, -k:].flip(1)
