"""The version of the library, and where a number comes from: commit of the code, command line, date, versions of packages."""

import functools
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["__version__", "checkout", "command_line", "commit", "environment", "versions"]

__version__ = "0.1.0.dev0"

PACKAGES = ("torch", "scikit-learn", "numpy")
LOCAL = {"--data-root": "DATA", "--scratch": "FOLDER"}  # options whose value is a folder of this machine
DROPPED = ("--out", "--runs")  # options that do not change what is measured


@functools.cache
def checkout() -> tuple[str | None, bool | None]:
    """Returns the commit of the checkout that holds this file, and whether tracked files differ from it.

    The benchmarks' result files do not count as differences, for a benchmark appends to them while it runs. Git is asked once a
    process: called early, the answer describes the code that was loaded, whatever happens to the checkout later. (None, None)
    where the library does not run from a checkout of its own.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None, None
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)benchmarks/results")
    return commit, bool(changed)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> str | None:
    """Returns the commit of the code, with a plus where tracked files differ from it; None outside a checkout."""
    found, dirty = checkout()
    return found if found is None else found + "+" * bool(dirty)


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Returns the command that runs this process, with placeholders for folders of this machine.

    Args:
        arguments: Program and its arguments; those of this process by default.

    Example:
        >>> command_line(["benchmarks/joint.py", "--data-root", "/home/me/data", "--out", "rows.jsonl", "--seeds", "0"])
        'python benchmarks/joint.py --data-root DATA --seeds 0'
    """
    program, *words = sys.argv if arguments is None else arguments
    name = Path(program).name
    kept = [f"python benchmarks/{name}" if name.endswith(".py") else name]
    rest = iter(word for given in words for word in _parted(given))
    for word in rest:
        if word in DROPPED:
            next(rest, None)
        elif word in LOCAL:
            next(rest, None)
            kept += [word, LOCAL[word]]
        else:
            kept.append(shlex.quote(word))
    return " ".join(kept)


def _parted(word: str) -> list[str]:
    """Splits ``--name=value`` of the options that are replaced or dropped; returns any other word alone."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in (*LOCAL, *DROPPED) else [word]


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions of Python, torch, scikit-learn, numpy and of further packages that are installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in (*PACKAGES, *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment(*packages: str) -> dict[str, Any]:
    """Returns what every row of the ledger records besides its values, device, number of threads and seed.

    Args:
        packages: Distributions to list besides Python, torch, scikit-learn and numpy, such as the library compared with.

    Returns:
        ``date`` (UTC, ISO 8601), ``command``, ``commit``, ``dirty`` (whether tracked files differ from the commit) and
        ``versions``.

    Example:
        >>> sorted(environment())
        ['command', 'commit', 'date', 'dirty', 'versions']
    """
    found, dirty = checkout()
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"date": date, "command": command_line(), "commit": found, "dirty": dirty, "versions": versions(*packages)}
