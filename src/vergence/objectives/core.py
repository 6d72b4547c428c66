"""The contract of an objective: a density on pairs of embeddings together with the way it is fitted."""

import abc
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.objectives.parts import volume
from vergence.utils.linalg import upcast_half

__all__ = [
    "ConditionalObjective",
    "DensityObjective",
    "JointObjective",
    "MixtureLoss",
    "MixtureObjective",
    "Objective",
    "require_pairs",
]


MixtureLoss = Literal["mi_kl", "entropy_kl", "joint_kl", "naive"]


def require_pairs(za: Tensor, zb: Tensor, dim: int) -> None:
    """Raises a ValueError unless ``za`` and ``zb`` are both (B, dim)."""
    if za.shape != zb.shape or za.shape[1:] != (dim,):
        raise ValueError(f"expected two (B, {dim}) embeddings, found {tuple(za.shape)} and {tuple(zb.shape)}")


class Objective(nn.Module, abc.ABC):
    """Fits paired embeddings.

    Shapes: B pairs, D features. Terms: means over pairs, sums over features, in nats.

    A concrete class is final, is built by ``Cls(dim, *, ...)`` with its paper's values as defaults, and keeps all of its
    state in parameters and buffers. It never sees images, labels, optimizers, devices or process groups.

    Attributes:
        teacher: Momentum of the teacher that the objective is trained with where a run does not say otherwise; None for no
            teacher. With one, ``zb`` is the teacher's embedding of the second view, without gradient.
    """

    teacher: ClassVar[float | None] = None

    @abc.abstractmethod
    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns named scalar terms for embeddings of shape (B, D); the loss is their sum."""

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Moves what is not learned by gradient (EM, growth, resampling). Called after the step, without gradient."""

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns numbers worth watching for embeddings of shape (B, D); never part of the loss."""
        return {}


class DensityObjective(Objective):
    """An objective that can also be read as a density after training."""

    @abc.abstractmethod
    def log_prob(self, zb: Tensor, za: Tensor) -> Tensor:
        """Returns log p(z_b | z_a) in nats, shape (B,)."""

    @abc.abstractmethod
    def posterior(self, z: Tensor) -> Distribution:
        """Returns what is believed of the latent behind each embedding: a distribution over (B, D)."""

    @abc.abstractmethod
    def score(self, z: Tensor) -> Tensor:
        """Returns how anomalous each embedding is, shape (B,); larger is more anomalous, everywhere in the library."""

    def scores(self, z: Tensor) -> dict[str, Tensor]:
        """Returns every score of the objective by name, each (B,); the first is the default one."""
        return {"score": self.score(z)}


class ConditionalObjective(DensityObjective):
    """A density objective that has p(z_b | z_a) and p(z_a) in closed form."""

    dim: int

    @abc.abstractmethod
    def conditional(self, z: Tensor) -> JointGaussian | GaussianMixture:
        """Returns p(z_b | z_a) for embeddings z_a (B, D): a distribution of batch (B,) over (D,)."""

    @abc.abstractmethod
    def marginal(self) -> JointGaussian | GaussianMixture:
        """Returns p(z_a), a distribution over (D,)."""

    def log_prob(self, zb: Tensor, za: Tensor) -> Tensor:
        """Returns log p(z_b | z_a) in nats, (B,), for embeddings (B, D)."""
        require_pairs(za, zb, self.dim)
        return self.conditional(za).log_prob(zb)

    @torch.no_grad()
    def mahalanobis(self, za: Tensor, zb: Tensor) -> float:
        """Returns the mean Mahalanobis distance per feature of z_b under `conditional`, 1 where it fits.

        Of a mixture it is that under the components that answer for z_b.
        """
        p = self.conditional(za)
        if isinstance(p, JointGaussian):
            far = p.S.quadratic(zb.to(p.loc) - p.loc)
        else:
            parts = p.component_distribution
            delta = zb.to(parts.loc)[:, None] - parts.loc
            far = (p.responsibilities(zb.to(parts.loc)) * parts.S.quadratic(delta)).sum(-1)
        return far.mean().item() / self.dim

    def posterior(self, z: Tensor) -> Distribution:
        """Returns what is believed of the other view's embedding: `conditional`."""
        return self.conditional(z)

    def score(self, z: Tensor) -> Tensor:
        """Returns -log p(z_a) in nats, (B,), for embeddings (B, D): how unusual the embedding is by itself."""
        return -self.marginal().log_prob(z)

    @torch.no_grad()
    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """Returns n pairs of embeddings, each (n, D), drawn with the global seed."""
        za = self.marginal().sample(torch.Size((n,)))
        return za, self.conditional(za).sample()


