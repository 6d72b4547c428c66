"""MoCo's loss and queue, and the bank of weighted pairs, in loops: slow, float64, nothing shared with the library.

Embeddings are lists of vectors; a bank is a list of (a, b, weight, age), the oldest first.
"""

import math

from tests.reference.paired import dot
from tests.reference.vje import unit


def log_normal(x, mean, h):
    """Returns log N(x; mean, h^2 I)."""
    q = sum((a - b) ** 2 for a, b in zip(x, mean, strict=True))
    return -q / (2 * h**2) - len(x) * math.log(h * math.sqrt(2 * math.pi))


def log_sum_exp(values):
    """Returns log sum exp."""
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def without_lightest(old, new):
    """Returns the pool without the lightest of the old particles, as many as there are new ones."""
    old = list(old)
    for _ in new:
        lightest = 0
        for m in range(1, len(old)):
            if old[m][2] < old[lightest][2] - 1e-13:  # the first, which is the oldest, of ones equal but for rounding
                lightest = m
        del old[lightest]
    total = sum(particle[2] for particle in [*old, *new])
    return [(a, b, w / total, age) for a, b, w, age in [*old, *new]]


def moco_loss(queries, positives, queue, tau):
    """Returns MoCo's loss as published: vectors at unit length, the positive's logit first, cross-entropy with label 0."""
    total = 0.0
    for q, k in zip(map(unit, queries), map(unit, positives), strict=True):
        logits = [dot(q, k) / tau] + [dot(q, unit(key)) / tau for key in queue]
        total += log_sum_exp(logits) - logits[0]
    return total / len(queries)


def enqueue(queue, pointer, keys):
    """Writes keys over the queue's oldest, as published; returns the next pointer."""
    assert len(queue) % len(keys) == 0
    queue[pointer : pointer + len(keys)] = keys
    return (pointer + len(keys)) % len(queue)


def info_nce(queries, positives, keys, weights, tau):
    """Returns the weighted loss of one direction, for vectors as they are."""
    total, M = 0.0, len(keys)
    for q, k in zip(queries, positives, strict=True):
        positive = math.log(1 / M) + dot(q, k) / tau
        negatives = [math.log(w) + dot(q, key) / tau for w, key in zip(weights, keys, strict=True)]
        total += log_sum_exp([positive, *negatives]) - positive
    return total / len(queries)


def step(za, zb, bank, tau, rho, u):
    """Returns the bank after a batch that causes no resampling, and the pool's effective sample size."""
    M, B, r = len(bank), len(za), [0.0] * len(bank)
    for a, b in zip(map(unit, za), map(unit, zb), strict=True):
        logs = [math.log(w) + (dot(a, unit(ka)) + dot(b, unit(kb))) / tau for ka, kb, w, _ in bank]
        total = log_sum_exp(logs)
        for m in range(M):
            r[m] += math.exp(logs[m] - total) / B
    old = []
    for (ka, kb, w, age), r_m in zip(bank, r, strict=True):
        damped = (1 - rho) * w + rho * r_m
        old.append((ka, kb, ((1 - u) * damped + u / M) * M / (M + B), age + 1))
    new = [(a, b, 1 / (M + B), 0) for a, b in zip(za, zb, strict=True)]
    return without_lightest(old, new), 1 / sum(w**2 for _, _, w, _ in old + new)


def log_density(za, zb, bank_a, bank_b, weights, tau):
    """Returns log p(z_b | z_a) and log p(z_a) of every pair under kernels on the raw embeddings."""
    bank = list(zip(bank_a, bank_b, weights, strict=True))
    h = math.sqrt(tau * sum(w * (dot(a, a) + dot(b, b)) / 2 for a, b, w in bank))
    given, alone = [], []
    for a, b in zip(za, zb, strict=True):
        gate = [math.log(w) + log_normal(a, ka, h) for ka, _, w in bank]
        both = [g + log_normal(b, kb, h) for g, (_, kb, _) in zip(gate, bank, strict=True)]
        alone.append(log_sum_exp(gate))
        given.append(log_sum_exp(both) - alone[-1])
    return given, alone
