r"""What differs from the nearest reference image, for parts that are photographed in one position.

Of an image a and each of a few candidates b, the reference images whose 32 x 32 pixels correlate most with it, in gray values:
b is shifted by whole pixels (phase correlation: Kuglin, Hines, The phase correlation image alignment method, 1975); its light and
what is left of the shift are fitted by least squares, b' = g b + h + u . grad b (a step of Lucas, Kanade, 1981). Of the candidate
with the largest correlation the difference and its score are

    m = mean over 5 x 5 pixels of |a - b'|,    t = log of the mean of the largest 20 values of m.

Shapes: M images, n reference images, C candidates, K folds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage, stats
from sklearn.preprocessing import normalize

from vergence.data.image_list import LoadedImage
from vergence.images.features import Row, SmallImages, on_grid
from vergence.utils.dtypes import Bytes, Floats, Ints

SIDE = 256  # pixels of both sides, at most
NEAREST, BLUR, LARGEST = 3, 5, 20  # candidates; pixels of the mean; values of a score
FARTHEST, BORDER = 0.05, 0.03  # of a side: largest shift; what is left out at each border
STRETCHED = 1.1  # largest ratio of aspects of images that are compared
PLAIN = 1.0  # variance in gray levels, up to which an image correlates with none
BLOCK = 1 << 24  # numbers that are held at a time
CAUTION, SPREAD = 5, 0.1  # degrees of freedom of the law of normal differences; their deviation relative to the median, at least


def candidates(small: Bytes, fold: Ints, reference: Bytes, reference_fold: Ints) -> Ints:
    """Returns the reference images that each image is compared with, (M, 4): the three nearest, and one of another fold.

    ``small`` (M, F) and ``reference`` (n, F) are gray pixels; an image of a fold 0..K-1 is compared with those of other folds.
    """
    a, b = (normalize(x - x.mean(1, keepdims=True, dtype=np.float32)) for x in (small, reference))
    rows, found = max(1, BLOCK // len(b)), []
    for start in range(0, len(a), rows):
        near = a[start : start + rows] @ b.T
        own = fold[start : start + rows, None]
        near = np.where((own == reference_fold) & (own >= 0), -np.inf, near)
        first = np.argsort(-near, axis=1, kind="stable")[:, :NEAREST]
        other = np.where(reference_fold == reference_fold[first[:, :1]], -np.inf, near).argmax(1)
        found.append(np.c_[first, other])
    return np.concatenate(found)


@dataclass(frozen=True)
class DifferencePass:
    """Scores (K,) of the difference of an image to its candidates, without each fold, its correlation, and its heatmap."""

    reference: SmallImages  # reference images
    compared: Mapping[int, Sequence[int]]  # numbers of an image's candidates, by its digest
    fold: Mapping[int, int]  # fold of each reference image by its number
    folds: int  # K

    def __call__(self, image: LoadedImage) -> Row:
        """Returns the row of an image."""
        a = _gray(image.pixels)
        each = [(j, *difference(a, _gray(self.reference.read(j).pixels))) for j in self.compared[image.digest]]
        best = max(each, key=lambda one: one[1])
        scores = []
        for k in range(self.folds):
            others = [one for one in each if self.fold[one[0]] != k] or each
            m = max(others, key=lambda one: one[1])[2].ravel()
            scores.append(float(np.log(np.partition(m, -LARGEST)[-LARGEST:].mean() + 1e-2)) if m.size >= LARGEST else 0.0)
        heatmap = np.log(np.maximum(on_grid(best[2]), 1e-2))
        return {"difference": np.array(scores), "correlation": best[1], "heatmap": heatmap, "nearest": np.int64(best[0])}


def difference(a: Floats, b: Floats) -> tuple[float, Floats]:
    """Returns the correlation of two gray images (H, W) after registration, and m in the place of the first one."""
    ratio = (a.shape[0] / a.shape[1]) / (b.shape[0] / b.shape[1])
    if not 1 / STRETCHED <= ratio <= STRETCHED:
        return -1.0, np.zeros(a.shape)
    if a.shape != b.shape:
        b = ndimage.zoom(b, (a.shape[0] / b.shape[0], a.shape[1] / b.shape[1]), order=1, grid_mode=True, mode="nearest")
    b = np.roll(b, _shift(a, b), (0, 1))
    inner = tuple(slice(edge := max(2, round(BORDER * side)), side - edge) for side in a.shape)
    x = a[inner].ravel()
    terms = np.stack([one[inner].ravel() for one in (b, np.ones(b.shape), *np.gradient(b))], 1)
    rest = x - terms @ np.linalg.lstsq(terms.T @ terms, terms.T @ x, rcond=None)[0]
    r = math.sqrt(max(0.0, 1 - float(rest.var()) / float(x.var()))) if float(x.var()) > PLAIN else 0.0
    m = np.zeros(a.shape)
    m[inner] = ndimage.uniform_filter(np.abs(rest.reshape(a[inner].shape)), BLUR)
    return r, m


def _shift(a: Floats, b: Floats) -> tuple[int, int]:
    """Returns by how many rows and columns b has to be moved to lie on a; 0 where that is far."""
    product = np.fft.rfft2(a - a.mean()) * np.fft.rfft2(b - b.mean()).conj()
    size = np.abs(product)
    peak = np.fft.irfft2(product / (size + 1e-3 * size.mean() + 1e-12), s=a.shape)
    place = np.unravel_index(int(peak.argmax()), peak.shape)
    move = [int(v) if v <= n // 2 else int(v) - n for v, n in zip(place, a.shape, strict=True)]
    near = all(abs(v) <= FARTHEST * n for v, n in zip(move, a.shape, strict=True))
    return (move[0], move[1]) if near else (0, 0)


def _gray(pixels: Bytes) -> Floats:
    """Returns the gray values (H, W) of an image, with sides of at most 256 pixels."""
    from PIL import Image

    gray = pixels.astype(np.float32).mean(0)
    height, width = gray.shape
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(scale * width)), max(1, round(scale * height))
    return np.asarray(Image.fromarray(gray).resize(size, Image.Resampling.BOX) if scale < 1 else gray, dtype=np.float64)


def twin_p_values(t: Floats) -> tuple[Floats, Floats]:
    """Returns robust deviations (M,) of mean differences from their median, and their p-values if most images are normal.

    The deviation is that of the lower half, which anomalies leave as it is; the law is a t distribution of 5 degrees of freedom.
    This is an assumption: where each reference image shows a part of its own, none of them can calibrate.
    """
    low, middle = np.quantile(t, [0.25, 0.5])
    z = (t - middle) / max((middle - low) / 0.6745, SPREAD * middle, 1e-3)
    return np.asarray(z), np.asarray(stats.t.sf(z, CAUTION))
