"""Near-duplicates of images by embeddings or thumbnails, and leaks between two folders.

Shapes: N images, M images of another folder, C channels, H x W pixels, h x w cells, D features, P pairs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import to_unit
from vergence.decide.inputs import features_of, images_of, labels_of
from vergence.utils.checks import expect, require_within
from vergence.utils.neighbors import components, nearest_others, similar_pairs

__all__ = [
    "mild_views",
    "near_duplicates",
    "near_groups",
    "similarity_threshold",
    "thumbnail_shape",
    "thumbnails",
]

Ints = npt.NDArray[np.int64]
MOST = 100  # pairs per item, above which a threshold cannot be meant
SIDE = 16  # cells of a thumbnail, at most, in each direction
CELLS = 8  # a side, of the means by which thumbnails are compared
RECALL, DEVIATIONS = 0.95, 4.0  # share of the views to find; robust standard deviations below the median
SAMPLE, FEWEST = 2000, 3  # thumbnails that a threshold comes from, at most and at least
PARTS, FEWEST_OF_PART = 256, 4  # parts that show how near different images are: at most, and images of one at least
LARGEST, FEW = 0.01, 50  # share and number of the images in one group, above both of which they are a kind and no copies


@dataclass(frozen=True)
class Duplicates:
    """Pairs (P, 2) of items that are alike, the most similar first, with the cosine of their features (P,).

    i < j.
    """

    pairs: Ints
    similarity: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True)
class Similarity:
    """The threshold of `similarity_threshold`."""

    threshold: float  # cosine from which two images count as near-duplicates
    recall: float  # share of the views whose cosine with their own image reaches it
    different: float  # cosine of the median image with its nearest other one


def similarity_threshold(features: Any, views: Any) -> Similarity:
    r"""Returns the cosine that tells slightly changed copies of an image from different images, by the images themselves.

    With d = 1 - cosine, the threshold is the smaller distance of two: the one that 95 % of the views have at most to their own
    image, and the one that lies four robust standard deviations of log d below the median of images to their nearest different
    image. Where most images have copies, as frames of a film, both numbers are also taken within random parts, at most 256 of at
    least 4 images, and a fourth as many, which few copies share; the median of log d changes with the logarithm of the number of
    images and is continued to all of them. The larger distance counts.

    The features (N, D) are those of N >= 3 images, a few thousand are enough, and of one changed copy of each (`mild_views`).
    """
    x, y = F.normalize(features_of("features", features).double()), F.normalize(features_of("views", views).double())
    fits = x.shape == y.shape and len(x) >= FEWEST
    expect(fits, f"one view of each of at least {FEWEST} images", f"{tuple(x.shape)} and {tuple(y.shape)}")
    same = (x - y).square().sum(1) / 2  # 1 - cosine, without cancellation
    middle, spread = max(_log_nearest(x, 1), _of_different(x), key=lambda law: law[0] - DEVIATIONS * law[1])
    limit = min(float(same.quantile(RECALL)), math.exp(middle - DEVIATIONS * spread))
    advice = "check the encoder for collapse"
    expect(middle >= math.log(1e-12), "features that differ from image to image", "equal ones", advice)
    return Similarity(1 - limit, float((same <= limit).double().mean()), 1 - math.exp(middle))


def _log_nearest(x: Tensor, parts: int) -> tuple[float, float]:
    """Returns median and robust standard deviation of log(1 - cosine) to the nearest other one of as many parts of unit rows."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(parts)).to(x.device)
    distance = torch.cat([nearest_others(x[part], 1)[0][:, 0] for part in order.tensor_split(parts)])
    log_other = (distance.square() / 2).clamp(min=1e-300).log()
    middle = log_other.median()
    return float(middle), float(1.4826 * (log_other - middle).abs().median())


