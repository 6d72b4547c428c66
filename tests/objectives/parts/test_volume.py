"""What embeddings occupy: against torch's Gaussians and closed forms, in both precisions, with few items."""

import math

import pytest
import torch
from tests.reference import gmje as slow
from torch.distributions import MultivariateNormal, kl_divergence

from vergence.objectives.parts import volume
from vergence.objectives.parts.volume import Moments

N, D = 50, 3


def close(a, b, tol=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


def planted(scale=1.0):
    return scale * slow.pair(N, D)[0]


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_moments_in_loops(shrinkage):
    z = planted()
    found, expected = volume.moments(z, shrinkage), slow.gaussian(z, shrinkage)
    close(found.mean, expected.loc)
    close(found.S, expected.covariance_matrix)
    part = found.block(slice(1, 3))
    assert torch.equal(part.mean, found.mean[1:]) and torch.equal(part.S, found.S[1:, 1:])


def test_the_estimated_shrinkage():
    """The published formula; one where nothing is known, and none where everything is."""
    z = planted()
    S = torch.cov(z.T, correction=0)
    squares, trace = (S * S).sum(), S.trace() ** 2
    expected = ((1 - 2 / D) * squares + trace) / ((N + 1 - 2 / D) * (squares - trace / D))
    close(volume.oas(S, N), expected)
    close(volume.moments(z, None).S, volume.moments(z, expected.item()).S)
    assert volume.oas(S, 10**9) < 1e-8 and volume.oas(torch.eye(4), 100) == 1


def test_kl_and_entropy_are_torchs():
    m = volume.moments(planted())
    p, standard = MultivariateNormal(m.mean, m.S), MultivariateNormal(torch.zeros(D), torch.eye(D))
    close(volume.kl_standard_normal(m), kl_divergence(p, standard))
    close(volume.entropy(m), p.entropy())
    close(volume.kl_views(m, m), 2 * kl_divergence(p, standard))
    close(volume.log_det(m.S), torch.logdet(m.S))


def test_entropy_grows_with_the_scale_and_the_kl_is_least_at_one():
    m, a = volume.moments(planted()), 0.2
    close(volume.entropy(Moments(a * m.mean, a * a * m.S)) - volume.entropy(m), D * math.log(a))
    kls = [volume.kl_standard_normal(Moments(torch.zeros(D), s * torch.eye(D))).item() for s in (0.5, 0.9, 1.0, 1.1, 2.0)]
    assert kls[2] == 0 and kls == sorted(kls[:2], reverse=True) + kls[2:] and kls[2:] == sorted(kls[2:])


def test_information_is_a_kl_and_that_of_canonical_correlations():
    za, zb = slow.pair(N, D)
    m = volume.moments(torch.cat([za, zb], 1))
    p = MultivariateNormal(m.mean, m.S)
    apart = MultivariateNormal(m.mean, torch.block_diag(m.S[:D, :D], m.S[D:, D:]))
    close(volume.mutual_information(m, D), kl_divergence(p, apart))
    A, B = torch.linalg.cholesky(m.S[:D, :D]), torch.linalg.cholesky(m.S[D:, D:])
    rho = torch.linalg.svdvals(torch.linalg.solve(A, m.S[:D, D:]) @ torch.linalg.inv(B).T)
    close(volume.mutual_information(m, D), -0.5 * torch.log1p(-rho.square()).sum())


def test_prices_are_what_they_say():
    a, b = (volume.moments(z) for z in slow.pair(N, D))
    nll = torch.tensor(1.7)
    kl = volume.kl_standard_normal(a) + volume.kl_standard_normal(b)
    assert volume.priced("naive", nll, a, b, eta=0.3, beta=2.0) == {"nll": nll}
    found = volume.priced("joint_kl", nll, a, b, eta=0.3, beta=2.0)
    assert found.keys() == {"nll", "kl"} and found["nll"] == nll
    close(found["kl"], 2 * kl)
    for loss in ("mi_kl", "entropy_kl"):
        found = volume.priced(loss, nll, a, b, eta=0.3, beta=2.0)
        assert found.keys() == {"mi", "kl"}
        close(found["mi"], nll - volume.entropy(a) - volume.entropy(b))
        close(found["kl"], 0.3 * kl)
    assert volume.coupled(nll, a, b, 0.3) == volume.priced("mi_kl", nll, a, b, eta=0.3, beta=9.0)


@pytest.mark.parametrize("term", [volume.entropy, volume.kl_standard_normal, lambda m: volume.mutual_information(m, 1)])
@pytest.mark.parametrize("shrinkage", [0.0, 0.2])
def test_gradients_by_differences(term, shrinkage):
    z = planted()[:12].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: term(volume.moments(x, shrinkage)), z)


