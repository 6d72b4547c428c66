"""The mixture density network in loops: slow, float64, one function per equation, nothing shared with the library.

Vectors are lists; a (K), m and s (K lists of T) belong to one context.
"""

import itertools
import math

from tests.reference.smc_bank import log_sum_exp


def log_component(m_k, s_k, t):
    """Returns log N(t; m_k, diag e^(2 s_k))."""
    parts = zip(m_k, s_k, t, strict=True)
    return -sum(0.5 * ((x - m) / math.exp(s)) ** 2 + s + 0.5 * math.log(2 * math.pi) for m, s, x in parts)


def log_joint(a, m, s, t):
    """Returns log w_k + log N(t; m_k, sigma_k) of each component."""
    return [a_k - log_sum_exp(a) + log_component(m_k, s_k, t) for a_k, m_k, s_k in zip(a, m, s, strict=True)]


def negative_log_likelihood(a, m, s, t):
    """Returns -log p(t | c)."""
    return -log_sum_exp(log_joint(a, m, s, t))


def network(theta, x, widths):
    """Returns the outputs for one context x of parameters theta: weights (inputs by outputs), then biases, layer by layer."""
    at = 0
    for layer, (i, o) in enumerate(itertools.pairwise(widths)):
        if layer:
            x = [v / (1 + math.exp(-v)) for v in x]
        W, b = theta[at : at + i * o], theta[at + i * o : at + i * o + o]
        at += i * o + o
        x = [b[q] + sum(x[p] * W[p * o + q] for p in range(i)) for q in range(o)]
    assert at == len(theta)
    return x
