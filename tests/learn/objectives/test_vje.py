"""The objective of variational joint embedding against scalar loops, closed forms, limits, quadrature and planted errors."""

import math

import numpy as np
import pytest
import torch
from tests.learn.objectives.common import close, gradcheck_of_parameters, require_caught
from tests.reference import vje as reference
from torch import nn

from vergence.learn.objectives import vje

B, D, INF = 5, 4, math.inf
NUS = (0.5, 1.0, 3.0, 20.0, INF)


class Fixed(nn.Module):
    """An inference network that ignores its input: the same mu and var, (B, D) or (D,), for every z."""

    def __init__(self, mu, var):
        super().__init__()
        self.mu, self.var = nn.Parameter(mu), nn.Parameter(var)

    def forward(self, z):
        return self.mu.expand_as(z), self.var.expand_as(z)


def triple(rows=B, dim=D):
    return torch.randn(rows, dim), torch.randn(rows, dim), torch.rand(rows, dim) + 0.1


def model(**options):
    return vje.VJE(D, hidden=8, **options)


def pair():
    return torch.randn(B, D), torch.randn(B, D)


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def rows(function, *batches):
    return torch.tensor([function(*row) for row in zip(*(b.tolist() for b in batches), strict=True)])


def grad(value, *inputs):
    return torch.autograd.grad(value, inputs, allow_unused=True)


def test_directional():
    for nu in NUS:
        for normalized in (False, True):
            z, s, var = triple()
            expected = rows(lambda z, s, v, nu=nu, n=normalized: reference.directional_nll(z, s, v, nu, n), 3 * z, s, var)
            close(vje.directional_nll(3 * z, s, var, nu, normalized=normalized), expected)


def test_radial():
    for nu in NUS:
        for normalized in (False, True):
            z, s, _ = triple()
            expected = rows(lambda z, s, nu=nu, n=normalized: reference.radial_nll(z, s, nu, n), z, s)
            close(vje.radial_nll(z, s, nu, normalized=normalized), expected)


def test_plain():
    for nu in NUS:
        z, s, var = triple()
        expected = rows(lambda z, s, v, nu=nu: reference.plain_nll(z, s, v, nu), 3 * z, s, var)
        close(vje.student_nll(3 * z, s, var, nu), expected)


def test_gaussian_limit():
    z, s, var = triple()
    for big in (1e9, 1e12, 1e15):
        close(vje.directional_nll(z, s, var, big), vje.directional_nll(z, s, var, INF), 3e-8)
        close(vje.radial_nll(z, s, big), vje.radial_nll(z, s, INF), 3e-8)


def test_scale_invariance():
    z, s, var = triple()
    close(vje.directional_nll(7 * z, 0.2 * s, var, 3.0), vje.directional_nll(z, s, var, 3.0))


def test_kl():
    mu, _, var = triple()
    close(vje.kl_standard_normal(mu, var), rows(reference.kl, mu, var))
    closed = torch.distributions.kl_divergence(torch.distributions.Normal(mu, var.sqrt()), torch.distributions.Normal(0.0, 1.0))
    close(vje.kl_standard_normal(mu, var), closed.sum(-1))


def test_loss():
    m, (za, zb) = model(beta=0.7), pair()
    posteriors = [[x.tolist() for x in m.infer(z)] for z in (za, zb)]
    torch.manual_seed(3)
    result = m(za, zb)
    torch.manual_seed(3)
    eps = tuple(torch.randn(B, D).tolist() for _ in range(2))
    mu, var = zip(*posteriors, strict=True)
    views = (za.tolist(), zb.tolist())
    expected = reference.terms(views, mu, var, eps, nu=3.0, beta=0.7)
    swapped = reference.terms(*(tuple(reversed(x)) for x in (views, mu, var, eps)), nu=3.0, beta=0.7)
    assert set(result) == set(expected)
    for term in expected:
        close(result[term], expected[term])
        close(result[term], swapped[term])


def test_target_is_detached():
    za, zb = (z.requires_grad_() for z in pair())
    m = model()
    m.inference = Fixed(torch.randn(D), torch.rand(D) + 0.5)
    assert grad(sum(m(za, zb).values()), za, zb) == (None, None), "the target is a fixed observation"


