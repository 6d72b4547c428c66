"""Images as patches, for methods with a vision transformer: masks, tokens of part of the patches, and what predicts the others.

Shapes: B (or n) images, L = H W patches of a grid, K that are seen, M that are predicted, P prefix tokens (such as the class
token), D features.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vergence.learn.encoders.networks import require_whole_patches
from vergence.utils.checks import as_range, expect, refuse, require_count, require_within

ROUNDS = 100  # samples of an image whose context is too small, for blocks of one size
SIZES = 20  # sizes of the blocks that are tried for a batch
EXAMPLE = "timm:vit_tiny_patch16_224,patch_size=4"


def patches(x: Tensor, side: int) -> Tensor:
    """Returns the patches of images, (B, C, H, W) -> (B, L, side^2 C): row by row, each by rows, columns, then channels."""
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
    expect(0 < n < tokens, f"a mask_ratio that leaves some of the {tokens} patches visible", f"{ratio:g}", "change it")
    return n


def random_masks(n: int, tokens: int, ratio: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the indices of the visible patches (n, K) and of the masked ones (n, L - K), each image's at random."""
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

    Contexts are larger than those of the released code: by about one half on a grid of 8, a sixth on 14 and a tenth on 16. There
    a block never reaches the last row and column, one number decides its share and its aspect, and a context that stays too
    small overlaps with targets, where here the image gets new blocks, and after 100 of them the batch blocks of another size.

    Of n images of a ``grid`` of patches, height and width; the others are arguments of `vergence.learn.methods.i_jepa.IJepa`.
    """
    require_count(1, targets=targets)
    as_range("target_aspect", aspect)
    scale, context, tokens = as_range("target_scale", scale, 1), as_range("context_scale", context, 1), math.prod(grid)
    enough = int(tokens * scale[0]) >= 1 and int(tokens * context[0]) >= 2
    expect(enough, "blocks of at least one patch", f"{tokens} in an image", "choose smaller patches")
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
    sampled = f"{targets} of {size[0]} x {size[1]} in a grid of {grid[0]} x {grid[1]}"
    refuse(f"target blocks that leave a context of {least} patches", sampled, "lower targets, target_scale or min_context")


def _blocks(n: int, count: int, grid: tuple[int, int], size: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Returns masks (n, count, L) of blocks of one size, each at a uniform place."""
    ranges = []
    for side, length in zip(grid, size, strict=True):
        start = torch.randint(0, side - length + 1, (n, count, 1), generator=generator)
        place = torch.arange(side)
        ranges.append((place >= start) & (place < start + length))
    return (ranges[0][..., :, None] & ranges[1][..., None, :]).flatten(2)


def require_transformer(method: str, encoder: nn.Module, shape: Sequence[int]) -> Any:
    """Returns timm's plain vision transformer in an encoder, whose patches divide images of ``shape`` (C, H, W), or raises."""
    try:
        from timm.models.vision_transformer import VisionTransformer
    except ImportError:
        raise ValueError(f"method '{method}' needs timm: pip install timm, or pip install 'vergence[pretrained]'") from None
    net = encoder[1] if isinstance(encoder, nn.Sequential) and len(encoder) == 2 else encoder
    plain = isinstance(net, VisionTransformer) and isinstance(net.fc_norm, nn.Identity) and net.attn_pool is None
    kind, advice = f"a vision transformer of timm for method '{method}'", f"use `encoder='{EXAMPLE}'`"
    expect(plain, kind, type(net).__name__, advice)
    require_whole_patches(net, shape[1:])
    return net


def split(encoder: nn.Module) -> tuple[nn.Module, Any]:
    """Returns an encoder's two parts: the statistics of the input, and the network."""
    standardize, net = encoder.children()
    return standardize, net


def gathered(x: Tensor, index: Tensor) -> Tensor:
    """Returns the tokens (B, K, D) at positions (B, K) of tokens (B, L, D)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def seen(vit: Any, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """Returns a transformer's tokens (B, P + K, D), prefix tokens first, of K patches at ``keep`` (B, K), by default of all."""
    tokens = vit._pos_embed(vit.patch_embed(x))
    if keep is not None:
        prefix = vit.num_prefix_tokens
        tokens = torch.cat([tokens[:, :prefix], gathered(tokens[:, prefix:], keep)], 1)
    features: Tensor = vit.norm(vit.blocks(vit.norm_pre(tokens)))
    return features


def sincos(dim: int, grid: tuple[int, int]) -> Tensor:
    """Returns sine-cosine embeddings of the positions of a grid, (H W, dim): half for the column, half for the row.

    For a coordinate t and w_i = 10000^(-i / (dim / 4)), i = 0, ..., dim / 4 - 1: sin(t w_i), then cos(t w_i), as in MAE's and
    I-JEPA's code.
    """
    assert dim % 4 == 0, "sine-cosine positions have a width that is a multiple of 4"
    w = 10_000.0 ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim / 4))
    row, column = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in grid), indexing="ij")
    angles = [t.flatten()[:, None] * w for t in (column, row)]
    return torch.cat([f(a) for a in angles for f in (torch.sin, torch.cos)], 1).to(torch.get_default_dtype())


class TokenDecoder(nn.Module):
    """A transformer that predicts tokens at some positions from tokens at others.

    Each token is mapped to ``width`` features and its position added; at every position to predict stands one learned token with
    its position. Linear layers have Xavier's uniform weights.

    ``dim`` and ``out`` are the widths of the tokens that are seen and predicted, ``width`` is a multiple of ``heads`` and of 4;
    ``prefix`` tokens have no position; ``names`` is what names of width and heads begin with in messages.
    """

    positions: Tensor

    def __init__(
        self, dim: int, out: int, grid: tuple[int, int], *, width: int, depth: int, heads: int, prefix: int = 0, names: str = ""
    ) -> None:
        from timm.models.vision_transformer import Block

        super().__init__()
        require_count(**{f"{names}width": width, f"{names}heads": heads, f"{names}depth": depth})
        multiple = f"{names}width to be a multiple of 4 and of {names}heads"
        expect(width % math.lcm(heads, 4) == 0, multiple, f"width {width} and {heads} heads")
        self.prefix = prefix
        self.embed, self.predict = nn.Linear(dim, width), nn.Linear(width, out)
        self.blocks = nn.Sequential(*(Block(width, heads, qkv_bias=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.mask = nn.Parameter(torch.zeros(width))
        self.register_buffer("positions", sincos(width, grid), persistent=False)
        for linear in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, tokens: Tensor, keep: Tensor, masked: Tensor) -> Tensor:
        """Returns tokens (B, M, out) at masked positions (B, M), from (B, P + K, D) with patches at positions ``keep`` (B, K)."""
        x = self.embed(tokens)
        x = torch.cat([x[:, : self.prefix], x[:, self.prefix :] + self.positions[keep]], 1)
        y = self.norm(self.blocks(torch.cat([x, self.mask + self.positions[masked]], 1)))
        predicted: Tensor = self.predict(y[:, -masked.shape[1] :])
        return predicted
