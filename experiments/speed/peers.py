"""One method in this library and in others: images/s, seconds to one kNN accuracy, peak memory, import time, packages, lines.

    python -m experiments.speed.peers --data-root DATA --scratch FOLDER                  # both networks, every peer that installs
    python -m experiments.speed.peers --data-root DATA --scratch FOLDER --encoders small --precisions fp32 --workers 0

Each library has an environment of its own under FOLDER, made with uv, or with venv and pip, with one version of torch. The
programs in ``benchmarks/programs`` are what a user writes; `measure.py` runs them and notes the time after each step. Method,
network, its first weights, images, batch, optimizer, schedule, precision and strengths of the views are equal. What belongs to a
library's loop stays: channels last and views of whole batches here, images of PIL one by one there.

The programs take turns in each round, with the round's number as seed. Of a ratio there is the geometric mean over the rounds
with its 95 % interval by Student's t. Images per second leave out the first two steps. Accuracies are of kNN (k = 30) on test
images after each epoch, computed here for all; seconds are those of the first epoch whose accuracy reaches the lower of both last
ones, from the first step on. Without workers and a GPU, seconds are processor seconds, so that a busy machine disturbs them less.
Lines are those that are neither empty nor comments nor of the other method. A peer that does not install has a row that says why.
"""

import argparse
import ast
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from experiments.accuracy import run as two_cores
from scipy import stats
from torch import Tensor

from experiments import ledger
from vergence.data.config import DataConfig
from vergence.data.items import Items
from vergence.data.sources import open_data
from vergence.encoders import networks
from vergence.evaluation import features
from vergence.training import build

PROGRAMS = Path(__file__).parent / "programs"
SIZE, SHOWN, WARM = 32, 2_000, 2  # pixels; images of the bank and of the test of kNN, at most; steps that are not timed
CUDA = ("nvidia", "triton", "cuda")  # how the names of packages begin that come with torch for GPUs
METHODS = ("contrastive", "vicreg")
ENCODERS, PRECISIONS = ("small", "resnet18"), ("fp32", "bf16")


@dataclasses.dataclass(frozen=True)
class Library:
    """A library to compare: what pip installs, and its program; None where it has not been written."""

    requirement: str
    program: str | None
    extra: tuple[str, ...] = ()  # installed after the packages are counted


OURS = "vergence"
LIBRARIES = {
    OURS: Library(str(ledger.ROOT), "with_vergence.py", ("lightly",)),  # lightly has the loss of VICReg
    "lightly": Library("lightly", "with_lightly.py"),
    "stable-pretraining": Library("stable-pretraining", "with_stable_pretraining.py"),
    "solo-learn": Library("solo-learn", None),
}


def installed(name: str, scratch: Path) -> str:
    """Makes a library's environment, unless it is there; returns why that is impossible, or nothing."""
    place, own = scratch / name, LIBRARIES[name]
    if (place / "packages.json").exists():
        return ""
    uv = shutil.which("uv")
    make = [uv, "venv", "--quiet", "--clear", "--python", sys.executable] if uv else [sys.executable, "-m", "venv", "--clear"]
    add = (
        [uv, "pip", "install", "--python", str(python(name, scratch))]
        if uv
        else [str(python(name, scratch)), "-m", "pip", "install"]
    )
    torches = [f"{one}=={version(one).partition('+')[0]}" for one in ("torch", "torchvision")]
    count = "import json; from importlib.metadata import distributions as d; print(json.dumps(sorted({x.name for x in d()})))"
    try:
        _run([*make, str(place)])
        _run([*add, own.requirement, *torches])
        packages = _run([str(python(name, scratch)), "-c", count])
        if own.extra:
            _run([*add, *own.extra, *torches])
    except subprocess.CalledProcessError as error:
        shutil.rmtree(place, ignore_errors=True)
        lines = [line.strip() for line in error.stderr.splitlines() if "depend" in line or "rror" in line]
        return " ".join(lines)[:500].replace(str(scratch), "FOLDER") or f"exit code {error.returncode}"
    (place / "packages.json").write_text(packages)
    return ""


def _run(words: list[str], **settings: Any) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, **settings).stdout


def python(name: str, scratch: Path) -> Path:
    """Returns the interpreter of a library's environment."""
    return scratch / name / "bin" / "python"


