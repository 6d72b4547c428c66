"""Numbers of tensors that every layer may use: factors of covariances, how far a cloud spreads, which points lie close.

Shapes: N items, D features.
"""

import torch
from torch import Tensor

__all__ = ["JITTER", "cholesky", "require_features", "upcast_half"]

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


def upcast_half(x: Tensor) -> Tensor:
    """Returns half-precision numbers as float32, others as they are: norms, logarithms and sums need that, under autocast too.

    Example:
        >>> upcast_half(torch.ones(2, dtype=torch.bfloat16)).dtype, upcast_half(torch.ones(2, dtype=torch.float64)).dtype
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
        raise ValueError("expected a finite matrix to factorize, found NaN or infinity: check the data for extreme values")
    scale = a.diagonal(dim1=-2, dim2=-1).mean(-1)
    if unit is not None:
        scale = scale.clamp(min=1e-10 * unit)
    if not bool((scale > 0).all()):
        raise ValueError("expected a matrix with a positive diagonal to factorize, found zeros: nothing varies")
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
