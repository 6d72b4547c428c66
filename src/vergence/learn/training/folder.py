"""The run folder: what is written, how it survives a kill, and how it is read.

Loading runs no code: there is no pickle, and a run whose description names code outside the library is refused unless the
caller trusts it.

``config.json`` and ``model.safetensors`` are enough to use a model; ``checkpoints/last.pt`` is enough to train on.
``docs/reference/run_folder.md`` documents every file. Reading the JSON files needs no torch.
"""

import contextlib
import csv
import hashlib
import io
import json
import math
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.learn.training.config import ModelConfig, RunConfig
from vergence.learn.training.records import Evaluation, RunMetadata
from vergence.utils import files
from vergence.utils.checks import expect, is_count, refuse, shortened, shown
from vergence.utils.files import (
    is_registered,
    locked,
    read_object,
    read_pytorch,
    remove_leftovers,
    replacing,
    require_writable,
    sha256,
)  # fmt: skip
from vergence.utils.parts import original, write_table
from vergence.utils.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

    from vergence.data.items import Skipped

__all__ = ["FORMAT", "RunFolder", "holds_run", "require_known_code", "require_new"]
__all__ += ["run_lock", "write_skipped"]

FORMAT = 1
COUNTED = ("count", "collapsed")  # of a checkpoint's metrics
CHECKPOINT, MODEL, CHECKSUMS = "checkpoints/last.pt", "model.safetensors", "checksums.json"
INITIAL = "initial.safetensors"
BEFORE = {"checkpoints", "lock"}  # what a run that was killed at its start leaves without a description
LOGS = {".err", ".log", ".out", ".txt"}  # endings of what a shell writes there
CLOSED_FORM = "closed_form"  # folder of the run that a run's encoder learns to predict
State = dict[str, Any]


