"""DINO: a student predicts a teacher's distribution over prototypes, from small crops and from the other large crop.

M. Caron, H. Touvron, I. Misra, H. Jegou, J. Mairal, P. Bojanowski, A. Joulin, "Emerging Properties in Self-Supervised Vision
Transformers", arXiv:2104.14294. With outputs g of heads of K prototypes, temperatures s and t, and a center c,

    P_t(x) = softmax((g_teacher(x) - c) / t),   P_s(x) = softmax(g_student(x) / s),
    loss = mean over images and pairs (large crop x, another crop x') of -sum_k P_t(x)_k log P_s(x')_k        (eq. 3),
    c <- m c + (1 - m) mean of g_teacher over the batch,   teacher <- l teacher + (1 - l) student, l from 0.996 to 1 (cosine).

The loss and its center are those of the released code, as in lightly. The evaluated encoder is the teacher's, as in the paper.
Differences from the released code: the output layer does not move in the first hundredth of the steps (there: in the
first of 100 epochs), the teacher's temperature is constant (the paper also raises it, from 0.04 to 0.07), and
a run's ``clip`` bounds the norm of all gradients (there: that of each weight's).
"""

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.learn.encoders.networks import width
from vergence.learn.methods.core import Gather, ImageMethod, MultiView
from vergence.learn.objectives.core import settings
from vergence.learn.objectives.parts.teachers import cosine, follow, frozen_copy
from vergence.learn.views.images import ImageViews, Views
from vergence.utils.checks import require_count, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["Dino"]

FIRST: dict[str, Any] = {"blur": 1.0, "solarize": 0.0}
SECOND: dict[str, Any] = {"blur": 0.1, "solarize": 0.2}
SMALL: dict[str, Any] = {"blur": 0.5, "solarize": 0.0}


