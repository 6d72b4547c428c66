"""The bank of weighted pairs: MoCo where weights are equal (T10), the theorem of its weights (T11), its state and density."""

import copy
import dataclasses
import math

import pytest
import torch
from tests.learn.objectives.common import close, trained
from tests.reference import smc_bank as reference
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from vergence.densities import particles
from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.learn.evaluation.collapse import normalized_std
from vergence.learn.objectives import gmje_smc
from vergence.learn.objectives.gmje_smc import GMJESMC

B, D, M = 8, 5, 32
STATE = ("bank_a", "bank_b", "weights", "ages", "batches", "resamplings", "h2")


def pair(n=B, seed=0, d=D):
    """Returns two views whose pairs differ in length."""
    g = torch.Generator().manual_seed(seed)
    za = torch.randn(n, d, generator=g) * torch.linspace(0.5, 3, n)[:, None]
    return za, 0.8 * za + 0.4 * torch.randn(n, d, generator=g)


def filled(steps=6, spread=0.3, **settings):
    """Returns a bank of M pairs that has seen M / B batches, and then was given unequal weights."""
    smc = GMJESMC(D, bank=M, **settings)
    for seed in range(steps):
        smc.update(*pair(seed=seed))
    if spread and smc.rule.mode == "smc":
        smc.weights.copy_((spread * torch.randn(M, generator=torch.Generator().manual_seed(9))).softmax(0))
    return smc


def listed(smc):
    return [*(getattr(smc, name).tolist() for name in STATE[:4])]


def ess(w):
    return float(particles.effective_sample_size(w))


@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_is_the_reference(normalize):
    smc, (za, zb) = filled(spread=1.0, normalize=normalize), pair(seed=20)
    ka, kb, w, _ = listed(smc)
    a, b = za.tolist(), zb.tolist()
    if normalize:
        a, b, ka, kb = ([reference.unit(v) for v in rows] for rows in (a, b, ka, kb))
    both = [reference.info_nce(a, b, kb, w, 0.2), reference.info_nce(b, a, ka, w, 0.2)]
    close(smc(za, zb)["nce"], sum(both) / 2)
    assert abs(both[0] - both[1]) > 1e-3


def test_a_queue_is_mocos():
    """T10: the published loop, over steps that go round the queue twice."""
    smc = GMJESMC(D, bank=M, mode="fifo", temperature=0.07)
    queues, pointer = (smc.bank_a.tolist(), smc.bank_b.tolist()), 0
    for seed in range(9):
        za, zb = pair(seed=seed)
        a, b = za.tolist(), zb.tolist()
        moco = [reference.moco_loss(a, b, queues[1], 0.07), reference.moco_loss(b, a, queues[0], 0.07)]
        close(smc(za, zb)["nce"], sum(moco) / 2)
        smc.update(za, zb)
        reference.enqueue(queues[0], pointer, a)
        pointer = reference.enqueue(queues[1], pointer, b)
        close(smc.bank_b, queues[1][pointer:] + queues[1][:pointer], 0)


def test_the_loss_is_minus_the_log_responsibility_of_the_positive():
    """T8: of kernels of variance tau, for keys of equal length and queries of any."""
    smc, (za, zb) = filled(spread=1.0), pair(seed=20)
    keys, k = gmje_smc.unit(smc.bank_b), gmje_smc.unit(zb)
    result = []
    for q, positive in zip(za, k, strict=True):
        logits = torch.cat([torch.tensor([1 / M]), smc.weights]).log()
        mixture = MixtureOfGaussians(logits, torch.cat([positive[None], keys]), Diagonal(torch.full((D,), 0.2)))
        result.append(-mixture.responsibilities(q)[0].log())
    close(gmje_smc.info_nce(za, k, keys, smc.weights, 0.2), torch.stack(result).mean(), 1e-11)


