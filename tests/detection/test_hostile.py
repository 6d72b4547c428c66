"""Whatever is not an array of numbers gives one line, for every function."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from vergence import detection

NUMBERLESS = ("abc", None, {"a": [1.0]}, [[1.0], [1.0, 2.0]], np.array([{}], object), torch.ones(3, dtype=torch.complex64))
CALLS = {
    "p_values": lambda x: detection.p_values(x, [1.0]),
    "select": detection.select,
    "q_values": detection.q_values,
    "certify": lambda x: detection.certify(x, 1.0),
    "simultaneous_bounds": lambda x: detection.simultaneous_bounds(x, 9),
    "label_trim": lambda x: detection.label_trim([1.0, 2.0], x, 1),
    "tail_p_values": detection.tail_p_values,
    "odd_groups": detection.odd_groups,
    "near_duplicates": lambda x: detection.near_duplicates(x, threshold=0.9),
    "grouped": lambda x: detection.grouped(x, 3),
    "mild_views": detection.mild_views,
    "measure": detection.measure,
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_number_is_refused(name):
    for value in NUMBERLESS:
        with pytest.raises(ValueError, match="expected"):
            CALLS[name](value)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="expected the threshold to be a number"):
        detection.certify([1.0], threshold=[2.0])
    with pytest.raises(ValueError, match="expected pairs of indices below 3, found 0 to 7"):
        detection.grouped([(0, 7)], 3)
    with pytest.raises(ValueError, match="threshold"):
        detection.near_duplicates(torch.eye(3), threshold=-1)


@pytest.mark.parametrize("name", ["GaussianDetector", "MixtureDetector", "NeighborDetector"])
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


def refused(call, match="expected"):
    with pytest.raises(ValueError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["GaussianDetector", "MixtureDetector", "NeighborDetector", "CombinedDetector"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_features_that_are_too_large_to_be_squared_are_refused_by_fit(name):
    x = 1e200 * np.random.default_rng(0).normal(size=(60, 4))
    refused(lambda: getattr(detection, name)().fit(x), "divide them by a number")


@pytest.mark.parametrize("images", ["abc", None, np.zeros((2, 3, 8, 8), "M8[s]"), np.full((2, 3, 8, 8), "a")])
def test_pixel_statistics_of_what_is_no_number(images):
    refused(lambda: detection.pixel_statistics(images), "images")


def test_pixel_statistics_of_channels_that_are_last_or_of_nan():
    refused(lambda: detection.pixel_statistics(torch.zeros(2, 16, 16, 3)), r"\(2, 16, 16, 3\), whose channels are last")
    refused(lambda: detection.pixel_statistics(np.zeros((2, 16, 16, 1))), "reshape them")
    for value in (np.nan, np.inf):
        x = np.zeros((4, 3, 8, 8))
        x[2, 0, 0, 0] = value
        refused(lambda x=x: detection.pixel_statistics(x), "found NaN or infinity in row 2")


def test_pixel_statistics_of_bfloat16_and_whole_numbers():
    x = torch.randint(0, 2, (2, 3, 8, 8))
    torch.testing.assert_close(detection.pixel_statistics(x.bfloat16()), detection.pixel_statistics(x.float()))
    torch.testing.assert_close(detection.pixel_statistics(x.numpy()), detection.pixel_statistics(x.float()))


def test_labels_of_any_kind():
    x, groups = np.random.default_rng(0).normal(size=(4, 2)), torch.tensor([0, 0, 1, 1])
    expected = detection.cross_fit(detection.GaussianDetector(), x, 2, groups)[0]
    for given in (groups.bfloat16(), np.array(["a", "a", "b", "b"], object), ["a", "a", "b", "b"]):
        np.testing.assert_array_equal(detection.cross_fit(detection.GaussianDetector(), x, 2, given)[0], expected)
    for wrong in ([0, 0, 1], 7, np.array([{}, {}, 1, 2], object), torch.eye(4)):
        refused(lambda wrong=wrong: detection.cross_fit(detection.GaussianDetector(), x, 2, wrong), "groups")
    refused(lambda: detection.near_groups(torch.rand(4, 1, 8, 8), 0), "equal")
    refused(lambda: detection.near_groups(torch.rand(4, 1, 8, 8), random_state=True), "random_state")


def test_counts_and_confidences_that_no_computer_holds():
    p = [0.1, 0.2]
    refused(lambda: detection.simultaneous_bounds(p, 10**30), "n_calibration of at most")
    refused(lambda: detection.simultaneous_bounds(p, 9, 1 - 1e-16), "confidence")
    assert detection.simultaneous_bounds(p, 9, 1e-300).false_discoveries([True, True]) <= 2


def test_settings_that_are_arrays_or_estimators_are_shown_in_one_line():
    many = np.arange(3000.0)
    for name in ("GaussianDetector", "MixtureDetector"):
        refused(lambda name=name: getattr(detection, name)(contamination=many).fit(np.eye(5)), r"contamination .*\.\.\.$")
    refused(lambda: detection.CombinedDetector([many]).fit(np.eye(5)), "expected detectors")
    refused(lambda: detection.CombinedDetector(columns=many).fit(np.eye(5)), "columns")


def test_items_to_cross_fit_that_are_no_matrix():
    x = np.eye(20)
    for wrong in (None, 3, "abc", np.zeros(3), {}, {"a": x, "b": x[:3]}):
        refused(lambda wrong=wrong: detection.cross_fit(detection.GaussianDetector(), wrong))
    refused(lambda: detection.cross_fit(detection.GaussianDetector(), x, random_state="a"), "random_state")


def test_reasons_of_wrong_arguments():
    refused(lambda: detection.look_at("a", 0.1), "expected n")
    refused(lambda: detection.look_at(1, None), "expected fdr")
    refused(lambda: detection.extremes([1.0], {}), "two dictionaries")
    refused(lambda: detection.extremes({"a": [1.0]}, {"b": [1.0]}), "two dictionaries")
    refused(lambda: detection.explain(["z"], [["a"]], 9), "p_values")
    refused(lambda: detection.outlying_features(np.eye(3), np.eye(3), ["a"]), "as many names")


def test_surprise_of_wrong_arguments():
    normal = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(3, 2), 1.0), 1)
    for wrong in ("a", None, [[{}]]):
        refused(lambda wrong=wrong: detection.surprise(normal, wrong), "target")
    refused(lambda: detection.surprise(normal, torch.zeros(3, 2), random_state=10**30), "random_state")
    given = np.ones((3, 2), np.float32)
    torch.testing.assert_close(detection.surprise(normal, given), detection.surprise(normal, torch.from_numpy(given)))


def test_files_and_images_of_wrong_types():
    refused(lambda: detection.image_size(3), "path")
    refused(lambda: detection.grouped([1, 2, 3], 5), "pairs")
    for wrong in (None, torch.rand(4, 3, 16, 16), [torch.rand(3)]):
        refused(lambda wrong=wrong: detection.patch_dictionary(wrong), "batches")
    refused(lambda: detection.patch_dictionary([torch.rand(4, 3, 16, 16)], 10**30), "atoms")
    sizes = torch.ones(2, 2)
    assert (detection.measure(torch.rand(2, 3, 8, 8), sizes.bfloat16()).height == 1).all()


def test_thresholds_of_wrong_arguments():
    refused(lambda: detection.similarity_threshold(torch.eye(3), torch.eye(3), deviations=None), "deviations")


def test_settings_of_combined_detectors_of_other_types():
    x = np.random.default_rng(0).normal(size=(40, 3))
    for settings in ({"detectors": -1}, {"detectors": detection.GaussianDetector}, {"weights": 2}, {"columns": [1]}):
        refused(lambda settings=settings: detection.CombinedDetector(**settings).fit(x), next(iter(settings)))


def test_numbers_that_only_look_valid_are_refused():
    refused(lambda: detection.certify([1.0, 2.0], threshold=-(10**30)), "threshold")
    refused(lambda: detection.certify([1.0, 2.0], threshold=float("nan")), "threshold")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("CombinedDetector", {"random_state": 0.5}),
        ("MixtureDetector", {"random_state": "a"}),
        ("CombinedDetector", {"detectors": {}}),
        ("CombinedDetector", {"detectors": {"z": detection.GaussianDetector()}}),
        ("NeighborDetector", {"max_items": "a"}),
        ("NeighborDetector", {"max_items": 1}),
        ("NeighborDetector", {"max_items": {}}),
    ],
)
def test_settings_that_do_not_fit_are_refused(kind, settings):
    X = np.random.default_rng(0).normal(size=(12, 3))
    refused(lambda: getattr(detection, kind)(**settings).fit(X), "|".join(settings))


def test_a_mixture_has_at_most_as_many_components_as_items():
    X = np.random.default_rng(0).normal(size=(12, 3))
    assert detection.MixtureDetector(n_components=10**6).fit(X).mixture_.n_components <= 12


def test_one_weight_for_all_items_changes_nothing():
    X = np.random.default_rng(0).normal(size=(40, 3))
    expected = detection.GaussianDetector().fit(X).score_samples(X)
    for weight in (2, np.float32(2), np.array(2.0), torch.tensor(2.0)):
        np.testing.assert_allclose(detection.GaussianDetector().fit(X, sample_weight=weight).score_samples(X), expected)
        combined = detection.CombinedDetector(detection.GaussianDetector()).fit(X)
        found = combined.calibrate(X, weight).calibration_scores_
        np.testing.assert_allclose(found, combined.calibrate(X, np.full(40, 2.0)).calibration_scores_)


def test_calibration_refuses_the_weights_that_the_fit_refuses():
    X = np.random.default_rng(0).normal(size=(40, 3))
    detector = detection.CombinedDetector(detection.GaussianDetector()).fit(X)
    for weights in (np.ones(39), -np.ones(40), np.zeros(40)):
        with pytest.raises(ValueError, match=r"weight|sample_weight"):
            detector.calibrate(X, weights)


@pytest.mark.parametrize("weights", [{}, ["a"] * 40, [[1.0], [1.0, 2.0]], object()])
def test_weights_that_are_no_numbers_are_refused(weights):
    X = np.random.default_rng(0).normal(size=(40, 3))
    detector = detection.CombinedDetector(detection.GaussianDetector())
    with pytest.raises(ValueError, match="sample_weight"):
        detection.GaussianDetector().fit(X, sample_weight=weights)
    with pytest.raises(ValueError, match="sample_weight"):
        detector.fit(X).calibrate(X, weights)


def test_items_to_cross_fit_that_are_sparse():
    refused(lambda: detection.cross_fit(detection.GaussianDetector(), csr_matrix(np.eye(40, 4))), "features")


def test_groups_need_memory_for_the_items_in_pairs_alone():
    found = detection.grouped([(0, 3), (3, 2**40)], 2**41)
    assert [group.tolist() for group in found] == [[0, 3, 2**40]]


def test_whole_numbers_that_arrays_cannot_hold():
    x = np.random.default_rng(0).normal(size=(40, 4))
    refused(lambda: detection.MixtureDetector(reg_covar=10**30).fit(x), "below 2\\^63")
    refused(lambda: detection.similarity_threshold(x, x, deviations=10**30), "below 2\\^63")


def test_no_columns():
    x = np.random.default_rng(0).normal(size=(40, 4))
    refused(lambda: detection.CombinedDetector(columns={}).fit(x), "columns")
