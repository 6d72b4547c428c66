"""Baselines of benchmarks: an objective that leaves the encoder untrained, the network as it begins, pixels as an embedding."""

from torch import Tensor, nn

from vergence.learn.encoders.networks import small_convnet
from vergence.learn.objectives import Objective


class Nothing(Objective):
    """A loss that is always zero: leaves the encoder untrained."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        return {"nothing": 0.0 * (za.sum() + zb.sum())}


def pixels() -> nn.Module:
    """Returns the network that takes an image's pixels as its embedding."""
    return nn.Flatten()


def small() -> nn.Module:
    """Returns the network ``small`` with random weights, which may then be frozen."""
    return small_convnet(3)
