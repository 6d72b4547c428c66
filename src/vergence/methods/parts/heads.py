"""Projection heads."""

import itertools

from torch import Tensor, nn
from torch.nn import functional as F


class PrototypeHead(nn.Module):
    """DINO's head: (B, D) -> similarities (B, K) in [-1, 1] to K unit vectors.

    Three linear layers with GELU between them, normalization to length 1, and the product with K vectors of length 1, which is
    the released code's weight-normalized layer of fixed gain. Weights of the first three are truncated normal (0.02).

    Args:
        dim: Width D of the embeddings.
        outputs: Number K of outputs.
        hidden: Width of the hidden layers.
        bottleneck: Width of the normalized vector.
        batch_norm: Whether the hidden layers are batch-normalized, without bias.

    Example:
        >>> import torch
        >>> PrototypeHead(8, 16, hidden=12, bottleneck=4)(torch.randn(2, 8)).shape
        torch.Size([2, 16])
    """

    def __init__(self, dim: int, outputs: int, *, hidden: int = 2048, bottleneck: int = 256, batch_norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, o in itertools.pairwise((dim, hidden, hidden)):
            layers += [nn.Linear(i, o, bias=not batch_norm), *([nn.BatchNorm1d(o)] if batch_norm else []), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, bottleneck))
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        self.prototypes = nn.Linear(bottleneck, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the similarities (B, K)."""
        return F.linear(F.normalize(self.layers(x), dim=-1), F.normalize(self.prototypes.weight, dim=-1))
