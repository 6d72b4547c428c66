"""The version of the library, and the commit of its code."""

import functools
import importlib.metadata
import subprocess
from pathlib import Path

__all__ = ["__version__", "checkout", "commit"]

__version__ = importlib.metadata.version("vergence")


@functools.cache
def checkout() -> tuple[str | None, bool | None]:
    """Returns the commit of the checkout that holds this file, and whether tracked files differ from it.

    The log of results does not count as a difference, for an experiment appends to it while it runs. Git is asked once a
    process: called early, the answer describes the code that was loaded, whatever happens to the checkout later. (None, None)
    where the library does not run from a checkout of its own.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None, None
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude,glob)experiments/**/*.jsonl")
    return commit, bool(changed)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=Path(__file__).parent, capture_output=True, encoding="utf-8")
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> str | None:
    """Returns the commit of the code, with a plus where tracked files differ from it; None outside a checkout."""
    found, dirty = checkout()
    return found if found is None else found + "+" * bool(dirty)
