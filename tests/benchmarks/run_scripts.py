"""Runs commands of benchmarks/README.md, each in a fork of one process that has imported what they share.

Reads a JSON list of jobs (command, words, folder) from the standard input, and writes it with each job's exit code, output and
seconds of processor time. Its argument is the repository's root. `test_commands.py` starts it.
"""

import importlib
import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path


def run(words, root):
    """Runs a script as Python would, its folder first on the path."""
    script = root / words[0]
    sys.argv, sys.path[0] = [str(script), *words[1:]], str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


def forked(job, root):
    """Runs a job in a child process; returns the job with its exit code and the end of its output."""
    log = Path(job["folder"]) / "log.txt"
    child = os.fork()
    if child == 0:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        try:
            run(job["words"], root)
        except SystemExit as stop:
            os._exit(stop.code if isinstance(stop.code, int) else int(stop.code is not None))
        except BaseException:
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    seconds = round(used.ru_utime + used.ru_stime, 1)
    return {**job, "code": os.waitstatus_to_exitcode(status), "output": log.read_text()[-3000:], "seconds": seconds}


SHARED = ("torch._dynamo", "lightning_fabric", "torchvision", "sklearn.linear_model", "sklearn.mixture")
SHARED += ("vergence.runs.train", "vergence.runs.evaluate", "vergence.linear", "vergence.mixtures")
OPTIONAL = ("lightly.loss", "lightly.transforms", "matplotlib.pyplot")


def main():
    """Imports what most commands need, and runs the jobs one after another."""
    for name in SHARED:
        importlib.import_module(name)
    for name in OPTIONAL:
        if importlib.util.find_spec(name.split(".")[0]):
            importlib.import_module(name)
    jobs = json.loads(sys.stdin.read())
    print(json.dumps([forked(job, Path(sys.argv[1])) for job in jobs]))


if __name__ == "__main__":
    main()