class RunFolder:
    """A run on disk. `create` makes one, `open` reads one; both check what they find.

    ``metadata`` is what was found when the training started, ``version`` that of the library that wrote the run.
    """

    def __init__(self, path: Path, config: RunConfig, metadata: RunMetadata, version: str = __version__) -> None:
        self.path, self.config, self.metadata, self.version = path, config, metadata, version
        self.given: dict[str, Any] = {}  # data that the program holds: arguments of `open_data`
        self.code: dict[str, Any] = {}  # of the program, by the names of the description
        self.listeners: list[Callable[[dict[str, Any]], None]] = []  # called with each row of metrics
        self.digests: dict[str, list[str]] = {}  # SHA-256 of the files that this object has written to the end

    def register_code(self) -> None:
        """Registers the code of the program again, since another run may have given code of the same name."""
        for name, value in self.code.items():
            files.register_outside(value, name)

    @classmethod
    def create(cls, path: Path, config: RunConfig, metadata: RunMetadata) -> "RunFolder":
        """Makes the folder and writes ``config.json``; replaces a run that ended before its first checkpoint."""
        require_new(path)
        require_writable(path)
        folder = cls(path, config, metadata)
        (path / "checkpoints").mkdir(exist_ok=True)
        for name in ("metrics.jsonl", "log.txt", "skipped.csv", INITIAL, "detector.safetensors", CHECKSUMS):
            (path / name).unlink(missing_ok=True)
        record = {"vergence": __version__, "format": FORMAT, **config.to_dict(), "metadata": metadata.to_dict()}
        folder.write_json("config.json", record)
        return folder

    @classmethod
    def open(cls, path: Path, *, trust_code: bool = False) -> "RunFolder":
        """Reads a run's description and metadata; imports nothing that they name.

        With ``trust_code`` the run may name code outside the library, which building its method imports.
        """
        file = path / "config.json"
        expect(file.is_file(), "a run folder, which 'vergence train' writes", advice=f"{path} has no config.json")
        raw = _read(file, read_object)
        version, number = raw.get("vergence"), raw.get("format")
        if isinstance(number, int) and number > FORMAT:
            written = f"{path} was written by vergence {shown(version)} (format {number})"
            raise ValueError(f"{written}; this is {__version__}, which reads formats up to {FORMAT}: upgrade vergence")
        config, metadata = _read(file, lambda _: (RunConfig.from_dict(raw), RunMetadata.from_dict(raw["metadata"])))
        if not trust_code:
            require_known_code(path, config.model, trust_code)
        return cls(path, config, metadata, str(version))

    def write_json(self, name: str, record: dict[str, Any]) -> None:
        """Writes a JSON file in one step."""
        with self._writing(name) as part:
            part.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    def append(self, row: dict[str, Any]) -> None:
        """Adds a row to ``metrics.jsonl``; numbers that are not finite become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._add_line("metrics.jsonl", json.dumps(clean))
        for listen in self.listeners:
            listen(clean)

    def log(self, line: str) -> None:
        """Adds a line to ``log.txt``."""
        self._add_line("log.txt", line)

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the rows of ``metrics.jsonl``; a line that is not an object, as a kill leaves it, is left out."""
        file = self.path / "metrics.jsonl"
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        rows = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                rows.append(json.loads(line))
        return [row for row in rows if isinstance(row, dict)]

    def evaluation(self) -> Evaluation | None:
        """Returns what ``evaluation.json`` holds; None where there is none."""
        file = self.path / "evaluation.json"
        return _read(file, lambda file: Evaluation.from_dict(read_object(file))) if file.exists() else None

    def skipped(self) -> list[tuple[str, str]]:
        """Returns name and reason of the items that could not be read."""
        file = self.path / "skipped.csv"
        return _read(file, _read_skipped) if file.exists() else []

    def drop_rows_after(self, step: int) -> None:
        """Drops the rows of ``metrics.jsonl`` behind ``step``, which will be written again; logs a start from step 0."""
        if not (self.path / "metrics.jsonl").exists():
            return
        rows = self.metrics()
        kept = [row for row in rows if row.get("step", 0) <= step]
        if step == 0 and len(kept) < len(rows):
            self.log("stopped before a checkpoint of its steps was written: training starts again from step 0")
        with self._writing("metrics.jsonl") as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")

    def save_checkpoint(self, state: State) -> None:
        """Writes ``checkpoints/last.pt`` in one step: a kill leaves the one before."""
        import torch

        whole = io.BytesIO()  # torch reports a full disk as an error of its own making; plain writing says what it is
        torch.save(state, whole)
        with self._explained(CHECKPOINT):
            (self.path / CHECKPOINT).parent.mkdir(exist_ok=True)
        self.write_checked(CHECKPOINT, whole.getbuffer())

    def load_checkpoint(self) -> State | None:
        """Returns the last checkpoint's tensors and numbers; None where there is none yet."""
        if not (self.path / CHECKPOINT).exists():
            return None
        state: State = self.read_checked(CHECKPOINT, _read_tensors)
        if wrong := _wrong_checkpoint(state):
            file = self.path / CHECKPOINT
            raise ValueError(f"{file} is damaged: it is not a checkpoint, for {wrong}; restore it from a copy, or train again")
        return state

    def save_model(self, state: "dict[str, Tensor]") -> None:
        """Writes ``model.safetensors`` in one step."""
        self.write_checked(MODEL, _tensor_bytes(state))

    def save_initial(self, state: "dict[str, Tensor]") -> None:
        """Writes ``initial.safetensors``, the tensors before the first step where they were not random, in one step."""
        self.write_checked(INITIAL, _tensor_bytes(state))

    def load_initial(self) -> "dict[str, Tensor] | None":
        """Returns the tensors before the first step; None where there are none, as for a run that started from random ones."""
        from safetensors.torch import load_file

        found: dict[str, Tensor] | None = self.read_checked(INITIAL, load_file) if (self.path / INITIAL).exists() else None
        return found

    def load_model(self) -> "dict[str, Tensor]":
        """Returns the trained tensors."""
        from safetensors.torch import load_file

        if not (self.path / MODEL).exists():
            advice = f"continue with 'vergence train --resume {self.path}'"
            raise ValueError(f"{self.path} is not finished: it has no {MODEL}; {advice}")
        found: dict[str, Tensor] = self.read_checked(MODEL, load_file)
        return found

    def write_checked(self, name: str, content: bytes | memoryview) -> None:
        """Writes a file after its SHA-256; that of the file before stays valid, for a kill between the two."""
        digests_of = {other: self.digests.get(other, digests) for other, digests in self._checksums().items()}
        if name not in self.digests and (self.path / name).exists():
            digests_of[name] = [sha256(self.path / name)]
        digest = hashlib.sha256(content).hexdigest()
        self.write_json(CHECKSUMS, {**digests_of, name: [digest, *digests_of.get(name, [])]})
        with self._writing(name) as part:
            part.write_bytes(content)
        self.digests[name] = [digest]

    def read_checked(self, name: str, read: Callable[[Path], Any]) -> Any:
        """Reads a file, whose SHA-256 must be one of those that were written, where there are any."""
        digests = self._checksums().get(name)
        file = self.path / name

        def checked(file: Path) -> Any:
            if digests is not None and sha256(file) not in digests:
                raise ValueError("its SHA-256 differs from the one that was written")
            return read(file)

        return _read(file, checked)

    def _checksums(self) -> dict[str, list[str]]:
        file = self.path / CHECKSUMS
        found = _read(file, read_object) if file.exists() else {}
        return {name: digests for name, digests in found.items() if isinstance(digests, list)}

    def _add_line(self, name: str, line: str) -> None:
        with self._explained(name), open(self.path / name, "a", encoding="utf-8", opener=_open_unlinked) as file:
            file.write(line + "\n")

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[Path]:
        with self._explained(name), replacing(self.path / name) as part:
            yield part

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turns what stops a file's writing into one line: where, why, what is safe, and how to continue."""
        try:
            yield
        except OSError as error:
            raise ValueError(f"cannot write {self.path / name}: {error.strerror}; {self._what_is_safe()}") from None

    def _what_is_safe(self) -> str:
        if not self.path.is_dir():
            return "the run folder was removed, and nothing of it is left: train again"
        if (self.path / MODEL).exists():
            return "the trained model is safe: free space, or restore the folder's permissions, and repeat the command"
        if (self.path / CHECKPOINT).exists():
            return f"the last checkpoint is safe: free space, then continue with 'vergence train --resume {self.path}'"
        return "nothing was trained yet: free space, or choose another `out`"


