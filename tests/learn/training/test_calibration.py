"""The calibration part: a share of the training items by seed, whole groups of equal ones, the same everywhere."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.refusals import refuses

import vergence
from vergence.data.config import DataConfig
from vergence.data.items import ArrayItems, PairItems
from vergence.data.sources import open_data
from vergence.learn.training import calibration, recipes

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}


def described(source="digits", **settings):
    return recipes.override(recipes.get("vje_small", str(source)), **settings)


def taken_apart(source="digits", **settings):
    config = described(source, **settings)
    return calibration.split(open_data(config.data, workers=0), config)


def names(items):
    return set(items.names)


def test_a_fifth_is_kept_and_nothing_is_on_both_sides():
    whole, found = open_data(DataConfig(source="digits")), taken_apart()
    assert len(found.calibration) == int(0.2 * len(whole.train)) and len(found.train) + len(found.calibration) == len(whole.train)
    assert names(found.train) | names(found.calibration) == names(whole.train)
    assert not names(found.train) & names(found.calibration) and names(found.test) == names(whole.test)


def test_a_share_of_zero_keeps_none_and_others_are_refused():
    assert taken_apart(calibration_share=0.0).calibration is None
    for share in (-0.1, 1.0):
        refuses(r"calibration_share in \[0, 1\)", taken_apart, calibration_share=share)


@pytest.mark.parametrize("settings", [{"limit": 90, "batch_size": 64}, {"limit": 256, "batch_size": 256}])
def test_too_few_items_keep_none_and_say_so(settings, capsys):
    found = taken_apart(**settings)
    assert found.calibration is None and len(found.train) == settings["limit"]
    assert "no calibration part" in capsys.readouterr().err


def test_a_closed_form_has_no_batch_that_must_be_full():
    config = recipes.override(recipes.get("patches", "digits"), limit=300)
    data = calibration.split(open_data(config.data, workers=0), config)
    assert len(data.train) < config.fit.batch_size and len(data.calibration) >= 50


def test_equal_items_alone_keep_none_and_say_so(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((300, 4), dtype=np.float32))
    found = taken_apart(tmp_path / "x.npy", batch_size=64)
    assert found.calibration is None and "nearly all" in capsys.readouterr().err


def assert_groups_are_whole(found, group):
    mine, held_out = ({group(i) for i in items.names} for items in (found.train, found.calibration))
    assert mine and held_out and not mine & held_out


@pytest.mark.parametrize("on_disk", [False, True])
def test_equal_rows_of_an_array_are_on_one_side(tmp_path, on_disk):
    x = np.random.default_rng(0).integers(0, 256, (400, 3, 6, 6), dtype=np.uint8)
    x[200:] = x[:200]
    np.save(tmp_path / "x.npy", x)
    config = described(tmp_path / "x.npy", batch_size=64)
    opened = open_data(config.data, memory=1 if on_disk else 1 << 30)
    assert opened.train.in_memory != on_disk
    assert_groups_are_whole(calibration.split(opened, config), lambda name: int(name) % 200)


def test_pairs_that_share_a_context_or_a_target_are_one_group():
    context, target = ([[0], [1], [1], [2], [3]], [[0], [0], [1], [2], [0]])
    items = PairItems(*(ArrayItems(np.array(side, dtype=np.float32)) for side in (context, target)))
    label = calibration.content_groups(items)
    assert label[0] == label[1] == label[2] == label[4] != label[3]


def test_pairs_of_one_target_are_on_one_side(tmp_path):
    r = np.random.default_rng(0)
    target = np.repeat(r.normal(size=(80, 3)), 5, 0).astype(np.float32)
    np.savez(tmp_path / "pairs.npz", context=r.normal(size=(400, 2)).astype(np.float32), target=target)
    found = taken_apart(tmp_path / "pairs.npz", batch_size=64)
    targets = (part.target.read(torch.arange(len(part))).numpy() for part in (found.train, found.calibration))
    mine, held_out = ({row.tobytes() for row in rows} for rows in targets)
    assert 10 <= len(held_out) <= 20 and not mine & held_out


def test_pairs_of_one_target_alone_keep_none_and_say_so(tmp_path, capsys):
    np.savez(tmp_path / "p.npz", context=np.random.default_rng(0).normal(size=(300, 2)), target=np.zeros((300, 3)))
    assert taken_apart(tmp_path / "p.npz", batch_size=64).calibration is None
    assert "share contexts or targets" in capsys.readouterr().err


def photographs(n, side=24, seed=0):
    coarse = torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic", align_corners=False)
    return (127 + 50 * smooth).clamp(0, 255).byte()


def on_both_sides(mask, pairs):
    return sum(bool(mask[i] != mask[j]) for i, j in pairs)


def test_near_duplicates_of_an_array_are_on_one_side_where_digests_would_tear_them_apart():
    x = photographs(400)
    items = ArrayItems(torch.cat([x, (1.06 * x[:120].float() + 2).clamp(0, 255).byte()]))
    pairs = [(i, 400 + i) for i in range(120)]
    whole = calibration.split_groups(calibration.content_groups(items), 0.2, seed=1)
    assert on_both_sides(calibration.split_groups(calibration.content_digests(items), 0.2, seed=1), pairs) > 20
    assert on_both_sides(whole, pairs) <= 2 and 100 <= int(whole.sum()) <= 104


def saved_again(x):
    """The same images: brighter, smaller and back, noisy."""
    r = torch.Generator().manual_seed(5)
    smaller = torch.nn.functional.interpolate(x.float(), 28, mode="bilinear", antialias=True)
    back = torch.nn.functional.interpolate(smaller, x.shape[-1], mode="bilinear", antialias=True)
    noisy = x + 3 * torch.randn(x.shape, generator=r, dtype=torch.float32)
    kinds = torch.arange(len(x)) % 3
    y = torch.where((kinds == 0)[:, None, None, None], 1.08 * x.float(), back)
    return torch.where((kinds == 2)[:, None, None, None], noisy, y).clamp(0, 255).byte()


def groups_of(images):
    return torch.tensor(calibration.content_groups(ArrayItems(images)))


def test_groups_join_copies_and_equal_images_and_nothing_else():
    x = photographs(400, 32)
    every = torch.cat([x, saved_again(x[:60]), x[60:70]])
    label = groups_of(every)
    assert (label[400:] == label[:70]).float().mean() > 0.9 and (label[460:] == label[60:70]).all()
    assert len(label[:400].unique()) == 400 and label.min() == 0 and label.max() == len(label.unique()) - 1
    assert (groups_of(every) == label).all()


@pytest.mark.parametrize(("n", "copies"), [(30, 2), (40, 7)])
def test_copies_of_every_image_are_one_group(n, copies):
    x, r = photographs(n, 32), torch.Generator().manual_seed(1)
    every = torch.cat([x.float() / 255, *(calibration._changed(x, r) for _ in range(copies))])
    label = groups_of(every).reshape(copies + 1, n)
    assert (label == label[:1]).all(0).float().mean() > 0.9 and len(label.unique()) >= n


def test_images_that_nothing_tells_apart_are_no_groups():
    x = photographs(600, 16)
    x[100:] = x[0]
    for images in (x, x[:1].expand(30, -1, -1, -1)):
        assert len(set(calibration.near_groups(images, range(len(images))).tolist())) == len(images)


@pytest.mark.slow
def test_a_kind_of_image_is_not_a_group_of_copies():
    x, r = photographs(6000, 16, seed=3), torch.Generator().manual_seed(0)
    x[:80] = (x[:1].float() + 2 * torch.randn(80, 3, 16, 16, generator=r)).clamp(0, 255).byte()
    assert len(groups_of(x)[:80].unique()) == 80 and len(groups_of(x[30:])[:50].unique()) == 1


def test_near_duplicates_in_a_folder_are_on_one_side(tmp_path):
    for i, image in enumerate(photographs(200)):
        image = Image.fromarray(image.permute(1, 2, 0).numpy())
        image.save(tmp_path / f"{i}_a.png")
        if i < 60:
            image.save(tmp_path / f"{i}_b.jpg", quality=80, subsampling=0)
    (tmp_path / "broken_a.png").write_bytes(b"no image")
    config = described(tmp_path, size=24, batch_size=16)
    found = calibration.split(open_data(config.data, memory=1, workers=0), config)
    mine, held_out = ({i.split("_")[0] for i in items.names} for items in (found.train, found.calibration))
    assert len(mine & held_out) <= 1 and len(held_out) >= 30


def test_near_duplicates_among_too_many_images_are_not_looked_for_and_a_note_says_so(monkeypatch, capsys):
    monkeypatch.setattr(calibration, "MOST_COMPARED", 10)
    items = ArrayItems(photographs(20))
    assert calibration.content_groups(items) == calibration.content_digests(items)
    assert "near duplicates are not searched among more than 10 images" in capsys.readouterr().err


def test_the_split_of_groups_stays_below_its_share_and_takes_most_of_it():
    groups = [i // 7 for i in range(1000)]
    for seed in range(20):
        mask = calibration.split_groups(groups, 0.2, seed)
        assert 190 <= int(mask.sum()) <= 200
        assert all(len(set(mask[i : i + 7].tolist())) == 1 for i in range(0, 994, 7))


def test_a_run_records_its_part_and_resumes_with_it(tmp_path):
    run = vergence.train("digits", out=tmp_path / "run", objective="vje", **QUICK)
    assert run.folder.metadata.n_calibration == 287 and run.folder.metadata.n_train == 1151
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["data"]["calibration_share"] == 0.2 and record["metadata"]["n_calibration"] == 287
    again = vergence.train(out=tmp_path / "run", resume=True)
    assert again.folder.metadata.n_train == 1151
    refuses(r"calibration_share was 0\.2, now 0\.1", vergence.train, out=tmp_path / "run", resume=True, calibration_share=0.1)


def test_the_encoder_is_trained_on_the_other_items_alone(tmp_path):
    """A run on the items that remain has the same weights, bit for bit."""
    x = np.random.default_rng(0).normal(size=(500, 6)).astype(np.float32)
    np.savez(tmp_path / "all.npz", x_train=x, x_test=x[:20])
    run = vergence.train(str(tmp_path / "all.npz"), out=tmp_path / "a", encoder="mlp", **QUICK)
    kept = taken_apart(tmp_path / "all.npz", batch_size=64).train
    np.savez(tmp_path / "rest.npz", x_train=x[[int(i) for i in kept.names]], x_test=x[:20])
    rest = vergence.train(str(tmp_path / "rest.npz"), out=tmp_path / "b", encoder="mlp", calibration_share=0.0, **QUICK)
    assert all(torch.equal(a, b) for a, b in zip(run.method.parameters(), rest.method.parameters(), strict=True))
