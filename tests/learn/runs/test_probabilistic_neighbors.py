"""VI-SimSiam and VSSL from training to report: above the untrained encoder, scores measured, conditionals."""

import numpy as np
import pytest
import torch
from experiments import noisy_digits as demo
from sklearn.metrics import roc_auc_score

import vergence
from vergence.densities.gaussian import JointGaussian
from vergence.densities.power_spherical import PowerSpherical
from vergence.learn.runs.embed import write_embeddings
from vergence.learn.runs.evaluate import evaluate
from vergence.learn.runs.page import write_report
from vergence.learn.runs.score import Calibration

pytestmark = [pytest.mark.float32, pytest.mark.slow]

SCORES = {"vi_simsiam": ("alignment", "concentration", "entropy"), "vssl": ("score", "cross_entropy", "variance", "entropy")}
SETTINGS = {"encoder": "mlp", "limit": 4000, "epochs": 5, "batch_size": 64, "optimizer": "adamw", "lr": 2e-3, "knn_every": 0}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Pairs of noisy photographs of digits, on which an untrained encoder is poor."""
    path = tmp_path_factory.mktemp("photographs") / "pairs.npz"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SHOTS", 4)
        demo.write_pairs(path, 0)
    return path


@pytest.fixture(scope="module", params=SCORES)
def run(request, photographs, tmp_path_factory):
    """A run without the digit 9."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    keep = {"keep_classes": tuple(range(9)), "device": "cpu", "precision": "fp32"}
    with torch.random.fork_rng():
        return vergence.train(str(photographs), out=out, objective=request.param, **SETTINGS, **keep)


@pytest.fixture(scope="module")
def record(run):
    return evaluate(run, probes=False, uncertainty=True)


def name(run):
    return run.folder.config.model.objective


def test_a_short_training_beats_the_untrained_encoder(run, record):
    accuracy = {key: r.knn[30].majority for key, r in record.representations.items()}
    error = (2 * accuracy["z"] * (1 - accuracy["z"]) / record.protocol.test) ** 0.5
    assert accuracy["z"] > accuracy["untrained"] + 3 * error
    assert record.posterior.variance_mean > 0 and np.isfinite(record.posterior.entropy)


def test_every_score_is_measured_on_the_digit_left_out(run, record, photographs):
    """The evaluation's AUROC is that of the run's scores, computed by hand."""
    with np.load(photographs) as arrays:
        images, foreign = arrays["context_test"], arrays["labels_test"] == 9
    assert list(record.anomaly.scores)[: 1 + len(SCORES[name(run)])] == ["detector", *SCORES[name(run)]]
    for how in SCORES[name(run)]:
        found = record.anomaly.scores[how]
        assert found.kind == "model"
        assert found.auroc == pytest.approx(roc_auc_score(foreign, run.anomaly_score(images, how).numpy()), abs=1e-4)


def test_conditionals(run, photographs):
    with np.load(photographs) as arrays:
        context, target = arrays["context_test"][:50], arrays["target_test"][:50]
    p, zb = run.conditional(context), run.embed(target, side="target", projected=True)
    if name(run) == "vi_simsiam":
        assert isinstance(p, PowerSpherical) and run.objective.on_sphere
        zb = torch.nn.functional.normalize(zb, dim=1)
        with pytest.raises(ValueError, match="vi_simsiam"):
            run.sample(3)
    else:
        assert isinstance(p, JointGaussian) and run.sample(3)[0].shape == run.sample(3)[1].shape
    own, other = p.log_prob(zb), p.log_prob(zb.roll(1, 0))
    assert own.shape == (50,) and own.mean() > other.mean(), "a context says which target is its own"


def test_columns_and_page(run, record, photographs, tmp_path):
    with np.load(photographs) as arrays:
        images = arrays["context_test"][:20]
    write_embeddings(run, run.items(images), tmp_path / "e.npz")
    with np.load(tmp_path / "e.npz") as e:
        assert {"z", "mean", "variance", "log_density"} <= set(e.files) and np.isfinite(e["log_density"]).all()
    vergence.score(images, Calibration(run, all_scores=True), tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz") as s:
        detected = run.anomaly_score(images)  # the detector's, whatever the objective calls its own
        assert np.allclose(s["score"], detected, rtol=1e-4)
        for how in SCORES[name(run)]:
            assert np.allclose(s["own_score" if how == "score" else how], run.anomaly_score(images, how), rtol=1e-3, atol=1e-3)
    text = write_report(run.folder.path).read_text()
    assert "How certain is the model?" in text and "Does the uncertainty mean anything?" in text and SCORES[name(run)][1] in text
