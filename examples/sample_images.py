"""What does a run's density expect to see? Samples of its embeddings, each shown as the nearest real training image.

The run's objective has a density of pairs, as gje has: vergence train digits --objective gje --out runs/gje
With --context a row for each of the first eight contexts: the context, then samples of its targets.
python examples/sample_images.py runs/gje samples.png [--n 8] [--context digits]
"""

import argparse

import torch
from torch.nn import functional as F
from torchvision.utils import save_image

import vergence
from vergence.data.items import PairItems, batches
from vergence.data.pixels import to_unit
from vergence.learn.evaluation.features import collect_features
from vergence.learn.runs.rows import whole


def nearest_images(run, z):
    """Returns the training images (N, C, H, W), of pairs the targets, whose embeddings are nearest to z (N, D)."""
    items = whole(run.folder).train
    items = items.target if isinstance(items, PairItems) else items
    bank, index = collect_features(run.method.target_network().eval(), items, **run.where("target"))
    nearest = torch.cat([torch.cdist(part, bank).argmin(1) for part in z.split(256)])
    return images(items.subset(index[nearest]))


def images(items):
    return torch.cat([to_unit(x, torch.float32) for _, x in items.stream(batches(len(items), 256))])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("out")
    parser.add_argument("--n", type=int, default=8, help="samples a row")
    parser.add_argument("--context")
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    run = vergence.load(a.run, device="cpu")
    if a.context is None:
        shown = nearest_images(run, run.sample(a.n**2, a.seed)[1])
        return save_image(shown, a.out, nrow=a.n, pad_value=1.0)
    torch.manual_seed(a.seed)
    contexts = run.items(a.context)
    contexts = contexts.subset(torch.arange(min(8, len(contexts))))
    targets = run.conditional(contexts).sample((a.n,)).transpose(0, 1).cpu()  # (contexts, n, D)
    shown = nearest_images(run, targets.flatten(0, 1)).unflatten(0, targets.shape[:2])
    first = F.interpolate(images(contexts), shown.shape[3:])
    rows = torch.cat([first.expand_as(shown[:, 0])[:, None], shown], 1).flatten(0, 1)
    save_image(rows, a.out, nrow=a.n + 1, pad_value=1.0)


if __name__ == "__main__":
    main()
