"""The Gaussian of a stream of batches: averages of mean and covariance that forget."""

import torch
from torch import Tensor, nn

from vergence.densities.gaussian import JointGaussian
from vergence.objectives.parts import volume

__all__ = ["MovingGaussian"]


class MovingGaussian(nn.Module):
    """Exponentially moving mean and covariance; the first 1 / (1 - momentum) batches weigh alike.

    Args:
        dim: Features D.
        momentum: m in [0, 1): how much of the past a batch leaves.
        shrinkage: Of the covariance where the density is read, in [0, 1]; None estimates it from the effective number of items,
            so that nothing is left of it once many batches have come.

    Raises:
        ValueError: The momentum or the shrinkage is out of its range.

    Example:
        >>> moving = MovingGaussian(2, momentum=0.9, shrinkage=0.0)
        >>> for start in (0, 10):
        ...     moving.update(torch.tensor([[0.0, 0.0], [2.0, 2.0]]) + start)
        >>> moving.density().mean.tolist(), moving.density().variance.round(decimals=2).tolist()
        ([6.0, 6.0], [26.0, 26.0])
    """

    mean: Tensor
    covariance: Tensor
    steps: Tensor
    items: Tensor

    def __init__(self, dim: int, *, momentum: float = 0.99, shrinkage: float | None = None) -> None:
        super().__init__()
        if not (0 <= momentum < 1 and (shrinkage is None or 0 <= shrinkage <= 1)):
            found = f"momentum={momentum}, shrinkage={shrinkage}"
            raise ValueError(f"expected momentum in [0, 1) and shrinkage in [0, 1] or None, found {found}")
        self.momentum, self.shrinkage = momentum, shrinkage
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("covariance", torch.eye(dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("items", torch.ones(()))  # effective number: 1 / sum of squared weights

    @torch.no_grad()
    def update(self, z: Tensor) -> None:
        """Takes a batch (B, D) in."""
        m = volume.moments(z.to(self.mean))
        self.steps += 1
        keep = self.keep()
        shift = m.mean - self.mean
        spread = keep * (1 - keep) * torch.outer(shift, shift)  # of the means apart: both batches around the common mean
        self.covariance.lerp_(m.S, 1 - keep).add_(spread)
        self.mean.lerp_(m.mean, 1 - keep)
        self.items.copy_(1 / (keep**2 / self.items + (1 - keep) ** 2 / len(z)))

    def keep(self) -> Tensor:
        """Returns how much of the past the last batch has left, a scalar."""
        return torch.clamp(1 - 1 / self.steps, max=self.momentum).to(self.mean)

    def moments(self) -> volume.Moments:
        """Returns mean and covariance, shrunk."""
        return volume.Moments(self.mean, volume.shrunk(self.covariance, self.items, self.shrinkage))

    def density(self, context: int = 0) -> JointGaussian:
        """Returns the Gaussian over (D,), of which the first ``context`` features are the context."""
        m = self.moments()
        return JointGaussian(m.mean, m.S, context)
