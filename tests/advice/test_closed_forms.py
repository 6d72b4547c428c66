"""Advice: right where the answer is known, silent where there is none, and its numbers are those of independent oracles."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.cross_decomposition import CCA
from sklearn.linear_model import LinearRegression

from vergence.advice.closed_forms import Study, _spectral, advise, left_out
from vergence.advice.groups import EVERY, GROUPS, ClassSums, collect, half_samples, probed, student, without
from vergence.data.config import ViewConfig
from vergence.data.items import ArrayItems, PairItems
from vergence.learn.views.images import ImageViews, VectorViews
from vergence.linear import JointEmbedding, Reconstruction
from vergence.linear.reading import as_items

N, SIGNAL, NOISE = 1500, 3, 9


def problem(noise, n=N, seed=0):
    """Two classes in a signal of 3 features, and 9 features of noise with this deviation."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    x = rng.normal(size=(n, SIGNAL + NOISE)) * ([1.0] * SIGNAL + [noise] * NOISE)
    x[:, :SIGNAL] += 2.0 * y[:, None]
    return x, y


def variances(theta, aligned):
    """Of the augmentation: theta on the signal, aligned on the noise."""
    return np.array([theta] * SIGNAL + [aligned] * NOISE)


def collected(x, augmentation=None, labels=None, *, directions=64, n_draws=4, seed=0):
    y = None if labels is None else torch.as_tensor(labels)
    m = n_draws if callable(augmentation) else 0
    return collect(as_items(x), augmentation, y, directions, m, seed, "cpu", lambda n: None)


def overlap(solution, k):
    return solution.overlap(solution.W, solution.E, k)


def accuracies(grouped, ks, weights=EVERY):
    """Those of joint embedding, reconstruction and PCA by scikit-learn's least squares, each fold held out, (3, ks)."""
    used = [g for g in range(GROUPS) if weights[g]]
    right = [[[] for _ in ks] for _ in range(3)]
    x, y = grouped.x.double().numpy(), grouped.labels.numpy()
    for f in range(5):
        inside, here = np.isin(grouped.group, used[f::5]), np.isin(grouped.group, used) & (y >= 0)
        solution = grouped.solution([float(g in used and g not in used[f::5]) for g in range(GROUPS)])
        for of_rows, rows in zip(right, (solution.W, solution.E, solution.U), strict=True):
            for of_k, k in zip(of_rows, ks, strict=True):
                z, train, test = x @ rows[:k].numpy().T, here & ~inside, here & inside
                model = LinearRegression().fit(z[train], np.eye(y.max() + 1)[y[train]])
                of_k.extend(model.predict(z[test]).argmax(1) == y[test])
    return np.mean(right, axis=-1)


def isotropic(X, generator):
    return X + 0.5 * torch.randn(X.shape, generator=generator, dtype=X.dtype)


# --- verdicts where the answer is known


def test_strong_noise_that_the_augmentation_knows_asks_for_joint_embedding():
    x, y = problem(noise=6.0)
    found = advise(x, variances(0.2, 36.0), labels=y, n_components=3)
    assert found.verdict == "joint_embedding" and found.basis == "labels"
    assert found.margin > 0.2 and found.interval[0] > 0.15
    assert found.words[0].startswith("Use joint embedding")


def test_weak_noise_that_the_augmentation_leaves_alone_asks_for_reconstruction():
    x, y = problem(noise=0.3)
    found = advise(x, variances(5.0, 0.0001), labels=y, n_components=3)
    assert found.verdict == "reconstruction" and found.margin < -0.2 and found.interval[1] < -0.15
    assert found.words[0].startswith("Use reconstruction")


@pytest.mark.parametrize("labeled", [True, False])
def test_where_both_keep_the_same_it_cannot_tell(labeled):
    """Noise that is alike in all directions ranks them as variance does: the two spans are one."""
    x, y = problem(noise=0.5)
    found = advise(x, 2.0, labels=y if labeled else None, n_components=4)
    assert found.verdict == "cannot_tell"
    assert found.words[0].startswith("Cannot tell them apart")
    assert all(row.overlap > 0.999 for row in found.components)
    if labeled:
        assert found.margin == 0 and found.interval == (0, 0)


