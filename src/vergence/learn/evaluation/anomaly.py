"""How well scores separate anomalies from normal items, and two scores that need no training. Larger is more anomalous.

Shapes: N training items, M test items, D features, k neighbors.
"""

import torch
from torch import Tensor

from vergence.utils.checks import expect, require_within
from vergence.utils.linalg import as_float, require_features
from vergence.utils.neighbors import cosine_distances

__all__ = ["detection", "knn_distance", "mahalanobis"]

RIDGE = 1e-6  # share of the mean variance added to each variance, for features that are constant or linearly dependent


def detection(scores: Tensor, anomalous: Tensor) -> dict[str, float]:
    """Returns how well scores separate anomalies from normal items.

    Args:
        scores: (N,), finite; larger is more anomalous.
        anomalous: (N,) of bool, with at least one item of each kind.

    Returns:
        ``auroc``: area under the ROC curve, ties count one half; ``aupr``: average precision with the anomalies as positives
        (its chance level is their share); ``fpr95``: the share of normal items at or above a threshold t, for the highest t
        with at least 95 % of the anomalies at or above it. All in [0, 1].

    Raises:
        ValueError: The shapes differ, a score is not finite, or all items are of one kind.

    Example:
        >>> detection(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))["auroc"]
        0.75
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    shapes = f"{tuple(scores.shape)} and {tuple(anomalous.shape)}"
    expect(scores.ndim == 1 and scores.shape == anomalous.shape, "scores and anomalous of one shape (N,)", shapes)
    s, y = scores.detach().cpu().double(), anomalous.cpu().bool()
    n, bad = int(y.sum()), int((~s.isfinite()).sum())
    expect(not bad, "finite scores", f"NaN or infinity in {bad} of {len(s)}", "leave these items out")
    expect(0 < n < len(s), "anomalies and normal items", f"{n} anomalies of {len(s)}", "add the other kind")
    threshold = s[y].sort(descending=True).values[-(-95 * n // 100) - 1]
    return {
        "auroc": float(roc_auc_score(y.numpy(), s.numpy())),
        "aupr": float(average_precision_score(y.numpy(), s.numpy())),
        "fpr95": (s[~y] >= threshold).double().mean().item(),
    }


def knn_distance(train: Tensor, test: Tensor, k: int = 5) -> Tensor:
    """Returns the mean cosine distance, 1 - cosine, to the k nearest training items.

    Args:
        train: Features (N, D).
        test: Features (M, D), on the same device.
        k: Neighbors, >= 1; at most N are used.

    Returns:
        (M,) in [0, 2]; larger is more anomalous.

    Raises:
        ValueError: The features are not finite matrices of one width, or k < 1.

    Example:
        >>> knn_distance(torch.eye(2), torch.tensor([[2.0, 0.0], [-1.0, 0.0]]), k=1)
        tensor([0., 1.])
    """
    return cosine_distances(train, test, min(k, len(train))).mean(1)


def mahalanobis(train: Tensor, test: Tensor, labels: Tensor | None = None, shrinkage: float | None = None) -> Tensor:
    r"""Returns the squared Mahalanobis distance to the training mean, or to the nearest of the class means.

        min_c (x - m_c)^T (C + 1e-6 v I)^-1 (x - m_c),   C = (1 - a) S + a v I,   v = tr(S) / D

    S is the covariance (divisor N) of the training features around their mean, or around their class means (one covariance
    for all classes). The shrinkage a is scikit-learn's Ledoit-Wolf estimate (A well-conditioned estimator for large-dimensional
    covariance matrices, 2004), which makes C well conditioned for N < D too; 1e-6 v keeps it invertible for a = 0. If all
    training features are equal, v = 1. Computed in float64.

    Args:
        train: Features (N, D), N >= 2.
        test: Features (M, D), on the same device.
        labels: Classes (N,) of the training items, any integers; one class by default.
        shrinkage: a in [0, 1]; estimated by default.

    Returns:
        (M,) of the type of ``test``, >= 0; larger is more anomalous.

    Raises:
        ValueError: The features are not finite matrices of one width, N < 2, the labels do not fit, or a is out of range.

    Example:
        >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variances 2 and 1/2
        >>> [round(d, 3) for d in mahalanobis(x, torch.tensor([[2.0, 0.0], [0.0, 2.0]]), shrinkage=0.0).tolist()]
        [2.0, 8.0]
    """
    require_features(train=train, test=test)
    expect(len(train) >= 2, "at least 2 items for a covariance", len(train), "pass more")
    if labels is not None:
        expect(labels.shape == train.shape[:1], f"labels of shape ({len(train)},)", tuple(labels.shape), "give one label a row")
    if shrinkage is not None:
        require_within("[0, 1]", shrinkage=shrinkage)
    x = train.double()
    label = x.new_zeros(len(x)) if labels is None else labels.to(x.device)
    classes, y = torch.unique(label, return_inverse=True)
    m = torch.stack([x[y == c].mean(0) for c in range(len(classes))])
    L = torch.linalg.cholesky(_covariance(x - m[y], shrinkage))
    whiten = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype, device=L.device), upper=False)
    distance = [((test.double() - mean) @ whiten.T).square().sum(1) for mean in m]
    return torch.stack(distance).amin(0).to(as_float(test).dtype)


def _covariance(residual: Tensor, shrinkage: float | None) -> Tensor:
    """Returns C + 1e-6 v I (D, D) of residuals (N, D) whose means are 0."""
    from sklearn.covariance import ledoit_wolf_shrinkage

    a = ledoit_wolf_shrinkage(residual.cpu().numpy(), assume_centered=True) if shrinkage is None else shrinkage
    S = residual.T @ residual / len(residual)
    v = S.diagonal().mean()
    v = torch.where(v > 0, v, torch.ones_like(v))
    return (1 - a) * S + (a + RIDGE) * v * torch.eye(len(S), dtype=S.dtype, device=S.device)
