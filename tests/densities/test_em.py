"""EM against item-by-item loops, its theorem, its limits, its repairs."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import FactorAnalysis
from tests.reference import em as reference

from vergence.densities.em import fit as em
from vergence.densities.em import structures
from vergence.densities.em.structures import Full, LowRank, Mixture

KINDS = ("full", "diag")
ALL = (*KINDS, "low_rank")
N, D, K, R, RANK = 150, 3, 2, 2, 2


def close(found, expected, tol=1e-10):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=tol, atol=tol)


def clusters(seed=0, n=N, d=D, k=K, apart=2.0):
    """Items of k overlapping clusters with covariances of their own."""
    g = np.random.default_rng(seed)
    parts = [g.normal(size=(n // k, d)) @ g.normal(size=(d, d)) + apart * g.normal(size=d) for _ in range(k)]
    return np.concatenate(parts)[g.permutation(n // k * k)]


def items(X, weights=None, origin=None):
    X, w = torch.from_numpy(np.asarray(X)), None if weights is None else torch.from_numpy(weights)
    return em.Data(X, w, X.double().mean(0) if origin is None else torch.from_numpy(origin), X.device)


def begin(kind, data, seed=0, r=R, k=K):
    """Mixtures to start from: any weights, means among the items, any covariances."""
    g, d = np.random.default_rng(seed), data.X.shape[1]
    weights = g.uniform(0.5, 1.5, (r, k))
    means = data.X.numpy()[g.integers(len(data.X), size=(r, k))] - data.origin.numpy()
    S = {
        "full": lambda: np.stack([[_spread(g, d) for _ in range(k)] for _ in range(r)]),
        "diag": lambda: g.uniform(1, 3, (r, k, d)),
        "low_rank": lambda: np.concatenate([g.uniform(1, 3, (r, k, d, 1)), g.normal(size=(r, k, d, RANK))], -1),
    }[kind]()
    return Mixture(*(torch.from_numpy(v) for v in (weights / weights.sum(1, keepdims=True), means, S)))


def dense(kind, mixture):
    """Returns covariances as (R, K, D, D)."""
    S = mixture.covariances
    if kind == "low_rank":
        return torch.diag_embed(S[..., 0]) + S[..., 1:] @ S[..., 1:].mT
    return S if kind == "full" else torch.diag_embed(S)


def _spread(g, d):
    A = g.normal(size=(d, d))
    return A @ A.T / d + np.eye(d)


def iterate(kind, data, mixture, steps, reg=0.0):
    """Returns the mixture after some steps and the mean log-likelihood before each."""
    made, bounds = em.structure(kind, RANK), []
    for _ in range(steps):
        sums, use = em.expectation(data, made, mixture)
        bounds.append((sums.log_likelihood / data.total()).tolist())
        mixture = em.maximization(made, use, sums, mixture, reg, data.variance_floor)
    return mixture, bounds


def by_loops(kind, data, mixture, steps, reg=0.0):
    """The same for one start by the reference: weights, means in data units, dense covariances, bounds."""
    X, w = data.X.numpy(), np.ones(len(data.X)) if data.weights is None else data.weights.numpy()
    pi, mu = mixture.weights[0].numpy(), (mixture.means[0] + data.origin).numpy()
    S, bounds = dense(kind, mixture)[0].numpy(), []
    factors = [(v[:, 0], v[:, 1:]) for v in mixture.covariances[0].numpy()] if kind == "low_rank" else None
    for _ in range(steps):
        r, bound = reference.expectation(X, w, pi, mu, S)
        bounds.append(bound)
        if factors is None:
            pi, mu, S = reference.maximization(X, w, r, kind, reg)
        else:
            pi, mu, factors = reference.factor_step(X, w, r, factors)
            S = reference.dense(factors)
    return pi, mu, S, bounds


def check_reference(kind, data, steps, reg=0.0, tol=1e-10):
    start = begin(kind, data)
    after, bounds = iterate(kind, data, start, steps, reg)
    S = dense(kind, after)
    for r in range(R):
        pi, mu, expected, bound = by_loops(kind, data, start.select([r]), steps, reg)
        close(after.weights[r], pi, tol)
        close(after.means[r] + data.origin, mu, tol)
        close(S[r], np.stack(expected), tol)
        close([b[r] for b in bounds], bound, tol)


@pytest.fixture(scope="module")
def weighted():
    g = np.random.default_rng(3)
    return items(clusters(1), g.uniform(0.1, 3, N), origin=np.array([0.5, -1.0, 2.0]))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(structures, "CELLS", 1)


@pytest.mark.parametrize("kind", ALL)
def test_steps_are_the_loops(kind):
    check_reference(kind, items(clusters()), 8, reg=0.0 if kind == "low_rank" else 0.05)


@pytest.mark.parametrize("kind", ALL)
def test_weights_blocks_and_origin(kind, weighted, small_blocks):
    assert len(list(weighted.blocks(em.structure(kind, RANK).rows(R * K, D), torch.float64))) == 3
    check_reference(kind, weighted, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_is_the_m_step_of_its_responsibilities(kind, weighted):
    r = torch.rand(R, K, N)
    r /= r.sum(1, keepdim=True)
    found = em.initialize(weighted, em.structure(kind), r, 0.1)
    S = dense(kind, found)
    for i in range(R):
        pi, mu, expected = reference.maximization(weighted.X.numpy(), weighted.weights.numpy(), r[i].T.numpy(), kind, 0.1)
        close(found.weights[i], pi)
        close(found.means[i] + weighted.origin, mu)
        close(S[i], np.stack(expected))


@pytest.mark.parametrize("kind", ALL)
def test_the_likelihood_never_falls(kind):
    data = items(clusters(2, n=160, k=4))
    begun = begin(kind, data, r=3, k=4)
    found = em.run(data, em.structure(kind, RANK), begun, tol=0.0, max_iter=200, reg=0.0)
    bounds = torch.tensor(found.bounds)
    assert bounds.shape == (3, 200) and not any(found.converged) and not any(found.reseeded)
    assert bounds.diff(dim=1).min() > -1e-9
    assert (bounds[:, -1] - bounds[:, 0] > 0.1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_mahalanobis_after_an_m_step_is_d_n_k(kind, weighted):
    """sum_n r_nk delta^T S_k^{-1} delta = D N_k for every k."""
    start = begin(kind, weighted).select([0])
    X, w = weighted.X.numpy(), weighted.weights.numpy()
    mu, S = (start.means[0] + weighted.origin).numpy(), dense(kind, start)[0].numpy()
    r, _ = reference.expectation(X, w, start.weights[0].numpy(), mu, S)
    after, _ = iterate(kind, weighted, start, 1)
    mu, S = (after.means[0] + weighted.origin).numpy(), dense(kind, after)[0].numpy()
    for k in range(K):
        close(reference.mahalanobis(X, w, r, mu, S, k), D * sum(a * share[k] for a, share in zip(w, r, strict=True)), 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_one_component_is_the_sample_after_one_step(kind, weighted):
    after, _ = iterate(kind, weighted, begin(kind, weighted, k=1), 1)
    mean = np.average(weighted.X.numpy(), axis=0, weights=weighted.weights.numpy())
    S = np.cov(weighted.X.numpy().T, aweights=weighted.weights.numpy(), ddof=0)
    S = S if kind == "full" else np.diag(np.diag(S))
    for r in range(R):
        close(after.means[r, 0] + weighted.origin, mean)
        close(dense(kind, after)[r, 0], S)


@pytest.mark.parametrize("kind", ALL)
def test_affine_maps_of_the_items_are_maps_of_the_solution(kind):
    """Units and origins, 1e6 large or 1e6 away: the bound moves by log |det| and nothing else."""
    X, scale = clusters(), np.array([1e6, 1.0, 1e-3])
    r = torch.rand(R, K, N)
    r /= r.sum(1, keepdim=True)
    for a, b, tol in ((scale, 0.0, 1e-8), (np.ones(3), 1e6, 1e-6)):
        one, other = (
            em.run(data, made, em.initialize(data, made, r, 0.0), tol=0.0, max_iter=5, reg=0.0)
            for data, made in ((items(X), em.structure(kind, RANK)), (items(X * a + b), em.structure(kind, RANK)))
        )
        if kind == "low_rank":  # its start looks for directions in the units of the data
            assert torch.tensor(other.bounds).isfinite().all()
            continue
        close(torch.tensor(other.bounds) + np.log(a).sum(), one.bounds, tol)
        close(other.mixture.means / torch.from_numpy(a), one.mixture.means, tol)


@pytest.mark.parametrize(("kind", "precision"), [*((kind, "double") for kind in ALL), ("full", "mixed")])
def test_starts_side_by_side_are_the_starts_one_by_one(kind, precision):
    data, made = items(clusters(4)), em.structure(kind, RANK)
    begun = begin(kind, data, r=4)
    options = {"tol": 1e-3, "max_iter": 40, "reg": 1e-6, "precision": precision}
    together = em.run(data, made, begun, **options)
    tol = 1e-9 if precision == "double" else 1e-5
    for r in range(4):
        alone = em.run(data, made, begun.select([r]), **options)
        assert alone.converged == [together.converged[r]]
        if precision == "double":
            assert len(alone.bounds[0]) == len(together.bounds[r])
        close(alone.bounds[0][-1], together.bounds[r][-1], tol)
    last = [b[-1] for b in together.bounds]
    assert [last[r] for r in together.order()] == sorted(last, reverse=True)
    assert len({len(b) for b in together.bounds}) > 1  # some rested before others


def test_one_component_is_factor_analysis():
    g = np.random.default_rng(5)
    factors = g.normal(size=(300, 2)) @ g.normal(size=(2, 8)) + g.normal(size=(300, 8)) * g.uniform(0.3, 1, 8) + 3
    data, made = items(factors), LowRank(2)
    begun = em.initialize(data, made, torch.ones(1, 1, len(factors)), 0.0)
    found = em.run(data, made, begun, tol=1e-9, max_iter=2000, reg=0.0)
    oracle = FactorAnalysis(2, tol=1e-10, max_iter=2000, svd_method="lapack").fit(factors)
    assert found.converged == [True]
    assert found.bounds[0][-1] == pytest.approx(oracle.score(factors), abs=1e-5)
    close(dense("low_rank", found.mixture)[0, 0], oracle.get_covariance(), 1e-2)


def test_a_rank_of_d_and_above_is_cut():
    data, made = items(clusters()), LowRank(8)
    r = torch.rand(R, K, N)
    begun = em.initialize(data, made, r / r.sum(1, keepdim=True), 1e-6)
    assert begun.covariances.shape == (R, K, D, 1 + D)
    found = em.run(data, made, begun, max_iter=50, tol=0.0, reg=0.0)
    assert torch.tensor(found.bounds).diff(dim=1).min() > -1e-9
    start = Mixture(begun.weights, begun.means, dense("low_rank", begun))
    full = em.run(data, em.structure("full"), start, max_iter=50, tol=0.0, reg=0.0)
    assert found.bounds[0][0] == pytest.approx(full.bounds[0][0], abs=1e-10)


def test_low_rank_never_makes_a_square_of_the_features():
    """Of 50,000 features one would take 20 GB."""
    wide = 50_000
    X = torch.randn(20, 2) @ torch.randn(2, wide) + 0.1 * torch.randn(20, wide)
    data, made = em.Data(X, None, X.mean(0), X.device), LowRank(2)
    found = em.run(data, made, em.initialize(data, made, torch.ones(1, 1, 20), 1e-6), max_iter=2, tol=0.0)
    assert found.mixture.covariances.shape == (1, 1, wide, 3) and np.isfinite(found.bounds[0]).all()
    assert found.bounds[0][1] > found.bounds[0][0]


@pytest.mark.parametrize("kind", ALL)
def test_mixed_precision_ends_where_double_does(kind):
    data, made = items(clusters(6, n=400, apart=6.0)), em.structure(kind, RANK)
    begun = begin(kind, data, r=1)
    double, mixed = (em.run(data, made, begun, tol=1e-9, max_iter=3000, precision=p) for p in ("double", "mixed"))
    assert double.converged == mixed.converged == [True]
    assert abs(double.bounds[0][-1] - mixed.bounds[0][-1]) < 1e-6
    close(mixed.mixture.means, double.mixture.means, 2e-3)
    close(dense(kind, mixed.mixture), dense(kind, double.mixture), 5e-3)


@pytest.mark.parametrize("max_iter", [1, 7])
def test_mixed_precision_ends_in_double_however_few_iterations(max_iter, monkeypatch):
    data, seen, real = items(clusters()), [], em.expectation
    spy = lambda d, s, m, dtype: seen.append(dtype) or real(d, s, m, dtype)  # noqa: E731
    monkeypatch.setattr("vergence.densities.em.fit.expectation", spy)
    found = em.run(data, Full(), begin("full", data), tol=0.0, max_iter=max_iter, precision="mixed")
    assert [len(b) for b in found.bounds] == [max_iter] * R and found.converged == [False] * R
    assert seen[-1] == torch.float64 and seen.count(torch.float64) >= 1
    assert (torch.float32 in seen) == (max_iter > 1)


@pytest.mark.parametrize(("kind", "scale"), [("full", 1e-30), ("diag", 1e20), ("low_rank", 1e20)])
def test_what_float32_cannot_hold_is_taken_in_double(kind, scale):
    data, made = items(scale * clusters()), em.structure(kind, RANK)
    r = torch.rand(1, K, N)
    begun = em.initialize(data, made, r / r.sum(1, keepdim=True), 0.0)
    double, mixed = (em.run(data, made, begun, reg=0.0, max_iter=9, precision=p) for p in ("double", "mixed"))
    assert double.bounds == mixed.bounds and np.isfinite(mixed.bounds[0]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_clusters_far_apart_end_right_in_mixed_precision(kind):
    """Widths of 1e-4 at a distance of 10: float32 cannot see them, double can."""
    g = np.random.default_rng(8)
    centers = np.array([[0.0, 0, 0], [10, 0, 0], [0, 10, 10]])
    labels = np.arange(240) % 3
    X = centers[labels] + 1e-4 * g.normal(size=(240, 3))
    data, made = items(X), em.structure(kind, RANK)
    r = torch.nn.functional.one_hot(torch.from_numpy(labels), 3).T[None].double()
    found = em.run(data, made, em.initialize(data, made, r, 0.0), tol=1e-6, reg=0.0, precision="mixed", max_iter=300)
    S = dense(kind, found.mixture)[0]
    close(found.mixture.weights[0], torch.full((3,), 1 / 3), 1e-9)
    for k in range(3):
        close(found.mixture.means[0, k] + data.origin, X[labels == k].mean(0), 1e-9)
        expected = np.cov(X[labels == k].T, ddof=0)
        close(1e8 * S[k].diagonal(), 1e8 * np.diag(expected), 1e-8 if kind == "full" else 1e-4)


def test_a_dead_component_is_set_on_the_item_explained_worst(small_blocks):
    X = np.concatenate([clusters(9, apart=0.0), [[30.0, 30.0, 30.0]]])
    for kind in ALL:
        data, made = items(X), em.structure(kind, RANK)
        begun = begin(kind, data, r=1)
        begun.means[0] = torch.tensor([[0.0, 0, 0], [1e4, 0, 0]]) - data.origin
        before = begun.covariances.clone()
        found = em.run(data, made, begun, max_iter=1, tol=0.0)
        assert found.reseeded == [1]
        close(found.mixture.means[0, 1] + data.origin, X[-1])
        close(found.mixture.weights[0], [N / (N + 1), 1 / (N + 1)], 0.05)
        assert torch.equal(begun.covariances, before)
        S = dense(kind, found.mixture)[0]
        close(S[0], S[1])


def test_a_revival_is_no_convergence():
    data = items(clusters())
    begun = begin("full", data, r=1)
    begun.means[0, 1] = 1e4
    first = em.run(data, Full(), begun, max_iter=1).bounds[0][0]
    found = em._Loop(data, Full(), begun, 1.0, 1e-6, [first])
    found.activate(1)
    found.step(torch.float64)
    assert found.converged == [False] and found.reseeded == [1]


@pytest.mark.parametrize(("scale", "precision"), [(1e-6, "mixed"), (1e6, "double")])
@pytest.mark.parametrize("kind", ALL)
def test_singular_items_end_finite(kind, scale, precision):
    """A few places, many times each; fewer items than features; a constant, a doubled and a summed column; all the same."""
    g, made = np.random.default_rng(13), em.structure(kind, RANK)
    wide = g.normal(size=(6, 9))
    summed = clusters(14)
    cases = {
        "places": np.repeat(10 * clusters(12, n=4, k=1), 10, axis=0), "wide": wide,
        "columns": np.c_[summed, summed[:, 0], summed.sum(1), np.full(N, 0.1)], "same": np.full((20, 3), 0.1),
        "two": np.array([[1.0, 2.0], [1.0, 2.5]]),
    }  # fmt: skip
    for name, X in cases.items():
        data = items(scale * X)
        for k in (1, 5):
            r = torch.rand(2, k, len(X))
            start = em.initialize(data, made, r / r.sum(1, keepdim=True), 0.0)
            found = em.run(data, made, start, max_iter=20, reg=0.0, precision=precision)
            for part in (found.mixture.weights, found.mixture.means, found.mixture.covariances, torch.tensor(found.bounds[0])):
                assert part.isfinite().all(), (name, k)
            factors, failed = torch.linalg.cholesky_ex(dense(kind, found.mixture))
            assert not failed.any() and factors.isfinite().all(), (name, k)


def test_an_outlier_leaves_covariances_definite():
    """One of 20,000 items a million deviations away: moments around where its component was cancel by 1e12."""
    g = np.random.default_rng(15)
    X = np.concatenate([np.repeat(g.normal(size=(200, 3)), 100, axis=0), [[1e6, 1e6, 0.0]]])
    data = items(X)
    begun = Mixture(torch.full((1, 2), 0.5), torch.from_numpy(X[None, [0, 1]]) - data.origin, 9 * torch.eye(3).expand(1, 2, 3, 3))
    found = em.run(data, Full(), begun, max_iter=20, tol=0.0, reg=0.0)
    assert torch.isfinite(torch.tensor(found.bounds)).all()


def test_variances_stop_at_rounding():
    data = items(np.c_[clusters()[:, :2], np.full(N, 7.0)])
    variance = data.X.var(0, correction=0)
    close(data.variance_floor, 1e-13 * torch.where(variance > 0, variance, 1.0), 1e-20)
    X, w = 1e6 + clusters(), np.arange(N) / 9.0
    spread = np.cov(X.T, aweights=w, ddof=0).diagonal()
    floor = items(X, w, origin=np.average(X, axis=0, weights=w)).variance_floor
    close(1e13 * floor.numpy() / spread, np.ones(D), 1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_definite_covariances_are_not_touched(kind):
    S = begin(kind, items(clusters())).covariances
    assert torch.equal(em.structure(kind, RANK).corrected(S.clone(), torch.full((D,), 1e-13)), S)


def test_singular_covariances_get_their_jitter_in_each_features_units():
    scale = torch.tensor([1e6, 1.0, 1e-3])
    v = torch.tensor([1.0, -1.0, 0.5])
    S = (v[:, None] * v) * scale[:, None] * scale
    mended = Full().corrected(torch.stack([S, S + torch.diag(scale**2)])[None].clone(), 1e-13 * scale**2)[0]
    relative = (mended[0] - S) / (scale[:, None] * scale)
    assert (relative.diagonal() > 0).all() and relative.diagonal().max() < 1e-11
    assert torch.linalg.eigvalsh(mended[0] / (scale[:, None] * scale)).min() > 0
    assert torch.equal(mended[1], S + torch.diag(scale**2))


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_inverse_roots(shape):
    A = torch.randn(*shape, 5, 5)
    S = A @ A.mT + torch.eye(5)
    P, log_det = structures.inverse_roots(S)
    close(P @ P.mT, torch.linalg.inv(S))
    close(P, P.triu())
    close(log_det, torch.linalg.slogdet(S)[1])
