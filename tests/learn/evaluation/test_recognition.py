"""How well features recognize another view of the same item."""

import pytest
import torch
from torch.nn import functional as F

from vergence.learn.evaluation.accuracy import rank_error, relative_error


def seeded(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def reference(a, b):
    """Counts pairs in loops."""
    shares = []
    for i in range(len(a)):
        similar = [float(F.cosine_similarity(a[i], b[j], dim=0)) for j in range(len(b))]
        others = [s for j, s in enumerate(similar) if j != i]
        shares.append(sum(1.0 if s > similar[i] else 0.5 if s == similar[i] else 0.0 for s in others) / len(others))
    return sum(shares) / len(shares)


def test_the_rank_error_equals_loops():
    a = seeded(12, 5)
    b = a + seeded(12, 5, seed=1)
    assert rank_error(a, b) == pytest.approx(reference(a, b), abs=1e-12)


def test_ties_count_half():
    a, b = torch.eye(4)[[0, 0, 1, 2]], torch.eye(4)[[0, 0, 1, 3]]
    assert rank_error(a, b) == pytest.approx((1 / 6 + 1 / 6 + 0 + 1 / 2) / 4) == pytest.approx(reference(a, b))


@pytest.mark.parametrize("n", [100, 1000])
def test_features_that_know_nothing_have_an_error_of_a_half_whatever_their_number(n):
    assert rank_error(seeded(n, 8), seeded(n, 8, seed=1)) == pytest.approx(0.5, abs=0.05)
    assert rank_error(torch.ones(n, 8), torch.ones(n, 8)) == 0.5


def test_features_that_are_not_finite_recognize_nothing():
    a = seeded(50, 4)
    assert rank_error(a, a) == 0 and rank_error(a * torch.nan, a) == 1 and rank_error(a.numpy(), a.numpy()) == 0


def test_the_ratio_does_not_depend_on_the_units_of_the_statistics():
    a, b = ({"pixels": seeded(200, 6, seed=s), "z": seeded(200, 6, seed=s)} for s in (0, 1))
    for name, noise in (("pixels", 1.0), ("z", 0.3)):
        b[name] = a[name] + noise * seeded(200, 6, seed=2)
    found = relative_error(a, b)
    units = torch.tensor([1e6, 1.0, 1e-6, 3.0, 0.0, 1.0])
    here = {"pixels": a["pixels"] * (units > 0), "z": a["z"]}, {"pixels": b["pixels"] * (units > 0), "z": b["z"]}
    there = ({"pixels": 5 + x["pixels"] * units, "z": x["z"]} for x in here)
    assert 0 < found < 0.5 and relative_error(*there) == pytest.approx(relative_error(*here), abs=1e-6)


def test_statistics_that_recognize_everything():
    a = {"pixels": torch.eye(6), "z": torch.eye(6)}
    assert relative_error(a, a) == 0.0
    assert relative_error(a, {"pixels": torch.eye(6), "z": torch.eye(6).flip(0)}) == 1.0


def test_an_item_that_is_not_finite_charges_itself_alone():
    a = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    b = a.clone()
    b[0] = torch.nan
    assert rank_error(a, b) == pytest.approx(1 / 6)
