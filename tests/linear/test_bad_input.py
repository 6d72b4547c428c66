"""What is wrong with the input is said in one line, or warned of, or does no harm."""

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


def memory_mapped(x, folder):
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r")


# --- features that do not vary


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_constant_columns_are_warned_of_and_add_nothing(kind, value):
    x = items()
    x[:, 2] = value
    with pytest.warns(UserWarning, match="1 of 4 features are constant, such as 2: they add nothing"):
        model = fit(kind, x, augmentation=0.5)
    without = fit(kind, x[:, [0, 1, 3]], augmentation=0.5)
    close(model.components_[:, [0, 1, 3]], without.components_, rtol=1e-7)
    close(model.components_[:, 2], np.zeros(len(model.components_)), atol=1e-9)
    close(model.objective_, without.objective_)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("augmentation", [None, 0.5, 0.0, noisy])
@pytest.mark.parametrize("value", [0.0, 0.1, -3e5])
def test_items_that_are_all_the_same_are_refused(kind, augmentation, value):
    with pytest.raises(ValueError, match="expected features that vary, found all 4 constant: every item is the same"):
        fit(kind, np.full((N, D), value), augmentation=augmentation)


def test_constant_columns_without_augmentation():
    x = items()
    x[:, 0] = 3
    with pytest.warns(UserWarning) as said:
        model = Reconstruction(2, augmentation=0.0).fit(x)
    assert sorted(str(w.message)[:13] for w in said) == ["1 of 4 featur", "S is singular"]
    close(model.singular_values_**2, PCA(2).fit(x).explained_variance_ * (N - 1) / N)


# --- few items


@pytest.mark.parametrize("kind", [JointEmbedding, Reconstruction])
@pytest.mark.parametrize(("n", "d"), [(2, 5), (5, 12), (20, 60)])
@pytest.mark.parametrize("augmentation", [None, 1e-6])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_fewer_items_than_features(kind, n, d, augmentation, dtype):
    x = rng(n).normal(size=(n, d)).astype(dtype)
    model = kind(augmentation=augmentation).fit(x)
    assert model.components_.shape == (n - 1, d)
    assert kind(n - 1, augmentation=augmentation).fit(x).transform(x).shape == (n, n - 1)
    message = rf"n_components of at most {n - 1}, the rank of {n} items of {d} features, found {n}; lower it or give more items"
    with pytest.raises(ValueError, match=message):
        kind(n, augmentation=augmentation).fit(x)


@pytest.mark.parametrize("kind", [JointEmbedding, Reconstruction])
def test_fewer_items_than_features_sampled(kind):
    x = rng(72).normal(size=(5, 12))
    assert kind(augmentation=noisy).fit(x).components_.shape == (4, 12)


def test_fewer_items_than_features_without_noise():
    x = rng(73).normal(size=(20, 60))
    with pytest.warns(UserWarning, match=r"S is singular or nearly so .*: added .* to its diagonal"):
        model = Reconstruction(augmentation=0.0).fit(x)
    assert model.components_.shape == (19, 60)
    close(model.singular_values_**2, PCA().fit(x).explained_variance_[:19] * 19 / 20, rtol=1e-6)
    with pytest.warns(UserWarning, match="S is singular"):
        fitted = Supervised(augmentation=0.0).fit(x, x[:, :1])
    close(fitted.transform(x), x[:, :1], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["array", "tensor", "iterable"])
def test_one_item_is_refused(kind, source):
    x = items()[:1]
    x = {"array": x, "tensor": torch.as_tensor(x), "iterable": iter([(x, np.zeros(1))])}[source]
    with pytest.raises(ValueError, match="expected at least 2 items, found n_samples = 1; one item has no covariance"):
        kind(augmentation=0.1).fit(x, None if source == "iterable" else np.zeros(1))


@pytest.mark.parametrize("kind", KINDS)
def test_an_iterable_with_nothing_in_it(kind):
    used = iter([(items(), np.zeros(N))])
    list(used)
    for source in (iter([]), used):
        with pytest.raises(ValueError, match="found none: the iterable is empty, or was used up; make a new one"):
            kind().fit(source)


