"""Training on pairs: two views are encoded and passed to an objective; all objectives of the library use this method."""

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from vergence.learn.methods.core import Gather, Method, Side
from vergence.learn.objectives.core import Objective
from vergence.learn.objectives.parts.diagnostics import notices
from vergence.learn.objectives.parts.teachers import cosine, follow, frozen_copy
from vergence.utils.checks import expect, require_choice, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["PairedMethod"]


class PairedMethod(Method):
    """Trains encoders with an objective on the embeddings of two views.

    Args:
        encoder: Items (B, ...) -> embeddings (B, D).
        objective: Objective on pairs of embeddings of the projector's output width, or of the encoder's without projector; None
            for an encoder that is used as it is, which cannot be trained.
        projector: Head between encoder and objective, which evaluation does not use; none by default.
        target_encoder: Encoder of the second view (dual encoders); ``encoder`` by default.
        target_projector: Head behind ``target_encoder``, of the same output width; ``projector`` by default.
        teacher: Momentum m in [0, 1) of a teacher, w <- m w + (1 - m) student, whose embeddings are the targets; None for no
            teacher. Each term is the mean over the pairs (student a, teacher b) and (student b, teacher a), and the
            objective is updated with the first pair. With a second encoder the teacher has copies of both, the second pair
            is (teacher a, student b), so that contexts stay contexts, and the update uses (teacher a, teacher b).
        schedule: ``constant``, or ``cosine``: the momentum rises from m to 1 as in BYOL.

    Example:
        >>> from vergence.learn.objectives.vje import VJE
        >>> method = PairedMethod(nn.Linear(5, 8), VJE(8))
        >>> sorted(method((torch.randn(4, 5), torch.randn(4, 5)), gather=lambda z: z))
        ['directional', 'kl', 'radial']
    """

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective | None,
        *,
        projector: nn.Module | None = None,
        target_encoder: nn.Module | None = None,
        target_projector: nn.Module | None = None,
        teacher: float | None = None,
        schedule: Literal["constant", "cosine"] = "constant",
    ) -> None:
        super().__init__(encoder, objective, projector)
        if teacher is not None:
            require_within("[0, 1)", teacher=teacher)
        require_choice("schedule", schedule, ("constant", "cosine"))
        expect(target_projector is None or target_encoder is not None, "a target_encoder with the target_projector", "none")
        if objective is not None:
            objective.managed = True
        self.target_encoder, self.target_projector = target_encoder, target_projector
        self.momentum, self.schedule = teacher, schedule
        self.teacher = None if teacher is None else frozen_copy(self.branch("context"))
        self.target_teacher = None if teacher is None or target_encoder is None else frozen_copy(self.branch("target"))
        self._pair: tuple[Tensor, Tensor] | None = None
        self._terms_checked = False

    def branch(self, side: Side) -> nn.Sequential:
        """Returns encoder and projector of a side: items (B, ...) -> embeddings in the objective's space (B, D)."""
        if side == "context" or self.target_encoder is None:
            return nn.Sequential(self.encoder, self.projector)
        return nn.Sequential(self.target_encoder, self.projector if self.target_projector is None else self.target_projector)

    def target_network(self) -> nn.Module:
        """Returns the network of the targets whose density the objective fits: the teacher, if there is one."""
        if self.teacher is None:
            return self.branch("target")
        return self.teacher if self.target_teacher is None else self.target_teacher

    def reset_teacher(self) -> None:
        """Sets a teacher's weights to those of the networks that it follows, after these were loaded."""
        for teacher, student in self._teachers():
            teacher.load_state_dict(student.state_dict())

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the objective's terms for two views; the first call checks that they are scalar."""
        a, b = views
        za, zb = gather(upcast_half(self.branch("context")(a))), gather(upcast_half(self.branch("target")(b)))
        with torch.autocast(za.device.type, enabled=False):  # the sums and factorizations of objectives need float32
            if self.teacher is None:
                self._pair = za.detach(), zb.detach()
                return self._terms(za, zb)
            with torch.no_grad():
                ta, tb = gather(upcast_half(self.teacher(a))), gather(upcast_half(self.target_network()(b)))
            two_encoders = self.target_teacher is not None
            self._pair = ta if two_encoders else za.detach(), tb  # a bank of two encoders holds embeddings of the teachers
            ab, ba = self._terms(za, tb), self._terms(*((ta, zb) if two_encoders else (zb, ta)))
        return {term: 0.5 * (ab[term] + ba[term]) for term in ab}

    def _terms(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        assert self.objective is not None, "a method without objective is not trained"
        terms: dict[str, Tensor] = self.objective(za, zb)
        if not self._terms_checked:
            _require_terms(type(self.objective).__name__, terms, trained=za.requires_grad or zb.requires_grad)
            self._terms_checked = True
        return terms

    def frozen(self) -> tuple[Tensor, ...]:
        """Returns the objective's frozen parameters."""
        return () if self.objective is None else self.objective.frozen()

    @torch.no_grad()
    def after_step(self) -> None:
        """Updates the objective and the teacher."""
        assert self._pair is not None and self.objective is not None, "after_step before forward"
        self.objective.update(*self._pair)
        for teacher, student in self._teachers():
            assert self.momentum is not None, "a teacher has a momentum"
            momentum = self.momentum if self.schedule == "constant" else cosine(self.momentum, 1.0, self.progress)
            follow(teacher, student, momentum, buffers=True)

    def _teachers(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        """Yields each teacher with the network that it follows."""
        sides: tuple[tuple[nn.Module | None, Side], ...] = ((self.teacher, "context"), (self.target_teacher, "target"))
        yield from ((teacher, self.branch(side)) for teacher, side in sides if teacher is not None)

    def embeddings(self) -> Tensor | None:
        """Returns the last batch's embeddings of the first view, (B, D), detached."""
        return None if self._pair is None else self._pair[0]

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Returns the objective's diagnostics of the last batch."""
        assert self._pair is not None and self.objective is not None, "diagnostics before forward"
        return self.objective.diagnostics(*self._pair)

    def notices(self, numbers: Mapping[str, float]) -> dict[str, str]:
        """Returns messages about the objective's diagnostics, by their names."""
        return notices(numbers)

    def advice(self) -> str:
        """Returns the objective's advice where the embedding collapses."""
        return "" if self.objective is None else self.objective.advice


def _require_terms(name: str, terms: object, trained: bool) -> None:
    """Raises a ValueError unless an objective's ``forward`` returned what its contract says."""
    wrong, learned = "", not (trained and torch.is_grad_enabled())
    if not isinstance(terms, dict) or not terms:
        wrong = _described(terms)
    else:
        for key, term in terms.items():
            if not (isinstance(key, str) and isinstance(term, Tensor) and not term.ndim and term.is_floating_point()):
                wrong = f"{key!r}, {_described(term)}"
            learned = learned or getattr(term, "requires_grad", False)
    wrong = wrong or ("" if learned else "terms without gradient, detached from the embeddings")
    form = f"{name}.forward to return a dictionary of scalar terms by name, such as {{'distance': tensor(0.5)}}"
    expect(not wrong, form, wrong, "reduce each to a mean over the pairs")


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {value.dtype}"
    return "an empty dictionary" if value == {} else f"a value of type {type(value).__name__}"
