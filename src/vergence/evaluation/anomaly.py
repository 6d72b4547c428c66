"""How well scores tell anomalies from the rest, and two scores that need no training. Larger is more anomalous.

Shapes: N training items, M test items, D features, k neighbors.
"""

import torch
from torch import Tensor

from vergence.evaluation.parts.neighbors import nearest
from vergence.utils.linalg import require_features

__all__ = ["detection", "knn_distance", "mahalanobis"]

RIDGE = 1e-6  # share of the mean variance added to the covariance, for features that are constant or copies of others


def detection(scores: Tensor, anomalous: Tensor) -> dict[str, float]:
    """Returns how well scores separate anomalies from normal items.

    Args:
        scores: (N,), larger is more anomalous.
        anomalous: (N,) bool.

    Returns:
        ``auroc``: area under the ROC curve, ties count one half; ``aupr``: average precision with the anomalies as positives
        (its chance level is their share); ``fpr95``: share of normal items at or above the highest threshold at or above
        which at least 95 % of the anomalies lie. All in [0, 1].

    Raises:
        ValueError: The shapes differ, a score is not finite, or one of the two kinds is absent.

    Example:
        >>> detection(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))["auroc"]
        0.75
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    _require_scores(scores, anomalous)
    s, y = scores.detach().cpu().double(), anomalous.cpu().bool()
    n = int(y.sum())
    threshold = s[y].sort(descending=True).values[-(-95 * n // 100) - 1]
    return {
        "auroc": float(roc_auc_score(y.numpy(), s.numpy())),
        "aupr": float(average_precision_score(y.numpy(), s.numpy())),
        "fpr95": (s[~y] >= threshold).double().mean().item(),
    }


def _require_scores(scores: Tensor, anomalous: Tensor) -> None:
    if scores.ndim != 1 or scores.shape != anomalous.shape:
        raise ValueError(
            f"expected scores and anomalous of one shape (N,), found {tuple(scores.shape)} and {tuple(anomalous.shape)}: "
            "give each item one of each"
        )
    bad = int((~scores.isfinite()).sum())
    if bad:
        raise ValueError(f"expected finite scores, found NaN or infinity in {bad} of {len(scores)}: leave these items out")
    n = int(anomalous.bool().sum())
    if n in (0, len(scores)):
        raise ValueError(f"expected anomalies and normal items, found {n} anomalies of {len(scores)}: add the other kind")


def knn_distance(train: Tensor, test: Tensor, k: int = 5) -> Tensor:
    """Returns the mean cosine distance, 1 - cosine, to the k nearest training items.

    Args:
        train: Features (N, D).
        test: Features (M, D), on the same device.
        k: Neighbors; all N where there are fewer.

    Returns:
        (M,) in [0, 2]; larger is more anomalous.

    Raises:
        ValueError: The features are not finite matrices of one width, or k < 1.

    Example:
        >>> knn_distance(torch.eye(2), torch.tensor([[2.0, 0.0], [-1.0, 0.0]]), k=1)
        tensor([0., 1.])
    """
    return 1 - nearest(train, test, min(k, len(train)))[0].mean(1)


def mahalanobis(train: Tensor, test: Tensor, labels: Tensor | None = None, shrinkage: float | None = None) -> Tensor:
    r"""Returns the squared Mahalanobis distance to the training mean, or to the nearest of the class means.

        min_c (x - m_c)^T (C + 1e-6 v I)^-1 (x - m_c),   C = (1 - a) S + a v I,   v = tr(S) / D

    S is the covariance (divisor N) of the training features about their mean, or about their own class means: one tied
    covariance for all classes. The share a is Ledoit and Wolf's (2004) by scikit-learn, so that C is well conditioned for
    N < D too; 1e-6 v keeps it invertible where a is 0. Training features that are all equal have v = 1. Float64 inside.

    Args:
        train: Features (N, D), N >= 2.
        test: Features (M, D), on the same device.
        labels: Classes (N,) of the training items, any integers; None for one class.
        shrinkage: a in [0, 1]; None estimates it.

    Returns:
        (M,) of the type of ``test``, >= 0; larger is more anomalous.

    Raises:
        ValueError: The features are not finite matrices of one width, N < 2, the labels do not fit, or a is out of range.

    Example:
        >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variances 2 and 1/2
        >>> [round(d, 3) for d in mahalanobis(x, torch.tensor([[2.0, 0.0], [0.0, 2.0]]), shrinkage=0.0).tolist()]
        [2.0, 8.0]
    """
    _require_fit(train, test, labels, shrinkage)
    x = train.double()
    label = x.new_zeros(len(x)) if labels is None else labels.to(x.device)
    classes, y = torch.unique(label, return_inverse=True)
    m = torch.stack([x[y == c].mean(0) for c in range(len(classes))])
    L = torch.linalg.cholesky(_covariance(x - m[y], shrinkage))
    whiten = torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype, device=L.device), upper=False)
    distance = [((test.double() - mean) @ whiten.T).square().sum(1) for mean in m]
    return torch.stack(distance).amin(0).to(test.dtype)


def _require_fit(train: Tensor, test: Tensor, labels: Tensor | None, shrinkage: float | None) -> None:
    require_features(train=train, test=test)
    if len(train) < 2:
        raise ValueError("train: expected at least 2 items for a covariance, found 1: pass more")
    if labels is not None and labels.shape != train.shape[:1]:
        raise ValueError(f"labels: expected shape ({len(train)},), found {tuple(labels.shape)}: give one label a row")
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage: expected a value in [0, 1], found {shrinkage}: None estimates it")


def _covariance(residual: Tensor, shrinkage: float | None) -> Tensor:
    """Returns C + 1e-6 v I (D, D) of residuals (N, D) whose means are 0."""
    from sklearn.covariance import ledoit_wolf_shrinkage

    a = ledoit_wolf_shrinkage(residual.cpu().numpy(), assume_centered=True) if shrinkage is None else shrinkage
    S = residual.T @ residual / len(residual)
    v = S.diagonal().mean()
    v = torch.where(v > 0, v, torch.ones_like(v))
    return (1 - a) * S + (a + RIDGE) * v * torch.eye(len(S), dtype=S.dtype, device=S.device)
