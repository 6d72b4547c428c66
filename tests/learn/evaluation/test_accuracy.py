"""Accuracies by neighbors and by linear probes: references, libraries, limits and symmetries."""

import math
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from tests.refusals import refuses

from vergence.learn.evaluation import accuracy
from vergence.learn.evaluation.accuracy import knn_accuracy, linear_probe, ridge_probe
from vergence.learn.evaluation.anomaly import knn_distance
from vergence.utils.neighbors import nearest


def blobs(n, d=6, classes=4, size=1.5, noise=None):
    """Classes around unit vectors, with noise of one strength, or of another in each feature."""
    y = torch.randint(0, classes, (n,))
    shift = 0 if noise is None else 3
    noise = torch.ones(d) if noise is None else noise * torch.arange(1, d + 1)
    return torch.eye(d)[y] * size + torch.randn(n, d) * noise + shift, y


def slow_accuracy(train, y, test, truth, k, temperature, weighted):
    right = 0
    for x, t in zip(test, truth.tolist(), strict=True):
        cosines = (((torch.dot(x, z) / (x.norm() * z.norm())).item(), c) for z, c in zip(train, y.tolist(), strict=True))
        near = sorted(cosines, reverse=True)[:k]
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
        for how, share in votes.items():
            assert share == slow_accuracy(train, y, test, truth, k, 0.3, how == "weighted"), (k, how)
    assert found[9]["majority"] != found[9]["weighted"]  # the case tells the votes apart


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


def test_limits_of_neighbors():
    train, y = blobs(30)
    assert knn_accuracy(train, y, train, y, ks=(1,))[1] == {"majority": 1.0, "weighted": 1.0}
    assert list(knn_accuracy(train, y, train, y)) == [1, 5, 20, 30]
    assert knn_accuracy(train, y, train, y, ks=(31, 200)) == {}
    most = y.bincount().max().item() / 30
    assert knn_accuracy(torch.ones(30, 2), y, torch.ones(30, 2), y, ks=(30,))[30]["majority"] == pytest.approx(most)
    assert nearest(train, train, 1)[1].shape == (30, 1)


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


def wide_blobs(n, noise=1.0):
    return blobs(n, 8, 3, size=2, noise=noise)


def test_the_objective_is_the_documented_one():
    (train, y), (test, truth) = wide_blobs(200), wide_blobs(2000)
    x, x_test = accuracy._standardize(train, test)
    W, b = torch.zeros(8, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    opt = torch.optim.LBFGS([W, b], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def loss():
        opt.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ W + b, y, reduction="sum") + 30 / 2 * W.square().sum()
        value.backward()
        return value

    opt.step(loss)
    expected = ((x_test @ W + b).argmax(1) == truth).double().mean().item()
    assert linear_probe(train, y, test, truth)["accuracy"] == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_constant_in_training_stay_zero(dtype):
    (train, y), (test, truth) = wide_blobs(200), wide_blobs(100)
    plain = linear_probe(train.to(dtype), y, test.to(dtype), truth)
    constant = torch.full((200, 2), 0.1)
    wide, wide_test = torch.cat([train, constant], 1).to(dtype), torch.cat([test, torch.randn(100, 2) * 1e6], 1).to(dtype)
    assert torch.equal(accuracy._standardize(wide, wide_test)[1][:, -2:], torch.zeros(100, 2, dtype=dtype))
    assert linear_probe(wide, y, wide_test, truth) == plain


def test_equal_numbers_are_constant_whatever_their_deviation_rounds_to():
    equal = torch.full((200, 1), 1 / 3, dtype=torch.float32)
    assert equal.std(0, correction=0).item() > 0
    for part in accuracy._standardize(equal, equal + 1):
        assert torch.equal(part, torch.zeros_like(part))


def test_the_probe_is_invariant():
    (train, y), (test, truth) = wide_blobs(300), wide_blobs(1000)
    found = linear_probe(train, y, test, truth)["accuracy"]
    scale, shift, order = torch.rand(8) * 9 + 0.1, torch.randn(8) * 10, torch.randperm(300)
    assert linear_probe(train * scale + shift, y, test * scale + shift, truth)["accuracy"] == found
    assert linear_probe(train[order], y[order], test, truth)["accuracy"] == pytest.approx(found, abs=0.003)
    names = torch.tensor([-5, 10**9, 3])
    assert linear_probe(train, names[y], test, names[truth])["accuracy"] == pytest.approx(found, abs=0.003)


def test_limits_of_the_probe():
    train, y = wide_blobs(300, noise=0.0)
    assert linear_probe(train, y, train, y, l2=1e-3)["accuracy"] == 1
    assert linear_probe(train, y, train, torch.full_like(y, 8))["accuracy"] == 0  # a class that training lacks
    most = y.bincount().max().item() / 300
    assert linear_probe(torch.ones(300, 4), y, torch.ones(300, 4), y)["accuracy"] == pytest.approx(most)
    noise, labels = torch.randn(4000, 3), torch.randint(0, 2, (4000,))
    found = linear_probe(noise[:2000], labels[:2000], noise[2000:], labels[2000:])["accuracy"]
    assert abs(found - 0.5) / (0.25 / 2000) ** 0.5 < 4.5  # nothing to read: chance
    wide = torch.randn(20, 100)
    assert linear_probe(wide, labels[:20], wide, labels[:20])["train_accuracy"] == 1  # N < D


def test_the_penalty_spans_memory_to_prior():
    train, y = torch.randn(40, 60), torch.arange(40) % 5 // 2  # N < D: any labels can be cut; classes of 16, 16, 8
    y[0] = 1  # 15, 17, 8: one class is the most frequent
    assert linear_probe(train, y, train, y, l2=1e-3)["train_accuracy"] == 1
    assert linear_probe(train, y, train, y, l2=1e7)["train_accuracy"] == 17 / 40  # weights 0, the intercept free


def test_not_converged_is_reported_and_other_warnings_pass():
    (train, y), (test, truth) = wide_blobs(300), wide_blobs(100)
    found = linear_probe(train, y, test, truth, max_iter=1)
    assert found["converged"] is False and found["iterations"] == 1

    class Loud:
        def fit(self, x, y):
            warnings.warn("something else", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="something else"):
        assert accuracy._fit(Loud(), None, None)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int64])
def test_features_of_other_types_are_read_as_float32(kind):
    x, y = torch.randint(0, 9, (60, 3)), torch.arange(60) % 2
    assert linear_probe(x.to(kind), y, x.to(kind), y) == linear_probe(x.float(), y, x.float(), y)


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
    refuses("penalty", ridge_probe, *parts, penalty=0.0)
    refuses("at least 2 classes", ridge_probe, parts[0], torch.zeros(400, dtype=torch.long), parts[2], parts[3])
