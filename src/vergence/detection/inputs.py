"""Arrays and tensors on the way in and out: computed as tensors, returned as the kind that was given."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.utils.checks import is_count, shown
from vergence.utils.linalg import as_array, require_features

__all__: list[str] = []

Values = Any  # an array, a tensor, or a sequence of numbers
Seed = int | np.random.Generator | None


def as_values(name: str, values: Values, *, least: int = 1) -> Tensor:
    """Returns scores or p-values as a tensor (N,) of float64 on their device, without gradient.

    Args:
        name: Name in the messages.
        values: (N,), an array, a tensor or a sequence. Infinity is allowed: an item of density zero has it.
        least: Fewest values that make sense.

    Raises:
        ValueError: The values are not of shape (N,), are fewer, or one is not a number.

    Example:
        >>> as_values("scores", [1, 2])
        tensor([1., 2.], dtype=torch.float64)
        >>> as_values("scores", [1.0, float("nan")])
        Traceback (most recent call last):
        ValueError: scores: expected numbers, found NaN in 1 of 2: leave these items out
    """
    x = numeric(name, values).to(torch.float64)
    if x.ndim != 1:
        raise ValueError(
            f"{name}: expected one number for each item, shape (N,), found {tuple(x.shape)}: pass one score or level"
        )
    if len(x) < least:
        raise ValueError(f"{name}: expected at least {least}, found {len(x)}: pass more items")
    missing = int(x.isnan().sum())
    if missing:
        raise ValueError(f"{name}: expected numbers, found NaN in {missing} of {len(x)}: leave these items out")
    return x


def numeric(name: str, values: Any) -> Tensor:
    """Returns numbers of any shape as a tensor without gradient, of the type that they have.

    Raises:
        ValueError: They are not numbers, or not of one shape.

    Example:
        >>> numeric("images", np.zeros((2, 3), np.uint8)).dtype
        torch.uint8
        >>> numeric("scores", ["high"])
        Traceback (most recent call last):
        ValueError: scores: expected an array or tensor of numbers, found list
    """
    if isinstance(values, Tensor) and not values.is_complex():
        return values.detach()
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected an array or tensor of numbers, found {type(values).__name__}")
    return torch.as_tensor(array.astype(np.float64) if array.dtype.kind != "f" and array.dtype != np.uint8 else array.copy())


def features_of(name: str, x: object) -> Tensor:
    """Returns features (N, D) as a tensor of float32 or float64 on their device, checked to be finite.

    Example:
        >>> features_of("features", torch.ones(2, 3, dtype=torch.float16)).dtype
        torch.float32
    """
    z = numeric(name, x)
    z = z if z.dtype == torch.float64 else z.to(torch.float32)
    require_features(**{name: z})
    return z


def images_of(images: Any) -> Tensor:
    """Returns images (N, C, H, W) with 1 or 3 channels as a tensor; bytes or floats.

    Raises:
        ValueError: They have another shape, or there is none.

    Example:
        >>> images_of(np.zeros((2, 5, 4, 4), np.uint8))
        Traceback (most recent call last):
        ValueError: expected images (N, C, H, W) with 1 or 3 channels, found (2, 5, 4, 4): bring them to one shape
    """
    x = numeric("images", images)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or x.numel() == 0:
        raise ValueError(f"expected images (N, C, H, W) with 1 or 3 channels, found {tuple(x.shape)}: bring them to one shape")
    return x if x.dtype == torch.uint8 or x.is_floating_point() else x.float()


def like(given: Values, x: Tensor) -> Any:
    """Returns a tensor if a tensor was given, otherwise an array.

    Example:
        >>> like([1.0], torch.tensor([True]))
        array([ True])
    """
    return x if isinstance(given, Tensor) else x.cpu().numpy()


def require_matching(name: str, values: Any, other: str, n: int) -> None:
    """Raises a ValueError unless there are n values.

    Example:
        >>> require_matching("folds", [0, 1], "calibration", 3)
        Traceback (most recent call last):
        ValueError: expected one of folds for each of the 3 calibration items, found 2
    """
    size = len(values) if hasattr(values, "__len__") and getattr(values, "ndim", 1) != 0 else 0
    if size != n:
        raise ValueError(f"expected one of {name} for each of the {n} {other} items, found {size}")


def require_p_values(p_values: Values) -> Tensor:
    """Returns p-values of one score (m,) as a tensor; raises a ValueError for others and for numbers outside [0, 1]."""
    given = numeric("p_values", p_values)
    if given.ndim == 2:
        raise ValueError(
            f"expected the p-values of one score, (m,), found {tuple(given.shape)}: combine the levels into one score "
            "and calibrate that, since the least of several p-values is not a p-value"
        )
    p = as_values("p_values", given)
    if bool(((p < 0) | (p > 1)).any()):
        raise ValueError(f"expected p-values in [0, 1], found {float(p.min()):g} to {float(p.max()):g}: pass p_values(...)")
    return p


def labels_of(name: str, values: Any, other: str, n: int) -> npt.NDArray[Any]:
    """Returns labels as an array (n,) of numbers or texts.

    Raises:
        ValueError: They are not n labels, or labels of several types.

    Example:
        >>> labels_of("folds", torch.tensor([0, 1]).bfloat16(), "calibration", 2)
        array([0., 1.], dtype=float32)
    """
    labels = as_array(values) if isinstance(values, Tensor) else np.asarray(values)
    require_matching(name, labels, other, n)
    labels = np.asarray(labels.tolist()) if labels.dtype == object else labels
    if labels.ndim != 1 or labels.dtype.kind not in "biufUSM":
        raise ValueError(f"expected {name} ({n},) that are numbers or texts, found {labels.dtype} {labels.shape}: convert them")
    return labels


def generator(random_state: Seed) -> np.random.Generator:
    """Returns a generator of random numbers for a seed; a generator is returned as it is."""
    if not (random_state is None or isinstance(random_state, np.random.Generator) or is_count(random_state, 0)):
        raise ValueError(f"expected random_state to be a whole number, a numpy Generator or None, found {shown(random_state)}")
    return np.random.default_rng(random_state)
