"""The calibration part: training items that nothing is fitted to, whose scores show what is normal."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.images import ImageFiles, file_name
from vergence.data.items import Items, PairItems, batches, spaced
from vergence.data.modalities import missing
from vergence.data.pixels import to_bytes, to_unit
from vergence.data.shards import EncodedImages
from vergence.data.sources import Data
from vergence.decide.splits import split_groups
from vergence.learn.training import loop
from vergence.learn.training.config import RunConfig
from vergence.utils import terminal
from vergence.utils.checks import require_within
from vergence.utils.digests import content_digest
from vergence.utils.dtypes import Ints
from vergence.utils.neighbors import components, nearest_others, similar_pairs

__all__ = ["FEWEST", "content_digests", "content_groups", "content_of", "digests", "split"]

FEWEST = 20  # items of a calibration part: with fewer, not even one item among one can be reported at 0.05
BLOCK = 512  # items that are read at a time
MOST_DIGESTED = 10_000  # items whose content a run remembers
MOST_COMPARED = 100_000  # images among which near duplicates are searched
SIDE, CELLS = 16, 8  # cells of a thumbnail, at most, in each direction; those by which thumbnails are compared
RECALL, DEVIATIONS = 0.95, 4.0  # share of changed duplicates to find; robust standard deviations below the median
SAMPLE, PARTS, OF_PART = 2000, 256, 4  # thumbnails that a threshold comes from; random parts of them, at most; least size of one
MOST, LARGEST, FEW = 100, 0.01, 50  # pairs per image; share and number of images, above both of which a group is a kind


def split(opened: Data, config: RunConfig) -> Data:
    """Returns the data with its calibration part taken out of the training part; as it is where the items are too few.

    The part depends on the items' contents, the share and the seed alone, so every process and every resumed run has the same.
    Items of equal content are all on one side, and so are near-duplicates of images and pairs that share a context or a target
    (see `content_groups`).
    """
    share, n = config.data.calibration_share, len(opened.train)
    require_within("[0, 1)", calibration_share=share)
    if share == 0:
        return opened
    processes = config.fit.devices * config.fit.nodes
    batch = config.fit.batch_size if config.model.takes_steps and n >= config.fit.batch_size else 2 * processes
    if int(share * n) < FEWEST or n - int(share * n) < batch:
        terminal.note(f"no calibration part: a share of {share:g} of {n} training items is too few")
        return opened
    seed = loop.seed_of(config.fit.seed, "calibration", 0)
    mask = split_groups(content_groups(opened.train, config.fit.workers), share, seed)
    if not mask.any():
        why = "share contexts or targets" if isinstance(opened.train, PairItems) else "are equal"
        terminal.note(f"no calibration part: nearly all of the {n} training items {why}")
        return opened
    kept, held_out = (opened.train.subset(where.nonzero()[:, 0]) for where in (~mask, mask))
    return replace(opened, train=kept, calibration=held_out)


def content_groups(items: Items, workers: int = 0) -> list[Any]:
    """Returns a label for each item, which items of equal content share, near-duplicates of images, and pairs of one side.

    Near-duplicates are found on thumbnails (`near_groups`), which takes one pass over the images and some seconds for 50,000; of
    more than 100,000 images equal ones alone share labels, and a note says so. Pairs that share a context or a target, and chains
    of these, share labels. So many ``workers`` decode images.
    """
    if isinstance(items, PairItems):
        first, *others = (_contents(side) + 2 * len(items) * k for k, side in enumerate(items.sides.values()))
        edges = np.concatenate([np.stack([first, other], 1) for other in others])
        return list(components(edges, 2 * len(items) * len(items.sides))[first])
    equal = content_digests(items)
    if items.kind != "image" or items.shape[0] not in (1, 3):
        return list(equal)
    if len(items) > MOST_COMPARED:
        terminal.note(f"near duplicates are not searched among more than {MOST_COMPARED:,} images; exact ones are")
        return list(equal)
    small = torch.zeros(len(items), items.shape[0], *(min(SIDE, n) for n in items.shape[1:]), dtype=torch.uint8)
    read = torch.zeros(len(items), dtype=torch.bool)
    with torch.no_grad():
        for index, x in items.stream(batches(len(items), BLOCK), workers=workers):
            if len(index):
                small[index.cpu()], read[index.cpu()] = to_bytes(_cells(to_unit(x.cpu(), torch.float32), SIDE)), True
    kept = read.nonzero()[:, 0]
    labels: list[Any] = [("unread", i) for i in range(len(items))]
    if len(kept):
        near = near_groups(small[kept], [equal[i] for i in kept.tolist()])
        for i, label in zip(kept.tolist(), near.tolist(), strict=True):
            labels[i] = label
    return labels


def _contents(side: Items) -> Ints:
    """Returns a number of the content of each row (N,), below N; from N on where it is missing."""
    found: Ints = np.unique(content_digests(side), return_inverse=True)[1]
    gaps = torch.cat([missing(x) for _, x in side.stream(batches(len(side), BLOCK))]).cpu().numpy()
    return np.where(gaps, len(found) + np.arange(len(found)), found)


def near_groups(x: Tensor, equal: Sequence[Any]) -> Ints:
    """Returns a label of each thumbnail (N, C, h, w) of bytes, (N,), which equal images and near-duplicates share.

    Thumbnails are compared by the cosine of 8 x 8 means, less each image's own mean; `_threshold` of 2,000 of them tells
    duplicates from others. Chains join: where a is like b and b like c, all three have one label. A group of more than a
    hundredth of the images, and more than 50, is taken for a kind of image: its members share labels with equal images alone, by
    ``equal`` (N,), such as digests of their contents.
    """
    _, first, content = np.unique(np.asarray(equal), return_index=True, return_inverse=True)
    pairs = [np.stack([first[content], np.arange(len(x))], 1)]
    limit = _threshold(x) if len(x) >= 3 and min(x.shape[2:]) >= 2 else None
    if limit is not None:
        means = _means(x)
        near = [torch.stack(pair, 1).numpy() for pair in similar_pairs(means, limit - 4 * torch.finfo(means.dtype).eps)]
        pairs += near if sum(map(len, near)) <= MOST * len(x) else []
    label = components(np.concatenate(pairs), len(x))
    is_kind = np.bincount(label) > max(LARGEST * len(x), FEW)
    joined: Ints = np.unique(np.where(is_kind[label], len(x) + content, label), return_inverse=True)[1]
    return joined


def _threshold(x: Tensor) -> float | None:
    """Returns the cosine of `_means` from which two thumbnails are near-duplicates; None where nearly all are equal.

    With d = 1 - cosine, it is the smaller distance of two: the one that 95 % of slightly changed images have at most to their own
    image, and the one that lies four robust standard deviations of log d below the median of images to their nearest different
    image. Where most images have duplicates, as frames of a film, both numbers are also taken within random parts, at most
    256 of at least 4 images, and a fourth as many, which few duplicates share; the median of log d changes with the logarithm of
    the number of images and is continued to all of them. The larger distance counts.
    """
    generator = torch.Generator().manual_seed(0)
    x = x[torch.randperm(len(x), generator=generator)[:SAMPLE]]
    means, changed = _means(x), _means(255 * _changed(x, generator).double())
    same = (means - changed).square().sum(1) / 2  # 1 - cosine, without cancellation
    middle, spread = max(_log_nearest(means, 1), _of_different(means), key=lambda law: law[0] - DEVIATIONS * law[1])
    limit = min(float(same.quantile(RECALL)), math.exp(middle - DEVIATIONS * spread))
    return round(1 - limit, 6) if middle >= math.log(1e-12) and limit < 1 else None


def _log_nearest(x: Tensor, parts: int) -> tuple[float, float]:
    """Returns median and robust standard deviation of log(1 - cosine) to the nearest other one of as many parts of unit rows."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(parts))
    distance = torch.cat([nearest_others(x[part], 1)[0][:, 0] for part in order.tensor_split(parts)])
    log_other = (distance.square() / 2).clamp(min=1e-300).log()
    middle = log_other.median()
    return float(middle), float(1.4826 * (log_other - middle).abs().median())


