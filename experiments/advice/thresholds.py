r"""The alignment above which joint embedding and reconstruction find the signal under noise.

Van Assel et al. (2025), Joint-Embedding vs Reconstruction, arXiv:2505.12477 version 2, section 4.

The items are a signal in k components and noise in the others, and all matrices share their eigenvectors: the signal has
variances kappa_i^2 / n (i <= k), the noise lambda^Gamma_i (i > k), and the augmentation adds noise of covariance
Theta + alpha^2 Gamma: Theta is its other part, with variances lambda^Theta_i on all components; alpha is the strength of
its alignment with the noise. With many items each method finds exactly the signal's span if and only if alpha^2 exceeds

    reconstruction    max_{i>k} (lambda^Gamma_i / eta^2 - lambda^Theta_i / lambda^Gamma_i) - 1
                      eta = min_{i<=k} (kappa_i^2/n) / sqrt(kappa_i^2/n + lambda^Theta_i)                   (prop. 4.3, eq. 10)
    joint embedding   (1 - delta) / delta - min_{i>k} lambda^Theta_i / lambda^Gamma_i
                      delta = min_{i<=k} (kappa_i^2/n) / (kappa_i^2/n + lambda^Theta_i)                     (prop. 4.4, eq. 12)
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vergence.utils.checks import expect, shown

__all__ = ["Thresholds", "alignment_thresholds"]


@dataclass(frozen=True)
class Thresholds:
    """Thresholds that the squared alignment alpha^2 must exceed.

    Attributes:
        joint_embedding: Threshold on alpha SQUARED; negative or zero where every alpha suffices.
        reconstruction: The same for reconstruction.
        crossover: eta^2 / delta, a variance: if all noise is below it, reconstruction has the lower threshold; if all is
            above, joint embedding; in between either may (cor. 4.5).
        preferred: The method with the lower threshold; ``either`` if both are at most 0, or equal.
    """

    joint_embedding: float
    reconstruction: float
    crossover: float
    preferred: Literal["joint_embedding", "reconstruction", "either"]


def alignment_thresholds(signal: Any, noise: Any, augmentation_signal: Any, augmentation_noise: Any) -> Thresholds:
    r"""Returns how strongly an augmentation must be aligned with the noise for each method to find the signal.

    The covariance of the augmentation is Theta plus alpha^2 times the covariance of the noise. If alpha^2 is above
    ``joint_embedding``, closed-form joint embedding converges to the signal's components as the number of items grows; below
    it does not. The same holds for ``reconstruction``. A method with a lower threshold needs less knowledge of the noise.

    Args:
        signal: kappa_i^2 / n, the variances of the k components that matter, > 0.
        noise: lambda^Gamma_i, the variances of the noise in each of the other components, > 0.
        augmentation_signal: lambda^Theta_i of the k components, >= 0: (k,), or one number for all.
        augmentation_noise: lambda^Theta_i of the others, >= 0: as long as ``noise``, or one number.

    Example:
        >>> weak, strong = (alignment_thresholds([4.0, 1.0], [x], 1.0, 1.0) for x in (0.1, 100.0))
        >>> weak.preferred, round(weak.crossover, 6)
        ('either', 1.0)
        >>> strong.preferred, round(strong.joint_embedding, 2), round(strong.reconstruction, 2)
        ('joint_embedding', 0.99, 198.99)
    """
    s, g = _variances("signal", signal, above=True), _variances("noise", noise, above=True)
    t = _alike("augmentation_signal", augmentation_signal, "signal", s)
    u = _alike("augmentation_noise", augmentation_noise, "noise", g)
    eta, delta = (s / np.sqrt(s + t)).min(), (s / (s + t)).min()
    reconstruction = float((g / eta**2 - u / g).max() - 1)
    joint_embedding = float((1 - delta) / delta - (u / g).min())
    return Thresholds(joint_embedding, reconstruction, float(eta**2 / delta), _preferred(joint_embedding, reconstruction))


def _preferred(je: float, rc: float) -> Literal["joint_embedding", "reconstruction", "either"]:
    if max(je, rc) <= 1e-12 or math.isclose(je, rc, rel_tol=1e-12, abs_tol=1e-12):
        return "either"
    return "joint_embedding" if je < rc else "reconstruction"


def _variances(name: str, values: Any, *, above: bool = False) -> npt.NDArray[np.float64]:
    x = np.atleast_1d(np.asarray(values, dtype=np.float64))
    valid = x.ndim == 1 and x.size > 0 and np.isfinite(x).all() and (x > 0 if above else x >= 0).all()
    expect(
        valid, f"{name} as a list of variances {'> 0' if above else '>= 0'}", shown(values), "leave out those without variance"
    )
    return x


def _alike(name: str, values: Any, other: str, like: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = _variances(name, values)
    expect(x.size in (1, like.size), f"{name} as one number, or {like.size} as in {other}", x.size)
    return np.broadcast_to(x, like.shape)
