"""Each detector against a slow reference, its invariances, planted outliers, and bad input."""

import time

import numpy as np
import pytest
import torch
from scipy.stats import chi2, multivariate_normal
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture as SklearnMixture
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.reference import detection as slow

from vergence import decide
from vergence.decide import GaussianDetector, MixtureDetector, NeighborDetector
from vergence.decide.density import RIDGE, CrossFitted, RidgeGaussian
from vergence.decide.feature_sets import FeatureSet
from vergence.decide.moments import _distances, _signs, consistency, trimmed, uniform
from vergence.densities.moments import standardized_moments

ALL = [GaussianDetector(), MixtureDetector(), NeighborDetector()]
CENTERS = NeighborDetector(3, max_items=20, keep="centers")
DENSITIES = [GaussianDetector(trim=0.1)]
name = lambda d: type(d).__name__  # noqa: E731


def data(n=400, D=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)) @ rng.normal(size=(D, D)) + rng.normal(size=D)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([*ALL, *DENSITIES])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("weights", [None, "some"])
def test_a_gaussian_equals_the_reference(weights):
    X = data(60, 4)
    w = None if weights is None else np.random.default_rng(1).integers(1, 4, 60).astype(float)
    mean, S = slow.mean_and_covariance(X.tolist(), w)
    detector = GaussianDetector(shrinkage=0.0).fit(X, sample_weight=w)
    expected = [slow.gaussian_log_density(x, mean, S) for x in X.tolist()]
    np.testing.assert_allclose(detector.score_samples(X), expected, rtol=1e-6)


def test_shrinkage_equals_scikit_learns():
    X = data(40, 30)
    m = standardized_moments(X, standardize=False)
    np.testing.assert_allclose(m.shrunk("ledoit_wolf"), ledoit_wolf(X)[0], rtol=1e-7)


def test_a_covariance_with_shrinkage_gives_scipys_density():
    X = data(50, 5)
    m = standardized_moments(X, standardize=False)
    expected = multivariate_normal(m.location, m.shrunk(0.3)).logpdf(X)
    np.testing.assert_allclose(GaussianDetector(shrinkage=0.3, standardize=False).fit(X).score_samples(X), expected, rtol=1e-9)


@pytest.mark.parametrize("K", [1, 3])
def test_held_out_likelihood_finds_the_components_of_planted_mixtures(K):
    rng = np.random.default_rng(K)
    X = np.concatenate([rng.normal(size=(400, 5)) + 8 * np.eye(5)[k] for k in range(K)])
    assert MixtureDetector().fit(X).n_components_ == K


def test_a_mixture_has_scikit_learns_density():
    X = np.concatenate([data(300, 3), data(300, 3, seed=1) + 20])
    ours = MixtureDetector(2, n_directions=3, reg_covar=0.0).fit(X)
    theirs = SklearnMixture(2, random_state=0, reg_covar=0.0, tol=1e-8, max_iter=500).fit(X)
    np.testing.assert_allclose(ours.score_samples(X).mean(), theirs.score_samples(X).mean(), atol=1e-3)


def test_distances_to_neighbors_equal_the_reference():
    X = data(50, 3)
    new = data(5, 3, seed=1)
    detector = NeighborDetector(4, standardize=False).fit(X)
    expected = [slow.kth_distance(X.tolist(), x, 4) for x in [*X.tolist(), *new.tolist()]]
    np.testing.assert_allclose(detector.anomaly_score(np.concatenate([X, new])), expected, rtol=1e-9)


def test_an_item_of_the_fit_is_not_its_own_neighbor_but_its_duplicate_is():
    X = np.array([[0.0], [0.0], [5.0], [9.0]])
    found = NeighborDetector(1, standardize=False).fit(X).anomaly_score([[0.0], [5.0], [9.0]])
    assert found.tolist() == [0.0, 4.0, 4.0]


@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e3])
def test_neighbors_are_exact_where_float32_confuses_them(spread):
    rng = np.random.default_rng(0)
    X = np.repeat([[-1000.0] * 6, [1000.0] * 6], 40, axis=0) + spread * rng.normal(size=(80, 6))
    new = X[::7] + 0.1 * spread
    distances = np.sort(np.linalg.norm(new[:, None] - X[None], axis=2), axis=1)
    found = NeighborDetector(3, standardize=False).fit(X).anomaly_score(new)
    np.testing.assert_allclose(found, distances[:, 2], rtol=1e-7)


