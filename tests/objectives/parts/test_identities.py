"""Identities of Gaussian joint embeddings on fixed data: the trace trap, scale, canonical correlations, InfoNCE.

T1 to T9 are the numbers of the properties in the specification for arXiv 2603.26799.
"""

import math

import pytest
import torch
from scipy.linalg import subspace_angles

from vergence.densities.gaussian import JointGaussian

N, C, T = 60, 3, 2
D = C + T


def batch(n=N, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, D, generator=g) @ torch.randn(D, D, generator=g) + 1


def covariance(X, ddof=0):
    x = X - X.mean(0)
    return x.T @ x / (len(X) - ddof)


def mahalanobis(X, S):
    x = X - X.mean(0)
    return (x * torch.linalg.solve(S, x.T).T).sum(1).mean()


def test_the_mean_mahalanobis_distance_is_the_dimension():
    """T1: whatever the data are; D (N - 1) / N with the other divisor, sum s / (s + lambda) with a ridge."""
    X, lam = batch(), 0.7
    S = covariance(X)
    s = torch.linalg.eigvalsh(S)
    assert float(mahalanobis(X, S)) == pytest.approx(D, abs=1e-9)
    assert float(mahalanobis(X, covariance(X, 1))) == pytest.approx(D * (N - 1) / N, abs=1e-9)
    assert float(mahalanobis(X, S + lam * torch.eye(D))) == pytest.approx(float((s / (s + lam)).sum()), abs=1e-9)


def test_the_trap_leaves_only_the_determinant():
    """T2: through its own covariance the distance has no gradient; with a constant one it has that of 1/2 log |S|."""
    X = batch().requires_grad_()
    (through,) = torch.autograd.grad(0.5 * mahalanobis(X, covariance(X)), X)
    assert float(through.abs().max()) < 1e-12
    (constant,) = torch.autograd.grad(0.5 * mahalanobis(X, covariance(X).detach()), X)
    (volume,) = torch.autograd.grad(0.5 * torch.logdet(covariance(X)), X)
    x = (X - X.mean(0)).detach()
    expected = torch.linalg.solve(covariance(X).detach(), x.T).T / N
    torch.testing.assert_close(constant, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(volume, expected, rtol=0, atol=1e-12)


def test_under_the_trap_singular_values_vanish_in_finite_time():
    """T3: along the flow of 1/2 log |S| over the whole batch, sigma^2(t) = sigma_0^2 - 2 t (N absorbed into time)."""
    X = batch()
    X = X - X.mean(0)
    before = torch.linalg.svdvals(X) ** 2
    dt, steps = 1e-3, 1000
    for _ in range(steps):
        S = X.T @ X
        X = X - dt * torch.linalg.solve(S, X.T).T
    after = torch.linalg.svdvals(X) ** 2
    torch.testing.assert_close(before - after, torch.full_like(before, 2 * dt * steps), rtol=1e-2, atol=0)


def test_likelihoods_fall_with_scale_and_information_does_not():
    """T5: the joint negative log-likelihood at a X is that at X plus D log a; 1/2 sum log(1 - rho^2) does not move."""

    def nll(X):
        return -JointGaussian(X.mean(0), covariance(X)).log_prob(X).mean()

    def information(X):
        S = covariance(X)
        return 0.5 * (torch.logdet(S[:C, :C]) + torch.logdet(S[C:, C:]) - torch.logdet(S))

    X, a = batch(), 0.01
    assert float(nll(a * X) - nll(X)) == pytest.approx(D * math.log(a), abs=1e-9)
    assert float(information(a * X)) == pytest.approx(float(information(X)), abs=1e-9)
    x = (X - X.mean(0)).numpy()
    rho = torch.cos(torch.as_tensor(subspace_angles(x[:, :C], x[:, C:])))
    assert float(information(X)) == pytest.approx(float(-0.5 * torch.log1p(-rho.square()).sum()), abs=1e-9)
