"""The version of the library, which files carry and the build reads, and the commit of its code."""

import subprocess
from pathlib import Path

__all__ = ["__version__", "commit"]

__version__ = "0.1.0.dev0"


def commit() -> str | None:
    """Returns the commit of the code, with a plus where files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
