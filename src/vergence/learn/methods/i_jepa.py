"""I-JEPA: a teacher's tokens in blocks of an image are predicted from the tokens of the rest.

M. Assran, Q. Duval, I. Misra, P. Bojanowski, P. Vincent, M. Rabbat, Y. LeCun, N. Ballas, "Self-Supervised Learning from Images
with a Joint-Embedding Predictive Architecture", arXiv:2301.08243. With an encoder on the patches of a context, a narrow
predictor, and a teacher's tokens h of the whole image,

    loss = mean over images, blocks, patches and features of l(predicted, LN(h)),   l(u, v) = d^2 / 2 for d = |u - v| < 1, else
    d - 1/2,   teacher <- m teacher + (1 - m) student, m from 0.996 to 1 (linear).

Targets with mean 0 and variance 1 (LN) and l are the released code's; the paper writes the squared distance. Blocks are those of
`vergence.learn.methods.parts.block_masks`, which names its differences. Positions of the encoder are learned ones, as timm has
them. The evaluated encoder is the teacher's, as in the paper, with averaged tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.learn.methods.core import Gather, ImageMethod, MultiView
from vergence.learn.methods.parts import TokenDecoder, block_masks, gathered, require_transformer, seen, split
from vergence.learn.objectives.core import settings
from vergence.learn.objectives.parts.teachers import follow, frozen_copy
from vergence.learn.views.images import Views
from vergence.utils.checks import expect, require_count, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["IJepa"]

TRIED = 256  # images whose blocks are sampled once before the training: blocks that leave no context are refused there


class IJepa(ImageMethod):
    """I-JEPA: predicts a teacher's tokens in blocks of an image from the tokens of the rest.

    Args:
        encoder: With a plain vision transformer of timm without class token; see `vergence.learn.methods.core.ImageMethod`. It
            becomes the teacher; the student is a copy of it.
        shape: Shape (C, H, W) of the images.
        predictor_width: Width of the predictor.
        predictor_depth: Number of its blocks.
        predictor_heads: Number of its attention heads.
        targets: Number of target blocks.
        target_scale: Range of the share of the patches in a target block.
        target_aspect: Range of its height / width.
        context_scale: Range of the share of the patches in the context block.
        min_context: Least number of patches of a context, the block without the targets.
        momentum: Momentum m of the teacher at the first step, in [0, 1].
    """

    small = settings(
        encoder="timm:vit_tiny_patch16_224,patch_size={patch},embed_dim=96,depth=4,num_heads=3,class_token=False,global_pool=avg",
        options={"predictor_width": 48, "predictor_depth": 2, "predictor_heads": 4, "momentum": 0.97, "min_context": 4},
        crop=(0.6, 1.0), jitter_p=0.0, grayscale=0.0,
    )  # fmt: skip

    def __init__(
        self,
        encoder: nn.Module,
        shape: Sequence[int],
        *,
        predictor_width: int = 384,
        predictor_depth: int = 6,
        predictor_heads: int = 12,
        targets: int = 4,
        target_scale: tuple[float, float] = (0.15, 0.2),
        target_aspect: tuple[float, float] = (0.75, 1.5),
        context_scale: tuple[float, float] = (0.85, 1.0),
        min_context: int = 10,
        momentum: float = 0.996,
    ) -> None:
        super().__init__(encoder, shape)
        require_count(1, min_context=min_context)
        require_within("[0, 1]", momentum=momentum)
        vit = require_transformer("i_jepa", encoder, self.shape)
        advice = "add class_token=False,global_pool=avg to the encoder's name"
        expect(not vit.num_prefix_tokens, "a transformer without class token for method 'i_jepa'", "one with", advice)
        self.grid, self.momentum = tuple(vit.patch_embed.grid_size), momentum
        shares: dict[str, Any] = {"scale": target_scale, "aspect": target_aspect, "context": context_scale}
        self.blocks = {**shares, "targets": targets, "least": min_context}
        block_masks(TRIED, self.grid, torch.Generator().manual_seed(0), **self.blocks)
        self.student = frozen_copy(encoder).requires_grad_()
        self.encoder.requires_grad_(False)
        sizes = {"width": predictor_width, "depth": predictor_depth, "heads": predictor_heads}
        self.predictor = TokenDecoder(vit.embed_dim, vit.embed_dim, self.grid, names="predictor_", **sizes)

    def reset_teacher(self) -> None:
        """Gives the student the encoder's weights."""
        self.student.load_state_dict(self.encoder.state_dict())

    def inputs(self, views: Views) -> MultiView:
        """Returns one view, and the positions of its context and of its target blocks."""
        names = "context", "targets"
        return MultiView(views, numbers=lambda n, g: dict(zip(names, block_masks(n, self.grid, g, **self.blocks), strict=True)))

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the mean error over target blocks, for a view (B, C, H, W), positions (B, K), and positions (B, M, T)."""
        x, context, targets = views
        (standardize, vit), (_, teacher) = split(self.student), split(self.encoder)
        x, blocks = standardize(x), targets.shape[1]
        with torch.no_grad():
            h = upcast_half(seen(teacher, x))
            self.observe(teacher.pool(h), gather)
            h = F.layer_norm(h, h.shape[-1:]).repeat_interleave(blocks, 0)
            target = gathered(h, targets.flatten(0, 1))
        tokens, keep = (part.repeat_interleave(blocks, 0) for part in (seen(vit, x, context), context))
        predicted = upcast_half(self.predictor(tokens, keep, targets.flatten(0, 1)))
        error = F.smooth_l1_loss(predicted, target, reduction="none").view(*targets.shape, -1)
        return {"prediction": gather(error.mean((1, 2, 3))).mean()}

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the teacher toward the student."""
        follow(self.encoder, self.student, self.momentum + (1 - self.momentum) * self.progress)
