r"""GMJE-MDN (2026), arXiv:2603.26799, from its abstract and captions: the losses are derived here.

The paper's statements: a network of the context alone gives a mixture that is evaluated at the target; its loss is coupled with
a marginal loss on the context, whose form was not available. Here h gives logits a (K), means m and log-stds s (K, D):

    p(z_t | z_c) = sum_k softmax(a)_k N(z_t; m_k, diag e^{2 s_k}),   (a, m, r) = h(z_c),   e^s = floor + e^r
    L = -log p(z_t | z_c) + lambda L_marg(z_c),   the mean over a -> b and b -> a

A network that saw z_t would put a spike on it: L = D (log floor + 1/2 log 2 pi) for any encoder. And the likelihood alone is
lowest where every embedding is one point. With mean and covariance S of the batch's z_c, L_marg is

    kl (default)   1/2 [tr S + |mean|^2 - D - log |S|] = KL(N(mean, S) || N(0, I)): least, 0, at mean 0 and S = I
    entropy        1/2 [tr S - D - log |S|], minus the entropy with an anchor of scale: the same without a pull on the mean
    nll            -log p(z_c) under a learned mixture of K: a density, but no remedy, it falls with the scale of z_c as well
    none           no term, for study

The likelihood takes the target for a constant (``stop``), or pulls on it as well (``through``), which then gathers on the
components where the floor is low. With ``stop`` and ``none`` no run here collapsed, but nothing holds the scale.

Measured on the toy of ``benchmarks/trap.py`` (three seeds): R^2 of the latent is 0.85 +- 0.13 with ``stop`` and 0.38 +- 0.12 with
``through``. A low floor gives the sharper density; with ``through`` embeddings then quantize onto the components.

Shapes: B pairs, D features, K components. Terms: means over pairs, sums over features, in nats.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from vergence.densities import mixture_head
from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.densities.mixture_head import mixture
from vergence.objectives.core import ConditionalObjective, require_pairs
from vergence.objectives.parts import volume
from vergence.objectives.parts.moving import MovingGaussian
from vergence.utils.linalg import upcast_half

__all__ = ["GMJEMDN", "anchored_entropy", "mixture", "split"]

TERMS = {"kl": "kl", "nll": "marginal_nll", "entropy": "entropy", "none": ""}  # marginal: its term
CEILING = 3.0  # of r


def split(out: Tensor, K: int, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a (..., K), m and s (..., K, D) of a network's outputs (..., K (1 + 2 D)).

    Example:
        >>> a, m, s = split(torch.zeros(7, 2 * (1 + 2 * 3)), 2, floor=0.5)
        >>> a.shape, m.shape, round(s[0, 0, 0].exp().item(), 3)
        (torch.Size([7, 2]), torch.Size([7, 2, 3]), 1.5)
    """
    a, m, r = mixture_head.split(out, K)
    return a, m, (floor + r.clamp(max=CEILING).exp()).log()


def anchored_entropy(m: volume.Moments) -> Tensor:
    """Returns 1/2 [tr S - D - log |S|] in nats, a scalar >= 0, which is 0 at S = I.

    Example:
        >>> anchored_entropy(volume.Moments(torch.ones(3), torch.eye(3))).item()
        0.0
    """
    return volume.kl_standard_normal(volume.Moments(torch.zeros_like(m.mean), m.S))


def start(K: int, D: int) -> Tensor:
    """Returns first outputs (K (1 + 2 D)): equal weights, standard normal means, where the KL draws targets, and r = -log K.

    With an encoder and a floor of 0.3 or 0.5 the wider start r = 0 ended lower, by up to 0.1 of the R^2 above.
    """
    return mixture_head.initial_outputs(torch.randn(K, D))


