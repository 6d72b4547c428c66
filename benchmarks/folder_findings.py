"""Odd groups, duplicates, leaks and plain measurements on real photographs with planted oddities.

    python benchmarks/folder_findings.py --data-root DATA [--out results/folder_findings.jsonl]    # about 8 minutes on two cores

groups      60 alike items among 3,000 CIFAR-10 photographs (none, digits, clothes, noise): how many of them the reported groups
            hold
duplicates  100 photographs of 5,000 saved once more (JPEG at quality 60, 28 pixels and back, shifted by a pixel, brighter by a
            tenth): how many are found, and how many other pairs. The threshold comes from `mild_views`, which are other changes.
bursts      3,000 images: photographs and 1, 4, 9 or 19 changed copies of each (`mild_views`), as the frames of a film: how many
            photographs share their label of `near_groups` with all of their copies, and how many images share it with another
            photograph or its copies
leaks       CIFAR-10's test part against the CIFAR-100 images (`cifar100_subset.npz`), which share one picture
planted     1,000 photographs and 150 of 5,000 others saved once more, as above, mirrored or turned by a quarter, against the
            5,000: what ``vergence score FOLDER --leaks-from OTHER`` names
flags       shares of clean folders that are flagged; of the same images spoiled, how many
speed       50,000 items of 256 features
"""

import argparse
import io
import time
from pathlib import Path

import ledger
import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torchvision.datasets import CIFAR10, MNIST, FashionMNIST

from vergence.data.items import ArrayItems
from vergence.detection import (
    flags,
    leaks,
    measure,
    mild_views,
    near_duplicates,
    near_groups,
    odd_groups,
    similarity_threshold,
    thumbnails,
)
from vergence.runs.folder import leaked

HEAP = 60
HOWS = ("JPEG", "resized", "shifted", "brighter")
MOVED = {"mirrored": lambda y: y.flip(-1), "turned": lambda y: y.rot90(1, (-2, -1))}
PARTS = ("groups", "duplicates", "bursts", "leaks", "planted", "flags", "speed")


def photographs(root: Path, train: bool = True) -> torch.Tensor:
    return torch.from_numpy(CIFAR10(root, train=train).data).permute(0, 3, 1, 2)


def gray(dataset) -> torch.Tensor:
    return F.pad(dataset.data, (2, 2, 2, 2))[:, None].expand(-1, 3, -1, -1)


def heap(kind: str, root: Path, seed: int) -> torch.Tensor:
    if kind == "noise":
        return torch.randint(0, 256, (HEAP, 3, 32, 32), dtype=torch.uint8)
    items = gray({"digits": MNIST, "clothes": FashionMNIST}[kind](root, train=False))
    return items[seed * HEAP : (seed + 1) * HEAP]


def groups(options: argparse.Namespace, x: torch.Tensor, seed: int) -> None:
    n = 600 if options.tiny else 3000
    for kind in ("none", "digits", "clothes", "noise"):
        torch.manual_seed(seed)
        folder = x[torch.randperm(len(x))[:n]]
        planted = 0 if kind == "none" else HEAP
        if planted:
            folder[:planted] = heap(kind, options.data_root, seed)
        start = time.perf_counter()
        found = odd_groups(folder.flatten(1).float())
        seconds = time.perf_counter() - start
        members = np.concatenate([g.members for g in found]) if found else np.zeros(0)
        values = {"part": "groups", "kind": kind, "items": n, "planted": planted, "groups": len(found), "members": len(members)}
        values |= {"found": int((members < planted).sum()), "seconds": round(seconds, 1)}
        ledger.add(options.out, ledger.row(values, seed=seed))


def saved_again(image: torch.Tensor, how: str) -> torch.Tensor:
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    if how == "JPEG":
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=60)
        picture = Image.open(buffer)
    elif how == "resized":
        picture = picture.resize((28, 28), Image.Resampling.BICUBIC).resize((32, 32), Image.Resampling.BICUBIC)
    y = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    if how in MOVED:
        return MOVED[how](y)
    if how == "shifted":
        return y.roll(1, 2)
    return (1.1 * y.float()).clamp(max=255).byte() if how == "brighter" else y


def embedding(x: torch.Tensor) -> torch.Tensor:
    """Principal directions stand in for an encoder: 8 x 8 means of the colors, centered over the folder."""
    z = F.adaptive_avg_pool2d(x.float() / (255 if x.dtype == torch.uint8 else 1), 8).flatten(1)
    return z - z.mean(1, keepdim=True)


def duplicates(options: argparse.Namespace, x: torch.Tensor, seed: int) -> None:
    n, copies = (500, 20) if options.tiny else (5000, 100)
    torch.manual_seed(seed)
    folder = x[torch.randperm(len(x))[:n]]
    copied = torch.stack([saved_again(folder[i], HOWS[i % 4]) for i in range(copies)])
    every = torch.cat([folder, copied])
    rule = similarity_threshold(embedding(every), embedding(mild_views(every)))
    near = near_duplicates(embedding(every), threshold=rule.threshold)
    found = {tuple(pair) for pair in near.pairs.tolist()}
    same = np.unique(every.flatten(1).numpy(), axis=0, return_inverse=True)[1].reshape(-1)
    exact = [(a, b) for a in range(len(same)) for b in (a + 1 + np.flatnonzero(same[a + 1 :] == same[a])).tolist()]
    right = [(i, n + i) in found for i in range(copies)]
    values = {"part": "duplicates", "items": n, "planted": copies, "found": sum(right), "threshold": round(rule.threshold, 4)}
    values |= {"others": len(found) - sum(right), "exact": len(exact)}
    values |= {how: sum(right[i::4]) / len(right[i::4]) for i, how in enumerate(HOWS)}
    ledger.add(options.out, ledger.row(values, seed=seed))


