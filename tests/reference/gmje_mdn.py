"""The losses of GMJE-MDN in loops: slow, float64, one function per equation, nothing shared with the library.

Vectors are lists; a (K), m and s (K lists of D) belong to one context. A batch is a list of rows.
"""

import math

import numpy as np
from tests.reference.mdn import log_joint, log_sum_exp, negative_log_likelihood

__all__ = ["negative_log_likelihood"]


def gradients(a, m, s, z):
    """Returns dL/da, dL/dm and dL/ds of the negative log-likelihood: w - gamma, gamma (m - z) / sigma^2, gamma (1 - u^2)."""
    joint = log_joint(a, m, s, z)
    gamma = [math.exp(j - log_sum_exp(joint)) for j in joint]
    da = [math.exp(a_k - log_sum_exp(a)) - g for a_k, g in zip(a, gamma, strict=True)]
    dm, ds = [], []
    for g, m_k, s_k in zip(gamma, m, s, strict=True):
        dm.append([g * (mu - x) / math.exp(2 * sd) for mu, sd, x in zip(m_k, s_k, z, strict=True)])
        ds.append([g * (1 - ((x - mu) / math.exp(sd)) ** 2) for mu, sd, x in zip(m_k, s_k, z, strict=True)])
    return da, dm, ds


def split(out, K, D, floor):
    """Returns a, m and s of one context's outputs: e^s = floor + e^min(r, 3)."""
    a = out[:K]
    m = [[out[K + k * D + j] for j in range(D)] for k in range(K)]
    s = [[math.log(floor + math.exp(min(out[K + K * D + k * D + j], 3.0))) for j in range(D)] for k in range(K)]
    return a, m, s


def network(layers, x):
    """Returns the outputs for one context x of layers [(W as outputs by inputs, b)]: SiLU between linear layers."""
    for i, (W, b) in enumerate(layers):
        if i:
            x = [v / (1 + math.exp(-v)) for v in x]
        x = [b_o + sum(w * v for w, v in zip(W_o, x, strict=True)) for W_o, b_o in zip(W, b, strict=True)]
    return x


def moments(rows, shrinkage, jitter):
    """Returns mean and covariance, (1 - a) S + (a + jitter) tr(S) / D I."""
    S = np.atleast_2d(np.cov(np.transpose(rows), ddof=0))
    return np.mean(rows, 0), (1 - shrinkage) * S + (shrinkage + jitter) * np.trace(S) / len(S) * np.eye(len(S))


def anchored_entropy(S):
    """Returns 1/2 [tr S - D - log |S|]."""
    return 0.5 * (np.trace(S) - len(S) - np.linalg.slogdet(S)[1])


def kl(mean, S):
    """Returns KL(N(mean, S) || N(0, I))."""
    return anchored_entropy(S) + 0.5 * sum(v * v for v in mean)