def test_shapes_that_are_no_items():
    for x in (torch.zeros(5), torch.zeros(5, 2, 2), torch.zeros(0, 3), torch.zeros(3, 0), np.zeros((3, 1, 0, 4))):
        with pytest.raises(ValueError, match=r"expected items \(N, D\) or images \(N, C, H, W\), found shape"):
            Reconstruction().fit(x)
    with pytest.raises(ValueError, match=r"expected batches of one shape, found items \(4,\) and \(3,\)"):
        Reconstruction().fit(iter([items(), items()[:, :3]]))
    with pytest.raises(ValueError, match="one target for each item in every batch, found 3 for 50 items"):
        Supervised().fit(iter([(items(), np.zeros(3))]))


def test_pairs_are_no_items():
    with pytest.raises(ValueError, match="expected"):
        Reconstruction().fit(PairItems(ArrayItems(items()), ArrayItems(items())))


def test_single_rows_are_no_batches():
    with pytest.raises(ValueError, match="expected"):
        Reconstruction().fit(row for row in items())


# --- n_components, n_draws


@pytest.mark.parametrize("kind", [JointEmbedding, Reconstruction])
@pytest.mark.parametrize("k", [0, -1, 1.5, 2.0, True, "two"])
def test_numbers_of_components_that_are_none(kind, k):
    with pytest.raises(
        ValueError, match=f"expected n_components to be a whole number of at least 1, or None for all, found {k!r}"
    ):
        kind(k).fit(items())


def test_numbers_of_components_that_are():
    assert Reconstruction(np.int64(2)).fit(items()).components_.shape == (2, D)
    with pytest.raises(ValueError, match="at most 4, the rank of 50 items of 4 features, found 5"):
        Reconstruction(5).fit(items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 0])
def test_one_draw_is_too_few(kind, m):
    with pytest.raises(ValueError, match=f"expected n_draws >= 2, found {m}: one draw does not separate an augmentation's mean"):
        fit(kind, items(), augmentation=noisy, n_draws=m)
    fit(kind, items(), augmentation=0.5, n_draws=m)  # nothing is drawn


# --- numbers that are not finite


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("source", ["array", "tensor", "memory map", "iterable", "items", "image"])
def test_what_is_not_finite_is_refused(kind, bad, source, tmp_path):
    x = items(np.float32 if source == "items" else np.float64)
    x[7, 1] = x[9, 1] = x[9, 3] = bad
    y = np.zeros(N)
    sources = {
        "tensor": torch.as_tensor,
        "memory map": lambda x: memory_mapped(x, tmp_path),
        "iterable": lambda x: iter([(x[:20], y[:20]), (x[20:], y[20:])]),
        "items": ArrayItems,
        "image": lambda x: x.reshape(N, 1, 2, 2),
    }
    for augmentation in (0.1, noisy):
        with pytest.raises(ValueError, match=r"NaN or infinity .*, in 2 of 4 columns \(1, 3\)"):
            kind(augmentation=augmentation, n_draws=2).fit(
                sources.get(source, np.asarray)(x), None if source == "iterable" else y
            )


def test_what_was_refused_is_not_counted():
    bad = torch.as_tensor(items())
    bad[3, 1] = torch.nan
    model, expected = (Reconstruction(2, augmentation=0.1).fit(items()) for _ in range(2))
    with pytest.raises(ValueError, match="NaN or infinity"):
        model.partial_fit(bad)
    close(model.partial_fit(items()).spectrum_, expected.partial_fit(items()).spectrum_)
    assert model.n_samples_seen_ == 2 * N
    with pytest.raises(ValueError, match="NaN or infinity"):
        model.fit(bad)
    close(model.partial_fit(items()).spectrum_, expected.partial_fit(items()).spectrum_)
    assert model.n_samples_seen_ == 3 * N, "a fit that failed forgets nothing"


def test_many_columns_are_not_all_named():
    with pytest.raises(ValueError, match=r"in 9 of 9 columns \(0, 1, 2, 3, 4, \.\.\.\)"):
        Reconstruction().fit(np.full((5, 9), np.nan))


def test_numbers_too_large_to_square_are_refused():
    x = items(np.float32)
    x[:, 0] *= np.float32(1e30)
    with pytest.raises(ValueError, match=r"\(or numbers too large to square\), in 1 of 4 columns \(0\)"):
        Reconstruction().fit(x)


def test_an_augmentation_that_makes_nan_is_refused():
    with pytest.raises(ValueError, match="NaN or infinity"):
        Reconstruction(augmentation=lambda x, g: noisy(x, g).log()).fit(items())


@pytest.mark.parametrize("source", ["array", "iterable"])
def test_targets_that_are_not_finite_are_refused(source):
    y = np.zeros(N)
    y[3] = np.nan
    x, y = (items(), y) if source == "array" else (iter([(items(), y)]), None)
    with pytest.raises(ValueError, match="Input y contains NaN or infinity: leave those items out"):
        Supervised().fit(x, y)


