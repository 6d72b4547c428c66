"""How well scores separate anomalies from normal items, and two scores that need no training. Larger is more anomalous.

Shapes: N training items, M test items, D features, k neighbors.
"""

import torch
from torch import Tensor

from vergence.utils.checks import expect
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

    Example:
        >>> knn_distance(torch.eye(2), torch.tensor([[2.0, 0.0], [-1.0, 0.0]]), k=1)
        tensor([0., 1.])
    """
    return cosine_distances(train, test, min(k, len(train))).mean(1)


def mahalanobis(train: Tensor, test: Tensor) -> Tensor:
    r"""Returns the squared Mahalanobis distance to the training mean.

        (x - m)^T (C + 1e-6 v I)^-1 (x - m),   C = (1 - a) S + a v I,   v = tr(S) / D

    S is the covariance (divisor N) of the training features. The shrinkage a is scikit-learn's Ledoit-Wolf estimate (A
    well-conditioned estimator for large-dimensional covariance matrices, 2004), which makes C well conditioned for N < D too;
    1e-6 v keeps it invertible for a = 0. If all training features are equal, v = 1. Computed in float64.

    Args:
        train: Features (N, D), N >= 2.
        test: Features (M, D), on the same device.

    Returns:
        (M,) of the type of ``test``, >= 0; larger is more anomalous.

    Example:
        >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> far, near = mahalanobis(x, torch.tensor([[2.0, 0.0], [0.5, 0.0]])).tolist()
        >>> round(far / near)
        16
    """
    from sklearn.covariance import ledoit_wolf_shrinkage

    require_features(train=train, test=test)
    expect(len(train) >= 2, "at least 2 items for a covariance", len(train), "pass more")
    x = train.double()
    m = x.mean(0)
    x = x - m
    a = ledoit_wolf_shrinkage(x.cpu().numpy(), assume_centered=True)
    S = x.T @ x / len(x)
    v = S.diagonal().mean()
    v = torch.where(v > 0, v, torch.ones_like(v))
    eye = torch.eye(len(S), dtype=S.dtype, device=S.device)
    L = torch.linalg.cholesky((1 - a) * S + (a + RIDGE) * v * eye)
    whiten = torch.linalg.solve_triangular(L, eye, upper=False)
    distance: Tensor = ((test.double() - m) @ whiten.T).square().sum(1)
    return distance.to(as_float(test).dtype)
