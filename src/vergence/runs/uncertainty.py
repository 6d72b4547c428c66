"""What uncertainties say: which of them rank the errors of embeddings, and is p(z_b | z_a) calibrated?"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.items import Items, PairItems, batches, spaced
from vergence.data.sources import Data
from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.evaluation import anomaly, predictive, uncertainty
from vergence.objectives.core import DensityObjective, LatentObjective, PredictiveObjective
from vergence.runs.embed import views_of
from vergence.runs.rows import parts
from vergence.runs.run import Run
from vergence.training.records import Predictive, Uncertainty, UncertaintyScore
from vergence.utils.terminal import bar

__all__ = ["BANK", "ITEMS", "calibration", "measure", "ranked", "spread_over_crops", "uncertainties"]

ITEMS, BANK, PAIRS = 2_000, 10_000, 1_000  # at most, of test items, training items, test items
CROPS, SAMPLES, CHUNK = 8, 64, 100
CONTROLS = ("norm of z", "kNN distance")

Scores = dict[str, Tensor]  # name -> (N,), larger is less certain


@torch.inference_mode()
def measure(run: Run, opened: Data, train: Tensor, test: Tensor) -> Uncertainty:
    """Returns what uncertainties say about at most 2,000 test items.

    Args:
        run: The run.
        opened: Its data.
        train: Embeddings of all training items (N, D).
        test: Embeddings of all test items (M, D).
    """
    pick = spaced(len(test), ITEMS)
    items, z = opened.test.subset(pick), test[pick]
    scores = uncertainties(train[spaced(len(train), BANK)], z, run)
    mean = None
    if opened.kind != "pairs":
        mean, scores["spread over crops"] = spread_over_crops(run, items)
    density = calibration(run, opened) if run.has_density else None
    return ranked(scores, z, labels_of(items), controls=CONTROLS, mean=mean, predictive=density)


def labels_of(items: Items) -> Tensor | None:
    """Returns labels (N,); None without labels of two classes for all items."""
    y = items.labels
    return None if y is None or bool((y < 0).any()) or len(y.unique()) < 2 else y


def ranked(
    scores: Scores,
    z: Tensor,
    labels: Tensor | None,
    *,
    controls: tuple[str, ...],
    mean: Tensor | None = None,
    predictive: Predictive | None = None,
) -> Uncertainty:
    """Returns how well uncertainties (N,) rank the errors of embeddings.

    Args:
        scores: Uncertainties by name.
        z: Embeddings (N, D).
        labels: Classes (N,); without them nothing is ranked.
        controls: Names of the uncertainties that are controls.
        mean: Mean direction (N, D) of the embeddings of random views, where they were measured.
        predictive: Calibration of the conditional density.
    """
    right = None if labels is None else uncertainty.neighbor_is_right(z, labels)
    rankable = right is not None and 0 < int(right.sum()) < len(right)
    numbers = {name: uncertainty.ranking(u, right) if rankable else {} for name, u in scores.items()}
    return Uncertainty(
        items=len(z),
        crops=0 if mean is None else CROPS,
        scores={
            name: UncertaintyScore(
                kind="control" if name in controls else "model", r_auroc=found.get("auroc"), aurc=found.get("aurc")
            )
            for name, found in numbers.items()
        },
        recall_at_1=_share(right),
        recall_at_1_crops=None if labels is None or mean is None else _share(uncertainty.neighbor_is_right(mean, labels)),
        aurc_best=None if right is None else float(uncertainty.risk_coverage((~right).double(), right)[1].mean()),
        predictive=predictive,
    )


def _share(right: Tensor | None) -> float | None:
    return None if right is None else float(right.double().mean())


def uncertainties(bank: Tensor, z: Tensor, run: Run | None = None) -> Scores:
    """Returns the uncertainties of embeddings z (M, D) that need only those of other items (N, D), and a run's posterior's."""
    equal = uncertainty.equalizer(bank)
    return {
        "neighbor spread": uncertainty.neighbor_spread(equal(bank), equal(z)),
        "density of z": anomaly.mahalanobis(bank, z),
        **(_posterior(run, z) if run is not None and run.has_density else {}),
        "norm of z": -z.norm(dim=1),
        "kNN distance": anomaly.knn_distance(bank, z),
    }


def _posterior(run: Run, z: Tensor) -> Scores:
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
    columns = []
    with bar("uncertainty", len(items)) as advance:
        for index in batches(len(items), 5 * CHUNK):
            columns.append(run.spread(items.subset(index), crops=CROPS))
            advance(len(index))
    mean, spread = (torch.cat(column) for column in zip(*columns, strict=True))
    return mean, spread


def calibration(run: Run, opened: Data) -> Predictive | None:
    """Returns the calibration of the conditional density on pairs of views, or on held-out pairs; None where there is none."""
    za, zb = _pairs(run, opened)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if isinstance(run.objective, PredictiveObjective):
            sphere = run.method.objective is not None and run.method.objective.on_sphere
            return _conditional(run.objective, za, F.normalize(zb, dim=-1) if sphere else zb)
        if isinstance(run.objective, LatentObjective):
            return _bounds(run.objective, za, zb)
    return None


def _pairs(run: Run, opened: Data) -> tuple[Tensor, Tensor]:
    """Returns context and target embeddings in the objective's space, (n, D) each."""
    items = opened.test.subset(spaced(len(opened.test), PAIRS))
    if isinstance(items, PairItems):
        return tuple(run.to_device(run.project(items, side=side)) for side in ("context", "target"))  # type: ignore[return-value]
    views, generator = views_of(run.folder.config, run.folder.metadata, run.method.encoder), torch.Generator().manual_seed(0)
    nets = run.method.branch("context").eval(), run.method.target_network().eval()
    found: list[list[Tensor]] = [[], []]
    for _, raw in items.stream(batches(len(items), CHUNK)):
        for z, net in zip(found, nets, strict=True):
            z.append(net(views(raw.to(run.device), generator)))
    za, zb = (run.to_device(torch.cat(z)) for z in found)
    return za, zb


