"""GMJE by EM on a bank: the fit against loops and its laws, losses, state, runs, collapse."""

import itertools

import pytest
import torch
from tests.dying import resumed_with_the_same_bits
from tests.learn.objectives.common import as_em, close, joined
from tests.reference import gmje as slow

from vergence.learn.objectives.gmje_em import GMJEEM
from vergence.learn.runs import run

B, D, K = 60, 2, 3


def built(mixture=None, **settings):
    """Returns an objective without shrinkage that holds a mixture."""
    objective = GMJEEM(D, **({"components": K, "shrinkage": 0.0, "bank": B, "floor": 0.1} | settings))
    objective.bank.keep(as_em(slow.planted(K, 2 * D) if mixture is None else mixture))
    return objective


def nll(objective, za, zb):
    """Returns the mean joint negative log-likelihood."""
    return -objective.joint().log_prob(joined(za, zb)).mean()


def likelihood(objective):
    return objective.joint().log_prob(objective.bank.items()).mean().item()


def test_one_component_is_mean_and_covariance_of_the_bank():
    """T6, with the floor under the variances; the conditional is then the ridge regression of the pairs."""
    objective, (za, zb) = GMJEEM(D, components=1, bank=B, floor=0.2), slow.pair(B, D)
    objective.update(za, zb)
    S = torch.cov(joined(za, zb).T, correction=0) + 0.2**2 * torch.eye(2 * D)
    close(objective.joint().mean, joined(za, zb).mean(0), 1e-9)
    close(objective.joint().covariance, S, 1e-9)
    x, y = za - za.mean(0), zb - zb.mean(0)
    A = torch.linalg.solve(x.T @ x / B + 0.2**2 * torch.eye(D), x.T @ y / B).T
    close(objective.conditional(za[:4]).mean, zb.mean(0) + x[:4] @ A.T, 1e-9)


def test_fits_never_lower_the_banks_likelihood():
    """T12; the bank's oldest pairs leave, so it is the likelihood on the bank as it stands that may not fall."""
    za, zb, _ = slow.clusters(240, D + 1)
    objective = GMJEEM(D + 1, components=4, bank=240, floor=1e-3, steps=1)
    objective.update(za, zb)
    values = [likelihood(objective)]
    for _ in range(25):
        objective.bank.fit(objective.bank.mixture(), steps=1)
        values.append(likelihood(objective))
    gains = [b - a for a, b in itertools.pairwise(values)]
    assert min(gains) > -1e-6 and values[-1] > values[0] + 0.01


def test_after_an_m_step_the_distances_are_the_features():
    """T12: sum_n r_nk d^T S_k^{-1} d = 2 D N_k for every component, whatever the embeddings are: the trap's mixture form."""
    objective, (za, zb) = built(floor=1e-6), slow.pair(B, D)
    objective.bank.push(joined(za, zb))
    before = objective.bank.mixture()
    r = objective.joint().responsibilities(joined(za, zb))
    objective.bank.fit(before, steps=1)
    p = objective.joint().component_distribution
    far = (r * p.S.quadratic(joined(za, zb)[:, None] - p.loc)).sum(0)
    close(far, 2 * D * r.sum(0), 1e-7)


def test_a_fit_goes_on_from_the_kept_mixture_or_starts_afresh():
    """Whichever is likelier in the end: one component on two clusters is worse than what k-means finds, the truth is not."""
    za, zb, label = slow.clusters(120, 3)
    Z, eye = joined(za, zb), torch.eye(6)
    near = [Z[label == c].mean(0) for c in range(3)]
    worse = [(0.5, Z[label < 2].mean(0), 4 * eye), (0.5, near[2], eye), (1e-6, near[2] + 0.1, eye)]
    best = [(1 / 3, m, 0.2 * eye) for m in near]
    for stored, least in ((worse, 0.1), (best, -1e-9)):
        objective = GMJEEM(3, components=3, bank=60, floor=0.3, steps=2)
        objective.update(za[:60], zb[:60])
        objective.bank.keep(as_em(stored))
        objective.update(za[60:], zb[60:])
        gone_on = slow.em_step(slow.em_step(stored, Z[60:], 0.3**2), Z[60:], 0.3**2)
        assert likelihood(objective) >= -slow.nll(gone_on, Z[60:]) + least


