"""SwAV: Sinkhorn step by step, value and gradient against loops and lightly, prototypes, and planted errors."""

import math

import pytest
import torch
from tests.objectives.published import B, D, difference, pair, total
from tests.reference import paired as slow
from torch.nn import functional as F

from vergence.objectives.swav import SwAV

K = 4


def built(**options):
    torch.manual_seed(1)
    return SwAV(D, **{"prototypes": K, "frozen_steps": 0, **options})


def reference(prototypes):
    def loss(za, zb, fixed_a, fixed_b):
        return slow.swav(za, zb, prototypes, *(slow.codes(z, prototypes) for z in (fixed_a, fixed_b)))

    return loss


def test_value_and_gradient_are_those_of_the_loops():
    objective = built()
    expected = reference(objective.prototypes.tolist())
    assert difference(lambda *z: total(objective, *z), expected, *pair()) < 1e-6


def test_the_gradient_of_the_prototypes_is_that_of_the_loops():
    objective, (za, zb), step = built(), pair(), 1e-5
    gradient = torch.autograd.grad(total(objective, za, zb), objective.prototypes)[0]
    C = objective.prototypes.tolist()
    codes = [slow.codes(z.tolist(), C) for z in (za, zb)]
    for k in range(K):
        for d in range(D):
            ends = []
            for sign in (1, -1):
                moved = [list(row) for row in C]
                moved[k][d] += sign * step
                ends.append(slow.swav(za.tolist(), zb.tolist(), moved, *codes))
            assert gradient[k, d].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("iterations", [1, 2, 3, 30])
def test_sinkhorn_step_by_step(iterations):
    from lightly.loss.swav_loss import sinkhorn

    scores = built().similarities(pair()[0]).detach()
    states = list(slow.sinkhorn_steps(scores.tolist(), 0.05, iterations))
    assert sum(map(sum, states[0])) == pytest.approx(1)
    for i in range(iterations):
        columns, rows = states[1 + 2 * i], states[2 + 2 * i]
        assert [sum(slow.column(columns, k)) for k in range(K)] == pytest.approx([1 / K] * K)
        assert [sum(row) for row in rows] == pytest.approx([1 / B] * B)
    found = sinkhorn(scores, iterations, 0.05)
    torch.testing.assert_close(found, B * torch.tensor(states[-1]), rtol=1e-9, atol=1e-12)
    if iterations == 30:  # both constraints hold in the limit
        torch.testing.assert_close(found.sum(0), torch.full((K,), B / K), rtol=1e-3, atol=1e-3)


def test_the_loss_uses_the_codes_of_the_last_step():
    za, zb = pair()
    values = {n: total(built(iterations=n), za, zb).item() for n in (1, 3, 10)}
    C = built().prototypes.tolist()
    for n, value in values.items():
        codes = [slow.codes(z.tolist(), C, iterations=n) for z in (za, zb)]
        assert value == pytest.approx(slow.swav(za.tolist(), zb.tolist(), C, *codes))
    assert abs(values[1] - values[3]) > 1e-4


def planted(name, objective, a, b):
    from lightly.loss.swav_loss import sinkhorn

    def entropy(scores, q, tau=0.1):
        return -(q * (scores / tau).log_softmax(1)).sum(1)

    sa, sb = objective.similarities(a), objective.similarities(b)
    qa, qb = sinkhorn(sa.detach()), sinkhorn(sb.detach())
    soft = [(s / 0.05).softmax(1) for s in (sa, sb)]
    return {
        "right": 0.5 * (entropy(sa, qb) + entropy(sb, qa)).mean(),
        "not swapped": 0.5 * (entropy(sa, qa) + entropy(sb, qb)).mean(),
        "sum of the directions": (entropy(sa, qb) + entropy(sb, qa)).mean(),
        "sum over pairs": 0.5 * (entropy(sa, qb) + entropy(sb, qa)).sum(),
        "wrong temperature": 0.5 * (entropy(sa, qb, 0.2) + entropy(sb, qa, 0.2)).mean(),
        "no Sinkhorn": 0.5 * (entropy(sa, soft[1].detach()) + entropy(sb, soft[0].detach())).mean(),
        "gradient to the codes": 0.5 * (entropy(sa, soft[1]) + entropy(sb, soft[0])).mean(),
        "one direction": entropy(sa, qb).mean(),
    }[name]


def test_the_loss_before_errors_is_right():
    objective = built()
    assert difference(lambda a, b: planted("right", objective, a, b), reference(objective.prototypes.tolist()), *pair()) < 1e-6


@pytest.mark.parametrize(
    "error",
    [
        *("not swapped", "sum of the directions", "sum over pairs", "wrong temperature", "no Sinkhorn", "gradient to the codes"),
        "one direction",
    ],
)
def test_planted_errors_are_seen(error):
    objective = built()
    assert difference(lambda a, b: planted(error, objective, a, b), reference(objective.prototypes.tolist()), *pair()) > 1e-3


def test_prototypes_stay_on_the_sphere_and_learn_after_the_frozen_steps():
    objective, views = built(frozen_steps=2), pair()
    optimizer = torch.optim.SGD(objective.parameters(), lr=5.0)
    for step in range(4):
        assert objective.frozen() == ((objective.prototypes,) if step < 2 else ())
        before = objective.prototypes.detach().clone()
        optimizer.zero_grad()
        total(objective, *views).backward()
        optimizer.step()
        objective.update(*views)
        torch.testing.assert_close(objective.prototypes.norm(dim=1), torch.ones(K))
        assert torch.allclose(objective.prototypes, before) == (step < 2)
    assert objective.steps == 4


def test_limits():
    objective = built(prototypes=32)
    same = torch.ones(B, D)
    assert total(objective, same, same).item() <= math.log(32) + 11  # a batch of equal items: codes are uniform
    with torch.no_grad():
        objective.prototypes.copy_(F.normalize(torch.ones(32, D)))
    assert total(objective, *pair()).item() == pytest.approx(math.log(32)), "equal prototypes say nothing"
    assert objective.diagnostics(*pair())["prototypes"] == pytest.approx(32)
