"""The choice among conditional models is by rows that no fit has seen; repeated rows, subjects and times do not mislead it."""

import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import BayesianRidge
from tests.refusals import refuses

from vergence import mixtures
from vergence.mixtures import selection
from vergence.mixtures.core import FarValue
from vergence.mixtures.selection import LINE, NO_CONTEXT, _crps, choose, folds, importance, remarks
from vergence.utils.limits import check_time


def line(n=200, seed=0, noise=0.5):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 2))
    return x, x @ [1.0, -2.0] + noise * r.normal(size=n)


def test_a_line_is_enough_for_a_line():
    found = choose(*line())
    assert found.name == LINE and found.sentence.startswith("Chosen: line (")
    assert "nats per row better than ignoring the context" in found.sentence
    at = {name: i for i, name in enumerate(found.table()["model"])}
    truth = -0.5 * np.log(2 * np.pi * 0.25) - 0.5
    assert found.table()["log_density"][at[LINE]] == pytest.approx(truth, abs=0.15)
    assert found.table()["coverage"][at[LINE]] == pytest.approx(0.9, abs=0.06)
    assert found.table()["rmse"][at[LINE]] == pytest.approx(0.5, abs=0.06)
    assert found.model.predict([[1.0, 0.0]])[0] == pytest.approx(1.0, abs=0.15)


@pytest.mark.slow
def test_two_answers_need_more_than_a_line():
    r = np.random.default_rng(1)
    x = r.uniform(-1, 1, (600, 1))
    t = np.sign(r.normal(size=600)) * (1 + x[:, 0]) + 0.1 * r.normal(size=600)
    found = choose(x, t)
    assert found.name not in (LINE, NO_CONTEXT) and "nats per row better than a line" in found.sentence
    assert np.abs(found.model.sample([[0.5]], 200, random_state=0)).mean() == pytest.approx(1.5, abs=0.2)


def test_a_context_that_says_nothing():
    r = np.random.default_rng(2)
    x, t = r.normal(size=(150, 3)), 2 + r.normal(size=150)
    found = choose(x, t)
    assert found.name == NO_CONTEXT and "No other model that was compared predicts clearly better" in found.sentence
    right = stats.norm(t.mean(), t.std()).logpdf(t)
    np.testing.assert_allclose(found.model.score_samples(x, t), right, atol=1e-6)
    np.testing.assert_allclose(found.model.predict(100 * x), np.full(150, t.mean()), atol=1e-6)


@pytest.mark.parametrize(("n", "p"), [(30, 300), (60, 80), (113, 300)])
def test_few_rows_and_many_columns_are_as_good_as_bayesian_ridge(n, p):
    r = np.random.default_rng(3)
    x = r.normal(size=(n + 200, 8)) @ r.normal(size=(8, p)) + 0.3 * r.normal(size=(n + 200, p))
    t = x[:, :5].sum(1) + 0.5 * r.normal(size=n + 200)
    mean, std = BayesianRidge().fit(x[:n], t[:n]).predict(x[n:], return_std=True)
    peer = stats.norm(mean, std).logpdf(t[n:]).mean()
    assert mixtures.get("gaussian")().fit(x[:n], t[:n]).score(x[n:], t[n:]) > peer - 0.15
    assert choose(x[:n], t[:n]).model.score(x[n:], t[n:]) > peer - 0.15
    mixture = mixtures.get("mixture")(random_state=0, n_init=2).fit(x[:n, :40], t[:n])
    assert mixture.score(x[n:, :40], t[n:]) > -50


@pytest.mark.parametrize("name", mixtures.MODELS)
def test_each_row_five_times_changes_no_model(name):
    x, t = line(90)
    settings = {"random_state": 0, **({"steps": 200} if name == "mdn" else {})}
    once = mixtures.get(name)(**settings).fit(x, t)
    often = mixtures.get(name)(**settings).fit(np.repeat(x, 5, 0), np.repeat(t, 5))
    np.testing.assert_allclose(once.score_samples(x, t), often.score_samples(x, t), atol=0.05)


