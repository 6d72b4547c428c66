"""Checks that several rooms share; each error says what was expected, what was found and what to do."""

import types
import typing
from typing import Any, Literal

__all__ = ["Checked"]


class Checked:
    """Refuses a field whose value is not of its type, or is below its least one."""

    least: typing.ClassVar[dict[str, float]] = {}

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            if name == "least":
                continue
            value = getattr(self, name)
            if not _fits(value, hint):
                raise ValueError(f"expected {name} to be {_spoken(hint)}, found {value!r}")
            if name in self.least and value is not None and not value >= self.least[name]:
                raise ValueError(f"expected {name} of at least {self.least[name]:g}, found {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        parts = inner[:1] * len(value) if isinstance(value, tuple) and inner[-1] is Ellipsis else inner
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _spoken(hint: Any) -> str:
    """Returns a type as people say it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_spoken(part) for part in inner)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin is tuple:
        return "numbers (a, b, ...)" if inner[-1] is Ellipsis else f"{len(inner)} numbers ({', '.join('abcd'[: len(inner)])})"
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "True or False",
        type(None): "None",
        dict: "a dictionary",
    }
    return names.get(origin or hint, str(hint))