@pytest.mark.slow
def test_labels_that_say_nothing_hardly_ever_give_a_verdict():
    """Both methods keep different things, and neither helps: at 95 % confidence at most one in twenty verdicts is wrong."""
    verdicts = []
    for seed in range(40):
        x, _ = problem(noise=3.0, n=400, seed=seed)
        y = np.random.default_rng(1000 + seed).integers(2, size=400)
        verdicts.append(advise(x, variances(0.2, 20.0), labels=y, n_components=3).verdict)
    wrong = sum(verdict != "cannot_tell" for verdict in verdicts)
    assert wrong <= 6, wrong  # binomial(40, 0.05): more than 6 has a probability of 0.003


def test_without_labels_only_spans_apart_give_a_verdict():
    x, _ = problem(noise=6.0)
    apart = advise(x, variances(0.2, 36.0), n_components=3)
    assert (apart.verdict, apart.basis) == ("joint_embedding", "spectrum") and apart.interval[1] < 0.3
    assert (
        "without labels" in apart.words[0]
        and apart.components[0].margin is None
        and "margin" not in apart.to_dict()["components"][0]
    )
    between = advise(x, np.array([5.0, 0.2, 0.2] + [0.2] * 4 + [20.0] * 5), n_components=5)
    assert 0.3 < between.margin < 0.97 and between.verdict == "cannot_tell" and "labels" in between.words[0]


def test_few_labels_are_said_to_be_too_few():
    x, y = problem(noise=3.0)
    some = np.where(np.arange(N) < 60, y, -1)
    found = advise(x, variances(0.2, 9.0), labels=some, n_components=3)
    assert found.basis == "spectrum" and found.facts.labeled == 60 and "60 labels are too few" in found.words[0]


def test_unknown_labels_and_names_of_classes():
    x, y = problem(noise=6.0)
    some = np.where(np.arange(N) % 2 == 0, y, -1)
    found = advise(x, variances(0.2, 36.0), labels=some, n_components=3)
    assert found.verdict == "joint_embedding" and found.facts.labeled == N // 2 and found.facts.classes == ("0", "1")
    named = advise(x, variances(0.2, 36.0), labels=np.array(["cat", "dog"])[y], n_components=3)
    assert named.facts.classes == ("cat", "dog")
    assert named.margin == advise(x, variances(0.2, 36.0), labels=y, n_components=3).margin


def test_pca_ahead_of_both_is_said():
    x, y = problem(noise=0.3)
    x[:, :SIGNAL] *= 5
    found = advise(x, variances(5000.0, 0.0001), labels=y, n_components=2)
    at = next(row for row in found.components if row.k == 2)
    assert at.pca > max(at.joint_embedding, at.reconstruction) + 0.1
    assert "removes more information than it adds" in found.words[0]


# --- units and offsets


