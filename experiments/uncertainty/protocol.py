"""The whole protocol of uncertainties: errors of embeddings, degradations, and scrambled images, with baselines from labels."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from experiments.shared import apart, seeded
from experiments.uncertainty.baselines import compressed_size, loss_head, probe_entropy, rank_correlation
from experiments.uncertainty.degradations import STRENGTHS, degraded, scrambled
from experiments.uncertainty.predictive import calibration
from experiments.uncertainty.scores import BANK, CHUNK, CROPS, ITEMS, Scores, ranking, spread_over_crops, uncertainties
from torch import Tensor

from vergence.data.items import Items, batches, spaced
from vergence.data.pixels import center_crop, to_bytes, to_unit
from vergence.data.sources import Data
from vergence.learn.evaluation import uncertainty
from vergence.learn.objectives.core import DensityObjective
from vergence.learn.runs.run import Run

DEGRADED = 500  # test items at most
BASELINES = ("norm of z", "kNN distance", "file size", "probe entropy", "loss head")
LABELED = ("probe entropy", "loss head")  # baselines that are learned from labels
SCRAMBLED = ("scrambled", 0)  # where embeddings of scrambled images lie among those of degraded ones

Levels = dict[tuple[str, int], Tensor]  # degradation and number of the strength, from 1 -> (n, ...)


@torch.inference_mode()
def protocol(run: Run, opened: Data, train: Tensor, test: Tensor) -> dict[str, Any]:
    """Returns which uncertainties rank errors, degradations and scrambled images, and whether p(z_b | z_a) is calibrated.

    Args:
        run: A run on images.
        opened: Its data.
        train: Embeddings of all training items (N, D).
        test: Embeddings of all test items (M, D).
    """
    pick, bank = spaced(len(test), ITEMS), spaced(len(train), BANK)
    items, z, y = opened.test.subset(pick), test[pick], opened.test.labels[pick]
    train, labels = train[bank], opened.train.labels[bank]
    part = spaced(len(items), DEGRADED)
    scores = uncertainties(train, z, run)
    mean, scores["spread over crops"] = spread_over_crops(run, items)
    scores["file size"] = torch.cat([compressed_size(to_bytes(x)) for x in images_of(run, items)])
    at, scrambled_spreads = worsened(run, train, labels, items.subset(part), z, scores)
    first = uncertainties(train, z[part], run) | {name: scores[name][part] for name in ("file size", *LABELED)}
    strengths = ranked_strengths(first, at)
    first["spread over crops"] = spread_over_crops(run, items.subset(part))[1]
    scrambled_scores = at[SCRAMBLED] | {"spread over crops": scrambled_spreads}
    equal = uncertainty.equalizer(train)
    right, right_equal, right_mean = (uncertainty.neighbor_is_right(x, y) for x in (z, equal(z), mean))
    found: dict[str, Any] = {"items": len(z), "crops": CROPS, "recall_at_1": float(right.double().mean())}
    found["recall_at_1_crops"] = float(right_mean.double().mean())
    found["recall_at_1_equalized"] = float(right_equal.double().mean())
    found["aurc_best"] = ranking(scores["kNN distance"], right)["aurc_best"]
    found["predictive"] = calibration(run, opened) if isinstance(run.method.objective, DensityObjective) else None
    found["scores"] = {
        name: {
            "kind": "baseline" if name in BASELINES else "model",
            "labels": name in LABELED,
            "r_auroc": (ranks := ranking(u, right))["auroc"],
            "r_auroc_equalized": ranking(u, right_equal)["auroc"],
            "aurc": ranks["aurc"],
            "scrambled": apart(first[name], scrambled_scores[name]) if name in first and name in scrambled_scores else None,
            "strengths": strengths.get(name, {}),
        }
        for name, u in scores.items()
    }
    return found


def ranked_strengths(first: Scores, at: dict[tuple[str, int], Scores]) -> dict[str, dict[str, float]]:
    """Returns by uncertainty and degradation the rank correlation with its strength, from images as they are on."""
    ranked: dict[str, dict[str, float]] = defaultdict(dict)
    for how, steps in STRENGTHS.items():
        every = [first, *(at[how, i] for i in range(1, len(steps)))]
        for name in set.intersection(*map(set, every)):
            ranked[name][how] = rank_correlation(torch.stack([u[name] for u in every], 1), steps)["within"]
    return ranked


def from_labels(train: Tensor, labels: Tensor, z: Tensor) -> Scores:
    """Returns the baselines that are learned from labels, for embeddings (N, D)."""
    with torch.inference_mode(False):
        wrong = (~uncertainty.neighbor_is_right(train, labels)).double()
        return {"probe entropy": probe_entropy(train, labels, z), "loss head": loss_head(train, wrong, z)}


def images_of(run: Run, items: Items) -> Iterator[Tensor]:
    """Yields images (B, C, H, W) in [0, 1] as the encoder sees them, a hundred at a time."""
    size = run.folder.metadata.crop_size()
    for _, raw in items.stream(batches(len(items), CHUNK)):
        yield to_unit(raw if size is None else center_crop(raw, size), torch.float32)


def worsened(
    run: Run, train: Tensor, labels: Tensor, items: Items, z: Tensor, scores: Scores
) -> tuple[dict[tuple[str, int], Scores], Tensor]:
    """Returns the uncertainties at every strength of every degradation, and the spread over crops of scrambled images.

    The baselines from labels are fitted once for them and for the embeddings ``z``, whose values are added to ``scores``.
    """
    parts, sizes = (defaultdict[tuple[str, int], list[Tensor]](list) for _ in range(2))
    spreads, generator = [], seeded(0)
    for x in images_of(run, items):
        steps = [(how, i) for how, strengths in STRENGTHS.items() for i in range(1, len(strengths))]
        shown = {(how, i): degraded(x, how, STRENGTHS[how][i], generator) for how, i in steps}
        shown[SCRAMBLED] = scrambled(x, generator)
        for level, image in shown.items():
            parts[level].append(run.method.encoder(image.to(run.device)).float().cpu())
            sizes[level].append(compressed_size(to_bytes(image)))
        spreads.append(run.spread(shown[SCRAMBLED], crops=CROPS)[1])
    worse = {level: torch.cat(rows) for level, rows in parts.items()}
    learned = from_labels(train, labels, torch.cat([z, *worse.values()]))
    scores |= {name: u[: len(z)] for name, u in learned.items()}
    later = {name: u[len(z) :].split(len(items)) for name, u in learned.items()}
    at = {}
    for i, (level, x) in enumerate(worse.items()):
        at[level] = uncertainties(train, x, run) | {"file size": torch.cat(sizes[level])}
        at[level] |= {name: u[i] for name, u in later.items()}
    return at, torch.cat(spreads)
