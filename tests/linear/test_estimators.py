"""The estimators: scikit-learn's contract, what they say of themselves, and known special cases."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.linear.checks import close, covariance, rng, up_to_sign
from tests.reference import linear as reference

from vergence.linear import JointEmbedding, Reconstruction, Supervised

KINDS = (JointEmbedding, Reconstruction, Supervised)
N, D = 60, 4
SIGMA = covariance(rng(60), D)


@parametrize_with_checks([JointEmbedding(1), Reconstruction(1), Supervised()])
def test_scikit_learn(estimator, check):
    check(estimator)


def items(seed=61, n=N):
    g = rng(seed)
    mixed = g.normal(size=(D, D))
    return g.normal(size=(n, D)) @ mixed + [3.0, -1.0, 0.0, 10.0]


def targets(x, seed=62):
    return x[:, :2] ** 2 / 10 + rng(seed).normal(size=(len(x), 2))


def build(kind, **options):
    """With two components where there is such a thing."""
    return kind(**({} if kind is Supervised else {"n_components": 2}), **options)


def noisy(x, generator):
    scale = torch.rand(len(x), 1, generator=generator, dtype=x.dtype) + 0.5
    return scale * x + torch.randn(x.shape, generator=generator, dtype=x.dtype)


def seen_as(x, y, outcomes, center):
    """Items, targets and outcomes, less their means where there is an intercept."""
    rows, views = reference.centered(x, outcomes) if center else (x, outcomes)
    return rows, y - y.mean(0) * center, views


# --- shapes and identities


@pytest.mark.parametrize("center", [True, False])
def test_the_objective_is_its_formula_and_the_loss_on_the_data(center):
    x = items()
    y, outcomes = targets(x), reference.additive(x, SIGMA)
    rows, t, views = seen_as(x, y, outcomes, center)
    je = JointEmbedding(2, augmentation=SIGMA, center=center).fit(x)
    close(je.objective_, 2 * (1 - je.eigenvalues_).sum())
    close(je.objective_, reference.joint_embedding_value(je.components_, views))
    rc = Reconstruction(2, augmentation=SIGMA, center=center).fit(x)
    close(rc.objective_, reference.square(rows) / N - (rc.singular_values_**2).sum())
    close(rc.objective_, reference.reconstruction_value(rc.components_, rc.decoder_, rows, views))
    sl = Supervised(augmentation=SIGMA, center=center).fit(x, y)
    close(sl.objective_, reference.supervised_value(sl.components_, t, views))


@pytest.mark.parametrize("center", [True, False])
def test_solutions_are_the_theorems(center):
    """``center=False`` is the paper to the letter; otherwise the same of what is left without the means."""
    x = items()
    y = targets(x)
    rows, t, views = seen_as(x, y, reference.additive(x, SIGMA), center)
    G, S, M, N_ = reference.moments(rows, views, t)
    je = JointEmbedding(2, augmentation=SIGMA, center=center).fit(x)
    W, omega = reference.joint_embedding(G, S)
    up_to_sign(je.components_, W[:2])
    close(je.spectrum_, omega)
    rc = Reconstruction(2, augmentation=SIGMA, center=center).fit(x)
    E, R, phi = reference.reconstruction(M, S)
    up_to_sign(rc.components_, E[:2])
    close(rc.decoder_ @ rc.components_, R[:, :2] @ E[:2])
    close(rc.spectrum_, phi)
    sl = Supervised(augmentation=SIGMA, center=center).fit(x, y)
    close(sl.components_, reference.supervised(N_, S))
    for model in (je, rc, sl):
        close(model.mean_, x.mean(0) * center)
    for model, expected in ((rc, x), (sl, y)):
        close(model.target_mean_, expected.mean(0) * center)


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


# --- special cases


def test_without_noise_supervision_is_linear_regression():
    x = items()
    y = targets(x)
    for center in (True, False):
        model, expected = Supervised(augmentation=0.0, center=center).fit(x, y), LinearRegression(fit_intercept=center).fit(x, y)
        close(model.components_, expected.coef_)
        close(model.transform(x), expected.predict(x))
        close(model.objective_, ((y - expected.predict(x)) ** 2).sum() / N)


def test_isotropic_noise_is_a_ridge():
    x = items()
    y = targets(x)
    close(Supervised(augmentation=0.7).fit(x, y).transform(x), Ridge(alpha=0.7 * N).fit(x, y).predict(x))


LABELS = {
    "strings": np.array(["dog", "ant", "cat"]),
    "objects": np.array(["dog", "ant", "cat"], dtype=object),
    "integers": np.array([7, -1, 3]),
    "a column of integers": np.array([[7], [-1], [3]]),
    "truth values": np.array([True, False, True]),
}


@pytest.mark.parametrize("name", LABELS)
def test_classes_are_columns(name):
    x = items()
    y = LABELS[name][np.arange(N) % 3]
    model = Supervised(augmentation=0.1).fit(x, y)
    classes = np.unique(y)
    assert model.classes_.tolist() == classes.tolist()
    one_hot = (y.reshape(N, 1) == classes).astype(np.float64)
    numbers = Supervised(augmentation=0.1).fit(x, one_hot)
    assert numbers.classes_ is None
    for attribute in ("components_", "target_mean_", "objective_"):
        close(getattr(model, attribute), getattr(numbers, attribute))
    close(model.transform(x).sum(1), np.ones(N))


def test_integers_in_two_columns_are_numbers():
    x = items()
    y = np.c_[np.arange(N) % 3, np.arange(N) % 5]
    model = Supervised(augmentation=0.0).fit(x, y)
    assert model.classes_ is None
    close(model.components_, LinearRegression().fit(x, y).coef_)


# --- the augmentation


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, 0.1 * items().var(0).mean()),
        (0.3, np.full(D, 0.3)),
        (0.3, 0.3 * np.eye(D)),
        ([0.1, 0.2, 0.3, 0.4], np.diag([0.1, 0.2, 0.3, 0.4])),
        (torch.tensor(SIGMA), SIGMA),
        (1, 1.0),
    ],
)
def test_ways_to_say_one_covariance(kind, one, other):
    x = items()
    found, expected = (build(kind, augmentation=a).fit(x, targets(x)) for a in (one, other))
    close(found.components_, expected.components_)
    close(found.objective_, expected.objective_)
    assert found.objective_se_ == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "draws"), [(40, 2), (40, 16)])
def test_the_sampling_error_is_honest(kind, n, draws, seeds=60):
    """The spread of the objective over seeds is what each fit says it is."""
    x = items(n=n)
    y = targets(x)
    models = [build(kind, augmentation=noisy, n_draws=draws, random_state=s).fit(x, y) for s in range(seeds)]
    spread = np.std([m.objective_ for m in models], ddof=1)
    said = np.mean([m.objective_se_ for m in models])
    assert 1 / 1.4 < said / spread < 1.4, (said, spread)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sampling_error_falls_with_the_draws_and_the_items(kind):
    def error(n, draws):
        x = items(n=n)
        return build(kind, augmentation=noisy, n_draws=draws).fit(x, targets(x)).objective_se_

    base = error(400, 8)
    assert error(400, 128) == pytest.approx(base / 4, rel=0.2)
    assert error(6400, 8) == pytest.approx(base / 4, rel=0.2), "the items kept stand for all"


@pytest.mark.parametrize("kind", KINDS)
def test_random_state_is_the_seed(kind):
    x = items()
    one, again, other = (build(kind, augmentation=noisy, random_state=s).fit(x, targets(x)) for s in (3, 3, 4))
    assert np.array_equal(one.components_, again.components_) and one.objective_ == again.objective_
    assert one.objective_ != other.objective_ and one.objective_se_ != other.objective_se_


# --- the estimator's manners


@pytest.mark.parametrize("kind", KINDS)
def test_clone_and_pickle(kind):
    x = items()
    model = build(kind, augmentation=noisy, n_draws=3, random_state=5).fit(x, targets(x))
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copy.transform(x), model.transform(x))
    copy.partial_fit(x, targets(x))
    assert copy.n_samples_seen_ == 2 * N and model.n_samples_seen_ == N
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        fresh.transform(x)
    assert np.array_equal(fresh.fit(x, targets(x)).components_, model.components_)


def test_a_pickle_holds_the_model_and_not_the_data():
    """Items kept as views of a block would each be written with the whole of it."""
    x = rng(63).normal(size=(1100, 10))
    model = Reconstruction(2, augmentation=noisy, n_draws=2).fit(x)
    assert len(pickle.dumps(model)) < 1 << 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_float32_comes_out_as_float32(kind, as_tensor):
    x = items().astype(np.float32)
    model = build(kind, augmentation=SIGMA).fit(torch.as_tensor(x) if as_tensor else x, targets(x))
    assert model.transform(torch.as_tensor(x) if as_tensor else x).dtype == np.float32
    assert model.components_.dtype == np.float64 and model.transform(x.astype(np.float64)).dtype == np.float64
    close(
        model.components_, build(kind, augmentation=SIGMA).fit(x.astype(np.float64), targets(x)).components_, rtol=1e-3, atol=1e-4
    )


def test_lists_of_batches_are_batches():
    x = items()
    one, other = JointEmbedding(2, augmentation=0.3).fit([x[:30], x[30:]]), JointEmbedding(2, augmentation=0.3).fit(x)
    close(one.components_, other.components_)
    y = np.arange(len(x)) % 3
    pairs = [(x[:30], y[:30]), (x[30:], y[30:])]
    close(Supervised().fit(pairs).components_, Supervised().fit(x, y).components_)


def test_a_failed_fit_leaves_the_model_as_it_was():
    x = items()
    model = Reconstruction(2, augmentation=0.3).fit(x)
    before = {name: value for name, value in vars(model).items() if name.endswith("_")}
    model.n_components = 1000
    with pytest.raises(ValueError, match="n_components"):
        model.partial_fit(x + 5)
    assert all(vars(model)[name] is value for name, value in before.items())


def test_few_draws_are_said():
    with pytest.warns(UserWarning, match="few draws"):
        Reconstruction(2, augmentation=noisy, n_draws=2).fit(np.random.default_rng(0).normal(size=(20, 30)))
