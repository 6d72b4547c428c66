"""Accuracy of recipes with a network that follows the closed form of patches, beside the closed form itself.

    python -m experiments.accuracy.trained cifar10 --data-root DATA --limit 10000 --recipes patches_vje patches_contrastive

writes one row for each recipe to ``results/trained.jsonl``. With ``--choose`` a part of the training images is classified in
place of the test images, and nothing is written: settings are chosen so.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from experiments.accuracy import run as two_cores
from torch.nn import functional

from experiments import ledger
from vergence.data.arrays import from_array
from vergence.data.pixels import resize, to_bytes, to_unit
from vergence.evaluation import features
from vergence.evaluation.collapse import effective_rank
from vergence.runs.evaluate import closed_form_encoder, untrained_encoder
from vergence.runs.train import describe

COPIES = 40
RECIPES = ("patches_contrastive", "patches_vje", "patches_gje", "patches_gmje")


def duplicates(encoder, run, items):
    """Returns how many of 40 training images are the first neighbor of their copy that was reduced to half its side and back."""
    x = next(items.stream([torch.arange(len(items))]))[1]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:COPIES]
    height, width = x.shape[2:]
    copies = to_bytes(resize(resize(to_unit(x[order]), height // 2, width // 2), height, width))
    bank, query = (functional.normalize(encode(encoder, part, run), dim=1) for part in (x, copies))
    return int(((query @ bank.T).argmax(1) == order).sum())


def encode(encoder, x, run):
    """Returns the embeddings of images (N, C, H, W)."""
    return features.collect_features(encoder.eval(), from_array(x.numpy()), size=run.size, device=run.device)[0]


def measure(args, recipe, settings):
    """Trains one run; returns its numbers beside those of its control."""
    with tempfile.TemporaryDirectory() as folder:
        run, costs = two_cores.trained(args.source, recipe=recipe, out=Path(folder) / "run", **settings)
        parts = two_cores.parts(args, run.folder.config)
        labels = [part.labels for part in parts]
        closed_form = closed_form_encoder(run)
        name = "untrained" if closed_form is None else "closed_form"
        encoder = untrained_encoder(run) if closed_form is None else closed_form
        used = time.process_time()
        z = [features.collect_features(run.method.encoder.eval(), part, size=run.size, device=run.device)[0] for part in parts]
        embed_cpu = (time.process_time() - used) / sum(map(len, parts))
        c = [features.collect_features(encoder.eval(), part, size=run.size, device=run.device)[0] for part in parts]
        first = [duplicates(net, run, parts[0]) for net in (run.method.encoder, encoder)]
        config = run.folder.config
    return {
        "recipe": recipe,
        "encoder": str(config.model.encoder),
        "distill": config.model.distill,
        "distill_epochs": None if config.model.distill is None else config.fit.distill_epochs,
        "objective": config.model.objective,
        "epochs": config.fit.epochs,
        "encoder_lr": config.fit.encoder_lr,
        **costs,
        "embed_cpu_milliseconds": round(1000 * embed_cpu, 2),
        **two_cores.accuracies("", *z, labels),
        "control": name,
        "control_knn30": two_cores.knn(*c, labels),
        "effective_rank": round(float(effective_rank(z[1])), 1),
        "control_effective_rank": round(float(effective_rank(c[1])), 1),
        "duplicates_of_40": first[0],
        "control_duplicates_of_40": first[1],
        "collapse": run.collapse,
    }


def main():
    """Measures the recipes on one data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    two_cores.arguments(parser)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--note", default="")
    args = ledger.parse(parser, "trained")
    also = ledger.settings(args.set)
    if args.tiny:
        args.limit, small = 200, "atoms=16,second=16,directions=32,dim=16,views=2"
        args.recipes = args.recipes[:1]
        distilled = {"distill": f"patches:{small}", "distill_epochs": 1}
        also |= distilled if args.recipes[0].startswith("distilled") else {"encoder": f"patches-mlp:{small}"}
    settings = {"root": args.data_root, "limit": args.limit, "seed": args.seed, "device": "cpu", **also}
    for recipe in args.recipes:
        describe(args.source, recipe, settings)
    for recipe in args.recipes:
        torch.manual_seed(args.seed)
        values = {"data": args.source, "limit": args.limit, "note": args.note, **measure(args, recipe, settings)}
        ledger.add(None if args.choose else args.out, ledger.row(values, seed=args.seed))


if __name__ == "__main__":
    main()
