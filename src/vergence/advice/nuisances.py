r"""What two views share that they should not: a fixed mark, a few values, the name or date of the file.

Joint embedding keeps a direction if the views leave it alone, whatever it means (theorem 3.2 of arXiv:2505.12477): also the stamp
of a camera. Here are the properties that give such directions away, for the directions that the closed form keeps first.

Shapes: N items, D features, m directions, C x H x W an image.
"""

import dataclasses
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.advice.lighting import Lit, class_share
from vergence.data.items import spaced

__all__ = ["Shared"]

SIDES = (1, 2, 3, 4, 6, 8, 12)  # of windows, in pixels
THIN = (1, 2)  # of strips along a whole side; crops alone make wider ones stand out
FEW = 0.05  # share of the image that a window takes, at most
LARGEST, ASPECT = 32, 12  # side of the patterns that are searched; longest window in units of its shorter side
LEAST = 0.5  # share of a direction in a region
EXCESS = 1.8  # its logit above that of other regions
GAP, LOOSE = 2, 3.0  # pixels between parts of one mark; area of their common rectangle, in units of their own
OTHERS = 0.9  # quantile of the regions of one shape that a mark is compared with
FEWEST_REGIONS, MANY, MOST = 8, 12, 5  # regions of one shape that are compared; parts of marks; marks that are named
COMPARED = 100  # regions of one shape whose shares are computed: the clearest ones, and as many evenly spaced ones
STEPS = 20  # of the power iteration
VALUES, RESIDUE, SOURCES, ROWS = 4, 0.02, 32, 4_000  # few values; share of the variance apart from them; directions; items
FOLLOWED = 0.5  # explained share of a property of the file
RIDGE = 1e-3
FLAT = 1e-10  # variance of a feature that is the same in all items, up to rounding, as a share of the largest
BY_CLASSES, RARE = 0.8, 0.01  # of the errors of guessing a value that classes take away; share of the items with a value


@dataclass(frozen=True, kw_only=True)
class FixedMark:
    """A rectangle that holds nearly all of some direction that joint embedding keeps."""

    box: tuple[int, int, int, int]  # top, left, height and width in pixels of the item
    share: float  # share of the direction's energy in the rectangle, in [0, 1]
    others: float  # the same of other rectangles of this shape: their 90 % quantile over the image


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What the first directions of joint embedding have that a class of things would not have; empty where nothing was found."""

    directions: int  # m, the directions that were searched
    unchanged: int = 0  # directions that the views leave exactly as they are
    constant: int = 0  # features that are the same in all items
    fixed_marks: tuple[FixedMark, ...] = ()  # of images
    lights: tuple[Lit, ...] = ()  # gradients of light that a group of the images has
    valued: tuple[tuple[int, ...], ...] = ()  # items with each value, of directions of few values that are not classes
    # properties of the files that the directions follow: by name the share of the variance that they explain linearly
    followed: Mapping[str, float] = field(default_factory=dict)


# Fixed marks


def fixed_marks(patterns: Tensor, shape: Sequence[int]) -> list[FixedMark]:
    """Returns the rectangles that hold a direction of a subspace nearly alone, the clearest first; none of small images.

    The share of a rectangle is the largest share of energy that any pattern in the subspace has in it. Of smooth patterns it is
    small in small rectangles, and about equal in rectangles of one shape; a fixed mark stands out among them.

    Args:
        patterns: (D, m), m < D: how the items change along each direction.
        shape: (C, H, W), with C H W = D.
    """
    C, H, W = shape
    h, w = min(H, LARGEST), min(W, LARGEST)
    small = F.adaptive_avg_pool2d(patterns.T.reshape(-1, C, H, W).double(), (h, w)).permute(1, 2, 3, 0)
    Q = torch.linalg.qr(small.reshape(C * h * w, -1))[0].float().view(C, h, w, -1)
    products = torch.einsum("chwi,chwj->ijhw", Q, Q)
    integral = F.pad(products.cumsum(2).cumsum(3), (1, 0, 1, 0))
    found = [mark for size in _sizes(h, w) for mark in _clearest(integral, size)]
    kept: list[FixedMark] = []
    for _, mark in sorted(found, key=lambda pair: -pair[0]):
        if all(_distance(mark.box, other.box) > 0 for other in kept) and len(kept) < MANY:
            kept.append(mark)
    return [dataclasses.replace(mark, box=_scaled(mark.box, H / h, W / w)) for mark in _merged(kept)[:MOST]]


def _scaled(box: Sequence[int], rows: float, columns: float) -> tuple[int, int, int, int]:
    top, left, height, width = box
    return round(top * rows), round(left * columns), max(1, round(height * rows)), max(1, round(width * columns))


def _sizes(H: int, W: int) -> Iterator[tuple[int, int]]:
    """Yields the shapes of rectangles: windows of few pixels, and thin strips along a whole side."""
    for h, w in itertools.product(SIDES, SIDES):
        if 2 * h <= H and 2 * w <= W and max(h, w) <= ASPECT * min(h, w) and h * w <= FEW * H * W:
            yield h, w
    for thin in THIN:
        yield from ((thin, W), (H, thin))


def _clearest(integral: Tensor, size: tuple[int, int]) -> list[tuple[float, FixedMark]]:
    """Returns the clearest rectangle of one shape with its excess; none where it does not stand out."""
    (h, w), (H, W) = size, (n - 1 for n in integral.shape[2:])
    a, b = (torch.arange(0, n - k + 1, max(1, k // 3)) for n, k in ((H, h), (W, w)))
    if len(a) * len(b) < FEWEST_REGIONS:
        return []
    low, high = integral[:, :, a], integral[:, :, a + h]
    energies = high[..., b + w] - low[..., b + w] - high[..., b] + low[..., b]
    energies = energies.permute(2, 3, 0, 1).flatten(0, 1)  # (regions, m, m)
    clearest = energies.flatten(1).norm(dim=1).topk(min(COMPARED, len(energies))).indices  # the norm bounds the share
    share = _largest(energies[clearest]).clamp(1e-6, 1 - 1e-6)
    best = int(share.argmax())
    i = int(clearest[best])
    others = float(_largest(energies[spaced(len(energies), COMPARED)]).clamp(1e-6, 1 - 1e-6).quantile(OTHERS))
    excess = float(torch.logit(share[best])) - float(torch.logit(torch.tensor(others)))
    if share[best] < LEAST or excess < EXCESS:
        return []
    box = int(a[i // len(b)]), int(b[i % len(b)]), h, w
    return [(excess, FixedMark(box=box, share=float(share[best]), others=others))]


def _largest(matrices: Tensor) -> Tensor:
    """Returns about the largest eigenvalue of positive semidefinite matrices (B, m, m), by the power iteration."""
    m = matrices.shape[-1]
    v = 1 + 0.1 * torch.randn(m, 1, generator=torch.Generator().manual_seed(0)).to(matrices)
    v = v.expand(len(matrices), m, 1)
    for _ in range(STEPS):
        v = F.normalize(matrices @ v, dim=1)
    return (v * (matrices @ v)).sum((1, 2))


def _distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns the pixels between two rectangles, plus 1; at most 0 where they share some."""
    return 1 + max(max(b[i] - a[i] - a[i + 2], a[i] - b[i] - b[i + 2]) for i in range(2))


