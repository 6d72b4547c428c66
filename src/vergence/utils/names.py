"""Names in messages: the nearest known one where an unknown one was given, names in quotes, and counted nouns."""

import difflib
from collections.abc import Iterable

__all__ = ["counted", "did_you_mean", "quoted", "unknown"]

MAX_NAME = 100  # characters of a name in a message
MANY, NEAREST = 60, 5  # of more known names than MANY, a message lists the nearest


def counted(n: int, noun: str) -> str:
    """Returns a number and its noun, in the plural unless the number is 1.

    Example:
        >>> counted(1, "item"), counted(1200, "item")
        ('1 item', '1,200 items')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean 'NAME'?" for the nearest known name, or an empty string where none is near.

    Example:
        >>> did_you_mean("resnet81", ["resnet18", "mlp"]), did_you_mean("xyz", ["resnet18", "mlp"])
        ("did you mean 'resnet18'?", '')
    """
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"did you mean '{near[0]}'?" if near else ""


def quoted(name: str) -> str:
    r"""Returns a name in quotes for a message of one line: control characters are escaped, and a long name is cut.

    Example:
        >>> print(quoted("resnet81"), quoted("two\nlines"), len(quoted("-" * 3000)))
        'resnet81' 'two\nlines' 100
    """
    text = repr(name)
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 4]}...'"


def unknown(what: str, name: str, known: Iterable[str], hint: str = "", *, also: Iterable[str] = ()) -> ValueError:
    """Returns the error for an unknown name: what was expected, what was found, and the nearest known name or else a hint.

    Args:
        what: The kind of thing that is named, for instance ``recipe``.
        name: The name that was given.
        known: Names that exist.
        hint: What to do where no known name is near.
        also: Names that are suggested, too, and not listed.

    Example:
        >>> unknown("encoder", "resnet81", ["mlp", "resnet18"])
        ValueError("expected an encoder among mlp, resnet18, found 'resnet81'; did you mean 'resnet18'?")
    """
    known = list(known)
    article = "an" if what[0] in "aeiou" else "a"
    last = did_you_mean(name, [*known, *also]) or hint
    listed = known
    if len(known) > MANY:
        near = difflib.get_close_matches(str(name), known, n=NEAREST, cutoff=0.0)
        listed = [*near, f"and {len(known) - len(near)} others"]
    expected = f"expected {article} {what} among {', '.join(listed)}"
    return ValueError(f"{expected}, found {quoted(name)}" + (f"; {last}" if last else ""))