class PrototypeHead(nn.Module):
    """DINO's head: (B, D) -> similarities (B, K) in [-1, 1] to K unit vectors.

    Three linear layers with GELU between them, normalization to length 1, and the product with K vectors of length 1, which is
    the released code's weight-normalized layer of fixed gain. Weights of the first three are truncated normal (0.02).
    """

    def __init__(self, dim: int, outputs: int, *, hidden: int = 2048, bottleneck: int = 256, batch_norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, o in itertools.pairwise((dim, hidden, hidden)):
            layers += [nn.Linear(i, o, bias=not batch_norm), *([nn.BatchNorm1d(o)] if batch_norm else []), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, bottleneck))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        self.prototypes = nn.Linear(bottleneck, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the similarities (B, K)."""
        return F.linear(F.normalize(self.layers(x), dim=-1), F.normalize(self.prototypes.weight, dim=-1))


class CenteredCrossEntropy(nn.Module):
    """The loss of outputs (B, K) of several crops, eq. 3, with the center c that keeps the teacher from one output for all."""

    center: Tensor

    def __init__(self, outputs: int, temperature: float, teacher_temperature: float, momentum: float) -> None:
        super().__init__()
        self.temperature, self.teacher_temperature, self.momentum = temperature, teacher_temperature, momentum
        self.register_buffer("center", torch.zeros(1, 1, outputs))

    def forward(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Returns the mean of -sum_k P_t(x)_k log P_s(x')_k over images and pairs of different crops, a scalar.

        Args:
            targets: Outputs of the teacher for T crops, (T, B, K), without gradient.
            outputs: Outputs of the student for S >= T crops, of which the first T are the teacher's, (S, B, K).
        """
        teacher = ((targets - self.center) / self.teacher_temperature).softmax(-1)
        student = (outputs / self.temperature).log_softmax(-1)
        pairs = -torch.einsum("tbk,sbk->ts", teacher, student).fill_diagonal_(0)
        return pairs.sum() / ((pairs.numel() - len(targets)) * targets.shape[1])

    @torch.no_grad()
    def update_center(self, targets: Tensor, gather: Gather) -> None:
        """Moves the center toward the mean of the teacher's outputs (T, B, K) of all processes, c <- m c + (1 - m) mean."""
        mean = gather(targets.mean((0, 1), keepdim=True)).mean(0, keepdim=True)
        self.center.copy_(self.center * self.momentum + mean * (1 - self.momentum))


class Dino(ImageMethod):
    """DINO: a student predicts a teacher's outputs for large crops from these and from several small crops.

    A run's views say how many: ``n_views`` and ``local_views``, 2 and 8 in the paper, where the area of large crops, ``crop``, is
    in (0.4, 1).

    Args:
        encoder: See `vergence.learn.methods.core.ImageMethod`; a transformer takes small crops with ``dynamic_img_size=True``. It
            becomes the teacher; the student is a copy of it.
        shape: Shape (C, H, W) of the images.
        outputs: Number K of prototypes.
        hidden: Width of the heads' hidden layers.
        bottleneck: Width of the vector that is compared with the prototypes.
        batch_norm: Whether the heads' hidden layers are batch-normalized. Embeddings that are pooled after a ReLU, as those of
            convolutional networks, are nearly equal before training; then heads without it can end at equal outputs for all.
            Crops of each size have their own statistics; the released code passes all crops through the head at once.
        asymmetric: Whether the first large crop is always blurred, the others with probability 0.1 and solarized with 0.2, and
            small crops blurred with 0.5, as in the paper; otherwise all crops have the run's strengths.
        temperature: Of the student, s.
        teacher_temperature: Of the teacher, t.
        center_momentum: Momentum m of the center, in [0, 1).
        momentum: Momentum l of the teacher at the first step, in [0, 1].
        fixed_prototypes: Share of the steps, at the start, in which the output layer does not move, in [0, 1].
    """

    multi_crop: ClassVar[bool] = True
    small = settings(
        crop=(0.4, 1.0), lr=5e-4, local_views=2,
        options={"outputs": 1024, "hidden": 512, "bottleneck": 128, "batch_norm": True, "asymmetric": False, "momentum": 0.99},
    )  # fmt: skip

    def __init__(
        self,
        encoder: nn.Module,
        shape: Sequence[int],
        *,
        outputs: int = 65_536,
        hidden: int = 2048,
        bottleneck: int = 256,
        batch_norm: bool = False,
        asymmetric: bool = True,
        temperature: float = 0.1,
        teacher_temperature: float = 0.04,
        center_momentum: float = 0.9,
        momentum: float = 0.996,
        fixed_prototypes: float = 0.01,
    ) -> None:
        super().__init__(encoder, shape)
        require_count(1, outputs=outputs, hidden=hidden, bottleneck=bottleneck)
        require_within("(0, inf)", temperature=temperature, teacher_temperature=teacher_temperature)
        require_within("[0, 1)", center_momentum=center_momentum)
        require_within("[0, 1]", momentum=momentum, fixed_prototypes=fixed_prototypes)
        self.asymmetric, self.momentum, self.fixed_prototypes = asymmetric, momentum, fixed_prototypes
        self.student = frozen_copy(encoder).requires_grad_()
        dim = width(encoder, self.shape)
        self.head = PrototypeHead(dim, outputs, hidden=hidden, bottleneck=bottleneck, batch_norm=batch_norm)
        self.encoder.requires_grad_(False)
        self.teacher_head = frozen_copy(self.head)
        self.loss = CenteredCrossEntropy(outputs, temperature, teacher_temperature, center_momentum)
        self.head.prototypes.weight.register_hook(lambda gradient: gradient * (not self.frozen()))

    def reset_teacher(self) -> None:
        """Gives the student the encoder's weights."""
        self.student.load_state_dict(self.encoder.state_dict())

    def inputs(self, views: Views) -> MultiView:
        """Returns the large crops and the small ones."""
        if not isinstance(views, ImageViews):
            raise ValueError(f"expected views of images for method 'dino', found {type(views).__name__}: choose another method")
        self.n_local, kinds = views.local_views, views.kinds()
        if self.asymmetric:
            strengths = [FIRST, *[SECOND] * (views.n_views - 1), *[SMALL] * views.local_views]
            kinds = tuple(kind.changed(**own) for kind, own in zip(kinds, strengths, strict=True))
        return MultiView(*kinds)

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the mean cross-entropy, for large crops and any number of small ones."""
        n = len(views) - self.n_local
        groups = [torch.cat(part) for part in (views[:n], views[n:]) if part]  # one pass for each size
        outputs = [crop for group in groups for crop in self.head(self.student(group)).split(len(views[0]))]
        with torch.no_grad():
            z = self.encoder(groups[0])
            targets = self.teacher_head(z).split(len(views[0]))
        self.observe(z[: len(views[0])], gather)
        with torch.autocast(z.device.type, enabled=False):
            stacked = upcast_half(torch.stack(targets))
            loss = self.loss(stacked, upcast_half(torch.stack(outputs)))
            self.loss.update_center(stacked, gather)
        return {"cross_entropy": gather(loss[None]).mean()}

    def frozen(self) -> tuple[Tensor, ...]:
        """Returns the prototypes at the start, so that an optimizer's averages of their gradient begin when they are released."""
        return (self.head.prototypes.weight,) if self.progress < self.fixed_prototypes else ()

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the teacher toward the student."""
        momentum = cosine(self.momentum, 1.0, self.progress)
        follow(self.encoder, self.student, momentum)
        follow(self.teacher_head, self.head, momentum)
