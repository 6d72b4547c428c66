"""V views: every loss is the mean over pairs of a slow loop, or its paper's form; two views are what they were."""

import itertools

import pytest
import torch
from tests.learn.objectives.test_contract import SMALLER, every
from torch import nn

from vergence.data.config import ViewConfig
from vergence.learn import objectives
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives import swav
from vergence.learn.objectives.core import Objective, mean_terms

B, D = 16, 8
COUNTS = pytest.mark.parametrize(("n_global", "n_local"), [(2, 0), (3, 0), (6, 0), (2, 4)])


def views(v, d=D):
    z = torch.randn(B, d)
    return [z + 0.3 * torch.randn(B, d) for _ in range(v)]


def built(name):
    return objectives.get(name)(D, **SMALLER.get(name, {}))


def slow(objective, name, zs, n_global):
    """Returns the terms by loops over the views and over the pairs of which one is of the whole item."""
    pairs = [(i, j) for i in range(len(zs)) for j in range(i + 1, len(zs)) if i < n_global]
    if name == "swav":
        scores, total = [objective.similarities(z) for z in zs], 0.0
        for i in range(n_global):
            q = swav.sinkhorn(scores[i], objective.epsilon, objective.iterations)
            each = [swav.cross_entropy(s, q, objective.temperature) for j, s in enumerate(scores) if j != i]
            total = total + sum(each) / len(each)
        return {"swapped": total / n_global}
    if name == "lejepa":
        u = torch.randn(D, objective.slices)
        u, m = u / u.norm(dim=0), sum(zs[:n_global]) / n_global
        sigreg = sum(objectives.lejepa.epps_pulley(z @ u, objective.knots, objective.t_max).mean() for z in zs) / len(zs)
        distance = sum((z - m).square().mean() for z in zs) / len(zs)
        return {"sigreg": objective.weight * sigreg, "invariance": (1 - objective.weight) * distance}
    each = [objective(zs[i], zs[j]) for i, j in pairs]
    found = {term: sum(part[term] for part in each) / len(each) for term in each[0]}
    if name == "vicreg":
        alone = [objective(z, z) for z in zs]
        found |= {term: sum(part[term] for part in alone) / len(zs) for term in ("hinge", "covariance")}
    return found


@every
@COUNTS
def test_a_loss_of_several_views_is_that_of_a_slow_loop(name, n_global, n_local):
    objective, zs = built(name), [z.requires_grad_() for z in views(n_global + n_local)]
    torch.manual_seed(1)
    terms = objective(*zs, n_local=n_local)
    torch.manual_seed(1)
    expected = slow(objective, name, zs, n_global)
    assert terms.keys() == expected.keys()
    gradients = [torch.autograd.grad(sum(each.values()), zs) for each in (terms, expected)]
    for found, wanted in (*((terms[t], expected[t]) for t in terms), *zip(*gradients, strict=True)):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_swav_and_lejepa_of_several_views_are_lightlys():
    from lightly.loss import SwaVLoss
    from lightly.loss.lejepa_loss import lejepa_invariance_loss

    objective, zs = built("swav"), views(5)
    scores = [objective.similarities(z) for z in zs]
    theirs = SwaVLoss(temperature=0.1, sinkhorn_iterations=3, sinkhorn_epsilon=0.05)(scores[:2], scores[2:])
    torch.testing.assert_close(objective(*zs, n_local=3)["swapped"], theirs[0])
    z = torch.stack(zs)
    torch.testing.assert_close(objectives.lejepa.invariance(z, 2), lejepa_invariance_loss(all_proj=z, global_proj=z[:2]))


@every
@pytest.mark.parametrize("n_local", [0, 2])
def test_a_teacher_embeds_views_of_whole_items_alone(name, n_local):
    method, xs = PairedMethod(nn.Linear(5, D), built(name), teacher=0.9), views(3 + n_local, 5)
    with torch.no_grad():
        method.encoder.weight.add_(0.1)
    method.n_local = n_local
    torch.manual_seed(2)
    terms = method(tuple(xs), lambda z: z)
    torch.manual_seed(2)
    pairs = [(i, j) for i, j in itertools.product(range(len(xs)), range(3)) if i != j]
    with torch.no_grad():
        targets = [method.teacher(x) for x in xs]
    each = [method.objective(method.encoder(xs[i]), targets[j]) for i, j in pairs]
    for term, value in terms.items():
        torch.testing.assert_close(value, sum(part[term] for part in each) / len(pairs), rtol=1e-10, atol=1e-10)
    updated = []
    method.objective.update = lambda za, zb: updated.append((za, zb))
    method.after_step()
    assert torch.equal(updated[0][0], method.encoder(xs[0])) and torch.equal(updated[0][1], targets[1])
    assert torch.equal(method.embeddings(), updated[0][0])


class Bare(Objective):
    def forward(self, za, zb):
        return (za - zb).square().mean()


def test_what_cannot_be_is_refused_in_one_line():
    two = PairedMethod(nn.Linear(5, D), built("vje"), target_encoder=nn.Linear(5, D))
    network = PairedMethod(nn.Sequential(nn.Flatten(), nn.Linear(64, D)), built("vje"))
    for call, words in (
        (lambda: PairedMethod(nn.Linear(5, D), Bare())(tuple(views(3, 5)), lambda z: z), "Bare.forward to return a dictionary"),
        (lambda: built("gje")(*views(2), torch.zeros(B, D + 1)), "embeddings"),
        (lambda: two(tuple(views(3, 5)), lambda z: z), "two views for two encoders"),
        (lambda: two.require_views(ViewConfig(n_views=3), (5,)), "two views for two encoders"),
        (lambda: network.require_views(ViewConfig(local_views=2), (5,)), "images for local_views"),
        (lambda: network.require_views(ViewConfig(local_views=2), (1, 8, 8)), "set local_size=8, local_views=0"),
        (lambda: ViewConfig(n_views=1), "n_views of at least 2"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    network.require_views(ViewConfig(local_views=2, local_size=8), (1, 8, 8))


def test_the_mean_of_two_losses_is_exact():
    a, b = torch.tensor(0.1), torch.tensor(0.7)
    assert mean_terms([{"x": a}, {"x": b}])["x"] == 0.5 * (a + b)
