"""Deep SVDD (Ruff et al., Deep One-Class Classification, ICML 2018) in its one-class form, as a baseline for one_class.py.

A network without biases maps typical images near a fixed center c, and the score of an image is its squared distance to c:

    min_W  1/n sum_i |phi(x_i; W) - c|^2 + weight decay.

As in the paper: LeNet with 5x5 convolutions, batch normalization without scale and shift, leaky ReLU, 128 outputs, global
contrast normalization, weights from an autoencoder, c the mean of the first outputs with no entry near 0 (a bias, a free
center, or c = 0 would allow a constant solution). The paper trains the autoencoder for 350 epochs and the distance for 150.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTHS, DIM = (32, 64, 128), 128
LEAST = 0.1  # magnitude of an entry of the center


def block(c_in: int, c_out: int) -> nn.Sequential:
    """Returns a 5x5 convolution without bias and a batch normalization without scale and shift, with a leaky ReLU."""
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 5, padding=2, bias=False), nn.BatchNorm2d(c_out, eps=1e-4, affine=False), nn.LeakyReLU()
    )


def network(channels: int, side: int) -> nn.Sequential:
    """Returns phi, (N, C, side, side) -> (N, 128), which has no biases."""
    layers: list[nn.Module] = []
    for c_in, c_out in zip((channels, *WIDTHS), WIDTHS, strict=False):
        layers += [block(c_in, c_out), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(WIDTHS[-1] * (side // 8) ** 2, DIM, bias=False))


class Decoder(nn.Module):
    """From outputs (N, 128) back to images (N, C, side, side) in [0, 1]."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.side, self.small = side, max(1, side // 8)
        self.first = nn.Linear(DIM, WIDTHS[-1] * self.small**2, bias=False)
        self.blocks = nn.ModuleList(block(a, b) for a, b in zip(WIDTHS[:0:-1], WIDTHS[-2::-1], strict=True))
        self.last = nn.Conv2d(WIDTHS[0], channels, 5, padding=2, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        x = self.first(z).view(len(z), WIDTHS[-1], self.small, self.small)
        for one in self.blocks:
            x = one(F.interpolate(x, scale_factor=2.0))
        return torch.sigmoid(self.last(F.interpolate(x, size=(self.side, self.side))))


def normalized(x: Tensor) -> Tensor:
    """Returns images in [0, 1] with mean 0 and mean absolute value 1 each (global contrast normalization)."""
    x = x - x.mean((1, 2, 3), keepdim=True)
    return x / x.abs().mean((1, 2, 3), keepdim=True).clamp(min=1e-8)


def loss(z: Tensor, center: Tensor) -> Tensor:
    """Returns the mean squared distance of outputs (N, D) to the center (D,)."""
    return (z - center).square().sum(1).mean()


def away_from_zero(center: Tensor) -> Tensor:
    """Returns the center with entries of magnitude below 0.1 set to 0.1 with their sign."""
    sign = torch.where(center < 0, -1.0, 1.0).to(center)
    return torch.where(center.abs() < LEAST, LEAST * sign, center)


class DeepSvdd:
    """Deep SVDD of images of bytes (N, C, H, H).

    Args:
        epochs: Epochs of the autoencoder, and as many of the distance.
        lr: Learning rate of Adam, a tenth of it in the last third.
        batch_size: Images in a step.
        device: Where it is trained.
    """

    def __init__(self, epochs: int = 20, lr: float = 1e-3, batch_size: int = 200, device: str = "cpu") -> None:
        self.epochs, self.lr, self.batch_size, self.device = epochs, lr, batch_size, device

    def fit(self, x: Tensor, seed: int = 0) -> "DeepSvdd":
        torch.manual_seed(seed)
        y = normalized(x.float() / 255)
        self.low, self.high = y.min(), y.max()
        y = self._scaled(x)
        self.net = network(x.shape[1], x.shape[-1]).to(self.device, memory_format=torch.channels_last)
        decoder = Decoder(x.shape[1], x.shape[-1]).to(self.device, memory_format=torch.channels_last)
        self._train(nn.ModuleList([self.net, decoder]), y, lambda b: F.mse_loss(decoder(self.net(b)), b))
        self.center = away_from_zero(self._outputs(y).mean(0))
        self.distances = self._train(self.net, y, lambda b: loss(self.net(b), self.center))
        return self

    def anomaly_score(self, x: Tensor) -> np.ndarray:
        """Returns the squared distance of each image to the center, (N,)."""
        return (self._outputs(self._scaled(x)) - self.center).square().sum(1).cpu().numpy()

    def _scaled(self, x: Tensor) -> Tensor:
        y = (normalized(x.float() / 255) - self.low) / (self.high - self.low).clamp(min=1e-8)
        return y.to(self.device, memory_format=torch.channels_last)

    @torch.no_grad()
    def _outputs(self, y: Tensor) -> Tensor:
        self.net.eval()
        return torch.cat([self.net(b) for b in y.split(500)])

    def _train(self, net: nn.Module, y: Tensor, of_batch: Callable[[Tensor], Tensor]) -> list[float]:
        """Trains a network by a loss of a batch; returns the mean loss of each epoch."""
        optimizer = torch.optim.Adam(net.parameters(), lr=self.lr, weight_decay=5e-7)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [max(1, 2 * self.epochs // 3)], gamma=0.1)
        net.train()
        means = []
        for _ in range(self.epochs):
            total = 0.0
            for rows in torch.randperm(len(y)).split(self.batch_size):
                if len(rows) < 2:  # batch normalization needs two
                    continue
                optimizer.zero_grad()
                value = of_batch(y[rows.to(y.device)])
                value.backward()
                optimizer.step()
                total += value.item() * len(rows)
            schedule.step()
            means.append(total / len(y))
        return means
