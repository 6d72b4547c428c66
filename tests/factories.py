"""Networks that tests name as encoders outside the library, images, and the rows of tables."""

import csv
import io

import numpy as np
import torch
from PIL import Image, ImageDraw
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


def drawn(seed, size=48, shapes=20):
    """An image with shapes of all sizes and a little noise, (size, size, 3) of bytes."""
    r = np.random.default_rng(seed)
    image = Image.fromarray(r.integers(60, 195, (4, 4, 3), dtype=np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(shapes):
        x, y, s = *r.integers(0, size, 2), size / 2 ** r.uniform(1.5, 5)
        draw.ellipse([x, y, x + s, y + s], fill=tuple(r.integers(20, 235, 3).tolist()))
    return np.clip(np.asarray(image) + r.normal(0, 3, (size, size, 3)), 0, 255).astype(np.uint8)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def rows(file):
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