@pytest.mark.parametrize(("unit", "verdict"), [(1e-7, "joint_embedding"), (1e-3, "joint_embedding"), (1e6, "cannot_tell")])
def test_a_feature_is_not_left_out_for_its_unit(unit, verdict):
    """The signal in other units: joint embedding finds it as before; reconstruction only where it has the most variance."""
    x, y = problem(noise=6.0)
    units = np.where(np.arange(SIGNAL + NOISE) < SIGNAL, unit, 1.0)
    one = advise(x.astype(np.float32), variances(0.2, 36.0), labels=y, n_components=3)
    other = advise((x * units).astype(np.float32), variances(0.2, 36.0) * units**2, labels=y, n_components=3)
    assert one.verdict == "joint_embedding" and other.verdict == verdict
    assert other.facts.directions == one.facts.directions == SIGNAL + NOISE
    for at, there in zip(one.components, other.components, strict=True):
        assert there.joint_embedding == pytest.approx(at.joint_embedding, abs=2 / N)
    assert np.allclose(other.spectrum.omega, one.spectrum.omega, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_a_common_unit_changes_nothing(scale):
    x, y = problem(noise=3.0)
    one = advise(x, variances(0.2, 9.0), labels=y, n_components=3)
    other = advise(x * scale, variances(0.2, 9.0) * scale**2, labels=y, n_components=3)
    assert (one.verdict, one.margin) == (other.verdict, other.margin) and np.allclose(one.interval, other.interval)
    without = [advise(a, b, n_components=3) for a, b in ((x, variances(0.2, 9.0)), (x * scale, variances(0.2, 9.0) * scale**2))]
    assert without[0].verdict == without[1].verdict and math.isclose(without[0].margin, without[1].margin, rel_tol=1e-6)


@pytest.mark.parametrize("augmentation", [variances(0.2, 36.0), isotropic], ids=["given", "sampled"])
def test_an_offset_changes_nothing(augmentation):
    """Such as seconds since 1970, which float32 rounds to minutes."""
    x, y = problem(noise=6.0)
    one, other = (advise(a, augmentation, labels=y, n_components=3, n_draws=8) for a in (x, x + 1.7e9))
    assert one.verdict == other.verdict and other.margin == pytest.approx(one.margin, abs=2 / N)
    assert np.allclose(one.spectrum.omega, other.spectrum.omega, atol=1e-5)


def test_repeated_and_constant_features_add_no_direction():
    x, y = problem(noise=2.0)
    more = np.c_[x, 1e-6 * x[:, :2], x @ np.ones(len(x[0])), np.full(N, 0.1), np.full(N, 1e8), np.zeros(N)]
    for items in (more, more.astype(np.float32), more[:, ::-1]):
        assert advise(items, 0.5, labels=y).facts.directions == SIGNAL + NOISE


# --- numbers against oracles


def test_solutions_are_the_estimators():
    x, _ = problem(noise=3.0)
    x = x.astype(np.float32)
    for augmentation in (None, 0.5, variances(0.3, 4.0), np.diag(variances(0.3, 4.0))):
        solution = collected(x, augmentation).solution()
        close = {"rtol": 2e-4, "atol": 2e-5}
        assert np.allclose(solution.omega, JointEmbedding(augmentation=augmentation).fit(x).spectrum_, **close)
        assert np.allclose(solution.phi, Reconstruction(augmentation=augmentation).fit(x).spectrum_, **close)


def test_sampled_solutions_are_the_estimators():
    x, _ = problem(noise=3.0, n=4000)
    scale = torch.as_tensor(variances(0.3, 4.0)).sqrt()

    def tau(X, generator):
        return 0.9 * X + torch.randn(X.shape, generator=generator, dtype=X.dtype) * scale.to(X.dtype)

    omega = collected(x, tau, n_draws=8).solution().omega.numpy()
    assert np.allclose(omega, JointEmbedding(augmentation=tau, n_draws=8).fit(x).spectrum_, atol=0.02)


def test_overlap_is_the_mean_squared_canonical_correlation():
    x, _ = problem(noise=2.0)
    found = collected(x, variances(0.5, 3.0))
    solution, z = found.solution(), found.x.double()
    codes = [(z @ rows[:4].T).numpy() for rows in (solution.W, solution.E)]
    a, b = CCA(4, max_iter=5000, tol=1e-12).fit_transform(*codes)
    expected = np.mean([np.corrcoef(a[:, i], b[:, i])[0, 1] ** 2 for i in range(4)])
    assert math.isclose(overlap(solution, 4), expected, rel_tol=1e-4)


def test_label_information_is_the_adjusted_sum_of_squared_canonical_correlations():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=6000)
    x = rng.normal(size=(6000, 8)) + 1.5 * rng.normal(size=(4, 8))[y] * ([1.0] * 4 + [0.1] * 4)
    grouped = collected(x, None, y)
    z, group = grouped.x.double().numpy(), grouped.group.numpy()

    def total(codes, y):
        hot = np.eye(4)[y] - np.eye(4)[y].mean(0)
        q = [np.linalg.svd(m - m.mean(0), full_matrices=False)[0] for m in (codes, hot[:, :3])]
        share = codes.shape[1] / (len(codes) - 1)
        return ((np.linalg.svd(q[0].T @ q[1], compute_uv=False) ** 2).sum() - 3 * share) / (1 - share)

    rows = torch.eye(8)[[0, 2, 5]]
    for left in (None, 0, 7):
        found = ClassSums.of(grouped).readable(rows, EVERY if left is None else without(left))
        assert math.isclose(found, total((z @ rows.numpy().T)[group != left], y[group != left]), rel_tol=1e-6)


