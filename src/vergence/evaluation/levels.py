"""Levels of features of an item, all from one pass: its pixels, responses to small patches of it, and the embedding.

What is unusual in a picture may show at one level alone: a foreign kind of picture in its pixels, a foreign object only in the
embedding. Each level is a matrix (B, D) of a batch, for a detector of its own.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vergence.data.pixels import to_unit
from vergence.detection import pixel_statistics, stage_features
from vergence.encoders.patch_maps import PatchEncoder, PatchMaps
from vergence.methods.core import Method

__all__ = ["ATOMS", "Levels"]

ATOMS = 128  # of the level patches: as many as detectors were compared with


class Levels(nn.Module):
    """Items (B, ...) -> level by name, each (B, D) float32.

    - ``pixels``: statistics of images (`vergence.detection.pixel_statistics`); ``inputs``: vectors as they are.
    - ``patches``: average responses to the first 128 atoms of a closed-form encoder's dictionary, whose one pass serves both;
      with any other encoder to the dictionary ``maps``, where there is one.
    - ``z``: the embedding.

    Args:
        method: Trained method, in evaluation mode.
        shape: Shape of one item as the encoder sees it, (C, H, W) or (D,).
        maps: A dictionary of patches (`vergence.detection.patch_dictionary`), on the method's device.

    Example:
        >>> from vergence.encoders.networks import encoder
        >>> from vergence.methods.paired import PairedMethod
        >>> from vergence.objectives.vje import VJE
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
        if not len(x):  # files of which none could be read
            return {name: f[:0] for name, f in self(x.new_zeros(1, *x.shape[1:])).items()}
        found = {"pixels": pixel_statistics(x)} if self.pixels else {"inputs": x.flatten(1)}
        if self.patches is not None:
            responses, z = stage_features(self.method.encoder, x).values()
            found |= {"patches": self.patches.averaged(responses, ATOMS), "z": z}
        else:
            if self.maps is not None:
                found["patches"] = self.maps(to_unit(x))
            found["z"] = self.method.encoder(x)
        return {name: f.float() for name, f in found.items()}

    @torch.no_grad()
    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level."""
        first = next(itertools.chain(self.method.encoder.parameters(), self.method.encoder.buffers()))
        x = torch.zeros(1, *self.shape, dtype=first.dtype, device=first.device)
        return {name: f.shape[1] for name, f in self(x).items()}