def bursts(options: argparse.Namespace, x: torch.Tensor, seed: int) -> None:
    for size in (2, 5, 10, 20):
        n = (600 if options.tiny else 3000) // size
        generator = torch.Generator().manual_seed(seed)
        chosen = x[torch.randperm(len(x), generator=generator)[:n]]
        copies = [thumbnails(mild_views(chosen, generator)) for _ in range(size - 1)]
        label = near_groups(torch.cat([thumbnails(chosen), *copies])).reshape(size, n)
        whole = (label == label[:1]).all(0)
        owners = {name: set(np.nonzero(label == name)[1]) for name in np.unique(label)}
        mixed = sum(len(owners[name]) > 1 for name in label.ravel())
        values = {"part": "bursts", "mixed": mixed, "kind": size, "items": size * n, "photographs": n, "found": int(whole.sum())}
        ledger.add(options.out, ledger.row(values, seed=seed))


def planted_leaks(options: argparse.Namespace, x: torch.Tensor, seed: int) -> None:
    n, new, copies = (500, 100, 30) if options.tiny else (5000, 1000, 150)
    hows = (*HOWS, *MOVED)
    torch.manual_seed(seed)
    chosen = x[torch.randperm(len(x))[: n + new]]
    copied = torch.stack([saved_again(chosen[i], hows[i % len(hows)]) for i in range(copies)])
    start = time.perf_counter()
    found = leaked(ArrayItems(torch.cat([chosen[n:], copied])), ArrayItems(chosen[:n])).names
    seconds = time.perf_counter() - start
    right = [found.get(str(new + i)) == str(i) for i in range(copies)]
    values = {"part": "planted", "items": [n, new + copies], "planted": copies, "found": sum(right)}
    values |= {"others": len(found) - sum(right), "seconds": round(seconds, 1)}
    values |= {how: (part := right[i :: len(hows)]).count(True) / len(part) for i, how in enumerate(hows)}
    ledger.add(options.out, ledger.row(values, seed=seed))


def shared(options: argparse.Namespace) -> None:
    train = photographs(options.data_root, train=False)
    file = options.data_root / "cifar100_subset.npz"
    if not file.exists():
        print(f"no {file.name}: leaks are left out")
        return
    archive = np.load(file)
    images = next(archive[name] for name in archive.files if archive[name].ndim == 4)
    test = torch.from_numpy(images if images.shape[1] == 3 else images.transpose(0, 3, 1, 2))
    rule = similarity_threshold(embedding(train[:3000]), embedding(mild_views(train[:3000])))
    found = leaks(embedding(train), embedding(test), threshold=rule.threshold)
    values = {"part": "leaks", "items": [len(train), len(test)], "threshold": round(rule.threshold, 4), "count": len(found)}
    ledger.add(options.out, ledger.row({**values, "pairs": found.pairs.tolist()[:20]}, seed=0))


def blurred(x: torch.Tensor) -> torch.Tensor:
    kernel = torch.exp(-torch.arange(-4, 5).float().square() / 2 / 1.5**2)
    kernel = kernel / kernel.sum()
    y = F.pad(x.float(), (4, 4, 4, 4), mode="replicate").flatten(0, 1)[:, None]
    return F.conv2d(F.conv2d(y, kernel[None, None, None]), kernel[None, None, :, None]).view(x.shape).round().byte()


def measurements(options: argparse.Namespace, x: torch.Tensor) -> None:
    n = 500 if options.tiny else 10_000
    cells = sorted((options.data_root / "bccd").rglob("*.jpg"))
    folders = {"CIFAR-10": x[:n], "Fashion-MNIST": gray(FashionMNIST(options.data_root, train=True))[:n, :1]}
    if cells:
        files = cells[: 5 if options.tiny else None]
        folders["blood cells"] = torch.stack([torch.from_numpy(np.array(Image.open(f))).permute(2, 0, 1) for f in files])
    for name, images in folders.items():
        shares = {flag: float(value.mean()) for flag, value in flags(measure(images)).items()}
        ledger.add(options.out, ledger.row({"part": "flags", "folder": name, "items": len(images), **shares}, seed=0))
    some = x[:100].float()
    spoiled = {"dark": (0.25 * some).byte(), "light": (244 + 0.04 * some).byte(), "blurry": blurred(x[:100])}
    for name, images in spoiled.items():
        value = float(flags(measure(torch.cat([images, x[100:n]])))[name][:100].mean())
        ledger.add(options.out, ledger.row({"part": "spoiled", "flag": name, "items": n, "found": value}, seed=0))


def speed(options: argparse.Namespace) -> None:
    n = 2000 if options.tiny else 50_000
    x = torch.randn(n, 256, generator=torch.Generator().manual_seed(0))
    for name, work in {"groups": odd_groups, "duplicates": lambda z: near_duplicates(z, threshold=0.95)}.items():
        start = time.perf_counter()
        work(x)
        values = {"part": "speed", "what": name, "items": n, "seconds": round(time.perf_counter() - start, 1)}
        ledger.add(options.out, ledger.row(values, seed=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    options = ledger.parse(parser, "folder_findings")
    x = photographs(options.data_root)
    each = {"groups": groups, "duplicates": duplicates, "bursts": bursts, "planted": planted_leaks}
    for seed in (0,) if options.tiny else (0, 1, 2):
        for part in (name for name in each if name in options.parts):
            each[part](options, x, seed)
    if "leaks" in options.parts:
        shared(options)
    if "flags" in options.parts:
        measurements(options, x)
    if "speed" in options.parts:
        speed(options)


if __name__ == "__main__":
    main()
