"""Slow references of the measurements of uncertainty: loops over plain floats."""

import itertools
import math

from tests.reference import paired


def cosine(a, b):
    return paired.cosine(a, b) if any(a) and any(b) else 0.0


def neighbor_is_right(z, y):
    right = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        right.append(y[max(others, key=lambda j: cosine(z[i], z[j]))] == y[i])
    return right


def auroc(u, wrong):
    """The share of pairs of a wrong and a right item in which the wrong one is less certain; ties count one half."""
    pairs = [(a, b) for a, w in zip(u, wrong, strict=True) if w for b, v in zip(u, wrong, strict=True) if not v]
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)


def aurc(u, right):
    """The mean over all orders of tied items of the mean error among the n most certain: for a handful of items."""
    n, areas = len(u), []
    for order in itertools.permutations(range(n)):
        if all(u[a] <= u[b] for a, b in itertools.pairwise(order)):
            errors, area = 0, 0.0
            for k, i in enumerate(order, 1):
                errors += not right[i]
                area += errors / k
            areas.append(area / n)
    return sum(areas) / len(areas)


def ranks(x):
    """Mean rank of each value, 1 for the smallest."""
    return [sum(b < a for b in x) + (sum(b == a for b in x) + 1) / 2 for a in x]


def spearman(x, y):
    a, b = ranks(x), ranks(y)
    ma, mb = sum(a) / len(a), sum(b) / len(b)
    cov = sum((p - ma) * (q - mb) for p, q in zip(a, b, strict=True))
    va, vb = sum((p - ma) ** 2 for p in a), sum((q - mb) ** 2 for q in b)
    return cov / math.sqrt(va * vb) if va and vb else 0.0


def crop_spread(z):
    """Of views z[s][n][d]."""
    found = []
    for n in range(len(z[0])):
        units = [[x / math.sqrt(sum(v * v for v in view[n])) for x in view[n]] for view in z]
        mean = [sum(u[d] for u in units) / len(z) for d in range(len(units[0]))]
        found.append(1 - math.sqrt(sum(m * m for m in mean)))
    return found


def neighbor_spread(train, test, k):
    found = []
    for x in test:
        near = sorted(train, key=lambda t: -cosine(x, t))[:k]
        to = sum(1 - cosine(x, t) for t in near) / k
        among = [1 - cosine(a, b) for a, b in itertools.permutations(near, 2)]
        found.append((to + sum(among) / len(among)) / 2)
    return found
