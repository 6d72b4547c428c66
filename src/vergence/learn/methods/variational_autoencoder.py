"""Variational autoencoder.

D. P. Kingma, M. Welling, "Auto-Encoding Variational Bayes", arXiv:1312.6114. With q(z | x) = N(mu(x), diag sigma(x)^2) over L
latent features, p(z) = N(0, I) and p(x | z) = N(D(z), s^2 I),

    loss = mean over items of -log p(x | z) + beta KL(q(z | x) || p(z)),   z = mu + sigma e, e ~ N(0, I),
    KL = 1/2 sum (mu^2 + sigma^2 - 1 - log sigma^2)                                                  (appendix B),

in nats, summed over pixels and latent features; with beta = 1 it bounds -log p(x) of pixels in [0, 1]. The paper's decoder of
gray images is Bernoulli and its networks are fully connected; here the pixels are Gaussian of a fixed deviation s, which suits
color, and mu and log sigma^2 are linear in the encoder's embedding. Other beta are beta-VAE's (I. Higgins et al., ICLR 2017).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vergence.data.pixels import to_unit
from vergence.learn.encoders.decoder import Decoder
from vergence.learn.encoders.networks import width
from vergence.learn.methods.core import Gather, ImageMethod, MultiView
from vergence.learn.objectives.core import settings
from vergence.learn.views.images import Views
from vergence.utils.checks import require_count, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["VariationalAutoencoder"]


def negative_log_likelihood(x: Tensor, mean: Tensor, deviation: float) -> Tensor:
    """Returns -log N(x; mean, deviation^2 I) in nats for each item, (B, ...) -> (B,), summed over pixels."""
    residual = ((x - mean) / deviation).square().flatten(1)
    return 0.5 * residual.sum(1) + residual.shape[1] * (math.log(deviation) + 0.5 * math.log(2 * math.pi))


def kl_to_prior(mu: Tensor, log_variance: Tensor) -> Tensor:
    """Returns KL(N(mu, diag exp(log_variance)) || N(0, I)) in nats for each item, (B, L) -> (B,) (appendix B)."""
    return 0.5 * (mu.square() + log_variance.exp() - 1 - log_variance).sum(1)


class VariationalAutoencoder(ImageMethod):
    """A variational autoencoder; its input and its target are one view of each image.

    Evaluation uses the encoder's embedding, in which mu(x) is linear. `posterior` returns mu and log sigma^2.

    Args:
        encoder: See `vergence.learn.methods.core.ImageMethod`.
        shape: Shape (C, H, W) of the images.
        latent: Number L of latent features.
        beta: Weight of the divergence, >= 0.
        deviation: Standard deviation s of a pixel given the latent features, > 0.

    Example:
        >>> from vergence.learn.encoders.building import encoder
        >>> net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3]))
        >>> method = VariationalAutoencoder(net, (1, 8, 8), latent=4)
        >>> list(method((torch.rand(2, 1, 8, 8), torch.randn(2, 4)), gather=lambda z: z))
        ['reconstruction', 'kl']
    """

    small = settings(crop=(1.0, 1.0), jitter_p=0.0, grayscale=0.0)

    def __init__(
        self, encoder: nn.Module, shape: Sequence[int], *, latent: int = 128, beta: float = 1.0, deviation: float = 0.1
    ) -> None:
        super().__init__(encoder, shape)
        require_count(1, latent=latent)
        require_within("[0, inf)", beta=beta)
        require_within("(0, inf)", deviation=deviation)
        self.latent, self.beta, self.deviation = latent, beta, deviation
        self.head = nn.Linear(width(encoder, self.shape), 2 * latent)
        self.decoder = Decoder(latent, self.view_shape)

    def inputs(self, views: Views) -> MultiView:
        """Returns one view and e (n, L), the noise of the latent features."""
        return MultiView(views, numbers=lambda n, g: {"noise": torch.randn(n, self.latent, generator=g, dtype=torch.float32)})

    def posterior(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mu and log sigma^2, each (B, L), for embeddings (B, D)."""
        mu, log_variance = upcast_half(self.head(z)).chunk(2, 1)
        return mu, log_variance

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the two terms, for a view and the noise of the latent features."""
        x, e = views
        h = self.encoder(x)
        self.observe(h, gather)
        mu, log_variance = self.posterior(h)
        mean = upcast_half(self.decoder(mu + (0.5 * log_variance).exp() * e))
        return {
            "reconstruction": gather(negative_log_likelihood(to_unit(x), mean, self.deviation)).mean(),
            "kl": gather(self.beta * kl_to_prior(mu, log_variance)).mean(),
        }
