"""Embeddings of data: modes of the network's parts are as before, and no items is an error in words."""

import pytest
import torch
from torch import nn

from vergence.data.items import ArrayItems
from vergence.evaluation.features import collect


def test_each_part_of_a_network_has_its_own_mode_again():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2).eval(), nn.Dropout()).float()
    items = ArrayItems(torch.randn(5, 3))
    z, index = collect(net, items)
    assert [part.training for part in net] == [True, False, True] and net.training
    torch.testing.assert_close(z, net.eval()(items.array.float()).detach())
    assert index.tolist() == list(range(5))


def test_modes_are_as_before_after_an_error():
    net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2).eval())
    with pytest.raises(RuntimeError):
        collect(net, ArrayItems(torch.randn(5, 3)))
    assert [part.training for part in net] == [True, False]


def test_no_items_are_an_error_in_words():
    with pytest.raises(ValueError, match="expected items to embed, found none that can be read"):
        collect(nn.Linear(3, 2), ArrayItems(torch.zeros(0, 3)))
