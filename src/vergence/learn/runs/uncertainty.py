"""What uncertainties say of a run, or of any embeddings in a file: which rank errors, and is p(z_b | z_a) calibrated?"""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.arrays import ARRAY_KEYS, LABEL_KEYS, NAME_KEYS, from_array, labels_of, read_arrays
from vergence.data.items import Array, Items, PairItems, batches, spaced
from vergence.data.sources import Data
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.learn.evaluation import anomaly, predictive, uncertainty
from vergence.learn.objectives.core import DensityObjective, LatentObjective, PredictiveObjective
from vergence.learn.runs.rows import parts, views_of
from vergence.learn.runs.run import Run
from vergence.learn.training.records import Predictive, Uncertainty, UncertaintyScore
from vergence.utils.checks import expect
from vergence.utils.terminal import bar

__all__ = [
    "BANK",
    "ITEMS",
    "Embeddings",
    "measure_uncertainty",
    "rank_embeddings",
    "read_embeddings",
    "spread_over_crops",
    "uncertainties",
]

ITEMS, BANK, PAIRS = 2_000, 10_000, 1_000  # at most, of test items, training items, test items
CROPS, SAMPLES, CHUNK = 8, 64, 100
BASELINES = ("norm of z", "kNN distance")
FEWEST = 20  # reference items
LARGEST = 1e15  # of a feature, whose square float32 still has
KEYS = ("z", "embeddings", *(key for key in ARRAY_KEYS if key not in ("z", "embeddings")))
VARIANCE, LOG_DENSITY = "variance", "log_density"  # columns that the command embed writes

Scores = dict[str, Tensor]  # name -> (N,), larger is less certain


@torch.inference_mode()
def measure_uncertainty(run: Run, opened: Data, train: Tensor, test: Tensor) -> Uncertainty:
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
    density = _calibration(run, opened) if isinstance(run.method.objective, DensityObjective) else None
    return _ranked(scores, z, _labels(items), baselines=BASELINES, mean=mean, predictive=density)


def _labels(items: Items) -> Tensor | None:
    """Returns labels (N,); None without labels of two classes for all items."""
    y = items.labels
    return None if y is None or bool((y < 0).any()) or len(y.unique()) < 2 else y


def _ranked(
    scores: Scores,
    z: Tensor,
    labels: Tensor | None,
    *,
    baselines: tuple[str, ...],
    mean: Tensor | None = None,
    predictive: Predictive | None = None,
) -> Uncertainty:
    """Returns how well uncertainties (N,) rank the errors of embeddings.

    Args:
        scores: Uncertainties by name.
        z: Embeddings (N, D).
        labels: Classes (N,); without them nothing is ranked.
        baselines: Names of the uncertainties that are baselines.
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
                kind="baseline" if name in baselines else "model", r_auroc=ranked.get("auroc"), aurc=ranked.get("aurc")
            )
            for name, ranked in numbers.items()
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
        **(_posterior(run, z) if run is not None and isinstance(run.method.objective, DensityObjective) else {}),
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


def _calibration(run: Run, opened: Data) -> Predictive | None:
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
        return tuple(run.to_device(run.embed(items, side=side, projected=True)) for side in ("context", "target"))  # type: ignore[return-value]
    views, generator = views_of(run.folder, run.method), torch.Generator().manual_seed(0)
    nets = run.method.branch("context").eval(), run.method.target_network().eval()
    pairs = [[net(views(raw.to(run.device), generator)) for net in nets] for _, raw in items.stream(batches(len(items), CHUNK))]
    za, zb = (run.to_device(torch.cat(z)) for z in zip(*pairs, strict=True))
    return za, zb


def _conditional(objective: PredictiveObjective, za: Tensor, zb: Tensor) -> Predictive:
    """Returns the calibration of a density in closed form; the PIT only of those that have their marginals' too."""
    assert isinstance(objective, DensityObjective)
    columns: dict[str, list[Tensor]] = defaultdict(list)
    contexts = parts(objective, za, CHUNK)
    for part, t in zip(contexts, zb.split([len(part) for part in contexts]), strict=True):
        p = objective.conditional(part)
        columns["log_prob"].append(p.log_prob(t))
        columns["level"].append(predictive.density_level(p, t, SAMPLES))
        columns["energy"].append(predictive.energy_score(p.sample(torch.Size((SAMPLES,))), t))
        if isinstance(p, JointGaussian | MixtureOfGaussians):
            columns["pit"].append(p.marginal_cdf(t).clamp(0, 1))
    measured: dict[str, Any] = {name: torch.cat(column).double().cpu() for name, column in columns.items()}
    regions = {f"region_{round(100 * q)}": float((measured["level"] <= q).double().mean()) for q in predictive.LEVELS}
    means = {"log_prob": float(measured["log_prob"].mean()), "energy_score": float(measured["energy"].mean())}
    pit = predictive.pit_calibration(measured["pit"]) if "pit" in measured else {}
    return Predictive(pairs=len(za), samples=SAMPLES, **means, **regions, **pit)


