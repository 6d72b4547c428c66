"""Weighted selection keeps its rate under a shift of the inputs; the tests of drift, order and training gap have their level."""

import numpy as np
import pytest
import torch
from tests.reference import conformal as slow

from vergence.detection import (
    drift,
    p_values,
    select,
    serial,
    shift_weights,
    training_gap,
    weighted_p_values,
    weighted_select,
)
from vergence.detection.shift import drift_of_counts


def rng():
    return np.random.default_rng(0)


def test_weighted_p_values_equal_loops_and_plain_ones():
    r = rng()
    c, s, w, v = r.integers(0, 9, 40) * 1.0, r.integers(0, 12, 20) * 1.0, r.uniform(0.5, 2, 40), r.uniform(0.5, 2, 20)
    expected = [slow.weighted_p_value(c, w, x, y) for x, y in zip(s, v, strict=True)]
    np.testing.assert_allclose(weighted_p_values(c, s, w, v), expected, rtol=1e-12)
    np.testing.assert_allclose(weighted_p_values(c, s, 3 * w, 3 * v), expected, rtol=1e-12)
    x, y = r.normal(size=50), r.normal(size=20)
    np.testing.assert_allclose(weighted_p_values(x, y, np.ones(50), np.ones(20)), p_values(x, y), rtol=1e-12)
    tensor = weighted_p_values(*(torch.from_numpy(value) for value in (c, s, w, v)), ties="random", random_state=0)
    assert isinstance(tensor, torch.Tensor) and (tensor.numpy() <= np.array(expected) + 1e-12).all()


def test_weighted_selection_equals_loops():
    r = rng()
    for _ in range(30):
        c, s = r.normal(size=60), r.normal(size=25)
        s[: r.integers(0, 15)] += 3
        w, v = r.uniform(0.2, 3, 60), r.uniform(0.2, 3, 25)
        found = weighted_select(c, s, w, v, fdr=0.3)
        assert found.tolist() == slow.weighted_selection(c.tolist(), w.tolist(), s.tolist(), v.tolist(), 0.3)


def shifted(r, n, m, odd):
    """Inputs x with another mean on the new side; the score of a typical item grows with x, so the shift alone looks odd."""
    x, y = r.normal(size=n), r.normal(size=m) + 1
    c, s = x + 0.5 * r.normal(size=n), y + 0.5 * r.normal(size=m)
    s[:odd] += 3
    return c, s, np.exp(x - 0.5), np.exp(y - 0.5)  # the ratio of N(1, 1) to N(0, 1)


def test_weighted_selection_keeps_the_rate_where_plain_selection_does_not():
    r, plain, weighted, power = rng(), [], [], []
    for _ in range(300):
        c, s, w, v = shifted(r, 1500, 100, 20)
        found, chosen = select(p_values(c, s), 0.1), weighted_select(c, s, w, v, 0.1, pruning="heterogeneous", random_state=r)
        plain.append(found[20:].sum() / max(1, found.sum()))
        weighted.append(chosen[20:].sum() / max(1, chosen.sum()))
        power.append(chosen[:20].mean())
    assert np.mean(plain) > 0.2
    assert np.mean(weighted) <= 0.1 + 3 * np.std(weighted) / 300**0.5 and np.mean(power) > 0.05


@pytest.mark.filterwarnings("ignore:the weights leave")
def test_weighted_p_values_are_valid_under_shift():
    r = rng()
    p = np.concatenate([weighted_p_values(*shifted(r, 500, 5, 0)) for _ in range(400)])
    assert all((p <= a).mean() <= a + 3 * (a / 400) ** 0.5 for a in (0.05, 0.1, 0.5))


def test_estimated_weights_are_close_to_the_ratio():
    r = rng()
    x, y = r.normal(size=(4000, 2)), r.normal(size=(2000, 2)) + np.array([1.0, 0.0])
    w, v = shift_weights(x, torch.from_numpy(y))
    ratio = np.exp(np.concatenate([x, y])[:, 0] - 0.5)
    found = np.concatenate([w, v])
    inner = ratio < 20
    assert np.corrcoef(np.log(found[inner]), np.log(ratio[inner]))[0, 1] > 0.98
    assert abs(np.log(found[inner] / ratio[inner])).mean() < 0.15


def test_few_effective_items_are_reported():
    r = rng()
    with pytest.warns(UserWarning, match=r"the weights leave \d+ effective of 300 calibration items"):
        weighted_p_values(r.normal(size=300), [1.0], np.exp(3 * r.normal(size=300)), [1.0])


