"""The particle bank in loops: slow, float64, one function per equation, nothing shared with the library.

Particles are lists of contexts, targets (vectors, in standardized units) and weights, the oldest first.
"""

import math


def log_normal(x, mean, h):
    """Returns log N(x; mean, h^2 I)."""
    q = sum((a - b) ** 2 for a, b in zip(x, mean, strict=True))
    return -q / (2 * h**2) - len(x) * math.log(h * math.sqrt(2 * math.pi))


def log_sum_exp(values):
    """Returns log sum exp."""
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def log_conditional(c, t, contexts, targets, weights, h_c, h_t):
    """Returns log p(t | c) of one pair."""
    gate = [math.log(w) + log_normal(c, c_m, h_c) for w, c_m in zip(weights, contexts, strict=True)]
    joint = [g + log_normal(t, t_m, h_t) for g, t_m in zip(gate, targets, strict=True)]
    return log_sum_exp(joint) - log_sum_exp(gate)


def log_joint(c, t, contexts, targets, weights, h_c, h_t):
    """Returns log p(c, t) of one pair."""
    bank = zip(weights, contexts, targets, strict=True)
    return log_sum_exp([math.log(w) + log_normal(c, c_m, h_c) + log_normal(t, t_m, h_t) for w, c_m, t_m in bank])


def leave_one_out(contexts, targets, h_c, h_t):
    """Returns the mean of log p(t_n | c_n) with equal weights of all items but n."""
    N, total = len(contexts), 0.0
    for n in range(N):
        others = [m for m in range(N) if m != n]
        bank = [contexts[m] for m in others], [targets[m] for m in others], [1 / (N - 1)] * (N - 1)
        total += log_conditional(contexts[n], targets[n], *bank, h_c, h_t)
    return total / N


def kernel_regression(c, contexts, targets, weights, h_c):
    """Returns sum_m w_m k_m t_m / sum_m w_m k_m (Nadaraya-Watson)."""
    k = [w * math.exp(log_normal(c, c_m, h_c)) for w, c_m in zip(weights, contexts, strict=True)]
    return [sum(a * t_m[d] for a, t_m in zip(k, targets, strict=True)) / sum(k) for d in range(len(targets[0]))]


def weight_step(batch, bank, h_c, h_t, rho, u):
    """Returns the bank's weights after a batch of pairs: responsibilities, damping, mixing."""
    M, r = len(bank), [0.0] * len(bank)
    for c, t in batch:
        logs = [math.log(w) + log_normal(c, c_m, h_c) + log_normal(t, t_m, h_t) for c_m, t_m, w in bank]
        total = log_sum_exp(logs)
        for m in range(M):
            r[m] += math.exp(logs[m] - total) / len(batch)
    damped = [(1 - rho) * w + rho * r_m for (_, _, w), r_m in zip(bank, r, strict=True)]
    return [(1 - u) * w + u / M for w in damped]


def step(batch, bank, h_c, h_t, rho, u):
    """Returns the bank, a list of (c, t, w), and the pool's effective sample size after a batch that causes no resampling."""
    weights = weight_step(batch, bank, h_c, h_t, rho, u)
    M, B = len(bank), len(batch)
    old = [(c, t, w * M / (M + B)) for (c, t, _), w in zip(bank, weights, strict=True)]
    pool = old + [(c, t, 1 / (M + B)) for c, t in batch]
    return without_lightest(old, pool[M:]), 1 / sum(w**2 for _, _, w in pool)


def without_lightest(old, new):
    """Returns the pool without the lightest of the old particles (c, t, w, ...), as many as there are new ones."""
    old = list(old)
    for _ in new:
        lightest = 0
        for m in range(1, len(old)):
            if old[m][2] < old[lightest][2] - 1e-13:  # the first, which is the oldest, of ones equal but for rounding
                lightest = m
        del old[lightest]
    total = sum(particle[2] for particle in [*old, *new])
    return [(c, t, w / total, *age) for c, t, w, *age in [*old, *new]]
