"""The validator of all rooms, used at the borders: settings, names, arrays, dataclasses and JSON. Inside, code asserts or trusts.

Each error is a ValueError of one line that says what was expected, what was found, and what to do.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Hashable, Iterable
from numbers import Integral, Real
from typing import Any, Literal, NoReturn, TypeVar

__all__ = ["Checked", "as_range", "counted", "did_you_mean", "expect", "from_json", "is_count", "is_out_of_memory", "refuse"]
__all__ += ["require_array", "require_choice", "require_count", "require_numbers", "require_within", "shortened", "shown"]

LARGEST = 2**63 - 1  # of a whole number that arrays can hold
EXACT = 2**53  # whole numbers up to this one are exact in float64
LONGEST = 80  # characters of a value in a message
MAX_MESSAGE = 300  # characters of an error that quotes a file
MANY, NEAREST = 60, 5  # of more choices than MANY, a message lists the nearest
T = TypeVar("T")


def expect(condition: Any, expected: str, found: Any = None, advice: str = "") -> None:
    """Raises a ValueError unless a condition holds: what was expected, what was found (text as it is), what to do.

    Example:
        >>> expect(2 > 1, "two items")
        >>> expect(1 > 2, "two views of as many items", (3, 4), "pass both of one batch")
        Traceback (most recent call last):
        ValueError: expected two views of as many items, found (3, 4); pass both of one batch
    """
    if not condition:
        refuse(expected, found, advice)


def refuse(expected: str, found: Any = None, advice: str = "") -> NoReturn:
    """Raises a ValueError that says what was expected, what was found (text as it is), and what to do."""
    text = "" if found is None else f", found {found if isinstance(found, str) else shown(found)}"
    raise ValueError(f"expected {expected}{text}{advice and '; '}{advice}")


# Words of messages


def shown(value: Any) -> str:
    """Returns a value as Python shows it, in one line that is cut where it is long, for messages.

    Example:
        >>> import numpy as np
        >>> shown("a"), shown(np.eye(2)), len(shown(np.arange(900.0)))
        ("'a'", 'array([[1., 0.], [0., 1.]])', 80)
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def shortened(error: BaseException) -> str:
    """Returns the first line of an error's text, cut where it quotes too much."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "..."


def counted(n: int, noun: str) -> str:
    """Returns a number and its noun, in the plural unless the number is 1.

    Example:
        >>> counted(1, "item"), counted(1200, "item")
        ('1 item', '1,200 items')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def in_percent(share: float, *, bound: bool = False) -> str:
    """Returns a share as people read it, such as 2.5 %; an upper ``bound`` is rounded up to two digits.

    Example:
        >>> in_percent(0.125), in_percent(0.04815, bound=True)
        ('12.5 %', '4.9 %')
    """
    unit = 10.0 ** (math.floor(math.log10(share)) - 1) if bound and share > 0 else 0.0
    return f"{100 * (math.ceil(share / unit * (1 - 1e-9)) * unit if unit else share):.4g} %"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Returns "did you mean 'NAME'?" for the nearest of some names, or an empty string where none is near.

    Example:
        >>> did_you_mean("--frd", ["--fpr", "--fdr"]), did_you_mean("xyz", ["resnet18", "mlp"])
        ("did you mean '--fdr'?", '')
    """
    near = difflib.get_close_matches(str(name), list(choices), n=NEAREST)
    best = min(near, key=lambda other: sorted(other) != sorted(str(name)), default="")  # letters that changed places come first
    return f"did you mean '{best}'?" if best else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether memory ran out; torch reports that of the CPU as a RuntimeError like any other."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("allocate memory", "out of memory"))


# Settings


def require_choice(name: str, value: Any, choices: Iterable[Any], hint: str = "", *, also: Iterable[str] = ()) -> None:
    """Raises a ValueError unless ``value`` is one of some choices; the error names the nearest one.

    Where no choice is near it gives the hint; names in ``also`` are suggested, too, and not listed.

    Example:
        >>> require_choice("loss", "mi_lk", ["mi_kl", "naive"])
        Traceback (most recent call last):
        ValueError: expected loss among mi_kl, naive, found 'mi_lk'; did you mean 'mi_kl'?
    """
    choices = list(choices)
    if isinstance(value, Hashable) and value in set(choices):  # arrays and matrices are not compared with the choices
        return
    names = list(map(str, choices))
    advice = did_you_mean(str(value), [*names, *also]) or hint
    if len(names) > MANY:
        near = difflib.get_close_matches(str(value), names, n=NEAREST, cutoff=0.0)
        names = [*near, f"and {len(names) - len(near)} others"]
    refuse(f"{name} among {', '.join(names)}", shown(value), advice)


def is_count(value: Any, least: int) -> bool:
    """Returns whether a setting is a whole number, and large enough.

    Example:
        >>> is_count(2, 1), is_count(0, 1), is_count(2.0, 1), is_count(True, 1)
        (True, False, False, False)
    """
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def require_count(least: int = 1, most: int = LARGEST, **settings: Any) -> None:
    """Raises a ValueError unless every setting is a whole number of at least ``least``, and at most ``most``.

    Example:
        >>> require_count(n_components=0)
        Traceback (most recent call last):
        ValueError: expected n_components to be a whole number of at least 1, found 0
    """
    for name, value in settings.items():
        expect(is_count(value, least), f"{name} to be a whole number of at least {least}", shown(value))
        expect(value <= most, f"{name} of at most {most:,}", shown(value))


def require_within(interval: str, **settings: Any) -> None:
    """Raises a ValueError unless every setting lies in an interval, written as in ``"[0, 1)"`` or ``"(0, inf)"``.

    Example:
        >>> require_within("[0, 1)", momentum=1.0)
        Traceback (most recent call last):
        ValueError: expected momentum in [0, 1), found 1.0
        >>> require_within("(0, inf)", eta=0)
        Traceback (most recent call last):
        ValueError: expected eta > 0, found 0
        >>> require_within("(0, 1)", fdr=10)
        Traceback (most recent call last):
        ValueError: expected fdr in (0, 1), found 10; for 10 % write 0.1
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    bounds = f"in {interval}" if high < math.inf else f"> {low:g}" if interval[0] == "(" else f"of at least {low:g}"
    for name, value in settings.items():
        fits = not isinstance(value, Integral) or abs(int(value)) <= LARGEST
        expect(fits, f"{name} below 2^63 where it is a whole number", value, "write it as a float")
        inside = _is_number(value) and (low <= value if interval[0] == "[" else low < value)
        percent = _is_number(value) and interval[0] == "(" and 0 == low < high <= 1 < value <= 100
        advice = f"for {value:g} % write {value / 100:g}" if percent else ""
        expect(inside and (value <= high if interval[-1] == "]" else value < high), f"{name} {bounds}", shown(value), advice)


