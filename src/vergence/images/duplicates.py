r"""Duplicates among images: saved again, resized, cropped, brightened, gray, marked, framed, mirrored, rotated or moved.

1. Equal digests are exact duplicates.
2. Candidates are the nearest images by the cosine of 8 x 8 means of the gray image with its local contrast evened out, in
   eight positions (mirrored, rotated by quarters) and for windows (up to three tenths cut off), and by the signs of differences.
3. Candidates are registered on 32 x 32 pixels, and the best few of each image on what ``read`` returns: the structure of all
   blocks agrees, but of a few that a mark may cover, and so does the noise, which two shots of one scene do not share.
4. They are duplicates where they agree more than images of this source do: a set of them lies apart from all other images.

Shapes: N images, S = 32 pixels per side, P pairs.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.hierarchy import DisjointSet
from torch import Tensor
from torch.nn import functional as F

from vergence.images.registration import Agreement, compared, registered, warped
from vergence.report.tiles import image_of
from vergence.utils.dtypes import Bools, Bytes, Floats, Ints
from vergence.utils.neighbors import components

__all__ = ["Duplicates", "find_duplicates"]

Read = Callable[[int], Bytes]

S = 32  # pixels per side of the gray image
FLAT, BORDER = 12, 0.25  # gray levels in a line of a plain border; share of a side that a border has, at most
CELLS, EVEN = 8, 9  # means per side of a descriptor; pixels per side of the neighborhood whose contrast is evened out
NEAREST = 4  # candidates of each image, of each descriptor
LEAST, WAYS = 0.86, 2  # cosine of a candidate; windows or positions that are tried for a pair
BLOCK = 1 << 24  # numbers that are held at a time
TOGETHER = 4096  # images that are described at a time
PAIRS = 256  # that are registered at a time
LIKELY, PARTNERS = 0.9, 4  # correlation of 32 x 32 pixels, at least; pairs of each image that are compared at full size
HELD = 64  # images that are held at a time
APART, MARGIN = 3.0, 0.01  # of the disagreement in a set, and what is added: the least one with other images
IN_PLACE, FIXTURE = 0.02, 3  # change of a window; pairs with a contradiction in place, from which images are of one fixture
SAME, SHARPER = ("exact", "near"), 2.0  # kinds of one set; ratio of the sharpness of images, of which one is sharper
CROPPED = 0.92  # share of the one window in the other
EXACT_UP_TO = 20_000  # images, above which candidates are searched in neighboring clusters alone
PROBES, PER_CLUSTER = 4, 250


@dataclass(frozen=True)
class Duplicates:
    """Pairs of duplicates, the surest first."""

    pairs: Ints  # (P, 2): i < j in one collection; between two, the index in each
    kind: list[str]  # ``exact``, ``near``, ``cropped``, ``mirrored`` or ``rotated``, of each pair
    agreement: Floats  # correlation of what was compared, (P,), 1 of exact ones

    def __len__(self) -> int:
        return len(self.pairs)

    @classmethod
    def none(cls) -> "Duplicates":
        """Returns no pairs."""
        return cls(np.zeros((0, 2), dtype=np.int64), [], np.zeros(0))

    def where(self, kept: Bools) -> "Duplicates":
        """Returns some of the pairs, by a mask (P,)."""
        kinds = [kind for kind, keep in zip(self.kind, kept.tolist(), strict=True) if keep]
        return Duplicates(self.pairs[kept], kinds, self.agreement[kept])


def small_image(pixels: Bytes) -> Bytes:
    """Returns what candidates are found by: the gray image (C, H, W) without plain borders as 32 x 32 pixels, (1024,)."""
    from PIL import Image

    image = image_of(without_border(pixels))
    return np.asarray(image.convert("L").resize((S, S), Image.Resampling.BILINEAR, reducing_gap=3.0)).ravel()


def without_border(pixels: Bytes) -> Bytes:
    """Returns an image (C, H, W) without the lines of one color at its sides, a quarter of each side at most.

    Example:
        >>> image = np.zeros((1, 20, 20), dtype=np.uint8)
        >>> image[0, 3:] = (7 * np.arange(340) % 256).reshape(17, 20)
        >>> without_border(image).shape
        (1, 17, 20)
    """
    for axis in (1, 2):
        lines = np.moveaxis(pixels, axis, 0)
        start, stop = _border(lines), len(lines) - _border(lines[::-1])
        pixels = pixels[:, start:stop] if axis == 1 else pixels[:, :, start:stop]
    return pixels


def _border(lines: Bytes) -> int:
    """Returns how many of the first lines (n, C, m) have one color; none if all that may be cut off have."""
    first = np.median(lines[0], axis=-1, keepdims=True)
    most = int(BORDER * len(lines))
    for n, line in enumerate(lines[: most + 1]):
        if np.abs(line - first).max() > FLAT:
            return n
    return 0


def find_duplicates(
    small: Bytes,
    digest: Ints,
    read: Read,
    other_small: Bytes | None = None,
    other_digest: Ints | None = None,
    other_read: Read | None = None,
) -> Duplicates:
    """Returns the duplicates among images, or between images and others.

    Args:
        small: What `small_image` returned of each, (N, 1024).
        digest: Digests (N,) that equal images alone share.
        read: Returns image i, uint8 (C, H, W), at the size at which pairs are compared; called for candidates alone.
        other_small: The same of other images, (M, 1024).
        other_digest: Their digests, (M,).
        other_read: Returns one of them.

    Example:
        >>> from sklearn.datasets import load_sample_images
        >>> china, flower = (x.transpose(2, 0, 1) for x in load_sample_images().images)
        >>> images = [china, flower, china[:, :, ::-1]]
        >>> found = find_duplicates(np.stack([small_image(x) for x in images]), np.arange(3), images.__getitem__)
        >>> found.pairs.tolist(), found.kind
        ([[0, 2]], ['mirrored'])
    """
    one = other_small is None or other_digest is None or other_read is None
    if one:
        other_small, other_digest, other_read = small, digest, read
    assert other_small is not None and other_digest is not None and other_read is not None
    first, second = np.unique(digest, return_index=True)[1], np.unique(other_digest, return_index=True)[1]
    first_of = {d: j for j, d in reversed([*enumerate(other_digest.tolist())])}
    equal = [(i, first_of[d]) for i, d in enumerate(digest.tolist()) if d in first_of and not (one and first_of[d] == i)]
    tried = _candidates(_as_images(small[first]), _as_images(other_small[second]), one=one)
    tried = tried.of(first, second) if len(tried) else tried
    if not one:
        tried = tried.where(digest[tried.i] != other_digest[tried.j])
    found = [*_compared(tried, read, other_read)]
    kept = _apart(tried, found, 0 if one else len(digest))
    kept = kept[_not_by_symmetry(tried.where(kept), [found[k] for k in kept.tolist()], small, read)]
    pairs = np.concatenate([np.array(equal, dtype=np.int64).reshape(-1, 2), np.stack([tried.i, tried.j], 1)[kept]])
    pairs = np.sort(pairs, 1) if one else pairs
    kinds = ["exact"] * len(equal) + [_kind(tried, k, found[k].warp) for k in kept.tolist()]
    agreement = np.array([1.0] * len(equal) + [found[k].correlation for k in kept.tolist()])
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -agreement, np.array([kind != "exact" for kind in kinds], dtype=bool)))
    return Duplicates(pairs[order], [kinds[k] for k in order.tolist()], agreement[order])


def duplicate_sets(duplicates: Duplicates, n: int) -> Ints:
    """Returns a label for each of n images, (n,), which duplicates share."""
    return np.unique(components(duplicates.pairs, n), return_inverse=True)[1].astype(np.int64)


def best_of_sets(duplicates: Duplicates, apart: Sequence[str], pixels: Floats, sharpness: Floats, *rest: Floats | Ints) -> Ints:
    """Returns for each image the one to keep of its set of exact and near duplicates, (N,); itself where it has none.

    It is the largest, then the sharpest if it is much sharper (compression adds edges, too), then the first by the rest; each is
    (N,), larger is better. Pairs of other kinds, or of images that a text ``apart`` (N,) tells apart, hold no set together.

    Example:
        >>> pairs = Duplicates(np.array([[0, 1], [1, 2]]), ["near", "cropped"], np.ones(2))
        >>> best_of_sets(pairs, ["", "", ""], np.array([5.0, 9, 9]), np.ones(3)).tolist()
        [1, 1, 2]
    """
    same = duplicates.where(np.array([kind in SAME for kind in duplicates.kind], dtype=bool))
    of_text = np.unique(np.array(apart), return_inverse=True)[1]
    label = np.unique(np.stack([duplicate_sets(same, len(pixels)), of_text]), axis=1, return_inverse=True)[1].ravel()
    most, sharpest, best = (np.zeros(len(pixels)) for _ in range(3))
    np.maximum.at(most, label, pixels)
    np.maximum.at(sharpest, label, np.where(pixels == most[label], sharpness, 0))
    order = np.lexsort((*rest[::-1], SHARPER * sharpness >= sharpest[label], pixels))
    best[label[order]] = order
    return best[label].astype(np.int64)


# Candidates


@dataclass(frozen=True)
class _Tried:
    """Pairs of images i and j, the position of i, and the windows (P, 4) of both that are compared; see `registration`."""

    i: Ints
    j: Ints
    position: Ints
    warp: Tensor
    other: Tensor
    correlation: Tensor

    def __len__(self) -> int:
        return len(self.i)

    def where(self, kept: npt.NDArray[np.generic]) -> "_Tried":
        """Returns some of the pairs."""
        some = torch.from_numpy(kept)
        return _Tried(self.i[kept], self.j[kept], self.position[kept], self.warp[some], self.other[some], self.correlation[some])

    def of(self, first: Ints, second: Ints) -> "_Tried":
        """Returns the pairs with other numbers for i and j."""
        return _Tried(first[self.i], second[self.j], self.position, self.warp, self.other, self.correlation)


def _as_images(small: Bytes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(small)).view(-1, 1, S, S)


def _position(x: Tensor, k: int) -> Tensor:
    """Returns images (..., H, W) in one of eight positions: rotated by k quarters, and the same mirrored."""
    return (x.flip(-1) if k >= 4 else x).rot90(k % 4, (-2, -1))


KINDS = ("near", "rotated", "rotated", "rotated", "mirrored", "mirrored", "mirrored", "mirrored")
SYMMETRIES, SYMMETRIC = (2, 4, 6), 0.5  # rotated by half, and mirrored both ways; correlation from which one is examined
INVERSE = np.array([0, 3, 2, 1, 4, 5, 6, 7])


def _windows() -> list[tuple[int, int, int, int]]:
    """Returns top, left, height and width of windows in pixels of S: the whole, and parts of both sides or of one."""
    windows = [(0, 0, S, S)]
    for side in (29, 26, 22):
        cut = S - side
        windows += [(t, u, side, side) for t, u in ((cut // 2, cut // 2), (0, 0), (0, cut), (cut, 0), (cut, cut))]
        windows += [(0, 0, S, side), (0, cut, S, side), (0, 0, side, S), (cut, 0, side, S)]
    return windows


WINDOWS = _windows()
WARPS = torch.tensor([(h / S, t / S, w / S, u / S) for t, u, h, w in WINDOWS], dtype=torch.float32)


def _evened(gray: Tensor) -> Tensor:
    """Returns images (N, 1, S, S) of bytes whose local contrast is evened out."""
    x = gray.float() / 255
    mean = F.avg_pool2d(x, EVEN, 1, EVEN // 2, count_include_pad=False)
    variance = F.avg_pool2d((x - mean).square(), EVEN, 1, EVEN // 2, count_include_pad=False)
    wide = x - x.mean((2, 3), keepdim=True)
    return wide / (variance.sqrt() + 0.5 * wide.square().mean((2, 3), keepdim=True).sqrt() + 0.01)


def _descriptors(gray: Tensor) -> Iterator[Tensor]:
    """Yields unit vectors (N, 64) of each window: means of evened images (N, 1, S, S)."""
    evened = torch.cat([_evened(part) for part in gray.split(TOGETHER)])
    for top, left, height, width in WINDOWS:
        y = F.adaptive_avg_pool2d(evened[..., top : top + height, left : left + width], CELLS).flatten(1)
        yield F.normalize(y - y.mean(1, keepdim=True), dim=1)


def _signs(gray: Tensor) -> Tensor:
    """Returns unit vectors (N, 112): signs of the differences of neighboring means."""
    y = torch.cat([F.adaptive_avg_pool2d(part.float(), CELLS) for part in gray.split(TOGETHER)])
    signs = torch.cat([(y[..., 1:] - y[..., :-1]).flatten(1), (y[..., 1:, :] - y[..., :-1, :]).flatten(1)], 1)
    return F.normalize(signs.sign(), dim=1)


def _neighbors_of(a: Tensor, b: Tensor, *, one: bool) -> Floats:
    """Returns rows of i, j, position of i, window (below 0: of j), and cosine, (P, 5), of images (N, 1, S, S) and others."""
    found: list[Tensor] = []

    def search(bank: "_Exact | _Clustered", query: Tensor, position: int, window: int) -> None:
        value, near = bank.nearest(query, NEAREST + 1)
        row, kept = torch.arange(len(value))[:, None].expand_as(near), value >= LEAST
        i, j = (near[kept], row[kept]) if window < 0 else (row[kept], near[kept])
        found.append(torch.stack([i, j, torch.full_like(i, position), torch.full_like(i, window), value[kept]], 1).double())

    ours, theirs = list(_descriptors(a)), list(_descriptors(b))
    bank = _index(theirs[0])
    for k in range(len(KINDS)):
        search(bank, _position(ours[0].view(-1, CELLS, CELLS), k).flatten(1), k, 0)
    for w in range(1, len(WINDOWS)):
        search(bank, ours[w], 0, w)
    if not one:  # a window of another image, too
        swapped = _index(ours[0])
        for w in range(1, len(WINDOWS)):
            search(swapped, theirs[w], 0, -w)
    search(_index(_signs(b)), _signs(a), 0, 0)
    return torch.cat(found).numpy()


def _candidates(a: Tensor, b: Tensor, *, one: bool) -> _Tried:
    """Returns the pairs of images (N, 1, S, S) and others that may be duplicates, registered on their S x S pixels."""
    nothing = np.zeros(0, dtype=np.int64)
    if not len(a) or not len(b):
        return _Tried(nothing, nothing, nothing, WARPS[:0], WARPS[:0], WARPS[:0, 0])
    rows = _neighbors_of(a, b, one=one)
    if one:
        rows = rows[rows[:, 0] != rows[:, 1]]
        back = rows[:, 0] > rows[:, 1]
        i, j, position, window, value = rows[back].T
        rows[back] = np.stack([j, i, INVERSE[position.astype(np.int64)], -window, value], 1)
    rows = rows[_first_of_pairs(rows, rows[:, 4], len(b), WAYS)]
    i, j, position, window = rows[:, :4].astype(np.int64).T
    part, whole = WARPS[np.abs(window)], WARPS[:1].expand(len(rows), 4)
    ours, theirs = torch.from_numpy(window > 0)[:, None], torch.from_numpy(window < 0)[:, None]
    warp, other = torch.where(ours, part, whole), torch.where(theirs, part, whole)
    tried = _Tried(i, j, position, warp, other, torch.zeros(len(rows), dtype=torch.float32))
    tried = _registered(tried, a, b)
    tried = tried.where((tried.correlation >= LIKELY).numpy())
    tried = tried.where(_first_of_pairs(np.stack([tried.i, tried.j], 1), tried.correlation.double().numpy(), len(b), 1))
    return tried.where(_partners(tried, 0 if one else len(a)))


def _first_of_pairs(rows: npt.NDArray[np.generic], value: Floats, m: int, n: int) -> Ints:
    """Returns the places of the n rows of largest value of each pair of numbers, the second below m."""
    key = rows[:, 0].astype(np.int64) * m + rows[:, 1].astype(np.int64)
    order = np.lexsort((-value, key))
    start = np.unique(key[order], return_index=True)[1]
    rank = np.arange(len(order)) - np.repeat(start, np.diff(np.append(start, len(order))))
    return np.asarray(order[rank < n])


def _registered(tried: _Tried, a: Tensor, b: Tensor) -> _Tried:
    """Returns pairs whose windows are registered on S x S pixels."""
    found = []
    for rows in np.array_split(np.arange(len(tried)), 1 + len(tried) // PAIRS):
        x, y = a[tried.i[rows]].float(), b[tried.j[rows]].float()
        position = torch.from_numpy(tried.position[rows])
        for k in range(1, len(KINDS)):
            x[position == k] = _position(x[position == k], k)
        warp, other = tried.warp[rows], tried.other[rows]
        for side, steps in ((S // 2, 4), (S, 3)):
            small = F.adaptive_avg_pool2d(x, side)
            frame, _ = warped(F.adaptive_avg_pool2d(y, side), other, side, side)
            warp, value = registered(small, frame[:, 0], warp, steps)
        found.append(torch.cat([warp, value[:, None]], 1))
    done = torch.cat([torch.zeros(0, 5, dtype=torch.float32), *found])
    return replace(tried, warp=done[:, :4], correlation=done[:, 4])


def _partners(tried: _Tried, shift: int) -> Ints:
    """Returns the places of pairs that are among the few best of one of their images."""
    count: dict[int, int] = {}
    kept = []
    for k in np.argsort(-tried.correlation.numpy(), kind="stable").tolist():
        i, j = int(tried.i[k]), int(tried.j[k]) + shift
        if min(count.get(i, 0), count.get(j, 0)) < PARTNERS:
            count[i], count[j] = count.get(i, 0) + 1, count.get(j, 0) + 1
            kept.append(k)
    return np.sort(np.array(kept, dtype=np.int64))


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


# Decisions


def _compared(tried: _Tried, read: Read, other_read: Read) -> Iterator[Agreement]:
    """Yields the agreement of each pair at the size that is read."""

    def image(which: Read) -> Callable[[int], Tensor]:
        return functools.lru_cache(HELD)(lambda i: torch.from_numpy(without_border(which(i)).astype(np.float32)))

    ours, theirs = image(read), image(other_read)
    for k in range(len(tried)):
        x, y = _position(ours(int(tried.i[k])), int(tried.position[k])), theirs(int(tried.j[k]))
        yield compared(x, y, tried.warp[k : k + 1], tried.other[k : k + 1])


def _not_by_symmetry(tried: _Tried, found: list[Agreement], small: Bytes, read: Read) -> Bools:
    """Returns which pairs agree much more than the first image does with itself mirrored or rotated by half."""
    i, own = np.unique(tried.i), dict.fromkeys(tried.i.tolist(), 1.0)
    again, whole = np.repeat(i, len(SYMMETRIES)), WARPS[:1].expand(len(i) * len(SYMMETRIES), 4)
    mirrored = _Tried(again, again, np.tile(SYMMETRIES, len(i)), whole, whole, whole[:, 0])
    mirrored = _registered(mirrored, *[_as_images(small)] * 2)
    mirrored = mirrored.where((mirrored.correlation >= SYMMETRIC).numpy())
    for k, one in zip(mirrored.i.tolist(), _compared(replace(mirrored, warp=mirrored.other), read, read), strict=True):
        own[k] = min(own[k], one.disagreement)
    return np.array([p.disagreement <= max(MARGIN, own[i] / APART) for i, p in zip(tried.i.tolist(), found, strict=True)], bool)


def _apart(tried: _Tried, found: list[Agreement], shift: int) -> Ints:
    """Returns the places of pairs that lie in a set apart from others, without those that a fixture explains."""
    i, j = tried.i, tried.j + shift
    sets = _Sets(len(tried) and int(max(i.max(), j.max())) + 1)
    same = np.array([one.same for one in found], dtype=bool)
    one_shot = components(np.stack([i, j], 1)[same], len(sets.label))
    for k in sorted(range(len(found)), key=lambda k: found[k].disagreement):
        if same[k]:
            sets.merge(int(i[k]), int(j[k]), found[k].disagreement)
        elif one_shot[i[k]] != one_shot[j[k]]:
            sets.meet(int(i[k]), int(j[k]), found[k].disagreement)
    sets.close()
    clear = np.array([one.contradicted == 0 for one in found], dtype=bool)
    whole = torch.cat([*(one.warp for one in found), WARPS[:0]]) - WARPS[0]
    still = (torch.maximum(whole.abs().amax(1), (tried.other - WARPS[0]).abs().amax(1)) <= IN_PLACE).numpy()
    against = still & (tried.position == 0) & ~clear
    count = np.bincount(np.concatenate([i[against], j[against]]), minlength=len(sets.label))
    fixture = against & (np.minimum(count[i], count[j]) >= FIXTURE)
    return np.flatnonzero(same & (sets.label[i] == sets.label[j]) & (sets.label[i] >= 0) & ~fixture)


class _Sets:
    """Sets of n images that grow by pairs in the order of their disagreement; those that lie apart label their members.

    A set lies apart if the least disagreement with another image is much larger than all that held it together.
    """

    def __init__(self, n: int) -> None:
        self.label, self.joined = np.full(n, -1, dtype=np.int64), DisjointSet(range(n))
        self.inside, self.outside = [0.0] * n, [float("inf")] * n  # by the root of each set

    def _label(self, i: int) -> None:
        root = self.joined[i]
        if self.joined.subset_size(i) > 1 and self.outside[root] >= APART * self.inside[root] + MARGIN:
            self.label[[*self.joined.subset(i)]] = root

    def meet(self, i: int, j: int, value: float) -> None:
        """Says that the sets of two images have a pair of a disagreement that is none of duplicates."""
        for root in (self.joined[i], self.joined[j]):
            self.outside[root] = min(self.outside[root], value)

    def merge(self, i: int, j: int, value: float) -> None:
        """Joins the sets of two images."""
        if self.joined.connected(i, j):
            return
        outside = min(self.outside[self.joined[k]] for k in (i, j))
        self.meet(i, j, value)
        self._label(i)
        self._label(j)
        self.joined.merge(i, j)
        root = self.joined[i]
        self.inside[root], self.outside[root] = value, outside

    def close(self) -> None:
        """Labels the sets that are left."""
        for root in {self.joined[i] for i in range(len(self.label))}:
            self._label(root)


def _kind(tried: _Tried, k: int, warp: Tensor) -> str:
    """Returns the kind of a pair."""
    shares = sorted(float(w[0, 0] * w[0, 2]) for w in (warp, tried.other[k : k + 1]))
    cropped = shares[0] < CROPPED * shares[1] and tried.position[k] == 0
    return "cropped" if cropped else KINDS[tried.position[k]]
