"""Two views through an encoder into an objective: every objective of the library is trained this way."""

import copy

import torch
from torch import Tensor, nn

from vergence import linalg
from vergence.methods.core import Gather, Method
from vergence.objectives.core import Objective

__all__ = ["PairedMethod"]


class PairedMethod(Method):
    """An objective on the embeddings of two views.

    Args:
        encoder: Items (B, ...) -> embeddings (B, D).
        objective: The density on pairs of embeddings, built for the projector's width if there is one.
        projector: Head between encoder and objective; evaluation reads the encoder without it.
        target_encoder: Encoder of the second view where it is another kind of data; the same by default.
        teacher: Momentum m in [0, 1) of a teacher, w <- m w + (1 - m) student, whose embeddings are the targets. The terms
            are then the means of those of (student a, teacher b) and (student b, teacher a), and the objective's bank takes
            the first pair.

    Raises:
        ValueError: The momentum is out of range, or is combined with a second encoder.

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
        teacher: float | None = None,
    ) -> None:
        super().__init__()
        if teacher is not None and not 0 <= teacher < 1:
            raise ValueError(f"expected a teacher momentum in [0, 1), found {teacher}")
        if teacher is not None and target_encoder is not None:
            raise ValueError("a teacher and a second encoder cannot be combined; choose one")
        self.encoder = encoder
        self.objective = objective
        self.projector = nn.Identity() if projector is None else projector
        self.target_encoder = target_encoder
        self.momentum = teacher
        self.teacher = None if teacher is None else _frozen_copy(nn.Sequential(encoder, self.projector))
        self._last: tuple[Tensor, Tensor] | None = None

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the objective's terms for two views."""
        a, b = views
        second = self.encoder if self.target_encoder is None else self.target_encoder
        za, zb = gather(linalg.wide(self.projector(self.encoder(a)))), gather(linalg.wide(self.projector(second(b))))
        with torch.autocast(za.device.type, enabled=False):  # an objective's sums and factorisations want float32
            if self.teacher is None:
                self._last = za.detach(), zb.detach()
                return self._terms(za, zb)
            ta, tb = self._targets(a, gather), self._targets(b, gather)
            self._last = za.detach(), tb
            ab, ba = self._terms(za, tb), self._terms(zb, ta)
        return {term: 0.5 * (ab[term] + ba[term]) for term in ab}

    def _terms(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.objective(za, zb)
        return terms

    @torch.no_grad()
    def _targets(self, x: Tensor, gather: Gather) -> Tensor:
        assert self.teacher is not None
        return gather(linalg.wide(self.teacher(x)))

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the objective's bank and the teacher."""
        assert self._last is not None, "after_step before forward"
        self.objective.update(*self._last)
        if self.teacher is not None and self.momentum is not None:
            student = nn.Sequential(self.encoder, self.projector)
            for t, s in zip(self.teacher.parameters(), student.parameters(), strict=True):
                t.lerp_(s, 1 - self.momentum)
            for kept, now in zip(self.teacher.buffers(), student.buffers(), strict=True):
                kept.copy_(now)

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Returns the spread of the last batch's embeddings, and what the objective watches."""
        assert self._last is not None, "diagnostics before forward"
        za, zb = self._last
        spread = {"std": linalg.normalised_std(za).mean().item(), "effective_rank": linalg.effective_rank(za).item()}
        return spread | self.objective.diagnostics(za, zb)


def _frozen_copy(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).requires_grad_(False)
