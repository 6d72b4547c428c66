"""Frozen dataclasses read from JSON, with every type and bound checked once, on reading."""

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["from_json", "read_object", "shortened"]

MAX_BYTES = 64 << 20  # of a JSON file: more is refused before it is parsed
MAX_MESSAGE = 300  # characters of an error that quotes a file
T = TypeVar("T")


def from_json(kind: type[T], raw: Any, name: str = "") -> T:
    """Builds a dataclass from what `json.loads` gave: lists become tuples, objects become dataclasses.

    Keys that the dataclass does not know are ignored, so that a later field does not make a file unreadable.

    Args:
        kind: Dataclass whose fields are numbers, text, booleans, tuples, dictionaries or dataclasses, or None.
        raw: Its JSON object.
        name: What errors call it.

    Raises:
        ValueError: A field is missing, or of another type than the dataclass says.

    Example:
        >>> Point = dataclasses.make_dataclass("Point", [("x", float), ("tags", tuple[str, ...], ())])
        >>> from_json(Point, {"x": 1.5, "tags": ["a"], "later": 0})
        Point(x=1.5, tags=('a',))
        >>> from_json(Point, {"tags": []}, "point")
        Traceback (most recent call last):
        ValueError: point has no 'x'
    """
    name = name or kind.__name__
    if not isinstance(raw, dict):
        raise ValueError(f"expected {name} to be an object, found {_quoted(raw)}")
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(typing.cast(Any, kind)):
        if field.name in raw:
            values[field.name] = _value(hints[field.name], raw[field.name], f"{name}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} has no '{field.name}'")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _value(hint: Any, raw: Any, name: str) -> Any:
    """Returns a field's value: containers and dataclasses are built here, numbers and text are checked by the dataclass."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return None if raw is None else _value(next(part for part in inner if part is not type(None)), raw, name)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(Any, hint), raw, name)
    if origin is dict and isinstance(raw, dict):
        return {_key(inner[0], key, name): _value(inner[1], part, f"{name}.{key}") for key, part in raw.items()}
    if origin is tuple and isinstance(raw, list):
        return tuple(_value(inner[0], part, name) for part in raw)
    return raw


def _key(kind: type, key: str, name: str) -> Any:
    """Returns a key of an object as its dictionary has it: JSON writes numbers as text."""
    if kind is int and not key.isdecimal():
        raise ValueError(f"expected whole numbers as keys of {name}, found {_quoted(key)}")
    return kind(key)


def read_object(file: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds.

    Raises:
        ValueError: The file is too large, is not JSON, or holds something else than an object.
    """
    size = file.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"expected at most {MAX_BYTES:,} bytes, found {size:,}")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {type(found).__name__}")
    return found


def shortened(error: BaseException) -> str:
    """Returns the first line of an error's text, cut where it quotes too much.

    Example:
        >>> len(shortened(ValueError("x" * 1000)))
        303
    """
    text = (str(error) or type(error).__name__).splitlines()[0]
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "..."


def _quoted(raw: Any) -> str:
    return shortened(ValueError(repr(raw)))
