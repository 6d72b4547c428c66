"""Arrays and tensors on the way in and out: returned as the kind that was given.

What cannot be meant is a ValueError of one line.
"""

import sys
from typing import Any

import numpy as np

from vergence.utils.checks import expect, is_count
from vergence.utils.dtypes import Array, Floats, Tensor, is_tensor

Values = Any  # an array, a tensor, or a sequence of numbers
Seed = int | np.random.Generator | None


def as_values(name: str, values: Values, *, least: int = 1) -> Floats:
    """Returns at least ``least`` scores or p-values (N,), of which some may be infinite.

    Example:
        >>> as_values("scores", [1.0, float("nan")])
        Traceback (most recent call last):
        ValueError: expected scores that are numbers, found NaN in 1 of 2; leave these items out
    """
    x = array_of(name, values).astype(np.float64)
    expect(x.ndim == 1, f"{name} of shape (N,), one number for each item", tuple(x.shape), "pass one score or level")
    expect(len(x) >= least, f"at least {least} of {name}", len(x), "pass more items")
    missing = int(np.isnan(x).sum())
    expect(not missing, f"{name} that are numbers", f"NaN in {missing} of {len(x)}", "leave these items out")
    return x


def array_of(name: str, values: Any) -> Array:
    """Returns numbers of any shape as an array of floats or bytes, of a tensor of the type that it has."""
    if is_tensor(values) and not values.is_complex():
        from vergence.utils.linalg import as_array

        return np.asarray(as_array(values))
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    expect(array.dtype.kind in "biuf", f"an array or tensor of numbers as {name}", type(values).__name__)
    return array.astype(np.float64) if array.dtype.kind != "f" and array.dtype != np.uint8 else array


def numeric(name: str, values: Any) -> Tensor:
    """Returns numbers of any shape as a tensor without gradient, of the type that they have."""
    import torch

    return values.detach() if is_tensor(values) and not values.is_complex() else torch.as_tensor(array_of(name, values).copy())


def like(given: Values, x: Array) -> Any:
    """Returns an array, or a tensor on its device if a tensor was given."""
    return sys.modules["torch"].from_numpy(x).to(given.device) if is_tensor(given) else x


def p_values_of(p_values: Values) -> Floats:
    """Returns p-values of one score (m,)."""
    given = array_of("p_values", p_values)
    advice = "combine the levels into one score and calibrate that, since the least of several p-values is not a p-value"
    expect(given.ndim != 2, "p_values of one score, (m,)", tuple(given.shape), advice)
    p = as_values("p_values", given)
    expect(((p >= 0) & (p <= 1)).all(), "p-values in [0, 1]", f"{float(p.min()):g} to {float(p.max()):g}", "pass p_values(...)")
    return p


def labels_of(name: str, values: Any, n: int) -> Array:
    """Returns labels as an array (n,) of numbers or texts."""
    labels = array_of(name, values) if is_tensor(values) else np.asarray(values)
    expect(labels.shape == (n,), f"{name} of shape ({n},), one for each item", labels.shape)
    labels = np.asarray(labels.tolist()) if labels.dtype == object else labels
    expect(labels.ndim == 1 and labels.dtype.kind in "biufUSM", f"{name} that are numbers or texts", labels.dtype, "convert them")
    return labels


def generator(random_state: Seed) -> np.random.Generator:
    """Returns a generator of random numbers for a seed; a generator is returned as it is."""
    usable = random_state is None or isinstance(random_state, np.random.Generator) or is_count(random_state, 0)
    expect(usable, "random_state to be a whole number, a numpy Generator or None", random_state)
    return np.random.default_rng(random_state)
