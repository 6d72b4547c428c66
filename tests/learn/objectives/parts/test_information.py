"""Information terms: against torch's Gaussians and closed forms, in both precisions, with few items."""

import math

import pytest
import torch
from tests.learn.objectives.common import close
from tests.reference import gmje as slow
from torch.distributions import MultivariateNormal, kl_divergence

from vergence.densities import moments
from vergence.densities.gaussian import MixtureOfGaussians, kl_standard_normal, log_det
from vergence.densities.moments import BatchMoments
from vergence.learn.objectives.parts import information

N, D = 50, 3


def kl(m):
    return kl_standard_normal(m.mean, m.S)


def test_kl_and_entropy_are_torchs():
    m = moments.batch_moments(slow.pair(N, D)[0])
    p, standard = MultivariateNormal(m.mean, m.S), MultivariateNormal(torch.zeros(D), torch.eye(D))
    close(information.kl_views(m, m), 2 * kl_divergence(p, standard), 1e-9)
    close(information.entropy(m), p.entropy(), 1e-9)
    close(log_det(m.S), torch.logdet(m.S), 1e-9)


def test_entropy_grows_with_the_scale_and_the_kl_is_least_at_one():
    m, a = moments.batch_moments(slow.pair(N, D)[0]), 0.2
    close(information.entropy(BatchMoments(a * m.mean, a * a * m.S)) - information.entropy(m), D * math.log(a))
    kls = [kl(BatchMoments(torch.zeros(D), s * torch.eye(D))).item() for s in (0.5, 0.9, 1.0, 1.1, 2.0)]
    assert kls[2] == 0 and kls == sorted(kls[:2], reverse=True) + kls[2:] and kls[2:] == sorted(kls[2:])


def test_information_is_a_kl_and_that_of_canonical_correlations():
    za, zb = slow.pair(N, D)
    m = moments.batch_moments(torch.cat([za, zb], 1))
    p = MultivariateNormal(m.mean, m.S)
    apart = MultivariateNormal(m.mean, torch.block_diag(m.S[:D, :D], m.S[D:, D:]))
    close(information.mutual_information(m, D), kl_divergence(p, apart))
    A, B = torch.linalg.cholesky(m.S[:D, :D]), torch.linalg.cholesky(m.S[D:, D:])
    rho = torch.linalg.svdvals(torch.linalg.solve(A, m.S[:D, D:]) @ torch.linalg.inv(B).T)
    close(information.mutual_information(m, D), -0.5 * torch.log1p(-rho.square()).sum())


def test_pointwise_information_of_a_gaussian_is_its_mutual_information_on_average():
    za, zb = slow.pair(N, D)
    m = moments.batch_moments(torch.cat([za, zb], 1))
    p = MixtureOfGaussians(torch.zeros(1), m.mean[None], m.S[None], context=D)
    close(information.pointwise_information(p, za, zb), information.mutual_information(m, D), 1e-8)


@pytest.mark.parametrize("term", [information.entropy, kl, lambda m: information.mutual_information(m, 1)])
@pytest.mark.parametrize("shrinkage", [0.0, 0.2])
def test_gradients_by_differences(term, shrinkage):
    z = slow.pair(N, D)[0][:12].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: term(moments.batch_moments(x, shrinkage)), z)


def test_the_gradients_in_closed_form():
    """Of the entropy X S^{-1} / N, of the KL (X (I - S^{-1}) + mean) / N; the jitter leaves 1e-10 of them."""
    z = slow.pair(N, D)[0].requires_grad_()
    m = moments.batch_moments(z)
    X, inverse = (z - m.mean).detach(), torch.linalg.inv(m.S.detach())
    (g,) = torch.autograd.grad(information.entropy(m), z, retain_graph=True)
    close(g, X @ inverse / N, 1e-8)
    (g,) = torch.autograd.grad(kl(m), z)
    close(g, (X @ (torch.eye(D) - inverse) + m.mean.detach()) / N, 1e-8)
