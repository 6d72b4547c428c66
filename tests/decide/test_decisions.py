"""Decisions from the scores of any model: what is promised is simulated; what cannot be decided is refused."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor
from sklearn.svm import OneClassSVM

from vergence.decide import Calibrated, GaussianDetector, calibrate

RNG = np.random.default_rng(0)
CALIBRATION = RNG.normal(size=500)
SIMULATIONS = 1000


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
    above, below = (
        calibrate(kind(CALIBRATION), kind(scores)),
        calibrate(kind(-CALIBRATION), kind(scores), larger_is_stranger=False),
    )
    assert above.flag.tolist() == [False, True, False]
    assert below.flag.tolist() == [False, False, True]
    assert above.p_value[1] == below.p_value[2] == 1 / 501


def test_the_false_discovery_rate_holds_on_average():
    rng = np.random.default_rng(1)
    rates = []
    for _ in range(SIMULATIONS):
        found = calibrate(rng.normal(size=200), np.r_[rng.normal(size=90), rng.normal(4, 1, 10)], fdr=0.2)
        rates.append(found.flag[:90].sum() / max(1, found.flag.sum()))
    assert np.mean(rates) <= 0.2 + 2 * np.std(rates) / SIMULATIONS**0.5
    assert np.mean(rates) > 0.1  # not by flagging nothing


def test_the_certificate_holds_in_the_share_of_calibration_sets_that_is_stated():
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(SIMULATIONS):
        found = calibrate(rng.normal(size=600), [0.0], fpr=0.01, confidence=0.9)
        held += stats.norm.sf(found.certificate.threshold) <= 0.01
    assert held / SIMULATIONS >= 0.9 - 3 * (0.09 / SIMULATIONS) ** 0.5
    assert "with confidence 0.9" in found.sentences[0]


def test_within_groups_p_values_are_uniform_where_one_scale_for_all_is_not():
    rng = np.random.default_rng(3)
    groups = rng.integers(0, 2, 4000)
    cal, new = rng.normal(size=4000) * (1 + 9 * groups), rng.normal(size=4000) * (1 + 9 * groups)
    apart = calibrate(cal, new, groups=(groups, groups))
    together = calibrate(cal, new)
    wide = groups == 1
    assert abs((apart.p_value[wide] <= 0.05).mean() - 0.05) < 0.015
    assert (together.p_value[wide] <= 0.05).mean() > 0.08
    assert apart.shift is None
    assert calibrate(cal, new, groups=(groups.astype(str), groups.astype(str))).p_value.tolist() == apart.p_value.tolist()
    of_forty = np.arange(2000) % 40  # none of 50 items of a group can have a p-value below 1 / 51
    found = calibrate(np.arange(2000.0), np.full(200, 3000.5), groups=(of_forty, of_forty[:200]))
    assert found.p_value.max() == pytest.approx(1 / 51)
    assert found.why_none.startswith("50 calibration items in a group are few: ") and "unless 40 or more of 200" in found.why_none


def test_new_items_from_elsewhere_are_told():
    found = calibrate(CALIBRATION, RNG.normal(1, 1, 300))
    assert found.shift < 0.01
    assert any("elsewhere" in sentence for sentence in found.sentences)
    assert calibrate(CALIBRATION, RNG.normal(size=300)).shift > 0.01


def test_nothing_flagged_is_explained():
    found = calibrate(CALIBRATION[:20], RNG.normal(size=50))
    assert not found.flag.any()
    assert found.sentences[0].startswith("none of 50 items flagged")
    assert "20 calibration items" in found.sentences[0]
    assert len(found.table()["q_value"]) == 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, np.nan], [1.0]), "calibration scores"),
        ((CALIBRATION, [np.nan]), "scores"),
        (([1.0], [1.0]), "at least 10 calibration scores, found 1"),
        ((np.ones(50), [1.0]), "the score tells nothing"),
        ((CALIBRATION, np.r_[CALIBRATION, 9.0]), "500 of 500 among the new ones"),
    ],
)
def test_wrong_scores_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate(*arguments)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"fdr": 0.0}, "fdr"),
        ({"fpr": 1e-5}, "calibration items"),
        ({"groups": (["a"] * 499 + ["b"], ["b", "a"])}, "of group b, found 1"),
        ({"groups": (["a"] * 400, ["a", "a"])}, "500"),
        ({"groups": (["a"] * 500, ["a", "a"]), "fpr": 0.1}, "groups with fdr"),
    ],
)
def test_wrong_options_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        calibrate(CALIBRATION, [0.0, 1.0], **keywords)


class WithDecisions:
    """A detector as of PyOD: ``decision_scores_`` and a ``decision_function`` that is larger for outliers."""

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
    from sklearn.cluster import KMeans

    x = RNG.normal(size=(200, 2))
    far = Calibrated(KMeans(2, random_state=0), score=lambda model, x: model.transform(x).min(1)).fit(x)
    assert far.decide([[50.0, 50.0]]).flag.all()
    with pytest.raises(ValueError, match="pass score="):
        Calibrated(KMeans(2, random_state=0)).fit(x)


def test_copies_are_on_one_side_so_that_they_do_not_calibrate_what_was_fitted_to_them():
    rng = np.random.default_rng(5)
    x = np.repeat(rng.normal(size=(300, 2)), 4, axis=0) * (1 + 1e-9)
    nearest = lambda model, items: model.kneighbors(items, 1)[0][:, 0]  # noqa: E731
    from sklearn.neighbors import NearestNeighbors

    model = Calibrated(NearestNeighbors(), score=nearest).fit(x[rng.permutation(len(x))])
    assert model.calibration_.min() > 0  # no calibration item has a copy that was fitted
    with pytest.raises(ValueError, match="larger share"):
        Calibrated(IsolationForest()).fit(x[:40:4])
