"""Pooled activations of the stages of an encoder, from one forward pass; for one thread at a time."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from vergence.learn.encoders.patch_maps import PatchEncoder


def stage_modules(encoder: nn.Module) -> list[nn.Module]:
    """Returns the modules whose outputs are the stages of an encoder, the first one first; none for an unknown architecture.

    These are the activations after each convolution of the small network and each hidden layer of an ``mlp``, the four blocks of
    a ResNet, the feature maps that a network of timm declares, and the pooled responses of patches.

    Example:
        >>> from vergence.learn.encoders.networks import small_convnet
        >>> len(stage_modules(small_convnet(3)))
        4
    """
    for module in encoder.modules():
        if isinstance(module, PatchEncoder):
            return [module.maps]
        declared: Any = getattr(module, "feature_info", None)
        if declared is not None and hasattr(declared, "__iter__"):
            modules = dict(module.named_modules())
            return [modules[str(stage["module"])] for stage in declared if str(stage.get("module")) in modules]
        if blocks := [child for name, child in module.named_children() if re.fullmatch(r"layer\d+", name)]:
            return blocks
    return [module for module in encoder.modules() if isinstance(module, nn.ReLU)]


def stage_features(encoder: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Returns the embedding ``z`` (B, D) of a batch and the pooled activations of each stage, ``stage1``, ``stage2``, ....

    A map (B, C, H, W) is pooled to its mean and its deviation over positions, (B, 2 C), a sequence (B, T, C) likewise; pooled
    features (B, C) stay as they are. All come from one forward pass of the encoder, which is in evaluation mode.

    Example:
        >>> from vergence.learn.encoders.networks import small_convnet
        >>> net = small_convnet(3).eval()
        >>> features = stage_features(net, torch.rand(2, 3, 16, 16, dtype=torch.get_default_dtype()))
        >>> {name: tuple(values.shape) for name, values in features.items()}
        {'stage1': (2, 64), 'stage2': (2, 128), 'stage3': (2, 256), 'stage4': (2, 512), 'z': (2, 256)}
    """
    pooled: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, inputs, output: pooled.update({name: _pooled(output.detach())})

    hooks = [module.register_forward_hook(keep(f"stage{i}")) for i, module in enumerate(stage_modules(encoder), start=1)]
    try:
        z = encoder(x)
    finally:
        for hook in hooks:
            hook.remove()
    return {**pooled, "z": z}


def _pooled(x: Tensor) -> Tensor:
    """Returns mean and deviation over positions, (B, 2 C)."""
    if x.ndim == 2:
        return x
    x, positions = x.float(), (2, 3) if x.ndim == 4 else (1,)
    mean = x.mean(positions)
    variance = x.square().mean(positions) - mean.square()  # ten times as fast as torch.std_mean, whose copy is slow
    return torch.cat([mean, variance.clamp(min=0).sqrt()], 1)