@pytest.mark.parametrize(("n", "r"), [(480, 256)])
def test_label_information_is_hardly_biased_where_items_are_few(n, r):
    """Sums over all r directions, of which 8 say something, against 200 items a direction; unadjusted ones are far above."""

    def readable(n, r, seed):
        rng = np.random.default_rng(seed)
        means, y = np.random.default_rng(seed + 1000).normal(size=(5, 8)), np.arange(n) % 5
        x = rng.normal(size=(n, r))
        x[:, :8] += means[y]
        grouped = collected(x, None, y, directions=r)
        return ClassSums.of(grouped).readable(torch.eye(grouped.x.shape[1]))

    found, truth = (np.mean([readable(*size, seed) for seed in range(8)]) for size in ((n, r), (4000, 20)))
    assert abs(found - truth) < 0.12 * truth


@pytest.mark.slow
def test_labels_that_say_nothing_are_said_to_be_unreadable():
    spoken = 0
    for seed in range(20):
        x, _ = problem(noise=3.0, n=400, seed=seed)
        y = np.random.default_rng(500 + seed).integers(3, size=400)
        said = advise(x, {"a": lambda X, g: X + torch.randn(X.shape, generator=g), "b": lambda X, g: 0.9 * X}, labels=y).words
        spoken += "contributes most" in said[1] or "PCA, which uses no augmentation" in said[0]
    assert spoken <= 3, spoken


def test_probes_are_least_squares_on_folds_that_they_did_not_see():
    x, y = problem(noise=2.0, n=400)
    grouped = collected(x, variances(0.5, 3.0), np.where(np.arange(400) % 7 == 0, -1, y))
    for weights in (EVERY, half_samples()[3]):
        found = probed(grouped, ClassSums.of(grouped), [2, 4], weights)
        assert np.allclose(found, accuracies(grouped, [2, 4], weights), atol=2 / 340)