def test_encoder_learns():
    za, zb = (z.requires_grad_() for z in pair())
    m = model()
    torch.manual_seed(3)
    total = sum(m(za, zb).values())
    assert total.requires_grad
    result = grad(total, za, zb)
    torch.manual_seed(3)
    frozen = one_way(m, za, zb.detach()) / 2 + one_way(m, zb, za.detach()) / 2
    for got, expected in zip(result, grad(frozen, za, zb), strict=True):
        assert got is not None and got.norm() > 0, "the gradient reaches the encoder through g"
        close(got, expected)


def test_log_prob():
    m, (za, zb) = model(), pair()
    noise = torch.randn(7, D, generator=seeded())
    expected = rows(lambda z, mu, var: reference.bound(z, mu, var, noise.tolist(), 3.0), zb, *m.infer(za))
    close(m.log_prob(zb, za, samples=7, generator=seeded()), expected)


def test_scores():
    m, z = model(), torch.randn(B, D)
    mu, var = m.infer(z)
    for noise, samples in (([[0.0] * D], 0), (torch.randn(7, D, generator=seeded()).tolist(), 7)):
        expected = rows(lambda z, mu, var, noise=noise: reference.joint_score(z, mu, var, noise, 3.0), z, mu, var)
        result = m.scores(z, samples=samples, generator=seeded())
        close(m.score(z, samples=samples, generator=seeded()), expected)
        close(result["directional"] + result["radial"], expected)
    close(result["variance"], rows(sum, var))
    close(result["entropy"], rows(reference.entropy, var))
    close(result["entropy"], m.posterior(z).entropy())


def test_rows_are_independent():
    m, (za, zb), order = model(), pair(), torch.randperm(B)
    for call in (lambda a, b: m.log_prob(b, a, generator=seeded()), lambda a, b: m.score(a, generator=seeded())):
        whole = call(za, zb)
        close(torch.cat([call(za[i : i + 1], zb[i : i + 1]) for i in range(B)]), whole)
        close(call(za[order], zb[order]), whole[order])


def one_way(m, zi, target):
    mu, var = m.infer(zi)
    s = mu + var.sqrt() * torch.randn(mu.shape)
    nll = vje.directional_nll(target, s, var, m.nu) + vje.radial_nll(target, s, m.nu)
    return (nll + m.beta * vje.kl_standard_normal(mu, var)).mean()


def test_unit_gaussian_is_one_minus_cosine():
    z, s, _ = triple()
    cosine = torch.cosine_similarity(z, s, dim=-1)
    close(vje.directional_nll(z, s, torch.ones(B, D), INF), 1 - cosine)
    close(vje.directional_nll(z, s, torch.ones(B, D), 1e6), 1 - cosine, 1e-5)
    close(vje.radial_nll(z, s, INF), (z.norm(dim=-1) - s.norm(dim=-1)) ** 2 / 2)


def test_limits_are_cosine_alignment_and_squared_error():
    za, zb = (z.requires_grad_() for z in pair())
    for options, expected in (
        ({"terms": ("directional",), "scale": 1.0}, lambda mu, z: 1 - torch.cosine_similarity(mu, z, dim=-1)),
        ({"terms": ("joint",), "likelihood": "plain", "scale": 0.3}, lambda mu, z: (mu - z).square().sum(-1) / 0.6),
    ):
        m = model(nu=INF, sampled=False, **options)  # appendix B.4
        (loss,) = m(za, zb).values()
        expected = (expected(m.infer(za)[0], zb.detach()) + expected(m.infer(zb)[0], za.detach())).mean() / 2
        close(loss, expected + D / 2 * math.log(options["scale"]))
        assert all(torch.allclose(*pair) for pair in zip(grad(loss, za, zb), grad(expected, za, zb), strict=True))


