"""Training on pairs: two views are encoded and passed to an objective; all objectives of the library use this method."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from vergence.data.config import ViewConfig
from vergence.learn.methods.core import Gather, Method, Side
from vergence.learn.objectives.core import Objective, mean_terms
from vergence.learn.objectives.parts.diagnostics import notices
from vergence.learn.objectives.parts.teachers import cosine, follow, frozen_copy
from vergence.utils.checks import expect, require_choice, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["PairedMethod"]


class PairedMethod(Method):
    """Trains encoders with an objective on the embeddings of two views or more.

    The objective is updated with the first two views, which its diagnostics describe, too.

    Args:
        encoder: Items (B, ...) -> embeddings (B, D).
        objective: Objective on pairs of embeddings of the projector's output width, or of the encoder's without projector; None
            for an encoder that is used as it is, which cannot be trained.
        projector: Head between encoder and objective, which evaluation does not use; none by default.
        target_encoder: Encoder of the second view (dual encoders); ``encoder`` by default.
        target_projector: Head behind ``target_encoder``, of the same output width; ``projector`` by default.
        teacher: Momentum m in [0, 1) of a teacher, w <- m w + (1 - m) student, whose embeddings are the targets; None for no
            teacher. Each term is the mean over the pairs (student a, teacher b) and (student b, teacher a), and the
            objective is updated with the first pair; of more views, a teacher sees those of whole items. With a second
            encoder the teacher has copies of both, the second pair is (teacher a, student b), so that contexts stay contexts,
            and the update uses (teacher a, teacher b).
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
        """Returns the objective's terms for V views; the first call checks that they are scalar."""
        self._require_roles(len(views))
        branches = [self.branch("context"), *[self.branch("target")] * (len(views) - 1)]
        zs = [gather(upcast_half(branch(x))) for branch, x in zip(branches, views, strict=True)]
        with torch.autocast(zs[0].device.type, enabled=False):  # the sums and factorizations of objectives need float32
            if self.teacher is None:
                self._pair = zs[0].detach(), zs[1].detach()
                return self._terms(*zs)
            teachers = [self.teacher, *[self.target_network()] * (len(views) - self.n_local - 1)]
            with torch.no_grad():
                ts = [gather(upcast_half(teacher(x))) for teacher, x in zip(teachers, views, strict=False)]
            pairs, first = [(z, t) for i, z in enumerate(zs) for j, t in enumerate(ts) if i != j], zs[0].detach()
            if self.target_teacher is not None:
                pairs, first = [(zs[0], ts[1]), (ts[0], zs[1])], ts[0]  # a bank of two encoders holds embeddings of the teachers
            self._pair = first, ts[1]
            return mean_terms([self._terms(*pair) for pair in pairs])

    def require_views(self, config: ViewConfig, shape: Sequence[int]) -> None:
        """Raises a ValueError where two encoders are to see more than two views, too."""
        self._require_roles(config.n_views + config.local_views)
        super().require_views(config, shape)

    def _require_roles(self, n: int) -> None:
        fits = n == 2 or (n > 2 and self.target_encoder is None)
        expect(fits, "two views for two encoders, or several for one encoder", n, "leave n_views or target_encoder out")

    def _terms(self, *zs: Tensor) -> dict[str, Tensor]:
        assert self.objective is not None, "a method without objective is not trained"
        terms: dict[str, Tensor] = self.objective(*zs, n_local=self.n_local)
        if not self._terms_checked:
            _require_terms(type(self.objective).__name__, terms, trained=any(z.requires_grad for z in zs))
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
