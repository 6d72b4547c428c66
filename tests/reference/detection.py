"""Detectors in loops over items, in float64."""

import math

import numpy as np
from tests.reference.em import log_normal


def mean_and_covariance(X, w=None):
    """Returns mean and covariance, divided by the sum of the weights."""
    return np.average(X, 0, weights=w), np.cov(np.transpose(X), aweights=w, ddof=0)


gaussian_log_density = log_normal


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
