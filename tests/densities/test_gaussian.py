"""Densities against scipy, quadrature and dense algebra: values, samples, blocks, conditionals, gradients, precision."""

import math

import pytest
import torch
from scipy import stats
from torch.distributions import MultivariateNormal
from torch.nn.functional import normalize

from vergence.densities.covariance import Covariance, Dense, Diagonal, LowRank, Paired, rotated
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians, given_observed, log_prob_observed
from vergence.densities.particles import KernelMixture
from vergence.densities.power_spherical import PowerSpherical

D, C, K = 6, 3, 3
KINDS = ("dense", "diagonal", "low rank", "paired")


def covariance(kind, *batch, d=D, seed=0):
    g = torch.Generator().manual_seed(seed)
    if kind == "dense":
        a = torch.randn(*batch, d, d, generator=g)
        return Dense.of(a @ a.mT + 0.5 * torch.eye(d))
    variances, U = torch.rand(*batch, d, generator=g) + 0.3, torch.randn(*batch, d, 2, generator=g)
    if kind == "paired":
        pa, pb = variances.chunk(2, -1)
        return LowRank(Paired(pa, pb, (2 * torch.rand(*batch, d // 2, generator=g) - 1) * 0.9 * (pa * pb).sqrt()), U)
    return Diagonal(variances) if kind == "diagonal" else LowRank(Diagonal(variances), U)


def joint(kind, *batch, d=D):
    return JointGaussian(torch.randn(*batch, d), covariance(kind, *batch, d=d), context=d // 2)


def mixture(kind, *batch, d=D):
    S = covariance(kind, *batch, K, d=d)
    return MixtureOfGaussians(torch.randn(*batch, K), 2 * torch.randn(*batch, K, d), S, context=d // 2)


def close(a, b, tol=1e-10):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


DENSITIES = {
    **{f"{kind} Gaussian": lambda kind=kind: joint(kind, d=2) for kind in KINDS},
    **{f"{kind} mixture": lambda kind=kind: mixture(kind, d=2) for kind in KINDS},
    "kernels": lambda: KernelMixture(torch.randn(5), 2 * torch.randn(5, 2), torch.tensor(0.3), context=1),
    "power spherical": lambda: PowerSpherical(normalize(torch.randn(2), dim=0), torch.tensor(4.0)),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_mass_mean_covariance_entropy_and_samples_agree(name):
    """By a sum over a grid of the plane, or of the circle, whose error vanishes faster than any power of its width."""
    p = DENSITIES[name]()
    t = torch.linspace(-1, 1, 801)[:-1]
    if isinstance(p, PowerSpherical):
        z, cell = torch.stack([(math.pi * t).cos(), (math.pi * t).sin()], 1), math.pi * (t[1] - t[0])
    else:
        z = p.mean + 12 * p.variance.sqrt() * torch.cartesian_prod(t[::4], t[::4])
        cell = (144 * p.variance.prod().sqrt()) * (t[4] - t[0]) ** 2
    log_prob = p.log_prob(z)
    mass = log_prob.exp() * cell
    close(mass.sum(), 1.0, 1e-5)
    close(mass @ z, p.mean, 1e-4)
    close(mass @ (z - p.mean).square(), p.variance, 1e-4)
    entropy = -(mass * log_prob)[mass > 0].sum()
    assert p.entropy() >= entropy - 1e-5  # of mixtures an upper bound
    if not isinstance(p, MixtureOfGaussians):
        close(p.entropy(), entropy, 1e-4)
    x = p.sample((100_000,))
    assert x.shape == (100_000, 2) and p.sample((2, 3)).shape == (2, 3, 2)
    assert ((x.mean(0) - p.mean) / (p.variance / len(x)).sqrt()).abs().max() < 4.5
    values = -p.log_prob(x)
    assert abs(values.mean() - entropy) < 4.5 * values.std() / len(x) ** 0.5
    assert p.log_prob(p.mode) > entropy.neg() - 1  # the mode is no improbable value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_covariances_are_their_dense_matrix(kind, batch):
    S = covariance(kind, *batch)
    dense, x, a = S.dense(), torch.randn(7, *batch, D), torch.rand(D) + 0.5
    assert S.shape == (*batch, D)
    close(S.log_det(), torch.linalg.slogdet(dense)[1])
    close(S.quadratic(x), (x * torch.linalg.solve(dense, x[..., None])[..., 0]).sum(-1))
    close(S.variance(), dense.diagonal(dim1=-2, dim2=-1))
    close(S.scaled(a).dense(), a[:, None] * dense * a)
    slices = [slice(1, 4), slice(0, None, 2), slice(None, 4, 3), slice(-D, 2), slice(1, None, 2)] if kind != "paired" else []
    for where in (slice(0, C), slice(C, None), *slices):
        close(S.block(where).dense(), dense[..., where, where])
    wide = S.expand(torch.Size((6, *batch)))
    assert wide.shape == (6, *batch, D)
    close(wide.log_det()[0], S.log_det())
    if batch:
        close(S.index_components(torch.ones(batch[:-1], dtype=torch.long)).dense(), dense[..., 1, :, :])


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
def test_samples_have_the_covariance(kind):
    S = covariance(kind)
    x = S.rsample(torch.Size((200_000, D)))
    sampled, dense = x.T @ x / len(x), S.dense()
    spread = torch.sqrt((dense.diagonal()[:, None] * dense.diagonal() + dense.square()) / len(x))
    assert ((sampled - dense) / spread).abs().max() < 4.5


def test_pairs_are_sums_and_differences():
    d, U = torch.rand(6) + 0.1, torch.randn(6, 2)
    T = rotated(torch.eye(6)).T
    close(LowRank.of_sums(d, U).dense(), T.T @ (torch.diag(d) + U @ U.T) @ T)
    close(T @ T, torch.eye(6))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_gaussians_are_torchs(kind, batch):
    p = joint(kind, *batch)
    oracle, z = MultivariateNormal(p.mean, p.covariance), torch.randn(6, *batch, D)
    close(p.log_prob(z), oracle.log_prob(z))
    close(p.entropy(), oracle.entropy())
    close(p.variance, oracle.variance)
    assert p.rsample((2,)).shape == (2, *batch, D) and p.expand((5, *batch)).log_prob(z[0]).shape == (5, *batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [joint, mixture])
@pytest.mark.parametrize("batch", [(), (4,)])
def test_the_joint_is_marginal_times_conditional(make, kind, batch):
    p = make(kind, *batch)
    z = torch.randn(6, *batch, D)
    product = p.marginal("context").log_prob(z[..., :C]) + p.conditional(z[..., :C]).log_prob(z[..., C:])
    close(p.log_prob(z), product)
    assert p.marginal("target").event_shape == (D - C,)
    close(p.marginal(slice(0, C)).mean, p.mean[..., :C])


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_units(kind):
    p, a, b = mixture(kind, 2), torch.rand(D) + 0.5, torch.randn(D)
    z = torch.randn(5, 2, D)
    close(p.affine(a, b).log_prob(a * z + b), p.log_prob(z) - a.log().sum())


@pytest.mark.parametrize("kind", KINDS)
def test_distribution_functions_of_features(kind):
    p, one, value = mixture(kind, 2), joint(kind), torch.randn(4, 2, D)
    parts = p.component_distribution
    cdf = [stats.norm.cdf(value, parts.mean[:, k], parts.variance[:, k].sqrt()) for k in range(K)]
    close(p.marginal_cdf(value), sum(p.weights[:, k, None] * torch.as_tensor(cdf[k]) for k in range(K)))
    for level in (0.01, 0.5, 0.975):
        close(p.marginal_cdf(p.marginal_quantile(level)), torch.full((2, D), level), 1e-9)
        close(one.marginal_quantile(level), stats.norm.ppf(level, one.mean, one.variance.sqrt()), 1e-9)
        close(one.marginal_cdf(one.marginal_quantile(level)), torch.full((D,), level), 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_are_the_sum_of_their_parts(kind):
    p, z = mixture(kind), torch.randn(9, D)
    parts, dense = p.component_distribution, p.component_distribution.covariance
    total = sum(w * JointGaussian(parts.loc[k], dense[k]).log_prob(z).exp() for k, w in enumerate(p.weights))
    close(p.log_prob(z), total.log())
    close(p.responsibilities(z).sum(-1), torch.ones(9))
    order = torch.tensor([2, 0, 1])
    q = MixtureOfGaussians(p.mixture_distribution.logits[order], parts.mean[order], dense[order])
    close(q.log_prob(z), p.log_prob(z))
    close(p.covariance.diagonal(), p.variance)


def test_the_mode_is_an_answer_and_not_their_average():
    p = MixtureOfGaussians(torch.tensor([0.0, 0.1]), torch.tensor([[-5.0], [5.0]]), Diagonal(torch.ones(1)))
    assert p.mode.item() == 5 and abs(p.mean.item()) < 1
    many = MixtureOfGaussians(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[-5.0], [5.0]]), Diagonal(torch.ones(1)))
    assert many.mode.flatten().tolist() == [5, -5]


@pytest.mark.parametrize("D", [1, 2])
def test_answers_are_the_modes_that_components_climb_to(D):
    g = torch.Generator().manual_seed(1)
    logits, mean = torch.randn(20, 6, generator=g), 3 * torch.randn(20, 6, D, generator=g)
    root = 0.4 * torch.randn(20, 6, D, D, generator=g) + torch.eye(D)
    p = MixtureOfGaussians(logits, mean, root @ root.mT)
    modes, weight = p.modes()
    z = modes.clone().requires_grad_()
    top = torch.stack([p.log_prob(z[:, s]) for s in range(6)], 1)
    assert torch.autograd.grad(top.sum(), z)[0].abs().max() < 0.05
    assert (top >= torch.stack([p.log_prob(mean[:, s]) for s in range(6)], 1).sort(1).values[:, :1] - 1e-9).all()
    close(weight.sum(1), torch.ones(20))
    assert ((1 - 1e-9 <= p.n_answers()) & (p.n_answers() <= 6 + 1e-9)).all()
    if D == 1:  # as many as a fine grid shows
        x = torch.linspace(-15, 15, 60_001)[:, None, None]
        f = p.log_prob(x)
        peaks = ((f[1:-1] > f[:-2]) & (f[1:-1] >= f[2:])).sum(0)
        assert ((weight > 0).sum(1) <= peaks).all() and ((weight > 0).sum(1) == peaks).double().mean() > 0.8


def test_weights_that_share_components_need_no_copies():
    loc, d, logits = torch.randn(5, 3) + 100, torch.rand(3) + 0.1, torch.randn(7, 5)
    shared = MixtureOfGaussians(logits, loc, Diagonal(d))
    copies = MixtureOfGaussians(logits, loc.expand(7, 5, 3).clone(), Diagonal(d.expand(7, 5, 3).clone()))
    assert shared.common is not None and copies.common is None
    for name in ("mean", "variance", "mode"):
        close(getattr(shared, name), getattr(copies, name), 1e-7)
    close(shared.entropy(), copies.entropy())
    x = torch.randn(7, 3) + 100
    close(shared.log_prob(x), copies.log_prob(x))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    S, leaves = covariance(kind, K), []
    S.map(lambda x, _: leaves.append(x.clone().requires_grad_()))
    logits, mean, z = (torch.randn(*shape, requires_grad=True) for shape in ((K,), (K, D), (2, D)))

    def conditional(logits, mean, z, *parts):
        parts = iter(part.tril() if kind == "dense" else part for part in parts)
        p = MixtureOfGaussians(logits, mean, S.map(lambda *_: next(parts)), context=C)
        return p.conditional(z[:, :C]).log_prob(z[:, C:])

    assert torch.autograd.gradcheck(conditional, (logits, mean, z, *leaves), fast_mode=True)


@pytest.mark.float32
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_becomes_float32(dtype):
    g = torch.Generator().manual_seed(0)
    mean, z = torch.randn(3, 4, generator=g).to(dtype), torch.randn(6, 4, generator=g).to(dtype)
    S = (torch.eye(4) + 0.5).to(dtype)
    for half in (S, Diagonal(S.diagonal()), LowRank(Diagonal(S.diagonal()), S[:, :2])):
        exact = half.map(lambda x, _: x.double()) if isinstance(half, Covariance) else half.double()
        pairs = (
            (JointGaussian(mean[0], half, 2), JointGaussian(mean[0].double(), exact, 2)),
            (
                MixtureOfGaussians(torch.zeros(3, dtype=dtype), mean, half, 2),
                MixtureOfGaussians(torch.zeros(3), mean.double(), exact, 2),
            ),
        )
        for p, q in pairs:
            for single, double in (
                (p.log_prob(z), q.log_prob(z.double())),
                (p.conditional(z[:, :2]).log_prob(z[:, 2:]), q.conditional(z[:, :2].double()).log_prob(z[:, 2:].double())),
                (p.marginal_quantile(0.9), q.marginal_quantile(0.9)),
            ):
                assert single.dtype == torch.float32
                close(single, double.float(), 1e-4)
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
    block = JointGaussian(torch.zeros(8), Dense(Dense.of(S).L.float()), context=2).marginal("target")
    assert block.log_prob(torch.zeros(6)).isfinite()
    torch.testing.assert_close(block.S.log_det(), torch.linalg.slogdet(S[2:, 2:])[1].float(), rtol=0.02, atol=0)


@pytest.mark.float32
@pytest.mark.parametrize("kind", ["low rank", "paired"])
def test_quadratic_forms_of_low_rank_are_right_in_float32(kind):
    """Shared directions a thousand times the deviations around them: x^T x / d is 1e6 times what is left of it."""
    g = torch.Generator().manual_seed(0)
    d, U = torch.rand(8, generator=g) + 0.5, 1e3 * torch.randn(8, 3, generator=g)
    S = LowRank(Diagonal(d) if kind == "low rank" else Paired(d[:4], d[4:], 0.3 * torch.ones(4)), U)
    x = torch.randn(500, 3, generator=g) @ U.T + torch.randn(500, 8, generator=g)
    quadratic = S.quadratic(x)
    assert (quadratic >= 0).all()
    close(quadratic, S.map(lambda part, _: part.double()).quadratic(x.double()).float(), 1e-2)


@pytest.mark.float32
@pytest.mark.parametrize("p", [2e-8, 1 - 2e-8, 1 - 1e-12, 1e-30])
def test_quantiles_far_in_the_tails_are_finite_in_float32(p):
    found = JointGaussian(torch.zeros(2), torch.eye(2)).marginal_quantile(p)
    torch.testing.assert_close(found, torch.full((2,), float(stats.norm.ppf(p))))
    single, double = (
        MixtureOfGaussians(torch.zeros(2, dtype=t), torch.tensor([[0.0], [3.0]], dtype=t), Diagonal(torch.ones(1, dtype=t)))
        for t in (torch.float32, torch.float64)
    )
    close(single.marginal_quantile(p).double(), double.marginal_quantile(p), 1e-5)


@pytest.mark.parametrize("K", [0, 3])
def test_gaps_are_integrated_over(K):
    """By brute force: the joint density of what is known, and quadrature over a missing context."""
    g = torch.Generator().manual_seed(0)
    D, C = 4, 2
    root = torch.randn(max(K, 1), D, D, generator=g) + torch.eye(D)
    mean, S = torch.randn(max(K, 1), D, generator=g), root @ root.mT
    joint = MixtureOfGaussians(torch.randn(K, generator=g), mean, S, C) if K else JointGaussian(mean[0], S[0], C)
    c = torch.tensor([[0.3, math.nan], [math.nan, -0.2], [math.nan, math.nan], [0.1, 0.4]])
    t = torch.randn(4, 2, generator=g)
    found = given_observed(joint, c).log_prob(t)
    keep = [[0, 2, 3], [1, 2, 3], [2, 3], [0, 1, 2, 3]]
    for i, dims in enumerate(keep):
        parts = [(mean[k][dims], S[k][dims][:, dims]) for k in range(max(K, 1))]
        log_w = joint.mixture_distribution.logits if K else torch.zeros(1)
        known = [d for d in dims if d < C]
        z = torch.cat([c[i, known], t[i]])
        n = len(known)

        def log_p(values, upto):
            each = [JointGaussian(m[:upto], V[:upto, :upto]).log_prob(values[:upto]) for m, V in parts]  # noqa: B023
            return torch.logsumexp(log_w + torch.stack(each), 0)  # noqa: B023

        right = log_p(z, len(dims)) - (log_p(z, n) if n else 0.0)
        close(found[i], right, 1e-9)
    p = given_observed(joint, c)
    gap = t.clone()
    gap[:, 1] = math.nan
    close(log_prob_observed(p, gap), p.marginal(slice(0, 1)).log_prob(t[:, :1]), 1e-9)
