"""Gaussian mixtures item by item and component by component, and the short runs that show a collapse: slow, float64.

A mixture is a list of (weight, mean (D,), covariance (D, D)).
"""

import math

import torch
from torch.distributions import MultivariateNormal, kl_divergence


def parts(density):
    """Returns the components of a mixture that have weight."""
    inner = density.component_distribution
    found = zip(density.weights.tolist(), inner.mean.detach(), inner.covariance.detach(), strict=True)
    return [(w, m, S) for w, m, S in found if w > 0]


def block(mixture, where):
    """Returns the marginal of some features."""
    return [(w, m[where], S[where, where]) for w, m, S in mixture]


def log_terms(mixture, z):
    """Returns log pi_k + log N(z; mu_k, S_k) of each component."""
    return [math.log(w) + MultivariateNormal(m, S).log_prob(z).item() for w, m, S in mixture]


def log_density(mixture, z):
    """Returns log p(z)."""
    terms = log_terms(mixture, z)
    top = max(terms)
    return top + math.log(sum(math.exp(t - top) for t in terms))


def responsibilities(mixture, z):
    """Returns p(k | z)."""
    total = log_density(mixture, z)
    return [math.exp(t - total) for t in log_terms(mixture, z)]


def nll(mixture, Z):
    """Returns minus the mean log-density of the rows."""
    return -sum(log_density(mixture, z) for z in Z) / len(Z)


def information(mixture, Z, D):
    """Returns the mean of log p(z_a, z_b) - log p(z_a) - log p(z_b)."""
    a, b = block(mixture, slice(0, D)), block(mixture, slice(D, None))
    return sum(log_density(mixture, z) - log_density(a, z[:D]) - log_density(b, z[D:]) for z in Z) / len(Z)


def gaussian(z, a=0.0):
    """Returns the Gaussian of a batch, its covariance shrunk by a, with the library's jitter."""
    mean = sum(z) / len(z)
    S = sum(torch.outer(x - mean, x - mean) for x in z) / len(z)
    scale = S.diagonal().mean()
    return MultivariateNormal(mean, (1 - a) * S + (a + 1e-10) * scale * torch.eye(len(mean)))


def terms(loss, mixture, za, zb, eta=0.5, beta=2.0):
    """Returns the terms of a loss but ``fit``, by name."""
    Z, D = torch.cat([za, zb], 1), za.shape[1]
    views = gaussian(za), gaussian(zb)
    standard = MultivariateNormal(torch.zeros(D), torch.eye(D))
    kl = sum(kl_divergence(p, standard).item() for p in views)
    entropy = sum(p.entropy().item() for p in views)
    return {
        "mi_kl": lambda: {"mi": -information(mixture, Z, D), "kl": eta * kl},
        "entropy_kl": lambda: {"mi": nll(mixture, Z) - entropy, "kl": eta * kl},
        "joint_kl": lambda: {"nll": nll(mixture, Z), "kl": beta * kl},
        "naive": lambda: {"nll": nll(mixture, Z)},
    }[loss]()


def em_step(mixture, Z, ridge):
    """Returns the mixture after one step of EM, with a ridge under its covariances."""
    r = [responsibilities(mixture, z) for z in Z]
    found, eye = [], torch.eye(Z.shape[1])
    for k in range(len(mixture)):
        N = sum(row[k] for row in r)
        mean = sum(row[k] * z for row, z in zip(r, Z, strict=True)) / N
        S = sum(row[k] * torch.outer(z - mean, z - mean) for row, z in zip(r, Z, strict=True)) / N
        found.append((N / len(Z), mean, S + ridge * eye))
    return found


def planted(K, D, seed=0, spread=1.5):
    """Returns a mixture of correlated components."""
    g = torch.Generator().manual_seed(seed)
    w = torch.rand(K, generator=g) + 0.5
    roots = 0.5 * torch.randn(K, D, D, generator=g)
    S = roots @ roots.mT + 0.3 * torch.eye(D)
    return list(zip((w / w.sum()).tolist(), spread * torch.randn(K, D, generator=g), S, strict=True))


def pair(n, D, seed=0):
    """Returns two correlated views."""
    g = torch.Generator().manual_seed(seed)
    za = torch.randn(n, D, generator=g) @ torch.randn(D, D, generator=g) + 0.5
    return za, 0.8 * za + 0.5 * torch.randn(n, D, generator=g)


def clusters(n, D, centers=3, gap=6.0, seed=0):
    """Returns two views (n, D) each of items in clusters far apart, and the items' labels."""
    g = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % centers
    middle = gap * torch.eye(D)[:centers] + 0.3
    za = middle[label] + 0.4 * torch.randn(n, D, generator=g)
    return za, za + 0.2 * torch.randn(n, D, generator=g), label
