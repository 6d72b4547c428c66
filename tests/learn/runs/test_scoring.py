"""What `score` writes: the detector of every run, p-values that hold, flags at the stated rate, and one line for bad input."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load, save
from tests.cli.test_cli import call, refused
from tests.conftest import angle_pairs
from tests.refusals import refuses

import vergence
from vergence.decide import explain, fpr_threshold, q_values, select
from vergence.decide.decisions import Tally
from vergence.learn.runs.calibrated import RunDetector, usable_features
from vergence.learn.runs.score import Calibration, _suspects, score
from vergence.utils.parts import neutral, read_names

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}


@pytest.fixture
def run(images):
    return images


def noise(n=20, seed=0):
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def scored(run, source, out, fdr=0.1, **settings):
    decisions = score(run.items(source), Calibration(run, **settings), out, fdr=fdr)
    with np.load(out) as archive:
        return decisions, {name: archive[name] for name in archive.files}


def test_noise_is_flagged_and_digits_are_not(run, tmp_path):
    digits = next(run.items("digits").stream([torch.arange(200)]))[1]
    decisions, found = scored(run, torch.cat([digits, noise()]), tmp_path / "s.npz")
    odd = np.arange(220) >= 200
    assert found["flag"][odd].all() and found["flag"][~odd].mean() < 0.05
    assert found["score"][odd].min() > np.quantile(found["score"][~odd], 0.97)
    assert decisions.flagged == found["flag"].sum() and decisions.total == 220
    assert set(decisions.names[:10]) <= {str(i) for i in range(200, 220)}
    assert decisions.sentences[0].startswith(f"{decisions.flagged} of 220 items flagged.")


def test_the_columns_agree_with_the_detector_and_the_procedures(run, tmp_path):
    _, found = scored(run, "digits", tmp_path / "s.npz", fdr=0.3)
    calibration = run.detector().calibration
    assert list(found) == ["name", "score", "p_value", "q_value", "flag", "feature_set", "nearest", "reason", "seen"]
    np.testing.assert_allclose(found["score"], run.anomaly_score("digits").numpy(), rtol=1e-9)
    p = (1 + (calibration[:, None] >= found["score"]).sum(0)) / (len(calibration) + 1)
    np.testing.assert_allclose(found["p_value"], p, rtol=1e-12)
    np.testing.assert_allclose(found["q_value"], q_values(found["p_value"]), rtol=1e-12)
    assert (found["flag"] == select(found["p_value"], 0.3)).all()
    unusual = found["p_value"] <= 0.3
    assert all(found["reason"][found["p_value"] <= 0.02]) and not any(found["reason"][~unusual])
    assert all(found["nearest"][unusual]) and not any(found["nearest"][~unusual])
    assert set(found["feature_set"]) <= set(run.detector().feature_sets) and not found["seen"].any()


def test_normal_items_that_no_fit_has_seen_have_uniform_p_values(run, tmp_path):
    """The test part of the digits against the calibration part: both are held out of the same source."""
    _, found = scored(run, "digits", tmp_path / "s.npz")
    n, m = len(run.detector().calibration), len(found["p_value"])
    for a in (0.05, 0.2, 0.5):
        error = np.sqrt(a * (1 - a) * (1 / n + 1 / m))
        assert (found["p_value"] <= a).mean() == pytest.approx(a, abs=4 * error)


def test_nearest_items_are_the_most_similar_training_items(run, tmp_path):
    found = run.detector()
    z = run.embed("digits")[:7]
    similar = torch.nn.functional.normalize(z, dim=1) @ torch.from_numpy(found.normal).float().T
    wanted = ["; ".join(found.normal_names[i] for i in row.topk(3).indices) for row in similar]
    assert found.nearest(z.numpy()) == wanted
    names = run.items("digits").names
    assert not set(found.normal_names) & {names[i] for i in range(300)}


def test_a_certificate_flags_by_its_threshold(run, tmp_path):
    decisions, found = scored(run, "digits", tmp_path / "s.npz", fpr=0.05)
    threshold = fpr_threshold(run.detector().calibration, 0.05, 0.95).threshold
    assert (found["flag"] == (found["score"] > threshold)).all() and decisions.flagged == found["flag"].sum()
    assert decisions.sentences[1].startswith("With 95 % confidence, at most")


def test_all_scores_add_the_feature_sets_and_the_objectives_own(run, tmp_path):
    _, found = scored(run, noise(), tmp_path / "s.npz", all_scores=True)
    own = {"joint", "directional", "radial", "variance", "entropy"}
    assert own | {f"feature_set_{name}" for name in run.detector().feature_sets} <= set(found)
    np.testing.assert_allclose(found["joint"], run.anomaly_score(noise(), "joint").numpy(), rtol=1e-4)


def test_items_of_the_training_do_not_change_what_is_said_of_others(run, tmp_path):
    digits = [next(run.items(source).stream([torch.arange(200)]))[1] for source in ("digits", "digits:train")]
    odd = noise()
    alone, first = scored(run, torch.cat([digits[0], odd]), tmp_path / "a.npz")
    mixed, second = scored(run, torch.cat([digits[0], odd, digits[1]]), tmp_path / "b.npz")
    assert alone.flagged == mixed.flagged > 10 and mixed.total == 220 and mixed.excluded == 200
    for name in ("q_value", "flag"):
        np.testing.assert_array_equal(second[name][:220], first[name])
    assert alone.names == mixed.names


def test_a_batch_of_another_source_is_named(run, tmp_path):
    new = next(run.items("digits").stream([torch.arange(300)]))[1]
    assert not any("overall" in line for line in scored(run, new, tmp_path / "a.npz")[0].sentences)
    decisions = scored(run, 255 - new, tmp_path / "b.npz")[0]
    first, second = decisions.sentences
    assert second.startswith("warning: The new scores are higher overall (p = 0.0005; at least ")
    assert decisions.flagged > 20 and first == f"{decisions.flagged} of 300 items flagged."
    page = (tmp_path / "b.npz.html").read_text()
    assert f"<p>{decisions.flagged} of 300 images flagged.</p>" in page and "On average at most" not in page
    assert scored(run, 255 - new, tmp_path / "c.npz", fpr=0.05)[0].sentences[1:] == [second]


def test_of_a_single_item_no_average_is_promised(run, tmp_path):
    decisions, found = scored(run, noise(1), tmp_path / "s.npz")
    assert found["flag"].all() and decisions.sentences == [f"The item is flagged (p = {found['p_value'][0]:.2g})."]
    assert "The image is flagged (p = " in (tmp_path / "s.npz.html").read_text()


def test_anomalies_in_the_calibration_are_named_until_they_are_confirmed(run, tmp_path, capsys):
    digits = next(run.items("digits").stream([torch.arange(359)]))[1]
    good = run.items(torch.cat([digits[:220], noise(8)]))
    scored(run, digits[220:], tmp_path / "a.npz", calibration=good)
    line = next(line for line in capsys.readouterr().err.splitlines() if "may be anomalies" in line)
    names = line.split(": ")[2].split(". ")[0].split(", ")
    assert len(names) == 5 and set(names) <= {str(i) for i in range(220, 228)}
    scored(run, digits[220:], tmp_path / "b.npz", calibration=good, confirmed=[str(i) for i in range(220, 228)])
    assert "may be anomalies" not in capsys.readouterr().err


def test_normal_calibration_items_are_not_called_anomalies_where_a_bulk_ends_early():
    """As scores do where one feature set hardly varies for most items."""
    named = {"clean": 0, "odd": 0}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        s = np.where(rng.random(300) < 0.9, 0.5 + 0.1 * rng.random(300), 0.6 + rng.exponential(1, 300))
        for kind, scores in (("clean", s), ("odd", np.r_[12 + rng.random(10), s[10:]])):
            lines = _suspects(scores / 2, [str(i) for i in range(300)])
            named[kind] += int(lines[0].split()[1]) if lines else 0
    assert named["clean"] <= 10 and 200 <= named["odd"] <= 230


def test_calibration_by_items_of_the_training_and_equal_ones_is_not_silent(run, tmp_path, capsys):
    new = next(run.items("digits").stream([torch.arange(100)]))[1]
    train = next(run.items("digits:train").stream([torch.arange(100)]))[1]
    scored(run, new, tmp_path / "a.npz", calibration=run.items(train))
    assert "warning: 100 of 100 calibration items equal ones that the run was fitted to" in capsys.readouterr().err
    mixed = torch.cat([train[:40], new[20:]])
    scored(run, new[:20], tmp_path / "m.npz", calibration=run.items(mixed))
    words = "warning: 40 of 120 calibration items equal ones that the run was fitted to or calibrated on; they are left out"
    assert words in capsys.readouterr().err
    with pytest.raises(ValueError, match="45 and 2 more"):
        scored(run, new[:20], tmp_path / "m.npz", calibration=run.items(torch.cat([mixed[:45], new[5:8], mixed[45:]])))
    equal = torch.cat([new[20:], noise(1).repeat(30, 1, 1, 1)])
    scored(run, new[:20], tmp_path / "b.npz", calibration=run.items(equal))
    assert "warning: 30 of 110 calibration items share the largest score" in capsys.readouterr().err


def test_other_calibration_items_decide_and_must_be_others(run, tmp_path):
    given = run.items("digits")
    _, found = scored(run, noise(), tmp_path / "s.npz", calibration=given)
    larger = (run.anomaly_score(given).numpy()[:, None] >= found["score"]).sum(0)
    np.testing.assert_allclose(found["p_value"], (1 + larger) / (len(given) + 1), rtol=1e-6)
    assert found["flag"].all()
    refuses("not among the scored", scored, run, "digits", tmp_path / "t.npz", calibration=given)
    refuses("found 10", scored, run, "digits", tmp_path / "t.npz", calibration=run.items(noise(10)))
    with pytest.raises(ValueError, match=r"expected calibration scores that differ, found .* for all 30"):
        scored(run, "digits", tmp_path / "t.npz", calibration=run.items(noise(1).expand(30, -1, -1, -1)))
    assert not (tmp_path / "t.npz").exists()


def test_confirmed_oddities_are_taken_out_of_the_calibration(run, tmp_path):
    digits = next(run.items("digits").stream([torch.arange(200)]))[1]
    mixed = run.items(torch.cat([digits, noise(8, seed=1)]))
    _, before = scored(run, noise(), tmp_path / "s.npz", calibration=mixed)
    confirmed = [str(i) for i in range(200, 208)]
    _, after = scored(run, noise(), tmp_path / "s.npz", calibration=mixed, confirmed=confirmed)
    _, clean = scored(run, noise(), tmp_path / "s.npz", calibration=run.items(digits))
    assert (after["p_value"] == clean["p_value"]).all() and after["p_value"].mean() < 0.5 * before["p_value"].mean()
    with pytest.raises(ValueError, match=r"expected names of calibration items, found 1 others \(first: x.png\)"):
        scored(run, noise(), tmp_path / "s.npz", calibration=mixed, confirmed=["x.png"])


@pytest.mark.slow
def test_the_border_that_a_run_of_a_folder_does_not_see_is_named(tmp_path, capsys):
    place = tmp_path / "photos"
    place.mkdir()
    for i, image in enumerate(torch.randint(0, 256, (80, 24, 24, 3), dtype=torch.uint8)):
        Image.fromarray(image.numpy()).save(place / f"{i:03d}.png")
    settings = {"epochs": 1, "batch_size": 32, "device": "cpu", "precision": "fp32", "size": 21, "knn_every": 0, "encoder": "mlp"}
    trained = vergence.train(str(place), out=tmp_path / "run", **settings)
    assert trained.folder.metadata.read_shape == (3, 24, 24)
    scored(trained, trained.items(str(place)), tmp_path / "s.npz")
    assert "the run sees the central square of each image, 88 % of the shorter side" in capsys.readouterr().err


def test_images_that_the_run_reads_otherwise_are_named(run, tmp_path, capsys):
    colored = torch.randint(0, 256, (20, 3, 16, 12), dtype=torch.uint8)
    scored(run, colored, tmp_path / "s.npz")
    assert "note: images are changed from 3 x 16 x 12 to 1 x 8 x 8, as the run reads them" in capsys.readouterr().err
    scored(run, "digits", tmp_path / "s.npz")
    assert "are changed" not in capsys.readouterr().err


def test_the_detector_is_stored_without_pickle_and_its_damage_is_one_line(run, tmp_path):
    file = run.folder.path / "detector.safetensors"
    again = RunDetector.read(file)
    x = torch.cat([noise(), next(run.items("digits").stream([torch.arange(20)]))[1]])
    features = {name: f.detach() for name, f in again.of_batches(run.method, (1, 8, 8))(x).items()}
    assert (again.anomaly_score(features) == run.detector().anomaly_score(features)).all() and again.names == run.detector().names
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-40])
        refuses(r"detector\.safetensors is damaged", vergence.load(run.folder.path).anomaly_score, x)
        file.unlink()
        fitted = vergence.load(run.folder.path, device="cpu")  # on demand
        assert torch.equal(fitted.anomaly_score(x), run.anomaly_score(x))
        assert file.exists()
    finally:
        file.write_bytes(content)


def test_a_network_has_a_dictionary_of_patches_that_is_stored_and_used(run):
    found = run.detector()
    features_of = found.of_batches(run.method, (1, 8, 8))
    again = RunDetector.read(run.folder.path / "detector.safetensors")
    assert list(features_of(noise())) == ["pixels", "patches", "z"] == found.feature_sets
    assert found.dictionary.settings == again.dictionary.settings and found.dictionary.settings.patch == 4
    assert torch.equal(found.dictionary(noise() / 255), again.dictionary(noise() / 255))
    before = torch.random.get_rng_state()
    RunDetector.read(run.folder.path / "detector.safetensors")
    assert torch.equal(before, torch.random.get_rng_state())


def parts_of(content):
    """Returns the arrays and the record of a stored detector."""
    n = int.from_bytes(content[:8], "little")
    record = json.loads(json.loads(content[8 : 8 + n])["__metadata__"]["record"])
    return load(content), record


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("notes", "text"), ("normal_names", [1] * 1035), ("gap", [1]), ("dictionary.copies", 10**12), ("dictionary.side", 2),
        ("settings.state.detectors_.dict.z.settings.n_neighbors", {"array": "scale_"}),
    ],
)  # fmt: skip
def test_a_detector_with_a_wrong_value_is_one_line(run, tmp_path, path, value):
    arrays, record = parts_of(run.detector().content())
    *above, last = path.split(".")
    inner = record
    for key in above:
        inner = inner[key]
    inner[int(last) if last.isdecimal() else last] = value
    (tmp_path / "d").write_bytes(save(arrays, metadata={"record": json.dumps(record)}))
    refuses("expected", lambda: RunDetector.read(tmp_path / "d").of_batches(run.method, (1, 8, 8)))


def test_a_detector_with_arrays_of_a_wrong_type_or_of_other_images_is_one_line(run, tmp_path):
    arrays, record = parts_of(run.detector().content())
    for name, array, message in (
        ("deviations", arrays["deviations"] > 0, "types"),
        ("deviations", arrays["deviations"][:, :2], "3 feature sets"),
        ("seen", arrays["seen"].astype("f4"), "types"),
        ("deviations", np.full((287, 3), np.nan), "calibration scores"),
        ("dictionary/filters", np.full_like(arrays["dictionary/filters"], np.nan), "dictionary of patches"),
        ("dictionary/filters", np.tile(arrays["dictionary/filters"], (1, 3)), r"images of shape \(1, 8, 8\)"),
    ):
        (tmp_path / "d").write_bytes(save({**arrays, name: array}, metadata={"record": json.dumps(record)}))
        refuses(message, lambda: RunDetector.read(tmp_path / "d").of_batches(run.method, (1, 8, 8)))


@pytest.mark.slow
def test_a_detector_whose_normal_items_have_other_embeddings_is_fitted_again(run):
    file = run.folder.path / "detector.safetensors"
    content, sums = file.read_bytes(), (run.folder.path / "checksums.json").read_bytes()
    arrays, record = parts_of(content)
    try:
        narrow = {**arrays, "normal": arrays["normal"][:, :7].copy()}
        run.folder.write_checked(file.name, save(narrow, metadata={"record": json.dumps(record)}))
        assert vergence.load(run.folder.path, device="cpu").detector().normal.shape == arrays["normal"].shape
    finally:
        file.write_bytes(content)
        (run.folder.path / "checksums.json").write_bytes(sums)


def test_confirmed_names_are_read_from_a_column_of_a_table_and_from_any_editor(tmp_path):
    names = ["=1.png", "'=2.png", "'tis.png", "u\u2028v.png", "é.png"]
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(map(neutral, names)).encode())
    assert read_names(tmp_path / "names.txt") == names


@pytest.mark.slow
def test_a_run_without_a_calibration_part_says_how_far_its_scores_are_off(tmp_path, capsys):
    run = vergence.train("digits", out=tmp_path / "run", calibration_share=0.0, objective="vje", **QUICK)
    found = run.detector()
    assert not found.held_out and len(found.calibration) == 1438 and 0 < found.gap < 0.2
    capsys.readouterr()
    score(noise(), run, tmp_path / "s.csv")
    said = capsys.readouterr().err
    assert "kept no calibration part" in said and "have p <= 0.05 instead of 5 %" in said


@pytest.mark.slow
def test_a_collapsed_run_says_so_beside_its_scores(tmp_path, capsys):
    run = vergence.train("digits", out=tmp_path / "run", objective="vje", **QUICK)
    with torch.no_grad():
        last = [m for m in run.method.encoder.modules() if isinstance(m, torch.nn.BatchNorm2d)][-1]
        last.weight.mul_(1e-3)
        last.bias.fill_(1.0)
        last.weight[0], last.bias[0] = 1.0, 0.0
    run.folder.save_model(run.method.state_dict())
    run = vergence.load(tmp_path / "run", device="cpu")
    capsys.readouterr()
    assert score(noise(), run, tmp_path / "s.csv").rows == 20
    assert "warning: the embedding collapses" in capsys.readouterr().err


def test_pairs_and_vectors_have_a_detector(pairs):
    x, _ = angle_pairs(100, 1)
    assert pairs.anomaly_score(x[:5] + 50).min() > pairs.anomaly_score(x).max() and "inputs" in pairs.detector().feature_sets


def test_feature_sets_that_fail_or_are_constant_are_left_out():
    f = np.random.default_rng(0).normal(size=(50, 3))
    wide = np.random.default_rng(0).normal(size=(50, 8_193))
    kept, notes = usable_features({"a": f, "b": np.ones((50, 2)), "c": np.where(f > 2, np.nan, f), "d": wide})
    assert list(kept) == ["a"] and [note.split()[2] for note in notes] == ["b", "c", "d"]
    refuses("tells the items apart", usable_features, {"b": np.ones((50, 2))})


def test_a_training_whose_detector_finds_the_disk_full_ends_with_an_error(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32))
    plain = Path.write_bytes

    def full(self, content):
        if "detector.safetensors" in self.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    words = ["train", str(tmp_path / "x.npy"), "--objective", "vje", "--set", "epochs=1", "--out", str(tmp_path / "run")]
    assert refused(*words, "--device", "cpu", words="No space left on device").startswith("error: cannot write")
    assert (tmp_path / "run" / "model.safetensors").exists()  # whose detector is fitted where it is needed


def test_a_training_on_equal_items_is_kept_without_a_detector(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.ones((300, 4), dtype=np.float32))
    run = vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "run", encoder="mlp", **QUICK)
    assert "no detector" in capsys.readouterr().err and (tmp_path / "run" / "model.safetensors").exists()
    refuses("found none", run.anomaly_score, torch.ones(3, 4))


def test_a_run_without_a_detector_in_a_folder_that_cannot_be_written_is_scored(run, tmp_path, monkeypatch, capsys):
    shutil.copytree(run.folder.path, tmp_path / "run")
    (tmp_path / "run" / "detector.safetensors").unlink()

    def refuse(folder, name, content):
        raise ValueError(f"{folder.path / name} cannot be written: Read-only file system")

    monkeypatch.setattr(type(run.folder), "write_checked", refuse)
    assert torch.equal(vergence.load(tmp_path / "run", device="cpu").anomaly_score(noise()), run.anomaly_score(noise()))
    shown = capsys.readouterr().err
    assert "note: the detector was fitted for this call alone" in shown and "Read-only" in shown
    assert not (tmp_path / "run" / "detector.safetensors").exists()


def test_a_run_whose_data_is_gone_says_what_is_missing(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32))
    vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "run", encoder="mlp", **QUICK)
    (tmp_path / "run" / "detector.safetensors").unlink()
    (tmp_path / "x.npy").unlink()
    refuses("cannot be opened", vergence.load(tmp_path / "run").anomaly_score, torch.ones(3, 4))


def rows_of(p, scores):
    """Returns the columns of items with these p-values and scores."""
    rows = {"name": np.arange(len(p)).astype(str), "score": scores, "p_value": p, "seen": np.zeros(len(p), dtype=np.uint8)}
    return rows | {name: np.full(len(p), "") for name in ("feature_set", "nearest", "reason")}


def test_decisions_are_benjamini_hochbergs_for_any_parts():
    rng = np.random.default_rng(0)
    for n, m in ((19, 100), (200, 37)):
        s = rng.normal(size=m)
        p = rng.integers(1, n + 2, size=m) / (n + 1)
        rows, tally = rows_of(p, s), Tally(n, fdr=0.4)
        for part in np.array_split(np.arange(m), 5):
            tally.see({name: values[part] for name, values in rows.items()})
        found = tally.columns(rows)
        np.testing.assert_allclose(found["q_value"], q_values(p), rtol=1e-12)
        assert (found["flag"] == select(p, 0.4)).all() and tally.flagged == found["flag"].sum()
        assert tally.found().names[:10] == np.argsort(-s)[:10].astype(str).tolist()


def test_a_p_value_that_equals_its_bound_is_flagged_as_by_select():
    p = np.r_[np.full(35, 7 / 200), np.ones(15)]
    rows, tally = rows_of(p, -p), Tally(199, fdr=0.05)
    tally.see(rows)
    assert select(p, 0.05).sum() == tally.flagged == tally.columns(rows)["flag"].sum() == 35


def test_reasons_claim_no_more_than_the_calibration_items_can_show(run):
    found = run.detector()
    p = found.p_values_by_set(np.r_[found.deviations[:1] + 1e3, found.deviations[:1] - 1e3])
    n = len(found.calibration)
    np.testing.assert_allclose(p, [[1 / (n + 1)] * 3, [1.0] * 3])
    assert explain(found.feature_sets, p, n)[0] == f"{', '.join(found.feature_sets)} rarer than 1 in {n}"
    fewer = replace(found, deviations=found.deviations[:3], names=["a", "b", "c"])
    assert len(fewer.calibration) == 3 and (fewer.p_values_by_set(found.deviations[:1] + 1e3) == 1 / 4).all()


@pytest.mark.parametrize(
    ("n", "rank", "words"),
    [
        (48, 1, "48 calibration items are too few to flag fewer than 12 of 57 items at a rate of 10 %."),
        (4, 1, "4 calibration items are too few to flag one of 57 items at a rate of 10 %."),
        (999, 9, "The smallest q-value is 0.26 (2 items): look at the smallest p-values first."),
    ],
)
def test_why_none_is_flagged(n, rank, words):
    tally, p = Tally(n), np.full(57, 1.0)
    p[:2] = rank / (n + 1)
    tally.see(rows_of(p, 1 - p))
    found = tally.found().sentences
    assert found[0] == "0 of 57 items flagged." and found[1].startswith(words)


def test_a_density_is_refitted_to_the_final_embeddings(run):
    density = run.density(n_components=2)
    x = next(run.items("digits").stream([torch.arange(100)]))[1]
    typical, odd = (density.score_samples(run.embed(part).numpy()) for part in (x, noise()))
    assert density.n_components_ == 2 and np.quantile(typical, 0.05) > odd.max()


def test_a_batch_of_which_nothing_could_be_read_has_no_rows(run, tmp_path):
    place = tmp_path / "photos"
    place.mkdir()
    for i in range(8):
        if i < 3:
            (place / f"{i}.png").write_bytes(b"no image")
        else:
            Image.fromarray(noise(8)[i, 0].numpy()).save(place / f"{i}.png")
    assert score(place, Calibration(run, batch_size=2, workers=0), tmp_path / "s.csv").rows == 5
    assert len((tmp_path / "s.csv.skipped.csv").read_text().splitlines()) == 4


def test_a_feature_set_that_fails_is_one_line(run, tmp_path):
    x = noise(5).float() / 255
    x[2, 0, 3, 3] = float("inf")
    refuses(r"found NaN or infinity in feature set \w+, 1 of 5 items|finite", score, x, run, tmp_path / "s.csv")
    assert not (tmp_path / "s.csv").exists()


def test_vectors_without_rows_or_with_gaps_are_answered(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(400, 4)).astype(np.float32))
    new = rng.normal(size=(30, 4)).astype(np.float32)
    new[10:18] += 20
    np.save(tmp_path / "new.npy", new)
    gaps = new.copy()
    gaps[3, 1] = np.nan
    np.save(tmp_path / "gaps.npy", gaps)
    np.save(tmp_path / "none.npy", new[:0])
    vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "run", encoder="identity", freeze=True)
    tables = {}
    for name, code in (("new", 1), ("gaps", 1), ("none", 0)):
        out = tmp_path / f"{name}.npz"
        found = call("score", tmp_path / "run", tmp_path / f"{name}.npy", "--out", out, "--fail-on", "flagged,errors")
        assert found.returncode == code, found.stderr + found.stdout
        tables[name] = dict(np.load(out))
        if name == "gaps":
            assert "warning: 1 row skipped" in found.stdout and "1 errors" in found.stderr
    others = np.arange(30) != 3
    assert {len(values) for values in tables["none"].values()} == {0} and set(tables["none"]) == set(tables["gaps"])
    assert np.isnan(tables["gaps"]["score"][3]) and tables["gaps"]["flag"][3] == 0 and tables["gaps"]["error"][3]
    for column in ("score", "p_value", "flag"):
        assert (tables["gaps"][column][others] == tables["new"][column][others]).all()