def test_cosine_distances_are_those_of_directions():
    X = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = NeighborDetector(1, metric="cosine", standardize=False).fit(X).anomaly_score([[2.0, 2.0], [3.0, 0.1]])
    np.testing.assert_allclose(found, [1 - 0.5**0.5, 1 - 3 / np.hypot(3, 0.1)], rtol=1e-9)


@pytest.mark.parametrize("n", [60, 200])  # 80 items, ten for each center, are clustered at most
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_centers_equal_the_reference(metric, n):
    X, w = data(n, 3), np.random.default_rng(2).uniform(0.5, 2, n)
    detector = NeighborDetector(3, max_items=8, keep="centers", metric=metric, standardize=False).fit(X, sample_weight=w)
    order = np.argsort(uniform(X, 0))[:80]
    unit = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
    expected = slow.centers(unit[order].tolist(), w[order].tolist(), 8, 4, on_sphere=metric == "cosine")
    np.testing.assert_allclose(detector.items_, expected, rtol=1e-9)
    new = detector._scaled(data(5, 3, seed=1))
    distances = np.array([slow.kth_distance(expected, x, 3) for x in new.tolist()])
    found = detector.anomaly_score(data(5, 3, seed=1))
    np.testing.assert_allclose(found, distances**2 / 2 if metric == "cosine" else distances, rtol=1e-9)


def test_distances_to_centers_depend_less_on_chance_than_those_to_a_random_part():
    X = data(2200, 4)
    X, new = X[:2000], X[2000:]
    spread = {}
    for keep in ("random", "centers"):
        scores = [NeighborDetector(3, max_items=100, keep=keep, random_state=s).fit(X).anomaly_score(new) for s in range(5)]
        spread[keep] = np.std(scores, axis=0).mean() / np.mean(scores)
    assert spread["centers"] < 0.75 * spread["random"]


def test_items_of_few_values_have_as_many_centers():
    X = np.repeat([[0.0, 1.0], [1.0, 0.0], [4.0, 4.0]], 10, axis=0)
    detector = NeighborDetector(1, max_items=5, keep="centers", standardize=False).fit(X)
    assert sorted(detector.items_.tolist()) == [[0.0, 1.0], [1.0, 0.0], [4.0, 4.0]]


@pytest.mark.parametrize("detector", [*ALL, *DENSITIES, CENTERS], ids=name)
def test_scores_do_not_depend_on_the_order_of_the_items(detector):
    X = data()
    order = np.random.default_rng(5).permutation(len(X))
    first = detector.fit(X).score_samples(X)
    np.testing.assert_allclose(detector.fit(X[order]).score_samples(X), first, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("detector", [*ALL, *DENSITIES], ids=name)
def test_scores_do_not_depend_on_the_units_of_the_features(detector):
    """Up to a constant, the logarithm of the units, which does not change any rank or p-value."""
    X = data()
    units, origin = 10.0 ** np.arange(-3, 3), np.arange(6) * 7.0
    first, second = detector.fit(X).score_samples(X), detector.fit(X * units + origin).score_samples(X * units + origin)
    np.testing.assert_allclose(second - second.mean(), first - first.mean(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("detector", DENSITIES, ids=name)
@pytest.mark.parametrize("D", [5, 100])
def test_oddities_at_fifty_deviations_come_first(detector, cluster, D):
    """Two percent of the items, scattered or in one cluster; a Gaussian without trimming is dragged by the cluster."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, D))
    direction = rng.normal(size=(1 if cluster else 40, D))
    X[:40] += 50 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    odd = np.arange(2000) < 40
    assert roc_auc_score(odd, detector.fit(X).anomaly_score(X)) == 1


def test_a_heap_hides_from_what_is_not_robust():
    """The precondition of the test above: the same cluster is missed by a plain Gaussian and by few neighbors."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 100))
    X[:40] += 50 * np.eye(100)[0]
    odd = np.arange(2000) < 40
    assert roc_auc_score(odd, GaussianDetector().fit(X).anomaly_score(X)) < 1
    assert roc_auc_score(odd, NeighborDetector(5).fit(X).anomaly_score(X)) < 1


def test_trimming_keeps_the_covariance_of_a_clean_gaussian():
    X = np.random.default_rng(0).normal(size=(50_000, 4))
    m = trimmed(X, None, 0.2, "ledoit_wolf", standardize=False)
    np.testing.assert_allclose(m.covariance, np.eye(4), atol=0.03)
    inside = np.square(X).sum(1) <= chi2.ppf(0.8, 4)
    assert consistency(4, 0.2) == pytest.approx(1 / np.square(X[inside]).mean(), rel=0.02)


@pytest.mark.parametrize("detector", ALL, ids=name)
def test_fewer_items_than_features_and_constant_features_are_no_obstacle(detector):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(40, 60)), np.full((40, 2), 7.0)], 1)
    detector.fit(X)
    typical = np.concatenate([rng.normal(size=(20, 60)), np.full((20, 2), 7.0)], 1)
    changed = typical.copy()
    changed[:, :60] += 30
    assert np.isfinite(detector.score_samples(X)).all()
    assert detector.anomaly_score(changed).min() > detector.anomaly_score(typical).max()


