"""Masked autoencoder: the pixels of masked patches are predicted from the visible ones.

K. He, X. Chen, S. Xie, Y. Li, P. Dollar, R. Girshick, "Masked Autoencoders Are Scalable Vision Learners", arXiv:2111.06377. A
vision transformer sees a random quarter of the patches; a narrow one gets its tokens, one learned token at each masked position,
and all positions, and predicts the pixels there:

    loss = mean over images and masked patches of |x_p - y_p|^2 / (side^2 C).

A mean over pixels, as in the paper and the released code, not the sum that other terms of this library are; pixels are those of
the standardized image. Differences: the encoder is timm's, with its initialization and learned positions (the paper's are fixed
sine-cosine ones, as the decoder's are here), and the decoder predicts masked patches only, which is the same loss.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from vergence.learn.methods.core import Gather, ImageMethod, MultiView
from vergence.learn.methods.parts import TokenDecoder, gathered, patches, random_masks, require_transformer, seen, split, visible
from vergence.learn.objectives.core import settings
from vergence.learn.views.images import Views
from vergence.utils.checks import expect
from vergence.utils.linalg import upcast_half

__all__ = ["MaskedAutoencoder"]


def normalized(x: Tensor) -> Tensor:
    """Returns patches (B, L, P) with mean 0 and variance 1 (divisor P - 1), (x - mean) / sqrt(var + 1e-6)."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-6).sqrt()


def masked_error(target: Tensor, predicted: Tensor, masked: Tensor) -> Tensor:
    """Returns the mean squared error (B,) of predictions (B, M, P) of the ``masked`` ones (B, M) of all patches (B, L, P)."""
    return (gathered(target, masked) - predicted).square().mean((1, 2))


class MaskedAutoencoder(ImageMethod):
    """A masked autoencoder: predicts the pixels of masked patches from the visible ones.

    Args:
        encoder: With a plain vision transformer of timm; see `vergence.learn.methods.core.ImageMethod`.
        shape: Shape (C, H, W) of the images.
        mask_ratio: Share of the patches that are masked, in (0, 1).
        decoder_width: Width of the decoder.
        decoder_depth: Number of its blocks.
        decoder_heads: Number of its attention heads.
        normalize_patches: Whether each patch of the target has mean 0 and variance 1 (the paper's better one; off in lightly).
    """

    small = settings(
        encoder="timm:vit_tiny_patch16_224,patch_size={patch},embed_dim=96,depth=4,num_heads=3,global_pool=avg",
        options={"decoder_width": 64, "decoder_depth": 2, "decoder_heads": 4},
        crop=(0.6, 1.0), jitter_p=0.0, grayscale=0.0, betas=(0.9, 0.95),
    )  # fmt: skip

    def __init__(
        self,
        encoder: nn.Module,
        shape: Sequence[int],
        *,
        mask_ratio: float = 0.75,
        decoder_width: int = 512,
        decoder_depth: int = 8,
        decoder_heads: int = 16,
        normalize_patches: bool = False,
    ) -> None:
        super().__init__(encoder, shape)
        vit = require_transformer("masked_autoencoder", encoder, self.shape)
        self.grid, self.side = tuple(vit.patch_embed.grid_size), vit.patch_embed.patch_size[0]
        pixels = self.side**2 * self.shape[0]
        expect(pixels > 1 or not normalize_patches, "patches of at least 2 numbers to normalize", "1", "raise patch_size")
        self.mask_ratio, self.normalize_patches = mask_ratio, normalize_patches
        visible(self.grid[0] * self.grid[1], mask_ratio)
        sizes = {"width": decoder_width, "depth": decoder_depth, "heads": decoder_heads, "prefix": vit.num_prefix_tokens}
        self.decoder = TokenDecoder(vit.embed_dim, pixels, self.grid, names="decoder_", **sizes)

    def inputs(self, views: Views) -> MultiView:
        """Returns one view, and the positions of its visible and of its masked patches."""
        names, tokens = ("keep", "masked"), self.grid[0] * self.grid[1]
        return MultiView(views, numbers=lambda n, g: dict(zip(names, random_masks(n, tokens, self.mask_ratio, g), strict=True)))

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the mean squared error over masked patches, for a view and both kinds of positions."""
        x, keep, masked = views
        standardize, vit = split(self.encoder)
        x = standardize(x)
        tokens = seen(vit, x, keep)
        self.observe(vit.pool(tokens), gather)
        target = patches(x, self.side)
        target = normalized(target) if self.normalize_patches else target
        predicted = upcast_half(self.decoder(tokens, keep, masked))
        return {"reconstruction": gather(masked_error(target, predicted, masked)).mean()}
