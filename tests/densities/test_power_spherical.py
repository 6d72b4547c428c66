"""The power spherical distribution against its printed formulas, quadrature, samples and limits."""

import math

import mpmath
import pytest
import torch
from scipy import integrate, stats
from tests.reference import power_spherical as reference
from torch.nn.functional import normalize

from vergence.densities import power_spherical
from vergence.densities.power_spherical import digamma_gap, lgamma_gap

KAPPAS = (0.0, 0.7, 30.0, 400.0)


def PowerSpherical(mu, kappa):
    return power_spherical.PowerSpherical(mu, torch.as_tensor(kappa))


def close(found, expected, **tolerance):
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), **({"rtol": 1e-10, "atol": 1e-10} | tolerance))


def log_area(D):
    """The log of the area of the unit sphere in R^D."""
    return math.log(2) + 0.5 * D * math.log(math.pi) - math.lgamma(D / 2)


def integrals(p):
    """Returns mass, entropy and KL to the uniform distribution on the unit sphere of R^2 or R^3, by quadrature around mu."""
    D, mu = len(p.mu), p.mu
    v = torch.linalg.qr(torch.stack([mu, torch.arange(1.0, D + 1)], 1)).Q[:, 1]

    def log_density(angle):
        return p.log_prob(math.cos(angle) * mu + math.sin(angle) * v).item()

    def integral(f):
        ring = 2.0 if D == 2 else 2 * math.pi  # both halves of the circle; the ring at an angle has length 2 pi sin
        weight = (lambda t: ring) if D == 2 else (lambda t: ring * math.sin(t))
        return integrate.quad(lambda t: weight(t) * math.exp(log_density(t)) * f(log_density(t)), 0, math.pi, points=[0.05, 0.3],
                              limit=400, epsabs=1e-11)[0]  # fmt: skip

    return integral(lambda _: 1.0), integral(lambda d: -d), integral(lambda d: d + log_area(D))


def test_quadrature():
    for D in (2, 3):
        for kappa in KAPPAS:
            p = PowerSpherical(normalize(torch.randn(D), dim=0), kappa)
            mass, entropy, divergence = integrals(p)
            close(mass, 1.0, rtol=1e-8, atol=0)
            close(p.entropy(), entropy, rtol=1e-7, atol=1e-8)
            close(p.kl_to_uniform(), divergence, rtol=1e-7, atol=1e-8)


def test_formulas():
    for D in (2, 3, 8, 33, 257):
        for kappa in KAPPAS:
            mu, x = normalize(torch.randn(2, D), dim=1)
            p = PowerSpherical(mu, kappa)
            close(p.log_prob(x), reference.log_prob(x.tolist(), mu.tolist(), kappa), rtol=1e-9, atol=1e-9)
            close(p.entropy(), reference.entropy(D, kappa), rtol=1e-9, atol=1e-9)
            close(p.kl_to_uniform(), reference.kl_to_uniform(D, kappa), rtol=1e-9, atol=1e-9)


def test_samples(n=10_000):
    """Samples are on the sphere; mean, variance, entropy, KL and the distribution of mu^T x are theirs."""
    for D, kappa in ((2, 4.0), (3, 4.0), (8, 0.3), (40, 60.0)):
        mu = normalize(torch.randn(D), dim=0)
        p = PowerSpherical(mu, kappa)
        x = p.sample((n,))
        close(x.norm(dim=1), torch.ones(n))
        b = (D - 1) / 2
        assert stats.kstest(((x @ mu).numpy() + 1) / 2, stats.beta(kappa + b, b).cdf).pvalue > 1e-4
        log_prob = p.log_prob(x)
        for found, expected in (
            (x, p.mean),
            ((x - p.mean).square(), p.variance),
            (-log_prob, p.entropy()),
            (log_prob + log_area(D), p.kl_to_uniform()),
        ):
            assert (standard_scores(found, expected).abs() < 4.5).all()
        close(p.variance.sum(), 1 - p.mean.square().sum())


def standard_scores(found, expected):
    return (found.mean(0) - expected) / (found.std(0) / math.sqrt(len(found)))


@pytest.mark.parametrize("D", [2, 3, 64, 512])
def test_no_concentration_is_the_uniform_distribution(D):
    p, x = PowerSpherical(torch.eye(D)[0], 0.0), normalize(torch.randn(5, D), dim=1)
    close(p.log_prob(x), torch.full((5,), -log_area(D)))
    close(p.entropy(), log_area(D))
    close(p.mean, torch.zeros(D))
    close(p.variance, torch.full((D,), 1 / D))
    assert p.kl_to_uniform() == 0
    assert (standard_scores(p.sample((20_000,)), 0.0).abs() < 4.5).all()


@pytest.mark.parametrize("D", [2, 64])
def test_the_divergence_grows_without_limit(D):
    """Like b log kappa, because PS is nearly a Gaussian of variance 2 b / kappa / (D - 1) in the tangent plane."""
    found = torch.stack([PowerSpherical(torch.eye(D)[0], 10.0**k).kl_to_uniform() for k in range(9)])
    assert (found.diff() > 0).all() and found[-1] > 5 * (D - 1)
    close(found[-1] - found[-2], (D - 1) / 2 * math.log(10), rtol=1e-4)