class GMJEMDN(ConditionalObjective):
    """Gaussian mixture joint embedding by a mixture density network: a mixture over the target that depends on the context.

    Args:
        dim: Features D of the embeddings.
        components: K >= 1.
        hidden: Width of the network's two hidden layers, >= 1.
        marginal: ``kl`` or ``entropy`` pay for volume; ``nll`` does not and encoders collapse, as with ``none`` and ``through``.
        weight: lambda > 0.
        target: ``stop`` keeps the likelihood's gradient from the target; ``through`` lets it pass.
        floor: Least std of a component, > 0, in the embeddings' unit.
        tied: Whether one network serves both directions; with two, for views of unlike kinds, the density is that of a -> b.
        momentum: m of the moving average that p(z_a) comes from, in [0, 1); ``nll`` has its learned mixture instead.

    Raises:
        ValueError: An argument is out of its range.

    Example:
        >>> mdn = GMJEMDN(4, components=3)
        >>> terms = mdn(torch.randn(64, 4), torch.randn(64, 4))
        >>> sorted(terms)
        ['kl', 'nll']
        >>> mdn.conditional(torch.randn(2, 4)).weights.shape
        torch.Size([2, 3])
    """

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
        if marginal not in TERMS or target not in ("stop", "through"):
            raise ValueError(
                f"expected marginal among {', '.join(TERMS)} and target stop or through, found {marginal}, {target}: choose one"
            )
        if not all(isinstance(n, int) and n >= 1 for n in (components, hidden)):
            raise ValueError(f"expected whole components, hidden >= 1, found {components}, {hidden}: raise them")
        if not (0 < weight < math.inf and 0 < floor < math.inf):
            raise ValueError(f"expected weight, floor > 0, found {weight}, {floor}: for no marginal term choose marginal=none")
        self.dim, self.components, self.floor = dim, components, float(floor)
        self.marginal_kind, self.weight, self.target = marginal, float(weight), target
        directions = range(1 if tied else 2)  # [0] is a -> b, [-1] is b -> a
        self.networks = nn.ModuleList(_network(dim, hidden, components) for _ in directions)
        if marginal == "nll":
            self.marginals = nn.ParameterList(start(components, dim) for _ in directions)
        self.moving = MovingGaussian(dim, momentum=momentum)

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        """Returns ``nll`` and, under its name, the marginal term: ``kl``, ``entropy`` or ``marginal_nll``.

        Raises:
            ValueError: The embeddings are not two (B, dim).
        """
        require_pairs(za, zb, self.dim)
        za, zb = upcast_half(za), upcast_half(zb)
        terms = {"nll": 0.5 * (self._nll(0, za, zb) + self._nll(-1, zb, za))}
        if name := TERMS[self.marginal_kind]:
            terms[name] = self.weight * 0.5 * (self._marginal_loss(0, za) + self._marginal_loss(-1, zb))
        return terms

    def _given(self, direction: int, z_c: Tensor) -> GaussianMixture:
        return mixture(*split(self.networks[direction](z_c), self.components, self.floor))

    def _nll(self, direction: int, z_c: Tensor, z_t: Tensor) -> Tensor:
        z_t = z_t.detach() if self.target == "stop" else z_t
        return -self._given(direction, z_c).log_prob(z_t).mean()

    def _learned(self, direction: int) -> GaussianMixture:
        return mixture(*split(self.marginals[direction], self.components, self.floor))

    def _marginal_loss(self, direction: int, z_c: Tensor) -> Tensor:
        if self.marginal_kind == "nll":
            return -self._learned(direction).log_prob(z_c).mean()
        m = volume.moments(z_c, shrinkage=None)
        return volume.kl_standard_normal(m) if self.marginal_kind == "kl" else anchored_entropy(m)

    def update(self, za: Tensor, zb: Tensor) -> None:
        """Moves the averages of mean and covariance that p(z_a) is made of; the first steps weigh alike."""
        self.moving.update(za)

    def conditional(self, z: Tensor) -> GaussianMixture:
        """Returns p(z_b | z_a) for embeddings z_a (B, D): K diagonal Gaussians for each."""
        return self._given(0, upcast_half(z))

    def marginal(self) -> JointGaussian | GaussianMixture:
        """Returns p(z_a): the learned mixture with ``nll``, else the Gaussian of the moving averages."""
        return self._learned(0) if self.marginal_kind == "nll" else self.moving.density()

    def diagnostics(self, za: Tensor, zb: Tensor) -> dict[str, float]:
        """Returns how many components are used, exp(entropy of the weights), and `vergence.objectives.parts.volume.diagnostics`.

        ``components`` is that of the mean weights and ``components_per_context`` the mean of every context's own;
        ``component_std`` is the mean std of a component, by weight; and `mahalanobis`.
        """
        p = self.conditional(za)
        pi = p.weights
        std = (pi[..., None] * p.component_distribution.variance.sqrt()).sum(-2)
        return {
            "components": _effective(pi.mean(0)).item(),
            "components_per_context": _effective(pi).mean().item(),
            "component_std": std.mean().item(),
            "mahalanobis": self.mahalanobis(za, zb),
            **volume.diagnostics(za, zb),
        }


def _effective(pi: Tensor) -> Tensor:
    """Returns exp(entropy) of weights (..., K): from 1 to K, (...)."""
    number: Tensor = torch.special.entr(pi).sum(-1).exp()
    return number


def _network(dim: int, hidden: int, K: int) -> nn.Sequential:
    """Returns h, two SiLU layers: (B, D) -> (B, K (1 + 2 D)), which begins close to `start` for every context."""
    last = nn.Linear(hidden, mixture_head.n_outputs(K, dim))
    with torch.no_grad():
        last.weight.mul_(0.1)
        last.bias.copy_(start(K, dim))
    return nn.Sequential(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last)
