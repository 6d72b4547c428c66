r"""Gaussians and Gaussian mixtures over [context; target] that can be marginalized and conditioned.

With Z = [z_c; z_t], a Gaussian of mean (mu_c, mu_t) and covariance blocks S_cc, S_ct, S_tc, S_tt has

    p(z_t | z_c) = N(z_t; m, C),   A = S_tc S_cc^{-1},  m = mu_t + A (z_c - mu_c),  C = S_tt - A S_ct

and a mixture of K such Gaussians with weights pi_k has as its conditional the mixture of their conditionals with weights
gamma_k proportional to pi_k N(z_c; mu_ck, S_cck).

Half-precision parameters become float32. Everything is batched and differentiable.
Shapes: batch (...), D features, of which the first C are the context; K components.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, constraints

from vergence.densities.covariance import Covariance, Dense, index_components
from vergence.utils.checks import expect, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["JointGaussian", "MixtureOfGaussians", "given_observed", "kl_standard_normal", "log_det", "log_prob_observed"]

LOG_2PI = math.log(2 * math.pi)


class JointGaussian(Distribution):
    """A Gaussian over Z = [z_c; z_t].

    Args:
        mean: mu (..., D).
        covariance: A `Covariance`, or a dense matrix (..., D, D), symmetric positive semidefinite.
        context: C, the number of leading features that are the context, below D; 0 for a density without a context.

    Example:
        >>> joint = JointGaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), context=1)
        >>> given = joint.conditional(torch.tensor([[2.0]]))
        >>> [round(x, 3) for x in (given.mean.item(), given.variance.item())]
        [1.2, 0.64]
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch reads it from the class
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, mean: Tensor, covariance: Covariance | Tensor, context: int = 0) -> None:
        mean = upcast_half(mean)
        if isinstance(covariance, Covariance):
            S: Covariance = covariance.map(lambda x, _: upcast_half(x))
        else:
            S = Dense.of(upcast_half(covariance))
        sizes = (mean.shape[-1], S.shape[-1], context)
        expect(sizes[0] == sizes[1] > context >= 0, "a mean and a covariance over D features and a context below D", sizes)
        batch = torch.Size(np.broadcast_shapes(mean.shape[:-1], S.shape[:-1]))
        self.loc, self.S, self.context = mean.expand(*batch, mean.shape[-1]), S, context
        super().__init__(batch, mean.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean mu, (..., D)."""
        return self.loc

    mode = mean

    @property
    def variance(self) -> Tensor:
        """Diagonal of the covariance, (..., D)."""
        return self.S.variance().expand(self.loc.shape)

    @property
    def covariance(self) -> Tensor:
        """S (..., D, D)."""
        return self.S.dense().expand(*self.loc.shape, self.loc.shape[-1])

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns log N(z; mu, S) in nats, (...), for z (..., D)."""
        D = self.loc.shape[-1]
        expect(value.shape[-1:] == (D,), f"values of {D} features", value.shape)
        return -0.5 * (self.S.quadratic(value - self.loc) + self.S.log_det() + D * LOG_2PI)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Returns samples (*sample_shape, ..., D), differentiable in mean and covariance."""
        return self.loc + self.S.rsample(self._extended_shape(torch.Size(sample_shape)))

    def common_samples(self, n: int) -> Tensor:
        """Returns samples (n, ..., D) whose noise the batch shares: those of one Gaussian do not depend on the others."""
        return self.loc + _common_noise(self.S, n, self)

    def entropy(self) -> Tensor:
        """Returns 1/2 log |2 pi e S| in nats, (...); exact."""
        D = self.loc.shape[-1]
        return (0.5 * (self.S.log_det() + D * (1 + LOG_2PI))).expand(self.batch_shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "JointGaussian":
        """Returns the distribution with a larger batch shape, without copying."""
        batch = torch.Size(batch_shape)
        return JointGaussian(self.loc.expand(*batch, self.loc.shape[-1]), self.S.expand(batch), self.context)

    def marginal(self, block: str | slice) -> "JointGaussian":
        """Returns the distribution of the ``context``, of the ``target``, or of a slice of the features."""
        if isinstance(block, str):
            expect(self.context and block in ("context", "target"), "the 'context' or 'target' of a joint density", block)
            block = slice(0, self.context) if block == "context" else slice(self.context, None)
        return JointGaussian(self.loc[..., block], self.S.block(block))

    def conditional(self, z_c: Tensor) -> "JointGaussian":
        """Returns p(z_t | z_c) for contexts (..., C) that broadcast against the batch."""
        expect(0 < self.context == z_c.shape[-1], f"contexts of {self.context} features", z_c.shape)
        shift, S = self.S.conditional(self.context, z_c - self.loc[..., : self.context])
        return JointGaussian(self.loc[..., self.context :] + shift, S)

    def affine(self, scale: Tensor, shift: Tensor) -> "JointGaussian":
        """Returns the distribution of scale * z + shift, for (..., D) each, scale > 0 (a change of units)."""
        return JointGaussian(scale * self.loc + shift, self.S.scaled(scale), self.context)

    def marginal_cdf(self, value: Tensor) -> Tensor:
        """Returns the marginal probabilities P(z_d <= value_d), (..., D)."""
        probability: Tensor = torch.special.ndtr((value - self.loc) / self.S.variance().sqrt())
        return probability

    def marginal_quantile(self, p: float) -> Tensor:
        """Returns the marginal p-quantile of each feature, (..., D)."""
        require_within("(0, 1)", p=p)
        z = torch.special.ndtri(torch.tensor(p, dtype=torch.float64)).to(self.loc)  # in float32 p itself would round to 1
        quantile: Tensor = self.loc + z * self.S.variance().sqrt()
        return quantile


def _common_noise(S: Covariance, n: int, p: Distribution) -> Tensor:
    """Returns samples (n, ..., D) of N(0, S) from standard normal ones that the batch of a distribution shares."""
    return S.rsample(torch.Size((n, *(1 for _ in p.batch_shape), *p.event_shape)))


class MixtureOfGaussians(Distribution):
    """A mixture of K Gaussians over Z = [z_c; z_t].

    Args:
        logits: Log-weights (..., K), up to an additive constant.
        mean: (..., K, D).
        covariance: A `Covariance` of batch (..., K) or shared, or a dense matrix (..., K, D, D).
        context: C, as in `JointGaussian`.

    Attributes:
        common: The components, batch (K,), where a batch of weights shares them, else None.

    Example:
        >>> p = MixtureOfGaussians(torch.zeros(2), torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), 0.01 * torch.eye(2), context=1)
        >>> given = p.conditional(torch.tensor([1.0]))
        >>> given.mixture_distribution.probs.round(decimals=3).tolist(), given.mode.round(decimals=3).tolist()
        ([0.0, 1.0], [-1.0])
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch reads it from the class
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, logits: Tensor, mean: Tensor, covariance: Covariance | Tensor, context: int = 0) -> None:
        logits, components = upcast_half(logits), JointGaussian(mean, covariance, context)
        self.common = components if len(components.batch_shape) == 1 < len(logits.shape) else None
        batch = torch.Size(np.broadcast_shapes(logits.shape, components.batch_shape))
        self.context = context
        self.component_distribution = components.expand(batch)
        self.mixture_distribution = Categorical(logits=logits.expand(batch), validate_args=False)
        super().__init__(batch[:-1], mean.shape[-1:], validate_args=False)

    @property
    def weights(self) -> Tensor:
        """Weights pi, (..., K)."""
        return self.mixture_distribution.probs

    @property
    def mean(self) -> Tensor:
        """sum_k pi_k mu_k, (..., D)."""
        if self.common is not None:
            return self.weights @ self.common.loc
        return (self.weights[..., None] * self.component_distribution.mean).sum(-2)

    @property
    def mode(self) -> Tensor:
        """The mean of the component of largest weight, (..., D): an approximation that does not average over components."""
        heaviest: Tensor = self.weights.argmax(-1)[..., None, None].expand(*self.batch_shape, 1, self.event_shape[-1])
        return self.component_distribution.mean.gather(-2, heaviest)[..., 0, :]

    @property
    def covariance(self) -> Tensor:
        """sum_k pi_k (S_k + mu_k mu_k^T) - mean mean^T, (..., D, D)."""
        delta = self.component_distribution.mean - self.mean[..., None, :]
        spread = self.component_distribution.covariance + delta[..., None] * delta[..., None, :]
        return (self.weights[..., None, None] * spread).sum(-3)

    @property
    def variance(self) -> Tensor:
        """Diagonal of the covariance, (..., D)."""
        if self.common is not None:  # matrix products around a center: nothing of size N K D
            x = self.common.loc - self.common.loc.mean(0)
            spread = self.weights @ (self.common.variance + x.square()) - (self.weights @ x).square()
            return torch.maximum(spread, self.common.variance.amin(0))
        delta = self.component_distribution.mean - self.mean[..., None, :]
        return (self.weights[..., None] * (self.component_distribution.variance + delta.square())).sum(-2)

    def log_joint(self, value: Tensor) -> Tensor:
        """Returns log pi_k + log N(z; mu_k, S_k) in nats, (..., K)."""
        return self.mixture_distribution.logits + self.component_distribution.log_prob(value[..., None, :])

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns log p(z) in nats, (...), for z (..., D)."""
        return self.log_joint(value).logsumexp(-1)

    def responsibilities(self, value: Tensor) -> Tensor:
        """Returns p(k | z), (..., K)."""
        return self.log_joint(value).softmax(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Returns samples (*sample_shape, ..., D); sampling a component has no gradient, so there is no ``rsample``."""
        with torch.no_grad():
            k = self.mixture_distribution.sample(torch.Size(sample_shape))
            parts = self.component_distribution
            return JointGaussian(index_components(parts.loc, k, 1), parts.S.index_components(k)).rsample()

    def common_samples(self, n: int) -> Tensor:
        """Returns samples (n, ..., D) whose noise the batch shares, as of `JointGaussian`."""
        with torch.no_grad():
            parts, below = self.component_distribution, self.weights.cumsum(-1)[..., :-1]
            u = torch.rand((n, *(1 for _ in self.batch_shape), 1), dtype=below.dtype, device=below.device)
            k = (below < u).sum(-1)
            return index_components(parts.loc, k, 1) + _common_noise(parts.S.index_components(k), n, self)

    def entropy(self) -> Tensor:
        """Returns an upper bound of the entropy in nats, (...): the weights' plus the components' mean; exact without overlap."""
        parts = self.component_distribution if self.common is None else self.common
        within: Tensor = (self.weights * parts.entropy()).sum(-1)
        between: Tensor = self.mixture_distribution.entropy()
        return within + between

    def modes(self) -> tuple[Tensor, Tensor]:
        """Returns modes (..., S, D) and the weight of the components that climb to each (..., S), 0 for one that stands before.

        From the means of the eight heaviest components, x <- (sum_k r_k S_k^{-1})^{-1} sum_k r_k S_k^{-1} mu_k with the
        responsibilities r at x, which never lowers the density (Carreira-Perpinan, Mode-finding for mixtures of Gaussian
        distributions, 2000). Points nearer than a tenth of the mixture's deviation are one mode.

        Example:
            >>> p = MixtureOfGaussians(torch.zeros(3), torch.tensor([[-5.0], [4.9], [5.1]]), torch.eye(1))
            >>> modes, weights = p.modes()
            >>> [(round(x, 1), round(w, 2)) for x, w in zip(modes[:, 0].tolist(), weights.tolist()) if w > 0]
            [(-5.0, 0.33), (5.0, 0.67)]
        """
        parts, S = self.component_distribution, min(8, self.weights.shape[-1])
        top = self.weights.topk(S, -1)
        P = parts.S.dense().inverse() if self.event_shape[0] > 1 else 1 / parts.S.variance()[..., None]
        pull = (P @ parts.loc[..., None])[..., 0]  # (..., K, D)
        x = parts.loc.gather(-2, top.indices[..., None].expand(*top.indices.shape, *self.event_shape))  # (..., S, D)
        scale = self.variance.sqrt()[..., None, :]
        one = parts.S.map(lambda x, axes: x.unsqueeze(x.ndim - axes - 1))  # (..., 1, K)
        wide = MixtureOfGaussians(self.mixture_distribution.logits[..., None, :], parts.loc[..., None, :, :], one)
        for _ in range(200):
            weights = wide.responsibilities(x)  # (..., S, K)
            A, b = torch.einsum("...sk,...kde->...sde", weights, P.expand(*parts.loc.shape, -1)), weights @ pull
            after = torch.linalg.solve(A, b[..., None])[..., 0] if self.event_shape[0] > 1 else b / A[..., 0]
            moved, x = ((after - x).abs() / scale).amax(), after
            if moved < 1e-4:
                break
        near = ((x[..., :, None, :] - x[..., None, :, :]).abs() / scale[..., None, :]).amax(-1) < 0.1  # (..., S, S)
        first = near.to(torch.uint8).argmax(-1)
        mass = torch.zeros_like(top.values).scatter_add(-1, first, top.values)
        return x, mass / mass.sum(-1, keepdim=True)

    def n_answers(self) -> Tensor:
        """Returns the effective number of modes, (...): exp of the entropy of their weights, see `modes`.

        Example:
            >>> mean, weights = torch.tensor([[[-5.0], [5.0]], [[0.0], [0.5]]]), torch.tensor([0.5, 0.5]).log()
            >>> MixtureOfGaussians(weights, mean, torch.eye(1)).n_answers().round(decimals=2).tolist()
            [2.0, 1.0]
        """
        with torch.no_grad():
            answers: Tensor = torch.special.entr(self.modes()[1]).sum(-1).exp()
        return answers

    def expand(self, batch_shape: Any, _instance: Any = None) -> "MixtureOfGaussians":
        """Returns the distribution with a larger batch shape, without copying."""
        batch = torch.Size((*batch_shape, self.weights.shape[-1]))
        parts = self.component_distribution.expand(batch)
        return MixtureOfGaussians(self.mixture_distribution.logits.expand(batch), parts.loc, parts.S, self.context)

    def marginal(self, block: str | slice) -> "MixtureOfGaussians":
        """Returns the distribution of the ``context``, of the ``target``, or of a slice of the features."""
        parts = self.component_distribution.marginal(block)
        return MixtureOfGaussians(self.mixture_distribution.logits, parts.loc, parts.S)

    def conditional(self, z_c: Tensor) -> "MixtureOfGaussians":
        """Returns p(z_t | z_c), a mixture of K components, for contexts (..., C) that broadcast against the batch."""
        logits = self.marginal("context").log_joint(z_c)
        parts = self.component_distribution.conditional(z_c[..., None, :])
        return MixtureOfGaussians(logits, parts.loc, parts.S)

    def affine(self, scale: Tensor, shift: Tensor) -> "MixtureOfGaussians":
        """Returns the distribution of scale * z + shift, for (D,) each, scale > 0 (a change of units)."""
        parts = self.component_distribution.affine(scale, shift)
        return MixtureOfGaussians(self.mixture_distribution.logits, parts.loc, parts.S, self.context)

    def marginal_cdf(self, value: Tensor) -> Tensor:
        """Returns the marginal probabilities P(z_d <= value_d), (..., D)."""
        probability: Tensor = (self.weights[..., None] * self.component_distribution.marginal_cdf(value[..., None, :])).sum(-2)
        return probability.clamp(max=1)

    def marginal_quantile(self, p: float) -> Tensor:
        """Returns the marginal p-quantile of each feature, (..., D), p in (0, 1), by bisection between the components'."""
        ends = self.component_distribution.marginal_quantile(p).double()
        low, high = ends.amin(-2), ends.amax(-2)
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = self.marginal_cdf(middle) < p
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (0.5 * (low + high)).to(self.component_distribution.loc)


