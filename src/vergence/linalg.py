"""Numbers of tensors that every layer may use: factors of covariances, how far a cloud spreads, which points lie close.

Shapes: N items, D features.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["JITTER", "cholesky", "effective_rank", "nearest", "normalised_std", "require_features", "wide"]

JITTER = (0.0, *(10.0**k for k in range(-13, -3)))  # the ladder, in units of the mean of the diagonal


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


def wide(x: Tensor) -> Tensor:
    """Returns half-precision numbers as float32, others as they are: norms, logarithms and sums need that, under autocast too.

    Example:
        >>> wide(torch.ones(2, dtype=torch.bfloat16)).dtype, wide(torch.ones(2, dtype=torch.float64)).dtype
        (torch.float32, torch.float64)
    """
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def cholesky(a: Tensor, *, unit: float | None = None) -> tuple[Tensor, float]:
    r"""Returns the Cholesky factor of a + jitter I, for the least jitter of a ladder that conditions it well, and the jitter.

    Rungs are 0, 1e-13, 1e-12, ..., 1e-4 times the mean of a's diagonal. A factor is taken where it exists and every squared
    L_dd, what is left of entry d once the entries before it are known, is at least 4 D eps of a_dd: less is rounding error.

    Args:
        a: Symmetric positive semidefinite (D, D), or a batch (..., D, D), which shares one rung.
        unit: Of the data: what is below 1e-10 of it is taken for zero and gets rungs of that size. By default a matrix of
            zeros is refused.

    Returns:
        The lower factor L, L L^T = a + jitter I, and the largest jitter that was added, in the units of ``a``; 0.0 where
        none was needed.

    Raises:
        ValueError: ``a`` holds NaN or infinity, has no positive diagonal, or is not positive semidefinite.

    Example:
        >>> L, jitter = cholesky(torch.tensor([[4.0, 2.0], [2.0, 1.0]], dtype=torch.float64))
        >>> bool(jitter > 0), [round(x, 6) for x in (L @ L.T).flatten().tolist()]
        (True, [4.0, 2.0, 2.0, 1.0])
    """
    if not bool(a.isfinite().all()):
        raise ValueError("expected a finite matrix to factorise, found NaN or infinity: check the data for extreme values")
    scale = a.diagonal(dim1=-2, dim2=-1).mean(-1)
    if unit is not None:
        scale = scale.clamp(min=1e-10 * unit)
    if not bool((scale > 0).all()):
        raise ValueError("expected a matrix with a positive diagonal to factorise, found zeros: nothing varies")
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    least = 4 * a.shape[-1] * torch.finfo(a.dtype).eps
    for rung in JITTER:
        b = a + (rung * scale)[..., None, None] * eye if rung else a
        L, failed = torch.linalg.cholesky_ex(b)
        left = L.diagonal(dim1=-2, dim2=-1).square() - least * b.diagonal(dim1=-2, dim2=-1)
        if not bool(failed.any()) and bool((left >= 0).all()):
            return L, rung * float(scale.detach().max())
    found = float(torch.linalg.eigvalsh(a).min())
    raise ValueError(f"expected a positive semidefinite matrix, found the eigenvalue {found:.3g}: it is no covariance")


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
