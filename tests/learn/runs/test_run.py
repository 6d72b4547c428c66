"""The library in Python: what is trained can be loaded, embedded and scored, in bounded memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.refusals import refuses
from torch.distributions import Distribution

import vergence
from vergence.learn.evaluation.anomaly import detection
from vergence.learn.runs.embed import write_embeddings
from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.page import write_report
from vergence.learn.runs.tables import show_evaluation

pytestmark = pytest.mark.float32

QUICK = {"epochs": 1, "batch_size": 64, "limit": 256, "device": "cpu", "precision": "fp32", "knn_every": 0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with torch.random.fork_rng():
        return vergence.train("digits", out=tmp_path_factory.mktemp("api") / "run", objective="vje", **QUICK)


def images(n=5):
    return torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_embed_is_a_distribution_over_the_latent(run):
    belief = run.posterior(images())
    assert isinstance(belief, Distribution)
    assert belief.mean.shape == belief.variance.shape == belief.sample().shape == (5, 256)
    assert belief.entropy().shape == belief.log_prob(belief.mean).shape == (5,)
    mu, var = run.method.objective.infer(run.embed(images()))
    assert torch.allclose(belief.mean, mu) and torch.allclose(belief.variance, var, rtol=1e-5)


def test_scores_are_repeatable_and_leave_the_global_seed_alone(run):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = run.anomaly_score(images(), "joint")
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first, run.anomaly_score(images(), "joint"))
    assert torch.allclose(first, run.anomaly_score(images(), "directional") + run.anomaly_score(images(), "radial"), rtol=1e-4)
    refuses("jacobian, joint, directional", run.anomaly_score, images(), "jiont")
    x = images().float() / 255
    assert torch.equal(run.anomaly_score(x.bfloat16()), run.anomaly_score(x.bfloat16().float()))


def test_the_score_of_the_jacobian_does_not_depend_on_the_batches(run):
    found = run.anomaly_score(images(), "jacobian")
    assert found.shape == (5,) and found.isfinite().all() and found.unique().numel() == 5
    assert torch.allclose(run.anomaly_score(images(), "jacobian", batch_size=2), found, rtol=1e-4)


def test_paths_are_text_or_paths_and_a_run_is_no_path(run, tmp_path):
    for name in ("x.npz", "s.csv"):
        write = write_embeddings if name == "x.npz" else lambda run, x, out: vergence.score(x, run, out).rows
        assert write(run, images(), str(tmp_path / name)) == write(run, images(), tmp_path / name) == 5
    refuses("expected a path for out, found None", write_embeddings, run, images(), None)
    refuses("found None", vergence.load, None)
    refuses(r"expected a run, found 'runs/f'; open its folder with vergence\.load", vergence.evaluate, "runs/f")
    refuses(r"expected the path of a run folder, found a Run; give run\.folder\.path", write_report, run)


def test_training_leaves_the_global_random_state_alone(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    vergence.train("digits", out=tmp_path / "run", objective="vje", **QUICK)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    found = [
        vergence.train("digits", out=tmp_path / str(i), seed=s, objective="vje", **QUICK).embed(images())
        for i, s in enumerate((1, 1, 2))
    ]
    assert torch.equal(found[0], found[1]) and not torch.allclose(found[0], found[2])


def test_a_gaussian_limit_trains_and_its_infinity_comes_back(tmp_path):
    run = vergence.train("digits", out=tmp_path / "run", options={"nu": float("inf")}, objective="vje", **QUICK)
    assert vergence.load(tmp_path / "run").method.objective.nu == float("inf")
    assert torch.isfinite(run.anomaly_score(images())).all()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run whose objective is no density; one class is held out as the anomaly."""
    settings = {"objective": "tests.collapsing:Constant", "keep_classes": tuple(range(9)), **QUICK}
    with torch.random.fork_rng():
        return vergence.train("digits", out=tmp_path_factory.mktemp("plain") / "run", **settings)


def test_an_objective_from_outside_has_no_density_to_embed_with_but_a_detector_to_score_with(plain, tmp_path):
    refuses("Constant', which has none", plain.posterior, images())
    refuses("found 'joint'", plain.anomaly_score, images(), "joint")
    assert plain.anomaly_score(images()).shape == (5,) and vergence.score(images(), plain, tmp_path / "s.csv").rows == 5