def test_gradient_reaches_the_queries_alone():
    """In closed form: (sum_m gamma_m k_m - (1 - gamma_+) k) / tau for each direction by itself, with the target a constant."""
    smc = filled(spread=1.0, normalize=False, temperature=2.0)
    za, zb = (z.requires_grad_() for z in pair(seed=20))
    result = torch.autograd.grad(smc(za, zb)["nce"], (za, zb))
    for g, q, k, keys in ((result[0], za, zb, smc.bank_b), (result[1], zb, za, smc.bank_a)):
        log_w = torch.cat([torch.tensor([1 / M]), smc.weights]).log()
        gamma = (torch.cat([(q * k).sum(1, keepdim=True), q @ keys.T], 1) / 2.0 + log_w).softmax(1)
        close(g, 0.5 * (gamma[:, 1:] @ keys - (1 - gamma[:, :1]) * k) / 2.0 / B)
    (only,) = torch.autograd.grad(smc(za, zb.detach())["nce"], (za,))
    close(only, result[0], 0)
    assert list(smc.parameters()) == [] and not any(v.requires_grad for v in smc.buffers())


@pytest.mark.parametrize(("rho", "u"), [(0.05, 0.05), (1.0, 0.0), (0.0, 0.0), (0.3, 1.0)])
def test_a_step_is_the_reference(rho, u):
    smc = filled(momentum=1 - rho, u=u, ess_threshold=0.0)
    bank = list(zip(*listed(smc), strict=True))
    for seed in (11, 12, 13, 14, 15):
        za, zb = pair(seed=seed)
        smc.update(za, zb)
        bank, worth = reference.step(za.tolist(), zb.tolist(), bank, 0.2, rho, u)
        for result, expected in zip(listed(smc), zip(*bank, strict=True), strict=True):
            close(result, expected, 1e-11)
        assert 1 <= worth <= M + B
    assert int(smc.batches) == 11 and int(smc.resamplings) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["smc", "fifo"])
def test_invariants(mode, dtype):
    smc = GMJESMC(D, bank=M, mode=mode, momentum=0.5, ess_threshold=0.8, max_age=6).to(dtype)
    tol = 1e-6 if dtype == torch.float32 else 1e-14
    for seed in range(40):
        smc.update(*(z.to(dtype) for z in pair(5 + seed % 9, seed=seed)))
        assert (smc.weights >= 0).all() and abs(float(smc.weights.sum()) - 1) < tol
        assert 1 <= ess(smc.weights) <= M * (1 + tol)
        assert (smc.ages.diff() <= 0).all() and smc.ages[-1] == 0 and smc.weights.dtype == dtype
    assert (int(smc.resamplings) > 3) == (mode == "smc") and int(smc.batches) == 40


def test_resampling_draws_from_the_pool_and_makes_weights_equal():
    smc, (za, zb) = filled(ess_threshold=0.95, momentum=1.0, u=0.0, spread=1.5), pair(seed=20)
    before, resampled = copy.deepcopy(smc), int(smc.resamplings)
    smc.update(za, zb)
    assert int(smc.resamplings) == resampled + 1
    close(smc.weights, torch.full((M,), 1 / M), 1e-15)
    pool = torch.cat([before.bank_a, za])
    w = torch.cat([before.weights * M, torch.ones(B)]) / (M + B)
    counts = (smc.bank_a[:, None] == pool).all(-1).sum(0)
    assert counts.sum() == M and ((counts - M * w).abs() < 1).all()  # systematic: floor or ceil of M w
    assert ((smc.bank_b[:, None] == torch.cat([before.bank_b, zb])).all(-1).sum(0) == counts).all(), "pairs stay pairs"
    before.rule = dataclasses.replace(before.rule, ess_threshold=0.1)
    before.update(za, zb)
    assert int(before.resamplings) == resampled and ess(before.weights) < 0.9 * M