def packages(name: str, a: argparse.Namespace) -> dict[str, int]:
    """Returns how many packages a library's environment has, in all and without those for GPUs."""
    names = json.loads((a.scratch / name / "packages.json").read_text())
    return {"packages": len(names), "packages_without_gpu": sum(not one.startswith(CUDA) for one in names)}


def lines(program: Path, method: str) -> int:
    """Returns the lines of a program that a user writes for one method.

    Lines that end in a comment with another method's name are those of that method; ``# a choice`` marks lines between methods.
    """
    text = program.read_text()
    docstring = ast.parse(text).body[0]
    assert isinstance(docstring, ast.Expr), "a program begins with a docstring"
    others = tuple(f"# {word}" for word in (*METHODS, "a choice") if word != method)
    written = [line.strip() for line in text.splitlines()[docstring.end_lineno :]]
    return sum(bool(line) and not line.startswith("#") and not line.endswith(others) for line in written)


def imports(program: Path) -> str:
    """Returns the import statements of a program, without that of the network."""
    body = ast.parse(program.read_text()).body
    found = [ast.unparse(node) for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return "; ".join(one for one in found if "network" not in one)


def import_seconds(name: str, a: argparse.Namespace) -> float:
    """Returns the processor seconds in which an interpreter starts and runs a program's imports, with their code compiled."""
    program = f"import time; {imports(PROGRAMS / str(LIBRARIES[name].program))}; print(time.process_time())"
    found = [float(_run([str(a.python(name)), "-c", program], env=environment(a)).split()[-1]) for _ in range(a.imports + 1)]
    return round(statistics.median(found[1:] or found), 2)


def environment(a: argparse.Namespace) -> dict[str, str]:
    """Returns the environment variables of a program's process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    own = {
        "PYTHONPATH": str(PROGRAMS),
        "PYTHONPYCACHEPREFIX": str(a.scratch / "compiled"),
        "NETWORK": str(a.scratch / "network.pt"),
    }
    return kept | own | {"OMP_NUM_THREADS": str(a.threads), "LOGURU_LEVEL": "ERROR"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the libraries have in common.

    Attributes:
        method: Name of the objective here.
        encoder: Name of the network here.
        precision: ``fp32`` or ``bf16``.
        train: Training images.
        test: Images that kNN classifies.
    """

    method: str
    encoder: str
    precision: str
    train: Items
    test: Items

    def network(self) -> torch.nn.Sequential:
        """Returns the network behind its standardization, with the weights of seed 0."""
        torch.manual_seed(0)
        net = networks.encoder(self.encoder, (3, SIZE, SIZE), *build.statistics(self.train))
        assert isinstance(net, torch.nn.Sequential), "standardization and network"
        return net

    def values(self, a: argparse.Namespace, seed: int, out: Path) -> dict[str, Any]:
        """Returns what a program reads."""
        net, (mean, std) = self.network(), build.statistics(self.train)
        steps = a.epochs * (len(self.train) // a.batch_size)
        own = {"method": self.method, "precision": self.precision, "seed": seed, "out": str(out / "run"), "steps": steps}
        data = {
            "root": a.data_root,
            "items": [int(name) for name in self.train.names],
            "mean": mean.tolist(),
            "std": std.tolist(),
        }
        given = {
            name: getattr(a, name) for name in ("epochs", "batch_size", "lr", "weight_decay", "device", "threads", "workers")
        }
        return own | data | given | {"width": networks.width(net, (3, SIZE, SIZE))}

    def accuracies(self, states: list[dict[str, Tensor]], shown: int) -> list[float]:
        """Returns the accuracy of kNN behind each epoch, in percent."""
        net, found = self.network(), []
        for state in states:
            net[1].load_state_dict(state)
            z = [
                features.collect_features(net.eval(), part.subset(torch.arange(min(shown, len(part)))))[0]
                for part in (self.train, self.test)
            ]
            labels = [part.labels[: len(one)] for part, one in zip((self.train, self.test), z, strict=True)]
            found.append(two_cores.knn(*z, labels))
        return found


def plain(net: torch.nn.Module) -> torch.nn.Module:
    """Returns a network with torch's own classes in place of this library's, so that it can be read without this library."""
    for module in net.modules():
        if type(module).__module__.startswith("vergence"):
            module.__class__ = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch"))
    return net


def trained(name: str, setting: Setting, a: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Returns what one training measures; the program has a process of its own."""
    with tempfile.TemporaryDirectory(dir=a.scratch) as folder:
        place = Path(folder)
        torch.save(plain(setting.network()[1]), a.scratch / "network.pt")
        values = setting.values(a, seed, place)
        (place / "settings.json").write_text(json.dumps(values))
        words = [str(PROGRAMS / str(LIBRARIES[name].program)), str(place / "settings.json"), str(place)]
        a.launch(name, [str(PROGRAMS / "measure.py"), *words], place)
        result = json.loads((place / "result.json").read_text())
        states = [torch.load(place / f"epoch {n + 1}.pt", weights_only=True) for n in range(a.epochs)]
    times = [mark[a.clock == "wall"] for mark in result["marks"]]
    per_epoch, first = values["steps"] // a.epochs, min(WARM, len(times) - 1)
    return {
        "images_per_second": (len(times) - first) * a.batch_size / (times[-1] - times[first - 1]),
        "epochs": [times[(n + 1) * per_epoch - 1] - times[0] for n in range(a.epochs)],
        "knn": setting.accuracies(states, a.shown),
        "start": times[0],
        "program": result["program"][a.clock == "wall"],
        "peak_mib": result["peak_mib"],
    }


def launch(a: argparse.Namespace, name: str, words: list[str], place: Path) -> None:
    """Runs a program in its library's environment."""
    done = subprocess.run([str(a.python(name)), *words], cwd=place, env=environment(a), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\nfailed: {(done.stdout + done.stderr)[-3000:]}")


def launch_here(a: argparse.Namespace, name: str, words: list[str], place: Path) -> None:
    """Runs a program in a copy of this process, which has imported much already."""

    def work() -> None:
        os.chdir(place)
        os.environ.update(environment(a))
        sys.path[:0], sys.argv = [str(PROGRAMS)], words
        runpy.run_path(words[0], run_name="__main__")

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{' '.join(words)}\nfailed; see above")


def to_accuracy(here: dict[str, Any], there: dict[str, Any]) -> tuple[float, tuple[float, float]]:
    """Returns the lower of two trainings' last accuracies, and the seconds after which each first reaches it."""
    goal = min(here["knn"][-1], there["knn"][-1])
    seconds = [next(t for t, knn in zip(one["epochs"], one["knn"], strict=True) if knn >= goal) for one in (here, there)]
    return goal, (seconds[0], seconds[1])


def interval(ratios: list[float]) -> list[float | None]:
    """Returns the geometric mean of ratios and its 95 % interval by Student's t; of one ratio no interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle, n = statistics.mean(logs), len(logs)
    if n < 2:
        return [round(math.exp(middle), 3), None, None]
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(logs) / math.sqrt(n)
    return [round(math.exp(x), 3) for x in (middle, middle - half, middle + half)]


def compared(here: list[dict[str, Any]], there: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the ratios of two libraries, larger where this one is better, over rounds that took turns."""
    pairs = list(zip(here, there, strict=True))
    reached = [to_accuracy(*pair) for pair in pairs]
    return {
        "ratio": interval([mine["images_per_second"] / other["images_per_second"] for mine, other in pairs]),
        "seconds_ratio": interval([theirs / ours for _, (ours, theirs) in reached]),
        "accuracy_reached": [goal for goal, _ in reached],
        "seconds_to_accuracy": [[round(t, 2) for t in seconds] for _, seconds in reached],
    }


def summary(name: str, method: str, found: list[dict[str, Any]], a: argparse.Namespace) -> dict[str, Any]:
    """Returns what a row has of one library: medians over the rounds, and what needs no training."""
    middle = {key: round(statistics.median(one[key] for one in found), 2) for key in ("images_per_second", "start", "program")}
    own = {"version": a.version(name), "lines": lines(PROGRAMS / str(LIBRARIES[name].program), method)}
    own |= {"import_seconds": a.import_seconds[name], **a.packages(name)}
    return own | middle | {"peak_mib": max(one["peak_mib"] for one in found), "knn": [one["knn"] for one in found]}


def measure(a: argparse.Namespace, peers: list[str], method: str, encoder: str, precision: str) -> None:
    """Adds the rows of one setting, a row for each peer."""
    key: dict[str, Any] = {
        "measurement": "peers",
        "method": method,
        "encoder": encoder,
        "precision": precision,
        "n_train": a.limit,
    }
    key |= {name: getattr(a, name) for name in ("epochs", "batch_size", "lr", "weight_decay", "workers", "rounds", "clock")}
    peers = [peer for peer in peers if not ledger.holds(a.out, **key, peer=peer)]
    if not peers:
        return
    opened = open_data(DataConfig(source="cifar10", root=a.data_root, limit=a.limit))
    setting = Setting(method, encoder, precision, opened.train, opened.test)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in (OURS, *peers)}
    for seed, name in itertools.product(range(a.rounds), found):
        found[name].append(trained(name, setting, a, seed))
        one = found[name][-1]
        print(f"{method}, {encoder}, {precision}, {name}: {one['images_per_second']:.0f} images/s, kNN {one['knn']}", flush=True)
    for peer in peers:
        sides = {"here": summary(OURS, method, found[OURS], a), "there": summary(peer, method, found[peer], a)}
        values = {**key, "peer": peer, **compared(found[OURS], found[peer]), **sides, "note": a.note}
        device = torch.cuda.get_device_name() if a.device == "cuda" else None
        ledger.add(a.out, ledger.row(values, seed=[*range(a.rounds)], peers=("torchvision",), device=device))


def usable(a: argparse.Namespace) -> Iterator[str]:
    """Yields the libraries that are installed and have a program; adds a row for each of the others, which says why."""
    for name in (OURS, *a.peers):
        reason = installed(name, a.scratch)
        if not reason and LIBRARIES[name].program is None:
            reason = "it installs, but no program has been written"
        if not reason:
            yield name
        elif name == OURS:
            raise SystemExit(f"{name} does not install: {reason}")
        elif not ledger.holds(a.out, measurement="peers", peer=name, method=None):
            values = {"measurement": "peers", "peer": name, "method": None, "reason": reason, "note": a.note}
            ledger.add(a.out, ledger.row(values, seed=0, peers=("torchvision",)))


def prepare(a: argparse.Namespace) -> list[str]:
    """Sets how programs are run and what needs no training; returns the peers that can be compared."""
    a.scratch = a.scratch.resolve()
    a.scratch.mkdir(parents=True, exist_ok=True)
    a.threads, a.lr, a.weight_decay = torch.get_num_threads(), 2e-3, 1e-4
    a.clock = "processor" if a.device == "cpu" and not a.workers else "wall"
    if a.tiny:
        names = [OURS, "lightly"]
        a.launch = lambda *given: launch_here(a, *given)
        a.python, a.version, a.packages = (lambda name: sys.executable), version, (lambda name: {"packages": 0})
        a.import_seconds = dict.fromkeys(names, 0.0)
        return names[1:]
    names = list(usable(a))
    what = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    a.launch = lambda *given: launch(a, *given)
    a.python = lambda name: python(name, a.scratch)
    a.version = lambda name: _run([str(a.python(name)), "-c", what, name]).strip()
    a.packages = lambda name: packages(name, a)
    a.import_seconds = {name: import_seconds(name, a) for name in names}
    return names[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="folder of the environments; about 8 GB")
    parser.add_argument("--peers", nargs="+", default=list(LIBRARIES)[1:], choices=list(LIBRARIES)[1:])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--encoders", nargs="+", default=list(ENCODERS), choices=ENCODERS)
    parser.add_argument("--precisions", nargs="+", default=None, choices=PRECISIONS, help="bf16 only where the hardware has it")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--limit", type=int, default=10_000, help="training images")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument(
        "--workers", type=int, default=2, help="of the peers' loaders; 0 times processors instead of the wall clock"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--imports", type=int, default=3, help="times that each program's imports are timed")
    parser.add_argument("--note", default="", help="written to each row")
    a = ledger.parse(parser, "peers")
    a.shown = SHOWN
    fast = torch.cuda.is_bf16_supported() if torch.cuda.is_available() else torch.cpu._is_avx512_bf16_supported()
    a.precisions = a.precisions or list(PRECISIONS[: 1 + fast])
    if a.tiny:
        a.methods, a.encoders, a.precisions, a.device = ["contrastive"], ["small"], ["fp32"], "cpu"
        a.limit, a.epochs, a.batch_size, a.workers, a.rounds, a.shown = 32, 1, 16, 0, 1, 100
    if a.limit < 2 * a.batch_size:
        parser.error(f"expected at least two batches of {a.batch_size} among the training images, found {a.limit}; raise --limit")
    if "bf16" in a.precisions and not fast:
        parser.error("expected hardware with bfloat16 for --precisions bf16, found none; leave bf16 out")
    peers = prepare(a)
    for choice in itertools.product(a.methods, a.encoders, a.precisions):
        measure(a, peers, *choice)


if __name__ == "__main__":
    main()
