"""What is no array of numbers gives one line, for every function."""

import numpy as np
import pytest
import torch

from vergence import detection

NUMBERLESS = ("abc", None, {"a": [1.0]}, [[1.0], [1.0, 2.0]], np.array([{}], object), torch.ones(3, dtype=torch.complex64))
CALLS = {
    "p_values": lambda x: detection.p_values(x, [1.0]),
    "cross_p_values": lambda x: detection.cross_p_values(x, [0, 1]),
    "select": detection.select,
    "q_values": detection.q_values,
    "certify": lambda x: detection.certify(x, 1.0),
    "simultaneous_bounds": lambda x: detection.simultaneous_bounds(x, 9),
    "drift": lambda x: detection.drift(x, 9),
    "serial": detection.serial,
    "weighted_p_values": lambda x: detection.weighted_p_values([1.0], [1.0], [1.0], x),
    "label_trim": lambda x: detection.label_trim([1.0, 2.0], x, 1),
    "tail_p_values": detection.tail_p_values,
    "odd_groups": detection.odd_groups,
    "near_duplicates": lambda x: detection.near_duplicates(x, threshold=0.9),
    "grouped": lambda x: detection.grouped(x, 3),
    "perceptual_hash": detection.perceptual_hash,
    "mild_views": detection.mild_views,
    "measure": detection.measure,
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_number_is_refused(name):
    for value in NUMBERLESS:
        with pytest.raises(ValueError, match="expected"):
            CALLS[name](value)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="expected random_state to be a whole number"):
        detection.p_values([1.0], [2.0], ties="random", random_state="seed")
    with pytest.raises(ValueError, match="expected groups to be two"):
        detection.p_values([1.0], [2.0], groups=5)
    with pytest.raises(ValueError, match="expected the threshold to be a number"):
        detection.certify([1.0], threshold=[2.0])
    with pytest.raises(ValueError, match="expected pairs of indices below 3, found 0 to 7"):
        detection.grouped([(0, 7)], 3)
    with pytest.raises(ValueError, match="expected bits to be a whole number"):
        detection.near_duplicates(torch.eye(3), threshold=0.5, bits=-1)


@pytest.mark.parametrize("name", ["GaussianDetector", "SubspaceDetector", "MixtureDetector", "NeighborDetector"])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_an_item_so_far_away_that_its_distance_overflows_is_the_most_anomalous_or_refused(name):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    model = getattr(detection, name)().fit(x)
    try:
        score = model.anomaly_score(np.concatenate([x, 1e200 * rng.normal(size=(5, 4))]))
    except ValueError:
        return
    assert not np.isnan(score).any() and score[60:].min() > score[:60].max()


def test_weights_of_features_in_bfloat16_are_those_in_float32():
    a, b = torch.randn(40, 3).bfloat16(), torch.randn(30, 3).bfloat16() + 1
    for found, expected in zip(detection.shift_weights(a, b), detection.shift_weights(a.float(), b.float()), strict=True):
        np.testing.assert_array_equal(found, expected)