def test_the_antipode():
    mu = torch.tensor([0.6, 0.8])
    uniform, peaked = (PowerSpherical(mu, kappa).log_prob(-mu) for kappa in (0.0, 2.0))
    close(uniform, -math.log(2 * math.pi))
    assert peaked == -math.inf and PowerSpherical(mu, 2.0).finite_log_prob(-mu).isfinite()
    x = normalize(torch.randn(50, 2), dim=-1)
    assert torch.equal(PowerSpherical(mu, 2.0).finite_log_prob(x), PowerSpherical(mu, 2.0).log_prob(x))
    beyond = PowerSpherical(mu * (1 + 1e-12), torch.tensor([0.0, 2.0])).log_prob(-mu)  # rounding beyond the sphere
    assert not beyond.isnan().any()
    kappa = torch.zeros((), requires_grad=True)
    PowerSpherical(mu, kappa).log_prob(torch.tensor([1.0, 0.0])).backward()
    assert kappa.grad.isfinite()


@pytest.mark.float32
@pytest.mark.parametrize(("D", "kappa"), [(2, 1e9), (3, 1e2), (64, 1e2), (64, 1e9)])
def test_samples_of_large_concentrations_keep_their_distance(D, kappa, n=20_000):
    """E|x - mu|^2 = 4 b / (kappa + 2 b), which float32 rounds away from kappa = 1e7 on where it is computed from 1 - t."""
    mu = torch.eye(D)[-1]
    p = PowerSpherical(mu, torch.tensor(kappa, requires_grad=True))
    x = p.rsample((n,))
    square = (x - mu).square().sum(-1)
    assert square.mean().item() == pytest.approx(4 * p.b / (kappa + 2 * p.b), rel=5 * (1 / p.b / n) ** 0.5)
    assert (p.log_prob(x).mean() + p.entropy()).abs() < 5 * (p.b / n) ** 0.5
    found = torch.autograd.grad(square.mean(), p.kappa)[0].item()
    assert found == pytest.approx(-4 * p.b / (kappa + 2 * p.b) ** 2, rel=8 * (1 / p.b / n) ** 0.5)


@pytest.mark.float32
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_concentrations_keep_their_precision(dtype):
    """The printed formulas lose all digits in float32: at kappa = 1e7 their terms are near 1e8."""
    for D in (2, 3, 256, 2048):
        for kappa in (0.0, 1e-3, 1.0, 15.9, 16.1, 1e4, 1e7):
            p = PowerSpherical(torch.eye(D, dtype=dtype)[0], torch.tensor(kappa, dtype=dtype))
            b = mpmath.mpf(D - 1) / 2
            with mpmath.workdps(40):
                a = mpmath.mpf(float(p.kappa)) + b
                cross = mpmath.mpf(float(p.kappa)) * (mpmath.digamma(a + b) - mpmath.digamma(a))
                constant = 2 * b * mpmath.log(2) + b * mpmath.log(mpmath.pi) + mpmath.loggamma(a) - mpmath.loggamma(a + b)
                entropy = float(constant + cross)
            scale = D if dtype == torch.float32 else 1e-6 * D
            for found, expected in ((p.entropy(), entropy), (p.kl_to_uniform(), log_area(D) - entropy)):
                assert found.dtype == dtype and abs(found.item() - expected) < 1e-5 * scale, (D, kappa)


def test_gaps_join():
    """At the change of formula value and derivative have no step, and one function is the other's derivative."""
    for b in (0.5, 3.0, 100.0):
        a = torch.linspace(0.3, 40.0, 2000).requires_grad_()
        value = lgamma_gap(a, b)
        close(value, torch.lgamma(a + b) - torch.lgamma(a), rtol=1e-11)
        close(torch.autograd.grad(value.sum(), a)[0], digamma_gap(a, b), rtol=1e-9, atol=1e-10)
        close(digamma_gap(a, b), torch.digamma(a + b) - torch.digamma(a), rtol=1e-10)


@pytest.mark.float32
def test_half_precision_becomes_float32():
    mu, kappa = normalize(torch.randn(3, 4), dim=1).half(), torch.tensor([0.5, 3.0, 20.0]).half()
    single = PowerSpherical(mu, kappa).log_prob(mu.roll(1, 0))
    assert single.dtype == torch.float32
    close(single, PowerSpherical(mu.double(), kappa.double()).log_prob(mu.roll(1, 0).double()).float(), rtol=1e-4, atol=1e-4)


def test_gradients():
    mu, x = normalize(torch.randn(2, 4), dim=1).requires_grad_(), normalize(torch.randn(2, 4), dim=1)
    for kappa in (torch.tensor([1.0, 3.0]), torch.tensor([14.0, 200.0])):  # on both sides of the change of formula
        kappa.requires_grad_()
        assert torch.autograd.gradcheck(lambda m, k: PowerSpherical(m, k).log_prob(x), (mu, kappa))
        assert torch.autograd.gradcheck(lambda k: PowerSpherical(mu.detach(), k).entropy(), (kappa,))
        assert torch.autograd.gradcheck(lambda k: PowerSpherical(mu.detach(), k).kl_to_uniform(), (kappa,))
        PowerSpherical(mu, kappa).rsample((3,)).square().sum().backward()
        assert mu.grad.isfinite().all() and kappa.grad.isfinite().all()
