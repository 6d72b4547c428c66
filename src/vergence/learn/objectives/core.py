"""The contract of an objective: a density on pairs of embeddings together with the way it is fitted."""

import abc
import functools
import itertools
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians, given_observed, ordered
from vergence.utils.checks import expect, require_choice
from vergence.utils.linalg import upcast_half

__all__ = ["ConditionalObjective", "DensityObjective", "Objective", "PredictiveObjective"]

LARGEST = 1e9  # of the embeddings in a loss
PATIENCE = 50  # steps in a loop of one's own without what the objective needs, before a warning


def require_pairs(za: Tensor, zb: Tensor, dim: int) -> None:
    """Raises a ValueError unless ``za`` and ``zb`` are both (B, dim)."""
    if za.shape != zb.shape or za.shape[1:] != (dim,):
        raise ValueError(f"expected two (B, {dim}) embeddings, found {tuple(za.shape)} and {tuple(zb.shape)}")


def require_several(za: Tensor) -> None:
    """Raises a ValueError where a view (B, D) has one embedding: variances have no value."""
    expect(len(za) >= 2, "a batch of at least 2 embeddings that differ", f"{len(za)}: raise the batch size")


def view_pairs(zs: Sequence[Tensor], n_global: int) -> list[tuple[Tensor, Tensor]]:
    """Returns the pairs of views of which at least one is of the whole item, as the first ``n_global`` are."""
    return [(zs[i], zs[j]) for i, j in itertools.combinations(range(len(zs)), 2) if i < n_global]