def log_det(S: Tensor) -> Tensor:
    """Returns log |S| of a positive definite (D, D), with gradient; NaN for any other matrix.

    The Cholesky factor is computed in float64, where covariances with the least jitter have one. The call does not wait for the
    device.
    """
    L, failed = torch.linalg.cholesky_ex(S.double())
    value: Tensor = 2 * L.diagonal().log().sum()
    return torch.where(failed == 0, value, math.nan).to(S.dtype)


def kl_standard_normal(mean: Tensor, covariance: Tensor) -> Tensor:
    r"""Returns KL(N(mean, S) || N(0, I)) = 1/2 (tr S + |mean|^2 - D - log |S|) in nats, >= 0.

    It is (...) for a mean and variances (..., D) of independent features; or a scalar for a mean (D,) and S (D, D).
    """
    mean, S = upcast_half(mean), upcast_half(covariance)
    if S.shape == mean.shape:
        return 0.5 * (S + mean.square() - 1 - S.log()).sum(-1)
    return 0.5 * (S.trace() + mean.square().sum() - len(mean) - log_det(S))


def ordered(p: "JointGaussian | MixtureOfGaussians", order: Tensor, context: int = 0) -> "JointGaussian | MixtureOfGaussians":
    """Returns the density of the features of an index (M,), in its order, of which the first ``context`` are the context.

    Example:
        >>> p = JointGaussian(torch.zeros(3), torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 2.0]]))
        >>> round(ordered(p, torch.tensor([1, 0]), context=1).conditional(torch.tensor([2.0])).mean.item(), 3)
        1.2
    """
    parts = p.component_distribution if isinstance(p, MixtureOfGaussians) else p
    mean, S = parts.loc[..., order], parts.S.dense()[..., order[:, None], order]
    if isinstance(p, MixtureOfGaussians):
        return MixtureOfGaussians(p.mixture_distribution.logits, mean, S, context)
    return JointGaussian(mean, S, context)


