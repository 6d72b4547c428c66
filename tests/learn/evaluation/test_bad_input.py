"""Bad input of every measure is a ValueError that names what is wrong."""

import pytest
import torch
from torch import nn

from vergence.data.items import ArrayItems
from vergence.learn.evaluation import accuracy, anomaly, collapse, features, judgment, uncertainty

X, Y = torch.randn(10, 2), torch.arange(10) % 2
NAN = torch.full((10, 2), torch.nan)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: accuracy.knn_accuracy(X, Y, X, Y[:9]), r"test: labels of shape \(10,\), found \(9,\)"),
        (lambda: accuracy.knn_accuracy(X, Y, X, Y, temperature=0), "temperature"),
        (lambda: accuracy.knn_accuracy(X, Y, X, Y, ks=(0, 5)), "k >= 1, found 0"),
        (lambda: accuracy.knn_accuracy(NAN, Y, X, Y), "NaN or infinity in 10 of 10"),
        (lambda: accuracy.linear_probe(X, 0 * Y, X, Y), "at least 2 classes in training, found 1"),
        (lambda: accuracy.linear_probe(X, Y, X, Y, l2=0), "l2"),
        (lambda: anomaly.detection(X[:, 0], torch.ones(10).bool()), "found 10 anomalies of 10"),
        (lambda: anomaly.detection(NAN[:, 0], Y.bool()), "NaN or infinity in 10 of 10"),
        (lambda: anomaly.detection(X[:, 0], Y[:9].bool()), r"found \(10,\) and \(9,\)"),
        (lambda: anomaly.knn_distance(X, X, k=0), "found 0"),
        (lambda: anomaly.mahalanobis(X[:1], X), "at least 2 items"),
        (lambda: anomaly.mahalanobis(X, X[:, :1]), "train 2, test 1"),
        (lambda: collapse.collapse(NAN), "NaN or infinity in 10 of 10"),
        (lambda: features.collect_features(nn.Linear(3, 2), ArrayItems(torch.zeros(0, 3))), "none that can be read"),
        (lambda: features.pixels(torch.ones(3)), r"found \(3,\)"),
        (lambda: features.pca(X, X, 0), "dim"),
        (lambda: judgment.accuracy_error(1.1, 3), "accuracy"),
        (lambda: judgment.auroc_error(0.5, 3, 2.5), "n_others"),
        (lambda: accuracy.rank_error(X, X[:9]), "two views"),
        (lambda: accuracy.rank_error(X[:1], X[:1]), "two views"),
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
