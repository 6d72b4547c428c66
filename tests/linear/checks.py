"""Properties that hold for the library; each takes what it examines."""

import numpy as np
import torch
from tests.reference import linear as reference

from vergence.linear import solutions


def close(found, expected, **tolerance):
    found, expected = (torch.as_tensor(np.asarray(v, dtype=np.float64)) for v in (found, expected))
    torch.testing.assert_close(found, expected, **({"rtol": 1e-9, "atol": 1e-10} | tolerance))


def rng(seed=0):
    return np.random.default_rng(seed)


def covariance(g, d, rank=None):
    a = g.normal(size=(d, rank or d))
    return a @ a.T / d


def rotation(g, d):
    return np.linalg.qr(g.normal(size=(d, d)))[0]


def problem(seed=0, n=9, d=4, *, mean_preserving=False):
    """Items, targets and the outcomes of an affine augmentation: (x, y, outcomes)."""
    g = rng(seed)
    x = g.normal(size=(n, d)) * np.linspace(0.5, 2, d) + g.normal(size=d)
    A, b = (np.eye(d), np.zeros(d)) if mean_preserving else (np.eye(d) + 0.4 * g.normal(size=(d, d)), g.normal(size=d))
    return x, g.normal(size=(n, 2)) + x[:, :2], reference.affine(x, A, b, covariance(g, d))


def tensors(*arrays):
    return tuple(torch.as_tensor(np.asarray(a)) for a in arrays)


def moments(seed=0, **options):
    """G, S, M, N of a problem, as tensors."""
    x, y, outcomes = problem(seed, **options)
    return tensors(*reference.moments(x, outcomes, y))


def up_to_sign(found, expected, **tolerance):
    """Rows agree, each up to its sign."""
    found, expected = np.asarray(found), np.asarray(expected)
    signs = np.sign((found * expected).sum(1, keepdims=True))
    close(found * signs, expected, **tolerance)


def check_joint_embedding_is_the_reference(solve=solutions.joint_embedding):
    for seed in range(5):
        G, S, _, _ = moments(seed)
        W, omega, _ = solve(G, S)
        expected, values = reference.joint_embedding(G.numpy(), S.numpy())
        close(omega, values)
        up_to_sign(W, expected, rtol=1e-7, atol=1e-8)


def check_reconstruction_is_the_reference(solve=solutions.reconstruction):
    for seed in range(5):
        _, S, M, _ = moments(seed)
        E, D, phi, _ = solve(M, S)
        rows, columns, values = reference.reconstruction(M.numpy(), S.numpy())
        close(phi, values)
        up_to_sign(E, rows, rtol=1e-7, atol=1e-8)
        close(D @ E, columns @ rows)


def check_constraint(solve=solutions.joint_embedding):
    G, S, _, _ = moments()
    W = solve(G, S)[0]
    close(W @ S @ W.T, np.eye(4), atol=1e-12)


def check_reconstruction_value(solve=solutions.reconstruction):
    """The value over samples is |X|^2 / n - sum phi^2, and its gradient is zero."""
    for seed in range(3):
        x, y, outcomes = problem(seed)
        _, S, M, _ = tensors(*reference.moments(x, outcomes, y))
        E, D, phi, _ = solve(M, S)
        for k in (1, 2, 4):
            e, d = E[:k].clone().requires_grad_(), D[:, :k].clone().requires_grad_()
            value = reconstruction_objective(e, d, M, S, reference.square(x) / len(x))
            close(value.item(), reference.square(x) / len(x) - phi[:k].square().sum())
            close(value.item(), reference.reconstruction_value(E[:k].numpy(), D[:, :k].numpy(), x, outcomes))
            for grad in torch.autograd.grad(value, (e, d)):
                close(grad, np.zeros(grad.shape), atol=1e-11)


def check_joint_embedding_value(solve=solutions.joint_embedding):
    """The value over samples is 2 sum (1 - omega), no greater than that of any other rows."""
    for seed in range(3):
        _, _, outcomes = problem(seed)
        G, S, _, _ = moments(seed)
        W, omega, _ = solve(G, S)
        for k in (1, 2, 4):
            found = reference.joint_embedding_value(W[:k].numpy(), outcomes)
            close(found, 2 * (1 - omega[:k]).sum())
            close(found, joint_embedding_objective(W[:k], G, S))
            for _ in range(20):
                assert found <= joint_embedding_objective(feasible(k, S), G, S) + 1e-12


def joint_embedding_objective(W, G, S):
    """2 tr W (S - G) W^T; at the optimum 2 sum_{i <= k} (1 - omega_i)."""
    return 2 * ((W @ (S - G)) * W).sum()


def supervised_objective(V, N, S, power):
    """power - 2 tr V N^T + tr V S V^T, with power = 1/n |Y|^2; at the optimum power - tr V N^T."""
    return power - 2 * (V * N).sum() + ((V @ S) * V).sum()


def reconstruction_objective(E, D, M, S, power):
    """At the optimum power - sum_{i <= k} phi_i^2, with power = 1/n |X|^2."""
    return supervised_objective(D @ E, M, S, power)


