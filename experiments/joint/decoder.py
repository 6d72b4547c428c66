"""Samples of a run's density as pictures, painted by a small decoder of its frozen embeddings.

    python -m experiments.samples.decoder RUN samples.png --n 64 --epochs 30

The decoder is a generator in the manner of DCGAN (2015), arXiv:1511.06434 (`vergence.encoders.decoder`), trained by mean squared
error against the picture that was embedded. It never changes the run's encoder. Its output shows the part of a picture that the
embedding keeps, and is blurred where several pictures have one embedding.

Shapes: N pictures (C, H, W), D features of the objective's space.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.utils import save_image

import vergence
from vergence.data.items import Items
from vergence.encoders.decoder import Decoder
from vergence.evaluation import features
from vergence.runs.pictures import picture_shape, pictures_of, targets
from vergence.runs.run import Run
from vergence.utils.terminal import bar

EPOCHS, BATCH_SIZE, LEARNING_RATE = 30, 64, 2e-3


def fit_decoder(
    run: Run,
    items: Items | None = None,
    *,
    epochs: int = EPOCHS,
    batch_size: int = BATCH_SIZE,
    lr: float = LEARNING_RATE,
    seed: int = 0,
) -> Decoder:
    """Trains a decoder of the run's frozen embeddings with mean squared error, Adam and a cosine schedule from ``lr`` to zero.

    Args:
        run: A trained run on images; of pairs, the targets are decoded.
        items: Images to learn from; the run's training items by default.
        epochs: Passes over them.
        batch_size: Images in a step.
        lr: Peak learning rate.
        seed: Seed of the weights and of the order.

    Returns:
        The decoder on the run's device, in evaluation mode.

    Raises:
        ValueError: The run is not on images, there are fewer than two, or a setting is out of its range.
    """
    shape, items = picture_shape(run), targets(run) if items is None else items
    if not (epochs >= 1 and batch_size >= 2 and lr > 0 and len(items) >= 2):
        found = f"found epochs={epochs}, batch_size={batch_size}, lr={lr} and {len(items)} images"
        raise ValueError(f"expected epochs >= 1, batch_size >= 2, lr > 0 and at least 2 images to learn from, {found}")
    z, index = features.collect_features(run.method.target_network().eval(), items, **run.where("target"))
    items = items.subset(index)
    std, mean = torch.std_mean(z, dim=0, correction=0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        decoder = Decoder(z.shape[1], shape, mean, torch.where(std > 1e-6, std, 1.0)).to(run.device)
        _fit(decoder, z, items, run, epochs, batch_size, lr)
    return decoder.eval()


def _fit(decoder: Decoder, z: Tensor, items: Items, run: Run, epochs: int, batch_size: int, lr: float) -> None:
    steps = epochs * max(1, len(items) // batch_size)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with bar(f"decoder 1/{epochs}", steps * batch_size, "images") as advance:
        for epoch in range(epochs):
            order = torch.randperm(len(items))[: max(1, len(items) // batch_size) * batch_size]
            for index, x in pictures_of(items, order.split(batch_size), run):
                error = F.mse_loss(decoder(z[index].to(run.device)), x)
                optimizer.zero_grad(set_to_none=True)
                error.backward()
                optimizer.step()
                schedule.step()
                advance(len(index), label=f"decoder {epoch + 1}/{epochs}")


@torch.inference_mode()
def decoded(decoder: Decoder, z: Tensor) -> Tensor:
    """Returns the pictures (N, C, H, W) that a decoder gives for embeddings (N, D), on the CPU."""
    device = next(decoder.parameters()).device
    return torch.cat([decoder(part.to(device)).cpu() for part in z.split(256)])


def main() -> None:
    """Writes pictures of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run = vergence.load(options.run)
    shown = decoded(fit_decoder(run, epochs=options.epochs, seed=options.seed), run.sample(options.n, options.seed)[1])
    save_image(shown, options.out, nrow=math.ceil(math.sqrt(options.n)))


if __name__ == "__main__":
    main()
