"""Training throughput of lightly's loop and ours on CIFAR-10, in turn, in one run; adds a row to the ledger.

lightly's side is its documented plain-PyTorch SimCLR loop: its transform on PIL images in a DataLoader with workers, its
projection head and its NT-Xent loss. Ours is `loop.fit` with VJE. Same network, batch, optimizer and data; each with its
defaults otherwise (ours takes bfloat16 where the hardware has it; ``--precision fp32`` compares like with like).

    python benchmarks/against_lightly.py --data-root DATA --encoder small --steps 12
"""

import argparse
import json
import statistics
import time
from pathlib import Path

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


def lightly_loop(encoder: str, dataset: object, batch_size: int, steps: int, workers: int) -> float:
    """Returns images per second of lightly's loop after its first two steps."""
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform

    dataset.transform = SimCLRTransform(input_size=32, gaussian_blur=0.0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=workers)
    backbone = networks._backbone(encoder, (3, 32, 32))
    model = nn.Sequential(backbone, SimCLRProjectionHead(networks.width(backbone, (3, 32, 32)), 512, 128))
    criterion = NTXentLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
    began = done = 0.0
    for step, ((x0, x1), _) in enumerate(loader):
        loss = criterion(model(x0), model(x1))
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
    """Returns images per second of `loop.fit` after a warm-up run of one step."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "lightly.jsonl")
    a = parser.parse_args()

    import lightly
    from torchvision.datasets import CIFAR10

    dataset = CIFAR10(a.data_root, train=True)
    images = torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous()
    pairs = []
    for _ in range(a.rounds):
        theirs = lightly_loop(a.encoder, dataset, a.batch_size, a.steps, a.workers)
        ours = our_loop(a.encoder, images, a.batch_size, a.steps, a.precision)
        pairs.append((ours, theirs))
        print(f"ours {ours:.0f}  lightly {theirs:.0f}  ratio {ours / theirs:.2f}", flush=True)
    row = {
        "measurement": "training loop against lightly's SimCLR loop",
        "encoder": a.encoder,
        "batch_size": a.batch_size,
        "our_precision": loop.precision(FitConfig(precision=a.precision), "cpu"),
        "their_precision": "32-true",
        "workers": a.workers,
        "device": f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "lightly": lightly.__version__,
        "commit": build.commit(),
        "rounds": a.rounds,
        "our_images_per_second": round(statistics.median(o for o, _ in pairs), 1),
        "their_images_per_second": round(statistics.median(t for _, t in pairs), 1),
        "ratio": round(statistics.median(o / t for o, t in pairs), 2),
    }
    with a.out.open("a") as file:
        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
