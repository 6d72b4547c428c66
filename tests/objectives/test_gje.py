"""Gaussian joint embeddings: the losses against loops, the trap, what stops it, equilibria, and the density that is kept."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from vergence.densities import moments
from vergence.objectives.gje import GJE

B, D = 80, 3


def pair(n=B, seed=0):
    g = torch.Generator().manual_seed(seed)
    za = torch.randn(n, D, generator=g) @ torch.randn(D, D, generator=g) + 1
    return za, 0.8 * za + 0.5 * torch.randn(n, D, generator=g)


def close(a, b, tol=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


def exact(**settings):
    """Returns an objective without shrinkage."""
    return GJE(D, shrinkage=0.0, **settings)


def slow(za, zb):
    """Returns joint, marginal and conditional negative log-likelihoods and the KLs of the batch's Gaussian, item by item."""
    Z = torch.cat([za, zb], 1)
    mean = sum(Z) / len(Z)
    S = sum(torch.outer(z - mean, z - mean) for z in Z) / len(Z)
    S = S + moments.JITTER[torch.float64] * S.diagonal().mean() * torch.eye(2 * D)
    joint = MultivariateNormal(mean, S)
    views = [MultivariateNormal(mean[w], S[w, w]) for w in (slice(0, D), slice(D, None))]
    nll = -sum(joint.log_prob(z) for z in Z) / len(Z)
    a, b = (-sum(p.log_prob(z) for z in view) / len(Z) for p, view in zip(views, (za, zb), strict=True))
    standard = MultivariateNormal(torch.zeros(D), torch.eye(D))
    kl = sum(kl_divergence(p, standard) for p in views)
    entropy = sum(p.entropy() for p in views)
    return nll, a, b, kl, entropy


def test_the_losses_are_their_definitions():
    za, zb = pair()
    nll, a, b, kl, entropy = slow(za, zb)
    found = exact(loss="naive")(za, zb)
    close(found["nll"], nll)
    found = exact(loss="joint_kl", beta=3.0)(za, zb)
    close(found["nll"], nll)
    close(found["kl"], 3 * kl)
    found = exact(loss="conditional_kl", beta=0.7)(za, zb)
    close(found["nll"], 0.5 * ((nll - a) + (nll - b)))
    close(found["kl"], 0.7 * kl)
    found = exact(loss="mi_kl", eta=0.2)(za, zb)
    close(found["mi"], nll - entropy)
    close(found["kl"], 0.2 * kl)


def test_the_default_is_minus_the_mutual_information():
    za, zb = pair()
    found = exact()(za, zb)["mi"]
    S = torch.cov(torch.cat([za, zb], 1).T, correction=0)
    roots = torch.linalg.eigvals(torch.linalg.solve(S[:D, :D], S[:D, D:]) @ torch.linalg.solve(S[D:, D:], S[D:, :D])).real
    close(found, 0.5 * torch.log1p(-roots).sum(), 1e-3)  # squared canonical correlations; the jitter leaves 1e-6 of the variance


def test_scale():
    """A likelihood falls by 2 D log a, information does not move, and the KL is least where the mean variance is one."""
    za, zb = pair()
    naive, mi = exact(loss="naive"), exact()
    close(naive(0.1 * za, 0.1 * zb)["nll"] - naive(za, zb)["nll"], 2 * D * math.log(0.1))
    close(mi(0.1 * za, 0.1 * zb)["mi"], mi(za, zb)["mi"])
    turn = torch.linalg.qr(torch.randn(D, D))[0]
    close(mi(za @ turn, zb)["mi"], mi(za, zb)["mi"], 1e-5)


@pytest.mark.parametrize(
    "likelihood", [{}, {"likelihood": "learned"}, {"likelihood": "learned", "covariance": "low_rank"}], ids=str
)
@pytest.mark.parametrize("loss", ["joint_kl", "conditional_kl", "mi_kl", "naive"])
def test_gradients(loss, likelihood):
    za, zb = (z[:12].clone().requires_grad_() for z in pair())
    objective = exact(loss=loss, **likelihood)
    assert torch.autograd.gradcheck(lambda a, b: sum(objective(a, b).values()), (za, zb))


def test_the_trap_and_what_is_no_remedy():
    """The gradient under a constant covariance is that of the determinant; nll has none but it."""
    za, zb = (z.requires_grad_() for z in pair())
    through = torch.autograd.grad(exact(loss="naive")(za, zb)["nll"], (za, zb))
    constant = torch.autograd.grad(exact(loss="naive", stop_gradient=True)(za, zb)["nll"], (za, zb))
    for a, b in zip(through, constant, strict=True):
        close(a, b, 1e-6)


