"""EM for Gaussian mixtures item by item: slow, float64, straight from the formulas, nothing shared with the library.

E step  r_nk = pi_k N(x_n; mu_k, S_k) / sum_j pi_j N(x_n; mu_j, S_j)
M step  N_k = sum_n w_n r_nk,  pi_k = N_k / sum_j N_j,  mu_k = sum_n w_n r_nk x_n / N_k,  and S_k by its kind, divided by N_k

Covariances are dense, a list of K; of factor analyzers they are pairs (d, U) with S = diag d + U U^T.
"""

import math

import numpy as np


def log_normal(x, mu, S):
    """Returns log N(x; mu, S)."""
    delta = x - mu
    return -0.5 * (delta @ np.linalg.inv(S) @ delta + math.log(np.linalg.det(S)) + len(x) * math.log(2 * math.pi))


def expectation(X, w, pi, mu, S):
    """Returns responsibilities, N lists of K, and the mean log-likelihood of the items (X, w)."""
    r, total = [], 0.0
    for x, weight in zip(X, w, strict=True):
        joint = [pi[k] * math.exp(log_normal(x, mu[k], S[k])) for k in range(len(pi))]
        r.append([p / sum(joint) for p in joint])
        total += weight * math.log(sum(joint))
    return r, total / sum(w)


def sizes_and_means(X, w, r):
    """Returns N_k and mu_k."""
    K, D = len(r[0]), len(X[0])
    N, first = [0.0] * K, [np.zeros(D) for _ in range(K)]
    for x, weight, share in zip(X, w, r, strict=True):
        for k in range(K):
            N[k] += weight * share[k]
            first[k] = first[k] + weight * share[k] * x
    return N, [first[k] / N[k] for k in range(K)]


def scatter(X, w, r, mu, k):
    """Returns sum_n w_n r_nk (x_n - mu_k) (x_n - mu_k)^T."""
    total = np.zeros((len(X[0]), len(X[0])))
    for x, weight, share in zip(X, w, r, strict=True):
        total += weight * share[k] * np.outer(x - mu[k], x - mu[k])
    return total


def maximization(X, w, r, kind, reg=0.0):
    """Returns pi, mu, S of the M step; ``kind`` is full or diag."""
    N, mu = sizes_and_means(X, w, r)
    S = [scatter(X, w, r, mu, k) / n for k, n in enumerate(N)]
    if kind == "diag":
        S = [np.diag(np.diag(one)) for one in S]
    return [n / sum(N) for n in N], mu, [one + reg * np.eye(len(X[0])) for one in S]


def dense(factors):
    """Returns diag d + U U^T of each pair (d, U)."""
    return [np.diag(d) + U @ U.T for d, U in factors]


def factor_step(X, w, r, factors):
    """Returns pi, mu and one EM step of each factor analyzer: z_n has mean beta delta_n and covariance I - beta U.

    U <- (sum_n r delta_n E[z_n]^T) (sum_n r E[z_n z_n^T])^{-1},  d <- diag(sum_n r (delta_n - U E[z_n]) delta_n^T) / N_k
    """
    N, mu = sizes_and_means(X, w, r)
    after = []
    for k, (d, U) in enumerate(factors):
        rank = U.shape[1]
        beta = U.T @ np.linalg.inv(np.diag(d) + U @ U.T)
        cross, latent = np.zeros(U.shape), np.zeros((rank, rank))
        for x, weight, share in zip(X, w, r, strict=True):
            z = beta @ (x - mu[k])
            cross += weight * share[k] * np.outer(x - mu[k], z)
            latent += weight * share[k] * (np.eye(rank) - beta @ U + np.outer(z, z))
        new = cross @ np.linalg.inv(latent)
        rest = np.zeros(len(d))
        for x, weight, share in zip(X, w, r, strict=True):
            delta = x - mu[k]
            rest += weight * share[k] * (delta - new @ (beta @ delta)) * delta
        after.append((rest / N[k], new))
    return [n / sum(N) for n in N], mu, after


def mahalanobis(X, w, r, mu, S, k):
    """Returns sum_n w_n r_nk (x_n - mu_k)^T S_k^{-1} (x_n - mu_k)."""
    total = 0.0
    for x, weight, share in zip(X, w, r, strict=True):
        total += weight * share[k] * float((x - mu[k]) @ np.linalg.solve(S[k], x - mu[k]))
    return total
