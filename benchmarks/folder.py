"""Judges folders of photographs by themselves, with oddities planted among them: how well they are ranked, and what is flagged.

    python benchmarks/folder.py --data-root DATA

3,000 CIFAR-10 photographs of which 0, 0.5, 2 or 5 % are replaced by handwritten digits, clothes, noise, or a mixture of these,
and `vergence.score_folder` with its defaults. Columns: AUROC of the oddities, share of them among as many first items, flagged
oddities and flagged photographs at 0.1, oddities and photographs in odd groups, seconds. The settings were chosen on seed 0 of
this benchmark; seeds 1 and 2 are other photographs and other oddities.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import ledger
import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F
from torchvision.datasets import CIFAR10, MNIST, FashionMNIST

import vergence
from vergence.data.items import ArrayItems

KINDS = ("digits", "clothes", "noise", "mixed")
SHARES = (0.005, 0.02, 0.05)


def sample(images: Any, n: int, seed: int) -> torch.Tensor:
    rows = np.random.default_rng(seed).permutation(len(images))[:n]
    return torch.as_tensor(images[rows])


def gray(kind: Any, root: Path, n: int, seed: int) -> torch.Tensor:
    x = sample(kind(root).data, n, seed)[:, None].float()
    return F.interpolate(x, size=32, mode="bilinear", antialias=True).round().byte().expand(-1, 3, -1, -1)


def oddities(kind: str, root: Path, n: int, seed: int) -> torch.Tensor:
    """Returns n images (n, 3, 32, 32) that are not photographs."""
    if kind == "mixed":
        parts = [len(part) for part in np.array_split(np.arange(n), 3)]
        return torch.cat([oddities(one, root, m, seed) for one, m in zip(KINDS[:3], parts, strict=True)])
    if kind == "noise":
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 256, (n, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return gray(MNIST if kind == "digits" else FashionMNIST, root, n, seed)


def measured(root: Path, kind: str, share: float, n: int, seed: int) -> dict[str, Any]:
    """Returns the numbers of one folder."""
    m = round(share * n)
    x = sample(CIFAR10(root).data, n - m, seed).permute(0, 3, 1, 2)
    x = torch.cat([x, oddities(kind, root, m, seed)]) if m else x
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    odd = (order >= n - m).numpy()
    began = time.monotonic()
    found = vergence.score_folder(ArrayItems(x[order]))
    seconds = round(time.monotonic() - began, 1)
    grouped = np.array([bool(name) for name in found.group])
    values = {"flagged_odd": int(found.flag[odd].sum()), "flagged_others": int(found.flag[~odd].sum()), "seconds": seconds}
    values |= {"grouped_odd": int(grouped[odd].sum()), "grouped_others": int(grouped[~odd].sum())}
    if m:
        values["auroc"] = round(float(roc_auc_score(odd, found.score)), 4)
        values["precision"] = round(float(odd[np.argsort(-found.score)[:m]].mean()), 3)
    return {"kind": kind, "share": share, "n": n, **values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = ledger.parse(parser, "folder")
    n = 300 if options.tiny else 3000
    settings = [("digits", 0.0), *((kind, share) for kind in KINDS for share in SHARES)]
    for seed in options.seeds[:1] if options.tiny else options.seeds:
        for kind, share in settings[:2] if options.tiny else settings:
            if not ledger.holds(options.out, kind=kind, share=share, n=n, seed=seed):
                ledger.add(options.out, ledger.row(measured(options.data_root, kind, share, n, seed), seed=seed))


if __name__ == "__main__":
    main()
