"""One method in this library and in others: images/s, seconds to one kNN accuracy, peak memory, import time, packages, lines.

README.md says how.
"""

import argparse
import ast
import functools
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from experiments import ledger
from experiments.runner import DATA, Option, hidden, parse, run, some
from experiments.shared import knn
from scipy import stats
from torch import Tensor

from vergence.data.config import DataConfig
from vergence.data.sources import Data, open_data
from vergence.learn.encoders import building, networks
from vergence.learn.evaluation import features
from vergence.learn.training import build

PROGRAMS = Path(__file__).parent / "programs"
SIZE, WARM = 32, 2  # pixels; steps that are not timed
CUDA = ("nvidia", "triton", "cuda")  # how the names of packages begin that come with torch for GPUs
METHODS = ("contrastive", "vicreg")
ENCODERS, PRECISIONS = ("small", "resnet18"), ("fp32", "bf16")
OURS = "vergence"
LIBRARIES = {  # what pip installs
    OURS: str(ledger.ROOT),
    "lightly": "lightly",
    "stable-pretraining": "stable-pretraining",
}
COUNT = "import json; from importlib.metadata import distributions as d; print(json.dumps(sorted({x.name for x in d()})))"
SHARED = ("epochs", "batch_size", "lr", "weight_decay", "workers")  # settings of the programs that a row has


def program(library: str) -> Path:
    """Returns the program of a library."""
    return PROGRAMS / f"with_{library.replace('-', '_')}.py"


def output(words: list[Any], **settings: Any) -> str:
    return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True, **settings).stdout


def python(a: argparse.Namespace, library: str) -> Path:
    """Returns the interpreter of a library's environment, which is made with uv, or with venv and pip, unless it is there."""
    place, uv = a.kept / library, shutil.which("uv")
    interpreter = place / "bin" / "python"
    if a.tiny or (place / "packages.json").exists():
        return Path(sys.executable) if a.tiny else interpreter
    torches = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "torchvision")]
    add = [uv, "pip", "install", "--python", interpreter] if uv else [interpreter, "-m", "pip", "install"]
    output([uv, "venv", "--quiet", "--clear", "--python", sys.executable, place] if uv else [sys.executable, "-m", "venv", place])
    output([*add, LIBRARIES[library], *torches])
    (place / "packages.json").write_text(output([interpreter, "-c", COUNT]))
    return interpreter


def packages(a: argparse.Namespace, library: str) -> dict[str, int]:
    """Returns how many packages a library's environment has, in all and without those for GPUs."""
    names = [] if a.tiny else json.loads((a.kept / library / "packages.json").read_text())
    return {"packages": len(names), "packages_without_gpu": sum(not name.startswith(CUDA) for name in names)}


def lines(file: Path, method: str) -> int:
    """Returns the lines of a program that a user writes for one method.

    Lines that end in a comment with another method's name are those of that method; ``# a choice`` marks lines between methods.
    """
    text = file.read_text()
    docstring = ast.parse(text).body[0]
    others = tuple(f"# {word}" for word in (*METHODS, "a choice") if word != method)
    written = [line.strip() for line in text.splitlines()[docstring.end_lineno :]]
    return sum(bool(line) and not line.startswith("#") and not line.endswith(others) for line in written)


