"""Joint-embedding prediction: the loss against loops, the conditional average, targets without gradient, the density kept."""

import math

import pytest
import torch
from tests.learn.objectives.common import close, descended, trained
from torch.distributions import Independent, MultivariateNormal, Normal

from vergence.learn.objectives.jepa import JEPA, squared_error

B, D = 24, 3
EPS = 0.05  # noise of the branches


def pair(n=B, seed=0):
    g = torch.Generator().manual_seed(seed)
    za = torch.randn(n, D, generator=g)
    return za, 0.8 * za + 0.5 * torch.randn(n, D, generator=g)


def loss(objective, za, zb):
    return objective(za, zb)["squared"]


def slow(f, context, target):
    """Returns the mean over pairs of the sum over features of (f(z) - target)^2, item by item."""
    total = 0.0
    for z, t in zip(context, target, strict=True):
        guess = f(z[None])[0].detach()
        for d in range(D):
            total += float(guess[d] - t[d]) ** 2
    return total / len(context)


def network(f, z):
    """Returns a predictor's value from its parameters: linear, layer normalization, ReLU, linear."""
    W, b, scale, shift, V, c = f.parameters()
    h = z @ W.T + b
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, correction=0, keepdim=True) + 1e-5).sqrt() * scale + shift
    return h.clamp(min=0) @ V.T + c


@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_is_that_of_the_loops(tied):
    objective, (za, zb) = JEPA(D, tied=tied), pair()
    assert len(objective.predictors) == (1 if tied else 2)
    ab = slow(lambda z: network(objective.predictors[0], z), za, zb)
    ba = slow(lambda z: network(objective.predictors[-1], z), zb, za)
    close(loss(objective, za, zb), 0.5 * (ab + ba))
    assert abs(ab - ba) > 1e-3  # so that a loss of one direction would show
    close(squared_error(za, zb), (za - zb).square().sum() / B)


def test_directions_are_separate_unless_tied():
    za, zb = pair()
    tied, untied = JEPA(D), JEPA(D, tied=False)
    close(tied.predict(za), tied.predict(za, backward=True))
    close(loss(tied, za, zb), loss(tied, zb, za))
    assert (untied.predict(za) - untied.predict(za, backward=True)).abs().max() > 0.1
    close(untied.conditional(za).mean, network(untied.predictors[0], za))
    there = torch.autograd.grad(squared_error(untied.predict(za), zb), list(untied.parameters()), allow_unused=True)
    assert [g is None for g in there] == 6 * [False] + 6 * [True]


@pytest.mark.parametrize("tied", [True, False])
def test_targets_get_no_gradient(tied):
    """The gradient of z_b is that of the direction from z_b alone, with its target held at z_a's value."""
    objective, (za, zb) = JEPA(D, tied=tied), (z.requires_grad_() for z in pair())
    result = torch.autograd.grad(loss(objective, za, zb), (za, zb))

    def held(a, b):
        """Returns the loss as it is seen from contexts a and b, with targets that never move."""
        ab = (objective.predict(a) - zb.detach()).square().sum(1).mean()
        return 0.5 * (ab + (objective.predict(b, backward=True) - za.detach()).square().sum(1).mean())

    step, e = 1e-5, torch.randn(B, D)
    for i, g in enumerate(result):
        ends = [[z.detach() + s * step * e * (i == j) for j, z in enumerate((za, zb))] for s in (1, -1)]
        close((g * e).sum(), (held(*ends[0]) - held(*ends[1])) / (2 * step), 1e-7)
        moving = (loss(objective, *ends[0]) - loss(objective, *ends[1])) / (2 * step)
        assert ((g * e).sum() - moving).abs() > 1e-3  # what a target with gradient would give
    alone = torch.autograd.grad(loss(objective, za, zb.detach()), za)[0]
    close(alone, result[0])
    leaked = torch.autograd.grad(squared_error(objective.predict(za), zb), (za, zb), allow_unused=True)
    assert leaked[1] is None and leaked[0].norm() > 0


