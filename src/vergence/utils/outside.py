"""What comes from outside and is not trusted: code by name, JSON objects, PyTorch files; torch is imported on the first call."""

import hashlib
import importlib
import json
import struct
import warnings
from pathlib import Path
from typing import Any

from vergence.utils.checks import expect, shortened

__all__ = ["give", "is_given", "load_outside", "read_object", "read_pytorch"]

MAX_BYTES = 64 << 20  # of a JSON file: more is refused before it is parsed
# of torch, where a file is damaged
ERRORS = (EOFError, RuntimeError, TypeError, AttributeError, LookupError, AssertionError, ArithmeticError, struct.error)


_given: dict[str, Any] = {}  # code that the program itself gave, by the name that a run's description has for it


def give(value: Any, name: str | None = None) -> str:
    """Keeps code that the program gives, so that `load_outside` finds it and imports nothing; returns its name.

    Args:
        value: A class or a function, which is named ``module:Name``, or an object, whose name ends with a digest of its text.
        name: Another name.

    Example:
        >>> give(dict), is_given("builtins:dict"), load_outside("objective", "builtins:dict", "")
        ('builtins:dict', True, <class 'dict'>)
    """
    if name is None:
        kind = value if hasattr(value, "__qualname__") else type(value)
        name = f"{kind.__module__}:{kind.__qualname__}"
        name += "" if kind is value else f"#{hashlib.blake2b(repr(value).encode(), digest_size=4).hexdigest()}"
    _given[name] = value
    return name


def is_given(name: str) -> bool:
    """Returns whether the program gave the code of a name."""
    return name in _given


def load_outside(what: str, name: str, expected: str) -> Any:
    """Returns the object of a name ``package.module:attribute``, or what the program gave under it.

    Importing runs the module, so the name has to be trusted.

    Where there is none, the error calls it ``what``, for instance an objective, and shows the ``expected`` form of the name.

    Example:
        >>> load_outside("encoder", "math:sqrt", "package.module:factory")(4)
        2.0
    """
    if name in _given:
        return _given[name]
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        itself = f"{module}.".startswith(f"{error.name}.")  # the module that is named, not one that it imports
        advice = ": install the package, or put its folder on PYTHONPATH" if itself else ""
        raise ValueError(f"cannot import {what} '{name}': {error}; expected '{expected}'{advice}") from None
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"cannot import {what} '{name}': {error}; expected '{expected}'") from None


def read_object(file: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds; a file that is too large, or holds something else, is a ValueError."""
    size = file.stat().st_size
    expect(size <= MAX_BYTES, f"at most {MAX_BYTES:,} bytes", f"{size:,}")
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    expect(isinstance(content, dict), "an object", type(content).__name__)
    return dict(content)


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


def _whole(digits: str) -> int | float:
    """Returns a whole number; one that no counter holds as a float, which counts are not."""
    return int(digits) if len(digits) < 20 else float(digits)
