"""Tables of columns, written to ``.csv``, ``.jsonl``, ``.npz`` or ``.parquet`` in bounded memory; rows of a long job, in parts.

The parts of ``NAME`` are in the hidden folder ``.NAME.parts``: ``manifest.json``, which describes the job, and ``000000.npz``,
``000001.npz``, ..., some thousand rows each. Every part appears in one step, and the same command goes on behind the last one
after a kill, SIGTERM or a full disk. At the end they are joined and the folder is removed. Where the parts end does not depend
on where a job was stopped, so the joined file has the same bytes.
"""

import contextlib
import csv
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from vergence.utils import files, terminal
from vergence.utils.checks import expect, require_choice
from vergence.utils.version import __version__

__all__ = ["Derived", "Parts", "Shard", "named_path", "open_parts", "original", "read_names", "require_table", "write_blocks"]
__all__ += ["write_table"]

MANIFEST = "manifest.json"
FORMAT = 1
VERSIONS = {"vergence": __version__, "torch": version("torch")}  # which can change the last bits of rows
SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")
PART = re.compile(r"\d{6}\.npz")
MAX_BYTES = 32 << 20  # of a part that is held in memory
EVERY = 4096  # items of a part, rows of a block
COLUMN = "column "  # before the name of a column, in a part
# How a text begins that a spreadsheet may run, unless it is a negative number; quotes so that it can be read back
FORMULA = re.compile(r"'*(?!-\d+(\.\d+)?([eE][-+]?\d+)?\Z)[=+\-@\t\r\n]")
PATH = re.compile(rf"(\./)*{FORMULA.pattern}")
Column = np.ndarray | Sequence[str]
Arrays = dict[str, np.ndarray]
Blocks = Callable[[Sequence[str]], Iterator[Arrays]]  # names of columns -> these columns of all rows, some rows at a time


# Tables


def require_table(path: Path, read: Iterable[Any] = (), holds: str = "") -> None:
    """Raises a ValueError unless a table can be written to ``path``: its ending, its folder, and what is there.

    That is none of the files that are ``read``, and nothing or a table with a column whose name has ``holds`` in it.
    """
    require_choice(f"the file's ending of {path.name}", path.suffix, WRITERS)
    files.require_parent(path)
    expect(not path.is_dir(), f"a file to write to at {path}", "a folder")
    files.require_apart(path, read)
    if holds and path.is_file() and path.stat().st_size:
        names = _names_in(path)
        found = f"a file with {', '.join(names[:8])}" if names else "another file"
        expect(any(holds in name for name in names), f"no file, or an earlier result, at {path}", found, "choose another `out`")


