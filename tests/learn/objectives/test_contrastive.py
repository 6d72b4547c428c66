"""Contrastive learning: responsibilities against loops, InfoNCE as a degenerate mixture and as a limit, no collapse."""

import math

import pytest
import torch
from tests.learn.objectives.common import close, descended, trained
from tests.reference import contrastive as reference
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.learn.objectives.contrastive import FLOOR, Contrastive

B, D, TAU = 10, 4, 0.2
EVERY = [
    {"covariance": covariance, "weights": weights, "components": components, "normalize": normalize}
    for covariance in ("isotropic", "diagonal")
    for weights in ("equal", "norm")
    for components in ("views", "pairs")
    for normalize in (True, False)
]


def pair(n=B, dim=D, seed=0):
    g = torch.Generator().manual_seed(seed)
    za = torch.randn(n, dim, generator=g)
    return za, za + 0.5 * torch.randn(n, dim, generator=g)


def loss(objective, za, zb):
    return objective(za, zb)["infonce"]


def by_responsibilities(objective, za, zb, log_responsibilities):
    """Returns the loss with one full covariance a component, whatever the objective's options."""
    a, b = (F.normalize(z, dim=1) if objective.normalize else z for z in (za, zb))
    v = torch.as_tensor(objective.variance()).expand(a.shape[1])

    def direction(q, k, positives, allowed):
        log_pi = 0.5 * (k.square() / v).sum(1) if objective.weights == "norm" else torch.zeros(len(k))
        log_pi = (log_pi + torch.zeros(len(q), 1)).masked_fill(~allowed, -math.inf)
        gamma = log_responsibilities(q, k, log_pi, torch.diag(v).expand(len(k), -1, -1))
        return -gamma.gather(1, positives[:, None]).mean()

    n = torch.arange(len(a))
    if objective.components == "pairs":
        allowed = torch.ones(len(a), len(a), dtype=torch.bool)
        return 0.5 * (direction(a, b, n, allowed) + direction(b, a, n, allowed))
    z = torch.cat([a, b])
    return direction(z, z, torch.cat([n + len(a), n]), ~torch.eye(2 * len(a), dtype=torch.bool))


def in_loops(q, k, log_pi, S):
    weights, S = log_pi.detach().exp().tolist(), S.detach()
    rows = [reference.log_responsibilities(q[n : n + 1], k, weights[n], S)[0] for n in range(len(q))]
    return torch.tensor(rows)


def of_the_mixture(q, k, log_pi, S):
    return MixtureOfGaussians(log_pi, k, S).log_joint(q).log_softmax(-1)


@pytest.mark.parametrize("settings", EVERY, ids=lambda s: "-".join(map(str, s.values())))
def test_the_loss_is_a_log_responsibility(settings):
    """Its value that of the loops, its gradient that of the general mixture, for every option."""
    objective, (za, zb) = Contrastive(D, temperature=TAU, **settings), (z.requires_grad_() for z in pair(5))
    if settings["covariance"] == "diagonal":
        objective.rho.data.copy_(torch.linspace(-2, 1, D))
    value, general = loss(objective, za, zb), by_responsibilities(objective, za, zb, of_the_mixture)
    close(value, by_responsibilities(objective, za.detach(), zb.detach(), in_loops))
    for a, b in zip(torch.autograd.grad(value, (za, zb)), torch.autograd.grad(general, (za, zb)), strict=True):
        close(a, b, 1e-11)


@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_infonce_is_that_of_the_loops(tau):
    za, zb = pair()
    close(loss(Contrastive(D, temperature=tau), za, zb), reference.simclr(za, zb, tau))
    close(loss(Contrastive(D, temperature=tau, components="pairs"), za, zb), reference.clip(za, zb, tau))
    queries, keys = F.normalize(za), F.normalize(torch.cat([zb, za]))
    unmasked = sum(reference.info_nce(q, keys, n, tau) for n, q in enumerate(queries)) / B
    assert abs(unmasked - reference.simclr(za, zb, tau)) > 0.1  # what a forgotten mask would give


@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_infonce_is_lightlys(dtype, tol):
    lightly = pytest.importorskip("lightly.loss")
    za, zb = (z.to(dtype) for z in pair(64, 16))
    for tau in (0.1, 0.5):
        close(loss(Contrastive(16, temperature=tau), za, zb), lightly.NTXentLoss(tau)(za, zb), tol)