def mean_terms(terms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the mean of terms of the same names; what is no dictionary is left to the check of what a loss returns."""
    return {name: sum(each[name] for each in terms) / len(terms) for name in terms[0]} if isinstance(terms[0], dict) else terms[0]


def settings(**values: Any) -> Mapping[str, Any]:
    """Returns settings by name that cannot be changed: what a class says of its head, options and rates."""
    return MappingProxyType(values)


class Objective(nn.Module, abc.ABC):
    """Fits paired embeddings.

    Shapes: B pairs, D features. Terms: means over pairs, sums over features, in nats.

    A concrete class is final, is built by ``Cls(dim, *, ...)`` with its paper's values as defaults, and keeps all of its
    state in parameters and buffers. An argument out of its range is a ValueError. It never sees images, labels, optimizers,
    devices or process groups.

    Attributes:
        teacher: Momentum of the teacher network in training where a run does not set one; None for no teacher. With a
            teacher, ``zb`` is its embedding of the second view, without gradient.
        teacher_schedule: ``constant``, or ``cosine``: the teacher's momentum rises to 1 at the last step.
        advice: What to try besides optimizer, batch size and views where the encoder collapses; a clause, or empty.
        reference: Values that the objective's paper reports for its own networks, by name in the evaluation's posterior
            statistics, and ``prior_variance``, the variance of the latent's prior; empty for none.
        small: Settings of ``NAME_small`` by the names of a run's settings, where they differ from the common ones: the head's
            widths and normalization, options, rates (`vergence.learn.training.recipes`).
        behind: Head and options behind a closed form's embedding (``patches_NAME``, ``distilled_NAME``); None for those of
            ``small``, and no ``distilled_NAME``.
        several: Whether the loss has a value only for at least 2 pairs, as it divides by a batch's variances.
        on_sphere: Whether the density is one of the target's direction z_b/|z_b|, with respect to the unit sphere's area.
    """

    teacher: ClassVar[float | None] = None
    teacher_schedule: ClassVar[Literal["constant", "cosine"]] = "constant"
    advice: ClassVar[str] = ""
    reference: ClassVar[Mapping[str, float]] = settings()
    on_sphere: ClassVar[bool] = False
    several: ClassVar[bool] = False
    small: ClassVar[Mapping[str, Any]] = settings()
    behind: ClassVar[Mapping[str, Any] | None] = None

    dim = 0  # features D of the embeddings; 0 for any
    built_with: tuple[tuple[Any, ...], dict[str, Any]]  # arguments of the constructor
    built_from: bytes  # state of torch's random numbers before it ran
    managed = False  # whether a method calls `update` and has the teacher; a loop of one's own is watched for both
    _without_update = _without_teacher = 0  # calls in a row

    def __new__(cls, *values: Any, **named: Any) -> "Objective":
        """Returns an instance that knows how it was built, so that a run can build it again."""
        self = super().__new__(cls)
        object.__setattr__(self, "built_with", (values, named))
        object.__setattr__(self, "built_from", torch.get_rng_state().numpy().tobytes())
        return self

    def as_built(self) -> "Objective":
        """Returns an objective as this one was when it was built, with the same first weights."""
        values, named = self.built_with
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(torch.frombuffer(bytearray(self.built_from), dtype=torch.uint8))
            return type(self)(*values, **named)

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "update" in vars(cls):
            update = cls.update

            @functools.wraps(update)
            def noticed(self: Objective, *arguments: Any, **named: Any) -> None:
                self._without_update = 0
                update(self, *arguments, **named)

            cls.update = noticed  # type: ignore[method-assign]

    def __call__(self, za: Tensor, zb: Tensor, *others: Tensor, n_local: int = 0) -> Any:
        """Returns `forward` of two views, `of_views` of more, on embeddings that are checked, at least in float32.

        Covariances are of second powers, and their shrinkage of fourth ones: in float32 the loss of embeddings above 1e9 is not
        finite. On an accelerator only the shape is checked, because comparing would wait for the device at every step. In a
        loop of one's own, warns once where `update` or the teacher has been forgotten.
        The last ``n_local`` of more than two views are of a part of the item, such as small crops.
        """
        for z in (zb, *others) if self.dim else ():
            require_pairs(za, z, self.dim)
        views = za, zb, *others
        if za.device.type == "cpu" and len(za) and (most := max(float(z.detach().abs().max()) for z in views)) > LARGEST:
            advice = "lower the learning rate, or check the data"
            raise ValueError(f"expected embeddings of at most {LARGEST:.0e}, found {most:.3g}: {advice}")
        if self.several:
            require_several(za)
        if self.training and torch.is_grad_enabled() and za.requires_grad and not self.managed:
            self._watch(zb)
        if others:
            return self.of_views([upcast_half(z) for z in views], len(views) - n_local)
        return super().__call__(upcast_half(za), upcast_half(zb))

    def _watch(self, zb: Tensor) -> None:
        name = type(self).__name__
        self._without_update += 1
        self._without_teacher = self._without_teacher + 1 if self.teacher is not None and zb.requires_grad else 0
        if self.needs_update and self._without_update == PATIENCE:
            missing = f"call update(za, zb) after each step; without it {name} does not fit what it does not learn by gradient"
            warnings.warn(f"{PATIENCE} steps of {name} without update: {missing}", stacklevel=3)
        elif self._without_teacher == PATIENCE:
            missing = f"pass the embedding of a teacher, whose weights follow at momentum {self.teacher}, as zb, without gradient"
            warnings.warn(f"{PATIENCE} steps of {name} without a teacher: {missing}", stacklevel=3)

    @abc.abstractmethod
    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns named scalar terms for embeddings of shape (B, D); the loss is their sum.

        Raises:
            ValueError: The embeddings of a view are all equal where the loss has the determinant of their covariance.
        """

    def of_views(self, zs: Sequence[Tensor], n_global: int) -> dict[str, Tensor]:
        """Returns the terms of V views (B, D), the first ``n_global`` >= 2 of whole items: those of `forward` for two views.

        By default their mean over pairs of views of which at least one is of the whole item.
        """
        return mean_terms([self.forward(*pair) for pair in view_pairs(zs, n_global)])

    def frozen(self) -> tuple[Tensor, ...]:
        """Returns the parameters that the optimizer leaves out in this step; none by default."""
        return ()

    @property
    def needs_update(self) -> bool:
        """Whether something is fitted by `update`."""
        return type(self).update is not Objective.update

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Updates what is not learned by gradient (EM, growth, resampling); called after each step, without gradient.

        Does nothing by default.
        """

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns numbers to monitor for embeddings of shape (B, D), never part of the loss; none by default."""
        return {}


@runtime_checkable
class DensityObjective(Protocol):
    """An objective that also defines a density after training: any `Objective` with these methods."""

    def log_prob(self, zb: Tensor, za: Tensor) -> Tensor:
        """Returns log p(z_b | z_a) in nats, shape (B,)."""

    def posterior(self, z: Tensor) -> Distribution:
        """Returns the distribution of the latent variable given each embedding: a distribution over (B, D)."""

    def score(self, z: Tensor) -> Tensor:
        """Returns the anomaly score of each embedding, shape (B,); larger is more anomalous, everywhere in the library."""

    def scores(self, z: Tensor) -> dict[str, Tensor]:
        """Returns every score of the objective by name, each (B,); the first is the default one."""


@runtime_checkable
class PredictiveObjective(Protocol):
    """A density objective that has p(z_b | z_a) in closed form: any `DensityObjective` with this method."""

    def conditional(self, z: Tensor) -> Distribution:
        """Returns p(z_b | z_a) for embeddings z_a (B, D), of batch (B,) over (D,); of z_b/|z_b| where it is `on_sphere`."""


class ConditionalObjective(Objective):
    """A density objective that has p(z_b | z_a) and p(z_a) in closed form, from which everything else follows.

    A subclass defines `joint`, or `conditional` and `marginal` where its density of pairs has no closed form.

    Attributes:
        blocks: Names of the V parts of D features that the joint density is over: the two views; or modalities, where they are
            the constructor's second argument.
    """

    dim: int
    blocks: tuple[str, ...] = ("context", "target")

    def terms(self, z: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the loss's terms for the embeddings (B, D) of two or more blocks by name."""
        raise NotImplementedError(f"{type(self).__name__} is over two views")

    def joint(self) -> JointGaussian | MixtureOfGaussians:
        """Returns the density over [z_a; z_b], (2 D,), with z_a as the context."""
        raise NotImplementedError(f"{type(self).__name__} defines neither joint, nor conditional and marginal")

    def conditional(self, z: Tensor) -> JointGaussian | MixtureOfGaussians:
        """Returns p(z_b | z_a) for embeddings z_a (B, D): a distribution of batch (B,) over (D,)."""
        return self.joint().conditional(z)

    @final
    def density(self, names: Sequence[str], context: int = 1) -> Any:
        """Returns the joint density of some blocks, in this order, the first ``context`` of them as the context."""
        if (*names, context) == (*self.blocks, 1):
            return self.joint()
        for name in names:
            require_choice("a block", name, self.blocks)
        order = torch.cat([torch.arange(self.dim) + self.dim * self.blocks.index(name) for name in names])
        return ordered(self.joint(), order, self.dim * context if context < len(names) else 0)

    @final
    def given(self, z: Mapping[str, Tensor], of: str | Sequence[str] = ()) -> Any:
        """Returns the density of blocks given any others: a block of the one joint density.

        Args:
            z: Embeddings (B, D) of one or more blocks by name; rows of NaN, which are missing, are integrated over.
            of: Name or names of the blocks that are asked for; all others by default, in the order of ``blocks``.
        """
        asked = (of,) if isinstance(of, str) else tuple(of) or tuple(name for name in self.blocks if name not in z)
        apart = z and asked and len({*z, *asked}) == len(z) + len(asked)
        expect(apart, "embeddings of some blocks, and other ones asked for", f"{', '.join(z)} and {', '.join(asked)}")
        known = torch.cat(list(z.values()), 1)
        p = self.density((*z, *asked), len(z))
        return given_observed(p, known) if bool(known.isnan().any()) else p.conditional(known)

    def marginal(self) -> JointGaussian | MixtureOfGaussians:
        """Returns p(z_a), a distribution over (D,)."""
        return self.joint().marginal("context")

    @final
    def log_prob(self, zb: Tensor, za: Tensor) -> Tensor:
        """Returns log p(z_b | z_a) in nats, (B,), for embeddings (B, D)."""
        require_pairs(za, zb, self.dim)
        return self.conditional(za).log_prob(zb)

    @final
    def posterior(self, z: Tensor) -> Distribution:
        """Returns the distribution of the other view's embedding: `conditional`."""
        return self.conditional(z)

    @final
    def score(self, z: Tensor) -> Tensor:
        """Returns -log p(z_a) in nats, (B,), for embeddings (B, D)."""
        return -self.marginal().log_prob(z)

    def scores(self, z: Tensor) -> dict[str, Tensor]:
        """Returns `score` under its name, and first; an objective may add others."""
        return {"score": self.score(z)}

    @final
    @torch.no_grad()
    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """Returns n pairs of embeddings, each (n, D), sampled with the global seed."""
        za = self.marginal().sample(torch.Size((n,)))
        return za, self.conditional(za).sample()
