"""SimSiam: value and gradient against loops and lightly, the stopped gradient, and planted errors."""

import pytest
import torch
from tests.objectives.published import D, difference, layers, pair, total
from tests.reference import paired as slow
from torch.nn.functional import cosine_similarity

from vergence.objectives.simsiam import SimSiam


def reference(weights):
    def loss(za, zb, fixed_a, fixed_b):
        return slow.simsiam(slow.predictor(za, *weights), slow.predictor(zb, *weights), fixed_a, fixed_b)

    return loss


def test_value_and_gradient_are_those_of_the_loops():
    objective = SimSiam(D, hidden=4)
    expected = reference(layers(objective.predictor))
    assert difference(lambda *z: total(objective, *z), expected, *pair()) < 1e-7


def test_equal_to_lightlys_loss_in_its_tutorial():
    from lightly.loss import NegativeCosineSimilarity

    objective, (za, zb), loss = SimSiam(D), pair(), NegativeCosineSimilarity()
    p = [objective.predictor(z) for z in (za, zb)]
    expected = 0.5 * (loss(p[0], zb.detach()) + loss(p[1], za.detach()))
    torch.testing.assert_close(total(objective, za, zb), expected, rtol=1e-12, atol=1e-12)


PLANTED = {
    "gradient to one target": lambda p, a, b: -0.5 * (cos(p(a), b.detach()) + cos(p(b), a)).mean(),
    "no stopped gradient": lambda p, a, b: -0.5 * (cos(p(a), b) + cos(p(b), a)).mean(),
    "one direction": lambda p, a, b: -cos(p(a), b.detach()).mean(),
    "no predictor": lambda p, a, b: -0.5 * (cos(a, b.detach()) + cos(b, a.detach())).mean(),
    "sum over pairs": lambda p, a, b: -0.5 * (cos(p(a), b.detach()) + cos(p(b), a.detach())).sum(),
    "dot product": lambda p, a, b: -0.5 * ((p(a) * b.detach()).sum(1) + (p(b) * a.detach()).sum(1)).mean(),
    "both views in one batch normalization": lambda p, a, b: -cos(p(torch.cat([a, b])), torch.cat([b, a]).detach()).mean(),
}


def cos(x, y):
    return cosine_similarity(x, y)


@pytest.mark.parametrize("error", PLANTED)
def test_planted_errors_are_seen(error):
    objective = SimSiam(D, hidden=4)
    expected = reference(layers(objective.predictor))
    assert difference(lambda a, b: PLANTED[error](objective.predictor, a, b), expected, *pair()) > 1e-3


def test_width_of_the_predictor():
    assert SimSiam(2048).predictor[0].out_features == 512 and SimSiam(2).predictor[0].out_features == 1
    with pytest.raises(ValueError, match="expected hidden to be a whole number of at least 1, found 0"):
        SimSiam(8, hidden=0)
