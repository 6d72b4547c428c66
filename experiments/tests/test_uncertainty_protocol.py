"""The protocol of uncertainties: references in loops, what baselines find, degradations, and one whole run."""

import math

import numpy as np
import pytest
import torch
from experiments.uncertainty import degradations, files
from experiments.uncertainty.baselines import compressed_size, loss_head, probe_entropy, rank_correlation
from experiments.uncertainty.predictive import density_level, energy_score, evidence, pit_calibration
from experiments.uncertainty.protocol import protocol
from experiments.uncertainty.scores import ranking, risk_coverage
from scipy.stats import chi2
from tests.reference import uncertainty as reference
from torch.distributions import Independent, Normal

import vergence
from vergence.data.sources import open_data
from vergence.learn.evaluation.uncertainty import neighbor_is_right

pytestmark = pytest.mark.slow


def noisy_classes(n=900, seed=0):
    """Three classes at right angles; every item has noise of a strength of its own, which is the true uncertainty."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    strength = torch.rand(n, generator=g) * 1.2
    return torch.eye(3)[y] + strength[:, None] * torch.randn(n, 3, generator=g), y, strength


def test_rank_correlations_are_those_of_the_reference():
    table, strength = torch.randint(4, (9, 5)).double(), [0.0, 1.0, 1.0, 2.0, 5.0]
    found = rank_correlation(table, strength)
    assert found["within"] == pytest.approx(np.mean([reference.spearman(row, strength) for row in table.tolist()]), abs=1e-12)
    assert found["pooled"] == pytest.approx(reference.spearman(table.flatten().tolist(), strength * 9), abs=1e-12)


def test_rankings_are_those_of_the_reference():
    few, right = torch.tensor([0.2, 0.1, 0.2, 0.5, 0.2, 0.1]), torch.tensor([True, True, False, False, True, False])
    coverage, risk = risk_coverage(few, right)
    assert coverage[-1] == 1 and float(risk.mean()) == pytest.approx(reference.aurc(few.tolist(), right.tolist()), abs=1e-12)
    z, y, strength = noisy_classes(400)
    right = neighbor_is_right(z, y)
    true, noise = ranking(strength, right), ranking(torch.rand(len(z)), right)
    assert true["aurc_best"] < true["aurc"] < noise["aurc"] and noise["aurc"] == pytest.approx(noise["error"], abs=0.1)


def test_the_true_density_is_calibrated_and_wrong_ones_are_not():
    g, N, D = torch.Generator().manual_seed(0), 800, 3
    torch.manual_seed(0)
    mean = torch.randn(N, D, generator=g)
    target = mean + torch.randn(N, D, generator=g)
    p, wide, narrow, biased = (Normal(mean + b, s * torch.ones(N, D)) for b, s in ((0, 1), (0, 2), (0, 0.5), (0.5, 1)))
    good = pit_calibration(p.cdf(target))
    assert good["pit_ks"] < 1.63 / math.sqrt(N) and abs(good["inside_90"] - 0.9) < 4 * math.sqrt(0.25 / (N * D))
    assert pit_calibration(wide.cdf(target))["inside_50"] > 0.6 and pit_calibration(narrow.cdf(target))["inside_90"] < 0.7
    assert pit_calibration(biased.cdf(target))["pit_ks"] > 0.15
    exact = chi2(D).cdf((target - mean).square().sum(1).numpy())  # the region of highest density of a Gaussian is a ball
    assert np.abs(density_level(Independent(p, 1), target, 400).numpy() - exact).max() < 5 * 0.5 / math.sqrt(400)
    scores = [energy_score(q.sample((50,)), target).mean() for q in (p, wide, narrow, biased)]
    assert min(scores) == scores[0]


@pytest.mark.parametrize(("scale", "kl"), [(math.sqrt(0.5), 0.0), (1.0, 0.5 * (1 - math.log(2)))])
def test_bounds_of_a_known_model(scale, kl):
    """x = s + noise with s ~ N(0, 1): log N(x; 0, 2) is known, and a wrong q costs its KL divergence."""
    torch.manual_seed(0)
    x = torch.randn(200) * math.sqrt(2)
    q = Normal(x / 2, scale)
    s = q.sample((4000,))
    found = evidence(Normal(s, 1.0).log_prob(x) + Normal(0.0, 1.0).log_prob(s) - q.log_prob(s))
    truth = float(Normal(0.0, math.sqrt(2)).log_prob(x).mean())
    assert found["log_marginal"] == pytest.approx(truth, abs=0.01) and found["gap"] == pytest.approx(kl, abs=0.02)


def test_columns_of_a_file_are_ranked_beside_baselines(tmp_path, capsys):
    z, y, strength = noisy_classes(400)
    variance = torch.stack([strength, strength], 1).numpy()
    arrays = {"z": z.numpy(), "label": np.array(["a", "b", "c"])[y], "log_density": -strength.numpy(), "variance": variance}
    np.savez(tmp_path / "e.npz", **arrays, names=arrays["label"])
    tested = files.read(tmp_path / "e.npz")
    assert set(tested.columns) == {"log_density", "variance"} and torch.allclose(tested.columns["log_density"], strength.double())
    recall, found = files.ranked(tested, tested.subset(torch.arange(200)))
    right = neighbor_is_right(z, y)
    assert recall == pytest.approx(float(right.double().mean())) and found["variance"] == ranking(2 * strength, right)
    files.main([str(tmp_path / "e.npz")])
    assert "kNN distance (baseline)" in capsys.readouterr().out


def test_controls_find_what_they_are_made_for():
    z, y, _ = noisy_classes()
    x, t = z[:600], z[600:]
    right = neighbor_is_right(t, y[600:])
    assert ranking(probe_entropy(x, y[:600], t), right)["auroc"] > 0.55
    loss = t[:, 0].square()
    assert torch.corrcoef(torch.stack([loss_head(x, x[:, 0].square(), t), loss]))[0, 1] > 0.8
    images = torch.stack([torch.full((3, 16, 16), 90), torch.randint(256, (3, 16, 16))]).byte()
    for kind in (images, images[:, :1], images[:, :2], images.float().flatten(1)):
        assert compressed_size(kind)[0] < compressed_size(kind)[1]


@pytest.mark.parametrize("how", degradations.STRENGTHS)
def test_degradations_grow_with_their_strength(how):
    g = torch.Generator().manual_seed(0)
    x = torch.nn.functional.interpolate(torch.rand(6, 3, 8, 8, generator=g), size=(32, 32), mode="bilinear")
    assert torch.equal(degradations.degraded(x, how, 0.0), x)
    distances = []
    for strength in degradations.STRENGTHS[how]:
        out = degradations.degraded(x, how, strength, torch.Generator().manual_seed(1))
        assert out.shape == x.shape and 0 <= out.min() and out.max() <= 1
        distances.append(float((out - x).square().mean()))
    assert rank_correlation(np.array([distances]), degradations.STRENGTHS[how])["within"] > 0.85
    if how == "occlusion":
        assert float((out == 0.5).double().mean()) == pytest.approx(0.75, abs=0.05)


def test_blur_is_scipys():
    from scipy.ndimage import gaussian_filter1d

    x = torch.rand(1, 1, 32, 32)
    expected = gaussian_filter1d(
        gaussian_filter1d(x[0, 0].numpy(), 1.0, axis=0, mode="mirror", radius=3), 1.0, mode="mirror", radius=3
    )
    assert np.allclose(degradations.degraded(x, "blur", 1.0)[0, 0].numpy(), expected, atol=1e-9)


@pytest.mark.float32
def test_a_run_is_measured_as_a_whole(tmp_path):
    quick = {"epochs": 1, "batch_size": 64, "limit": 200, "device": "cpu", "precision": "fp32", "knn_every": 0}
    run = vergence.train("digits", out=tmp_path / "run", objective="vje", **quick)
    opened = open_data(run.folder.config.data)
    found = protocol(run, opened, run.embed(opened.train), run.embed(opened.test))
    assert set(found["scores"]["kNN distance"]["strengths"]) == set(degradations.STRENGTHS)
    assert found["scores"]["file size"]["strengths"]["noise"] > 0.5 and found["scores"]["probe entropy"]["labels"]
    assert 0 <= found["scores"]["spread over crops"]["scrambled"] <= 1 and 0 < found["recall_at_1_equalized"] <= 1
    assert 1 <= found["predictive"]["effective_samples"] <= found["predictive"]["samples"]