def test_uniform_numbers_follow_the_values_and_are_uniform():
    X = data(1000, 3)
    u = uniform(np.concatenate([X, X]), 0)
    assert (u[:1000] == u[1000:]).all()
    assert abs(np.sort(u[:1000]) - np.linspace(0, 1, 1000)).max() < 0.01
    assert abs(np.corrcoef(u[:1000], X[:, 0])[0, 1]) < 0.1


@pytest.mark.slow
def test_fits_and_scores_many_items_in_bounded_time():
    X = np.random.default_rng(0).normal(size=(50_000, 256)).astype(np.float32)
    start = time.process_time()
    GaussianDetector().fit(X)
    assert time.process_time() - start < 20


def test_directions_without_spread_say_nothing_about_items():
    """With fewer items than features the robust start divides by rounding there, unless it is floored."""
    X = np.random.default_rng(0).normal(size=(12, 200))
    location, root = _signs(X)
    parts = np.square((X - location) @ root)
    assert np.isfinite(_distances(X, location, root)).all() and (parts[:, 12:].sum(1) < 1e-6 * parts.sum(1)).all()


def test_one_weight_for_all_items_changes_nothing():
    X = np.random.default_rng(0).normal(size=(40, 3))
    expected = GaussianDetector().fit(X).score_samples(X)
    for weight in (2, np.float32(2), np.array(2.0), torch.tensor(2.0)):
        np.testing.assert_allclose(GaussianDetector().fit(X, sample_weight=weight).score_samples(X), expected)


def test_a_mixture_has_at_most_as_many_components_as_items():
    assert MixtureDetector(n_components=10**6).fit(data(12, 3)).mixture_.n_components <= 12


@pytest.mark.parametrize("name", ["GaussianDetector", "MixtureDetector", "NeighborDetector"])
@pytest.mark.parametrize("constant", [3.0, 0.0])
def test_what_never_varied_is_odd_when_it_does(name, constant):
    r = np.random.default_rng(0)
    known, new = (np.c_[r.normal(size=(n, 6)), np.full(n, constant)] for n in (500, 200))
    new[0, 6] += 1
    assert getattr(decide, name)().fit(known).anomaly_score(new).argmax() == 0


# Gaussians out of fold


def by_definition(x, y):
    """log d^2 by the definition, in the D x D form."""
    m, s = x.mean(0), x.std(0)
    z, w = (x - m) / s, (y - m) / s
    S = z.T @ z / len(z)
    inverse = np.linalg.inv(S + RIDGE * np.trace(S) / len(S) * np.eye(len(S)))
    return np.log([row @ inverse @ row for row in w])


@pytest.mark.parametrize(("n", "width"), [(60, 5), (20, 50), (30, 30), (2, 7)])
def test_equal_to_the_definition(n, width):
    r = np.random.default_rng(0)
    x, y = r.normal(size=(n, width)) * r.uniform(0.1, 9, width), r.normal(size=(11, width))
    np.testing.assert_allclose(RidgeGaussian(x).log_distance(y), by_definition(x, y), rtol=1e-6)