@pytest.mark.parametrize("statistic", ["fisher", "ks", "ks_greater"])
@pytest.mark.parametrize(("n", "m"), [(50, 200), (500, 100)])
def test_drift_has_its_level_and_notices_a_shift(statistic, n, m):
    r = rng()
    none = np.array([drift(p_values(x[:n], x[n:]), n, statistic=statistic).p_value for x in r.normal(size=(250, n + m))])
    assert abs((none <= 0.1).mean() - 0.1) <= 3 * (0.09 / 250) ** 0.5
    some = [drift(p_values(r.normal(size=n), r.normal(size=m) + 0.7), n, statistic=statistic).p_value for _ in range(20)]
    assert np.median(some) < 0.01


def test_equal_scores_and_a_batch_that_is_too_typical_are_no_drift_towards_strange_items():
    """Scores with a floor, which half of the items have, as those of embeddings of few items: their p-values are too large."""
    r = np.random.default_rng(0)
    floored = [np.maximum(r.normal(size=105), 0) for _ in range(100)]
    found = {
        how: [drift(p_values(x[:48], x[48:]), 48, statistic=how).p_value < 0.01 for x in floored] for how in ("ks", "ks_greater")
    }
    assert np.mean(found["ks"]) > 0.9 and np.mean(found["ks_greater"]) <= 0.01
    typical = p_values(r.normal(size=500), 0.2 * r.normal(size=500) - 1)
    assert drift(typical, 500, statistic="ks").p_value < 0.01 < drift(typical, 500, statistic="ks_greater").p_value


def test_the_usual_table_would_report_drift_far_too_often():
    from scipy.stats import kstest

    r = rng()
    usual = [kstest(p_values(x[:50], x[50:], ties="random", random_state=r), "uniform").pvalue for x in r.normal(size=(300, 250))]
    assert np.mean(np.array(usual) <= 0.1) > 0.3


def test_a_batch_that_is_too_alike_is_noticed():
    p = p_values(rng().normal(size=500), np.full(100, 0.1) + 1e-6 * np.arange(100))
    assert drift(p, 500, statistic="ks").p_value < 0.01 < drift(p, 500).p_value


def test_order_of_time_is_noticed():
    r = rng()
    level = np.mean([serial(r.exponential(size=100)).p_value <= 0.1 for _ in range(1000)])
    assert 0.04 < level <= 0.1 + 3 * 0.01
    walk = np.cumsum(r.normal(size=100))
    assert serial(walk).p_value < 1e-6 and "depend on the order of the 100 items" in str(serial(walk))
    with pytest.raises(ValueError, match="expected scores that differ"):
        serial(np.ones(10))


def test_a_gap_between_training_and_held_out_items_is_noticed():
    r = rng()
    train, held_out = r.normal(size=(80, 30)), r.normal(size=(80, 30))
    precision = np.linalg.inv(np.cov(train.T))
    own, other = (np.einsum("ij,jk,ik->i", x, precision, x) for x in (train, held_out))
    found = training_gap(own, other)
    assert found.p_value < 1e-6 and found.statistic > 0.8 and "calibrate on held-out items only" in str(found)
    assert np.mean([training_gap(*r.normal(size=(2, 50))).p_value <= 0.05 for _ in range(400)]) <= 0.05 + 3 * 0.011


def test_errors():
    with pytest.raises(ValueError, match="weights of scores: expected finite numbers above 0, found 0 to 0"):
        weighted_p_values([1.0], [1.0], [1.0], [0.0])
    with pytest.raises(ValueError, match="expected one of weights for each of the 2 calibration items, found 1"):
        weighted_p_values([1.0, 2.0], [1.0], [1.0], [1.0])
    with pytest.raises(ValueError, match=r"expected features \(n, D\) and \(m, D\)"):
        shift_weights(np.ones((9, 2)), np.ones((9, 3)))


def test_equal_to_nonconform(nonconform):
    r = rng()
    c, s, w, v = r.normal(size=200), r.normal(size=60), r.uniform(0.3, 2, 200), r.uniform(0.3, 2, 60)
    s[:12] += 3
    arrays = {"c": c, "s": s, "w": w, "v": v}
    code = "from nonconform.scoring import calculate_weighted_p_val; result = calculate_weighted_p_val(s, c, v, w)"
    p = nonconform(code, **arrays)
    np.testing.assert_allclose(weighted_p_values(c, s, w, v), p, rtol=0, atol=1e-12)
    code = "from nonconform.fdr import weighted_false_discovery_control_from_arrays as f\n"
    code += "result = f(p_values=p, test_scores=s, calib_scores=c, test_weights=v, calib_weights=w, alpha=0.2)"
    found = weighted_select(c, s, w, v, 0.2)
    assert found.any() and (found == nonconform(code, p=p, **arrays)).all()


@pytest.mark.parametrize("statistic", ["fisher", "ks", "ks_greater"])
def test_counts_of_p_values_give_the_same_as_the_p_values(statistic):
    rank = np.random.default_rng(0).integers(1, 202, 500)
    found = drift_of_counts(np.bincount(rank, minlength=202), statistic=statistic)
    assert found == drift(rank / 201, 200, statistic=statistic)
