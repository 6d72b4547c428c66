r"""Copies and near-copies among pictures: saved again, resized, cropped, brightened, gray, marked, mirrored, turned or moved.

1. Equal digests are equal pictures.
2. Candidates are the nearest pictures by the cosine of 8 x 8 means of the gray picture with its local contrast evened out, in
   eight positions (mirrored, turned by quarters) and for five windows (a tenth cut off), and by the signs of differences.
3. Each candidate is registered: two windows, one of each picture, are compared by the normalized correlation of their gray
   values, which no gain or offset changes. Windows are the whole, a part of one picture, or parts that are moved.
4. It is a copy where the blocks of the best windows that have texture agree, all but a few, which a mark may cover, and where
   the two are much nearer than other pictures that look alike, or nearly equal. A picture without texture is a copy of an equal
   one alone: a difference that was not looked at supports nothing.

Shapes: N pictures, S = 32 pixels a side, P pairs, T pairs of windows.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.neighbors import components

__all__ = ["Duplicates", "find_duplicates"]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

S, COLOR = 32, 4  # pixels a side of the gray picture, and of the colored one
CELLS, EVEN = 8, 9  # means a side of a descriptor; pixels a side of the neighborhood whose contrast is evened out
NEAREST = 4  # candidates of each picture, of each descriptor
LEAST = 0.88  # cosine of a candidate
BLOCK = 1 << 24  # numbers that are held at a time
TOGETHER = 4096  # pictures that are described at a time
PAIRS = 256  # that are registered at a time
COARSE, FINE, BLOCKS = 8, 24, 4  # pixels a side of a window, at first and in the end; blocks a side
FEW, LEAD = 3, 0.01  # windows that are compared finely; what whole pictures are preferred by
TEXTURE = 3.0 / 255  # deviation of a block that has texture
LOCAL, SHARE, TEXTURED = 0.75, 0.8, 10  # correlation of a block that agrees, share of those that do, textured ones at least
ALIKE, SURE, EXACT = 0.975, 0.985, 0.985  # correlation of windows, of pictures without much texture, and of the median block
CONTRAST = 8.0 / 255  # deviation of what is compared, at least
CROWD, USUAL = 12, 0.5  # place of the neighbor that tells how alike all pictures are, and its cosine where there are fewer
RATIO, CROWDED = 0.2, 0.3  # of 1 - correlation to 1 - cosine of that neighbor, at most; of windows or blocks that are alike
NEARLY_EQUAL = 0.995  # correlation of windows that are copies whatever the others look like
CHROMA, COLORED = 0.7, 3.0 / 255  # cosine of the colors of two colored pictures, and the deviation of one
SCALES = (0.95, 0.9, 0.85)
MOVES = (-2, -1, 1, 2)  # pixels of S
EXACT_UP_TO = 20_000  # pictures, above which candidates are looked for in neighboring clusters alone
PROBES, PER_CLUSTER = 4, 250


@dataclass(frozen=True)
class Duplicates:
    """Pairs of copies, the surest first.

    Attributes:
        pairs: (P, 2): i < j in one collection; between two, the index in each.
        kind: ``equal``, ``near``, ``cropped``, ``mirrored`` or ``turned``, of each pair.
        agreement: Correlation of what was compared, (P,), 1 of equal ones.
    """

    pairs: Ints
    kind: list[str]
    agreement: Floats

    def __len__(self) -> int:
        return len(self.pairs)


def small_image(pixels: Bytes) -> Bytes:
    """Returns what is compared of a picture (C, H, W), (S S + 3 16,): the gray picture of 32 x 32 and the colors of 4 x 4 pixels.

    Example:
        >>> small_image(np.zeros((3, 40, 60), dtype=np.uint8)).shape
        (1072,)
    """
    from PIL import Image

    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    how = Image.Resampling.BILINEAR
    gray = np.asarray(image.convert("L").resize((S, S), how, reducing_gap=3.0))
    color = np.asarray(image.convert("RGB").resize((COLOR, COLOR), how, reducing_gap=3.0))
    return np.concatenate([gray.ravel(), color.ravel()])


def find_duplicates(small: Bytes, digest: Ints, other_small: Bytes | None = None, other_digest: Ints | None = None) -> Duplicates:
    """Returns the copies among pictures, or between pictures and others.

    Args:
        small: What `small_image` returned of each, (N, 1072).
        digest: Digests (N,) that equal pictures alone share.
        other_small: The same of other pictures, (M, 1072).
        other_digest: Their digests, (M,).

    Example:
        >>> from sklearn.datasets import load_sample_images
        >>> china, flower = (x.transpose(2, 0, 1) for x in load_sample_images().images)
        >>> small = np.stack([small_image(x) for x in (china, flower, china[:, :, ::-1])])
        >>> found = find_duplicates(small, np.arange(3))
        >>> found.pairs.tolist(), found.kind
        ([[0, 2]], ['mirrored'])
    """
    one = other_small is None or other_digest is None
    if one:
        other_small, other_digest = small, digest
    assert other_small is not None and other_digest is not None
    first, second = np.unique(digest, return_index=True)[1], np.unique(other_digest, return_index=True)[1]
    equal = _equal(digest) if one else _equal_between(digest, other_digest)
    a, b = _Smalls.of(small[first]), _Smalls.of(other_small[second])
    near = list(_near(a, b, one=one))
    pairs = [equal, *(np.stack([first[i.numpy()], second[j.numpy()]], 1) for i, j, _, _ in near)]
    kinds = ["equal"] * len(equal) + [kind for _, _, kind_of, _ in near for kind in kind_of]
    agreement = np.concatenate([np.ones(len(equal)), *(value.double().numpy() for _, _, _, value in near)])
    return _sorted(np.concatenate(pairs), kinds, agreement, digest, other_digest, one=one)


def _sorted(pairs: Ints, kinds: list[str], agreement: Floats, digest: Ints, other: Ints, *, one: bool) -> Duplicates:
    """Returns pairs once each, the surest first."""
    if one:
        pairs = np.sort(pairs, 1)
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -agreement, np.array([kind != "equal" for kind in kinds], dtype=bool)))
    kept = order[np.sort(np.unique(pairs[order], axis=0, return_index=True)[1])]
    apart = [k for k in kept.tolist() if kinds[k] == "equal" or digest[pairs[k, 0]] != other[pairs[k, 1]]]
    return Duplicates(pairs[apart].astype(np.int64), [kinds[k] for k in apart], agreement[apart])


def _equal(digest: Ints) -> Ints:
    """Returns pairs of each picture with the first one of its digest."""
    _, first, place = np.unique(digest, return_index=True, return_inverse=True)
    again = np.flatnonzero(first[place] != np.arange(len(digest)))
    return np.stack([first[place[again]], again], 1)


def _equal_between(digest: Ints, other: Ints) -> Ints:
    """Returns pairs of each picture with the first other one of its digest."""
    values, first = np.unique(other, return_index=True)
    place = np.searchsorted(values, digest).clip(max=max(0, len(values) - 1))
    i = np.flatnonzero(values[place] == digest) if len(values) else np.zeros(0, dtype=np.int64)
    return np.stack([i, first[place[i]]], 1) if len(values) else np.zeros((0, 2), dtype=np.int64)


def duplicate_sets(copies: Duplicates, n: int) -> Ints:
    """Returns a label for each of n pictures, (n,), which copies share.

    Example:
        >>> duplicate_sets(Duplicates(np.array([[0, 2]]), ["equal"], np.ones(1)), 3).tolist()
        [0, 1, 0]
    """
    return np.unique(components(copies.pairs, n), return_inverse=True)[1].astype(np.int64)


# Candidates


@dataclass(frozen=True)
class _Smalls:
    """Gray pictures (N, 1, S, S) in [0, 1], and their colors (N, 3, 4, 4)."""

    gray: Tensor
    color: Tensor

    @classmethod
    def of(cls, small: Bytes) -> "_Smalls":
        x = torch.from_numpy(np.ascontiguousarray(small))
        gray, color = x[:, : S * S].view(-1, 1, S, S), x[:, S * S :].view(-1, COLOR, COLOR, 3).permute(0, 3, 1, 2)
        return cls(gray, color)

    def __len__(self) -> int:
        return len(self.gray)


def _positions(x: Tensor) -> list[Tensor]:
    """Returns pictures as they are, turned by quarters, and the same mirrored: eight positions."""
    return [image.rot90(k, (-2, -1)) for image in (x, x.flip(-1)) for k in range(4)]


KINDS = ("near", "turned", "turned", "turned", "mirrored", "mirrored", "mirrored", "mirrored")
# Top, left, height and width of windows that are looked for, in pixels of S: nine tenths of both sides, or of one.
WINDOWS: tuple[tuple[int, ...], ...] = ((2, 2, 29, 29), (0, 0, 29, 29), (0, 3, 29, 29), (3, 0, 29, 29), (3, 3, 29, 29))
WINDOWS += ((0, 0, 32, 29), (0, 3, 32, 29), (0, 0, 29, 32), (3, 0, 29, 32))


def _descriptor(x: Tensor) -> Tensor:
    """Returns unit vectors (N, 64): means of pictures (N, 1, H, W) in [0, 1] whose local contrast is evened out."""
    mean = F.avg_pool2d(x, EVEN, 1, EVEN // 2, count_include_pad=False)
    variance = F.avg_pool2d((x - mean).square(), EVEN, 1, EVEN // 2, count_include_pad=False)
    wide = x - x.mean((2, 3), keepdim=True)
    y = F.adaptive_avg_pool2d(wide / (variance.sqrt() + 0.5 * wide.square().mean((2, 3), keepdim=True).sqrt() + 0.01), CELLS)
    y = y.flatten(1)
    return F.normalize(y - y.mean(1, keepdim=True), dim=1)


def _signs(x: Tensor) -> Tensor:
    """Returns unit vectors (N, 112): signs of the differences of neighboring means."""
    y = F.adaptive_avg_pool2d(x, CELLS)
    signs = torch.cat([(y[..., 1:] - y[..., :-1]).flatten(1), (y[..., 1:, :] - y[..., :-1, :]).flatten(1)], 1)
    return F.normalize(signs.sign(), dim=1)


def _each(function: Callable[[Tensor], Tensor], gray: Tensor) -> Tensor:
    """Returns what a function gives of gray pictures (N, 1, S, S) in [0, 1], some thousand of bytes at a time."""
    return torch.cat([function(part.float() / 255) for part in gray.split(TOGETHER)])


def _queries(gray: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yields a position, and descriptors (N, 64) of what is looked for: whole pictures in each position, and windows."""
    for k in range(len(KINDS)):
        yield k, _each(functools.partial(_turned, k), gray)
    for window in WINDOWS:
        yield 0, _each(functools.partial(_within, window), gray)


