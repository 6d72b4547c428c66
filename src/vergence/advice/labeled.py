"""Items as they are next to joint embedding in closed form, by a linear probe of held-out items with labels."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.advice.directions import Reduced
from vergence.data.items import spaced
from vergence.data.pixels import to_unit

__all__ = ["Probed", "probed"]

FOLDS, MOST, FEWEST, RARE = 3, 2_000, 50, 10  # labeled items, at most and at least; items of the second class, at least
PIXELS, PENALTIES = 32, np.logspace(-4, 3, 8)  # side of images as they are, at most; of the ridge, for each item


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Accuracies of a linear probe of held-out items, in [0, 1]."""

    items: int  # labeled items that it was tested on, in three folds
    as_they_are: float  # vectors, or images of at most 32 pixels per side
    joint_embedding: float  # k components in closed form
    pca: float  # as many principal components
    interval: tuple[float, float]  # 95 % interval of as_they_are - joint_embedding

    def __str__(self) -> str:
        """Returns what follows, in sentences."""
        a, b, c, low, high = (100 * x for x in (self.as_they_are, self.joint_embedding, self.pca, *self.interval))
        numbers = f"As they are {a:.1f} %, joint embedding in closed form {b:.1f} %, PCA {c:.1f} %"
        found = f"{numbers} (linear probe, {self.items:,} held-out items with labels)."
        if low <= 0 <= high:
            return f"{found} The first two differ by {low:.1f} to {high:.1f} points (95 % interval): no clear winner."
        if high < 0:
            return f"{found} Joint embedding is better than as they are, by {-high:.1f} to {-low:.1f} points (95 % interval)."
        return f"{found} As they are is better than joint embedding, by {low:.1f} to {high:.1f} points (95 % interval)."


def probed(reading: Reduced, labels: Tensor | None, k: int) -> Probed | None:
    """Returns the accuracies; None where labels are too few.

    The closed form of a fold is solved without its items. The principal directions in which it is solved are those of all.

    Args:
        reading: The items.
        labels: Classes of the items, -1 where unknown, (N,).
        k: Components of joint embedding and of PCA.
    """
    rows = torch.tensor([]) if labels is None else (labels >= 0).nonzero().flatten()
    if labels is None or len(rows) < FEWEST:
        return None
    rows = rows[spaced(len(rows), MOST)]
    counts = labels[rows].unique(return_counts=True)[1].sort().values
    if len(counts) < 2 or counts[-2] < RARE:
        return None
    index = reading.index[rows].split(64)
    raw = torch.cat([_plain(x) for _, x in reading.items.stream(iter(index))]).double().numpy()
    y, fold = labels[rows].numpy(), np.random.default_rng(0).permutation(len(rows)) % FOLDS
    right = np.zeros((3, len(y)), dtype=bool)
    for f in range(FOLDS):
        model = reading.solved(part=rows[torch.from_numpy(fold != f)])
        if model is None:
            return None
        codes = raw, reading.codes(model, k)[rows].numpy(), reading.x[rows, :k].numpy()
        for found, z in zip(right, codes, strict=True):
            found[fold == f] = _predicted(z[fold != f], y[fold != f], z[fold == f]) == y[fold == f]
    a, b, pca = right.mean(1).tolist()
    return Probed(items=len(y), as_they_are=a, joint_embedding=b, pca=pca, interval=paired_interval(right[0], right[1]))


def paired_interval(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Returns the 95 % interval of the difference of two accuracies on the same items, from what each gets right, (N,) of bool.

    It is Bonett and Price's of 2012, which holds for few items too.
    """
    n, first, second = len(a) + 2, (a & ~b).sum() + 1, (b & ~a).sum() + 1
    d = (first - second) / n
    reach = 1.96 * math.sqrt(((first + second) / n - d**2) / n)
    return float(d - reach), float(d + reach)


def _plain(x: Tensor) -> Tensor:
    """Returns items (B, ...) as they are, (B, D): images in [0, 1] averaged to at most 32 pixels per side."""
    if x.ndim == 4:
        x = to_unit(x)
        x = F.adaptive_avg_pool2d(x, PIXELS) if max(x.shape[2:]) > PIXELS else x
    return x.flatten(1)


def _predicted(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Returns the classes (M,) that a ridge classifier of standardized features predicts; its penalty leaves each item out."""
    from sklearn.linear_model import RidgeClassifierCV

    mean, std = train.mean(0), train.std(0)
    train, test = ((x - mean) / np.where(std > 1e-9 * abs(mean), std, np.inf) for x in (train, test))
    found: np.ndarray = RidgeClassifierCV(len(train) * PENALTIES).fit(train, labels).predict(test)
    return found
