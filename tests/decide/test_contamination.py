"""Label-Trim: power back, errors bounded."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from vergence.decide import label_trim, p_values, select, tail_p_values, to_label
from vergence.decide.conformal import _expected

N, M, ODD, BAD = 1000, 200, 20, 40


def runs(trim, shift, count=150):
    """Returns the mean false-discovery proportion and power with a contaminated calibration that ``trim`` treats."""
    r, proportions, powers = np.random.default_rng(0), [], []
    for _ in range(count):
        calibration, s = r.normal(size=N), r.normal(size=M)
        calibration[:BAD] += shift
        s[:ODD] += shift
        found = select(p_values(trim(calibration), s), 0.1)
        proportions.append(found[ODD:].sum() / max(1, found.sum()))
        powers.append(found[:ODD].mean())
    return np.mean(proportions), np.mean(powers), 3 * np.std(proportions) / count**0.5


def confirmed(calibration):
    shown = to_label(calibration, 60)
    return label_trim(calibration, shown[shown < BAD], 60)


def test_confirmed_oddities_give_the_power_back():
    bad, trimmed = runs(lambda c: c, 4.0), runs(confirmed, 4.0)
    assert bad[0] <= 0.1 + bad[2] and bad[1] < 0.05
    assert trimmed[0] <= 0.1 + trimmed[2] and trimmed[1] > 0.8


def test_only_what_was_looked_at_is_taken_out():
    x = torch.tensor([0.1, 0.9, 0.5, 0.7])
    assert to_label(x, 2).tolist() == [1, 3] and label_trim(x, [3], 2).tolist() == pytest.approx([0.1, 0.9, 0.5])
    assert label_trim(x.numpy(), torch.tensor([1, 3]), 2).tolist() == pytest.approx([0.1, 0.5])
    assert label_trim(x, [], 2).tolist() == pytest.approx(x.tolist())


def folder(r, odd, n=2000):
    """Scores of a folder with some outliers: squared distances of Gaussian features."""
    s = (r.normal(size=(n, 16)) ** 2).sum(1) / 2
    s[:odd] = s.max() + 30
    return s


@pytest.mark.parametrize("odd", [0, 10, 100])
def test_tail_p_values_report_what_is_far_beyond_and_little_else(odd):
    r, proportions, powers = np.random.default_rng(0), [], []
    for _ in range(100):
        found = select(tail_p_values(folder(r, odd)), 0.1)
        proportions.append(found[odd:].sum() / max(1, found.sum()))
        powers.append(found[:odd].mean() if odd else 1.0)
    assert np.mean(proportions) <= 0.1 and np.mean(powers) > 0.99


def test_tail_p_values_are_uniform_for_an_exponential_tail():
    r = np.random.default_rng(0)
    p = np.concatenate([tail_p_values(r.exponential(size=2000)) for _ in range(50)])
    assert (p <= 0.5).mean() == pytest.approx(0.5, abs=0.01) and (p <= 0.01).mean() <= 0.012
    light = np.concatenate([tail_p_values(np.abs(r.normal(size=2000))) for _ in range(50)])
    assert (light <= 0.001).mean() < 0.001  # a lighter tail than the exponential: cautious


LAWS = {
    "normal": lambda r, n: r.normal(size=n),
    "exponential": lambda r, n: r.exponential(size=n),
    "chi-squared": lambda r, n: r.gamma(8, size=n),
    "log of heavy-tailed distances": lambda r, n: np.log((r.standard_t(5, size=(n, 8)) ** 2).sum(1)),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("fdr", [0.1, 0.2])
def test_false_discoveries_stay_at_the_rate_in_clean_and_contaminated_folders(law, fdr):
    """Clean folders, and 0.2 to 5 % of outliers far away, at the end of the typical ones, or among these."""
    r, proportions = np.random.default_rng(0), {"clean": [], "far": [], "end": [], "among": []}
    powers = []
    for i in range(240):
        where = list(proportions)[i % 4]
        n = int(r.choice([100, 400, 2000]))
        odd = 0 if where == "clean" else max(1, round(r.choice([0.002, 0.02, 0.05]) * n))
        s = LAWS[law](r, n)
        typical = np.sort(s[odd:])
        middle, spread, high = np.median(typical), np.diff(np.quantile(typical, [0.5, 0.95]))[0], np.quantile(typical, 0.98)
        start = {"clean": 0.0, "far": middle + 8 * spread, "end": typical[-1], "among": high}[where]
        s[:odd] = start + spread * r.uniform(0, 0.3, odd)
        found = select(tail_p_values(s), fdr)
        proportions[where].append(found[odd:].sum() / max(1, found.sum()))
        powers += [found[:odd].mean()] if where == "far" else []
    for values in proportions.values():
        assert np.mean(values) <= fdr + 3 * np.std(values) / len(values) ** 0.5
    every = np.concatenate(list(proportions.values()))
    assert np.mean(every) <= fdr and np.mean(powers) > 0.95


def test_the_tail_is_the_truncated_exponential_by_maximum_likelihood():
    """Against a numerical maximum of the likelihood and its numerical curvature, for a few of the most anomalous items."""
    s = np.sort(np.random.default_rng(3).gamma(3.0, size=3000))
    found = _expected(s, np.arange(1, 301))
    for k in (1, 7, 300):
        below, t = s[: 3000 - k], s[3000 - k]
        first = int((1 - 0.15) * len(below))
        y, u = below[first + 1 :], below[first]

        def loss(rate, y=y, u=u, t=t):
            return -(np.log(rate) - rate * (y - u) - np.log1p(-np.exp(-rate * (t - u)))).sum()

        best = minimize_scalar(loss, bounds=(1e-6, 50), method="bounded", options={"xatol": 1e-10}).x
        h = 1e-3 * best
        error = ((loss(best + h) - 2 * loss(best) + loss(best - h)) / h**2) ** -0.5
        rate = best - 1.6449 * error
        assert found[k - 1] == pytest.approx((len(y) + 1) / (np.exp(rate * (t - u)) - 1), rel=1e-3)


def test_a_heap_does_not_hide_itself():
    """What a tail that is fitted to all scores would do: five percent in one place move it until they are ordinary."""
    r = np.random.default_rng(0)
    s = np.concatenate([r.exponential(size=1900), 12 + 0.1 * r.normal(size=100)])
    assert select(tail_p_values(s), 0.1)[1900:].all()
    u = np.quantile(s, 0.85)
    naive = 0.15 * np.exp(-(s - u) / (s[s > u] - u).mean())
    assert not select(np.where(s > u, naive, 1.0), 0.1)[1900:].any()


def test_equal_scores_have_equal_p_values_and_stranger_ones_no_larger():
    r = np.random.default_rng(1)
    s = np.round(r.exponential(size=500), 1)
    s[:20] = 9.0
    p = tail_p_values(s)
    order = np.argsort(s)
    assert (np.diff(p[order]) <= 0).all() and len(np.unique(p[:20])) == 1 and len(np.unique(p)) <= len(np.unique(s))


def test_tails_of_tensors():
    x = torch.rand(300)
    assert isinstance(tail_p_values(x), torch.Tensor)
    order = torch.randperm(300)
    torch.testing.assert_close(tail_p_values(3 * x[order] + 1), tail_p_values(x)[order])
