"""The command line as people meet it: its errors are one line, and nothing computed is lost."""

import contextlib
import csv
import dataclasses
import html
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from tests import forked

from vergence import __version__
from vergence.cli import commands
from vergence.cli.train import Train

pytestmark = pytest.mark.float32

CLI = [sys.executable, "-m", "vergence.cli.commands"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "COLUMNS": "100"}
QUICK = "--epochs 1 --batch-size 64 --limit 192 --device cpu --precision fp32 --set knn_every=0".split()


def apart(*arguments):
    """Runs a command as a process of its own."""
    return subprocess.run([*CLI, *map(str, arguments)], env=ENV, capture_output=True, text=True, timeout=240)


def call(*arguments):
    """Runs a command in this process, which is spared the imports; warnings are errors here."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            commands.main([str(a) for a in arguments])
            code = 0
        except SystemExit as stop:
            code = stop.code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def refused(*arguments, words, run=call):
    """A wrong call: one line on stderr behind the notes, exit code 2, no traceback; returns the line."""
    found = run(*arguments)
    assert found.returncode == 2, (found.returncode, found.stdout, found.stderr)
    *notes, error = found.stderr.splitlines()
    assert error.startswith("error: ") and words in error and all(note.startswith("note: ") for note in notes), found.stderr
    return error


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small trained run on the digits, shared by the tests that only read it."""
    out = tmp_path_factory.mktemp("cli") / "run"
    found = call("train", "digits", "--out", out, "--objective", "vje", *QUICK)
    assert found.returncode == 0, found.stderr
    return out


