"""The choice among conditional models is by rows that no fit has seen; repeated rows, subjects and times do not mislead it."""

import numpy as np
import pytest
from scipy import stats

from vergence.mixtures.selection import ALONE, LINES, _crps, choose, folds


def line(n=200, seed=0, noise=0.5):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 2))
    return x, x @ [1.0, -2.0] + noise * r.normal(size=n)


def test_a_line_is_enough_for_a_line():
    found = choose(*line())
    assert found.name in LINES and "A line is enough" in found.sentence
    at = {name: i for i, name in enumerate(found.table()["model"])}
    truth = -0.5 * np.log(2 * np.pi * 0.25) - 0.5
    assert found.table()["log_density"][at["gaussian"]] == pytest.approx(truth, abs=0.15)
    assert found.table()["coverage"][at["gaussian"]] == pytest.approx(0.9, abs=0.06)
    assert found.table()["rmse"][at["gaussian"]] == pytest.approx(0.5, abs=0.06)
    assert found.model.predict([[1.0, 0.0]])[0] == pytest.approx(1.0, abs=0.15)


def test_two_answers_need_more_than_a_line():
    r = np.random.default_rng(1)
    x = r.uniform(-1, 1, (600, 1))
    t = np.sign(r.normal(size=600)) * (1 + x[:, 0]) + 0.1 * r.normal(size=600)
    found = choose(x, t)
    assert found.name not in (*LINES, ALONE) and "nats a row better than a line" in found.sentence
    assert np.abs(found.model.sample([[0.5]], 200, random_state=0)).mean() == pytest.approx(1.5, abs=0.2)


def test_a_context_that_says_nothing():
    r = np.random.default_rng(2)
    x, t = r.normal(size=(150, 3)), 2 + r.normal(size=150)
    found = choose(x, t)
    assert found.name == ALONE and "says nothing" in found.sentence
    right = stats.norm(t.mean(), t.std()).logpdf(t)
    np.testing.assert_allclose(found.model.score_samples(x, t), right, atol=1e-6)
    np.testing.assert_allclose(found.model.predict(100 * x), np.full(150, t.mean()), atol=1e-6)


def test_rows_five_times_change_nothing():
    x, t = line(120)
    once, often = choose(x, t), choose(np.repeat(x, 5, 0), np.repeat(t, 5))
    assert once.name == often.name
    np.testing.assert_allclose(once.model.score_samples(x, t), often.model.score_samples(x, t), atol=0.05)


def test_few_rows_and_many_columns_have_a_ridge():
    r = np.random.default_rng(3)
    x = r.normal(size=(60, 80))
    t = x[:, 0] + 0.3 * r.normal(size=60)
    found = choose(x, t)
    at = found.table()["model"].index(found.name)
    assert found.table()["log_density"][at] > -3


def test_subjects_are_new_in_the_test_part_and_a_memory_of_them_does_not_help():
    r = np.random.default_rng(4)
    subject = np.repeat(np.arange(40), 8)
    x = (subject[:, None] + 0.01 * r.normal(size=(320, 1))) * 1.0
    t = r.normal(size=40)[subject] + 0.1 * r.normal(size=320)  # a level of each subject, which x names
    for train, test in folds(x, t, groups=subject):
        assert not {*subject[train]} & {*subject[test]}
    assert choose(x, t, groups=subject).name in (ALONE, *LINES)
    assert choose(x, t).name not in (ALONE, *LINES)


def test_the_future_comes_after_the_past():
    when = np.random.default_rng(5).permutation(90)
    for train, test in folds(np.zeros((90, 1)), when * 1.0, order=when):
        assert when[train].max() < when[test].min()


def test_nearly_equal_rows_are_on_one_side():
    x, t = line(60)
    both, twice = np.repeat(x, 2, 0) + 1e-6 * np.random.default_rng(0).normal(size=(120, 2)), np.repeat(t, 2)
    sides = [np.isin(np.arange(120), test).reshape(60, 2) for _, test in folds(both, twice)]
    assert np.mean([(side[:, 0] == side[:, 1]).mean() for side in sides]) > 0.95  # rounding splits a few


def test_the_crps_is_that_of_a_gaussian():
    samples = np.random.default_rng(0).normal(size=(1, 20_000, 1))
    z = 0.7
    right = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
    assert _crps(samples, np.array([[z]]))[0] == pytest.approx(right, abs=0.01)


def test_time_runs_out_and_errors_are_one_line():
    found = choose(*line(), seconds=0.0)
    assert found.name in (ALONE, *LINES)
    with pytest.raises(ValueError, match="at least 30 rows"):
        choose(*line(20))
    with pytest.raises(ValueError, match="groups or order"):
        folds(np.zeros((9, 1)), np.zeros(9), groups=np.arange(9), order=np.arange(9))
    with pytest.raises(ValueError, match="different rows or groups"):
        folds(np.zeros((9, 1)), np.arange(9.0), groups=np.zeros(9))
