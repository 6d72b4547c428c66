"""Bad input beyond the arguments of `tests/fuzz/functions.py` is a ValueError that names what is wrong."""

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

from vergence.data.items import ArrayItems
from vergence.learn.evaluation import accuracy, anomaly, features, predictive, uncertainty

X, Y = torch.randn(10, 2), torch.arange(10) % 2
NAN = torch.full((10, 2), torch.nan)
P = Independent(Normal(torch.zeros(2, 3), torch.ones(2, 3)), 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: accuracy.knn_accuracy(X, Y, X, Y, ks=(0, 5)), "k >= 1, found 0"),
        (lambda: anomaly.detection(X[:, 0], torch.ones(10).bool()), "found 10 anomalies of 10"),
        (lambda: anomaly.knn_distance(X, X, k=0), "found 0"),
        (lambda: features.collect_features(nn.Linear(3, 2), ArrayItems(torch.zeros(0, 3))), "none that can be read"),
        (lambda: predictive.pit_calibration(torch.tensor([0.5, 1.5])), r"in \[0, 1\]"),
        (lambda: predictive.pit_calibration(torch.tensor([0.5, torch.nan])), r"in \[0, 1\]"),
        (lambda: predictive.energy_score(torch.ones(1, 2, 3), torch.ones(2, 3)), "at least 2 samples"),
        (lambda: predictive.energy_score(torch.ones(4, 2, 3), torch.ones(2, 4)), "samples"),
        (lambda: predictive.evidence(torch.ones(1, 3)), "samples"),
        (lambda: predictive.density_level(P, torch.ones(2, 3), 0), "samples"),
        (lambda: uncertainty.neighbor_is_right(X[:1], [0]), "at least 2 items"),
        (lambda: uncertainty.neighbor_is_right(X, Y[:9]), "one label each"),
        (lambda: uncertainty.ranking([0.1, torch.nan], [True, False]), "NaN or infinity in 1 of 2"),
        (lambda: uncertainty.ranking([0.1, 0.2], [True, True]), "found 0 wrong ones of 2"),
        (lambda: uncertainty.risk_coverage([], []), "of one shape"),
        (lambda: uncertainty.crop_spread(torch.ones(1, 2, 3)), "at least 2 views"),
        (lambda: uncertainty.equalizer(X[:1]), "at least 2 embeddings, found 1"),
        (lambda: uncertainty.neighbor_spread(X[:1], X), "at least 2 neighbors"),
    ],
)
def test_bad_input_is_reported(call, words):
    with pytest.raises(ValueError, match=words):
        call()
