"""Linear joint embedding, reconstruction and supervision in scalar loops: slow, float64, nothing shared with the library.

Items are rows x_i. An augmentation is given by its outcomes: for each item a list of vectors, each as likely as the others.
Equation and theorem numbers are those of arXiv 2505.12477v2.
"""

import numpy as np


def outer(a, b):
    """Returns a b^T."""
    return np.outer(a, b).astype(np.float64)


def mean(vectors):
    """Returns the mean of a list of vectors or matrices."""
    return np.mean([np.asarray(v, dtype=np.float64) for v in vectors], 0)


def square(v):
    """Returns |v|^2."""
    return float(np.square(np.asarray(v, dtype=np.float64)).sum())


def affine(x, A, b, C):
    """Returns 2 D outcomes for each item, of mean A x + b and covariance C: the mean +- sqrt(D) times a column of C's root."""
    values, vectors = np.linalg.eigh(C)
    steps = [np.sqrt(len(C) * max(v, 0.0)) * u for v, u in zip(values, vectors.T, strict=True)]
    return [[A @ row + b + sign * step for step in steps for sign in (1, -1)] for row in np.asarray(x, dtype=np.float64)]


def additive(x, C):
    """Returns the outcomes of noise of mean zero and covariance C."""
    return affine(x, np.eye(len(C)), np.zeros(len(C)), C)


def centered(x, outcomes):
    """Returns items and outcomes, each less its own mean over all items."""
    middle, seen = mean(list(x)), mean([mean(o) for o in outcomes])
    return [row - middle for row in x], [[v - seen for v in o] for o in outcomes]


def moments(x, outcomes, y=None):
    """Returns G, S, M and N of section 1, for outcomes that are all there is."""
    seen = [mean(o) for o in outcomes]
    G = mean([outer(v, v) for v in seen])
    S = mean([mean([outer(v, v) for v in o]) for o in outcomes])
    M = mean([outer(row, v) for row, v in zip(x, seen, strict=True)])
    N = None if y is None else mean([outer(t, v) for t, v in zip(y, seen, strict=True)])
    return G, S, M, N


def sampled(x, draws, y=None):
    """Returns the same for outcomes that are draws: G from pairs of different draws alone, which makes it unbiased."""
    _, S, M, N = moments(x, draws, y)
    pairs = [mean([outer(a, b) for i, a in enumerate(o) for j, b in enumerate(o) if i != j]) for o in draws]
    return mean(pairs), S, M, N


def unbiased_around_means(G, S, n, m):
    """Returns G and S that were taken around the mean of n m views, less what that mean's own variance took away."""
    return G + (S - G) / (n * m), S + (S - G) / (n * m)


def inverse_root(S):
    """Returns S^{-1/2}."""
    values, vectors = np.linalg.eigh(S)
    return sum(outer(u, u) / np.sqrt(v) for v, u in zip(values, vectors.T, strict=True))


def joint_embedding(G, S):
    """Returns W = Q^T S^{-1/2} and omega, descending (theorem 3.2)."""
    root = inverse_root(S)
    values, vectors = np.linalg.eigh(root @ G @ root)
    order = np.argsort(values)[::-1]
    return np.array([vectors[:, i] @ root for i in order]), values[order]


def reconstruction(M, S):
    """Returns E = P^T S^{-1/2}, D = R Phi and phi (theorem 3.1)."""
    root = inverse_root(S)
    R, phi, Pt = np.linalg.svd(M @ root)
    return Pt @ root, R @ np.diag(phi), phi


def supervised(N, S):
    """Returns V = N S^{-1} (lemma B.1)."""
    return N @ np.linalg.inv(S)


def joint_embedding_value(W, outcomes):
    """Returns 1/n sum_i E|W tau_1(x_i) - W tau_2(x_i)|^2, over all pairs of outcomes."""
    return float(mean([mean([square(W @ (a - b)) for a in o for b in o]) for o in outcomes]))


def reconstruction_value(E, D, x, outcomes):
    """Returns 1/n sum_i E|x_i - D E tau(x_i)|^2."""
    return float(mean([mean([square(row - D @ (E @ v)) for v in o]) for row, o in zip(x, outcomes, strict=True)]))


def population(signal, noise, theta, alpha2, Q=None):
    """Returns G and S of infinitely many corrupted items (section 4.1)."""
    both, aligned = np.concatenate([signal, noise]), np.concatenate([np.zeros(len(signal)), noise])
    Q = np.eye(len(both)) if Q is None else Q
    return (Q * both) @ Q.T, (Q * (both + theta + alpha2 * aligned)) @ Q.T


def finds_signal(rows, k, Q=None):
    """Returns whether the first k rows span the first k columns of Q."""
    basis = np.linalg.qr(np.asarray(rows)[:k].T)[0]
    return square(basis[k:] if Q is None else Q[:, k:].T @ basis) < 0.5


def threshold(rows, signal, noise, theta, Q=None, halvings=40):
    """Returns the alpha^2 above which ``rows(G, S)`` find the signal; it may be negative, as long as S is positive."""
    low = -1 - min(t / g for t, g in zip(theta[len(signal) :], noise, strict=True))
    width = 1.0

    def good(alpha2):
        return finds_signal(rows(*population(signal, noise, theta, alpha2, Q)), len(signal), Q)

    while not good(low + width):
        width *= 2
    above = low + width
    for _ in range(halvings):
        middle = (low + above) / 2
        low, above = (low, middle) if good(middle) else (middle, above)
    return (low + above) / 2


def sine(a, b):
    """Returns the sine of the largest principal angle between two row spaces of equal dimension."""
    p, q = (np.linalg.qr(np.asarray(rows).T)[0] for rows in (a, b))
    return float(np.linalg.norm(q - p @ (p.T @ q), 2))
