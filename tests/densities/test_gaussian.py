"""Densities against scipy, quadrature and dense algebra: values, draws, blocks, conditionals, gradients."""

import math

import pytest
import torch
from scipy import integrate, stats
from torch.distributions import MultivariateNormal

from vergence.densities.covariance import Dense, Diagonal, LowRank, PairedLowRank, rotated
from vergence.densities.gaussian import GaussianMixture, JointGaussian

D, C, K = 5, 2, 3
KINDS = ("dense", "diagonal", "low rank")


def covariance(kind, *batch, d=D, seed=0):
    g = torch.Generator().manual_seed(seed)
    if kind == "dense":
        a = torch.randn(*batch, d, d, generator=g)
        return Dense.of(a @ a.mT + 0.5 * torch.eye(d))
    variances = torch.rand(*batch, d, generator=g) + 0.3
    return Diagonal(variances) if kind == "diagonal" else LowRank(variances, torch.randn(*batch, d, 2, generator=g))


def joint(kind, *batch):
    return JointGaussian(torch.randn(*batch, D), covariance(kind, *batch), context=C)


def mixture(kind, *batch):
    return GaussianMixture(torch.randn(*batch, K), 2 * torch.randn(*batch, K, D), covariance(kind, *batch, K), context=C)


def close(a, b, tol=1e-10):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


# --- covariances


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_covariances_are_their_dense_matrix(kind, batch):
    S = covariance(kind, *batch)
    dense, x = S.dense(), torch.randn(7, *batch, D)
    assert S.shape == (*batch, D)
    close(S.log_det(), torch.linalg.slogdet(dense)[1])
    close(S.quadratic(x), (x * torch.linalg.solve(dense, x[..., None])[..., 0]).sum(-1))
    close(S.variance(), dense.diagonal(dim1=-2, dim2=-1))
    for where in (
        slice(0, 2),
        slice(2, None),
        slice(1, 4),
        slice(0, None, 2),
        slice(None, 4, 3),
        slice(-D, 3),
        slice(1, None, 2),
    ):
        close(S.block(where).dense(), dense[..., where, where])
    wide = S.expand(torch.Size((6, *batch)))
    assert wide.shape == (6, *batch, D)
    close(wide.log_det()[0], S.log_det())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_schur_complement_is_the_dense_one(kind, batch):
    S = covariance(kind, *batch)
    dense, x = S.dense(), torch.randn(4, *batch, C)
    A = torch.linalg.solve(dense[..., :C, :C], dense[..., :C, C:]).mT
    shift, rest = S.conditional(C, x)
    close(shift, (A @ x[..., None])[..., 0])
    close(rest.dense(), dense[..., C:, C:] - A @ dense[..., :C, C:])
    assert isinstance(rest, type(S))  # low rank stays low rank, diagonal stays diagonal


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_units(kind):
    p, a, b = mixture(kind, 2), torch.rand(D) + 0.5, torch.randn(D)
    z = torch.randn(5, 2, D)
    close(p.affine(a, b).log_prob(a * z + b), p.log_prob(z) - a.log().sum())
    one = joint(kind, 2)
    close(one.affine(a, b).covariance, a[:, None] * one.covariance * a)


@pytest.mark.parametrize("kind", KINDS)
def test_distribution_functions_of_features(kind):
    p = mixture(kind, 2)
    value = torch.randn(4, 2, D)
    parts = p.component_distribution
    expected = sum(
        p.weights[:, k, None] * torch.as_tensor(stats.norm.cdf(value, parts.mean[:, k], parts.variance[:, k].sqrt()))
        for k in range(K)
    )
    close(p.marginal_cdf(value), expected)
    for level in (0.01, 0.5, 0.975):
        close(p.marginal_cdf(p.marginal_quantile(level)), torch.full((2, D), level), 1e-9)
        one = joint(kind)
        close(one.marginal_quantile(level), stats.norm.ppf(level, one.mean, one.variance.sqrt()), 1e-9)
        close(one.marginal_cdf(one.marginal_quantile(level)), torch.full((D,), level), 1e-9)


