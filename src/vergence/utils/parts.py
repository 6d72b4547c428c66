"""Rows of a long job, kept in parts beside its output: the same command goes on after a kill, SIGTERM or a full disk.

The parts of ``NAME`` are in the hidden folder ``.NAME.parts``: ``manifest.json``, which describes the job, and ``000000.npz``,
``000001.npz``, ..., some thousand rows each. Every part appears in one step. At the end they are joined in bounded memory and
the folder is removed. Where the parts end does not depend on where a job was stopped, so the joined file has the same bytes.
"""

import contextlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from vergence.utils import terminal
from vergence.utils.files import (
    DAMAGE,
    Column,
    exit_on_sigterm,
    explained,
    open_table,
    remove_leftovers,
    replacing,
    require_table,
    write_column,
)
from vergence.utils.locks import locked

__all__ = ["Derived", "Parts", "keep_parts", "open_parts"]

MANIFEST = "manifest.json"
FORMAT = 1
FILE = re.compile(r"\d{6}\.npz")
MAX_BYTES = 32 << 20  # of a part that is held in memory
EVERY = 4096  # items of a part
COLUMN = "column "  # before the name of a column, in a part
Kinds = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # type and shape of a row, by column


class Derived(Protocol):
    """Columns that are computed when all rows are there, such as ranks, in bounded memory.

    Attributes:
        needs: Names of the columns that they are computed from.
        names: Names of the derived columns.
        order: Names that come first in the file, in this order; all others follow.
    """

    needs: ClassVar[Sequence[str]]
    names: ClassVar[Sequence[str]]
    order: ClassVar[Sequence[str]]

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Takes note of some of the rows; called with all of them, part by part, before `columns`."""

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the derived columns of some of the rows."""


@contextlib.contextmanager
def open_parts(out: Path, job: Mapping[str, Any], *, every: int = EVERY, derived: Derived | None = None) -> Iterator["Parts"]:
    """Opens a table that is written in parts; ``out`` appears when the context ends without an error.

    Parts of an earlier call with the same job are kept: the caller goes on behind `Parts.done` items. Parts of another job are
    discarded, with one line on stderr. An error leaves the finished parts where they are.

    Args:
        out: ``.npz``, ``.csv`` or ``.parquet`` file.
        job: Numbers and text that determine the rows: the model, the items, the settings.
        every: Items of a part.
        derived: Columns that are added at the end.

    Raises:
        ValueError: The file or a part cannot be written, or another process writes this file.
    """
    require_table(out)
    with keep_parts(out, job, every=every, derived=derived) as parts:
        yield parts
        parts.join()


@contextlib.contextmanager
def keep_parts(out: Path, job: Mapping[str, Any], *, every: int = EVERY, derived: Derived | None = None) -> Iterator["Parts"]:
    """Opens rows that are kept in parts beside ``out`` and read back by `Parts.columns`; they go when the context ends.

    As `open_parts`, but ``out`` is not written: for what a long job computes first. An error leaves the finished parts where
    they are.

    Args:
        out: File that the job writes; it names the folder of the parts.
        job: As in `open_parts`.
        every: Items of a part.
        derived: As in `open_parts`.

    Raises:
        ValueError: A part cannot be written, or another process writes this file.
    """
    folder = out.with_name(f".{out.name}.parts")
    with explained(out, "choose another --out"):
        folder.mkdir(exist_ok=True)
    with exit_on_sigterm():
        try:
            with locked(folder / "lock", str(out)):
                parts = Parts(out, folder, {"format": FORMAT, **job}, every, derived)
                try:
                    yield parts
                    parts.clear()
                finally:
                    if not parts.done and not _finished(folder):  # a signal may come between a part's file and its count
                        parts.clear()
        finally:
            with contextlib.suppress(OSError):  # not empty: parts are kept
                folder.rmdir()


@dataclass(frozen=True)
class _Part:
    file: Path
    items: int
    rows: int
    kinds: Kinds
    skipped: list[tuple[str, str]]