def _conditional(objective: PredictiveObjective, za: Tensor, zb: Tensor) -> Predictive:
    """Returns the calibration of a density in closed form; the PIT only of those that have their marginals' too."""
    assert isinstance(objective, DensityObjective)
    columns: dict[str, list[Tensor]] = defaultdict(list)
    start = 0
    for part in parts(objective, za, CHUNK):
        p, t = objective.conditional(part), zb[start : start + len(part)]
        start += len(part)
        columns["log_prob"].append(p.log_prob(t))
        columns["level"].append(predictive.density_level(p, t, SAMPLES))
        columns["energy"].append(predictive.energy_score(p.sample(torch.Size((SAMPLES,))), t))
        if isinstance(p, JointGaussian | GaussianMixture):
            columns["pit"].append(p.marginal_cdf(t).clamp(0, 1))
    found: dict[str, Any] = {name: torch.cat(column).double().cpu() for name, column in columns.items()}
    regions = {f"region_{round(100 * q)}": float((found["level"] <= q).double().mean()) for q in predictive.LEVELS}
    means = {"log_prob": float(found["log_prob"].mean()), "energy_score": float(found["energy"].mean())}
    pit = predictive.calibration(found["pit"]) if "pit" in found else {}
    return Predictive(pairs=len(za), samples=SAMPLES, **means, **regions, **pit)


def _bounds(objective: LatentObjective, za: Tensor, zb: Tensor) -> Predictive:
    log_w = torch.cat([objective.log_weights(zb, za, samples=1) for _ in range(SAMPLES)])
    found = predictive.evidence(log_w.cpu())
    bounds = {name: found[name] for name in ("elbo", "gap", "effective_samples")}
    return Predictive(pairs=len(za), samples=SAMPLES, log_prob=found["log_marginal"], **bounds)
