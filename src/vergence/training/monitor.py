"""The check of an encoder while it trains: nearest neighbors on part of the labeled data."""

import torch
from torch import nn

from vergence.data.items import Items
from vergence.data.sources import Data
from vergence.evaluation import features, knn
from vergence.training.metrics import Monitor

__all__ = ["labeled", "online_knn"]

BANK, TEST = 10_000, 2_000  # items of the check
NEIGHBORS = 30


def online_knn(opened: Data, size: int | None, device: torch.device) -> Monitor | None:
    """Returns a function that classifies test items by kNN on an encoder's embeddings; None without labels of two classes.

    Args:
        opened: The data; at most 10,000 training items and 2,000 test items are used.
        size: Side of the central crop that the encoder sees; None for vectors.
        device: Device of the encoder.
    """
    train, test = labeled(opened.train, BANK), labeled(opened.test, TEST)
    if train is None or test is None:
        return None

    def check(encoder: nn.Module) -> dict[str, float]:
        (z, index), (z_test, index_test) = (features.collect(encoder, part, size=size, device=device) for part in (train, test))
        assert train.labels is not None and test.labels is not None
        found = knn.knn_accuracy(z, train.labels[index], z_test, test.labels[index_test], ks=(min(NEIGHBORS, len(z)),))
        return {"knn": next(iter(found.values()))["majority"]}

    return check


def labeled(items: Items, limit: int | None = None) -> Items | None:
    """Returns the items that have a label, at most ``limit`` sampled with a fixed seed; None for fewer than two classes."""
    if items.labels is None:
        return None
    index = (items.labels >= 0).nonzero().flatten()
    if len(items.labels[index].unique()) < 2:
        return None
    if limit is not None and len(index) > limit:
        index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(0))[:limit]].sort().values
    return items.subset(index)