class Parts:
    """Rows that are kept in parts; see `open_parts`.

    Args:
        out: File that the parts become.
        folder: Folder of the parts.
        job: Description of the job.
        every: Items of a part.
        derived: Columns that are added at the end.
    """

    def __init__(self, out: Path, folder: Path, job: Mapping[str, Any], every: int, derived: Derived | None = None) -> None:
        self.out, self.folder, self.every, self.derived = out, folder, every, derived
        self._waiting: list[Mapping[str, Column]] = []
        self._items, self._bytes = 0, 0
        self._skipped: list[tuple[str, str]] = []
        remove_leftovers(folder)
        self._parts = self._resumed(dict(job))

    @property
    def done(self) -> int:
        """Number of items, from the first, whose rows are in finished parts."""
        return sum(part.items for part in self._parts)

    @property
    def rows(self) -> int:
        """Number of rows in finished parts and of those that wait for the next."""
        return sum(part.rows for part in self._parts) + sum(len(next(iter(c.values()))) for c in self._waiting)

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Name and reason of the items without a row."""
        return [one for part in self._parts for one in part.skipped] + self._skipped

    def append(self, columns: Mapping[str, Column], items: int, skipped: Iterable[tuple[str, str]] = ()) -> None:
        """Adds the rows of the next items; every call has the same columns.

        Args:
            columns: Columns of equal length; see `vergence.utils.files.Table`.
            items: Number of items that they belong to.
            skipped: Name and reason of those of the items that have no row.
        """
        self._waiting.append(columns)
        self._items += items
        self._bytes += sum(values.nbytes for values in columns.values() if isinstance(values, np.ndarray))
        self._skipped += skipped
        if self._items >= self.every or self._bytes >= MAX_BYTES:
            self._write_part()

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of all rows, those that wait for the next part included; nothing without rows."""
        if self._waiting:
            self._write_part()
        loaded = [_load(part.file, part.kinds) for part in self._parts]
        return {name: np.concatenate([part[name] for part in loaded]) for name in loaded[0]} if loaded else {}

    def join(self) -> None:
        """Writes ``out`` from all parts, with the derived columns."""
        if self._waiting:
            self._write_part()
        for part in self._parts if self.derived is not None else ():
            assert self.derived is not None
            self.derived.see(_load(part.file, self.derived.needs))
        if self.out.suffix == ".npz":
            self._join_archive()
            return
        with open_table(self.out, advice=self._advice()) as table:
            for part in self._parts:
                columns = self._loaded(part, self._names(part))
                table.append({name: v.tolist() if v.dtype.kind == "U" else v for name, v in columns.items()})

    def _names(self, part: _Part) -> list[str]:
        """Returns the names of the file's columns, in their order."""
        derived = self.derived
        return list(part.kinds) if derived is None else list(dict.fromkeys([*derived.order, *part.kinds, *derived.names]))

    def _loaded(self, part: _Part, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns columns of a part, derived ones included."""
        added: dict[str, np.ndarray] = {}
        if self.derived is not None and set(names) & set(self.derived.names):
            added = self.derived.columns(_load(part.file, self.derived.needs))
        kept = _load(part.file, [name for name in names if name not in added])
        return {name: added[name] if name in added else kept[name] for name in names}

    def clear(self) -> None:
        """Removes the parts and the manifest."""
        for file in self.folder.iterdir():
            if FILE.fullmatch(file.name) or file.name == MANIFEST:
                file.unlink(missing_ok=True)
        self._parts = []

    def _resumed(self, job: dict[str, Any]) -> list[_Part]:
        """Returns the finished parts of the same job; removes all others and writes the manifest."""
        manifest = self.folder / MANIFEST
        before = _read_manifest(manifest)
        if before == job:
            parts = _finished(self.folder)
            if parts:
                items = sum(part.items for part in parts)
                print(f"{self.out}: continuing after {items} items, kept in {self.folder.name}", file=sys.stderr)
            return parts
        self._parts = []
        if any(FILE.fullmatch(file.name) for file in self.folder.iterdir()):
            other = [name for name in job if before.get(name) != job[name]]
            named = ", ".join(other[:3]) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
            terminal.note(f"{self.out}: discarding the kept parts of another job ({named} changed)")
        with explained(self.out, "free space, or choose another --out"):
            self.clear()
            with replacing(manifest) as temporary:
                temporary.write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")
        return []

    def _write_part(self) -> None:
        columns = {name: _concatenated([part[name] for part in self._waiting]) for name in self._waiting[0]}
        rows = len(next(iter(columns.values())))
        file = self.folder / f"{len(self._parts):06d}.npz"
        arrays = {COLUMN + name: values for name, values in columns.items()}
        arrays |= {"items": np.asarray(self._items), "skipped": _pairs(self._skipped)}
        with explained(self.out, self._advice()), replacing(file) as temporary:
            _write_archive(temporary, arrays)
        kinds = {name: (values.dtype, values.shape[1:]) for name, values in columns.items()}
        self._parts.append(_Part(file, self._items, rows, kinds, self._skipped))
        self._waiting, self._items, self._bytes, self._skipped = [], 0, 0, []

    def _join_archive(self) -> None:
        rows = sum(part.rows for part in self._parts)
        with explained(self.out, self._advice()), replacing(self.out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
            for name in self._names(self._parts[0]) if self._parts else ():
                kinds = [part.kinds.get(name) or self._kind(part, name) for part in self._parts]
                dtype = max((dtype for dtype, _ in kinds), key=lambda dtype: dtype.itemsize)
                values = (self._loaded(part, [name])[name] for part in self._parts)
                write_column(archive, name, dtype, (rows, *kinds[0][1]), (part.astype(dtype).tobytes() for part in values))

    def _kind(self, part: _Part, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        values = self._loaded(part, [name])[name]
        return values.dtype, values.shape[1:]

    def _advice(self) -> str:
        if not self._parts:
            return "free space, or choose another --out"
        return f"the first {self.done} items are kept in {self.folder.name}: free space and repeat the command to go on"


def _finished(folder: Path) -> list[_Part]:
    """Returns the parts from the first on, up to one that is missing or damaged."""
    parts: list[_Part] = []
    while (part := _read_part(folder / f"{len(parts):06d}.npz")) is not None:
        parts.append(part)
    return parts


def _read_part(file: Path) -> _Part | None:
    """Returns what a part holds, all of which is read and checked; None where it is missing or damaged."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        items, skipped = int(arrays.pop("items")), [(str(name), str(reason)) for name, reason in arrays.pop("skipped")]
    except DAMAGE:
        return None
    columns = {name.removeprefix(COLUMN): values for name, values in arrays.items()}
    kinds = {name: (values.dtype, values.shape[1:]) for name, values in columns.items()}
    return _Part(file, items, len(next(iter(columns.values()))), kinds, skipped)


def _load(file: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[COLUMN + name] for name in names}


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in arrays.items():
            write_column(archive, name, values.dtype, values.shape, [values.tobytes()])


def _concatenated(values: Sequence[Column]) -> np.ndarray:
    return np.concatenate([part if isinstance(part, np.ndarray) else np.asarray(part, dtype=np.str_) for part in values])


def _pairs(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    return np.asarray(pairs, dtype=np.str_).reshape(-1, 2)
