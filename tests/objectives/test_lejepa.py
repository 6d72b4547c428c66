"""LeJEPA: the Epps-Pulley statistic against loops and its closed form, value and gradient, directions, and planted errors."""

import pytest
import torch
from tests.objectives.published import B, D, difference, pair, total
from tests.reference import paired as slow

from vergence.objectives.lejepa import LeJEPA

S = 4


def seeded(objective, *z):
    torch.manual_seed(7)
    return total(objective, *z)


def directions(slices=S):
    """Returns the directions that the objective samples after `seeded`."""
    torch.manual_seed(7)
    return torch.nn.functional.normalize(torch.randn(D, slices), dim=0).mT.tolist()


def reference(za, zb, fixed_a, fixed_b, lam=0.05):
    u = directions()
    return lam * 0.5 * (slow.sigreg(za, u) + slow.sigreg(zb, u)) + (1 - lam) * slow.invariance(za, zb)


def test_value_and_gradient_are_those_of_the_loops():
    assert difference(lambda *z: seeded(LeJEPA(D, slices=S), *z), reference, *pair()) < 1e-6  # lightly's knots are float32


def test_defaults_are_the_papers():
    objective = LeJEPA(D)
    assert (objective.weight, objective.slices, objective.knots, objective.t_max) == (0.05, 1024, 17, 3.0)
    za, zb = pair()
    torch.manual_seed(7)
    terms = objective(za, zb)
    u = directions(1024)
    expected = 0.05 * 0.5 * (slow.sigreg(za.tolist(), u) + slow.sigreg(zb.tolist(), u))
    assert terms["sigreg"].item() == pytest.approx(expected, abs=1e-6)
    assert terms["invariance"].item() == pytest.approx(0.95 * (za - zb).square().mean().item() / 4)


def test_the_statistic_is_the_integral_in_closed_form():
    """With knots up to t = 8, so that nothing of the integral is cut off; at t = 3 about 1 % is."""
    za, zb = pair(12)
    torch.manual_seed(7)
    found = LeJEPA(D, slices=S, knots=400, t_max=8.0, weight=1.0)(za, zb)["sigreg"].item()
    exact = slow.mean(slow.epps_pulley_exact([slow.dot(x, u) for x in z.tolist()]) for z in (za, zb) for u in directions())
    assert found == pytest.approx(exact, rel=1e-5)
    assert seeded(LeJEPA(D, slices=S, weight=1.0), za, zb).item() == pytest.approx(exact, rel=0.05)


def test_a_standard_gaussian_has_a_small_statistic_and_others_a_large_one():
    """Under the null the statistic's mean is int (1 - exp(-t^2)) exp(-t^2 / 2) dt = sqrt(2 pi) (1 - 1 / sqrt 3), about 1.06."""
    torch.manual_seed(0)
    z = torch.randn(500, D)

    def of(x):
        return LeJEPA(D, slices=64, weight=1.0)(x, x)["sigreg"].item()

    assert of(z) < 3
    assert min(of(2 * z), of(z + 1), of(0.1 * z), of(z.sign()), of(z[:, :1].expand(-1, D))) > 10


def test_directions_are_new_in_every_step_and_follow_the_global_seed():
    objective, views = LeJEPA(D, slices=S), pair()
    assert seeded(objective, *views) == seeded(objective, *views)
    assert total(objective, *views) != total(objective, *views)


def statistic(z, t, weights, n=B):
    u = torch.tensor(directions()).mT
    x = (z @ u)[..., None] * t
    error = (x.cos().mean(-3) - (-0.5 * t**2).exp()).square() + x.sin().mean(-3).square()
    return n * (error * weights * (-0.5 * t**2).exp()).sum(-1).mean()


def planted(name, a, b):
    t = torch.linspace(0, 3, 17)
    w = torch.full((17,), 2 * 3 / 16)
    w[[0, -1]] /= 2
    z, center = torch.stack([a, b]), (a + b) / 2
    apart = (z - center).square().mean()
    right = 0.05 * statistic(z, t, w) + 0.95 * apart
    return {
        "right": right,
        "not doubled": 0.05 * statistic(z, t, w / 2) + 0.95 * apart,
        "rectangle rule": 0.05 * statistic(z, t, torch.full((17,), 2 * 3 / 16)) + 0.95 * apart,
        "not times B": 0.05 * statistic(z, t, w, 1) + 0.95 * apart,
        "both views one sample": 0.05 * statistic(z.flatten(0, 1), t, w, 2 * B) + 0.95 * apart,
        "wrong weight": 0.02 * statistic(z, t, w) + 0.98 * apart,
        "sum over features": 0.05 * statistic(z, t, w) + 0.95 * D * apart,
        "distance of the views": 0.05 * statistic(z, t, w) + 0.95 * (a - b).square().mean(),
        "stopped gradient": 0.05 * statistic(z, t, w) + 0.95 * (z - center.detach()).square().mean() * 2,
    }[name]


def test_the_loss_before_errors_is_right():
    assert difference(lambda a, b: planted("right", a, b), reference, *pair()) < 1e-7


@pytest.mark.parametrize(
    "error",
    [
        *("not doubled", "rectangle rule", "not times B", "both views one sample", "wrong weight", "sum over features"),
        *("distance of the views", "stopped gradient"),
    ],
)
def test_planted_errors_are_seen(error):
    assert difference(lambda a, b: planted(error, a, b), reference, *pair()) > 5e-5
