r"""Joint-Embedding vs Reconstruction (NeurIPS 2025), arXiv:2505.12477 version 2: two linear problems, solved exactly.

X are the items (N, D), tau an augmentation, xbar_i = E tau(x_i), and

    G = 1/n sum_i xbar_i xbar_i^T     S = 1/n sum_i E[tau(x_i) tau(x_i)^T]     Sigma = S - G
    M = 1/n sum_i x_i xbar_i^T        (M = G where xbar_i = x_i)

    reconstruction   min_{E,D}  1/n sum_i E|x_i - D E tau(x_i)|^2                                    (eq. 5, theorem 3.1)
    joint embedding  min_W      1/n sum_i E|W tau_1(x_i) - W tau_2(x_i)|^2  with  W S W^T = I        (theorem 3.2)

The theorems use the symmetric root S^{1/2}. Here the Cholesky factor L, S = L L^T, replaces it: the two differ by an
orthogonal matrix that changes neither R, Phi and E nor Omega and W. The optimal values and the two relations

    G w = omega S w        G^2 e = phi^2 S e   (xbar_i = x_i)        so that  phi_i^2 = g_i omega_i  where G and S commute

are derived here: reconstruction ranks a direction by its variance times its invariance, joint embedding only by invariance.
"""

import torch
from torch import Tensor

from vergence.utils.linalg import covariance_cholesky

__all__ = ["joint_embedding", "reconstruction"]


def joint_embedding(G: Tensor, S: Tensor) -> tuple[Tensor, Tensor, float]:
    r"""Returns W = Q^T S^{-1/2} and omega, S^{-1/2} G S^{-1/2} = Q Omega Q^T, the most invariant direction first (theorem 3.2).

    The first k rows solve the problem in k dimensions; so does U W for any orthogonal U. Each row's entry of largest
    size is positive. S - G is positive semidefinite.

    Returns:
        W (D, D), its rows w with W S W^T = I; omega (D,), descending, in [0, 1]; and the jitter, relative to S's diagonal.

    Example:
        >>> G = torch.diag(torch.tensor([9.0, 1.0], dtype=torch.float64))
        >>> W, omega, _ = joint_embedding(G, G + torch.diag(torch.tensor([9.0, 0.0], dtype=torch.float64)))
        >>> omega.round(decimals=6).tolist(), W.round(decimals=4).tolist()
        ([1.0, 0.5], [[0.0, 1.0], [0.2357, 0.0]])
    """
    L, jitter = covariance_cholesky(S)
    A = _whiten(L, _whiten(L, G).T)
    omega, Q = torch.linalg.eigh((A + A.T) / 2)
    W = torch.linalg.solve_triangular(L.T, Q.flip(1), upper=True).T
    return _oriented(W)[0], omega.flip(0).clamp(0, 1), jitter


def reconstruction(M: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor, float]:
    r"""Returns E, D and phi of theorem 3.1, in descending order of phi: M S^{-1/2} = R Phi P^T, E = P^T S^{-1/2}, D = R Phi.

    The first k rows of E and columns of D solve the problem in k dimensions; so do T E and D T^{-1} for any invertible
    T. P holds the *right* singular vectors. Each row of E has its entry of largest size positive. Rows of M belong to items,
    columns to their mean views.

    Returns:
        E (D, D) with E S E^T = I, D (D, D), phi (D,) descending, >= 0, and the jitter, relative to S's diagonal.

    Example:
        >>> G = torch.diag(torch.tensor([9.0, 1.0], dtype=torch.float64))
        >>> E, D, phi, _ = reconstruction(G, G + torch.diag(torch.tensor([9.0, 0.0], dtype=torch.float64)))
        >>> phi.square().round(decimals=6).tolist()  # g^2 / s: the direction that joint embedding puts last comes first
        [4.5, 1.0]
    """
    L, jitter = covariance_cholesky(S)
    R, phi, Pt = torch.linalg.svd(_whiten(L, M.T).T)
    E, sign = _oriented(torch.linalg.solve_triangular(L.T, Pt.T, upper=True).T)
    return E, R * phi * sign, phi, jitter


def _whiten(L: Tensor, a: Tensor) -> Tensor:
    """Returns L^{-1} a."""
    whitened: Tensor = torch.linalg.solve_triangular(L, a, upper=False)
    return whitened


def _oriented(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows with their largest entries positive, and the signs applied, so that all machines give one answer."""
    sign = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()[:, 0]
    return rows * sign[:, None], sign
