"""The rules of import, read from the source: lower layers only, siblings apart, no cycles, torch where it is needed."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "vergence"

# The rooms, base first. A file imports only from its own room and from rooms before it; imports inside functions count.
BASE = ("utils", "densities", "data", "report", "mixtures", "linear")
PRODUCT = ("decide", "images", "tables")
LEARN = ("learn", "advice", "cli")
ROOMS = (*BASE, *PRODUCT, *LEARN)
IN_LEARN = ("encoders", "views", "objectives", "methods", "evaluation", "training", "runs")  # the same order again
INTO_LEARN = {"vergence.images.check -> vergence.learn.runs.run"}  # `check --encoder RUN`; the root's lazy names are no import

# Lines of each half and of the tests. A change that needs more takes something away in the same commit, and lowers the number.
LINES = {"base and product": 24_420, "learn, advice and cli": 19_460, "tests": 33_900}


@functools.cache
def modules():
    """Returns the path and the name of every module."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC.parent).with_suffix("").parts
        found.append((path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)))
    return found


def imports(path):
    """Yields every module that a file imports, inside functions and for types too, and names imported from packages."""
    for node in ast.walk(ast.parse(path.read_text())):
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


def place(name):
    """Returns the place of a module in the order of the rooms, and in that of learn's."""
    parts = name.split(".")
    return ROOMS.index(room(name)), IN_LEARN.index(parts[2]) if parts[1] == "learn" and len(parts) > 2 else -1


@functools.cache
def edges():
    """Returns the arrows between modules; the root's own names, which it loads when they are asked for, are none."""
    known = known_modules()
    pairs = ((name, target) for path, name in modules() for target in imports(path))
    return sorted({(a, b) for a, b in pairs if b in known - {"vergence"} and b != a and a != "vergence"})


def test_the_package_holds_the_rooms_and_nothing_else():
    found = {p.name for p in SRC.iterdir() if p.name != "__pycache__"}
    assert found - {"__init__.py", "__main__.py", "py.typed"} <= set(ROOMS)


def test_imports_point_to_earlier_rooms():
    assert {f"{a} -> {b}" for a, b in edges() if place(b) > place(a)} == INTO_LEARN


def test_the_arrow_into_learn_is_inside_a_function():
    top = ast.parse((SRC / "images" / "check.py").read_text()).body
    assert not any("vergence.learn" in ast.unparse(node) for node in top if isinstance(node, ast.Import | ast.ImportFrom))


def lines(files):
    return sum(len(path.read_text().splitlines()) for path in files)


def test_each_half_and_the_tests_stay_within_their_budget_of_lines():
    halves = {"base and product": (*BASE, *PRODUCT), "learn, advice and cli": LEARN}
    found = {half: lines(path for name in rooms for path in (SRC / name).rglob("*.py")) for half, rooms in halves.items()}
    found["tests"] = lines(Path(__file__).parent.rglob("*.py"))
    assert {name: n for name, n in found.items() if n > LINES[name]} == {}


def papers(folder):
    """Returns the files of a folder that hold a paper each, by name."""
    import vergence.learn.methods
    import vergence.learn.objectives
    from vergence.mixtures import MODELS

    if folder == "mixtures":
        return {kind.__module__.rpartition(".")[2] for kind in MODELS.values()}
    return set(getattr(vergence.learn, folder).names())


@pytest.mark.parametrize("folder", ["learn.objectives", "learn.methods", "mixtures"])
def test_files_of_papers_do_not_import_each_other(folder):
    inside = {f"vergence.{folder}.{name}" for name in papers(folder.rpartition(".")[2])}
    assert inside and [f"{a} -> {b}" for a, b in edges() if a in inside and b in inside] == []


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
        "vergence.learn.training.loop",
    )
    for path, name in modules():
        if name.startswith("vergence.learn.objectives"):
            assert [i for i in imports(path) if i.startswith(forbidden)] == [], name


FORMS = {"objectives": ("test_published.py", "\ndef {}("), "methods": ("test_image_methods.py", ": {},\n")}  # of common tests


@pytest.mark.parametrize("folder", ["learn/objectives", "learn/methods", "mixtures"])
def test_every_paper_has_its_test(folder):
    tests, kind = Path(__file__).parent / folder, folder.rpartition("/")[2]
    names = {p.stem for p in (SRC / folder).glob("*.py")} - {"__init__", "core", "parts"}
    names &= papers(kind) if kind == "mixtures" else names
    file, form = FORMS.get(kind, ("", ""))
    common = (tests / file).read_text() if file else ""
    missing = [n for n in names if not (tests / f"test_{n}.py").exists()]
    assert names and [n for n in missing if not form or form.format(n) not in common] == []


NAMES = 580  # in ``__all__``, by which other rooms and users know them; a change that needs more takes others away


@functools.cache
def exported():
    """Returns the modules that export each name, ``__all__ +=`` too; packages repeat the names of their modules."""
    homes = {}
    for path, name in modules():
        for node in ast.parse(path.read_text()).body if path.stem != "__init__" else ():
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if getattr(target, "id", "") == "__all__":
                for constant in ast.walk(node.value):
                    if isinstance(constant, ast.Constant):
                        homes.setdefault(constant.value, []).append(name)
    return homes


def test_no_name_is_exported_twice():
    assert {name: homes for name, homes in exported().items() if len(homes) > 1} == {}


def test_the_names_stay_within_their_budget():
    assert len(exported()) <= NAMES


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


def loaded(code):
    """Returns the modules that are loaded after some code ran in a new process."""
    command = [sys.executable, "-W", "error", "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    "statement", ["import vergence", "import vergence.cli, vergence.learn.training.recipes, vergence.learn.training.config"]
)
def test_light_imports_stay_light(statement):
    assert [name for name in loaded(statement) if name in HEAVY] == []


RUN = "from vergence.cli.commands import main\ntry: main({!r})\nexcept SystemExit: pass"
REFUSED = ("calibrate a b --fdr 2", "check no", "train no", "advise no", "density fit no.csv", "evaluate no", "serve no", "list")


def test_statistics_and_refusals_load_no_torch(tmp_path):
    scores = [tmp_path / name for name in ("old.csv", "new.csv")]
    for i, file in enumerate(scores):
        file.write_text("\n".join(["score", *(str(k + i / 3) for k in range(99))]))
    for code in (
        "from vergence.decide import p_values, select",
        RUN.format(["calibrate", *map(str, scores), "--out", str(tmp_path / "out.csv")]),
    ):
        assert [name for name in loaded(code) if name in ("torch", "sklearn", "pandas")] == []
    for arguments in REFUSED:
        assert [name for name in loaded(RUN.format(arguments.split())) if name in HEAVY] == []


def test_importing_the_library_leaves_optional_packages_alone():
    found = loaded("import vergence.learn.runs.train, vergence.learn.runs.evaluate")
    assert [name for name in ("torchvision", "lightning_fabric", "lightly") if name in found] == []


def test_statistics_need_no_network():
    found = [name for name in loaded("import vergence.decide") if name.startswith("vergence")]
    assert len(found) <= 48 and not [name for name in found if name.startswith(("vergence.learn", "vergence.images"))]


def test_the_root_shows_what_there_is():
    import vergence

    verbs = {"train", "load", "check", "calibrate", "score", "evaluate", "compare", "advise", "match", "demo", "check_plate"}
    assert set(dir(vergence)) == {*verbs, "Run", "Scorer", "Embedder", "__version__", *ROOMS} - {"cli"}
    assert all(getattr(vergence, name) is not None for name in dir(vergence)) and len(vergence.__doc__.splitlines()) <= 7