def _of_different(x: Tensor) -> tuple[float, float]:
    """Returns what `_log_nearest` would of all rows if none had copies, from parts of them; (-inf, 0) for too few rows."""
    many = min(PARTS, len(x) // FEWEST_OF_PART)
    few = many // 4
    if few < 2:
        return -math.inf, 0.0
    (sparse, _), (dense, spread) = _log_nearest(x, many), _log_nearest(x, few)
    return dense + (dense - sparse) * math.log(few) / math.log(many / few), spread


def near_duplicates(features: Any, *, threshold: float) -> Duplicates:
    """Returns pairs of items of one folder with features (N, D) whose cosine is at least that of `similarity_threshold`.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.99, 0.01]])
        >>> near_duplicates(z, threshold=0.99).pairs
        array([[0, 2]])
    """
    return _matches(features_of("features", features), threshold)


def _matches(a: Tensor, threshold: float) -> Duplicates:
    require_within("(0, 1]", threshold=threshold)
    pairs = similar_pairs(F.normalize(a), None, threshold - 4 * torch.finfo(a.dtype).eps)
    return _collected(pairs, MOST * len(a), threshold)


def _collected(blocks: Iterable[tuple[Tensor, Tensor, Tensor]], most: int, threshold: float) -> Duplicates:
    """Returns the pairs of indices i, j with their cosines, the most similar first."""
    pairs, cosines, total = [], [], 0
    for i, j, cosine in blocks:
        pairs.append(torch.stack([i, j], 1).cpu())
        cosines.append(cosine.cpu())
        total += len(i)
        advice = "raise it, or check the encoder for collapse"
        expect(total <= most, "few near-duplicates", f"more than {most:,} pairs at a cosine of {threshold:g}", advice)
    cosine = torch.cat(cosines).double()
    order = cosine.argsort(descending=True, stable=True)
    return Duplicates(torch.cat(pairs)[order].numpy(), cosine[order].clamp(max=1).numpy())


def mild_views(images: Any, generator: torch.Generator | None = None) -> Tensor:
    """Returns a slightly changed copy of each image, as saving it again makes it: cropped, brighter or darker, noisy.

    Up to 4 % of each side is cut off, brightness and contrast change by up to 8 %, and noise has 1 % of the range. The images are
    (N, C, H, W), uint8 or float in [0, 1]; the copies float in [0, 1]. The generator is on the CPU.
    """
    x = to_unit(images_of(images)).float()
    n = len(x)
    r = torch.rand(n, 5, generator=generator).to(x)
    scale = 1 - 0.04 * r[:, 0]
    theta = torch.zeros(n, 2, 3).to(x)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    theta[:, :, 2] = (2 * r[:, 1:3] - 1) * (1 - scale)[:, None]
    x = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), padding_mode="border", align_corners=False)
    brightness, contrast = (0.92 + 0.16 * r[:, i, None, None, None] for i in (3, 4))
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * contrast + mean * brightness
    return (x + 0.01 * torch.randn(x.shape, generator=generator).to(x)).clamp(0, 1)


def thumbnail_shape(shape: tuple[int, ...], side: int = SIDE) -> tuple[int, int, int]:
    """Returns the shape (C, h, w) of the small picture of an image of shape (C, H, W)."""
    channels, height, width = shape
    return channels, min(side, height), min(side, width)


def cell_means(x: Tensor, side: int = SIDE) -> Tensor:
    """Returns means of at most ``side`` x ``side`` cells of images (N, C, H, W) of floats; there may be none."""
    return F.adaptive_avg_pool2d(x, thumbnail_shape(x.shape[1:], side)[1:])


def thumbnails(images: Any) -> Tensor:
    """Returns means of at most 16 x 16 cells of images (N, C, H, W), (N, C, h, w) uint8; see `near_groups`."""
    return (255 * cell_means(to_unit(images_of(images), torch.float32))).round().clamp(0, 255).byte()


def near_groups(images: Any, equal: Any = None) -> Ints:
    """Returns a label for each image, which equal images and near-duplicates share: whole groups belong on one side of a split.

    `thumbnails` are compared by the cosine of 8 x 8 means, less each image's own mean. The least cosine comes from 2,000 of them
    (`similarity_threshold`). Chains join: where a is like b and b like c, all three have one label. A group of more than a
    hundredth of the images, and more than 50, is taken for a kind of image: its members share labels with equal images alone.

    Args:
        images: `thumbnails` (N, C, h, w) of uint8.
        equal: Labels (N,) that equal images share, such as digests of their contents; by default near-duplicates alone join.

    Example:
        >>> x = torch.randint(0, 256, (50, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        >>> x[7] = (0.9 * x[3].float() + 10).byte()
        >>> label = near_groups(x)
        >>> bool(label[7] == label[3]), len(set(label.tolist()))
        (True, 49)
    """
    x = images_of(images)
    content = np.arange(len(x))
    if equal is not None:
        content = np.unique(labels_of("equal", equal, len(x)), return_inverse=True)[1]
    try:
        threshold = _threshold(x)
        pairs = near_duplicates(_means(x), threshold=threshold).pairs
    except ValueError:  # nearly all are equal, or alike
        pairs = np.zeros((0, 2), dtype=np.int64)
    first = np.unique(content, return_index=True)[1][content]
    label = components(np.concatenate([pairs, np.stack([first, np.arange(len(x))], 1)]), len(x))
    is_kind = np.bincount(label) > max(LARGEST * len(x), FEW)
    joined: Ints = np.unique(np.where(is_kind[label], len(x) + content, label), return_inverse=True)[1]
    return joined


def _threshold(x: Tensor) -> float:
    """Returns the cosine of `_means` from which two thumbnails count as near-duplicates."""
    usual = len(x) >= FEWEST and min(x.shape[2:]) >= 2
    expect(usual, f"at least {FEWEST} different thumbnails of at least 2 pixels a side", tuple(x.shape))
    generator = torch.Generator().manual_seed(0)
    part = x[torch.randperm(len(x), generator=generator)[:SAMPLE].to(x.device)]
    return round(similarity_threshold(_means(part), _means(mild_views(part, generator))).threshold, 6)


def _means(x: Tensor) -> Tensor:
    """Returns 8 x 8 means of thumbnails, (N, C 64), less each image's own mean, in float64."""
    x = x.double() if x.dtype == torch.uint8 else 255 * x.double()
    y = cell_means(x, CELLS).flatten(1)
    return y - y.mean(1, keepdim=True)
