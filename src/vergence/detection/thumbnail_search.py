"""Near-duplicates of images by thumbnails alone, mirrored and turned ones, too, in one folder and between two.

Shapes: N images, M images of another folder, C channels, H x W pixels, h x w cells of a thumbnail, P pairs.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.data.pixels import to_unit
from vergence.detection.duplicates import Duplicates, leaks, mild_views, near_duplicates, perceptual_hash, similarity_threshold
from vergence.detection.parts.kinds import images_of, labels_of
from vergence.detection.parts.search import components
from vergence.detection.parts.thumbnails import cell_means, positions
from vergence.utils.checks import require_count

__all__ = ["near_groups", "thumbnail_leaks", "thumbnails"]

Ints = npt.NDArray[np.int64]
CELLS = 8  # a side, of the means by which thumbnails are compared
SAMPLE, FEWEST = 2000, 3  # thumbnails that a threshold comes from, at most and at least
LARGEST, FEW = 0.01, 50  # share and number of the images in one group, above both of which they are a kind and no copies


def thumbnails(images: Any) -> Tensor:
    """Returns means of at most 16 x 16 cells of images, (N, C, h, w) uint8; see `near_groups`.

    Args:
        images: (N, C, H, W) with C = 1 or 3, uint8 or float in [0, 1].
    """
    return (255 * cell_means(to_unit(images_of(images), torch.float32))).round().clamp(0, 255).byte()


def near_groups(images: Any, equal: Any = None, *, turned: bool = False, random_state: int = 0) -> Ints:
    """Returns a label for each image, which equal images and near-duplicates share: whole groups belong on one side of a split.

    `thumbnails` are compared by the cosine of 8 x 8 means, less each image's own mean, and by their `perceptual_hash`. The cosine
    comes from 2,000 of them (`similarity_threshold`). Chains join: where a is like b and b like c, all three have one label. A
    group of more than a hundredth of the images, and more than 50, is taken for a kind of image, such as a digit, not for copies;
    its members then share labels with equal images alone.

    Args:
        images: `thumbnails` (N, C, h, w) of uint8.
        equal: Labels (N,) that equal images share, such as digests of their contents; by default near-duplicates alone join.
        turned: Whether mirrored and turned images are near-duplicates, too: by quarters if they are square, else by half.
        random_state: Seed of the sample and its views.

    Returns:
        (N,) int64, from 0.

    Example:
        >>> x = torch.randint(0, 256, (50, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        >>> x[7] = (0.9 * x[3].float() + 10).byte()
        >>> label = near_groups(x)
        >>> bool(label[7] == label[3]), len(set(label.tolist()))
        (True, 49)
    """
    require_count(0, random_state=random_state)
    x = images_of(images)
    own = np.arange(len(x))
    if equal is not None:
        own = np.unique(labels_of("equal", equal, "given", len(x)), return_inverse=True)[1]
    pairs = _near_thumbnails(x, turned, random_state)
    first = np.unique(own, return_index=True)[1][own]
    edges = np.concatenate([pairs, np.stack([first, np.arange(len(x))], 1)])
    label = components(edges, len(x))
    size = np.bincount(label)
    kinds = size > max(LARGEST * len(x), FEW)
    joined: Ints = np.unique(np.where(kinds[label], len(x) + own, label), return_inverse=True)[1]
    return joined


def thumbnail_leaks(train: Any, test: Any, *, turned: bool = False, random_state: int = 0) -> Duplicates:
    """Returns pairs of copies and near-duplicates between the images of two folders, compared as in `near_groups`.

    The cosine is the larger one of those that 2,000 thumbnails of each folder give, so that it does not matter how many images
    the folders share; folders of less than 3 different images give none.

    Args:
        train: `thumbnails` (N, C, h, w) of uint8.
        test: `thumbnails` (M, C, h, w) of uint8.
        turned: As in `near_groups`.
        random_state: Seed of the sample and its views.

    Returns:
        Pairs (index in ``train``, index in ``test``), the most similar first.

    Raises:
        ValueError: The thumbnails of the two folders differ in shape, or cannot be told apart: nearly all are equal, or alike.

    Example:
        >>> x = torch.randint(0, 256, (60, 1, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        >>> y = (0.9 * x[50:].float() + 10).byte()
        >>> thumbnail_leaks(x[:51], y).pairs
        array([[50,  0]])
    """
    require_count(0, random_state=random_state)
    x, y = images_of(train), images_of(test)
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(f"expected thumbnails of one shape, found {tuple(x.shape[1:])} and {tuple(y.shape[1:])}")
    several = [one for one in (_different(x), _different(y)) if len(one) >= FEWEST] or [_different(torch.cat([x, y]))]
    threshold = max(_threshold(one, random_state) for one in several)
    return _between(x, y, turned, threshold)


def _different(x: Tensor) -> Tensor:
    """Returns the thumbnails without those that equal an earlier one."""
    first = np.unique(x.flatten(1).cpu().numpy(), axis=0, return_index=True)[1]
    return x[torch.from_numpy(np.sort(first)).to(x.device)]


def _between(x: Tensor, y: Tensor, turned: bool, threshold: float) -> Duplicates:
    """Returns the pairs of near-duplicates between the thumbnails x and those y, where ``turned`` in any position of these."""
    known = _means(x), perceptual_hash(x)
    found = [
        leaks(known[0], _means(z), (known[1], perceptual_hash(z)), threshold=threshold) for z in (positions(y) if turned else [y])
    ]
    pairs, similarity, bits = (np.concatenate([getattr(one, name) for one in found]) for name in ("pairs", "similarity", "bits"))
    order = np.argsort(-similarity, kind="stable")
    first = np.sort(np.unique(pairs[order], axis=0, return_index=True)[1])
    kept = order[first]  # a pair that is alike in several positions once
    return Duplicates(pairs[kept], similarity[kept], bits[kept])


def _near_thumbnails(x: Tensor, turned: bool, seed: int) -> Ints:
    """Returns the pairs (P, 2) of near-duplicates among thumbnails; none where they cannot be told apart."""
    try:
        threshold = _threshold(x, seed)
        if turned:
            return _between(x, x, True, threshold).pairs  # each image and itself among them
        return near_duplicates(_means(x), perceptual_hash(x), threshold=threshold).pairs
    except ValueError:  # nearly all are equal, or alike
        return np.zeros((0, 2), dtype=np.int64)


def _threshold(x: Tensor, seed: int) -> float:
    """Returns the cosine of `_means` from which two thumbnails count as near-duplicates.

    Raises:
        ValueError: They cannot be told apart.
    """
    if len(x) < FEWEST or min(x.shape[2:]) < 2:
        raise ValueError(f"expected at least {FEWEST} different thumbnails of at least 2 pixels a side, found {tuple(x.shape)}")
    generator = torch.Generator().manual_seed(seed)
    part = x[torch.randperm(len(x), generator=generator)[:SAMPLE].to(x.device)]
    return round(similarity_threshold(_means(part), _means(mild_views(part, generator))).threshold, 6)


def _means(x: Tensor) -> Tensor:
    """Returns 8 x 8 means of thumbnails, (N, C 64), less each image's own mean, in float64."""
    x = x.double() if x.dtype == torch.uint8 else 255 * x.double()
    y = cell_means(x, CELLS).flatten(1)
    return y - y.mean(1, keepdim=True)
