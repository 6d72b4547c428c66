"""The losses of published paired objectives in loops: slow, float64, one function per formula, nothing shared with the library.

Vectors are lists of floats, batches lists of vectors. What gets no gradient is an argument of its own, so that finite differences
in the other arguments are the gradients.
"""

import cmath
import math


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def cosine(x, y):
    """Returns x . y / |x| |y|."""
    return dot(x, y) / math.sqrt(dot(x, x) * dot(y, y))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def column(batch, d):
    return [row[d] for row in batch]


def linear(x, layer):
    """Returns W x + b."""
    weight, bias = layer
    return [dot(row, x) + b for row, b in zip(weight, bias, strict=True)]


def batch_norm(batch, scale=None, shift=None):
    """Returns (z - mean) / sqrt(variance + 1e-5) of each feature, with the variance over B, times a scale, plus a shift."""
    rows = [[0.0] * len(batch[0]) for _ in batch]
    for d in range(len(batch[0])):
        values = column(batch, d)
        center = mean(values)
        spread = math.sqrt(mean((v - center) ** 2 for v in values) + 1e-5)
        for n, v in enumerate(values):
            rows[n][d] = (v - center) / spread * (1.0 if scale is None else scale[d]) + (0.0 if shift is None else shift[d])
    return rows


def predictor(batch, first, norm, second, last=False):
    """Returns Linear-BatchNorm-ReLU-Linear of a batch; with ``last`` a batch normalization behind it."""
    hidden = batch_norm([linear(x, first) for x in batch], *norm)
    out = [linear([max(h, 0.0) for h in row], second) for row in hidden]
    return batch_norm(out) if last else out


def byol(pa, pb, ta, tb):
    """Returns the mean of (2 - 2 cos(p_a, t_b)) + (2 - 2 cos(p_b, t_a)) for predictions p and targets t."""
    return mean(4 - 2 * cosine(pa[n], tb[n]) - 2 * cosine(pb[n], ta[n]) for n in range(len(pa)))


def simsiam(pa, pb, ta, tb):
    """Returns the mean of -1/2 cos(p_a, t_b) - 1/2 cos(p_b, t_a)."""
    return mean(-0.5 * cosine(pa[n], tb[n]) - 0.5 * cosine(pb[n], ta[n]) for n in range(len(pa)))


def covariance(batch, d, e):
    """Returns the covariance of two features over B - 1."""
    x, y = column(batch, d), column(batch, e)
    return sum((a - mean(x)) * (b - mean(y)) for a, b in zip(x, y, strict=True)) / (len(batch) - 1)


def vicreg(za, zb, lam=25.0, mu=25.0, nu=1.0):
    """Returns the three weighted terms of the released code: invariance, variance, covariance."""
    B, D = len(za), len(za[0])
    s = sum((za[n][d] - zb[n][d]) ** 2 for n in range(B) for d in range(D)) / (B * D)
    v = c = 0.0
    for batch in (za, zb):
        v += 0.5 * sum(max(0.0, 1 - math.sqrt(covariance(batch, d, d) + 1e-4)) for d in range(D)) / D
        c += sum(covariance(batch, d, e) ** 2 for d in range(D) for e in range(D) if d != e) / D
    return lam * s, mu * v, nu * c


def barlow_twins(za, zb, lam=0.005):
    """Returns sum_d (1 - C_dd)^2 + lambda sum_{d != e} C_de^2."""
    a, b = batch_norm(za), batch_norm(zb)
    total = 0.0
    for d in range(len(za[0])):
        for e in range(len(za[0])):
            correlation = mean(x * y for x, y in zip(column(a, d), column(b, e), strict=True))
            total += (1 - correlation) ** 2 if d == e else lam * correlation**2
    return total


def contrast(q, k, tau):
    """Returns -2 tau times the mean over n of log exp(cos(q_n, k_n) / tau) / sum_m exp(cos(q_n, k_m) / tau)."""
    losses = []
    for n in range(len(q)):
        values = [math.exp(cosine(q[n], key) / tau) for key in k]
        losses.append(-math.log(values[n] / sum(values)))
    return 2 * tau * mean(losses)


