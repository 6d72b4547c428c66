"""Near-duplicates of images by embeddings or thumbnails, and leaks between two folders.

Shapes: N images, M images of another folder, C channels, H x W pixels, h x w cells, D features, P pairs.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import to_unit
from vergence.detection.inputs import features_of, images_of, labels_of
from vergence.utils.checks import expect, require_within
from vergence.utils.neighbors import components, nearest_others, similar_pairs

__all__ = [
    "leaks",
    "mild_views",
    "near_duplicates",
    "near_groups",
    "similarity_threshold",
    "thumbnail_leaks",
    "thumbnail_shape",
    "thumbnails",
]

Ints = npt.NDArray[np.int64]
CANDIDATES = 1 << 16  # pairs of thumbnails that are compared in all positions at a time
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

    Within one folder i < j, between two a pair is the index in each.
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
    return _matches(features_of("features", features), None, threshold)


def leaks(train: Any, test: Any, *, threshold: float) -> Duplicates:
    """Returns pairs of near-duplicates between two folders: test items that are in the training folder.

    The features (N, D) and (M, D) are those of one encoder, and the threshold is as in `near_duplicates`.

    Example:
        >>> leaks(torch.eye(3), torch.tensor([[0.0, 2.0, 0.0]]), threshold=0.99).pairs
        array([[1, 0]])
    """
    a, b = features_of("train", train), features_of("test", test)
    expect(a.shape[1] == b.shape[1], "features of one encoder", f"{a.shape[1]} and {b.shape[1]} numbers an item")
    return _matches(a, b.to(a), threshold)


def _matches(a: Tensor, b: Tensor | None, threshold: float) -> Duplicates:
    require_within("(0, 1]", threshold=threshold)
    pairs = similar_pairs(F.normalize(a), None if b is None else F.normalize(b), threshold - 4 * torch.finfo(a.dtype).eps)
    return _collected(pairs, MOST * (len(a) + (0 if b is None else len(b))), threshold)


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


def positions(x: Tensor) -> Iterator[Tensor]:
    """Yields images (N, C, H, W) as they are, turned by quarters, and the same mirrored: eight times if square, else four."""
    quarters = range(4) if x.shape[-2] == x.shape[-1] else (0, 2)
    for image in (x, x.flip(-1)):
        for k in quarters:
            yield image.rot90(k, (-2, -1))


def thumbnails(images: Any) -> Tensor:
    """Returns means of at most 16 x 16 cells of images (N, C, H, W), (N, C, h, w) uint8; see `near_groups`."""
    return (255 * cell_means(to_unit(images_of(images), torch.float32))).round().clamp(0, 255).byte()


def near_groups(images: Any, equal: Any = None, *, turned: bool = False) -> Ints:
    """Returns a label for each image, which equal images and near-duplicates share: whole groups belong on one side of a split.

    `thumbnails` are compared by the cosine of 8 x 8 means, less each image's own mean. The least cosine comes from 2,000 of them
    (`similarity_threshold`). Chains join: where a is like b and b like c, all three have one label. A group of more than a
    hundredth of the images, and more than 50, is taken for a kind of image: its members share labels with equal images alone.

    Args:
        images: `thumbnails` (N, C, h, w) of uint8.
        equal: Labels (N,) that equal images share, such as digests of their contents; by default near-duplicates alone join.
        turned: Whether mirrored and turned images are near-duplicates, too: by quarters if they are square, else by half.

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
        pairs = (_turned(x, None, threshold) if turned else near_duplicates(_means(x), threshold=threshold)).pairs
    except ValueError:  # nearly all are equal, or alike
        pairs = np.zeros((0, 2), dtype=np.int64)
    first = np.unique(content, return_index=True)[1][content]
    label = components(np.concatenate([pairs, np.stack([first, np.arange(len(x))], 1)]), len(x))
    is_kind = np.bincount(label) > max(LARGEST * len(x), FEW)
    joined: Ints = np.unique(np.where(is_kind[label], len(x) + content, label), return_inverse=True)[1]
    return joined


def thumbnail_leaks(train: Any, test: Any, *, turned: bool = False) -> Duplicates:
    """Returns pairs of copies and near-duplicates between the images of two folders, compared as in `near_groups`.

    The cosine is the larger one of those that 2,000 thumbnails of each folder give, so that it does not matter how many images
    the folders share; folders of less than 3 different images give none.

    Of the `thumbnails` (N, C, h, w) and (M, C, h, w) the pairs are (index in ``train``, index in ``test``).

    Example:
        >>> x = torch.randint(0, 256, (60, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        >>> y = (0.9 * x[50:].float() + 10).byte()
        >>> thumbnail_leaks(x[:51], y).pairs
        array([[50,  0]])
    """
    x, y = images_of(train), images_of(test)
    expect(x.shape[1:] == y.shape[1:], "thumbnails of one shape", f"{tuple(x.shape[1:])} and {tuple(y.shape[1:])}")
    folders = [images for images in (_different(x), _different(y)) if len(images) >= FEWEST]
    threshold = max(_threshold(images) for images in folders or [_different(torch.cat([x, y]))])
    return _turned(x, y, threshold) if turned else leaks(_means(x), _means(y), threshold=threshold)


def _different(x: Tensor) -> Tensor:
    """Returns the thumbnails without those that equal an earlier one."""
    first = np.unique(x.flatten(1).cpu().numpy(), axis=0, return_index=True)[1]
    return x[torch.from_numpy(np.sort(first)).to(x.device)]


def _turned(x: Tensor, y: Tensor | None, threshold: float) -> Duplicates:
    r"""Returns the pairs of near-duplicates between thumbnails x and those of y, or i < j of x, in any position of the second.

    Each unit vector a is its mean over the positions, P a, and a rest of length r. In every position of b

        a . b <= P a . P b + r_a r_b,

    so one search among the vectors (P a, r_a) finds all candidates.
    """
    a = [F.normalize(_means(z)) for z in positions(x)]
    b = a if y is None else [F.normalize(_means(z)) for z in positions(y)]
    least = threshold - 4 * torch.finfo(a[0].dtype).eps

    def compared() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for first, second, _ in similar_pairs(_of_any_position(a), None if y is None else _of_any_position(b), least):
            for i, j in zip(first.split(CANDIDATES), second.split(CANDIDATES), strict=True):
                cosine = torch.stack([(a[0][i] * v[j]).sum(1) for v in b]).max(0).values
                near = cosine >= least
                yield i[near], j[near], cosine[near]

    return _collected(compared(), MOST * (len(x) + (0 if y is None else len(y))), threshold)


def _of_any_position(vectors: list[Tensor]) -> Tensor:
    """Returns the means (N, D) of unit vectors over the positions, and the length of the rest: unit vectors (N, D + 1).

    An image of one color, whose vector is zero, stays zero.
    """
    mean = torch.stack(vectors).mean(0)
    rest = vectors[0].square().sum(1, keepdim=True) - mean.square().sum(1, keepdim=True)
    return torch.cat([mean, rest.clamp(min=0).sqrt()], 1)


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
