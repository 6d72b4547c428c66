"""Feature sets of one batch of images: pixel statistics, patches, and the embedding.

An anomaly may show in one feature set alone: an unknown kind of image in its pixels, an unknown object only in the embedding.
Each is a matrix (B, D) of a batch, for a detector of its own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vergence.data.pixels import to_unit
from vergence.images.statistics import pixel_statistics
from vergence.learn.encoders.networks import blank
from vergence.learn.encoders.patch_maps import PatchEncoder, PatchMaps, RefinedEncoder
from vergence.learn.methods.core import Method
from vergence.learn.methods.parts import split

__all__ = ["RunFeatures"]

ATOMS = 128  # of the feature set patches, at most


class RunFeatures(nn.Module):
    """Items (B, ...) -> feature set by name, each (B, D) float32, of a trained method in evaluation mode.

    - ``pixels``: statistics of images (`pixel_statistics`); ``inputs``: vectors as they are.
    - ``patches``: average responses to the first 128 atoms of a closed-form encoder's dictionary, whose one pass serves both;
      with any other encoder to the dictionary ``maps`` on the method's device, where there is one.
    - ``z``: the embedding.

    The shape of one item is that which the encoder sees, (C, H, W) or (D,).
    """

    def __init__(self, method: Method, shape: Sequence[int], maps: PatchMaps | None = None) -> None:
        super().__init__()
        self.method, self.shape, self.maps = method, tuple(shape), maps
        self.pixels = len(self.shape) == 3 and min(self.shape[1:]) > 1
        net = [None, *method.encoder.children()][-1]  # behind what standardizes its input
        self.patches = net.maps.settings if isinstance(net, PatchEncoder | RefinedEncoder) else None

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the feature sets of a batch of items on the method's device."""
        if not x.shape[0]:  # files of which none could be read
            return {name: f[:0] for name, f in self(x.new_zeros(1, *x.shape[1:])).items()}
        inputs = {} if x.dtype == torch.int64 else {"inputs": x.flatten(1)}  # ids of tokens are no numbers
        sets = {"pixels": pixel_statistics(x)} if self.pixels else inputs
        if self.patches is not None:
            standardize, net = split(self.method.encoder)
            responses = net.maps(standardize(x))
            sets |= {"patches": self.patches.averaged(responses, ATOMS), "z": net.embedding(responses)}
        else:
            if self.maps is not None:
                sets["patches"] = self.maps(to_unit(x))
            sets["z"] = self.method.encoder(x)
        return {name: f.float() for name, f in sets.items()}

    @torch.no_grad()
    def widths(self) -> dict[str, int]:
        """Returns the number of features of each set."""
        return {name: f.shape[1] for name, f in self(blank(self.method.encoder, self.shape)).items()}
