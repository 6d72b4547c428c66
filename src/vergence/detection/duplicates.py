"""Near-duplicates of images by perceptual hash and embedding, and leaks between two folders.

Shapes: N images, M images of another folder, C channels, H x W pixels, D features, P pairs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.pixels import luma, resize, to_unit
from vergence.detection.parts.kinds import images_of, numeric
from vergence.detection.parts.search import components, features_of, nearest_others, similar_pairs
from vergence.utils.checks import require_at_least, require_count, require_within

__all__ = [
    "Duplicates",
    "Similarity",
    "grouped",
    "leaks",
    "mild_views",
    "near_duplicates",
    "perceptual_hash",
    "similarity_threshold",
]

Ints = npt.NDArray[np.int64]
BITS = 12  # of 64 by which the hashes of near-duplicates may differ
MOST = 100  # pairs per item, above which a threshold cannot be meant
FEWEST = 3  # images that a threshold comes from
PARTS, FEWEST_OF_PART = 256, 4  # parts that show how near different images are: at most, and images of one at least


@dataclass(frozen=True)
class Duplicates:
    """Pairs of items that are alike, and what they have in common.

    Attributes:
        pairs: (P, 2) int64, the most similar first; within one folder i < j, between two the index in each.
        similarity: (P,), cosine of the features; 1 for exact duplicates.
        bits: (P,), differing bits of the perceptual hashes; 0 where none were given.
    """

    pairs: Ints
    similarity: npt.NDArray[np.float64]
    bits: Ints

    def groups(self, n: int) -> list[Ints]:
        """Returns the groups of a folder of n items, see `grouped`."""
        return grouped(self.pairs, n)

    def __len__(self) -> int:
        return len(self.pairs)


def grouped(pairs: Any, n: int) -> list[Ints]:
    """Returns the groups that pairs join, the largest first, each in the items' order: keep the first of each.

    Args:
        pairs: (P, 2), indices below n.
        n: Items.

    Example:
        >>> grouped([(0, 3), (3, 5), (1, 2)], 6)
        [array([0, 3, 5]), array([1, 2])]
    """
    require_count(0, n=n)
    given = numeric("pairs", pairs)
    if given.numel() and (given.ndim != 2 or given.shape[1] != 2):
        raise ValueError(f"expected pairs of indices (P, 2), found shape {tuple(given.shape)}")
    edges = given.long().cpu().numpy().reshape(-1, 2)
    if len(edges) and not 0 <= edges.min() <= edges.max() < n:
        raise ValueError(f"expected pairs of indices below {n}, found {edges.min()} to {edges.max()}")
    item, inverse = np.unique(edges, return_inverse=True)  # those that are in a pair
    label = components(inverse.reshape(-1, 2), len(item))
    order = np.argsort(label, kind="stable")
    groups = np.split(item[order], np.flatnonzero(np.diff(label[order])) + 1)
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))


def perceptual_hash(images: Any, *, block: int = 1024) -> Tensor:
    """Returns a hash of 64 bits that small changes of an image hardly alter: signs of its lowest frequencies.

    The luminance is resized to 32 x 32; of its cosine transform the 8 x 8 lowest frequencies, without the mean but with one more,
    are compared with their median (the widely used "pHash"; Zauner, Implementation and benchmarking of perceptual image hash
    functions, 2010).

    Args:
        images: (N, C, H, W), uint8 or float, C = 1 or 3.
        block: Images in a block, which bounds the memory.

    Returns:
        (N, 64) of bool, on the images' device.

    Example:
        >>> image = torch.arange(3 * 40 * 40).reshape(1, 3, 40, 40) % 251
        >>> int((perceptual_hash(image) != perceptual_hash(0.9 * image + 3)).sum())
        0
    """
    x = images_of(images)
    return torch.cat([_hash(resize(luma(part.float()), 32, 32)[:, 0]) for part in x.split(block)])


def _hash(light: Tensor) -> Tensor:
    k, t = torch.arange(9, device=light.device)[:, None], torch.arange(32, device=light.device)
    cosines = torch.cos(math.pi / 32 * k * (t + 0.5)).to(light)
    spectrum = cosines @ light @ cosines.T
    lowest = torch.cat([spectrum[:, :8, :8].flatten(1)[:, 1:], spectrum[:, 0, 8:9]], 1)
    rounding = 1e-5 * spectrum[:, 0, :1].abs()
    return lowest > lowest.median(1, keepdim=True).values + rounding


def mild_views(images: Any, generator: torch.Generator | None = None) -> Tensor:
    """Returns a slightly changed copy of each image, as saving it again makes it: cropped, brighter or darker, noisy.

    Up to 4 % of each side is cut off, brightness changes by up to 8 %, contrast by up to 8 %, and noise has 1 % of the range.

    Args:
        images: (N, C, H, W), uint8, or float in [0, 1].
        generator: Randomness, on the CPU; torch's own by default.

    Returns:
        (N, C, H, W), float in [0, 1].
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


