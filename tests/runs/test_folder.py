"""A folder judged by itself: planted oddities, alone or in a cluster, come first; clean folders stay quiet; copies are named."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

import vergence
from vergence.data.items import ArrayItems
from vergence.detection.robust import RobustDetector
from vergence.encoders.dictionary import normalized_patches
from vergence.report.findings import about, lines
from vergence.runs import folder
from vergence.runs.folder import FolderLevels, leaked, score_folder

pytestmark = pytest.mark.float32


def photographs(n, seed=0, side=24):
    """Smooth pictures with colors, light and noise of their own."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.normal(size=(n, 3, 5, 5)) + rng.normal(size=(n, 1, 5, 5)))
    x = torch.nn.functional.interpolate(coarse, size=side, mode="bicubic") * 30
    x = x * torch.from_numpy(rng.uniform(0.5, 1.5, (n, 1, 1, 1))) + torch.from_numpy(rng.uniform(90, 160, (n, 3, 1, 1)))
    return (x + torch.from_numpy(rng.normal(size=x.shape) * 4)).clamp(0, 255).byte()


def drawings(n, seed=1, side=24):
    """White strokes on black."""
    x = torch.zeros(n, 3, side, side, dtype=torch.uint8)
    for i, (a, b) in enumerate(np.random.default_rng(seed).integers(4, side - 6, (n, 2))):
        x[i, :, a : a + 3, 4:-4] = x[i, :, 4:-4, b : b + 3] = 255
    return x


def static(n, seed=2, side=24):
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def mixed(typical, *odd):
    x = torch.cat([typical, *odd])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(7))
    return x[order].numpy(), (order >= len(typical)).numpy()


def test_patches_of_a_folder_are_plain_averages_of_the_responses():
    x = photographs(40)
    levels = FolderLevels(ArrayItems(x))
    maps = levels.maps
    p = normalized_patches(x.float() / 255, maps.settings.patch, maps.settings.stride)
    a = p @ maps.filters.T - maps.bias
    expected = torch.cat([(side * a - maps.settings.threshold).clamp(min=0).mean(1) for side in (1, -1)], 1)
    torch.testing.assert_close(levels(x)["patches"], expected, rtol=0.05, atol=0.01)  # products may be in bfloat16


def first(found):
    return [found.row(i) for i in found.strangest(10)]


def judged(tmp_path, x, **settings):
    np.save(tmp_path / "x.npy", x)
    return score_folder(tmp_path / "x.npy", **settings)


