"""Detectors in loops over items, in float64."""

import math


def mean_and_covariance(X, w=None):
    """Returns mean and covariance, divided by the sum of the weights, as lists."""
    w = [1.0] * len(X) if w is None else w
    D, total = len(X[0]), sum(w)
    mean = [sum(v * x[d] for v, x in zip(w, X, strict=True)) / total for d in range(D)]
    S = [
        [sum(v * (x[i] - mean[i]) * (x[j] - mean[j]) for v, x in zip(w, X, strict=True)) / total for j in range(D)]
        for i in range(D)
    ]
    return mean, S


def gaussian_log_density(x, mean, S):
    """Returns log N(x; mean, S) by elimination."""
    D = len(mean)
    rows = [[*S[i], x[i] - mean[i]] for i in range(D)]
    log_det = 0.0
    for i in range(D):
        log_det += math.log(rows[i][i])
        for j in range(i + 1, D):
            f = rows[j][i] / rows[i][i]
            rows[j] = [a - f * b for a, b in zip(rows[j], rows[i], strict=True)]
    y = [0.0] * D
    for i in reversed(range(D)):
        y[i] = (rows[i][-1] - sum(rows[i][j] * y[j] for j in range(i + 1, D))) / rows[i][i]
    distance = sum((x[i] - mean[i]) * y[i] for i in range(D))
    return -0.5 * (D * math.log(2 * math.pi) + log_det + distance)


def centers(items, weights, n, iterations, on_sphere):
    """Returns the centers of n clusters after iterations of k-means from the first n items; on the sphere they have norm 1."""
    found = [list(item) for item in items[:n]]
    for _ in range(iterations):
        nearest = [min(range(n), key=lambda c: math.dist(found[c], item)) for item in items]
        for c in range(n):
            members = [(item, w) for item, w, of in zip(items, weights, nearest, strict=True) if of == c]
            if members:
                total = sum(w for _, w in members)
                mean = [sum(w * item[d] for item, w in members) / total for d in range(len(items[0]))]
                found[c] = [v / math.hypot(*mean) for v in mean] if on_sphere else mean
    return found


def kth_distance(items, x, k):
    """Returns the distance of x to its k-th nearest item; one item that equals x is left out."""
    distances = sorted(math.dist(x, item) for item in items)
    if distances[0] == 0:
        distances = distances[1:]
    return distances[k - 1]
