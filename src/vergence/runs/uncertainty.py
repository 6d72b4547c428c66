"""What a run's uncertainties say: which rank errors, degradations and images that are no data; is p(z_b | z_a) calibrated?"""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.data.items import Items, PairItems, batches, spaced
from vergence.data.pixels import center_crop, to_bytes, to_unit
from vergence.data.sources import Data
from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.evaluation import anomaly, degradations, predictive, uncertainty
from vergence.objectives.core import DensityObjective, LatentObjective, PredictiveObjective
from vergence.runs.embed import views_of
from vergence.runs.rows import parts
from vergence.runs.run import Run
from vergence.training.records import Kind, Predictive, Uncertainty, UncertaintyScore
from vergence.utils.terminal import bar

__all__ = ["BANK", "CROPS", "ITEMS", "Embedded", "from_labels", "measure", "of_embeddings", "ranked", "share", "spaced"]

ITEMS, BANK, DEGRADED, PAIRS = 2_000, 10_000, 500, 1_000  # at most, of test items, training items, test items, test items
CROPS, SAMPLES, CHUNK = 8, 64, 100
CONTROLS = ("norm of z", "kNN distance", "file size", "probe entropy", "loss head")
LABELED = ("probe entropy", "loss head")  # controls that are learned from labels
SCRAMBLED = ("scrambled", 0)  # where embeddings of scrambled images lie among those of degraded ones

Scores = dict[str, Tensor]  # name -> (N,), larger is less certain


@torch.inference_mode()
def measure(run: Run, opened: Data, train: Tensor, test: Tensor, *, crops: int = CROPS, labeled: bool = True) -> Uncertainty:
    """Returns what uncertainties say about at most 2,000 test items.

    Args:
        run: The run.
        opened: Its data.
        train: Embeddings of all training items (N, D).
        test: Embeddings of all test items (M, D).
        crops: Random views of each item, >= 2.
        labeled: Whether the controls that are learned from labels are fitted.
    """
    pick, bank = spaced(len(test), ITEMS), spaced(len(train), BANK)
    clean = Embedded(run, train[bank], test[pick])
    items, y = opened.test.subset(pick), _labels(opened.test, pick)
    scores = clean.scores()
    image = opened.kind == "image"
    steps = len(items) + (_degraded_steps(len(items)) if image else 0)
    mean = None
    with bar("uncertainty", steps) as advance:
        if opened.kind != "pairs":
            mean, scores["spread over crops"] = _crops(run, items, crops, advance)
        if image:
            scores["file size"] = torch.cat([uncertainty.compressed_size(to_bytes(x)) for x in _images(run, items)])
        worse = _worsened(clean, items, crops, advance) if image else None
    every = clean.z if worse is None else torch.cat([clean.z, *worse.z.values()])
    learned = from_labels(train[bank], _labels(opened.train, bank), every) if y is not None and labeled else {}
    scores |= {name: u[: len(clean.z)] for name, u in learned.items()}
    strengths, foreign = ({}, {}) if worse is None else _ranked_worse(clean, worse, scores, learned)
    spaces = (clean.z, clean.equal(clean.z), mean)
    right, equal, right_crops = (None if y is None or z is None else uncertainty.neighbor_is_right(z, y) for z in spaces)
    return Uncertainty(
        items=len(items),
        crops=crops if mean is not None else 0,
        scores={
            name: dataclasses.replace(
                ranked(name, u, right, equal), scrambled=foreign.get(name), strengths=strengths.get(name, {})
            )
            for name, u in scores.items()
        },
        recall_at_1=share(right),
        recall_at_1_crops=share(right_crops),
        recall_at_1_equalized=share(equal),
        aurc_best=None if right is None else float(uncertainty.risk_coverage((~right).double(), right)[1].mean()),
        predictive=_predictive(run, opened) if run.has_density else None,
    )


