import pytest
import torch
from sklearn.covariance import LedoitWolf

from vergence.learn.evaluation.anomaly import RIDGE, detection, knn_distance, mahalanobis


def slow_detection(scores, anomalous):
    strange = [s for s, a in zip(scores, anomalous, strict=True) if a]
    normal = [s for s, a in zip(scores, anomalous, strict=True) if not a]
    wins = sum((s > n) + 0.5 * (s == n) for s in strange for n in normal)
    thresholds = sorted(set(scores), reverse=True)
    recall = [sum(s >= t for s in strange) / len(strange) for t in thresholds]
    precision = [sum(s >= t for s in strange) / sum(s >= t for s in scores) for t in thresholds]
    steps = zip([0.0, *recall[:-1]], recall, precision, strict=True)
    t95 = next(t for t, r in zip(thresholds, recall, strict=True) if r >= 0.95 - 1e-12)
    return {
        "auroc": wins / len(strange) / len(normal),
        "aupr": sum((r - before) * p for before, r, p in steps),
        "fpr95": sum(n >= t95 for n in normal) / len(normal),
    }


@pytest.mark.parametrize("levels", [3, 12, None])
@pytest.mark.parametrize("n", [5, 20, 40, 180])
def test_detection_is_the_loop(levels, n):
    anomalous = torch.arange(2 * n) < n
    scores = torch.randn(2 * n) + anomalous
    scores = scores if levels is None else (scores * levels / 4).round()
    found = detection(scores, anomalous)
    assert found == pytest.approx(slow_detection(scores.tolist(), anomalous.tolist()))


def test_detection_limits_and_symmetries():
    anomalous = torch.tensor([False] * 6 + [True] * 4)
    scores = torch.arange(10.0)
    assert detection(scores, anomalous) == {"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0}
    assert detection(-scores, anomalous)["auroc"] == 0 and detection(-scores, anomalous)["fpr95"] == 1  # planted: wrong sign
    assert detection(torch.zeros(10), anomalous) == {"auroc": 0.5, "aupr": pytest.approx(0.4), "fpr95": 1.0}
    noisy, order = scores + 3 * torch.randn(10), torch.randperm(10)
    found = detection(noisy, anomalous)
    assert detection(noisy[order], anomalous[order]) == pytest.approx(found)
    assert detection(noisy.exp() * 1000 - 5, anomalous) == pytest.approx(found)  # scores beyond [0, 1] are left as they are
    assert detection(-noisy, ~anomalous)["auroc"] == pytest.approx(found["auroc"])


def test_knn_distance_is_the_loop():
    train, test = torch.randn(20, 5), torch.randn(9, 5)
    for k in (1, 5, 20, 50):
        for x, found in zip(test, knn_distance(train, test, k).tolist(), strict=True):
            far = sorted(1 - torch.dot(x, z).item() / (x.norm() * z.norm()).item() for z in train)[:k]
            assert found == pytest.approx(sum(far) / len(far))


def test_knn_distance_limits():
    train = torch.randn(30, 4)
    torch.testing.assert_close(knn_distance(train, 3 * train, k=1), torch.zeros(30))
    assert (knn_distance(train, train, k=3) >= 0).all()
    torch.testing.assert_close(knn_distance(torch.ones(5, 4), -torch.ones(2, 4)), torch.full((2,), 2.0))
    inside = torch.randn(200, 4) * 0.1 + torch.tensor([1.0, 0, 0, 0])
    scores = knn_distance(inside[:100], torch.cat([inside[100:], -inside[:100]]))
    assert detection(scores, torch.arange(200) >= 100)["auroc"] == 1


@pytest.mark.parametrize(("n", "d"), [(300, 6), (10, 40), (2, 8)])
def test_mahalanobis_is_ledoit_and_wolfs(n, d):
    train, test = torch.randn(n, d) * torch.arange(1, d + 1) + 1, torch.randn(20, d) * 5
    model = LedoitWolf().fit(train.numpy())
    found = mahalanobis(train, test)
    assert found.isfinite().all() and (found >= 0).all()
    c = torch.from_numpy(model.covariance_) + RIDGE * train.var(0, correction=0).mean() * torch.eye(d)
    x = test - train.mean(0)
    torch.testing.assert_close(found, (x * torch.linalg.solve(c, x.T).T).sum(1), rtol=1e-8, atol=0)


def test_mahalanobis_symmetries():
    train, test = torch.randn(80, 4) * torch.arange(1, 5), torch.randn(10, 4)
    found = mahalanobis(train, test)
    turn = torch.linalg.qr(torch.randn(4, 4))[0]
    for f in (lambda x: x @ turn, lambda x: x * 1e4, lambda x: x * 1e-8, lambda x: x + 50):
        torch.testing.assert_close(mahalanobis(f(train), f(test)), found, rtol=1e-6, atol=0)
    torch.testing.assert_close(mahalanobis(train[torch.randperm(80)], test), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mahalanobis_of_degenerate_training(dtype):
    z = torch.randn(100, 3, dtype=dtype)
    train = torch.cat([z, z[:, :1], torch.full((100, 1), 0.1, dtype=dtype)], 1)  # a copy and a constant
    same, off = train[:10], train[:10] + torch.tensor([0, 0, 0, 0, 5], dtype=dtype)
    assert mahalanobis(train, same).max() < mahalanobis(train, off).min()
    equal = torch.full((20, 4), 0.1, dtype=dtype)
    found = mahalanobis(equal, torch.stack([equal[0], equal[0] + 1, equal[0] + 2]))
    assert found.isfinite().all() and found[0] < found[1] < found[2]
    assert found.dtype == dtype
