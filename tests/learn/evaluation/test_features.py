"""Features of data: embeddings, after which each part of the network has its mode again, and principal components."""

import pytest
import torch
from torch import nn

from vergence.data.items import ArrayItems
from vergence.learn.evaluation.accuracy import knn_accuracy
from vergence.learn.evaluation.anomaly import mahalanobis
from vergence.learn.evaluation.collapse import effective_rank
from vergence.learn.evaluation.features import collect_features, pca


def test_each_part_of_a_network_has_its_own_mode_again():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2).eval(), nn.Dropout()).float()
    items = ArrayItems(torch.randn(5, 3))
    z, index = collect_features(net, items)
    assert [part.training for part in net] == [True, False, True] and net.training
    torch.testing.assert_close(z, net.eval()(items.array.float()).detach())
    assert index.tolist() == list(range(5))


def test_modes_are_as_before_after_an_error():
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2).eval())
    with pytest.raises(RuntimeError):
        collect_features(net, ArrayItems(torch.randn(5, 3)))
    assert [part.training for part in net] == [True, False]


def test_pca_is_the_eigenvectors_projection():
    train, test = torch.randn(300, 10) @ torch.randn(10, 10) + 4, torch.randn(20, 10)
    a, b = pca(train, test, 10)
    mean = train.mean(0)
    vectors = torch.linalg.eigh(torch.cov(train.T))[1].flip(1)
    for found, x in ((a, train), (b, test)):
        torch.testing.assert_close(found.abs(), ((x - mean) @ vectors).abs(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(torch.cdist(b, b), torch.cdist(test, test))  # all directions kept: a rotation


def test_pca_never_sees_the_test_part():
    train, test = torch.randn(60, 5), torch.randn(8, 5)
    a, b = pca(train, test, 3)
    a2, b2 = pca(train, test[:2] * 1e3, 3)
    assert torch.equal(a, a2)
    assert not torch.allclose(b[:2], b2)
    torch.testing.assert_close(a.mean(0), torch.zeros(3), atol=1e-10, rtol=0)


@pytest.mark.parametrize(("n", "d", "dim", "kept"), [(50, 6, 256, 6), (4, 20, 8, 4), (1, 3, 2, 1), (30, 5, 2, 2)])
def test_pca_clips_its_width(n, d, dim, kept):
    a, b = pca(torch.randn(n, d), torch.randn(3, d), dim)
    assert a.shape == (n, kept) and b.shape == (3, kept)
    assert a.isfinite().all() and b.isfinite().all()


def test_pca_of_constants_and_seeds():
    a, b = pca(torch.ones(10, 4), torch.ones(2, 4), 2)
    assert torch.equal(a, torch.zeros(10, 2)) and torch.equal(b, torch.zeros(2, 2))
    x = torch.randn(200, 60)
    assert torch.equal(pca(x, x, 5, seed=1)[0], pca(x, x, 5, seed=1)[0])


def test_whole_numbers_are_features():
    x = torch.randint(0, 9, (40, 5), generator=torch.Generator().manual_seed(0))
    for a, b in zip(pca(x, x[:3], dim=2), pca(x.float(), x[:3].float(), dim=2), strict=True):
        torch.testing.assert_close(a, b)
    assert effective_rank(x) == effective_rank(x.float())
    torch.testing.assert_close(mahalanobis(x.float(), x[:3]), mahalanobis(x.float(), x[:3].float()))
    assert knn_accuracy(x, x[:, 0], x, x[:, 0], ks=(1, 1))[1]["majority"] <= 1.0
