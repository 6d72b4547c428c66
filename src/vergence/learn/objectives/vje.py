r"""Variational Joint Embedding (2026), arXiv:2602.05639 version 1.

Posterior     q(s_i | z_i) = N(mu_i, diag var_i),  (mu_i, var_i) = g(z_i)                                 (eq. 32)
Prior         p(s) = N(0, I)
Likelihood    p(y_j | s_i, var_i) = T_nu(z_j/|z_j|; s_i/|s_i|, diag var_i)  T_nu(|z_j| - |s_i|; 0, 1)      (eq. 31)
Loss          1/2 sum over (i, j) of E_q[-log p(y_j | s_i, var_i)] + beta KL(q_i || p)                    (eq. 37, 38)
Plain         p(z_j | s_i, var_i) = T_nu(z_j; s_i, diag var_i), of z_j itself instead of y_j              (eq. 13, 14)

Limits of appendix B.4, with nu = inf and s_i = mu_i (``sampled=False``), without KL, variances fixed to ``scale``:
1 - cos(mu_i, z_j)              terms ("directional",), scale 1
|z_j - mu_i|^2 / (2 scale)      terms ("joint",) of the plain likelihood, up to D/2 log scale

The target z_j is detached; the encoder learns through the input z_i of g.

At beta = 1, for mu_i at an angle t to z_j and one variance, the optimum is |mu|^2 = R (1 - sin t) / (1 + sin t) and var =
R/D 2 sin t / (1 + sin t), with R = (-a + sqrt(a^2 + 4 a (nu + D))) / 2 and a = (1 + sin t) D / nu (derived).

The paper's eq. 9 and 10 sum the two views' KL, while eq. 37, 38, 41 and algorithm 4 average them. This loss averages: eq. 10 at
beta is this loss at 2 beta. The "likelihood" is a subdensity up to a constant, because T_nu is normalized on R^D while its
argument lies on the sphere. The intrinsic construction of the paper's later version is not implemented.

Shapes: B pairs, D features, M samples. Terms: means over pairs, sums over features, in nats.
"""

import itertools
import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torch.nn import functional as F

from vergence.densities.gaussian import kl_standard_normal
from vergence.densities.polar import EPS, directional_nll, log_constant, radial_nll, student_nll
from vergence.learn.objectives.core import Objective, require_pairs, settings
from vergence.utils.checks import expect, require_choice, require_count
from vergence.utils.linalg import upcast_half

__all__ = ["VJE"]

Likelihood = Literal["polar", "plain"]