def trained(steps=600, **settings):
    """Returns the std of the narrowest direction and the mean variance after a short run on two noisy views."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    mix = torch.randn(4, 12, generator=g)
    net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, D))
    objective = GJE(D, shrinkage=0.0, **settings)
    optimizer = torch.optim.Adam([*net.parameters(), *objective.parameters()], lr=5e-3)
    for _ in range(steps):
        x = torch.randn(256, 4, generator=g) @ mix
        za, zb = (net(x + 0.5 * torch.randn(x.shape, generator=g)) for _ in range(2))
        loss = sum(objective(za, zb).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        objective.update(za.detach(), zb.detach())
    with torch.no_grad():
        x = torch.randn(4000, 4, generator=g) @ mix
        za, zb = (net(x + 0.5 * torch.randn(x.shape, generator=g)) for _ in range(2))
        narrowest = torch.linalg.eigvalsh(torch.cov(za.T))[0].clamp(min=0).sqrt()
        return float(narrowest), float((za.var(0).sum() + zb.var(0).sum()) / (2 * D)), objective, (za, zb)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "naive"},
        {"loss": "naive", "stop_gradient": True},
        {"loss": "naive", "likelihood": "ema"},
        {"loss": "joint_kl", "beta": 0.5},
    ],
    ids=["naive", "stop-gradient", "moving average", "beta below one"],
)
def test_collapse(settings):
    """T20: likelihood alone shrinks embeddings, whatever is done to its covariance; the narrowest direction first."""
    begun = trained(0, **settings)[0]
    assert trained(**settings)[0] < begun / 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "variance"),
    [
        ({"eta": 0.1}, 1.0),
        ({"eta": 1.0}, 1.0),
        ({"loss": "joint_kl", "beta": 2.0}, 0.5),
        ({"loss": "joint_kl", "beta": 5.0}, 0.8),
        ({"loss": "conditional_kl", "beta": 1.0}, 0.5),
        ({"loss": "conditional_kl", "beta": 2.0}, 0.75),
    ],
)
def test_equilibria(settings, variance):
    """T20: terms that pay for volume hold embeddings at the predicted mean variance."""
    assert trained(**settings)[1] == pytest.approx(variance, rel=0.1)


@pytest.mark.slow
def test_the_kept_density_is_that_of_the_embeddings():
    _, _, objective, (za, zb) = trained(300)
    S = torch.cov(torch.cat([za, zb], 1).T)
    torch.testing.assert_close(objective.moving.covariance, S, rtol=0.2, atol=0.1)
    S = objective.moving.covariance
    expected = MultivariateNormal(objective.moving.mean[D:], S[D:, D:])
    given = objective.conditional(za[:5])
    A = torch.linalg.solve(S[:D, :D], S[:D, D:]).T
    close(given.mean, expected.mean + (za[:5] - objective.moving.mean[:D]) @ A.T, 1e-8)
    close(given.covariance[0], S[D:, D:] - A @ S[:D, D:], 1e-8)
    close(objective.score(za[:5]), -MultivariateNormal(objective.moving.mean[:D], S[:D, :D]).log_prob(za[:5]), 1e-8)
    assert (objective.log_prob(zb, za).mean() > objective.log_prob(zb.flip(0), za).mean() + 1).item()
    a, b = objective.sample(5)
    assert a.shape == b.shape == (5, D)


def test_moving_averages_are_exact_at_first():
    """With momentum near one the first steps weigh alike: mean and covariance are those of all items so far."""
    objective = exact(momentum=0.999)
    parts = [pair(seed=s) for s in range(4)]
    for za, zb in parts:
        objective.update(za, zb)
    Z = torch.cat([torch.cat(part, 1) for part in parts])
    close(objective.moving.mean, Z.mean(0))
    close(objective.moving.covariance, torch.cov(Z.T, correction=0), 1e-5)


def test_diagnostics_show_the_trap():
    za, zb = pair(2000)
    objective = exact(momentum=0.0)
    objective.update(za, zb)
    numbers = objective.diagnostics(za, zb)
    assert numbers["mahalanobis"] == pytest.approx(1, abs=1e-4)  # per feature: the batch under its own covariance
    assert numbers["condition"] >= 1 and numbers["eigenvalue_min"] > 0 and numbers["information"] > 0


@pytest.mark.slow
def test_the_low_rank_form_is_a_density_of_few_numbers():
    """It fits views that agree in every feature, which a diagonal plus low rank of [z_a; z_b] could not."""
    wide, g = 40, torch.Generator().manual_seed(0)
    objective = GJE(wide, loss="joint_kl", likelihood="learned", covariance="low_rank", rank=2)
    assert sum(p.numel() for p in objective.parameters() if p.requires_grad) == 2 * wide * (1 + 1 + 2)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    for _ in range(200):
        za = torch.randn(256, wide, generator=g)
        loss = sum(objective(za, za + 0.5 * torch.randn(256, wide, generator=g)).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    za = torch.randn(2000, wide, generator=g)
    zb = za + 0.5 * torch.randn(2000, wide, generator=g)
    truth = MultivariateNormal(za, 0.25 * torch.eye(wide)).log_prob(zb).mean()
    with torch.no_grad():
        assert float(truth - objective.log_prob(zb, za).mean()) < 0.05 * wide
        assert float(objective.conditional(za).mean.sub(za).square().mean()) < 0.05
