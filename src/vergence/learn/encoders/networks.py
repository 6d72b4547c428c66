"""Encoders, which map a batch of items to (B, D) embeddings, and the heads that follow them.

Every encoder holds the statistics of its input (`Standardize`), and takes uint8 or float batches as they are read. All weights
are random here, also those of timm's names with a tag of pretrained weights (``timm:resnet18.a1_in1k``): the tag chooses the
architecture. `vergence.learn.encoders.pretrained` reads weights and puts them into a network.
"""

import copy
import itertools
import re
import typing
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vergence.data.pixels import to_unit
from vergence.utils.checks import expect, shortened
from vergence.utils.devices import in_evaluation
from vergence.utils.files import load_outside

__all__ = ["Standardize", "mlp", "projector", "require_embeddings", "require_whole_patches", "reset", "resnet", "small_convnet"]
__all__ += ["width"]

SHALLOW = ((32, 3, 1), (64, 3, 2), (128, 3, 2), (256, 3, 2))  # width, kernel and stride of each convolution
DEEP = ((64, 4, 2), (96, 3, 2), (128, 3, 1), (192, 3, 2), (256, 3, 1))  # about its time, as its first map is a quarter as large
CHANNELS = re.compile(r"to have (\d+) channels, but got (\d+) channels")  # in torch's message


class Standardize(nn.Module):
    """(x - mean) / std, per channel of images (B, C, H, W) or feature of vectors (B, D); uint8 is first scaled to [0, 1].

    Gray images become as many equal channels as there are means, before they are standardized.

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
        """Returns a tensor of x's shape, but for gray images of several means, and of the statistics' type."""
        if not self.mean.is_floating_point():  # of ids, which stay whole numbers
            return x
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return (to_unit(x, self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)


def standardization(encoder: nn.Module) -> Standardize:
    """Returns the layer of an `encoder` that standardizes its input."""
    return next(layer for layer in encoder.modules() if isinstance(layer, Standardize))


class _Convolution(nn.Conv2d):
    """A convolution that computes maps of a single pixel in the weight's own type.

    With bfloat16, a stride of 2 and such a map, torch's kernel on the CPU (2.15) leaves the gradient of the weights that see only
    the border unset, whatever the memory holds.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] > 1:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


