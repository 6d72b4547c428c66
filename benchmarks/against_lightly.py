"""Compares the training throughput of lightly's loop and ours on CIFAR-10, in turn, in one run; a row for each setting.

lightly's side is its documented plain-PyTorch SimCLR loop: its transform on PIL images in a DataLoader with workers, its
projection head and its NT-Xent loss. Ours is `loop.fit` with VJE. Network, batch, optimizer and data are the same. Two settings:

defaults   each with its defaults: ours in bfloat16 where the hardware has it and channels last, lightly's in float32, contiguous
equal      lightly's model and images in our precision and memory layout; what differs is how views are made, loss and loop

    python benchmarks/against_lightly.py --data-root DATA --encoder small --steps 12
"""

import argparse
import contextlib
import statistics
import time

import ledger
import torch
from torch import nn

from vergence.data.config import ViewConfig
from vergence.data.items import ArrayItems
from vergence.data.views import ImageViews
from vergence.encoders import networks
from vergence.training import build, loop
from vergence.training.config import FitConfig, ModelConfig
from vergence.training.metrics import MemoryRecorder

MEAN, STD = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
SETTINGS = ("defaults", "equal")


def lightly_loop(
    encoder: str, dataset: object, batch_size: int, steps: int, workers: int, *, precision: str, layout: torch.memory_format
) -> float:
    """Returns images per second of lightly's loop after its first two steps."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform

    dataset.transform = SimCLRTransform(input_size=32, gaussian_blur=0.0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=workers)
    backbone = networks._backbone(encoder, (3, 32, 32))
    model = nn.Sequential(backbone, SimCLRProjectionHead(networks.width(backbone, (3, 32, 32)), 512, 128))
    model = model.to(memory_format=layout)
    criterion = NTXentLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
    bf16 = torch.autocast("cpu", torch.bfloat16) if precision == "bf16-mixed" else contextlib.nullcontext()
    began = done = 0.0
    for step, ((x0, x1), _) in enumerate(loader):
        with bf16:
            z0, z1 = (model(x.contiguous(memory_format=layout)) for x in (x0, x1))
        loss = criterion(z0.float(), z1.float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            began = time.perf_counter()
        done = step - 1
        if done == steps:
            break
    return done * batch_size / (time.perf_counter() - began)


def our_loop(encoder: str, images: torch.Tensor, batch_size: int, steps: int, precision: str) -> float:
    """Returns images per second of `loop.fit` after a warm-up run of two steps."""
    threads = torch.get_num_threads()  # as many as lightly's loop has
    settings = {"precision": precision, "knn_every": 0, "checkpoint_seconds": 1e9, "device": "cpu", "threads": threads}
    fit = FitConfig(epochs=1, batch_size=batch_size, **settings)
    fabric = loop.launch(fit)
    model = ModelConfig(encoder=encoder)
    for n in (2, steps):
        method = build.build_method(model, (3, 32, 32), None, MEAN, STD).to(memory_format=torch.channels_last)
        began = time.perf_counter()
        items, views = ArrayItems(images[: n * batch_size]), ImageViews(ViewConfig(blur=0.0), 32)
        loop.fit(fabric, method, items, views, fit, MemoryRecorder())
        elapsed = time.perf_counter() - began
    return steps * batch_size / elapsed


def measure(a: argparse.Namespace, dataset: object) -> dict[str, dict]:
    """Returns a row a setting: images per second of both loops, medians over rounds in which they take turns."""
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
    precision = loop.precision(FitConfig(precision=a.precision), "cpu")
    theirs = {
        "defaults": {"precision": "32-true", "layout": torch.contiguous_format},
        "equal": {"precision": precision, "layout": torch.channels_last},
    }
    rates: dict[str, list[tuple[float, float]]] = {setting: [] for setting in a.settings}
    for _ in range(a.rounds):
        ours = our_loop(a.encoder, images, a.batch_size, a.steps, a.precision)
        for setting in a.settings:
            other = lightly_loop(a.encoder, dataset, a.batch_size, a.steps, a.workers, **theirs[setting])
            rates[setting].append((ours, other))
            print(f"{setting}: ours {ours:.0f}  lightly {other:.0f}  ratio {ours / other:.2f}", flush=True)
    return {
        setting: {
            "measurement": "training loop against lightly's SimCLR loop",
            "setting": setting,
            "encoder": a.encoder,
            "batch_size": a.batch_size,
            "our_precision": precision,
            "our_layout": "channels last",
            "their_precision": theirs[setting]["precision"],
            "their_layout": "channels last" if theirs[setting]["layout"] is torch.channels_last else "contiguous",
            "workers": a.workers,
            "rounds": a.rounds,
            "our_images_per_second": round(statistics.median(o for o, _ in pairs), 1),
            "their_images_per_second": round(statistics.median(t for _, t in pairs), 1),
            "ratio": round(statistics.median(o / t for o, t in pairs), 2),
        }
        for setting, pairs in rates.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--precision", default="auto", help="of our loop; lightly's in the setting 'equal' follows it")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    a = ledger.parse(parser, "lightly")
    if a.tiny:
        a.encoder, a.batch_size, a.steps, a.rounds, a.workers = "small", 8, 1, 1, 0

    from torchvision.datasets import CIFAR10

    for values in measure(a, CIFAR10(a.data_root, train=True)).values():
        ledger.add(a.out, ledger.row(values, seed=0, peers=("lightly", "torchvision")))


if __name__ == "__main__":
    main()
