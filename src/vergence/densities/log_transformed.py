r"""The density of t with t_d = e^{z_d} for some features and t_d = z_d for the others, of a Gaussian or mixture z: log-normal.

    log p(t) = log p(z) - sum_d log t_d,   E[t_d] = sum_k pi_k exp(mu_kd + S_kdd / 2)   over the features with logarithms

A mean or variance is infinite where it exceeds the largest float, as for contexts far from the data.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians, without


class LogTransformed(Distribution):
    """A Gaussian or mixture over logarithms of positive features, in the features' own unit.

    Args:
        base: The density of z, batch (...) over (D,).
        logs: Which features are logarithms, (D,) or (..., D).
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch reads it from the class
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, base: JointGaussian | MixtureOfGaussians, logs: Tensor) -> None:
        self.base, self.logs = base, logs
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    def _to(self, t: Tensor) -> Tensor:
        """Returns z of values t; that of a value that is not positive is -inf."""
        return torch.where(self.logs, torch.where(t <= 0, -torch.inf, t.where(self.logs, 1.0).log()), t)

    def _back(self, z: Tensor) -> Tensor:
        return torch.where(self.logs, z.where(self.logs, 0.0).exp(), z)

    def _components(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns weights (..., K), means and variances (..., K, D) of the components of t."""
        if isinstance(self.base, MixtureOfGaussians):
            parts, weights = self.base.component_distribution, self.base.weights
            mean, variance, logs = parts.mean, parts.variance, self.logs[..., None, :]
        else:
            mean, variance, logs = self.base.mean[..., None, :], self.base.variance[..., None, :], self.logs[..., None, :]
            weights = torch.ones_like(mean[..., 0])
        v = variance.where(logs, 0.0)
        m = torch.where(logs, (mean.where(logs, 0.0) + v / 2).exp(), mean)
        return weights, m, torch.where(logs, v.expm1() * m.square(), variance)

    @property
    def mean(self) -> Tensor:
        """E[t], (..., D)."""
        weights, mean, _ = self._components()
        return (weights[..., None] * mean).sum(-2)

    @property
    def variance(self) -> Tensor:
        """Var[t_d], (..., D)."""
        weights, mean, variance = self._components()
        return (weights[..., None] * (variance + (mean - self.mean[..., None, :]).square())).sum(-2)

    @property
    def mode(self) -> Tensor:
        """Mode (..., D) of a Gaussian z, exactly; of a mixture, the highest of the modes of its components."""
        mixture = isinstance(self.base, MixtureOfGaussians)
        parts: Any = getattr(self.base, "component_distribution", self.base)
        logs = self.logs[..., None, :] if mixture else self.logs
        z = parts.loc - (parts.S.dense() @ logs.to(parts.loc)[..., None])[..., 0]
        if not mixture:
            return self._back(z)
        modes = LogTransformed(self.base, self.logs[..., None, :])._back(z)  # (..., K, D)
        height = torch.stack([self.log_prob(modes[..., k, :]) for k in range(modes.shape[-2])], -1)
        best = height.argmax(-1)[..., None, None].expand(*self.batch_shape, 1, *self.event_shape)
        return modes.gather(-2, best)[..., 0, :]

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns log p(t) in nats, (...), for t (..., D); -inf where a feature that must be positive is not."""
        z = self._to(value)
        inside = ~(z == -torch.inf).any(-1)
        z = z.masked_fill(z == -torch.inf, 0.0)
        return torch.where(inside, self.base.log_prob(z) - z.where(self.logs, 0.0).sum(-1), -torch.inf)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Returns samples (*sample_shape, ..., D)."""
        return self._back(self.base.sample(sample_shape))

    def common_samples(self, n: int) -> Tensor:
        """Returns samples (n, ..., D) whose noise the batch shares, as of `vergence.densities.JointGaussian`."""
        return self._back(self.base.common_samples(n))

    def marginal(self, block: slice) -> "LogTransformed":
        """Returns the distribution of a slice of the features."""
        return LogTransformed(self.base.marginal(block), self.logs[..., block])

    def without(self, seen: Tensor) -> "LogTransformed":
        """Returns the density in which features that are not ``seen`` (..., D) are at 0 with the log-density 0."""
        return LogTransformed(without(self.base, seen), self.logs & seen)

    def marginal_cdf(self, value: Tensor) -> Tensor:
        """Returns the marginal probabilities P(t_d <= value_d), (..., D)."""
        return self.base.marginal_cdf(self._to(value))

    def marginal_quantile(self, p: float) -> Tensor:
        """Returns the marginal p-quantile of each feature, (..., D)."""
        return self._back(self.base.marginal_quantile(p))
