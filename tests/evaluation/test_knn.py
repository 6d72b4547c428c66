import math
from collections import Counter

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from vergence.evaluation.anomaly import knn_distance
from vergence.evaluation.knn import knn_accuracy
from vergence.utils.neighbors import nearest


def blobs(n, d=6, classes=4):
    y = torch.randint(0, classes, (n,))
    return torch.eye(d)[y] * 1.5 + torch.randn(n, d), y


def slow_accuracy(train, y, test, truth, k, temperature, weighted):
    right = 0
    for x, t in zip(test, truth.tolist(), strict=True):
        near = sorted(((torch.dot(x, z) / (x.norm() * z.norm())).item(), c) for z, c in zip(train, y.tolist(), strict=True))[
            ::-1
        ][:k]
        votes = Counter()
        for s, c in near:
            votes[c] += math.exp(s / temperature) if weighted else 1
        right += next(c for _, c in near if votes[c] == max(votes.values())) == t
    return right / len(test)


@pytest.mark.parametrize("block", [3, 2048])
def test_both_votes_are_the_loop(block):
    (train, y), (test, truth) = blobs(60), blobs(40)
    found = knn_accuracy(train, y, test, truth, ks=(1, 2, 4, 9, 60), temperature=0.3, block=block)
    for k, votes in found.items():
        for how, accuracy in votes.items():
            assert accuracy == slow_accuracy(train, y, test, truth, k, 0.3, how == "weighted"), (k, how)
    assert found[9]["majority"] != found[9]["weighted"]  # the case tells the votes apart


@pytest.mark.parametrize("k", [1, 5, 21])
def test_scikit_learn_agrees_with_two_classes_and_odd_k(k):
    (train, y), (test, truth) = blobs(300, classes=2), blobs(200, classes=2)
    found = knn_accuracy(train, y, test, truth, ks=(k,), temperature=0.07)[k]
    for how, weights in (
        ("majority", "uniform"),
        ("weighted", lambda distance: torch.tensor(1 - distance).div(0.07).exp().numpy()),
    ):
        model = KNeighborsClassifier(k, metric="cosine", weights=weights, algorithm="brute").fit(train.numpy(), y.numpy())
        assert found[how] == model.score(test.numpy(), truth.numpy())


def directions(*degrees):
    angle = torch.tensor(degrees).deg2rad()
    return torch.stack([angle.cos(), angle.sin()], 1)


@pytest.mark.parametrize("labels", [(5, 2, 2, 5), (2, 5, 5, 2)])
def test_a_tie_goes_to_the_nearest_of_the_tied(labels):
    train, y = directions(1.0, 2.0, 3.0, 4.0), torch.tensor(labels)
    assert knn_accuracy(train, y, directions(0.0), y[:1], ks=(2, 4)) == {
        2: {"majority": 1.0, "weighted": 1.0},
        4: {"majority": 1.0, "weighted": 0.0},  # cos x = 1 - x^2 / 2: 1 and 4 degrees weigh less than 2 and 3
    }
    three = torch.tensor([9, labels[0], labels[1], labels[1], labels[0]])  # nearest is out of the race: the tie is between others
    found = knn_accuracy(directions(1.0, 2.0, 3.0, 4.0, 5.0), three, directions(0.0), three[1:2], ks=(5,))
    assert found[5]["majority"] == 1


def test_weights_follow_the_temperature():
    train, y = directions(5.0, 40.0, 41.0), torch.tensor([0, 1, 1])
    cold, hot = (
        knn_accuracy(train, y, directions(0.0), torch.tensor([0]), ks=(3,), temperature=t)[3]["weighted"] for t in (0.07, 10.0)
    )
    assert (cold, hot) == (1, 0)
    assert knn_accuracy(train, y, directions(0.0), torch.tensor([0]), ks=(3,), temperature=1e-5)[3]["weighted"] == 1
    near = directions(0.5, 1.0, 1.2)  # at T = 0.001 the two weigh 0.89 + 0.83 of the one, and exp(cosine / T) overflows
    assert math.isinf(torch.tensor(1 / 0.001).exp().item())
    assert knn_accuracy(near, y, directions(0.0), torch.tensor([1]), ks=(3,), temperature=0.001)[3]["weighted"] == 1


