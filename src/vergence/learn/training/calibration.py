"""The calibration part: training items that nothing is fitted to, whose scores later say what an ordinary score is."""

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.images import ImageFiles, file_name
from vergence.data.items import Items, PairItems, batches, spaced
from vergence.data.shards import EncodedImages
from vergence.data.sources import Data
from vergence.data.splits import split_groups
from vergence.learn.training import loop
from vergence.learn.training.config import RunConfig
from vergence.learn.training.near_duplicates import near_groups, thumbnail_shape, thumbnails
from vergence.utils import terminal
from vergence.utils.checks import require_within

__all__ = ["FEWEST", "content_digests", "content_groups", "content_of", "digests", "split"]

FEWEST = 20  # items of a calibration part: with fewer, not even one item among one can be reported at 0.05
BLOCK = 512  # items that are read at a time
MOST_DIGESTED = 10_000  # items whose content a run remembers
MOST_COMPARED = 100_000  # images among which near-duplicates are looked for


def split(opened: Data, config: RunConfig) -> Data:
    """Returns the data with its calibration part taken out of the training part; as it is where the items are too few.

    The part depends on the items' contents, the share and the seed alone, so every process and every resumed run has the same.
    Items of equal content are all on one side, and so are near-duplicates of images (see `content_groups`).

    Args:
        opened: The data.
        config: Description of the run: ``data.calibration_share``, ``fit.seed``, and the least number of items to train on.
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
        terminal.note(f"no calibration part: nearly all of the {n} training items are equal")
        return opened
    kept, held_out = (opened.train.subset(where.nonzero()[:, 0]) for where in (~mask, mask))
    return replace(opened, train=kept, calibration=held_out)


def content_groups(items: Items, workers: int = 0) -> list[Any]:
    """Returns a label for each item, which items of equal content share, and near-duplicates of images.

    Near-duplicates are found by `vergence.learn.training.near_duplicates.near_groups` on thumbnails, which takes one pass over
    the images and some seconds for 50,000; of more than 100,000 images, and of pairs, equal ones alone share labels, and a note
    says so.

    Args:
        items: The items.
        workers: Processes that decode images.
    """
    equal = content_digests(items)
    if isinstance(items, PairItems) or len(items.shape) != 3 or items.shape[0] not in (1, 3):
        return list(equal)
    if len(items) > MOST_COMPARED:
        terminal.note(f"near-duplicates are not looked for among more than {MOST_COMPARED:,} images, equal ones are")
        return list(equal)
    small = torch.zeros(len(items), *thumbnail_shape(items.shape), dtype=torch.uint8)
    read = torch.zeros(len(items), dtype=torch.bool)
    with torch.no_grad():
        for index, x in items.stream(batches(len(items), BLOCK), workers=workers):
            if len(index):
                small[index.cpu()], read[index.cpu()] = thumbnails(x.cpu()), True
    kept = read.nonzero()[:, 0]
    labels: list[Any] = [("unread", i) for i in range(len(items))]
    if len(kept):
        near = near_groups(small[kept], [equal[i] for i in kept.tolist()])
        for i, label in zip(kept.tolist(), near.tolist(), strict=True):
            labels[i] = label
    return labels


def content_digests(items: Items) -> list[bytes]:
    """Returns a digest of each item's content: of its values, of pairs both sides' together, or of its file's bytes.

    Files of a size that no other file has are told apart by their size, and are not read.
    """
    if isinstance(items, ImageFiles):
        return _of_files(items)
    if isinstance(items, EncodedImages):
        return [_digest(items.content(i)) for i in range(len(items))]
    found: list[bytes] = []
    for _, x in items.stream(batches(len(items), BLOCK)):
        sides = [_bytes(side) for side in (x if isinstance(x, tuple | list) else (x,))]
        found += [_digest(*row) for row in zip(*sides, strict=True)]
    return found


def content_of(items: Items) -> str:
    """Returns a digest of items: of image files by their names and sizes, of others by at most 10,000 of them, evenly spaced."""
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(items, ImageFiles):
        for name in items.names:
            path = items.folder / file_name(name)
            digest.update(f"{name} {path.stat().st_size if path.is_file() else -1}".encode())
        return digest.hexdigest()
    if isinstance(items, EncodedImages):
        digest.update("\0".join(items.stamps).encode())
        return digest.hexdigest()
    for _, x in items.stream(iter(spaced(len(items), MOST_DIGESTED).split(BLOCK))):
        for side in x if isinstance(x, tuple | list) else (x,):
            digest.update(np.ascontiguousarray(side.cpu().numpy()).data)
    return digest.hexdigest()


def _of_files(items: ImageFiles) -> list[bytes]:
    paths = [items.folder / file_name(name) for name in items.names]
    sizes = [path.stat().st_size if path.is_file() else -1 for path in paths]
    times = Counter(sizes)
    return [
        _digest(path.read_bytes()) if times[size] > 1 and size >= 0 else _digest(b"file", str(i).encode())
        for i, (path, size) in enumerate(zip(paths, sizes, strict=True))
    ]


def digests(x: Tensor) -> np.ndarray:
    """Returns a digest of the content of each item of a batch, (B,) uint64.

    Example:
        >>> a, b, c = digests(torch.tensor([[1.0], [2.0], [1.0]]))
        >>> bool(a == c), bool(a == b)
        (True, False)
    """
    return np.frombuffer(b"".join(_digest(row) for row in _bytes(x)), dtype=np.uint64)


def _bytes(x: Tensor) -> list[bytes]:
    return [row.tobytes() for row in np.ascontiguousarray(x.cpu().numpy())]


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.digest()
