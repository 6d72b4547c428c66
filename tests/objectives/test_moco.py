"""MoCo v3: value and gradient against loops, its relation to lightly's loss, teacher, limits, and planted errors."""

import math

import pytest
import torch
from tests.objectives.published import B, D, difference, layers, pair, total
from tests.reference import paired as slow
from torch import nn
from torch.nn import functional as F

from vergence.methods.paired import PairedMethod
from vergence.objectives.moco import MoCo, similarities


def reference(weights, tau=0.2):
    def loss(za, zb, fixed_a, fixed_b):
        pa, pb = (slow.predictor(z, *weights, last=True) for z in (za, zb))
        return slow.moco(pa, pb, fixed_a, fixed_b, tau)

    return loss


@pytest.mark.parametrize("tau", [0.2, 1.0])
def test_value_and_gradient_are_those_of_the_loops(tau):
    objective = MoCo(D, hidden=4, temperature=tau)
    expected = reference(layers(objective.predictor), tau)
    assert difference(lambda *z: total(objective, *z), expected, *pair()) < 1e-6


def contrast(q, k, tau=0.2):
    return F.cross_entropy(F.normalize(q) @ F.normalize(k).mT / tau, torch.arange(len(q))) * 2 * tau


def other_keys(q, k, own):
    """The keys of SimCLR, which lightly's loss without a memory bank has: the other views of the query's own network, too."""
    scores = F.normalize(q) @ torch.cat([F.normalize(k), F.normalize(own)]).mT / 0.2
    scores[:, len(k) :].fill_diagonal_(-math.inf)
    return F.cross_entropy(scores, torch.arange(len(q))) * 0.4


PLANTED = {
    "wrong temperature": lambda p, a, b: contrast(p(a), b.detach(), 0.1) + contrast(p(b), a.detach(), 0.1),
    "no factor 2 tau": lambda p, a, b: (contrast(p(a), b.detach()) + contrast(p(b), a.detach())) / 0.4,
    "gradient to one target": lambda p, a, b: contrast(p(a), b.detach()) + contrast(p(b), a),
    "one direction": lambda p, a, b: 2 * contrast(p(a), b.detach()),
    "no predictor": lambda p, a, b: contrast(a, b.detach()) + contrast(b, a.detach()),
    "no last normalization": lambda p, a, b: contrast(p[0](a), b.detach()) + contrast(p[0](b), a.detach()),
    "keys of SimCLR": lambda p, a, b: other_keys(p(a), b.detach(), a) + other_keys(p(b), a.detach(), b),
    "sum over pairs": lambda p, a, b: len(a) * (contrast(p(a), b.detach()) + contrast(p(b), a.detach())),
}


@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_are_seen(error):
    objective = MoCo(D, hidden=4)
    expected = reference(layers(objective.predictor))
    assert difference(lambda a, b: PLANTED[error](objective.predictor, a, b), expected, *pair()) > 1e-3


def test_equal_to_lightlys_loss_with_a_memory_bank_of_the_other_keys():
    """For one query, whose negatives lightly takes from its bank."""
    from lightly.loss import NTXentLoss

    (q, k), loss = pair(8), NTXentLoss(temperature=0.2, memory_bank_size=(7, D))
    losses = []
    for n in range(8):
        loss.memory_bank.bank = F.normalize(torch.cat([k[:n], k[n + 1 :]]))
        loss.memory_bank.bank_ptr = torch.zeros(1, dtype=torch.long)
        losses.append(loss(q[n : n + 1], k[n : n + 1]))
    found = MoCo(D, hidden=4).contrast(q, k)
    torch.testing.assert_close(found, 0.4 * torch.stack(losses).mean(), rtol=1e-6, atol=1e-7)


def test_with_a_teacher_its_embeddings_are_the_keys():
    torch.manual_seed(2)
    method = PairedMethod(nn.Linear(5, D), MoCo(D, hidden=4), teacher=0.9, schedule="cosine")
    with torch.no_grad():
        method.encoder.weight.add_(0.3 * torch.randn_like(method.encoder.weight))
    views, q = (torch.randn(B, 5), torch.randn(B, 5)), method.objective.predictor
    (za, zb), (ta, tb) = ([net(x) for x in views] for net in (method.encoder, method.teacher))
    found, expected = sum(method(views, lambda z: z).values()), contrast(q(za), tb) + contrast(q(zb), ta)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(x, list(q.parameters())) for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_limits():
    za, _ = pair(16)
    objective = MoCo(D, hidden=4)
    assert objective.contrast(za, torch.ones(16, D)).item() == pytest.approx(0.4 * math.log(16))
    assert objective.contrast(50 * torch.eye(D), torch.eye(D)).item() == pytest.approx(0.4 * math.log(1 + (D - 1) * math.exp(-5)))
    assert similarities(3 * za, za, 0.5).diagonal().allclose(torch.tensor(2.0))
    assert objective.diagnostics(za, za) == {"accuracy": 1.0}
