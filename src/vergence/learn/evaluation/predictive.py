r"""Is a predictive density p(z_b | z_a) calibrated? PIT, coverage, energy score, and how tight an evidence lower bound is.

Shapes: N pairs, D features, M samples.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from vergence.utils.checks import expect, require_count

__all__ = ["LEVELS", "density_level", "energy_score", "evidence", "pit_calibration"]

LEVELS = (0.5, 0.9)


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
