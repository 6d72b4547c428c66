"""Contrastive learning: responsibilities against loops, InfoNCE as a degenerate mixture and as a limit, no collapse."""

import math

import pytest
import torch
from tests.reference import contrastive as reference
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

from vergence.densities.covariance import Dense, Diagonal, LowRank
from vergence.densities.gaussian import GaussianMixture
from vergence.objectives.contrastive import FLOOR, Contrastive, log_responsibilities, logits

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


def close(a, b, tol=1e-12):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


def uneven(objective):
    """Returns the objective with another variance for each feature."""
    with torch.no_grad():
        objective.rho.copy_(torch.linspace(-2, 1, len(objective.rho)))
    return objective


# --- responsibilities -----------------------------------------------------------------------------------------------------


def test_responsibilities_are_their_definition():
    """Another full covariance and another weight for every component."""
    q, k = torch.randn(5, 3), torch.randn(7, 3)
    factors = torch.randn(7, 3, 3)
    S, pi = factors @ factors.mT + 0.5 * torch.eye(3), torch.rand(7) + 0.1
    expected = torch.tensor(reference.log_responsibilities(q, k, (pi / pi.sum()).tolist(), S))
    close(log_responsibilities(q, k, pi.log(), S), expected, 1e-10)
    close(log_responsibilities(q, k, pi.log(), Dense.of(S)), expected, 1e-10)
    wrong = reference.log_responsibilities(q, k, [1 / 7] * 7, S), reference.log_responsibilities(q, k, pi.tolist(), [S[0]] * 7)
    assert all((torch.tensor(other) - expected).abs().max() > 0.1 for other in wrong)


def test_responsibilities_take_every_structure_and_leave_out_components():
    q, k, d, U = torch.randn(5, 3), torch.randn(7, 3), torch.rand(7, 3) + 0.2, torch.randn(7, 3, 1)
    for S in (Diagonal(d), LowRank(d, U), Diagonal(d[0]), Dense.of(torch.eye(3))):
        dense = S.dense().expand(7, 3, 3)
        close(log_responsibilities(q, k, torch.zeros(7), S), log_responsibilities(q, k, torch.zeros(7), dense), 1e-10)
    chosen = torch.zeros(5, 7).masked_fill(torch.rand(5, 7) < 0.4, -math.inf)
    chosen[:, 0] = 0
    found = log_responsibilities(q, k, chosen, Diagonal(d))
    for n in range(5):
        expected = reference.log_responsibilities(q[n : n + 1], k, chosen[n].exp().tolist(), torch.diag_embed(d))
        close(found[n], torch.tensor(expected[0]), 1e-10)
    close(found.exp().sum(1), torch.ones(5))


def general(objective, za, zb):
    """Returns the loss by the general function, one full covariance a component, whatever the objective's options."""
    a, b = (F.normalize(z, dim=1) if objective.normalize else z for z in (za, zb))
    v = torch.as_tensor(objective.variance()).expand(a.shape[1])

    def direction(q, k, own, allowed):
        log_pi = 0.5 * (k.square() / v).sum(1) if objective.weights == "norm" else torch.zeros(len(k))
        log_pi = (log_pi + torch.zeros(len(q), 1)).masked_fill(~allowed, -math.inf)
        return -log_responsibilities(q, k, log_pi, torch.diag(v).expand(len(k), -1, -1)).gather(1, own[:, None]).mean()

    if objective.components == "pairs":
        own, allowed = torch.arange(len(a)), torch.ones(len(a), len(a), dtype=torch.bool)
        return 0.5 * (direction(a, b, own, allowed) + direction(b, a, own, allowed))
    z, own = torch.cat([a, b]), torch.cat([torch.arange(len(a)) + len(a), torch.arange(len(a))])
    return direction(z, z, own, ~torch.eye(2 * len(a), dtype=torch.bool))


@pytest.mark.parametrize("settings", EVERY, ids=lambda s: "-".join(map(str, s.values())))
def test_the_fast_path_is_the_general_function(settings):
    objective, (za, zb) = Contrastive(D, temperature=TAU, **settings), (z.requires_grad_() for z in pair())
    if settings["covariance"] == "diagonal":
        uneven(objective)
    fast, slow = loss(objective, za, zb), general(objective, za, zb)
    close(fast, slow)
    for a, b in zip(torch.autograd.grad(fast, (za, zb)), torch.autograd.grad(slow, (za, zb)), strict=True):
        close(a, b, 1e-11)