def _names_in(path: Path) -> list[str]:
    """Returns the names of the columns of a file that `write_table` may have written; none of others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            return list(pq.read_schema(path).names)
        if path.suffix == ".npz":
            return zipfile.ZipFile(path).namelist()
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline(1 << 20)
        return list(json.loads(first)) if path.suffix == ".jsonl" else next(csv.reader([first]), [])
    except (*files.DAMAGE, csv.Error, pa.ArrowException):
        return []


def write_table(path: Path, columns: Mapping[str, Column]) -> None:
    """Writes columns of equal length, numbers or strings, (n,) or (n, D), by the ending of ``path``. It appears in one step.

    In ``.csv``, a matrix has a column for each of its own (``z_0``, ``z_1``, ...), and texts that a spreadsheet could take for a
    formula stand behind a single quote (`neutral`); numbers never do. They have seven digits; those of an array of Python's
    objects have all, or are texts that stand as they are.
    """
    n = len(next(iter(columns.values())))

    def blocks(names: Sequence[str]) -> Iterator[Arrays]:
        for start in range(0, max(n, 1), EVERY):
            yield {name: _as_array(columns[name][start : start + EVERY]) for name in names}

    write_blocks(path, list(columns), blocks, "free space, or choose another `out`", durable=False)


def apart(added: Mapping[str, np.ndarray], own: Iterable[str]) -> dict[str, np.ndarray]:
    """Returns the added columns, named ``vergence_NAME`` where there is a column of that name already."""
    taken, found = set(own), {}
    for name, values in added.items():
        while name in taken:
            name = f"vergence_{name}"
        found[name] = values
    return found


def write_blocks(path: Path, names: Sequence[str], blocks: Blocks, advice: str, *, durable: bool = True) -> None:
    """Writes columns as `write_table` does, some rows at a time; ``advice`` says what to do where the disk is full.

    ``blocks`` yields some of the columns of all rows; of ``.npz`` it is called for each column, else once. With ``durable`` the
    file is on disk when this returns.
    """
    require_table(path)
    with files.explained(path, advice), files.replacing(path, durable=durable) as temporary:
        WRITERS[path.suffix](temporary, names, blocks)


def _write_csv(path: Path, names: Sequence[str], blocks: Blocks) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        i = -1
        for i, columns in enumerate(blocks(names)):
            flat: Arrays = {}
            for name, values in columns.items():
                flat |= {f"{name}_{d}": values[:, d] for d in range(values.shape[1])} if values.ndim == 2 else {name: values}
            if i == 0:
                writer.writerow(map(neutral, flat))
            writer.writerows(zip(*map(_as_text, flat.values()), strict=True))
        if i < 0:  # a table without rows
            writer.writerow(map(neutral, names))


def _as_text(values: np.ndarray) -> list[str]:
    if values.dtype.kind == "O":
        return [v if isinstance(v, str) else repr(v).removesuffix(".0") for v in values]
    if values.dtype.kind == "f":
        finite = values[np.isfinite(values)]
        # seven digits may not tell numbers apart that vary by less than a hundredth of the largest
        exact = values.dtype == np.float64 and len(finite) and np.abs(finite).max() > 100 * np.ptp(finite)
        return [repr(v).removesuffix(".0") if exact else f"{v:.7g}" for v in values.tolist()]
    return [str(v) if values.dtype.kind in "biu" else neutral(str(v)) for v in values]


def neutral(text: str) -> str:
    """Returns a text, behind a single quote where a spreadsheet could take it for a formula; `original` is the inverse."""
    return f"'{text}" if FORMULA.match(text) else text


def named_path(name: str) -> str:
    """Returns the name of a file as it stands in CSV files: behind ``./`` where `neutral` would change it. It names the file.

    Example:
        >>> named_path("=1+1.png"), named_path("cat.png"), original(named_path("./=x"))
        ('./=1+1.png', 'cat.png', './=x')
    """
    return f"./{name}" if PATH.match(name) else name


def original(text: str) -> str:
    """Returns the text of which `neutral` or `named_path` gave ``text``."""
    if text.startswith("./") and PATH.match(text):
        return text[2:]
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def read_names(file: Path) -> list[str]:
    """Returns the lines of a text file that are not empty, as names, which may stand as in a ``.csv`` file of the library."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # a name may hold other line separators
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"expected a text file with one name a line, cannot read {file}: {reason}") from None
    return [original(line.strip()) for line in lines if line.strip()]


def json_lines(columns: Mapping[str, np.ndarray]) -> Iterator[str]:
    r"""Yields the rows of columns of equal length as JSON objects, one per line; numbers that are not finite become null."""
    for row in zip(*(values.tolist() for values in columns.values()), strict=True):
        cells = (None if isinstance(cell, float) and not math.isfinite(cell) else cell for cell in row)
        yield json.dumps(dict(zip(columns, cells, strict=True)), default=str) + "\n"


def _write_jsonl(path: Path, names: Sequence[str], blocks: Blocks) -> None:
    with path.open("w", encoding="utf-8") as file:
        for columns in blocks(names):
            file.writelines(json_lines(columns))


