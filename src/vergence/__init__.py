"""Vergence: probabilistic joint-embedding learning."""

__version__ = "0.1.0.dev0"
