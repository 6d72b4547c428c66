"""Groups and labels: names, p-values that hold for groups, and images under a wrong label."""

import shutil

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter1d
from tests.refusals import refuses

import vergence
from vergence.data.image_list import ImageList
from vergence.decide.feature_sets import ReferenceScores
from vergence.images.labels import labels_alone, labels_with_reference, names_by
from vergence.images.reference import folds_of


def test_groups_are_parts_of_names_columns_or_given():
    images = ImageList(["a/x_1.png", "a/y-2.png", "b/plain.png"], [None] * 3)
    images.columns = {"camera": [1, 2, 1]}
    assert names_by(images, [0, 2], "folder", "groups") == ["a", "b"]
    assert names_by(images, [0, 1, 2], "prefix", "groups") == ["a/x", "a/y", "b/plain"]
    assert names_by(images, [0, 1], "camera", "groups") == ["1", "2"]
    assert names_by(images, [2, 0], ["u", "v", "w"], "groups") == ["w", "u"]
    assert names_by(images, [0, 1], r"^(\w)/", "groups") == ["a", "a"]
    with pytest.raises(
        ValueError, match=r"expected \\d in each name, for `groups`, found 1 name without it \(first: b/plain.png\)"
    ):
        names_by(images, range(3), r"\d", "groups")
    refuses("a regular expression, found \\(: ", names_by, images, range(3), "(", "groups")
    refuses("one of `labels` for each of 3 images, found 2", names_by, images, range(3), ["u", "v"], "labels")


def slow_p_value(score, reference, group):
    """The mean over groups of the share of each that is at least as far, by the definition."""
    shares = [np.mean(reference[group == g] >= score) for g in np.unique(group)]
    return (1 + sum(shares)) / (1 + len(shares))


def test_p_values_between_groups_follow_their_definition():
    rng = np.random.default_rng(0)
    group, reference, new = rng.integers(0, 7, 60), rng.normal(size=60).round(1), rng.normal(size=(9, 1)).round(1)
    weight = 1 / np.bincount(group)[group]
    scores = ReferenceScores(reference, np.zeros(60, dtype=int), (), np.zeros(9, dtype=bool), weight)
    np.testing.assert_allclose(scores.p_values(new), [slow_p_value(s, reference, group) for s in new[:, 0]])
    assert scores.examples == len(np.unique(group)) and np.allclose(scores.least, 1 / 8)


def test_p_values_within_groups_are_those_of_each_group():
    rng = np.random.default_rng(0)
    group, reference = np.arange(60) % 3, rng.normal(size=60)
    new, of = rng.normal(size=(12, 1)), np.arange(12) % 3
    scores = ReferenceScores(reference, np.zeros(60, dtype=int), (), np.zeros(12, dtype=bool), groups=(group, of))
    expected = [(1 + np.sum(reference[group == g] >= s)) / 21 for s, g in zip(new[:, 0], of, strict=True)]
    np.testing.assert_allclose(scores.p_values(new), expected)
    assert scores.examples == 20


def test_p_values_between_groups_hold_where_images_of_a_part_are_alike():
    """Each part has a level of its own: single images as examples promise too much, groups do not."""
    rng, wrong = np.random.default_rng(0), {"groups": [], "images": []}
    for _ in range(400):
        size = rng.integers(1, 20, 15)
        level = rng.normal(size=16) * 3
        group = np.repeat(np.arange(15), size)
        reference = level[group] + rng.normal(size=len(group))
        new = np.array([[level[15] + rng.normal()]])
        for name, weight in (("groups", 1 / size[group]), ("images", None)):
            scores = ReferenceScores(reference, np.zeros(len(group), dtype=int), (), np.zeros(1, dtype=bool), weight)
            wrong[name].append(scores.p_values(new)[0] <= 0.07)
    assert np.mean(wrong["groups"]) <= 0.07 + 2 * np.sqrt(0.07 * 0.93 / 400)
    assert np.mean(wrong["images"]) > np.mean(wrong["groups"])


def test_stated_groups_share_folds_however_few_they_are():
    group = np.arange(60) % 3
    places, fold = folds_of(np.arange(60), group, stated=True)
    assert all(len(set(fold[group[places] == g])) == 1 for g in range(3)) and fold.max() == 2
    with pytest.raises(ValueError, match="two reference groups at least, found one of 60 images"):
        folds_of(np.arange(60), np.zeros(60, dtype=int), stated=True)


def labeled(n, rng, wrong):
    y = np.arange(n) % 3
    x = rng.normal(size=(n, 12)) + 3 * np.eye(12)[y]
    given = np.where(np.arange(n) < wrong, (y + 1) % 3, y)
    return x, [f"class {k}" for k in given], np.array([f"class {k}" for k in y])


def test_wrong_labels_come_first_with_what_they_fit_better():
    x, given, right = labeled(300, np.random.default_rng(0), 9)
    found = labels_alone(given, x, np.arange(300) % 5)
    first = np.argsort(-found.score)[:9]
    assert len(set(first) & set(range(9))) >= 8 and not found.flag.any() and not found.compared
    assert np.mean([found.other[i] == right[i] for i in range(9)]) > 0.8


