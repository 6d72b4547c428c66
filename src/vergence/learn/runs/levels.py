"""Levels of features of one batch of images: pixel statistics, patches, the stages of an encoder, and its embedding.

What is unusual in a picture may show at one level alone: an unknown kind of picture in its pixels, an unknown object only in the
embedding. Each level is a matrix (B, D) of a batch, for a detector of its own.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vergence.data.pixels import to_unit
from vergence.images.statistics import pixel_statistics
from vergence.learn.encoders.patch_maps import PatchEncoder, PatchMaps
from vergence.learn.methods.core import Method

__all__ = ["Levels", "stage_features"]

ATOMS = 128  # of the level patches, at most


class Levels(nn.Module):
    """Items (B, ...) -> level by name, each (B, D) float32, of a trained method in evaluation mode.

    - ``pixels``: statistics of images (`pixel_statistics`); ``inputs``: vectors as they are.
    - ``patches``: average responses to the first 128 atoms of a closed-form encoder's dictionary, whose one pass serves both;
      with any other encoder to the dictionary ``maps`` on the method's device, where there is one.
    - ``z``: the embedding.

    The shape of one item is that which the encoder sees, (C, H, W) or (D,).

    Example:
        >>> from vergence.learn.encoders.building import encoder
        >>> from vergence.learn.methods.paired import PairedMethod
        >>> from vergence.learn.objectives.vje import VJE
        >>> net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3])).eval()
        >>> levels = Levels(PairedMethod(net, VJE(256)), (1, 8, 8))
        >>> list(levels(torch.zeros(2, 1, 8, 8)))
        ['pixels', 'z']
    """

    def __init__(self, method: Method, shape: Sequence[int], maps: PatchMaps | None = None) -> None:
        super().__init__()
        self.method, self.shape, self.maps = method, tuple(shape), maps
        self.pixels = len(self.shape) == 3 and min(self.shape[1:]) > 1
        self.patches = next((m.settings for m in method.encoder.modules() if isinstance(m, PatchEncoder)), None)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the levels of a batch of items on the method's device."""
        if not x.shape[0]:  # files of which none could be read
            return {name: f[:0] for name, f in self(x.new_zeros(1, *x.shape[1:])).items()}
        levels = {"pixels": pixel_statistics(x)} if self.pixels else {"inputs": x.flatten(1)}
        if self.patches is not None:
            responses, z = stage_features(self.method.encoder, x).values()
            levels |= {"patches": self.patches.averaged(responses, ATOMS), "z": z}
        else:
            if self.maps is not None:
                levels["patches"] = self.maps(to_unit(x))
            levels["z"] = self.method.encoder(x)
        return {name: f.float() for name, f in levels.items()}

    @torch.no_grad()
    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level."""
        first = next(itertools.chain(self.method.encoder.parameters(), self.method.encoder.buffers()))
        x = torch.zeros(1, *self.shape, dtype=first.dtype, device=first.device)
        return {name: f.shape[1] for name, f in self(x).items()}


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
