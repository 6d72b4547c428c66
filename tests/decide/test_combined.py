"""The combination of levels: its rules, calibration under the null hypothesis, and what a level says."""

import numpy as np
import pytest
from scipy.stats import chi2, combine_pvalues, genpareto, kstest
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from vergence.decide import CombinedDetector, GaussianDetector, NeighborDetector, cross_fit, default_detector
from vergence.decide.combined import COMBINE
from vergence.decide.moments import Tail


def levels(n=600, seed=0, shared=0.7):
    """Two levels that depend on each other."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 3))
    return {"a": common + rng.normal(size=(n, 3)), "b": np.concatenate([shared * common, rng.standard_t(5, size=(n, 4))], 1)}


@pytest.mark.parametrize("rule", ["fisher", "stouffer"])
def test_rules_equal_scipys(rule):
    p = np.random.default_rng(0).uniform(size=(20, 3))
    expected = [combine_pvalues(row, method=rule).statistic for row in p]
    np.testing.assert_allclose(COMBINE[rule](np.log(p)), expected, rtol=1e-9)


def test_the_cauchy_rule_has_the_order_of_its_mean_and_the_least_p_is_the_least():
    p = np.random.default_rng(0).uniform(size=(50, 3))
    mean = np.tan((0.5 - p) * np.pi).mean(1)
    assert (np.argsort(COMBINE["cauchy"](np.log(p))) == np.argsort(mean)).all()
    np.testing.assert_allclose(COMBINE["least"](np.log(p)), -np.log(p.min(1)))


def test_weighted_rules_equal_scipys_and_loops():
    p, w = np.random.default_rng(0).uniform(size=(20, 3)), np.array([1.0, 0.3, 2.0])
    log_p = np.log(p)
    np.testing.assert_allclose(COMBINE["fisher"](log_p, w), [-2 * sum(w[j] * np.log(row[j]) for j in range(3)) for row in p])
    stouffer = [combine_pvalues(row, method="stouffer", weights=w).statistic for row in p]
    np.testing.assert_allclose(COMBINE["stouffer"](log_p, w), stouffer, rtol=1e-9)
    assert (np.argsort(COMBINE["cauchy"](log_p, w)) == np.argsort((w * np.tan((0.5 - p) * np.pi)).mean(1))).all()
    np.testing.assert_allclose(COMBINE["least"](log_p, w), -np.log((p / w).min(1)))
    for rule in COMBINE.values():
        np.testing.assert_allclose(rule(log_p, np.ones(3)), rule(log_p))


def test_the_ranked_least_p_has_the_order_of_the_least_p_and_no_ties():
    """Items that no level finds rare, such as most new ones where an embedding has few items, are ranked by the others."""
    p, w = np.random.default_rng(0).uniform(1e-3, 1, size=(200, 3)), np.array([1.0, 0.15, 0.05])
    p[:100, 0] = 1.0  # more typical at the first level than every calibration item
    plain, ranked = (COMBINE[rule](np.log(p), w) for rule in ("least", "least_ranked"))
    assert len(np.unique(plain)) < 150 and len(np.unique(ranked)) == 200
    assert (np.diff(plain[np.argsort(ranked)]) > -1e-5).all()
    np.testing.assert_allclose(ranked, plain, atol=1e-5)
    tied = plain == 0
    np.testing.assert_array_equal(np.argsort(ranked[tied]), np.argsort(-np.log(p[tied]).mean(1)))
    none = COMBINE["least_ranked"](np.zeros((1, 3)))
    assert none == 0 and not np.signbit(none)


@pytest.mark.parametrize("rule", ["fisher", "stouffer", "least"])
def test_a_level_of_small_weight_decides_only_where_it_is_much_rarer(rule):
    """Of two levels b has a weight of 0.1: an item that is as rare there ranks lower, and one that is far rarer ranks higher."""
    X = levels()
    detector = CombinedDetector(GaussianDetector(), weights={"b": 0.1}, combine=rule).fit(X)
    plain = CombinedDetector(GaussianDetector(), combine=rule).fit(X)
    rare_a, rare_b, rarer_b = (np.array([[a, b]]) for a, b in ((6.0, 0.5), (0.5, 6.0), (0.5, 90.0)))
    assert detector.combined(rare_a) > detector.combined(rare_b) and detector.combined(rarer_b) > detector.combined(rare_b)
    np.testing.assert_allclose(plain.combined(rare_a), plain.combined(rare_b))
    found = detector.contributions(X)
    np.testing.assert_allclose(detector.anomaly_score(X), detector.combined(np.stack([found["a"], found["b"]], 1)))
    if rule != "stouffer":  # whose p-values end at 1e-304
        assert detector.combined(rarer_b) > detector.combined(rare_a)


@pytest.mark.parametrize("rule", COMBINE)
def test_rules_grow_with_every_level_and_stay_finite(rule):
    steps = -np.array([1e-15, 0.1, 1.0, 10.0, 100.0, 600.0])
    for other in (-1e-3, -5.0):
        found = COMBINE[rule](np.stack([steps, np.full(6, other)], 1))
        assert np.isfinite(found).all() and (np.diff(found) >= 0).all() and found[-1] > found[0]


def test_independent_fisher_is_chi_squared():
    p = np.random.default_rng(0).uniform(size=(5000, 4))
    assert kstest(COMBINE["fisher"](np.log(p)), chi2(8).cdf).pvalue > 0.01


@pytest.mark.parametrize("xi", [0.0, 0.3])
def test_a_tail_finds_a_pareto_tail(xi):
    tail = Tail(genpareto(xi).rvs(50_000, random_state=0))
    far = genpareto(xi).isf([0.5, 0.01, 1e-4, 1e-6])
    np.testing.assert_allclose(tail.log_probability(far), np.log([0.5, 0.01, 1e-4, 1e-6]), rtol=0.15)


def test_a_tail_is_a_strictly_decreasing_probability_without_a_jump():
    scores = np.random.default_rng(0).normal(size=500)
    tail = Tail(scores)
    at = np.linspace(-5, 50, 4000)
    log_p = tail.log_probability(at)
    assert (log_p <= 0).all() and (np.diff(log_p[at > tail.threshold]) < 0).all()
    assert np.diff(log_p).min() > -0.2
    inside = tail.log_probability(np.sort(scores)[:440])
    np.testing.assert_allclose(np.exp(inside), 1 - np.arange(440) / 500, atol=0.01)


@pytest.mark.parametrize("scores", [np.ones(50), np.array([1.0, 2.0]), np.r_[np.zeros(100), 1.0]])
def test_a_tail_of_few_or_equal_scores_still_ranks(scores):
    tail = Tail(scores)
    log_p = tail.log_probability(np.array([-1.0, 2.5, 3.0, 9.0]))
    assert log_p[0] == 0 and (np.diff(log_p) < 0).all() and np.isfinite(log_p).all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", COMBINE)
def test_calibrated_p_values_of_dependent_levels_are_uniform(rule):
    """300 simulations of 20 new typical items: P(p <= a) is within 4 standard errors of a, or below."""
    p = []
    for seed in range(300):
        X = levels(240, seed)
        detector = CombinedDetector(GaussianDetector(), combine=rule, calibration=0.5).fit(X)
        calibration, new = detector.calibration_scores_, detector.anomaly_score(levels(20, 10_000 + seed))
        p += [(1 + (calibration >= s).sum()) / (len(calibration) + 1) for s in new]
    for a in (0.05, 0.1, 0.5):
        rate = np.mean(np.array(p) <= a)
        assert rate <= a + 4 * np.sqrt(a / len(p) * 5)  # items of one simulation share their calibration
        assert rate >= a / 2


def test_the_level_that_speaks_is_the_one_that_is_odd():
    X = levels()
    detector = CombinedDetector().fit(X)
    for name in X:
        odd = {key: values[:5].copy() for key, values in levels(seed=3).items()}
        odd[name] += 20
        assert detector.level(odd).tolist() == [name] * 5
        assert (detector.contributions(odd)[name] > 5).all()
        assert (detector.predict(odd) == -1).all()


def test_a_matrix_with_columns_is_the_dictionary():
    X = levels()
    matrix = np.concatenate([X["a"], X["b"]], 1)
    by_name = CombinedDetector().fit(X)
    by_column = CombinedDetector(columns={"a": slice(0, 3), "b": list(range(3, 10))}).fit(matrix)
    np.testing.assert_allclose(by_column.score_samples(matrix), by_name.score_samples(X), rtol=1e-9)


def test_each_level_may_have_its_own_detector():
    X = levels()
    detector = CombinedDetector({"a": GaussianDetector(), "b": NeighborDetector()}).fit(X)
    assert {name: type(one).__name__ for name, one in detector.detectors_.items()} == {
        "a": "GaussianDetector",
        "b": "NeighborDetector",
    }
    only = CombinedDetector({"b": GaussianDetector()}).fit(X)
    assert only.levels_ == ["b"] and only.n_features_in_ == 7
    assert (only.score_samples({"b": X["b"]}) == only.score_samples(X)).all()


def test_calibration_on_other_items_replaces_tails_and_threshold():
    detector = CombinedDetector(calibration=0.0).fit(levels(200))
    before = detector.offset_
    detector.calibrate(levels(5000, seed=9))
    assert detector.offset_ != before and len(detector.calibration_scores_) == 2500
    assert (detector.predict(levels(5000, seed=10)) == -1).mean() == pytest.approx(0.05, abs=0.02)


def test_cross_fitting_scores_every_item_by_detectors_that_have_not_seen_its_group():
    X = levels(101)
    groups = np.arange(101) // 4
    scores, folds, fitted = cross_fit(CombinedDetector(), X, 4, groups)
    assert all(len(set(folds[groups == g])) == 1 for g in set(groups))
    for fold in range(4):
        own = {name: values[folds == fold] for name, values in X.items()}
        np.testing.assert_allclose(scores[folds == fold], fitted[fold].anomaly_score(own))
    counts = np.bincount(folds)
    assert counts.max() - counts.min() <= 4


def test_cross_fitting_shows_what_overfits():
    """40 items in 30 dimensions: an item's own fit calls it typical, the others' fits do not."""
    X = np.random.default_rng(0).normal(size=(40, 30))
    out, *_ = cross_fit(GaussianDetector(), X)
    assert out.mean() > GaussianDetector().fit(X).anomaly_score(X).mean() + 1


@pytest.mark.slow
def test_cross_fitting_takes_scikit_learns_detectors():
    X = np.random.default_rng(0).normal(size=(60, 3))
    X[7] = 9.0
    expected, *_ = cross_fit(GaussianDetector(), X)
    scores, *_ = cross_fit(make_pipeline(FunctionTransformer(), GaussianDetector()), X)
    np.testing.assert_array_equal(scores, expected)
    for detector in (IsolationForest(random_state=0), make_pipeline(StandardScaler(), GaussianDetector())):
        assert cross_fit(detector, X)[0].argmax() == 7


def test_the_default_takes_any_levels():
    X = levels()
    assert default_detector(X).fit(X).score_samples(X).shape == (600,)
    named = {"pixels": X["a"], "stage1": X["a"] * np.nan, "z": X["b"]}
    assert default_detector(named).fit(named).levels_ == ["pixels", "z"]


@pytest.mark.parametrize("shift", [0.0, 4.0])
def test_the_default_of_a_matrix_finds_what_lies_between_its_kinds_and_beyond_them(shift):
    """Ten kinds of items of unequal spread; outliers of none of them, at the common center or off it."""
    rng = np.random.default_rng(0)
    centers, spread = 6 * rng.normal(size=(10, 8)), rng.uniform(0.3, 1.5, size=(10, 1, 8))
    typical = (centers[:, None] + spread * rng.normal(size=(10, 100, 8))).reshape(-1, 8)
    fitted, new, odd = typical[::2], typical[1::2], shift + rng.normal(size=(200, 8))
    detector = default_detector().fit(fitted)
    found = roc_auc_score(np.arange(700) >= 500, np.r_[detector.anomaly_score(new), detector.anomaly_score(odd)])
    one = default_detector(["all"], columns={"all": slice(None)}).fit(fitted)  # one Gaussian
    assert found > 0.99 > roc_auc_score(np.arange(700) >= 500, np.r_[one.anomaly_score(new), one.anomaly_score(odd)])


@pytest.mark.parametrize("kind", ["meaning", "kind", "statistics"])
def test_the_default_finds_another_direction_another_length_and_other_statistics(kind):
    """Ten clusters of embeddings of one length; outliers of an eleventh cluster, far along a known one, or of other colors."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(11, 32))
    centers *= 6 / np.linalg.norm(centers, axis=1, keepdims=True)

    def items(n, clusters, factor=1.0, shift=0.0):
        z = factor * centers[rng.choice(clusters, n)] + rng.normal(size=(n, 32))
        return {"statistics": shift + rng.normal(size=(n, 20)), "z": z}

    typical = list(range(10))
    odd = {"meaning": ([10], 1.0, 0.0), "kind": (typical, 3.0, 0.0), "statistics": (typical, 1.0, 2.5)}[kind]
    X, new, odd = items(2000, typical), items(500, typical), items(300, *odd)
    detector = default_detector(X).fit(X)
    found = roc_auc_score(np.arange(800) >= 500, np.r_[detector.anomaly_score(new), detector.anomaly_score(odd)])
    assert found > 0.93 and detector.level(odd).tolist().count("statistics" if kind == "statistics" else "z") > 270


