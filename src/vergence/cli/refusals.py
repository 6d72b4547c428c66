"""What the command line's parser says of wrong arguments, in one line: what was expected, what was found, what to do."""

import re
from collections.abc import Sequence

from vergence.utils.names import did_you_mean, quoted

__all__ = ["in_one_line"]

FRAME = ("╭", "╰", "+")  # starts of a box's first line, which has its title, and of its last; the plus without Unicode
KINDS = {"float": "a number", "int": "a whole number"}  # by the type's name
WRONG_VALUE = re.compile(r"Error parsing (\S+): .*?(could not convert string to float|invalid literal for int).*: '(.*?)'")
WRONG_CHOICE = re.compile(r"invalid choice '(.*?)' for argument '(\S+)'\. Expected one of \((.*?),?\)")
UNKNOWN = re.compile(
    r"Unrecognized (?:or misplaced )?options: (.*?)"
    r"(?: (?:Perhaps you meant|Arguments similar to|Arguments are applied|Available subcommands:).*)?$"
)
AVAILABLE = re.compile(r"Available subcommands: ((?:[a-z]+, )+[a-z]+)")
NO_TYPE = re.compile(r"Error parsing (\S+): no type matching (.*?) could be instantiated from (\[.*?\])")
NO_VALUE = re.compile(r"Missing value for argument '(\S+)'")
COMMANDS = re.compile(r"Expected one of \{(.*?)\}")
MISSING = re.compile(r"Missing from (.*?): (\S+)")


def in_one_line(text: str, arguments: Sequence[str]) -> str:
    """Returns the parser's message about wrong arguments in one line.

    Args:
        text: The message, a box of several lines.
        arguments: The arguments, the first of which names the command.

    Example:
        >>> in_one_line("│ Error parsing --fdr: could not convert string to float: 'a' │", ["score", "x", "--fdr", "a"])
        "expected a number for --fdr, found 'a'; vergence score --help lists the options"
    """
    inner = [line.strip("│| ") for line in text.splitlines() if not line.startswith(FRAME)]
    said = " ".join(line for line in inner if line.strip("─-"))
    said = re.sub(r"\s+(\(applied to .*?\)\s*)?", " ", said.partition("For full helptext")[0]).strip()
    words = [word for word in arguments[: 2 if arguments[:1] == ["density"] else 1] if re.fullmatch(r"[a-z]+", word)]
    if found := COMMANDS.search(said):
        return f"expected a command after {' '.join(['vergence', *words])}, found none: there are {found[1]}"
    there = AVAILABLE.search(said)
    name = next(iter(arguments[1:] if arguments[:1] == ["density"] else arguments), "")
    if UNKNOWN.search(said) and there and name not in there[1].split(", "):
        return _no_command(name, there[1])
    command = " ".join(["vergence", *words])
    return f"{_what(said, _similar(inner, command))}; {command} --help lists the options"


def _no_command(name: str, known: str) -> str:
    """Returns what is wrong with the name of a command that does not exist, of those that do."""
    near = did_you_mean(name, known.split(", "))
    return f"expected a command, found {quoted(name)}: there are {known}" + (f"; {near}" if near else "")


def _similar(lines: Sequence[str], command: str) -> list[str]:
    """Returns the options of a command that the parser's message shows; it shows other commands' options, too."""
    found, option = [], ""
    for line in lines:
        if line.startswith("--"):
            option = line.split()[0]
        elif line == f"in {command} --help":
            found.append(option)
    return found


def _what(said: str, similar: Sequence[str] = ()) -> str:
    """Returns what is wrong, from the parser's message in one line, and the options that it shows as similar to unknown ones."""
    if found := WRONG_VALUE.search(said):
        return f"expected {KINDS['float' if 'float' in found[2] else 'int']} for {found[1]}, found {found[3]!r}"
    if found := NO_TYPE.search(said):
        kind = "whole numbers" if "INT" in found[2] else "numbers" if "FLOAT" in found[2] else "other values"
        given = ", ".join(re.findall(r"'(.*?)'", found[3]))
        return f"expected {kind} for {found[1]}, found {given!r}"
    if found := WRONG_CHOICE.search(said):
        names = sorted(name for name in re.findall(r"'(.*?)'", found[3]) if name != "None")
        if not found[2].startswith("-"):
            return f"expected one of {', '.join(names)}, found {found[1]!r}"
        return f"expected {found[2]} to be {', '.join(names[:-1])} or {names[-1]}, found {found[1]!r}"
    if (found := NO_VALUE.search(said)) and not found[1].startswith("-"):
        return f"expected {found[1].rpartition('.')[2].upper()} first, found an option that is not known"
    if found:
        return f"expected a value after {found[1]}, found none"
    if found := MISSING.search(said):
        return f"expected {found[2]} for {found[1]}, found none"
    if found := UNKNOWN.search(said):
        unknown = found[1].replace(",", "").split()
        near = [did_you_mean(word, similar).replace("'", "") for word in unknown if word.startswith("--")]
        like = next((f" ({question})" for question in near if question), "")
        return f"found unknown arguments: {' '.join(unknown)}{like}"
    return said
