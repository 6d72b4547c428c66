"""The run folder: what is written, how it survives a kill, and how it is read again. No pickle: loading runs no code.

``config.json`` and ``model.safetensors`` are enough to use a model; ``checkpoints/last.pt`` is enough to train on.
"""

import contextlib
import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vergence.training.config import RunConfig
from vergence.utils.files import replacing
from vergence.utils.version import __version__

__all__ = ["FORMAT", "RunFolder", "check_writable"]

FORMAT = 1
State = dict[str, Any]


class RunFolder:
    """A run on disk. `create` makes one, `open` reads one; both check what they find.

    Attributes:
        path: The folder.
        config: The run's description.
        facts: What was found at the start: classes, counts, shape, device, versions.
    """

    def __init__(self, path: Path, config: RunConfig, facts: dict[str, Any]) -> None:
        self.path, self.config, self.facts = path, config, facts

    @classmethod
    def create(cls, path: Path, config: RunConfig, facts: dict[str, Any]) -> "RunFolder":
        """Makes the folder and writes ``config.json``.

        Raises:
            ValueError: The folder already holds a run, or is no place to write.
        """
        if (path / "config.json").exists():
            raise ValueError(f"{path} already holds a run: continue it with --resume, or choose another --out")
        check_writable(path)
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        folder = cls(path, config, facts)
        folder._write_config()
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Reads a run's description.

        Raises:
            ValueError: There is no run, it is damaged, or a newer version wrote it.
        """
        file = path / "config.json"
        if not file.is_file():
            raise ValueError(f"expected a run folder, which 'vergence train' writes; {path} has no config.json")
        try:
            raw = json.loads(file.read_text())
            if raw["format"] > FORMAT:
                raise ValueError(
                    f"{path} was written by vergence {raw['vergence']} (format {raw['format']}); this is {__version__}, "
                    f"which reads formats up to {FORMAT}: upgrade vergence"
                )
            return cls(path, RunConfig.from_dict(raw), raw["facts"])
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file} is damaged ({error!r}); train again, or restore it from a copy") from None

    def _write_config(self) -> None:
        record = {"vergence": __version__, "format": FORMAT, **self.config.to_dict(), "facts": self.facts}
        self.write_json("config.json", record)

    def write_json(self, name: str, record: dict[str, Any]) -> None:
        """Writes a JSON file in one step."""
        with replacing(self.path / name) as part:
            part.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")

    def append(self, row: dict[str, Any]) -> None:
        """Adds a row to ``metrics.jsonl``; numbers that are not finite become null."""
        clean = {k: None if isinstance(v, float) and not _finite(v) else v for k, v in row.items()}
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(clean) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the rows of ``metrics.jsonl``; a last line half written by a kill is left out."""
        file = self.path / "metrics.jsonl"
        rows = []
        for line in file.read_text().splitlines() if file.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
        return rows

    def forget_after(self, step: int) -> None:
        """Drops the rows of ``metrics.jsonl`` behind ``step``: they will be written again."""
        kept = [row for row in self.metrics() if row.get("step", 0) <= step]
        with replacing(self.path / "metrics.jsonl") as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in kept))

    def log(self, line: str) -> None:
        """Adds a line to ``log.txt``."""
        with (self.path / "log.txt").open("a") as file:
            file.write(line + "\n")

    def save_checkpoint(self, state: State) -> None:
        """Writes ``checkpoints/last.pt`` in one step: a kill leaves the one before."""
        whole = io.BytesIO()  # torch reports a full disk as an error of its own making; plain writing says what it is
        torch.save(state, whole)
        with replacing(self.path / "checkpoints" / "last.pt") as part:
            part.write_bytes(whole.getbuffer())

    def load_checkpoint(self) -> State | None:
        """Returns the last checkpoint's tensors and numbers, or None where there is none yet.

        Raises:
            ValueError: The file is damaged.
        """
        file = self.path / "checkpoints" / "last.pt"
        if not file.exists():
            return None
        return _reading(file, lambda: torch.load(file, map_location="cpu", weights_only=True))

    def save_model(self, state: dict[str, Tensor]) -> None:
        """Writes ``model.safetensors`` in one step."""
        from safetensors.torch import save

        with replacing(self.path / "model.safetensors") as part:
            part.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}))

    def load_model(self) -> dict[str, Tensor]:
        """Returns the trained tensors.

        Raises:
            ValueError: Training has not finished, or the file is damaged.
        """
        from safetensors.torch import load_file

        file = self.path / "model.safetensors"
        if not file.exists():
            raise ValueError(f"{self.path} is not finished: it has no model.safetensors; go on with 'train --resume {self.path}'")
        return _reading(file, lambda: load_file(file))


def check_writable(path: Path) -> None:
    """Raises a ValueError unless ``path`` is, or can be made, a folder to write in."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {error.strerror}; choose another --out") from None


def _reading(file: Path, read: Callable[[], State]) -> State:
    from safetensors import SafetensorError

    try:
        return read()
    except (RuntimeError, EOFError, SafetensorError, OSError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{file} is damaged: {reason}; restore it from a copy, or train again") from None


def _finite(x: float) -> bool:
    return x == x and abs(x) != float("inf")
