r"""GMJE-MDN (2026), arXiv:2603.26799, from its abstract and captions: the losses are derived here.

The paper states: a network of the context alone gives a mixture that is evaluated at the target, and its loss is coupled with a
marginal loss on the context, whose form was not available. Here h gives logits a (K), means m and log-stds s (K, D):

    p(z_t | z_c) = sum_k softmax(a)_k N(z_t; m_k, diag e^{2 s_k}),   (a, m, r) = h(z_c),   e^s = floor + e^r
    L = -log p(z_t | z_c) + lambda L_marg(z_c),   the mean over a -> b and b -> a

A network with access to z_t would put a narrow component on it: L = D (log floor + 1/2 log 2 pi) for any encoder. And the
likelihood alone is lowest where all embeddings are one point. With mean and covariance S of the batch's z_c, L_marg is

    kl (default)   1/2 [tr S + |mean|^2 - D - log |S|] = KL(N(mean, S) || N(0, I)), whose minimum 0 is at mean 0 and S = I
    entropy        1/2 [tr S - D - log |S|]: minus the entropy plus a term that fixes the scale; the mean is free
    nll            -log p(z_c) under a learned mixture of K; does not prevent collapse, as it falls with the scale of z_c, too
    none           no term, for study

In the likelihood the target is a constant (``stop``), or gets gradient as well (``through``) and then concentrates on the
components where the floor is low. With ``stop`` and ``none`` no run here collapsed, but nothing fixes the scale.

Shapes: B pairs, D features, K components. Terms: means over pairs, sums over features, in nats.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from vergence.densities import mixture_head
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians, kl_standard_normal
from vergence.densities.mixture_head import mixture
from vergence.densities.moments import MovingMoments, batch_moments
from vergence.learn.objectives.core import ConditionalObjective, settings
from vergence.learn.objectives.parts import diagnostics, information
from vergence.utils.checks import require_choice, require_count, require_within
from vergence.utils.linalg import upcast_half

__all__ = ["GMJEMDN"]

TERMS = {"kl": "kl", "nll": "marginal_nll", "entropy": "entropy", "none": ""}  # name of the term for each ``marginal``
CEILING = 3.0  # upper bound of r


def split(out: Tensor, K: int, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a (..., K), m and s (..., K, D) from network outputs (..., K (1 + 2 D)).

    Example:
        >>> a, m, s = split(torch.zeros(7, 2 * (1 + 2 * 3)), 2, floor=0.5)
        >>> a.shape, m.shape, round(s[0, 0, 0].exp().item(), 3)
        (torch.Size([7, 2]), torch.Size([7, 2, 3]), 1.5)
    """
    a, m, r = mixture_head.split_outputs(out, K)
    return a, m, (floor + r.clamp(max=CEILING).exp()).log()


def anchored_entropy(S: Tensor) -> Tensor:
    """Returns 1/2 [tr S - D - log |S|] of a covariance (D, D) in nats, a scalar >= 0, which is 0 at S = I."""
    return kl_standard_normal(S.new_zeros(len(S)), S)


def initial_outputs(K: int, D: int) -> Tensor:
    """Returns initial outputs (K (1 + 2 D)): equal weights, standard normal means, and r = -log K."""
    return mixture_head.initial_outputs(torch.randn(K, D))


