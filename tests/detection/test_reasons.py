"""A reason names the level, measurement and feature in which an item was made unusual, and nothing that cannot be known."""

import numpy as np
import torch

from vergence.detection import explain, extremes, look_at, outlying_features


def test_levels_are_named_from_the_rarest_on_and_no_rarer_than_can_be_known():
    p = [[0.5, 1e-9, 0.002], [0.5, 1e-9, 1e-7], [0.3, 0.2, 0.4], [0.0, 1.0, 1.0]]
    found = explain(["pixels", "patches", "z"], p, 1000)
    assert found[0] == "patches rarer than 1 in 1,000; z 1 in 500"
    assert found[1] == "z, patches rarer than 1 in 1,000" or found[1] == "patches, z rarer than 1 in 1,000"
    assert found[2] == "" and found[3] == "pixels rarer than 1 in 1,000"
    assert explain(["pixels", "patches"], [[0.09, 0.2], [0.101, 0.2]], 1000) == ["pixels 1 in 10", ""]
    assert explain(["z"], np.zeros((0, 1)), 10) == []


def test_words_follow_the_levels():
    assert explain(["z"], [[0.5], [0.001]], 2000, [["dark", "low sharpness"], []]) == [
        "dark; low sharpness",
        "z 1 in 1,000",
    ]


def test_measurements_that_few_items_have():
    light, sharp = np.linspace(0.2, 0.8, 500), np.linspace(1, 2, 500)
    given = {"brightness": [0.1, 0.5, 0.9], "sharpness": torch.tensor([1.5, 1.5, 0.5])}
    assert extremes(given, {"brightness": light, "sharpness": sharp}) == [
        ("low brightness",),
        (),
        ("high brightness", "low sharpness"),
    ]
    assert extremes({"darkest": [0.1, 0.9]}, {"darkest": light}) == [("very dark parts",), ("no dark parts",)]


def test_features_far_from_the_median_whatever_their_unit_and_constant_ones_never():
    r = np.random.default_rng(0)
    x = r.normal(size=(400, 4)) * [1, 100, 1e-3, 0] + 7
    odd = np.tile(np.median(x, axis=0), (3, 1))
    odd[0, 1] += 1200
    odd[1, [0, 2]] -= [9, 0.02]
    odd[2, 3] += 50
    first, second, third = outlying_features(odd, x)
    assert first == ("feature 1 12 standard deviations above the median",) or "feature 1 1" in first[0]
    assert len(second) == 2 and second[0].startswith("feature 2 2") and "below" in second[1] and third == ()
    assert outlying_features(odd[:1], x, ["a", "b", "c", "d"])[0][0].startswith("b 1")


def test_what_to_do_in_one_sentence():
    assert look_at(1, 0.05) == "look at 1 item; on average at most 5% of them will be fine"
    assert look_at(1234, 0.1) == "look at 1,234 items; on average at most a tenth of them will be fine"
