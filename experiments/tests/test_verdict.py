"""The verdict of experiments/advice: right where the answer is known, silent where there is none, on probes that are honest."""

import math

import numpy as np
import pytest
import torch
from experiments.advice import verdict
from experiments.advice.directions import GROUPS, collect
from experiments.advice.verdict import EVERY, ClassSums, half_samples, judged, probed, student
from sklearn.linear_model import LinearRegression

from vergence.linear.reading import as_items


def problem(noise, n=900):
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=n)
    x = rng.normal(size=(n, 12)) * ([1.0] * 3 + [noise] * 9)
    x[:, :3] += 2.0 * y[:, None]
    return torch.from_numpy(x), torch.from_numpy(y)


def sampled(theta, aligned):
    scale = torch.tensor([theta] * 3 + [aligned] * 9).sqrt()
    return lambda X, g: X + torch.randn(X.shape, generator=g, dtype=X.dtype) * scale.to(X.dtype)


@pytest.mark.parametrize(
    ("noise", "theta", "aligned", "labeled", "answer"),
    [
        (6.0, 0.2, 36.0, True, "joint_embedding"),
        (0.3, 5.0, 0.0001, True, "reconstruction"),
        (0.5, 2.0, 2.0, True, "cannot_tell"),
        (6.0, 0.2, 36.0, False, "joint_embedding"),
    ],
)
def test_verdicts_where_the_answer_is_known(noise, theta, aligned, labeled, answer):
    x, y = problem(noise)
    Q = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)).double())[0]
    for features in (None, lambda X: X @ Q):  # behind a rotation all is the same
        found = judged(x, sampled(theta, aligned), y if labeled else None, k=3, n_draws=8, features=features)
        assert found.verdict == answer and found.interval[0] <= found.margin <= found.interval[1]


def test_probes_are_least_squares_on_folds_that_they_did_not_see():
    x, y = problem(2.0, n=400)
    y = torch.where(torch.arange(400) % 7 == 0, -1, y)
    grouped = collect(as_items(x), np.array([0.5] * 3 + [3.0] * 9), 64, 0, 0, "cpu")
    z, group = grouped.x.numpy(), grouped.group.numpy()
    right = [[], [], []]
    for f in range(verdict.FOLDS):
        fold = np.isin(group, range(f, GROUPS, verdict.FOLDS))
        solution = grouped.solution([float(g % verdict.FOLDS != f) for g in range(GROUPS)])
        train, test = ~fold & (y >= 0).numpy(), fold & (y >= 0).numpy()
        for found, rows in zip(right, (solution.W, verdict.reconstructed(solution), solution.U), strict=True):
            codes = z @ rows[:4].numpy().T
            model = LinearRegression().fit(codes[train], np.eye(2)[y[train]])
            found.extend(model.predict(codes[test]).argmax(1) == y[test].numpy())
    assert np.allclose(probed(grouped, ClassSums.of(grouped, y), y, [4])[:, 0], np.mean(right, 1), atol=2 / 340)


def test_for_a_mean_half_samples_give_its_standard_error():
    groups = np.random.default_rng(0).normal(size=GROUPS)
    weights = np.array([EVERY, *half_samples()])
    values = torch.as_tensor(weights @ groups / weights.sum(1))
    low, high = student(values, float(values[1:].std()))
    assert math.isclose((low + high) / 2, groups.mean())
    assert math.isclose((high - low) / 2 / 2.101, groups.std(ddof=1) / math.sqrt(GROUPS), rel_tol=0.06)