@pytest.mark.parametrize(("kinds", "n"), [((static,), 3), pytest.param((drawings, static), 30, marks=pytest.mark.slow)])
def test_oddities_come_first_scattered_and_in_a_heap(tmp_path, kinds, n):
    x, odd = mixed(photographs(570), *(kind(n // len(kinds)) for kind in kinds))
    found = judged(tmp_path, x)
    assert roc_auc_score(odd, found.score) > 0.99
    assert all(found.columns["reason"][i] for i in np.argsort(-found.score)[:3])


def test_clean_folders_are_quiet(tmp_path):
    """Of 12 folders of ordinary items, at most a few report one."""
    folders = (np.random.default_rng(i).normal(size=(400, 20)).astype(np.float32) for i in range(12))
    assert sum(judged(tmp_path, x).flag.any() for x in folders) <= 4


@pytest.mark.slow
def test_a_heap_is_a_group_and_dark_pictures_are_named(tmp_path):
    x, odd = mixed(photographs(380), (0.02 * photographs(20, seed=5)[:1].float() + drawings(20) * 0.9).byte())
    x[3] //= 12
    found = judged(tmp_path, x)
    members = {i for group in found.groups for i in group.members.tolist()}
    assert len(members & set(np.flatnonzero(odd).tolist())) >= 18 and len(members) <= 22
    assert {found.columns["group"][i] for i in members} == {str(group.medoid) for group in found.groups}
    assert "dark" in found.columns["measured"][3] and not any("dark" in text for text in found.columns["measured"][4:20])


def test_a_heap_of_vectors_is_a_group_in_any_units(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 8)) * 10.0 ** np.arange(8)
    x[5:20] = (6 + 0.2 * rng.normal(size=(15, 8))) * 10.0 ** np.arange(8)
    found = judged(tmp_path, x.astype(np.float32))
    assert [sorted(group.members.tolist()) for group in found.groups] == [list(range(5, 20))]
    strangest = np.argsort(-found.score)
    assert [row["group"] != "" for row in first(found)] == [True] + 9 * [False]  # a group counts once
    assert [row["name"] for row in first(found)[1:]] == [str(i) for i in strangest if not found.columns["group"][i]][:9]
    cluster = found.groups[0]
    said = f"15 items like {cluster.medoid} form a group of their own: {cluster.distance:.3g} times as far"
    assert cluster.distance > 3 and any(line.startswith(said) for line in lines(found))
    assert "are nearly the same" in about(found, dataclasses.replace(cluster, distance=0.507))


def test_files_of_an_odd_size_or_shape_are_named(tmp_path):
    for i, image in enumerate(photographs(60)):
        height, width = {0: (200, 200), 1: (7, 7), 2: (64, 8)}.get(i, image.shape[1:])
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((width, height))
        (tmp_path / "photos").mkdir(exist_ok=True)
        picture.save(tmp_path / "photos" / f"{i:02}.png")
    found = vergence.score_folder(tmp_path / "photos", workers=0)
    named = {name: text for name, text in zip(found.names, found.columns["measured"], strict=True) if "odd" in text}
    assert {name: [one for one in text.split(", ") if "odd" in one] for name, text in named.items()} == {
        "00.png": ["odd_size"],
        "01.png": ["odd_size"],
        "02.png": ["odd_aspect_ratio"],
    }


def test_far_items_of_vectors_are_flagged_with_the_features_that_say_so(tmp_path):
    x = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    x[::100, 3] += 40
    found = judged(tmp_path, x)
    odd = np.arange(500) % 100 == 0
    assert roc_auc_score(odd, found.score) == 1.0 and found.flag[odd].all() and found.flag[~odd].sum() <= 1
    assert all(
        "inputs rarer than 1 in 500; feature 3 " in found.columns["reason"][i] and "above" in found.columns["reason"][i]
        for i in np.flatnonzero(odd)
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [30])
def test_plain_oddities_among_pictures_are_flagged_one_by_one_with_a_reason(tmp_path, n):
    x, odd = mixed(photographs(600 - n), drawings(n))
    found = judged(tmp_path, x)
    assert found.flag[odd].all() and found.flag[~odd].sum() <= 0.2 * n
    assert all("rarer than 1 in 600" in found.columns["reason"][i] for i in np.flatnonzero(odd))
    assert lines(found)[0].startswith(f"look at {found.flag.sum()} items; on average at most a tenth of them will be fine, if")
    assert (found.flag == (found.columns["q_value"] <= 0.1)).all()


def test_near_copies_are_named_and_never_fit_each_other(tmp_path, monkeypatch):
    seen = []
    fit = RobustDetector.fit
    monkeypatch.setattr(RobustDetector, "fit", lambda self, X, groups: seen.append(groups) or fit(self, X, groups))
    x = photographs(200)
    x[150:160] = changed(x[10:20])
    x[160] = x[0]
    found = judged(tmp_path, x.numpy())
    named = [found.columns["similar_to"][i] == str(i - 140) for i in range(150, 160)]
    assert sum(named) >= 9 and sum(map(bool, found.columns["similar_to"])) == sum(named) and found.columns["same_as"][160] == "0"
    assert found.columns["similar_to"][160] == "" and f"near-duplicates of other items: {sum(named)}" in lines(found)
    groups = seen[0]
    assert all(groups[i] == groups[i - 140] for i in range(150, 160) if named[i - 150])
    assert len(groups) == 199  # a copy is not fitted to again


@pytest.mark.slow
def test_a_job_that_is_stopped_goes_on_and_writes_the_same_bytes(tmp_path, monkeypatch):
    """Stopped while the levels are computed, and again while the items beyond those that are held are scored."""
    x, _ = mixed(photographs(1500, side=12), drawings(6, side=12))
    np.save(tmp_path / "x.npy", x)
    original, computed = folder.collected, []
    monkeypatch.setattr(folder, "collected", lambda *a, **k: original(*a, most=900, **k))
    monkeypatch.setattr(folder, "EVERY", 256)
    levels, limits = folder.FolderLevels.forward, {"stop": 0}

    def counted(self, x):
        computed.append(len(x))
        if limits["stop"] and sum(computed) > limits["stop"]:
            raise KeyboardInterrupt
        return levels(self, x)

    monkeypatch.setattr(folder.FolderLevels, "forward", counted)
    score_folder(tmp_path / "x.npy", tmp_path / "whole.csv")
    whole = sum(computed)
    for limits["stop"] in (800, 500):
        computed.clear()
        with pytest.raises(KeyboardInterrupt):
            score_folder(tmp_path / "x.npy", tmp_path / "s.csv")
    limits["stop"] = 0
    computed.clear()
    score_folder(tmp_path / "x.npy", tmp_path / "s.csv")
    assert 0 < sum(computed) <= whole - 1024
    for ending in ("", ".html"):
        first, again = ((tmp_path / f"{name}.csv{ending}").read_text() for name in ("whole", "s"))
        assert first == again
    assert not list(tmp_path.glob(".*.parts"))


@pytest.mark.slow
def test_the_page_shows_what_is_unusual_and_escapes_names(tmp_path):
    place = tmp_path / "photos"
    place.mkdir()
    pictures = [*photographs(220, side=24), *drawings(4)]
    for i, image in enumerate(pictures):
        name = f"{i:03d}.png" if i < 220 else f"<b>{i}&.png"
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / name)
    Image.fromarray(pictures[3].permute(1, 2, 0).numpy()).save(place / "copy.png")
    found = score_folder(place, tmp_path / "s.csv", workers=0)
    page = (tmp_path / "s.csv.html").read_text()
    assert f"Look at {found.flag.sum()} pictures; on average at most a tenth of them will be fine, if the tail" in page
    assert "<b>22" not in page and "&lt;b&gt;220&amp;.png" in page and page.count("data:image/png;base64,") >= 50
    assert "1 copy of 003.png" in page and "://" not in page.split("<script>")[0]
    assert page.index("&lt;b&gt;22") < page.index("nearest ordinary")
    assert page.count("<figure class=flagged>") == found.flag.sum()


def changed(images):
    return (1.05 * images.float() + 3).clamp(0, 255).byte()


@pytest.mark.slow
def test_items_of_another_folder_are_found_as_copies_and_near_copies_and_shown(tmp_path):
    x = photographs(230).permute(0, 2, 3, 1)
    for name, pictures in (("train", x[:150]), ("test", torch.cat([x[150:], changed(x[:10]), x[20:22]]))):
        (tmp_path / name).mkdir()
        for i, image in enumerate(pictures):
            Image.fromarray(image.numpy()).save(tmp_path / name / f"{name[0]}{i:03d}.png")
    found = score_folder(tmp_path / "test", tmp_path / "s.csv", leaks_from=tmp_path / "train", workers=0)
    leak = dict(zip(found.names, found.columns["leak"], strict=True))
    near = [leak[f"t{i:03d}.png"] == f"t{i - 80:03d}.png" for i in range(80, 90)]
    assert sum(near) >= 9 and [leak["t090.png"], leak["t091.png"]] == ["t020.png", "t021.png"]
    total = sum(map(bool, found.columns["leak"]))
    assert total == sum(near) + 2, "no other one"
    assert f"copies or near-duplicates of items in the other source: {total}" in lines(found)
    assert "t080.png is t000.png" in lines(found)[-1] and "turned and cropped copies are not looked for" in lines(found)[-1]
    page = (tmp_path / "s.csv.html").read_text()
    assert "t090.png, and t020.png of the other source" in page and page.count("of the other source</h3>") == total
    header, row = (tmp_path / "s.csv").read_text().splitlines()[::91][:2]
    assert header.endswith(",leak") and row.endswith(",t020.png")
    assert "leak" not in score_folder(tmp_path / "test", workers=0).columns
    (tmp_path / "train" / "broken.png").write_bytes(b"no picture")
    again = score_folder(tmp_path / "test", leaks_from=tmp_path / "train", workers=0)
    assert (
        again.columns["leak"] == found.columns["leak"]
        and "1 of 151 other items cannot be read, and were not compared" in again.notes
    )


@pytest.mark.slow
def test_mirrored_and_turned_copies_are_found_in_a_folder_and_in_another():
    x = photographs(200)
    moved = torch.cat([x[:5].flip(-1), x[5:10].rot90(1, (-2, -1)), changed(x[10:15].flip(-2))])
    found = score_folder(ArrayItems(torch.cat([x[100:], moved])), leaks_from=ArrayItems(x[:100]))
    leak = dict(zip(found.names, found.columns["leak"], strict=True))
    assert sum(leak[str(100 + i)] == str(i) for i in range(15)) >= 14 and sum(map(bool, found.columns["leak"])) <= 16
    alone = score_folder(ArrayItems(torch.cat([x, moved])))
    like = dict(zip(alone.names, alone.columns["similar_to"], strict=True))
    assert sum(like[str(200 + i)] == str(i) for i in range(15)) >= 14 and sum(map(bool, alone.columns["similar_to"])) <= 16
    assert not any(alone.columns["same_as"]), "similar, not equal"


def test_equal_vectors_of_another_source_are_leaks():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 4)), rng.normal(size=(50, 4))
    b[7] = a[12]
    found = score_folder(ArrayItems(torch.from_numpy(a)), leaks_from=ArrayItems(torch.from_numpy(b)))
    assert {name: one for name, one in zip(found.names, found.columns["leak"], strict=True) if one} == {"12": "7"}
    assert lines(found)[-1] == "for instance 12 is 7; only equal items are looked for"
    with pytest.raises(ValueError, match="expected two sources of one kind"):
        score_folder(ArrayItems(torch.from_numpy(a)), leaks_from=ArrayItems(photographs(20)))


