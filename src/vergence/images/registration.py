"""Registers two images of one scene by scale and shift, and compares what both show, block by block.

A warp is (height, top, width, left) as shares of an image: the window of it that the common frame shows.

Shapes: n pairs; an image (1, H, W) or (3, H, W) of gray values 0..255; warps (n, 4); K blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

__all__: list[str] = []

LEAST, MOST, LONGEST = 32, 256, 512  # pixels of the frame's shorter side, and of its longer one
BLOCK, FINER = 16, 160  # pixels a side of a block; of half as much in frames whose shorter side is smaller than this
OVERLAP = 0.8  # share of the frame that both images cover, at least
STRUCTURE, NOISE, PLAINEST = 2.0, 0.8, 0.5  # gray levels of deviation: of structure, of noise that counts, of a plain block
AGREE, CONTRADICT, PLAIN = 0.85, 0.4, 0.85  # correlation: median of blocks; of one that contradicts; of one of a plain image
UNLIKE, NOISY = 0.2, 0.1  # correlation of noise that differs: median of blocks of noise alone; share of these, at least
MARK, TEXTURED = 0.15, 0.45  # share of blocks that a mark covers, at most, and of those that are not plain, at least
FEWEST, DRAWN = 3, 20  # blocks with structure, at least; of an image with many plain ones
CHROMA, COLORED, COLORS = 0.7, 3.0, 8  # cosine of chroma, gray levels of its deviation, pixels a side
EARLY, HOPELESS = 0.7, 0.8  # correlation of the whole, at a quarter and at half of the size, below which no block is looked at
UNALIKE = 0.5  # disagreement at half of the size, above which the full size is not looked at


@dataclass(frozen=True)
class Agreement:
    """What two registered images say of each other.

    Attributes:
        warp: Window of the first image that the frame shows.
        correlation: Of the gray values of the frame.
        disagreement: 1 - correlation of the structure of a block, on average, in [0, 1].
        contradicted: Blocks that have structure which the other image does not have.
        same: Whether one shot explains both.
    """

    warp: Tensor
    correlation: float
    disagreement: float
    contradicted: int
    same: bool


def warped(x: Tensor, warp: Tensor, h: int, w: int) -> tuple[Tensor, Tensor]:
    """Returns windows of images (n, C, H, W) as (n, C, h, w), and where they lie inside, (n, h, w)."""
    height, top, width, left = warp[:, :, None].unbind(1)
    y = 2 * (height * _centers(x, h) + top) - 1
    x_ = 2 * (width * _centers(x, w) + left) - 1
    grid = torch.stack([x_[:, None, :].expand(-1, h, w), y[:, :, None].expand(-1, h, w)], -1)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False), (grid.abs() <= 1).all(-1)


def _centers(x: Tensor, n: int) -> Tensor:
    """Returns the centers of n pixels in [0, 1]."""
    return (torch.arange(n).to(x) + 0.5) / n


def _standard(x: Tensor, inside: Tensor) -> Tensor:
    """Returns frames (n, h, w) with mean 0 and variance 1 inside, and 0 outside."""
    count = inside.sum((1, 2), keepdim=True).clamp(min=1)
    centered = (x - (x * inside).sum((1, 2), keepdim=True) / count) * inside
    return centered / (centered.square().sum((1, 2), keepdim=True) / count).sqrt().clamp(min=1e-4)


def registered(x: Tensor, v: Tensor, warp: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Returns the warps (n, 4) by which images (n, 1, H, W) agree best with frames (n, h, w), and the correlations (n,).

    Steps of Gauss and Newton on the standardized difference, with the gradient of the frame (inverse composition; Baker and
    Matthews 2004); the best of all steps is kept.
    """
    n, h, w = v.shape
    one = _standard(v, torch.ones_like(v))
    down, across = F.pad((one[:, 2:] - one[:, :-2]) * h / 2, (0, 0, 1, 1)), F.pad((one[..., 2:] - one[..., :-2]) * w / 2, (1, 1))
    y, z = _centers(x, h)[:, None] - 0.5, _centers(x, w) - 0.5
    J = torch.stack([down * y, down, across * z, across], -1).view(n, h * w, 4)
    H = J.mT @ J
    H = H + 1e-3 * (torch.diag_embed(H.diagonal(dim1=1, dim2=2)) + torch.eye(4).to(H))
    best, most = warp, v.new_full((n,), -1.0)
    for step in range(steps + 1):
        u, inside = warped(x, warp, h, w)
        m = inside.to(v)
        a, b = _standard(u[:, 0], m), _standard(v, m)
        value = (a * b).sum((1, 2)) / m.sum((1, 2)).clamp(min=1)
        better = (value > most) & (m.mean((1, 2)) >= OVERLAP)
        best, most = torch.where(better[:, None], warp, best), torch.where(better, value, most)
        if step < steps:
            move = torch.linalg.solve(H, J.mT @ ((a - b) * m).view(n, h * w, 1))[..., 0].clamp(-0.15, 0.15)
            warp = _composed(warp, move)
    return best, most


