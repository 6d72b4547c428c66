"""Names that a package loads when they are asked for, so that what needs numbers alone loads no torch."""

import ast
import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any


@functools.cache
def homes(package: str) -> Mapping[str, str]:
    """Returns the modules of the names that a package imports for type checkers alone, read from its file."""
    file = ast.parse(pkgutil.get_data(package, "__init__.py") or b"")
    imports = [part for block in file.body if isinstance(block, ast.If) for part in block.body]
    return {name.name: f"{part.module}" for part in imports if isinstance(part, ast.ImportFrom) for name in part.names}


def on_request(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` of a package with the names of `homes`."""

    def load(name: str) -> Any:
        if (home := homes(package).get(name)) is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        inside = home == package  # a module of the package
        return importlib.import_module(f"{home}.{name}") if inside else getattr(importlib.import_module(home), name)

    return load, lambda: sorted(sys.modules[package].__all__)
