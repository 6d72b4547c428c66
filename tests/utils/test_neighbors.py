"""Pairs of similar vectors are those of the whole table, which is not held."""

import pytest
import torch
from torch.nn import functional as F

from vergence.utils import neighbors


@pytest.mark.parametrize("least", [0.5, 0.9, 0.99])
def test_pairs_are_those_of_all_comparisons(monkeypatch, least):
    monkeypatch.setattr(neighbors, "BLOCK", 37)
    monkeypatch.setattr(neighbors, "NUMBERS", 5000)
    x = F.normalize(torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) + torch.tensor([1.0, 0, 0]), dim=1)
    wanted = (x @ x.T >= least).triu(1).nonzero().tolist()
    found = [sorted(pair) for i, j in neighbors.similar_pairs(x, least) for pair in zip(i.tolist(), j.tolist(), strict=True)]
    assert sorted(found) == wanted and wanted