def moco(pa, pb, ta, tb, tau=0.2):
    """Returns ctr(p_a, t_b) + ctr(p_b, t_a)."""
    return contrast(pa, tb, tau) + contrast(pb, ta, tau)


def similarities(z, prototypes):
    """Returns z_n . c_k / |z_n|; the prototypes are used as they are."""
    return [[dot(x, c) / math.sqrt(dot(x, x)) for c in prototypes] for x in z]


def sinkhorn_steps(scores, epsilon=0.05, iterations=3):
    """Yields the matrix (B, K) at the start and after each half step: columns to sums of 1 / K, then rows to sums of 1 / B."""
    B, K = len(scores), len(scores[0])
    Q = [[math.exp(s / epsilon) for s in row] for row in scores]
    total = sum(map(sum, Q))
    Q = [[q / total for q in row] for row in Q]
    yield Q
    for _ in range(iterations):
        sums = [sum(column(Q, k)) for k in range(K)]
        Q = [[q / (K * sums[k]) for k, q in enumerate(row)] for row in Q]
        yield Q
        Q = [[q / (B * sum(row)) for q in row] for row in Q]
        yield Q


def codes(z, prototypes, epsilon=0.05, iterations=3):
    """Returns the codes of a batch, (B, K), of sum 1 each."""
    *_, Q = sinkhorn_steps(similarities(z, prototypes), epsilon, iterations)
    return [[q * len(z) for q in row] for row in Q]


def cross_entropy(z, code, prototypes, tau=0.1):
    """Returns -mean_n sum_k q_nk log p_nk with p the softmax of z_n . c_k / tau."""
    losses = []
    for row, q in zip(similarities(z, prototypes), code, strict=True):
        log_sum = math.log(sum(math.exp(s / tau) for s in row))
        losses.append(-sum(w * (s / tau - log_sum) for w, s in zip(q, row, strict=True)))
    return mean(losses)


def swav(za, zb, prototypes, code_a, code_b, tau=0.1):
    """Returns 1/2 [l(z_a, q_b) + l(z_b, q_a)]."""
    return 0.5 * (cross_entropy(za, code_b, prototypes, tau) + cross_entropy(zb, code_a, prototypes, tau))


def epps_pulley(x, t_max=3.0, knots=17):
    """Returns n int |phi(t) - exp(-t^2/2)|^2 exp(-t^2/2) dt over [-t_max, t_max] by the trapezoidal rule in t >= 0, doubled."""
    step, total = t_max / (knots - 1), 0.0
    for i in range(knots):
        t = i * step
        phi = mean(cmath.exp(1j * t * v) for v in x)
        value = abs(phi - math.exp(-0.5 * t * t)) ** 2 * math.exp(-0.5 * t * t)
        total += (0.5 if i in (0, knots - 1) else 1.0) * step * value
    return 2 * len(x) * total


def epps_pulley_exact(x):
    """Returns the same integral over the whole line in closed form."""
    n = len(x)
    pairs = sum(math.exp(-0.5 * (a - b) ** 2) for a in x for b in x)
    return n * (
        math.sqrt(2 * math.pi) * pairs / n**2
        - 2 * math.sqrt(math.pi) * mean(math.exp(-0.25 * a * a) for a in x)
        + math.sqrt(2 * math.pi / 3)
    )


def sigreg(z, directions, t_max=3.0, knots=17):
    """Returns the mean over directions u of the statistic of z_n . u."""
    return mean(epps_pulley([dot(x, u) for x in z], t_max, knots) for u in directions)


def invariance(za, zb):
    """Returns the mean over views, pairs and features of the squared distance from the views' mean."""
    total = []
    for x, y in zip(za, zb, strict=True):
        for a, b in zip(x, y, strict=True):
            center = (a + b) / 2
            total.append(((a - center) ** 2 + (b - center) ** 2) / 2)
    return mean(total)


def momentum(base, step, steps):
    """Returns BYOL's momentum of the teacher at a step."""
    return 1 - (1 - base) * (math.cos(math.pi * step / steps) + 1) / 2