# --- InfoNCE --------------------------------------------------------------------------------------------------------------


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


def responsibility(q, k, weights=None):
    """Returns the mean of -log p(own component | query) under the mixture of one N(k, tau I) a key."""
    p = GaussianMixture(torch.zeros(len(k)) if weights is None else weights, k, Diagonal(torch.full_like(k, TAU)))
    return -p.responsibilities(q).diagonal().log().mean()


def test_infonce_is_a_responsibility():
    """T8: the norm of the query does not matter, that of the keys does, unless weights make up for it."""
    q, k = torch.randn(B, D), F.normalize(torch.randn(B, D), dim=1)
    dots = F.cross_entropy(q @ k.T / TAU, torch.arange(B))
    close(F.cross_entropy(logits(q, k, TAU), torch.arange(B)), dots)
    close(responsibility(q, k), dots)
    uneven_keys = k * torch.linspace(0.5, 2, B)[:, None]
    dots = F.cross_entropy(q @ uneven_keys.T / TAU, torch.arange(B))
    assert (responsibility(q, uneven_keys) - dots).abs() > 0.01
    close(F.cross_entropy(logits(q, uneven_keys, TAU, "norm"), torch.arange(B)), dots)
    close(responsibility(q, uneven_keys, uneven_keys.square().sum(1) / (2 * TAU)), dots)


def test_weights_are_those_of_the_keys_norms():
    za, zb = pair()
    plain = {"components": "pairs", "normalize": False, "temperature": TAU}
    scores, own = za @ zb.T / TAU, torch.arange(B)
    dots = 0.5 * (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own))
    close(loss(Contrastive(D, weights="norm", **plain), za, zb), dots)
    close(loss(Contrastive(D, **plain), za, zb), 0.5 * (responsibility(za, zb) + responsibility(zb, za)))
    assert (loss(Contrastive(D, **plain), za, zb) - dots).abs() > 0.1
    for components in ("views", "pairs"):  # on the sphere there is nothing to make up for
        a, b = (Contrastive(D, weights=weights, components=components) for weights in ("equal", "norm"))
        close(loss(a, za, zb), loss(b, za, zb))


def test_loss_is_the_limit_of_a_conditional_density():
    """T9: targets around the keys, ever narrower; less the constant of their own density."""
    za, zb = pair(8, 16)
    a, b = F.normalize(za, dim=1), F.normalize(zb, dim=1)

    def limit(q, k, sigma):
        both = torch.cat([torch.full_like(k, TAU), torch.full_like(k, sigma**2)], 1)
        p = GaussianMixture(torch.zeros(len(k)), torch.cat([k, k], 1), Diagonal(both), context=16)
        return (-p.conditional(q).log_prob(k) - 8 * math.log(2 * math.pi * sigma**2)).mean()

    gap = min(torch.pdist(a).min(), torch.pdist(b).min())
    expected = loss(Contrastive(16, components="pairs", temperature=TAU), za, zb)
    errors = [(0.5 * (limit(a, b, s * gap) + limit(b, a, s * gap)) - expected).abs() for s in (1.0, 0.4, 0.1)]
    assert errors[0] > errors[1] > errors[2] and errors[0] > 1e-2 and errors[2] < 1e-6


@pytest.mark.parametrize("components", ["views", "pairs"])
def test_bounds(components):
    """About log M at random; the least on the sphere where the positive agrees and all others oppose; 0 of one pair."""
    for n in (32, 256):
        M = 2 * n - 1 if components == "views" else n
        za, zb = torch.randn(2, n, 128)
        for tau in (0.05, 0.5):
            objective = Contrastive(128, components=components, temperature=tau)
            assert loss(objective, za, za) > math.log1p((M - 1) * math.exp(-2 / tau))
        assert abs(loss(objective, za, zb) - math.log(M)) < 0.05 * math.log(M)
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    M = 3 if components == "views" else 2
    close(loss(Contrastive(2, components=components), z, z), math.log1p((M - 1) * math.exp(-2 / TAU)))
    close(loss(Contrastive(D, components="pairs"), *pair(1)), 0.0)
    close(loss(Contrastive(D), *pair(1)), 0.0)


# --- gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", EVERY[::3], ids=lambda s: "-".join(map(str, s.values())))
def test_gradients(settings):
    objective = Contrastive(D, temperature=0.5, **settings)
    inputs = [z.clone().requires_grad_() for z in pair(5)]
    assert torch.autograd.gradcheck(lambda a, b: loss(objective, a, b), inputs)


