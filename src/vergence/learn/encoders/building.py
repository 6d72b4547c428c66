"""The network that each kind of encoder builds, and the input that its own configuration names: the one place that knows both."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vergence.images import timm_models
from vergence.images.timm_models import Input
from vergence.learn.encoders import config, networks
from vergence.learn.encoders.patch_maps import PatchEncoder, RefinedEncoder
from vergence.utils.checks import expect

__all__ = ["build", "encoder", "expected_input"]


def build(kind: config.Encoder, shape: Sequence[int]) -> nn.Module:
    """Returns the network of a kind, with random weights: items (B, ...) of ``shape`` -> embeddings (B, D)."""
    if isinstance(kind, config.ResNet | config.Timm) or (isinstance(kind, config.Small) and len(shape) != 2):
        config.require_image_shape(kind, shape)
    match kind:
        case config.Small():
            return networks.small_convnet(shape[0], kind.deep, series=len(shape) == 2)  # of series (C, T)
        case config.MLP():
            return nn.Sequential(nn.Flatten(), networks.mlp((math.prod(shape), 512, 512, 256)))
        case config.Identity():
            expect(len(shape) == 1, "vectors for encoder 'identity'", f"shape {tuple(shape)}", "choose another `encoder`")
            return nn.Identity()
        case config.ResNet():
            return networks.resnet(kind.name, shape[0], kind.stem or ("cifar" if shape[1] <= 64 else "imagenet"))
        case config.Timm():
            return timm_models.timm_model(kind.name, shape[0], shape[1], settings=kind.settings)
        case config.Factory():
            return networks.factory_model(kind.name)
        case config.PatchesMLP():
            return RefinedEncoder(shape[0], kind.complete(shape))
        case config.Patches():
            return PatchEncoder(shape[0], kind.complete(shape))
    raise NotImplementedError(f"no network for {type(kind).__name__}")


def expected_input(kind: config.Encoder) -> Input | None:
    """Returns the input that the network's own configuration names; None for networks without one."""
    if isinstance(kind, config.ResNet):
        return Input()
    if isinstance(kind, config.Timm):
        return timm_models.read_input(str(kind), timm_models.require_timm(kind.name).get_pretrained_cfg(kind.name) or {})
    if isinstance(kind, config.Factory):
        net = networks.factory_model(kind.name)
        configuration = getattr(net, "pretrained_cfg", None) or getattr(net, "default_cfg", None)
        return None if configuration is None else timm_models.read_input(kind.name, configuration)
    return None


def encoder(kind: config.Encoder | str, shape: Sequence[int], mean: Tensor, std: Tensor) -> nn.Module:
    """Builds an encoder of items of ``shape`` that standardizes its input and returns (B, D) embeddings.

    Args:
        kind: config.Encoder, or its text (`vergence.learn.encoders.config`).
        shape: (C, H, W) of images or (D,) of vectors, as the encoder sees them.
        mean: Mean per channel (of images in [0, 1]) or per feature. A network of three channels takes gray images, too.
        std: Standard deviation per channel or per feature.

    Example:
        >>> net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3]))
        >>> net(torch.zeros(4, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([4, 256])
    """
    kind = config.as_encoder(kind)
    if not kind.standardized:
        mean, std = torch.zeros_like(mean), torch.ones_like(std)
    seen = (len(mean), *shape[1:]) if len(shape) == 3 else tuple(shape)  # by the network, behind `Standardize`
    net = nn.Sequential(networks.Standardize(mean, std), build(kind, seen).to(mean.dtype if mean.is_floating_point() else None))
    networks.require_embeddings(str(kind), net, tuple(shape))
    return net