def _composed(warp: Tensor, move: Tensor) -> Tensor:
    """Returns warps (n, 4) behind the inverse of small moves (n, 4) of the frame about its center."""
    height, top, width, left = warp.unbind(1)
    taller, lower, wider, farther = move.unbind(1)
    tall, wide = height / (1 + taller), width / (1 + wider)
    return torch.stack([tall, top + 0.5 * height - (0.5 + lower) * tall, wide, left + 0.5 * width - (0.5 + farther) * wide], 1)


def _gray(x: Tensor) -> Tensor:
    return x if len(x) == 1 else (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)


def _shown(x: Tensor, warp: Tensor, h: int, w: int) -> tuple[Tensor, Tensor]:
    """Returns an image (C, H, W) at the scale at which its window has h x w pixels, and the window, (1, C, h, w)."""
    size = [max(8, round(pixels / share)) for pixels, share in ((h, float(warp[0, 0])), (w, float(warp[0, 2])))]
    scaled = F.interpolate(x[None], size=size, mode="bilinear", antialias=True)
    return scaled, warped(scaled, warp, h, w)[0]


def _frame(x: Tensor, y: Tensor, warp: Tensor, other: Tensor) -> tuple[int, int]:
    """Returns height and width of the frame of two images (C, H, W): those of the coarser window, multiples of a block."""
    sides = [min(x.shape[k] * float(warp[0, j]), y.shape[k] * float(other[0, j])) for k, j in ((1, 0), (2, 2))]
    scale = max(1.0, LEAST / max(1.0, min(sides)))
    scale *= min(1.0, LONGEST / (scale * max(sides)), MOST / (scale * min(sides)))
    height, width = (max(LEAST, round(scale * side / BLOCK) * BLOCK) for side in sides)
    return height, width


