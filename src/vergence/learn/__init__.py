"""Learned representations: encoders, views, objectives, methods, evaluation, training and runs. This half may change."""

import ast
import functools
import pkgutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from vergence.utils.lazy import homes


class Outline(NamedTuple):
    """What a file says of its class: docstring, attributes ``NAME = settings(...)``, and the constructor's options' defaults."""

    doc: str
    settings: Mapping[str, dict[str, Any]]
    options: Mapping[str, Any]


def classes(package: str) -> Mapping[str, str]:
    """Returns the classes of a package that has one in each file, by the names of the files."""
    return {home.rpartition(".")[2]: name for name, home in homes(package).items() if not home.endswith(".core")}


@functools.cache
def outline(package: str, file: str) -> Outline:
    """Returns what a file of `classes` says of its class; the file is read, not run, so that it loads no torch."""
    name, parts = classes(package)[file], ast.parse(pkgutil.get_data(package, f"{file}.py") or b"").body
    found = next(part for part in parts if isinstance(part, ast.ClassDef) and part.name == name)
    settings, options = {}, {}
    for part in found.body:
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call) and ast.unparse(part.value.func) == "settings":
            settings[ast.unparse(part.targets[0])] = {f"{one.arg}": ast.literal_eval(one.value) for one in part.value.keywords}
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            own = part.args
            both = [*zip(own.args[::-1], own.defaults[::-1], strict=False), *zip(own.kwonlyargs, own.kw_defaults, strict=True)]
            options = {one.arg: ast.literal_eval(value) for one, value in both if value is not None}
    return Outline(ast.get_docstring(found) or "", settings, options)
