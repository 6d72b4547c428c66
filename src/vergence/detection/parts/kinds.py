"""Arrays and tensors on the way in and out: computed as tensors, returned as the kind that was given."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Seed", "Values", "as_values", "generator", "like", "require_matching", "uniforms"]

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
    x = values.detach() if isinstance(values, Tensor) else torch.as_tensor(np.array(values, dtype=np.float64))
    x = x.to(torch.float64)
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
    if len(values) != n:
        raise ValueError(f"expected one of {name} for each of the {n} {other} items, found {len(values)}")


def generator(random_state: Seed) -> np.random.Generator:
    """Returns a generator of random numbers for a seed; a generator is returned as it is."""
    return np.random.default_rng(random_state)


def uniforms(n: int, random_state: Seed, like: Tensor) -> Tensor:
    """Returns n uniform numbers of [0, 1) on the device of a tensor."""
    u: npt.NDArray[np.float64] = generator(random_state).random(n)
    return torch.from_numpy(u).to(like.device)
