"""How well features recognize another view of the same item."""

import pytest
import torch
from torch.nn import functional as F

from vergence.learn.evaluation.accuracy import rank_error


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


def test_an_item_that_is_not_finite_charges_itself_alone():
    a = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    b = a.clone()
    b[0] = torch.nan
    assert rank_error(a, b) == pytest.approx(1 / 6)
