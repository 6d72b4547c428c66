"""What views change: the numbers are those of the estimators, independent of units and offsets, and bad input is refused."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.cross_decomposition import CCA
from torch.utils.data import TensorDataset

from vergence.advice.directions import read
from vergence.advice.labeled import Probed, paired_interval
from vergence.advice.views import advise, left_out, simple_rule
from vergence.data.config import ViewConfig
from vergence.data.items import ArrayItems, PairItems
from vergence.learn.views.images import ImageViews
from vergence.learn.views.vectors import Marginals, VectorViews
from vergence.linear import JointEmbedding
from vergence.linear.reading import as_items

N, SIGNAL, NOISE = 1500, 3, 9


def problem(noise, n=N, seed=0):
    """Two classes in a signal of 3 features, and 9 features of noise with this deviation."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, SIGNAL + NOISE)) * ([1.0] * SIGNAL + [noise] * NOISE)
    x[:, :SIGNAL] += 2.0 * rng.integers(2, size=n)[:, None]
    return x


def variances(theta, aligned):
    """Of the augmentation: theta on the signal, aligned on the noise."""
    return np.array([theta] * SIGNAL + [aligned] * NOISE)


def collected(x, augmentation=None, *, directions=64, n_draws=4, seed=0):
    return read(as_items(x), augmentation, directions, n_draws, seed, "cpu")


def on(part, deviation):
    """Noise of a deviation on some features."""
    scale = torch.tensor([deviation if i in part else 0.0 for i in range(SIGNAL + NOISE)])
    return lambda X, g: X + torch.randn(X.shape, generator=g, dtype=X.dtype) * scale.to(X.dtype)


OPERATIONS = {"noise": on(range(SIGNAL, SIGNAL + NOISE), 6.0), "signal": on(range(SIGNAL), 0.3), "idle": lambda X, g: X}


@pytest.mark.parametrize(("unit", "offset"), [(1e-7, 0.0), (1e6, 0.0), (1.0, 1.7e9)])
def test_neither_units_nor_an_offset_change_what_is_found(unit, offset):
    """An offset such as seconds since 1970, which float32 rounds to minutes."""
    x = problem(noise=6.0)
    units = np.where(np.arange(SIGNAL + NOISE) < SIGNAL, unit, 1.0)
    one = collected(x, variances(0.2, 36.0))
    other = collected(x * units + offset, variances(0.2, 36.0) * units**2)
    assert one.x.shape[1] == other.x.shape[1] == SIGNAL + NOISE
    assert np.allclose(other.solved().spectrum_, one.solved().spectrum_, atol=1e-4)


def test_repeated_and_constant_features_add_no_direction():
    x = problem(noise=2.0)
    more = np.c_[x, 1e-6 * x[:, :2], x @ np.ones(len(x[0])), np.full(N, 0.1), np.full(N, 1e8), np.zeros(N)]
    for items in (more, more.astype(np.float32), more[:, ::-1]):
        assert advise(items, 0.5).facts.directions == SIGNAL + NOISE


def test_solutions_are_the_estimator():
    x = problem(noise=3.0, n=4000).astype(np.float32)
    for augmentation in (None, 0.5, variances(0.3, 4.0), np.diag(variances(0.3, 4.0))):
        expected = JointEmbedding(augmentation=augmentation).fit(x).spectrum_
        assert np.allclose(collected(x, augmentation).solved().spectrum_, expected, rtol=2e-4, atol=2e-5)
    scale = torch.as_tensor(variances(0.3, 4.0)).sqrt()

    def tau(X, generator):
        return 0.9 * X + torch.randn(X.shape, generator=generator, dtype=X.dtype) * scale.to(X.dtype)

    omega = collected(x, tau, n_draws=8).solved().spectrum_
    assert np.allclose(omega, JointEmbedding(augmentation=tau, n_draws=8).fit(x).spectrum_, atol=0.02)


def test_overlap_is_the_mean_squared_canonical_correlation():
    x = problem(noise=2.0)
    grouped = collected(x, variances(0.5, 3.0))
    one = grouped.solved()
    other = collected(x, variances(3.0, 0.5)).solved()
    codes = [grouped.codes(model, 4).numpy() for model in (one, other)]
    a, b = CCA(4, max_iter=5000, tol=1e-12).fit_transform(*codes)
    expected = np.mean([np.corrcoef(a[:, i], b[:, i])[0, 1] ** 2 for i in range(4)])
    assert math.isclose(grouped.overlap(one, other, 4), expected, rel_tol=1e-4)


def test_what_is_measured_comes_first_and_each_operation_is_left_out_in_turn():
    found = advise(problem(noise=6.0), OPERATIONS, n_components=3)
    rows = {row.operation: row for row in found.augmentations}
    assert set(rows) == {"all", "noise", "signal"}  # without what does nothing, nothing changes
    assert rows["noise"].unchanged < 0.3 and rows["all"].unchanged == pytest.approx(1)
    assert rows["noise"].strength < 0.1 < rows["all"].strength < 1
    assert found.words[1] == simple_rule(images=False) and "(noise, signal). 'noise' matters most" in found.words[0]


