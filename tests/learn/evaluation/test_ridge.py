"""The ridge probe next to scikit-learn's solution at one penalty."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

from vergence.learn.evaluation.accuracy import linear_probe, ridge_probe


def test_the_ridge_probe_is_scikit_learns_and_near_the_logistic_one():
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=600)
    x = rng.normal(size=(600, 10)) + 1.5 * np.eye(10)[y]
    parts = [torch.from_numpy(part) for part in (x[:400], y[:400], x[400:], y[400:])]
    mean, sd = x[:400].mean(0), x[:400].std(0)
    model = RidgeClassifier(alpha=0.01 * 10).fit((x[:400] - mean) / sd, y[:400])
    expected = model.score((x[400:] - mean) / sd, y[400:])
    assert ridge_probe(*parts, penalty=0.01)["accuracy"] == pytest.approx(expected)
    wide = [torch.cat([parts[0], torch.zeros(400, 500)], 1), parts[1], torch.cat([parts[2], torch.zeros(200, 500)], 1), parts[3]]
    assert ridge_probe(*wide, penalty=0.01 * 10 / 510) == ridge_probe(*parts, penalty=0.01)  # more features than items
    assert abs(ridge_probe(*parts)["accuracy"] - linear_probe(*parts)["accuracy"]) < 0.05
    with pytest.raises(ValueError, match="penalty"):
        ridge_probe(*parts, penalty=0.0)
    with pytest.raises(ValueError, match="at least 2 classes"):
        ridge_probe(parts[0], torch.zeros(400, dtype=torch.long), parts[2], parts[3])
