"""Linear algebra that several packages share: checks of feature matrices, float32 for half, Cholesky factors.

Shapes: N items, D features.
"""

from typing import Any

import torch
from torch import Tensor

from vergence.utils.checks import expect, refuse, require_array

__all__ = ["as_array", "as_float", "cholesky", "covariance_cholesky", "require_features", "require_symmetric", "upcast_half"]

JITTER = (0.0, *(10.0**k for k in range(-13, -3)))  # the ladder, in units of the mean of the diagonal


def require_features(**named: Tensor) -> None:
    """Raises a ValueError unless every tensor is a finite matrix of features (N, D), N, D >= 1, all of one width."""
    for name, z in named.items():
        require_array(name, z, "N", "D")
    widths = {name: z.shape[1] for name, z in named.items()}
    found = ", ".join(f"{name} {width}" for name, width in widths.items())
    expect(len(set(widths.values())) == 1, "the same number of features D", found, "use one encoder for all")


def as_float(x: Tensor) -> Tensor:
    """Returns whole numbers, bfloat16 and float16 as float32, others unchanged.

    Example:
        >>> as_float(torch.ones(2, dtype=torch.int64)).dtype, as_float(torch.ones(2, dtype=torch.float64)).dtype
        (torch.float32, torch.float64)
    """
    return upcast_half(x) if x.is_floating_point() else x.float()


def upcast_half(x: Tensor) -> Tensor:
    """Returns bfloat16 and float16 tensors as float32, others unchanged, for norms, logarithms and sums (also under autocast).

    Example:
        >>> upcast_half(torch.ones(2, dtype=torch.bfloat16)).dtype, upcast_half(torch.ones(2, dtype=torch.float64)).dtype
        (torch.float32, torch.float64)
    """
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def as_array(x: Tensor) -> Any:
    """Returns a tensor of any device as an array; bfloat16, which NumPy lacks, as float32.

    Example:
        >>> as_array(torch.ones(2, dtype=torch.bfloat16)).dtype
        dtype('float32')
    """
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def require_symmetric(a: Tensor) -> None:
    """Raises a ValueError unless (..., D, D) matrices are symmetric up to rounding.

    The tolerance is sqrt(eps) of the type, relative to the square roots of the two diagonal entries.
    """
    square = a.ndim >= 2 and a.shape[-1] == a.shape[-2]
    expect(square, "a square covariance (..., D, D)", f"shape {tuple(a.shape)}", "pass one row per feature")
    difference = (a - a.mT).detach().abs()
    scale = a.detach().diagonal(dim1=-2, dim2=-1).abs().sqrt()
    if bool((difference > torch.finfo(a.dtype).eps ** 0.5 * scale[..., None] * scale[..., None, :]).any()):
        found = f"entries that differ by {float(difference.max()):.3g} across the diagonal"
        refuse("a symmetric covariance", found, "pass (S + S.mT) / 2")


def cholesky(a: Tensor, *, unit: float | None = None) -> tuple[Tensor, float]:
    r"""Returns the Cholesky factor of a + jitter I, with the smallest jitter that conditions it well, and the jitter.

    Jitters are 0, 1e-13, 1e-12, ..., 1e-4 times the mean of a's diagonal. A factor is accepted if it exists and every squared
    L_dd, the variance of entry d given the entries before it, is at least 4 D eps of a_dd: less is rounding error. For a
    covariance of features in different units use `covariance_cholesky`.

    The matrix (D, D) is symmetric and positive semidefinite; those of a batch (..., D, D) share one step of the ladder, and the
    largest jitter is returned, in the units of ``a``. A mean diagonal below 1e-10 of ``unit``, a common variance of the data, is
    replaced by that; without it zeros are an error.
    """
    scale = _mean_variance(a)
    if unit is not None:
        scale = scale.clamp(min=1e-10 * unit)
    expect(bool((scale > 0).all()), "a matrix with a positive diagonal to factorize", "zeros", "nothing varies")
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for jitter in JITTER:
        L = _well_conditioned(a + (jitter * scale)[..., None, None] * eye if jitter else a)
        if L is not None:
            return L, jitter * float(scale.detach().max())
    smallest = float(torch.linalg.eigvalsh(a).min())
    found = f"a matrix that is not positive semidefinite (smallest eigenvalue {smallest:.3g})"
    raise ValueError(f"expected a covariance, found {found}; check the data")


def covariance_cholesky(S: Tensor) -> tuple[Tensor, float]:
    r"""Returns the Cholesky factor of S + jitter diag(S), with the smallest jitter that conditions it well, and the jitter.

    The jitter is added to the correlations, whatever the features' units: a feature of deviation 0.1 keeps its variance next to
    one of 1e6. A feature of variance zero gets the mean variance for its unit. Where no jitter is needed this is `cholesky`, with
    which it shares what it takes; the jitter has no unit, and is at most 1e-4.
    """
    mean = _mean_variance(S)
    L = _well_conditioned(S)
    if L is not None:
        return L, 0.0
    variance = S.detach().diagonal(dim1=-2, dim2=-1)
    scale = torch.where(variance > 0, variance, mean.detach()[..., None]).clamp(min=0).sqrt()
    expect(bool((scale > 0).all()), "a matrix with a positive diagonal to factorize", "zeros", "nothing varies")
    L, jitter = cholesky(S / scale[..., None] / scale[..., None, :])
    return scale[..., None] * L, jitter


def _mean_variance(a: Tensor) -> Tensor:
    """Returns the mean of the diagonal of finite matrices (..., D, D)."""
    finite = bool(a.isfinite().all())
    expect(finite, "a finite matrix to factorize", "NaN or infinity", "check the data for extreme values")
    return a.diagonal(dim1=-2, dim2=-1).mean(-1)


def _well_conditioned(a: Tensor) -> Tensor | None:
    """Returns the Cholesky factors of matrices (..., D, D), or None where one fails or has a pivot of rounding size."""
    L, failed = torch.linalg.cholesky_ex(a)
    least = 4 * a.shape[-1] * torch.finfo(a.dtype).eps
    excess = L.diagonal(dim1=-2, dim2=-1).square() - least * a.diagonal(dim1=-2, dim2=-1)
    return None if bool(failed.any()) or not bool((excess >= 0).all()) else L
