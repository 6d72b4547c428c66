r"""When do joint embedding and reconstruction find the signal under noise?

arXiv:2505.12477 version 2, section 4.

The items are a signal in k components and noise in the others, and all matrices share their eigenvectors: the signal has
variances kappa_i^2 / n (i <= k), the noise lambda^Gamma_i (i > k), and the augmentation adds noise of covariance
Theta + alpha^2 Gamma: Theta is what it does besides, with variances lambda^Theta_i on all components, alpha says how strongly
it is aligned with the noise. With many items each method finds exactly the signal's span if and only if alpha^2 exceeds

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

__all__ = ["Thresholds", "alignment_thresholds"]


@dataclass(frozen=True)
class Thresholds:
    """What the alignment must exceed.

    Attributes:
        joint_embedding: Threshold on alpha SQUARED; negative or zero where every alpha will do.
        reconstruction: The same for reconstruction.
        crossover: eta^2 / delta, a variance: with all noise below it reconstruction has the lower threshold, with all above
            it joint embedding has; in between either may (cor. 4.5).
        preferred: The one of lower threshold; ``either`` where both are at most 0, or equal.
    """

    joint_embedding: float
    reconstruction: float
    crossover: float
    preferred: Literal["joint_embedding", "reconstruction", "either"]


def alignment_thresholds(signal: Any, noise: Any, augmentation_signal: Any, augmentation_noise: Any) -> Thresholds:
    r"""Returns how well an augmentation must be aligned with the noise for each method to find the signal.

    Read it so: multiply the noise's own covariance by alpha^2 and add that to what the augmentation does. Where alpha^2 is
    above ``joint_embedding``, the closed-form joint embedding of ever more items converges to the signal's components, below
    it never does; likewise for ``reconstruction``. A method of lower threshold asks less knowledge of the noise.

    Args:
        signal: kappa_i^2 / n, the variances of the k components that matter, > 0.
        noise: lambda^Gamma_i, the variances of the noise in each of the other components, > 0.
        augmentation_signal: lambda^Theta_i of the k components, >= 0: (k,), or one number for all.
        augmentation_noise: lambda^Theta_i of the others, >= 0: as long as ``noise``, or one number.

    Raises:
        ValueError: Lengths differ, a list is empty, or a number is negative, zero where it may not be, or not finite.

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
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all() or (x < 0).any() or (above and (x == 0).any()):
        sign = "> 0" if above else ">= 0"
        raise ValueError(f"{name}: expected a list of variances {sign}, found {values!r}; leave out components without any")
    return x


def _alike(name: str, values: Any, other: str, like: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = _variances(name, values)
    if x.size not in (1, like.size):
        raise ValueError(f"{name}: expected one number, or {like.size} as in {other}, found {x.size}: one for each component")
    return np.broadcast_to(x, like.shape)
