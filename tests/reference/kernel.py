"""Gaussian-process regression by explicit inverses: slow, float64, one function per equation, nothing shared with the library."""

import math

import numpy as np


def kernel(x, y, length_scale, signal):
    """Returns s_f^2 exp(-1/2 sum_d (x_id - y_jd)^2 / l_d^2), (N, M), for one length or one a column."""
    K, lengths = np.zeros((len(x), len(y))), np.broadcast_to(length_scale, np.shape(x)[1])
    for i in range(len(x)):
        for j in range(len(y)):
            d = sum(((a - b) / ell) ** 2 for a, b, ell in zip(x[i], y[j], lengths, strict=True))
            K[i, j] = signal**2 * math.exp(-d / 2)
    return K


def nll(K_y, t):
    """Returns 1/2 tr(t^T K_y^{-1} t) + (T/2) log |K_y| + (N T/2) log 2 pi."""
    N, T = t.shape
    return 0.5 * np.trace(t.T @ np.linalg.inv(K_y) @ t) + T / 2 * np.linalg.slogdet(K_y)[1] + N * T / 2 * math.log(2 * math.pi)


def weighted_nll(x, t, w, length_scale, signal, noise):
    """Returns the NLL of items that each stand for w_i equal ones."""
    n2, T = noise**2, t.shape[1]
    more = sum((one - 1) * math.log(2 * math.pi * n2) + math.log(one) for one in w)
    return nll(kernel(x, x, length_scale, signal) + n2 * np.diag(1 / w), t) + T / 2 * more


def predictive(x, t, new, length_scale, signal, noise):
    """Returns the means (B, T) and variances (B,) of targets at new contexts (B, C)."""
    inverse = np.linalg.inv(kernel(x, x, length_scale, signal) + noise**2 * np.eye(len(x)))
    k = kernel(x, new, length_scale, signal)
    return k.T @ inverse @ t, signal**2 - np.diagonal(k.T @ inverse @ k) + noise**2


def bound(x, t, u, length_scale, signal, noise):
    """Returns log N(t; 0, Q + s_n^2 I) - T tr(K - Q) / 2 s_n^2, with Q from the inducing points u (m, C)."""
    K_fu = kernel(x, u, length_scale, signal)
    Q = K_fu @ np.linalg.inv(kernel(u, u, length_scale, signal)) @ K_fu.T
    return -nll(Q + noise**2 * np.eye(len(x)), t) - t.shape[1] * np.trace(signal**2 * np.eye(len(x)) - Q) / (2 * noise**2)


def sparse_predictive(x, t, u, new, length_scale, signal, noise):
    """Returns means (B, T) and variances (B,) from the best q(u), of covariance S = K_uu (K_uu + K_uf K_fu / s_n^2)^{-1} K_uu."""
    K_uu, K_uf, k = (kernel(u, v, length_scale, signal) for v in (u, x, new))
    S = K_uu @ np.linalg.inv(K_uu + K_uf @ K_uf.T / noise**2) @ K_uu
    mean_u = S @ np.linalg.inv(K_uu) @ K_uf @ t / noise**2
    A = k.T @ np.linalg.inv(K_uu)
    return A @ mean_u, signal**2 - np.diagonal(A @ k) + np.diagonal(A @ S @ A.T) + noise**2
