"""`check` finds what is planted, in files and in memory, with and without a reference, and writes all of it."""

import csv
import json
import re
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from tests.dying import dies_at
from tests.factories import drawn
from tests.refusals import refuses
from torch import nn

import vergence
from vergence.data.image_list import open_images
from vergence.decide.decisions import Decisions, decided
from vergence.decide.feature_sets import ReferenceScores
from vergence.images.features import FILE, stamp
from vergence.images.measurements import MEASUREMENTS
from vergence.images.result import Anomalies, CheckResult, Heatmaps, _reasons
from vergence.images.review import Review
from vergence.utils.parts import Parts, original

pytestmark = pytest.mark.float32

NORMAL = [drawn(i) for i in range(150)]
NOISE = [np.random.default_rng(i).integers(0, 256, (48, 48, 3), dtype=np.uint8) for i in range(3)]
BLACK = [np.random.default_rng(i).integers(0, 3, (48, 48, 3), dtype=np.uint8) for i in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """150 normal images, six anomalies, three duplicates, and other files."""
    root = tmp_path_factory.mktemp("check") / "photos"
    (root / "inner").mkdir(parents=True)
    for i, x in enumerate(NORMAL):
        Image.fromarray(x).save(root / "inner" / f"p{i:03d}.png")
    for i, x in enumerate([*NOISE, *BLACK]):
        Image.fromarray(x).save(root / f"odd{i}.png")
    Image.fromarray(NORMAL[0]).save(root / "equal.bmp")
    Image.fromarray(NORMAL[1][:, ::-1]).save(root / "mirrored.png")
    Image.fromarray(NORMAL[2]).resize((96, 96)).save(root / "larger.png")
    (root / "notes.txt").write_text("notes")
    (root / "broken.jpg").write_text("no image")
    return root


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    return vergence.check(folder, out=tmp_path_factory.mktemp("out") / "check", encoder="patches", workers=0)


def flagged(found):
    return {path for path, flag in zip(found.items["path"], found.items["flag"], strict=True) if flag}


def test_a_folder_by_itself(folder, found):
    assert {found.items["path"][i] for i in found.most_anomalous(6)} == {f"odd{i}.png" for i in range(6)} and not flagged(found)
    rows = {path: i for i, path in enumerate(found.items["path"])}
    assert found.items["duplicate_of"][rows["inner/p000.png"]] == "equal.bmp"
    assert sorted(found.duplicates["kind"]) == ["exact", "mirrored", "near"]
    assert "dark" in found.items["measurements"][rows["odd3.png"]]
    assert found.items["reason"][rows["odd0.png"]] and found.items["feature_set"][rows["odd0.png"]]
    assert len(found.items["neighbors"][0].split("; ")) == 5
    s = found.summary
    assert (s["images"], s["unreadable"], s["ignored"], s["rate"]) == (159, 1, {".txt": 1}, "none")
    assert s["sentences"][:2] == [
        "159 images ranked, the most anomalous first.",
        "Nothing is flagged without a reference (`against`).",
    ]
    assert np.isnan(found.items["p_value"]).all() and not any("%" in sentence for sentence in s["sentences"])
    assert found.skipped["path"] == ["broken.jpg"] and all(sentence[-1] == "." for sentence in s["sentences"])
    assert found.map(0).shape == (32, 32) and found.most_anomalous(3)[0] in {rows[f"odd{i}.png"] for i in range(6)}
    assert "<p>" in found._repr_html_() and "data:image/webp" in found.show(2)._repr_html_()


def test_files_say_the_same(found, tmp_path):
    out = found.write(tmp_path / "again")
    assert sorted(p.name for p in out.iterdir()) == [
        "duplicates.csv", "embeddings.npy", "items.csv", "items.parquet", "report.html", "skipped.csv", "summary.json",
    ]  # fmt: skip
    table = parquet.read_table(out / "items.parquet")
    assert table.column_names == list(found.items.columns) and table["path"].to_pylist() == found.items["path"]
    with (out / "items.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [original(row["path"]) for row in rows] == found.items["path"]
    np.testing.assert_allclose([float(row["score"]) for row in rows], found.items["score"], rtol=1e-6)
    assert json.loads((out / "summary.json").read_text()) == json.loads(json.dumps(found.summary))
    assert np.load(out / "embeddings.npy").shape == found.embeddings.shape == (159, found.embeddings.shape[1])
    page = (out / "report.html").read_text()
    assert '"sheets": ["' in page and "broken.jpg" in page and "http" not in page.replace("http-equiv", "")


@pytest.mark.slow
def test_names_order_and_workers_do_not_matter(found):
    files = [*NORMAL, *NOISE, *BLACK, NORMAL[0], NORMAL[1][:, ::-1].copy()]
    order = np.random.default_rng(0).permutation(len(files))
    first = np.array(vergence.check(files, encoder="patches", workers=0).items["score"])
    second = np.array(vergence.check([files[i] for i in order], encoder="patches", workers=2).items["score"])
    np.testing.assert_allclose(second, first[order], atol=1e-6)


@pytest.mark.parametrize("source", [NORMAL[:3], np.eye(4)], ids=["images", "vectors"])
def test_results_are_written_once(source, tmp_path, monkeypatch):
    written, write = [], CheckResult.write
    monkeypatch.setattr(CheckResult, "write", lambda self, out: (written.append(out), write(self, out))[1])
    vergence.check(source, out=tmp_path / "out", workers=0)
    assert len(written) == 1 and (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize("n", [1, 2, 12])
def test_few_images_have_duplicates_and_properties(n):
    files = [*NORMAL[: n - 1], BLACK[0]]
    found = vergence.check([*files, files[0]], encoder="patches", workers=0)
    assert found.duplicates["kind"] == ["exact"] and not any(found.items["flag"]) and not found.summary["judged"]
    assert found.summary["sentences"][0].startswith("Too few for an order: ")
    refuses("images that were judged", found.map, 0)


def test_confirmed_images_are_set_apart(folder, found, tmp_path):
    (tmp_path / "confirmed.csv").write_text("path,mark\nodd3.png,normal\nodd0.png,anomaly\n")
    again = vergence.check(folder, confirmed=Review.read(tmp_path / "confirmed.csv"), encoder="patches", workers=0)
    assert not {"odd0.png", "odd3.png"} & {again.items["path"][i] for i in again.most_anomalous(6)}
    moved = vergence.check(folder, confirmed=["odd0.png", "nobody"], encoder="patches", workers=0).summary["sentences"]
    assert "Marked before and not listed again: 2 as anomaly." in moved
    assert any("1 marked image is not here (first: nobody)" in sentence for sentence in moved)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """40 new images, six with a checkerboard of 8 x 8 pixels, and one of the 240 reference images, of which one is noise."""
    new = [drawn(1000 + i) for i in range(40)]
    for x in new[:6]:
        x[20:28, 30:38] = np.where(np.indices((8, 8)).sum(0)[..., None] % 2, (250, 0, 250), (0, 250, 0))
    reference = [drawn(2000 + i) for i in range(240)]
    reference[9] = NOISE[0]
    out = tmp_path_factory.mktemp("compared")
    settings = {"against": reference, "region_rate": 0.1, "fdr": 0.2, "encoder": "patches", "workers": 0}
    return new, reference, settings, out, vergence.check([*new, reference[3]], **settings, heatmaps=out / "heatmaps")


def test_next_to_a_reference_defects_are_flagged_and_framed(compared):
    _, _, _, _, found = compared
    flag = np.array(found.items["flag"])
    assert flag[:6].sum() >= 5 and flag[6:].sum() <= 3 and found.summary["rate"] == "cross-conformal"
    assert found.items["leak_of"][40] == "3" and not flag[40]
    assert found.duplicates["source"] == ["reference"] and found.duplicates["duplicate_of"] == ["3"]
    (top, left, bottom, right), *_ = found.frames(int(np.flatnonzero(flag[:6])[0]))
    assert top * 48 < 28 and bottom * 48 > 20 and left * 48 < 38 and right * 48 > 30
    assert np.mean([(found.map(i) > 1).any() for i in range(6, 40)]) <= 0.3
    assert sum(found.summary["feature_sets"].values()) == pytest.approx(1, abs=1e-3)
    flags, condition, apart, *_ = found.summary["sentences"]
    assert flags == f"{flag.sum()} of 41 images flagged." and condition == (
        "On average at most 20 % of flags are false alarms, if new and reference images come from one source."
    )
    assert re.match(r"\d reference images? (has an extreme score|have extreme scores): 9[.;]", apart)
    assert all(reason for reason, flagged in zip(found.items["reason"], flag, strict=True) if flagged)


def test_boxes_are_in_pixels_and_heatmaps_are_files(compared):
    _, _, _, out, found = compared
    boxes = [[tuple(map(int, box.split())) for box in text.split("; ") if box] for text in found.items["boxes"]]
    assert boxes == [[tuple(round(48 * side) for side in frame) for frame in found.frames(i)] for i in range(41)]
    shown = {i for i in range(41) if found.frames(i) or found.items["flag"][i]}
    assert {file.name for file in (out / "heatmaps").iterdir()} == {f"{i}.png" for i in shown}
    with Image.open(out / "heatmaps" / "0.png") as image:
        changed = np.abs(np.asarray(image, dtype=float) - found.pixels(0).transpose(1, 2, 0)).sum(2)
    assert image.size == (48, 48) and changed[20:28, 30:38].mean() > 3 * changed[:12, :12].mean()


def test_confirmed_reference_images_do_not_calibrate(compared):
    new, reference, settings, _, found = compared
    less = vergence.check([*new, reference[3]], **settings, confirmed={"9": "reference anomaly", "0": "normal", "1": "anomaly"})
    n = len(less.calibration())
    assert n == len(found.calibration()) - 1 and min(less.items["p_value"]) == pytest.approx(1 / (n + 1))
    flag, before = np.array(less.items["flag"]), np.array(found.items["flag"])
    assert not flag[:2].any() and (flag[2:] >= before[2:]).all() and "9" not in less.summary["reference_anomalies"]
    assert "of flags, together with the anomalies that you marked, are" in less.sentences[1] and less.summary["confirmed"] == 1
    refuses("at least 20 different reference images", vergence.check, new, against=reference[:10], workers=0)


def test_where_nothing_can_be_flagged_the_answer_is_how_many_are_least_like_the_reference(compared):
    new, reference, settings, _, _ = compared
    found = vergence.check(new, **{**settings, "against": reference[10:50], "fdr": 0.001})
    m = found.summary["beyond"]
    assert m >= 1 and found.summary["sentences"][0] == "No image flagged."
    words = rf"{m} of 40 images scores? above all 40 reference images; if all were normal, about 0.98 would. To flag "
    assert re.match(words, found.summary["sentences"][1])
    found = vergence.check(new[6:10], **{**settings, "against": reference})
    assert found.summary["sentences"][:2] == ["No image flagged.", "No image scores above all 240 reference images."]


def test_what_anomalies_of_the_reference_hide_is_reported():
    random = np.random.default_rng(0)
    old, new = np.r_[random.normal(size=98), 30.0, 31.0], np.r_[random.normal(size=60), np.full(10, 20.0)]
    calibration = ReferenceScores(old, np.zeros(100, dtype=int), [f"r{i}" for i in range(100)], np.zeros(70, dtype=bool))
    decisions = decided(calibration.p_values(new[:, None]), 0.1, 100, score=new, feature_set=["whole"] * 70)
    found = Anomalies(decisions, np.zeros((70, 1)), None, np.zeros((70, 0)), [], calibration, {"whole": 1.0})
    without = ReferenceScores(old[:98], np.zeros(98, dtype=int), (), np.zeros(70, dtype=bool)).p_values(new[:, None])
    assert found.decisions.flagged == 0 and found.in_reference == ["r99", "r98"]
    assert found.flagged_without() == decided(without, 0.1, 98).flagged == 10


REASONS = [
    ("regions", 0.5, "everywhere: noisier than most images", 9.0),
    ("details", 0.5, "everywhere: an unfamiliar texture", 0.0),
    ("regions", 0.01, "an anomalous region at the top left", 9.0),
    ("difference", 0.01, "differs from its reference image k012.png at the top left", 0.0),
    ("difference", 0.5, "differs from its reference image k012.png everywhere", 0.0),
    ("whole", 0.01, "noisier than most images", 9.0),
    ("whole", 0.01, "its overall texture or layout differs from the reference", 0.0),
    ("vectors", 0.01, "its vector lies far from those of the reference", 9.0),
    ("measurements", 0.0, "its brightness, color, sharpness and noise together are unlike those of the reference", 0.0),
]


@pytest.mark.parametrize(("name", "share", "reason", "noise"), REASONS)
def test_a_reason_is_what_the_score_came_from(name, share, reason, noise):
    names = MEASUREMENTS[FILE:]
    deviations = np.where(np.array(names) == "noise_median", noise, 0.0)[None]
    heat = np.zeros((1, 32, 32), dtype=np.float32)
    heat.reshape(1, -1)[:, : int(share * 1024)] = 2
    heat[0, 0, 0] = 3
    columns = {"feature_set": [name], "score": np.array([9.0]), "p_value": np.ones(1), "flag": np.ones(1, dtype=np.uint8)}
    decisions = Decisions(columns, 1, 1, 0, 0.1)
    found = Anomalies(decisions, deviations, Heatmaps(heat, 1.0), np.zeros((1, 0)), [], None, {name: 1.0}, ["k012.png"])
    assert _reasons(found, [False], np.ones(1, dtype=bool)) == [reason]


def test_leaks_need_no_least_number():
    turned = np.ascontiguousarray(np.rot90(NORMAL[5]))
    found = vergence.check([turned, NORMAL[7]], against=[NORMAL[4], NORMAL[5]], leaks=True, workers=0)
    assert list(found.items["leak_of"]) == ["1", ""] and found.duplicates["kind"] == ["rotated"]
    refuses("`leaks` with another source", vergence.check, NORMAL[:3], leaks=True)


def small_network():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 8, 8), nn.ReLU(), nn.Conv2d(6, 12, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.default_cfg = {"input_size": (3, 64, 64), "mean": (0.5,) * 3, "std": (0.25,) * 3}
    return net


def test_a_network_gives_regions_and_an_embedding(folder):
    found = vergence.check(folder, encoder=small_network(), workers=0)
    assert found.map(0).shape == (32, 32) and found.summary["encoder"] == "Sequential"
    assert len({f"odd{i}.png" for i in range(6)} & {found.items["path"][i] for i in found.most_anomalous(7)}) >= 5


def test_a_transformer_of_timm_gives_regions():
    timm = pytest.importorskip("timm")
    net = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=0, img_size=64)
    found = vergence.check([*NORMAL[:25], NOISE[0]], encoder=net, workers=0)
    assert "regions" in found.summary["feature_sets"] and found.most_anomalous(1) == [25]


def test_auto_without_a_network_falls_back_to_patches(monkeypatch):
    monkeypatch.setattr("vergence.images.check.at_hand", lambda: None)
    monkeypatch.delenv("VERGENCE_ENCODER")
    found = vergence.check(NORMAL[:25], encoder="auto", workers=0)
    assert found.summary["encoder"].startswith("patches, since no network is on this machine")


@pytest.mark.slow
def test_vectors_join_images_by_their_names(tmp_path):
    z = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    order = np.random.default_rng(1).permutation(30)
    np.savez(tmp_path / "z.npz", x=z[order], names=np.array([str(i) for i in order]))
    first = vergence.check(NORMAL[:30], vectors=z, encoder="patches", workers=0)
    second = vergence.check(NORMAL[:30], vectors=tmp_path / "z.npz", encoder="patches", workers=0)
    np.testing.assert_allclose(first.items["score"], second.items["score"])
    np.savez(tmp_path / "few.npz", x=z[:5], names=np.array([str(i) for i in range(5)]))
    with pytest.raises(ValueError, match=r"a vector for each image, by its name.*none for 25"):
        vergence.check(NORMAL[:30], vectors=tmp_path / "few.npz", encoder="patches", workers=0)
    refuses("one vector for each of 30 images", vergence.check, NORMAL[:30], vectors=z[:7], encoder="patches", workers=0)


def sparse(n=1000, few=10):
    """Features as those of a network's last layer, and a cluster that lies near zero."""
    r = np.random.default_rng(0)
    x = np.maximum(0, r.normal(size=(n, 20)) @ r.normal(size=(20, 100)) / 4.5 - 0.6 * r.uniform(0.5, 1.5, 100))
    return np.concatenate([x, 0.01 * r.uniform(size=(few, 100))]).astype(np.float32)


@pytest.mark.slow
def test_a_cluster_of_vectors_near_zero_is_a_group_and_not_normal():
    x = sparse()
    found = vergence.check(x)
    score = np.array(found.items["score"])
    assert any(len(set(map(int, group)) & set(range(1000, 1010))) >= 9 for group in found.groups)
    rounded = vergence.check(x.astype(np.float16).astype(np.float32))
    assert np.corrcoef(score, rounded.items["score"])[0, 1] > 0.95


def test_what_breaks_a_rule_of_vectors_without_exception_is_first():
    r = np.random.default_rng(0)
    x = np.c_[r.normal(size=(500, 6)), np.full(500, 3.0)]
    x[7, 6] = 4
    assert vergence.check(x).most_anomalous(1) == [7]


@pytest.mark.parametrize("channels", [2, 5])
def test_all_channels_are_judged_or_one(channels, tmp_path):
    x = np.stack([np.stack([drawn(100 * i + k)[..., 0] for k in range(channels)]) for i in range(24)]).astype(np.uint16) * 16
    x[3, 1] = 0
    np.save(tmp_path / "x.npy", x)
    found = vergence.check(tmp_path / "x.npy", out=tmp_path / "all", encoder="patches", workers=0)
    assert (
        found.pixels(0).shape == (channels, 48, 48) and found.most_anomalous(1) == [3] and (tmp_path / "all/report.html").exists()
    )
    one = vergence.check(x, channel=0, range="0,8191", encoder="patches", workers=0)
    assert one.pixels(0).shape == (1, 48, 48) and one.most_anomalous(1) != [3] and one.pixels(0).max() < 128
    assert "Read as a viewer shows them: whole numbers 0 to 8,191 shown as 8 bits, as stated (24)." in one.summary["sentences"]
    assert not any("gray" in sentence for sentence in one.summary["sentences"])


def test_what_many_images_are_is_reported_once():
    found = vergence.check([x // 6 if i < 30 else x for i, x in enumerate(NORMAL)], encoder="patches", workers=0)
    assert "Common here, so not reported for each image: 30 of 150 dark." in found.summary["sentences"]
    assert found.summary["properties"].keys() <= {"low_information", "blurry"} and "dark" not in found.items["measurements"][0]


def test_gray_images_give_no_warning_and_sizes_are_those_of_images(tmp_path):
    for i, x in enumerate(NORMAL[:24]):
        Image.fromarray(x[: 30 + i % 2, :, 0] if i < 12 else x[:, : 30 + i % 2, 0]).save(tmp_path / f"{i}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = vergence.check(tmp_path, encoder="patches", workers=0)
    assert found.summary["input"].startswith("24 images (30 x 48 to 48 x 31 pixels)")


def test_parts_of_another_range_are_others(folder):
    stamps = {stamp(open_images(folder, range=r, channel=c)) for r, c in ((None, None), ((0, 99), None), (None, 0))}
    assert len(stamps) == 3


def test_vectors_with_a_reference():
    r = np.random.default_rng(0)
    found = vergence.check(np.r_[r.normal(size=(190, 7)), r.normal(size=(10, 7)) + 4], against=r.normal(size=(500, 7)))
    assert len({str(i) for i in range(190, 200)} & flagged(found)) >= 8 and len(flagged(found)) <= 14


def test_a_run_is_an_encoder(tmp_path):
    run = vergence.train("digits", out=tmp_path / "run", epochs=1, device="cpu", encoder="mlp", objective="vje")
    found = vergence.check("digits", encoder=str(run.folder.path), workers=0)
    assert found.summary["encoder"].startswith("the run") and set(found.items["feature_set"]) <= {
        "measurements", "whole", "details",
    }  # fmt: skip


def test_outputs_stay_outside_the_data(folder, tmp_path):
    refuses("an `out` apart from what is read", vergence.check, folder, out=folder / "inner" / "check")
    blocked = tmp_path / "file"
    blocked.write_text("")
    refuses("choose another `out`", vergence.check, folder, out=blocked / "x", encoder="patches", workers=0)


def test_after_a_stop_finished_parts_are_kept(folder, found, tmp_path, monkeypatch, capsys):
    for module in ("check", "features"):
        monkeypatch.setattr(f"vergence.images.{module}.PART", 64)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        dies_at(3, Parts, "append", patch)
        vergence.check(folder, out=tmp_path / "c", encoder="patches", workers=0)
    again = vergence.check(folder, out=tmp_path / "c", encoder="patches", workers=0)
    assert "continuing after 128 items" in capsys.readouterr().err
    np.testing.assert_allclose(again.items["score"], found.items["score"])
    assert again.skipped["path"] == ["broken.jpg"]
    assert not [p.name for p in (tmp_path / "c").iterdir() if p.name.endswith(".parts")]
