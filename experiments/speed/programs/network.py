"""The network that every program trains, with equal first weights: that of the file NETWORK, which `peers.py` writes."""

import os

import torch
from torch import nn

built: list[nn.Module] = []  # what was built so far, for `measure.py`


def backbone() -> nn.Module:
    """Returns the network, images (B, 3, H, W) -> (B, D)."""
    built.append(torch.load(os.environ["NETWORK"], weights_only=False))
    return built[-1]
