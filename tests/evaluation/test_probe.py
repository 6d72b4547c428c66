import warnings

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from vergence.evaluation import probe
from vergence.evaluation.probe import linear_probe


def blobs(n, d=8, classes=3, noise=1.0):
    y = torch.randint(0, classes, (n,))
    return torch.eye(d)[y] * 2 + noise * torch.randn(n, d) * torch.arange(1, d + 1) + 3, y


def test_scikit_learn_pipeline_agrees():
    (train, y), (test, truth) = blobs(400), blobs(300)
    scale = StandardScaler().fit(train.numpy())
    model = LogisticRegression(C=1 / 30, tol=probe.GRADIENT, max_iter=1000).fit(scale.transform(train.numpy()), y.numpy())
    found = linear_probe(train, y, test, truth)
    assert found["accuracy"] == model.score(scale.transform(test.numpy()), truth.numpy())
    assert found["train_accuracy"] == model.score(scale.transform(train.numpy()), y.numpy())
    assert found["iterations"] == model.n_iter_[0] and found["converged"] is True
    assert 0.4 < found["accuracy"] < 0.95  # neither chance nor certainty: the comparison can fail


def test_the_objective_is_the_documented_one():
    (train, y), (test, truth) = blobs(200), blobs(2000)
    x, x_test = probe._standardize(train, test)
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


def test_standardization_uses_training_statistics_only():
    train, test = torch.randn(50, 4) * 5 + 2, torch.randn(30, 4)
    x, x_test = probe._standardize(train, test)
    torch.testing.assert_close(x.mean(0), torch.zeros(4), atol=1e-12, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(4))
    torch.testing.assert_close(x_test[0] * train.std(0, correction=0) + train.mean(0), test[0])
    torch.testing.assert_close(probe._standardize(train, test[:3])[1], x_test[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_constant_in_training_stay_zero(dtype):
    (train, y), (test, truth) = blobs(200), blobs(100)
    plain = linear_probe(train.to(dtype), y, test.to(dtype), truth)
    constant = torch.full((200, 2), 0.1)
    wide, wide_test = torch.cat([train, constant], 1).to(dtype), torch.cat([test, torch.randn(100, 2) * 1e6], 1).to(dtype)
    assert torch.equal(probe._standardize(wide, wide_test)[1][:, -2:], torch.zeros(100, 2, dtype=dtype))
    assert linear_probe(wide, y, wide_test, truth) == plain


def test_equal_numbers_are_constant_whatever_their_deviation_rounds_to():
    equal = torch.full((200, 1), 1 / 3, dtype=torch.float32)
    assert equal.std(0, correction=0).item() > 0
    for part in probe._standardize(equal, equal + 1):
        assert torch.equal(part, torch.zeros_like(part))


def test_invariances():
    (train, y), (test, truth) = blobs(300), blobs(1000)
    found = linear_probe(train, y, test, truth)["accuracy"]
    scale, shift, order = torch.rand(8) * 9 + 0.1, torch.randn(8) * 10, torch.randperm(300)
    assert linear_probe(train * scale + shift, y, test * scale + shift, truth)["accuracy"] == found
    assert linear_probe(train[order], y[order], test, truth)["accuracy"] == pytest.approx(found, abs=0.003)
    names = torch.tensor([-5, 10**9, 3])
    assert linear_probe(train, names[y], test, names[truth])["accuracy"] == pytest.approx(found, abs=0.003)


def test_limits():
    train, y = blobs(300, noise=0.0)
    assert linear_probe(train, y, train, y, l2=1e-3)["accuracy"] == 1
    assert linear_probe(train, y, train, torch.full_like(y, 8))["accuracy"] == 0  # a class that training lacks
    assert linear_probe(torch.ones(300, 4), y, torch.ones(300, 4), y)["accuracy"] == pytest.approx(
        y.bincount().max().item() / 300
    )
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
    (train, y), (test, truth) = blobs(300), blobs(100)
    found = linear_probe(train, y, test, truth, max_iter=1)
    assert found["converged"] is False and found["iterations"] == 1

    class Loud:
        def fit(self, x, y):
            warnings.warn("something else", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="something else"):
        assert probe._fit(Loud(), None, None)


def test_refusals():
    train, y = blobs(10)
    with pytest.raises(ValueError, match="at least 2 classes in training, found 1: label more"):
        linear_probe(train, torch.zeros_like(y), train, y)
    with pytest.raises(ValueError, match=r"test: expected labels of shape \(10,\), found \(9,\)"):
        linear_probe(train, y, train, y[:9])
    with pytest.raises(ValueError, match="l2 > 0, found 0"):
        linear_probe(train, y, train, y, l2=0)
    with pytest.raises(ValueError, match="NaN or infinity in 10"):
        linear_probe(train, y, train / 0, y)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int64])
def test_features_of_other_types_are_read_as_float32(kind):
    x, y = torch.randint(0, 9, (60, 3)), torch.arange(60) % 2
    assert linear_probe(x.to(kind), y, x.to(kind), y) == linear_probe(x.float(), y, x.float(), y)
