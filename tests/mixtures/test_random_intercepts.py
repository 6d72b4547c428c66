"""Random intercepts: the restricted likelihood and the predictions of a dense float64 reference; known and new subjects."""

import math

import numpy as np
import pytest
from tests.refusals import refuses

from vergence.mixtures import RandomIntercepts, choose
from vergence.mixtures.bayesian_line import student
from vergence.mixtures.random_intercepts import _Whitened


def panel(n_groups=12, seed=0, slope=1.0):
    r = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), r.integers(1, 7, n_groups))
    x = r.normal(size=(len(group), 3))
    return x, slope * x[:, 0] + 2 * r.normal(size=n_groups)[group] + 0.5 * r.normal(size=len(group)), group


def dense(x, y, w, group, r, h):
    """Mean and covariance of y for a flat prior of m, by the whole covariance matrix; and its inverse."""
    same = group[:, None] == group
    V = np.diag(1 / w) + r * same + x @ x.T / h
    one = np.ones(len(y))
    P = np.linalg.inv(V)
    m = one @ P @ y / (one @ P @ one)
    return V, P, m, one


def test_the_restricted_likelihood_is_the_dense_ones():
    x, y, group = panel()
    w = np.random.default_rng(1).uniform(0.5, 2, len(y))
    found, right = [], []
    for r, log_h in ((0.1, 0.0), (4.0, -2.0), (30.0, 3.0)):
        one = _Whitened.of(x, y, w, group, r)
        h = one.h(log_h)
        V, P, m, ones = dense(x, y, w, group, r, h)
        n, q = len(y) - 1, (y - m) @ P @ (y - m)
        right.append(-0.5 * (n * math.log(q / n) + np.linalg.slogdet(V)[1] + math.log(ones @ P @ ones) + np.log(w).sum()))
        found.append(one.restricted(log_h))
    np.testing.assert_allclose(found, right, rtol=1e-10)


def test_predictions_are_the_dense_ones_of_new_and_known_groups():
    x, y, group = panel()
    model = RandomIntercepts().fit(x, y, groups=[f"s{g}" for g in group])
    s = (x - model.context_mean_) / model.context_std_
    z = (y - model.target_mean_) / model.target_std_
    names = model.groups_
    code = np.array([names.index(f"s{g}") for g in group])
    r = float(model.ratio_[0])
    _, P, m, one = dense(s, z, np.ones(len(z)), code, r, h := model.penalty_[0])
    left = P - np.outer(P @ one, P @ one) / (one @ P @ one)
    assert model.degrees_[0] == pytest.approx(np.trace(left), rel=0.1)
    logits, g = student(model.degrees_[0])
    new = np.random.default_rng(2).normal(size=(4, 3))
    for group_of, one_model in ((None, model), ("s3", model.of("s3"))):
        k = new @ s.T / h + (0 if group_of is None else r * (code == names.index(group_of)))
        mean = m + k @ P @ (z - m)
        rest = 1 - k @ P @ one
        own = 1 + r + np.square(new).sum(1) / h
        variance = model.variance_[0] * (own - np.einsum("ij,jk,ik->i", k, P, k) + rest**2 / (one @ P @ one))
        found, std = one_model.predict(new * model.context_std_ + model.context_mean_, return_std=True)
        np.testing.assert_allclose((found - model.target_mean_) / model.target_std_, mean, rtol=1e-8)
        np.testing.assert_allclose((std / model.target_std_) ** 2, variance * float((logits.softmax(0) / g).sum()), rtol=1e-8)


def test_intervals_hold_for_new_and_for_known_subjects(tmp_path):
    x, y, group = panel(60, seed=3)
    rest = np.flatnonzero(group >= 40)
    last = np.r_[group[1:] != group[:-1], True] & (np.bincount(group)[group] > 2) & (group < 40)  # the last row of each
    known = np.flatnonzero((group < 40) & ~last)
    model = RandomIntercepts(random_state=0).fit(x[known], y[known], groups=group[known])
    RandomIntercepts().fit(x[known], y[known], groups=[f"s{g}" for g in group[known]]).save(tmp_path / "texts.safetensors")
    assert RandomIntercepts.load(tmp_path / "texts.safetensors").of("s3").predict(x[:1]).shape == (1,)
    model.save(tmp_path / "m.safetensors")
    again = RandomIntercepts.load(tmp_path / "m.safetensors")
    low, high = again.intervals(x[rest]).T
    assert ((low <= y[rest]) & (y[rest] <= high)).mean() > 0.8
    ends = np.stack([again.of(group[i]).intervals(x[i : i + 1])[0] for i in np.flatnonzero(last)])
    inside = (ends[:, 0] <= y[last]) & (y[last] <= ends[:, 1])
    assert inside.mean() > 0.8 and (ends[:, 1] - ends[:, 0]).mean() < 0.6 * (high - low).mean()


def test_a_subject_without_weight_is_unknown():
    x, y, group = panel(4)
    model = RandomIntercepts().fit(x, y + 100.0 * group, np.where(group == 0, 0.0, 1.0), groups=[f"s{g}" for g in group])
    assert model.groups_ == ["s1", "s2", "s3"] and abs(model.of("s2").predict(np.zeros((1, 3))) - 200) < 20
    refuses("a group of the fit, found s0", model.of, "s0")


def test_groups_are_needed_and_known():
    x, y, group = panel()
    refuses(r"groups \(N,\), found none", RandomIntercepts().fit, x, y)
    refuses("a group of the fit, found 99", RandomIntercepts().fit(x, y, groups=group).of, 99)


def test_choose_takes_them_for_groups_and_keeps_the_names():
    x, y, group = panel(40, seed=5, slope=3.0)
    found = choose(x, y, groups=[f"s{g}" for g in group])
    assert found.name == "random intercepts" and found.sentence.startswith("Chosen: random intercepts (the best")
    assert found.model.of("s3").predict(x[:1]).shape == (1,)