def test_plain_loss_and_density():
    """With a Gaussian of one variance v, p(z_b | z_a) is N(0, 1 + v) whatever q is."""
    m, (za, zb) = model(likelihood="plain"), pair()
    torch.manual_seed(3)
    total = 0.0
    for zi, zj in ((za, zb), (zb, za)):
        mu, var = m.infer(zi)
        s = mu + var.sqrt() * torch.randn(B, D)
        total += rows(lambda z, s, v: reference.plain_nll(z, s, v, 3.0), zj, s, var).mean() / 2
    torch.manual_seed(3)
    close(m(za, zb)["joint"], total)
    assert gradcheck_of_parameters(model(likelihood="plain"), za, zb)
    m = model(likelihood="plain", nu=INF, scale=0.7)
    m.inference = Fixed(torch.zeros(D), torch.full((D,), 0.9))
    exact = torch.distributions.Normal(0.0, math.sqrt(1.7)).log_prob(zb).sum(-1)
    with torch.no_grad():
        ratios = torch.stack([(m.log_prob(zb, za, samples=64) - exact).exp() for _ in range(500)])
    assert z_score(ratios - 1).abs().max() < 4


def test_rotations():
    z, s, var = triple()
    turn = torch.linalg.qr(torch.randn(D, D)).Q
    same = var[:, :1].expand(B, D)
    close(vje.directional_nll(z @ turn, s @ turn, same, 3.0), vje.directional_nll(z, s, same, 3.0))
    close(vje.radial_nll(z @ turn, s @ turn, 3.0), vje.radial_nll(z, s, 3.0))
    apart = vje.directional_nll(z @ turn, s @ turn, var, 3.0) - vje.directional_nll(z, s, var, 3.0)
    assert (apart.abs() > 1e-3).all(), "unequal variances pick out axes"


@pytest.mark.parametrize("nu", NUS)
def test_minima(nu):
    z, s, var = triple()
    floor = var.log().sum(-1) / 2
    close(vje.directional_nll(z, 5 * z, var, nu), floor)
    assert (vje.directional_nll(z, s, var, nu) > floor).all()
    close(vje.radial_nll(z, -z.flip(-1), nu), torch.zeros(B), 1e-14)
    assert (vje.radial_nll(z, 1.1 * z, nu) > 0).all()


@pytest.mark.parametrize(("nu", "slope"), [(0.25, 1.25), (0.5, 1.0607), (1.0, 1.0), (3.0, 1.1547), (20.0, 2.3479)])
def test_radial_gradient_is_bounded(nu, slope):
    gap = torch.cat([torch.linspace(-8, 8, 2001), torch.tensor([-math.sqrt(nu), math.sqrt(nu)])]).requires_grad_()
    s = torch.full((len(gap), 1), 10.0)
    result = grad(vje.radial_nll(10 + gap[:, None], s, nu).sum(), gap)[0].abs()
    bound = (nu + 1) / (2 * math.sqrt(nu))
    assert round(bound, 4) == slope and result.max() <= bound * (1 + 1e-12)
    close(result[-2:], [bound, bound])


@pytest.mark.parametrize(("var", "printed"), [(1.0, 148.7), (0.32, 262.8)])
def test_directional_gradient_is_bounded(var, printed, nu=3.0, dim=512):
    steepest = 2 * math.asin(math.sqrt(var * nu) / 2)
    angle = torch.cat([torch.linspace(1e-3, 3.1, 500), torch.tensor([steepest])])
    z = plane(angle, dim).requires_grad_()
    s = plane(torch.zeros(1), dim).expand_as(z)
    tangential = grad(vje.directional_nll(z, s, torch.full_like(s, var), nu).sum(), z)[0].norm(dim=-1)
    bound = (nu + dim) / (2 * math.sqrt(var * nu))
    assert round(bound, 1) == printed and tangential.max() <= bound
    ambient = tangential / torch.cos(angle / 2)  # the tangent component of z^ - s^ is cos(angle / 2) of its length
    assert ambient.max() <= bound * (1 + 1e-10)
    close(ambient[-1], bound)


def plane(angle, dim):
    """Unit vectors at the given angles to the first axis, (N, dim)."""
    return torch.cat([angle.cos()[:, None], angle.sin()[:, None], torch.zeros(len(angle), dim - 2)], 1)


