r"""Mixtures estimated across batches: learnable prototypes, online EM, and a bank of items with a mixture fitted to it.

    p(z) = sum_k pi_k N(z; mu_k, S_k),  z = [z_a; z_b],   S_k = L_k L_k^T + s^2 I

or, with D (1 + r) numbers per component instead of D^2, low-rank in the rotated pairs [(z_a + z_b); (z_a - z_b)] / sqrt(2),

    S_k = T (diag(d_k) + s^2 I + U_k U_k^T) T^T

whose diagonal says how far the views agree feature by feature; a diagonal in [z_a; z_b] cannot. The floor s prevents embeddings
that are trained toward the components from shrinking onto them.

Shapes: D features, K components, M items in the bank, r the rank.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.densities.covariance import Covariance, Dense, LowRank, rotated
from vergence.densities.em import fit as em
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.utils import linalg
from vergence.utils.checks import expect, require_choice, require_count, require_within

CovarianceForm = Literal["auto", "full", "low_rank"]
# In units of the mean variance; added to covariances computed as sums of products.
ROUNDING = {torch.float32: 4e-6, torch.float64: 0.0}
FULL_UP_TO = 64  # features up to which "auto" means full covariances


def rank_of(covariance: str, rank: int, dim: int) -> int | None:
    """Returns the rank of covariances over ``dim`` features, or None for full ones; ``auto`` means full up to 64 features.

    Example:
        >>> rank_of("auto", 8, 64), rank_of("auto", 8, 65), rank_of("full", 8, 65)
        (None, 8, None)
    """
    require_choice("covariance", covariance, ("auto", "full", "low_rank"))
    require_count(1, rank=rank)
    return min(rank, dim) if covariance == "low_rank" or (covariance == "auto" and dim > FULL_UP_TO) else None


def _check(components: int, floor: float) -> None:
    require_count(1, components=components)
    require_within("(0, inf)", floor=floor)


class Prototypes(nn.Module):
    """A mixture of K learnable Gaussians, initialized with S = I and standard normal means (global seed).

    ``rank`` is that of low-rank covariances, None for full ones; ``floor`` the least standard deviation s, in (0, 1).
    """

    def __init__(self, dim: int, components: int, *, rank: int | None, floor: float) -> None:
        super().__init__()
        _check(components, floor)
        require_within("(0, 1)", floor=floor)  # the initial standard deviation is 1
        self.floor = floor
        spread = math.log(math.expm1(math.sqrt(1 - floor**2)))  # its softplus and the floor make S = I
        self.logits = nn.Parameter(torch.zeros(components))
        self.means = nn.Parameter(torch.randn(components, dim))
        self.spread = nn.Parameter(torch.full((components, dim), spread))
        shape = (components, dim, dim if rank is None else rank)
        self.shared = nn.Parameter(torch.zeros(shape) if rank is None else 0.01 * torch.randn(shape))
        self.rank = rank

    @classmethod
    def single(cls, dim: int, *, rank: int | None, floor: float) -> "Prototypes":
        """Returns one learnable Gaussian, initialized as the standard normal; its weight is not learned."""
        prototypes = cls(dim, 1, rank=rank, floor=floor)
        prototypes.means.data.zero_()
        prototypes.logits.requires_grad_(False)
        return prototypes

    def covariance(self) -> Covariance:
        """Returns the covariances S_k, a batch (K,)."""
        spread, eye = F.softplus(self.spread), torch.eye(self.means.shape[1], dtype=self.means.dtype, device=self.means.device)
        if self.rank is not None:
            return LowRank.of_sums(spread.square() + self.floor**2, self.shared)
        L = self.shared.tril(-1) + torch.diag_embed(spread)
        return Dense(torch.linalg.cholesky_ex(L @ L.mT + self.floor**2 * eye)[0])

    def density(self, context: int = 0) -> MixtureOfGaussians:
        """Returns the mixture, with the first ``context`` features as the context; differentiable."""
        return MixtureOfGaussians(self.logits, self.means, self.covariance(), context)

    def component(self, k: int, context: int = 0) -> JointGaussian:
        """Returns one component, with the first ``context`` features as the context; differentiable."""
        index = torch.tensor(k, device=self.means.device)
        return JointGaussian(self.means[k], self.covariance().index_components(index), context)


class OnlineMixture(nn.Module):
    """A mixture of full covariances estimated by online EM: exponential moving averages of the sufficient statistics.

        r_nk = p(k | z_n);   N_k <- m N_k + (1 - m) mean_n r_nk,   pi_k = N_k / sum_j N_j

    and mu_k, S_k are mean and covariance under these weights, stored around the means to avoid cancellation; s^2 I is added to
    S_k. It is initialized with S = (1 + s^2) I and, as means, items of the first batch. No weight falls below 1e-3 / K.

    O. Cappe, E. Moulines, "On-line expectation-maximization algorithm for latent data models", JRSS B, 2009.

    There are K ``components``; ``floor`` is s > 0, and ``momentum`` m in [0, 1).
    """

    N: Tensor
    mu: Tensor
    S: Tensor
    begun: Tensor

    def __init__(self, dim: int, components: int, *, floor: float, momentum: float) -> None:
        super().__init__()
        _check(components, floor)
        require_within("[0, 1)", momentum=momentum)
        self.floor, self.momentum = floor, momentum
        self.register_buffer("N", torch.full((components,), 1 / components))
        self.register_buffer("mu", 0.01 * torch.randn(components, dim))  # different, also where the first batch is a single item
        self.register_buffer("S", torch.eye(dim).repeat(components, 1, 1))
        self.register_buffer("begun", torch.zeros((), dtype=torch.bool))  # whether the means have been initialized

    @torch.no_grad()
    def update(self, z: Tensor) -> None:
        """Updates the statistics with a batch (B, D): one step of online EM."""
        z = z.to(self.mu)
        first = z[torch.linspace(0, len(z) - 1, len(self.N), device=z.device).long()]
        self.mu.add_(torch.where(self.begun, 0.0, first))
        self.begun.fill_(True)
        r, d = self.density().responsibilities(z).mT, z - self.mu[:, None]
        new, weighted = r.mean(1), ((1 - self.momentum) / len(z)) * r[..., None] * d
        N = self.momentum * self.N + (1 - self.momentum) * new
        shift = weighted.sum(1) / N[:, None]
        S = (self.momentum * (self.N / N))[:, None, None] * self.S + (weighted.mT @ d) / N[:, None, None]
        moved = new > 1e-9  # a component without responsibilities keeps its mean and covariance
        self.S.copy_(torch.where(moved[:, None, None], S - shift[:, :, None] * shift[:, None], self.S))
        self.mu.add_(torch.where(moved[:, None], shift, 0.0))
        self.N.copy_(N.clamp(min=1e-3 / len(N)))

    def density(self, context: int = 0) -> MixtureOfGaussians:
        """Returns the mixture, with the first ``context`` features as the context; without gradient."""
        jitter = ROUNDING[self.S.dtype] * self.S.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        added = (self.floor**2 + jitter).expand_as(self.mu)
        L = torch.linalg.cholesky_ex((self.S + torch.diag_embed(added)).double())[0].to(self.mu)
        return MixtureOfGaussians(self.N.log(), self.mu, Dense(L), context)


class MixtureBank(nn.Module):
    """The last M items and the mixture last fitted to them, which before the first fit is the standard normal.

    A fit is due after the first batch, then whenever the number of items seen has doubled, and, once the bank is full, after
    every M items.

    ``rank`` is that of low-rank covariances, None for full ones. ``floor`` is s > 0: an M step adds s^2 to the variances of full
    covariances; no d of low-rank ones falls below s^2.
    """

    stored: Tensor
    logits: Tensor
    means: Tensor
    shared: Tensor

    def __init__(self, dim: int, size: int, components: int, *, rank: int | None, floor: float) -> None:
        super().__init__()
        _check(components, floor)
        expect(size >= 2 * components, f"a bank of at least {2 * components} items, two per component", size)
        self.rank, self.floor = rank, floor
        self.seen = self.fitted = 0  # items seen so far, and at the last fit
        self.register_buffer("stored", torch.zeros(size, dim))
        self.register_buffer("logits", torch.zeros(components))
        self.register_buffer("means", torch.zeros(components, dim))
        flat = torch.cat([torch.ones(dim, 1), torch.zeros(dim, rank or 1)], 1)
        self.register_buffer("shared", (torch.eye(dim) if rank is None else flat).repeat(components, 1, 1))

    @property
    def structure(self) -> em.Structure:
        """Structure of the covariances, for EM."""
        return em.structure("full") if self.rank is None else em.structure("low_rank", self.rank)

    @torch.no_grad()
    def push(self, z: Tensor) -> bool:
        """Replaces the oldest items by new ones (B, D); returns whether a fit is due."""
        size = len(self.stored)
        where = torch.arange(self.seen, self.seen + len(z), device=self.stored.device)[-size:] % size
        self.stored[where] = (z if self.rank is None else rotated(z))[-size:].to(self.stored)
        self.seen += len(z)
        due = self.seen - self.fitted >= min(self.fitted, size)
        self.fitted = self.seen if due else self.fitted
        return due

    def items(self) -> Tensor:
        """Returns the stored items, (min(items seen, M), D), rotated where covariances are low-rank."""
        return self.stored[: self.seen]

    def data(self) -> em.Data:
        """Returns the items as data for EM."""
        x = self.items()
        return em.Data(x, None, x.double().mean(0), x.device)

    def start(self, r: Tensor) -> em.Mixture:
        """Returns the mixture that an M step makes of responsibilities r (1, K, n) of the items."""
        data = self.data()
        return _moved(em.initialize(data, self.structure, r, self.floor**2), data.origin)

    @torch.no_grad()
    def fit(self, *starts: em.Mixture, steps: int) -> None:
        """Runs some EM steps on the items from each initialization and keeps the mixture of the highest likelihood."""
        data = self.data()
        found = "NaN or infinity: lower `lr`, add `warmup_epochs=5` or `clip=1`, or check the data"
        expect(bool(data.X.isfinite().all()), "finite embeddings", found)
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
        """Stores a mixture of at most K components; the remaining ones get weight 0."""
        weights, means, S = mixture.weights[0], mixture.means[0], mixture.covariances[0]
        K = len(weights)
        self.logits.fill_(-math.inf)[:K] = weights.log().to(self.logits)
        self.means[:K] = means.to(self.means)
        self.shared[:K] = (linalg.cholesky(S)[0] if self.rank is None else S).to(self.shared)

    def mixture(self) -> em.Mixture:
        """Returns the components of the stored mixture that have weight, for EM."""
        used = self.logits > -math.inf
        shared = self.shared[used].double()
        S = shared @ shared.mT if self.rank is None else shared
        return em.Mixture(self.logits[used].double().softmax(0)[None], self.means[used].double()[None], S[None])

    def density(self, context: int = 0) -> MixtureOfGaussians:
        """Returns the stored mixture, with the first ``context`` features as the context; without gradient."""
        if self.rank is None:
            return MixtureOfGaussians(self.logits, self.means, Dense(self.shared), context)
        covariance = LowRank.of_sums(self.shared[..., 0], self.shared[..., 1:])
        return MixtureOfGaussians(self.logits, rotated(self.means), covariance, context)

    def get_extra_state(self) -> Tensor:
        """Returns the counts for the state_dict; they are kept off the device, because reading one there would wait for it."""
        return torch.tensor([self.seen, self.fitted])

    def set_extra_state(self, state: Tensor) -> None:
        """Restores the counts from a state_dict."""
        self.seen, self.fitted = state.tolist()


def _moved(mixture: em.Mixture, by: Tensor) -> em.Mixture:
    return em.Mixture(mixture.weights, mixture.means + by, mixture.covariances)
