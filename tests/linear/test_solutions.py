"""The closed forms against the theorems in loops, their values and gradients, and their symmetries."""

import numpy as np
import pytest
import torch
from tests.linear import checks
from tests.linear.checks import close, covariance, moments, problem, rng, rotation, tensors, up_to_sign
from tests.reference import linear as reference
from tests.refusals import refuses

from vergence.linear import solutions


def test_joint_embedding_is_the_reference():
    for seed in range(5):
        G, S, _, _ = moments(seed)
        W, omega, _ = solutions.joint_embedding(G, S)
        expected, values = reference.joint_embedding(G.numpy(), S.numpy())
        close(omega, values)
        up_to_sign(W, expected, rtol=1e-7, atol=1e-8)


def test_reconstruction_is_the_reference():
    for seed in range(5):
        _, S, M, _ = moments(seed)
        E, D, phi, _ = solutions.reconstruction(M, S)
        rows, columns, values = reference.reconstruction(M.numpy(), S.numpy())
        close(phi, values)
        up_to_sign(E, rows, rtol=1e-7, atol=1e-8)
        close(D @ E, columns @ rows)


def test_reconstruction_value():
    """The value over samples is |X|^2 / n - sum phi^2, and its gradient is zero."""
    for seed in range(3):
        x, y, outcomes = problem(seed)
        _, S, M, _ = tensors(*reference.moments(x, outcomes, y))
        E, D, phi, _ = solutions.reconstruction(M, S)
        for k in (1, 2, 4):
            e, d = E[:k].clone().requires_grad_(), D[:, :k].clone().requires_grad_()
            value = checks.reconstruction_objective(e, d, M, S, reference.square(x) / len(x))
            close(value.item(), reference.square(x) / len(x) - phi[:k].square().sum())
            close(value.item(), reference.reconstruction_value(E[:k].numpy(), D[:, :k].numpy(), x, outcomes))
            for grad in torch.autograd.grad(value, (e, d)):
                close(grad, np.zeros(grad.shape), atol=1e-11)


def test_joint_embedding_value():
    """The value over samples is 2 sum (1 - omega), no greater than that of any other rows."""
    for seed in range(3):
        _, _, outcomes = problem(seed)
        G, S, _, _ = moments(seed)
        W, omega, _ = solutions.joint_embedding(G, S)
        for k in (1, 2, 4):
            found = reference.joint_embedding_value(W[:k].numpy(), outcomes)
            close(found, 2 * (1 - omega[:k]).sum())
            close(found, checks.joint_embedding_objective(W[:k], G, S))
            for a in torch.randn(20, k, len(S)):
                other = torch.linalg.solve_triangular(torch.linalg.cholesky(a @ S @ a.T), a, upper=False)  # W S W^T = I
                assert found <= checks.joint_embedding_objective(other, G, S) + 1e-12


def test_generalized_eigenproblems():
    """Property 4: W G = Omega W S, and E G^2 = Phi^2 E S where the augmentation keeps the mean."""
    G, S, M, _ = moments(mean_preserving=True)
    close(M, G, atol=1e-14)
    (W, omega, _), (E, _, phi, _) = solutions.joint_embedding(G, S), solutions.reconstruction(M, S)
    close(W @ G, omega[:, None] * (W @ S), atol=1e-12)
    close(E @ G @ G, phi.square()[:, None] * (E @ S), atol=1e-12)


def test_constraints_of_the_encoders():
    G, S, M, _ = moments()
    W, (E, D, phi, jitter) = solutions.joint_embedding(G, S)[0], solutions.reconstruction(M, S)
    close(W @ S @ W.T, np.eye(4), atol=1e-12)
    close(E @ S @ E.T, np.eye(4), atol=1e-12)
    close(D.T @ D, phi.square().diag(), atol=1e-12)
    close(D @ E, M @ torch.linalg.inv(S))  # all components: the unrestricted least squares
    assert jitter == 0 and bool((phi.diff() <= 0).all())


def test_eigenvalues_are_shares_in_order():
    for seed in range(5):
        G, S, _, _ = moments(seed)
        omega = solutions.joint_embedding(G, S)[1]
        assert bool((omega.diff() <= 0).all()) and 0 <= omega.min() and omega.max() <= 1
    few = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    omega = solutions.joint_embedding(*tensors(few, few + np.eye(4)))[1]
    close(omega, [30 / 31, 0, 0, 0])
    assert omega.min() >= 0, "rounding does not make a share negative"


