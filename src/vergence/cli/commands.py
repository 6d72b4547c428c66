"""The command line. It loads torch only when a command runs, reports an error in one line, and then exits with 2."""

import codecs
import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import sys
import textwrap
import typing
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import tyro

from vergence.cli import advise, calibrate, check, compare, density, listing, match, monitor, options, score, serve, train, use
from vergence.cli.doctor import Doctor, doctor
from vergence.utils import terminal
from vergence.utils.checks import did_you_mean, expect, is_out_of_memory, shown
from vergence.utils.terminal import is_first_process, wait_for_launcher
from vergence.utils.version import __version__

__all__ = ["main"]

ABOUT = "Find unusual images, duplicates and mismatched pairs, at an error rate you choose. --version prints the version."
LONGEST = 200  # characters of a word in a message
PLAIN = {"•": "*", "─": "-", "│": "|", "×": "x", "±": "+-", "–": "-", "’": "'"}  # in ASCII

RUN: dict[type, Callable[[Any], None]] = {
    check.Check: check.check,
    check.Fetch: check.fetch,
    check.Demo: check.demo,
    train.Train: train.train,
    use.Evaluate: use.evaluate,
    compare.Compare: compare.compare,
    use.Embed: use.embed,
    score.Score: score.score,
    use.Merge: use.merge,
    calibrate.Calibrate: calibrate.calibrate,
    monitor.Monitor: monitor.monitor,
    serve.Serve: serve.serve,
    match.Pairs: match.pairs,
    match.Match: match.match,
    use.Neighbors: use.neighbors,
    use.Export: use.export,
    advise.Advise: advise.advise,
    density.Density: density.run,
    use.Report: use.report,
    listing.List: listing.listed,
    Doctor: doctor,
    listing.Completion: lambda command: _parsed(["--tyro-print-completion", command.shell]),
}

COMMANDS: dict[str, Callable[..., Any]] = {kind.__name__.lower(): kind for kind in RUN}

