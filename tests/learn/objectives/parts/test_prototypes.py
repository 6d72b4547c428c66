"""Learnable prototypes, stepwise EM, the bank and a moving Gaussian: begin, floors, what is kept, when a fit is due, state."""

import math

import pytest
import torch
from tests.learn.objectives.common import as_em, close
from tests.reference import gmje as slow

from vergence.densities.covariance import Dense, LowRank
from vergence.learn.objectives.parts.prototypes import MixtureBank, OnlineMixture, Prototypes

D, K = 4, 3


def moved(prototypes, by=0.5):
    with torch.no_grad():
        for parameter in prototypes.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return prototypes


def items(n=60, seed=0):
    return torch.cat(slow.pair(n, D // 2, seed), 1)


def turn():
    """Returns T of [(z_a + z_b); (z_a - z_b)] / sqrt(2) = T z, which is its own inverse."""
    eye = torch.eye(D // 2)
    return torch.cat([torch.cat([eye, eye], 1), torch.cat([eye, -eye], 1)]) / math.sqrt(2)


def covariances(density):
    return density.component_distribution.covariance.detach()


@pytest.mark.parametrize("floor", [0.01, 0.3, 0.99])
def test_prototypes_begin_with_unit_covariances_and_equal_weights(floor):
    full = Prototypes(D, K, rank=None, floor=floor).density()
    close(covariances(full), torch.eye(D).expand(K, D, D), 1e-12)
    close(full.weights, torch.full((K,), 1 / K))
    low = Prototypes(D, K, rank=2, floor=floor)
    U = turn() @ low.shared.detach()
    close(covariances(low.density()), torch.eye(D) + U @ U.mT, 1e-12)
    assert 0 < U.abs().max() < 0.05


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("floor", [0.05, 0.6])
def test_the_floor_is_below_every_eigenvalue(rank, floor):
    torch.manual_seed(0)
    for by in (0.5, 3.0):
        low = torch.linalg.eigvalsh(covariances(moved(Prototypes(D, 20, rank=rank, floor=floor), by).density())).min()
        assert low >= floor**2 - 1e-10
    flat = Prototypes(D, 2, rank=rank, floor=floor)
    with torch.no_grad():
        flat.spread.fill_(-40)
        flat.shared.zero_()
    close(covariances(flat.density()), floor**2 * torch.eye(D).expand(2, D, D), 1e-12)


def test_covariances_of_low_rank_are_the_dense_ones():
    prototypes, z = moved(Prototypes(D, K, rank=2, floor=0.3)), items()
    low = prototypes.density(context=2)
    dense = type(low)(prototypes.logits, prototypes.means, Dense.of(covariances(low)), context=2)
    assert isinstance(low.component_distribution.S, LowRank)
    close(low.log_prob(z), dense.log_prob(z))
    close(low.log_prob(z), torch.tensor([slow.log_density(slow.parts(low), x) for x in z]))
    close(low.conditional(z[:, :2]).log_prob(z[:, 2:]), dense.conditional(z[:, :2]).log_prob(z[:, 2:]))
    for block in ("context", "target"):
        close(low.marginal(block).log_prob(z[:, :2]), dense.marginal(block).log_prob(z[:, :2]))


def moving(momentum=0.0, floor=0.1, mixture=None, components=K):
    result = OnlineMixture(D, components, floor=floor, momentum=momentum)
    if mixture is not None:
        for k, (w, mu, S) in enumerate(mixture):
            result.N[k], result.mu[k], result.S[k] = w, mu, S - floor**2 * torch.eye(D)
        result.begun.fill_(True)
    return result


def test_items_of_the_first_batch_are_the_first_means():
    result, z = moving(1 - 1e-9), items() + 7
    result.update(z)
    close(result.density().component_distribution.mean, z[[0, 29, 59]], 0.05)
    close(covariances(result.density()), 1.01 * torch.eye(D).expand(K, D, D), 1e-6)
    result.update(items(seed=1))
    close(result.density().component_distribution.mean, z[[0, 29, 59]], 0.05)


def test_without_momentum_a_batch_is_a_step_of_em():
    z, mixture = items(), slow.planted(K, D)
    result = moving(mixture=mixture)
    result.update(z)
    expected = slow.em_step(mixture, z, 0.1**2)
    density = result.density()
    for k, (w, mu, S) in enumerate(expected):
        close(density.weights[k], w, 1e-10)
        close(density.component_distribution.mean[k], mu, 1e-10)
        close(covariances(density)[k], S, 1e-10)


def test_a_component_that_nothing_chooses_keeps_its_place_and_a_least_weight():
    mixture = [(0.5, torch.zeros(D), torch.eye(D)), (0.5, torch.full((D,), 30.0), torch.diag(torch.arange(1.0, D + 1)))]
    result = moving(0.5, mixture=mixture, components=2)
    for seed in range(60):
        result.update(torch.randn(100, D, generator=torch.Generator().manual_seed(seed)))
    density = result.density()
    assert density.weights.min() >= 1e-3 / 2 * (1 - 1e-3) and result.N.min() >= 1e-3 / 2 - 1e-12
    close(density.component_distribution.mean[1], mixture[1][1], 1e-8)
    close(covariances(density)[1], mixture[1][2], 1e-6)
    assert torch.isfinite(density.log_prob(items())).all()


def bank(size=20, rank=None, **settings):
    return MixtureBank(D, **({"size": size, "components": K, "rank": rank, "floor": 0.1} | settings))


@pytest.mark.parametrize("sizes", [[7, 7, 7, 7], [3, 20, 1, 19], [1] * 45, [50], [5, 50, 3], [20, 20], [13, 40, 27, 2, 61]])
def test_the_last_items_are_kept(sizes):
    """In whatever order: what matters is which."""
    result, seen = bank(), torch.empty(0, D)
    for i, n in enumerate(sizes):
        z = torch.arange(n * D).view(n, D) / 7 + 1000.0 * i
        result.push(z)
        seen = torch.cat([seen, z])
        expected = seen[-20:]
        assert len(result.items()) == len(expected)
        close(result.items()[:, 0].sort().values, expected[:, 0].sort().values, 0)
    stored = result.items()[result.items()[:, 0].argsort()]
    assert torch.equal(stored, expected[expected[:, 0].argsort()])


def test_when_a_fit_is_due():
    """After the first batch, when the items have doubled, and, once the bank is full, after so many as it holds."""
    result = bank(size=100)
    due = [at for at in range(10, 1001, 10) if result.push(torch.zeros(10, D))]
    assert due == [10, 20, 40, 80, 160, *range(260, 1001, 100)]
    assert [bank(size=20).push(torch.zeros(30, D)) for _ in range(1)] == [True]
    big = bank(size=20)
    assert [big.push(torch.zeros(30, D)) for _ in range(3)] == [True] * 3


def test_a_fit_is_steps_of_em():
    result, z, expected = bank(size=60), items(60), slow.planted(K, D)
    result.push(z)
    result.fit(as_em(expected), steps=3)
    for _ in range(3):
        expected = slow.em_step(expected, z, 0.1**2)
    for (w, mu, S), (v, nu, T) in zip(slow.parts(result.density()), expected, strict=True):
        close(torch.tensor(w), torch.tensor(v), 1e-8)
        close(mu, nu, 1e-8)
        close(S, T, 1e-8)


def test_the_bank_of_low_rank_holds_turned_pairs():
    result, z = bank(size=60, rank=1), items(60)
    result.push(z)
    close(result.items(), z @ turn())
    r = torch.ones(1, 1, 60)
    result.fit(result.start(r), steps=50)
    (_, mean, _) = slow.parts(result.density())[0]
    close(mean, z.mean(0))
    assert result.density().log_prob(z).mean() > result.density().log_prob(z @ turn()).mean() + 0.1


def test_of_several_starts_the_likeliest_end_is_kept():
    z = items(60)
    good, poor = slow.planted(K, D), [(1 / 3, torch.full((D,), 9.0), torch.eye(D))] * 3
    result = {}
    for name, starts in {"good": [good], "poor": [poor], "both": [good, poor], "turned": [poor, good]}.items():
        first = bank(size=60)
        first.push(z)
        first.fit(*map(as_em, starts), steps=2)
        result[name] = first.density().log_prob(z).mean().item()
    assert result["good"] > result["poor"] + 0.1
    assert result["both"] == result["turned"] == result["good"]


@pytest.mark.parametrize("rank", [None, 2])
def test_no_variance_of_a_fit_is_below_the_floor(rank):
    result = bank(size=60, rank=rank, floor=0.25)
    result.push(torch.cat([torch.ones(30, D), -torch.ones(30, D)]))
    r = torch.zeros(1, 2, 60)
    r[0, 0, :30] = r[0, 1, 30:] = 1
    result.fit(result.start(r), steps=5)
    assert torch.linalg.eigvalsh(covariances(result.density())[:2]).min() >= 0.25**2 - 1e-9
