"""GMJE-MDN: the losses against loops, closed-form gradients, what the network may see, branches, collapse and what stops it."""

import math

import pytest
import torch
from tests.learn.objectives.common import close
from tests.reference import gmje_mdn as reference
from torch import nn

from vergence.densities import moments
from vergence.learn.objectives import gmje_mdn
from vergence.learn.objectives.gmje_mdn import GMJEMDN
from vergence.learn.objectives.parts import information

B, D, K = 12, 3, 4
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def pair(n=B, dim=D, seed=0):
    g = torch.Generator().manual_seed(seed)
    za = torch.randn(n, dim, generator=g) + 0.5
    return za, 0.8 * za + 0.5 * torch.randn(n, dim, generator=g)


def small(**also):
    """Returns an objective whose parameters are away from their start."""
    objective = GMJEMDN(D, **{"components": K, "hidden": 8, **also})
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return objective


def outputs(*batch):
    return torch.randn(*batch, K), torch.randn(*batch, K, D), 0.5 * torch.randn(*batch, K, D), torch.randn(*batch, D)


def slow_nll(objective, direction, z_c, z_t):
    """Returns L_cond of one direction, item by item."""
    layers = [(part.weight.tolist(), part.bias.tolist()) for part in objective.networks[direction] if isinstance(part, nn.Linear)]
    total = 0.0
    for c, t in zip(z_c.tolist(), z_t.tolist(), strict=True):
        a, m, s = reference.split(reference.network(layers, c), K, D, objective.floor)
        total += reference.negative_log_likelihood(a, m, s, t)
    return total / len(z_c)


def slow_marginal(objective, direction, z_c):
    """Returns L_marg of one direction, item by item."""
    kind, rows = objective.marginal_kind, z_c.tolist()
    if kind == "nll":
        parts = reference.split(objective.marginals[direction].tolist(), K, D, objective.floor)
        return sum(reference.negative_log_likelihood(*parts, row) for row in rows) / len(rows)
    a = moments.oas(torch.cov(z_c.T, correction=0), len(z_c)).item()
    mean, S = reference.moments(rows, a, moments.JITTER[torch.float64])
    return reference.kl(mean, S) if kind == "kl" else reference.anchored_entropy(S)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("marginal", ["kl", "entropy", "nll", "none"])
def test_the_losses_are_the_loops(marginal, tied):
    objective, (za, zb) = small(marginal=marginal, tied=tied, weight=0.7, floor=0.2), pair()
    result = {name: term.detach() for name, term in objective(za, zb).items()}
    close(result.pop("nll"), 0.5 * (slow_nll(objective, 0, za, zb) + slow_nll(objective, -1, zb, za)))
    name = {"kl": "kl", "entropy": "entropy", "nll": "marginal_nll"}.get(marginal)
    assert list(result) == ([name] if name else [])
    if name:
        close(result[name], 0.35 * (slow_marginal(objective, 0, za) + slow_marginal(objective, -1, zb)))


def test_gradients_are_the_closed_forms():
    """T7: dL/da = w - gamma, dL/dm = gamma (m - z) / sigma^2, dL/ds = gamma (1 - ((z - m) / sigma)^2)."""
    a, m, s, z = (v.requires_grad_() for v in outputs(B))
    result = torch.autograd.grad(-gmje_mdn.mixture(a, m, s).log_prob(z).sum(), (a, m, s))
    expected = [reference.gradients(*(v[b].tolist() for v in (a, m, s, z))) for b in range(B)]
    for g, slow in zip(result, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(g, torch.tensor(slow), rtol=0, atol=1e-10)


def test_stds_keep_their_limits():
    out = torch.tensor([0.0, 0.0, -1e4, 0.0, 0.0, 1e4]).repeat(2, 1).requires_grad_()
    _, _, s = gmje_mdn.split(out, 2, floor=0.3)
    close(s[0].exp().flatten(), torch.tensor([1.3, 0.3 + math.exp(3)]))
    _, _, s = gmje_mdn.split(torch.cat([torch.zeros(4), torch.tensor([-1e4, 0.0])]), 2, floor=0.3)
    close(s.exp().flatten(), torch.tensor([0.3, 1.3]))


def test_entropy_is_the_kl_without_a_pull_on_the_mean():
    (za, zb), shift = pair(60), torch.tensor([2.0, 0.0, -1.0])
    kl, entropy = small(marginal="kl"), small(marginal="entropy")
    means = 0.25 * (za.mean(0).square().sum() + zb.mean(0).square().sum())
    close(kl(za, zb)["kl"] - entropy(za, zb)["entropy"], means)
    close(entropy(za + shift, zb + shift)["entropy"], entropy(za, zb)["entropy"])
    m = moments.batch_moments(za)
    close(gmje_mdn.anchored_entropy(m.S), 0.5 * m.S.trace() - information.entropy(m) + D * LOG_SQRT_2PI)
    white = (za - za.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(za.T, correction=0))).T
    assert 0 <= gmje_mdn.anchored_entropy(moments.batch_moments(white).S) < 1e-9