@pytest.mark.float32
def test_views_have_their_operations_left_out():
    views = ImageViews(ViewConfig(blur=0.0), 8)
    assert [name for name, _ in left_out(views)] == ["crop", "flip", "jitter", "grayscale"]
    assert dict(left_out(views))["crop"].config == ViewConfig(blur=0.0, crop=(1.0, 1.0))
    vectors = VectorViews(ViewConfig(mask=0.0), Marginals(torch.zeros(4), torch.ones(4)))
    assert [name for name, _ in left_out(vectors)] == ["noise", "scale"]
    images = np.random.default_rng(0).integers(0, 256, (200, 1, 8, 8)).astype(np.uint8)
    found = advise(images, views, n_draws=4)
    assert [row.operation for row in found.augmentations] == ["all", "crop", "flip", "jitter"]  # gray images stay gray
    assert all(0 < row.strength < 1 for row in found.augmentations)
    assert found.words[1] == simple_rule(images=True)


def test_many_features_are_reduced_and_it_is_said():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 20)) * 5 @ rng.normal(size=(20, 300)) + rng.normal(size=(800, 300))
    found = advise(x, directions=20, n_components=4)
    assert found.facts.directions == 20 and 0.9 < found.facts.variance_kept < 1
    assert "20 of 300 directions" in found.words[-1]
    basis = collected(x, directions=20).basis
    assert np.allclose(basis.directions.T @ basis.directions, np.eye(20), atol=1e-5)
    top = np.linalg.svd(x - x.mean(0), full_matrices=False)
    assert collected(x, directions=20).kept == pytest.approx((top[1][:20] ** 2).sum() / (top[1] ** 2).sum(), rel=1e-3)


def test_the_same_seed_says_the_same():
    x = problem(noise=3.0)[:300]
    one, again, other = (advise(x, OPERATIONS, n_draws=4, random_state=seed).to_dict() for seed in (0, 0, 1))
    assert one == again and one["augmentations"] != other["augmentations"]
    single = torch.from_numpy(x).float()
    assert advise(TensorDataset(single, single[:, 0]), n_draws=4).to_dict() == advise(single, n_draws=4).to_dict()
    assert json.loads(json.dumps(one))["words"] == one["words"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: advise(x[:50]), "at least 100 items"),
        (lambda x: advise(x[:, 0]), "shape"),
        (lambda x: advise(x, lambda X, g: X), "tie"),
        (lambda x: advise(x, lambda X, g: X + 1e-7 * torch.randn(X.shape, generator=g)), "tie"),
        (lambda x: advise(x, 0.0), "tie"),
        (lambda x: advise(x, lambda X, g: X[:, :3]), "features"),
        (lambda x: advise(x, np.ones(5)), "covariance"),
        (lambda x: advise(x, labels=np.zeros(3, int)), "labels as an integer"),
        (lambda x: advise(x, labels=np.zeros(N)), "labels as an integer"),
        (lambda x: advise(x, n_components=12), "n_components"),
        (lambda x: advise(x, n_components=0), "n_components"),
        (lambda x: advise(x, n_draws=3), "n_draws"),
        (lambda x: advise(x, n_components=2.5), "n_components"),
        (lambda x: advise(x, "noise"), "augmentation as a function"),
        (lambda x: advise(x, device="cuda:99" if torch.cuda.is_available() else "cuda"), "CUDA|device"),
        (lambda x: advise(x[:, :1]), "at least 2"),
        (lambda x: advise(x, directions=1), "directions"),
        (lambda x: advise(np.ones((200, 3))), "equal ones"),
        (lambda x: advise(np.where(np.arange(N)[:, None] == 7, np.nan, x)), "NaN"),
        (lambda x: advise(PairItems(ArrayItems(x), ArrayItems(x))), "pairs"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(problem(noise=2.0))


def test_labels_say_whether_the_vectors_as_they_are_suffice():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=600)
    x = np.c_[rng.normal(size=(600, 6)) + 3 * np.eye(6)[y], 5 * rng.normal(size=(600, 6))]
    shift = on(range(SIGNAL), 4.0)  # views that hide the classes
    hidden = advise(x, shift, labels=y, n_components=2, n_draws=8)
    found = hidden.accuracy
    assert found.as_they_are > 0.9 > 0.7 > found.joint_embedding and 0 < found.interval[0] < found.interval[1]
    assert hidden.words[0].startswith("Start with the vectors as they are.") and "As they are is better" in hidden.words[0]
    equal = advise(x, 0.1, labels=y, n_components=11)
    assert equal.accuracy.interval[0] <= 0 <= equal.accuracy.interval[1] and "no clear winner" in equal.words[0]
    partly = advise(x, 0.1, labels=np.where(np.arange(600) < 500, y, -1))
    assert partly.accuracy.items == 500
    for few in (np.where(np.arange(600) < 40, y, -1), np.zeros(600, int)):
        assert advise(x, 0.1, labels=few).accuracy is None


def test_joint_embedding_is_named_where_it_is_better():
    said = str(Probed(items=100, as_they_are=0.5, joint_embedding=0.7, pca=0.6, interval=(-0.3, -0.1)))
    assert "Joint embedding is better than as they are, by 10.0 to 30.0 points (95 % interval)" in said


def test_the_interval_is_honest_about_few_items():
    wrong = np.zeros(100, bool)
    five, six = (paired_interval(np.arange(100) < n, wrong) for n in (4, 7))
    assert five[0] < 0 < six[0]
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        a, b = rng.random(150) < 0.8, rng.random(150) < 0.7
        low, high = paired_interval(a, b)
        covered += low <= 0.1 <= high
    assert covered >= 180
