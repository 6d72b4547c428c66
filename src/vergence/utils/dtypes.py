"""Types of NumPy arrays by their numbers, and which values are tensors; without torch."""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor as Tensor
else:
    Tensor = Any

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Singles = npt.NDArray[np.float32]


def is_tensor(x: Any) -> TypeGuard[Tensor]:
    """Returns whether a value is a tensor; where torch is not loaded, none is."""
    return "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor)
