"""Samples of a run's density as pictures, painted by a small decoder of its frozen embeddings.

    python -m experiments.joint.decoder RUN samples.png --n 64 --epochs 30

The decoder is a generator in the manner of DCGAN (2015), arXiv:1511.06434 (`vergence.learn.encoders.decoder`), trained by mean
squared error against the picture that was embedded. It never changes the run's encoder. Its output shows the part of a picture
that the embedding keeps, and is blurred where several pictures have one embedding.

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
from vergence.data.items import Items, PairItems
from vergence.data.pixels import center_crop, to_unit
from vergence.learn.encoders.decoder import Decoder
from vergence.learn.evaluation import features
from vergence.learn.runs.detector import opened
from vergence.learn.runs.run import Run
from vergence.utils.terminal import bar

BATCH_SIZE, LEARNING_RATE = 64, 2e-3


def fit_decoder(run: Run, *, epochs: int = 30, seed: int = 0) -> Decoder:
    """Returns a decoder of the run's frozen embeddings of its training items (of pairs, of the targets), on the run's device.

    It is trained with mean squared error, Adam and a cosine schedule to zero; ``seed`` is that of the weights and of the order.
    """
    shape, items = run.folder.metadata.target_shape or run.folder.metadata.shape, opened(run.folder).train
    items = items.target if isinstance(items, PairItems) else items
    z, index = features.collect_features(run.method.target_network().eval(), items, **run.where("target"))
    std, mean = torch.std_mean(z, dim=0, correction=0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        decoder = Decoder(z.shape[1], shape, mean, torch.where(std > 1e-6, std, 1.0)).to(run.device)
        _fit(decoder, z, items.subset(index), run, epochs)
    return decoder.eval()


def _fit(decoder: Decoder, z: Tensor, items: Items, run: Run, epochs: int) -> None:
    size = run.where("target")["size"]
    per_epoch = max(1, len(items) // BATCH_SIZE)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * per_epoch)
    with bar(f"decoder 1/{epochs}", epochs * per_epoch * BATCH_SIZE, "images") as advance:
        for epoch in range(epochs):
            order = torch.randperm(len(items))[: per_epoch * BATCH_SIZE]
            for index, x in items.stream(iter(order.split(BATCH_SIZE)), workers=run.folder.config.fit.workers):
                x = to_unit(x if size is None else center_crop(x, size), torch.float32).to(run.device)
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
    for name, default in {"n": 64, "epochs": 30, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    run = vergence.load(options.run)
    pictures = decoded(fit_decoder(run, epochs=options.epochs, seed=options.seed), run.sample(options.n, options.seed)[1])
    save_image(pictures, options.out, nrow=math.ceil(math.sqrt(options.n)))


if __name__ == "__main__":
    main()
