"""The contract of every conditional model in the folder; a new file is tested without a change here."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.stats import kstest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator
from tests.refusals import refuses

from vergence import mixtures
from vergence.mixtures.core import Scale

NAMES = list(mixtures.MODELS)
JOINT = [name for name in NAMES if hasattr(mixtures.get(name), "joint")]
QUICK = {  # settings that keep the tests short; what is not named here runs with its defaults
    "mdn": {"steps": 400, "n_init": 1, "hidden": (32,)},
    "kernel": {"n_init": 1},
    "trees": {"trees": 25},
}
# Checks that call methods with one argument, or fit(X, y=...) by name, where the contract has (context, target)
NAMED = "the second argument is named target, and log-densities are of pairs"
CANNOT = dict.fromkeys(
    (
        "check_fit_score_takes_y", "check_n_features_in_after_fitting", "check_methods_sample_order_invariance",
        "check_methods_subset_invariance", "check_sample_weight_equivalence_on_dense_data",
    ),
    NAMED,
)  # fmt: skip
CANNOT["check_dataframe_column_names_consistency"] = "columns are found by name, in any order"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", [0, 1])
def test_values_whose_squares_overflow_are_refused(name, which):
    pairs = list(arcs(targets=2))
    pairs[which] = pairs[which] * 1e160
    refuses("squares", model(name).fit, *pairs)


def model(name, **also):
    return mixtures.get(name)(**{**QUICK.get(name, {}), "random_state": 0, **also})


def arcs(n=600, seed=0, targets=1):
    """Two arcs over two contexts, and a second target that follows the first."""
    rng = np.random.default_rng(seed)
    c = np.stack([rng.uniform(-1, 1, n), rng.normal(size=n)], 1)
    side = rng.choice([-1.0, 1.0], n)
    t = np.stack([side * (1 + 0.5 * c[:, 0]) + 0.15 * rng.normal(size=n), 0.5 * side + c[:, 1] + 0.3 * rng.normal(size=n)], 1)
    return c, t[:, 0] if targets == 1 else t


@pytest.fixture(scope="module")
def fitted():
    """Every model, fitted to the same pairs with one and with two targets."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    found = {(name, T): model(name).fit(*arcs(targets=T)) for name in NAMES for T in (1, 2)}
    torch.set_default_dtype(before)
    return found


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n == "mdn" else []) for n in NAMES])
def test_scikit_learns_checks(name):
    kind = mixtures.get(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tiny data: EM and searches that end at their limits
        found = check_estimator(kind(), on_fail=None, expected_failed_checks=CANNOT)
    failed = {r["check_name"]: r["exception"] for r in found if r["status"] == "failed"}
    assert failed == {}
    assert {r["check_name"] for r in found if r["status"] == "xfail"} <= {*CANNOT}


@pytest.mark.parametrize("T", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_units(fitted, name, T):
    m, (c, t) = fitted[name, T], arcs(50, 1, T)
    given = m.conditional(c)
    assert given.batch_shape == (50,) and given.event_shape == (T,) and given.mean.dtype == torch.float64
    wanted = (50,) if T == 1 else (50, 2)
    assert m.predict(c).shape == m.mode(c).shape == m.cdf(c, t).shape == wanted
    assert m.intervals(c).shape == (*wanted, 2) and m.sample(c, 3).shape == (50, 3, *wanted[1:])
    np.testing.assert_allclose(m.predict(c).reshape(50, T), given.mean.detach(), rtol=1e-10, atol=1e-12)
    expected = given.log_prob(torch.from_numpy(t.reshape(50, T)))
    np.testing.assert_allclose(m.score_samples(c, t), expected.detach(), rtol=1e-9, atol=1e-9)
    assert m.score(c, t) == pytest.approx(float(expected.mean()))
    low, high = np.moveaxis(m.intervals(c, 0.8), -1, 0)
    for end, p in ((low, 0.1), (high, 0.9)):
        np.testing.assert_allclose(m.cdf(c, end), p, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_mass_is_one(fitted, name):
    grid = torch.linspace(-12, 12, 24_001)
    for c in arcs(5, 2)[0]:
        p = fitted[name, 1].conditional(c[None]).log_prob(grid[:, None]).exp()
        assert float(torch.trapezoid(p, grid)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_samples_have_the_moments(fitted, name):
    m, c = fitted[name, 2], arcs(4, 3)[0]
    given, n = m.conditional(c), 20_000
    draws = m.sample(c, n, random_state=1)
    mean, variance = given.mean.detach().numpy(), given.variance.detach().numpy()
    assert (abs(draws.mean(1) - mean) / np.sqrt(variance / n)).max() < 4.5
    fourth = ((draws - mean[:, None]) ** 4).mean(1)
    assert (abs(((draws - mean[:, None]) ** 2).mean(1) - variance) / np.sqrt((fourth - variance**2) / n)).max() < 4.5
    assert np.array_equal(m.sample(c, 5), m.sample(c, 5)) and not np.array_equal(m.sample(c, 5), m.sample(c, 5, random_state=2))


@pytest.mark.parametrize("name", NAMES)
def test_pit_is_uniform_on_samples_of_the_model(fitted, name):
    m, c = fitted[name, 2], arcs(1500, 4)[0]
    t = m.sample(c, 1, random_state=5)[:, 0]
    for d in range(2):
        assert kstest(m.cdf(c, t)[:, d], "uniform").pvalue > 1e-3
    planted = m.cdf(c, t + 0.5 * t.std(0))
    assert kstest(planted[:, 0], "uniform").pvalue < 1e-6


@pytest.mark.parametrize("name", JOINT)
def test_the_joint_is_marginal_times_conditional(fitted, name):
    m, (c, t) = fitted[name, 2], arcs(40, 6, 2)
    c, t = torch.from_numpy(c), torch.from_numpy(t)
    joint = m.joint()
    chain = joint.marginal("context").log_prob(c) + m.conditional(c).log_prob(t)
    torch.testing.assert_close(joint.log_prob(torch.cat([c, t], 1)), chain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_units_of_the_data_do_not_matter(fitted, name):
    """p(a t + b | u c + v) = p(t | c) / a: the same fit in other units, and log-densities minus the logarithms of the scales."""
    c, t = arcs(targets=2)
    a, b, u, v = np.array([1e6, 0.01]), np.array([-3e6, 5.0]), np.array([1e-3, 40.0]), np.array([1e-2, -7.0])
    moved = model(name).fit(u * c + v, a * t + b)
    c, t = arcs(30, 7, 2)
    expected = fitted[name, 2].score_samples(c, t) - np.log(a).sum()
    np.testing.assert_allclose(moved.score_samples(u * c + v, a * t + b), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_determines_the_fit(fitted, name):
    again, (c, t) = model(name).fit(*arcs(targets=2)), arcs(30, 8, 2)
    assert np.array_equal(again.score_samples(c, t), fitted[name, 2].score_samples(c, t))
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    with torch.inference_mode():
        model(name).fit(*arcs(100))
    again.sample(c, 2)
    assert torch.equal(torch.random.get_rng_state(), before)  # other random numbers do not change


@pytest.mark.parametrize("name", [name for name in NAMES if name != "trees"])  # which are constant in steps
def test_gradients_reach_the_context(fitted, name):
    c = torch.from_numpy(arcs(3, 9)[0]).requires_grad_()
    m, h = fitted[name, 1], 1e-6
    (slope,) = torch.autograd.grad(m.conditional(c).mean.sum(), c)
    step = torch.zeros_like(c)
    step[:, 0] = h
    numeric = (m.conditional(c.detach() + step).mean - m.conditional(c.detach() - step).mean)[:, 0] / (2 * h)
    torch.testing.assert_close(slope[:, 0], numeric, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_saving_and_loading_without_pickle(fitted, name, tmp_path):
    m, (c, t) = fitted[name, 2], arcs(20, 10, 2)
    m.save(tmp_path / "m.safetensors")
    for again in (mixtures.load(tmp_path / "m.safetensors"), type(m).load(tmp_path / "m.safetensors")):
        assert type(again) is type(m) and again.get_params() == m.get_params()
        np.testing.assert_allclose(again.score_samples(c, t), m.score_samples(c, t), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(again.sample(c, 2, random_state=0), m.sample(c, 2, random_state=0), rtol=1e-10, atol=1e-12)
    assert np.array_equal(pickle.loads(pickle.dumps(m)).predict(c), m.predict(c))
    assert not hasattr(clone(m), "n_features_in_")


def test_files_of_one_model_have_the_same_bytes(fitted, tmp_path):
    files = [tmp_path / f"{i}.safetensors" for i in range(6)]
    for file in files:
        fitted["gaussian", 1].save(file)
    assert len({file.read_bytes() for file in files}) == 1
    assert np.array_equal(mixtures.load(files[0]).predict(arcs(5, 9)[0]), fitted["gaussian", 1].predict(arcs(5, 9)[0]))


def test_files_that_hold_no_such_model(fitted, tmp_path):
    """`tests/decide/test_storage.py` has the damaged ones."""
    m, file = fitted["gaussian", 1], tmp_path / "m.safetensors"
    m.save(file)
    refuses("expected a ConditionalMixture", mixtures.ConditionalMixture.load, file)
    save_file({"x": np.zeros(2)}, file)
    refuses("found none in", mixtures.load, file)
    refuses(r"cannot write \S*: No such file or directory; choose another path", m.save, tmp_path / "no" / "m.safetensors")


@pytest.mark.parametrize("name", NAMES)
def test_bad_input(name):
    c, t = arcs(40)
    m = model(name)
    for use in (m.conditional, m.predict, m.sample):
        with pytest.raises(NotFittedError):
            use(c)
    refuses("40", m.fit, c, t[:39])
    broken = t.copy()
    broken[3] = np.inf
    refuses("infinity", m.fit, c, broken)
    refuses("infinity", m.fit, np.where(c == c[3, 0], np.inf, c), t)
    refuses(r"column \[0\] with no value", m.fit, c * [np.nan, 1], t)
    refuses("column 0 with no value", m.fit, c, t * np.nan)
    refuses("column 1", m.fit, c, np.stack([t, np.full(40, 7.0)], 1))
    refuses("1 sample", m.fit, c[:1], t[:1])
    m.fit(c, t)
    refuses("3 features", m.predict, np.ones((2, 3)))
    refuses(r"\(B, 2\)", m.conditional, torch.ones(2, 3))
    refuses("targets of 1 features", m.score_samples, c, np.stack([t, t], 1))
    refuses("level", m.intervals, c, 1.0)
    refuses("expected n ", m.sample, c, 0)
    refuses("expected a device", model(name, device="nowhere").fit, c, t)


@pytest.mark.parametrize("name", NAMES)
def test_awkward_data(name):
    """A constant context column, repeated pairs, fewer items than features, integers, far from zero."""
    rng = np.random.default_rng(0)
    c, t = arcs(60)
    cases = {
        "constant column": (np.column_stack([c, np.full(60, 3.0)]), t),
        "repeated": (np.repeat(c[:6], 10, 0), np.repeat(t[:6], 10)), "N < D": (rng.normal(size=(8, 20)), rng.normal(size=(8, 3))),
        "integers": (rng.integers(0, 5, (60, 2)), rng.integers(0, 9, 60)), "far": (1e6 + c, -1e6 + t),
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for what, (context, target) in cases.items():
            m = model(name).fit(context, target)
            assert np.isfinite(m.score_samples(context, target)).all(), what
            assert np.isfinite(m.sample(context, 2)).all(), what


def test_scale_keeps_constant_columns():
    x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    scale = Scale.of(x)
    assert scale.std.tolist() == [1.0, 1.0] and scale.to(x)[:, 1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
def test_views_with_negative_strides_are_read(fitted, name):
    m, c = fitted[name, 1], arcs(8, 1)[0]
    backward = c[::-1]
    same = np.ascontiguousarray(backward)
    np.testing.assert_array_equal(m.predict(backward), m.predict(same))
    np.testing.assert_array_equal(m.intervals(backward), m.intervals(same))
    torch.testing.assert_close(m.conditional(backward).mean, m.conditional(same).mean)
