"""Planted errors: every property that the other files rely on fails for the error that it is there to find."""

import dataclasses

import numpy as np
import pytest
import torch
from experiments.advice.thresholds import alignment_thresholds
from tests.linear import checks
from tests.reference import linear as reference

from vergence.densities import moments
from vergence.linear import solutions
from vergence.utils import linalg

# --- solvers


def left_vectors(M, S):
    """Left singular vectors in the encoder (what a reproduction of the paper's figure suggests that its code has)."""
    L, jitter = linalg.cholesky(S)
    R, phi, _ = torch.linalg.svd(torch.linalg.solve_triangular(L, M.T, upper=False).T)
    return torch.linalg.solve_triangular(L.T, R, upper=True).T, R * phi, phi, jitter


def decoder_without_phi(M, S):
    E, D, phi, jitter = solutions.reconstruction(M, S)
    return E, D / phi, phi, jitter


def ascending(G, S):
    """The order in which eigh returns."""
    W, omega, jitter = solutions.joint_embedding(G, S)
    return W.flip(0), omega.flip(0), jitter


def of_S_alone(G, S):
    """Principal components of the augmented items, whitened: no eye for invariance."""
    values, vectors = torch.linalg.eigh(S)
    W = (vectors / values.sqrt()).T.flip(0)
    return W, ((W @ G) * W).sum(1), 0.0


def orthonormal_rows(G, S):
    """W W^T = I in place of W S W^T = I."""
    W, omega, jitter = solutions.joint_embedding(G, S)
    return torch.linalg.qr(W.T).Q.T, omega, jitter


SOLVERS = [
    (checks.check_reconstruction_is_the_reference, solutions.reconstruction, left_vectors),
    (checks.check_reconstruction_value, solutions.reconstruction, left_vectors),
    (checks.check_reconstruction_value, solutions.reconstruction, decoder_without_phi),
    (checks.check_joint_embedding_is_the_reference, solutions.joint_embedding, ascending),
    (checks.check_joint_embedding_value, solutions.joint_embedding, of_S_alone),
    (checks.check_constraint, solutions.joint_embedding, orthonormal_rows),
]


def named(value):
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("check", "real", "planted"), SOLVERS, ids=named)
def test_solvers(check, real, planted):
    check(real)
    with pytest.raises(AssertionError):
        check(planted)


@pytest.mark.parametrize(
    ("rc", "je"), [(left_vectors, solutions.joint_embedding), (solutions.reconstruction, of_S_alone)], ids=named
)
def test_eigenproblems(rc, je):
    checks.check_generalized_eigenproblems()
    with pytest.raises(AssertionError):
        checks.check_generalized_eigenproblems(je, rc)


# --- thresholds


def for_alpha(*levels):
    """Thresholds for alpha, where those for alpha^2 are asked for (the blog's reading)."""
    found = alignment_thresholds(*levels)
    roots = {name: np.sign(v) * abs(v) ** 0.5 for name, v in dataclasses.asdict(found).items() if name in checks.ROWS}
    return dataclasses.replace(found, **roots)


def eta_of_the_strongest(signal, noise, t, u):
    """The maximum in place of the minimum over the signal."""
    eta2 = (signal**2 / (signal + t)).max()
    return dataclasses.replace(alignment_thresholds(signal, noise, t, u), reconstruction=(noise / eta2 - u / noise).max() - 1)


@pytest.mark.parametrize("planted", [for_alpha, eta_of_the_strongest], ids=named)
def test_thresholds(planted):
    checks.check_flips(alignment_thresholds)
    with pytest.raises(AssertionError):
        checks.check_flips(planted)


# --- moments


class Biased(moments.Sums):
    """G as the mean of the outer products of mean draws, without m / (m - 1)."""

    def moments(self, *, centered):
        found = super().moments(centered=centered)
        return dataclasses.replace(found, G=found.S - (found.S - found.G) * (self.draws - 1) / self.draws)


class OneDraw(moments.Sums):
    """Of the draws the last one alone counts in S."""

    def _add_views(self, views):
        views = list(views)
        found = super()._add_views(iter(views))
        for view in views[:-1]:
            self.tt += views[-1].T @ views[-1] - view.T @ view
        return found


@pytest.mark.parametrize("planted", [Biased, OneDraw], ids=named)
def test_moments(planted):
    checks.check_moments_are_the_loops(moments.Sums)
    with pytest.raises(AssertionError):
        checks.check_moments_are_the_loops(planted)


def test_unbiasedness():
    checks.check_unbiased(moments.Sums)
    with pytest.raises(AssertionError):
        checks.check_unbiased(Biased)


# --- the metric of the paper's figure


def on_clean_items(clean, corrupted, x, seen, y):
    """The corrupted model on clean items: a map of full rank on the signal, after which every probe is as good."""
    return reference.distance(clean, corrupted, x, x, y)


def test_the_metric():
    checks.check_metric_sees_failure(reference.distance)
    with pytest.raises(AssertionError):
        checks.check_metric_sees_failure(on_clean_items)
