"""The uncertainties of embeddings that need no labels, and how well an uncertainty ranks errors.

Shapes: N or M items, D features. A larger uncertainty means a less certain item.
"""

import torch
from torch import Tensor

from vergence.data.items import Items, batches
from vergence.learn.evaluation import anomaly, uncertainty
from vergence.learn.objectives.core import DensityObjective
from vergence.learn.runs.rows import parts
from vergence.learn.runs.run import Run

ITEMS, BANK = 2_000, 10_000  # at most, of test items, training items
CROPS, CHUNK = 8, 100  # views of each item, items at a time
BASELINES = ("norm of z", "kNN distance")

Scores = dict[str, Tensor]  # name -> (N,), larger is less certain


def uncertainties(bank: Tensor, z: Tensor, run: Run | None = None) -> Scores:
    """Returns the uncertainties of embeddings z (M, D) that need only those of other items (N, D), and a run's posterior's.

    `vergence evaluate --uncertainty` has the neighbor spread and the kNN distance.
    """
    equal = uncertainty.equalizer(bank)
    return {
        "neighbor spread": uncertainty.neighbor_spread(equal(bank), equal(z)),
        "density of z": anomaly.mahalanobis(bank, z),
        **({} if run is None or not isinstance(run.method.objective, DensityObjective) else posterior(run, z)),
        "norm of z": -z.norm(dim=1),
        "kNN distance": anomaly.knn_distance(bank, z),
    }


def posterior(run: Run, z: Tensor) -> Scores:
    """Returns total variance and entropy of the objective's posterior; those that are equal for all items are left out."""
    projected = torch.cat([run.method.projector(run.to_device(part)) for part in z.split(1024)])
    columns: dict[str, list[Tensor]] = {"posterior variance": [], "posterior entropy": []}
    with torch.random.fork_rng():
        for part in parts(run.objective, projected, 256):
            torch.manual_seed(0)  # an entropy without closed form is sampled
            belief = run.objective.posterior(part)
            columns["posterior variance"].append(belief.variance.sum(-1).expand(len(part)))
            columns["posterior entropy"].append(belief.entropy().expand(len(part)))
    scores = {name: torch.cat(column).float().cpu() for name, column in columns.items()}
    return {name: u for name, u in scores.items() if float(u.max() - u.min()) > 1e-5 * float(u.abs().max())}


def spread_over_crops(run: Run, items: Items) -> tuple[Tensor, Tensor]:
    """Returns mean direction (N, D) and spread (N,) of the embeddings of eight random views."""
    columns = [run.spread(items.subset(index), crops=CROPS) for index in batches(len(items), 5 * CHUNK)]
    mean, spread = (torch.cat(column) for column in zip(*columns, strict=True))
    return mean, spread


def ranking(u: Tensor, right: Tensor) -> dict[str, float]:
    """Returns how well uncertainties (N,) rank the items that are not right (N,) of bool, some of them right and some not.

    ``auroc``: area under the ROC curve, with `neighbor_is_right` R-AUROC; ties count one half. ``aurc``: area under the
    risk-coverage curve, ``aurc_best`` that of a perfect ranking; a random ranking has the ``error``, the share of wrong items.
    """
    u, right = u.cpu().double(), right.cpu()
    return {
        "auroc": anomaly.detection(u, ~right)["auroc"],
        "aurc": float(risk_coverage(u, right)[1].mean()),
        "aurc_best": float(risk_coverage((~right).double(), right)[1].mean()),
        "error": float((~right).double().mean()),
    }


def risk_coverage(u: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Returns coverage and risk, (N,) each: the error among the n most certain items, for n = 1 .. N.

    Where uncertainties are equal, the risk is the mean over the orders of these items. The mean risk is the area under the
    curve (Geifman, El-Yaniv, "Selective classification for deep neural networks", arXiv:1705.08500).
    """
    values, group, size = torch.unique(u, return_inverse=True, return_counts=True)
    errors = torch.zeros(len(values), dtype=torch.float64).index_add_(0, group, (~right).double())
    in_order = (errors / size).repeat_interleave(size)  # each of a group of equal items has the group's mean error
    n = torch.arange(1, len(u) + 1, dtype=torch.float64)
    return n / len(u), in_order.cumsum(0) / n
