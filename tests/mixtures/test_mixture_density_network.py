"""The mixture density network: loops, closed-form gradients, the branches of data A, small data, batches of restarts."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from tests.mixtures.common import EPS, branches, separated
from tests.reference import mdn as reference

from vergence.mixtures import MixtureDensityNetwork
from vergence.mixtures import mixture_density_network as mdn

K, T, B = 4, 3, 6
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def true_nll(x, t):
    log_p = -0.5 * ((t - branches(x[:, 0])) / EPS) ** 2 - math.log(3 * EPS) - LOG_SQRT_2PI
    return -float(np.logaddexp.reduce(log_p).mean())


def widening(n, seed):
    """One branch, whose noise grows from 0.1 to 0.5."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    return x[:, None], np.sin(3 * x) + spread(x) * rng.normal(size=n)


def spread(x):
    return 0.3 + 0.2 * x


def small(**also):
    return MixtureDensityNetwork(**{"n_components": 2, "hidden": (16,), "steps": 60, "n_init": 1, "random_state": 0, **also})


def outputs(*batch):
    return torch.randn(*batch, K), torch.randn(*batch, K, T), 0.5 * torch.randn(*batch, K, T), torch.randn(*batch, T)


@pytest.fixture(scope="module")
def on_branches():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    fitted = MixtureDensityNetwork(steps=900, folds=0, hidden=(64, 64), random_state=0).fit(*separated(3000, 0)[:2])
    torch.set_default_dtype(before)
    return fitted


def test_the_likelihood_is_the_loops():
    a, m, s, t = outputs(B)
    expected = [reference.negative_log_likelihood(*(v[b].tolist() for v in (a, m, s, t))) for b in range(B)]
    torch.testing.assert_close(mdn.negative_log_likelihood(a, m, s, t), torch.tensor(expected), rtol=1e-12, atol=1e-12)


def test_extreme_outputs_stay_finite():
    a, m, s = torch.tensor([[500.0, -500.0]]), torch.tensor([[[1e4], [-1e4]]]), torch.tensor([[[-5.0], [3.0]]])
    t = torch.zeros(1, 1)
    loss = mdn.negative_log_likelihood(*(v.requires_grad_() for v in (a, m, s)), t)
    assert loss.isfinite().all() and all(g.isfinite().all() for g in torch.autograd.grad(loss.sum(), (a, m, s)))


def test_the_network_is_the_loops():
    widths = [2, 5, 4, 7]
    layers = list(itertools.pairwise(widths))
    theta, x = torch.randn(3, sum(i * o + o for i, o in layers)), torch.randn(3, B, 2)
    found = mdn.network(theta, x, layers)
    for r in range(3):
        for b in range(B):
            np.testing.assert_allclose(found[r, b], reference.network(theta[r].tolist(), x[r, b].tolist(), widths), atol=1e-12)


def test_annealing_keeps_the_sum_of_rates():
    def total(k, steps):
        return sum(0.5 * (1 + math.cos(math.pi * j / steps)) for j in range(k))

    assert mdn.annealed(0, 2000) == 0 and mdn.annealed(2000, 2000) == 2000 and mdn.annealed(20, 2000) == 40
    for k in (100, 700, 1500):
        n = mdn.annealed(k, 2000)
        assert total(n, n) == pytest.approx(total(k, 2000), rel=0.01)


def test_restarts_in_a_batch_are_restarts_alone():
    model = small(n_init=3, steps=60, folds=0).fit(*separated(300, 1)[:2])
    pairs, rows = (torch.randn(300, 1), torch.randn(300, 1), torch.ones(300)), torch.arange(300).expand(3, -1)
    starts = model._initialized(pairs[1], pairs[2], 3, torch.Generator().manual_seed(1))
    assert not torch.allclose(starts[0], starts[1])

    def trained(which):
        theta = starts[which].clone()
        model._train(pairs, theta, rows[which], rows[which][:, :9], torch.Generator().manual_seed(2), 60)
        return theta.detach()

    together = trained(slice(None))
    assert (together - starts).abs().max() > 0.01
    for r in range(3):
        torch.testing.assert_close(together[r], trained(slice(r, r + 1))[0], rtol=1e-6, atol=1e-6)