class VJE(Objective):
    """Variational Joint Embedding: a Student-t likelihood in polar form over a Gaussian posterior.

    Args:
        dim: Features D of the embeddings.
        nu: Degrees of freedom of both likelihood factors, > 0 or ``math.inf`` (paper: 3; one-class detection: 0.5).
        beta: Weight of the KL, averaged over the two views, >= 0 (paper: 1). Below 1 the loss is unbounded from below.
        hidden: Width of the inference network's three hidden layers, >= 1; the paper's dim / 4 by default, but at least 16,
            because layer normalization of one or two features is nearly constant.
        likelihood: ``polar``, of direction and norm, or ``plain``, of the embedding itself, which the paper argues against.
        scale: Variance of the likelihood, > 0, common to features and items; None takes the posterior's.
        sampled: Whether the loss has a sample of q; with False s = mu.
        terms: Terms of the loss: directional, radial and kl, or of the plain likelihood joint and kl; all by default.

    Example:
        >>> vje = VJE(8)
        >>> terms = vje(torch.randn(4, 8), torch.randn(4, 8))
        >>> sorted(terms)
        ['directional', 'kl', 'radial']
        >>> vje.posterior(torch.randn(4, 8)).entropy().shape
        torch.Size([4])
    """

    small = settings(lr=5e-3, encoder_lr=0.2)
    behind = settings(options={"hidden": 512})
    advice = "train the encoder slower than the inference network (`encoder_lr=0.1`), and keep beta at 1 or more"
    reference = settings(variance_mean=0.3, variance_cv=0.75, prior_variance=1.0)

    def __init__(
        self,
        dim: int,
        *,
        nu: float = 3.0,
        beta: float = 1.0,
        hidden: int | None = None,
        likelihood: Likelihood = "polar",
        scale: float | None = None,
        sampled: bool = True,
        terms: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        require_choice("likelihood", likelihood, get_args(Likelihood))
        names = {"joint", "kl"} if likelihood == "plain" else {"directional", "radial", "kl"}
        terms = tuple(sorted(names)) if terms is None else terms
        hidden = max(dim // 4, 16) if hidden is None else hidden
        expect(nu > 0 and 0 <= beta < math.inf, "nu > 0 and beta >= 0", f"nu={nu}, beta={beta}")
        expect(scale is None or 0 < scale < math.inf, "scale > 0", scale, "leave it out for the posterior's variances")
        require_count(1, hidden=hidden)
        expect(terms and names >= set(terms), f"terms among {sorted(names)} of the {likelihood} likelihood", tuple(terms))
        self.plain, self.scale, self.sampled = likelihood == "plain", scale, sampled
        self.dim, self.nu, self.beta, self.left_out = dim, float(nu), float(beta), names - set(terms)
        self.inference = _InferenceNetwork(dim, hidden)

    def infer(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the posterior's mean and variance, each (B, D), for embeddings (B, D)."""
        mu, var = self.inference(z)
        return mu, var

    def posterior(self, z: Tensor) -> Distribution:
        """Returns q(s | z), a diagonal Gaussian over (B, D)."""
        mu, var = self.infer(z)
        return Independent(Normal(mu, var.sqrt()), 1)

    def likelihood(self, z: Tensor, s: Tensor, var: Tensor) -> dict[str, Tensor]:
        """Returns -log p(y | s, var) of embeddings z (..., D) by factors, each (...), in nats without `log_constant` (eq. 31).

        Loss, log-density and scores all use it: another likelihood is another `likelihood` and another `log_constant`.
        """
        var = var if self.scale is None else torch.full_like(var, self.scale)
        if self.plain:
            return {"joint": student_nll(z, s, var, self.nu)}
        return {"directional": directional_nll(z, s, var, self.nu), "radial": radial_nll(z, s, self.nu)}

    def log_constant(self) -> float:
        """Returns the constant of the log-likelihood, which loss and scores leave out, in nats."""
        return log_constant(self.nu, self.dim) + (0.0 if self.plain else log_constant(self.nu, 1))

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns the terms of the symmetric loss (eq. 38) from one sample per view, with the global seed."""
        noise = torch.cat([torch.randn_like(za), torch.randn_like(zb)])
        zi, zj = torch.cat([za, zb]), torch.cat([zb, za]).detach()  # both directions i -> j at once; their mean is the 1/2 sum
        mu, var = self.infer(zi)
        s = mu + var.sqrt() * noise if self.sampled else mu
        terms = self.likelihood(zj, s, var) | {"kl": self.beta * kl_standard_normal(mu, var)}
        return {name: term.mean() for name, term in terms.items() if name not in self.left_out}

    def log_prob(self, zb: Tensor, za: Tensor, *, samples: int = 16, generator: torch.Generator | None = None) -> Tensor:
        r"""Returns a lower bound of log p(y_b | z_a), y_b = (z_b/|z_b|, |z_b|), in nats, shape (B,).

        log 1/M sum_m p(y_b | s_m, var_a) p(s_m) / q(s_m | z_a), s_m ~ q: one sample is the evidence lower bound (eq. 35)
        with its constants; more samples only tighten it. All rows use the same M noise vectors, so that a row's value
        does not depend on its batch. The density of z_b itself is lower by (D - 1) log|z_b|; the plain likelihood is of z_b.

        Args:
            zb: Target embeddings, (B, D).
            za: Context embeddings, (B, D).
            samples: Number of samples M, >= 1.
            generator: Source of the noise; the global generator by default.
        """
        log_w = self.log_weights(zb, za, samples=samples, generator=generator)
        return torch.logsumexp(log_w, 0) - math.log(samples)

    def log_weights(self, zb: Tensor, za: Tensor, *, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Returns log p(y_b | s) p(s) / q(s | z_a) of samples s ~ q(s | z_a), common to all rows, (samples, B)."""
        require_pairs(za, zb, self.dim)
        require_count(1, samples=samples)
        mu, var = self.infer(za)
        s, noise = self._common_samples(mu, var, samples, generator)
        log_ratio = 0.5 * (noise.square() - s.square() + var.log()).sum(-1)  # log p(s) - log q(s)
        return self.log_constant() - sum(self.likelihood(zb, s, var).values()) + log_ratio

    def score(self, z: Tensor, *, samples: int = 16, generator: torch.Generator | None = None) -> Tensor:
        """Returns the anomaly score of each embedding, (B,): ``joint`` of `scores`."""
        return self.scores(z, samples=samples, generator=generator)["joint"]

    def scores(self, z: Tensor, *, samples: int = 16, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        r"""Returns five scores of each embedding under its own posterior, (B,), from the same samples; larger is more anomalous.

        ``joint`` is the expected l_dir + l_rad of z given s ~ q(s | z) without constants; ``directional`` and ``radial``
        are its parts, which the plain likelihood lacks; ``variance`` is sum_d var_d; ``entropy`` is 1/2 sum_d
        log(2 pi e var_d), in nats. The paper does not state how s is chosen: here by default the mean over M samples
        common to all rows, and s = mu with ``samples=0``. Arguments are those of `log_prob`.
        """
        require_count(0, samples=samples)
        mu, var = self.infer(z)
        s = self._common_samples(mu, var, samples, generator)[0] if samples else mu[None]
        parts = {name: nll.mean(0) for name, nll in self.likelihood(z, s, var).items()}
        entropy = 0.5 * (math.log(2 * math.pi * math.e) + var.log()).sum(-1)
        return {"joint": sum(parts.values(), torch.zeros_like(entropy)), **parts, "variance": var.sum(-1), "entropy": entropy}

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns mean and coefficient of variation of the posterior variance (`reference`: the paper's values)."""
        var = self.infer(za)[1]
        return {"variance_mean": var.mean().item(), "variance_cv": (var.std(correction=0) / var.mean()).item()}

    @staticmethod
    def _common_samples(mu: Tensor, var: Tensor, samples: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        device = generator.device if generator is not None else mu.device
        noise = torch.randn(samples, 1, mu.shape[-1], generator=generator, dtype=mu.dtype, device=device).to(mu.device)
        return mu + var.sqrt() * noise, noise


class _InferenceNetwork(nn.Module):
    """The amortized posterior g: three Linear-LayerNorm-ReLU layers, and a linear head each for mean and variance."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        pairs = itertools.pairwise((dim, hidden, hidden, hidden))
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.ReLU()) for i, o in pairs))
        self.mean, self.variance = nn.Linear(hidden, dim), nn.Linear(hidden, dim)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(upcast_half(z))
        return upcast_half(self.mean(h)), F.softplus(upcast_half(self.variance(h))) + EPS