def test_cross_validation_never_shows_an_item_to_its_own_probe():
    """Labels that are noise: items that were seen would be predicted better than by chance."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(300, 40)), rng.integers(2, size=300)
    grouped = collected(x, None, y)
    classes = ClassSums.of(grouped)
    assert (probed(grouped, classes, [40]) - 0.5).abs().max() < 4 * math.sqrt(0.25 / 300)
    seen = classes.correct(EVERY, grouped.solution().U, [40], grouped.x, grouped.labels)
    assert seen.double().mean() > 0.62  # the planted error: probed on what it was fitted to


def test_for_a_mean_half_samples_give_its_standard_error():
    groups = np.random.default_rng(0).normal(size=GROUPS)
    weights = np.array([EVERY, *half_samples()])
    values = torch.as_tensor(weights @ groups / weights.sum(1))
    low, high = student(values, float(values[1:].std()))
    assert math.isclose((low + high) / 2, groups.mean())
    half = (high - low) / 2 / stats.t.ppf(0.975, 18)
    assert math.isclose(half, groups.std(ddof=1) / math.sqrt(GROUPS), rel_tol=0.06)


def tied(seed, n=400, d=8, k=3):
    """Equal invariance in all directions, the class in those of least variance: joint embedding keeps it by chance."""
    rng = np.random.default_rng(seed)
    y, signal, scale = rng.integers(2, size=n), np.arange(d) < k, np.linspace(1.0, 1.6, d)
    x = (rng.normal(size=(n, d)) + np.sqrt(0.75) * np.outer(2 * y - 1, signal)) / np.sqrt(1 + 0.75 * signal) * scale
    found = advise(x, 0.3 * scale**2, labels=y, n_components=k, random_state=seed)
    return found.margin, found.interval


@pytest.mark.slow
def test_the_margins_interval_covers_its_expectation_where_spectra_are_tied():
    margins, intervals = zip(*(tied(seed) for seed in range(40)), strict=True)
    assert sum(low <= np.mean(margins) <= high for low, high in intervals) >= 35  # binomial(40, 0.95): fewer have 0.014
    assert np.mean([high - low for low, high in intervals]) < 2 * 2 * 2 * np.std(margins)  # not twice as wide as needed


@pytest.mark.slow
def test_the_overlaps_interval_covers_what_many_items_give():
    augmentation = variances(0.5, 3.0)
    true = overlap(collected(problem(1.5, n=200_000, seed=99)[0], augmentation).solution(), 4)
    covered = 0
    for seed in range(20):
        grouped = collected(problem(1.5, n=2000, seed=seed)[0], augmentation)
        _, _, (low, high), _ = _spectral(Study(grouped, grouped.solution(), 4, None))
        assert low <= overlap(grouped.solution(), 4) <= high
        covered += low <= true <= high
    assert covered >= 15


@pytest.mark.parametrize(("n", "d", "k", "m"), [(400, 60, 4, None), (1000, 100, 16, 4)])
def test_draws_that_are_few_are_no_verdict(n, d, k, m):
    """Sampled noise that is alike in all directions: exactly a tie, in which joint embedding overfits the draws."""
    rng = np.random.default_rng(1)
    y = rng.integers(2, size=n)
    x = rng.normal(size=(n, d)) * np.geomspace(3, 0.5, d) + 2 * y[:, None] * (np.arange(d) < 4)
    with_labels = advise(x, isotropic, labels=y, n_components=k, n_draws=m)
    assert with_labels.verdict == "cannot_tell", (with_labels.margin, with_labels.interval)
    without = advise(x, isotropic, n_components=k, n_draws=m)
    assert without.verdict == "cannot_tell" and without.interval[1] > 0.9


def test_unknown_labels_of_any_kind():
    x, y = problem(noise=6.0)
    gone = np.arange(N) % 2 == 1
    expected = advise(x, variances(0.2, 36.0), labels=np.where(gone, -1, y), n_components=3).to_dict()
    for labels in (np.where(gone, np.nan, y), np.array([None if g else int(v) for g, v in zip(gone, y, strict=True)])):
        found = advise(x, variances(0.2, 36.0), labels=labels, n_components=3).to_dict()
        assert found["components"] == expected["components"]


# --- operations, sizes, reading


def test_each_operation_is_left_out_in_turn():
    x, y = problem(noise=6.0)

    def on(part, deviation):
        scale = torch.tensor([deviation if i in part else 0.0 for i in range(SIGNAL + NOISE)])
        return lambda X, g: X + torch.randn(X.shape, generator=g, dtype=X.dtype) * scale.to(X.dtype)

    parts = {
        "noise": on(range(SIGNAL, SIGNAL + NOISE), 6.0),
        "signal": on(range(SIGNAL), 0.3),
        "idle": lambda X, g: X,
    }
    found = advise(x, parts, labels=y, n_components=3)
    rows = {row.operation: row for row in found.augmentations}
    assert set(rows) == {"all", "noise", "signal"}  # without what does nothing, nothing changes
    assert rows["all"].alignment > 0.9 and rows["noise"].alignment < 0.2
    assert rows["noise"].unchanged < 0.3 and rows["all"].unchanged == pytest.approx(1)
    assert rows["noise"].strength < 0.1 < rows["all"].strength
    assert "'noise' contributes most" in found.words[1]
    assert "'noise' matters most" in advise(x, parts, n_components=3).words[1]


@pytest.mark.float32
def test_views_have_their_operations_left_out():
    views = ImageViews(ViewConfig(blur=0.0), 8)
    assert [name for name, _ in left_out(views)] == ["crop", "flip", "jitter", "grayscale"]
    assert dict(left_out(views))["crop"].config == ViewConfig(blur=0.0, crop=(1.0, 1.0))
    vectors = VectorViews(ViewConfig(mask=0.0), torch.zeros(4), torch.ones(4))
    assert [name for name, _ in left_out(vectors)] == ["noise", "scale"]
    images = np.random.default_rng(0).integers(0, 256, (200, 1, 8, 8)).astype(np.uint8)
    found = advise(images, views, labels=np.arange(200) % 2, n_draws=4)
    assert [row.operation for row in found.augmentations] == ["all", "crop", "flip", "jitter"]  # gray images stay gray


def test_many_features_are_reduced_and_it_is_said():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 20)) * 5 @ rng.normal(size=(20, 300)) + rng.normal(size=(800, 300))
    found = advise(x, directions=20, n_components=4)
    assert found.facts.directions == 20 and 0.9 < found.facts.variance_kept < 1
    assert "20 directions of most variance (of 300)" in found.words[-1]
    basis = collected(x, directions=20).basis
    assert np.allclose(basis.directions.T @ basis.directions, np.eye(20), atol=1e-5)
    top = np.linalg.svd(x - x.mean(0), full_matrices=False)
    assert basis.kept == pytest.approx((top[1][:20] ** 2).sum() / (top[1] ** 2).sum(), rel=1e-3)


def test_the_same_seed_says_the_same():
    x, y = problem(noise=3.0)

    def tau(X, generator):
        return X + torch.randn(X.shape, generator=generator, dtype=X.dtype)

    one, again, other = (advise(x[:300], tau, labels=y[:300], n_draws=4, random_state=seed).to_dict() for seed in (0, 0, 1))
    assert one == again and one["spectrum"] != other["spectrum"]
    assert json.loads(json.dumps(one))["verdict"] == one["verdict"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: advise(x[:50]), "at least 100 items"),
        (lambda x, y: advise(x[:, 0]), "shape"),
        (lambda x, y: advise(x, labels=y[:-1]), "one label for each of 1500"),
        (lambda x, y: advise(x, lambda X, g: X), "tie"),
        (lambda x, y: advise(x, lambda X, g: X + 1e-7 * torch.randn(X.shape, generator=g)), "tie"),
        (lambda x, y: advise(x, 0.0), "tie"),
        (lambda x, y: advise(x, lambda X, g: X[:, :3]), "features"),
        (lambda x, y: advise(x, np.ones(5)), "covariance"),
        (lambda x, y: advise(x, n_components=12), "n_components"),
        (lambda x, y: advise(x, n_components=0), "n_components"),
        (lambda x, y: advise(x, n_draws=3), "n_draws"),
        (lambda x, y: advise(x, n_components=2.5), "n_components"),
        (lambda x, y: advise(x, labels=x[:, 0]), "classes"),
        (lambda x, y: advise(x, "noise"), "augmentation as a function"),
        (lambda x, y: advise(x, device="cuda:99" if torch.cuda.is_available() else "cuda"), "CUDA|device"),
        (lambda x, y: advise(x[:, :1]), "at least 2"),
        (lambda x, y: advise(x, directions=1), "directions"),
        (lambda x, y: advise(np.ones((200, 3))), "alike"),
        (lambda x, y: advise(np.where(np.arange(N)[:, None] == 7, np.nan, x)), "NaN"),
        (lambda x, y: advise(PairItems(ArrayItems(x), ArrayItems(x))), "pairs"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(*problem(noise=2.0))


@pytest.mark.slow
def test_verdicts_agree_with_held_out_items():
    """On controlled problems the advice is what other items of the same kind say, wherever those are clear."""
    agreed = decided = 0
    for noise, aligned, seed in itertools.product((0.3, 2.0, 6.0), (0.001, 3.0, 36.0), range(4)):
        x, y = problem(noise, seed=seed)
        t, ty = problem(noise, n=4000, seed=100 + seed)
        augmentation = variances(1.0, aligned)
        verdict = advise(x, augmentation, labels=y, n_components=3).verdict
        scores = []
        for kind in (JointEmbedding, Reconstruction):
            model = kind(3, augmentation=augmentation).fit(x)
            probe = LinearRegression().fit(model.transform(x), np.eye(2)[y])
            scores.append((probe.predict(model.transform(t)).argmax(1) == ty).mean())
        if verdict != "cannot_tell" and abs(scores[0] - scores[1]) > 0.01:
            decided += 1
            agreed += (verdict == "joint_embedding") == (scores[0] > scores[1])
    assert decided >= 6 and agreed == decided
