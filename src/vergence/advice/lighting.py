"""Two groups of images whose light falls off differently, as of two cameras or lamps; not objects on an empty ground."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Lit", "class_share", "lit"]

SIDE, BRIGHT, VALID = 16, (0.06, 0.98), 0.5  # pixels of a side; usable brightness; share of pairs of pixels that have it
USED, FEWEST = 0.8, 200  # share of the images that have so many pairs, and their number, at least
TAILS, STEPS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0), 60  # degrees of freedom; steps of the EM algorithm
LIKELY, SMALLEST, APART = 8.0, 0.2, 0.15  # gain of log-likelihood; smaller group's share; difference of the gradients
BY_CLASSES = 0.5  # of a group's errors that classes take away: then it is no nuisance


@dataclass(frozen=True, kw_only=True)
class Lit:
    """Two gradients of light among the images."""

    axis: str  # ``rows``: from the top to the bottom; ``columns``: from left to right
    gradients: tuple[float, float]  # of both groups: logarithm of brightness at the end over that at the beginning
    share: float  # share of the images in the second group, in (0, 1)


def lit(x: Tensor, labels: Tensor | None = None) -> list[Lit]:
    """Returns the gradients of light that only a group of images (N, C, H, W) in [0, 1] has; none that classes (N,) explain.

    The gradient of an image is the median of the changes from pixel to pixel, of the logarithm: most pixels are no edges. A
    mixture of two Student distributions of one scale has to describe the images much better than one does.

    Example:
        >>> waves = 0.1 * torch.rand(400, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> x = 0.4 + waves + 0.02 * torch.arange(16) * (torch.arange(400) % 2)[:, None, None, None]
        >>> [(found.axis, found.share) for found in lit(x)]
        [('columns', 0.5)]
    """
    found = []
    for axis, name in ((1, "rows"), (2, "columns")):
        values, used = _gradients(x, axis)
        if used.sum() < max(FEWEST, USED * len(x)):
            continue
        one, two = (max((_mixture(values[used], k, nu) for nu in TAILS), key=lambda fit: fit[0]) for k in (1, 2))
        second, (low, high) = two[2][:, 1] > 0.5, two[1].tolist()
        share = float(two[2][:, 1].mean())
        if two[0] - one[0] < LIKELY or min(share, 1 - share) < SMALLEST or abs(high - low) < APART:
            continue
        if labels is None or class_share(second, labels.numpy()[used]) < BY_CLASSES:
            found.append(Lit(axis=name, gradients=(round(low, 2), round(high, 2)), share=round(share, 2)))
    return found


def _gradients(x: Tensor, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the gradient of each image along an axis (N,), NaN where unknown, and whether enough pixels give it."""
    y = F.adaptive_avg_pool2d(x, (min(SIDE, x.shape[2]), min(SIDE, x.shape[3]))).mean(1)
    logs = y.masked_fill((y < BRIGHT[0]) | (y > BRIGHT[1]), math.nan).log()
    steps = logs.diff(dim=axis).flatten(1) * (y.shape[axis] - 1)
    return torch.nanmedian(steps, 1).values.double().numpy(), (steps.isfinite().float().mean(1) >= VALID).numpy()


def _mixture(x: np.ndarray, k: int, nu: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns log-likelihood, centers (k,) and memberships (N, k) of a mixture of Student distributions of one scale."""
    center, share = np.quantile(x, [0.5] if k == 1 else [0.25, 0.75]), np.full(k, 1 / k)
    scale = max(1e-3, float(np.median(abs(x - np.median(x)))))
    constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - math.log(nu * math.pi) / 2
    for _ in range(STEPS):
        square = ((x[:, None] - center) / scale) ** 2
        logs = np.log(share) + constant - math.log(scale) - (nu + 1) / 2 * np.log1p(square / nu)
        total = np.logaddexp.reduce(logs, 1)
        member = np.exp(logs - total[:, None])
        weight = member * (nu + 1) / (nu + square)
        share, center = member.mean(0).clip(1e-6), (weight * x[:, None]).sum(0) / weight.sum(0)
        scale = max(1e-3, float(np.sqrt((weight * (x[:, None] - center) ** 2).sum() / len(x))))
    return float(total.sum()), center, member


def class_share(values: np.ndarray, labels: np.ndarray) -> float:
    """Returns how many of the errors of guessing values (N,) go away if classes (N,) are known: Goodman and Kruskal's lambda.

    Items of the label -1 are left out.

    Example:
        >>> class_share(np.array([0, 0, 1, 1]), np.array([5, 5, 6, 7]))
        1.0
    """
    values, labels = np.unique(values[labels >= 0], return_inverse=True)[1], labels[labels >= 0]
    errors = len(values) - np.bincount(values, minlength=1).max()
    within = sum(np.bincount(values[labels == label]).max() for label in np.unique(labels))
    return float(1 - (len(values) - within) / errors) if errors else 0.0