def _turned(k: int, x: Tensor) -> Tensor:
    return _descriptor(_positions(x)[k])


def _within(window: Sequence[int], x: Tensor) -> Tensor:
    top, left, height, width = window
    return _descriptor(x[..., top : top + height, left : left + width])


def _candidates(a: _Smalls, b: _Smalls, *, one: bool) -> tuple[dict[int, Tensor], Tensor, Tensor]:
    """Returns pairs (P, 2) that may be copies, by the position of the first picture; and how alike all are to each of both.

    The latter are cosines, (N,) and (M,), of the twelfth nearest other picture.
    """
    found: dict[int, list[Tensor]] = {}
    bank = _index(_each(_descriptor, b.gray))
    for k, query in _queries(a.gray):
        found.setdefault(k, []).append(_near_enough(*bank.nearest(query, NEAREST + 1)))
    if not one:  # a window of an other picture, too
        swapped = _index(_each(_descriptor, a.gray))
        for k, query in _queries(b.gray):
            if k == 0:
                found[0].append(_near_enough(*swapped.nearest(query, NEAREST + 1)).flip(1))
    signs = _index(_each(_signs, b.gray)).nearest(_each(_signs, a.gray), NEAREST + 1)
    found[0].append(_near_enough(*signs))
    pairs = {k: torch.cat(parts) for k, parts in found.items()}
    if one:
        pairs = {
            k: p[p[:, 0] != p[:, 1]].sort(1).values if k in (0, 2, 4, 6) else p[p[:, 0] != p[:, 1]] for k, p in pairs.items()
        }
    return (
        {k: torch.unique(p, dim=0) for k, p in pairs.items()},
        _crowd(bank, _each(_descriptor, a.gray)),
        _crowd(bank, bank.bank),
    )


