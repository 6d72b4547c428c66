"""The online check by nearest neighbors: it reads the training part alone, and its queries are not in its bank."""

import pytest
import torch
from torch import nn

from vergence.data.config import DataConfig
from vergence.data.items import ArrayItems
from vergence.data.sources import Data, open_data
from vergence.learn.evaluation.accuracy import knn_accuracy
from vergence.learn.training import metrics as monitor

pytestmark = pytest.mark.float32
CPU = torch.device("cpu")


class Never:
    """Stands for a test part that must not be read."""

    def __getattr__(self, name):
        raise AssertionError(f"the online check read the test part: {name}")


def vectors(labels):
    return ArrayItems(torch.arange(len(labels), dtype=torch.float32)[:, None], labels=torch.tensor(labels))


def opened(train):
    return Data("vectors", "vector", train, Never(), ("a", "b"), (), "")


@pytest.fixture
def parts(monkeypatch):
    """What the check hands to the classifier."""
    seen = []
    real = knn_accuracy

    def record(z, y, t, u, **settings):
        seen.append((z.flatten().long(), y, t.flatten().long(), u))
        return real(z, y, t, u, **settings)

    monkeypatch.setattr(monitor, "knn_accuracy", record)
    return seen


def test_it_never_reads_the_test_part(parts):
    check = monitor.online_knn(opened(vectors([0, 1] * 50)), None, CPU)
    assert 0 <= check(nn.Identity())["knn"] <= 1


def test_queries_are_held_out_of_the_bank_and_stay_the_same(parts):
    labels = [0, 1] * 500
    check = monitor.online_knn(opened(vectors(labels)), None, CPU)
    check(nn.Identity())
    check(nn.Identity())
    (bank, y, queries, u), again = parts
    assert not set(bank.tolist()) & set(queries.tolist())
    assert len(bank) + len(queries) == 1000 and len(queries) == 200
    assert torch.equal(y, torch.tensor(labels)[bank]) and torch.equal(u, torch.tensor(labels)[queries])
    assert torch.equal(queries, again[2])


def test_unlabeled_items_take_no_part(parts):
    check = monitor.online_knn(opened(vectors([0, 1, -1, -1] * 100)), None, CPU)
    check(nn.Identity())
    bank, _, queries, _ = parts[0]
    assert len(bank) + len(queries) == 200 and all(i % 4 < 2 for i in [*bank.tolist(), *queries.tolist()])


def test_queries_without_a_training_item_of_two_classes_give_no_check():
    assert monitor.online_knn(opened(vectors([0] * 50)), None, CPU) is None
    assert monitor.online_knn(opened(vectors([-1] * 50)), None, CPU) is None
    assert monitor.online_knn(opened(vectors([0, 1])), None, CPU) is None


def test_it_is_the_same_for_every_call(parts):
    data = open_data(DataConfig(source="digits"))
    values = {monitor.online_knn(data, data.size, CPU)(nn.Flatten())["knn"] for _ in range(2)}
    assert len(values) == 1 and values.pop() > 0.9