def test_an_objective_that_is_no_density_is_embedded_evaluated_and_reported(plain, tmp_path, capsys):
    write_embeddings(plain, images(), tmp_path / "e.npz")
    with np.load(tmp_path / "e.npz") as e:
        assert set(e.files) == {"name", "z"} and np.allclose(e["z"], plain.embed(images()))
    record = evaluate(plain, probes=False)
    assert set(record.representations) == {"z", "untrained", "pixels", "pca"} and record.posterior is None
    scores = record.anomaly.scores
    assert next(iter(scores)) == "detector" and [name for name in scores if scores[name].kind == "model"] == ["detector"]
    odd = torch.from_numpy(plain.items("digits").labels.numpy() == 9)
    assert scores["detector"].auroc == pytest.approx(detection(plain.anomaly_score("digits"), odd)["auroc"], abs=1e-9)
    capsys.readouterr()
    show_evaluation(record)
    shown = capsys.readouterr().out
    assert "mu" not in shown.split() and "The best baseline, pixels, reaches " in shown
    page = write_report(plain.folder.path).read_text()
    assert "detector" in page and "its objective defines no posterior" in page


MEMORY = """
import resource, sys
import numpy as np
from pathlib import Path
import vergence
from vergence.learn.runs.embed import write_embeddings
run, source, out = sys.argv[1:]
write_embeddings(vergence.load(run, device="cpu"), source, Path(out))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_of_embed_does_not_grow_with_the_number_of_images(run, tmp_path):
    """Rows of 3 x 256 floats: 4,000 more of them would show as 12 MB, and the images as much again, if they were held."""
    peaks = []
    for n in (2_000, 16_000):
        np.save(tmp_path / "x.npy", np.zeros((n, 8, 8), dtype=np.uint8))
        command = [sys.executable, "-c", MEMORY, run.folder.path, tmp_path / "x.npy", tmp_path / "e.npz"]
        found = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True)
        peaks.append(int(found.stdout))
    assert peaks[1] - peaks[0] < 25_000, f"kilobytes: {peaks}; holding the rows would take 43,000 more"


def test_test_items_that_equal_training_items_are_named_and_have_no_score_on_the_page(tmp_path, capsys):
    x = np.random.default_rng(0).integers(0, 256, (120, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x_train=x[:100], x_test=np.concatenate([x[:7], x[100:]]))
    settings = {"epochs": 1, "batch_size": 16, "knn_every": 0, "device": "cpu", "precision": "fp32"}
    run = vergence.train(tmp_path / "x.npz", out=tmp_path / "run", recipe="vje_small", **settings)
    capsys.readouterr()
    vergence.evaluate(run, probes=False)
    said = capsys.readouterr().err
    assert "note: 7 of 27 test items equal items that the run was fitted to or calibrated on; the page shows no scores" in said
    scores = np.load(tmp_path / "run" / "examples.npz")["score"]
    assert np.isnan(scores[:7]).all() and np.isfinite(scores[7:]).all()


def test_a_run_says_what_it_is_and_is_saved_elsewhere(run, tmp_path):
    assert repr(run).startswith("Run('") and "small, vje, " in repr(run) and "\n" not in repr(run)
    copy = vergence.load(run.folder.path, device="cpu")
    path = copy.save(tmp_path / "kept")
    assert path == copy.folder.path == tmp_path / "kept" and not (path / "lock").exists()
    assert torch.equal(vergence.load(path, device="cpu").anomaly_score(images()), run.anomaly_score(images()))
    assert copy.report() == path / "report.html"
    refuses("already holds a run", run.save, path)


def test_neighbors_are_the_most_similar_items_by_name(run):
    bank = run.items("digits:train").subset(torch.arange(50))
    near = run.neighbors(bank.subset(torch.tensor([7, 3])), bank, n=2)
    assert near.index[:, 0].tolist() == [7, 3] and near.similarity.shape == (2, 2)
    assert [names[0] for names in near.neighbors] == near.names
    z = torch.nn.functional.normalize(run.embed(bank), dim=1)
    assert torch.allclose(near.similarity, (z @ z.T)[[7, 3]].topk(2).values, atol=1e-5)
    assert len(near.table()["neighbor"]) == 4 and near.names[0] in near._repr_html_() and "<td>vje</td>" in run._repr_html_()


def test_findings_are_a_table_and_need_no_file(run):
    refuses("a run as the reference", vergence.score, images(), "run")
    findings = vergence.score(images(), run)
    table = findings.table()
    assert findings.total == 5 and table["score"] == run.anomaly_score(images()).tolist()
    assert table["name"][0] in findings._repr_html_() and vergence.evaluate(run, probes=False).table()["representation"][0] == "z"
    pandas = pytest.importorskip("pandas")
    assert isinstance(findings.to_pandas(), pandas.DataFrame) and len(findings.to_pandas()) == 5
