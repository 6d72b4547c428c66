"""What the tests of objectives share: comparison, planted errors, short trainings, and the two sides of a difference."""

import pytest
import torch
from torch import nn

from vergence.densities.em.structures import Mixture
from vergence.learn.methods.paired import PairedMethod


def close(value, expected, tol=1e-12):
    """Asserts that tensors or numbers are equal to a relative and absolute tolerance."""
    torch.testing.assert_close(torch.as_tensor(value), torch.as_tensor(expected), rtol=tol, atol=tol)


def joined(za, zb):
    """Returns the pairs [z_a; z_b], (B, 2 D)."""
    return torch.cat([za, zb], 1)


def as_em(mixture):
    """Returns a list of (weight, mean, covariance) as a mixture for EM."""
    w, mu, S = (torch.stack([torch.as_tensor(part[i]) for part in mixture]) for i in range(3))
    return Mixture(w[None], mu[None], S[None])


def require_caught(planted, module, monkeypatch):
    """Asserts that a check fails with an error planted in a module: (check, name in the module, maker of the error)."""
    check, name, plant = planted
    monkeypatch.setattr(module, name, plant())
    with pytest.raises(AssertionError):
        check()


def gradcheck_of_parameters(objective, za, zb, seed=7):
    """Checks the gradient of the loss in all parameters, by central differences under one seed."""
    names = [name for name, parameter in objective.named_parameters() if parameter.requires_grad]
    values = tuple(p.detach().clone().requires_grad_() for p in objective.parameters() if p.requires_grad)

    def loss(*parameters):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return sum(torch.func.functional_call(objective, dict(zip(names, parameters, strict=True)), (za, zb)).values())

    return torch.autograd.gradcheck(loss, values, fast_mode=True)


def trained(objective, steps, *, dim=3, batch=128, noise=0.5, new=2000, teacher=None):
    """Trains a small encoder on two noisy views; returns new embeddings of both views, (new, dim), without gradient."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    mix = torch.randn(4, 12, generator=g)
    net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, dim))
    method = PairedMethod(net, objective, teacher=teacher)
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], lr=5e-3)

    def views(n):
        x = torch.randn(n, 4, generator=g) @ mix
        return tuple(x + noise * torch.randn(x.shape, generator=g) for _ in range(2))

    for _ in range(steps):
        optimizer.zero_grad()
        sum(method(views(batch), gather=lambda z: z).values()).backward()
        optimizer.step()
        method.after_step()
    with torch.no_grad():
        return [net(x) for x in views(new)]


def descended(module, loss, steps, lr):
    """Minimizes a function of nothing over a module's parameters."""
    optimizer = torch.optim.Adam(module.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return module
