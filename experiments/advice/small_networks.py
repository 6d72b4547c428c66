"""Small networks on vectors: a denoising autoencoder, and the same encoder trained by joint embedding.

Joint embedding is VJE, or variance-invariance-covariance regularization (VICReg, arXiv:2105.04906, weights 25, 25, 1, on the
outputs themselves), whose linear case is the linear theory's problem with a soft constraint. Items, views, number of epochs,
encoder and optimizer are the same for all. The autoencoder is the library's (`vergence.learn.methods.denoising_autoencoder`): it
reconstructs the item from its view, min |x - D(E(tau(x)))|^2, which is reconstruction as the linear theory states it.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vergence.learn.encoders.networks import mlp
from vergence.learn.methods.denoising_autoencoder import DenoisingAutoencoder
from vergence.learn.objectives.vje import VJE

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
WIDTH, BATCH, RATE = 512, 250, 1e-3


class Standardize(nn.Module):
    """(x - mean) / sd with one sd for all features: reconstruction depends on the features' proportions, which are kept."""

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", X.mean(0))
        self.register_buffer("scale", X.std(0).square().mean().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale


def network(X: Tensor, k: int) -> nn.Sequential:
    """Returns the encoder (B, D) -> (B, k): three layers with batch normalization between them."""
    return nn.Sequential(Standardize(X), mlp((X.shape[1], WIDTH, WIDTH, k)))


def train_autoencoder(X: Tensor, tau: Augmentation, k: int, *, epochs: int, seed: int) -> nn.Module:
    """Returns the encoder (B, D) -> (B, k) of a denoising autoencoder."""
    torch.manual_seed(seed)
    method = DenoisingAutoencoder(network(X, k), (X.shape[1],))

    def loss(index: Tensor, generator: torch.Generator) -> Tensor:
        views = tau(X[index], generator), X[index]
        return method(views, lambda z: z)["reconstruction"] / X.shape[1]  # a mean over features, as in all rows

    return _trained(method.encoder, [*method.parameters()], loss, len(X), epochs, seed)


def train_vje(X: Tensor, tau: Augmentation, k: int, *, epochs: int, seed: int) -> nn.Module:
    """Returns the encoder (B, D) -> (B, k) trained with VJE on two views."""
    return _joint(X, tau, k, lambda: VJE(k), epochs, seed)


def train_vicreg(X: Tensor, tau: Augmentation, k: int, *, epochs: int, seed: int) -> nn.Module:
    """Returns the encoder (B, D) -> (B, k) trained with VICReg on two views."""
    return _joint(X, tau, k, Vicreg, epochs, seed)


class Vicreg(nn.Module):
    """VICReg's loss on the outputs themselves: distance, hinge on deviations (half for each view), penalty on covariances."""

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        spread = sum(torch.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() / 2 for z in (za, zb))
        covariances = [z.T.cov() for z in (za, zb)]
        shared = sum((c - c.diagonal().diag()).square().sum() / len(c) for c in covariances)
        return {"distance": 25 * (za - zb).square().mean(), "spread": 25 * spread, "shared": shared}


def _joint(X: Tensor, tau: Augmentation, k: int, kind: Callable[[], nn.Module], epochs: int, seed: int) -> nn.Module:
    """Returns an encoder trained by an objective on two views."""
    torch.manual_seed(seed)
    encoder, objective = network(X, k), kind()

    def loss(index: Tensor, generator: torch.Generator) -> Tensor:
        za, zb = (encoder(tau(X[index], generator)) for _ in range(2))
        return sum(objective(za, zb).values())

    return _trained(encoder, [*encoder.parameters(), *objective.parameters()], loss, len(X), epochs, seed)


def _trained(encoder: nn.Module, parameters: list, loss: Callable, n: int, epochs: int, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (n // BATCH))
    for _ in range(epochs):
        for index in torch.randperm(n, generator=generator)[: n // BATCH * BATCH].split(BATCH):
            optimizer.zero_grad()
            loss(index, generator).backward()
            optimizer.step()
            schedule.step()
    return encoder.eval()