def imports(file: Path) -> str:
    """Returns the import statements of a program, without that of the network."""
    nodes = [node for node in ast.parse(file.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return "; ".join(ast.unparse(node) for node in nodes if "network" not in ast.unparse(node))


@functools.cache
def import_seconds(interpreter: Path, library: str, rounds: int) -> float:
    """Returns the processor seconds in which an interpreter starts and runs a program's imports, with their code compiled."""
    words = [interpreter, "-c", f"import time; {imports(program(library))}; print(time.process_time())"]
    seconds = [float(output(words, env={**os.environ, "PYTHONPATH": str(PROGRAMS)}).split()[-1]) for _ in range(rounds + 1)]
    return round(statistics.median(seconds[1:] or seconds), 2)


@functools.lru_cache(maxsize=1)
def opened(root: str, limit: int) -> Data:
    return open_data(DataConfig(source="cifar10", root=root, limit=limit))


def network(data: Data, encoder: str) -> torch.nn.Sequential:
    """Returns the network behind its standardization, with the weights of seed 0."""
    torch.manual_seed(0)
    net = building.encoder(encoder, (3, SIZE, SIZE), *build.statistics(data.train))
    assert isinstance(net, torch.nn.Sequential), "standardization and network"
    return net


def plain(net: torch.nn.Module) -> torch.nn.Module:
    """Returns a network with torch's own classes in place of this library's, so that it can be read without this library."""
    for module in net.modules():
        if type(module).__module__.startswith("vergence"):
            module.__class__ = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch"))
    return net


def given(a: argparse.Namespace, cell: dict[str, Any], seed: int, out: Path) -> dict[str, Any]:
    """Returns what a program reads."""
    train = opened(a.data_root, a.limit).train
    mean, std = build.statistics(train)
    values = {"method": cell["method"], "precision": cell["precision"], "seed": seed}
    values |= {
        "root": a.data_root,
        "out": str(out / "run"),
        "items": [int(name) for name in train.names],
        "mean": mean.tolist(),
        "std": std.tolist(),
    }
    values |= {"steps": a.epochs * (len(train) // a.batch_size), "device": a.device, "threads": torch.get_num_threads()}
    net = network(opened(a.data_root, a.limit), cell["encoder"])
    return values | {name: cell[name] for name in SHARED} | {"width": networks.width(net, (3, SIZE, SIZE))}


def accuracy(a: argparse.Namespace, encoder: str, state: dict[str, Tensor]) -> float:
    """Returns the accuracy of kNN with trained weights, in percent."""
    data = opened(a.data_root, a.limit)
    net = network(data, encoder)
    net[1].load_state_dict(state)
    items = [part.subset(torch.arange(min(a.shown, len(part)))) for part in (data.train, data.test)]
    z = [features.collect_features(net.eval(), part)[0] for part in items]
    return knn(*z, tuple(part.labels for part in items))


def trained(a: argparse.Namespace, cell: dict[str, Any], library: str, seed: int) -> dict[str, Any]:
    """Returns what one training measures; the program has a process of its own."""
    place = a.scratch / f"{library} {cell['method']} {cell['encoder']} {cell['precision']} {seed}"
    place.mkdir()
    torch.save(plain(network(opened(a.data_root, a.limit), cell["encoder"])[1]), place / "network.pt")
    values = given(a, cell, seed, place)
    (place / "settings.json").write_text(json.dumps(values))
    words = [str(word) for word in (PROGRAMS / "measure.py", program(library), place / "settings.json", place)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = os.pathsep.join([str(PROGRAMS), str(ledger.ROOT / "src")] if a.tiny else [str(PROGRAMS)])
    variables |= {"PYTHONPATH": path, "NETWORK": str(place / "network.pt"), "LOGURU_LEVEL": "ERROR"}
    variables["OMP_NUM_THREADS"] = str(values["threads"])
    done = subprocess.run([str(python(a, library)), *words], cwd=place, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\nfailed: {(done.stdout + done.stderr)[-3000:]}")
    result = json.loads((place / "result.json").read_text())
    wall = cell["clock"] == "wall"
    times, per_epoch = [mark[wall] for mark in result["marks"]], values["steps"] // a.epochs
    first = min(WARM, len(times) - 1)
    states = [torch.load(place / f"epoch {n + 1}.pt", weights_only=True) for n in range(a.epochs)]
    return {
        "images_per_second": (len(times) - first) * a.batch_size / (times[-1] - times[first - 1]),
        "epochs": [times[(n + 1) * per_epoch - 1] - times[0] for n in range(a.epochs)],
        "knn": [accuracy(a, cell["encoder"], state) for state in states],
        "start": times[0],
        "program": result["program"][wall],
        "peak_mib": result["peak_mib"],
    }


def to_accuracy(here: dict[str, Any], there: dict[str, Any]) -> tuple[float, tuple[float, float]]:
    """Returns the lower of two trainings' last accuracies, and the seconds after which each first reaches it."""
    goal = min(here["knn"][-1], there["knn"][-1])
    ours, theirs = (next(t for t, knn in zip(x["epochs"], x["knn"], strict=True) if knn >= goal) for x in (here, there))
    return goal, (ours, theirs)


def interval(ratios: list[float]) -> list[float | None]:
    """Returns the geometric mean of ratios and its 95 % interval by Student's t; of one ratio no interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle, n = statistics.mean(logs), len(logs)
    if n < 2:
        return [round(math.exp(middle), 3), None, None]
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(logs) / math.sqrt(n)
    return [round(math.exp(x), 3) for x in (middle, middle - half, middle + half)]


def summary(a: argparse.Namespace, library: str, method: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what a row has of one library: medians over the rounds, and what needs no training."""
    interpreter = python(a, library)
    what = f"from importlib.metadata import version; print(version({library!r}))"
    middle = {key: round(statistics.median(x[key] for x in found), 2) for key in ("images_per_second", "start", "program")}
    about = {"version": output([interpreter, "-c", what]).strip(), "lines": lines(program(library), method)}
    about |= {"import_seconds": 0.0 if a.tiny else import_seconds(interpreter, library, a.imports), **packages(a, library)}
    return about | middle | {"peak_mib": max(x["peak_mib"] for x in found), "knn": [x["knn"] for x in found]}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    clock = "processor" if a.device == "cpu" and not a.workers else "wall"
    for method, encoder, precision in itertools.product(a.methods, a.encoders, a.precisions):
        key = {"measurement": "peers", "method": method, "encoder": encoder, "precision": precision, "n_train": a.limit}
        key |= {"epochs": a.epochs, "batch_size": a.batch_size, "lr": 2e-3, "weight_decay": 1e-4, "workers": a.workers}
        yield {**key, "rounds": a.rounds, "clock": clock, "seed": list(range(a.rounds))}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a row for each peer, whose programs take turns with ours in each round; ratios are larger where ours is better."""
    found: dict[str, list[dict[str, Any]]] = {library: [] for library in (OURS, *a.peers)}
    for seed, library in itertools.product(cell["seed"], found):
        found[library].append(trained(a, cell, library, seed))
    rows = []
    for peer in a.peers:
        pairs = list(zip(found[OURS], found[peer], strict=True))
        reached = [to_accuracy(*pair) for pair in pairs]
        row = {"peer": peer, "ratio": interval([here["images_per_second"] / there["images_per_second"] for here, there in pairs])}
        row |= {"seconds_ratio": interval([theirs / ours for _, (ours, theirs) in reached])}
        row |= {"accuracy_reached": [goal for goal, _ in reached]}
        row |= {"seconds_to_accuracy": [[round(t, 2) for t in seconds] for _, seconds in reached]}
        sides = {"here": OURS, "there": peer}
        rows.append(row | {side: summary(a, name, cell["method"], found[name]) for side, name in sides.items()})
    return rows


OPTIONS = {"data_root": DATA, "scratch": Option(Path, shape="required"), "peers": some(list(LIBRARIES)[1:])}
OPTIONS |= {"methods": some(METHODS), "encoders": some(ENCODERS), "precisions": some(PRECISIONS), "device": "cpu"}
OPTIONS |= {"limit": 10_000, "epochs": 5, "batch_size": 256, "workers": 2, "rounds": 5, "imports": 3, "note": ""}
OPTIONS["shown"] = hidden(2_000)  # images of the bank and of the test of kNN, at most
TINY = {"methods": ["contrastive"], "encoders": ["small"], "precisions": ["fp32"], "device": "cpu", "peers": ["lightly"]}
TINY |= {"limit": 32, "epochs": 1, "batch_size": 16, "workers": 0, "rounds": 1, "shown": 100}


def main() -> None:
    a = parse(__doc__, "peers", OPTIONS, TINY)
    if a.limit < 2 * a.batch_size:
        raise SystemExit(f"expected two batches of {a.batch_size} among the training images, found {a.limit}; raise --limit")
    fast = torch.cuda.is_bf16_supported() if torch.cuda.is_available() else torch.cpu._is_avx512_bf16_supported()
    a.precisions = [name for name in a.precisions if fast or name != "bf16"]
    a.kept, a.scratch = a.scratch.resolve(), None
    run(a, cells, measure, peers=("torchvision",))


if __name__ == "__main__":
    main()