class GMJEMDN(ConditionalObjective):
    """Gaussian-mixture joint embedding by a mixture density network: the mixture over the target depends on the context.

    Args:
        dim: Features D of the embeddings.
        components: Number of components K, >= 1.
        hidden: Width of the network's two hidden layers, >= 1.
        marginal: ``kl`` and ``entropy`` prevent collapse; with ``nll`` encoders collapse, as with ``none`` and ``through``.
        weight: Weight lambda of the marginal term, > 0.
        target: ``stop``: the target gets no gradient from the likelihood; ``through``: it does.
        floor: Least standard deviation of a component, > 0, in the embeddings' unit.
        tied: Whether one network serves both directions; with two, for views of unlike kinds, the density is that of a -> b.
        momentum: Weight m of the past in the moving averages that define p(z_a), in [0, 1); ``nll`` has its learned mixture.

    Example:
        >>> mdn = GMJEMDN(4, components=3)
        >>> terms = mdn(torch.randn(64, 4), torch.randn(64, 4))
        >>> sorted(terms)
        ['kl', 'nll']
        >>> mdn.conditional(torch.randn(2, 4)).weights.shape
        torch.Size([2, 3])
    """

    small = settings(projector=(256, 32))
    behind = settings(projector=(32,))

    def __init__(
        self,
        dim: int,
        *,
        components: int = 5,
        hidden: int = 128,
        marginal: Literal["kl", "nll", "entropy", "none"] = "kl",
        weight: float = 1.0,
        target: Literal["stop", "through"] = "stop",
        floor: float = 0.5,
        tied: bool = True,
        momentum: float = 0.99,
    ) -> None:
        super().__init__()
        require_choice("marginal", marginal, TERMS)
        require_choice("target", target, ("stop", "through"))
        require_count(1, components=components, hidden=hidden)
        require_within("(0, inf)", weight=weight, floor=floor)
        self.dim, self.components, self.floor = dim, components, float(floor)
        self.marginal_kind, self.weight, self.target = marginal, float(weight), target
        directions = range(1 if tied else 2)  # [0] is a -> b, [-1] is b -> a
        self.networks = nn.ModuleList(_network(dim, hidden, components) for _ in directions)
        if marginal == "nll":
            self.marginals = nn.ParameterList(initial_outputs(components, dim) for _ in directions)
        self.moving = MovingMoments(dim, momentum=momentum)

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns ``nll`` and, under its name, the marginal term: ``kl``, ``entropy`` or ``marginal_nll``."""
        if self.marginal_kind in ("kl", "entropy"):
            information.require_spread(za, zb)
        terms = {"nll": 0.5 * (self._nll(0, za, zb) + self._nll(-1, zb, za))}
        if name := TERMS[self.marginal_kind]:
            terms[name] = self.weight * 0.5 * (self._marginal_loss(0, za) + self._marginal_loss(-1, zb))
        return terms

    def _mixture(self, direction: int, z_c: Tensor) -> MixtureOfGaussians:
        return mixture(*split(self.networks[direction](z_c), self.components, self.floor))

    def _nll(self, direction: int, z_c: Tensor, z_t: Tensor) -> Tensor:
        z_t = z_t.detach() if self.target == "stop" else z_t
        return -self._mixture(direction, z_c).log_prob(z_t).mean()

    def _learned(self, direction: int) -> MixtureOfGaussians:
        return mixture(*split(self.marginals[direction], self.components, self.floor))

    def _marginal_loss(self, direction: int, z_c: Tensor) -> Tensor:
        if self.marginal_kind == "nll":
            return -self._learned(direction).log_prob(z_c).mean()
        m = batch_moments(z_c, shrinkage=None)
        return kl_standard_normal(m.mean, m.S) if self.marginal_kind == "kl" else anchored_entropy(m.S)

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Updates the moving averages of mean and covariance that define p(z_a)."""
        self.moving.update(za)

    def conditional(self, z: Tensor) -> MixtureOfGaussians:
        """Returns p(z_b | z_a) for embeddings z_a (B, D): K diagonal Gaussians for each."""
        return self._mixture(0, upcast_half(z))

    def marginal(self) -> JointGaussian | MixtureOfGaussians:
        """Returns p(z_a): the learned mixture with ``nll``, else the Gaussian of the moving averages."""
        return self._learned(0) if self.marginal_kind == "nll" else self.moving.density()

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns the use of the components, `parts.diagnostics.mahalanobis` and `parts.diagnostics.collapse`.

        ``components`` is the effective number exp(entropy) under the mean weights, ``components_per_context`` the mean of each
        context's own, and ``component_std`` the components' mean standard deviation, by weight.
        """
        p = self.conditional(za)
        pi = p.weights
        std = (pi[..., None] * p.component_distribution.variance.sqrt()).sum(-2)
        return {
            "components": diagnostics.effective_components(pi.mean(0)).item(),
            "components_per_context": diagnostics.effective_components(pi).mean().item(),
            "component_std": std.mean().item(),
            "mahalanobis": diagnostics.mahalanobis(p, zb),
            **diagnostics.collapse(za, zb),
        }


def _network(dim: int, hidden: int, K: int) -> nn.Sequential:
    """Returns h, two SiLU layers: (B, D) -> (B, K (1 + 2 D)), initialized close to `initial_outputs` for every context."""
    last = nn.Linear(hidden, mixture_head.n_outputs(K, dim))
    with torch.no_grad():
        last.weight.mul_(0.1)
        last.bias.copy_(initial_outputs(K, dim))
    return nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last)
