"""The wealth of a conformal test martingale: its formula, its false alarms over all time, and what it notices."""

import numpy as np
import pytest
from scipy.integrate import quad

from vergence.decide import Monitor
from vergence.decide.streams import log_wealth


@pytest.mark.parametrize(("m", "a"), [(0, 0.0), (1, 1.0), (5, 2.0), (50, 60.0), (200, 150.0), (2000, 1500.0)])
def test_the_wealth_is_the_integral(m, a):
    scale = m * np.log(m / a) + a - m if 0 < m < a else 0.0

    def wealth(e):
        return np.exp(m * np.log(e) + (1 - e) * a - scale) if e > 0 else float(m == 0)

    value = quad(wealth, 0, 1, points=[min(1, m / a)] if a else None, limit=200)[0]
    assert log_wealth(m, a) == pytest.approx(np.log(value) + scale, rel=1e-6, abs=1e-9)


def test_false_alarms_are_bounded_for_all_time():
    rng, alarms = np.random.default_rng(0), 0
    for i in range(1000):
        alarms += Monitor(rng.normal(size=50), alarm=0.1, seed=i).update(rng.normal(size=200))
    assert alarms / 1000 <= 0.1 + 3 * (0.09 / 1000) ** 0.5


def test_ties_are_broken_so_that_no_alarm_follows_from_them():
    rng, alarms = np.random.default_rng(1), 0
    for i in range(300):
        alarms += Monitor(rng.integers(0, 3, 50), alarm=0.1, seed=i).update(rng.integers(0, 3, 200))
    assert alarms / 300 <= 0.1 + 3 * (0.09 / 300) ** 0.5


def test_a_change_is_noticed_and_parts_of_a_stream_add_up():
    rng = np.random.default_rng(2)
    calibration, before, after = rng.normal(size=300), rng.normal(size=200), rng.normal(2, 1, 100)
    whole, parts = Monitor(calibration), Monitor(calibration)
    assert not parts.update(before[:100])
    assert not parts.update(before[100:])
    assert parts.update(after)
    assert whole.update(np.r_[before, after])
    assert whole.log_wealth == parts.log_wealth
    assert parts.update([0.0])  # an alarm stays


def test_wrong_use_is_refused():
    with pytest.raises(ValueError, match="at least 10"):
        Monitor([1.0])
    with pytest.raises(ValueError, match="alarm"):
        Monitor(np.arange(20.0), alarm=0)
    with pytest.raises(ValueError, match="scores"):
        Monitor(np.arange(20.0)).update([np.nan])
