"""Simultaneous bounds and certificates hold as often as they say, whatever is looked at first."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from vergence.decide import certify, fpr_threshold, needed_for_fpr, p_values, simultaneous_bounds
from vergence.decide.conformal import count_tail, drift_of_counts, null_counts


def rng():
    return np.random.default_rng(0)


def counts(p, n):
    """Returns how many p-values are k / (n + 1), for k = 0..n + 1."""
    return np.bincount(np.rint(p * (n + 1)).astype(int), minlength=n + 2)


@pytest.mark.slow
def test_the_sampled_law_is_that_of_conformal_p_values():
    """Counts at several ranks, jointly: grid sampling against p-values of exchangeable scores."""
    n, m, ranks, r = 19, 12, np.array([1, 3, 10]), rng()
    sampled = null_counts(n, m, ranks, 20_000, r)
    direct = np.array([np.cumsum(counts(p_values(x[:n], x[n:]), n))[ranks] for x in r.normal(size=(4000, n + m))])
    for a, b in ((0, 0), (0, 1), (1, 2), (2, 2)):
        found, expected = (sampled[:, a] * sampled[:, b]).mean(), direct[:, a] * direct[:, b]
        assert abs(found - expected.mean()) < 4 * expected.std() * (1 / 4000 + 1 / 20_000) ** 0.5
    np.testing.assert_allclose(count_tail(n, m, 3), stats.betabinom(m, 3, n - 2).sf(np.arange(m + 1) - 1), atol=1e-12)
    assert abs((sampled[:, 1] >= 4).mean() - count_tail(n, m, 3)[4]) < 0.01


@pytest.mark.parametrize(("n", "m", "odd"), [(100, 50, 0), (300, 200, 20), pytest.param(2000, 100, 40, marks=pytest.mark.slow)])
def test_all_bounds_hold_together(n, m, odd):
    """The bound of every list 'the k most anomalous', and of the worst list, fails in at most delta of the runs."""
    r, failures, runs = rng(), 0, 1000
    for _ in range(runs):
        calibration, s = r.normal(size=n), r.normal(size=m)
        s[:odd] += 3
        p = p_values(calibration, s)
        bounds = simultaneous_bounds(p, n, confidence=0.8)
        false = np.cumsum(np.argsort(p, kind="stable") >= odd)
        failures += (false > bounds.by_length() * np.arange(1, m + 1) + 1e-9).any()
    assert failures / runs <= 0.2 + 3 * (0.2 * 0.8 / runs) ** 0.5
    assert odd or failures / runs > 0.1  # nearly exact where all are typical, not merely an upper bound


def test_bounds_are_the_least_over_all_thresholds():
    r = rng()
    p = np.round(r.uniform(size=12), 2)
    bounds = simultaneous_bounds(p, 50)
    for size in (1, 3, 12):
        for chosen in itertools.islice(itertools.combinations(range(12), size), 40):
            mask = np.isin(np.arange(12), chosen)
            expected = min(v + sum(p[i] > t for i in chosen) for t, v in zip(bounds.thresholds, bounds.most, strict=True))
            assert bounds.false_discoveries(mask) == min(size, expected)
    k = bounds.by_length() * np.arange(1, 13)
    order = np.argsort(p, kind="stable")
    assert k.round().tolist() == [bounds.false_discoveries(np.isin(np.arange(12), order[: i + 1])) for i in range(12)]


def test_the_longest_list_and_tensors():
    p = torch.cat([torch.full((40,), 1e-4), torch.linspace(0.01, 1, 160)])
    bounds = simultaneous_bounds(p, 9999)
    found = bounds.longest(0.1)
    assert found[:40].all() and bounds.false_discoveries(found) <= 0.1 * found.sum() and bounds.false_discoveries(p < 0) == 0
    assert not simultaneous_bounds(torch.linspace(0.01, 1, 100), 999).longest(0.1).any()


@pytest.mark.parametrize("rank", [1, 5, 50])
def test_certificates_fail_as_rarely_as_they_say(rank):
    """Of uniform scores the rate above a threshold is known: 1 - threshold."""
    r, runs = rng(), 2000
    found = [certify(x, rank=rank, confidence=0.9) for x in r.random((runs, 200))]
    failed = np.mean([1 - c.threshold > c.fpr for c in found])
    assert abs(failed - 0.1) <= 3 * (0.1 * 0.9 / runs) ** 0.5
    fixed = np.mean([0.1 > certify(x, 0.9, confidence=0.9).fpr for x in r.random((runs, 200))])
    assert fixed <= 0.1 + 3 * (0.1 * 0.9 / runs) ** 0.5
    tied = np.mean([(np.arange(10) / 10 > certify(x, rank=rank, confidence=0.9).threshold).mean() > certify(
        x, rank=rank, confidence=0.9).fpr for x in np.floor(r.random((400, 200)) * 10) / 10])  # fmt: skip
    assert tied <= 0.1 + 3 * (0.1 * 0.9 / 400) ** 0.5


def test_certificates_are_the_exact_interval_of_the_binomial_law():
    x = rng().normal(size=80)
    for k in (1, 2, 7, 80):
        interval = stats.binomtest(k - 1, 80, alternative="less").proportion_ci(0.9, method="exact")
        assert certify(x, rank=k, confidence=0.9).fpr == pytest.approx(interval.high, rel=1e-9)
        assert certify(x, np.sort(x)[-k], confidence=0.9).fpr == pytest.approx(interval.high, rel=1e-9)
    assert certify(x, rank=1, confidence=0.9).fpr == pytest.approx(1 - 0.1 ** (1 / 80))
    assert certify(x, -99.0).fpr == 1


def test_thresholds_for_a_rate():
    r, runs = rng(), 500
    found = [fpr_threshold(x, 0.02, confidence=0.9) for x in r.random((runs, 500))]
    assert np.mean([1 - c.threshold > 0.02 for c in found]) <= 0.1 + 3 * (0.09 / runs) ** 0.5
    assert all(c.fpr <= 0.02 for c in found) and certify(r.random(500), rank=found[0].exceeding + 2, confidence=0.9).fpr > 0.02
    n = needed_for_fpr(0.001, 0.95)
    assert n == 2995 and fpr_threshold(np.arange(n), 0.001).exceeding == 0


def test_equal_scores_and_a_batch_that_is_too_typical_are_no_drift_towards_strange_items():
    """Scores with a floor, which half of the items have, as those of embeddings of few items: their p-values are too large."""
    r = rng()
    floored = [np.maximum(r.normal(size=105), 0) for _ in range(100)]
    assert np.mean([drift_of_counts(counts(p_values(x[:48], x[48:]), 48)).p_value < 0.01 for x in floored]) <= 0.01
    typical = p_values(r.normal(size=500), 0.2 * r.normal(size=500) - 1)
    assert drift_of_counts(counts(typical, 500)).p_value > 0.01
