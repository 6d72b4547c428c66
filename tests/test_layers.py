"""The rules of import, read from the source: lower layers only, siblings apart, no cycles, torch where it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "vergence"

# A file imports from files of lower number only; `core` of a folder lies just below its siblings.
LAYERS = {
    "config": 0, "devices": 0, "files": 0, "linalg": 0, "resampling": 0, "terminal": 0,
    "covariances": 9, "particles": 9, "polar": 9, "batchnorm": 10, "densities": 10, "networks": 10, "neural_gas": 10,
    "views": 10, "volume": 10,
    "em_structures": 11, "moving": 11, "em_low_rank": 12, "em": 13, "em_starts": 14, "prototypes": 15,
    "data_items": 17, "data_images": 18, "data_files": 19, "data": 20, "objectives.core": 20, "mixtures.core": 20,
    "linear.solutions": 20, "linear.thresholds": 20, "linear.moments": 20, "linear.fitting": 21, "linear.estimators": 22,
    "linear.evidence": 22, "linear.pipeline": 21, "linear.words": 22, "linear.findings": 23, "linear.advice": 24,
    "linear": 25,
    "density": 42,
    "objectives": 21, "mixtures": 21, "methods.core": 21, "methods": 22,
    "retrieval": 21, "decoding": 42, "cli_sample": 49,
    "runs": 30, "evaluation": 30, "training": 31,
    "assembly": 40, "recipes": 40, "report_files": 40, "report_page": 40, "report": 41,
    "show": 40, "report_advice": 41, "advising": 42, "api": 41, "protocol": 42, "bench": 42, "demo": 43,
    "cli_density": 49, "cli": 50,
}  # fmt: skip
EXEMPT = {"vergence"}  # the package's own __init__ loads lazily


def modules():
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC.parent).with_suffix("").parts
        yield path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Yields every module of the package that a file imports at its top level, and names imported from packages."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def known_modules():
    return {name for _, name in modules()}


def layer(name):
    inside = name.removeprefix("vergence.")
    return LAYERS[inside] if inside in LAYERS else LAYERS[inside.split(".")[0]]


def edges():
    known = known_modules()
    for path, name in modules():
        for target in imports(path):
            if target in known - EXEMPT and target != name:
                yield name, target


def test_every_file_has_a_layer():
    assert [name for _, name in modules() if name not in EXEMPT and layer(name) is None] == []


def test_imports_point_to_lower_layers():
    bad = []
    for a, b in edges():
        inside = a.rsplit(".", 1)[0] == b  # a module may name its own package's core through the package
        core = b.endswith(".core") and a.rsplit(".", 1)[0] == b.rsplit(".", 1)[0]
        if a not in EXEMPT and layer(b) >= layer(a) and not core and not inside:
            bad.append(f"{a} ({layer(a)}) imports {b} ({layer(b)})")
    assert bad == []


@pytest.mark.parametrize("folder", ["objectives", "mixtures", "methods", "evaluation"])
def test_siblings_do_not_import_each_other(folder):
    inside = f"vergence.{folder}."
    bad = [(a, b) for a, b in edges() if a.startswith(inside) and b.startswith(inside) and not b.endswith(".core")]
    assert bad == []


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
    forbidden = ("torch.optim", "torch.distributed", "lightning_fabric", "torchvision", "vergence.data", "vergence.training")
    for path, name in modules():
        if name.startswith("vergence.objectives"):
            assert [i for i in imports(path) if i.startswith(forbidden)] == [], name


def test_every_objective_has_its_test():
    tests = Path(__file__).parent / "objectives"
    names = [p.stem for p in (SRC / "objectives").glob("*.py") if p.stem not in ("__init__", "core")]
    assert names
    assert [n for n in names if not (tests / f"test_{n}.py").exists()] == []


def test_every_mixture_has_its_test():
    tests = Path(__file__).parent / "mixtures"
    names = [p.stem for p in (SRC / "mixtures").glob("*.py") if p.stem not in ("__init__", "core")]
    assert names
    assert [n for n in names if not (tests / f"test_{n}.py").exists()] == []


def test_files_and_functions_stay_small():
    long = []
    for path, name in modules():
        text = path.read_text()
        if text.count("\n") > 420:
            long.append(f"{name}: {text.count(chr(10))} lines")
        if name.startswith("vergence.objectives.") and text.count("\n") > 350:
            long.append(f"{name}: an objective of {text.count(chr(10))} lines")
    assert long == []


HEAVY = ("torch", "numpy", "sklearn", "torchvision", "plotly", "lightning_fabric")


@pytest.mark.parametrize("statement", ["import vergence", "import vergence.cli, vergence.recipes, vergence.config"])
def test_light_imports_stay_light(statement):
    code = f"import sys; {statement}; print([m for m in {HEAVY} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_the_library_leaves_optional_packages_alone():
    code = "import sys, vergence.api, vergence.protocol\n"
    code += "print([m for m in ('torchvision', 'plotly', 'sklearn', 'lightning_fabric') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
