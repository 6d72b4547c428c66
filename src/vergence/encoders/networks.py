"""Encoders as functions that return modules from a batch of items to (B, D) embeddings, and the heads after them.

Every encoder carries its input's statistics (`Standardize`) and takes uint8 or float batches as the data comes.
"""

import difflib
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vergence.data.pixels import to_unit

__all__ = ["Standardize", "encoder", "mlp", "projector", "resnet", "small_convnet", "timm_model"]

KNOWN = ("small", "mlp", "resnet18", "resnet34", "resnet50", "timm:NAME")


class Standardize(nn.Module):
    """(x - mean) / std, per channel of images (B, C, H, W) or feature of vectors (B, D); uint8 is first scaled to [0, 1].

    Example:
        >>> Standardize(torch.tensor([0.5]), torch.tensor([0.25]))(torch.tensor([[[[255]]]], dtype=torch.uint8)).item()
        2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.clone())
        self.register_buffer("std", std.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of x's shape and of the statistics' type."""
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return (to_unit(x, self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)


def small_convnet(channels: int, widths: Sequence[int] = (32, 64, 128, 256)) -> nn.Module:
    """Returns four 3x3 convolutions (strides 1, 2, 2, 2), each with BatchNorm and ReLU, and an average pool: D = widths[-1].

    Example:
        >>> small_convnet(3)(torch.rand(2, 3, 32, 32, dtype=torch.get_default_dtype())).shape
        torch.Size([2, 256])
    """
    layers: list[nn.Module] = []
    for i, (c_in, c_out) in enumerate(zip((channels, *widths), widths, strict=False)):
        conv = nn.Conv2d(c_in, c_out, 3, stride=1 if i == 0 else 2, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resnet(name: str, channels: int, stem: str) -> nn.Module:
    """Returns torchvision's ResNet without its classifier.

    Args:
        name: ``resnet18``, ``resnet34`` or ``resnet50``: D = 512, 512 or 2048.
        channels: Input channels.
        stem: ``cifar`` is a 3x3 convolution of stride 1 without max-pool, ``imagenet`` torchvision's own.
    """
    import torchvision

    net: nn.Module = getattr(torchvision.models, name)(weights=None)
    if stem == "cifar":
        net.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif channels != 3:
        net.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    net.fc = nn.Identity()
    return net


def timm_model(name: str, channels: int, size: int) -> nn.Module:
    """Returns timm's model ``name`` (random weights) with pooled features.

    Raises:
        ValueError: timm is not installed, or knows no such model.
    """
    try:
        import timm
    except ImportError:
        raise ValueError("encoder 'timm:...' needs timm: pip install 'vergence[timm]'") from None
    if not timm.is_model(name):
        raise ValueError(f"timm knows no model '{name}'{_hint(name, timm.list_models())}")
    fixed: dict[str, Any] = {"img_size": size} if "vit" in name or "swin" in name else {}
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **fixed)
    return model


def mlp(widths: Sequence[int]) -> nn.Module:
    """Returns Linear-BatchNorm-ReLU layers of the given widths, the last one linear: (B, widths[0]) -> (B, widths[-1])."""
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def projector(dim: int, widths: Sequence[int]) -> nn.Module:
    """Returns VJE's projection head: Linear-LayerNorm-ReLU layers, the last one linear; the identity for no widths."""
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise((dim, *widths)):
        layers += [nn.Linear(i, o), nn.LayerNorm(o), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-2])


def encoder(name: str, shape: Sequence[int], mean: Tensor, std: Tensor) -> nn.Module:
    """Builds an encoder of items of ``shape`` that standardizes its input and returns (B, D) embeddings.

    Args:
        name: ``small``, ``mlp``, ``resnet18``, ``resnet34``, ``resnet50`` (each ResNet with ``-cifar`` or ``-imagenet``
            behind it to choose the stem; by size otherwise: CIFAR's up to 64 pixels), or ``timm:NAME``.
        shape: (C, H, W) of images or (D,) of vectors, as the encoder sees them.
        mean: Per-channel or per-feature mean of the training data, images in [0, 1].
        std: Per-channel or per-feature standard deviation.

    Raises:
        ValueError: The name is unknown, or the encoder cannot take the shape.

    Example:
        >>> net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3]))
        >>> net(torch.zeros(4, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([4, 256])
    """
    net = nn.Sequential(Standardize(mean, std), _backbone(name, tuple(shape)).to(mean.dtype))
    _check(name, net, tuple(shape))
    return net


def width(net: nn.Module, shape: Sequence[int]) -> int:
    """Returns the number of features that ``net`` gives for items of ``shape``."""
    return int(_probe(net, tuple(shape)).shape[-1])


def _backbone(name: str, shape: tuple[int, ...]) -> nn.Module:
    family, _, stem = name.partition("-") if name.startswith("resnet") else (name, "", "")
    if family == "mlp":
        return nn.Sequential(nn.Flatten(), mlp((math.prod(shape), 512, 512, 256)))
    if not (family in KNOWN or family.startswith("timm:")) or stem not in ("", "cifar", "imagenet"):
        raise ValueError(f"unknown encoder '{name}'; known: {', '.join(KNOWN)}{_hint(name, KNOWN)}")
    if len(shape) != 3:
        raise ValueError(f"encoder '{name}' takes images, found vectors of {shape[0]} features; use --encoder mlp")
    if family == "small":
        return small_convnet(shape[0])
    if family.startswith("timm:"):
        return timm_model(family[5:], shape[0], shape[1])
    return resnet(family, shape[0], stem or ("cifar" if shape[1] <= 64 else "imagenet"))


@torch.no_grad()
def _probe(net: nn.Module, shape: tuple[int, ...]) -> Tensor:
    first = next(net.parameters())
    training = net.training
    try:
        z: Tensor = net.eval()(torch.zeros(2, *shape, device=first.device, dtype=first.dtype))
    finally:
        net.train(training)
    return z


def _check(name: str, net: nn.Module, shape: tuple[int, ...]) -> None:
    try:
        z = _probe(net, shape)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"encoder '{name}' cannot take items of shape {shape}: {reason}; try another --size") from None
    if z.ndim != 2:
        raise ValueError(f"encoder '{name}' gives shape {tuple(z.shape)}, expected (B, D)")


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
