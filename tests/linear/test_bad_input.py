"""Bad input that no argument alone makes is refused in one line; degenerate input gives a warning and the right numbers."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from tests.linear.checks import close, rng

from vergence.data.items import ArrayItems, PairItems
from vergence.linear import JointEmbedding, Reconstruction, Supervised

KINDS = (JointEmbedding, Reconstruction, Supervised)
N, D = 50, 4


def items(dtype=np.float64):
    return (rng(70).normal(size=(N, D)) * [1.0, 2.0, 3.0, 4.0]).astype(dtype)


def fit(kind, x, **options):
    return kind(**options).fit(x, rng(71).normal(size=len(x)))


def noisy(x, generator):
    return x + torch.randn(x.shape, generator=generator, dtype=x.dtype)


def holding(bad, dtype=np.float64):
    x = items(dtype)
    x[7, 1] = x[9, 1] = x[9, 3] = bad
    return x


ASYMMETRIC = np.eye(D) + 0.5 * np.eye(D, k=1)
Y = np.zeros(N)
BAD = {
    "all the same, sampled": (lambda: JointEmbedding(augmentation=noisy).fit(np.full((N, D), -3e5)), "constant"),
    "one item of a stream": (lambda: Supervised().fit(iter([(items()[:1], Y[:1])])), "n_samples = 1"),
    "an empty stream": (lambda: Reconstruction().fit(iter([])), "found none"),
    "batches of two shapes": (lambda: Reconstruction().fit(iter([items(), items()[:, :3]])), "one shape"),
    "too few targets in a batch": (lambda: Supervised().fit(iter([(items(), np.zeros(3))])), "one target"),
    "pairs": (lambda: Reconstruction().fit(PairItems(ArrayItems(items()), ArrayItems(items()))), "pairs"),
    "rows": (lambda: Reconstruction().fit(row for row in items()), "batches"),
    "a name": (lambda: Reconstruction().fit("digits"), "name"),
    "more components than the rank": (lambda: Reconstruction(5).fit(items()), "at most 4"),
    "infinity in a tensor": (lambda: JointEmbedding(augmentation=noisy).fit(torch.as_tensor(holding(math.inf))), "infinity"),
    "NaN in items": (lambda: Reconstruction().fit(ArrayItems(holding(math.nan, np.float32))), "NaN"),
    "NaN in a stream": (lambda: Reconstruction().fit(iter([items(), holding(math.nan)])), "NaN"),
    "too large to square": (lambda: Reconstruction().fit(holding(1e30, np.float32)), "too large to square"),
    "NaN of the augmentation": (lambda: Reconstruction(augmentation=lambda x, g: noisy(x, g).log()).fit(items()), "NaN"),
    "no targets": (lambda: Supervised().fit(ArrayItems(items())), "y is None"),
    "no targets in a stream": (lambda: Supervised().fit(iter([items()])), "items alone"),
    "more targets than before": (lambda: fit(Supervised, items()).partial_fit(items(), np.zeros((N, 3))), "as before"),
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
    "further items of another width": (lambda: fit(Reconstruction, items()).partial_fit(items()[:, :3]), "3 features"),
    "transform of a stream": (lambda: fit(Reconstruction, items()).transform(iter([items()])), "batch"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, word = BAD[name]
    with pytest.raises(ValueError, match=word):
        call()


@pytest.mark.parametrize("kind", KINDS)
def test_transform_before_fit_or_after_one_that_failed(kind):
    model = kind(augmentation=-1.0)
    with pytest.raises(NotFittedError):
        model.transform(items())
    with pytest.raises(ValueError, match="covariance"):
        fit(kind, items(), augmentation=-1.0)
    with pytest.raises(NotFittedError):
        model.transform(items())


def test_what_was_refused_is_not_counted():
    bad = torch.as_tensor(holding(math.nan))
    model, expected = (Reconstruction(2, augmentation=0.1).fit(items()) for _ in range(2))
    with pytest.raises(ValueError, match="NaN or infinity"):
        model.partial_fit(bad)
    with pytest.raises(ValueError, match="NaN or infinity"):
        model.fit(bad)
    close(model.partial_fit(items()).spectrum_, expected.partial_fit(items()).spectrum_)
    assert model.n_samples_seen_ == 2 * N, "a fit that failed forgets nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_constant_columns_are_warned_of_and_add_nothing(kind):
    x = items()
    x[:, 2] = 0.1
    with pytest.warns(UserWarning, match="1 of 4 features are constant"):
        model = fit(kind, x, augmentation=0.5)
    without = fit(kind, x[:, [0, 1, 3]], augmentation=0.5)
    close(model.components_[:, [0, 1, 3]], without.components_, rtol=1e-7)
    close(model.components_[:, 2], np.zeros(len(model.components_)), atol=1e-9)
    close(model.objective_, without.objective_)


@pytest.mark.parametrize("kind", [JointEmbedding, Reconstruction])
@pytest.mark.parametrize("augmentation", [None, 1e-6, noisy])
def test_fewer_items_than_features(kind, augmentation):
    x = rng(5).normal(size=(5, 12))
    assert kind(augmentation=augmentation).fit(x).components_.shape == (4, 12)
    assert kind(4, augmentation=augmentation).fit(x.astype(np.float32)).transform(x).shape == (5, 4)
    with pytest.raises(ValueError, match="at most 4"):
        kind(5, augmentation=augmentation).fit(x)


def test_without_noise_reconstruction_is_principal_component_analysis():
    x = rng(73).normal(size=(20, 60))
    with pytest.warns(UserWarning, match="S is singular"):
        model = Reconstruction(augmentation=0.0).fit(x)
    close(model.singular_values_**2, PCA().fit(x).explained_variance_[:19] * 19 / 20, rtol=1e-6)
    with pytest.warns(UserWarning, match="S is singular"):
        close(Supervised(augmentation=0.0).fit(x, x[:, :1]).transform(x), x[:, :1], atol=1e-4)
    sampled = Reconstruction(2, augmentation=lambda x, g: x).fit(items())
    close(sampled.singular_values_**2, PCA(2).fit(items()).explained_variance_ * (N - 1) / N)
    assert sampled.objective_se_ == pytest.approx(0, abs=1e-12)


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


def test_a_singular_covariance_of_features_in_different_units():
    """A feature that repeats another calls for jitter; in correlation units it does not reach the features of small units."""
    x, units = rng(75).normal(size=(400, 5)), np.array([1.0, 1e-7, 1e5, 1e-3, 1e4])
    x[:, 1] = x[:, 0]
    y = x[:, 3] + 0.5 * x[:, 4]
    x, variances = x * units, np.array([0.0, 0.0, 0.3, 0.1, 0.9]) * np.square(units)
    with pytest.warns(UserWarning, match="S is singular"):
        spectrum = JointEmbedding(augmentation=variances).fit(x).spectrum_
    close(spectrum[:4], JointEmbedding(augmentation=variances[1:]).fit(x[:, 1:]).spectrum_, rtol=1e-6)
    with pytest.warns(UserWarning, match="S is singular"):
        predicted = Supervised(augmentation=variances).fit(x, y).transform(x)
    close(predicted, Supervised(augmentation=variances[1:]).fit(x[:, 1:], y).transform(x[:, 1:]), rtol=1e-5, atol=1e-6)