def test_polar_student_t_is_vjes_likelihood():
    from tests.reference import vje as reference

    from vergence.densities.polar import PolarStudentT

    s, var, z = torch.randn(3, D), torch.rand(3, D) + 0.5, torch.randn(3, D)
    for nu in (0.5, 3.0, math.inf):
        p = PolarStudentT(s, var, nu)
        expected = [
            -reference.directional_nll(a.tolist(), b.tolist(), v.tolist(), nu, True)
            - reference.radial_nll(a.tolist(), b.tolist(), nu, True)
            for a, b, v in zip(z, s, var, strict=True)
        ]
        close(p.log_prob(z), expected)
        assert (p.log_prob(p.mode) >= p.log_prob(z)).all() and p.batch_shape == (3,) and p.event_shape == (D,)
    with pytest.raises(ValueError, match="nu > 0"):
        PolarStudentT(s, var, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_covariance(kind):
    S = covariance(kind)
    x = S.rsample(torch.Size((200_000, D)))
    found, dense = x.T @ x / len(x), S.dense()
    spread = torch.sqrt((dense.diagonal()[:, None] * dense.diagonal() + dense.square()) / len(x))
    assert ((found - dense) / spread).abs().max() < 4.5


# --- Gaussians


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_gaussians_are_torchs(kind, batch):
    p = joint(kind, *batch)
    oracle, z = MultivariateNormal(p.mean, p.covariance), torch.randn(6, *batch, D)
    close(p.log_prob(z), oracle.log_prob(z))
    close(p.entropy(), oracle.entropy())
    close(p.variance, oracle.variance)
    assert p.rsample((2,)).shape == (2, *batch, D) and p.expand((5, *batch)).log_prob(z[0]).shape == (5, *batch)
    one = stats.multivariate_normal(p.mean.reshape(-1, D)[0], p.covariance.reshape(-1, D, D)[0])
    close(p.log_prob(z).reshape(6, -1)[:, 0], one.logpdf(z.reshape(6, -1, D)[:, 0]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [joint, mixture])
@pytest.mark.parametrize("batch", [(), (4,)])
def test_the_joint_is_marginal_times_conditional(make, kind, batch):
    p = make(kind, *batch)
    z = torch.randn(6, *batch, D)
    product = p.marginal("context").log_prob(z[..., :C]) + p.conditional(z[..., :C]).log_prob(z[..., C:])
    close(p.log_prob(z), product)
    swapped = p.marginal("target")
    assert swapped.event_shape == (D - C,)
    close(p.marginal(slice(1, 4)).mean, p.mean[..., 1:4])


def test_a_conditional_gaussian_is_the_regression():
    x = torch.randn(400, D) @ torch.randn(D, D)
    mean, S = x.mean(0), (x - x.mean(0)).T @ (x - x.mean(0)) / len(x)
    given = JointGaussian(mean, S, context=C).conditional(x[:, :C])
    design = torch.cat([torch.ones(400, 1), x[:, :C]], 1)
    fitted = design @ torch.linalg.lstsq(design, x[:, C:]).solution
    close(given.mean, fitted, 1e-8)
    residual = x[:, C:] - fitted
    close(given.covariance[0], residual.T @ residual / 400, 1e-8)


# --- mixtures


@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_are_the_sum_of_their_parts(kind):
    p, z = mixture(kind), torch.randn(9, D)
    parts = p.component_distribution
    total = sum(w * parts.expand((K,)).log_prob(z[:, None])[:, k].exp() for k, w in enumerate(p.weights))
    close(p.log_prob(z), total.log())
    close(p.responsibilities(z).sum(-1), torch.ones(9))
    x = p.sample((200_000,))
    assert ((x.mean(0) - p.mean) / (p.variance / len(x)).sqrt()).abs().max() < 4.5
    close((x - x.mean(0)).T @ (x - x.mean(0)) / len(x), p.covariance, 0.1)
    assert p.entropy() >= -p.log_prob(x).mean() - 0.02
    order = torch.tensor([2, 0, 1])
    q = GaussianMixture(p.mixture_distribution.logits[order], parts.mean[order], parts.covariance[order])
    close(q.log_prob(z), p.log_prob(z))


def test_a_conditional_mixture_has_mass_one():
    p = GaussianMixture(torch.randn(K), 2 * torch.randn(K, 2), covariance("dense", K, d=2), context=1)
    for x in (-2.0, 0.0, 3.0):
        given = p.conditional(torch.tensor([x]))
        mass = integrate.quad(lambda y, g=given: g.log_prob(torch.tensor([y])).exp().item(), -40, 40, limit=400)[0]
        mean = integrate.quad(lambda y, g=given: y * g.log_prob(torch.tensor([y])).exp().item(), -40, 40, limit=400)[0]
        assert math.isclose(mass, 1, abs_tol=1e-6) and math.isclose(mean, given.mean.item(), abs_tol=1e-5)


def test_the_mode_is_an_answer_and_not_their_average():
    p = GaussianMixture(torch.tensor([0.0, 0.1]), torch.tensor([[-5.0], [5.0]]), Diagonal(torch.ones(1)))
    assert p.mode.item() == 5 and abs(p.mean.item()) < 1
    many = GaussianMixture(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[-5.0], [5.0]]), Diagonal(torch.ones(1)))
    assert many.mode.flatten().tolist() == [5, -5]


