"""Exponential moving averages: of the mean and covariance of a stream of batches, and of a network's weights."""

import torch
from torch import Tensor, nn

from vergence.densities.gaussian import JointGaussian
from vergence.objectives.parts.information import Moments, moments, shrunk
from vergence.utils.checks import require_within

__all__ = ["EMAGaussian", "EMANetwork"]


class EMAGaussian(nn.Module):
    """Exponential moving averages of mean and covariance; the first 1 / (1 - momentum) batches have equal weights.

    Args:
        dim: Features D.
        momentum: Weight m of the past, in [0, 1).
        shrinkage: Shrinkage of the covariance in `density`, in [0, 1]; None estimates it from the effective number of items, so
            that it vanishes after many batches.

    Raises:
        ValueError: The momentum or the shrinkage is out of its range.

    Example:
        >>> moving = EMAGaussian(2, momentum=0.9, shrinkage=0.0)
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
        require_within("[0, 1)", momentum=momentum)
        if shrinkage is not None:
            require_within("[0, 1]", shrinkage=shrinkage)
        self.momentum, self.shrinkage = momentum, shrinkage
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("covariance", torch.eye(dim))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("items", torch.ones(()))  # effective number of items: 1 / sum of squared weights

    @torch.no_grad()
    def update(self, z: Tensor) -> None:
        """Updates the averages with a batch (B, D)."""
        m = moments(z.to(self.mean))
        self.steps += 1
        keep = self.keep()
        shift = m.mean - self.mean
        spread = keep * (1 - keep) * torch.outer(shift, shift)  # of the two means around the common one
        self.covariance.lerp_(m.S, 1 - keep).add_(spread)
        self.mean.lerp_(m.mean, 1 - keep)
        self.items.copy_(1 / (keep**2 / self.items + (1 - keep) ** 2 / len(z)))

    def keep(self) -> Tensor:
        """Returns the weight that the last batch left to the past, a scalar: 1 - 1 / steps, at most the momentum."""
        return torch.clamp(1 - 1 / self.steps, max=self.momentum).to(self.mean)

    def moments(self) -> Moments:
        """Returns the mean and the shrunk covariance."""
        return Moments(self.mean, shrunk(self.covariance, self.items, self.shrinkage))

    def density(self, context: int = 0) -> JointGaussian:
        """Returns the Gaussian over (D,), with the first ``context`` features as the context."""
        m = self.moments()
        return JointGaussian(m.mean, m.S, context)


class EMANetwork(nn.Module):
    """Exponential moving average of a network's weights, w <- m w + (1 - m) student, as buffers: none of them is trained.

    Args:
        network: Network without buffers; the average starts at its weights.
        momentum: Weight m of the past, in [0, 1).

    Raises:
        ValueError: The momentum is out of its range.

    Example:
        >>> student = nn.Linear(1, 1, bias=False)
        >>> teacher = EMANetwork(student, momentum=0.9)
        >>> _ = nn.init.constant_(student.weight, 1.0)
        >>> for _ in range(200):
        ...     teacher.update(student)
        >>> teacher(student, torch.ones(1, 1))
        tensor([[1.0000]])
    """

    def __init__(self, network: nn.Module, *, momentum: float = 0.99) -> None:
        super().__init__()
        require_within("[0, 1)", momentum=momentum)
        assert not list(network.buffers()), "an average of weights alone"
        self.momentum = momentum
        for name, weight in network.named_parameters():
            self.register_buffer(_flat(name), weight.detach().clone())

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Moves the average toward the network's weights."""
        for name, weight in network.named_parameters():
            self.get_buffer(_flat(name)).lerp_(weight, 1 - self.momentum)

    @torch.no_grad()
    def forward(self, network: nn.Module, x: Tensor) -> Tensor:
        """Returns what the network computes of x with the averaged weights, without gradient."""
        weights = {name: self.get_buffer(_flat(name)) for name, _ in network.named_parameters()}
        found: Tensor = torch.func.functional_call(network, weights, (x,))
        return found


def _flat(name: str) -> str:
    return name.replace(".", "_")
