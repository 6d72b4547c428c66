"""Diagnostics that objectives share: collapse of the embeddings, Mahalanobis distances, components in use."""

import math

import pytest
import torch
from tests.reference import gmje as slow

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.densities.particles import KernelMixture
from vergence.objectives.parts import diagnostics

N, D = 50, 3


def test_diagnostics_are_their_definitions():
    za, zb = slow.pair(N, D)
    found = diagnostics.collapse(za, zb)
    S = torch.cov(torch.cat([za, zb], 1).T, correction=0)
    values = torch.linalg.eigvalsh(S[:D, :D])
    expected = {
        "variance": S[:D, :D].trace() / D,
        "eigenvalue_min": values[0],
        "condition": values[-1] / values[0],
        "information": 0.5 * (torch.logdet(S[:D, :D]) + torch.logdet(S[D:, D:]) - torch.logdet(S)),
    }
    assert found.keys() == expected.keys() and all(type(value) is float for value in found.values())
    for name, value in expected.items():
        assert found[name] == pytest.approx(value.item(), rel=1e-6), name


def test_diagnostics_show_a_collapse():
    za, zb = slow.pair(N, D)
    narrow = torch.tensor([1.0, 1.0, 1e-5])
    found = diagnostics.collapse(za * narrow, zb * narrow)
    assert found["condition"] > 1e8 and found["eigenvalue_min"] < 1e-8
    assert diagnostics.collapse(1e-3 * za, 1e-3 * zb)["variance"] == pytest.approx(
        1e-6 * diagnostics.collapse(za, zb)["variance"]
    )
    assert diagnostics.collapse(za, zb)["information"] > 1 > diagnostics.collapse(za, zb[torch.randperm(N)])["information"]


def test_information_is_not_told_of_too_few_or_of_constant_features():
    za, zb = slow.pair(N, D)
    assert set(diagnostics.collapse(za[: 2 * D], zb[: 2 * D])) == {"variance"}
    assert diagnostics.collapse(za[: 2 * D + 1], zb[: 2 * D + 1])["information"] > 0
    flat = za.clone()
    flat[:, 1] = 0
    for a, b in ((flat, zb), (za, flat), (za * 0, zb * 0), (za[:1], zb[:1])):
        found = diagnostics.collapse(a, b)
        assert all(math.isfinite(value) for value in found.values()), found


def test_mahalanobis_is_one_formula_for_gaussians_mixtures_and_kernels():
    z, h2, keys = slow.pair(N, D)[0], torch.tensor(0.7), torch.randn(4, D)
    one = diagnostics.mahalanobis(JointGaussian(keys[0], h2 * torch.eye(D)), z)
    assert one == pytest.approx(((z - keys[0]).square().sum(1) / h2).mean().item() / D)
    mixture = GaussianMixture(torch.randn(4), keys, Diagonal(h2.expand(D)))
    kernels = KernelMixture(mixture.mixture_distribution.logits, keys, h2)
    r = mixture.responsibilities(z)
    expected = sum(r[n, k] * (z[n] - keys[k]).square().sum() / h2 for n in range(N) for k in range(4)).item() / N / D
    assert diagnostics.mahalanobis(mixture, z) == pytest.approx(expected)
    assert diagnostics.mahalanobis(kernels, z) == pytest.approx(expected)