def same(n):
    return {str(i): str(i) for i in range(n)}


def test_images_of_another_size_or_in_gray_are_compared_too():
    x = photographs(120, side=48)
    gray = (x[:8].float() * torch.tensor([0.2989, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True).byte()
    small = torch.nn.functional.interpolate(x.float(), size=32, mode="bilinear", antialias=True).round().byte()
    assert leaked(ArrayItems(small[:30]), ArrayItems(x)).names == same(30)
    assert leaked(ArrayItems(gray), ArrayItems(x)).names == leaked(ArrayItems(x), ArrayItems(gray)).names == same(8)
    with pytest.raises(ValueError, match=r"expected two sources of one kind, found items of shape \(2, 48, 48\)"):
        leaked(ArrayItems(x[:, :2]), ArrayItems(x))


@pytest.mark.parametrize("n", [10, 100])
def test_however_many_items_two_sources_share_they_are_found(n):
    x, y = photographs(100), photographs(100, seed=9)
    found = leaked(ArrayItems(torch.cat([changed(x[:n]), y[n:]])), ArrayItems(x)).names
    assert len(found) >= 0.95 * n and found.items() <= same(n).items()
    both = leaked(ArrayItems(torch.cat([x[:n], changed(x[:n])])), ArrayItems(x)).names  # equal ones do not hide the others
    assert len(both) >= 1.95 * n and all(int(mine) % n == int(there) for mine, there in both.items())


def test_what_is_not_compared_is_a_note(monkeypatch):
    x = photographs(60)
    other = torch.cat([x[:2], changed(x[2:4])])
    items = ArrayItems(x)
    assert leaked(items, ArrayItems(other)).names == same(4)
    black = ArrayItems(torch.zeros(30, 3, 24, 24, dtype=torch.uint8))
    found = leaked(ArrayItems(torch.ones(30, 3, 24, 24, dtype=torch.uint8)), black)
    assert found.names == {} and "near-duplicates in both sources were not looked for: expected" in found.notes[0]
    monkeypatch.setattr(folder, "MOST_COMPARED", 50)
    judged = score_folder(items, leaks_from=ArrayItems(other))
    assert [name for name, one in zip(judged.names, judged.columns["leak"], strict=True) if one] == ["0", "1"]
    assert any(note.startswith("only equal images were looked for in both sources") for note in judged.notes)


def test_confirmed_oddities_are_not_fitted_to_and_still_scored(tmp_path):
    x, odd = mixed(photographs(200), drawings(20))
    names = np.flatnonzero(odd).astype(str).tolist()
    found = judged(tmp_path, x, confirmed=names)
    assert (
        roc_auc_score(odd, found.score) == 1.0
        and found.columns["p_value"][odd].max() < found.columns["p_value"][~odd].min() + 0.05
    )
    with pytest.raises(ValueError, match=r"found 1 others \(first: a.png\)"):
        judged(tmp_path, x, confirmed=["a.png"])


def test_a_folder_of_files_is_written_and_what_cannot_be_read_is_listed(tmp_path):
    place = tmp_path / "photos"
    place.mkdir()
    for i, image in enumerate([*photographs(60, side=40), *drawings(2, side=40)]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i:03d}.png")
    (place / "broken.png").write_bytes(b"no image")
    found = score_folder(place, tmp_path / "s.csv", workers=0)
    assert len(found.names) == 62 and set(np.asarray(found.names)[np.argsort(-found.score)[:2]]) == {"060.png", "061.png"}
    lines = (tmp_path / "s.csv").read_text().splitlines()
    columns = "name,score,p_value,q_value,flag,level,nearest,reason,measured,group,same_as,similar_to"
    assert lines[0] == columns and len(lines) == 63
    assert "broken.png" in (tmp_path / "s.csv.skipped.csv").read_text()
    (place / "broken.png").unlink()
    score_folder(place, tmp_path / "s.csv", workers=0)
    assert not (tmp_path / "s.csv.skipped.csv").exists(), "of an earlier call"


def test_what_lies_beside_the_middle_of_wide_images_is_said_not_to_be_seen(tmp_path, capsys):
    place = tmp_path / "photos"
    place.mkdir()
    for i, image in enumerate(photographs(30, side=40)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).resize((80 if i < 3 else 40, 40)).save(place / f"{i:03d}.png")
    found = score_folder(place, workers=0)
    words = "3 of 30 images are not square, and only their middle is judged, 50% of the area: what lies beside it is not seen"
    assert words in found.notes and f"note: {words}" in capsys.readouterr().err
    for i in range(3):
        (place / f"{i:03d}.png").unlink()
    assert not any("not square" in note for note in score_folder(place, workers=0).notes)


@pytest.mark.slow
def test_a_run_judges_the_data_that_it_was_trained_on(tmp_path):
    x, odd = mixed(photographs(380), drawings(12))
    np.save(tmp_path / "x.npy", x)
    settings = {"objective": "vje", "epochs": 1, "batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}
    run = vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "run", **settings)
    found = vergence.score_folder(tmp_path / "x.npy", run=run)
    assert roc_auc_score(odd, found.score) > 0.98


@pytest.mark.slow
def test_more_items_than_are_held_are_all_scored(tmp_path, monkeypatch):
    x, odd = mixed(photographs(300), drawings(6))
    whole = judged(tmp_path, x)
    original = folder.collected
    monkeypatch.setattr(folder, "collected", lambda *a, **k: original(*a, most=200, **k))
    part = judged(tmp_path, x)
    assert part.names == whole.names and roc_auc_score(odd, part.score) > 0.99
    assert part.notes[-1].startswith("odd groups are not looked for, and near-duplicates only among 200 of 306 items")
    assert not any("odd groups" in note for note in whole.notes)


def test_a_folder_that_is_mostly_copies_is_judged(tmp_path):
    x = photographs(120)
    whole = torch.cat([x[:1].expand(480, -1, -1, -1), x[1:], drawings(8)])
    found = judged(tmp_path, whole.numpy())
    assert roc_auc_score(np.arange(len(whole)) >= len(whole) - 8, found.score) > 0.99
    assert len(set(found.score[:480])) == 1 and found.columns["same_as"][1:480] == ["0"] * 479


def test_the_result_is_the_same_again_and_does_not_depend_on_the_unit(tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    first, again = (judged(tmp_path, x).score for _ in range(2))
    assert (first == again).all()
    scaled = RobustDetector().fit({"x": x.astype(np.float64) * 1000}).contributions_
    np.testing.assert_allclose(scaled, RobustDetector().fit({"x": x.astype(np.float64)}).contributions_, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((40, 3, 8, 8), dtype=np.uint8), "tells the items apart|different items"),
        (np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8), dtype=np.uint8), "at least 20 items"),
        (np.random.default_rng(0).normal(size=(1, 4)).astype(np.float32), "at least 20 items"),
    ],
)
def test_too_little_to_judge_is_one_line(tmp_path, x, words):
    with pytest.raises(ValueError, match=words) as caught:
        judged(tmp_path, x, out=tmp_path / "s.csv")
    assert "\n" not in str(caught.value) and not (tmp_path / "s.csv").exists()


def test_a_heap_beside_features_that_are_otherwise_zero_is_a_group(tmp_path):
    generator = np.random.default_rng(0)
    x = np.c_[np.zeros((300, 2)), generator.standard_normal((300, 2))]
    x[:10, :2] = 5 + 0.1 * generator.standard_normal((10, 2))
    assert list(range(10)) in [sorted(group.members.tolist()) for group in judged(tmp_path, x).groups]
