"""Unusual pairs: how unusual a target is given its context, by any model of p(target | context).

Shapes: B pairs, T target features, S samples.
"""

from typing import Any

import torch
from torch import Tensor

from vergence.densities.gaussian import JointGaussian
from vergence.detection.parts.kinds import numeric
from vergence.utils.checks import require_count

__all__ = ["surprise"]

SAMPLES = 16  # that are held at a time
MOST_SAMPLES = 100_000  # of each conditional density


def surprise(density: Any, target: Tensor, n_samples: int = 64, random_state: int = 0) -> Tensor:
    r"""Returns how unlikely each target is among what its own density predicts, (B,); larger is more unusual.

        s = (-log p(t) - h) / d,    h and d the mean and standard deviation of -log p(T) for T ~ p,

    Unlike -log p(t) it does not call every target of a wide density unusual, and it does not depend on the units of the target.
    Of a Gaussian in T dimensions it is (m^2 - T) / sqrt(2 T), with m the Mahalanobis distance, which is what is
    returned for a `JointGaussian`. Otherwise h and d come from samples of T. Mixtures share the samples' noise, so a pair's value
    does not depend on the other pairs; of distributions of other libraries it does, by the error of the samples.

    Args:
        density: Distribution of batch (B,) over (T,), as of `vergence.mixtures.ConditionalGaussian.conditional`.
        target: (B, T).
        n_samples: S in 2..100,000; the relative error of d is about 1 / sqrt(S).
        random_state: Seed of the samples; the global state of torch is restored.

    Example:
        >>> normal = JointGaussian(torch.zeros(1, 8), 9 * torch.eye(8))
        >>> surprise(normal, torch.tensor([[3.0] * 8])).abs().round(decimals=3).item()  # m^2 = T: as expected
        0.0
    """
    require_count(2, MOST_SAMPLES, n_samples=n_samples)
    require_count(0, random_state=random_state)
    t = numeric("target", target)
    if isinstance(density, JointGaussian):
        h, d = density.entropy(), torch.as_tensor(t.shape[-1] / 2).to(density.loc).sqrt()
    else:
        d, h = torch.std_mean(_usual(density, n_samples, random_state), dim=0)
    s: Tensor = (-density.log_prob(t) - h) / d.clamp(min=torch.finfo(d.dtype).eps)
    return s


def _usual(density: Any, n_samples: int, random_state: int) -> Tensor:
    """Returns -log p(T), (S, B), of samples T, which share their noise over the batch where the density can do so."""
    sample = density.common_samples if hasattr(density, "common_samples") else lambda n: density.sample(torch.Size((n,)))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(random_state)
        sizes = [len(part) for part in torch.arange(n_samples).split(SAMPLES)]  # whatever the batch: the noise depends on them
        return torch.cat([-density.log_prob(sample(n)) for n in sizes])