@pytest.mark.parametrize("nu", NUS)
def test_degenerate_inputs_stay_finite(nu):
    values = [torch.zeros(D), torch.full((D,), 1e-9), torch.full((D,), 1e9), torch.eye(D)[0]]
    for z in values:
        for s in values:
            z, s = z.clone()[None].requires_grad_(), s.clone()[None].requires_grad_()
            var = torch.full((1, D), vje.EPS, requires_grad=True)
            total = (vje.directional_nll(z, s, var, nu) + vje.radial_nll(z, s, nu) + vje.kl_standard_normal(s, var)).sum()
            assert all(torch.isfinite(x).all() for x in (total, *grad(total, z, s, var)))


def test_constants():
    printed = {(0.5, 1): -1.311, (1, 1): -1.145, (3, 1): -1.001}
    assert {key: round(vje.log_constant(*key), 3) for key in printed} == printed
    printed = {(0.5, 512): 1046.2, (1, 512): 870.9, (3, 512): 595.9, (3, 2048): 3784.6}
    assert {key: round(vje.log_constant(*key), 1) for key in printed} == printed
    assert all(math.isclose(vje.log_constant(nu, d), reference.log_constant(nu, d)) for nu in NUS for d in (1, 2, 512))
    assert math.isclose(vje.log_constant(1e9, 3), vje.log_constant(INF, 3), rel_tol=1e-6)


@pytest.mark.parametrize("nu", [1.0, 3.0, INF])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_kernel_integrates_to_one_over_space(nu, dim):
    t = torch.linspace(-25, 25, 4001)
    r = t.exp()[:, None]
    z, s = torch.ones(1, dim), -torch.ones(1, dim)  # z^ - s^ = 2 / sqrt(D) in each coordinate: var makes Q = r^2
    var = (4 / r**2).expand(-1, dim)
    log_density = -vje.directional_nll(z, s, var, nu, normalized=True) + var.log().sum(-1) / 2
    log_area = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
    assert abs((log_density + log_area + dim * t).exp().sum().item() * (t[1] - t[0]).item() - 1) < 1e-6


@pytest.mark.parametrize(("nu", "length", "printed"), [(0.5, 1.0, 0.699), (3.0, 15.0, 0.9997)])
def test_radial_factor_is_a_subdensity(nu, length, printed):
    t = torch.linspace(-25, 60, 20001)  # the tail at nu = 1/2 falls as slowly as r^(-1/2)
    r = t.exp()[:, None]
    mass = (t - vje.radial_nll(r, torch.full((1, 1), length), nu, normalized=True)).exp().sum() * (t[1] - t[0])
    assert abs(mass.item() - printed) < 0.5 * 10 ** -len(str(printed).split(".")[1])


MASSES = {
    (3, 3.0): (-1.20, -0.47, 0.15, 1.30, 3.60, 5.91), (64, 3.0): (-44.7, -25.2, -12.8, -1.69, 3.54, 5.91),
    (512, 3.0): (-392.6, -233.7, -131.0, -37.6, 1.33, 5.86), (512, 0.5): (-176.6, -100.7, -55.9, -16.1, 1.90, 5.52),
}  # fmt: skip


@pytest.mark.parametrize(("dim", "nu"), MASSES)
def test_isotropic_mass_on_the_sphere(dim, nu):
    t = torch.linspace(math.log(1e-8), math.log(math.pi), 3001)[:-1]
    z = plane(t.exp(), dim)
    log_area = math.log(2) + (dim - 1) / 2 * math.log(math.pi) - math.lgamma((dim - 1) / 2)
    for var, printed in zip((1.0, 0.32, 0.1, 0.01, 1e-4, 1e-6), MASSES[dim, nu], strict=True):
        nll = vje.directional_nll(z, z[:1], torch.full((1, dim), var), nu, normalized=True)
        logs = (dim - 2) * t.exp().sin().log() + t + log_area - nll
        result = torch.logsumexp(logs, 0).item() + math.log(t[1] - t[0])
        digits = len(str(printed).split(".")[1]) if abs(printed) > 9 else 2
        assert abs(result - printed) < 0.6 * 10**-digits