@dataclass(frozen=True)
class Similarity:
    """The threshold of `similarity_threshold`.

    Attributes:
        threshold: Cosine from which two images count as near-duplicates.
        found: Share of the views whose cosine with their own image reaches it.
        different: Cosine of the median image with its nearest other one.
    """

    threshold: float
    found: float
    different: float

    def __str__(self) -> str:
        """Returns the threshold in one sentence."""
        return (
            f"images with a cosine of at least {self.threshold:.4f} count as near-duplicates: {self.found:.0%} of slightly "
            f"changed copies reach it; the median image has {self.different:.4f} with its nearest other one"
        )


def similarity_threshold(features: Any, views: Any, *, share: float = 0.95, deviations: float = 4.0) -> Similarity:
    r"""Returns the cosine that tells slightly changed copies of an image from different images, by the images themselves.

    With d = 1 - cosine, the threshold is the smaller distance of two: the one that a share of the views have at most to their own
    image, and the one that lies some robust standard deviations of log d below the median of images to their nearest different
    image. Where most images have copies, as the frames of a film do, the nearest other image is one of these. So both numbers
    are also taken within random parts, at most 256 of at least 4 images, and a fourth as many, which few copies share; the median
    of log d changes with the logarithm of the number of images and is continued to all of them. The larger distance counts.
    Groups of up to 20 copies among 3,000 images, of 10 among 400 and of 3 among 100 hardly move it (``docs/detection.md``).

    Args:
        features: Features (N, D) of images, N >= 3; a few thousand are enough.
        views: Features (N, D) of one changed copy of each (`mild_views`).
        share: Share of the views to find, in (0, 1).
        deviations: Robust standard deviations below the median.

    Raises:
        ValueError: The features do not fit, or all are equal.
    """
    x, y = F.normalize(features_of("features", features).double()), F.normalize(features_of("views", views).double())
    if x.shape != y.shape or len(x) < FEWEST:
        raise ValueError(f"expected one view of each of at least {FEWEST} images, found {tuple(x.shape)} and {tuple(y.shape)}")
    require_within("(0, 1)", share=share)
    require_at_least(0, deviations=deviations)
    same = (x - y).square().sum(1) / 2  # 1 - cosine, without cancellation
    middle, spread = max(_log_nearest(x, 1), _of_different(x), key=lambda one: one[0] - deviations * one[1])
    limit = min(float(same.quantile(share)), math.exp(middle - deviations * spread))
    if middle < math.log(1e-12):
        raise ValueError("expected features that differ from image to image, found equal ones: check the encoder for collapse")
    return Similarity(1 - limit, float((same <= limit).double().mean()), 1 - math.exp(middle))


