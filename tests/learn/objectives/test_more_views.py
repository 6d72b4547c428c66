"""V views: every loss is the mean over pairs of a slow loop, or its paper's form; two views are what they were."""

import pytest
import torch
from lightly.loss import SwaVLoss
from lightly.loss.lejepa_loss import lejepa_invariance_loss
from tests.learn.objectives.test_contract import B, D, built, every
from torch import nn

from vergence.data.config import ViewConfig
from vergence.learn import objectives
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives import swav
from vergence.learn.objectives.core import Objective


def views(v, d=D):
    z = torch.randn(B, d)
    return [(z + 0.3 * torch.randn(B, d)).requires_grad_() for _ in range(v)]


def mean(values):
    """Returns the mean of terms, or of numbers, by a loop."""
    values = list(values)
    if isinstance(values[0], dict):
        return {name: mean(value[name] for value in values) for name in values[0]}
    return sum(values) / len(values)


def slow(objective, name, zs, n):
    """Returns the terms by loops over the views, and over the pairs of which one is of the whole item."""
    if name == "swav":
        scores, tau = [objective.similarities(z) for z in zs], objective.temperature
        codes = [swav.sinkhorn(s, objective.epsilon, objective.iterations) for s in scores[:n]]
        each = (mean(swav.cross_entropy(s, q, tau) for j, s in enumerate(scores) if j != i) for i, q in enumerate(codes))
        return {"swapped": mean(each)}
    if name == "lejepa":
        u, weight = torch.randn(D, objective.slices), objective.weight
        statistic = mean(objectives.lejepa.epps_pulley(z @ (u / u.norm(dim=0)), 17, 3.0).mean() for z in zs)
        return {"sigreg": weight * statistic, "invariance": (1 - weight) * mean((z - mean(zs[:n])).square().mean() for z in zs)}
    found = mean(objective(zs[i], zs[j]) for i in range(n) for j in range(i + 1, len(zs)))
    alone = mean(objective(z, z) for z in zs) if name == "vicreg" else {}
    return found | {term: value for term, value in alone.items() if term != "invariance"}


def same(terms, expected):
    assert terms.keys() == expected.keys()
    for name, value in terms.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10)


@every
@pytest.mark.parametrize(("n_global", "n_local"), [(2, 0), (3, 0), (6, 0), (2, 4)])
def test_a_loss_of_several_views_is_that_of_a_slow_loop(name, n_global, n_local):
    objective, zs, found = built(name), views(n_global + n_local), []
    for loss in (lambda: objective(*zs, n_local=n_local), lambda: slow(objective, name, zs, n_global)):
        torch.manual_seed(1)
        terms = loss()
        gradients = torch.autograd.grad(sum(terms.values()), zs)
        found.append(terms | dict(enumerate(gradients)))
    same(*found)


def test_swav_and_lejepa_of_several_views_are_lightlys():
    objective, zs = built("swav"), views(5)
    scores, z = [objective.similarities(z) for z in zs], torch.stack(zs)
    theirs = SwaVLoss(temperature=0.1, sinkhorn_iterations=3, sinkhorn_epsilon=0.05)(scores[:2], scores[2:])
    torch.testing.assert_close(objective(*zs, n_local=3)["swapped"], theirs[0])
    torch.testing.assert_close(objectives.lejepa.invariance(z, 2), lejepa_invariance_loss(all_proj=z, global_proj=z[:2]))


@every
@pytest.mark.parametrize("n_local", [0, 2])
def test_a_teacher_embeds_views_of_whole_items_alone(name, n_local):
    method, xs, found, updated = PairedMethod(nn.Linear(5, D), built(name), teacher=0.9), views(3 + n_local, 5), [], []
    with torch.no_grad():
        method.encoder.weight.add_(0.1)
        targets = [method.teacher(x) for x in xs]
    method.n_local = n_local
    pairs = [(x, t) for i, x in enumerate(xs) for j, t in enumerate(targets[:3]) if i != j]
    for loss in (lambda: method(tuple(xs), lambda z: z), lambda: mean(method.objective(method.encoder(x), t) for x, t in pairs)):
        torch.manual_seed(2)
        found.append(loss())
    same(*found)
    method.objective.update = lambda za, zb: updated.extend((za, zb))
    method.after_step()
    assert torch.equal(updated[0], method.encoder(xs[0])) and torch.equal(updated[1], targets[1])
    assert torch.equal(method.embeddings(), updated[0])


class Bare(Objective):
    def forward(self, za, zb):
        return (za - zb).square().mean()


TWO = PairedMethod(nn.Linear(5, D), built("vje"), target_encoder=nn.Linear(5, D))
FIXED = PairedMethod(nn.Sequential(nn.Flatten(), nn.Linear(64, D)), built("vje"))
REFUSED = {
    "Bare.forward to return": lambda: PairedMethod(nn.Linear(5, D), Bare())(tuple(views(3, 5)), lambda z: z),
    "embeddings": lambda: built("gje")(*views(2), torch.zeros(B, D + 1)),
    "found 3; leave n_views or target_encoder out": lambda: TWO(tuple(views(3, 5)), lambda z: z),
    "two views for two encoders": lambda: TWO.require_views(ViewConfig(n_views=3), (5,)),
    "images for local_views": lambda: FIXED.require_views(ViewConfig(local_views=2), (5,)),
    "set `local_size=8` or `local_views=0`": lambda: FIXED.require_views(ViewConfig(local_views=2), (1, 8, 8)),
    "n_views of at least 2": lambda: ViewConfig(n_views=1),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(words):
    with pytest.raises(ValueError, match=words) as caught:
        REFUSED[words]()
    assert "\n" not in str(caught.value)
    FIXED.require_views(ViewConfig(local_views=2, local_size=8), (1, 8, 8))
