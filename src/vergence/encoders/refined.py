r"""A closed-form encoder refined by a network: the patches' embedding, and a residual network trained behind it.

    c = embedding of `vergence.encoders.patch_maps.PatchEncoder`: components with eigenvalues omega, times omega^power
    z = c + U relu(norm(V c / omega^power + v))

The closed form stays as it was fitted. U starts at zero, so that before the first step z = c, and training starts from an
embedding that uses many directions.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.encoders.patch_maps import PatchEncoder, PatchSettings

__all__ = ["RefinedEncoder"]

LEAST = 1e-2  # eigenvalue that a component is divided by


class RefinedEncoder(nn.Module):
    """Images (B, C, H, W) in [0, 1] -> embeddings (B, dim): a closed form without gradient, and a trained residual network.

    Args:
        channels: Number of channels C.
        settings: Settings of the closed form, whose ``dim`` is the width of the embedding.

    Example:
        >>> encoder = RefinedEncoder(1, PatchSettings(atoms=4, patch=3, dim=5)).eval()
        >>> x = torch.rand(2, 1, 8, 8, dtype=encoder.closed_form.weight.dtype)
        >>> torch.equal(encoder(x), encoder.closed_form(x))
        True
    """

    def __init__(self, channels: int, settings: PatchSettings) -> None:
        super().__init__()
        self.closed_form = PatchEncoder(channels, settings)
        self.inner = nn.Linear(settings.dim, 2 * settings.dim)
        self.norm = nn.BatchNorm1d(2 * settings.dim)
        self.outer = nn.Linear(2 * settings.dim, settings.dim, bias=False)
        nn.init.zeros_(self.outer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns z (B, dim)."""
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            c = self.closed_form(x)
            scale = self.closed_form.eigenvalues.clamp(min=LEAST) ** self.closed_form.settings.power
        z: Tensor = c + self.outer(F.relu(self.norm(self.inner(c / scale))))
        return z