def _log_nearest(x: Tensor, parts: int) -> tuple[float, float]:
    """Returns median and robust standard deviation of log(1 - cosine) to the nearest other one of as many parts of unit rows."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(parts)).to(x.device)
    found = torch.cat([nearest_others(x[part], 1)[0][:, 0] for part in order.tensor_split(parts)])
    log_other = (found.square() / 2).clamp(min=1e-300).log()
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


def near_duplicates(features: Any, hashes: Any = None, *, threshold: float, bits: int = BITS) -> Duplicates:
    """Returns pairs of images of one folder that are alike in the embedding and in the perceptual hash.

    Args:
        features: Features (N, D), an array or tensor.
        hashes: `perceptual_hash` of the images, (N, 64); by default only the features are compared.
        threshold: Least cosine, of `similarity_threshold`.
        bits: Most differing bits of the hashes, of 64; those of different images differ by about 32.

    Raises:
        ValueError: The inputs do not fit, or the threshold joins nearly everything.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.99, 0.01]])
        >>> near_duplicates(z, threshold=0.99).pairs
        array([[0, 2]])
    """
    return _matches(features_of("features", features), None, (hashes, None), threshold, bits)


def leaks(train: Any, test: Any, hashes: tuple[Any, Any] | None = None, *, threshold: float, bits: int = BITS) -> Duplicates:
    """Returns pairs of near-duplicates between two folders: test items that are in the training folder.

    Args:
        train: Features (N, D).
        test: Features (M, D) of the same encoder.
        hashes: `perceptual_hash` of both, (N, 64) and (M, 64).
        threshold: As in `near_duplicates`.
        bits: As in `near_duplicates`.

    Returns:
        Pairs (index in ``train``, index in ``test``).

    Example:
        >>> leaks(torch.eye(3), torch.tensor([[0.0, 2.0, 0.0]]), threshold=0.99).pairs
        array([[1, 0]])
    """
    a, b = features_of("train", train), features_of("test", test)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"expected features of one encoder, found {a.shape[1]} and {b.shape[1]} numbers an item")
    return _matches(a, b.to(a), hashes or (None, None), threshold, bits)


def _matches(a: Tensor, b: Tensor | None, hashes: tuple[Any, Any], threshold: float, bits: int) -> Duplicates:
    require_within("(0, 1]", threshold=threshold)
    require_count(0, bits=bits)
    differing = _differing(hashes[0], hashes[0] if b is None else hashes[1], len(a), len(a if b is None else b))
    most = MOST * (len(a) + (0 if b is None else len(b)))
    unit = F.normalize(a), None if b is None else F.normalize(b)
    pairs, similarities, counts, total = [], [], [], 0
    for i, j, similarity in similar_pairs(*unit, threshold - 4 * torch.finfo(a.dtype).eps):
        count = differing(i, j)
        near = count <= bits
        pairs.append(torch.stack([i[near], j[near]], 1).cpu())
        similarities.append(similarity[near].cpu())
        counts.append(count[near].cpu())
        total += len(pairs[-1])
        if total > most:
            raise ValueError(
                f"expected few near-duplicates, found more than {most:,} pairs at a cosine of {threshold:g}: raise it, "
                "or check the encoder for collapse"
            )
    cosine = torch.cat(similarities).double()
    order = cosine.argsort(descending=True, stable=True)
    return Duplicates(torch.cat(pairs)[order].numpy(), cosine[order].clamp(max=1).numpy(), torch.cat(counts)[order].numpy())


def _differing(a: Any, b: Any, n: int, m: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the function from pairs of indices to the number of differing bits; 0 without hashes."""
    if a is None or b is None:
        return lambda i, j: torch.zeros_like(i)
    x, y = numeric("hashes", a), numeric("hashes", b)
    if x.shape != (n, 64) or y.shape != (m, 64):
        raise ValueError(f"expected hashes ({n}, 64) and ({m}, 64), found {tuple(x.shape)} and {tuple(y.shape)}")
    return lambda i, j: (x[i.to(x.device)] != y[j.to(y.device)]).sum(1).to(i.device)