def test_intervals_of_a_chosen_model_cover_what_they_say():
    """Averaged over draws: heavy tails, which no candidate has, and few rows."""
    inside, raw = [], []
    for seed in range(12):
        r = np.random.default_rng(seed)
        x = r.normal(size=(1100, 2))
        t = x[:, 0] + r.standard_t(2, size=1100)
        found = choose(x[:100], t[:100], seconds=0.0).model
        for adjusted, kept in ((True, inside), (False, raw)):
            low, high = found.intervals(x[100:], 0.9, adjusted=adjusted).T
            kept.append(np.mean((low <= t[100:]) & (t[100:] <= high)))
        below = found.quantile(x[100:], 0.2)
        assert np.array_equal(found.intervals(x[100:], 0.6)[:, 0], below)
    assert np.mean(inside) == pytest.approx(0.9, abs=0.02)
    assert abs(np.mean(inside) - 0.9) < abs(np.mean(raw) - 0.9)


def test_all_targets_are_inside_together():
    shares = []
    for seed in range(8):
        r = np.random.default_rng(seed)
        x = r.normal(size=(1200, 1))
        t = x + r.normal(size=(1200, 3))
        model = choose(x[:200], t[:200], seconds=0.0).model
        low, high = np.moveaxis(model.intervals(x[200:], 0.9, simultaneous=True), -1, 0)
        shares.append(((low <= t[200:]) & (t[200:] <= high)).all(1).mean())
    assert np.mean(shares) == pytest.approx(0.9, abs=0.025)
    plain = mixtures.get("gaussian")().fit(x, t).intervals(x, 0.9, simultaneous=True)
    assert ((plain[..., 0] <= t) & (t <= plain[..., 1])).all(1).mean() == pytest.approx(0.9, abs=0.03)


def test_the_numbers_of_held_out_rows_survive_the_file(tmp_path):
    x, t = line(60)
    model = choose(x, t, seconds=0.0).model
    model.save(tmp_path / "m.safetensors")
    again = mixtures.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(model.intervals(x), again.intervals(x))
    assert model.held_out_surprise_.shape == (60,) and model.held_out_pit_.shape == (60, 1)
    model.fit(x, t)
    assert not hasattr(model, "held_out_pit_")


def test_correlated_errors_of_neighboring_rows_are_named():
    r = np.random.default_rng(0)
    level = np.repeat(r.normal(size=30), 10)
    x = r.normal(size=(300, 2))
    t = x[:, 0] + level + 0.2 * r.normal(size=300)
    assert "errors of neighboring rows are correlated" in choose(x, t, seconds=0.0).notes[-1]
    assert len(choose(x, t, groups=np.repeat(np.arange(30), 10), seconds=0.0).notes) == 1  # on the time
    order = r.permutation(300)
    assert len(choose(x[order], t[order], seconds=0.0).notes) == 1


def test_which_columns_matter():
    r = np.random.default_rng(0)
    x = r.normal(size=(400, 3))
    kind = r.integers(3, size=400)
    t = 2 * x[:, 0] + kind + 0.3 * r.normal(size=400)
    found = importance(mixtures.get("gaussian")(), np.c_[x, np.eye(3)[kind]], t, names=["a", "b", "c", "k=0", "k=1", "k=2"])
    assert found.columns["column"][:2] == ["a", "k"]
    nats, error = dict(zip(found.columns["column"], found.columns["nats"], strict=True)), found.columns["error"]
    assert nats["a"] == pytest.approx(0.5 * np.log(1 + 4 / 0.09), abs=0.15) and abs(nats["b"]) < 4 * max(error)
    refuses("at least 2 context columns", importance, mixtures.get("gaussian")(), x[:, :1], t)


def test_many_rows_are_decided_by_a_sample(monkeypatch):
    monkeypatch.setattr(selection, "MOST_RACED", 100)
    x, t = line(400)
    found = choose(x, t, seconds=0.0)
    assert found.notes[-1] == "100 of 400 rows decided which model is chosen; it is fitted to all"
    np.testing.assert_allclose(found.model.score(x, t), mixtures.get("line")().fit(x, t).score(x, t))
    assert len(found.model.held_out_pit_) == 100