def test_answers_are_the_information_that_a_sample_has_of_its_component():
    weights, mean, std = [0.2, 0.5, 0.3], [-1.0, 0.5, 4.0], [0.5, 1.0, 0.7]

    def integrand(z):
        joint = [w * stats.norm(m, s).pdf(z) for w, m, s in zip(weights, mean, std, strict=True)]
        return sum(j * math.log(j / sum(joint) / w) for j, w in zip(joint, weights, strict=True) if j > 0)

    information = integrate.quad(integrand, -8, 12, points=mean, limit=200)[0]
    variance = torch.tensor(std)[:, None, None].square()
    p = GaussianMixture(torch.tensor(weights).log(), torch.tensor(mean)[:, None], variance)
    state = torch.get_rng_state()
    assert p.n_answers(draws=20000).item() == pytest.approx(math.exp(information), rel=0.02)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    S = covariance(kind, K)
    leaves = [t.clone().requires_grad_() for t in vars(S).values()]
    logits, mean, z = (torch.randn(*shape, requires_grad=True) for shape in ((K,), (K, D), (2, D)))

    def conditional(logits, mean, z, *parts):
        parts = [p.tril() for p in parts] if kind == "dense" else parts
        p = GaussianMixture(logits, mean, type(S)(*parts), context=C)
        return p.conditional(z[:, :C]).log_prob(z[:, C:])

    assert torch.autograd.gradcheck(conditional, (logits, mean, z, *leaves))


@pytest.mark.parametrize(
    "call",
    [
        lambda: JointGaussian(torch.zeros(3), torch.eye(4)),
        lambda: JointGaussian(torch.zeros(3), torch.eye(3), context=3),
        lambda: JointGaussian(torch.zeros(3), torch.eye(3)).conditional(torch.zeros(1)),
        lambda: JointGaussian(torch.zeros(3), torch.eye(3), context=1).conditional(torch.zeros(2)),
        lambda: JointGaussian(torch.zeros(3), torch.eye(3)).marginal("context"),
        lambda: JointGaussian(torch.zeros(3), torch.eye(3), context=1).marginal("left"),
        lambda: JointGaussian(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
        lambda: JointGaussian(torch.zeros(3), torch.eye(3)).log_prob(torch.zeros(5, 1)),
        lambda: GaussianMixture(torch.zeros(2), torch.zeros(2, 3), torch.eye(3)).log_prob(torch.zeros(5, 1)),
        lambda: GaussianMixture(torch.zeros(2), torch.zeros(2, 3), torch.eye(3)).log_prob(torch.zeros(5, 4)),
    ],
)
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ValueError, match="expected"):
        call()


# --- precision and units


