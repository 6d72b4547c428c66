"""Diagnostics that objectives share: collapse, Mahalanobis distances, components in use; and the notices made of them."""

import math

import pytest
import torch
from tests.reference import gmje as slow

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.densities.particles import KernelMixture
from vergence.learn.objectives.parts import diagnostics

N, D = 50, 3


def test_diagnostics_are_their_definitions():
    za, zb = slow.pair(N, D)
    result = diagnostics.collapse(za, zb)
    S = torch.cov(torch.cat([za, zb], 1).T, correction=0)
    values = torch.linalg.eigvalsh(S[:D, :D])
    expected = {
        "variance": S[:D, :D].trace() / D, "eigenvalue_min": values[0], "condition": values[-1] / values[0],
        "information": 0.5 * (torch.logdet(S[:D, :D]) + torch.logdet(S[D:, D:]) - torch.logdet(S)),
    }  # fmt: skip
    assert result.keys() == expected.keys() and all(type(value) is float for value in result.values())
    for name, value in expected.items():
        assert result[name] == pytest.approx(value.item(), rel=1e-6), name


def test_a_collapse_shows_in_the_numbers_and_constant_features_are_finite():
    za, zb = slow.pair(N, D)
    narrow = torch.tensor([1.0, 1.0, 1e-5])
    numbers = diagnostics.collapse(za * narrow, zb * narrow)
    assert numbers["condition"] > 1e8 and numbers["eigenvalue_min"] < 1e-8
    assert diagnostics.collapse(za, zb)["information"] > 1 > diagnostics.collapse(za, zb[torch.randperm(N)])["information"]
    assert set(diagnostics.collapse(za[: 2 * D], zb[: 2 * D])) == {"variance"}
    for a, b in ((za * torch.tensor([1.0, 0.0, 1.0]), zb), (za * 0, zb * 0), (za[:1], zb[:1])):
        assert all(math.isfinite(value) for value in diagnostics.collapse(a, b).values())


def test_mahalanobis_is_one_formula_for_gaussians_mixtures_and_kernels():
    z, h2, keys = slow.pair(N, D)[0], torch.tensor(0.7), torch.randn(4, D)
    first = diagnostics.mahalanobis(JointGaussian(keys[0], h2 * torch.eye(D)), z)
    assert first == pytest.approx(((z - keys[0]).square().sum(1) / h2).mean().item() / D)
    mixture = MixtureOfGaussians(torch.randn(4), keys, Diagonal(h2.expand(D)))
    kernels = KernelMixture(mixture.mixture_distribution.logits, keys, h2)
    r = mixture.responsibilities(z)
    expected = sum(r[n, k] * (z[n] - keys[k]).square().sum() / h2 for n in range(N) for k in range(4)).item() / N / D
    assert diagnostics.mahalanobis(mixture, z) == pytest.approx(expected)
    assert diagnostics.mahalanobis(kernels, z) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("stats", "name", "words"),
    [
        (
            {"variance": 1e-5, "mahalanobis": 0.5},
            "variance",
            "shrinks to a point (mean variance 1e-05): the regularization is too weak",
        ),
        ({"variance": 1e-5, "mahalanobis": 1.01}, "variance", "the trace trap"),
        ({"variance": 1.0, "condition": 1e7}, "condition", "loses directions (condition 1e+07)"),
        ({"variance": 1.0, "mahalanobis": 3.0}, "mahalanobis", "lags behind"), ({"ess": 0.05}, "ess", "few particles"),
        ({"component_share": 0.1}, "component_share", "few components"),
    ],
)  # fmt: skip
def test_notices_name_the_cause_and_the_remedy(stats, name, words):
    notices = diagnostics.notices(stats)
    assert list(notices) == [name] and words in notices[name] and ": " in notices[name] and "\n" not in notices[name]


def test_a_healthy_run_has_no_notice():
    assert diagnostics.notices({}) == diagnostics.notices({"variance": 1e-9}) == {}  # a loss on directions leaves the scale free
    healthy = {"variance": 1.0, "condition": 1e3, "mahalanobis": 1.0, "ess": 0.9, "component_share": 0.9, "information": 3.0}
    assert diagnostics.notices(healthy) == {}
    assert diagnostics.notices({"variance": 1e-3, "condition": 1e4, "mahalanobis": 1.9, "ess": 0.2, "component_share": 0.3}) == {}
