"""What cannot be meant is one line that names it, for every function and detector."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from vergence import decide as d
from vergence.images import clusters, statistics

R = np.random.default_rng(0)
X, NAN, EQUAL = R.normal(size=(40, 4)), np.full((9, 2), np.nan), np.ones((20, 3))
LEVELS = {"a": X, "b": X[:, :2]}
IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NORMAL = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(3, 2), 1.0), 1)
NUMBERLESS = ("abc", None, {"a": [1.0]}, [[1.0], [1.0, 2.0]], np.array([{}], object), torch.ones(3, dtype=torch.complex64))
DETECTORS = ("GaussianDetector", "MixtureDetector", "NeighborDetector", "CombinedDetector")
CALLS = {
    "p_values": lambda x: d.p_values(x, [1.0]),
    "select": d.select,
    "q_values": d.q_values,
    "certify": lambda x: d.certify(x, 1.0),
    "simultaneous_bounds": lambda x: d.simultaneous_bounds(x, 9),
    "label_trim": lambda x: d.label_trim([1.0, 2.0], x, 1),
    "tail_p_values": d.tail_p_values,
    "odd_groups": clusters.odd_groups,
    "surprise": lambda x: d.surprise(NORMAL, x if x is None or isinstance(x, (str, dict)) else [[{}]]),
    "cross_fit": lambda x: d.cross_fit(d.GaussianDetector(), x if x is None or isinstance(x, (str, dict)) else np.zeros(3)),
}
BAD = {  # a word of the message, and what gives it
    "at least 1 of calibration": [lambda: d.p_values([], [1.0])],
    "calibration that are numbers": [lambda: d.p_values([1.0, np.nan], [1.0])],
    r"calibration of shape \(N,\)": [lambda: d.p_values([[1.0]], [1.0])],
    "scores that differ": [lambda: d.p_values([2.0] * 5, [2.0] * 3)],
    "p-values in": [lambda: d.select([0.5, 1.5]), lambda: d.simultaneous_bounds(np.arange(5.0, 105), 100)],
    "one score and calibrate that": [lambda: d.select(R.uniform(size=(10, 5)))],
    "fdr": [lambda: d.select([0.5], fdr=0)],
    "n_odd": [lambda: d.needed_calibration(5, 6)],
    "budget": [lambda: d.to_label([1.0] * 4, 5)],
    "a mask": [lambda m=m: d.label_trim([0.1, 0.9], m, budget=2) for m in ([False, True], torch.tensor([False, True]))],
    "strangest 2|2 strangest": [lambda: d.label_trim([0.1, 0.9, 0.5, 0.7], [1, 2], 2)],
    "to remain": [lambda: d.label_trim([0.1, 0.9], range(2), 2)],
    "at least 100 of scores": [lambda: d.tail_p_values(np.arange(10))],
    "largest tenth differs": [lambda: d.tail_p_values(np.ones(300))],
    "threshold or a rank": [lambda: d.certify([1.0, 2.0])],
    "rank of at most": [lambda: d.certify([1.0, 2.0], rank=3)],
    "threshold that is a number": [lambda t=t: d.certify([1.0], threshold=t) for t in ([2.0], -(10**30), np.nan)],
    "2,995 calibration items": [lambda: d.fpr_threshold(np.arange(2994), 0.001)],
    "chosen": [lambda: d.simultaneous_bounds([0.5, 0.1], 9).false_discoveries([True])],
    "n_calibration of at most": [lambda: d.simultaneous_bounds([0.1], 10**30)],
    "confidence": [lambda: d.simultaneous_bounds([0.1], 9, 1 - 1e-16)],
    "more than 15 items": [lambda: clusters.odd_groups(np.eye(12))],
    "features of shape": [lambda: clusters.odd_groups(torch.zeros(5))],
    r"below 2\^63": [lambda: d.MixtureDetector(reg_covar=10**30).fit(X)],
    "random_state": [
        lambda: clusters.odd_groups(X, random_state=True),
        lambda: d.surprise(NORMAL, torch.zeros(3, 2), random_state=10**30),
        lambda: d.cross_fit(d.GaussianDetector(), X, random_state="a"),
        lambda: d.CombinedDetector(random_state=0.5).fit(X),
        lambda: d.MixtureDetector(random_state="a").fit(X),
    ],
    "images": [
        lambda: statistics.pixel_statistics(None),
        lambda: statistics.pixel_statistics(np.zeros((2, 3, 8, 8), "M8[s]")),
        lambda: statistics.pixel_statistics(np.full((2, 3, 8, 8), "a")),
        lambda: statistics.pixel_statistics(torch.zeros(2, 8, 8)),
    ],
    "channels are last": [lambda: statistics.pixel_statistics(torch.zeros(2, 16, 16, 3))],
    "reshape": [lambda: statistics.pixel_statistics(np.zeros((2, 16, 16, 1)))],
    "in row 2": [lambda v=v: statistics.pixel_statistics(IMAGES.index_fill(0, torch.tensor(2), v)) for v in (np.nan, np.inf)],
    "p_values": [lambda: d.explain(["z"], [["a"]], 9)],
    "and words": [lambda: d.explain(["a", "b"], [[0.1]], 10), lambda: d.explain(["a"], [[0.1]], 10, [[], []])],
    "one label for each": [lambda: d.GaussianDetector().fit_features(torch.eye(5), torch.zeros(4))],
    "score_samples": [lambda: d.cross_fit(d.GaussianDetector, X)],
    "at every level": [lambda: d.cross_fit(d.GaussianDetector(), {"a": X, "b": X[:3]})],
    "groups": [lambda v=v: d.cross_fit(d.GaussianDetector(), X, 2, v) for v in ([0, 0, 1], 7, np.eye(40))],
    "features": [lambda: d.cross_fit(d.GaussianDetector(), csr_matrix(X))],
    "lower n_folds": [lambda: d.cross_fit(d.GaussianDetector(), X, 41)],
    "the names or a dictionary": [lambda: d.default_detector(X), lambda: d.default_detector([1])],
    "relative_error": [lambda: d.default_detector(["z"], relative_error=-1)],
    "contamination": [lambda v=v: d.GaussianDetector(contamination=v).fit(X) for v in (0.7, np.arange(3000.0))],
    "vary": [lambda: d.GaussianDetector().fit(EQUAL), lambda: d.MixtureDetector().fit(EQUAL)],
    "NaN": [lambda k=k: getattr(d, k)().fit(NAN) for k in DETECTORS],
    "1 sample": [lambda k=k: getattr(d, k)().fit(X[:1]) for k in DETECTORS],
    "n_components of at most": [lambda: d.GaussianDetector(9).fit(X)],
    "covariance_type": [lambda: d.MixtureDetector(covariance_type="round").fit(X)],
    "60% equal items": [lambda: d.GaussianDetector(trim=0.4).fit(np.r_[X, np.zeros((120, 4))])],
    "max_items": [lambda v=v: d.NeighborDetector(max_items=v).fit(X) for v in ("a", 1, {})],
    "metric": [lambda: d.NeighborDetector(metric="taxi").fit(X)],
    "weights that count items": [lambda: d.NeighborDetector(2).fit(X, sample_weight=np.full(40, 1 / 40))],
    "2 items of positive weight": [
        lambda: d.NeighborDetector().fit(X[:3], sample_weight=[1.0, 0.0, 0.0]),
        lambda: d.GaussianDetector().fit(X[:3], sample_weight=[1.0, 0.0, 0.0]),
    ],
    "weight": [lambda w=w: d.CombinedDetector().fit(X).calibrate(X, w) for w in (np.ones(39), -np.ones(40), np.zeros(40))],
    "sample_weight": [lambda w=w: d.GaussianDetector().fit(X, sample_weight=w) for w in ({}, ["a"] * 40, object())],
    "combine": [lambda: d.CombinedDetector(combine="mean").fit(X)],
    "expected detectors": [lambda v=v: d.CombinedDetector(v).fit(X) for v in (-1, [1], d.GaussianDetector, {})],
    "weights to be": [lambda: d.CombinedDetector(weights=2).fit(X)],
    "columns": [lambda v=v: d.CombinedDetector(columns=v).fit(X) for v in ([1], {}, np.arange(3000.0), {"a": [0, 9]})],
    r"weights\[b\] > 0": [lambda: d.CombinedDetector(weights={"b": 0}).fit(LEVELS)],
    "weights of the levels": [lambda: d.CombinedDetector(weights={"z": 0.1}).fit(LEVELS)],
    "no c among a, b": [lambda: d.CombinedDetector({"c": d.GaussianDetector()}).fit(LEVELS)],
    "as text": [lambda: d.CombinedDetector({0: d.GaussianDetector()}).fit(LEVELS), lambda: d.CombinedDetector().fit({0: X})],
    "features as in fit": [lambda: d.CombinedDetector().fit(LEVELS).score_samples({"a": X})],
    "the same items": [lambda: d.CombinedDetector().fit({"a": X, "b": X[:9]})],
    "at least one level": [lambda: d.CombinedDetector().fit({})],
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_number_is_refused(name):
    for value in NUMBERLESS:
        with pytest.raises(ValueError, match="expected"):
            CALLS[name](value)


@pytest.mark.parametrize("word", BAD)
def test_bad_input_is_one_line_that_names_it(word):
    for call in BAD[word]:
        with pytest.raises(ValueError, match=word) as error:
            call()
        assert word in ("NaN", "1 sample", "sample_weight") or "\n" not in str(error.value)  # those are scikit-learn's words


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_features_that_are_too_large_to_be_squared_are_refused_by_fit(name):
    with pytest.raises(ValueError, match="divide them by a number"):
        getattr(d, name)().fit(1e200 * X)


@pytest.mark.parametrize("name", DETECTORS[:3])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_an_item_so_far_away_that_its_distance_overflows_is_the_most_anomalous_or_refused(name):
    model = getattr(d, name)().fit(X)
    try:
        score = model.anomaly_score(np.concatenate([X, 1e200 * X[:5]]))
    except ValueError:
        return
    assert not np.isnan(score).any() and score[40:].min() > score[:40].max()


def test_numbers_of_any_type_and_labels_of_any_kind():
    x = torch.randint(0, 2, (2, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(statistics.pixel_statistics(x.bfloat16()), statistics.pixel_statistics(x.float()))
    torch.testing.assert_close(statistics.pixel_statistics(x.numpy()), statistics.pixel_statistics(x.float()))
    given = np.ones((3, 2), np.float32)
    torch.testing.assert_close(d.surprise(NORMAL, given), d.surprise(NORMAL, torch.from_numpy(given)))
    groups = torch.tensor([0, 0, 1, 1])
    expected = d.cross_fit(d.GaussianDetector(), X[:4], 2, groups)[0]
    for labels in (groups.bfloat16(), np.array(["a", "a", "b", "b"], object), ["a", "a", "b", "b"]):
        np.testing.assert_array_equal(d.cross_fit(d.GaussianDetector(), X[:4], 2, labels)[0], expected)
    assert d.simultaneous_bounds([0.1, 0.2], 9, 1e-300).false_discoveries([True, True]) <= 2
