"""Reads PyTorch files without running code of theirs; imports torch on the first call."""

import struct
import warnings
from pathlib import Path
from typing import Any

from vergence.utils.records import shortened

__all__ = ["read_pytorch"]

# of torch, where a file is damaged
ERRORS = (EOFError, RuntimeError, TypeError, AttributeError, LookupError, AssertionError, ArithmeticError, struct.error)


def read_pytorch(file: Path) -> Any:
    """Returns the tensors, numbers and text of a PyTorch file, on the CPU; runs no code of the file's.

    Raises:
        pickle.UnpicklingError: It holds something else, which is not loaded. The message tells how to run the code.
        ValueError: It is damaged; the message is one line.
        OSError: It cannot be read.
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that torch did not write
            return torch.load(file, map_location="cpu", weights_only=True)
    except ERRORS as error:
        raise ValueError(shortened(error)) from None
