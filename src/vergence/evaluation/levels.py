"""Levels of features of an item, all from one pass: its pixels, the stages of the encoder, and the embedding.

What is unusual in a picture may show at one level alone: a foreign kind of picture in its pixels, a foreign object only in the
embedding. Each level is a matrix (B, D) of a batch, for a detector of its own.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vergence.detection import pixel_statistics
from vergence.detection.levels import STAGE, stage_features
from vergence.encoders.dictionary import PatchEncoder
from vergence.methods.core import Method
from vergence.objectives.core import DensityObjective

__all__ = ["Levels"]

ATOMS = 128  # of the level patches: as many as detectors were compared with
WIDEST = 1024  # features of a stage, above which its deviations are left out


class Levels(nn.Module):
    """Items (B, ...) -> level by name, each (B, D) float32.

    - ``pixels``: statistics of images (`vergence.detection.pixel_statistics`); ``inputs``: vectors as they are.
    - ``stage1``, ``stage2``, ...: mean and deviation over positions of the encoder's feature maps
      (`vergence.detection.stage_features`), of more than 512 channels the mean alone; only where they are asked for, since the
      default detector does not read them.
    - ``patches``: average over cells of the responses to the first 128 atoms of a closed-form encoder's dictionary.
    - ``z``: the embedding.
    - ``mu``: mean of the objective's posterior, only where it is asked for.

    Args:
        method: Trained method, in evaluation mode.
        shape: Shape of one item as the encoder sees it, (C, H, W) or (D,).
        stages: Whether the stages are computed.
        mu: Whether ``mu`` is computed.

    Example:
        >>> from vergence.encoders.networks import encoder
        >>> from vergence.methods.paired import PairedMethod
        >>> from vergence.objectives.vje import VJE
        >>> net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3])).eval()
        >>> levels = Levels(PairedMethod(net, VJE(256)), (1, 8, 8))
        >>> list(levels(torch.zeros(2, 1, 8, 8)))
        ['pixels', 'z']
    """

    def __init__(self, method: Method, shape: Sequence[int], *, stages: bool = False, mu: bool = False) -> None:
        super().__init__()
        self.method, self.shape, self.stages, self.mu = method, tuple(shape), stages, mu
        self.pixels = len(self.shape) == 3 and min(self.shape[1:]) > 1
        self.patches = next((m.settings for m in method.encoder.modules() if isinstance(m, PatchEncoder)), None)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns the levels of a batch of items on the method's device."""
        if not len(x):  # files of which none could be read
            return {name: f[:0] for name, f in self(x.new_zeros(1, *x.shape[1:])).items()}
        found = {"pixels": pixel_statistics(x)} if self.pixels else {"inputs": x.flatten(1)}
        hooked = self.stages or self.patches is not None
        for name, f in (stage_features(self.method.encoder, x) if hooked else {"z": self.method.encoder(x)}).items():
            if self.patches is not None and name.startswith(STAGE):
                found["patches"] = self.patches.averaged(f, ATOMS)
            else:
                found[name] = f[:, : f.shape[1] // 2] if name.startswith(STAGE) and f.shape[1] > WIDEST else f
        if self.mu and isinstance(self.method.objective, DensityObjective):
            found["mu"] = self.method.objective.posterior(self.method.projector(found["z"])).mean
        return {name: f.float() for name, f in found.items()}

    @torch.no_grad()
    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level."""
        first = next(itertools.chain(self.method.encoder.parameters(), self.method.encoder.buffers()))
        x = torch.zeros(1, *self.shape, dtype=first.dtype, device=first.device)
        return {name: f.shape[1] for name, f in self(x).items()}
