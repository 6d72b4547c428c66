"""Masks of patches, sampled for each image: random patches, and the blocks of I-JEPA. Shapes: n images, L = H W patches."""

import math

import torch
from torch import Tensor

from vergence.utils.checks import as_range, expect, require_count, require_within

ROUNDS = 100  # samples of an image whose context is too small, for blocks of one size
SIZES = 20  # sizes of the blocks that are tried for a batch


def patches(x: Tensor, side: int) -> Tensor:
    """Returns the patches of images, (B, C, H, W) -> (B, L, side^2 C): row by row, each by rows, columns, then channels.

    Example:
        >>> patches(torch.arange(16).view(1, 1, 4, 4), 2)[0, 1].tolist()
        [2, 3, 6, 7]
    """
    b, c, height, width = x.shape
    y = x.reshape(b, c, height // side, side, width // side, side)
    return y.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, side * side * c)


def visible(tokens: int, ratio: float) -> int:
    """Returns how many of L patches stay visible: L (1 - ratio), rounded down; at least one, and not all.

    Example:
        >>> visible(64, 0.75)
        16
    """
    require_within("(0, 1)", mask_ratio=ratio)
    expect(tokens >= 2, "an image of at least 2 patches to mask some", tokens, "choose smaller patches")
    n = int(tokens * (1 - ratio) + 1e-9)  # 100 (1 - 0.9) is 10
    advice = "change mask_ratio, or choose smaller patches"
    expect(
        0 < n < tokens, f"a mask_ratio that leaves some of the {tokens} patches visible", f"{ratio:g}, which leaves {n}", advice
    )
    return n


def random_masks(n: int, tokens: int, ratio: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the indices of the visible patches (n, K) and of the masked ones (n, L - K), each image's at random.

    Args:
        n: Number of images.
        tokens: Number of patches L.
        ratio: Share of the patches that are masked, in (0, 1).
        generator: A CPU generator.

    Example:
        >>> keep, masked = random_masks(2, 8, 0.75, torch.Generator().manual_seed(0))
        >>> keep.shape, masked.shape, torch.cat([keep, masked], 1).sort(1).values[0].tolist()
        (torch.Size([2, 2]), torch.Size([2, 6]), [0, 1, 2, 3, 4, 5, 6, 7])
    """
    order = torch.rand(n, tokens, generator=generator, dtype=torch.float64).argsort(1)
    return order[:, : visible(tokens, ratio)], order[:, visible(tokens, ratio) :]


def block_size(
    grid: tuple[int, int], scale: tuple[float, float], aspect: tuple[float, float], generator: torch.Generator
) -> tuple[int, int]:
    """Returns height and width of a block in patches: a share of the patches uniform in ``scale``, and an aspect in ``aspect``.

    With a = int(share L) and r = height / width, height = round(sqrt(a r)) and width = round(sqrt(a / r)), at most the grid's.
    """
    share, ratio = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    area = int(math.prod(grid) * (scale[0] + share * (scale[1] - scale[0])))
    r = aspect[0] + ratio * (aspect[1] - aspect[0])
    height, width = round(math.sqrt(area * r)), round(math.sqrt(area / r))
    return min(max(height, 1), grid[0]), min(max(width, 1), grid[1])


def block_masks(
    n: int,
    grid: tuple[int, int],
    generator: torch.Generator,
    *,
    targets: int = 4,
    scale: tuple[float, float] = (0.15, 0.2),
    aspect: tuple[float, float] = (0.75, 1.5),
    context: tuple[float, float] = (0.85, 1.0),
    least: int = 1,
) -> tuple[Tensor, Tensor]:
    """Returns the patches of a context (n, K) and of target blocks (n, M, T), sampled as I-JEPA's paper says.

    Of a batch, all targets have one size and all context blocks another, at places of each image's own. A context is its block
    without the targets. K is the least number of the batch; longer contexts lose their last patches, as in the released code.

    Contexts are larger than those of the released code: by about one half on a grid of 8, a sixth on 14 and a tenth on 16.
    There a block has at most one row and one column less than the grid, never reaches the last ones, and one number decides its
    share and its aspect; a context that stays too small overlaps with targets, where here the image gets new blocks, and after
    100 of them the batch gets blocks of another size.

    Args:
        n: Number of images.
        grid: Height and width of an image, in patches.
        generator: A CPU generator.
        targets: Number M of target blocks.
        scale: Range of the share of the patches in a target block.
        aspect: Range of height / width of a target block.
        context: Range of the share of the patches in a context block, of aspect 1.
        least: Least number of patches of a context.
    """
    require_count(1, targets=targets)
    as_range("target_aspect", aspect)
    scale, context, tokens = as_range("target_scale", scale, 1), as_range("context_scale", context, 1), math.prod(grid)
    expect(
        int(tokens * scale[0]) >= 1 and int(tokens * context[0]) >= 2,
        "blocks of at least one patch",
        f"{tokens} in an image",
        "choose smaller patches",
    )
    for _ in range(SIZES):
        size = block_size(grid, scale, aspect, generator)
        large = block_size(grid, context, (1.0, 1.0), generator)
        contexts = torch.zeros(n, tokens, dtype=torch.bool)
        blocks = torch.zeros(n, targets, tokens, dtype=torch.bool)
        for _ in range(ROUNDS):
            small = (contexts.sum(1) < least).nonzero()[:, 0]
            if not len(small):
                break
            blocks[small] = _blocks(len(small), targets, grid, size, generator)
            contexts[small] = _blocks(len(small), 1, grid, large, generator)[:, 0] & ~blocks[small].any(1)
        length = int(contexts.sum(1).min())
        if length >= least:
            order = torch.sort(~contexts, dim=1, stable=True).indices  # the context first, in the order of the patches
            return order[:, :length], blocks.nonzero()[:, 2].view(n, targets, -1)
    raise ValueError(
        f"expected target blocks that leave a context of {least} patches, found {targets} of {size[0]} x {size[1]} in a grid "
        f"of {grid[0]} x {grid[1]}; lower targets, target_scale or min_context"
    )


def _blocks(n: int, count: int, grid: tuple[int, int], size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Returns masks (n, count, L) of blocks of one size, each at a uniform place."""
    ranges = []
    for side, length in zip(grid, size, strict=True):
        start = torch.randint(0, side - length + 1, (n, count, 1), generator=generator)
        place = torch.arange(side)
        ranges.append((place >= start) & (place < start + length))
    return (ranges[0][..., :, None] & ranges[1][..., None, :]).flatten(2)