def given_observed(joint: "JointGaussian | MixtureOfGaussians", c: Tensor) -> "JointGaussian | MixtureOfGaussians":
    """Returns p(target | the observed contexts) for contexts (B, C) with NaN in gaps, over which is integrated."""
    kinds, which = c.isnan().unique(dim=0, return_inverse=True)
    target = c.new_ones(joint.event_shape[0] - c.shape[1]).bool()
    order, means, covariances, logits = [], [], [], []
    for i, gaps in enumerate(kinds):
        rows = (which == i).nonzero()[:, 0]
        given = without(joint, torch.cat([~gaps, target])).conditional(c[rows].nan_to_num(0.0))
        parts = given.component_distribution if isinstance(given, MixtureOfGaussians) else given
        means.append(parts.loc)
        covariances.append(parts.S.dense().expand(*parts.loc.shape, parts.loc.shape[-1]))
        logits += [given.mixture_distribution.logits] if isinstance(given, MixtureOfGaussians) else []
        order.append(rows)
    back = torch.cat(order).argsort()
    mean, S = torch.cat(means)[back], torch.cat(covariances)[back]
    return JointGaussian(mean, S) if not logits else MixtureOfGaussians(torch.cat(logits)[back], mean, S)


def log_prob_observed(p: "JointGaussian | MixtureOfGaussians", z: Tensor) -> Tensor:
    """Returns the log-density in nats (B,) of those of the features (B, D) that are not NaN."""
    log_p: Tensor = without(p, ~z.isnan()).log_prob(z.nan_to_num(0.0))
    return log_p


def without(p: Any, seen: Tensor) -> Any:
    """Returns a density in which the features that are not ``seen`` (..., D) are at 0 with the log-density 0, and independent.

    So values with 0 there have the log-density of the features that are seen.

    Example:
        >>> p = without(JointGaussian(torch.zeros(2), torch.eye(2)), torch.tensor([True, False]))
        >>> round(p.log_prob(torch.zeros(2)).item(), 4)
        -0.9189
    """
    if hasattr(p, "without"):
        return p.without(seen)
    parts = p.component_distribution if isinstance(p, MixtureOfGaussians) else p
    wide = seen if parts is p or seen.ndim == 1 else seen[..., None, :]
    S = parts.S.dense() * (wide[..., None] & wide[..., None, :])
    S = S + torch.diag_embed((~wide).to(S) / (2 * math.pi))
    mean, logits = torch.where(wide, parts.loc, 0.0), None if parts is p else p.mixture_distribution.logits
    return JointGaussian(mean, S, p.context) if logits is None else MixtureOfGaussians(logits, mean, S, p.context)