def test_a_mixture_that_a_partition_cannot_find_is_kept():
    """A narrow component within a wide one: k-means cuts them in halves, EM from the kept mixture leaves them."""
    g = torch.Generator().manual_seed(0)
    za, zb = torch.randn(2, 200, D, generator=g) * torch.where(torch.arange(200) % 2 > 0, 0.1, 3.0)[:, None]
    Z, eye = joined(za, zb), torch.eye(2 * D)
    stored = [(0.5, torch.zeros(2 * D), 0.02 * eye), (0.5, torch.zeros(2 * D), 9 * eye)]
    objective = GMJEEM(D, components=2, bank=100, floor=0.1, steps=1)
    objective.update(za[:100], zb[:100])
    objective.bank.keep(as_em(stored))
    objective.update(za[100:], zb[100:])
    close(likelihood(objective), -slow.nll(slow.em_step(stored, Z[100:], 0.1**2), Z[100:]))


def test_planted_clusters_are_found():
    za, zb, label = slow.clusters(300, 3)
    objective = GMJEEM(3, components=3, bank=300)
    objective.update(za, zb)
    result = objective.joint().responsibilities(joined(za, zb)).argmax(1)
    assert len({(a, b) for a, b in zip(result.tolist(), label.tolist(), strict=True)}) == 3
    close(objective.joint().weights, torch.full((3,), 1 / 3), 1e-6)
    assert objective.diagnostics(za, zb)["components"] == pytest.approx(3, abs=1e-6)


def test_a_small_first_batch_gives_few_components():
    for n, expected in ((1, 1), (2, 1), (5, 2), (40, K)):
        objective, (za, zb) = GMJEEM(D, components=K, bank=50), slow.pair(n, D)
        objective.update(za, zb)
        assert int((objective.joint().weights > 0).sum()) == expected
        assert torch.isfinite(objective.joint().log_prob(joined(za, zb))).all()


@pytest.mark.parametrize("covariance", ["full", "low_rank"])
def test_fits_follow_the_bank(covariance):
    """Between two fits the density stands still; from one to the next it follows pairs that have moved."""
    objective = GMJEEM(D, components=2, bank=100, covariance=covariance, rank=1)
    za, zb = slow.pair(50, D)
    objective.update(za, zb)
    first = objective.joint().mean
    objective.update(za + 5, zb + 5)  # 100 pairs: doubled
    second = objective.joint().mean
    objective.update(za + 9, zb + 9)
    close(objective.joint().mean, second, 0)
    objective.update(za + 9, zb + 9)  # 200 pairs
    third = objective.joint().mean
    assert first.mean() + 1 < second.mean() < third.mean() - 1
    close(third, joined(za, zb).mean(0) + 9, 0.05)


RUN = {
    "objective": "gmje_em", "options": {"components": 3, "bank": 96}, "projector": (4,), "epochs": 2, "batch_size": 32,
    "limit": 128, "device": "cpu", "precision": "fp32", "knn_every": 0, "checkpoint_seconds": 0, "calibration_share": 0.0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.float32
def test_a_training_that_dies_ends_with_the_same_bits(tmp_path, monkeypatch):
    state = resumed_with_the_same_bits(GMJEEM, RUN, tmp_path, monkeypatch)
    assert state["model"]["objective.bank._extra_state"].tolist() == [160, 128]
    again = run.load(tmp_path / "dead", device="cpu").method.objective
    assert (again.bank.seen, again.bank.fitted) == (256, 224)


def test_low_rank_far_from_the_origin():
    za, zb = slow.pair(400, 6)
    result = []
    for far in (0.0, 3000.0):
        objective = GMJEEM(6, components=1, covariance="low_rank", rank=2).to(torch.float32)
        a, b = (za + far).float(), (zb + far).float()
        objective.update(a, b)
        result.append(nll(objective, a, b).item())
    assert result[0] == pytest.approx(result[1], abs=0.05)