def share(right: Tensor | None) -> float | None:
    """Returns the share of items without error; None where it is unknown."""
    return None if right is None else float(right.double().mean())


def _labels(items: Items, index: Tensor) -> Tensor | None:
    """Returns labels (n,); None without labels of two classes for all items."""
    y = None if items.labels is None else items.labels[index]
    return None if y is None or bool((y < 0).any()) or len(y.unique()) < 2 else y


def ranked(
    name: str, u: Tensor, right: Tensor | None, equal: Tensor | None = None, *, kind: Kind | None = None
) -> UncertaintyScore:
    """Returns how well an uncertainty (N,) ranks errors: those of the embedding, and those of the equalized one."""
    found, other = (
        uncertainty.ranking(u, one) if one is not None and 0 < int(one.sum()) < len(one) else {} for one in (right, equal)
    )
    return UncertaintyScore(
        kind=kind or ("control" if name in CONTROLS else "model"),
        labels=name in LABELED,
        r_auroc=found.get("auroc"),
        r_auroc_equalized=other.get("auroc"),
        aurc=found.get("aurc"),
    )


@dataclass(frozen=True)
class Embedded:
    """A run with the embeddings of its training items, and those of some test items.

    Attributes:
        run: The run.
        bank: Of training items (N, D).
        z: Of test items (M, D).
    """

    run: Run
    bank: Tensor
    z: Tensor

    @functools.cached_property
    def equal(self) -> Callable[[Tensor], Tensor]:
        """The map that equalizes embeddings."""
        return uncertainty.equalizer(self.bank)

    def encode(self, x: Tensor) -> Tensor:
        """Returns the embeddings (B, D) of images (B, C, H, W) in [0, 1], float32 on the CPU."""
        z: Tensor = self.run.method.encoder(x.to(self.run.device))
        return z.float().cpu()

    def scores(self, z: Tensor | None = None) -> Scores:
        """Returns every uncertainty that needs embeddings (N, D) alone, of ``z`` by default."""
        z = self.z if z is None else z
        own = _posterior(self.run, z) if self.run.has_density else {}
        return of_embeddings(self.bank, z, self.equal, own)