def test_the_network_sees_the_context_alone():
    """T16: d(parameters) / d(z_t) = 0, exactly, in the loss as it is computed."""
    objective, (za, zb) = small(tied=False, target="through"), (z.requires_grad_() for z in pair())
    seen = []
    for net in objective.networks:
        net.register_forward_hook(lambda net, inputs, out: seen.append(out))
    objective(za, zb)
    for out, context, target in ((seen[0], za, zb), (seen[1], zb, za)):
        of_context, of_target = torch.autograd.grad(out.square().sum(), (context, target), allow_unused=True)
        assert of_target is None and (of_context != 0).all()
    objective(za, zb + 1)
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[1], seen[3])


def gradients_of(objective, za, zb, term):
    za, zb = za.clone().requires_grad_(), zb.clone().requires_grad_()
    return torch.autograd.grad(objective(za, zb)[term], (za, zb))


def test_the_target_is_a_constant_or_learns():
    """stop: z_a's gradient is that of a -> b alone; through: that of b -> a, as its target, is added."""
    (za, zb), stop = pair(), small()
    through = GMJEMDN(D, components=K, hidden=8, target="through")
    through.load_state_dict(stop.state_dict())
    x, y = za.clone().requires_grad_(), zb.clone().requires_grad_()
    (context,) = torch.autograd.grad(-0.5 * stop.log_prob(zb, x).mean(), x)
    (target,) = torch.autograd.grad(-0.5 * stop.log_prob(x, zb).mean(), x)
    close(gradients_of(stop, za, zb, "nll")[0], context)
    close(gradients_of(through, za, zb, "nll")[0], context + target)
    (context,) = torch.autograd.grad(-0.5 * stop.log_prob(za, y).mean(), y)
    close(gradients_of(stop, za, zb, "nll")[1], context)
    assert torch.equal(stop(za, zb)["nll"], through(za, zb)["nll"]) and target.abs().max() > 1e-3


def branches(n, seed, eps=0.05):
    """Returns x (n, 1), one of three branches plus noise (n, 1), and log p(y | x) (n,)."""
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=g) - 1
    f = torch.cat([1 + 0.3 * (math.pi * x).sin(), 0.3 * (2 * math.pi * x).sin(), -1 + 0.3 * (math.pi * x).cos()], 1)
    k = torch.randint(3, (n, 1), generator=g)
    y = f.gather(1, k) + eps * torch.randn(n, 1, generator=g)
    log_p = (-0.5 * ((y - f) / eps).square() - math.log(3 * eps) - LOG_SQRT_2PI).logsumexp(1)
    return x, y, log_p, f


@pytest.mark.slow
def test_three_branches(steps=500):
    """Spec 4.1: one context, three answers. NLL near the truth's, a third of the mass on each, std near the noise."""

    def fitted(seed):
        torch.manual_seed(seed)
        objective = GMJEMDN(1, components=5, hidden=32, marginal="none", tied=False, floor=0.02)
        x, y, _, _ = branches(3000, 0)
        optimizer = torch.optim.Adam(objective.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for i in range(steps):
            rows = slice(256 * (i % 11), 256 * (i % 11) + 256)
            optimizer.zero_grad()
            (-objective.log_prob(y[rows], x[rows]).mean()).backward()
            optimizer.step()
            schedule.step()
        return -objective.log_prob(y, x).mean().item(), objective

    _, objective = min((fitted(seed) for seed in (0, 1)), key=lambda fit: fit[0])
    x, y, log_p, f = branches(5000, 1)
    with torch.no_grad():
        assert -objective.log_prob(y, x).mean() < -log_p.mean() + 0.3
        p = objective.conditional(x)
        nearest = (p.component_distribution.mean - f[:, None]).abs().argmin(-1)
        mass = torch.stack([(p.weights * (nearest == k)).sum(-1).mean() for k in range(3)])
        assert (mass - 1 / 3).abs().max() < 0.06
        assert objective.diagnostics(x, y)["component_std"] < 0.12
        assert p.variance.mean().sqrt() > 0.7  # the mixture's own: one Gaussian could do no better


def test_the_kept_density():
    za, zb = pair(400)
    for marginal in ("kl", "entropy", "none"):
        objective = small(marginal=marginal, momentum=0.0)
        objective.update(za, zb)
        m = moments.batch_moments(za, None)
        expected = torch.distributions.MultivariateNormal(m.mean, m.S)
        close(objective.score(za), -expected.log_prob(za), 1e-8)
    objective = small(marginal="nll")
    parts = reference.split(objective.marginals[0].tolist(), K, D, objective.floor)
    expected = [reference.negative_log_likelihood(*parts, row) for row in za[:5].tolist()]
    close(objective.score(za[:5]).detach(), torch.tensor(expected))


def test_diagnostics_count_the_components():
    """Every context with one component of its own, half of them the first: two in all, one a context."""
    objective = GMJEMDN(1, components=4, hidden=2, floor=0.3)
    net = objective.networks[0]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net[0].weight[0, 0], net[2].weight[0, 0] = 1e3, 1.0
        net[4].weight[0, 0], net[4].bias[:4] = 1.0, torch.tensor([-400.0, 0.0, -1e4, -1e4])
    z = torch.tensor([[1.0], [-1.0]]).repeat(8, 1) * torch.linspace(0.9, 1.1, 16)[:, None]
    numbers = objective.diagnostics(z, z)
    assert numbers["components"] == pytest.approx(2) and numbers["components_per_context"] == pytest.approx(1)
    assert numbers["component_std"] == pytest.approx(1.3) and numbers["variance"] > 0.9