def test_commuting_matrices():
    """Property 5: phi^2 = g omega."""
    g = rng(1)
    Q, level, added = torch.as_tensor(rotation(g, 6)), torch.rand(6) * 3, torch.rand(6) * 3
    G, S = (Q * level) @ Q.T, (Q * (level + added)) @ Q.T
    _, omega, _ = solutions.joint_embedding(G, S)
    _, _, phi, _ = solutions.reconstruction(G, S)
    close(omega, (level / (level + added)).sort(descending=True).values)
    close(phi.square(), (level.square() / (level + added)).sort(descending=True).values)


def test_rotating_the_features_rotates_the_rows():
    """Property 9."""
    G, S, M, _ = moments()
    Q = torch.as_tensor(rotation(rng(2), 4))
    (W, omega, _), (E, D, phi, _) = solutions.joint_embedding(G, S), solutions.reconstruction(M, S)
    turned, values, _ = solutions.joint_embedding(Q @ G @ Q.T, Q @ S @ Q.T)
    close(values, omega)
    up_to_sign(turned, W @ Q.T)
    rows, columns, values, _ = solutions.reconstruction(Q @ M @ Q.T, Q @ S @ Q.T)
    close(values, phi)
    up_to_sign(rows, E @ Q.T)
    close(columns @ rows, Q @ D @ E @ Q.T)


@pytest.mark.parametrize("scales", [[1.0, 10.0, 0.1, 3.0], [1e6, 1.0, 1e-6, 1e3]])
def test_joint_embedding_knows_no_units_and_reconstruction_does(scales):
    G, S, M, _ = moments()
    T = torch.tensor(scales).diag()
    W, omega, _ = solutions.joint_embedding(G, S)
    scaled, values, jitter = solutions.joint_embedding(T @ G @ T, T @ S @ T)
    assert jitter == 0
    close(values, omega)
    up_to_sign(scaled @ T, W)
    E = solutions.reconstruction(M, S)[0]
    other = solutions.reconstruction(T @ M @ T, T @ S @ T)[0] @ T
    assert reference.sine(E[:2], other[:2]) > 0.1


def test_repeated_features_need_jitter():
    x = rng(3).normal(size=(30, 3))
    x = np.concatenate([x, x[:, :1]], 1)
    C = np.diag([0.5, 0.2, 0.1, 0.5])
    C[0, 3] = C[3, 0] = 0.5
    G, S = tensors(x.T @ x / 30, x.T @ x / 30 + C)
    W, omega, jitter = solutions.joint_embedding(G, S)
    E, _, phi, same = solutions.reconstruction(G, S)
    whole = S + jitter * S.diagonal().diag()
    assert 0 < jitter == same < 1e-10
    for rows in (W, E):
        close((rows @ whole @ rows.T)[:3, :3], np.eye(3), atol=1e-8)
        close(rows[3] @ whole @ rows[3], 1, rtol=1e-2)  # a direction of jitter alone, 1e-13 of the matrix
    exact = [solutions.joint_embedding(G[:3, :3], S[:3, :3])[1], solutions.reconstruction(G, S + 1e-9 * torch.eye(4))[2]]
    close(omega[:3], exact[0], rtol=1e-5)  # the copy adds nothing but a direction without anything in it
    close(phi[:3], exact[1][:3], rtol=1e-5)


@pytest.mark.parametrize("solve", [solutions.joint_embedding, solutions.reconstruction])
def test_what_is_no_second_moment_is_refused(solve):
    refuses(r"not positive semidefinite \(smallest eigenvalue -1\)", solve, torch.eye(2), torch.diag(torch.tensor([3.0, -1.0])))
    refuses(r"found NaN or infinity", solve, torch.eye(2), torch.full((2, 2), torch.nan))


@pytest.mark.float32
def test_float32_stays_float32_and_is_near():
    G, S, M, _ = moments()
    for solve, a in ((solutions.joint_embedding, G), (solutions.reconstruction, M)):
        found, exact = solve(a.float(), S.float()), solve(a, S)
        for f, e in zip(found[:-1], exact[:-1], strict=True):
            assert f.dtype == torch.float32
            close(f.abs(), e.abs(), rtol=1e-3, atol=1e-4)


def test_the_reference_outcomes_have_the_moments_they_should():
    """The reference itself: outcomes of an affine augmentation have its mean and covariance."""
    g = rng(8)
    x, A, b, C = g.normal(size=(5, 3)), g.normal(size=(3, 3)), g.normal(size=3), covariance(g, 3)
    G, S, M, _ = reference.moments(x, reference.affine(x, A, b, C))
    seen = x @ A.T + b
    close(G, seen.T @ seen / 5)
    close(S - G, C)
    close(M, x.T @ seen / 5)
