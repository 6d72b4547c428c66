"""Classification by nearest neighbors, which measures a representation without training a model on it.

Shapes: N training items, M test items, D features, k neighbors.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vergence.utils.checks import require_positive
from vergence.utils.linalg import require_features
from vergence.utils.neighbors import nearest

__all__ = ["knn_accuracy"]


def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    ks: Sequence[int] = (1, 5, 20, 30, 200),
    temperature: float = 0.07,
    block: int = 2048,
) -> dict[int, dict[str, float]]:
    """Returns how often the k nearest training items by cosine similarity vote for the right class.

    ``majority`` counts one vote per neighbor; a tie goes to the tied class with the nearest neighbor. ``weighted`` counts
    exp(cosine / temperature) per neighbor (Wu et al., Unsupervised feature learning via non-parametric instance discrimination,
    2018). A test item whose class does not occur in training counts as wrong.

    Args:
        train: Features (N, D).
        train_labels: Classes (N,), any integers.
        test: Features (M, D), on the same device.
        test_labels: Classes (M,).
        ks: Numbers of neighbors, >= 1; those above N are left out.
        temperature: Scale of the weights, > 0.
        block: Test items in a block, which bounds the memory.

    Returns:
        ``{k: {"majority": accuracy, "weighted": accuracy}}``, accuracies in [0, 1].

    Raises:
        ValueError: Features and labels differ in number, features are not finite matrices of one width, k < 1, or
            the temperature is not positive.

    Example:
        >>> angle = torch.tensor([0.0, 0.1, 1.5, 1.6])
        >>> z, y = torch.stack([angle.cos(), angle.sin()], 1), torch.tensor([7, 7, 3, 3])
        >>> knn_accuracy(z, y, z[:2] * 5, torch.tensor([7, 3]), ks=(1, 3, 200))
        {1: {'majority': 0.5, 'weighted': 0.5}, 3: {'majority': 0.5, 'weighted': 0.5}}
    """
    require_features(train=train, test=test)
    _require_labels(train, train_labels, test, test_labels, temperature)
    if min(ks, default=1) < 1:
        raise ValueError(f"expected every k >= 1, found {min(ks)}: leave it out")
    kept = [k for k in dict.fromkeys(ks) if k <= len(train)]
    if not kept:
        return {}
    similarity, index = nearest(train, test, max(kept), block)
    classes, label = torch.unique(train_labels.to(train.device), return_inverse=True)
    truth = test_labels.to(train.device)
    right = {k: {"majority": 0, "weighted": 0} for k in kept}
    for s, i, y in zip(*(torch.split(part, block) for part in (similarity, index, truth)), strict=True):
        for k in kept:
            votes = _votes(s[:, :k], label[i[:, :k]], len(classes), temperature)
            for how, vote in votes.items():
                right[k][how] += int((classes[vote] == y).sum())
    return {k: {how: n / len(test) for how, n in found.items()} for k, found in right.items()}


def _require_labels(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, temperature: float) -> None:
    for name, z, y in (("train", train, train_labels), ("test", test, test_labels)):
        if y.shape != z.shape[:1]:
            raise ValueError(f"{name}: expected labels of shape ({len(z)},), found {tuple(y.shape)}: give one label a row")
    require_positive(temperature=temperature)


def _votes(similarity: Tensor, label: Tensor, n_classes: int, temperature: float) -> dict[str, Tensor]:
    """Returns the classes (B,) that neighbors (B, k), the nearest first, vote for by each rule."""
    weight = ((similarity - similarity[:, :1]) / temperature).exp()  # relative to the nearest, which cannot overflow
    return {"majority": _elect(torch.ones_like(weight), label, n_classes), "weighted": _elect(weight, label, n_classes)}


def _elect(weight: Tensor, label: Tensor, n_classes: int) -> Tensor:
    """Returns the class with the largest sum of weights; if tied, that of the nearest neighbor."""
    total = weight.new_zeros(len(weight), n_classes).scatter_add_(1, label, weight)
    leads = total.gather(1, label) == total.max(1, keepdim=True).values
    first = leads.to(torch.uint8).argmax(1, keepdim=True)
    return label.gather(1, first).squeeze(1)