def _of_different(x: Tensor) -> tuple[float, float]:
    """Returns what `_log_nearest` would of all rows without duplicates, from parts of them; (-inf, 0) for too few rows."""
    many = min(PARTS, len(x) // OF_PART)
    few = many // 4
    if few < 2:
        return -math.inf, 0.0
    (sparse, _), (dense, spread) = _log_nearest(x, many), _log_nearest(x, few)
    return dense + (dense - sparse) * math.log(few) / math.log(many / few), spread


def _changed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Returns each image slightly changed, in [0, 1], as saving it again makes it.

    Up to 4 % of each side is cut off, brightness and contrast change by up to 8 %, and noise has 1 % of the range.
    """
    x = to_unit(x)
    r = torch.rand(len(x), 5, generator=generator).to(x)
    scale = 1 - 0.04 * r[:, 0]
    theta = torch.zeros(len(x), 2, 3).to(x)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    theta[:, :, 2] = (2 * r[:, 1:3] - 1) * (1 - scale)[:, None]
    x = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), padding_mode="border", align_corners=False)
    brightness, contrast = (0.92 + 0.16 * r[:, i, None, None, None] for i in (3, 4))
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (x - mean) * contrast + mean * brightness
    return (x + 0.01 * torch.randn(x.shape, generator=generator).to(x)).clamp(0, 1)


def _cells(x: Tensor, side: int) -> Tensor:
    """Returns means of at most ``side`` x ``side`` cells of images (N, C, H, W) of floats; there may be none."""
    return F.adaptive_avg_pool2d(x, (min(side, x.shape[2]), min(side, x.shape[3])))


def _means(x: Tensor) -> Tensor:
    """Returns unit vectors (N, C 64) in float64: 8 x 8 means of thumbnails, less each image's own mean."""
    y = _cells(x.double(), CELLS).flatten(1)
    return F.normalize(y - y.mean(1, keepdim=True))


def content_digests(items: Items) -> list[bytes]:
    """Returns a digest of the content of each item, not a pair: of its values or of its file's bytes.

    Files of a size that no other file has are told apart by their size, and are not read.
    """
    if isinstance(items, ImageFiles):
        return _of_files(items)
    if isinstance(items, EncodedImages):
        return [content_digest(items.content(i)) for i in range(len(items))]
    found: list[bytes] = []
    for _, x in items.stream(batches(len(items), BLOCK)):
        found += [content_digest(row) for row in _bytes(x)]
    return found


def content_of(items: Items) -> str:
    """Returns a digest of items: of image files by their names and sizes, of others by at most 10,000 of them, evenly spaced."""
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(items, ImageFiles):
        for name in items.names:
            path = items.folder / file_name(name)
            digest.update(f"{name} {path.stat().st_size if path.is_file() else -1}".encode())
    elif isinstance(items, EncodedImages):
        digest.update("\0".join(items.stamps).encode())
    else:
        for _, x in items.stream(iter(spaced(len(items), MOST_DIGESTED).split(BLOCK))):
            for side in x if isinstance(x, tuple | list) else (x,):
                digest.update(np.ascontiguousarray(side.cpu().numpy()).data)
    return digest.hexdigest()


def _of_files(items: ImageFiles) -> list[bytes]:
    paths = [items.folder / file_name(name) for name in items.names]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in paths]
    times = Counter(sizes)
    return [
        content_digest(path.read_bytes()) if times[size] > 1 and size >= 0 else content_digest(b"file", str(i).encode())
        for i, (path, size) in enumerate(zip(paths, sizes, strict=True))
    ]


def digests(x: Tensor) -> np.ndarray:
    """Returns a digest of the content of each item of a batch, (B,) uint64.

    Example:
        >>> a, b, c = digests(torch.tensor([[1.0], [2.0], [1.0]]))
        >>> bool(a == c), bool(a == b)
        (True, False)
    """
    return np.frombuffer(b"".join(content_digest(row) for row in _bytes(x)), dtype=np.uint64)


def _bytes(x: Tensor) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(x.cpu().numpy())]