def _write_npz(path: Path, names: Sequence[str], blocks: Blocks) -> None:
    """Writes an array for each column, which is read twice, since its type and shape come first."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            kinds = [(len(values), values.dtype, values.shape[1:]) for values in (block[name] for block in blocks([name]))]
            if not kinds:
                continue
            dtype = max((dtype for _, dtype, _ in kinds), key=lambda dtype: dtype.itemsize)
            header = {"descr": dtype.str, "fortran_order": False, "shape": (sum(n for n, _, _ in kinds), *kinds[0][2])}
            # without the time, so that equal arrays give equal bytes
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for block in blocks([name]):
                    file.write(block[name].astype(dtype).tobytes())


def _write_parquet(path: Path, names: Sequence[str], blocks: Blocks) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def arrow(values: np.ndarray) -> Any:
        if values.ndim == 2:
            return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        return pa.array(values.tolist(), pa.string()) if values.dtype.kind == "U" else pa.array(values)

    with contextlib.ExitStack() as stack:
        writer: Any = None
        for columns in blocks(names):
            table = pa.table({name: arrow(values) for name, values in columns.items()})
            writer = writer or stack.enter_context(pq.ParquetWriter(path, table.schema))
            writer.write_table(table)


WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".npz": _write_npz, ".parquet": _write_parquet}


def _as_array(values: Column) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else np.asarray(values, dtype=np.str_)


# Parts


class Derived(Protocol):
    """Columns that are computed when all rows are there, such as ranks, in bounded memory."""

    needs: ClassVar[Sequence[str]]  # names of the columns that they are computed from
    names: ClassVar[Sequence[str]]  # of the derived columns
    order: ClassVar[Sequence[str]]  # that come first in the file; all others follow

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Takes note of some of the rows; called with all of them, part by part, before `columns`."""

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the derived columns of some of the rows."""


@contextlib.contextmanager
def open_parts(
    out: Path, job: Mapping[str, Any], *, every: int = EVERY, derived: Derived | None = None, joined: bool = True
) -> Iterator["Parts"]:
    """Opens a table that is written in parts; ``out`` appears when the context ends without an error.

    Parts of an earlier call with the same job are kept: the caller goes on behind `Parts.done` items. Parts of another job are
    discarded, with one line on stderr. An error leaves the finished parts where they are; another process that writes this file
    is a ValueError.

    Args:
        out: ``.npz``, ``.csv`` or ``.parquet`` file.
        job: Numbers and text that determine the rows: the model, the items, the settings.
        every: Items of a part.
        derived: Columns that are added at the end.
        joined: Whether ``out`` is written; else it names the folder of the parts, which `Parts.columns` reads back.
    """
    if joined:
        require_table(out)
    folder = out.with_name(f".{out.name}.parts")
    with files.explained(out, "choose another `out`"):
        folder.mkdir(exist_ok=True)
    with files.exit_on_sigterm():
        try:
            with files.locked(folder / "lock", str(out)):
                parts = Parts(out, folder, {**job, "format": FORMAT, **VERSIONS}, every)
                try:
                    yield parts
                    if joined:
                        parts.join(derived)
                    parts.clear()
                finally:
                    # a signal may come between a part's file and its count
                    if not parts.done and _read_part(parts.file(0)) is None:
                        parts.clear()
        finally:
            with contextlib.suppress(OSError):  # not empty: parts are kept
                folder.rmdir()


@dataclass(frozen=True)
class _Part:
    file: Path
    columns: list[str]
    items: int
    rows: int
    skipped: list[tuple[str, str]]

    def read(self, names: Iterable[str] | None = None) -> Arrays:
        """Returns columns, by default all."""
        with np.load(self.file, allow_pickle=False) as archive:
            return {name: archive[COLUMN + name] for name in (self.columns if names is None else names)}


class Parts:
    """Rows that are kept in parts in a folder; see `open_parts`."""

    def __init__(self, out: Path, folder: Path, job: dict[str, Any], every: int) -> None:
        self.out, self.folder, self.every = out, folder, every
        self._waiting: list[Mapping[str, Column]] = []
        self._items, self._bytes = 0, 0
        self._skipped: list[tuple[str, str]] = []
        self._parts: list[_Part] = []
        files.remove_leftovers(folder)
        self._resume(job)

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
        return [pair for part in self._parts for pair in part.skipped] + self._skipped

    def file(self, i: int) -> Path:
        """Returns the file of a part."""
        return self.folder / f"{i:06d}.npz"

    def append(self, columns: Mapping[str, Column], items: int, skipped: Iterable[tuple[str, str]] = ()) -> None:
        """Adds the rows of the next items, and name and reason of those without a row; every call has the same columns."""
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
        read = [part.read() for part in self._parts]
        return {name: np.concatenate([part[name] for part in read]) for name in read[0]} if read else {}

    def join(self, derived: Derived | None) -> None:
        """Writes ``out`` from all parts, with the derived columns."""
        if self._waiting:
            self._write_part()
        names = self._parts[0].columns if self._parts else []
        if derived is not None:
            names = list(dict.fromkeys([*derived.order, *names, *derived.names]))
            for part in self._parts:
                derived.see(part.read(derived.needs))

        def blocks(names: Sequence[str]) -> Iterator[Arrays]:
            computed = set() if derived is None else set(names) & set(derived.names)
            for part in self._parts:
                columns = part.read(name for name in names if name not in computed)
                if derived is not None and computed:
                    columns |= derived.columns(part.read(derived.needs))
                yield {name: columns[name] for name in names}

        write_blocks(self.out, names, blocks, self._advice())

    def clear(self) -> None:
        """Removes the parts and the manifest."""
        for file in self.folder.iterdir():
            if PART.fullmatch(file.name) or file.name == MANIFEST:
                file.unlink(missing_ok=True)
        self._parts = []

    def _resume(self, job: dict[str, Any]) -> None:
        """Goes on behind the finished parts of the same job, up to one that is missing or damaged; removes those of another."""
        manifest, before = self.folder / MANIFEST, {}
        with contextlib.suppress(OSError, ValueError):
            before = files.read_object(manifest)
        if before == job:
            while (part := _read_part(self.file(len(self._parts)))) is not None:
                self._parts.append(part)
            if self._parts:
                terminal.note(f"{self.out.name}: continuing after {self.done:,} items of an earlier call that was stopped")
            return
        if any(PART.fullmatch(file.name) for file in self.folder.iterdir()):
            other = [name for name in job if before.get(name) != job[name]]
            named = ", ".join(other[:3]) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
            terminal.note(f"{self.out.name}: starting anew, since {named} changed after an earlier call that was stopped")
        with files.explained(self.out, self._advice()):
            self.clear()
            with files.replacing(manifest) as temporary:
                temporary.write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")

    def _write_part(self) -> None:
        columns = {name: np.concatenate([_as_array(part[name]) for part in self._waiting]) for name in self._waiting[0]}
        arrays = {COLUMN + name: values.astype(np.str_) if values.dtype == object else values for name, values in columns.items()}
        arrays |= {"items": np.asarray(self._items), "skipped": np.asarray(self._skipped, dtype=np.str_).reshape(-1, 2)}
        file, rows = self.file(len(self._parts)), len(next(iter(columns.values())))
        with files.explained(self.out, self._advice()), files.replacing(file) as temporary, temporary.open("wb") as opened:
            np.savez(opened, **arrays)  # type: ignore[arg-type]
        self._parts.append(_Part(file, list(columns), self._items, rows, self._skipped))
        self._waiting, self._items, self._bytes, self._skipped = [], 0, 0, []

    def _advice(self) -> str:
        if not self._parts:
            return "free space, or choose another `out`"
        return f"the first {self.done} items are kept in {self.folder.name}: free space and repeat the command to go on"


def _read_part(file: Path) -> _Part | None:
    """Returns what a part holds, all of which is read and checked; None where it is missing or damaged."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        items, skipped = int(arrays.pop("items")), [(str(name), str(reason)) for name, reason in arrays.pop("skipped")]
    except files.DAMAGE:
        return None
    columns = [name.removeprefix(COLUMN) for name in arrays]
    return _Part(file, columns, items, len(next(iter(arrays.values()))), skipped)


