"""Vision transformers of timm on part of the patches, and the narrow transformer that predicts the others.

Shapes: B images, P prefix tokens (such as the class token), K patches that are seen, M that are predicted, D features.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vergence.encoders.networks import require_whole_patches
from vergence.utils.checks import expect, require_count

EXAMPLE = "timm:vit_tiny_patch16_224,patch_size=4"


def require_transformer(method: str, encoder: nn.Module, shape: Sequence[int]) -> Any:
    """Returns timm's plain vision transformer in an encoder, whose patches divide images of ``shape`` (C, H, W).

    Raises:
        ValueError: timm is not installed, or the encoder is another; the message names the method.
    """
    try:
        from timm.models.vision_transformer import VisionTransformer
    except ImportError:
        raise ValueError(f"method '{method}' needs timm: pip install timm (the extra: pip install 'vergence[timm]')") from None
    net = encoder[1] if isinstance(encoder, nn.Sequential) and len(encoder) == 2 else encoder
    plain = isinstance(net, VisionTransformer) and isinstance(net.fc_norm, nn.Identity) and net.attn_pool is None
    kind, advice = f"a vision transformer of timm for method '{method}'", f"use --encoder {EXAMPLE}"
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
    """Returns the tokens (B, P + K, D) that a transformer computes from part of the patches, prefix tokens first.

    Args:
        vit: timm's ``VisionTransformer``.
        x: Images (B, C, H, W), standardized.
        keep: Positions (B, K) of the patches; all by default.
    """
    tokens = vit._pos_embed(vit.patch_embed(x))
    if keep is not None:
        prefix = vit.num_prefix_tokens
        tokens = torch.cat([tokens[:, :prefix], gathered(tokens[:, prefix:], keep)], 1)
    features: Tensor = vit.norm(vit.blocks(vit.norm_pre(tokens)))
    return features


def pooled(vit: Any, tokens: Tensor) -> Tensor:
    """Returns the embedding (B, D) of tokens, as the transformer pools them: the class token, or the mean of the patches."""
    z: Tensor = vit.pool(tokens)
    return z


def sincos(dim: int, grid: tuple[int, int]) -> Tensor:
    """Returns sine-cosine embeddings of the positions of a grid, (H W, dim): half for the column, half for the row.

    For a coordinate t and w_i = 10000^(-i / (dim / 4)), i = 0, ..., dim / 4 - 1: sin(t w_i), then cos(t w_i), as in MAE's and
    I-JEPA's code.

    Example:
        >>> sincos(4, (1, 2))
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0000, 1.0000]])
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

    Args:
        dim: Width of the tokens that are seen.
        out: Width of the tokens that are predicted.
        grid: Height and width of an image, in patches.
        width: Width of the transformer, a multiple of ``heads`` and of 4.
        depth: Number of blocks.
        heads: Number of attention heads.
        prefix: Number of prefix tokens, which have no position.
        names: Names of width and heads in messages.
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
        self.apply(_initialize)
        nn.init.normal_(self.mask, std=0.02)

    def forward(self, tokens: Tensor, keep: Tensor, masked: Tensor) -> Tensor:
        """Returns the predicted tokens (B, M, out).

        Args:
            tokens: Tokens that are seen (B, P + K, D), prefix tokens first.
            keep: Positions (B, K) of those that are patches.
            masked: Positions (B, M) to predict.
        """
        x = self.embed(tokens)
        x = torch.cat([x[:, : self.prefix], x[:, self.prefix :] + self.positions[keep]], 1)
        y = self.norm(self.blocks(torch.cat([x, self.mask + self.positions[masked]], 1)))
        predicted: Tensor = self.predict(y[:, -masked.shape[1] :])
        return predicted


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
