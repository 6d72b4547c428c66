r"""Where an image is anomalous: a density of the cells of all images, a heatmap for each image, and frames with a stated rate.

    m(x, u) = log d^2 of cell u of image x

Without a reference d is the Mahalanobis distance under one Gaussian over the cells of the other folds. With one, it is the
distance to the nearest of some thousand cells of the reference, in coordinates in which all its cells are white; for an image of
the reference, to those of the images of other folds.

    s(x) = log of the mean of the largest hundredth of d^2, of at least 4 cells
    M(x) = max_u m(x, u)

Of n normal images that no fit has seen, t is the k-th largest M, k = floor(alpha (n + 1)). A new image that is exchangeable with
them has P(M > t) <= alpha: in at most a share alpha of normal images any region is framed (split conformal on the maximum).

Shapes: cells (D, r, c) of an image; N images, K folds.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vergence.decide.density import GaussianDetector
from vergence.utils.checks import require_within
from vergence.utils.dtypes import Floats, Ints

PER_IMAGE, MOST = 64, 64_000  # cells that a fit reads of one image, and of all
SHARE, LEAST = 0.01, 4  # of an image's cells that its score reads
SHRINKAGE = 1e-4
NEW = -1  # fold of images that no fit has seen
FARTHEST = 0.1  # share of the images whose cells no fit sees, since anomalies may be among them
TINY = 1e-300


class OwnCells:
    """What scores cells without a reference: a Gaussian for each fold, which has not seen it.

    Each Gaussian is fitted twice, the second time without the most anomalous tenth of the images, of which there are some cells
    (n_i, D) each, and a fold (N,).
    """

    def __init__(self, cells: Sequence[Floats], fold: Ints) -> None:
        of, x = np.repeat(np.arange(len(cells)), [len(c) for c in cells]), np.concatenate(cells)
        parts = {int(k): fold[of] != k for k in np.unique(fold)} | {NEW: np.ones(len(of), dtype=bool)}
        self.detectors = {k: _fitted(x[rows], of[rows]) for k, rows in parts.items()}

    def scores(self, cells: Tensor, fold: int) -> tuple[Floats, Floats]:
        """Returns s (1,) and m (r, c) of the cells (D, r, c) of an image of a fold; -1 is that of images that no fit has seen."""
        m = self.detectors[fold].log_distance(cells.flatten(1).T.double().numpy()).reshape(cells.shape[1:])
        return np.array([region_score(m)]), m


class ReferenceCells:
    """What scores cells with a reference: the nearest of its cells, those of the image's own fold left out.

    Args:
        cells: Some cells (n_i, D) of each of N reference images.
        fold: Fold of each image, (N,); images of a fold below 0 are in every bank.
        folds: K.
        shrinkage: Of the covariance that whitens, in [0, 1].
        bank: Cells that are compared with, at most.
        others: Cells of new images, which the covariance sees, too: else those of the reference would be nearer by that alone.
    """

    def __init__(
        self,
        cells: Sequence[Floats],
        fold: Ints,
        folds: int,
        shrinkage: float = SHRINKAGE,
        bank: int = 3_000,
        others: Sequence[Floats] = (),
    ) -> None:
        x, of = np.concatenate(cells).astype(np.float64), np.repeat(fold, [len(c) for c in cells])
        self.gaussian = GaussianDetector(shrinkage=shrinkage).fit(np.concatenate([x, *others]))
        some = np.random.default_rng(0).permutation(len(x))[:bank]
        some = some[np.argsort(of[some], kind="stable")]
        self.bank, self.folds = self._white(x[some]), folds
        self.square = self.bank.square().sum(1)
        self.sizes = [int((of[some] == k).sum()) for k in range(-1, folds)]

    def scores(self, cells: Tensor, fold: int) -> tuple[Floats, Floats]:
        """Returns s (K,), without each fold's cells, and m (r, c) of the cells (D, r, c) of an image.

        Of an image of a fold the cells of that fold are left out of all; -1 is that of images that no fit has seen.
        """
        x = self._white(cells.flatten(1).T.double().numpy())
        d = torch.addmm(self.square[None], x, self.bank.T, alpha=-2)
        none = d.new_full((len(d),), torch.inf)
        each = torch.stack([part.amin(1) if part.shape[1] else none for part in d.split(self.sizes, 1)])
        least = (each + x.square().sum(1)).clamp(min=0).double().numpy()  # (1 + K, r c)
        if fold >= 0:
            least[fold + 1] = np.inf
        two = np.sort(least, axis=0)[:2] if len(least) > 1 else np.repeat(least, 2, 0)
        first = least.argmin(0)
        without = [np.where(first == k + 1, two[1], two[0]) for k in range(self.folds)]
        maps = [np.log(np.maximum(d, TINY)) for d in (two[0], *without)]
        s = np.array([region_score(m) for m in ([maps[0]] * self.folds if fold >= 0 else maps[1:])])
        return s, maps[0].reshape(cells.shape[1:])

    def _white(self, x: Floats) -> Tensor:
        return torch.from_numpy(np.asarray((x - self.gaussian.location_) @ self.gaussian.root_, dtype=np.float32))


def _fitted(x: Floats, of: Ints) -> GaussianDetector:
    detector = GaussianDetector(shrinkage=SHRINKAGE).fit(x)
    kept, place = np.unique(of, return_inverse=True)
    farthest = np.full(len(kept), -np.inf)
    np.maximum.at(farthest, place, detector.log_distance(x))
    return GaussianDetector(shrinkage=SHRINKAGE).fit(x[farthest[place] <= np.quantile(farthest, 1 - FARTHEST)])


def some_cells(cells: Tensor, images: int, k: int) -> Floats:
    """Returns random cells (n, D) of the k-th image, of so many images: in all, enough for a fit."""
    flat = cells.flatten(1).T
    n = min(len(flat), PER_IMAGE, max(4, MOST // max(1, images)))
    return np.asarray(flat[torch.randperm(len(flat), generator=torch.Generator().manual_seed(k))[:n]].numpy())


def region_score(m: Floats) -> float:
    """Returns s of a map (r, c)."""
    d = np.sort(np.exp(m.ravel()))[::-1]
    return float(np.log(max(d[: max(LEAST, math.ceil(SHARE * d.size))].mean(), TINY)))


def region_threshold(maxima: Floats, region_rate: float) -> float:
    """Returns t: in at most a share ``region_rate`` a of normal images any cell lies above it; infinity where n < 1 / a - 1.

    ``maxima`` (n,) are M of normal images that no fit has seen; a is in (0, 1).
    """
    require_within("(0, 1)", region_rate=region_rate)
    k = math.floor(region_rate * (len(maxima) + 1) * (1 + 1e-12))
    return float(np.sort(maxima)[-k]) if k >= 1 else math.inf


def region_words(m: Floats) -> str:
    """Returns where the largest value of a map lies, in words."""
    r, c = np.unravel_index(int(m.argmax()), m.shape)
    vertical, horizontal = _third(int(r), m.shape[0], ("top", "", "bottom")), _third(int(c), m.shape[1], ("left", "", "right"))
    where = " ".join(word for word in (vertical, horizontal) if word)
    return f"at the {where}" if where else "in the middle"


def _third(i: int, n: int, words: tuple[str, str, str]) -> str:
    return words[min(2, 3 * i // n)] if n > 1 else ""