@pytest.mark.parametrize("components", ["views", "pairs"])
def test_bounds(components):
    """About log M at random; the least on the sphere where the positive agrees and all others oppose; 0 of one pair."""
    M = 2 * 256 - 1 if components == "views" else 256
    za, zb = torch.randn(2, 256, 128)
    objective = Contrastive(128, components=components, temperature=0.5)
    assert loss(objective, za, za) > math.log1p((M - 1) * math.exp(-2 / 0.5))
    assert abs(loss(objective, za, zb) - math.log(M)) < 0.05 * math.log(M)
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    M = 3 if components == "views" else 2
    close(loss(Contrastive(2, components=components), z, z), math.log1p((M - 1) * math.exp(-2 / TAU)))
    close(loss(Contrastive(D, components=components), *pair(1)), 0.0)
    same = torch.ones(B, D)
    close(loss(Contrastive(D, components=components), same, same), math.log(2 * B - 1 if components == "views" else B))


def test_loss_is_the_limit_of_a_conditional_density():
    """T9: targets around the keys, ever narrower; less the constant of their own density."""
    za, zb = pair(8, 16)
    a, b = F.normalize(za, dim=1), F.normalize(zb, dim=1)

    def limit(q, k, sigma):
        both = torch.cat([torch.full_like(k, TAU), torch.full_like(k, sigma**2)], 1)
        p = MixtureOfGaussians(torch.zeros(len(k)), torch.cat([k, k], 1), Diagonal(both), context=16)
        return (-p.conditional(q).log_prob(k) - 8 * math.log(2 * math.pi * sigma**2)).mean()

    gap = min(torch.pdist(a).min(), torch.pdist(b).min())
    expected = loss(Contrastive(16, components="pairs", temperature=TAU), za, zb)
    errors = [(0.5 * (limit(a, b, s * gap) + limit(b, a, s * gap)) - expected).abs() for s in (1.0, 0.4, 0.1)]
    assert errors[0] > errors[1] > errors[2] and errors[0] > 1e-2 and errors[2] < 1e-6


def test_both_views_learn_and_a_teacher_may_be_the_target():
    za, zb = (z.requires_grad_() for z in pair())
    for components in ("views", "pairs"):
        objective = Contrastive(D, components=components)
        both = torch.autograd.grad(loss(objective, za, zb), (za, zb))
        assert all(g.norm(dim=1).min() > 1e-6 for g in both)
        close(torch.autograd.grad(loss(objective, za, zb.detach()), za)[0], both[0])
        close(loss(objective, za, zb), loss(objective, zb, za))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"components": "pairs", "temperature": 0.5}, marks=pytest.mark.slow),
        pytest.param({"covariance": "diagonal"}, marks=pytest.mark.slow),
    ],
    ids=["views", "pairs", "diagonal"],
)
def test_no_collapse(settings):
    """The classification pays for volume: no direction is given up (1: all have 1/D), and more pairs are told apart."""
    narrowest, accuracy = [], []
    for steps in (0, 300):
        objective = Contrastive(D, **settings)
        za, zb = trained(objective, steps, dim=D)
        narrowest.append(float(torch.linalg.eigvalsh(torch.cov(F.normalize(za, dim=1).T))[0] * D))
        accuracy.append(objective.diagnostics(za[:128], zb[:128])["accuracy"])
    assert narrowest[1] > max(0.5, narrowest[0]) and accuracy[1] > 1.5 * accuracy[0]


def test_learned_variances_tell_pairs_apart():
    """Of features that agree in a pair and others that do not, the first get the smaller variance."""
    g, objective = torch.Generator().manual_seed(0), Contrastive(D, covariance="diagonal", components="pairs", normalize=False)
    noise = torch.tensor([0.3, 0.3, 3.0, 3.0])

    def of_a_batch():
        za = torch.randn(64, D, generator=g)
        return loss(objective, za, za + noise * torch.randn(64, D, generator=g))

    v = descended(objective, of_a_batch, 300, 0.05).variance().detach()
    assert v.min() > FLOOR and v[2:].min() > 10 * v[:2].max()


def test_the_fitted_density_is_that_of_the_embeddings():
    objective, parts = Contrastive(D, momentum=0.999), [pair(20000, seed=s) for s in range(5)]
    for za, zb in parts:
        objective.update(za, zb)
    Z = torch.cat([torch.cat(part, 1) for part in parts])
    fitted = MultivariateNormal(Z.mean(0), torch.cov(Z.T, correction=0))
    za, zb = pair(50, seed=9)
    close(objective.joint().log_prob(torch.cat([za, zb], 1)), fitted.log_prob(torch.cat([za, zb], 1)), 0.03)
