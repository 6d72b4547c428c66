"""The command line: options and printing."""

from vergence.cli.commands import main

__all__ = ["main"]