# --- targets


def test_targets_of_another_length():
    for x in (items(), torch.as_tensor(items()), ArrayItems(items())):
        with pytest.raises(ValueError, match=r"one target for each item, found shape \(49,\) for 50 items; give as many"):
            Supervised().fit(x, np.zeros(N - 1))


def test_targets_that_are_missing():
    for x in (items(), torch.as_tensor(items()), ArrayItems(items())):
        with pytest.raises(ValueError, match="Supervised requires y to be passed, but the target y is None"):
            Supervised().fit(x)
    with pytest.raises(ValueError, match=r"expected batches of \(items, targets\), found items alone"):
        Supervised().fit(iter([items()]))
    with pytest.raises(ValueError, match=r"expected targets \(N,\) or \(N, L\), found shape \(50, 2, 2\)"):
        Supervised().fit(items(), np.zeros((N, 2, 2)))


def test_targets_that_change_their_width():
    model = Supervised().fit(items(), np.zeros((N, 2)))
    with pytest.raises(ValueError, match="expected"):
        model.partial_fit(items(), np.zeros((N, 3)))


# --- augmentations


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "shape"),
    [(lambda x: x[:, :3], r"\(50, 3\)"), (lambda x: x[:30], r"\(30, 4\)"), (lambda x: x.repeat(1, 2), r"\(50, 8\)")],
)
def test_augmentations_keep_the_shape(kind, change, shape):
    message = rf"the augmentation to return 50 items of 4 features, found shape {shape}; it must keep the number of items"
    with pytest.raises(ValueError, match=message):
        fit(kind, items(), augmentation=lambda x, g: change(x))


@pytest.mark.parametrize("change", [lambda x: x[:, 0], lambda x: x.sum()], ids=["vector", "number"])
def test_augmentations_keep_the_dimensions(change):
    with pytest.raises(ValueError, match="the augmentation to return 50 items of 4 features, found shape"):
        Reconstruction(augmentation=lambda x, g: change(x)).fit(items())


NOTHING = {
    "zero": (0.0, np.float64),
    "zeros": (np.zeros((D, D)), np.float64),
    "identity": (lambda x, g: x, np.float64),
    "identity in float32": (lambda x, g: x, np.float32),
    "the same for each draw": (lambda x, g: 0.7 * x + 1, np.float64),
    "the same for each draw in float32": (lambda x, g: 0.7 * x + 1, np.float32),
}


@pytest.mark.parametrize("name", NOTHING)
def test_augmentations_that_change_nothing_are_a_tie(name):
    augmentation, dtype = NOTHING[name]
    with pytest.raises(ValueError, match=r"joint embedding is a tie: the augmentation changes nothing .*or use Reconstruction"):
        JointEmbedding(2, augmentation=augmentation).fit(items(dtype))


@pytest.mark.parametrize("name", ["zero", "zeros", "identity"])
def test_augmentations_that_change_nothing_serve_reconstruction(name):
    x = items()
    model = Reconstruction(2, augmentation=NOTHING[name][0]).fit(x)
    close(model.singular_values_**2, PCA(2).fit(x).explained_variance_ * (N - 1) / N)
    assert model.objective_se_ == pytest.approx(0, abs=1e-12)


def asymmetric():
    a = np.eye(D)
    a[0, 1] = 0.5
    return a


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("augmentation", "message"),
    [
        (-1.0, r"symmetric covariance without negative eigenvalues, found its smallest -1$"),
        ([1.0, 1.0, -0.5, 1.0], r"without negative eigenvalues, found its smallest -0.5"),
        (np.eye(D) - np.ones((D, D)) / 2, r"without negative eigenvalues, found its smallest -1"),
        (asymmetric(), r"expected a symmetric covariance"),
        ([1.0, 2.0, 3.0], r"4 variances or a covariance \(4, 4\), found numbers of shape \(3,\)$"),
        (np.eye(3), r"found numbers of shape \(3, 3\)$"),
        (np.ones((D, 1)), r"found numbers of shape \(4, 1\)$"),
        (np.ones((1, D, D)), r"found numbers of shape \(1, 4, 4\)$"),
        (math.nan, r"found numbers of shape \(4,\) that are not finite"),
        ([1.0, math.inf, 1.0, 1.0], r"found numbers of shape \(4,\) that are not finite"),
    ],
)
def test_what_is_no_covariance(kind, augmentation, message):
    with pytest.raises(ValueError, match=message):
        fit(kind, items(), augmentation=augmentation)


