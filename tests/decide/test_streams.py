"""Conformal test martingales: their false alarms over all time, what they notice and call it, their memory and their files."""

import json

import numpy as np
import pytest
from tests.refusals import refuses

from vergence.decide import Monitor
from vergence.decide.streams import KINDS, POWERS, _unspent, _Urn


def test_p_values_of_a_stream_are_uniform_and_independent():
    """All ranks of 3 calibration scores and 3 others, in cells of several spacings, too: each order is equally likely."""
    rng, seen = np.random.default_rng(0), []
    for _ in range(4000):
        x = rng.integers(0, 4, 6)
        urn = _Urn(x[:3], rng)
        seen.append([urn.above(s, rng.random(), rng.random()) for s in x[3:]])
    p = np.array(seen)
    assert np.abs(np.sort(p, 0) - np.linspace(0, 1, 4000)[:, None]).max() < 1.63 / 4000**0.5  # Kolmogorov, 1 %
    assert np.abs(np.corrcoef(p.T) - np.eye(3)).max() < 3.5 / 4000**0.5


def test_the_wealth_is_the_mean_over_starts_and_powers():
    rng = np.random.default_rng(1)
    monitor, x = Monitor(rng.normal(size=40)), rng.normal(size=30)
    urn, ps = _Urn(monitor.calibration, np.random.default_rng(9)), []
    for i, s in enumerate(x):  # without ties their random numbers do not matter
        ps.append(urn.above(s, 0.5, np.random.default_rng((0, i)).random(4)[1]))
    monitor.update(x)
    weights = [0.5] + [_unspent(t) - _unspent(t + 1) for t in range(len(x))]  # of the starts before item 0, 1, ...
    wealth = _unspent(len(x))
    for start, weight in enumerate(weights):
        wealth += weight * np.mean([np.prod(e * np.array(ps[start:]) ** (e - 1)) for e in POWERS])
    assert np.logaddexp(np.logaddexp.reduce(monitor.bets[0]), np.log(_unspent(30))) == pytest.approx(np.log(wealth))
    assert sum(weights) + _unspent(len(x)) == pytest.approx(1)


@pytest.mark.parametrize("law", ["normal", "three values", "one value"])
def test_false_alarms_are_bounded_for_all_time(law):
    rng, alarms = np.random.default_rng(0), 0
    draw = {"normal": rng.standard_normal, "three values": lambda n: rng.integers(0, 3, n), "one value": np.zeros}[law]
    for i in range(200):
        alarms += Monitor(draw(50), alarm=0.2, seed=i).update(draw(100))
    assert alarms / 200 <= 0.2


CHANGES = {
    "higher scores": lambda rng: rng.normal(1.5, 1, 100), "lower scores": lambda rng: rng.normal(-1.5, 1, 100),
    "less spread": lambda rng: rng.normal(0, 0.1, 100), "more spread": lambda rng: rng.normal(0, 4, 100),
    "repeated scores": lambda rng: np.full(100, rng.normal()),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_is_noticed_and_named(kind):
    rng = np.random.default_rng(3)
    monitor = Monitor(rng.normal(size=300))
    assert not monitor.update(rng.normal(size=200)) and not monitor.alarmed
    assert monitor.update(CHANGES[kind](rng)) and monitor.drift == kind
    assert monitor.update([0.0])  # an alarm stays
    monitor.reset()
    assert not monitor.update(rng.normal(size=100)) and monitor.items == 100


def test_a_stuck_sensor_is_noticed_in_few_items_and_infinite_scores_count():
    rng = np.random.default_rng(4)
    assert Monitor(rng.normal(size=500)).update([0.3] * 12)
    assert Monitor(rng.normal(size=500)).update([np.inf] * 12)
    assert Monitor(rng.normal(size=500)).update([-np.inf, np.inf] * 12)


def test_parts_of_a_stream_add_up_and_a_file_goes_on(tmp_path):
    rng = np.random.default_rng(2)
    calibration, x = rng.normal(size=300), np.r_[rng.normal(size=101), rng.normal(1, 1, 40)]
    whole, part = Monitor(calibration, seed=3), Monitor(calibration, seed=3)
    whole.update(x)
    for piece in np.split(x, [1, 50, 101]):
        part.update(piece)
        part.save(tmp_path / "state.json")
        part = Monitor.load(tmp_path / "state.json")
    assert part.log_wealth == whole.log_wealth and (part.bets == whole.bets).all() and part.drift == whole.drift
    part.update(np.tile(x, 20))
    size = (tmp_path / "state.json").stat().st_size
    part.save(tmp_path / "state.json")
    assert (tmp_path / "state.json").stat().st_size < size + 2000  # the memory does not grow with the stream
    assert len(Monitor(rng.normal(size=20_000))._scores.counts) == 1001


@pytest.mark.parametrize(
    "change",
    [
        {"bets": [[0.0]]}, {"scores": [-1] * 21}, {"pairs": [0.5] * 11}, {"items": -1}, {"alarm": 2}, {"calibration": [1.0]},
        {"highest": "a"}, {"highest": float("nan")}, {"drift": 5}, {"last": None}, {"bets": [["a"]]}, {"seed": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_state_is_refused(change, tmp_path):
    Monitor(np.arange(20.0)).save(tmp_path / "s.json")
    content = json.loads((tmp_path / "s.json").read_text())
    (tmp_path / "s.json").write_text(json.dumps({**content, **change}))
    refuses("state of a monitor", Monitor.load, tmp_path / "s.json")
    (tmp_path / "s.json").write_text("[1]")
    refuses("state of a monitor", Monitor.load, tmp_path / "s.json")


def test_wrong_use_is_refused():
    refuses("at least 10", Monitor, [1.0])
    refuses("finite", Monitor, [np.inf, *range(20)])
    refuses("alarm", Monitor, np.arange(20.0), alarm=0)
    refuses("scores", Monitor(np.arange(20.0)).update, [np.nan])
