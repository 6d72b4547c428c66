"""No group of items, and no near copies, are on both sides of a split; what calibrates counts what is independent."""

import numpy as np
import pytest
from tests.refusals import refuses

from vergence.cli.commands import main
from vergence.decide import Calibrated, Matcher
from vergence.decide.matching import match
from vergence.decide.splits import apart, grouped, one_of_each
from vergence.utils.neighbors import near_duplicates


def bursts(n, d, size, jitter, seed=0):
    rng = np.random.default_rng(seed)
    return np.repeat(rng.normal(size=(n, d)), size, 0) + jitter * rng.normal(size=(n * size, d))


@pytest.mark.parametrize(
    ("n", "d", "size", "jitter"),
    [
        *((100, 2, 2, 1e-4), (100, 6, 2, 1e-4), (100, 30, 2, 1e-4), (100, 30, 2, 0.01), (200, 6, 5, 0.01), (100, 30, 20, 0.01)),
        *((1500, 30, 2, 1e-4), (600, 6, 5, 1e-3), (100, 200, 3, 0.01)),  # in leaves of trees, and in some directions
    ],
)
def test_near_copies_are_on_one_side_in_any_order_and_units(n, d, size, jitter):
    x = bursts(n, d, size, jitter)
    label = near_duplicates(x)
    assert (label.reshape(n, size) == label[::size, None]).all()
    assert label.max() + 1 > 0.9 * n and np.bincount(label).max() <= 3 * size
    order = np.random.default_rng(1).permutation(len(x))
    again = near_duplicates(x[order] * np.logspace(-3, 3, d) + 7)
    assert len({*zip(label[order], again, strict=True)}) == again.max() + 1 == label.max() + 1


def test_items_without_copies_are_alone_and_equal_ones_are_not():
    x = np.random.default_rng(0).normal(size=(2000, 6))
    assert near_duplicates(x).max() == 1999
    assert near_duplicates(np.zeros((50, 3))).max() == 0
    assert sorted(near_duplicates(x[:3])) == [0, 1, 2]
    assert near_duplicates(np.repeat(x[:50], 40, 0)).max() == 49  # more than are looked for among near ones


def test_an_item_is_not_judged_by_its_near_copy():
    def strangeness(fitted, items):
        return np.sqrt(((items[:, None] - fitted.x[None]) ** 2).sum(2)).min(1)

    class Held:
        def fit(self, x):
            self.x = x
            return self

    rates = []
    for seed in range(10):
        model = Calibrated(Held(), score=strangeness).fit(bursts(100, 30, 2, 1e-4, seed))
        p = model.p_values(np.random.default_rng(100 + seed).normal(size=(200, 30)))
        rates.append((p <= 0.05).mean())
    assert np.mean(rates) <= 0.05 + 2 * np.std(rates) / len(rates) ** 0.5


def test_a_group_that_is_larger_than_the_share_is_fitted_to_and_this_is_said():
    x = np.random.default_rng(0).normal(size=(1000, 4))
    x[:700] = x[0]
    for seed in range(5):
        with pytest.warns(UserWarning, match="700 of 1,000 items are one group.*: 90 items calibrate instead of 300"):
            side = apart(grouped(None, x), 0.3, seed)
        assert side.sum() == 90 and not side[:700].any()
    with pytest.warns(UserWarning, match="333"):
        assert apart(np.arange(999) % 3, 0.3, 0).sum() == 333
    refuses("at least 2 groups", apart, np.zeros(9, dtype=int), 0.3, 0)
    assert all(300 <= apart(np.arange(1000) // 7, 0.3, seed).sum() < 307 for seed in range(20))


def captions(targets, each, seed, noise=1.0, d=24):
    rng = np.random.default_rng(seed)
    b = rng.normal(size=(targets, d))
    mapped = np.repeat(b, each, 0) @ (np.random.default_rng(99).normal(size=(d, d)) / d**0.5)
    return mapped + noise * rng.normal(size=mapped.shape), np.repeat(b, each, 0)


def test_pairs_of_one_target_are_on_one_side_and_one_of_them_calibrates():
    a, b = captions(80, 5, 0)
    group = grouped(None, a, b)
    assert (group.reshape(80, 5) == group[::5, None]).all() and group.max() == 79
    assert len(one_of_each(group, apart(group, 0.3, 0), 0)) == len(Matcher().fit(a, b).calibration_) == 24
    refuses("19 pairs that calibrate", Matcher().fit, a, b, groups=np.arange(400) // 10)
    refuses("19 pairs that calibrate", match, a, b, a, b, groups=np.arange(400) // 10)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 40])
def test_rates_hold_for_contexts_of_new_targets_where_pairs_share_targets(size):
    wrong, held = [], []
    for seed in range(60):
        matcher = Matcher().fit(*captions(80, 5, seed))
        contexts, gallery = captions(size, 1, 1000 + seed)
        found = matcher.match(contexts, gallery)
        wrong.append((found.answer == "no match").mean())
        held.append(np.mean([i in part for i, part in enumerate(found.candidates)]))
    assert np.mean(wrong) <= 0.05 + 2 * np.std(wrong) / 60**0.5
    assert np.mean(held) >= 0.9 - 2 * np.std(held) / 60**0.5


def test_pairs_fit_takes_groups(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    a, b = captions(200, 2, 0)
    np.savez("pairs.npz", context=a, target=b, scene=np.array([f"s{i // 4}" for i in range(400)]))
    main(["pairs", "fit", "pairs.npz", "--share", "0.5", "--groups", "scene"])
    assert "50 of 400 pairs calibrate" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["pairs", "fit", "pairs.npz", "--groups", "site"])
    assert "expected the array site in pairs.npz" in capsys.readouterr().err


@pytest.mark.parametrize("wild", [1e9, 1e300, np.inf, np.nan])
def test_wild_values_and_gaps_do_not_make_other_items_equal(wild):
    x = np.random.default_rng(4).normal(size=(300, 3))
    x[:3][np.eye(3, dtype=bool)] = wild
    assert len(set(near_duplicates(x).tolist())) >= 285  # a few are near by chance
    refuses("give groups", grouped, None, np.array([["a"], ["b"]]))


def test_one_seed_takes_other_ranks_of_other_data():
    """With groups in an order by value the calibration items were always those of the same ranks, and p-values were too small."""
    rng = np.random.default_rng(3)
    taken = [apart(grouped(None, x), 0.3, seed=0)[x[:, 0].argsort()] for x in rng.normal(size=(2, 200, 3))]
    assert (taken[0] != taken[1]).any()