@pytest.mark.parametrize(("error", "odds"), [(0.0, 0.15), (0.1, 0.15), (0.5, 1.0), (0.75, 3.0), (0.9, 1 / 0.15), (4.0, 1 / 0.15)])
def test_levels_beside_an_embedding_weigh_as_its_error_says(error, odds):
    weights = default_detector(["statistics", "patches", "z"], relative_error=error).weights
    assert weights == pytest.approx({"statistics": odds, "patches": odds / 3})
    assert default_detector(["statistics", "patches"], relative_error=error).weights is None  # nothing to weigh against


def test_statistics_decide_beside_an_embedding_that_knows_nothing():
    """A heavy-tailed z without signal hides other colors where it weighs more."""
    rng = np.random.default_rng(0)

    def items(n, shift=0.0):
        return {"statistics": shift + rng.normal(size=(n, 20)), "z": rng.standard_t(2, size=(n, 32))}

    X, new, odd = items(2000), items(500), items(300, 0.5)
    found = {}
    for error in (0.0, 1.0):
        detector = default_detector(X, relative_error=error).fit(X)
        scores = np.r_[detector.anomaly_score(new), detector.anomaly_score(odd)]
        found[error] = roc_auc_score(np.arange(800) >= 500, scores)
    assert found[1.0] > found[0.0] + 0.02 and found[1.0] > 0.7


@pytest.mark.parametrize("share", [0.02, 0.05])
@pytest.mark.parametrize("cluster", [False, True])
def test_the_default_finds_oddities_among_the_items_of_its_fit(cluster, share):
    """Two and five percent, foreign at every level, scattered or in one cluster, scored by detectors that have not seen them."""
    rng = np.random.default_rng(0)
    X, n = {"pixels": rng.normal(size=(3000, 40)), "z": rng.normal(size=(3000, 64))}, int(3000 * share)
    for values in X.values():
        direction = rng.normal(size=(1 if cluster else n, values.shape[1]))
        values[:n] += 50 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    scores, *_ = cross_fit(default_detector(X, contaminated=True), X)
    assert roc_auc_score(np.arange(3000) < n, scores) > (0.98 if cluster else 0.999)