def isotropic(mu2, var, angle, dim=512):
    """Returns (z, s, mu, var) with |mu|^2 = mu2 at the angle to z, |s|^2 = mu2 + D var, s.z = sqrt(f) cos(angle) |s| |z|."""
    square = mu2 + dim * var
    s = square.sqrt() * plane(torch.acos((mu2 / square).sqrt() * math.cos(angle))[None], dim)
    mu = mu2.sqrt() * plane(torch.tensor([angle]), dim)
    return square.sqrt() * plane(torch.zeros(1), dim), s, mu, var.expand(1, dim)


def isotropic_loss(mu2, var, angle, nu, beta=1.0):
    z, s, mu, var = isotropic(torch.as_tensor(mu2), torch.as_tensor(var), angle)
    loss = vje.directional_nll(z, s, var, nu) + vje.radial_nll(z, s, nu) + beta * vje.kl_standard_normal(mu, var)
    return loss.squeeze()


ANGLE = math.asin(0.47)
EQUILIBRIA = {0.25: (446, 0.557), 0.5: (404, 0.505), 1: (350, 0.437), 2: (290, 0.362), 3: (255, 0.319), 5: (214, 0.267)}
EQUILIBRIA |= {10: (164, 0.205), 20: (124, 0.155), 50: (85, 0.106), INF: (27, 0.034)}