def test_the_lightest_leave_and_the_oldest_of_equals():
    smc = filled(momentum=1.0, u=0.0, ess_threshold=0.0, spread=0.0)
    smc.weights.fill_(1.0)
    smc.weights[:4] = 3.0  # the oldest are heavy
    smc.weights[10:13] = 0.5
    smc.weights /= smc.weights.sum()
    stored = [m for m in range(M) if m not in (10, 11, 12, 4, 5, 6, 7, 8)]
    expected = torch.cat([smc.bank_b[stored], pair(seed=20)[1]])
    smc.update(*pair(seed=20))
    assert torch.equal(smc.bank_b, expected)


def test_an_age_may_be_bounded():
    settings = {"momentum": 1.0, "u": 0.0, "ess_threshold": 0.0, "spread": 0.0}
    bounded, free = filled(max_age=3, **settings), filled(**settings)
    for smc in (bounded, free):
        smc.weights[:B] = 5 / M  # of age 3
        smc.weights /= smc.weights.sum()
        smc.update(*pair(seed=20))
    assert bounded.ages.max() == 3 and free.ages.max() == 4
    drawn = filled(max_age=2, ess_threshold=2.0)
    drawn.update(*pair(seed=20))
    assert drawn.ages.max() <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_stay_make_the_bank_a_queue(dtype):
    """T10: with momentum 1, u = 0 and no resampling; loss and bank, also while the first vectors leave."""
    smc, queue = (GMJESMC(D, bank=M, mode=mode, momentum=1.0, u=0.0, ess_threshold=0.0).to(dtype) for mode in ("smc", "fifo"))
    tol = 1e-6 if dtype == torch.float32 else 4e-15
    for seed in range(10):
        za, zb = (z.to(dtype) for z in pair(7, seed=seed))
        close(smc(za, zb)["nce"], queue(za, zb)["nce"], tol)
        smc.update(za, zb)
        queue.update(za, zb)
        assert torch.equal(smc.bank_a, queue.bank_a) and torch.equal(smc.ages, queue.ages)


@pytest.mark.parametrize("mode", ["smc", "fifo"])
def test_the_first_vectors_leave_before_any_pair(mode):
    smc = GMJESMC(D, bank=M, mode=mode, momentum=0.1, u=0.0, ess_threshold=2.0)
    close(smc.bank_a.norm(dim=1), torch.ones(M))
    start, seen = smc.bank_a.clone(), []
    for seed in range(4):
        seen.append(pair(7, seed=seed)[0])
        smc.update(*pair(7, seed=seed))
        left = M - 7 * (seed + 1)
        assert torch.equal(smc.bank_a[left:], torch.cat(seen)) and torch.equal(smc.bank_a[:left], start[M - left :])
    smc.update(*pair(7, seed=4))
    pairs = torch.cat([*seen, pair(7, seed=4)[0]])
    assert (smc.bank_a[:, None] == pairs).all(-1).any(1).all() and int(smc.resamplings) == 0
    smc.update(*pair(7, seed=5))
    assert int(smc.resamplings) == (mode == "smc")


def as_wide_as_the_loss(smc):
    """Gives the density the loss's kernel if all embeddings were as long as they are on average."""
    squares = 0.5 * (smc.bank_a.square().sum(1) + smc.bank_b.square().sum(1))
    smc.h2.copy_(smc.tau * smc.weights @ squares)
    return smc


def test_the_width_is_that_of_the_likeliest_kernels():
    """On a stream that does not drift it goes to where the likelihood of new pairs is largest."""
    g = torch.Generator().manual_seed(0)
    centers, smc = 5 * torch.randn(20, 2 * D, generator=g), GMJESMC(D, bank=400, u=0.0, momentum=1.0)

    def batch(n=50):
        return (centers[torch.randint(20, (n,), generator=g)] + 0.3 * torch.randn(n, 2 * D, generator=g)).split(D, 1)

    for _ in range(200):
        smc.update(*batch())
    za, zb = batch(2000)
    result = {}
    for factor in (0.5, 0.8, 1.0, 1.25, 2.0):
        other = copy.deepcopy(smc)
        other.h2 *= factor
        result[factor] = float(other.joint().log_prob(torch.cat([za, zb], 1)).mean())
    assert max(result, key=result.get) == 1.0