def _crowd(bank: "_Exact | _Clustered", query: Tensor) -> Tensor:
    """Returns the cosine of the twelfth nearest vector to each query (M, D), (M,)."""
    if len(bank.bank) < CROWD:
        return query.new_full((len(query),), USUAL)
    return bank.nearest(query, CROWD)[0][:, -1].clamp(min=USUAL)


def _near_enough(value: Tensor, column: Tensor) -> Tensor:
    """Returns the pairs (P, 2) of rows and columns that are near enough."""
    row = torch.arange(len(value))[:, None].expand_as(column)
    return torch.stack([row[value >= LEAST], column[value >= LEAST]], 1)


class _Exact:
    """Finds the nearest of all vectors (N, D)."""

    def __init__(self, bank: Tensor) -> None:
        self.bank = bank

    def nearest(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and places (M, k) of the nearest vectors to queries (M, D), themselves among them."""
        k, rows = min(k, len(self.bank)), max(1, BLOCK // max(1, len(self.bank)))
        parts = [(part @ self.bank.T).topk(k, dim=1) for part in query.split(rows)]
        return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


class _Clustered:
    """Finds the nearest vectors in the clusters nearest to a query alone."""

    def __init__(self, bank: Tensor) -> None:
        from sklearn.cluster import MiniBatchKMeans

        self.bank, clusters = bank, max(1, len(bank) // PER_CLUSTER)
        sample = bank[:: max(1, len(bank) // (20 * clusters))].numpy()
        fitted = MiniBatchKMeans(clusters, n_init=1, max_iter=10, batch_size=4096, init="random", random_state=0).fit(sample)
        self.centers = _Exact(F.normalize(torch.from_numpy(fitted.cluster_centers_).to(bank), dim=1))
        self.members = _by_label(self.centers.nearest(bank, 1)[1][:, 0], clusters)

    def nearest(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and places (M, k) as `_Exact`; cosines of -1 where the clusters hold fewer."""
        clusters = self.centers.nearest(query, PROBES)[1]
        value, place = query.new_full((len(query), 0), -1.0), torch.zeros(len(query), 0, dtype=torch.int64)
        for probe in clusters.unbind(1):
            near = query.new_full((len(query), k), -1.0), torch.zeros(len(query), k, dtype=torch.int64)
            for members, rows in zip(self.members, _by_label(probe, len(self.members)), strict=True):
                if len(members) and len(rows):
                    found = (query[rows] @ self.bank[members].T).topk(min(k, len(members)), dim=1)
                    near[0][rows, : found.values.shape[1]] = found.values
                    near[1][rows, : found.values.shape[1]] = members[found.indices]
            value, place = torch.cat([value, near[0]], 1), torch.cat([place, near[1]], 1)
            value, order = value.topk(k, dim=1)
            place = place.gather(1, order)
        return value, place


def _by_label(label: Tensor, n: int) -> list[Tensor]:
    """Returns the places of each label 0..n-1."""
    order = label.argsort(stable=True)
    return list(order.split(torch.bincount(label, minlength=n).tolist()))


def _index(bank: Tensor) -> "_Exact | _Clustered":
    return _Exact(bank) if len(bank) <= EXACT_UP_TO else _Clustered(bank)


# Registration


def _windows() -> tuple[Tensor, Tensor, list[str]]:
    """Returns windows (T, 4) of the first and of the second picture (top, left, height, width, as shares), and their kinds."""
    whole = (0.0, 0.0, 1.0, 1.0)
    pairs, kinds = [(whole, whole)], ["near"]
    for side in SCALES:
        for height, width in ((side, side), (side, 1.0), (1.0, side)):
            tops, lefts = (sorted({u * (1 - extent) for u in (0.0, 0.5, 1.0)}) for extent in (height, width))
            for part in [(top, left, height, width) for top in tops for left in lefts]:
                pairs += [(part, whole), (whole, part)]
                kinds += ["cropped", "cropped"]
    for dy in (0, *MOVES):
        for dx in (0, *MOVES):
            if dx or dy:
                size = (1 - abs(dy) / S, 1 - abs(dx) / S)
                pairs.append(((max(dy, 0) / S, max(dx, 0) / S, *size), (max(-dy, 0) / S, max(-dx, 0) / S, *size)))
                kinds.append("near")
    first, second = (torch.tensor([pair[k] for pair in pairs]) for k in (0, 1))
    return first, second, kinds


def _cut(x: Tensor, windows: Tensor, side: int) -> Tensor:
    """Returns a window of each picture (n, 1, H, W) as (n, side side); windows are (n, 4)."""
    top, left, height, width = windows.unbind(1)
    theta = x.new_zeros(len(x), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = width, height
    theta[:, 0, 2], theta[:, 1, 2] = 2 * left + width - 1, 2 * top + height - 1
    grid = F.affine_grid(theta, [len(x), 1, side, side], align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False).flatten(1)


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """Returns the normalized correlation of vectors (..., D) over the last dimension, 0 where one is constant."""
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    norm = x.norm(dim=-1) * y.norm(dim=-1)
    return torch.where(norm > 1e-6, (x * y).sum(-1) / norm.clamp(min=1e-6), torch.zeros_like(norm))


def _near(a: _Smalls, b: _Smalls, *, one: bool) -> Iterator[tuple[Tensor, Tensor, list[str], Tensor]]:
    """Yields the pairs that are copies, with their kinds and correlations."""
    if not len(a) or not len(b):
        return
    windows = _windows()
    candidates, crowd_a, crowd_b = _candidates(a, b, one=one)
    for position, pairs in candidates.items():
        for part in pairs.split(PAIRS) if len(pairs) else ():
            i, j = part.unbind(1)
            x, y = _positions(a.gray[i])[position].float() / 255, b.gray[j].float() / 255
            color = _positions(a.color[i])[position].float() / 255, b.color[j].float() / 255
            value, best = _registered(x, y, windows[0], windows[1])
            near = value, torch.maximum(crowd_a[i], crowd_b[j])
            copies = _agree(x, y, windows[0][best], windows[1][best], *near) & _same_colors(*color)
            kinds = [windows[2][k] if position == 0 else KINDS[position] for k in best[copies].tolist()]
            yield i[copies], j[copies], kinds, value[copies]


def _registered(x: Tensor, y: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest correlation of pairs (n, 1, S, S) over pairs of windows, (n,), and the pair that has it.

    All windows are compared coarsely, and the best few of them, with the whole pictures, finely.
    """
    n, T = len(x), len(first)
    every = torch.arange(T).repeat(n, 1)
    coarse = _compared(F.avg_pool2d(x, 2), F.avg_pool2d(y, 2), first, second, every, COARSE)
    few = torch.cat([torch.zeros(n, 1, dtype=torch.int64), coarse[:, 1:].topk(FEW, dim=1).indices + 1], 1)
    value = _compared(x, y, first, second, few, FINE)
    value[:, 0] += LEAD
    best = value.argmax(1, keepdim=True)
    value[:, 0] -= LEAD
    return value.gather(1, best)[:, 0], few.gather(1, best)[:, 0]


def _compared(x: Tensor, y: Tensor, first: Tensor, second: Tensor, some: Tensor, side: int) -> Tensor:
    """Returns the correlations (n, k) of some pairs of windows (n, k) of pairs of pictures."""
    n, k = some.shape
    cut = [_cut(z.repeat_interleave(k, 0), w[some.flatten()], side).view(n, k, -1) for z, w in ((x, first), (y, second))]
    return correlation(*cut)


def _agree(x: Tensor, y: Tensor, first: Tensor, second: Tensor, value: Tensor, crowd: Tensor) -> Tensor:
    """Returns which pairs (n, 1, S, S) are copies by their best windows, their correlation, and how alike others are."""
    u, v = _cut(x, first, FINE), _cut(y, second, FINE)
    blocks = [_blocks(z) for z in (u, v)]
    textured = torch.maximum(*(z.std(-1) for z in blocks)) > TEXTURE
    each = correlation(*blocks)
    count = textured.sum(1)
    most = ((each >= LOCAL) & textured).sum(1) >= SHARE * count
    median = torch.where(textured, each, torch.nan).nanmedian(1).values
    apart = (1 - value) / (1 - crowd).clamp(min=1e-9)  # small where others are much less alike
    nearer = (apart <= RATIO) | (((value >= ALIKE) | (median >= EXACT)) & (apart <= CROWDED)) | (value >= NEARLY_EQUAL)
    contrast = torch.minimum(u.std(1), v.std(1)) >= CONTRAST
    sure = (value >= SURE) & (first[:, 2:] == 1).all(1) & (second[:, 2:] == 1).all(1)
    return contrast & (((count >= TEXTURED) & most & nearer) | sure)


def _blocks(x: Tensor) -> Tensor:
    """Returns the 16 blocks of windows (n, FINE FINE), (n, 16, 36)."""
    side = FINE // BLOCKS
    return x.view(-1, BLOCKS, side, BLOCKS, side).transpose(2, 3).flatten(3).flatten(1, 2)


def _same_colors(x: Tensor, y: Tensor) -> Tensor:
    """Returns which pairs of colors (n, 3, 4, 4) do not contradict each other: one is gray, or their chroma is alike."""
    u, v = ((z - z.mean(1, keepdim=True)).flatten(1) for z in (x, y))
    return (torch.minimum(u.std(1), v.std(1)) <= COLORED) | (F.cosine_similarity(u, v) >= CHROMA)