@pytest.mark.parametrize("nu", EQUILIBRIA)
def test_equilibrium(nu, dim=512, angle=ANGLE):
    square, mu2, var = reference.equilibrium(nu, dim, angle)
    assert (round(square), round(var, 3)) == EQUILIBRIA[nu]
    x = torch.tensor([4.0, -1.5], requires_grad=True)  # log |mu|^2, log var
    optimizer = torch.optim.LBFGS([x], max_iter=200, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = isotropic_loss(x[0].exp(), x[1].exp(), angle, nu)
        loss.backward()
        return loss

    optimizer.step(closure)
    close(x.detach().exp(), [mu2, var], 1e-4)
    close(mu2 + dim * var, square)


def test_beta_below_one_is_unbounded_below():
    variances = (1e-1, 1e-2, 1e-4, 1e-6)
    assert [round(isotropic_loss(200.0, v, 0.0, 3.0, beta=0.75).item()) for v in variances] == [-106, -253, -548, -842]
    barrier = np.diff([isotropic_loss(200.0, v, 0.0, 3.0, beta=1.25).item() for v in variances])
    assert (barrier > 100).all(), "at beta > 1 a small variance costs"
    level = [isotropic_loss(200.0, v, 0.0, 3.0).item() for v in variances]
    assert max(level) - min(level) < 50, "at beta = 1 no log of the variance is left"


def exact_log_prob(m, zb, za):
    """log p(y_b | z_a) for D = 3 by Gauss-Legendre in |s| and cos(polar angle), trapezoid in the azimuth."""
    nodes, weights = (torch.as_tensor(x) for x in np.polynomial.legendre.leggauss(40))
    r, wr, phi = 4.5 * (nodes + 1), 4.5 * weights, torch.arange(48) * (2 * math.pi / 48)
    r, c, p = (x.flatten() for x in torch.meshgrid(r, nodes, phi, indexing="ij"))
    w = (wr[:, None, None] * weights[None, :, None] * (2 * math.pi / 48)).expand(40, 40, 48).flatten()
    s = r[:, None] * torch.stack([(1 - c**2).sqrt() * p.cos(), (1 - c**2).sqrt() * p.sin(), c], 1)
    prior = w.log() + 2 * r.log() - r**2 / 2 - 1.5 * math.log(2 * math.pi)
    out = []
    for z, var in zip(zb, m.infer(za)[1], strict=True):
        nll = vje.directional_nll(z[None], s, var[None], m.nu, normalized=True) + vje.radial_nll(
            z[None], s, m.nu, normalized=True
        )
        out.append(torch.logsumexp(prior - nll, 0))
    return torch.stack(out)


@pytest.mark.parametrize("nu", [0.5, 3.0])
def test_log_prob_is_a_lower_bound(nu, n=500):
    za, zb = 2 * torch.randn(6, 3), 2 * torch.randn(6, 3)
    m = vje.VJE(3, nu=nu, hidden=8)
    m.inference = Fixed(torch.randn(6, 3), 0.6 + torch.rand(6, 3))  # var > 1/2: the weights' variance is finite
    with torch.no_grad():
        exact = exact_log_prob(m, zb, za)
        gaps = {k: torch.stack([m.log_prob(zb, za, samples=k) for _ in range(n)]) - exact for k in (1, 4, 64)}
    for few, many in ((1, 4), (4, 64)):
        rise = gaps[many] - gaps[few]
        assert z_score(rise.mean(1)) > 4 and z_score(rise).min() > -3, "more samples tighten the bound"
    for gap in (gaps[1], gaps[4]):
        assert z_score(gap.mean(1)) < -4 and z_score(gap).max() < 3, "the bound is from below"
    assert z_score(gaps[64].exp() - 1).abs().max() < 4, "exp(log_prob) is unbiased"


def z_score(x):
    return x.mean(0) / (x.std(0) / math.sqrt(len(x)))


def test_posterior_and_floor():
    m, z = model(), torch.randn(B, D)
    mu, var = m.infer(z)
    close(m.posterior(z).mean, mu)
    close(m.posterior(z).variance, var)
    with torch.no_grad():
        assert (m.infer(1e6 * z)[1] >= vje.EPS).all()
        m.inference.variance.bias.fill_(-1e4)
        close(m.infer(z)[1], torch.full((B, D), vje.EPS))
    assert [p.shape[0] for p in vje.VJE(512).inference.body.parameters()] == [128] * 12


def variant(target=torch.Tensor.detach, scale=torch.sqrt):
    """Returns VJE with one thing of eq. 38 different."""

    class Variant(vje.VJE):
        def forward(self, za, zb):
            out = dict.fromkeys(("directional", "radial", "kl"), 0.0)
            for zi, zj in ((za, zb), (zb, za)):
                mu, var = self.infer(zi)
                s = mu + scale(var) * torch.randn_like(mu)
                parts = {
                    "directional": vje.directional_nll(target(zj), s, var, self.nu).mean() / 2,
                    "radial": vje.radial_nll(target(zj), s, self.nu).mean() / 2,
                    "kl": self.beta * 0.5 * vje.kl_standard_normal(mu, var).mean(),
                }
                out = {term: out[term] + parts[term] for term in out}
            return out

    return Variant


def override(**methods):
    return lambda: type("Variant", (vje.VJE,), methods)


REAL, NLL, RADIAL = vje.VJE, vje.directional_nll, vje.radial_nll
PLANTED = {
    "KL without its half": (test_kl, "kl_standard_normal", lambda: lambda m, v: (v + m**2 - 1 - v.log()).sum(-1)),
    "deviation for variance": (test_directional, "directional_nll", lambda: lambda z, s, v, *a, **k: NLL(z, s, v**0.5, *a, **k)),
    "direction for the embedding": (test_plain, "student_nll", lambda: lambda *a, **k: NLL(*a, **k)),
    "no length of the sample": (test_radial, "radial_nll", lambda: lambda z, s, nu, **k: RADIAL(z, 0 * s, nu, **k)),
    "no detach": (test_target_is_detached, "VJE", lambda: variant(target=lambda z: z)),
    "detached g input": (test_encoder_learns, "VJE", override(infer=lambda self, z: REAL.infer(self, z.detach()))),
    "noise times variance": (test_loss, "VJE", lambda: variant(scale=lambda v: v)),
}


@pytest.mark.parametrize("error", PLANTED)
def test_planted_error_is_caught(error, monkeypatch):
    require_caught(PLANTED[error], vje, monkeypatch)


def test_the_planting_itself_is_sound(monkeypatch):
    monkeypatch.setattr(vje, "VJE", variant())
    for check in (test_loss, test_target_is_detached, test_encoder_learns):
        check()