def test_the_gradients_in_closed_form():
    """Of the entropy X S^{-1} / N, of the KL (X (I - S^{-1}) + mean) / N; the jitter leaves 1e-10 of them."""
    z = planted().requires_grad_()
    m = volume.moments(z)
    X, inverse = (z - m.mean).detach(), torch.linalg.inv(m.S.detach())
    (g,) = torch.autograd.grad(volume.entropy(m), z, retain_graph=True)
    close(g, X @ inverse / N, 1e-8)
    (g,) = torch.autograd.grad(volume.kl_standard_normal(m), z)
    close(g, (X @ (torch.eye(D) - inverse) + m.mean.detach()) / N, 1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_precision_and_scale(dtype, scale):
    z = planted(scale).to(dtype).requires_grad_()
    m = volume.moments(z)
    for value in (volume.entropy(m), volume.kl_standard_normal(m), volume.log_det(m.S)):
        (g,) = torch.autograd.grad(value, z, retain_graph=True)
        assert value.dtype == g.dtype == dtype and torch.isfinite(value) and torch.isfinite(g).all()
    close(volume.entropy(m).double(), volume.entropy(volume.moments(planted(scale))), 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fewer_items_than_features(dtype):
    z = torch.randn(5, 40, dtype=dtype).requires_grad_()
    for shrinkage in (None, 0.1, 0.0):
        value = volume.kl_standard_normal(volume.moments(z, shrinkage))
        (g,) = torch.autograd.grad(value, z)
        assert torch.isfinite(value) and torch.isfinite(g).all()


def test_what_is_no_covariance_has_no_determinant():
    for S in (torch.zeros(2, 2), -torch.eye(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])):
        for dtype in (torch.float32, torch.float64):
            found = volume.log_det(S.to(dtype))
            assert found.dtype == dtype and torch.isnan(found)


def test_a_loss_and_its_weights():
    volume.require_loss("naive", ("naive", "mi"), 1.0, 1.0)
    with pytest.raises(ValueError, match="expected loss among naive, mi, found 'no'"):
        volume.require_loss("no", ("naive", "mi"), 1.0, 1.0)
    for eta, beta in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="expected eta, beta > 0, found eta="):
            volume.require_loss("naive", ("naive",), eta, beta)


# Diagnostics


def test_diagnostics_are_their_definitions():
    za, zb = slow.pair(N, D)
    found = volume.diagnostics(za, zb)
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
    found = volume.diagnostics(za * narrow, zb * narrow)
    assert found["condition"] > 1e8 and found["eigenvalue_min"] < 1e-8
    assert volume.diagnostics(1e-3 * za, 1e-3 * zb)["variance"] == pytest.approx(1e-6 * volume.diagnostics(za, zb)["variance"])
    assert volume.diagnostics(za, zb)["information"] > 1 > volume.diagnostics(za, zb[torch.randperm(N)])["information"]


def test_information_is_not_told_of_too_few_or_of_constant_features():
    za, zb = slow.pair(N, D)
    assert set(volume.diagnostics(za[: 2 * D], zb[: 2 * D])) == {"variance"}
    assert volume.diagnostics(za[: 2 * D + 1], zb[: 2 * D + 1])["information"] > 0
    flat = za.clone()
    flat[:, 1] = 0
    for a, b in ((flat, zb), (za, flat), (za * 0, zb * 0), (za[:1], zb[:1])):
        found = volume.diagnostics(a, b)
        assert all(math.isfinite(value) for value in found.values()), found


@pytest.mark.float32
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moments_of_half_precision_are_float32(dtype):
    z = torch.randn(N, D).to(dtype)
    for shrinkage in (0.0, None):
        found, expected = volume.moments(z, shrinkage), volume.moments(z.float(), shrinkage)
        assert found.S.dtype == torch.float32
        assert torch.equal(found.mean, expected.mean) and torch.equal(found.S, expected.S)
