"""The whole protocol of uncertainties: errors of embeddings, degradations, and scrambled images, beside controls from labels."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from experiments.uncertainty.controls import compressed_size, loss_head, probe_entropy, rank_correlation
from experiments.uncertainty.degradations import STRENGTHS, degraded, scrambled
from torch import Tensor

from vergence.data.items import Items, batches, spaced
from vergence.data.pixels import center_crop, to_bytes, to_unit
from vergence.data.sources import Data
from vergence.evaluation import uncertainty
from vergence.runs.run import Run
from vergence.runs.uncertainty import BANK, ITEMS, measure_uncertainty, spread_over_crops, uncertainties

DEGRADED, CROPS, CHUNK = 500, 8, 100  # test items at most, views of each, images at a time
CONTROLS = ("norm of z", "kNN distance", "file size", "probe entropy", "loss head")
LABELED = ("probe entropy", "loss head")  # controls that are learned from labels
SCRAMBLED = ("scrambled", 0)  # where embeddings of scrambled images lie among those of degraded ones

Scores = dict[str, Tensor]  # name -> (N,), larger is less certain
Levels = dict[tuple[str, int], Tensor]  # degradation and number of the strength, from 1 -> (n, ...)


@torch.inference_mode()
def protocol(run: Run, opened: Data, train: Tensor, test: Tensor) -> dict[str, Any]:
    """Returns what `vergence evaluate --uncertainty` measures, with more controls, degradations and scrambled images.

    Args:
        run: A run on images.
        opened: Its data.
        train: Embeddings of all training items (N, D).
        test: Embeddings of all test items (M, D).
    """
    found = dataclasses.asdict(measure_uncertainty(run, opened, train, test))
    pick, bank = spaced(len(test), ITEMS), spaced(len(train), BANK)
    items, z, y = opened.test.subset(pick), test[pick], opened.test.labels[pick]
    train, known = train[bank], opened.train.labels[bank]
    scores = uncertainties(train, z, run)
    scores["spread over crops"] = spread_over_crops(run, items)[1]
    scores["file size"] = torch.cat([compressed_size(to_bytes(x)) for x in images_of(run, items)])
    part = spaced(len(items), DEGRADED)
    worse, sizes, spreads = worsened(run, items.subset(part))
    learned = _from_labels(train, known, torch.cat([z, *worse.values()]))
    scores |= {name: u[: len(z)] for name, u in learned.items()}
    later = {name: dict(zip(worse, u[len(z) :].split(len(part)), strict=True)) for name, u in learned.items()}
    first = uncertainties(train, z[part], run) | {name: scores[name][part] for name in ("file size", *learned)}
    at = {
        level: uncertainties(train, x, run) | {"file size": sizes[level]} | {name: u[level] for name, u in later.items()}
        for level, x in worse.items()
    }
    strengths: dict[str, dict[str, float]] = {name: {} for name in scores}
    for how, steps in STRENGTHS.items():
        every = [first, *(at[how, i] for i in range(1, len(steps)))]
        for name in set.intersection(*map(set, every)):
            strengths[name][how] = rank_correlation(torch.stack([u[name] for u in every], 1), steps)["within"]
    first["spread over crops"] = spread_over_crops(run, items.subset(part))[1]
    foreign = {
        name: apart(first[name], u) for name, u in (at[SCRAMBLED] | {"spread over crops": spreads}).items() if name in first
    }
    equal = uncertainty.equalizer(train)
    right, right_equal = (uncertainty.neighbor_is_right(x, y) for x in (z, equal(z)))
    found["recall_at_1_equalized"] = float(right_equal.double().mean())
    found["scores"] = {
        name: {
            "kind": "control" if name in CONTROLS else "model",
            "labels": name in LABELED,
            "r_auroc": (ranks := uncertainty.ranking(u, right))["auroc"],
            "r_auroc_equalized": uncertainty.ranking(u, right_equal)["auroc"],
            "aurc": ranks["aurc"],
            "scrambled": foreign.get(name),
            "strengths": strengths[name],
        }
        for name, u in scores.items()
    }
    return found


def _from_labels(train: Tensor, labels: Tensor, z: Tensor) -> Scores:
    """Returns the controls that are learned from labels, for embeddings (N, D)."""
    with torch.inference_mode(False):
        wrong = (~uncertainty.neighbor_is_right(train, labels)).double()
        return {"probe entropy": probe_entropy(train, labels, z), "loss head": loss_head(train, wrong, z)}


def images_of(run: Run, items: Items) -> Iterator[Tensor]:
    """Yields images (B, C, H, W) in [0, 1] as the encoder sees them, a hundred at a time."""
    for _, raw in items.stream(batches(len(items), CHUNK)):
        yield to_unit(raw if run.size is None else center_crop(raw, run.size), torch.float32)


def worsened(run: Run, items: Items) -> tuple[Levels, Levels, Tensor]:
    """Returns embeddings and file sizes at every strength of every degradation, and the spread over crops of scrambled images."""
    z, size = defaultdict[tuple[str, int], list[Tensor]](list), defaultdict[tuple[str, int], list[Tensor]](list)
    spreads, generator = [], torch.Generator().manual_seed(0)
    for x in images_of(run, items):
        shown = {
            (how, i): degraded(x, how, steps[i], generator) for how, steps in STRENGTHS.items() for i in range(1, len(steps))
        }
        shown[SCRAMBLED] = scrambled(x, generator)
        for level, image in shown.items():
            z[level].append(run.method.encoder(image.to(run.device)).float().cpu())
            size[level].append(compressed_size(to_bytes(image)))
        spreads.append(run.spread(shown[SCRAMBLED], crops=CROPS)[1])
    whole_z, whole_size = ({level: torch.cat(rows) for level, rows in levels.items()} for levels in (z, size))
    return whole_z, whole_size, torch.cat(spreads)


def apart(typical: Tensor, foreign: Tensor) -> float:
    """Returns the AUROC with which an uncertainty separates foreign items from typical ones."""
    flags = torch.arange(len(typical) + len(foreign)) < len(typical)
    return uncertainty.ranking(torch.cat([typical.double(), foreign.double()]), flags)["auroc"]