@dataclass(frozen=True)
class Shard:
    """Part ``number`` of ``of`` parts, from 1.

    Example:
        >>> shard = Shard.parse("2/3")
        >>> shard.range(10, 1), shard.range(1000, 256), str(shard)
        (range(3, 6), range(256, 512), '2/3')
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Returns the shard of a text I/N; raises a ValueError unless 1 <= I <= N."""
        match = SHARD.fullmatch(text.strip())
        number, of = (int(x) for x in match.groups()) if match else (0, 0)
        expect(1 <= number <= of, "`shard=I/N` with 1 <= I <= N, such as 1/10", f"'{text}'")
        return cls(number, of)

    def __str__(self) -> str:
        """Returns I/N."""
        return f"{self.number}/{self.of}"

    def range(self, n: int, batch_size: int) -> "range":
        """Returns its items among n: whole batches of one process where there are as many, so that all numbers are the same."""
        step = batch_size if n >= self.of * batch_size else 1
        blocks = -(-n // step)
        start, stop = (blocks * i // self.of * step for i in (self.number - 1, self.number))
        return range(min(start, n), min(stop, n))

    @property
    def name(self) -> str:
        """What its file or folder is called, without an ending: ``part-2-of-3``."""
        return f"part-{self.number:0{len(str(self.of))}d}-of-{self.of}"