def test_an_epoch_takes_every_item_once():
    rows = torch.stack([torch.arange(10), torch.arange(10, 20)])
    batches = mdn.minibatches(rows, 5, torch.Generator().manual_seed(0))
    epoch = torch.cat([next(batches), next(batches)], 1)
    assert torch.equal(epoch.sort(1).values, rows) and torch.equal(epoch[1], epoch[0] + 10)
    assert next(mdn.minibatches(rows, 99, torch.Generator())).shape == (2, 10)


def test_folds_are_evaluated_on_held_out_items(monkeypatch):
    seen = []

    def train(self, pairs, theta, rows, probe, g, steps, use):
        seen.append((rows, probe, use))
        return np.array([[1.0], [np.nan], [0.5], [0.7]])

    model = small(folds=5)
    model.n_features_in_, model.n_targets_ = 1, 1
    monkeypatch.setattr(MixtureDensityNetwork, "_train", train)
    for N, nets, held in ((23, 5, 4), (3000, 2, 600), (20_000, 1, 1000), (3, 3, 1)):
        pairs = (torch.randn(N, 1), torch.randn(N, 1), torch.ones(N))
        assert model._on_folds(pairs, torch.arange(N), torch.Generator()).argmin() == 2  # NaN is not a minimum
        rows, probe, use = seen[-1]
        assert (use == 1).all()
        assert rows.shape == (nets, N - held) and probe.shape == (nets, held)
        for r, p in zip(rows.tolist(), probe.tolist(), strict=True):
            assert sorted(r + p) == list(range(N))
        assert len(set(probe.flatten().tolist())) == nets * held  # each fold holds out others
    label = torch.arange(300) // 30
    pairs = (torch.randn(300, 1), torch.randn(300, 1), torch.ones(300))
    model._on_folds(pairs, label, torch.Generator())
    rows, probe, use = seen[-1]
    for r, p, u in zip(rows, probe, use, strict=True):
        assert not set(label[r[u > 0]].tolist()) & set(label[p].tolist()) and u.sum() >= 200


def test_the_kept_restart_has_the_least_training_loss():
    c, t = separated(300, 2)[:2]
    model = small(n_init=4, folds=0).fit(c, t)
    assert model.best_ == model.train_nll_.argmin() and model.train_nll_.shape == (4,)
    assert -model.score(c, t) == pytest.approx(model.train_nll_[model.best_], abs=1e-5)
    assert model.loss_curve_.shape == (4, 4) and model.validation_curve_.shape == (0,)  # evaluated at steps 0, 20, 40, 60


def test_parameters_do_not_depend_on_the_target():
    model = small().fit(*separated(200, 3)[:2])
    c, t = torch.randn(B, 1, requires_grad=True), torch.randn(B, 1, requires_grad=True)
    for v in model.parameters(c):
        assert torch.autograd.grad(v.sum(), t, retain_graph=True, allow_unused=True)[0] is None
        assert torch.autograd.grad(v.sum(), c, retain_graph=True)[0].abs().max() > 0
    slope = torch.autograd.grad(model.conditional(c).log_prob(t).sum(), t)[0]
    given = model.conditional(c.detach())  # the density's own slope is all there is
    assert torch.equal(slope, torch.autograd.grad(given.log_prob(t).sum(), t)[0])


def test_data_a(on_branches):
    model, (c, t) = on_branches, separated(5000, 1)[:2]
    weights, means, stds = model.routing(c)
    assert weights.shape == (5000, 3) and means.shape == stds.shape == (5000, 3, 1)
    order = (-means.mean(0)[:, 0]).argsort()
    assert abs(weights.mean(0) - 1 / 3).max() < 0.05
    rmse = np.sqrt(((means[:, order, 0] - branches(c[:, 0]).T) ** 2).mean(0))
    assert rmse.max() < 0.03
    assert 0.04 < np.sqrt((stds**2).mean((0, 2))).min() and np.sqrt((stds**2).mean((0, 2))).max() < 0.065
    assert -model.score(c, t) == pytest.approx(true_nll(c, t), abs=0.05)


def test_the_mode_is_on_a_branch_and_the_mean_is_not(on_branches):
    c = separated(500, 4)[:2][0]
    off = [abs(p - branches(c[:, 0])).min(0) for p in (on_branches.mode(c), on_branches.predict(c))]
    assert off[0].max() < 0.1 and np.median(off[1]) > 0.1