def test_wrong_labels_are_flagged_next_to_a_reference_at_the_stated_rate():
    false, flags, held = 0, 0, []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        old, known, _ = labeled(400, rng, 0)
        x, given, _ = labeled(200, rng, 20)
        found = labels_with_reference(given, known, x, old, np.arange(400) % 10, 0.1)
        flags, false = flags + found.flag.sum(), false + found.flag[20:].sum()
        held.append(found.flag[20:].sum() / max(1, found.flag.sum()))
    assert flags >= 30 * 15 and np.mean(held) <= 0.13 and found.compared.startswith("reference images")


def test_labels_of_few_images_are_not_judged():
    x, given, _ = labeled(60, np.random.default_rng(0), 0)
    given[0] = "rare"
    found = labels_alone(given, x, np.arange(60) % 5)
    assert np.flatnonzero(np.isnan(found.score)).tolist() == [0] and found.other[0] == ""
    group = np.where(np.arange(60) % 3 == 1, 0, np.arange(60) % 5)  # one patient alone has the second label
    assert np.isnan(labels_alone(given, x, group).score[np.arange(60) % 3 == 1]).all()
    with pytest.raises(ValueError, match="two labels of 5 images at least, found 1; name what tells labels with `labels`"):
        labels_alone(["same"] * 60, x, np.arange(60) % 5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two classes in folders, stripes along and across, of which one image of each lies in the other's."""
    root = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(0)
    for i in range(48):
        across = i % 2
        x = gaussian_filter1d(rng.normal(size=(48, 48)), 6, axis=0)
        pixels = np.uint8(np.clip(120 + 150 * (x.T if across else x), 0, 255))
        name = ("along", "across")[across ^ (i < 2)]
        (root / name).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(root / name / f"part{i // 4}_{i}.png")
    return root


def test_a_folder_of_classes_says_which_image_lies_in_the_wrong_one(folders):
    found = vergence.check(folders, labels="folder", groups="prefix", encoder="patches", workers=0, map="pca")
    first = np.argsort(-np.array(found.items["label_score"]))[:2]
    assert {found.items["path"][i] for i in first} == {"across/part0_0.png", "along/part0_1.png"}
    sentence = next(s for s in found.summary["sentences"] if "fit another label better" in s)
    assert "(across, more like along)" in sentence and "sort by 'least fitting label first'" in sentence
    assert set(found.items["label_flag"]) == {0} and found.summary["labels"]["images"] == 48


def test_of_duplicates_with_different_labels_both_stay(folders, tmp_path):
    shutil.copytree(folders, tmp_path / "in")
    for name in ("along/copy.png", "across/copy.png"):
        shutil.copy(folders / "along" / "part2_8.png", tmp_path / "in" / name)
    found = vergence.check(tmp_path / "in", labels="folder", keep="best", encoder="patches", workers=0, map="pca")
    assert found.remove["path"] == ["along/part2_8.png"] and found.remove["keep"] == ["along/copy.png"]
    assert any("different labels, so `keep='best'` keeps both images: across/copy.png" in s for s in found.summary["sentences"])


def test_groups_calibrate_between_or_within(folders):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 255, (50, 3, 24, 24)).astype(np.uint8)
    for new, within in ((["a", "b"] * 5, "within"), ([f"new {i // 2}" for i in range(10)], "between")):
        found = vergence.check(
            pixels[:10], against=pixels[10:], groups=(new, ["a", "b"] * 20), encoder="patches", workers=0, map="pca"
        )
        assert found.summary["grouped"] == within and found.summary["examples"] == (20 if within == "within" else 2)
        assert np.min(found.items["p_value"]) >= 1 / (found.summary["examples"] + 1) - 1e-9
    refuses("expected two groups at least, found one", vergence.check, pixels, groups=["a"] * 50, encoder="patches", workers=0)
    with pytest.raises(ValueError, match="groups or labels of the images, and of the reference, found 10 of them; give a pair"):
        vergence.check(pixels[:10], against=pixels[10:], groups=new, encoder="patches", workers=0)


def test_labels_with_a_reference_have_a_rate(folders, tmp_path):
    for name in ("along", "across"):
        (tmp_path / name).mkdir()
        for file in sorted((folders / name).iterdir())[4:]:
            with Image.open(file) as image:
                image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).rotate(180).save(tmp_path / name / file.name)
    found = vergence.check(folders, against=tmp_path, labels="folder", encoder="patches", workers=0, map="pca")
    labels, sentence = found.summary["labels"], next(s for s in found.summary["sentences"] if "label" in s)
    assert labels["flagged"] == sum(found.items["label_flag"]) and labels["compared"].startswith("reference images")
    assert ("flagged with a wrong label" in sentence and "at most 10 % of these" in sentence) == bool(labels["flagged"])
