"""Baselines of uncertainties, and Spearman's correlation with the strength of a degradation.

Shapes: N or M items, D features, S strengths. A larger uncertainty means a less certain item.
"""

import io
import warnings
import zlib
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPRegressor
from torch import Tensor


def rank_correlation(uncertainty: Any, strength: Any) -> dict[str, float]:
    """Returns Spearman's correlation of uncertainties (N, S) with the strength of a degradation (S,).

    ``within`` is the mean over items of each item's own correlation, where an item of equal uncertainties counts zero;
    ``pooled`` the correlation over all N S pairs, which differences between items lower. Both are in [-1, 1].
    """
    u, s = (np.asarray(values, dtype=np.float64) for values in (uncertainty, strength))
    own = correlations(rankdata(u, axis=1), np.broadcast_to(rankdata(s), u.shape))
    pooled = correlations(rankdata(u.ravel())[None], rankdata(np.broadcast_to(s, u.shape).ravel())[None])
    return {"within": float(own.mean()), "pooled": float(pooled[0])}


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns Pearson's correlation of each row; 0 where one is constant."""
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    scale, product = np.sqrt((a**2).sum(1) * (b**2).sum(1)), (a * b).sum(1)
    return np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)


def compressed_size(images: Tensor) -> Tensor:
    """Returns the bytes of each item's compressed file, (N,): PNG of images (N, C, H, W) of bytes, zlib of anything else."""
    x = images.cpu().numpy()
    picture = x.ndim == 4 and x.shape[1] in (1, 3) and x.dtype == np.uint8
    sizes = [png(item) if picture else len(zlib.compress(np.ascontiguousarray(item).tobytes())) for item in x]
    return torch.tensor(sizes, dtype=torch.float64)


def png(image: np.ndarray) -> int:
    buffer = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0).copy()).save(buffer, "PNG")
    return buffer.tell()


def probe_entropy(train: Tensor, labels: Tensor, test: Tensor, *, l2: float = 30.0) -> Tensor:
    """Returns the entropy in nats of a linear probe's predictions, (M,): a baseline that needs labels.

    The probe is logistic regression on standardized features, fitted to embeddings (N, D) and classes (N,), with the penalty of
    `vergence.learn.evaluation.accuracy.linear_probe`: ``l2`` is the precision of the prior on each weight.
    """
    x, t = standardized(train, test)
    model = LogisticRegression(C=1 / l2, max_iter=300, tol=1e-3).fit(x, labels.cpu().numpy())
    entropy: Tensor = torch.special.entr(torch.from_numpy(model.predict_proba(t)).double()).sum(1)
    return entropy


def loss_head(train: Tensor, loss: Tensor, test: Tensor, *, hidden: int = 128, seed: int = 0) -> Tensor:
    """Returns a loss that a small network predicts from embeddings, (M,): a learned uncertainty as a baseline.

    The network has one hidden layer, is fitted to the losses (N,) of embeddings (N, D) by the squared error, and stops early on a
    tenth of the items (Yoo, Kweon, "Learning Loss for Active Learning", arXiv:1905.03677, with squared error in place of their
    ranking loss). A loss is 1 - `neighbor_is_right`, for example, or the squared distance of two views.
    """
    x, t = standardized(train, test)
    target = loss.double().cpu().numpy()
    scale, mean = target.std() or 1.0, target.mean()
    settings = {"early_stopping": True, "max_iter": 200, "alpha": 1e-3, "learning_rate_init": 1e-3}
    model = MLPRegressor(hidden_layer_sizes=(hidden,), random_state=seed, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that stops at its last epoch is used as it is
        model.fit(x, (target - mean) / scale)
    return torch.from_numpy(np.asarray(model.predict(t), dtype=np.float64)) * scale + mean


def standardized(train: Tensor, test: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns features of unit deviation and mean zero in the training part."""
    mean, scale = train.mean(0), train.std(0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return ((train - mean) / scale).cpu().numpy(), ((test - mean) / scale).cpu().numpy()
