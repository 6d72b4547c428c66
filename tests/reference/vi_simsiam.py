"""VI-SimSiam in scalar loops: slow, float64, nothing shared with the library."""

import math
from collections.abc import Sequence

from tests.reference import power_spherical
from tests.reference.vje import unit

Vector = Sequence[float]


def terms(z: tuple, mu: tuple, kappa: tuple, beta: float) -> dict[str, float]:
    """Returns the terms of the loss of a pair of batches; every argument holds view a, then view b, each (B, ...)."""
    out = {"alignment": 0.0, "kl": 0.0}
    batch = len(z[0])
    for i, j in ((0, 1), (1, 0)):
        for n in range(batch):
            out["alignment"] -= power_spherical.log_prob(unit(z[j][n]), mu[i][n], kappa[i][n]) / 2 / batch
            out["kl"] += beta * power_spherical.kl_to_uniform(len(mu[i][n]), kappa[i][n]) / 2 / batch
    return out


def simsiam_gradient(prediction: Vector, target: Vector) -> list[float]:
    """Returns the gradient of SimSiam's -cos(p, z) in p: -(z^ - cos p^) / ||p||."""
    p, z = unit(prediction), unit(target)
    length = math.sqrt(sum(float(value) ** 2 for value in prediction))
    cosine = sum(a * b for a, b in zip(p, z, strict=True))
    return [-(b - cosine * a) / length for a, b in zip(p, z, strict=True)]
