r"""Mixtures that no batch decides alone: learnable prototypes, stepwise EM, and a bank of items with the mixture fitted to it.

    p(z) = sum_k pi_k N(z; mu_k, S_k),  z = [z_a; z_b],   S_k = L_k L_k^T + s^2 I

or, with D (1 + r) numbers a component in the place of D^2, of low rank in the turned pairs [(z_a + z_b); (z_a - z_b)] / sqrt(2),

    S_k = T (diag(d_k) + s^2 I + U_k U_k^T) T^T

Their diagonal says how far the views agree feature by feature, which that of [z_a; z_b] could not. The floor s keeps embeddings
that are trained toward the components from shrinking onto them.

Shapes: D features, K components, M items in the bank, r the rank.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.densities import em
from vergence.densities.covariance import Covariance, Dense, PairedLowRank, rotated
from vergence.densities.gaussian import GaussianMixture
from vergence.utils import linalg

__all__ = ["CovarianceForm", "MixtureBank", "MovingMixture", "Prototypes", "rank_of"]

CovarianceForm = Literal["auto", "full", "low_rank"]
ROUNDING = {torch.float32: 4e-6, torch.float64: 0.0}  # of the mean variance, added to covariances that sums of products make
FULL_UP_TO = 64  # features of a covariance that "auto" keeps full


def rank_of(covariance: str, rank: int, dim: int) -> int | None:
    """Returns the rank of covariances over ``dim`` features; None for full ones. ``auto`` keeps them full up to 64 features.

    Raises:
        ValueError: There is no such form, or the rank is below 1.

    Example:
        >>> rank_of("auto", 8, 64), rank_of("auto", 8, 65), rank_of("full", 8, 65)
        (None, 8, None)
    """
    if covariance not in ("auto", "full", "low_rank"):
        raise ValueError(f"expected covariance auto, full or low_rank, found {covariance!r}")
    if rank < 1:
        raise ValueError(f"expected rank of at least 1, found {rank}")
    return min(rank, dim) if covariance == "low_rank" or (covariance == "auto" and dim > FULL_UP_TO) else None


def _require(components: int, floor: float) -> None:
    if components < 1 or not floor > 0:
        raise ValueError(f"expected components >= 1 and floor > 0, found components={components}, floor={floor}")


class Prototypes(nn.Module):
    """A mixture of K learnable Gaussians; it begins with S = I and means drawn from the standard normal by the global seed.

    Args:
        dim: Features D.
        components: K >= 1.
        rank: r of low-rank covariances; None for full ones.
        floor: s > 0, a standard deviation; below 1.

    Raises:
        ValueError: A setting is out of its range.

    Example:
        >>> prototypes = Prototypes(4, components=3, rank=None, floor=0.3)
        >>> mixture = prototypes.density(context=2)
        >>> mixture.weights.shape, mixture.conditional(torch.zeros(7, 2)).batch_shape
        (torch.Size([3]), torch.Size([7]))
    """

    def __init__(self, dim: int, components: int, *, rank: int | None, floor: float) -> None:
        super().__init__()
        _require(components, floor)
        if not floor < 1:
            raise ValueError(f"expected a floor below the prototypes' first deviation, 1, found {floor}")
        self.floor = floor
        own = math.log(math.expm1(math.sqrt(1 - floor**2)))  # softplus of it, and the floor, make S = I
        self.logits = nn.Parameter(torch.zeros(components))
        self.means = nn.Parameter(torch.randn(components, dim))
        self.spread = nn.Parameter(torch.full((components, dim), own))
        shape = (components, dim, dim if rank is None else rank)
        self.shared = nn.Parameter(torch.zeros(shape) if rank is None else 0.01 * torch.randn(shape))
        self.rank = rank

    def covariance(self) -> Covariance:
        """Returns S, a batch of K."""
        spread, eye = F.softplus(self.spread), torch.eye(self.means.shape[1], dtype=self.means.dtype, device=self.means.device)
        if self.rank is not None:
            return PairedLowRank.of_sums(spread.square() + self.floor**2, self.shared)
        L = self.shared.tril(-1) + torch.diag_embed(spread)
        return Dense(torch.linalg.cholesky_ex(L @ L.mT + self.floor**2 * eye)[0])

    def density(self, context: int = 0) -> GaussianMixture:
        """Returns the mixture, of which the first ``context`` features are the context; differentiable."""
        return GaussianMixture(self.logits, self.means, self.covariance(), context)


class MovingMixture(nn.Module):
    """A mixture of full covariances by stepwise EM (Cappe and Moulines, 2009): each batch moves its sums by a rate.

        r_nk = p(k | z_n);   N_k <- (1 - rho) N_k + rho mean_n r_nk,   pi_k = N_k / sum_j N_j

    and mu_k, S_k are mean and covariance under these weights, kept around the means, where nothing cancels; s^2 I is added to
    S_k. It begins with S = (1 + s^2) I, and takes items of the first batch for its first means. No weight falls below 1e-3 / K.

    Args:
        dim: Features D.
        components: K >= 1.
        floor: s > 0.
        rate: rho in (0, 1].

    Raises:
        ValueError: A setting is out of its range.

    Example:
        >>> moving = MovingMixture(2, components=3, floor=0.1, rate=0.1)
        >>> moving.update(torch.randn(50, 2))
        >>> round(moving.density().weights.sum().item(), 6)
        1.0
    """

    N: Tensor
    mu: Tensor
    S: Tensor
    begun: Tensor

    def __init__(self, dim: int, components: int, *, floor: float, rate: float) -> None:
        super().__init__()
        _require(components, floor)
        if not 0 < rate <= 1:
            raise ValueError(f"expected a rate above 0 and at most 1, found {rate}")
        self.floor, self.rate = floor, rate
        self.register_buffer("N", torch.full((components,), 1 / components))
        self.register_buffer("mu", 0.01 * torch.randn(components, dim))  # apart, also from one item
        self.register_buffer("S", torch.eye(dim).repeat(components, 1, 1))
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def update(self, z: Tensor) -> None:
        """Takes a batch (B, D) in."""
        z = z.to(self.mu)
        first = z[torch.linspace(0, len(z) - 1, len(self.N), device=z.device).long()]
        self.mu.add_(torch.where(self.begun, 0.0, first))
        self.begun.fill_(True)
        r, d = self.density().responsibilities(z).mT, z - self.mu[:, None]
        new, weighted = r.mean(1), (self.rate / len(z)) * r[..., None] * d
        N = (1 - self.rate) * self.N + self.rate * new
        shift = weighted.sum(1) / N[:, None]
        S = ((1 - self.rate) * (self.N / N))[:, None, None] * self.S + (weighted.mT @ d) / N[:, None, None]
        moved = new > 1e-9  # of a component that nothing chooses, mean and covariance stay
        self.S.copy_(torch.where(moved[:, None, None], S - shift[:, :, None] * shift[:, None], self.S))
        self.mu.add_(torch.where(moved[:, None], shift, 0.0))
        self.N.copy_(N.clamp(min=1e-3 / len(N)))

    def density(self, context: int = 0) -> GaussianMixture:
        """Returns the mixture, of which the first ``context`` features are the context; without gradient."""
        jitter = ROUNDING[self.S.dtype] * self.S.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        added = (self.floor**2 + jitter).expand_as(self.mu)
        L = torch.linalg.cholesky_ex((self.S + torch.diag_embed(added)).double())[0].to(self.mu)
        return GaussianMixture(self.N.log(), self.mu, Dense(L), context)


class MixtureBank(nn.Module):
    """The last M items, and the mixture that was fitted to them last; before the first fit that is the standard normal.

    A fit is due after the first batch, then when the items seen have doubled, and, once the bank is full, after every M items.

    Args:
        dim: Features D.
        size: M.
        components: K, the most components.
        rank: r of low-rank covariances; None for full ones.
        floor: s > 0: an M step adds s^2 to full covariances' variances; no d of low-rank ones falls below it.

    Raises:
        ValueError: A setting is out of its range.

    Example:
        >>> bank = MixtureBank(2, size=100, components=2, rank=None, floor=0.1)
        >>> [bank.push(torch.randn(30, 2)) for _ in range(5)], len(bank.items())
        ([True, True, False, True, False], 100)
    """

    stored: Tensor
    logits: Tensor
    means: Tensor
    shared: Tensor

    def __init__(self, dim: int, size: int, components: int, *, rank: int | None, floor: float) -> None:
        super().__init__()
        _require(components, floor)
        if size < 2 * components:
            raise ValueError(f"expected a bank of at least two items a component, {2 * components}, found {size}")
        self.rank, self.floor = rank, floor
        self.seen = self.fitted = 0  # items so far, and items when the last fit became due
        self.register_buffer("stored", torch.zeros(size, dim))
        self.register_buffer("logits", torch.zeros(components))
        self.register_buffer("means", torch.zeros(components, dim))
        flat = torch.cat([torch.ones(dim, 1), torch.zeros(dim, rank or 1)], 1)
        self.register_buffer("shared", (torch.eye(dim) if rank is None else flat).repeat(components, 1, 1))

    @property
    def structure(self) -> em.Structure:
        """How EM estimates the covariances."""
        return em.structure("full") if self.rank is None else em.structure("low_rank", self.rank)

    @torch.no_grad()
    def push(self, z: Tensor) -> bool:
        """Puts items (B, D) in the place of the oldest; returns whether a fit is due."""
        size = len(self.stored)
        where = torch.arange(self.seen, self.seen + len(z), device=self.stored.device)[-size:] % size
        self.stored[where] = (z if self.rank is None else rotated(z))[-size:].to(self.stored)
        self.seen += len(z)
        due = self.seen - self.fitted >= min(self.fitted, size)
        self.fitted = self.seen if due else self.fitted
        return due

    def items(self) -> Tensor:
        """Returns what the bank holds, (min(items seen, M), D); with low-rank covariances turned."""
        return self.stored[: self.seen]

    def data(self) -> em.Data:
        """Returns the items as EM reads them."""
        x = self.items()
        return em.Data(x, None, x.double().mean(0), x.device)

    def start(self, r: Tensor) -> em.Mixture:
        """Returns the mixture that responsibilities r (1, K, n) of the items make."""
        data = self.data()
        return _moved(em.initialize(data, self.structure, r, self.floor**2), data.origin)

    @torch.no_grad()
    def fit(self, *starts: em.Mixture, steps: int) -> None:
        """Keeps the likeliest of the mixtures that EM makes of the starts on the items in some steps, in the items' precision."""
        data = self.data()
        if not bool(data.X.isfinite().all()):
            raise ValueError("embeddings are not finite: lower --lr, add --warmup-epochs or --clip 1, or check the data")
        ends = [self._improved(data, _moved(start, -data.origin), steps) for start in starts]
        best = max(ends, key=lambda end: self._likelihood(data, end)) if len(ends) > 1 else ends[0]
        self.keep(_moved(best, data.origin))

    def _likelihood(self, data: em.Data, mixture: em.Mixture) -> float:
        return float(em.expectation(data, self.structure, mixture, self.stored.dtype)[0].log_likelihood)

    def _improved(self, data: em.Data, mixture: em.Mixture, steps: int) -> em.Mixture:
        structure = self.structure
        for _ in range(steps):
            sums, use = em.expectation(data, structure, mixture, self.stored.dtype)
            mixture = em.maximization(structure, use, sums, mixture, self.floor**2, data.variance_floor)
            dead = int(sums.N.argmin())
            if len(sums.N) > 1 and float(sums.N[dead]) < 1:
                item = data.X[sums.lowest_item[0]].to(mixture.means) - data.origin
                structure.revive(mixture, 0, dead, item, 1 / len(data.X))
        return mixture

    def keep(self, mixture: em.Mixture) -> None:
        """Keeps a mixture of at most K components; the others get no weight."""
        weights, means, S = mixture.weights[0], mixture.means[0], mixture.covariances[0]
        K = len(weights)
        self.logits.fill_(-math.inf)[:K] = weights.log().to(self.logits)
        self.means[:K] = means.to(self.means)
        self.shared[:K] = (linalg.cholesky(S)[0] if self.rank is None else S).to(self.shared)

    def mixture(self) -> em.Mixture:
        """Returns the kept mixture as EM takes it: its components that have weight."""
        some = self.logits > -math.inf
        shared = self.shared[some].double()
        S = shared @ shared.mT if self.rank is None else shared
        return em.Mixture(self.logits[some].double().softmax(0)[None], self.means[some].double()[None], S[None])

    def density(self, context: int = 0) -> GaussianMixture:
        """Returns the kept mixture, of which the first ``context`` features are the context; without gradient."""
        if self.rank is None:
            return GaussianMixture(self.logits, self.means, Dense(self.shared), context)
        covariance = PairedLowRank.of_sums(self.shared[..., 0], self.shared[..., 1:])
        return GaussianMixture(self.logits, rotated(self.means), covariance, context)

    def get_extra_state(self) -> Tensor:
        """Returns the counts, for the state_dict; kept off the device, where reading one would wait for it."""
        return torch.tensor([self.seen, self.fitted])

    def set_extra_state(self, state: Tensor) -> None:
        """Takes the counts from a state_dict."""
        self.seen, self.fitted = state.tolist()


def _moved(mixture: em.Mixture, by: Tensor) -> em.Mixture:
    return em.Mixture(mixture.weights, mixture.means + by, mixture.covariances)
