"""The mixture against scikit-learn (from one start), gmr, quadrature and its special cases; two processes, repairs, messages."""

import copy
import datetime
import inspect
import itertools
import os
import pickle
import traceback
import warnings

import numpy as np
import pytest
import sklearn.mixture as oracle
import torch
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from tests.mixtures.common import close

from vergence import mixtures
from vergence.densities.em import fit as em
from vergence.densities.em import structures
from vergence.mixtures.gaussian_mixture import GaussianMixture

KINDS = ("full", "diag")
ALL = (*KINDS, "low_rank")
N, D, K = 300, 4, 3
RANK = 2


def clusters(seed=0, n=N, d=D, k=K, apart=3.0):
    g = np.random.default_rng(seed)
    parts = [g.normal(size=(n // k, d)) @ (np.eye(d) + 0.4 * g.normal(size=(d, d))) + apart * g.normal(size=d) for _ in range(k)]
    return np.concatenate(parts)[g.permutation(n)]


X = clusters()
Y = clusters(1)


def quietly(model, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*args, **kwargs)


def fitted(kind, **options):
    return quietly(GaussianMixture(K, covariance_type=kind, rank=RANK, random_state=0, **options), X)


@pytest.fixture(scope="module")
def models():
    return {kind: fitted(kind) for kind in ALL}


def check_same(ours, theirs, items, tol=1e-8):
    for name in ("weights_", "means_", "covariances_", "lower_bound_"):
        if hasattr(theirs, name):
            close(getattr(ours, name), getattr(theirs, name), tol)
    if hasattr(theirs, "lower_bounds_"):  # not before scikit-learn 1.7
        close(ours.lower_bounds_[1:], theirs.lower_bounds_[1:], tol)  # of the first, see the chosen items
    assert (ours.n_iter_, ours.converged_) == (theirs.n_iter_, theirs.converged_)
    for name in ("predict_proba", "score_samples", "score"):
        close(getattr(ours, name)(items), getattr(theirs, name)(items), tol)
    assert np.array_equal(ours.predict(items), theirs.predict(items))


def both(items, **options):
    return [quietly(kind(**options), items) for kind in (GaussianMixture, oracle.GaussianMixture)]


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_same_start_the_same_result(kind):
    ours, theirs = both(X, n_components=5, covariance_type=kind, random_state=3, max_iter=30)
    assert ours.n_iter_ >= 2 and ours.reseeded_ == 0
    check_same(ours, theirs, X)
    for a, b in zip(ours.sample(200), theirs.sample(200), strict=True):
        close(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_of_several_starts_is_kept(kind):
    ours, theirs = both(X, n_components=5, covariance_type=kind, n_init=5, random_state=1, max_iter=15)
    assert ours.reseeded_ == 0
    check_same(ours, theirs, X)
    alone = quietly(GaussianMixture(5, covariance_type=kind, random_state=1, max_iter=15), X)
    assert ours.lower_bound_ > alone.lower_bound_


@pytest.mark.parametrize("kind", KINDS)
def test_an_origin_far_away(kind):
    """Items at 1e6 +- 1: scikit-learn's diagonal loses six digits to E[x^2] - mu^2; here the origin goes first."""
    model = GaussianMixture(K, covariance_type=kind, reg_covar=0.0, random_state=0)
    near, far = quietly(clone(model), X), quietly(clone(model), 1e6 + X)
    assert near.n_iter_ == far.n_iter_
    close(far.means_ - 1e6, near.means_, 1e-7)
    close(far.covariances_, near.covariances_, 1e-7)
    close(far.score_samples(1e6 + X), near.score_samples(X), 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_items_are_read_in_float64(kind):
    items = X.astype(np.float32)
    ours, theirs = both(items, n_components=K, covariance_type=kind, random_state=0)
    double = GaussianMixture(K, covariance_type=kind, random_state=0).fit(items.astype(np.float64))
    close(ours.covariances_, double.covariances_, 1e-12)
    assert ours.means_.dtype == np.float64
    close(ours.means_, theirs.means_, 1e-3)
    close(ours.score_samples(items), theirs.score_samples(items), 1e-3)
    close(ours.score_samples(items), ours.score_samples(items.astype(np.float64)), 1e-12)


# of scikit-learn's settings, methods and attributes
LEFT_OUT = {"warm_start", "verbose", "verbose_interval", "aic", "bic", "init_params", "weights_init", "means_init"}
LEFT_OUT |= {"precisions_init", "precisions_", "precisions_cholesky_", "fit_predict"}


def test_settings_and_methods_are_scikit_learns_and_more():
    ours, theirs = (inspect.signature(kind.__init__).parameters for kind in (GaussianMixture, oracle.GaussianMixture))
    shared = [name for name in theirs if name not in LEFT_OUT]
    assert list(ours)[: len(shared)] == shared
    for name in shared:
        assert (ours[name].default, ours[name].kind) == (theirs[name].default, theirs[name].kind)
    public = {name for name in dir(oracle.GaussianMixture) if not name.startswith("_")}
    assert public - LEFT_OUT <= set(dir(GaussianMixture))
    fresh = {name for name in vars(oracle.GaussianMixture(K).fit(X)) if name.endswith("_") and not name.startswith("_")}
    assert fresh - LEFT_OUT <= set(vars(GaussianMixture(K).fit(X)))


def test_estimators_ways(models):
    model = models["full"]
    copied = clone(model)
    assert copied.get_params() == model.get_params() and not hasattr(copied, "means_")
    assert model.set_params(tol=1e-3) is model
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert np.array_equal(other.score_samples(X), model.score_samples(X))
    close(model.predict_proba(X).sum(1), np.ones(N), 1e-12)
    tensor = torch.from_numpy(X)
    assert np.array_equal(GaussianMixture(K, random_state=0).fit(tensor).score_samples(tensor), model.score_samples(X))
    assert model.score(X, None) == pytest.approx(model.score_samples(X).mean())


def test_low_rank_is_its_dense_self(models):
    model = models["low_rank"]
    d, U = model.covariances_[..., 0], model.covariances_[..., 1:]
    S = np.stack([np.diag(a) + u @ u.T for a, u in zip(d, U, strict=True)])
    dense = oracle.GaussianMixture(K)
    dense.weights_, dense.means_, dense.covariances_ = model.weights_, model.means_, S
    dense.precisions_cholesky_ = np.stack([np.linalg.cholesky(np.linalg.inv(s)) for s in S])
    close(model.score_samples(Y), dense.score_samples(Y))
    close(model.predict_proba(Y), dense.predict_proba(Y))


def test_draws_have_their_moments(models):
    for model in models.values():
        x, k = model.sample(20_000)
        density = model.density()
        z = (x.mean(0) - density.mean.numpy()) / (density.variance.numpy() / len(x)) ** 0.5
        assert np.abs(z).max() < 4.5 and x.shape == (20_000, D) and (np.diff(k) >= 0).all()
        S = density.covariance.numpy()
        fourth = ((x - x.mean(0))[:, :, None] * (x - x.mean(0))[:, None]).std(0) / len(x) ** 0.5
        assert (np.abs(np.cov(x.T, ddof=0) - S) / fourth).max() < 4.5
        share = np.bincount(k, minlength=K) / len(k) - model.weights_
        assert (np.abs(share) < 4.5 * (model.weights_ / len(k)) ** 0.5).all()


@pytest.mark.parametrize("kind", ALL)
def test_whole_weights_are_repeated_items(kind):
    w = np.random.default_rng(4).integers(1, 4, N)
    model = GaussianMixture(1, covariance_type=kind, max_iter=10, tol=0.0, rank=RANK)  # one: no clustering in its start
    one, other = quietly(clone(model), X, sample_weight=w), quietly(clone(model), np.repeat(X, w, axis=0))
    for name in ("weights_", "means_", "covariances_", "lower_bounds_"):
        close(getattr(one, name), getattr(other, name), 1e-10)


@pytest.mark.parametrize("kind", ALL)
def test_items_of_no_weight_are_left_out(kind):
    w = np.random.default_rng(5).uniform(0.5, 2, N)
    w[::3] = 0
    wild = np.where(w[:, None] == 0, 1e9, X)
    model = GaussianMixture(K, covariance_type=kind, max_iter=5, random_state=0, rank=RANK)
    one, other = quietly(clone(model), wild, sample_weight=w), quietly(clone(model), X[w > 0], sample_weight=w[w > 0])
    assert np.array_equal(one.means_, other.means_) and one.lower_bound_ == other.lower_bound_


def test_starts_follow_the_weights():
    w = np.where(X[:, 0] > np.median(X[:, 0]), 1.0, 1e-3)
    start = quietly(GaussianMixture(K, random_state=0, max_iter=0), X, sample_weight=w)
    kmeans = KMeans(K, n_init=1, random_state=np.random.RandomState(0)).fit(X, sample_weight=w)
    close(start.means_, kmeans.cluster_centers_)


def subsets(d):
    return [order for c in range(1, d) for order in itertools.permutations(range(d), c)]


@pytest.mark.parametrize("kind", ALL)
def test_joint_is_marginal_times_conditional_for_any_features(kind, models):
    model, x = models[kind], torch.from_numpy(Y[:20])
    joint = model.density().log_prob(x)
    close(joint, model.score_samples(Y[:20]), 1e-10)
    for first in subsets(D)[:: 1 if kind == "full" else 5]:
        rest = [i for i in range(D) if i not in first]
        conditional = model.condition(Y[:20][:, first], features=first)
        assert conditional.batch_shape == (20,) and conditional.event_shape == (D - len(first),)
        marginal = model.density(context=len(first), order=[*first, *rest]).marginal("context").log_prob(x[:, first])
        close(marginal + conditional.log_prob(x[:, rest]), joint, 1e-10)
    default = model.condition(Y[:20, :2])
    close(default.log_prob(x[:, 2:]), model.condition(Y[:20, :2], features=[0, 1]).log_prob(x[:, 2:]), 1e-12)


def test_conditions_keep_the_gradient_and_take_lists(models):
    c = torch.from_numpy(Y[:3, :2]).requires_grad_()
    models["full"].condition(c).mean.sum().backward()
    assert bool((c.grad.abs().sum(1) > 0).all())
    close(models["full"].condition(Y[:3, :2].tolist()).mean, models["full"].condition(Y[:3, :2]).mean, 1e-14)


def test_any_array_is_read():
    plain = GaussianMixture(K, random_state=0).fit(X)
    for other in (np.asfortranarray(X), X.astype(">f8"), X.tolist(), X[::-1][::-1], torch.from_numpy(X).requires_grad_()):
        close(GaussianMixture(K, random_state=0).fit(other).score_samples(other), plain.score_samples(X), 1e-10)
    turned = GaussianMixture(K, random_state=0).fit(X[::-1, ::-1])
    close(turned.score_samples(X[:, ::-1]).mean(), plain.score(X), 1e-2)
    whole = GaussianMixture(K, random_state=0).fit((100 * X).astype(int))
    assert whole.means_.dtype == np.float64 and np.isfinite(whole.score((100 * X).astype(int)))


def test_read_only_memory_maps_are_read_in_place(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = GaussianMixture(K, random_state=0)
    assert model._data(mapped, None).X.data_ptr() == mapped.ctypes.data
    model.fit(mapped)
    close(model.score_samples(mapped), GaussianMixture(K, random_state=0).fit(X.astype(np.float32)).score_samples(X), 1e-5)


@pytest.mark.parametrize("kind", ALL)
def test_files_hold_the_model(kind, models, tmp_path):
    path = tmp_path / "model.safetensors"
    model = models[kind]
    model.save(path)
    for again in (GaussianMixture.load(path), mixtures.load(path)):
        assert type(again) is GaussianMixture and again.get_params() == model.get_params()
        assert np.array_equal(again.score_samples(Y), model.score_samples(Y))
        assert np.array_equal(again.sample(5)[0], model.sample(5)[0])
        assert np.array_equal(again.condition(Y[:, :1]).mean.numpy(), model.condition(Y[:, :1]).mean.numpy())
        assert (again.n_iter_, again.converged_, again.lower_bounds_) == (model.n_iter_, model.converged_, model.lower_bounds_)
        assert vars(again).keys() == vars(model).keys()


def test_an_unfinished_fit_warns_once():
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        GaussianMixture(K, max_iter=1, n_init=2, random_state=0).fit(X)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("scale", [1e-300, 1e200])
def test_the_scale_of_sample_weights_does_not_matter(kind, scale):
    w = np.random.default_rng(4).uniform(0.5, 2, N)
    model = GaussianMixture(K, covariance_type=kind, rank=RANK, random_state=0)
    one, other = (quietly(clone(model), X, sample_weight=v) for v in (w, scale * w))
    for name in ("weights_", "means_", "covariances_", "lower_bound_"):
        close(getattr(other, name), getattr(one, name), 1e-9)


@pytest.mark.parametrize(("kind", "deviation"), [*((kind, 1.0) for kind in KINDS), ("full", 0.01)])
def test_a_far_outlier_leaves_the_other_components_alone(kind, deviation):
    """One item at 1e8 has a component of its own; scikit-learn's covariances of the others do not notice it."""
    g = np.random.default_rng(5)
    near = np.concatenate([g.normal(size=(200, 2)), g.normal(size=(200, 2)) + 6]) * deviation
    items = np.concatenate([near, [[1e8, -1e8]]])
    ours, theirs = both(items, n_components=3, covariance_type=kind, random_state=0)
    tol = 1e-5 if kind == "full" else 2e-4  # the diagonal takes moments around a mean at 2.5e5
    close(ours.means_ / deviation, theirs.means_ / deviation, 1e-3)
    np.testing.assert_allclose(ours.covariances_, theirs.covariances_, rtol=tol, atol=tol * deviation**2)


PROCESSES = int(os.environ.get("VERGENCE_PROCESSES", "2"))
CASES = {
    **{kind: {"covariance_type": kind, "rank": RANK, "random_state": 0, "max_iter": 8} for kind in ALL},
    "restarts": {"n_init": 3, "random_state": 1, "max_iter": 8},
    "mixed": {"precision": "mixed", "random_state": 0},
}
WEIGHTS = np.random.default_rng(9).uniform(0.5, 2, N)
FACTS = ("weights_", "means_", "covariances_", "lower_bounds_", "n_iter_", "reseeded_")


def facts(options):
    """Everything that a fit finds, in blocks of 64 items."""
    model = quietly(GaussianMixture(K, **options), X, sample_weight=WEIGHTS)
    found = [np.asarray(getattr(model, name)) for name in FACTS] + [1e13 * model._data(X, WEIGHTS).variance_floor.numpy()]
    return found


def work(rank, folder):
    """One of several processes: fits every case and writes what it found; the last one without a seed."""
    structures.CELLS = em.CELLS = 1
    torch.set_num_threads(1)
    store, wait = f"file://{folder}/store", datetime.timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=PROCESSES, timeout=wait)
    try:
        np.random.seed(rank)
        found = {name: facts(options) for name, options in CASES.items()} | {"unseeded": facts({})}
    except Exception:
        found = {"error": traceback.format_exc()}
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()  # a process that leaves early lets older torch wait for ever
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    torch.multiprocessing.spawn(work, (str(folder),), nprocs=PROCESSES)
    found = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(PROCESSES)]
    assert "error" not in found[0], found[0]["error"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_several_processes_are_one(name, several, monkeypatch):
    monkeypatch.setattr(structures, "CELLS", 1)
    one = facts(CASES[name])
    for rank in range(PROCESSES):
        for found, expected in zip(several[rank][name], one, strict=True):
            close(found, expected, 1e-5 if name == "mixed" else 1e-8)


def test_several_processes_without_a_seed_share_the_start_of_the_first(several):
    before = np.random.get_state()
    np.random.seed(0)
    one = facts({})
    np.random.set_state(before)
    for rank in range(PROCESSES):
        for found, expected in zip(several[rank]["unseeded"], one, strict=True):
            close(found, expected)


def test_far_items_are_refused_and_a_regularization_with_a_unit_is_named():
    r = np.random.default_rng(0)
    model = GaussianMixture(2, random_state=0).fit(r.normal(size=(300, 2)) + r.choice([0, 5], (300, 1)))
    np.testing.assert_allclose(model.predict_proba(np.full((1, 2), 1e150)).sum(1), 1)
    with pytest.raises(ValueError, match="items whose squares can be summed, found values up to 1e\\+160"):
        model.predict_proba(np.full((1, 2), 1e160))
    with pytest.warns(UserWarning, match="variance of feature 0"):
        GaussianMixture(2, random_state=0).fit(1e-6 * r.normal(size=(300, 2)))
