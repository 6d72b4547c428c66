r"""Where a picture is odd: a density of the cells of all pictures, a map for each picture, and marks with a stated rate.

    m(x, u) = log d^2 of cell u of picture x

Without a reference d is the Mahalanobis distance under one Gaussian over the cells of the other folds. With one, it is the
distance to the nearest of some thousand cells of the reference, in coordinates in which all its cells are white.

    s(x) = log of the mean of the largest hundredth of d^2, of at least 4 cells
    M(x) = max_u m(x, u)

Of n ordinary pictures that no fit has seen, t is the k-th largest M, k = floor(alpha (n + 1)). A new picture that is
exchangeable with them has P(M > t) <= alpha: in at most a share alpha of ordinary pictures any place is marked (split conformal
on the maximum).

Shapes: cells (D, r, c) of a picture; N pictures, K folds.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.decide.density import GaussianDetector
from vergence.utils.checks import require_within

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PER_PICTURE, MOST = 64, 64_000  # cells that a fit reads of one picture, and of all
SHARE, LEAST = 0.01, 4  # of a picture's cells that its score reads
SHRINKAGE = 1e-4
NEW = -1  # fold of pictures that no fit has seen
BANK = 5_000  # cells that are compared with, at most
STRANGEST = 0.1  # share of the pictures whose cells no fit sees where outliers may be among them
TINY = 1e-300


class CellModel:
    """What scores cells of pictures: a Gaussian for each fold, which has not seen it; or neighbors among clean pictures.

    Args:
        cells: Some cells (n_i, D) of each of N pictures.
        fold: Fold of each picture, (N,).
        clean: Whether all pictures are taken to be ordinary, as those of a reference are. Otherwise each Gaussian is fitted
            twice, the second time without the strangest tenth of the pictures.

    Example:
        >>> random = np.random.default_rng(0)
        >>> cells = [random.normal(size=(20, 3)) for _ in range(50)]
        >>> picture = torch.tensor([[[0.0, 9.0]], [[0.0, 9.0]], [[0.0, 9.0]]])
        >>> [int(CellModel(cells, np.arange(50) % 5, clean=clean).map(picture, 0).argmax()) for clean in (False, True)]
        [1, 1]
    """

    def __init__(self, cells: Sequence[Floats], fold: Ints, *, clean: bool = False) -> None:
        of, x = np.repeat(np.arange(len(cells)), [len(c) for c in cells]), np.concatenate(cells)
        parts = {int(k): fold[of] != k for k in np.unique(fold)} | {NEW: np.ones(len(of), dtype=bool)}
        self.detectors = {k: _fitted(x[rows], of[rows], clean) for k, rows in parts.items() if (k != NEW) is not clean}
        few = {k: x[rows][:: math.ceil(rows.sum() / BANK)] for k, rows in parts.items() if clean and rows.any()}
        self.banks = {k: self._white(some) for k, some in few.items()}

    def map(self, cells: Tensor, fold: int) -> Floats:
        """Returns m (r, c) of the cells (D, r, c) of a picture of a fold; -1 is that of pictures that no fit has seen."""
        x = cells.flatten(1).T.double().numpy()
        if self.banks:
            d = torch.cdist(self._white(x), self.banks.get(fold, self.banks[NEW])).amin(1).square().double().numpy()
        else:
            d = _squared(self.detectors[fold], x)
        return np.asarray(np.log(np.maximum(d, TINY)).reshape(cells.shape[1:]))

    def _white(self, x: Floats) -> Tensor:
        detector = self.detectors[NEW]
        return torch.from_numpy(np.asarray((x - detector.location_) @ detector.root_, dtype=np.float32))


def _fitted(x: Floats, of: Ints, clean: bool) -> GaussianDetector:
    detector = GaussianDetector(shrinkage=SHRINKAGE).fit(x)
    if clean:
        return detector
    d = _squared(detector, x)
    kept, place = np.unique(of, return_inverse=True)
    strangeness = np.zeros(len(kept))
    np.maximum.at(strangeness, place, d)
    usual = strangeness[place] <= np.quantile(strangeness, 1 - STRANGEST)
    return GaussianDetector(shrinkage=SHRINKAGE).fit(x[usual])


def _squared(detector: GaussianDetector, x: Floats) -> Floats:
    return np.asarray(2 * (detector.anomaly_score(x) + detector.log_norm_))


def some_cells(cells: Tensor, pictures: int) -> Floats:
    """Returns evenly spaced cells (n, D) of a picture, of so many pictures: in all, enough for `CellModel`."""
    flat = cells.flatten(1).T
    n = min(len(flat), PER_PICTURE, max(4, MOST // max(1, pictures)))
    return np.asarray(flat[torch.linspace(0, len(flat) - 1, n).round().long()].numpy())


def region_score(m: Floats) -> float:
    """Returns s of a map (r, c).

    Example:
        >>> round(region_score(np.log(np.array([[1.0, 2.0, 3.0, 6.0]]))), 3) == round(float(np.log(3.0)), 3)
        True
    """
    d = np.sort(np.exp(m.ravel()))[::-1]
    return float(np.log(max(d[: max(LEAST, math.ceil(SHARE * d.size))].mean(), TINY)))


def region_threshold(maxima: Floats, mark: float) -> float:
    """Returns t: in at most a share ``mark`` of ordinary pictures any cell lies above it; infinity where n < 1 / mark - 1.

    ``maxima`` (n,) are M of ordinary pictures that no fit has seen; ``mark`` is in (0, 1).

    Example:
        >>> region_threshold(np.arange(19.0), 0.05), region_threshold(np.arange(18.0), 0.05)
        (18.0, inf)
    """
    require_within("(0, 1)", mark=mark)
    k = math.floor(mark * (len(maxima) + 1) * (1 + 1e-12))
    return float(np.sort(maxima)[-k]) if k >= 1 else math.inf


def region_words(m: Floats) -> str:
    """Returns where the largest value of a map lies, in words.

    Example:
        >>> region_words(np.eye(3)[:1])
        'at the left'
    """
    r, c = np.unravel_index(int(m.argmax()), m.shape)
    vertical, horizontal = _third(int(r), m.shape[0], ("top", "", "bottom")), _third(int(c), m.shape[1], ("left", "", "right"))
    where = " ".join(word for word in (vertical, horizontal) if word)
    return f"at the {where}" if where else "in the middle"


def _third(i: int, n: int, words: tuple[str, str, str]) -> str:
    return words[min(2, 3 * i // n)] if n > 1 else ""