# What the parser says of wrong arguments, and what is said instead.
REFUSALS = {
    r"Error parsing (?P<at>\S+): .*?could not convert string to float.*: (?P<value>'.*?')": "a number for {at}, found {value}",
    r"Error parsing (?P<at>\S+): .*?invalid literal for int.*: (?P<value>'.*?')": "a whole number for {at}, found {value}",
    r"Error parsing (?P<at>\S+): no type .*INT.* from \['(?P<values>[^\]]*)'\]": "whole numbers for {at}, found '{values}'",
    r"invalid choice (?P<value>'.*?') for argument '(?P<at>\S+)'\. Expected one of \((?P<choices>.*?)\)": (
        "{at} to be {choices}, found {value}"
    ),
    r"Missing value for argument '(?P<at>-\S+)'": "a value after {at}, found none",
    r"Missing from (?P<command>.*?): (?P<at>\S+)": "{at} for {command}, found none",
}
UNKNOWN = r"Unrecognized (?:or misplaced )?options: (.*?)(?: Perhaps .*| Arguments .*| Available .*)?$"
BEFORE = r"Missing value for argument '(?:\S+\.)?\w+'"  # where an option that is not known stands before the files
VERBS = {"density": [*density.VERBS], "pairs": ["fit"]}


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; exits with 0, with 2 for an error that the user can correct, or with 128 + signal when stopped."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_streams()
    terminal.wording = as_options
    try:
        try:
            _run(arguments)
        finally:
            terminal.wording = str
            if hasattr(sys.stdout, "flush"):  # it is None where standard output is closed
                sys.stdout.flush()
    except BrokenPipeError:  # nobody reads what is printed, as behind ``| head``: exits without a message, as of SIGPIPE
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is written at the exit
        sys.exit(141)  # 128 + SIGPIPE, which Windows does not have
    except (ValueError, OSError) as error:
        _stop(f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            wait_for_launcher()
            raise
        _stop(f"not enough memory ({error}); choose smaller numbers, for instance of --n or --batch-size")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def _open_streams() -> None:
    """Lets stdout and stderr take any text, whatever their encoding; what goes to closed ones is lost."""
    codecs.register_error("plain", _plain)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    """Returns what is written of a character that a stream cannot: of a name of a file its byte, else the nearest in ASCII."""
    assert isinstance(error, UnicodeEncodeError), "of streams that are written"
    c = error.object[error.start]
    if "\udc80" <= c <= "\udcff":
        return bytes([ord(c) - 0xDC00]), error.start + 1
    near = unicodedata.normalize("NFKD", c).encode("ascii", "ignore").decode()
    return PLAIN.get(c, near) or "?", error.start + 1


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["--version"]:
        print(f"vergence {__version__}")
        return
    if not arguments or arguments == ["help"]:
        arguments = ["--help"]
    if arguments[0] == "train" and {"-h", "--help"} & {*arguments}:
        print(listing.train_help(train.Train, arguments))
        sys.exit(0)
    for i, argument in enumerate(arguments):
        if not argument.strip():
            after = f"after '{arguments[i - 1]}' " if i else ""
            raise ValueError(f"an argument {after}is empty; give a value, or check that a shell variable is set")
    command = _parsed(arguments)
    options.check(command)
    with _threads(command):
        RUN[type(command)](command)


def _parsed(arguments: list[str]) -> Any:
    """Returns the command of some arguments; of wrong ones the parser's message, in one line, is an error."""
    _require_command("vergence", arguments, COMMANDS)
    if arguments[0] in VERBS:
        _require_command(f"vergence {arguments[0]}", arguments[1:], VERBS[arguments[0]])
    if arguments[:2] == ["pairs", "fit"] and {"-h", "--help"} & {*arguments}:
        arguments = ["pairs", "--help"]  # with which the parser writes the verb into the usage
    said, printed = io.StringIO(), io.TextIOWrapper(io.BytesIO(), sys.stdout.encoding or "utf-8", errors="plain")
    colored = not os.environ.get("NO_COLOR") and (bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty())
    printed.isatty = lambda: colored  # type: ignore[method-assign]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="vergence", description=ABOUT, args=arguments)
    except SystemExit as stop:
        if stop.code == 2 and said.getvalue():
            raise ValueError(in_one_line(said.getvalue(), arguments)) from None
        print(said.getvalue(), end="", file=sys.stderr)
        printed.seek(0)
        print(_fitted(printed.read()) if {"-h", "--help"} & {*arguments} else printed.read(), end="")
        raise


def _fitted(text: str) -> str:
    """Returns the parser's help without markup, its paragraphs in lines of the terminal's width."""
    width, lines = shutil.get_terminal_size().columns, text.replace("``", "").splitlines()
    wrap = functools.partial(textwrap.fill, width=width, break_on_hyphens=False)
    return "\n".join(wrap(line) if len(line) > width and line[:1].isalpha() else line for line in lines) + "\n"


def _require_command(before: str, arguments: Sequence[str], names: Iterable[str]) -> None:
    """Raises a ValueError unless the name of a command comes first, or an option such as --help."""
    known = ", ".join(names)
    expect(arguments, f"a command after {before}", f"none: there are {known}")
    if arguments[0] not in names and not arguments[0].startswith("-"):
        near = did_you_mean(arguments[0], names)
        raise ValueError(f"expected a command, found {shown(arguments[0])}: there are {known}" + (f"; {near}" if near else ""))


def in_one_line(text: str, arguments: Sequence[str]) -> str:
    """Returns the parser's message about wrong arguments, a box of several lines, in one line."""
    lines = [line.strip("│| ") for line in text.splitlines() if not line.startswith(("╭", "╰", "+"))]
    said = " ".join(line for line in lines if line.strip("─-")).partition("For full helptext")[0]
    said = re.sub(r"\s+(\(applied to .*?\)\s*)?", " ", said).strip()
    words = [word for word in arguments[: 2 if arguments[:1] == ["density"] else 1] if re.fullmatch(r"[a-z][a-z-]*", word)]
    command = " ".join(["vergence", *words])
    return f"{_what(said, words, arguments)}; {command} --help lists the options"


def _what(said: str, words: Sequence[str], arguments: Sequence[str]) -> str:
    """Returns what is wrong with the arguments of a command, from the parser's message in one line."""
    for pattern, expected in REFUSALS.items():
        if match := re.search(pattern, said):
            return "expected " + expected.format(**{name: _in_words(name, text) for name, text in match.groupdict().items()})
    match, known = re.search(UNKNOWN, said), _options_of(words)
    unknown = match[1].replace(",", "").split() if match else []
    if re.search(BEFORE, said):
        unknown = [word for word in arguments if word.startswith("-") and word.partition("=")[0] not in known]
    if not unknown:
        return said
    names = [name.lstrip("-") for name in known]
    near = (did_you_mean(word[2:], names).replace(" '", " --").replace("'", "") for word in unknown if word.startswith("--"))
    return f"found unknown arguments: {' '.join(unknown)}" + next((f" ({question})" for question in near if question), "")


def _options_of(words: Sequence[str]) -> list[str]:
    """Returns the options of a command; none of a command that is not known."""
    kind = {**COMMANDS, **density.VERBS}.get(words[-1]) if words else None
    hints = typing.get_type_hints(kind, include_extras=True) if kind else {}
    given = {name: [*map(repr, hint.__metadata__)] if hasattr(hint, "__metadata__") else [] for name, hint in hints.items()}
    named = {name: re.search(r"name='(\w+)'", " ".join(more)) for name, more in given.items() if "Positional" not in more}
    return ["--help", "-h", *(options.option(found[1] if found else name) for name, found in named.items())]


def _in_words(name: str, text: str) -> str:
    """Returns a group of `REFUSALS` in words."""
    if name == "choices":
        choices = sorted(set(re.findall(r"'(\w+)'", text)) - {"None"})
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    return text.replace("'", "") if name == "values" else text


def as_options(message: str) -> str:
    """Returns a message of the library with options instead of its arguments, which stand in backticks.

    Example:
        >>> as_options("lower `lr`, add `clip=1`, or `resume=True` and `recipe='patches'`")
        'lower --lr, add --set clip=1, or --resume and --recipe patches'
    """
    known = {field.name for kind in (*RUN, *density.VERBS.values()) for field in fields(kind)}

    def option(found: re.Match[str]) -> str:
        name, value = options.ALIASES.get(found[1], found[1]), (found[2] or "").strip("'")
        if name not in known:
            return f"--set {shlex.quote(name + (value and f'={value}'))}"
        return options.option(name) + ("" if value in ("", "True") else f" {value if value.isalnum() else shlex.quote(value)}")

    return re.sub(r"`(\w+)(?:=([^`]+))?`", option, message)


def _threads(command: Any) -> AbstractContextManager[None]:
    """Returns a context with the number of threads that a command gives."""
    number = getattr(getattr(command, "density", command), "threads", None)
    if number is None:
        return nullcontext()
    from vergence.utils.devices import cpu_threads

    return cpu_threads(number)


def _stop(message: str) -> None:
    """Prints the error in one line, in one of several processes, and exits.

    Control characters, which a terminal would obey and may come from a stranger's file, are replaced.
    """
    if is_first_process():
        text = "".join(c if c.isprintable() or c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in as_options(message))
        print("error:", *(word if len(word) <= LONGEST else f"{word[:LONGEST]}…" for word in text.split()), file=sys.stderr)
    else:
        wait_for_launcher()  # the first process says it
    sys.exit(2)


if __name__ == "__main__":
    main()