class JointObjective(ConditionalObjective):
    """A density objective that has p(z_a, z_b) in closed form: everything else follows from it by conditioning."""

    @abc.abstractmethod
    def joint(self) -> JointGaussian | GaussianMixture:
        """Returns the density over [z_a; z_b], (2 D,), with z_a as context."""

    def conditional(self, z: Tensor) -> JointGaussian | GaussianMixture:
        """Returns p(z_b | z_a) for embeddings z_a (B, D): a distribution of batch (B,) over (D,)."""
        return self.joint().conditional(z)

    def marginal(self) -> JointGaussian | GaussianMixture:
        """Returns p(z_a), a distribution over (D,)."""
        return self.joint().marginal("context")


class MixtureObjective(JointObjective):
    """A joint Gaussian mixture that trains encoders.

    With nll the mean of -log p(z_a, z_b), H the entropy and KL the divergence from N(0, I) of the batch's Gaussian of one view:

        mi_kl        -mean log p(z_a, z_b) / (p(z_a) p(z_b)) + eta (KL_a + KL_b); p is a constant, and parameters that it has
                     get a term of their own, ``fit`` = nll of detached embeddings
        entropy_kl   nll - H(a) - H(b) + eta (KL_a + KL_b): the entropy of a Gaussian is the largest, so embeddings gain by
                     gathering at the components' means
        joint_kl     nll + beta (KL_a + KL_b)
        naive        nll: collapses

    The first two are one with a single component of the batch's own moments.

    Args:
        dim: Features D of the embeddings.
        loss: One of these.
        eta: Weight of the KL in ``mi_kl`` and ``entropy_kl``, > 0.
        beta: Weight of the KL in ``joint_kl``, > 0.
        shrinkage: Of the batch's covariances in entropies and KL, in [0, 1]; None estimates it.
    """

    def __init__(self, dim: int, *, loss: MixtureLoss, eta: float, beta: float, shrinkage: float | None) -> None:
        super().__init__()
        volume.require_loss(loss, ("mi_kl", "entropy_kl", "joint_kl", "naive"), eta, beta)
        if shrinkage is not None and not 0 <= shrinkage <= 1:
            raise ValueError(f"expected shrinkage in [0, 1] or None, found {shrinkage}")
        self.dim, self.loss, self.eta, self.beta, self.shrinkage = dim, loss, float(eta), float(beta), shrinkage

    @abc.abstractmethod
    def joint(self) -> GaussianMixture:
        """Returns the density over [z_a; z_b], (2 D,), with z_a as context."""

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the loss's terms: ``nll`` or ``mi``, ``kl``, and ``fit``.

        Raises:
            ValueError: The embeddings are not two (B, dim).
        """
        require_pairs(za, zb, self.dim)
        za, zb = upcast_half(za), upcast_half(zb)
        a, b = volume.moments(za, self.shrinkage), volume.moments(zb, self.shrinkage)
        if self.loss == "mi_kl":
            fit = {"fit": self._nll(za.detach(), zb.detach())} if list(self.parameters()) else {}
            return {"mi": self._information(za, zb), "kl": self.eta * volume.kl_views(a, b), **fit}
        return volume.priced(self.loss, self._nll(za, zb), a, b, eta=self.eta, beta=self.beta)

    def _nll(self, za: Tensor, zb: Tensor) -> Tensor:
        return -self.joint().log_prob(torch.cat([za, zb], 1)).mean()

    def _information(self, za: Tensor, zb: Tensor) -> Tensor:
        """Returns minus the mean pointwise mutual information under the density as it is."""
        with torch.no_grad():
            p = self.joint()
            pa, pb = p.marginal("context"), p.marginal("target")
        return (pa.log_prob(za) + pb.log_prob(zb) - p.log_prob(torch.cat([za, zb], 1))).mean()

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns how far the density fits, and what shows a collapse.

        ``mahalanobis``: mean distance per feature under the components that answer for a pair, 1 where they fit; ``components``:
        the effective number, exp of the entropy of the weights, and ``component_share``, its share of those with weight; and
        `vergence.objectives.parts.volume.diagnostics`.
        """
        density = self.joint()
        Z = torch.cat([za, zb], 1).to(density.mean)
        parts = density.component_distribution
        far = (density.responsibilities(Z) * parts.S.quadratic(Z[:, None] - parts.loc)).sum(1).mean() / Z.shape[1]
        used = torch.special.entr(density.weights).sum().exp().item()
        share = used / density.weights.count_nonzero().item()
        return {"mahalanobis": far.item(), "components": used, "component_share": share, **volume.diagnostics(za, zb)}
