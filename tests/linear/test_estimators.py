"""The estimators: scikit-learn's contract, what they say of themselves, and known special cases."""

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.linear.checks import close, covariance, rng, up_to_sign
from tests.reference import linear as reference

from vergence.linear import JointEmbedding, Reconstruction

KINDS = (JointEmbedding, Reconstruction)
N, D = 60, 4
SIGMA = covariance(rng(60), D)


@parametrize_with_checks([JointEmbedding(1), Reconstruction(1)])
def test_scikit_learn(estimator, check):
    check(estimator)


def items(seed=61, n=N):
    g = rng(seed)
    mixed = g.normal(size=(D, D))
    return g.normal(size=(n, D)) @ mixed + [3.0, -1.0, 0.0, 10.0]


def noisy(x, generator):
    scale = torch.rand(len(x), 1, generator=generator, dtype=x.dtype) + 0.5
    return scale * x + torch.randn(x.shape, generator=generator, dtype=x.dtype)


def test_solutions_are_the_theorems():
    """The paper's, of what is left without the means."""
    x = items()
    G, S, M, _ = reference.moments(*reference.centered(x, reference.additive(x, SIGMA)))
    je = JointEmbedding(2, augmentation=SIGMA).fit(x)
    W, omega = reference.joint_embedding(G, S)
    up_to_sign(je.components_, W[:2])
    close(je.spectrum_, omega)
    rc = Reconstruction(2, augmentation=SIGMA).fit(x)
    E, R, phi = reference.reconstruction(M, S)
    up_to_sign(rc.components_, E[:2])
    close(rc.decoder_ @ rc.components_, R[:, :2] @ E[:2])
    close(rc.spectrum_, phi)
    for found in (je.mean_, rc.mean_, rc.target_mean_):
        close(found, x.mean(0))


def test_sampled_solutions_are_those_of_their_draws():
    """With a callable: the moments of the draws that it returned, G without bias."""
    x, seen = items(), []

    def recorded(x, generator):
        seen.append(noisy(x, generator))
        return seen[-1]

    model = Reconstruction(2, augmentation=recorded, n_draws=3).fit(x)
    draws = list(torch.stack(seen[:3], 1).numpy())
    rows, views = reference.centered(x, draws)
    G, S, M, _ = reference.sampled(rows, views)
    G, S = reference.unbiased_around_means(G, S, len(x), 3)
    close(model.spectrum_, reference.reconstruction(M, S)[2])
    close(model.augmentation_covariance_, S - G)
    close(model.mean_, np.mean(draws, (0, 1)))
    close(model.target_mean_, x.mean(0))
    seen.clear()
    model = JointEmbedding(2, augmentation=recorded, n_draws=3).fit(x)
    close(model.eigenvalues_, reference.joint_embedding(G, S)[1][:2])


def test_transform_and_its_inverse():
    x = items()
    model = Reconstruction(2, augmentation=SIGMA).fit(x)
    z = model.transform(x)
    close(z, (x - x.mean(0)) @ model.components_.T)
    close(model.inverse_transform(z), z @ model.decoder_.T + x.mean(0))
    whole = Reconstruction(augmentation=1e-9).fit(x)
    close(whole.inverse_transform(whole.transform(x)), x, rtol=1e-5, atol=1e-5)
    close(model.fit_transform(x), z)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, 0.1 * items().var(0).mean()), (0.3, np.full(D, 0.3)), (0.3, 0.3 * np.eye(D)),
        ([0.1, 0.2, 0.3, 0.4], np.diag([0.1, 0.2, 0.3, 0.4])), (torch.tensor(SIGMA), SIGMA), (1, 1.0),
    ],
)  # fmt: skip
def test_ways_to_say_one_covariance(kind, one, other):
    x = items()
    found, expected = (kind(2, augmentation=a).fit(x) for a in (one, other))
    close(found.components_, expected.components_)
    close(found.objective_, expected.objective_)


@pytest.mark.parametrize("kind", KINDS)
def test_random_state_is_the_seed(kind):
    x = items()
    one, again, other = (kind(2, augmentation=noisy, random_state=s).fit(x) for s in (3, 3, 4))
    assert np.array_equal(one.components_, again.components_) and one.objective_ == again.objective_
    assert one.objective_ != other.objective_


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_float32_comes_out_as_float32(kind, as_tensor):
    x = items().astype(np.float32)
    model = kind(2, augmentation=SIGMA).fit(torch.as_tensor(x) if as_tensor else x)
    assert model.transform(torch.as_tensor(x) if as_tensor else x).dtype == np.float32
    assert model.components_.dtype == np.float64 and model.transform(x.astype(np.float64)).dtype == np.float64
    close(model.components_, kind(2, augmentation=SIGMA).fit(x.astype(np.float64)).components_, rtol=1e-3, atol=1e-4)


def test_few_draws_are_said():
    with pytest.warns(UserWarning, match="few draws"):
        Reconstruction(2, augmentation=noisy, n_draws=2).fit(np.random.default_rng(0).normal(size=(20, 30)))
