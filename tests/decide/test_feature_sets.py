"""Feature sets in one score: its scale, its combination against loops, what no item may move, and out-of-fold scores."""

import json
import re

import numpy as np
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from tests.refusals import refuses

from vergence.decide import FeatureSets, GaussianDetector, NeighborDetector, cross_fit, p_values
from vergence.decide.feature_sets import FeatureSet, combined, middle_and_deviation, soft_mean
from vergence.densities.storage import pack, restore

DETECTORS = {"a": GaussianDetector(), "b": NeighborDetector()}


def items(n=600, seed=0, shared=0.7):
    """Two feature sets that depend on each other."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 3))
    return {"a": common + rng.normal(size=(n, 3)), "b": np.concatenate([shared * common, rng.standard_t(5, size=(n, 4))], 1)}


def fitted(weights=None, n=600):
    return FeatureSets(DETECTORS, weights=weights).fit(items(n)).calibrate(items(n, seed=1))


def test_the_score_equals_loops():
    X, known, new = items(), items(300, seed=1), items(40, seed=2)
    new["a"][0] = X["a"].mean(0)  # at the center: its distance is bounded
    each = []
    gaussian, neighbors = GaussianDetector().fit(X["a"]), NeighborDetector().fit(X["b"])
    of_a = [2 * (gaussian.anomaly_score(part["a"]) + gaussian.log_norm_) for part in (known, new)]
    of_b = [neighbors.anomaly_score(part["b"]) for part in (known, new)]
    for distances in (of_a, of_b):
        t, u = (np.log(np.maximum(d, 1e-300)) for d in distances)
        middle = np.median(t)
        deviation = max(1.4826 * np.median(abs(t - middle)), (np.quantile(t, 0.99) - middle) / 2.3263478740408408)
        each.append([max((value - middle) / deviation, -3) for value in u])
    expected = [4 * np.log((1.0 * np.exp(a / 4) + 0.25 * np.exp(b / 4)) / 1.25) for a, b in zip(*each, strict=True)]
    found = FeatureSets(DETECTORS, weights={"b": 0.25}).fit(X).calibrate(known)
    np.testing.assert_allclose(found.anomaly_score(new), expected, rtol=1e-9)
    np.testing.assert_allclose(found.deviations(new), np.transpose(each), rtol=1e-9)


def test_check_and_a_run_combine_alike():
    """What `check` does with all distances at hand, and what a run does with a stored scale."""
    sets, known, new = fitted({"b": 0.5}), items(600, seed=1), items(50, seed=2)
    t, u = sets.log_distances(known), sets.log_distances(new)
    of_check = {name: FeatureSet(t[:, i], u[:, i : i + 1]) for i, name in enumerate(DETECTORS)}
    reference, scores, added = combined(of_check, sets.shares, sets.sharpness)
    np.testing.assert_allclose(reference, sets.anomaly_score(known))
    np.testing.assert_allclose(scores[:, 0], sets.anomaly_score(new))
    np.testing.assert_allclose(sum(combined(of_check, sets.shares)[2].values()), combined(of_check, sets.shares)[1][:, 0])
    assert list(added) == list(DETECTORS)


def test_no_single_item_moves_the_scale():
    t = np.random.default_rng(0).normal(size=200)
    middle, deviation = middle_and_deviation(t)
    assert abs(middle) < 0.2 and deviation == pytest.approx(1, abs=0.25)
    for extreme in (1e3, -1e3, np.nan):
        again = middle_and_deviation(np.r_[t, extreme])
        assert again == pytest.approx((middle, deviation), abs=0.15)
    assert middle_and_deviation(np.ones(50)) == (1.0, 0.02)


def test_a_score_lies_between_the_mean_and_the_largest_deviation():
    z, w = np.random.default_rng(0).normal(size=(50, 3)) * 5, np.array([0.2, 0.5, 0.3])
    s = soft_mean(z, w, 0.25)
    assert (s >= z @ w).all() and (s <= z.max(1)).all()
    np.testing.assert_allclose(soft_mean(z, w, 1e-6), soft_mean(z, w, 0.0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(soft_mean(z, w, 1e6), z.max(1), rtol=1e-4, atol=1e-4)


def test_what_is_anomalous_in_one_set_is_not_hidden_by_another():
    """An item at the very center of one set: the logarithm of its distance there has no bound."""
    sets = fitted()
    odd = {"a": sets.detectors_["a"].location_[None], "b": np.full((1, 7), 9.0)}
    assert sets.anomaly_score(odd)[0] > np.quantile(sets.anomaly_score(items(600, seed=2)), 0.99)
    assert sets.deviations(odd).argmax() == 1 and sets.deviations(odd).min() == -3


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_set_that_adds_most_is_the_one_that_is_odd(name):
    new = items(5, seed=3)
    new[name] = new[name] + 20
    assert (fitted().deviations(new).argmax(1) == list(DETECTORS).index(name)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "factor"), [(20, 1.5), (100, 1.2)])
def test_p_values_of_scores_hold_although_calibration_items_set_the_scale(n, factor):
    """1,000 calibrations of 20 new items each, with tails of a t law: P(p <= a) is at most ``factor`` times a."""
    rng, p = np.random.default_rng(0), []
    for _ in range(1_000):
        t, u = rng.standard_t(4, size=(n, 3)), rng.standard_t(4, size=(20, 3))
        sets = {str(i): FeatureSet(t[:, i], u[:, i : i + 1]) for i in range(3)}
        known, new, _ = combined(sets, dict.fromkeys(sets, 1 / 3))
        p += p_values(known, new[:, 0]).tolist()
    for a in (0.05, 0.1, 0.5):
        assert np.mean(np.array(p) <= a) <= factor * a, a


def test_out_of_fold_distances_are_those_of_fits_that_have_not_seen_the_fold():
    X, fold = items(101), np.arange(101) % 4
    t = FeatureSets(DETECTORS).out_of_fold(X, fold)
    for k in range(4):
        others, own = ({name: x[rows] for name, x in X.items()} for rows in (fold != k, fold == k))
        np.testing.assert_allclose(t[fold == k], FeatureSets(DETECTORS).fit(others).log_distances(own))


def test_it_is_stored_without_pickle_and_damage_is_one_line(tmp_path):
    sets, new = fitted({"b": 0.5}), items(20, seed=2)
    sets.save(tmp_path / "sets.safetensors")
    again = FeatureSets.load(tmp_path / "sets.safetensors")
    np.testing.assert_array_equal(again.anomaly_score(new), sets.anomaly_score(new))
    assert again.shares == sets.shares == {"a": 2 / 3, "b": 1 / 3}
    content, arrays = pack(sets)
    content = json.loads(json.dumps({name: content[name] for name in ("settings", "state")}))
    for damaged in ({**arrays, "scale_": -arrays["scale_"]}, {**arrays, "scale_": arrays["scale_"][:1, :1]}):
        refuses("expected a fitted FeatureSets, found damage", restore, "FeatureSets", content, damaged)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FeatureSets({}).fit(items()), "detectors with log_distance"),
        (lambda: FeatureSets([GaussianDetector()]).fit(items()), "detectors with log_distance"),
        (lambda: FeatureSets({"a": IsolationForest()}).fit(items()), "detectors with log_distance"),
        (lambda: FeatureSets(DETECTORS, weights={"c": 1.0}).fit(items()), "weights by these names"),
        (lambda: FeatureSets(DETECTORS, weights={"a": 0.0}).fit(items()), "weights[a] > 0"),
        (lambda: FeatureSets(DETECTORS, sharpness=-1.0).fit(items()), "sharpness"),
        (lambda: FeatureSets(DETECTORS).fit({"a": items()["a"]}), "features by name: a, b"),
        (lambda: FeatureSets(DETECTORS).fit(items()["a"]), "features by name: a, b"),
        (lambda: FeatureSets(DETECTORS).fit({"a": items()["a"], "b": items(9)["b"]}), "the same items in every feature set"),
        (lambda: fitted().anomaly_score({"a": np.zeros((1, 2)), "b": np.zeros((1, 7))}), "features"),
    ],
)
def test_bad_input_is_one_line(call, message):
    refuses(re.escape(message), call)


def test_cross_fitting_scores_every_item_by_detectors_that_have_not_seen_its_group():
    X = items(101)["b"]
    groups = np.arange(101) // 4
    scores, folds, fits = cross_fit(NeighborDetector(), X, 4, groups)
    assert all(len(set(folds[groups == g])) == 1 for g in set(groups))
    for fold in range(4):
        np.testing.assert_allclose(scores[folds == fold], fits[fold].anomaly_score(X[folds == fold]))
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


@pytest.mark.parametrize("kind", ["meaning", "kind", "statistics"])
def test_sets_of_a_run_find_another_direction_another_length_and_other_statistics(kind):
    """Ten clusters of embeddings of one length; outliers of an eleventh cluster, far along a known one, or of other colors."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(11, 32))
    centers *= 6 / np.linalg.norm(centers, axis=1, keepdims=True)

    def drawn(n, clusters, factor=1.0, shift=0.0):
        z = factor * centers[rng.choice(clusters, n)] + rng.normal(size=(n, 32))
        return {"pixels": shift + rng.normal(size=(n, 20)), "z": z}

    typical = list(range(10))
    odd = {"meaning": ([10], 1.0, 0.0), "kind": (typical, 3.0, 0.0), "statistics": (typical, 1.0, 2.5)}[kind]
    X, known, new, odd = drawn(2000, typical), drawn(500, typical), drawn(500, typical), drawn(300, *odd)
    detectors = {"pixels": GaussianDetector(), "z": NeighborDetector(3)}
    sets = FeatureSets(detectors).fit(X).calibrate(known)
    found = roc_auc_score(np.arange(800) >= 500, np.r_[sets.anomaly_score(new), sets.anomaly_score(odd)])
    assert found > 0.93 and (sets.deviations(odd).argmax(1) == (kind != "statistics")).sum() > 270
