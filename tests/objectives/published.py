"""What the tests of published objectives share: value and gradient of a loss against a reference in loops."""

import torch

B, D = 6, 3
STEP = 1e-5


def pair(n=B, dim=D, seed=0):
    """Returns correlated embeddings (n, dim) of two views."""
    g = torch.Generator().manual_seed(seed)
    za = torch.randn(n, dim, generator=g)
    return za, 0.7 * za + 0.6 * torch.randn(n, dim, generator=g)


def layers(head):
    """Returns weights of Linear-BatchNorm-ReLU-Linear for the reference, after moving scale and shift from where they start."""
    modules = [m for m in head.modules() if isinstance(m, torch.nn.Linear | torch.nn.BatchNorm1d)]
    first, norm, second = modules[:3]
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0, 0.3)
    return [(m.weight.tolist(), m.bias.tolist()) for m in (first, norm, second)]


def difference(loss, reference, za, zb):
    """Returns the largest difference of value and gradient between a loss and its reference in loops.

    Args:
        loss: Function of two tensors that require gradient, which returns a scalar.
        reference: Function of lists (za, zb, fixed za, fixed zb); the fixed ones are those that get no gradient.
        za: Embeddings (B, D).
        zb: Embeddings (B, D).
    """
    z = [za.clone().requires_grad_(), zb.clone().requires_grad_()]
    value = loss(*z)
    gradient = torch.stack(torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True))
    fixed = za.tolist(), zb.tolist()
    views = torch.stack([za, zb])
    numeric = torch.zeros_like(views)
    for index in torch.cartesian_prod(*map(torch.arange, views.shape)):
        at = tuple(index.tolist())
        ends = []
        for sign in (1, -1):
            moved = views.clone()
            moved[at] += sign * STEP
            ends.append(reference(*moved.tolist(), *fixed))
        numeric[at] = (ends[0] - ends[1]) / (2 * STEP)
    apart = abs(value.item() - reference(*fixed, *fixed)), (gradient - numeric).abs().max().item()
    return max(apart)


def total(objective, za, zb):
    """Returns the loss: the sum of the terms."""
    return sum(objective(za, zb).values())
