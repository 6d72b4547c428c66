"""What cannot be meant is one line that names it, where `tests/fuzz/functions.py` does not have it."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from tests.refusals import refuses

from vergence import decide as d
from vergence.images import clusters, statistics

R = np.random.default_rng(0)
X = R.normal(size=(40, 4))
IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NORMAL = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(3, 2), 1.0), 1)
DETECTORS = ("GaussianDetector", "MixtureDetector", "NeighborDetector")
BAD = {  # a word of the message, and what gives it
    "scores that differ": [lambda: d.p_values([2.0] * 5, [2.0] * 3)],
    "in row 2": [lambda v=v: statistics.pixel_statistics(IMAGES.index_fill(0, torch.tensor(2), v)) for v in (np.nan, np.inf)],
    "a mask": [lambda m=m: d.label_trim([0.1, 0.9], m, budget=2) for m in ([False, True], torch.tensor([False, True]))],
    "anomalous 2|2 most anomalous": [lambda: d.label_trim([0.1, 0.9, 0.5, 0.7], [1, 2], 2)],
    "largest tenth differs": [lambda: d.tail_p_values(np.ones(300))],
    "chosen": [lambda: d.simultaneous_bounds([0.5, 0.1], 9).false_discoveries([True])],
    "divide them by": [lambda: d.NeighborDetector(standardize=False).fit((1e25 * X).astype(np.float32))],
    "more than 15 items": [lambda: clusters.anomalous_clusters(np.eye(12))],
    r"below 2\^63": [lambda: d.MixtureDetector(reg_covar=10**30).fit(X)],
    "and words": [lambda: d.explain(["a", "b"], [[0.1]], 10), lambda: d.explain(["a"], [[0.1]], 10, [[], []])],
    "score_samples": [lambda: d.cross_fit(d.GaussianDetector, X)],
    "features": [lambda: d.cross_fit(d.GaussianDetector(), csr_matrix(X))],
    "n_components of at most": [lambda: d.GaussianDetector(9).fit(X)],
    "60 % equal items": [lambda: d.GaussianDetector(trim=0.4).fit(np.r_[X, np.zeros((120, 4))])],
    "weights that count items": [lambda: d.NeighborDetector(2).fit(X, sample_weight=np.full(40, 1 / 40))],
    "2 items of positive weight": [
        lambda: d.NeighborDetector().fit(X[:3], sample_weight=[1.0, 0.0, 0.0]),
        lambda: d.GaussianDetector().fit(X[:3], sample_weight=[1.0, 0.0, 0.0]),
    ],
}


@pytest.mark.parametrize("word", BAD)
def test_bad_input_is_one_line_that_names_it(word):
    for call in BAD[word]:
        refuses(word, call)


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_features_that_are_too_large_to_be_squared_are_refused_by_fit(name):
    refuses("divide them by a number", getattr(d, name)().fit, 1e200 * X)


@pytest.mark.parametrize("name", DETECTORS)
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