def branches(x):
    """Returns the three branches of the specification's set A, (3, N)."""
    pi = math.pi
    return torch.stack([1 + 0.3 * torch.sin(pi * x), 0.3 * torch.sin(2 * pi * x), -1 + 0.3 * torch.cos(pi * x)])


def branch_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, generator=g) - 1
    k = torch.randint(3, (n,), generator=g)
    y = branches(x).gather(0, k[None])[0] + EPS * torch.randn(n, generator=g)
    return x[:, None], y[:, None]


@pytest.mark.slow
def test_it_converges_to_the_conditional_average():
    """T18: between three branches, where no target ever is; the error left is their variance, and the density knows it."""
    torch.manual_seed(0)
    (za, zb), objective = branch_data(3000, 0), JEPA(1, tied=False)
    descended(objective.predictors[0], lambda: loss(objective, za, zb), 400, 5e-3)
    with torch.no_grad():
        objective.update(za, zb)
        xs, ys = branch_data(5000, 1)
        f, truth = objective.predict(xs)[:, 0], branches(xs[:, 0])
        assert (f - truth.mean(0)).square().mean().sqrt() < 0.08
        assert (f - truth).abs().min(0).values.mean() > 2.5 * EPS
        irreducible = (truth.var(0, correction=0).mean() + EPS**2).item()
        assert squared_error(f[:, None], ys).item() == pytest.approx(irreducible, rel=0.05)
        assert objective.conditional(xs).variance[0].item() == pytest.approx(irreducible, rel=0.05)
        unimodal = 0.5 * math.log(2 * math.pi * math.e * irreducible)
        assert -objective.log_prob(ys, xs).mean().item() == pytest.approx(unimodal, abs=0.05)  # -0.48 knows the branches


def test_constant_embeddings_have_no_loss():
    """A collapsed encoder is a global minimum: no loss and no gradient."""
    objective, c = JEPA(D), torch.randn(D)
    with torch.no_grad():
        objective.predictors[0][-1].weight.zero_()
        objective.predictors[0][-1].bias.copy_(c)
    za, zb = (c.repeat(B, 1).requires_grad_() for _ in range(2))
    value = loss(objective, za, zb)
    assert value == 0 and all(g.abs().max() == 0 for g in torch.autograd.grad(value, (za, zb, *objective.parameters())))


@pytest.mark.slow
def test_a_teacher_only_slows_collapse():
    """Directions die, though the target is a slow copy and a predictor lies between: nothing pays for volume."""
    before, after = (
        objective.diagnostics(*trained(objective, steps, batch=256, teacher=JEPA.teacher))
        for steps, objective in ((0, JEPA(D)), (300, JEPA(D)))
    )
    assert JEPA.teacher == 0.99
    assert before["condition"] < 20 < 200 < after["condition"]
    assert after["eigenvalue_min"] < before["eigenvalue_min"] / 2


def test_residuals_are_averaged_as_the_loops_do():
    """The first batches weigh alike, later ones with 1 - momentum, the same as those of the mean of z_a."""
    objective, expected, mean, m = JEPA(D, momentum=0.7), torch.zeros(D), torch.zeros(D), 0.7
    assert torch.equal(objective.residual, torch.ones(D))
    for step in range(1, 8):
        za, zb = pair(seed=step)
        objective.update(za, zb)
        r = sum((zb[n] - network(objective.predictors[0], za)[n]) ** 2 for n in range(B)).detach() / B
        keep = min(1 - 1 / step, m)
        expected, mean = keep * expected + (1 - keep) * r, keep * mean + (1 - keep) * za.mean(0)
        close(objective.residual, expected)
        close(objective.moving.mean, mean)


def test_density_is_its_definition():
    objective = JEPA(D)
    for seed in range(5):
        objective.update(*pair(20000, seed))
    za, zb = pair(50, 9)
    by_feature = Independent(Normal(network(objective.predictors[0], za), objective.residual.sqrt()), 1)
    close(objective.log_prob(zb, za), by_feature.log_prob(zb), 1e-10)
    Z = torch.cat([pair(20000, seed)[0] for seed in range(5)])
    close(objective.score(za), -MultivariateNormal(Z.mean(0), torch.cov(Z.T, correction=0)).log_prob(za), 0.02)