def test_gradient_in_closed_form():
    """A query is drawn to its key and pushed from the mean of all keys under gamma; a key likewise by its queries."""
    objective = Contrastive(D, components="pairs", weights="norm", normalize=False, temperature=TAU)
    za, zb = (z.requires_grad_() for z in pair())
    found = torch.autograd.grad(loss(objective, za, zb), za)[0]
    ab, ba = (za @ zb.T / TAU).softmax(1), (zb @ za.T / TAU).softmax(1)
    eye = torch.eye(B)
    close(found, 0.5 * ((ab - eye) @ zb + (ba - eye).T @ zb).detach() / (B * TAU))


def test_both_views_learn_and_a_teacher_may_be_the_target():
    za, zb = (z.requires_grad_() for z in pair())
    for components in ("views", "pairs"):
        objective = Contrastive(D, components=components)
        both = torch.autograd.grad(loss(objective, za, zb), (za, zb))
        assert all(g.norm(dim=1).min() > 1e-6 for g in both)
        close(torch.autograd.grad(loss(objective, za, zb.detach()), za)[0], both[0])
        close(loss(objective, za, zb), loss(objective, zb, za))


def test_learned_variances_find_the_features_that_tell_pairs_apart():
    """Of features that agree in a pair and others that do not, the first get the smaller variance."""
    g, objective = torch.Generator().manual_seed(0), Contrastive(D, covariance="diagonal", components="pairs", normalize=False)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    noise = torch.tensor([0.3, 0.3, 3.0, 3.0])
    for _ in range(300):
        za = torch.randn(64, D, generator=g)
        optimizer.zero_grad()
        loss(objective, za, za + noise * torch.randn(64, D, generator=g)).backward()
        optimizer.step()
    v = objective.variance().detach()
    assert v.min() > FLOOR and v[2:].min() > 10 * v[:2].max()


# --- training and density -------------------------------------------------------------------------------------------------


def trained(steps, **settings):
    """Returns how narrow the narrowest direction is on the sphere, the objective, and fresh embeddings, after a short run."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    mix = torch.randn(4, 12, generator=g)
    net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, D))
    objective = Contrastive(D, **settings)
    optimizer = torch.optim.Adam([*net.parameters(), *objective.parameters()], lr=5e-3)

    def views(n):
        x = torch.randn(n, 4, generator=g) @ mix
        return [net(x + 0.5 * torch.randn(x.shape, generator=g)) for _ in range(2)]

    for _ in range(steps):
        za, zb = views(128)
        optimizer.zero_grad()
        loss(objective, za, zb).backward()
        optimizer.step()
        objective.update(za.detach(), zb.detach())
    with torch.no_grad():
        za, zb = views(2000)
    return float(torch.linalg.eigvalsh(torch.cov(F.normalize(za, dim=1).T))[0] * D), objective, (za, zb)


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
    before, begun, (za, zb) = trained(0, **settings)
    after, objective, (ya, yb) = trained(300, **settings)
    assert after > 0.5 and after > before
    accuracy = [o.diagnostics(a[:128], b[:128])["accuracy"] for o, a, b in ((begun, za, zb), (objective, ya, yb))]
    assert accuracy[1] > 1.5 * accuracy[0]


def test_the_fitted_density_is_that_of_the_embeddings():
    objective, parts = Contrastive(D, momentum=0.999), [pair(20000, seed=s) for s in range(5)]
    for za, zb in parts:
        objective.update(za, zb)
    Z = torch.cat([torch.cat(part, 1) for part in parts])
    fitted = MultivariateNormal(Z.mean(0), torch.cov(Z.T, correction=0))
    za, zb = pair(50, seed=9)
    close(objective.joint().log_prob(torch.cat([za, zb], 1)), fitted.log_prob(torch.cat([za, zb], 1)), 0.03)
    close(objective.log_prob(zb, za) - objective.score(za), objective.joint().log_prob(torch.cat([za, zb], 1)), 1e-9)
    assert objective.log_prob(zb, za).mean() > objective.log_prob(zb.flip(0), za).mean() + 1


# --- the edges ------------------------------------------------------------------------------------------------------------


def test_duplicates_share_the_responsibility():
    za = torch.ones(B, D)
    close(loss(Contrastive(D), za, za), math.log(2 * B - 1))
    close(loss(Contrastive(D, components="pairs"), za, za), math.log(B))
