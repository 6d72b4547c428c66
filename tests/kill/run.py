"""Kills commands at random moments, lets them go on, and compares what they leave with an uninterrupted run, byte by byte.

    python tests/kill/run.py              all cases: 50 of training, 20 each of embed, score, density fit and advise
    python tests/kill/run.py --case N     one case again; its folder is kept where it fails
    python tests/kill/run.py --short      a few cases of each command

A command runs in a child that this process forks after the imports, so a moment falls into the work and not into the
imports. The moments and signals of case N depend on N alone, as shares of the duration of the uninterrupted run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTHONWARNINGS"] = "ignore"

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.forked import execute

TRAIN = ["--limit", "256", "--epochs", "3", "--batch-size", "64", "--device", "cpu", "--precision", "fp32"]
TRAIN += ["--set", "checkpoint_seconds=0", "--set", "knn_every=3"]
OBJECTIVES = {
    "vje": [], "gje": [], "gmje_em": ["--set", "components=3"], "gmje_smc": ["--set", "bank=96"],
    "jepa": ["--set", "teacher=0.9"],
}  # fmt: skip
FORMATS = ("npz", "csv", "parquet")
COUNTS = {"train": 50, "embed": 20, "score": 20, "density": 20, "advise": 20}
SHORT = (0, 3, 50, 70, 90, 110)
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
TIMES = ("seconds", "images_per_second")  # of a row of metrics
LONGEST = 600.0  # seconds of a command, which take ten on a quiet machine
ATTEMPTS = 4  # at a moment half as late each, where the command ends before it


@dataclass
class Case:
    """One command that is killed."""

    number: int
    verb: str
    name: str
    arguments: list[str]
    kills: list[tuple[signal.Signals, float, bool]] = field(default_factory=list)  # signal, share of the time, in writing

    def __str__(self):
        moments = ", ".join(f"{s.name} at {share:.2f}{' in writing' if writing else ''}" for s, share, writing in self.kills)
        return f"case {self.number}: {self.name}, {moments}"


class Finding(Exception):
    """Something was lost, half written or left over."""


def cases():
    """Returns all cases; what a case does depends on its number alone."""
    made = []
    for verb, count in COUNTS.items():
        for i in range(count):
            number = len(made)
            rng = random.Random(f"kill/{number}")
            name, arguments = command(verb, i)
            twice = rng.random() < 0.25  # what goes on is killed as well
            kills = [
                (SIGNALS[(i // len(OBJECTIVES) + k) % 2], rng.random() * rng.choice((0.1, 1.0, 1.0)), rng.random() < 0.5)
                for k in range(1 + twice)
            ]
            made.append(Case(number, verb, name, arguments, kills))
    return made


def command(verb, i):
    """Returns name and arguments of the i-th command of a verb; names alike have the same uninterrupted run."""
    kind = FORMATS[i % len(FORMATS)]
    if verb == "train":
        objective = list(OBJECTIVES)[i % len(OBJECTIVES)]
        options = ["digits", "--out", "run", "--objective", objective, *OBJECTIVES[objective], *TRAIN]
        return f"train {objective}", ["train", *options]
    if verb in ("embed", "score"):
        return f"{verb} {kind}", [verb, "../../trained", "digits", "--out", f"out.{kind}", "--batch-size", "4", "--device", "cpu"]
    if verb == "density":
        return "density fit", ["density", "fit", "../../pairs.npz", "--out", "density.safetensors", "--set", "steps=100"]
    return "advise", ["advise", "../../x.npy", "--out", "advice", "--device", "cpu"]


def prepare(root):
    """Writes what the commands read: pairs, vectors and a trained run."""
    rng = np.random.default_rng(0)
    context = rng.normal(size=(600, 2))
    np.savez(root / "pairs.npz", context=context, target=np.sin(context) + 0.1 * rng.normal(size=context.shape))
    np.save(root / "x.npy", rng.normal(size=(400, 6)).astype(np.float32))
    where = root / "made"
    where.mkdir()
    arguments = ["train", "digits", "--out", "../trained", *TRAIN]
    require_success(finish(start(arguments, where), where), where)


def start(arguments, where):
    """Starts a command in a forked child, in folder ``where``; returns its process number."""
    pid = os.fork()
    if pid:
        return pid
    execute(arguments, lambda: enter(where))


def enter(where):
    """Makes ``where`` the folder of this process, and the file next to it the output."""
    os.chdir(where)
    out = os.open(where.with_suffix(".txt"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)


def finish(pid, where):
    """Waits for a child; returns its exit code, negative for a signal."""
    deadline = time.monotonic() + LONGEST
    while True:
        code = poll(pid)
        if code is not None:
            return code
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise Finding(f"does not end within {LONGEST:.0f} s: {last_line(where)}")
        time.sleep(0.002)


def poll(pid):
    """Returns the exit code of a child that has ended, or None."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def last_line(where):
    lines = where.with_suffix(".txt").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def require_success(code, where):
    if code:
        raise Finding(f"exit code {code}: {last_line(where)}")


def kill(case, where, signum, moment, writing):
    """Runs the case's command for ``moment`` seconds and sends the signal; returns whether it was still running."""
    pid = start(again(case, where), where)
    code, moment = None, time.monotonic() + moment
    while code is None and time.monotonic() < moment:
        time.sleep(0.001)
        code = poll(pid)
    while code is None and writing and not temporary(where):
        code = poll(pid)
    if code is None:
        os.kill(pid, signum)
        code = finish(pid, where)
    if code not in (0, -signum, 128 + signum):
        raise Finding(f"exit code {code} after {signum.name}: {last_line(where)}")
    if signum == signal.SIGTERM and (left := [name for name in temporary(where) if f".{pid}.part" in name]):
        raise Finding(f"temporary files after SIGTERM: {left}")
    return code != 0


