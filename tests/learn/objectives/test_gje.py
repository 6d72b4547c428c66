"""Gaussian joint embeddings: the losses against loops, the trap, what stops it, equilibria, and the density that is kept."""

import math

import pytest
import torch
from scipy.linalg import subspace_angles
from tests.learn.objectives.common import close, descended, trained
from torch.distributions import MultivariateNormal, kl_divergence

from vergence.densities import moments
from vergence.learn.objectives.gje import GJE

B, D = 80, 3


def pair(n=B, seed=0):
    g = torch.Generator().manual_seed(seed)
    za = torch.randn(n, D, generator=g) @ torch.randn(D, D, generator=g) + 1
    return za, 0.8 * za + 0.5 * torch.randn(n, D, generator=g)


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
    result = exact(loss="naive")(za, zb)
    close(result["nll"], nll)
    result = exact(loss="joint_kl", beta=3.0)(za, zb)
    close(result["nll"], nll)
    close(result["kl"], 3 * kl)
    result = exact(loss="conditional_kl", beta=0.7)(za, zb)
    close(result["nll"], 0.5 * ((nll - a) + (nll - b)))
    close(result["kl"], 0.7 * kl)
    result = exact(loss="mi_kl", eta=0.2)(za, zb)
    close(result["mi"], nll - entropy)
    close(result["kl"], 0.2 * kl)


def test_the_default_is_minus_the_mutual_information():
    """T5: 1/2 sum log(1 - rho^2) of the canonical correlations, here by scipy."""
    za, zb = pair()
    rho = torch.cos(torch.as_tensor(subspace_angles(*((z - z.mean(0)).numpy() for z in (za, zb)))))
    close(exact()(za, zb)["mi"], 0.5 * torch.log1p(-rho.square()).sum(), 1e-3)  # the jitter leaves 1e-6 of the variance


@pytest.mark.parametrize(
    "likelihood", [{}, {"likelihood": "learned"}, {"likelihood": "learned", "covariance": "low_rank"}], ids=str
)
@pytest.mark.parametrize("loss", ["joint_kl", "conditional_kl", "mi_kl", "naive"])
def test_gradients(loss, likelihood):
    za, zb = (z[:9].clone().requires_grad_() for z in pair())
    objective = exact(loss=loss, **likelihood)
    assert torch.autograd.gradcheck(lambda a, b: sum(objective(a, b).values()), (za, zb))


def test_scale():
    """A likelihood falls by 2 D log a, information does not move, and the KL is least where the mean variance is one."""
    za, zb = pair()
    naive, mi = exact(loss="naive"), exact()
    close(naive(0.1 * za, 0.1 * zb)["nll"] - naive(za, zb)["nll"], 2 * D * math.log(0.1))
    close(mi(0.1 * za, 0.1 * zb)["mi"], mi(za, zb)["mi"])
    turn = torch.linalg.qr(torch.randn(D, D))[0]
    close(mi(za @ turn, zb)["mi"], mi(za, zb)["mi"], 1e-5)


def test_the_trap_and_what_is_no_remedy():
    """The gradient under a constant covariance is that of the determinant; nll has none but it."""
    za, zb = (z.requires_grad_() for z in pair())
    through = torch.autograd.grad(exact(loss="naive")(za, zb)["nll"], (za, zb))
    constant = torch.autograd.grad(exact(loss="naive", stop_gradient=True)(za, zb)["nll"], (za, zb))
    for a, b in zip(through, constant, strict=True):
        close(a, b, 1e-6)


def test_diagnostics_show_the_trap():
    za, zb = pair(2000)
    objective = exact(momentum=0.0)
    objective.update(za, zb)
    numbers = objective.diagnostics(za, zb)
    assert numbers["mahalanobis"] == pytest.approx(1, abs=1e-4)  # per feature: the batch under its own covariance
    assert numbers["condition"] >= 1 and numbers["eigenvalue_min"] > 0 and numbers["information"] > 0


@pytest.mark.slow
def test_the_density_is_that_of_the_embeddings():
    objective = exact()
    za, zb = trained(objective, 300, batch=256, new=4000)
    mean, S = objective.moving.mean, objective.moving.covariance
    torch.testing.assert_close(S, torch.cov(torch.cat([za, zb], 1).T), rtol=0.2, atol=0.1)
    given = objective.conditional(za[:5])
    A = torch.linalg.solve(S[:D, :D], S[:D, D:]).T
    close(given.mean, mean[D:] + (za[:5] - mean[:D]) @ A.T, 1e-8)
    close(given.covariance[0], S[D:, D:] - A @ S[:D, D:], 1e-8)
    close(objective.score(za[:5]), -MultivariateNormal(mean[:D], S[:D, :D]).log_prob(za[:5]), 1e-8)
    assert objective.log_prob(zb, za).mean() > objective.log_prob(zb.flip(0), za).mean() + 1


@pytest.mark.slow
def test_the_low_rank_form_is_a_density_of_few_numbers():
    """It fits views that agree in every feature, which a diagonal plus low rank of [z_a; z_b] could not."""
    wide, g = 40, torch.Generator().manual_seed(0)
    objective = GJE(wide, loss="joint_kl", likelihood="learned", covariance="low_rank", rank=2)
    assert sum(p.numel() for p in objective.parameters() if p.requires_grad) == 2 * wide * (1 + 1 + 2)

    def views(n):
        za = torch.randn(n, wide, generator=g)
        return za, za + 0.5 * torch.randn(n, wide, generator=g)

    descended(objective, lambda: sum(objective(*views(256)).values()), 200, 0.05)
    za, zb = views(2000)
    truth = MultivariateNormal(za, 0.25 * torch.eye(wide)).log_prob(zb).mean()
    with torch.no_grad():
        assert float(truth - objective.log_prob(zb, za).mean()) < 0.05 * wide
        assert float(objective.conditional(za).mean.sub(za).square().mean()) < 0.05
