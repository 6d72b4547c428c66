"""Runs the command line in processes that are forked from this one, which are spared the imports.

A child gets its pipes, folder and signals from `subprocess.Popen`, like a program; what would start the program runs the command
instead, on the modules that this process has imported.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch

PROGRAM = Path(sys.executable).with_name("vergence")


def execute(arguments, prepare):
    """Ends this process, which was forked for a command, with the command's exit code; ``prepare`` is called first."""
    code = 70
    try:
        prepare()
        from vergence.cli.commands import main

        main(list(arguments))
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become_program(arguments, env):
    """Turns a child of `subprocess.Popen` into the program with these arguments, apart from what this process has set."""
    os.closerange(3, 256)  # also the pipe that tells the parent that the program has started
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, mode) for i, mode in enumerate("rww"))  # not those that pytest captures
    sys.argv, sys.modules["__main__"].__spec__ = [str(PROGRAM), *arguments], None  # for the processes that it starts itself
    os.environ.clear()
    os.environ.update(env)
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float32)


def popen(*arguments, env=None, **settings):
    """Starts a command; the settings are those of `subprocess.Popen`."""
    import lightning_fabric  # noqa: F401  what a child would import by itself

    import vergence.learn.evaluation.features
    import vergence.learn.runs.train  # noqa: F401

    words, env = [str(a) for a in arguments], dict(os.environ) if env is None else env
    settings.setdefault("stdin", subprocess.DEVNULL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads in this process
        return subprocess.Popen(
            [PROGRAM, *words], preexec_fn=lambda: execute(words, lambda: become_program(words, env)), **settings
        )


def run(*arguments, check=False, timeout=240, **settings):
    """Runs a command to its end; returns its exit code and what it printed."""
    process = popen(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert not (check and process.returncode), err
    return subprocess.CompletedProcess([PROGRAM, *arguments], process.returncode, out, err)
