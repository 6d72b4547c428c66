"""Controls of uncertainties, and Spearman's correlation with the strength of a degradation.

Shapes: N or M items, D features, S strengths. A larger uncertainty means a less certain item.
"""

import io
import warnings
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.utils.linalg import as_array, require_features


def rank_correlation(uncertainty: Any, strength: Any) -> dict[str, float]:
    """Returns Spearman's correlation of uncertainties with the strength of a degradation.

    Args:
        uncertainty: (N, S), of N items at S strengths, finite.
        strength: (S,), at least two different values.

    Returns:
        ``within``: the mean over items of each item's own correlation, where an item of equal uncertainties counts zero;
        ``pooled``: the correlation over all N S pairs, which differences between items lower. Both in [-1, 1].

    Raises:
        ValueError: The shapes do not fit, or the strengths are all equal.

    Example:
        >>> rank_correlation([[0.1, 0.2, 0.4], [5.0, 6.0, 9.0]], [0.0, 1.0, 2.0])["within"]
        1.0
    """
    from scipy.stats import rankdata

    u, s = (np.asarray(as_array(torch.as_tensor(one)), dtype=np.float64) for one in (uncertainty, strength))
    if u.ndim != 2 or s.shape != u.shape[1:] or len(np.unique(s)) < 2 or not (np.isfinite(u).all() and np.isfinite(s).all()):
        raise ValueError(
            f"expected finite uncertainties (N, S) and S strengths that differ, found {u.shape} and {s.shape}: give one of each"
        )
    a, b = rankdata(u, axis=1), np.broadcast_to(rankdata(s), u.shape)
    pooled = rankdata(u.ravel())[None], np.broadcast_to(rankdata(np.broadcast_to(s, u.shape).ravel()), (1, u.size))
    return {"within": float(_correlations(a, b).mean()), "pooled": float(_correlations(*pooled)[0])}


def _correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns Pearson's correlation of each row; 0 where one is constant."""
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    scale = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    product = (a * b).sum(1)
    found: np.ndarray = np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
    return found


def compressed_size(images: Any) -> Tensor:
    """Returns the bytes of each item's compressed file, (N,): PNG of gray and color images, zlib of anything else.

    Args:
        images: uint8 images (N, C, H, W), or numbers (N, ...).

    Example:
        >>> flat, noise = torch.zeros(3, 16, 16), torch.randint(256, (3, 16, 16))
        >>> sizes = compressed_size(torch.stack([flat, noise]).byte())
        >>> bool(sizes[0] < sizes[1])
        True
    """
    x = np.asarray(as_array(torch.as_tensor(images)))
    picture = x.ndim == 4 and x.shape[1] in (1, 3) and x.dtype == np.uint8
    return torch.tensor(
        [_png(one) if picture else len(zlib.compress(np.ascontiguousarray(one).tobytes())) for one in x], dtype=torch.float64
    )


def _png(image: np.ndarray) -> int:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0).copy()).save(buffer, "PNG")
    return buffer.tell()


def probe_entropy(train: Any, labels: Any, test: Any, *, l2: float = 30.0) -> Tensor:
    """Returns the entropy in nats of a linear probe's predictions, (M,): a control that needs labels.

    The probe is logistic regression on standardized features with the penalty of `vergence.evaluation.accuracy.linear_probe`.

    Args:
        train: Embeddings (N, D).
        labels: Classes (N,), at least two.
        test: Embeddings (M, D).
        l2: Precision of the prior on each weight, > 0.

    Example:
        >>> z = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
        >>> u = probe_entropy(z, [0, 0, 1, 1], torch.tensor([[0.0], [5.0]]))
        >>> bool(u[0] > u[1])
        True
    """
    from sklearn.linear_model import LogisticRegression

    x, t = _standardized(train, test)
    model = LogisticRegression(C=1 / l2, max_iter=300, tol=1e-3).fit(x, as_array(torch.as_tensor(labels)))
    p = torch.from_numpy(model.predict_proba(t)).double()
    entropy: Tensor = torch.special.entr(p).sum(1)
    return entropy


def loss_head(train: Any, loss: Any, test: Any, *, hidden: int = 128, seed: int = 0) -> Tensor:
    """Returns a loss that a small network predicts from embeddings, (M,): a learned uncertainty as a control.

    The network has one hidden layer, is fitted to the squared error, and stops early on a tenth of the items (Yoo, Kweon,
    "Learning Loss for Active Learning", arXiv:1905.03677, with squared error in place of their ranking loss).

    Args:
        train: Embeddings (N, D) of items that the loss was measured on, N >= 20.
        loss: Their losses (N,), such as 1 - `neighbor_is_right`, or the squared distance of two views.
        test: Embeddings (M, D).
        hidden: Width of the hidden layer.
        seed: Seed of the initialization.

    Example:
        >>> z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
        >>> u = loss_head(z[:300], z[:300, 0].abs(), z[300:])
        >>> bool(torch.corrcoef(torch.stack([u, z[300:, 0].abs().double()]))[0, 1] > 0.5)
        True
    """
    from sklearn.neural_network import MLPRegressor

    x, t = _standardized(train, test)
    target = np.asarray(as_array(torch.as_tensor(loss)), dtype=np.float64)
    scale = target.std() or 1.0
    model = MLPRegressor(
        hidden_layer_sizes=(hidden,), early_stopping=True, random_state=seed, max_iter=200, alpha=1e-3, learning_rate_init=1e-3
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that stops at its last epoch is used as it is
        model.fit(x, (target - target.mean()) / scale)
    predicted: Tensor = torch.from_numpy(np.asarray(model.predict(t), dtype=np.float64)) * scale + target.mean()
    return predicted


def _standardized(train: Any, test: Any) -> tuple[np.ndarray, np.ndarray]:
    x, t = (z if z.is_floating_point() else z.float() for z in map(torch.as_tensor, (train, test)))
    require_features(train=x, test=t)
    mean, scale = x.mean(0), x.std(0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return ((x - mean) / scale).cpu().numpy(), ((t - mean) / scale).cpu().numpy()
