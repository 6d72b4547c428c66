"""Two views through an encoder into an objective: every objective of the library is trained this way."""

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from vergence.methods.core import Gather, Method
from vergence.objectives.core import Objective
from vergence.utils import linalg

__all__ = ["PairedMethod", "Side"]

Side = Literal["context", "target"]  # the first view or the second


class PairedMethod(Method):
    """An objective on the embeddings of two views.

    Args:
        encoder: Items (B, ...) -> embeddings (B, D).
        objective: The density on pairs of embeddings, built for the projector's width if there is one.
        projector: Head between encoder and objective; evaluation reads the encoder without it.
        target_encoder: Encoder of the second view (dual encoders); the first one by default.
        target_projector: Head behind ``target_encoder``, of the same output width; ``projector`` by default.
        teacher: Momentum m in [0, 1) of a teacher, w <- m w + (1 - m) student, whose embeddings are the targets. The terms
            are then the means of those of (student a, teacher b) and (student b, teacher a), and the objective's bank takes
            the first pair. With a second encoder the teacher has copies of both, the second pair is (teacher a, student b),
            so that a context stays a context, and the bank takes (teacher a, teacher b).

    Raises:
        ValueError: The momentum is out of range, or there is a second projector without a second encoder.

    Example:
        >>> from vergence.objectives.vje import VJE
        >>> method = PairedMethod(nn.Linear(5, 8), VJE(8))
        >>> sorted(method((torch.randn(4, 5), torch.randn(4, 5)), gather=lambda z: z))
        ['directional', 'kl', 'radial']
    """

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective,
        *,
        projector: nn.Module | None = None,
        target_encoder: nn.Module | None = None,
        target_projector: nn.Module | None = None,
        teacher: float | None = None,
    ) -> None:
        super().__init__()
        if teacher is not None and not 0 <= teacher < 1:
            raise ValueError(f"expected a teacher momentum in [0, 1), found {teacher}")
        if target_projector is not None and target_encoder is None:
            raise ValueError("expected a target_encoder before the target_projector, found none; give both, or neither")
        self.encoder = encoder
        self.objective = objective
        self.projector = nn.Identity() if projector is None else projector
        self.target_encoder = target_encoder
        self.target_projector = target_projector
        self.momentum = teacher
        self.teacher = None if teacher is None else _frozen_copy(self.branch("context"))
        self.target_teacher = None if teacher is None or target_encoder is None else _frozen_copy(self.branch("target"))
        self._last: tuple[Tensor, Tensor] | None = None

    def branch(self, side: Side) -> nn.Sequential:
        """Returns encoder and projector of a side: items (B, ...) -> embeddings in the objective's space."""
        if side == "context" or self.target_encoder is None:
            return nn.Sequential(self.encoder, self.projector)
        return nn.Sequential(self.target_encoder, self.projector if self.target_projector is None else self.target_projector)

    def target_network(self) -> nn.Module:
        """Returns what embeds targets as the objective's density knows them: with a teacher, that."""
        if self.teacher is None:
            return self.branch("target")
        return self.teacher if self.target_teacher is None else self.target_teacher

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the objective's terms for two views."""
        a, b = views
        za, zb = gather(linalg.upcast_half(self.branch("context")(a))), gather(linalg.upcast_half(self.branch("target")(b)))
        with torch.autocast(za.device.type, enabled=False):  # an objective's sums and factorizations want float32
            if self.teacher is None:
                self._last = za.detach(), zb.detach()
                return self._terms(za, zb)
            ta = self._targets(self.teacher, a, gather)
            tb = self._targets(self.teacher if self.target_teacher is None else self.target_teacher, b, gather)
            self._last = za.detach(), tb
            if self.target_teacher is not None:
                self._last = ta, tb  # a bank's positives and negatives are then of one network
            ab = self._terms(za, tb)
            ba = self._terms(zb, ta) if self.target_teacher is None else self._terms(ta, zb)
        return {term: 0.5 * (ab[term] + ba[term]) for term in ab}

    def _terms(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.objective(za, zb)
        return terms

    @torch.no_grad()
    def _targets(self, teacher: nn.Module, x: Tensor, gather: Gather) -> Tensor:
        return gather(linalg.upcast_half(teacher(x)))

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the objective's bank and the teacher."""
        assert self._last is not None, "after_step before forward"
        self.objective.update(*self._last)
        sides: tuple[tuple[nn.Module | None, Side], ...] = ((self.teacher, "context"), (self.target_teacher, "target"))
        for teacher, side in sides:
            if teacher is not None and self.momentum is not None:
                _follow(teacher, self.branch(side), self.momentum)

    def embeddings(self) -> Tensor | None:
        """Returns the last batch's embeddings of the first view, (B, D)."""
        return None if self._last is None else self._last[0]

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Returns what the objective watches."""
        assert self._last is not None, "diagnostics before forward"
        return self.objective.diagnostics(*self._last)


def _frozen_copy(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).requires_grad_(False)


def _follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Moves the teacher's parameters toward the student's, and copies its buffers."""
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        t.lerp_(s, 1 - momentum)
    for kept, now in zip(teacher.buffers(), student.buffers(), strict=True):
        kept.copy_(now)
