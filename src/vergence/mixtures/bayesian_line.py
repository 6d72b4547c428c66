r"""A line with the uncertainty of its coefficients: Bayesian ridge regression, whose predictive distribution is Student's t.

In standardized units with contexts X (N, C) and one target y (N,), coefficients a ~ N(0, (s^2 / l) I) and errors of the
variance s^2 with the prior 1 / s^2:

    log p(y | l) = -1/2 log |I + X X^T / l| - (N - 1) / 2 log q(l) + constant,   q(l) = y^T (I + X X^T / l)^{-1} y
    p(y | c) = t_n(c^T a, s^2 (1 + 1/N + c^T (X^T X + l I)^{-1} c)),   s^2 = q / (N - 1),   n = N - 1 - sum_j e_j / (e_j + l)

where l maximizes the first line, a is the ridge regression for it, e are the eigenvalues of X^T X, and n is what the effective
number of parameters leaves of the rows. Sources: MacKay, Bayesian interpolation, 1992; Tipping, Sparse Bayesian learning, 2001.

Student's t is N(0, s^2 / g) averaged over g ~ Gamma(n / 2, n / 2). The average is a sum over `NODES` equally spaced values of
log g, where the trapezoidal rule converges fast, so that the distribution is a mixture of Gaussians.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vergence.densities.covariance import Dense
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.mixtures.conditional_mixture import shrunk
from vergence.mixtures.core import Conditional, Predictive
from vergence.utils import linalg

__all__ = ["BayesianLine"]

NODES, FAR = 24, 20.0  # Gaussians of a t; deviations up to which it has the tails of a t
LEAST = 3.0  # degrees of freedom, at least: below 2 there is no variance
PENALTIES = (-9.0, 6.0, 181)  # powers of 10 of l / N: from, to, number


@dataclass(eq=False, repr=False, kw_only=True)
class BayesianLine(Conditional):
    """p(target | context) of a line whose coefficients are uncertain: few rows and unusual contexts give wider intervals.

    Each target feature has a penalty of its own, chosen by the marginal likelihood; their errors are correlated. The
    distribution is Student's t (see the module's text), as a mixture of Gaussians that equals it up to 20 deviations. Rows with
    a gap in any target are left out; gaps in contexts have their mean given what is known.

    Args:
        device: Where to compute, as torch names it.
        random_state: Seed of `sample`.

    Attributes:
        coefficients_: (C, T), in standardized units, as the others.
        penalty_: (T,), l > 0.
        degrees_: n of the target feature that has the fewest, at least 3.
        error_: (T, T), the covariance s^2 of the errors.
        axes_, spread_: Right singular vectors (R, C) of the contexts, and their squared singular values (R,).
        n_rows_: N, the sum of the weights.

    Example:
        >>> import numpy as np
        >>> x = np.array([[-1.0], [0.0], [1.0], [2.0], [3.0]])
        >>> model = BayesianLine().fit(x, [-1.9, 0.2, 1.8, 4.1, 5.9])
        >>> model.predict([[1.0], [10.0]]).round().tolist()
        [2.0, 20.0]
        >>> near, far = model.intervals([[1.0], [10.0]], 0.9)
        >>> bool(far[1] - far[0] > 2 * (near[1] - near[0]))
        True
    """

    device: str = "cpu"
    random_state: Any = None

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        root = c.new_ones(len(c)) if w is None else w.sqrt()
        x, y = (root[:, None] * part for part in self._standardized(c, t, w))
        N = float(root.square().sum())
        U, s, V = torch.linalg.svd(x, full_matrices=False)
        inside, e = U.T @ y, s.square()
        outside = y - U @ inside
        penalty = _penalties(e, inside, outside, N)
        rest = penalty / (e[:, None] + penalty)  # 1 - share of a parameter that the data decide, (R, T)
        square = (rest * inside.square()).sum(0) + outside.square().sum(0)
        error = shrunk(outside + U @ (rest * inside), N)
        unit = (square / (N - 1) / error.diagonal().clamp(min=1e-300)).sqrt()
        coefficients = V.T @ ((1 - rest) * inside / s.clamp(min=1e-150)[:, None])
        self.degrees_, self.n_rows_ = max(LEAST, N - 1 - float((1 - rest).sum(0).max())), N
        found = (coefficients, penalty, error * unit * unit[:, None], V, e)
        self.coefficients_, self.penalty_, self.error_, self.axes_, self.spread_ = (part.cpu().numpy() for part in found)

    def _predictive(self) -> Predictive:
        names = (self.coefficients_, self.penalty_, self.error_, self.axes_, self.spread_)
        (a, penalty, error, V, e), (of_c, of_t) = self._tensors(*names), self._scales()
        logits, g = (part.to(a) for part in student(self.degrees_))
        L, _ = linalg.cholesky(error)

        def predictive(c: Tensor) -> MixtureOfGaussians:
            x = of_c.to(c)
            along = x @ V.T
            across = (x - along @ V).square().sum(1, keepdim=True)  # directions that no row has
            leverage = along.square() @ (1 / (e[:, None] + penalty)) + across / penalty
            std = (1 + 1 / self.n_rows_ + leverage).sqrt()  # (B, T)
            roots = (std[..., None] * L)[:, None] / g.sqrt()[:, None, None]
            mean = (x @ a)[:, None].expand(-1, len(g), -1)
            return of_t.back(MixtureOfGaussians(logits.expand(len(c), -1), mean, Dense(roots)))  # type: ignore[no-any-return]

        return predictive

    def _width(self) -> int:
        return NODES * self.n_targets_ * (self.n_targets_ + 4)


def _penalties(e: Tensor, inside: Tensor, outside: Tensor, N: float) -> Tensor:
    """Returns the penalty of the highest marginal likelihood for each target, (T,).

    The contexts have squared singular values e (R,); the targets have the parts ``inside`` (R, T), along their left singular
    vectors, and ``outside`` (N, T).
    """
    low, high, n = PENALTIES
    grid = N * torch.logspace(low, high, n).to(e)
    rest = grid[:, None] / (e + grid[:, None])  # (G, R)
    square = rest @ inside.square() + outside.square().sum(0)  # q(l), (G, T)
    evidence = 0.5 * rest.log().sum(1)[:, None] - 0.5 * (N - 1) * square.clamp(min=1e-300).log()
    return grid[evidence.argmax(0)]


def student(n: float) -> tuple[Tensor, Tensor]:
    """Returns log-weights and precisions (K,) of the Gaussians of a t with n degrees of freedom, n >= 3 (module's text).

    The range of log g is that of the integrand for values from 0 to `FAR` deviations, with four of its widths on both sides.

    Example:
        >>> logits, g = student(5.0)
        >>> round(float((logits.softmax(0) / g).sum()), 2)  # the variance n / (n - 2)
        1.67
    """
    width = math.sqrt(2 / (n + 1))
    low, high = math.log((n + 1) / (n + FAR**2)) - 4 * width, math.log((n + 1) / n) + 4 * width
    u = torch.linspace(low, high, NODES, dtype=torch.float64)
    return 0.5 * n * (u - u.exp()), u.exp()