def again(case, where):
    """Returns the arguments that go on with a command: a training with a checkpoint is resumed, all others are repeated."""
    resumed = case.verb == "train" and (where / "run" / "checkpoints" / "last.pt").exists()
    return ["train", "--resume", "run"] if resumed else case.arguments


def temporary(where):
    """Returns the temporary files below a folder."""
    return [name for name in files(where) if name.endswith((".part", ".parts")) or ".parts/" in name]


def files(where):
    """Returns the names of all files below a folder; children may remove some in the meantime."""
    return sorted(os.path.relpath(Path(base) / f, where) for base, _, names in os.walk(where) for f in names)


def run(case, root, whole):
    """Runs one case in a folder of its own; returns how many kills it was hit by.

    Raises:
        Finding: Something was lost, half written or left over.
    """
    where = root / "cases" / f"case_{case.number}"
    where.mkdir(parents=True)
    reference, duration = whole[case.name]
    hits = 0
    for signum, share, writing in case.kills:
        for attempt in range(ATTEMPTS):
            hit = kill(case, where, signum, share * duration / 2**attempt, writing)
            require_nothing_half_written(where, reference)
            if hit:
                hits += 1
                break
            shutil.rmtree(where)  # it ended before its moment
            where.mkdir()
    require_success(finish(start(again(case, where), where), where), where)
    require_same(where, reference)
    shutil.rmtree(where)
    return hits


def require_nothing_half_written(where, reference):
    """Raises a Finding where a file that exists under its final name is not whole."""
    for name in files(where):
        if name.endswith("config.json"):
            json.loads((where / name).read_text())
        elif name.endswith("last.pt"):
            import torch

            torch.load(where / name, weights_only=True)
        elif not partial(name) and not (reference / name).exists():
            raise Finding(f"{name} is left over")
        elif not partial(name) and (where / name).read_bytes() != (reference / name).read_bytes():
            raise Finding(f"{name} is half written")


def partial(name):
    """Returns whether a file may differ while its command has not ended."""
    return name.startswith(".") or "/." in name or Path(name).name in ("metrics.jsonl", "lock", "log.txt", "checksums.json")


def require_same(where, reference):
    """Raises a Finding unless two folders hold the same files with the same bytes; of metrics, all but times."""
    found, expected = (sorted(set(files(folder)) - {"run/lock"}) for folder in (where, reference))
    if found != expected:
        raise Finding(f"expected the files {expected}, found {found}")
    for name in expected:
        if Path(name).name == "metrics.jsonl":
            same = rows(where / name) == rows(reference / name)
        elif Path(name).name in ("last.pt", "checksums.json", "config.json"):
            continue  # the first two hold the history of writing, the third the time of the start
        else:
            same = (where / name).read_bytes() == (reference / name).read_bytes()
        if not same:
            raise Finding(f"{name} differs from the one of an uninterrupted run")


def rows(file):
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in file.read_text().splitlines()]


def uninterrupted(chosen, root, times):
    """Returns folder and duration of an uninterrupted run of each command; what is run twice must be alike."""
    whole = {}
    for case in chosen:
        if case.name in whole:
            continue
        folders = [root / "whole" / f"{case.name.replace(' ', '_')}_{i}" for i in range(times)]
        for where in folders:
            where.mkdir(parents=True)
            before = time.monotonic()
            require_success(finish(start(case.arguments, where), where), where)
            duration = time.monotonic() - before
        require_same(folders[-1], folders[0])
        whole[case.name] = folders[0], duration
        print(f"{case.name}: {duration:.2f} s uninterrupted", flush=True)
    return whole


def chosen_cases(arguments):
    every = cases()
    if arguments.case is not None:
        return [every[arguments.case]]
    if arguments.short:
        return [every[i] for i in SHORT]
    return sorted(every, key=lambda case: (case.number % 10, case.number))  # all verbs soon, for a run that is stopped


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", type=int)
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    chosen = chosen_cases(arguments)

    import lightning_fabric  # noqa: F401  what the children would import one by one

    root = Path(tempfile.mkdtemp(prefix="vergence_kill_"))
    started, hits, findings = time.monotonic(), Counter(), []
    prepare(root)
    whole = uninterrupted(chosen, root, times=1 if arguments.short or arguments.case is not None else 2)
    for done, case in enumerate(chosen):
        if done and done % 10 == 0:
            print(f"{done} of {len(chosen)} cases, {sum(hits.values())} kills, {len(findings)} findings", flush=True)
        try:
            hits[case.verb] += run(case, root, whole)
        except Finding as finding:
            findings.append(f"{case}: {finding}")
            print(f"FINDING {findings[-1]}\n  again: python tests/kill/run.py --case {case.number}", flush=True)
    counts = ", ".join(f"{hits[verb]} of {verb}" for verb in COUNTS)
    took = time.monotonic() - started
    print(
        f"{len(chosen)} cases, {sum(hits.values())} kills of a running command ({counts}), {len(findings)} findings, {took:.0f} s"
    )
    if findings:
        sys.exit(f"the folders are kept in {root}")
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