def _merged(marks: list[FixedMark]) -> list[FixedMark]:
    """Returns marks of which near ones have become one."""
    for i, j in itertools.combinations(range(len(marks)), 2):
        a, b = marks[i].box, marks[j].box
        low = [min(a[k], b[k]) for k in range(2)]
        size = [max(a[k] + a[k + 2], b[k] + b[k + 2]) - low[k] for k in range(2)]
        if _distance(a, b) <= 1 + GAP and size[0] * size[1] <= LOOSE * (a[2] * a[3] + b[2] * b[3]):
            one = dataclasses.replace(marks[i], box=(low[0], low[1], size[0], size[1]))
            return _merged([one, *(mark for k, mark in enumerate(marks) if k not in (i, j))])
    return marks


# Values and files


def constants(directions: Tensor, covariance: Tensor) -> int:
    """Returns the number of features that are the same in all items, from directions (D, m) and a covariance in them."""
    variances = ((directions @ covariance) * directions).sum(1)
    return int((variances <= FLAT * variances.max()).sum())


def few_values(codes: Tensor, labels: Tensor | None = None) -> list[tuple[int, ...]]:
    """Returns how many items have each value, of the independent components of codes that take two to four values.

    Components whose values follow from the classes, ``labels`` (N,), -1 where unknown, are left out.

    Components come from scikit-learn's FastICA; their values from k-means. The codes (N, m) are a whitened embedding; its
    first 32 columns and 4,000 evenly spaced rows are used.
    """
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    rows = spaced(len(codes), ROWS)
    z, y = codes[rows, :SOURCES].double().cpu().numpy(), np.full(len(rows), -1) if labels is None else labels[rows].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what has not converged is searched all the same
        sources = FastICA(whiten="unit-variance", max_iter=100, tol=1e-3, random_state=0).fit_transform(z)
    return [found for source in sources.T if (found := _valued(source, y)) is not None]


def _valued(source: np.ndarray, labels: np.ndarray) -> tuple[int, ...] | None:
    """Returns how many of numbers (N,) have each value; None where the values are many, or classes (N,) tell them."""
    from sklearn.cluster import KMeans

    for k in range(2, VALUES + 1):
        model = KMeans(k, n_init=4, random_state=0).fit(source[:, None])
        if model.inertia_ <= RESIDUE * len(source) * source.var():
            counts = np.bincount(model.labels_, minlength=k)[np.argsort(model.cluster_centers_[:, 0])]
            few = counts.min() < RARE * len(source)  # a few items have the variance
            return None if few or class_share(model.labels_, labels) >= BY_CLASSES else tuple(counts.tolist())
    return None


def followed(codes: Tensor, properties: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """Returns the properties of the files of which codes (N, m) explain at least half, and the share that they explain.

    A property is N numbers, or N words such as the names of folders. One that is the same for all is left out.
    """
    shares = {name: _explained(codes, values) for name, values in properties.items() if len(set(values)) > 1}
    return {name: share for name, share in shares.items() if share >= FOLLOWED}


def _explained(codes: Tensor, values: Sequence[Any]) -> float:
    """Returns the share of the variance that codes (N, m) explain, by least squares, as an adjusted R^2."""
    N, m = codes.shape
    if N < 3 * m:
        return 0.0
    if isinstance(values[0], str):
        names = sorted(set(values))
        y = torch.tensor([names.index(v) for v in values])
        y = F.one_hot(y).double()
    else:
        y = torch.as_tensor(np.argsort(np.argsort(np.asarray(values, dtype=float))), dtype=torch.float64)[:, None]  # ranks
    y, z = y - y.mean(0), codes - codes.mean(0)
    scale = z.square().mean(0).mean()
    V = torch.linalg.solve(z.T @ z / N + RIDGE * scale * torch.eye(m, dtype=z.dtype), z.T @ y / N)
    R2 = 1 - float((y - z @ V).square().sum() / y.square().sum())
    return round(max(0.0, 1 - (1 - R2) * (N - 1) / (N - m - 1)), 2)
