"""A reason names the feature set in which an item is anomalous, and nothing that cannot be known."""

import numpy as np

from vergence.decide import explain


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