def of_embeddings(bank: Tensor, z: Tensor, equal: Callable[[Tensor], Tensor], own: Scores | None = None) -> Scores:
    """Returns the uncertainties of embeddings (M, D) that need no more than those of other items (N, D), around a model's own."""
    return {
        "neighbor spread": uncertainty.neighbor_spread(equal(bank), equal(z)),
        "density of z": anomaly.mahalanobis(bank, z),
        **(own or {}),
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
    found = {name: torch.cat(column).float().cpu() for name, column in columns.items()}
    return {name: u for name, u in found.items() if float(u.max() - u.min()) > 1e-5 * float(u.abs().max())}


def from_labels(train: Tensor, labels: Tensor | None, z: Tensor) -> Scores:
    """Returns the controls that are learned from labels, for embeddings (N, D); none without labels."""
    if labels is None:
        return {}
    with torch.inference_mode(False):
        wrong = (~uncertainty.neighbor_is_right(train, labels)).double()
        return {"probe entropy": uncertainty.probe_entropy(train, labels, z), "loss head": uncertainty.loss_head(train, wrong, z)}


# Images


def _images(run: Run, items: Items) -> Iterator[Tensor]:
    """Yields images (B, C, H, W) in [0, 1] as the encoder sees them, a hundred at a time."""
    for _, raw in items.stream(batches(len(items), CHUNK)):
        yield to_unit(raw if run.size is None else center_crop(raw, run.size), torch.float32)


def _crops(run: Run, items: Items, crops: int, advance: Callable[..., None]) -> tuple[Tensor, Tensor]:
    """Returns mean direction (N, D) and spread (N,) of random views."""
    found = []
    for index in batches(len(items), 5 * CHUNK):
        found.append(run.spread(items.subset(index), crops=crops))
        advance(len(index))
    mean, spread = (torch.cat(column) for column in zip(*found, strict=True))
    return mean, spread


def _degraded_steps(n: int) -> int:
    return min(n, DEGRADED) * (2 + sum(len(strengths) - 1 for strengths in degradations.STRENGTHS.values()))


@dataclass(frozen=True)
class Worsened:
    """Some test items at every strength of every degradation, and scrambled ones.

    Attributes:
        pick: Rows of the test items (n,).
        z: Embeddings (n, D) by degradation and number of the strength, from 1; those of scrambled images are the last.
        size: Bytes (n,) of the compressed files, as ``z``.
        spread: Spread over crops (n,) of the items, and of scrambled ones.
    """

    pick: Tensor
    z: dict[tuple[str, int], Tensor]
    size: dict[tuple[str, int], Tensor]
    spread: tuple[Tensor, Tensor]


def _worsened(clean: Embedded, items: Items, crops: int, advance: Callable[..., None]) -> Worsened:
    pick = spaced(len(items), DEGRADED)
    items = items.subset(pick)
    z, size = defaultdict[tuple[str, int], list[Tensor]](list), defaultdict[tuple[str, int], list[Tensor]](list)
    spreads, generator = [], torch.Generator().manual_seed(0)
    for x in _images(clean.run, items):
        shown = {
            (how, i): degradations.degraded(x, how, strengths[i], generator)
            for how, strengths in degradations.STRENGTHS.items()
            for i in range(1, len(strengths))
        }
        shown[SCRAMBLED] = degradations.scrambled(x, generator)
        for level, image in shown.items():
            z[level].append(clean.encode(image))
            size[level].append(uncertainty.compressed_size(to_bytes(image)))
            advance(len(x))
        spreads.append(clean.run.spread(shown[SCRAMBLED], crops=crops)[1])
        advance(len(x))
    spread = _crops(clean.run, items, crops, lambda n: None)[1], torch.cat(spreads)
    whole = [{level: torch.cat(part) for level, part in one.items()} for one in (z, size)]
    return Worsened(pick, whole[0], whole[1], spread)


def _ranked_worse(
    clean: Embedded, worse: Worsened, scores: Scores, learned: Scores
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Returns rank correlations by name and degradation, and the AUROC of scrambled images by name.

    Args:
        clean: The items as they are.
        worse: Some of them, degraded and scrambled.
        scores: Uncertainties of the items, by name.
        learned: Those that are learned from labels, of the items and then of each part of ``worse.z``.
    """
    first = clean.scores(clean.z[worse.pick]) | {name: scores[name][worse.pick] for name in ("file size", *learned)}
    n = len(worse.pick)
    parts = {name: dict(zip(worse.z, u[len(clean.z) :].split(n), strict=True)) for name, u in learned.items()}
    at = {
        level: clean.scores(z) | {"file size": worse.size[level]} | {name: part[level] for name, part in parts.items()}
        for level, z in worse.z.items()
    }
    found: dict[str, dict[str, float]] = {name: {} for name in first}
    for how, strengths in degradations.STRENGTHS.items():
        every = [first, *(at[how, i] for i in range(1, len(strengths)))]
        for name in set.intersection(*map(set, every)):
            u = torch.stack([one[name] for one in every], 1)
            found[name][how] = uncertainty.rank_correlation(u, strengths)["within"]
    first["spread over crops"], spread = worse.spread
    other = at[SCRAMBLED] | {"spread over crops": spread}
    return found, {name: _apart(first[name], u) for name, u in other.items() if name in first}


def _apart(typical: Tensor, foreign: Tensor) -> float:
    """Returns the AUROC with which an uncertainty separates foreign items from typical ones."""
    flags = torch.arange(len(typical) + len(foreign)) < len(typical)
    return uncertainty.ranking(torch.cat([typical.double(), foreign.double()]), flags)["auroc"]


# p(z_b | z_a)


def _predictive(run: Run, opened: Data) -> Predictive | None:
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
