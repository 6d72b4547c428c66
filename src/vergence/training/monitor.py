"""The check of an encoder while it trains: nearest neighbors among part of the labeled training items."""

import torch
from torch import nn

from vergence.data.items import Items
from vergence.data.sources import Data
from vergence.evaluation import features
from vergence.evaluation.accuracy import knn_accuracy
from vergence.training.metrics import Monitor

__all__ = ["labeled", "online_knn"]

ITEMS, QUERIES = 10_000, 2_000  # most items of the check, and most queries among them
SHARE = 5  # one item of so many is a query
NEIGHBORS = 30


def online_knn(opened: Data, size: int | None, device: torch.device) -> Monitor | None:
    """Returns a function that classifies held-out training items by kNN on an encoder's embeddings.

    A fifth of at most 10,000 labeled training items are queries, the others their neighbors. The test part is never read, so that
    settings may be chosen by this number and the test part stays blind to the choice. The encoder has been trained on the
    queries' inputs, without their labels: the number is for comparisons between runs, not for reports.

    Args:
        opened: The data.
        size: Side of the central crop that the encoder sees; None for vectors.
        device: Device of the encoder.

    Returns:
        The function; None for fewer than five labeled items or fewer than two classes.
    """
    items = labeled(opened.train, ITEMS)
    count = 0 if items is None else min(QUERIES, len(items) // SHARE)
    if items is None or count == 0:
        return None
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(1))
    queries, bank = (items.subset(index.sort().values) for index in order.split([count, len(items) - count]))

    def check(encoder: nn.Module) -> dict[str, float]:
        (z, index), (q, index_q) = (
            features.collect_features(encoder, part, size=size, device=device) for part in (bank, queries)
        )
        assert bank.labels is not None and queries.labels is not None
        k = min(NEIGHBORS, len(z))
        accuracy = knn_accuracy(z, bank.labels[index], q, queries.labels[index_q], ks=(k,))
        return {"knn": accuracy[k]["majority"]}

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
