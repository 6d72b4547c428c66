"""Registers two images of one scene by scale and shift, and compares what both show, block by block.

A warp is (height, top, width, left) as shares of an image: the window of it that the common frame shows.

Shapes: n pairs; an image (1, H, W) or (3, H, W) of gray values 0..255; warps (n, 4); K blocks.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

LEAST, MOST, LONGEST = 32, 256, 512  # pixels of the frame's shorter side, and of its longer one
BLOCK, FINER = 16, 160  # pixels per side of a block; of half as much in frames whose shorter side is smaller than this
OVERLAP = 0.8  # share of the frame that both images cover, at least
STRUCTURE, NOISE, PLAINEST = 2.0, 0.8, 0.5  # gray levels of deviation: of structure, of noise that counts, of a plain block
AGREE, CONTRADICT, PLAIN = 0.85, 0.4, 0.85  # correlation: median of blocks; of one that contradicts; of one of a plain image
UNLIKE, NOISY = 0.2, 0.1  # correlation of noise that differs: median of blocks of noise alone; share of these, at least
MARK, TEXTURED = 0.15, 0.45  # share of blocks that a mark covers, at most, and of those that are not plain, at least
FEWEST, DRAWN = 3, 20  # blocks with structure, at least; of an image with many plain ones
CHROMA, COLORED, COLORS = 0.7, 3.0, 8  # cosine of chroma, gray levels of its deviation, pixels per side
EARLY, HOPELESS = 0.7, 0.8  # correlation of the whole, at a quarter and at half of the size, below which no block is compared
DIFFERENT = 0.3  # disagreement at half of the size, above which the full size is not compared
WHOLE = (1.0, 0.0, 1.0, 0.0)  # warp
STILL = 5e-4  # share of the frame, below which a move ends the steps


@dataclass(frozen=True)
class Agreement:
    """How far two registered images agree."""

    warp: Tensor  # window of the first image that the frame shows
    correlation: float  # of the gray values of the frame
    disagreement: float  # 1 - correlation of the structure of a block, on average, in [0, 1]
    contradicted: int  # blocks that have structure which the other image does not have
    same: bool  # whether one shot explains both


def warped(x: Tensor, warp: Tensor, h: int, w: int) -> tuple[Tensor, Tensor]:
    """Returns windows of images (n, C, H, W) as (n, C, h, w), and where they lie inside, (n, h, w)."""
    if x.shape[2:] == (h, w) and bool((warp == warp.new_tensor(WHOLE)).all()):
        return x, torch.ones(len(x), h, w, dtype=torch.bool)
    height, top, width, left = warp[:, :, None].unbind(1)
    down, across = 2 * (height * _centers(h) + top) - 1, 2 * (width * _centers(w) + left) - 1
    grid = torch.stack([across[:, None, :].expand(-1, h, w), down[:, :, None].expand(-1, h, w)], -1)
    inside = (down.abs() <= 1)[:, :, None] & (across.abs() <= 1)[:, None, :]
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False), inside


@functools.cache
def _centers(n: int) -> Tensor:
    """Returns the centers of n pixels in [0, 1]."""
    return (torch.arange(n, dtype=torch.float32) + 0.5) / n


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
    y, z = _centers(h)[:, None] - 0.5, _centers(w) - 0.5
    J = torch.stack([down * y, down, across * z, across], -1).view(n, h * w, 4)
    H = J.mT @ J
    H = H + 1e-3 * (torch.diag_embed(H.diagonal(dim1=1, dim2=2)) + torch.eye(4).to(H))
    solved = torch.linalg.solve(H, J.mT)
    best, most = warp, v.new_full((n,), -1.0)
    for _ in range(steps + 1):
        u, inside = warped(x, warp, h, w)
        m = inside.to(v)
        a, b = _standard(u[:, 0], m), _standard(v, m)
        value = (a * b).sum((1, 2)) / m.sum((1, 2)).clamp(min=1)
        better = (value > most) & (m.mean((1, 2)) >= OVERLAP)
        best, most = torch.where(better[:, None], warp, best), torch.where(better, value, most)
        move = (solved @ ((a - b) * m).view(n, h * w, 1))[..., 0].clamp(-0.15, 0.15)
        if bool((move.abs() < STILL).all()):
            break
        (height, top, width, left), (taller, lower, wider, farther) = warp.unbind(1), move.unbind(1)
        tall, wide = height / (1 + taller), width / (1 + wider)  # behind the inverse of small moves about the frame's center
        top, left = top + 0.5 * height - (0.5 + lower) * tall, left + 0.5 * width - (0.5 + farther) * wide
        warp = torch.stack([tall, top, wide, left], 1)
    return best, most


def _gray(x: Tensor) -> Tensor:
    return x if len(x) == 1 else (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)


def _scaled(x: Tensor, warp: Tensor, h: int, w: int) -> Tensor:
    """Returns an image (C, H, W) at the scale at which its window has h x w pixels, (1, C, ...)."""
    size = [max(8, round(pixels / share)) for pixels, share in ((h, float(warp[0, 0])), (w, float(warp[0, 2])))]
    return F.interpolate(x[None], size=size, mode="bilinear", antialias=True)


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
        scaled = _scaled(gray_x, warp, h // part, w // part)
        v, _ = warped(_scaled(gray_y, other, h // part, w // part), other, h // part, w // part)
        warp, value = registered(scaled, v[:, 0], warp, 4)
        if float(value) < (EARLY if part == 4 else HOPELESS):
            return Agreement(warp, float(value), 1.0, 0, same=False)
        if part == 2:
            early = _by_blocks(*warped(scaled, warp, h // 2, w // 2), v, warp, float(value))
            if early.disagreement > DIFFERENT:
                return early
    if len(x) == 3 and len(y) == 3 and not _same_colors(x, y, warp, other):
        return Agreement(warp, float(value), 1.0, 0, same=False)
    v, _ = warped(_scaled(gray_y, other, h, w), other, h, w)
    return _by_blocks(*warped(_scaled(gray_x, warp, h, w), warp, h, w), v, warp, float(value))


def _blurred(x: Tensor, side: int) -> Tensor:
    (h, w), y = x.shape[2:], F.pad(x, (side // 2,) * 4, mode="reflect")  # sums of shifted images are faster than pooling
    rows = sum((y[:, :, k : k + h] for k in range(1, side)), y[:, :, :h])
    return sum((rows[..., k : k + w] for k in range(1, side)), rows[..., :w]) / side**2


def _blocks(x: Tensor, block: int) -> Tensor:
    """Returns blocks of frames (n, 1, h, w), (n, K, block block)."""
    n, _, h, w = x.shape
    return x.view(n, h // block, block, w // block, block).transpose(2, 3).reshape(n, -1, block * block)


def _by_blocks(u: Tensor, inside: Tensor, v: Tensor, warp: Tensor, value: float) -> Agreement:
    """Compares registered frames (1, 1, h, w): structure, which all blocks but those of a mark share, and noise."""
    block = BLOCK if min(u.shape[2:]) >= FINER else BLOCK // 2
    kept = _blocks(inside[None].float(), block)[0].mean(1) > 0.95
    both = torch.cat([u, v])
    once = _blurred(both, 3)
    (correlation, deviation), (noise, amount), (_, level) = (
        _moments(_blocks(z, block)[:, kept]) for z in (once - _blurred(once, 7), both - once, both)
    )
    structured = deviation.amax(0) > STRUCTURE
    if int(structured.sum()) < FEWEST:
        return Agreement(warp, value, 1.0, 0, same=False)
    each, against = correlation[structured].clamp(0, 1), structured & (correlation < CONTRADICT)
    contradicted = int(against.sum())
    noisy = (amount.amin(0) > NOISE) & ~structured
    textured = (level.amax(0) > PLAINEST).float().mean() >= TEXTURED
    drawn = len(each) >= DRAWN and bool(each.min() >= PLAIN)
    same = each.median() >= AGREE and (contradicted <= MARK * len(against) if textured else drawn)
    own = int(noisy.sum()) >= max(FEWEST, NOISY * len(noisy)) and float(noise[noisy].median()) < UNLIKE
    rest = each[each >= CONTRADICT] if textured else each  # a mark says nothing of the rest of a photograph
    return Agreement(warp, value, float(1 - rest.mean()) if len(rest) else 1.0, contradicted, bool(same) and not own)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the correlation of blocks (2, K, D) of two frames, (K,), and their deviations, (2, K)."""
    x = x - x.mean(2, keepdim=True)
    deviation = x.square().mean(2).sqrt()
    return x.prod(0).mean(1) / deviation.prod(0).clamp(min=1e-6), deviation


def _same_colors(x: Tensor, y: Tensor, warp: Tensor, other: Tensor) -> bool:
    """Returns whether the colors of two images differ by no more than a gain and an offset of each channel, or one is gray."""
    u, v = (warped(_scaled(z, w, COLORS, COLORS), w, COLORS, COLORS)[0][0].flatten(1) for z, w in ((x, warp), (y, other)))
    if min(float((z - z.mean(0)).std()) for z in (u, v)) <= COLORED:
        return True
    a, b = u - u.mean(1, keepdim=True), v - v.mean(1, keepdim=True)
    b = b * ((a * b).sum(1) / b.square().sum(1).clamp(min=1e-6))[:, None]
    a, b = a - a.mean(0), b - b.mean(0)
    return bool(a.std() <= COLORED) or float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0)) >= CHROMA
