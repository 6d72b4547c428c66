"""Runs one case and decides what happened: success, a refusal in one line, or a finding."""

import base64
import contextlib
import hashlib
import io
import json
import resource
import signal
import traceback
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vergence.learn.training.loop import Interrupted

SECONDS = 20  # of the processor, for one case
MEMORY = 1 << 30  # bytes that one case may add to the peak
ADDRESSES = 6 << 30  # bytes that one case may reserve; more is refused, so that a finding does not take the machine down
FOUND = Path(__file__).parent / "found"


class Refused(Exception):
    """A command ended with exit code 2 and one line."""


class Broken(Exception):
    """What a case did is not allowed, although nothing was raised."""


class Slow(BaseException):
    """A case took longer than `SECONDS`."""


@dataclass
class Tally:
    """What the cases of one target came to.

    Attributes:
        found: The smallest case of each finding and what happened, by where it happened.
        running: File of the case that runs, which stays where it takes the process down; None for none.
    """

    found: dict = field(default_factory=dict)
    running: Path | None = None

    def add(self, target, case, place):
        """Runs a case."""
        if self.running is not None:
            _write(self.running, target, "the end of the process", case)
        try:
            run(target, case, place)
        except (ValueError, Refused, Interrupted):
            pass
        except Finding as finding:
            before = self.found.get(finding.where)
            if before is None or len(json.dumps(case)) < len(json.dumps(before[0])):
                self.found[finding.where] = (case, finding.story)
        if self.running is not None:
            self.running.unlink()


class Finding(Exception):
    """A case whose outcome is not allowed.

    Attributes:
        where: What was raised, and the line of the library that it came through.
        story: The traceback.
    """

    def __init__(self, where, story):
        super().__init__(f"{where}\n{story}")
        self.where, self.story = where, story


def run(target, case, place):
    """Runs a case within its limits.

    Raises:
        ValueError, Refused, Interrupted: It was refused as it should be.
        Finding: Anything else.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with (
            limits(),
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            target.run(case, place)
    except (Refused, Interrupted):
        raise
    except ValueError as error:
        if not str(error).strip() or (target.one_line and "\n" in str(error).strip()):
            raise Finding(f"message of {_line(error)}", repr(error)) from error
        raise
    except (Exception, Slow, SystemExit) as error:
        raise Finding(f"{type(error).__name__} at {_line(error)}", "".join(traceback.format_exception(error))[-6000:]) from error
    finally:
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if more > MEMORY:
        raise Finding("memory", f"the peak grew by {more >> 20} MiB")


def _line(error):
    """Returns the deepest line of the library in an error's traceback, without its number."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/vergence/" in f.filename]
    return f"{frames[-1].filename.partition('/vergence/')[2]}:{frames[-1].name}" if frames else "the harness"


@contextlib.contextmanager
def limits(addresses=ADDRESSES):
    """Bounds the processor time of a block, and the bytes of addresses that it may add."""

    def stop(number, frame):
        raise Slow(f"more than {SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + addresses, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, handler)


def keep(target, tally):
    """Writes the findings of a target as cases that are run again from now on; returns their stories."""
    FOUND.mkdir(exist_ok=True)
    for where, (case, _) in tally.found.items():
        mark = hashlib.sha256((where + json.dumps(case, sort_keys=True)).encode()).hexdigest()[:8]
        name = f"{target.name}-{mark}.json"
        _write(FOUND / name, target, where, case)
    return [f"{where}\n{story}\ncase: {json.dumps(case)[:1500]}" for where, (case, story) in tally.found.items()]


def _write(file, target, where, case):
    file.write_text(json.dumps({"target": target.name, "where": where, "case": case}, indent=1) + "\n")


def pack(data):
    """Returns bytes as a case."""
    return {"zlib": base64.b64encode(zlib.compress(data)).decode()}


def unpack(case):
    """Returns the bytes of a case."""
    return zlib.decompress(base64.b64decode(case["zlib"]))
