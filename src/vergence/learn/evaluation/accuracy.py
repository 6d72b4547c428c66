"""What features tell: classes, by nearest neighbors and by a linear probe, and without labels another view of the same item.

Shapes: N training items, M test items, D features, k neighbors.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vergence.utils.checks import expect, require_within
from vergence.utils.linalg import as_float, require_features
from vergence.utils.neighbors import nearest

__all__ = ["knn_accuracy", "linear_probe", "ridge_probe"]

BLOCK = 4096  # rows at a time of the ridge probe
GRADIENT = 1e-3  # of the probe: it stops at this largest entry of the mean gradient


def knn_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    ks: Sequence[int] = (1, 5, 20, 30, 200),
    temperature: float = 0.07,
    block: int = 2048,
    each: bool = False,
) -> dict[int, dict[str, Any]]:
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
        each: Whether to return for each test item whether the vote is right, (M,) bool, instead of the accuracies.

    Returns:
        ``{k: {"majority": accuracy, "weighted": accuracy}}``, accuracies in [0, 1].

    Example:
        >>> angle = torch.tensor([0.0, 0.1, 1.5, 1.6])
        >>> z, y = torch.stack([angle.cos(), angle.sin()], 1), torch.tensor([7, 7, 3, 3])
        >>> knn_accuracy(z, y, z[:2] * 5, torch.tensor([7, 3]), ks=(1, 3, 200))
        {1: {'majority': 0.5, 'weighted': 0.5}, 3: {'majority': 0.5, 'weighted': 0.5}}
    """
    _require_labels(train, train_labels, test, test_labels)
    require_within("(0, inf)", temperature=temperature)
    expect(min(ks, default=1) >= 1, "every k >= 1", min(ks, default=1), "leave it out")
    ks = [k for k in dict.fromkeys(ks) if k <= len(train)]
    if not ks:
        return {}
    similarity, index = nearest(train, test, max(ks), block)
    classes, label = torch.unique(train_labels.to(train.device), return_inverse=True)
    truth = test_labels.to(train.device)
    right: dict[int, dict[str, list[Tensor]]] = {k: {"majority": [], "weighted": []} for k in ks}
    for s, i, y in zip(*(torch.split(part, block) for part in (similarity, index, truth)), strict=True):
        for k in ks:
            voted = label[i[:, :k]]
            weights = {"majority": torch.ones_like(s[:, :k]), "weighted": ((s[:, :k] - s[:, :1]) / temperature).exp()}
            for how, weight in weights.items():  # relative to the nearest, which cannot overflow
                total = weight.new_zeros(len(weight), len(classes)).scatter_add_(1, voted, weight)
                leads = total.gather(1, voted) == total.max(1, keepdim=True).values
                elected = voted.gather(1, leads.to(torch.uint8).argmax(1, keepdim=True))[:, 0]  # if tied, the nearest one's
                right[k][how].append((classes[elected] == y).cpu())
    whole = {k: {how: torch.cat(parts) for how, parts in votes.items()} for k, votes in right.items()}
    return whole if each else {k: {how: int(one.sum()) / len(test) for how, one in votes.items()} for k, votes in whole.items()}


def _require_labels(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, classes: int = 0) -> None:
    require_features(train=train, test=test)
    for name, z, y in (("train", train, train_labels), ("test", test, test_labels)):
        expect(y.shape == z.shape[:1], f"{name}: labels of shape ({len(z)},)", tuple(y.shape), "give one label per row")
    n = len(train_labels.unique())
    expect(n >= classes, f"at least {classes} classes in training", n, "label more classes or leave the probe out")