@pytest.mark.float32
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_becomes_float32(dtype):
    g = torch.Generator().manual_seed(0)
    mean, z = torch.randn(3, 4, generator=g).to(dtype), torch.randn(6, 4, generator=g).to(dtype)
    S = (torch.eye(4) + 0.5).to(dtype)
    for covariance in (S, Diagonal(S.diagonal()), LowRank(S.diagonal(), S[:, :2])):
        for p in (JointGaussian(mean[0], covariance, 2), GaussianMixture(torch.zeros(3, dtype=dtype), mean, covariance, 2)):
            exact = type(covariance)(*(v.double() for v in vars(covariance).values())) if covariance is not S else S.double()
            wide = mean[0].double() if isinstance(p, JointGaussian) else mean.double()
            q = JointGaussian(wide, exact, 2) if wide.ndim == 1 else GaussianMixture(torch.zeros(3).double(), wide, exact, 2)
            for found, expected in (
                (p.log_prob(z), q.log_prob(z.double())),
                (p.conditional(z[:, :2]).log_prob(z[:, 2:]), q.conditional(z[:, :2].double()).log_prob(z[:, 2:].double())),
                (p.marginal_quantile(0.9), q.marginal_quantile(0.9)),
            ):
                assert found.dtype == torch.float32
                torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
            assert p.sample((2,)).dtype == torch.float32


def test_conditionals_of_features_in_far_units():
    """A context twice the same, of deviation 1e6, and a target of deviation 0.1: the variance is 0.1^2 (1 - 0.5^2)."""
    scale = torch.tensor([1e6, 1e6, 0.1])
    S = scale[:, None] * torch.tensor([[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 0.5, 1.0]]) * scale
    given = JointGaussian(torch.zeros(3), S, context=2).conditional(torch.tensor([2e6, 2e6]))
    close(given.variance, torch.tensor([0.0075]), 1e-9)
    close(given.mean, torch.tensor([0.1]), 1e-9)


@pytest.mark.float32
def test_the_block_of_an_ill_conditioned_target_is_finite_in_float32():
    g = torch.Generator().manual_seed(1)
    t = torch.randn(6, 3, generator=g).double()
    t = torch.cat([t, t + 1e-5 * torch.randn(6, 3, generator=g).double()], 1)  # six nearly dependent features
    S = torch.block_diag(torch.eye(2).double(), t.T @ t)
    p = JointGaussian(torch.zeros(8), Dense(Dense.of(S).L.float()), context=2)
    exact = torch.linalg.slogdet(S[2:, 2:])[1].float()
    block = p.marginal("target")
    assert block.S.log_det().isfinite() and block.log_prob(torch.zeros(6)).isfinite()
    torch.testing.assert_close(block.S.log_det(), exact, rtol=0.02, atol=0)


