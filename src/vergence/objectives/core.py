"""The contract of an objective: a density on pairs of embeddings together with the way it is fitted."""

import abc

from torch import Tensor, nn
from torch.distributions import Distribution

__all__ = ["DensityObjective", "Objective", "require_pairs"]


def require_pairs(za: Tensor, zb: Tensor, dim: int) -> None:
    """Raises a ValueError unless ``za`` and ``zb`` are both (B, dim)."""
    if za.shape != zb.shape or za.shape[1:] != (dim,):
        raise ValueError(f"expected two (B, {dim}) embeddings, found {tuple(za.shape)} and {tuple(zb.shape)}")


class Objective(nn.Module, abc.ABC):
    """Fits paired embeddings.

    Shapes: B pairs, D features. Terms: means over pairs, sums over features, in nats.

    A concrete class is final, is built by ``Cls(dim, *, ...)`` with its paper's values as defaults, and keeps all of its
    state in parameters and buffers. It never sees images, labels, optimisers, devices or process groups.
    """

    @abc.abstractmethod
    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns named scalar terms for embeddings of shape (B, D); the loss is their sum."""

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Moves what is not learnt by gradient (EM, growth, resampling). Called after the step, without gradient."""

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
