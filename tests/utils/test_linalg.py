import math

import numpy as np
import pytest
import torch
from tests.refusals import refuses

from vergence.learn.evaluation.collapse import effective_rank, normalized_std
from vergence.utils.linalg import cholesky, covariance_cholesky, require_features, require_symmetric
from vergence.utils.neighbors import nearest


def slow_rank(z):
    lam = [max(v, 0.0) for v in np.linalg.eigvals(np.atleast_2d(np.cov(z.T, bias=True))).real.tolist()]
    return math.exp(-sum(v / sum(lam) * math.log(v / sum(lam)) for v in lam if v > 0))


def rotation(d):
    return torch.linalg.qr(torch.randn(d, d))[0]


@pytest.mark.parametrize("shape", [(12, 4), (4, 9), (6, 6), (2, 3), (30, 1)])
def test_effective_rank_is_the_loop(shape):
    z = torch.randn(shape) * torch.arange(1, shape[1] + 1) + 5
    assert effective_rank(z).item() == pytest.approx(slow_rank(z), rel=1e-9)


def test_effective_rank_of_known_spectra():
    axes = torch.cat([torch.eye(5), -torch.eye(5)])
    assert effective_rank(axes).item() == pytest.approx(5)
    p = torch.tensor([0.5, 0.25, 0.125, 0.125])
    four = torch.cat([torch.diag(p.sqrt()), -torch.diag(p.sqrt())])
    assert effective_rank(four).item() == pytest.approx(2**1.75)
    assert effective_rank(torch.eye(7)).item() == pytest.approx(6)  # N points in general position span N - 1 directions


def test_effective_rank_ignores_place_turn_scale_and_order():
    z = torch.randn(20, 6) * torch.arange(1, 7)
    rank = effective_rank(z).item()
    for other in (z + 100, z @ rotation(6), z * 1e150, z * 1e-150, z[torch.randperm(20)], z.repeat(3, 1)):
        assert effective_rank(other).item() == pytest.approx(rank, rel=1e-9)
    assert effective_rank(z * torch.tensor([1, 1, 1, 1, 1, 50])).item() < rank - 1  # but not unequal scaling


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e30, -7e-20])
def test_effective_rank_of_equal_points_is_exactly_zero(dtype, value):
    z = torch.full((37, 5), value, dtype=dtype) * torch.arange(1, 6, dtype=dtype) / 3
    assert effective_rank(z).item() == 0
    assert effective_rank(z[:1]).item() == 0
    z[3] += z[3].abs() * 1e-3 + 1e-25
    assert effective_rank(z).item() == pytest.approx(1)
    assert effective_rank(z).dtype == dtype


@pytest.mark.float32
def test_effective_rank_in_float32_with_a_large_offset():
    line = torch.randn(50, 1) @ torch.randn(1, 300)
    assert effective_rank(line).item() == pytest.approx(1, abs=1e-3)
    z = torch.randint(-3, 4, (200, 8)).float()
    assert effective_rank(z + 2**20).item() == pytest.approx(effective_rank(z).item(), rel=1e-6)


def test_normalized_std_is_the_loop():
    z = torch.randn(9, 4) + 0.5
    unit = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in z.tolist()]
    for j, found in enumerate(normalized_std(z).tolist()):
        mean = sum(u[j] for u in unit) / 9
        assert found == pytest.approx(2 * math.sqrt(sum((u[j] - mean) ** 2 for u in unit) / 9))


def test_normalized_std_limits():
    spread = normalized_std(torch.randn(200_000, 4))
    # a direction's coordinate u has E u^2 = 1/4, E u^4 = 3/24: the sample variance of N errs by sqrt((1/8 - 1/16) / N)
    z = (spread.square() / 4 - 0.25) / math.sqrt(0.0625 / 200_000)
    assert z.abs().max() < 4.5
    assert torch.equal(normalized_std(torch.tensor([[1.0, 2.0]]) * torch.tensor([[1.0], [4.0]])), torch.zeros(2))
    assert torch.equal(normalized_std(torch.zeros(5, 3)), torch.zeros(3))
    z = torch.randn(30, 6)
    torch.testing.assert_close(normalized_std(z * torch.rand(30, 1).add(0.1)), normalized_std(z))
    assert normalized_std(z).square().mean() <= 1


