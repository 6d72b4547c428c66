r"""Is a predictive density p(z_b | z_a) calibrated? PIT, coverage, energy score, and how tight an evidence lower bound is.

Shapes: N pairs, D features, M samples.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from vergence.data.items import PairItems, batches, spaced
from vergence.data.sources import Data
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.learn.objectives.core import DensityObjective, PredictiveObjective
from vergence.learn.objectives.vje import VJE
from vergence.learn.runs.rows import parts
from vergence.learn.runs.run import Run
from vergence.learn.training import build
from vergence.utils.checks import expect, require_count

LEVELS = (0.5, 0.9)
PAIRS, SAMPLES, CHUNK = 1_000, 64, 100  # test items at most, samples of each, items at a time


def pit_calibration(pit: Any, levels: Sequence[float] = LEVELS) -> dict[str, float]:
    """Returns how far probability integral transforms are from uniform, means over features.

    Args:
        pit: P(t_d <= target_d | context), (N, D) or (N,), in [0, 1]; uniform where the density is right.
        levels: Probabilities of central intervals.

    Returns:
        ``pit_ks``: the Kolmogorov-Smirnov distance to the uniform distribution; ``inside_50``, ``inside_90``, ...: the share
        of targets in the central interval of that probability, which it should equal.

    Raises:
        ValueError: A value is not in [0, 1], or there are none.

    Example:
        >>> found = pit_calibration((torch.arange(100) + 0.5) / 100)
        >>> round(found["pit_ks"], 3), round(found["inside_90"], 2)
        (0.005, 0.9)
    """
    u = torch.as_tensor(pit).double()
    u = u[:, None] if u.ndim == 1 else u
    right = u.ndim == 2 and len(u) > 0 and bool(((u >= 0) & (u <= 1)).all())
    expect(right, "probabilities (N, D) in [0, 1]", f"shape {tuple(u.shape)} with others", "check the density")
    n = len(u)
    s, i = u.sort(0).values, torch.arange(n, dtype=u.dtype, device=u.device)[:, None]
    ks = torch.maximum((i + 1) / n - s, s - i / n).amax(0)
    inside = {f"inside_{round(100 * q)}": float(((u - 0.5).abs() <= q / 2).double().mean()) for q in levels}
    return {"pit_ks": float(ks.mean()), **inside}


@torch.no_grad()
def density_level(p: Distribution, target: Tensor, samples: int = 256) -> Tensor:
    """Returns P(log p(X) >= log p(target)) for X ~ p, (N,): uniform on [0, 1] where the joint density is right.

    A target lies in the smallest region of probability q if its level is at most q, so that the share of levels at most q is
    the coverage of that region. Large levels: targets where the density is lower than at nearly all of its samples.

    Args:
        p: Distribution of batch (N,) over (D,), with ``sample`` and ``log_prob``; the noise is the global seed's.
        target: (N, D).
        samples: M, >= 1; the level's standard error is at most 1 / (2 sqrt(M)).

    Example:
        >>> from torch.distributions import Independent, Normal
        >>> p = Independent(Normal(torch.zeros(2, 3), torch.ones(2, 3)), 1)
        >>> density_level(p, torch.tensor([[0.0] * 3, [9.0] * 3]), 100).tolist()
        [0.0, 1.0]
    """
    require_count(1, samples=samples)
    at: Tensor = p.log_prob(target)
    above = torch.zeros_like(at)
    for _ in range(samples):
        above += (p.log_prob(p.sample()) >= at).to(at)
    return above / samples


def energy_score(samples: Tensor, target: Tensor) -> Tensor:
    r"""Returns the energy score of samples against targets, (N,), in the unit of the targets; smaller is better.

        1/M sum_m |x_m - t| - 1 / (2 M (M - 1)) sum_{m, l} |x_m - x_l|

    A strictly proper score: its expectation is smallest where the samples come from the targets' distribution (Gneiting,
    Raftery, "Strictly proper scoring rules, prediction, and estimation", 2007); the second term is without bias.

    Args:
        samples: (M, N, D), M >= 2.
        target: (N, D).

    Raises:
        ValueError: There are fewer than two samples, or the shapes do not fit.

    Example:
        >>> energy_score(torch.tensor([[[1.0]], [[3.0]]]), torch.tensor([[2.0]]))
        tensor([0.])
    """
    M = len(samples)
    shapes = f"{tuple(samples.shape)} and {tuple(target.shape)}"
    expect(M >= 2 and samples.shape[1:] == target.shape, "at least 2 samples (M, N, D) of targets (N, D)", shapes)
    accuracy: Tensor = (samples - target).norm(dim=-1).mean(0)
    spread = torch.zeros_like(accuracy)
    for m in range(1, M):
        spread += (samples[m:] - samples[:-m]).norm(dim=-1).sum(0)  # every pair once over all shifts
    return accuracy - spread / (M * (M - 1))


def evidence(log_weights: Tensor) -> dict[str, float]:
    r"""Returns the evidence lower bound and the importance-sampled log marginal, means over N in nats.

        elbo = 1/M sum_m log w_m,   log_marginal = log 1/M sum_m w_m,   w_m = p(x, s_m) / q(s_m | x),  s_m ~ q

    The second is a lower bound, too, and tightens with M (Burda, Grosse, Salakhutdinov, "Importance weighted autoencoders",
    arXiv:1509.00519). ``gap`` is their difference, an estimate of KL(q || posterior) from below; ``effective_samples`` is the
    mean of (sum w)^2 / sum w^2, in [1, M]: near 1 the log marginal is not to be trusted.

    Args:
        log_weights: log w, (M, N), M >= 2.

    Example:
        >>> found = evidence(torch.tensor([[-1.0], [-1.0]]))
        >>> found["elbo"], round(found["gap"], 6), round(found["effective_samples"], 3)
        (-1.0, 0.0, 2.0)
    """
    M = len(log_weights)
    require_count(2, samples=M)
    log_w = log_weights.double()
    elbo, marginal = log_w.mean(0), torch.logsumexp(log_w, 0) - math.log(M)
    effective = (2 * torch.logsumexp(log_w, 0) - torch.logsumexp(2 * log_w, 0)).exp()
    return {
        "elbo": float(elbo.mean()),
        "log_marginal": float(marginal.mean()),
        "gap": float((marginal - elbo).mean()),
        "effective_samples": float(effective.mean()),
    }


@torch.inference_mode()
def calibration(run: Run, opened: Data) -> dict[str, float] | None:
    """Returns the calibration of the conditional density on pairs of views, or on held-out pairs; None where there is none."""
    za, zb = pairs_of(run, opened)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if isinstance(run.objective, PredictiveObjective):
            sphere = run.method.objective is not None and run.method.objective.on_sphere
            return of_conditional(run.objective, za, F.normalize(zb, dim=-1) if sphere else zb)
        if isinstance(run.objective, VJE):
            return of_bounds(run.objective, za, zb)
    return None


def pairs_of(run: Run, opened: Data) -> tuple[Tensor, Tensor]:
    """Returns context and target embeddings in the objective's space, (n, D) each."""
    items = opened.test.subset(spaced(len(opened.test), PAIRS))
    if isinstance(items, PairItems):
        return tuple(run.to_device(run.embed(items, side=side, projected=True)) for side in ("context", "target"))  # type: ignore[return-value]
    views = build.make_views(opened, run.folder.config.views, run.folder.metadata.shape)
    assert views is not None
    generator = torch.Generator().manual_seed(0)
    nets = run.method.branch("context").eval(), run.method.target_network().eval()
    pairs = [[net(views(raw.to(run.device), generator)) for net in nets] for _, raw in items.stream(batches(len(items), CHUNK))]
    za, zb = (run.to_device(torch.cat(z)) for z in zip(*pairs, strict=True))
    return za, zb