@pytest.mark.slow
def test_one_component_is_the_regression():
    rng = np.random.default_rng(0)
    c = rng.normal(size=(1000, 2))
    t = c @ [[1.0, 0.0], [-0.5, 2.0]] + rng.normal(size=(1000, 2)) * [0.3, 1.0] + [5.0, 0.0]
    model = small(n_components=1, steps=600, folds=0).fit(c, t)
    line = LinearRegression().fit(c, t)
    inside = c[(abs(c) < 1.5).all(1)]
    np.testing.assert_allclose(model.predict(inside), line.predict(inside), atol=0.25)
    std = model.conditional(torch.from_numpy(inside)).variance.sqrt().detach().numpy()
    np.testing.assert_allclose(std.mean(0), (t - line.predict(c)).std(0), rtol=0.1)


@pytest.mark.slow
def test_noise_that_depends_on_the_context_is_found():
    model = MixtureDensityNetwork(n_components=1, hidden=(32, 32), steps=600, n_init=1, random_state=0).fit(*widening(2000, 0))
    x = np.linspace(-0.9, 0.9, 19)
    found = model.conditional(torch.from_numpy(x[:, None])).variance.sqrt().detach().numpy()[:, 0]
    np.testing.assert_allclose(found, spread(x), rtol=0.25)
    assert np.sqrt(((found / spread(x) - 1) ** 2).mean()) < 0.12


@pytest.mark.slow
def test_folds_prevent_overfitting_of_small_data():
    (c, t), (held_c, held_t) = widening(100, 2), widening(4000, 2)
    truth = float((0.5 * ((held_t - np.sin(3 * held_c[:, 0])) / spread(held_c[:, 0])) ** 2 + np.log(spread(held_c[:, 0]))).mean())
    truth += LOG_SQRT_2PI
    settings = {"steps": 1500, "n_init": 1, "random_state": 1}
    by_heart = MixtureDensityNetwork(folds=0, **settings).fit(c, t)
    assert -by_heart.score(held_c, held_t) > truth + 0.4  # the precondition
    model = MixtureDensityNetwork(**settings).fit(c, t)
    assert model.steps_ < 300 and -model.score(held_c, held_t) < truth + 0.2
    assert model.validation_curve_.argmin() * mdn.EVERY <= model.steps_


def test_initial_means_are_quantiles_or_cluster_centers():
    z = torch.randn(4000, 1)
    np.testing.assert_allclose(mdn.centers(z, 4, 0)[:, 0], z.quantile(torch.tensor([0.125, 0.375, 0.625, 0.875]), 0)[:, 0])
    corners = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [0.0, 2.0]])
    clouds = corners.repeat(50, 1) + 0.01 * torch.randn(150, 2)
    found = mdn.centers(clouds, 3, 0)
    assert torch.cdist(corners, found).min(1).values.max() < 0.05
    layers = [(1, 8), (8, 15)]
    out = mdn.network(mdn.initialized(layers, clouds, 3, 0)[None], torch.zeros(1, 1, 1), layers)[0, 0]
    a, m, s = mdn.split_outputs(out, 3)
    assert a.abs().max() < 0.1 and (m - found).abs().max() < 0.1 and (s + math.log(3)).abs().max() < 0.1


def test_several_targets():
    rng = np.random.default_rng(0)
    x, side = rng.uniform(-1, 1, 1500), rng.choice([-1, 1], 1500)
    t = np.stack([side * (1.5 + 0.5 * x), 10 * side * x], 1) + rng.normal(size=(1500, 2)) * [0.1, 1.0]
    model = small(hidden=(32, 32), steps=500, folds=0).fit(x[:, None], t)
    weights, means, stds = model.routing([[0.5]])
    first = means[0, :, 0].argsort()
    np.testing.assert_allclose(means[0, first], [[-1.75, -5], [1.75, 5]], rtol=0.1, atol=0.1)
    np.testing.assert_allclose(stds[0], [[0.1, 1.0]] * 2, rtol=0.3)
    np.testing.assert_allclose(weights, 0.5, atol=0.1)


@pytest.mark.filterwarnings("ignore::vergence.mixtures.core.FarValue")
@pytest.mark.parametrize("N", [2, 3, 7])
def test_few_items(N):
    c, t = separated(N, 7)[:2]
    model = MixtureDensityNetwork(n_components=2, random_state=0).fit(c, t)
    assert np.isfinite(model.score_samples(c, t)).all() and np.isfinite(model.predict([[100.0]])).all()
