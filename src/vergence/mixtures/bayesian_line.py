r"""A line with the uncertainty of its coefficients: Bayesian ridge regression, whose predictive distribution is Student's t.

In standardized units, with contexts X (N, C) and one target y (N,), the coefficients are a ~ N(0, (s^2 / l) I), and the errors
have the variance s^2 with the prior 1 / s^2. For one penalty l, with X = U diag(r) V^T,

    log p(y | l) = 1/2 sum_j log v_j - (N - 1) / 2 log q(l) + constant,   v_j = l / (r_j^2 + l)
    q(l) = y^T (I + X X^T / l)^{-1} y,   s^2 = q / (N - 1),   a = (X^T X + l I)^{-1} X^T y
    Var(t | c) / s^2 = 1 + 1/N + c^T (X^T X + l I)^{-1} c

Few rows do not determine l. So the first line weighs `PENALTIES`, all equally likely before, and the predictive distribution is
the t that has their mean a, their mean variance plus that of c^T a between them, and n = N - 1 - sum_j (1 - v_j) degrees of
freedom: what the effective number of parameters leaves of the rows. Source: MacKay, Bayesian interpolation, 1992.

Student's t is N(0, s^2 / g) averaged over g ~ Gamma(n / 2, n / 2). The average is a sum over `NODES` equally spaced values of
log g, where the trapezoidal rule converges fast, so that the distribution is a mixture of Gaussians.
"""

import math

import torch
from torch import Tensor

from vergence.densities.covariance import Dense
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.mixtures.core import Conditional, Predictive, shrunk
from vergence.utils import linalg

__all__ = ["BayesianLine"]

NODES, FAR = 24, 20.0  # Gaussians of a t; deviations up to which it has the tails of a t
LEAST = 3.0  # degrees of freedom, at least: below 2 there is no variance
PENALTIES = (-6.0, 1.0, 29)  # powers of 10 of l, in units of the mean of r_j^2: from, to, number


class BayesianLine(Conditional):
    """p(target | context) of a line whose coefficients are uncertain: few rows and far contexts give wider intervals.

    Each target feature has penalties of its own; their errors are correlated. The distribution is Student's t (see the module's
    text), as a mixture of Gaussians whose log-density is that of the t to a few thousandths up to 20 deviations. Rows with a gap
    in any target are left out; gaps in contexts have their mean given the observed values.

    Args:
        device: Where to compute, as torch names it.
        random_state: Seed of `sample`.

    Attributes:
        coefficients_: (C, T), in standardized units, as what follows.
        error_: (T, T), the covariance of the errors.
        degrees_: n of the target feature that has the fewest, at least 3.
        n_rows_: N, the sum of the weights.
        axes_: V^T, (R, C).
        own_, moves_, across_: What a context at z = V^T c adds to the variance of the error of 1: z_j^2 times own_ (R, T), the
            squares of z times moves_ (R, G T), and the square of its part outside of the axes times across_ (T,).

    Example:
        >>> import numpy as np
        >>> x = np.array([[-1.0], [0.0], [1.0], [2.0], [3.0]])
        >>> model = BayesianLine().fit(x, [-1.9, 0.2, 1.8, 4.1, 5.9])
        >>> model.predict([[1.0], [6.0]]).round().tolist()
        [2.0, 12.0]
        >>> near, far = model.intervals([[1.0], [6.0]], 0.9)
        >>> bool(far[1] - far[0] > 1.4 * (near[1] - near[0]))
        True
    """

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        root = c.new_ones(len(c)) if w is None else w.sqrt()
        x, y = (root[:, None] * part for part in self._standardized(c, t, w))
        N = float(root.square().sum())
        U, r, V = torch.linalg.svd(x, full_matrices=False)
        inside, e = U.T @ y, r.square()
        outside = y - U @ inside
        penalties = (e.mean() + 1e-300) * torch.logspace(*PENALTIES).to(e)[:, None]  # (G, 1)
        v = penalties / (e + penalties)  # (G, R)
        square = (v @ inside.square() + outside.square().sum(0)) / (N - 1)  # s^2, (G, T)
        p = (0.5 * v.log().sum(1)[:, None] - 0.5 * (N - 1) * square.clamp(min=1e-300).log()).softmax(0)
        each = (r / (e + penalties))[..., None] * inside  # a along the axes, (G, R, T)
        mean, variance = (p[:, None] * each).sum(0), (p * square).sum(0)
        error = shrunk(outside + U @ (inside - r[:, None] * mean), N)
        unit = (variance / error.diagonal().clamp(min=1e-300)).sqrt()
        share = p * square / variance.clamp(min=1e-300)
        self.degrees_, self.n_rows_ = max(LEAST, N - 1 - float((p.T @ (1 - v)).sum(1).max())), N
        moves = ((p / variance.clamp(min=1e-300)).sqrt()[:, None] * (each - mean)).movedim(0, 1).flatten(1)
        found = (V.T @ mean, error * unit * unit[:, None], V, (1 / (e + penalties)).T @ share, moves, (share / penalties).sum(0))
        names = ("coefficients_", "error_", "axes_", "own_", "moves_", "across_")
        self.__dict__.update({name: part.cpu().numpy() for name, part in zip(names, found, strict=True)})

    def _predictive(self) -> Predictive:
        a, error, V = self._tensors(self.coefficients_, self.error_, self.axes_)
        own, moves, across = self._tensors(self.own_, self.moves_, self.across_)
        (of_c, of_t), (logits, g) = self._scales(), (part.to(a) for part in student(self.degrees_))
        L, _ = linalg.cholesky(error)

        def predictive(c: Tensor) -> MixtureOfGaussians:
            x = of_c.to(c)
            z = x @ V.T
            leverage = z.square() @ own + (z @ moves).square().unflatten(1, (-1, a.shape[1])).sum(1)
            leverage = leverage + (x - z @ V).square().sum(1, keepdim=True) * across
            std = (1 + 1 / self.n_rows_ + leverage).sqrt()  # (B, T)
            roots = (std[..., None] * L)[:, None] / g.sqrt()[:, None, None]
            mean = (x @ a)[:, None].expand(-1, len(g), -1)
            return of_t.back(MixtureOfGaussians(logits.expand(len(c), -1), mean, Dense(roots)))  # type: ignore[no-any-return]

        return predictive

    def _width(self) -> int:
        return NODES * self.n_targets_ * (self.n_targets_ + 4)


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