def of_conditional(objective: PredictiveObjective, za: Tensor, zb: Tensor) -> dict[str, float]:
    """Returns the calibration of a density in closed form; the PIT only of those that have their marginals' too."""
    assert isinstance(objective, DensityObjective)
    columns: dict[str, list[Tensor]] = defaultdict(list)
    contexts = parts(objective, za, CHUNK)
    for part, t in zip(contexts, zb.split([len(part) for part in contexts]), strict=True):
        p = objective.conditional(part)
        columns["log_prob"].append(p.log_prob(t))
        columns["level"].append(density_level(p, t, SAMPLES))
        columns["energy"].append(energy_score(p.sample(torch.Size((SAMPLES,))), t))
        if isinstance(p, JointGaussian | MixtureOfGaussians):
            columns["pit"].append(p.marginal_cdf(t).clamp(0, 1))
    measured: dict[str, Any] = {name: torch.cat(column).double().cpu() for name, column in columns.items()}
    regions = {f"region_{round(100 * q)}": float((measured["level"] <= q).double().mean()) for q in LEVELS}
    means = {"log_prob": float(measured["log_prob"].mean()), "energy_score": float(measured["energy"].mean())}
    pit = pit_calibration(measured["pit"]) if "pit" in measured else {}
    return {"pairs": len(za), "samples": SAMPLES, **means, **regions, **pit}


def of_bounds(objective: VJE, za: Tensor, zb: Tensor) -> dict[str, float]:
    log_w = torch.cat([objective.log_weights(zb, za, samples=1) for _ in range(SAMPLES)])
    bounds = evidence(log_w.cpu())
    return {"pairs": len(za), "samples": SAMPLES, "log_prob": bounds.pop("log_marginal"), **bounds}
