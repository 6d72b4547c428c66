"""Networks that tests name as encoders outside the library."""

import torch
from torch import nn


class Tiny(nn.Module):
    """Two convolutions and pooling, (B, 3, H, W) -> (B, 8)."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.Conv2d(6, 8, 3, 2, 1)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu()).mean((2, 3))


def tiny():
    """With a configuration, as a mapping."""
    net = Tiny()
    net.default_cfg = {"input_size": (3, 12, 12), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    return net


def plain():
    """Without a configuration."""
    return Tiny()


def odd():
    """With a configuration that cannot be read."""
    net = Tiny()
    net.default_cfg = {"input_size": 12}
    return net


def number():
    """No network."""
    return 3


def needs(width):
    """Cannot be called without arguments."""
    return nn.Linear(width, 2)


def on_vectors():
    """A network of vectors of 6 features."""
    return nn.Linear(6, 4)


def efficientnet_lite0():
    """The ImageNet network of the package efficientnet-lite-pytorch, without its classifier."""
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0")
    net._fc = nn.Identity()
    net.default_cfg = {"input_size": (3, 64, 64), "mean": (127 / 255,) * 3, "std": (128 / 255,) * 3}
    return net


def state(seed=1):
    """Weights of the tiny network."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {name: value.float() for name, value in Tiny().state_dict().items()}