def slow_nearest(train, test, k):
    cos = [[torch.dot(a, b).item() / (a.norm() * b.norm()).item() for b in train] for a in test]
    order = [sorted(range(len(train)), key=lambda j, row=row: -row[j])[:k] for row in cos]
    return torch.tensor([[row[j] for j in o] for row, o in zip(cos, order, strict=True)]), torch.tensor(order)


@pytest.mark.parametrize("k", [1, 3, 23])
@pytest.mark.parametrize("block", [1, 2, 5, 2048])
def test_nearest_is_the_loop_in_any_block(k, block):
    train, test = torch.randn(23, 6), torch.randn(11, 6)
    similarity, index = nearest(train, test, k, block)
    expected = slow_nearest(train, test, k)
    torch.testing.assert_close(similarity, expected[0])
    assert torch.equal(index, expected[1])


def test_nearest_symmetries():
    train, test, order = torch.randn(40, 5), torch.randn(8, 5), torch.randperm(40)
    similarity, index = nearest(train, test, 4)
    turn = rotation(5)
    for a, b in ((train @ turn, test @ turn), (train * torch.rand(40, 1).add(0.1), test * 1e5)):
        assert torch.equal(nearest(a, b, 4)[1], index)
    assert torch.equal(order[nearest(train[order], test, 4)[1]], index)
    torch.testing.assert_close(nearest(train[order], test, 4)[0], similarity)
    assert torch.equal(nearest(train, train, 1)[1][:, 0], torch.arange(40))


def test_nearest_of_zeros_and_copies():
    similarity, _ = nearest(torch.ones(3, 4), torch.stack([torch.zeros(4), torch.ones(4), -torch.ones(4)]), 3)
    torch.testing.assert_close(similarity, torch.tensor([[0.0], [1.0], [-1.0]]).expand(3, 3))
    assert similarity.abs().max() <= 1


@pytest.mark.float32
def test_similarity_never_rounds_beyond_one():
    z = torch.randn(2000, 64)
    unit = torch.nn.functional.normalize(z, dim=1)
    assert (unit @ unit.T).max() > 1  # what a bare product gives
    assert nearest(z, z, 1)[0].max() <= 1


def test_refusals():
    good, bad = torch.randn(5, 3), torch.randn(5, 3)
    bad[1, 0], bad[4, 2] = math.nan, math.inf
    for call in (effective_rank, lambda z: nearest(good, z, 1), lambda z: nearest(z, good, 1)):
        refuses("NaN or infinity in 2 of 15 values", call, bad)
        refuses(r"shape \(N, D\), found shape \(0, 3\)", call, good[:0])
        refuses(r"found shape \(3,\)", call, good[0])
    refuses("train 3, test 2", require_features, train=good, test=good[:, :2])
    for k in (0, 6):
        refuses(f"k from 1 to the 5 training items, found {k}", nearest, good, good, k)


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (40, 40), (3, 4, 4)])
def test_cholesky_is_exact_on_what_is_well_conditioned(shape):
    a = torch.randn(shape) + torch.eye(shape[-1])
    a = a @ a.mT + torch.eye(shape[-1])
    for factor, jitter in (cholesky(a), covariance_cholesky(a)):
        assert jitter == 0
        torch.testing.assert_close(factor, torch.linalg.cholesky(a), rtol=0, atol=0)


@pytest.mark.parametrize("diagonal", [[1.0, 1e-16], [1e-16, 1.0], [1e12, 1.0, 1e-12], [1e-200, 1e-180]])
def test_cholesky_takes_units_as_they_come(diagonal):
    scale = torch.tensor(diagonal).sqrt()
    correlation = torch.full((len(scale), len(scale)), 0.5).fill_diagonal_(1)
    for a in (torch.diag(scale**2), correlation * torch.outer(scale, scale)):
        factor, jitter = cholesky(a)
        assert jitter == 0
        torch.testing.assert_close(factor @ factor.T, a, rtol=1e-14, atol=0)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_cholesky_of_a_singular_matrix_adds_the_least_jitter(scale):
    z = torch.randn(20, 3) * scale
    a = torch.cat([z, z[:, :2]], 1)
    a = a.T @ a
    factor, jitter = cholesky(a)
    unit = a.diagonal().mean().item()
    assert any(jitter == pytest.approx(rung * unit) for rung in (1e-13, 1e-12, 1e-11)), "near the bottom of the ladder"
    torch.testing.assert_close(factor @ factor.T, a + jitter * torch.eye(5), rtol=1e-12, atol=1e-14 * unit)
    left = factor.diagonal().square() / (a.diagonal() + jitter)
    assert left.min() >= 4 * 5 * torch.finfo(a.dtype).eps


