"""Gaussian-process regression by explicit inverses: slow, float64, one function per equation, nothing shared with the library."""

import math

import numpy as np


def kernel(x, y, length_scale, signal):
    """Returns s_f^2 exp(-|x_i - y_j|^2 / 2 l^2), (N, M)."""
    K = np.zeros((len(x), len(y)))
    for i in range(len(x)):
        for j in range(len(y)):
            K[i, j] = signal**2 * math.exp(-sum((a - b) ** 2 for a, b in zip(x[i], y[j], strict=True)) / (2 * length_scale**2))
    return K


def nll(K_y, t):
    """Returns 1/2 tr(t^T K_y^{-1} t) + (T/2) log |K_y| + (N T/2) log 2 pi."""
    N, T = t.shape
    return 0.5 * np.trace(t.T @ np.linalg.inv(K_y) @ t) + T / 2 * np.linalg.slogdet(K_y)[1] + N * T / 2 * math.log(2 * math.pi)


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
