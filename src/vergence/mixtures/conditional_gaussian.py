r"""One Gaussian over context and target: the Gaussian joint embedding (GJE) of arXiv 2603.26799 on fixed data.

With mean (mu_c, mu_t) and covariance blocks S_cc, S_ct, S_tc, S_tt of the items (divided by N: maximum likelihood),

    p(t | c) = N(t; mu_t + A (c - mu_c), S_tt - A S_ct),   A = S_tc S_cc^{-1}

which is linear regression with an intercept and the covariance of its residuals.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vergence.densities.covariance import Dense
from vergence.densities.gaussian import JointGaussian
from vergence.mixtures.core import Conditional, Predictive, Scale
from vergence.utils import linalg
from vergence.utils.checks import require_within
from vergence.utils.devices import as_device

__all__ = ["ConditionalGaussian"]


@dataclass(eq=False, repr=False, kw_only=True)
class ConditionalGaussian(Conditional):
    """p(target | context) of one Gaussian: a mean linear in the context, and one covariance for all contexts.

    Args:
        reg_covar: Regularization added to the variance of each standardized feature, >= 0.
        device: Where to compute, as torch names it.
        random_state: Seed of `sample`.

    Attributes:
        means_: (C + T,), context first.
        covariances_: (C + T, C + T).
        jitter_: Value added to the standardized variances to make the covariance positive definite; usually 0.0.
        n_features_in_: C.
        n_targets_: T.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(2000, 1))
        >>> model = ConditionalGaussian().fit(x, 2 * x[:, 0] + 0.5 * rng.normal(size=2000))
        >>> given = model.conditional([[1.0]])
        >>> [round(v, 1) for v in (given.mean.item(), given.variance.item() ** 0.5)]
        [2.0, 0.5]
        >>> model.intervals([[1.0]], level=0.9).round(1).tolist()
        [[1.2, 2.8]]
    """

    reg_covar: float = 0.0
    device: str = "cpu"
    random_state: Any = None

    def _fit(self, c: Tensor, t: Tensor) -> None:
        require_within("[0, inf)", reg_covar=self.reg_covar)
        Z = torch.cat([c, t], 1)
        scale = Scale.of(Z)
        X = scale.to(Z)
        S = X.T @ X / len(X)
        varies = (S.diagonal() > 0.5).to(S)  # a constant column has only the rounding error of its mean
        S = S * varies * varies[:, None] + self.reg_covar * torch.eye(X.shape[1]).to(X)
        L, self.jitter_ = linalg.cholesky(S)
        L = scale.std.to(L)[:, None] * L
        self.means_ = scale.mean.numpy()
        self.covariances_ = (L @ L.T).cpu().numpy()
        self.cholesky_ = L.cpu().numpy()

    def joint(self) -> JointGaussian:
        """Returns the density over [context; target]."""
        mean, L = (torch.from_numpy(v).to(as_device(self.device)) for v in (self.means_, self.cholesky_))
        return JointGaussian(mean, Dense(L), context=self.n_features_in_)

    def _predictive(self) -> Predictive:
        return self.joint().conditional