def test_labels_may_be_any_integers_and_unseen_classes_are_wrong():
    (train, y), (test, truth) = blobs(80), blobs(50)
    plain = knn_accuracy(train, y, test, truth, ks=(1, 7))
    names = torch.tensor([10**12, -3, 0, 77])
    assert knn_accuracy(train, names[y], test, names[truth], ks=(1, 7)) == plain
    assert knn_accuracy(train, y, test, torch.full_like(truth, 99), ks=(7,)) == {7: {"majority": 0.0, "weighted": 0.0}}
    shifted = knn_accuracy(train, y, test, (truth + 1) % 4, ks=(7,))
    assert shifted[7]["majority"] < plain[7]["majority"] / 2  # planted: labels that are off by one


def test_invariances():
    (train, y), (test, truth) = blobs(80), blobs(50)
    found = knn_accuracy(train, y, test, truth, ks=(1, 6, 20))
    turn, order, back = torch.linalg.qr(torch.randn(6, 6))[0], torch.randperm(80), torch.randperm(50)
    assert knn_accuracy(train @ turn, y, test @ turn, truth, ks=(1, 6, 20)) == found
    assert knn_accuracy(train[order], y[order], test[back], truth[back], ks=(1, 6, 20)) == found
    assert knn_accuracy(train * torch.rand(80, 1).add(0.1), y, test * 7, truth, ks=(1, 6, 20)) == found


def test_limits():
    train, y = blobs(30)
    assert knn_accuracy(train, y, train, y, ks=(1,))[1] == {"majority": 1.0, "weighted": 1.0}
    assert list(knn_accuracy(train, y, train, y)) == [1, 5, 20, 30]
    assert knn_accuracy(train, y, train, y, ks=(31, 200)) == {}
    most = y.bincount().max().item() / 30
    assert knn_accuracy(torch.ones(30, 2), y, torch.ones(30, 2), y, ks=(30,))[30]["majority"] == pytest.approx(most)
    assert nearest(train, train, 1)[1].shape == (30, 1)


def test_refusals():
    train, y = blobs(10)
    with pytest.raises(ValueError, match=r"test: expected labels of shape \(10,\), found \(9,\)"):
        knn_accuracy(train, y, train, y[:9])
    with pytest.raises(ValueError, match=r"train: expected labels"):
        knn_accuracy(train, y[:, None], train, y)
    with pytest.raises(ValueError, match="temperature > 0, found 0"):
        knn_accuracy(train, y, train, y, temperature=0)
    for k in (0, -1):
        with pytest.raises(ValueError, match=f"k >= 1, found {k}"):
            knn_accuracy(train, y, train, y, ks=(k, 5))
    with pytest.raises(ValueError, match="NaN or infinity in 10 of 10"):
        knn_accuracy(train * math.nan, y, train, y)


def tight(n, spread, clusters=1, d=16):
    """Returns unit-size clusters of a small spread in float32, with classes along their first direction."""
    g = torch.Generator().manual_seed(n)
    z = torch.randn(n, d, generator=g, dtype=torch.float64)
    centers = torch.randn(clusters, d, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return (centers[torch.arange(n) % clusters] + spread * z).float(), (z[:, 1] > 0).long()


@pytest.mark.float32
@pytest.mark.parametrize("clusters", [1, 5])
@pytest.mark.parametrize("spread", [1e-3, 1e-4, 1e-5])
def test_tight_clusters_in_float32_have_the_neighbors_of_float64(spread, clusters):
    (train, y), (test, truth) = tight(400, spread, clusters), tight(101, spread, clusters)
    exact = nearest(train.double(), test.double(), 20)
    similarity, index = nearest(train, test, 20)
    assert similarity.dtype == torch.float32
    assert (index == exact[1]).double().mean() > 0.999
    found, expected = (knn_accuracy(a, y, b, truth, ks=(5, 20)) for a, b in ((train, test), (train.double(), test.double())))
    assert all(found[k]["majority"] == expected[k]["majority"] for k in (5, 20))
    distance = knn_distance(train, test, k=5)
    assert distance.dtype == torch.float32
    torch.testing.assert_close(distance.double(), knn_distance(train.double(), test.double(), k=5), rtol=1e-4, atol=0)


@pytest.mark.float32
def test_ordinary_features_are_searched_in_their_own_precision():
    """The result of float32 to the bit, as products of normalized features give it."""
    train, test = torch.randn(500, 16), torch.randn(64, 16)
    unit, query = (torch.nn.functional.normalize(z, dim=1) for z in (train, test))
    similarity, index = (query @ unit.T).topk(20)
    found = nearest(train, test, 20)
    assert torch.equal(found[0], similarity) and torch.equal(found[1], index)
    assert torch.equal(knn_distance(train, test, k=20), 1 - similarity.mean(1)) or torch.equal(
        knn_distance(train, test, k=20), (1 - similarity).mean(1)
    )