def compared(x: Tensor, y: Tensor, warp: Tensor, other: Tensor) -> Agreement:
    """Compares two images (C, H, W) by windows of both, (1, 4) each, that are nearly registered.

    Example:
        >>> x = 255 * torch.rand(1, 64, 64, generator=torch.Generator().manual_seed(0))
        >>> whole = torch.tensor([[1.0, 0.0, 1.0, 0.0]]).to(x)
        >>> compared(x, 0.5 * x + 20, whole, whole).same, compared(x, x.flip(1), whole, whole).same
        (True, False)
    """
    h, w = _frame(x, y, warp, other)
    gray_x, gray_y = _gray(x), _gray(y)
    for part in (4, 2) if min(h, w) >= 96 else (1,):
        scaled, _ = _shown(gray_x, warp, h // part, w // part)
        _, v = _shown(gray_y, other, h // part, w // part)
        warp, value = registered(scaled, v[:, 0], warp, 4)
        if float(value) < (EARLY if part == 4 else HOPELESS):
            return Agreement(warp, float(value), 1.0, 0, same=False)
        early = _by_blocks(warped(scaled, warp, h // part, w // part)[0], v, None, warp, float(value)) if part == 2 else None
        if early is not None and early.disagreement > UNALIKE:
            return early
    scaled, u = _shown(gray_x, warp, h, w)
    _, v = _shown(gray_y, other, h, w)
    if len(x) == 3 and len(y) == 3 and not _same_colors(x, y, warp, other):
        return Agreement(warp, float(value), 1.0, 0, same=False)
    return _by_blocks(u, v, warped(scaled, warp, h, w)[1], warp, float(value))


def _blurred(x: Tensor, side: int) -> Tensor:
    half = side // 2
    return F.avg_pool2d(F.avg_pool2d(F.pad(x, (half,) * 4, mode="reflect"), (side, 1), 1), (1, side), 1)


def _blocks(x: Tensor, block: int) -> Tensor:
    """Returns blocks of a frame (h, w), (K, block block)."""
    h, w = x.shape
    return x.view(h // block, block, w // block, block).transpose(1, 2).reshape(-1, block * block)


def _by_blocks(u: Tensor, v: Tensor, inside: Tensor | None, warp: Tensor, value: float) -> Agreement:
    """Compares registered frames (1, 1, h, w): structure, which all blocks but those of a mark share, and noise."""
    block = BLOCK if min(u.shape[2:]) >= FINER else BLOCK // 2
    kept = _blocks(torch.ones(u.shape[2:]) if inside is None else inside[0].float(), block).mean(1) > 0.95
    once = [_blurred(z, 3) for z in (u, v)]
    coarse, fine = ([_blocks(z[0, 0], block)[kept] for z in pair] for pair in (
        [z - _blurred(z, 7) for z in once], [z - b for z, b in zip((u, v), once, strict=True)]))  # fmt: skip
    correlation, deviation = _moments(*coarse)
    structured = deviation.amax(0) > STRUCTURE
    if int(structured.sum()) < FEWEST:
        return Agreement(warp, value, 1.0, 0, same=False)
    each, against = correlation[structured].clamp(0, 1), structured & (correlation < CONTRADICT)
    contradicted = int(against.sum())
    noise, amount = _moments(*fine)
    noisy = (amount.amin(0) > NOISE) & ~structured
    level = torch.stack([_blocks(z[0, 0], block)[kept].std(1) for z in (u, v)]).amax(0)
    textured = (level > PLAINEST).float().mean() >= TEXTURED
    drawn = len(each) >= DRAWN and bool(each.min() >= PLAIN)
    same = each.median() >= AGREE and (contradicted <= MARK * len(against) if textured else drawn)
    own = int(noisy.sum()) >= max(FEWEST, NOISY * len(noisy)) and float(noise[noisy].median()) < UNLIKE
    rest = each[each >= CONTRADICT] if textured else each  # a mark says nothing of the rest of a photograph
    return Agreement(warp, value, float(1 - rest.mean()) if len(rest) else 1.0, contradicted, bool(same) and not own)


def _moments(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the correlation of blocks (K, D), (K,), and their deviations, (2, K)."""
    x, y = x - x.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    deviation = torch.stack([x.square().mean(1).sqrt(), y.square().mean(1).sqrt()])
    return (x * y).mean(1) / deviation.prod(0).clamp(min=1e-6), deviation


def _same_colors(x: Tensor, y: Tensor, warp: Tensor, other: Tensor) -> bool:
    """Returns whether the colors of two images differ by no more than a gain and an offset of each channel, or one is gray."""
    u, v = (_shown(z, w, COLORS, COLORS)[1][0].flatten(1) for z, w in ((x, warp), (y, other)))
    if min(float((z - z.mean(0)).std()) for z in (u, v)) <= COLORED:
        return True
    a, b = u - u.mean(1, keepdim=True), v - v.mean(1, keepdim=True)
    b = b * ((a * b).sum(1) / b.square().sum(1).clamp(min=1e-6))[:, None]
    a, b = a - a.mean(0), b - b.mean(0)
    return bool(a.std() <= COLORED) or float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0)) >= CHROMA
