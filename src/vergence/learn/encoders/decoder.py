"""A small convolutional decoder from embeddings to images."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vergence.learn.encoders.networks import Standardize

__all__ = ["Decoder"]

FIRST_SIDE = 4  # largest side of the feature map before the first doubling
WIDEST, NARROWEST = 256, 32  # channels: at most, and of the last feature map


class Decoder(nn.Module):
    """Decoder from embeddings (B, D) in the objective's space to images (B, C, H, W) in [0, 1].

    Args:
        dim: Width D of the embeddings.
        shape: Shape (C, H, W) of the images.
        mean: (D,), mean of the embeddings; zeros by default.
        std: (D,), standard deviation of the embeddings; ones by default.

    Example:
        >>> Decoder(16, (3, 28, 20)).eval()(torch.zeros(2, 16, dtype=torch.get_default_dtype())).shape
        torch.Size([2, 3, 28, 20])
    """

    def __init__(self, dim: int, shape: Sequence[int], mean: Tensor | None = None, std: Tensor | None = None) -> None:
        super().__init__()
        self.dim, self.shape = dim, tuple(shape)
        channels, height, width = self.shape
        doublings = max(0, math.ceil(math.log2(max(height, width) / FIRST_SIDE)))
        h, w = (math.ceil(side / 2**doublings) for side in (height, width))
        widths = [min(WIDEST, NARROWEST << (doublings - i)) for i in range(doublings + 1)]
        statistics = torch.zeros(dim) if mean is None else mean, torch.ones(dim) if std is None else std
        layers: list[nn.Module] = [Standardize(*statistics), nn.Linear(dim, widths[0] * h * w)]
        layers += [nn.Unflatten(1, (widths[0], h, w)), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)]
        for c_in, c_out in itertools.pairwise(widths):
            layers += [nn.ConvTranspose2d(c_in, c_out, 4, stride=2, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
        self.net = nn.Sequential(*layers, nn.Conv2d(widths[-1], channels, 3, padding=1), nn.Sigmoid())

    def forward(self, z: Tensor) -> Tensor:
        """Returns images (B, C, H, W) in [0, 1]."""
        x: Tensor = self.net(z)[..., : self.shape[1], : self.shape[2]]
        return x