def _bounds(objective: LatentObjective, za: Tensor, zb: Tensor) -> Predictive:
    log_w = torch.cat([objective.log_weights(zb, za, samples=1) for _ in range(SAMPLES)])
    bounds = predictive.evidence(log_w.cpu())
    return Predictive(pairs=len(za), samples=SAMPLES, log_prob=bounds.pop("log_marginal"), **bounds)


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of items, their classes, and what a model says of its uncertainty.

    Attributes:
        z: Embeddings (N, D).
        labels: Classes (N,), integers.
        columns: Uncertainties (N,) by name, larger is less certain.
        unused: Names of the arrays in the file that are neither of these.
    """

    z: Tensor
    labels: Tensor
    columns: dict[str, Tensor]
    unused: list[str] = field(default_factory=list)

    def subset(self, index: Tensor) -> "Embeddings":
        """Returns the items of some rows."""
        return Embeddings(self.z[index], self.labels[index], {name: u[index] for name, u in self.columns.items()})


def read_embeddings(path: Path) -> Embeddings:
    """Reads a ``.npz`` file: ``z`` (N, D), ``label`` (N,), and any columns (N,) of numbers, which are taken for uncertainties.

    Both may have the other names that features and labels have (`vergence.data.arrays.open_arrays`); labels may be text.
    ``log_density`` is larger for more certain items, so its sign is reversed; ``variance`` (N, D) is summed over features.

    Raises:
        ValueError: The file is missing, damaged, of another kind, has no labels of two classes, or a column that is not finite.
    """
    what = "give a .npz file" if path.exists() else f"there is no file {path}; check the path"
    expect(path.suffix.lower() == ".npz" and path.is_file(), "a .npz file of embeddings z and label", str(path), what)
    names, file = read_arrays(path, (), 0)[1], path.name
    key, label = (next((key for key in keys if key in names), None) for keys in (KEYS, LABEL_KEYS))
    missing = "z" if key is None else "label"
    if key is None or label is None:
        raise ValueError(f"expected the array {missing} in {file}, found {', '.join(names) or 'nothing'}; add it")
    arrays = read_arrays(path, (key, label), 0)[0]
    expect(arrays[key].ndim == 2, f"embeddings {key} (N, D) in {file}", f"shape {arrays[key].shape}", "embed images first")
    items = from_array(arrays[key], f"{key} of {file}")
    z = next(items.stream([torch.arange(len(items))]))[1]
    usable = float(z.abs().max()) <= LARGEST and bool((z != z[0]).any())
    expect(usable, f"embeddings that differ, of at most {LARGEST:g}, in {file}", "others", "rescale them")
    y = labels_of(arrays[label], len(z), label, file)[0]
    unlabeled = int((y < 0).sum())
    expect(not unlabeled, f"a label of each item in {file}", f"-1, which is unknown, in {unlabeled} rows")
    expect(len(y.unique()) >= 2, f"labels of at least two classes in {file}", "one", "R-AUROC needs items of another class")
    others = [name for name in names if name not in (key, label)]
    columns = {name: u for name in others if (u := _column(path, name, len(z))) is not None}
    return Embeddings(z, y, columns, [name for name in others if name not in (*NAME_KEYS, *columns)])


def _column(path: Path, name: str, n: int) -> Tensor | None:
    """Returns an array of the file as uncertainties (n,); None where it is none."""
    try:
        values: Array = read_arrays(path, (name,), 0)[0][name]
    except ValueError:  # Python objects
        return None
    if values.dtype.kind not in "fiub":
        return None
    values = values.sum(axis=1) if name == VARIANCE and values.ndim == 2 else values
    if values.shape != (n,):
        return None
    values = values.astype(np.float64)
    expect(np.isfinite(values).all(), f"finite numbers in {name} of {path.name}", "NaN or infinity", "repair or drop such rows")
    return torch.from_numpy(-values if name == LOG_DENSITY else values)


def rank_embeddings(tested: Embeddings, reference: Embeddings | None = None) -> Uncertainty:
    """Returns how well uncertainties rank the errors of at most 2,000 embeddings, with baselines.

    Baselines are distances to at most 10,000 reference items. Without a reference, a random half of the items are reference
    items, and the others are tested.

    Raises:
        ValueError: There are fewer than 20 reference items, items of one class alone, or embeddings of different widths.
    """
    if reference is None:
        order = torch.randperm(len(tested.z), generator=torch.Generator().manual_seed(0))
        half = len(order) // 2
        reference, tested = tested.subset(order[:half].sort().values), tested.subset(order[half:].sort().values)
    widths = tested.z.shape[1], reference.z.shape[1]
    expect(widths[0] == widths[1], "embeddings of one width", f"{widths[0]} and {widths[1]}", "use one model")
    tested, bank = tested.subset(spaced(len(tested.z), ITEMS)), reference.subset(spaced(len(reference.z), BANK))
    enough = len(bank.z) >= FEWEST and len(tested.z) >= 2
    expect(enough, f"at least {FEWEST} reference items and 2 others", f"{len(bank.z)} and {len(tested.z)}", "give more")
    classes = min(len(part.labels.unique()) for part in (tested, bank))
    expect(classes >= 2, "items of two classes or more in both halves", "one", "give more items of the others")
    baselines = uncertainties(bank.z, tested.z)
    names = tuple(name for name in baselines if name not in tested.columns)
    return _ranked(tested.columns | baselines | tested.columns, tested.z, tested.labels, baselines=names)