@pytest.mark.slow
def test_subjects_are_new_in_the_test_part_and_a_memory_of_them_does_not_help():
    r = np.random.default_rng(4)
    subject = np.repeat(np.arange(40), 8)
    x = (subject[:, None] + 0.01 * r.normal(size=(320, 1))) * 1.0
    t = r.normal(size=40)[subject] + 0.1 * r.normal(size=320)  # a level of each subject, which x names
    for train, test in folds(x, t, groups=subject):
        assert not {*subject[train]} & {*subject[test]}
    assert choose(x, t, groups=subject).name in (NO_CONTEXT, LINE)
    assert choose(x, t).name not in (NO_CONTEXT, LINE)


def test_later_rows_of_the_same_subjects():
    """Each subject's rows are cut in time, for any times of the others."""
    subject, when = np.repeat([0, 1], 40), np.r_[np.arange(40), 100 + np.arange(40)][::-1]
    for train, test in folds(np.zeros((80, 1)), when * 1.0, groups=subject, order=when):
        for one in (0, 1):
            assert when[train[subject[train] == one]].max() < when[test[subject[test] == one]].min()


def test_two_groups_are_two_folds():
    parts = folds(np.zeros((20, 1)), np.arange(20.0), groups=np.arange(20) % 2)
    assert sorted(tuple(test % 2) for _, test in parts) == [(0,) * 10, (1,) * 10]


def test_weights_of_rows_decide():
    """Rows of weight 0 say another line, and change nothing."""
    x, t = line(120)
    w = np.r_[np.ones(120), np.zeros(60)]
    found = choose(np.r_[x, x[:60]], np.r_[t, 5 - t[:60]], sample_weight=w, seconds=0.0)
    np.testing.assert_allclose(found.model.predict(x), choose(x, t, seconds=0.0).model.predict(x), atol=0.3)
    at = found.columns["model"].index(LINE)
    assert found.columns["rmse"][at] == pytest.approx(0.5, abs=0.1)


def test_a_few_far_rows_do_not_decide():
    """Of two groups of log-normal targets one is a hundred times as large: its far rows made the context say nothing."""
    r = np.random.default_rng(0)
    large = r.random(400) < 0.6
    t = np.exp(np.where(large, 6 + 2 * r.normal(size=400), 1 + 0.8 * r.normal(size=400)))
    found = choose(np.c_[large, r.normal(size=400)], t, random_state=0)
    assert found.name != NO_CONTEXT and np.median(found.model.intervals([[0.0, 0.0]])[:, 1]) < 5 * np.exp(1 + 0.8 * 1.645)


def test_contexts_far_from_those_of_the_fit_are_told(tmp_path):
    x, t = line(60)
    mixtures.get("gaussian")().fit(x, t).save(tmp_path / "m.safetensors")
    model = mixtures.load(tmp_path / "m.safetensors")
    model.predict(1.5 * x)
    far = x.copy()
    far[3, 1] = 1000
    with pytest.warns(UserWarning, match="context_1 is far from the values of the fit, which are from"):
        model.intervals(far)


def test_the_time_is_kept():
    """Gaussians with gaps in many patterns, of which each fit is slow, and a network."""
    r = np.random.default_rng(0)
    x = r.normal(size=(200, 20))
    t = x[:, 0] + r.normal(size=200)
    x[r.random(x.shape) < 0.1] = np.nan
    began = time.process_time()
    found = choose(x, t, seconds=1.0)
    assert time.process_time() - began < 8
    assert "there was no time for" in found.notes[0]


