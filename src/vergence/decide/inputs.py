"""Arrays and tensors on the way in and out: computed as tensors, returned as the kind that was given; errors of one line."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.utils.checks import expect, is_count
from vergence.utils.dtypes import Array
from vergence.utils.linalg import as_array, require_features

Values = Any  # an array, a tensor, or a sequence of numbers
Seed = int | np.random.Generator | None


def as_values(name: str, values: Values, *, least: int = 1) -> Tensor:
    """Returns at least ``least`` scores or p-values, of which some may be infinite, as a tensor (N,) of float64 on their device.

    Example:
        >>> as_values("scores", [1.0, float("nan")])
        Traceback (most recent call last):
        ValueError: expected scores that are numbers, found NaN in 1 of 2; leave these items out
    """
    x = numeric(name, values).to(torch.float64)
    expect(x.ndim == 1, f"{name} of shape (N,), one number for each item", tuple(x.shape), "pass one score or level")
    expect(len(x) >= least, f"at least {least} of {name}", len(x), "pass more items")
    missing = int(x.isnan().sum())
    expect(not missing, f"{name} that are numbers", f"NaN in {missing} of {len(x)}", "leave these items out")
    return x


def numeric(name: str, values: Any) -> Tensor:
    """Returns numbers of any shape as a tensor without gradient, of the type that they have."""
    if isinstance(values, Tensor) and not values.is_complex():
        return values.detach()
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    expect(array.dtype.kind in "biuf", f"an array or tensor of numbers as {name}", type(values).__name__)
    return torch.as_tensor(array.astype(np.float64) if array.dtype.kind != "f" and array.dtype != np.uint8 else array.copy())


def features_of(name: str, x: object) -> Tensor:
    """Returns finite features (N, D) as a tensor of float32 or float64 on their device."""
    z = numeric(name, x)
    z = z if z.dtype == torch.float64 else z.to(torch.float32)
    require_features(**{name: z})
    return z


def like(given: Values, x: Tensor) -> Any:
    """Returns a tensor if a tensor was given, otherwise an array."""
    return x if isinstance(given, Tensor) else x.cpu().numpy()


def p_values_of(p_values: Values) -> Tensor:
    """Returns p-values of one score as a tensor (m,) of float64."""
    given = numeric("p_values", p_values)
    advice = "combine the levels into one score and calibrate that, since the least of several p-values is not a p-value"
    expect(given.ndim != 2, "p_values of one score, (m,)", tuple(given.shape), advice)
    p = as_values("p_values", given)
    expect(((p >= 0) & (p <= 1)).all(), "p-values in [0, 1]", f"{float(p.min()):g} to {float(p.max()):g}", "pass p_values(...)")
    return p


def labels_of(name: str, values: Any, n: int) -> Array:
    """Returns labels as an array (n,) of numbers or texts."""
    labels = as_array(values) if isinstance(values, Tensor) else np.asarray(values)
    expect(labels.shape == (n,), f"{name} of shape ({n},), one for each item", labels.shape)
    labels = np.asarray(labels.tolist()) if labels.dtype == object else labels
    expect(labels.ndim == 1 and labels.dtype.kind in "biufUSM", f"{name} that are numbers or texts", labels.dtype, "convert them")
    return labels


def generator(random_state: Seed) -> np.random.Generator:
    """Returns a generator of random numbers for a seed; a generator is returned as it is."""
    usable = random_state is None or isinstance(random_state, np.random.Generator) or is_count(random_state, 0)
    expect(usable, "random_state to be a whole number, a numpy Generator or None", random_state)
    return np.random.default_rng(random_state)
