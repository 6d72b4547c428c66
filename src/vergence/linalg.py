"""Numbers of tensors that every layer may use: how far a cloud of features spreads, and which of its points lie close.

Shapes: N items, D features.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["effective_rank", "nearest", "normalised_std", "require_features"]


def require_features(**named: Tensor) -> None:
    """Refuses what is not a finite matrix of features.

    Args:
        named: Tensors by the name that the message gives them; all must have the same number of features.

    Raises:
        ValueError: A tensor is not of shape (N, D) with N, D >= 1, holds NaN or infinite values, or differs in D.

    Example:
        >>> require_features(train=torch.ones(3, 2), test=torch.ones(1, 2))
        >>> require_features(train=torch.ones(3))
        Traceback (most recent call last):
        ValueError: train: expected features of shape (N, D) with N, D >= 1, found (3,): flatten items and pass at least one
    """
    for name, z in named.items():
        if z.ndim != 2 or z.numel() == 0:
            raise ValueError(
                f"{name}: expected features of shape (N, D) with N, D >= 1, "
                f"found {tuple(z.shape)}: flatten items and pass at least one"
            )
        bad = int((~z.isfinite()).any(1).sum())
        if bad:
            raise ValueError(f"{name}: expected finite features, found NaN or infinity in {bad} of {len(z)} rows: leave them out")
    widths = {name: z.shape[1] for name, z in named.items()}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise ValueError(f"expected the same number of features D, found {found}: use one encoder for all")


def effective_rank(z: Tensor) -> Tensor:
    r"""Returns how many directions the features use: the exponential of the entropy of the covariance's spectrum.

        exp(- sum_k p_k ln p_k),   p_k = lambda_k / sum_l lambda_l,   lambda = eigenvalues of the centred covariance

    Source: the effective rank of a matrix (2007), here of the covariance, whose eigenvalues are squared singular values.
    Computed in float64 from the smaller of the two Gram matrices: O(N D min(N, D)).

    Args:
        z: Features (N, D).

    Returns:
        A scalar in [1, min(N - 1, D)]; 0.0 where all points are equal (N = 1 among them).

    Raises:
        ValueError: The features are not a finite matrix.

    Example:
        >>> corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
        >>> round(effective_rank(corners).item(), 3), round(effective_rank(corners[:2]).item(), 3)
        (2.0, 1.0)
    """
    require_features(z=z)
    c = z.double() - z[0].double()  # equal points become exact zeros, which subtracting a rounded mean would not give
    c = c / c.abs().max().clamp(min=torch.finfo(c.dtype).tiny)
    c = c - c.mean(0)
    gram = c.T @ c if z.shape[1] <= len(z) else c @ c.T
    lam: Tensor = torch.linalg.eigvalsh(gram).clamp(min=0)
    total = lam.sum()
    p = lam / total.clamp(min=torch.finfo(c.dtype).tiny)
    rank: Tensor = torch.special.entr(p).sum().exp() * (total > 0)
    return rank.to(z.dtype)


def normalised_std(z: Tensor) -> Tensor:
    r"""Returns each feature's spread over the batch, measured on the sphere: sqrt(D) std_n(z_nd / max(|z_n|, 1e-6)).

    The deviation is the population's (divided by N).

    Args:
        z: Features (N, D).

    Returns:
        (D,): 1 for directions spread evenly over the sphere, 0 where all directions are equal. The mean square over
        features never exceeds 1.

    Example:
        >>> z = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -5.0]])
        >>> [round(s, 3) for s in normalised_std(z).tolist()]
        [1.0, 1.0]
    """
    u: Tensor = F.normalize(z, dim=1, eps=1e-6)
    spread: Tensor = u.std(0, correction=0) * z.shape[1] ** 0.5
    return spread


def nearest(train: Tensor, test: Tensor, k: int, block: int = 2048) -> tuple[Tensor, Tensor]:
    """Returns the k training items nearest to each test item by cosine similarity, the nearest first.

    Beyond the answer, memory is for one table of ``block`` test items by 8 ``block`` training items. A zero vector has
    similarity 0 to everything. The order among equal similarities is not defined.

    Args:
        train: Features (N, D).
        test: Features (M, D), on the same device.
        k: Neighbours, 1 to N.
        block: Test items at a time.

    Returns:
        The similarities (M, k) in [-1, 1] and the indices (M, k) into ``train``.

    Raises:
        ValueError: The features are not finite matrices of one width, or k is out of range.

    Example:
        >>> similarity, index = nearest(torch.eye(3), torch.tensor([[0.0, 3.0, 4.0]]), k=2)
        >>> [round(s, 2) for s in similarity[0].tolist()], index[0].tolist()
        ([0.8, 0.6], [2, 1])
    """
    require_features(train=train, test=test)
    if not 1 <= k <= len(train):
        raise ValueError(f"expected k from 1 to the {len(train)} training items, found {k}: lower k or pass more items")
    bank = F.normalize(train, dim=1)
    parts = [_nearest(bank, F.normalize(part, dim=1), k, 8 * block) for part in torch.split(test, block)]
    return torch.cat([s for s, _ in parts]).clamp(-1, 1), torch.cat([i for _, i in parts])


def _nearest(bank: Tensor, query: Tensor, k: int, block: int) -> tuple[Tensor, Tensor]:
    """Returns the k best of the bank, found block by block."""
    best = query.new_empty(len(query), 0), torch.empty(len(query), 0, dtype=torch.long, device=query.device)
    for start in range(0, len(bank), block):
        similarity, index = _top(query @ bank[start : start + block].T, k)
        similarity, index = torch.cat([best[0], similarity], 1), torch.cat([best[1], index + start], 1)
        similarity, order = _top(similarity, k)
        best = similarity, index.gather(1, order)
    return best


def _top(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, index = similarity.topk(min(k, similarity.shape[1]), dim=1)
    return values, index