def as_range(name: str, value: Any, most: float = math.inf) -> tuple[float, float]:
    """Returns a range as two floats; raises a ValueError unless it is a pair with 0 < smallest <= largest <= most.

    Example:
        >>> as_range("local_crop", [0.05, 0.4], 1)
        (0.05, 0.4)
    """
    pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_number, value))
    fits = pair and 0 < value[0] <= value[1] <= most and value[1] < LARGEST
    bound = "" if most == math.inf else f" <= {most:g}"
    expect(fits, f"{name} to be two numbers 0 < smallest <= largest{bound}", shown(value), f"change {name}")
    return float(value[0]), float(value[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


# Arrays


def require_array(name: str, x: Any, *shape: str | int, finite: bool = True) -> None:
    """Raises a ValueError unless an array or tensor has a shape, and ``finite`` values.

    In the shape a letter stands for any length of at least 1, "..." in the first place for any axes.

    Example:
        >>> import numpy as np
        >>> require_array("contexts", np.ones(5), "N", 3)
        Traceback (most recent call last):
        ValueError: expected contexts of shape (N, 3), found shape (5,)
        >>> require_array("contexts", np.full((2, 1), np.nan), "N", "C")
        Traceback (most recent call last):
        ValueError: expected finite contexts, found NaN or infinity in 2 of 2 values; leave these items out
    """
    sizes = tuple(x.shape)
    axes, last = (shape[1:], sizes[max(0, len(sizes) - len(shape) + 1) :]) if shape[0] == "..." else (shape, sizes)
    pairs = zip(axes, last, strict=False)
    fits = len(axes) == len(last) and all(n >= 1 if isinstance(axis, str) else n == axis for axis, n in pairs)
    form = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
    expect(fits, f"{name} of shape {form}", f"shape {sizes}")
    if finite and (bad := int(((x != x) | (x == math.inf) | (x == -math.inf)).sum())):
        refuse(f"finite {name}", f"NaN or infinity in {bad:,} of {math.prod(sizes):,} values", "leave these items out")


def require_numbers(x: Any) -> None:
    """Raises a ValueError if x is an array of records or dates, which NumPy does not convert to numbers."""
    dtype = getattr(x, "dtype", None)
    expect(getattr(dtype, "kind", "") not in {"V", "m", "M"}, "numbers", f"an array of type {dtype}", "convert it")


# Dataclasses


class Checked:
    """A dataclass base that raises a ValueError for fields of another type, or out of their bounds in ``least`` and ``most``.

    With ``finite``, for numbers that are not, too, which JSON cannot hold.
    """

    finite: typing.ClassVar[bool] = False
    least: typing.ClassVar[dict[str, float]] = {}
    most: typing.ClassVar[dict[str, float]] = {}

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(typing.cast(Any, self)):
            name, hint, value = field.name, hints[field.name], getattr(self, field.name)
            if not _fits(value, hint):
                wanted = _described(hint)
                single = "..." in wanted and _fits(value, float)
                refuse(f"{name} to be {wanted}", shown(value), f"write {name}=({shown(value)},)" if single else "")
            low, high = self.least.get(name, -math.inf), self.most.get(name, math.inf)
            expect(name not in self.least or value is None or value >= low, f"{name} of at least {low:g}", shown(value))
            expect(name not in self.most or value is None or value <= high, f"{name} of at most {high:,}", shown(value))
            numbers = value if isinstance(value, tuple) else (value,)
            finite = all(math.isfinite(number) for number in numbers if isinstance(number, float))
            expect(finite or not self.finite, f"{name} to be finite", shown(value))


def _fits(value: Any, hint: Any) -> bool:
    """Returns whether a value has a type, of which ``float`` takes whole numbers and none takes truth values for numbers."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        parts = inner[:1] * len(value) if isinstance(value, tuple) and inner[-1] is Ellipsis else inner
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _described(hint: Any) -> str:
    """Returns a type in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_described(part) for part in inner)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin is tuple:
        return "numbers (a, b, ...)" if inner[-1] is Ellipsis else f"{len(inner)} numbers ({', '.join('abcd'[: len(inner)])})"
    names = {int: "a whole number", float: "a number", str: "text", bool: "True or False", type(None): "None"}
    names |= {dict: "a dictionary"}
    return names.get(origin or hint, str(hint))


def from_json(kind: type[T], raw: Any, name: str = "") -> T:
    """Builds a dataclass from what `json.loads` gave: lists become tuples, objects become dataclasses.

    Keys that the dataclass does not know are ignored, so that a later field does not make a file unreadable. A field that is
    missing, or of another type, is a ValueError, which calls the object ``name``.

    Example:
        >>> Point = dataclasses.make_dataclass("Point", [("x", float), ("tags", tuple[str, ...], ())])
        >>> from_json(Point, {"x": 1.5, "tags": ["a"], "later": 0})
        Point(x=1.5, tags=('a',))
        >>> from_json(Point, {"tags": []}, "point")
        Traceback (most recent call last):
        ValueError: point has no 'x'
    """
    name = name or kind.__name__
    expect(isinstance(raw, dict), f"{name} to be an object", shown(raw))
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
    if origin is dict and isinstance(raw, dict):  # JSON writes numbers as text
        keys = inner[0] is not int or all(key.isdecimal() for key in raw)
        expect(keys, f"whole numbers as keys of {name}", shown(raw))
        return {inner[0](key): _value(inner[1], part, f"{name}.{key}") for key, part in raw.items()}
    if origin is tuple and isinstance(raw, list):
        return tuple(_value(inner[0], part, name) for part in raw)
    return raw
