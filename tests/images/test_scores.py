"""The law of squared distances equals its definition, finds its parameters under outliers, and flags nothing where it fails."""

import numpy as np
import pytest
from scipy import stats

from vergence.decide import q_values
from vergence.images.scores import CrossFitted, Evidence, RadialNull, combine, outward


def t_items(n, D=30, degrees=6, seed=0):
    """Items of a multivariate t."""
    r = np.random.default_rng(seed)
    return r.normal(size=(n, D)) * np.sqrt(degrees / r.chisquare(degrees, size=(n, 1)))


def test_the_law_is_that_of_an_inverse_gamma():
    law = RadialNull(0.3, 2.5, np.inf, holds=True)
    t = np.linspace(-1, 6, 20)
    right = 2 * stats.invgamma(2.5, scale=2.5 * np.exp(0.3)).sf(np.exp(t))
    np.testing.assert_allclose(np.exp(law.log_p(t)), np.minimum(right, 1), rtol=1e-9)
    few = RadialNull(0.3, 2.5, 4.0, holds=True)
    np.testing.assert_allclose(np.exp(few.log_p(t)), np.minimum(2 * stats.f(8, 5).sf(np.exp(t - 0.3)), 1), rtol=1e-9)
    G = np.random.default_rng(0).chisquare(8, size=5000)
    assert RadialNull.of(np.log(G), many=False).holds and not RadialNull.of(np.log(G)).holds


@pytest.mark.parametrize("shape", [1.0, 3.0, 20.0])
@pytest.mark.parametrize("odd", [0.0, 0.1])
def test_parameters_are_found_although_a_tenth_is_odd(shape, odd):
    r = np.random.default_rng(1)
    t = np.log(shape / r.gamma(shape, size=5000)) + 0.7
    t[: int(odd * 5000)] = 6 + r.normal(size=int(odd * 5000))
    law = RadialNull.of(t)
    assert law.holds and law.location == pytest.approx(0.7, abs=0.1 + odd)
    assert np.log(law.shape / shape) == pytest.approx(0, abs=0.15 + 4 * odd)


def test_scores_that_follow_another_law_have_no_small_p_value():
    r = np.random.default_rng(0)
    for t in (r.uniform(size=2000), np.r_[r.normal(size=1000), r.normal(size=1000) + 9], r.integers(0, 4, 2000) * 1.0):
        law = RadialNull.of(t)
        assert not law.holds and (law.log_p(t) == 0).all()


@pytest.mark.parametrize("n", [30, 200, 2000])
def test_clean_items_are_hardly_ever_flagged_and_oddities_are(n):
    false, found = 0, 0
    for seed in range(20):
        x, fold = t_items(n, seed=seed), np.arange(n) % 5
        t = CrossFitted(x, fold).log_distance(x, fold)
        false += int((q_values(np.exp(RadialNull.of(t).log_p(t))) <= 0.1).sum())
        x[:2] = 40 + 0.1 * x[:2]
        t = CrossFitted(x, fold).log_distance(x, fold)
        found += int((q_values(np.exp(RadialNull.of(t).log_p(t)))[:2] <= 0.1).sum())
    assert false <= 20 and found >= (36 if n > 30 else 10)


def test_a_cluster_of_oddities_does_not_hide_itself():
    x, fold = t_items(1000), np.random.default_rng(2).integers(0, 5, 1000)
    x[:80] = 0.05 * x[:80] + 8
    t = CrossFitted(x, fold).log_distance(x, fold)
    assert t[:80].min() > np.quantile(t[80:], 0.99)


def test_distances_equal_their_definition_and_constant_features_do_no_harm():
    x = np.random.default_rng(0).normal(size=(300, 4)) * [1, 5, 0.01, 0]
    fold = np.zeros(300, dtype=int)
    fitted = CrossFitted(x, fold, clean=True)
    t = fitted.log_distance(x, fold)
    assert np.isfinite(t).all()
    np.testing.assert_allclose(np.log(np.square(fitted.white(x)).sum(1)), t, atol=1e-6)
    odd = x[:1] + np.array([0, 0, 0, 1.0])
    assert fitted.log_distance(odd, fold[:1])[0] > t.max()


def test_units_and_rounding_do_not_matter():
    x, fold = t_items(400, 6), np.arange(400) % 5
    x[:, 5] *= np.random.default_rng(0).uniform(size=400) < 0.02  # nearly always zero
    t = CrossFitted(x, fold).log_distance(x, fold)
    other = CrossFitted(x * [1, 10, 1e3, 1e-2, 1, 1], fold).log_distance(x * [1, 10, 1e3, 1e-2, 1, 1], fold)
    assert np.corrcoef(t, other)[0, 1] > 0.95
    rounded = x.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(CrossFitted(rounded, fold).log_distance(rounded, fold), t, atol=0.05)


def test_half_equal_items_are_no_error():
    x = np.r_[np.zeros((60, 3)), np.random.default_rng(0).normal(size=(40, 3))]
    fold = np.arange(100) % 5
    assert np.isfinite(CrossFitted(x, fold).log_distance(x, fold)).all()


def test_too_near_to_the_middle_is_odd_too():
    t = np.r_[np.random.default_rng(0).normal(size=500), -8.0, 8.0]
    assert set(np.argsort(-outward(t))[:2]) == {500, 501}


def test_few_or_equal_scores_have_no_small_p_value():
    for t in (np.arange(20.0), np.repeat(np.arange(20.0), 20)):
        level = Evidence.by_tail(t, np.arange(len(t)))
        assert not level.holds and level.log_p.min() == pytest.approx(np.log(1 / 20))
    t = np.r_[np.random.default_rng(0).exponential(size=999), 40.0]
    level = Evidence.by_tail(t, np.arange(1000))
    assert level.holds and level.log_p[-1] < np.log(1e-4)


def test_levels_are_combined_by_their_weights():
    log_p = {"a": np.log([0.01, 0.5]), "b": np.log([0.5, 0.001])}
    log, level = combine(log_p, {"a": 0.8, "b": 0.2})
    np.testing.assert_allclose(np.exp(log), [0.01 / 0.8, 0.001 / 0.2])
    assert list(level) == ["a", "b"]
    assert np.exp(combine({"b": np.log([0.3])}, {"a": 0.8, "b": 0.2})[0]) == pytest.approx(0.3)


def test_a_fifth_of_oddities_leaves_the_law_and_finds_them():
    t = np.log(5 / np.random.default_rng(0).gamma(5, size=200))
    t[:38] += 4
    law = RadialNull.of(t)
    assert law.holds and (q_values(np.exp(law.log_p(t)))[:38] <= 0.1).sum() >= 30


def test_where_no_law_holds_ranks_order_the_items_and_flag_none():
    t = np.random.default_rng(0).integers(0, 40, 500) * 1.0
    level = Evidence.of(RadialNull.of(t).log_p(t), t, t)
    assert not level.holds and np.corrcoef(t, -np.exp(level.log_p))[0, 1] > 0.99
    assert np.exp(level.log_p).min() == pytest.approx((t == t.max()).mean()) and q_values(np.exp(level.log_p)).min() > 0.9
    assert Evidence.of(np.log([0.5, 1.0]), t[:2], t).holds


def test_counts_of_rare_words_are_discrete_and_constant_features_are_not():
    r, fold = np.random.default_rng(0), np.arange(300) % 5
    assert not CrossFitted(r.normal(size=(300, 3)) * [1, 1, 0], fold).discrete
    assert CrossFitted(np.c_[r.normal(size=(300, 2)), r.poisson(0.2, 300)], fold).discrete