def feasible(k, S):
    """Random rows with W S W^T = I."""
    a = torch.randn(k, len(S))
    return torch.linalg.solve_triangular(torch.linalg.cholesky(a @ S @ a.T), a, upper=False)


def check_generalized_eigenproblems(je=solutions.joint_embedding, rc=solutions.reconstruction):
    """Property 4: W G = Omega W S, and E G^2 = Phi^2 E S where the augmentation keeps the mean."""
    G, S, M, _ = moments(mean_preserving=True)
    close(M, G, atol=1e-14)
    (W, omega, _), (E, _, phi, _) = je(G, S), rc(M, S)
    close(W @ G, omega[:, None] * (W @ S), atol=1e-12)
    close(E @ G @ G, phi.square()[:, None] * (E @ S), atol=1e-12)


def random_levels(g):
    """Signal, noise and Theta of a random problem of section 4.1."""
    k, r = int(g.integers(1, 4)), int(g.integers(1, 5))
    scale = 10.0 ** g.uniform(-2, 2)
    signal, noise = g.uniform(0.2, 3, k) * scale, 10.0 ** g.uniform(-1.5, 1.5, r) * scale
    return signal, noise, g.uniform(0, 2, k + r) * scale * 10.0 ** g.uniform(-1, 0.5)


def je_rows(G, S):
    return solutions.joint_embedding(*tensors(G, S))[0].numpy()


def rc_rows(G, S):
    return solutions.reconstruction(*tensors(G, S))[0].numpy()


ROWS = {"joint_embedding": je_rows, "reconstruction": rc_rows}


def check_flips(thresholds):
    """Property 6: the population's solution flips where alpha^2 passes the threshold."""
    g = rng(3)
    for _ in range(20):
        signal, noise, theta = random_levels(g)
        k = len(signal)
        found = thresholds(signal, noise, theta[:k], theta[k:])
        for name, rows in ROWS.items():
            at, step = getattr(found, name), 1e-3 * max(1.0, abs(getattr(found, name)))
            for alpha2, expected in ((at - step, False), (at + step, True)):
                if np.min(theta[k:] + (1 + alpha2) * noise) > 0:  # S is a second moment
                    G, S = reference.population(signal, noise, theta, alpha2)
                    assert reference.finds_signal(rows(G, S), k) == expected, (name, alpha2, at)


def noisy(x, generator):
    """Scales each item, adds noise that grows with the item's first feature, and moves all by 0.3."""
    e = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return 0.8 * x + 0.3 + e * (0.5 + x[:, :1].abs())


def noisy_moments(x):
    """Means and covariances of `noisy`, exactly: (xbar, list of covariances)."""
    spread = 0.5 + np.abs(x[:, 0])
    return 0.8 * x + 0.3, [np.eye(x.shape[1]) * s**2 for s in spread]


def noisy_outcomes(x):
    """Outcomes with the moments of `noisy`."""
    return [reference.additive([row], C)[0] for row, C in zip(*noisy_moments(x), strict=True)]


def accumulated(kind, x, augmentation=noisy, m=3, seed=0, parts=1):
    """Moments of class ``kind`` over x, in parts, and the draws that went in."""
    sums, generator, draws = kind(x.shape[1], m), torch.Generator().manual_seed(seed), []
    for part in torch.as_tensor(x).chunk(parts):
        views = [augmentation(part.clone(), generator) for _ in range(m)]
        sums.add(part, iter(views))
        draws += list(torch.stack(views, 1).numpy())
    return sums, draws


def check_moments_are_the_loops(kind):
    """With an origin that lies elsewhere than the mean: the first part's mean is not that of all."""
    x = rng(4).normal(size=(12, 3)) + np.linspace(0, 50, 12)[:, None]
    sums, draws = accumulated(kind, x, parts=3)
    for around in (True, False):
        found = sums.moments(centered=around)
        rows, views = reference.centered(x, draws) if around else (x, draws)
        G, S, M, _ = reference.sampled(rows, views)
        G, S = reference.unbiased_around_means(G, S, len(x), len(draws[0])) if around else (G, S)
        for name, expected in (("G", G), ("S", S), ("M", M)):
            close(getattr(found, name), expected, rtol=1e-10, atol=1e-8)
        close(found.power, reference.square(rows) / len(x))
        close(found.mean, x.mean(0))
        close(found.mean_seen, np.mean(draws, axis=(0, 1)))
        close(found.variance, x.var(0))


def check_unbiased(kind, repeats=600):
    """The mean over seeds of G, S and M, around zero, is within 4.5 standard errors of the exact ones."""
    x = rng(5).normal(size=(4, 2))
    G, S, M, _ = reference.moments(x, noisy_outcomes(x))
    found = [accumulated(kind, x, m=2, seed=seed)[0].moments(centered=False) for seed in range(repeats)]
    for name, expected in (("G", G), ("S", S), ("M", M)):
        z = z_scores(torch.stack([getattr(f, name) for f in found]), expected)
        assert np.abs(z).max() < 4.5, (name, z)


def z_scores(samples, expected):
    samples = np.asarray(samples)
    return (samples.mean(0) - expected) / (samples.std(0, ddof=1) / len(samples) ** 0.5)