@pytest.mark.float32
@pytest.mark.parametrize("make", ["low rank", "paired"])
def test_quadratic_forms_of_low_rank_are_right_in_float32(make):
    """Shared directions a thousand times the own deviations: x^T x / d is 1e6 times what is left of it."""
    g = torch.Generator().manual_seed(0)
    d, U = torch.rand(8, generator=g) + 0.5, 1e3 * torch.randn(8, 3, generator=g)
    S = LowRank(d, U) if make == "low rank" else PairedLowRank(d[:4], d[4:], 0.3 * torch.ones(4), U)
    x = torch.randn(500, 3, generator=g) @ U.T + torch.randn(500, 8, generator=g)
    exact = type(S)(*(v.double() for v in vars(S).values())).quadratic(x.double())
    found = S.quadratic(x)
    assert (found >= 0).all()
    torch.testing.assert_close(found, exact.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.float32
@pytest.mark.parametrize("p", [2e-8, 1 - 2e-8, 1 - 1e-12, 1e-30])
def test_quantiles_far_in_the_tails_are_finite_in_float32(p):
    one = JointGaussian(torch.zeros(2), torch.eye(2))
    torch.testing.assert_close(one.marginal_quantile(p), torch.full((2,), float(stats.norm.ppf(p))))
    mixture = GaussianMixture(torch.zeros(2), torch.tensor([[0.0], [3.0]]), Diagonal(torch.ones(1)))
    found = mixture.marginal_quantile(p).double()
    exact = GaussianMixture(torch.zeros(2).double(), torch.tensor([[0.0], [3.0]]).double(), Diagonal(torch.ones(1).double()))
    torch.testing.assert_close(found, exact.marginal_quantile(p), rtol=1e-5, atol=1e-5)


def paired(*batch, H=3, r=2):
    """Returns a random covariance of pairs."""
    pa, pb = torch.rand(*batch, H) + 0.5, torch.rand(*batch, H) + 0.5
    return PairedLowRank(pa, pb, (2 * torch.rand(*batch, H) - 1) * 0.9 * (pa * pb).sqrt(), torch.randn(*batch, 2 * H, r))


@pytest.mark.parametrize("batch", [(), (4,)])
def test_covariances_of_pairs_are_their_dense_form(batch):
    S = paired(*batch)
    dense, x = Dense.of(S.dense()), torch.randn(5, *batch, 6)
    torch.testing.assert_close(S.log_det(), dense.log_det())
    torch.testing.assert_close(S.quadratic(x), dense.quadratic(x))
    torch.testing.assert_close(S.variance(), dense.variance())
    torch.testing.assert_close(S.scaled(torch.arange(1.0, 7)).dense(), dense.scaled(torch.arange(1.0, 7)).dense())
    for where in (slice(0, 3), slice(3, None)):
        torch.testing.assert_close(S.block(where).dense(), S.dense()[..., where, where])
    shift, C = S.conditional(3, x[..., :3])
    expected, D = dense.conditional(3, x[..., :3])
    torch.testing.assert_close(shift, expected)
    torch.testing.assert_close(C.dense(), D.dense())
    with pytest.raises(ValueError, match="expected the first view"):
        S.conditional(2, x[..., :2])
    with pytest.raises(ValueError, match="expected one view"):
        S.block(slice(0, 2))


def test_covariances_of_pairs_are_drawn_picked_and_turned():
    S = paired(4)
    z = S.index_components(torch.tensor([2])).rsample(torch.Size((200_000, 1, 6)))[:, 0]
    error = (torch.cov(z.T) - S.dense()[2]) / (torch.outer(S.variance()[2], S.variance()[2]) * 2 / len(z)).sqrt()
    assert error.abs().max() < 5
    d, U = torch.rand(6) + 0.1, torch.randn(6, 2)
    T = rotated(torch.eye(6)).T
    torch.testing.assert_close(PairedLowRank.of_sums(d, U).dense(), T.T @ (torch.diag(d) + U @ U.T) @ T)
    torch.testing.assert_close(T @ T, torch.eye(6))
    mixture = GaussianMixture(torch.randn(4), torch.randn(4, 6), S, context=3)
    plain = GaussianMixture(mixture.mixture_distribution.logits, mixture.component_distribution.loc, S.dense(), context=3)
    x = torch.randn(7, 6)
    torch.testing.assert_close(mixture.log_prob(x), plain.log_prob(x))
    torch.testing.assert_close(mixture.conditional(x[:, :3]).log_prob(x[:, 3:]), plain.conditional(x[:, :3]).log_prob(x[:, 3:]))
    torch.testing.assert_close(mixture.expand((2,)).log_prob(x[:2]), plain.log_prob(x[:2]))


def test_weights_that_share_components_need_no_copies():
    loc, d, logits = torch.randn(5, 3) + 100, torch.rand(3) + 0.1, torch.randn(7, 5)
    shared = GaussianMixture(logits, loc, Diagonal(d))
    copies = GaussianMixture(logits, loc.expand(7, 5, 3).clone(), Diagonal(d.expand(7, 5, 3).clone()))
    assert shared.common is not None and copies.common is None
    for name in ("mean", "variance", "mode"):
        torch.testing.assert_close(getattr(shared, name), getattr(copies, name))
    torch.testing.assert_close(shared.entropy(), copies.entropy())
    x = torch.randn(7, 3) + 100
    torch.testing.assert_close(shared.log_prob(x), copies.log_prob(x))
