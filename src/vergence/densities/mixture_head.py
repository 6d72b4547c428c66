r"""The head of a mixture density network (Bishop, Mixture Density Networks, 1994): outputs of a network as a Gaussian mixture.

The K (1 + 2 D) outputs hold logits a (K), means m (K, D) and unbounded log-stds r (K, D):

    p = sum_k softmax(a)_k N(m_k, diag e^{2 s_k}),   s = s(r)

Each user of the head bounds the stds in its own way, s(r), because a component of vanishing std has infinite likelihood.

Shapes: batch (...), K components, D features.
"""

import math

import torch
from torch import Tensor

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians

__all__ = ["initial_outputs", "mixture", "n_outputs", "split_outputs"]


def n_outputs(K: int, D: int) -> int:
    """Returns the number of outputs, K (1 + 2 D)."""
    return K * (1 + 2 * D)


def split_outputs(out: Tensor, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a (..., K), m (..., K, D) and r (..., K, D) of outputs (..., K (1 + 2 D)).

    Example:
        >>> [part.tolist() for part in split_outputs(torch.arange(6.0), 2)]
        [[0.0, 1.0], [[2.0], [3.0]], [[4.0], [5.0]]]
    """
    D = (out.shape[-1] // K - 1) // 2
    a, m, r = out.split([K, K * D, K * D], -1)
    return a, m.unflatten(-1, (K, D)), r.unflatten(-1, (K, D))


def initial_outputs(means: Tensor) -> Tensor:
    """Returns outputs (K (1 + 2 D)) with these means (K, D), equal weights and r = -log K.

    Example:
        >>> initial_outputs(torch.tensor([[5.0]])).tolist()
        [0.0, 5.0, -0.0]
    """
    K = len(means)
    return torch.cat([means.new_zeros(K), means.flatten(), means.new_full((means.numel(),), -math.log(K))])


def mixture(a: Tensor, m: Tensor, s: Tensor) -> MixtureOfGaussians:
    """Returns sum_k softmax(a)_k N(m_k, diag e^{2 s_k}) over (D,), of batch (...), for a (..., K), m and s (..., K, D).

    Example:
        >>> p = mixture(torch.zeros(2), torch.tensor([[-1.0], [1.0]]), torch.zeros(2, 1))
        >>> p.mean.item(), p.variance.item()
        (0.0, 2.0)
    """
    return MixtureOfGaussians(a, m, Diagonal((2 * s).exp()))
