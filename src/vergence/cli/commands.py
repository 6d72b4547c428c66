"""The command line. It loads torch only when a command runs, reports an error in one line, and then exits with 2."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tyro

from vergence.cli import advise, density, options, sample, score, train, use
from vergence.cli.refusals import in_one_line
from vergence.utils.checks import is_out_of_memory
from vergence.utils.terminal import is_first_process
from vergence.utils.version import __version__

__all__ = ["RUN", "main"]

LONGEST = 200  # characters of a word in a message

RUN: dict[type, Callable[[Any], None]] = {
    train.Demo: train.demo,
    train.Train: train.train,
    use.Evaluate: use.evaluate,
    use.Embed: use.embed,
    score.Score: score.score,
    sample.Sample: sample.sample,
    advise.Advise: advise.advise,
    density.Density: density.run,
    use.Report: use.report,
}


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; exits with 0, with 2 for an error that the user can correct, or with 128 + signal when stopped."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files are any bytes
    try:
        try:
            _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _leave()
    except (ValueError, OSError) as error:
        _stop(_message(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        _stop(f"not enough memory ({error}); choose smaller numbers, for instance of --n or --batch-size")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def _run(arguments: list[str]) -> None:
    if arguments[:1] == ["--version"]:
        print(f"vergence {__version__}")
        return
    _require_no_empty(arguments)
    command = _parsed(arguments)
    options.check(command)
    with _resources(command):
        RUN[type(command)](command)


def _leave() -> None:
    """Exits without a message, as of SIGPIPE: nobody reads what is printed, as behind ``| head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is written at the exit
    sys.exit(141)  # 128 + SIGPIPE, which Windows does not have


def _parsed(arguments: list[str]) -> Any:
    """Returns the command of some arguments; of wrong ones the parser's message, in one line, is an error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.extras.subcommand_cli_from_dict(
                {kind.__name__.lower(): kind for kind in RUN},
                prog="vergence",
                description="Probabilistic joint-embedding learning. --version prints the version.",
                args=arguments,
            )
    except SystemExit as stop:
        if stop.code == 2 and said.getvalue():
            raise ValueError(in_one_line(said.getvalue(), arguments)) from None
        print(said.getvalue(), end="", file=sys.stderr)
        raise


def _resources(command: Any) -> AbstractContextManager[None]:
    """Returns a context with the threads and the memory of a command that computes."""
    command = getattr(command, "density", command)
    if not hasattr(command, "threads"):
        return nullcontext()
    from vergence.utils.resources import resources

    return resources(command.threads, measure=getattr(command, "devices", None) in (None, 1))


def _require_no_empty(arguments: list[str]) -> None:
    for i, argument in enumerate(arguments):
        if not argument.strip():
            after = f"after '{arguments[i - 1]}' " if i else ""
            raise ValueError(f"an argument {after}is empty; give a value, or check that a shell variable is set")


def _message(error: Exception) -> str:
    return f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else str(error)


def _printable(text: str) -> str:
    """Returns a text without control characters, which a terminal would obey; they may come from a stranger's file."""
    return "".join(c if c.isprintable() or c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _stop(message: str) -> None:
    """Prints the error in one line, in one of several processes, and exits."""
    if is_first_process():
        words = (word if len(word) <= LONGEST else f"{word[:LONGEST]}…" for word in _printable(message).split())
        print("error:", *words, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