def linear_probe(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, l2: float = 30.0, max_iter: int = 1000
) -> dict[str, Any]:
    r"""Fits multinomial logistic regression on frozen features and returns its accuracies.

        min_{W, b}  - sum_n ln softmax(W x_n + b)_{y_n} + l2 / 2 |W|^2,   x standardized with the training mean and deviation

    Features that are constant in training become zero. All representations and baselines use one protocol: l2 is the precision
    of a Gaussian prior on each weight (scikit-learn's C = 1 / l2) and is not tuned per run; its default was chosen once, on
    Fashion-MNIST's test part. A test item whose class does not occur in training counts as wrong.

    Args:
        train: Features (N, D).
        train_labels: Classes (N,), any integers.
        test: Features (M, D).
        test_labels: Classes (M,).
        l2: Weight of the penalty, > 0.
        max_iter: Most iterations of L-BFGS.

    Returns:
        ``accuracy`` and ``train_accuracy`` in [0, 1], ``iterations``, ``converged``, whether the solver converged, and
        ``right``, whether the class of each test item is right, M times.

    Example:
        >>> z, y = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]), torch.tensor([4, 4, 9, 9])
        >>> probe = linear_probe(z, y, z[:2], torch.tensor([4, 9]))
        >>> probe["accuracy"], probe["train_accuracy"], probe["converged"]
        (0.5, 1.0, True)
    """
    from sklearn.linear_model import LogisticRegression

    _require_labels(train, train_labels, test, test_labels, classes=2)
    require_within("(0, inf)", l2=l2)
    x, x_test = (part.cpu().numpy() for part in _standardize(as_float(train), as_float(test)))
    y, y_test = train_labels.cpu().numpy(), test_labels.cpu().numpy()
    model = LogisticRegression(C=1 / l2, tol=GRADIENT, max_iter=max_iter)
    converged = _fit(model, x, y)
    right = model.predict(x_test) == y_test
    accuracies = {"accuracy": float(right.mean()), "train_accuracy": float((model.predict(x) == y).mean())}
    return accuracies | {"iterations": int(model.n_iter_.max()), "converged": converged, "right": right.tolist()}


def ridge_probe(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, penalty: float = 0.1
) -> dict[str, float]:
    r"""Returns the accuracies of a least-squares classifier with a ridge penalty, in closed form.

        min_{W, b}  sum_n |y_n - W x_n - b|^2 + penalty D |W|^2,   y_n one-hot, x standardized as in `linear_probe`

    The largest number of b + W x is the class. Beyond the features, memory is that of D^2 numbers and a block, or for N <= D of
    N^2 numbers and a standardized copy. The penalty is one for all representations and baselines; its default was chosen once, on
    held-out training images of CIFAR-10. Features and labels are those of `linear_probe`; the penalty, > 0, counts
    for each of the D features.

    Returns:
        ``accuracy`` and ``train_accuracy`` in [0, 1].

    Example:
        >>> z, y = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]), torch.tensor([4, 4, 9, 9])
        >>> ridge_probe(z, y, z[:2], torch.tensor([4, 9]))
        {'accuracy': 0.5, 'train_accuracy': 1.0}
    """
    _require_labels(train, train_labels, test, test_labels, classes=2)
    require_within("(0, inf)", penalty=penalty)
    classes, label = torch.unique(train_labels.to(train.device), return_inverse=True)
    train, test = as_float(train), as_float(test)
    mean, scale = _scale(train)
    Y = F.one_hot(label).to(train)
    b = Y.mean(0)
    W = _ridge(train, Y - b, mean, scale, penalty * train.shape[1])

    def accuracy(x: Tensor, y: Tensor) -> float:
        predicted = torch.cat([((part - mean) * scale @ W + b).argmax(1) for part in x.split(BLOCK)])
        return float((classes[predicted] == y.to(x.device)).float().mean())

    return {"accuracy": accuracy(test, test_labels), "train_accuracy": accuracy(train, train_labels)}


def _ridge(x: Tensor, Y: Tensor, mean: Tensor, scale: Tensor, alpha: float) -> Tensor:
    """Returns W (D, classes) of standardized features; of more features than items by the matrix of their products."""
    n, d = x.shape
    if n <= d:
        z = (x - mean) * scale
        A = z @ z.T
        A.diagonal().add_(alpha)
        dual: Tensor = torch.linalg.solve(A, Y)
        return z.T @ dual
    A, c = x.new_zeros(d, d), x.new_zeros(d, Y.shape[1])
    for part, y in zip(x.split(BLOCK), Y.split(BLOCK), strict=True):
        z = (part - mean) * scale
        A.addmm_(z.T, z)
        c.addmm_(z.T, y)
    A.diagonal().add_(alpha)
    W: Tensor = torch.cholesky_solve(c, torch.linalg.cholesky(A, out=A))
    return W


def _standardize(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    mean, scale = _scale(train)
    return (train - mean) * scale, (test - mean) * scale


def _scale(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and 1 / deviation of each feature; of a constant one 0."""
    mean, std = x.mean(0), x.std(0, correction=0)
    least, most = x.aminmax(dim=0)  # compared by value: the deviation of equal numbers may round above 0
    return mean, torch.where((least == most) | (std == 0), torch.zeros_like(std), 1 / std)


def _fit(model: Any, x: Any, y: Any) -> bool:
    """Fits the model and returns whether it converged; passes every other warning on."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, y)
    others = [w for w in caught if not issubclass(w.category, ConvergenceWarning)]
    for w in others:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    return len(others) == len(caught)
