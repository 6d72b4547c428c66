"""Bad input that no argument alone makes is refused in one line; degenerate input gives a warning and the right numbers."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from tests.linear.checks import close, rng
from tests.refusals import refuses

from vergence.data.items import ArrayItems, PairItems
from vergence.linear import JointEmbedding, Reconstruction

KINDS = (JointEmbedding, Reconstruction)
N, D = 50, 4


def items(dtype=np.float64):
    return (rng(70).normal(size=(N, D)) * [1.0, 2.0, 3.0, 4.0]).astype(dtype)


def noisy(x, generator):
    return x + torch.randn(x.shape, generator=generator, dtype=x.dtype)


def holding(bad, dtype=np.float64):
    x = items(dtype)
    x[7, 1] = x[9, 1] = x[9, 3] = bad
    return x


ASYMMETRIC = np.eye(D) + 0.5 * np.eye(D, k=1)
BAD = {
    "all the same, sampled": (lambda: JointEmbedding(augmentation=noisy).fit(np.full((N, D), -3e5)), "constant"),
    "one item": (lambda: Reconstruction().fit(torch.as_tensor(items()[:1])), "n_samples = 1"),
    "rows": (lambda: Reconstruction().fit(row for row in items()), "array"),
    "pairs": (lambda: Reconstruction().fit(PairItems(ArrayItems(items()), ArrayItems(items()))), "pairs"),
    "a name": (lambda: Reconstruction().fit("digits"), "name"),
    "more components than the rank": (lambda: Reconstruction(5).fit(items()), "at most 4"),
    "infinity in a tensor": (lambda: JointEmbedding(augmentation=noisy).fit(torch.as_tensor(holding(math.inf))), "infinity"),
    "NaN in items": (lambda: Reconstruction().fit(ArrayItems(holding(math.nan, np.float32))), "NaN"),
    "too large to square": (lambda: Reconstruction().fit(holding(1e30, np.float32)), "too large to square"),
    "NaN of the augmentation": (lambda: Reconstruction(augmentation=lambda x, g: noisy(x, g).log()).fit(items()), "NaN"),
    "fewer features of a view": (lambda: Reconstruction(augmentation=lambda x, g: x[:, :3]).fit(items()), "augmentation"),
    "fewer items of a view": (lambda: Reconstruction(augmentation=lambda x, g: x[:30]).fit(items()), "augmentation"),
    "a vector as view": (lambda: Reconstruction(augmentation=lambda x, g: x[:, 0]).fit(items()), "augmentation"),
    "no augmentation": (lambda: JointEmbedding(augmentation=0.0).fit(items()), "tie"),
    "identity": (lambda: JointEmbedding(augmentation=lambda x, g: x).fit(items(np.float32)), "tie"),
    "the same for each draw": (lambda: JointEmbedding(augmentation=lambda x, g: 0.7 * x + 1).fit(items()), "tie"),
    "negative eigenvalue": (lambda: JointEmbedding(augmentation=np.eye(D) - np.ones((D, D)) / 2).fit(items()), "eigenvalues"),
    "asymmetric": (lambda: JointEmbedding(augmentation=ASYMMETRIC).fit(items()), "symmetric"),
    "variances of another number": (lambda: Reconstruction(augmentation=[1.0, 2.0, 3.0]).fit(items()), "4 variances"),
    "covariance of another size": (lambda: Reconstruction(augmentation=np.eye(3)).fit(items()), "covariance"),
    "infinite variance": (lambda: Reconstruction(augmentation=[1.0, math.inf, 1.0, 1.0]).fit(items()), "finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, word = BAD[name]
    refuses(word, call)


@pytest.mark.parametrize("kind", KINDS)
def test_transform_before_fit_or_after_one_that_failed(kind):
    model = kind(augmentation=-1.0)
    with pytest.raises(NotFittedError):
        model.transform(items())
    refuses("covariance", model.fit, items())
    with pytest.raises(NotFittedError):
        model.transform(items())


@pytest.mark.parametrize("kind", KINDS)
def test_constant_columns_are_warned_of_and_add_nothing(kind):
    x = items()
    x[:, 2] = 0.1
    with pytest.warns(UserWarning, match="1 of 4 features are constant"):
        model = kind(augmentation=0.5).fit(x)
    without = kind(augmentation=0.5).fit(x[:, [0, 1, 3]])
    close(model.components_[:, [0, 1, 3]], without.components_, rtol=1e-7)
    close(model.components_[:, 2], np.zeros(len(model.components_)), atol=1e-9)
    close(model.objective_, without.objective_)


@pytest.mark.parametrize("kind", [JointEmbedding, Reconstruction])
@pytest.mark.parametrize("augmentation", [None, 1e-6, noisy])
def test_fewer_items_than_features(kind, augmentation):
    x = rng(5).normal(size=(5, 12))
    assert kind(augmentation=augmentation).fit(x).components_.shape == (4, 12)
    assert kind(4, augmentation=augmentation).fit(x.astype(np.float32)).transform(x).shape == (5, 4)
    refuses("at most 4", kind(5, augmentation=augmentation).fit, x)


def test_without_noise_reconstruction_is_principal_component_analysis():
    x = rng(73).normal(size=(20, 60))
    with pytest.warns(UserWarning, match="S is singular"):
        model = Reconstruction(augmentation=0.0).fit(x)
    close(model.singular_values_**2, PCA().fit(x).explained_variance_[:19] * 19 / 20, rtol=1e-6)
    sampled = Reconstruction(2, augmentation=lambda x, g: x).fit(items())
    close(sampled.singular_values_**2, PCA(2).fit(items()).explained_variance_ * (N - 1) / N)


def test_covariances_are_taken_with_their_rounding():
    a = rng(74).normal(size=(D, 2))
    low = a @ a.T  # its smallest eigenvalue is zero, less rounding
    low[0, 1] *= 1 + 1e-15
    for scale in (1e-12, 1.0, 1e12):
        JointEmbedding(2, augmentation=low * scale).fit(items() * scale**0.5)


def test_equal_components_at_the_cut_are_warned_of():
    x = items()
    x = (x - x.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(x.T, bias=True))).T
    with pytest.warns(UserWarning, match="components 2 and 3"):
        JointEmbedding(2, augmentation=0.5).fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JointEmbedding(2, augmentation=[0.1, 0.2, 0.5, 0.5]).fit(x)  # the tie lies below the cut
        JointEmbedding(augmentation=0.5).fit(x)  # nothing is cut
