"""Denoising autoencoder: the item is reconstructed from a corrupted view of it.

P. Vincent, H. Larochelle, Y. Bengio, P.-A. Manzagol, "Extracting and Composing Robust Features with Denoising Autoencoders", ICML
2008. With the encoder E, a decoder D and the corruption tau,

    loss = mean over items of |x - D(E(tau(x)))|^2,

summed over features: reconstruction as the linear theory states it (H. Van Assel et al., arXiv:2505.12477, SSL-RC). The paper's
networks are fully connected, tie D's weights to E's and train greedily, layer by layer; here E is any encoder and D a
convolutional one (`vergence.learn.encoders.decoder.Decoder`), or for vectors the mirror image of the encoder ``mlp``.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vergence.data.config import ViewConfig
from vergence.data.pixels import to_unit
from vergence.learn.encoders.decoder import Decoder
from vergence.learn.encoders.networks import mlp, width
from vergence.learn.methods.core import Draws, Gather, ImageMethod, MultiView
from vergence.learn.objectives.core import settings
from vergence.learn.views.images import ImageViews, Views
from vergence.utils.checks import require_within
from vergence.utils.linalg import upcast_half

__all__ = ["DenoisingAutoencoder"]

HIDDEN = 512  # width of the decoder of vectors


def reconstruction(x: Tensor, y: Tensor) -> Tensor:
    """Returns |x - y|^2 for each item, (B, ...) and (B, ...) -> (B,)."""
    return (x - y).square().flatten(1).sum(1)


class DenoisingAutoencoder(ImageMethod):
    """A denoising autoencoder: reconstructs each item from a corrupted view of it.

    The input is a view of the run's strengths, with noise; the target is the image without any change but of its size, in
    [0, 1] (of an image wider or taller than 4:3 its middle, as of every view of the whole image).
    Vectors are corrupted by the run's views alone, and the target is in the units of the encoder's statistics, ``encoder[0]``.

    Args:
        encoder: See `vergence.learn.methods.core.ImageMethod`.
        shape: Shape (C, H, W) of the images, or (D,) of vectors.
        noise: Standard deviation of Gaussian noise on the view of an image, in units of pixels in [0, 1].
        mask: Probability that a pixel of the view is black in all channels (the paper's masking noise), in [0, 1).

    Example:
        >>> from vergence.learn.encoders.building import encoder
        >>> net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3]))
        >>> method = DenoisingAutoencoder(net, (1, 8, 8))
        >>> x = torch.rand(2, 1, 8, 8)
        >>> list(method((x + 0.1, x), gather=lambda z: z))
        ['reconstruction']
    """

    vectors: ClassVar[bool] = True
    small = settings(crop=(1.0, 1.0), flip=0.0, jitter_p=0.0, grayscale=0.0)

    def __init__(self, encoder: nn.Module, shape: Sequence[int], *, noise: float = 0.25, mask: float = 0.0) -> None:
        super().__init__(encoder, shape)
        require_within("[0, inf)", noise=noise)
        require_within("[0, 1)", mask=mask)
        self.noise, self.mask = noise, mask
        dim = width(encoder, self.shape)
        self.decoder = Decoder(dim, self.view_shape) if len(self.shape) == 3 else mlp((dim, HIDDEN, HIDDEN, *self.shape))

    def inputs(self, views: Views) -> MultiView:
        """Returns the corrupted view and the item."""
        return MultiView(views, _Same()) if len(self.shape) == 1 else _Corrupted(views, self.shape[1], self.noise, self.mask)

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the squared error of the reconstruction, for a corrupted view and the item."""
        x, item = views
        z = self.encoder(x)
        self.observe(z, gather)
        target = to_unit(item) if len(self.shape) == 3 else self.encoder[0](item)  # type: ignore[index]
        return {"reconstruction": gather(reconstruction(upcast_half(self.decoder(z)), target)).mean()}


class _Same(Views):
    """The items themselves."""

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def apply(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        return x


class _Corrupted(MultiView):
    """A view with noise, and the whole image."""

    def __init__(self, views: Views, size: int, noise: float, mask: float) -> None:
        super().__init__(views, numbers=lambda n, g: {"seed": torch.randint(2**62, (n,), generator=g)})  # of each item's noise
        self.noise, self.mask = noise, mask
        self.whole = ImageViews(ViewConfig(**ImageViews.operations), size)

    def apply(self, x: Tensor, draws: Draws) -> tuple[Tensor, ...]:
        images = zip(self.kinds[0].apply(x, draws[0]), draws[1]["seed"], strict=True)
        noisy = torch.stack([self._noisy(image, int(seed)) for image, seed in images])
        return noisy, self.whole.apply(x, self.whole.draw(len(x), torch.Generator().manual_seed(0)))

    def _noisy(self, x: Tensor, seed: int) -> Tensor:
        generator = torch.Generator(x.device).manual_seed(seed)
        like: dict[str, Any] = {"generator": generator, "device": x.device, "dtype": x.dtype}
        keep = torch.rand(x.shape[1:], **like) >= self.mask
        return (x + self.noise * torch.randn(x.shape, **like)) * keep