def test_the_density_is_the_reference():
    smc, (za, zb) = as_wide_as_the_loss(filled(spread=1.0)), pair(seed=20)
    given, alone = reference.log_density(za.tolist(), zb.tolist(), *listed(smc)[:3], 0.2)
    close(smc.log_prob(zb, za), given, 1e-11)
    close(smc.score(za), [-x for x in alone], 1e-11)
    h = smc.h2.sqrt()
    kernels = Independent(Normal(torch.cat([smc.bank_a, smc.bank_b], 1), h), 1)
    torchs = MixtureSameFamily(Categorical(smc.weights), kernels)
    close(smc.joint().log_prob(torch.cat([za, zb], 1)), torchs.log_prob(torch.cat([za, zb], 1)), 1e-11)
    close(smc.log_prob(zb, za) - smc.score(za), torchs.log_prob(torch.cat([za, zb], 1)), 1e-11)


def test_weights_of_zero():
    smc, (za, zb) = filled(momentum=0.0, u=0.0), (z.requires_grad_() for z in pair(seed=20))
    smc.weights[: M // 2] = 0
    smc.weights /= smc.weights.sum()
    loss = smc(za, zb)["nce"]
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, (za, zb)))
    assert torch.isfinite(smc.log_prob(zb, za)).all()
    smc.update(za.detach(), zb.detach())
    assert torch.isfinite(smc.weights).all()


def test_diagnostics():
    smc, (za, zb) = GMJESMC(D, bank=M), pair()
    numbers = smc.diagnostics(za, zb)
    assert numbers["ess"] == pytest.approx(1) and numbers["components"] == pytest.approx(M)
    assert numbers["age"] == numbers["resampled"] == 0 and numbers["variance"] > 0
    smc = filled(ess_threshold=2.0)
    numbers = smc.diagnostics(za, zb)
    assert numbers["age"] == pytest.approx(smc.ages.double().mean()) and numbers["resampled"] == int(smc.resamplings) / 6 > 0


class Alignment(GMJESMC):
    """What is left without the bank's keys: planted, to collapse."""

    def forward(self, za, zb):
        return {"nce": -(gmje_smc.unit(za) * gmje_smc.unit(zb)).sum(1).mean()}


def spread_and_retrieval(objective, teacher=None, steps=250):
    """Returns how far embeddings spread, and how often the nearest second view is the item's own, among 500 new items."""
    za, zb = (gmje_smc.unit(z) for z in trained(objective, steps, dim=6, batch=64, noise=0.3, new=500, teacher=teacher))
    right = (za @ zb.T).argmax(1) == torch.arange(500)
    return float(normalized_std(za).mean()), float(right.double().mean())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["smc", "fifo"])
@pytest.mark.parametrize("teacher", [GMJESMC.teacher, None], ids=["teacher", "no teacher"])
def test_it_does_not_collapse_and_alignment_alone_does(mode, teacher):
    spread, retrieval = spread_and_retrieval(GMJESMC(6, bank=256, mode=mode), teacher)
    untrained = spread_and_retrieval(GMJESMC(6, bank=256, mode=mode), teacher, steps=0)[1]
    assert spread > 0.9 and retrieval > untrained + 0.2
    assert spread_and_retrieval(Alignment(6, bank=256))[0] < 0.1


def test_small_and_large_losses_keep_their_digits():
    """log(1 + e^x), for a bank of one key that is x nats closer than the positive."""
    q = torch.tensor([[1.0, 0.0]])
    for far in (-600.0, -30.0, 21.0, 39.0, 600.0):
        loss = gmje_smc.info_nce(q, torch.tensor([[0.0, 1.0]]), far * q, torch.ones(1), 1.0)
        close(loss, max(far, 0) + math.log1p(math.exp(-abs(far))), 1e-13)
        assert loss > 0