@pytest.mark.float32
def test_cholesky_climbs_further_in_float32():
    factor, jitter = cholesky(torch.ones(4, 4))
    assert factor.dtype == torch.float32 and 1e-8 < jitter <= 1e-4
    torch.testing.assert_close(factor @ factor.T, torch.ones(4, 4), rtol=2e-4, atol=0)


def test_cholesky_of_a_batch_shares_one_rung():
    a = torch.stack([torch.eye(2), torch.full((2, 2), 3.0)])
    factor, jitter = cholesky(a)
    alone = [cholesky(one)[1] for one in a]
    assert alone[0] == 0 < alone[1] == jitter
    torch.testing.assert_close(factor[0] @ factor[0].T, (1 + jitter / 3) * torch.eye(2), rtol=1e-15, atol=0)
    torch.testing.assert_close(factor[1] @ factor[1].T, a[1] + jitter * torch.eye(2), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (
            [[1.0, 2.0], [2.0, 1.0]],
            r"expected a covariance, found a matrix that is not positive semidefinite \(smallest eigenvalue -1\)",
        ),
        ([[1.0, 0.0], [0.0, -0.01]], r"not positive semidefinite \(smallest eigenvalue -0.01\)"),
        ([[1.0, math.nan], [math.nan, 1.0]], r"finite matrix to factorize, found NaN or infinity"),
        ([[1.0, 0.0], [0.0, math.inf]], r"finite matrix to factorize, found NaN or infinity"),
        ([[0.0, 0.0], [0.0, 0.0]], r"positive diagonal to factorize, found zeros"),
    ],
)
def test_cholesky_refuses(a, message):
    refuses(message, cholesky, torch.tensor(a))
    refuses(message, cholesky, torch.stack([torch.eye(2), torch.tensor(a)]))


def test_the_jitter_of_a_covariance_is_relative_to_each_variance():
    """Features of deviation 1e6 and 0.1, the first two equal: a jitter in units of the mean variance would be 3 times 0.1^2."""
    scale = torch.tensor([1e6, 1e6, 0.1])
    S = scale[:, None] * torch.tensor([[1.0, 1.0, 0.5], [1.0, 1.0, 0.5], [0.5, 0.5, 1.0]]) * scale
    assert cholesky(S)[1] > 0.1**2
    factor, jitter = covariance_cholesky(S)
    assert 0 < jitter < 1e-12
    torch.testing.assert_close(factor @ factor.T, S + jitter * torch.diag(S.diagonal()), rtol=1e-12, atol=0)


def test_the_jitter_of_a_covariance_does_not_depend_on_units():
    z = torch.randn(20, 3)
    S = torch.cat([z, z[:, :2]], 1)
    S, scale = S.T @ S, torch.tensor([1e8, 1e-8, 1.0, 1e4, 1e-3])
    factor, jitter = covariance_cholesky(S)
    other, same = covariance_cholesky(scale[:, None] * S * scale)
    assert jitter == pytest.approx(same, rel=1e-12) and same > 0
    torch.testing.assert_close(other @ other.T, scale[:, None] * (factor @ factor.T) * scale, rtol=1e-9, atol=0)


def test_covariances_with_a_constant_feature_and_without_any():
    factor, jitter = covariance_cholesky(torch.diag(torch.tensor([4.0, 0.0])))
    torch.testing.assert_close(factor.diagonal().square(), torch.tensor([4.0, 2.0 * jitter]), rtol=1e-9, atol=0)
    for bad, message in ((torch.zeros(2, 2), "nothing varies"), (-torch.eye(2), "positive"), (torch.eye(2) * math.nan, "finite")):
        refuses(message, covariance_cholesky, bad)
    refuses("not positive semidefinite", covariance_cholesky, torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_symmetry_is_judged_in_the_units_of_the_features(dtype):
    x = torch.randn(50, 6, dtype=dtype) * torch.tensor([1e6, 1.0, 1.0, 1e-3, 1.0, 1.0], dtype=dtype)
    require_symmetric(x.T @ x)
    S = x.T @ x
    S[3, 4] += 0.01 * (S[3, 3] * S[4, 4]).sqrt()
    refuses("symmetric", require_symmetric, S)
    refuses("square", require_symmetric, x)
