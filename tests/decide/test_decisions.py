"""Decisions from the scores of any model: what is promised is simulated; what cannot be decided is refused."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.cluster import KMeans
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM
from tests.refusals import refuses

from vergence.decide import Calibrated, GaussianDetector, calibrate, explain
from vergence.decide.conformal import certain_levels, ranked, weighted
from vergence.decide.decisions import decided

RNG = np.random.default_rng(0)
CALIBRATION = RNG.normal(size=500)
SIMULATIONS = 1000


def nearest(model, items):
    return model.kneighbors(items, 1)[0][:, 0]


def reference(calibration, scores, fdr):
    """The definitions, slowly: ranks with ties against us, then Benjamini-Hochberg by counting."""
    n, m = len(calibration), len(scores)
    p = [(1 + sum(c >= s for c in calibration)) / (n + 1) for s in scores]
    q = [min(1.0, min(m * b / sum(x <= b for x in p) for b in p if b >= a)) for a in p]
    return p, q, [value <= fdr for value in q]


@pytest.mark.parametrize("decimals", [0, 1, 8])
@pytest.mark.parametrize("fdr", [0.05, 0.3])
def test_it_equals_the_definitions(decimals, fdr):
    rng = np.random.default_rng(decimals)
    cal, new = np.round(rng.normal(size=80), decimals), np.round(np.r_[rng.normal(size=30), rng.normal(4, 1, 10)], decimals)
    found = calibrate(cal, new, fdr=fdr)
    p, q, flag = reference(cal, new, fdr)
    np.testing.assert_array_equal(found.p_value, p)
    np.testing.assert_allclose(found.q_value, q, rtol=1e-12)
    assert found.flag.tolist() == flag


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor, lambda x: np.asarray(x, dtype=np.float32)])
def test_any_kind_of_array_serves_and_lower_scores_are_turned(kind):
    scores = [0.0, 5.0, -5.0]
    above = calibrate(kind(CALIBRATION), kind(scores))
    below = calibrate(kind(-CALIBRATION), kind(scores), larger_is_anomalous=False)
    assert above.flag.tolist() == [False, True, False]
    assert below.flag.tolist() == [False, False, True]
    assert above.p_value[1] == below.p_value[2] == 1 / 501


def test_the_rate_holds_for_flags_and_confirmed_anomalies_together_and_marks_take_back_no_flag():
    rng, anomaly, false = np.random.default_rng(0), np.arange(60) < 15, []
    for _ in range(SIMULATIONS):
        p = ranked(rng.normal(size=80), rng.normal(size=60) + 2 * anomaly)
        before = decided(p, 0.2, 80).flag
        some, marked = before & anomaly & (rng.random(60) < 0.5), anomaly & (p <= 0.1)  # the latter were not all flagged
        np.testing.assert_array_equal(decided(p, 0.2, 80, confirmed=some).flag, before & ~some)
        found = decided(p, 0.2, 80, confirmed=marked)
        assert (found.flag | marked)[before].all() and not found.flag[marked].any() and found.total == 60 - marked.sum()
        false.append((found.flag & ~anomaly).sum() / max(found.flagged + marked.sum(), 1))
    assert 0.1 < np.mean(false) <= 0.2 * 45 / 60 + 3 * np.std(false) / SIMULATIONS**0.5


def adaptive_reference(calibration, scores, fdr):
    """Storey's rate, slowly: the threshold on p that flags the most, at the estimated share of normal items."""
    n = len(calibration)
    p = [(1 + sum(c >= s for c in calibration)) / (n + 1) for s in scores]
    half = ((n + 1) // 2) / (n + 1)
    normal = (1 + sum(x >= half for x in p)) / (1 - half)
    good = [t for t in p if t * normal / sum(x <= t for x in p) <= fdr * (1 + 1e-12)]
    return [x <= max(good, default=-1) for x in p]


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_the_adaptive_rate_equals_its_definition(decimals):
    rng = np.random.default_rng(decimals)
    for n in (20, 81, 200):
        cal, new = np.round(rng.normal(size=n), decimals), np.round(np.r_[rng.normal(size=30), rng.normal(3, 1, 30)], decimals)
        found = calibrate(cal, new, fdr=0.2, adaptive=True)
        assert found.flag.tolist() == adaptive_reference(cal, new, 0.2)
        assert (found.q_value <= 1).all() and found.flagged >= calibrate(cal, new, fdr=0.2).flagged


def test_an_adaptive_rate_with_a_confidence_estimates_by_levels_that_hold_for_the_file():
    rng = np.random.default_rng(20)
    cal, new = rng.normal(size=500), np.r_[rng.normal(size=140), rng.normal(5, 1, 60)]
    found, level = calibrate(cal, new, adaptive=True, confidence=0.9), certain_levels(500, 0.9)
    rank = 1 + (cal[None] >= new[:, None]).sum(1)
    normal = (1 + (rank >= 250).sum()) / (1 - level[250])
    expected = [min(1.0, min(level[r] * normal / (rank <= r).sum() for r in rank[rank >= k])) for k in rank]
    np.testing.assert_allclose(found.q_value, expected)


@pytest.mark.parametrize("decimals", [0, 8])
@pytest.mark.parametrize("odd", [0, 10, 40])
def test_the_adaptive_rate_holds_on_average(decimals, odd):
    rng, rates, plain = np.random.default_rng(9), [], []
    for _ in range(SIMULATIONS // 2):
        cal = np.round(rng.normal(size=199), decimals)
        new = np.round(np.r_[rng.normal(size=100 - odd), rng.normal(3, 1, odd)], decimals)
        for kept, adaptive in ((rates, True), (plain, False)):
            flag = calibrate(cal, new, fdr=0.2, adaptive=adaptive).flag
            kept.append((flag[: 100 - odd].sum() / max(1, flag.sum()), flag[100 - odd :].sum()))
    rates, plain = np.array(rates), np.array(plain)
    assert rates[:, 0].mean() <= 0.2 + 3 * rates[:, 0].std() / len(rates) ** 0.5
    assert odd < 40 or rates[:, 1].mean() >= plain[:, 1].mean() + (decimals > 0)


def test_with_a_confidence_the_rate_holds_for_single_calibration_files():
    """Of one calibration file the average over tables is above the rate in a third of the files, or at most in 1 - confidence."""
    rng, above = np.random.default_rng(10), {None: 0, 0.9: 0}
    for _ in range(40):
        cal = rng.normal(size=300)
        for confidence in above:
            rates = []
            for _ in range(40):
                new = np.r_[rng.normal(size=60), rng.normal(4, 1, 40)]
                flag = calibrate(cal, new, fdr=0.4, confidence=confidence).flag
                rates.append(flag[:60].sum() / max(1, flag.sum()))
            above[confidence] += np.mean(rates) > 0.4
    assert above[0.9] <= 0.1 * 40 + 3 * (0.09 * 40) ** 0.5
    text = calibrate(rng.normal(size=2000), np.r_[rng.normal(size=90), np.full(10, 9.0)], confidence=0.9).sentences
    assert text[1].startswith("On average at most 10 % of flags are false alarms, if new and calibration items")
    assert text[2] == "With 90 % confidence this average holds for these calibration items."


@pytest.mark.parametrize("n", [20, 500])
def test_the_certain_levels_hold_together_in_the_share_of_calibration_sets_that_is_stated(n):
    uniform = np.sort(np.random.default_rng(11).random((4000, n)), axis=1)
    held = (uniform <= certain_levels(n, 0.9)[1 : n + 1]).all(1).mean()
    assert 0.9 - 3 * (0.09 / 2000) ** 0.5 <= held <= 0.96


def test_a_tie_leaves_the_guard_against_calibration_items_among_the_new_on_and_rounded_scores_pass():
    tied = np.r_[CALIBRATION, CALIBRATION[:1]]
    refuses("499 of 501 there", calibrate, tied, np.r_[CALIBRATION, 9.0])
    rng = np.random.default_rng(12)
    for n, m in ((10, 100), (20, 2000), (300, 300)):
        for _ in range(50):
            calibrate(np.round(rng.normal(size=n), 2), np.round(rng.normal(size=m), 2))


def test_the_certificate_holds_in_the_share_of_calibration_sets_that_is_stated():
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(SIMULATIONS):
        found = calibrate(rng.normal(size=600), [0.0], fpr=0.01, confidence=0.9)
        held += stats.norm.sf(found.certificate.threshold) <= 0.01
    assert held / SIMULATIONS >= 0.9 - 3 * (0.09 / SIMULATIONS) ** 0.5
    assert found.sentences[1].startswith("With 90 % confidence, at most") and "have scores above" in found.sentences[1]
    lower = calibrate(-rng.normal(size=600), [0.0], fpr=0.01, larger_is_anomalous=False)
    assert f"have scores below {-lower.certificate.threshold:.6g}" in lower.sentences[1]


def test_within_groups_p_values_are_uniform_where_one_scale_for_all_is_not():
    rng = np.random.default_rng(3)
    groups = rng.integers(0, 2, 4000)
    cal, new = rng.normal(size=4000) * (1 + 9 * groups), rng.normal(size=4000) * (1 + 9 * groups)
    apart = calibrate(cal, new, groups=(groups, groups))
    together = calibrate(cal, new)
    wide = groups == 1
    assert abs((apart.p_value[wide] <= 0.05).mean() - 0.05) < 0.015
    assert (together.p_value[wide] <= 0.05).mean() > 0.08
    assert apart.shift > 0.01 and not apart.changed
    assert calibrate(cal, new, groups=(groups.astype(str), groups.astype(str))).p_value.tolist() == apart.p_value.tolist()


def test_notes_of_groups_count_what_each_of_them_can_flag():
    sizes = {"a": 25, "b": 999}
    known, new = np.repeat(list(sizes), list(sizes.values())), np.repeat(["a", "b"], [50, 150])
    found = calibrate(np.arange(1024.0), np.zeros(200), groups=(known, new))
    assert found.why_none == (
        "Each group has 25 to 999 calibration items. At a rate of 10 %, a flag needs at least 2 anomalous items, "
        "or 77 if all are in group a; there are 200 in all."
    )


def test_a_shift_within_groups_is_told_and_none_is_where_nothing_has_changed():
    rng, false = np.random.default_rng(0), []
    groups = np.arange(1000) % 10
    for _ in range(100):
        false.append(calibrate(rng.normal(size=1000), rng.normal(size=200), groups=(groups, groups[:200])).shift)
    assert np.mean(np.array(false) <= 0.1) <= 0.1 + 2 * (0.09 / 100) ** 0.5
    cal = rng.normal(size=1000) + 10 * groups
    for by, change in ((1.0, "higher"), (-1.0, "lower")):
        found = calibrate(cal, rng.normal(by, 1, 200) + 10 * groups[:200], groups=(groups, groups[:200]))
        assert found.changed and found.change == change and f"new scores are {change} overall" in found.sentences[1]
    many = np.arange(6000) % 300  # small groups tell together what none tells alone
    assert calibrate(rng.normal(size=6000), rng.normal(0.2, 1, 6000), groups=(many, many)).shift <= 0.01


CHANGES = {
    "higher": lambda rng, size: rng.normal(0.7, 1, size), "lower": lambda rng, size: rng.normal(-0.7, 1, size),
    "more spread": lambda rng, size: rng.normal(0, 1.5, size), "less spread": lambda rng, size: rng.normal(0, 0.6, size),
    "lower than any": lambda rng, size: np.full(size, -9.0),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_either_direction_is_told_and_voids_the_rate(name):
    rng = np.random.default_rng(7)
    found = [calibrate(rng.normal(size=1000), CHANGES[name](rng, 300)) for _ in range(20)]
    assert np.mean([one.changed for one in found]) >= 0.8
    change = name.removesuffix(" than any")
    assert np.mean([f"The new scores are {change} overall" in one.sentences[-1] for one in found]) >= 0.8
    assert not any("at most" in text for one in found if one.changed for text in one.sentences)


@pytest.mark.parametrize("decimals", [0, 8])
def test_no_change_is_told_where_there_is_none_and_anomalies_alone_are_no_spread(decimals):
    rng, runs = np.random.default_rng(8), 300
    told = [calibrate(*(np.round(rng.normal(size=k), decimals) for k in (400, 200))).shift <= 0.01 for _ in range(runs)]
    assert np.mean(told) <= 0.01 + 3 * (0.01 / runs) ** 0.5
    some = [calibrate(rng.normal(size=400), np.r_[rng.normal(size=170), rng.normal(4, 1, 30)]) for _ in range(50)]
    assert np.mean(["spread" in one.change and one.shift <= 0.01 for one in some]) <= 0.04


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, np.nan], [1.0]), "calibration scores"), ((CALIBRATION, [np.nan]), "scores"),
        (([1.0], [1.0]), "at least 10 calibration scores, found 1"), ((np.ones(50), [1.0]), "the score separates nothing"),
        ((CALIBRATION, np.r_[CALIBRATION, 9.0]), "500 of 500 there"),
    ],
)  # fmt: skip
def test_wrong_scores_are_refused(arguments, message):
    refuses(message, calibrate, *arguments)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"fdr": 0.0}, "fdr"), ({"fpr": 1e-5}, "calibration items"),
        ({"groups": (["a"] * 499 + ["b"], ["b", "a"])}, "of group b, found 1"), ({"groups": (["a"] * 400, ["a", "a"])}, "500"),
        ({"groups": (["a"] * 500, ["a", "a"]), "fpr": 0.1}, "`groups` with `fdr` alone"),
        ({"groups": (["a"] * 500, ["a", "a"]), "adaptive": True}, "`groups` with `fdr` alone"),
        ({"fpr": 0.1, "adaptive": True}, "adaptive with fdr"), ({"confidence": 1.0}, "confidence"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(keywords, message):
    refuses(message, calibrate, CALIBRATION, [0.0, 1.0], **keywords)


class WithDecisions:
    """A detector as of PyOD: ``decision_scores_`` and a ``decision_function`` that is larger for anomalies."""

    def get_params(self, deep=True):
        return {}

    def set_params(self, **given):
        return self

    def fit(self, X):
        self.center, self.decision_scores_ = X.mean(0), np.zeros(len(X))
        return self

    def decision_function(self, X):
        return ((X - self.center) ** 2).sum(1)


@pytest.mark.parametrize(
    "detector",
    [IsolationForest(random_state=0), OneClassSVM(nu=0.5), LocalOutlierFactor(novelty=True), GaussianDetector(), WithDecisions()],
    ids=lambda d: type(d).__name__,
)
def test_any_detector_gets_uniform_p_values_and_flags(detector):
    rng = np.random.default_rng(4)
    model = Calibrated(detector, share=0.5).fit(rng.normal(size=(2000, 3)))
    p = model.p_values(rng.normal(size=(2000, 3)))
    assert abs((p <= 0.1).mean() - 0.1) < 0.03
    assert model.predict(np.r_[rng.normal(size=(5, 3)) / 10, np.full((2, 3), 12.0)]).tolist() == [1] * 5 + [-1] * 2


def test_a_detector_of_pytorch_ood_is_calibrated():
    ood = pytest.importorskip("pytorch_ood.detector")
    rng = np.random.default_rng(6)
    model = Calibrated(ood.Mahalanobis(encoder=None)).fit(rng.normal(size=(800, 4)))
    assert model.decide(np.r_[rng.normal(size=(20, 4)) / 2, np.full((2, 4), 9.0)]).flag.tolist() == [False] * 20 + [True] * 2


def test_a_function_of_ones_own_scores_and_a_detector_without_scores_is_refused():
    x = RNG.normal(size=(200, 2))
    far = Calibrated(KMeans(2, random_state=0), score=lambda model, x: model.transform(x).min(1)).fit(x)
    assert far.decide([[50.0, 50.0]]).flag.all()
    refuses("pass score=", Calibrated(KMeans(2, random_state=0)).fit, x)


def test_duplicates_are_on_one_side_so_that_they_do_not_calibrate_what_was_fitted_to_them():
    rng = np.random.default_rng(5)
    x = np.repeat(rng.normal(size=(300, 2)), 4, axis=0) * (1 + 1e-9)
    model = Calibrated(NearestNeighbors(), score=nearest).fit(x[rng.permutation(len(x))])
    assert model.calibration_.min() > 0  # no calibration item has a duplicate that was fitted
    refuses("larger share", Calibrated(IsolationForest()).fit, x[:40:4])


@pytest.mark.parametrize("folds", [0, 5])
def test_items_of_a_group_are_on_one_side(folds):
    rng = np.random.default_rng(13)
    group, seen = np.repeat(np.arange(60), 5), []

    class Seen(WithDecisions):
        def fit(self, X):
            seen.append(set(X[:, 1].astype(int)))
            return super().fit(X)

    x = np.c_[rng.normal(size=300), group]
    model = Calibrated(Seen(), folds=folds).fit(x, groups=[f"patient {k}" for k in group])
    assert len(seen) == max(folds, 1) and all(len(x) - 5 * len(one) in range(50, 100) for one in seen)
    assert len(model.calibration_) == (300 if folds else 300 - 5 * len(seen[0]))
    refuses("groups of shape", Calibrated(Seen()).fit, x, groups=group[:5])


def test_with_folds_each_part_is_compared_by_a_detector_that_has_not_seen_it():
    rng = np.random.default_rng(14)
    x, new = rng.normal(size=(60, 2)), rng.normal(size=(7, 2))
    model = Calibrated(NearestNeighbors(), score=nearest, folds=4).fit(x)
    reach = np.zeros(7)
    for fitted, cal in zip(model.detectors_, model.parts_, strict=True):
        reach += (cal[:, None] >= nearest(fitted, new)).sum(0)
    np.testing.assert_allclose(model.p_values(new), (1 + reach) / 61)
    assert model.calibration_.min() > 0 and len(model.calibration_) == 60


def test_cross_conformal_p_values_of_normal_items_are_nearly_uniform():
    tables = np.random.default_rng(15).normal(size=(60, 150, 2))
    p = [Calibrated(GaussianDetector(), folds=5).fit(x[:100]).p_values(x[100:]) for x in tables]
    assert abs((np.concatenate(p) <= 0.1).mean() - 0.1) < 0.03


def weight(x):
    """N(1, 1) over N(0, 1), in the first component."""
    return np.exp(np.asarray(x)[:, 0])


def test_weighted_p_values_hold_under_a_known_shift_and_others_do_not():
    rng = np.random.default_rng(16)
    far = lambda model, x: np.asarray(x)[:, 0]  # noqa: E731
    found = {None: [], weight: []}
    for _ in range(60):
        x, new = rng.normal(size=(600, 2)), rng.normal([1, 0], 1, (100, 2))
        for weights, kept in found.items():
            model = Calibrated(IsolationForest(n_estimators=5), score=far, weights=weights, share=0.9)
            kept.append(model.fit(x).p_values(new) <= 0.1)
    assert np.mean(found[weight]) <= 0.11 and np.mean(found[None]) > 0.3
    for seed in range(50):
        rng = np.random.default_rng(seed)
        cal, w = rng.normal(size=101), rng.lognormal(size=101)
        p = weighted(cal, np.r_[cal, -9.0], w, np.ones(102))
        slow = [(1 + sum(w[i] for i in range(101) if cal[i] >= s)) / (1 + sum(w)) for s in [*cal, -9.0]]
        np.testing.assert_allclose(p, slow, rtol=1e-12)
        assert p.max() <= 1
    refuses("weights or folds", Calibrated(IsolationForest(), weights=weight, folds=3).fit, x)
    refuses("fdr only", Calibrated(IsolationForest(n_estimators=5), weights=weight).fit(x).decide, new, fpr=0.1)
    refuses("weights above 0", Calibrated(IsolationForest(n_estimators=5), weights=lambda x: -weight(x)).fit, x)


def test_a_change_of_scores_is_told_as_they_were_given():
    rng = np.random.default_rng(0)
    cal, new = rng.normal(size=500), rng.normal(1, 1, 300)
    assert any("scores are higher overall" in text for text in calibrate(cal, new).sentences)
    assert any("scores are lower overall" in text for text in calibrate(-cal, -new, larger_is_anomalous=False).sentences)


def test_feature_sets_are_named_from_the_rarest_on_and_no_rarer_than_can_be_known():
    p = [[0.5, 1e-9, 0.002], [0.5, 1e-9, 1e-7], [0.3, 0.2, 0.4], [0.0, 1.0, 1.0]]
    found = explain(["pixels", "patches", "z"], p, 1000)
    assert found[0] == "patches rarer than 1 in 1,000; z 1 in 500"
    assert found[1] == "z, patches rarer than 1 in 1,000" or found[1] == "patches, z rarer than 1 in 1,000"
    assert found[2] == "" and found[3] == "pixels rarer than 1 in 1,000"
    assert explain(["pixels", "patches"], [[0.09, 0.2], [0.101, 0.2]], 1000) == ["pixels 1 in 10", ""]
    assert explain(["a", "b"], [[0.01, 0.01], [0.011, 0.001]], 500) == ["a 1 in 100; b 1 in 100", "b rarer than 1 in 500"]
    assert explain(["z"], np.zeros((0, 1)), 10) == []


def test_words_follow_the_feature_sets():
    assert explain(["z"], [[0.5], [0.001]], 2000, [["dark", "low sharpness"], []]) == ["dark; low sharpness", "z 1 in 1,000"]
