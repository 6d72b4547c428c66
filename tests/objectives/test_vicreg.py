"""VICReg: value and gradient against loops and lightly, the conventions of its copies, and planted errors."""

import pytest
import torch
from tests.objectives.published import D, difference, pair, total
from tests.reference import paired as slow

from vergence.objectives.vicreg import VICReg


def reference(za, zb, fixed_a, fixed_b):
    return sum(slow.vicreg(za, zb))


def spread():
    """Returns embeddings of which some features have a standard deviation above 1, others below."""
    za, zb = pair()
    return za * torch.tensor([0.3, 1.0, 3.0]), zb * torch.tensor([0.4, 1.2, 2.0])


def test_value_and_gradient_are_those_of_the_loops():
    assert difference(lambda *z: total(VICReg(D), *z), reference, *spread()) < 1e-6
    terms = VICReg(D)(*spread())
    assert [t.item() for t in terms.values()] == pytest.approx(slow.vicreg(*(z.tolist() for z in spread())), abs=1e-9)
    assert list(terms) == ["invariance", "hinge", "covariance"]


def test_equal_to_lightlys_whole_loss():
    from lightly.loss import VICRegLoss

    torch.testing.assert_close(total(VICReg(D), *spread()), VICRegLoss()(*spread()), rtol=1e-12, atol=1e-12)
    found = total(VICReg(D, invariance=2.0, variance=3.0, decorrelation=5.0), *spread())
    torch.testing.assert_close(found, VICRegLoss(2.0, 3.0, 5.0)(*spread()), rtol=1e-12, atol=1e-12)


def terms(a, b):
    """Returns the released code's terms with the paper's weights."""
    s = 25 * (a - b).square().mean()
    v = 25 * 0.5 * sum((1 - (z.var(0) + 1e-4).sqrt()).relu().mean() for z in (a, b))
    c = sum((torch.cov(z.mT).square().sum() - z.var(0).square().sum()) / D for z in (a, b))
    return s, v, c


def planted(name, a, b):
    s, v, c = terms(a, b)
    doubled = {"variance of both views added (the paper, solo-learn)": s + 2 * v + c}
    sums = {"invariance as a sum over features (the paper)": D * s + v + c, "covariance as a mean": s + v + c / (D - 1)}
    missing = {"no covariance": s + v, "no variance": s + c}
    kept = {"diagonal kept": s + v + sum(torch.cov(z.mT).square().sum() / D for z in (a, b))}
    biased = {"variance over B": s + 12.5 * sum((1 - (z.var(0, correction=0) + 1e-4).sqrt()).relu().mean() for z in (a, b)) + c}
    detached = {"one-sided gradient": 25 * (a - b.detach()).square().mean() + v + c}
    return {**doubled, **sums, **missing, **kept, **biased, **detached, "right": s + v + c}[name]


def test_the_terms_before_errors_are_right():
    assert difference(lambda a, b: planted("right", a, b), reference, *spread()) < 1e-6


@pytest.mark.parametrize(
    "error",
    [
        "variance of both views added (the paper, solo-learn)",
        "invariance as a sum over features (the paper)",
        "covariance as a mean",
        "no covariance",
        "no variance",
        "diagonal kept",
        "variance over B",
        "one-sided gradient",
    ],
)
def test_planted_errors_are_seen(error):
    assert difference(lambda a, b: planted(error, a, b), reference, *spread()) > 1e-3