def small_convnet(channels: int, deep: bool = False, *, series: bool = False) -> nn.Module:
    """Returns four or, where it is ``deep``, five convolutions, each with BatchNorm and ReLU, and average pooling: D = 256.

    Of ``series`` (C, T) the kernels are four steps longer.

    Example:
        >>> small_convnet(3)(torch.rand(2, 3, 32, 32, dtype=torch.get_default_dtype())).shape
        torch.Size([2, 256])
    """
    net: list[nn.Module] = []
    for features, kernel, stride in DEEP if deep else SHALLOW:
        kernel += 4 * series
        conv = (nn.Conv1d if series else _Convolution)(channels, features, kernel, stride, (kernel - 1) // 2, bias=False)
        net += [conv, (nn.BatchNorm1d if series else nn.BatchNorm2d)(features), nn.ReLU(inplace=True)]
        channels = features
    return nn.Sequential(*net, nn.AdaptiveAvgPool1d(1) if series else nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resnet(name: str, channels: int, stem: str) -> nn.Module:
    """Returns torchvision's ResNet (`vergence.learn.encoders.config.ResNet`) without its classifier."""
    import torchvision

    net: nn.Module = getattr(torchvision.models, name)(weights=None)
    if stem == "cifar":
        net.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif channels != 3:
        net.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    net.fc = nn.Identity()
    return net


def require_whole_patches(net: nn.Module, sides: Sequence[int]) -> None:
    """Raises a ValueError where a transformer of timm would cut off the edge of images: its patch does not divide their sides."""
    patches: Any = getattr(net, "patch_embed", None)
    side = getattr(patches, "patch_size", None)
    side = side[0] if isinstance(side, tuple) else side
    if isinstance(side, int) and not getattr(patches, "dynamic_img_pad", False):
        expected = f"images whose sides the transformer's patch of {side} pixels divides"
        advice = f"use `size={max(side, sides[0] // side * side)}`, or another patch_size"
        expect(not any(length % side for length in sides), expected, f"{sides[0]} x {sides[1]}", advice)


def factory_model(name: str) -> nn.Module:
    """Returns the network that a function outside the library returns, or a copy of one that the program gave; its code runs.

    The function takes no arguments; the module maps images (B, C, H, W) to embeddings (B, D).
    """
    factory = load_outside("encoder", name, "package.module:factory")
    if isinstance(factory, nn.Module):  # of the program, which keeps using its own
        return copy.deepcopy(factory)
    try:
        model = factory()
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        reason = f"{shortened(error)}; change the function"
        raise ValueError(f"encoder '{name}' failed when it was called without arguments: {reason}") from None
    expect(isinstance(model, nn.Module), f"encoder '{name}' to return a torch.nn.Module", type(model).__name__)
    return typing.cast(nn.Module, model)


def mlp(widths: Sequence[int]) -> nn.Module:
    """Returns layers Linear-BatchNorm-ReLU of the given widths, the last one linear: (B, widths[0]) -> (B, widths[-1])."""
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def projector(dim: int, widths: Sequence[int], norm: str = "layer") -> nn.Module:
    """Returns a projection head: layers Linear-norm-ReLU, the last one linear; without widths the identity.

    Args:
        dim: Width of the input.
        widths: Widths of the layers.
        norm: ``layer``: LayerNorm, VJE's head; ``batch``: BatchNorm, as in BYOL, VICReg and Barlow Twins; ``batch_last``: also
            behind the last layer, there without scale and shift, as in SimSiam and MoCo v3.

    Example:
        >>> [type(layer).__name__ for layer in projector(4, (8, 2), "batch_last").modules()][1:]
        ['Sequential', 'Linear', 'BatchNorm1d', 'ReLU', 'Linear', 'BatchNorm1d']
    """
    if norm != "layer" and widths:
        head = mlp((dim, *widths))
        return head if norm == "batch" else nn.Sequential(head, nn.BatchNorm1d(widths[-1], affine=False))
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise((dim, *widths)):
        layers += [nn.Linear(i, o), nn.LayerNorm(o), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-2])


def reset(net: nn.Module) -> None:
    """Gives every layer that knows how to, as torch's do, random weights as it would have when it is built."""
    for module in net.modules():
        initialize = getattr(module, "reset_parameters", None)
        if callable(initialize):
            initialize()


def channels_last(net: nn.Module) -> None:
    """Lays the kernels of images (O, C, H, W) of a network into memory with their channels last; others stay."""
    for tensor in itertools.chain(net.parameters(), net.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def width(net: nn.Module, shape: Sequence[int]) -> int:
    """Returns the number D of features that ``net`` computes for items of ``shape``."""
    return int(_embedded_zeros(net, tuple(shape)).shape[-1])


@torch.no_grad()
def _embedded_zeros(net: nn.Module, shape: tuple[int, ...]) -> Tensor:
    with in_evaluation(net):
        z: Tensor = net(blank(net, shape, 2))
    return z


def blank(net: nn.Module, shape: Sequence[int], n: int = 1) -> Tensor:
    """Returns n items of zeros (n, *shape) as a network takes them: ids as int64, others in the type of its weights."""
    first = next(itertools.chain(net.parameters(), net.buffers()))
    ids = any(isinstance(layer, Standardize) and not layer.mean.is_floating_point() for layer in net.modules())
    return torch.zeros(n, *shape, device=first.device, dtype=torch.int64 if ids else first.dtype)


def require_embeddings(name: str, net: nn.Module, shape: tuple[int, ...]) -> None:
    """Raises a ValueError unless a network maps items of a shape to embeddings (B, D)."""
    try:
        z = _embedded_zeros(net, shape)
    except (RuntimeError, AssertionError) as error:
        advice = _advice(str(error), shape)
        raise ValueError(f"encoder '{name}' does not accept items of shape {shape}: {shortened(error)}; {advice}") from None
    expect(isinstance(z, Tensor), f"a tensor of embeddings (B, D) of encoder '{name}'", type(z).__name__, "return one")
    expect(z.ndim == 2, f"embeddings (B, D) of encoder '{name}'", f"shape {tuple(z.shape)}", "flatten or pool its output")


def _advice(reason: str, shape: tuple[int, ...]) -> str:
    """Returns what to do about an encoder that does not accept items of a shape, from torch's message."""
    channels = CHANNELS.search(reason)
    if channels is None or int(channels[2]) != shape[0]:  # of another layer than the first
        return "try another `size`"
    if shape[0] != 1:
        return f"give images of {channels[1]} channels, or choose another encoder"
    mean, std = (f"({','.join([number] * int(channels[1]))})" for number in ("0.5", "0.25"))
    settings = f"`input_mean={mean}` and `input_std={std}`"
    return f"make gray images {channels[1]} equal channels with {settings}, or with mean and std in the network's default_cfg"
