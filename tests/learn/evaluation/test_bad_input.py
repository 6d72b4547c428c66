"""Bad input beyond the arguments of `tests/fuzz/functions.py` is a ValueError that names what is wrong."""

import pytest
import torch
from torch import nn

from vergence.data.items import ArrayItems
from vergence.learn.evaluation import accuracy, anomaly, features, uncertainty

X, Y = torch.randn(10, 2), torch.arange(10) % 2
NAN = torch.full((10, 2), torch.nan)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: accuracy.knn_accuracy(X, Y, X, Y, ks=(0, 5)), "k >= 1, found 0"),
        (lambda: anomaly.detection(X[:, 0], torch.ones(10).bool()), "found 10 anomalies of 10"),
        (lambda: anomaly.knn_distance(X, X, k=0), "found 0"),
        (lambda: features.collect_features(nn.Linear(3, 2), ArrayItems(torch.zeros(0, 3))), "none that can be read"),
        (lambda: uncertainty.neighbor_is_right(X[:1], [0]), "at least 2 items"),
        (lambda: uncertainty.neighbor_is_right(X, Y[:9]), "one label each"),
        (lambda: uncertainty.crop_spread(torch.ones(1, 2, 3)), "at least 2 views"),
        (lambda: uncertainty.equalizer(X[:1]), "at least 2 embeddings, found 1"),
        (lambda: uncertainty.neighbor_spread(X[:1], X), "at least 2 neighbors"),
    ],
)
def test_bad_input_is_reported(call, words):
    with pytest.raises(ValueError, match=words):
        call()
