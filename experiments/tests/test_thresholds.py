"""The thresholds' formulas against bisection on the solvers, their symmetries, and what is refused."""

import numpy as np
import pytest
from experiments.advice.thresholds import Thresholds, alignment_thresholds
from tests.linear.checks import ROWS, check_flips, random_levels, rng, rotation
from tests.reference import linear as reference

NAMES = tuple(ROWS)


def of(signal, noise, theta):
    """Thresholds where Theta is one list of all components."""
    return alignment_thresholds(signal, noise, theta[: len(signal)], theta[len(signal) :])


def values(found):
    return [found.joint_embedding, found.reconstruction]


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_formulas_are_what_bisection_on_the_solvers_finds(block):
    g = rng(100 + block)
    for i in range(50):
        signal, noise, theta = random_levels(g)
        Q = rotation(g, len(theta)) if i % 5 == 0 else None
        found = of(signal, noise, theta)
        for name, rows in ROWS.items():
            expected = reference.threshold(rows, signal, noise, theta, Q)
            assert getattr(found, name) == pytest.approx(expected, rel=1e-8, abs=1e-8), (i, name)


def test_the_solution_flips_at_the_threshold():
    check_flips(alignment_thresholds)


def test_a_case_by_hand():
    """s = (4, 1), g = (2, 9), Theta = (1, 3 | 1, 18): eta = min(4/sqrt 5, 1/2), delta = min(4/5, 1/4)."""
    found = alignment_thresholds([4.0, 1.0], [2.0, 9.0], [1.0, 3.0], [1.0, 18.0])
    assert found.reconstruction == pytest.approx(max(2 / 0.25 - 0.5, 9 / 0.25 - 2) - 1)
    assert found.joint_embedding == pytest.approx(3 - min(0.5, 2))
    assert found.crossover == pytest.approx(0.25 / 0.25)
    assert found.preferred == "joint_embedding"


def test_crossover_is_the_weakest_signal_where_theta_is_constant_on_it():
    """Property 7; and the crossover is never below."""
    g = rng(1)
    for _ in range(100):
        signal, noise, theta = random_levels(g)
        assert alignment_thresholds(signal, noise, theta[0], theta[-1]).crossover == pytest.approx(signal.min(), rel=1e-12)
        assert of(signal, noise, theta).crossover >= signal.min() * (1 - 1e-12)


def test_crossover_orders_the_thresholds():
    """Corollary 4.5: noise all below the crossover, reconstruction asks less; all above, joint embedding does."""
    g, seen = rng(2), {"low": 0, "high": 0}
    for _ in range(600):
        signal, noise, theta = random_levels(g)
        found = of(signal, noise, theta)
        order = found.joint_embedding > found.reconstruction
        if noise.max() < found.crossover:
            assert order
            seen["low"] += 1
        elif noise.min() > found.crossover:
            assert found.joint_embedding < found.reconstruction
            seen["high"] += 1
    assert min(seen.values()) > 50
    for u, expected in (([0.0, 8.0], [1, 0]), ([0.0, 0.0], [1, 3])):  # in between, crossover 1, either order occurs
        assert values(alignment_thresholds(1.0, [0.5, 2.0], 1.0, u)) == pytest.approx(expected)


def test_preferred_is_the_lower_threshold():
    g, seen = rng(3), set()
    for _ in range(300):
        found = of(*random_levels(g))
        je, rc = values(found)
        if max(je, rc) <= 0:
            assert found.preferred == "either"
        else:
            assert found.preferred == ("joint_embedding" if je < rc else "reconstruction")
        seen.add(found.preferred)
    assert seen == {"either", "joint_embedding", "reconstruction"}
    equal = alignment_thresholds(1.0, 1.0, 3.0, 0.5)  # noise at the crossover: eta^2 = delta
    assert equal.joint_embedding == equal.reconstruction > 0 and equal.preferred == "either"


def test_joint_embedding_does_not_see_the_noise_grow_and_reconstruction_does():
    """Property 8, first half: the noise and what Theta does to it, together."""
    signal, noise, t, u = np.array([2.0, 1.0]), np.array([0.5, 0.7]), np.array([0.3, 0.4]), np.array([0.2, 0.1])
    one, ten = (alignment_thresholds(signal, c * noise, t, c * u) for c in (1, 10))
    assert ten.joint_embedding == pytest.approx(one.joint_embedding, rel=1e-12)
    assert ten.reconstruction > one.reconstruction + 1
    many = [alignment_thresholds(signal, c * noise, t, u) for c in (1e3, 1e6)]
    delta = (signal / (signal + t)).min()
    assert many[1].joint_embedding == pytest.approx((1 - delta) / delta, rel=1e-6), "it saturates"
    assert many[1].reconstruction == pytest.approx(1e3 * many[0].reconstruction, rel=1e-2), "it grows with the noise"


@pytest.mark.parametrize("seed", range(2))
def test_rotations_leave_the_thresholds_and_turn_the_rows(seed):
    """Property 9, on the solutions just above the threshold."""
    g = rng(seed)
    signal, noise, theta = random_levels(g)
    Q, k = rotation(g, len(theta)), len(signal)
    for name, rows in ROWS.items():
        alpha2 = getattr(of(signal, noise, theta), name) + 0.5
        straight, turned = (rows(*reference.population(signal, noise, theta, alpha2, q)) for q in (None, Q))
        assert reference.sine(straight[:k] @ Q.T, turned[:k]) < 1e-6
        assert reference.sine(turned[:k], Q[:, :k].T) < 1e-6


def test_without_theta_on_the_signal():
    """delta = 1: joint embedding needs no alignment; reconstruction has the condition of principal components."""
    found = alignment_thresholds([4.0, 2.0], [1.0, 3.0], 0.0, 0.0)
    assert found.joint_embedding == 0
    assert found.reconstruction == pytest.approx(3 / 2 - 1)
    assert alignment_thresholds([4.0, 2.0], [1.0, 1.9], 0.0, 0.0).reconstruction < 0
    assert found.crossover == pytest.approx(2)


def test_one_number_stands_for_all():
    assert alignment_thresholds([4.0, 1.0], [2.0, 3.0], 0.5, 0.7) == alignment_thresholds(
        (4.0, 1.0), np.array([2.0, 3.0]), [0.5, 0.5], [0.7, 0.7]
    )
    assert alignment_thresholds(4, 2, 1, 1) == alignment_thresholds([4], [2], [1], [1])
    found = alignment_thresholds(4, 2, 1, 1)
    assert isinstance(found, Thresholds) and all(type(v) is float for v in (*values(found), found.crossover))
