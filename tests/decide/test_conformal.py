"""Conformal p-values and selection: equal to loops, exact under the null, the rate kept, each trap reported."""

import warnings

import numpy as np
import pytest
import torch
from tests.reference import conformal as slow

from vergence.decide import needed_calibration, p_values, q_values, reportable, select

LEVELS = (0.01, 0.05, 0.1, 0.5)
RUNS = 1000


def rng():
    return np.random.default_rng(0)


@pytest.mark.filterwarnings("ignore:.*share the largest value")
def test_equal_to_loops():
    r = rng()
    calibration, s = r.integers(0, 12, 40).astype(float), r.integers(0, 14, 25).astype(float)  # with many ties
    np.testing.assert_allclose(p_values(calibration, s), [slow.p_value(calibration, x) for x in s], rtol=1e-15)


def test_selection_equal_to_loops():
    r = rng()
    for _ in range(200):
        p = np.concatenate([r.uniform(0, 0.05, r.integers(1, 8)), r.integers(1, 11, 15) / 10, [1.0]])
        assert select(p, 0.2).tolist() == slow.benjamini_hochberg(p.tolist(), 0.2)


def test_tensors_come_back_as_tensors():
    r = rng()
    calibration, s = r.normal(size=50), r.normal(size=20)
    p = p_values(torch.from_numpy(calibration), torch.from_numpy(s))
    assert isinstance(p, torch.Tensor) and p.dtype == torch.float64
    np.testing.assert_array_equal(p.numpy(), p_values(calibration, s))
    assert isinstance(select(p), torch.Tensor) and select(p).dtype == torch.bool and isinstance(q_values(p), torch.Tensor)
    assert isinstance(p_values(calibration, list(s)), np.ndarray)


def test_monotone_and_invariant():
    """Order of the items and units of the score do not matter; a stranger item has no larger p."""
    r = rng()
    calibration, s = r.normal(size=99), np.sort(r.normal(size=30))
    p = p_values(calibration, s)
    assert (np.diff(p) <= 0).all() and p.min() >= 0.01
    np.testing.assert_array_equal(p, p_values(np.exp(3 * r.permutation(calibration)), np.exp(3 * s)))
    assert p_values(calibration, [np.inf, -np.inf]).tolist() == [0.01, 1.0]


def frequencies(p):
    return [(a, (p <= a).mean(), 3 * (a * (1 - a) / RUNS) ** 0.5) for a in LEVELS]


def test_uniform_under_the_null():
    r = rng()
    data = r.normal(size=(RUNS, 200))  # 199 calibration items and one more
    exact = np.concatenate([p_values(x[1:], x[:1]) for x in data])
    assert all(abs(found - a) <= error for a, found, error in frequencies(exact))
    rough = np.round(2 * data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        conservative = np.concatenate([p_values(x[1:], x[:1]) for x in rough])
    assert all(found <= a + error for a, found, error in frequencies(conservative))
    assert (conservative <= 0.5).mean() < 0.45  # conservative by the ties


def simulate(n, m, odd, shift, fdr, common=0.0, runs=RUNS, contamination=0.0):
    """Returns the false-discovery proportion and the power of every run; ``common`` correlates the scores of a run's items."""
    r = rng()
    proportions, powers = [], []
    for _ in range(runs):
        noise = r.normal() * common
        calibration, s = r.normal(size=n) + noise, r.normal(size=m) + noise
        s[:odd] += shift
        calibration[: round(n * contamination)] += shift
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = select(p_values(calibration, s), fdr)
        proportions.append(found[odd:].sum() / max(1, found.sum()))
        powers.append(found[:odd].mean())
    return np.array(proportions), np.array(powers)


def at_most(values, level):
    return values.mean() <= level + 3 * values.std() / len(values) ** 0.5


@pytest.mark.parametrize("odd", [5, 40])
def test_false_discoveries_stay_at_the_rate(odd):
    proportions, powers = simulate(500, 100, odd, 3.5, 0.1)
    assert at_most(proportions, 0.1) and proportions.mean() > 0.02
    assert powers.mean() > 0.3


def test_positively_dependent_scores_keep_the_rate():
    assert at_most(simulate(500, 100, 10, 3.5, 0.1, common=1.0)[0], 0.1)


@pytest.mark.parametrize("contamination", [0.01, 0.05, 0.1])
def test_contaminated_calibration_is_conservative(contamination):
    proportions, powers = simulate(500, 100, 10, 3.5, 0.1, contamination=contamination, runs=400)
    assert at_most(proportions, 0.1)
    assert powers.mean() < simulate(500, 100, 10, 3.5, 0.1, runs=400)[1].mean()


def test_power_is_what_the_formula_says():
    """R outliers beyond all typical items are reported from exactly the stated number of calibration items on."""
    for m, odd, fdr in ((1000, 20, 0.1), (10_000, 10, 0.1), (777, 5, 0.05)):
        n = needed_calibration(m, odd, fdr)
        s = np.concatenate([np.full(odd, 9.0), np.linspace(-1, 1, m - odd)])
        assert select(p_values(np.linspace(-1, 1.5, n), s), fdr)[:odd].all()
        assert not select(p_values(np.linspace(-1, 1.5, n - 1), s), fdr).any()
        assert reportable(n, m, fdr).fewest == odd < reportable(n - 1, m, fdr).fewest
    powers = [simulate(n, 200, 5, 4.0, 0.1, runs=200)[1].mean() for n in (300, 600, 2000)]
    assert needed_calibration(200, 5) == 399 and powers[0] < 0.2 < 0.3 < powers[1] < powers[2]


def test_the_numbers_in_a_sentence():
    few = "calibration items are too few to flag"
    assert str(reportable(8, 1000)) == f"8 {few} one of 1,000 items at a rate of 10 %. To flag one, 9,999 are needed."
    assert f"500 {few} fewer than 20 of 1,000 items" in str(reportable(500, 1000))
    assert str(reportable(9999, 1000)) == "9,999 calibration items are enough to flag one of 1,000 items at a rate of 10 %."


def test_trap_ties_are_reported():
    calibration = np.concatenate([np.linspace(0, 1, 90), np.ones(10)])
    with pytest.warns(UserWarning, match=r"11 of 100 calibration scores share the largest value.*below 0\.12"):
        p_values(calibration, [0.5, 1.0])


def test_trap_items_on_both_sides_are_reported():
    r = rng()
    x = r.normal(size=300)
    with pytest.warns(UserWarning, match="40 of 100"):
        p_values(x[:200], np.concatenate([x[:40], x[240:]]))


def test_trap_selection_among_survivors_is_reported():
    with pytest.warns(UserWarning, match="selected from a longer list"):
        select(np.linspace(0.001, 0.04, 20))


def test_trap_the_least_of_several_is_refused():
    with pytest.raises(ValueError, match=r"found \(10, 5\); combine"):
        select(np.full((10, 5), 0.5))