@pytest.mark.parametrize(("seconds", "best", "folds"), [(90, "slow", 3), (40, "slow", 1), (20, "fast", 3)])
def test_with_little_time_fewer_folds_decide_and_the_second_best_is_not_lost(seconds, best, folds, monkeypatch):
    """By the clock of this test a fold of the best model takes 14 s."""
    clock, measure = [0.0], selection._Trial._measure

    def slowly(trial, *given):
        clock[0] += 14.0 * (trial.name == "slow")
        check_time()
        measure(trial, *given)

    monkeypatch.setattr(selection.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(selection._Trial, "_measure", slowly)
    models = {NO_CONTEXT: mixtures.get("gaussian")(), LINE: mixtures.get("line")()}
    models |= {name: mixtures.get("mixture")(n_components=k, random_state=0) for name, k in (("slow", 8), ("fast", 2))}
    monkeypatch.setattr(selection, "_candidates", lambda *_: models)
    x = np.random.default_rng(0).uniform(-3, 3, size=(600, 1))
    found = choose(x, 5 * np.sin(2 * x[:, 0]) + 0.1 * x[:, 0], seconds=seconds)
    assert found.name == best and len(found.model.held_out_pit_) == 200 * folds
    assert ("of those that had time" in found.sentence) == (best == "fast")
    assert any("there was time for 1 of 3 folds" in note for note in found.notes) == (folds == 1)


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
    assert found.name in (NO_CONTEXT, LINE)
    refuses("at least 10 rows", choose, *line(9))
    assert "there was no time for kernel" in found.notes[0] and "time" in found.columns["left"]
    refuses("groups of at least 4 rows", folds, np.zeros((9, 1)), np.zeros(9), groups=np.arange(9), order=np.arange(9))
    refuses("different rows or groups", folds, np.zeros((9, 1)), np.arange(9.0), groups=np.zeros(9))


def test_remarks_on_a_table():
    x, t = line(300)
    names = (["a", "b"], ["t"])
    assert remarks(x, t, names) == []
    far = x.copy()
    far[7, 1] = -1e6
    text = "b is -1e+06 in row 8, far from all others, and distorts means and covariances: correct or drop it"
    assert remarks(far, t, names) == [text]
    assert "in row 18," in remarks(far, t, names, np.arange(11, 311))[0]
    wrong = t.copy()
    wrong[7] = 1e6
    text = r"target_0 is 1e\+06 in row 8, far from all others"
    with pytest.warns(FarValue, match=text):
        mixtures.get("gaussian")().fit(x, wrong)
    with pytest.warns(FarValue, match=text) as warned:
        found = choose(x, wrong, seconds=0.0)
    assert len(warned) == 1 and "row 8" in found.notes[0]
    spike = np.where(np.arange(300) % 4 == 0, 0.0, t)
    assert "t is 0 in 25 % of the rows" in remarks(x, spike, names)[0]
    assert "the context b is the target t in other units" in remarks(np.c_[x[:, 0], 3 - 2 * t], t, names)[0]
    assert remarks(np.random.default_rng(0).standard_t(2, size=(700, 2)), np.arange(700.0), names) == []


def test_what_cannot_be_compared_is_refused_by_name_or_told():
    r = np.random.default_rng(0)
    x, y = r.normal(size=(90, 2)), r.normal(size=90)
    sparse = x.copy()
    sparse[1:, 1] = np.nan
    refuses("1 different value of context_1 in each part of the rows", choose, sparse, y)
    refuses("2 different values of target_0 in each part of the rows", choose, x, np.eye(90)[5])
    refuses("an order of numbers or times without gaps", folds, x, y, order=[f"{i:02d}/01/2020" for i in range(90)])
    t = x[:, :1] + r.normal(size=(90, 2))
    t[::2, 0] = t[1::2, 1] = np.nan
    found = choose(x, t, seconds=20.0)
    assert found.table()["left"][1] == "refused" and "line cannot be compared" in found.notes[0]


def test_weights_are_in_intervals_and_scores_as_rows_would_be():
    r = np.random.default_rng(0)
    x, first = r.normal(size=(300, 1)), r.random(300) < 0.5
    y, w = np.where(first, 1, -3) * x[:, 0] + 0.1 * r.normal(size=300), np.where(first, 20, 1)
    rows = np.repeat(np.arange(300), w)
    weighted, repeated = choose(x, y, sample_weight=w, seconds=0.0), choose(x[rows], y[rows], seconds=0.0)
    widths = [np.median(np.diff(found.model.intervals(x), axis=1)) for found in (weighted, repeated)]
    assert widths[0] == pytest.approx(widths[1], rel=0.3)
    assert weighted.table()["r2"][1] == pytest.approx(repeated.table()["r2"][1], abs=0.05)


def test_a_log_scale_has_means_and_threads_leave_warnings_as_they_were():
    r = np.random.default_rng(0)
    x = r.normal(size=(20, 2))
    y = np.exp(1.5 * x[:, 0] + r.normal(size=20))
    before = list(warnings.filters)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: choose(x, y, seconds=3.0), range(4)))
    assert list(warnings.filters) == before
    assert all(one.model.predict(x).max() < 100 * y.max() for one in found)