def test_help_answers_at_once():
    """Processor seconds, which a busy machine does not stretch as it does the wall clock."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert apart("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(times) < 0.6  # 0.2 to 0.4 by processor


def test_version():
    assert apart("--version").stdout.split() == ["vergence", __version__]
    found = subprocess.run([sys.executable, "-m", "vergence", "--version"], capture_output=True, text=True, env=ENV, check=True)
    assert found.stdout.split() == ["vergence", __version__]


def test_uncertainty_and_crops_are_options(run, tmp_path):
    shown = call("evaluate", run, "--device", "cpu", "--uncertainty", "--no-probes")
    assert shown.returncode == 0 and "R-AUROC" in shown.stdout and "neighbor spread" in shown.stdout, shown.stderr
    assert call("embed", run, "digits", "--out", tmp_path / "e.npz", "--crops", "3").returncode == 0
    with np.load(tmp_path / "e.npz") as e:
        assert e["z_crops"].shape == e["z"].shape and e["spread"].shape == (359,)


def test_evaluate_embed_score_and_report_follow_training(run, tmp_path):
    assert "kNN" in call("evaluate", run, "--device", "cpu").stdout
    record = json.loads((run / "evaluation.json").read_text())
    assert {"z", "mu", "untrained", "pixels", "pca"} == set(record["representations"])
    assert record["representations"]["pixels"]["knn"]["1"]["majority"] > 0.9  # digits are easy for pixels: a fact of the data
    assert call("embed", run, "digits", "--out", tmp_path / "e.npz").returncode == 0
    with np.load(tmp_path / "e.npz") as e:
        assert e["z"].shape == e["mean"].shape == e["variance"].shape == (359, 256) and e["log_density"].shape == (359,)
    scored = call("score", run, "digits", "--out", tmp_path / "s.csv", "--all-scores")
    assert "flagged" in scored.stdout.partition("The most anomalous:")[0]
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:9] == ["name", "score", "p_value", "q_value", "flag", "feature_set", "nearest", "reason", "seen"]
    assert list(rows[0])[-5:] == ["joint", "directional", "radial", "variance", "entropy"] and len(rows) == 359
    assert all(float(r["joint"]) == pytest.approx(float(r["directional"]) + float(r["radial"]), rel=1e-4) for r in rows)
    assert call("report", run).returncode == 0
    assert (run / "report.html").stat().st_size > 10_000


def photographs(folder, n=40, size=(40, 30)):
    rng = np.random.default_rng(0)
    for i in range(n):
        place = folder / ("cats" if i % 2 else "dogs")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(place / f"{i:03d}.png")
    return folder


def test_corrupt_images_are_skipped_listed_and_refused_under_strict(tmp_path):
    folder = photographs(tmp_path / "photos")
    (folder / "cats" / "broken.png").write_bytes((folder / "cats" / "001.png").read_bytes()[:400])
    (folder / "dogs" / "words.jpg").write_text("not a image")
    settings = ["--objective", "vje", "--size", "16", "--batch-size", "8", "--epochs", "1", "--device", "cpu"]
    refused("train", folder, "--out", tmp_path / "strict", *settings, "--strict", words="words.jpg")
    assert not (tmp_path / "strict").exists()
    found = call("train", folder, "--out", tmp_path / "run", *settings)
    assert found.returncode == 0, found.stderr
    with (tmp_path / "run" / "skipped.csv").open(newline="") as file:
        assert sorted(r["name"] for r in csv.DictReader(file)) == ["cats/broken.png", "dogs/words.jpg"]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["metadata"]["skipped"] == 2
    found = call("embed", tmp_path / "run", folder, "--out", tmp_path / "e.csv")
    assert found.returncode == 0 and "wrote 40 rows" in found.stdout and "e.csv.skipped.csv" in found.stdout


@pytest.mark.parametrize(
    ("source", "words"), [("no/such/folder", "no/such/folder"), ("cifar01", "cifar10"), ("mnist", "--download")]
)
def test_missing_data(tmp_path, source, words):
    refused("train", source, "--out", tmp_path / "run", "--data-root", tmp_path / "nothing", *QUICK, words=words, run=forked.run)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--objective", "vjee"], "did you mean 'vje'"), (["--set", "nuu=3"], "did you mean 'nu'"),
        (["--set", "blurr=0.5"], "did you mean 'blur'"), (["--set", "nu=-1"], "nu > 0"), (["--set", "nu"], "NAME=VALUE"),
        (["--set", "crop=5"], "crop to be 2 numbers"),
        (["--set", "projector=16"], "expected projector to be numbers (a, b, ...), found 16; write projector=(16,)"),
        (["--set", "warmup_epochs=abc"], "warmup_epochs to be a number, found 'abc'"), (["--set", "epochs=5"], "given twice"),
        (["--set", "options=5"], "NAME=VALUE"), (["--set", "nu={[]:1}"], "nu"), (["--set", "no_such=1"], "found 'no_such'"),
        (["--lr", "-1"], "lr of at least 0"), (["--size", "0"], "size of at least 1"),
        (["--devices", "3"], "3 processes can share evenly"), (["--keep-classes", "77"], "77"),
        (["--keep-classes", "cat", "dog"], "expected whole numbers for --keep-classes, found 'cat, dog'"),
        (["--encoder", "timm:vit_tiny_patch16_224", "--size", "8"], "--size"),
        (["--freeze"], "expected weights with --freeze, found encoder 'small' with random ones"),
        (["--freeze", "--encoder", "resnet18", "--objective", "gje"], "expected no objective with freeze"),
        (["--pretrained"], "expected --encoder timm:NAME with --pretrained, found 'small'"),
        (["--encoder", "timm:convnextv2_small", "--pretrained"], "expected a name of timm with pretrained weights"),
        (["--weights", "none.pth", "--pretrained"], "expected one source of weights, found --pretrained and --weights"),
        (["--init", "none"], "expected a run folder"),
        (["--init", "none", "--recipe", "patches"], "expected either --recipe or --init"),
    ],
)  # fmt: skip
def test_unusable_settings(tmp_path, arguments, words):
    network = [] if {"--recipe", "--init", "--objective"} & {*arguments} else ["--recipe", "vje_small"]
    refused("train", "digits", "--out", tmp_path / "run", "--epochs", "1", "--device", "cpu", *network, *arguments, words=words)
    assert not (tmp_path / "run").exists()


def test_outputs_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    refused("train", "digits", "--out", tmp_path / "file" / "run", "--objective", "vje", *QUICK, words="cannot write")
    refused("score", run, "digits", "--out", tmp_path / "no" / "s.csv", words="no folder")
    refused("embed", run, "digits", "--out", tmp_path / "e.txt", words=".npz")


def test_advise_writes_a_page_and_says_why(tmp_path):
    found = call("advise", "digits", "--out", tmp_path / "advice", "--draws", "4", "--components", "8", "--set", "blur=0")
    assert found.returncode == 0, found.stderr
    assert "Start with" in found.stdout and "without" in found.stdout and "crop" in found.stdout and "blur" not in found.stdout
    record = json.loads((tmp_path / "advice" / "advice.json").read_text())
    assert record["facts"]["k"] == 8 and record["facts"]["draws"] == 4 and record["views"]["blur"] == 0
    page = re.sub(r"\s+(?=<)", "", (tmp_path / "advice" / "report.html").read_text())
    assert all(sentence.split(":")[0] in html.unescape(page) for sentence in record["words"])
    for row in record["augmentations"]:
        assert f"<td>{100 * row['strength']:.1f}</td><td>{100 * row['unchanged']:.1f}</td>" in page
    assert record["views"]["flip"] == 0, "digits have no mirror images"


def test_advise_on_vectors(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "v.npz", x=rng.normal(size=(300, 6)), labels=np.arange(300) % 3)
    found = call("advise", tmp_path / "v.npz", "--out", tmp_path / "a", "--set", "noise=0.1")
    assert found.returncode == 0 and "mask" in found.stdout, found.stderr
    assert "(linear probe, " in found.stdout and "next: vergence train" in found.stdout
    found = call("advise", tmp_path / "v.npz", "--out", tmp_path / "b", "--set", "noise=0.1", "--draws", "4", "--no-labels")
    assert "the vectors as they are" in found.stdout and "(linear probe, " not in found.stdout, found.stderr


def test_advise_refuses_what_it_cannot_use(run, tmp_path):
    refused("advise", "digits", "--out", run, words="holds a trained run")
    refused("advise", "digits", "--out", tmp_path, "--set", "noise=2", words="no operation on images")
    refused("advise", "digits", "--out", tmp_path, "--set", "epochs=2", words="epochs")
    refused("advise", "digits", "--out", tmp_path, "--set", "blurr=2", words="did you mean 'blur'")
    np.save(tmp_path / "few.npy", np.random.default_rng(0).integers(0, 256, (120, 8, 8), dtype=np.uint8))
    words = "found 96: of 120 items, 20 % are held out as a test part; give at least 125"
    refused("advise", tmp_path / "few.npy", "--out", tmp_path, words=words)


def test_no_control_character_of_a_strangers_file_reaches_the_terminal(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    record["model"]["objective"] = "\x1b[2J\x1b]0;title\x07vje\u202e"
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    found = refused("evaluate", tmp_path / "run", "--device", "cpu", words="objective")
    assert found.removesuffix("\n").isprintable()


def test_a_folder_is_checked(run, tmp_path):
    folder = photographs(tmp_path / "photos")
    found = call("check", folder, "--out", tmp_path / "c")
    assert found.returncode == 0 and "40 images ranked, " in found.stdout and len(found.stdout.splitlines()) <= 14
    assert f"page: {tmp_path / 'c' / 'report.html'}" in found.stdout and (tmp_path / "c" / "items.csv").is_file()
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    found = call("check", folder, "--out", tmp_path / "l", "--against", other, "--leaks")
    assert "40 of 40 images leaked: they are duplicates of reference images." in found.stdout, found.stderr
    gate = call("check", folder, "--out", tmp_path / "g", "--against", other, "--leaks", "--fail-on", "leaks,unreadable")
    assert gate.returncode == 1 and gate.stderr.endswith("failed: 40 leaks\n") and (tmp_path / "g" / "report.html").is_file()
    assert call("check", folder, "--out", tmp_path / "g", "--fail-on", "unreadable").returncode == 0
    refused("check", folder, "--out", tmp_path / "u", "--fail-on", "flagged", words="--against REFERENCE")
    found = call("check", folder, "--out", tmp_path / "j", "--json", "--map", "pca")
    assert json.loads(found.stdout) == json.loads((tmp_path / "j" / "summary.json").read_text())
    refused("check", folder, "--out", tmp_path / "u", "--map", "none", words="tsne or pca")
    refused("check", folder, "--out", tmp_path / "u", "--leaks", words="--leaks with --against")
    refused("check", folder, "--out", tmp_path / "u", "--encoder", "resnet", words="timm:NAME")
    refused("check", tmp_path / "nothing", "--out", tmp_path / "u", words="found no such file or folder")
    refused("fetch", "resnet18", "--to", tmp_path / "w", words="timm:NAME")


def test_hostile_names_are_printed_on_one_line_without_control_characters(run, tmp_path):
    folder = photographs(tmp_path / "photos")
    first = sorted(path for path in folder.rglob("*") if path.is_file())[0]
    for name in ("\x1b[2J.png", "line\nbreak.png", "n" * 200 + ".png", "=1.png", "\u202eright.png"):
        shutil.copy(first, folder / name)
    found = call("check", folder, "--out", tmp_path / "c", "--map", "pca")
    assert found.returncode == 0 and all(line.isprintable() for line in found.stdout.splitlines())
    assert len(found.stdout.splitlines()) <= 14


def test_lists_and_grouped_help():
    first, *_ = call("list", "settings", "nu").stdout.split("\n")
    assert first.startswith("nu ") and "Option of vje. Default: 3.0." in first
    assert "vje_small" in call("list", "recipes", "small").stdout and "Passes over" in call("list", "settings", "epochs").stdout
    assert "Variational Joint Embedding" in call("list", "objectives").stdout and "timm:NAME" in call("list", "encoders").stdout
    refused("list", "recipes", "zzz", words="a word of recipes")
    found = call("train", "--help")
    groups = ("Data:", "What to train:", "Optimization:", "Hardware:", "Advanced:")
    assert found.returncode == 0 and all(group in found.stdout for group in groups) and "--no-" not in found.stdout
    options = {line.split()[0] for line in found.stdout.splitlines() if line.startswith("  --")}
    assert options == {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(Train) if field.name != "data"}
    assert "Default: 800" in call("train", "--recipe", "vje_cifar10", "--help").stdout
    for bare in ((), ("help",)):
        assert call(*bare).stdout.startswith("usage: vergence")


def test_a_dry_run_says_what_would_run_and_writes_nothing(run, tmp_path):
    out = tmp_path / "dry"
    found = call("train", "digits", "--recipe", "vje_small", "--epochs", "2", "--device", "cpu", "--dry-run", "--out", out)
    assert found.returncode == 0 and "34 steps (2 epochs" in found.stdout and "estimate" in found.stdout and not out.exists()
    refused("train", "digits", "--set", "atoms=100", "--recipe", "vje_small", "--out", out, words="--encoder patches:atoms=100")


def test_embeddings_have_the_labels_and_default_names(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = call("embed", run, "digits", "--device", "cpu")
    with np.load(tmp_path / "embeddings-digits.npz") as file:
        assert file["label"].shape == (len(file["z"]),) and len(set(file["label"])) == 10
    assert "wrote 359 rows to embeddings-digits.npz" in found.stdout and "next: " in found.stdout
    found = call("score", run, "digits", "--device", "cpu")
    assert (tmp_path / "scores-digits.csv").is_file() and "next: open scores-digits.csv.html" in found.stdout


def test_rates_exclude_each_other(run, tmp_path):
    out = ("score", run, "digits", "--out", tmp_path / "u.csv")
    refused(*out, "--confidence", "0.9", words="expected --fpr with --confidence")
    refused(*out, "--fdr", "0.1", "--fpr", "0.1", words="expected --fdr or --fpr, found both")


def test_pairs_of_vectors_are_fitted_and_matched(tmp_path):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(400, 4))
    np.savez(tmp_path / "pairs.npz", context=a, target=a @ rng.normal(size=(4, 6)) + 0.1 * rng.normal(size=(400, 6)))
    with np.load(tmp_path / "pairs.npz") as arrays:
        np.save(tmp_path / "a.npy", arrays["context"][:20])
        np.save(tmp_path / "b.npy", arrays["target"][:20])
    found = call("pairs", "fit", tmp_path / "pairs.npz", "--out", tmp_path / "m.safetensors")
    assert found.returncode == 0 and "120 of 400 pairs calibrate" in found.stdout, found.stderr
    matched = call("match", tmp_path / "m.safetensors", tmp_path / "a.npy", tmp_path / "b.npy", "--out", tmp_path / "m.csv")
    assert matched.returncode == 0 and "of 20 contexts matched" in matched.stdout, matched.stderr
    np.save(tmp_path / "none.npy", np.zeros((0, 4)))
    found = call("match", tmp_path / "m.safetensors", tmp_path / "none.npy", tmp_path / "b.npy", "--out", tmp_path / "n.csv")
    assert found.returncode == 0 and found.stdout.startswith("0 contexts: nothing to decide"), found.stderr
    assert (tmp_path / "n.csv").read_text().split() == (tmp_path / "m.csv").read_text().split()[:1]
    np.savez(tmp_path / "pairs2.npz", context=np.zeros((3, 4)))
    words = ("--out", tmp_path / "pairs2.npz")
    refused("match", tmp_path / "m.safetensors", tmp_path / "pairs2.npz", tmp_path / "b.npy", *words, words="apart from")
    refused("match", tmp_path / "m.safetensors", tmp_path / "no.npy", tmp_path / "a.npy", words="no such file")
    refused("pairs", "fit", tmp_path / "a.npy", words="context")
