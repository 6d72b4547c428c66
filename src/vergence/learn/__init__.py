"""Learned representations: encoders, views, objectives, methods, evaluation, training and runs. This half may change."""

import ast
import functools
import pkgutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from vergence.utils.lazy import homes

PAPERS = ("vergence.learn.objectives", "vergence.learn.methods")  # packages with one class in each file


class Outline(NamedTuple):
    """What a file says of its class: docstring, attributes ``NAME = settings(...)``, and the constructor's options."""

    doc: str
    settings: Mapping[str, dict[str, Any]]
    options: Mapping[str, Any]


def classes(package: str) -> Mapping[str, str]:
    """Returns the classes of one of `PAPERS` by the names of their files."""
    return {home.rpartition(".")[2]: name for name, home in homes(package).items() if not home.endswith(".core")}


@functools.cache
def outline(file: str) -> Outline:
    """Returns what a file of an objective or a method says; it is read, not run, so that it loads no torch."""
    package = next(package for package in PAPERS if file in classes(package))
    parts, name = ast.parse(pkgutil.get_data(package, f"{file}.py") or b"").body, classes(package)[file]
    found = next(part for part in parts if isinstance(part, ast.ClassDef) and part.name == name)
    settings, options = {}, {}
    for part in found.body:
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call) and ast.unparse(part.value.func) == "settings":
            settings[ast.unparse(part.targets[0])] = {f"{one.arg}": ast.literal_eval(one.value) for one in part.value.keywords}
        elif isinstance(part, ast.FunctionDef) and part.name == "__init__":
            own = part.args  # defaults are of the last arguments
            both = [*zip(own.args[::-1], own.defaults[::-1], strict=False), *zip(own.kwonlyargs, own.kw_defaults, strict=True)]
            options = {one.arg: ast.literal_eval(value) for one, value in both if value is not None}
    return Outline(ast.get_docstring(found) or "", settings, options)