def test_covariances_are_taken_with_their_rounding():
    a = rng(74).normal(size=(D, 2))
    low = a @ a.T  # its smallest eigenvalue is zero, less rounding
    low[0, 1] *= 1 + 1e-15
    for scale in (1e-12, 1.0, 1e12):
        JointEmbedding(2, augmentation=low * scale).fit(items() * scale**0.5)


def test_equal_components_at_the_cut_are_warned_of():
    x = items()
    x = (x - x.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(x.T, bias=True))).T
    with pytest.warns(UserWarning, match="components 2 and 3 are equally invariant: which of them is kept is arbitrary"):
        JointEmbedding(2, augmentation=0.5).fit(x)
    with pytest.warns(UserWarning, match="components 3 and 4 are equally invariant"):
        JointEmbedding(3, augmentation=[0.1, 0.2, 0.5, 0.5]).fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JointEmbedding(2, augmentation=[0.1, 0.2, 0.5, 0.5]).fit(x)  # the tie lies below the cut
        JointEmbedding(augmentation=0.5).fit(x)  # nothing is cut


# --- transform


@pytest.mark.parametrize("kind", KINDS)
def test_transform_before_fit(kind):
    with pytest.raises(NotFittedError):
        kind().transform(items())
    with pytest.raises(NotFittedError):
        Reconstruction().inverse_transform(np.zeros((1, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_transform_after_a_fit_that_failed(kind):
    model = kind(augmentation=-1.0)
    with pytest.raises(ValueError, match="covariance"):
        model.fit(items(), np.zeros(N))
    with pytest.raises(NotFittedError):
        model.transform(items())


@pytest.mark.parametrize("kind", KINDS)
def test_transform_of_another_width(kind):
    model = fit(kind, items())
    message = f"X has 3 features, but {kind.__name__} is expecting 4 features as input"
    for x in (items()[:, :3], torch.as_tensor(items()[:, :3]), ArrayItems(items()[:, :3])):
        with pytest.raises(ValueError, match=message):
            model.transform(x)
        with pytest.raises(ValueError, match=message):
            model.partial_fit(x, np.zeros(N))


@pytest.mark.parametrize("kind", KINDS)
def test_transform_of_an_iterable(kind):
    with pytest.raises(ValueError, match="found an iterable of batches: transform one batch at a time"):
        fit(kind, items()).transform(iter([items()]))


@pytest.mark.parametrize("source", ["array", "tensor", "memory map", "items"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_transform_of_what_is_not_finite(source, bad, tmp_path):
    model, x = Reconstruction(2).fit(items()), items()
    x[7, 1] = bad
    sources = {"tensor": torch.as_tensor, "memory map": lambda x: memory_mapped(x, tmp_path), "items": ArrayItems}
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.transform(sources.get(source, np.asarray)(x))


# --- features in different units


@pytest.mark.parametrize("units", [[1e6, 1e6, 1e6, 0.1, 0.1], [1.0, 1e-7, 1e5, 1e-3, 1e4]])
def test_a_singular_covariance_of_features_in_different_units(units):
    """A feature that repeats another calls for jitter; in correlation units it does not reach the features of small units."""
    x = rng(75).normal(size=(400, 5))
    x[:, 1] = x[:, 0]
    y = x[:, 3] + 0.5 * x[:, 4]
    x, variances = x * units, np.array([0.0, 0.0, 0.3, 0.1, 0.9]) * np.square(units)
    with pytest.warns(UserWarning, match="S is singular"):
        found = JointEmbedding(augmentation=variances).fit(x)
    once = JointEmbedding(augmentation=variances[1:]).fit(x[:, 1:])  # without the repetition there is no jitter
    close(found.spectrum_[:4], once.spectrum_, rtol=1e-6)
    with pytest.warns(UserWarning, match="S is singular"):
        fitted = Supervised(augmentation=variances).fit(x, y)
    close(
        fitted.components_[0, 2:] * units[2:],
        Supervised(augmentation=variances[1:]).fit(x[:, 1:], y).components_[0, 1:] * units[2:],
        rtol=1e-6,
    )
    close(fitted.transform(x), Supervised(augmentation=variances[1:]).fit(x[:, 1:], y).transform(x[:, 1:]), rtol=1e-5, atol=1e-6)
