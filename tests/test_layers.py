"""The rules of import, read from the source: lower layers only, siblings apart, no cycles, torch where it is needed."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "vergence"

# The rooms, lower floors first. A file imports from its own room and from rooms before it.
ROOMS = (
    "utils", "densities", "data", "encoders", "objectives", "methods", "mixtures",
    "linear", "detection", "evaluation", "training", "report", "runs", "contrib", "cli",
)  # fmt: skip
APART = {"objectives", "mixtures", "evaluation", "detection"}  # siblings do not import each other; core and parts may be
SHARED = ("core", "inputs", "moments", "parts", "storage")
# of several detectors and statistics, which they import openly
COMPOSED = ("calibrated", "combined", "decisions", "evidence", "findings", "levels", "matching", "places", "streams")


@functools.cache
def modules():
    """Returns the path and the name of every module."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC.parent).with_suffix("").parts
        found.append((path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


def imports(path):
    """Yields every module that a file imports at its top level, and names imported from packages."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            inside = [name for name in names if name in known_modules()]
            yield from inside
            if len(inside) < len(names):  # names of the package itself
                yield node.module


@functools.cache
def known_modules():
    return {name for _, name in modules()}


def room(name):
    return name.split(".")[1].replace("__main__", "cli")


def edges():
    known = known_modules()
    for path, name in modules():
        for target in imports(path):
            if target in known - {"vergence"} and target != name and name != "vergence":
                yield name, target


def test_the_package_holds_the_rooms_and_nothing_else():
    found = {p.name for p in SRC.iterdir() if p.name != "__pycache__"}
    assert found - {"__init__.py", "__main__.py", "py.typed"} <= set(ROOMS)


def test_imports_point_to_lower_rooms():
    bad = [f"{a} imports {b}" for a, b in edges() if ROOMS.index(room(b)) > ROOMS.index(room(a))]
    assert bad == []


@pytest.mark.parametrize("folder", sorted(APART))
def test_siblings_do_not_import_each_other(folder):
    inside = f"vergence.{folder}."
    between = [(a, b) for a, b in edges() if a.startswith(inside) and b.startswith(inside)]
    assert [(a, b) for a, b in between if b.split(".")[2] not in SHARED and a.split(".")[2] not in COMPOSED] == []


def test_there_is_no_import_cycle():
    graph = {}
    for a, b in edges():
        graph.setdefault(a, set()).add(b)
    done, path = set(), []

    def visit(node):
        assert node not in path, f"import cycle: {' -> '.join([*path, node])}"
        if node in done:
            return
        path.append(node)
        for target in graph.get(node, ()):
            visit(target)
        path.pop()
        done.add(node)

    for node in list(graph):
        visit(node)


def test_objectives_see_neither_images_nor_engines():
    forbidden = (
        "torch.optim",
        "torch.distributed",
        "lightning_fabric",
        "torchvision",
        "vergence.data.sources",
        "vergence.training.loop",
    )
    for path, name in modules():
        if name.startswith("vergence.objectives"):
            assert [i for i in imports(path) if i.startswith(forbidden)] == [], name


def test_every_objective_has_its_test():
    tests = Path(__file__).parent / "objectives"
    names = [p.stem for p in (SRC / "objectives").glob("*.py") if p.stem not in ("__init__", "core", "storage")]
    published = (tests / "test_published.py").read_text()
    assert names
    assert [n for n in names if not (tests / f"test_{n}.py").exists() and f"\ndef {n}(" not in published] == []


def test_every_method_has_its_test():
    tests = Path(__file__).parent / "methods"
    names = [p.stem for p in (SRC / "methods").glob("*.py") if p.stem not in ("__init__", "core", "parts")]
    on_images = (tests / "test_image_methods.py").read_text()
    assert names
    assert [n for n in names if not (tests / f"test_{n}.py").exists() and f": {n},\n" not in on_images] == []


def test_every_mixture_has_its_test():
    tests = Path(__file__).parent / "mixtures"
    names = [p.stem for p in (SRC / "mixtures").glob("*.py") if p.stem not in ("__init__", "core", "storage")]
    assert names
    assert [n for n in names if not (tests / f"test_{n}.py").exists()] == []


# Most names of a room in ``__all__``, by which other rooms and users know it; a change that needs more takes others away.
NAMES = {
    "utils": 55, "densities": 62, "data": 62, "encoders": 35, "objectives": 30, "methods": 15, "mixtures": 21,
    "linear": 23, "detection": 73, "evaluation": 32, "training": 103, "report": 21, "runs": 83, "contrib": 1, "cli": 4,
}  # fmt: skip


@functools.cache
def exported():
    """Returns the modules that export each name; packages repeat the names of their modules, and do not count."""
    homes = {}
    for path, name in modules():
        for node in ast.parse(path.read_text()).body if path.stem != "__init__" else ():
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                for constant in ast.walk(node.value):
                    if isinstance(constant, ast.Constant):
                        homes.setdefault(constant.value, []).append(name)
    return homes


def test_no_name_is_exported_twice():
    assert {name: homes for name, homes in exported().items() if len(homes) > 1} == {}


def test_rooms_stay_within_their_budget_of_names():
    counts = dict.fromkeys(ROOMS, 0)
    for homes in exported().values():
        counts[room(homes[0])] += 1
    assert {name: n for name, n in counts.items() if n > NAMES[name]} == {}


def test_a_class_has_at_most_two_bases_of_the_library_above_it():
    """`Checked`, which checks the fields of dataclasses, and protocols do not count."""
    bases = {}
    for path, _ in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]

    def height(name):
        return 1 + max(
            (height(base) for base in bases[name] if base in bases and base not in (name, "Checked", "Protocol")), default=0
        )

    assert {name: height(name) - 1 for name in bases if height(name) > 3} == {}


def test_a_verb_has_at_most_three_files():
    """A file of ``runs/`` imports at most two others of it that are no verbs' common ground, directly or through these."""
    graph = {}
    for a, b in edges():
        if room(a) == room(b) == "runs" and a.count(".") == b.count(".") == 2:
            graph.setdefault(a.rpartition(".")[2], set()).add(b.rpartition(".")[2])
    common = {
        name for name in {n for names in graph.values() for n in names} if sum(name in names for names in graph.values()) > 2
    }
    assert {name: names - common for name, names in graph.items() if len(names - common) > 2} == {}


LONGEST_BODY = 40  # lines, counted without the docstring


def functions(tree):
    """Yields every function and method of a module with the number of lines of its body, docstring left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield node, body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_functions_stay_small():
    long = [
        f"{name}.{node.name}, line {node.lineno}: {n} lines"
        for path, name in modules()
        for node, n in functions(ast.parse(path.read_text()))
        if n > LONGEST_BODY
    ]
    assert long == []


def test_the_length_of_a_function_is_that_of_its_body():
    code = 'def f(\n    x,\n):\n    """Returns.\n\n    More.\n    """\n    y = x\n\n    return (\n        y\n    )\n'
    assert [n for _, n in functions(ast.parse(code))] == [5]


HEAVY = ("torch", "numpy", "sklearn", "torchvision", "lightning_fabric", "lightly")


@pytest.mark.parametrize(
    "statement", ["import vergence", "import vergence.cli, vergence.training.recipes, vergence.training.config"]
)
def test_light_imports_stay_light(statement):
    code = f"import sys; {statement}; print([m for m in {HEAVY} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_the_library_leaves_optional_packages_alone():
    code = "import sys, vergence.runs.train, vergence.runs.evaluate\n"
    code += "print([m for m in ('torchvision', 'lightning_fabric', 'lightly') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