def test_out_of_fold_has_not_seen_the_row():
    r = np.random.default_rng(1)
    x, fold = r.normal(size=(24, 40)), np.arange(24) % 4 - 1
    found = FeatureSet.of_vectors(x, x[:2], fold)
    t = found.reference
    assert found.new.shape == (2, 3) and np.isnan(t[fold == -1]).all()
    for i in np.flatnonzero(fold >= 0):
        np.testing.assert_allclose(t[i], by_definition(x[fold != fold[i]], x[i : i + 1])[0], rtol=1e-6)


def test_constant_features_and_equal_rows_are_no_error():
    x = np.zeros((30, 6))
    assert np.isfinite(RidgeGaussian(x).log_distance(x)).all()
    x[:, 0] = np.random.default_rng(0).normal(size=30)
    far = x[:1].copy()
    far[0, 3] = 1.0
    assert RidgeGaussian(x).log_distance(far)[0] > RidgeGaussian(x).log_distance(x).max() + 5


def test_units_do_not_matter_and_trim_leaves_far_rows_out():
    r = np.random.default_rng(2)
    x, unit = r.normal(size=(50, 80)), r.uniform(1e-3, 1e3, 80)
    np.testing.assert_allclose(RidgeGaussian(x).log_distance(x), RidgeGaussian(x * unit).log_distance(x * unit), rtol=1e-6)
    y = np.concatenate([x, x[:5] + 30])
    assert RidgeGaussian(y, trim=0.2).log_distance(y)[-5:].min() > RidgeGaussian(y).log_distance(y)[-5:].min() + 0.5


def test_thousands_of_numbers_take_seconds():
    x = np.random.default_rng(0).normal(size=(300, 4000))
    start = time.process_time()
    FeatureSet.of_vectors(x, x[:1], np.arange(300) % 10)
    assert time.process_time() - start < 30  # the D x D form takes half an hour


def t_items(n, D=30, degrees=6, seed=0):
    """Items of a multivariate t."""
    r = np.random.default_rng(seed)
    return r.normal(size=(n, D)) * np.sqrt(degrees / r.chisquare(degrees, size=(n, 1)))


def test_a_cluster_of_anomalies_does_not_hide_itself():
    x, fold = t_items(1000), np.random.default_rng(2).integers(0, 5, 1000)
    x[:80] = 0.05 * x[:80] + 8
    t = CrossFitted(x, fold).log_distance(x, fold)
    assert t[:80].min() > np.quantile(t[80:], 0.99)


def test_distances_equal_their_definition_and_constant_features_do_no_harm():
    x = np.random.default_rng(0).normal(size=(300, 4)) * [1, 5, 0.01, 0]
    fold = np.zeros(300, dtype=int)
    fitted = CrossFitted(x, fold, clean=True)
    t = fitted.log_distance(x, fold)
    assert np.isfinite(t).all()
    np.testing.assert_allclose(np.log(np.square(fitted.white(x)).sum(1)), t, atol=1e-6)
    anomaly = x[:1] + np.array([0, 0, 0, 1.0])
    assert fitted.log_distance(anomaly, fold[:1])[0] > t.max()


def test_units_and_rounding_do_not_matter():
    x, fold = t_items(400, 6), np.arange(400) % 5
    x[:, 5] *= np.random.default_rng(0).uniform(size=400) < 0.02  # nearly always zero
    t = CrossFitted(x, fold).log_distance(x, fold)
    other = CrossFitted(x * [1, 10, 1e3, 1e-2, 1, 1], fold).log_distance(x * [1, 10, 1e3, 1e-2, 1, 1], fold)
    assert np.corrcoef(t, other)[0, 1] > 0.95
    rounded = x.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(CrossFitted(rounded, fold).log_distance(rounded, fold), t, atol=0.05)
    x[:250] = 0  # more than half are equal
    assert np.isfinite(CrossFitted(x, fold).log_distance(x, fold)).all()


@pytest.mark.parametrize(("width", "least"), [(40, 30), (400, 28)])
def test_a_tenth_of_scattered_anomalies_comes_first_in_few_and_in_many_features(width, least):
    x, fold = t_items(300, width), np.arange(300) % 5
    x[:30] *= 6
    t = CrossFitted(x, fold).log_distance(x, fold)
    assert (np.argsort(-t)[:30] < 30).sum() >= least
