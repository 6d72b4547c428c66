"""Speed of the closed-form encoder, and finding changed copies of photographs, from 28 to 512 pixels, in gray and in color.

    python benchmarks/patch_sizes.py --photos FOLDER

fits the recipe ``patches`` on a folder of photographs resized to each size, makes a random view of each one, and counts for how
many views the nearest photograph by cosine is the one that they were made of; pixels and their principal components beside.
Without ``--photos``, squares are cut from scikit-learn's two sample photographs.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import ledger
import numpy as np
import torch
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images
from torch.nn import functional as F

import vergence
from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.evaluation import controls

SIZES = (28, 32, 64, 128, 256, 512)
CHANGES = ViewConfig(crop=(0.6, 0.9), flip=0.0, jitter=(0.4, 0.4, 0.4, 0.05), jitter_p=1.0, grayscale=0.2, blur=0.5)


def squares(folder):
    """Returns the central squares of a folder's photographs, or squares of scikit-learn's."""
    if folder is not None:
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
        return [ImageOps.fit(Image.open(file).convert("RGB"), (512, 512)) for file in files]
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    return [p.crop((x, y, x + 160, y + 160)) for p in photos for x in range(0, 480, 80) for y in range(0, 240, 80)]


def sized(pictures, size, gray):
    """Returns uint8 images (N, size, size) or (N, size, size, 3)."""
    return np.stack([np.asarray(p.convert("L" if gray else "RGB").resize((size, size), Image.Resampling.BOX)) for p in pictures])


def found(photos, views):
    """Returns the share of views whose nearest photograph is their own, in percent."""
    similarity = F.normalize(views, dim=1) @ F.normalize(photos, dim=1).T
    return round(100 * (similarity.argmax(1) == torch.arange(len(photos))).double().mean().item(), 1)


def measure(images, encoder, seed):
    """Fits one run on images; returns its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npy"
        np.save(file, images)
        start = time.monotonic()
        settings = {"encoder": encoder, "seed": seed, "device": "cpu", "holdout": 0.02}
        run = vergence.train(str(file), recipe="patches", out=Path(folder) / "run", **settings)
        seconds = time.monotonic() - start
        x = torch.from_numpy(images)
        x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
        views = ImageViews(CHANGES, x.shape[2])(x, torch.Generator().manual_seed(seed))
        start = time.monotonic()
        photos, copies = run.encode(x), run.encode(views)
        rate = 2 * len(x) / (time.monotonic() - start)
        name = str(run.folder.config.model.encoder)
    pixels = controls.pixels(x), controls.pixels(views)
    return {
        "encoder": name,
        "fit_seconds": round(seconds, 1),
        "images_per_second": round(rate),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "found": found(photos, copies),
        "pixels_found": found(*pixels),
        "pca_found": found(*controls.pca(*pixels, min(128, len(x) - 1))),
    }


def main():
    """Measures every size, in gray and in color."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--encoder", default="patches")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seed", type=int, default=0)
    args = ledger.parse(parser, "patch_sizes")
    if args.tiny:
        args.sizes, args.encoder = (28, 64), "patches:atoms=16,second=16,directions=16,dim=8"
    pictures = squares(args.photos)
    for size in args.sizes:
        for gray in (True, False):
            values = {"photos": len(pictures), "size": size, "channels": 1 if gray else 3}
            values |= measure(sized(pictures, size, gray), args.encoder, args.seed)
            ledger.add(args.out, ledger.row(values, seed=args.seed))


if __name__ == "__main__":
    main()