def require_known_code(path: Path, model: ModelConfig, trust_code: bool, trusted: Sequence[str | None] = ()) -> None:
    """Raises a ValueError if a run names code outside the library that is neither trusted nor given; no name finds an object."""
    unknown = [name for name in model.outside if name not in trusted and not is_registered(name)]
    if unknown and (not trust_code or "#" in unknown[0]):
        kind = "objective" if unknown[0] == model.objective else "encoder"
        python = f"open it in Python with vergence.load({str(path)!r}, {kind}=...)"
        if "#" in unknown[0]:  # a module of a program
            refuse(f"the {kind} of this run, which was an object of a program", advice=python)
        found = f"{shown(unknown[0])}, whose code would run"
        refuse(f"{kind}s of the library in {path}", found, f"if you trust it, use `trust_code=True`, or {python}")


@contextlib.contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Keeps other trainings out of a folder for as long as the context lasts, and removes what killed ones left there."""
    require_writable(path)
    with locked(path / "lock", str(path)):
        for folder in (path, path / "checkpoints"):
            remove_leftovers(folder)
        yield


def require_new(path: Path) -> None:
    """Raises a ValueError if a folder holds a run with a checkpoint or a model, the closed form of one, or files of others."""
    if holds_run(path) or holds_run(path / CLOSED_FORM):
        raise ValueError(f"{path} already holds a run: continue it with `resume=True`, or choose another `out`")
    expect(not _holds_others(path), f"{path} to be new, empty or a run", "other files in it", "choose another `out`")


def _holds_others(path: Path) -> bool:
    """Returns whether a folder holds other files than hidden ones, logs, and a run whose training was killed at its start."""
    others = [file for file in path.iterdir() if file.name not in BEFORE and file.suffix not in LOGS] if path.is_dir() else []
    try:
        return any(not file.name.startswith(".") for file in others) and "vergence" not in read_object(path / "config.json")
    except (ValueError, OSError):
        return True


def holds_run(path: Path) -> bool:
    """Returns whether a folder holds a run with a checkpoint or a model."""
    return any((path / name).exists() for name in (CHECKPOINT, MODEL))


def write_skipped(path: Path, skipped: "Sequence[Skipped]") -> None:
    """Lists what could not be read; where all could be, writes nothing and removes the list of an earlier call."""
    if not skipped:
        path.unlink(missing_ok=True)
        return
    write_table(path, {"name": [s.name for s in skipped], "reason": [s.reason for s in skipped]})


def _read_skipped(file: Path) -> list[tuple[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return [(original(row[0]), original(row[1])) for row in list(csv.reader(lines))[1:] if len(row) >= 2]


def _read_tensors(file: Path) -> Any:
    try:
        return read_pytorch(file)
    except pickle.UnpicklingError:  # torch's own message says how to run the code
        raise ValueError("it holds something else than tensors, numbers and text, which is not loaded") from None


def _tensor_bytes(state: "dict[str, Tensor]") -> bytes:
    from safetensors.torch import save

    # Copies, since networks of others may hold one tensor under two names, which the format refuses.
    content: bytes = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()})
    return content


def _wrong_checkpoint(state: object) -> str:
    """Returns why a state is no checkpoint, in words; empty for one."""
    if not isinstance(state, dict):
        return f"it holds {type(state).__name__} instead of a dictionary"
    if missing := [name for name in ("model", "optimizer", "step") if name not in state]:
        return f"it has no '{missing[0]}'"
    for name in ("model", "optimizer"):
        if not isinstance(state[name], dict):
            return f"its {name} is of type {type(state[name]).__name__} instead of a dictionary"
    if state.get("metrics") is not None and not _are_metrics(state["metrics"]):
        return "its metrics are not those of a training"
    step, threads = state["step"], state.get("threads")
    if threads is not None and not is_count(threads, 1):
        return f"its number of threads is {shortened(ValueError(repr(threads)))} instead of a whole number of at least 1"
    return "" if is_count(step, 0) else f"its step is {shortened(ValueError(repr(step)))} instead of a whole number of at least 0"


def _are_metrics(metrics: object) -> bool:
    """Returns whether a checkpoint's metrics have the types of `vergence.learn.training.metrics.Metrics.state`."""
    if not isinstance(metrics, dict) or not isinstance(metrics.get("warned", False), bool):
        return False
    dictionaries, counts = (metrics.get(name, {}) for name in ("sums", "notices")), (metrics.get(name, 0) for name in COUNTED)
    return all(isinstance(value, dict) for value in dictionaries) and all(is_count(value, 0) for value in counts)


def _read(file: Path, read: Callable[[Path], Any]) -> Any:
    from safetensors import SafetensorError

    errors = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, EOFError, OSError)
    try:
        if not file.is_file():
            raise ValueError("it is not a regular file")
        return read(file)
    except (*errors, AssertionError, ArithmeticError, SafetensorError, pickle.UnpicklingError, csv.Error) as error:
        raise ValueError(f"{file} is damaged: {shortened(error)}; restore it from a copy, or train again") from None


def _open_unlinked(path: str, flags: int) -> int:
    """Opens a file unless its name is a symbolic link: a link in a stranger's folder could lead to any file of the user's."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
