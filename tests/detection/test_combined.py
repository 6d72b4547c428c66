"""The combination of levels: its rules, calibration under the null hypothesis, and what a level says."""

import numpy as np
import pytest
from scipy.stats import chi2, combine_pvalues, genpareto, kstest

from vergence.detection import CombinedDetector, GaussianDetector, NeighborDetector, cross_fit, default_detector
from vergence.detection.combined import COMBINE
from vergence.detection.parts.tails import Tail


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
    with pytest.raises(ValueError, match="found no c among a, b"):
        CombinedDetector({"c": GaussianDetector()}).fit(X)


def test_levels_that_do_not_fit_are_refused():
    X = levels()
    detector = CombinedDetector().fit(X)
    with pytest.raises(ValueError, match="the same items at every level"):
        CombinedDetector().fit({"a": X["a"], "b": X["b"][:-1]})
    with pytest.raises(ValueError, match="expected levels of"):
        detector.score_samples({"a": X["a"]})
    with pytest.raises(ValueError, match="at least one level"):
        CombinedDetector().fit({})
    with pytest.raises(ValueError, match="did you mean 'fisher'"):
        CombinedDetector(combine="fischer").fit(X)
    with pytest.raises(ValueError, match="Input b contains NaN"):
        CombinedDetector().fit({**X, "b": np.full_like(X["b"], np.nan)})


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
    with pytest.raises(ValueError, match="at least 5 items or groups"):
        cross_fit(GaussianDetector(), X["a"], 5, np.arange(101) % 3)
    with pytest.raises(ValueError, match="one group for each"):
        cross_fit(GaussianDetector(), X["a"], 5, [1, 2])


def test_cross_fitting_shows_what_overfits():
    """40 items in 30 dimensions: an item's own fit calls it typical, the others' fits do not."""
    X = np.random.default_rng(0).normal(size=(40, 30))
    out, *_ = cross_fit(GaussianDetector(), X)
    assert out.mean() > GaussianDetector().fit(X).anomaly_score(X).mean() + 1


def test_the_default_takes_any_levels():
    X = levels()
    assert default_detector(X).fit(X).score_samples(X).shape == (600,)
    named = {"pixels": X["a"], "stage1": X["a"] * np.nan, "z": X["b"]}
    assert default_detector(named).fit(named).levels_ == ["pixels", "z"]


@pytest.mark.parametrize("heap", [False, True])
def test_the_default_finds_oddities_among_the_items_of_its_fit(heap):
    """Two percent that are foreign at every level, scattered or in one heap, scored by detectors that have not seen them."""
    rng = np.random.default_rng(0)
    X = {"pixels": rng.normal(size=(3000, 40)), "z": rng.normal(size=(3000, 64))}
    for values in X.values():
        direction = rng.normal(size=(1 if heap else 60, values.shape[1]))
        values[:60] += 50 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    scores, *_ = cross_fit(default_detector(X), X)
    assert scores[:60].min() > scores[60:].max()
