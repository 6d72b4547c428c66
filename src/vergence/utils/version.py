"""The version of the library, which files carry and the build reads."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
