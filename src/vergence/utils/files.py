"""Writing files so that a kill or a full disk loses nothing: in one step, and row by row in bounded memory."""

import abc
import contextlib
import csv
import functools
import hashlib
import importlib.util
import lzma
import os
import re
import shutil
import signal
import socket
import struct
import sys
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from vergence.utils.checks import shown

__all__ = [
    "DAMAGE",
    "Column",
    "Table",
    "as_path",
    "exit_on_sigterm",
    "explained",
    "neutral",
    "open_table",
    "original",
    "remove_leftovers",
    "replacing",
    "require_parent",
    "require_table",
    "sha256",
    "write_column",
]

HOST = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())
TEMPORARY = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>\d+)\.parts?")
Column = np.ndarray | Sequence[str]
# What numpy and zipfile raise for files that are damaged, encrypted or too large.
DAMAGE: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, TypeError, LookupError, SyntaxError, tokenize.TokenError)
DAMAGE += (MemoryError, OverflowError, NotImplementedError, RuntimeError)
DAMAGE += (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error)
FORMULA = re.compile(r"'*[=+\-@\t\r\n]")  # how a text begins that a spreadsheet may run; quotes so that it can be read back


def as_path(value: Any, what: str) -> Path:
    """Returns a path that a person gave, with the home folder in the place of ``~``.

    Args:
        value: The path, as text or a path object.
        what: Name of the setting, for the message.

    Raises:
        ValueError: It is something else, or the home folder of an unknown user.

    Example:
        >>> as_path("runs/first", "init").parts
        ('runs', 'first')
        >>> as_path(-1, "init")
        Traceback (most recent call last):
        ValueError: expected a path for init, found -1: give it as text
    """
    try:
        return Path(value).expanduser()
    except TypeError:
        raise ValueError(f"expected a path for {what}, found {shown(value)}: give it as text") from None
    except RuntimeError:
        raise ValueError(f"expected a path for {what}, found {shown(value)} of an unknown user: write the path out") from None


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; on success it takes ``path``'s place in one step.

    With ``durable`` it is flushed to the disk first, so that not even a power cut leaves half a file. On an error or SIGTERM
    ``path`` is untouched and the temporary file is removed; one that a killed process left is removed by the next call.
    """
    remove_leftovers(path.parent, f".{path.name}.")
    temporary = path.with_name(f".{path.name}.{HOST}.{os.getpid()}.part")
    with exit_on_sigterm():
        try:
            yield temporary
            if durable:
                with temporary.open("rb+") as file:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            if error.filename != str(temporary):
                raise
            raise OSError(error.errno, error.strerror, str(path)) from None  # by the name that the caller knows
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path, advice: str) -> Iterator[None]:
    """Turns what stops the writing of a file, such as a full disk, into one line: where, why, and what to do.

    Args:
        path: File that is written.
        advice: What is safe, and what to do.

    Raises:
        ValueError: The block raised an OSError.

    Example:
        >>> with explained(Path("a.npz"), "free space and repeat the command"):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        ValueError: cannot write a.npz: No space left on device; free space and repeat the command
    """
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}; {advice}") from None


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal; the file is read in parts."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def remove_leftovers(folder: Path, prefix: str = ".") -> None:
    """Removes the temporary files that dead processes of this machine left in a folder.

    Args:
        folder: Folder to look into; need not exist.
        prefix: Start of the names to look at: ``.NAME.`` for the temporary files of one output.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        found = TEMPORARY.fullmatch(path.name) if path.name.startswith(prefix) else None
        if found is not None and found["host"] == HOST and not _is_alive(int(found["pid"])):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to someone else
        return True
    return True


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind the stack, so that temporary files are removed, unless the program handles the signal itself."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Table(abc.ABC):
    """Columns of equal length that grow by rows: numbers or strings, (n,) or (n, D)."""

    @abc.abstractmethod
    def append(self, columns: Mapping[str, Column]) -> None:
        """Adds rows; every call has the same columns."""

    @abc.abstractmethod
    def close(self) -> None:
        """Writes what is left."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Closes what is still open; nothing more is written."""


def require_parent(path: Path) -> None:
    """Raises a ValueError unless the folder exists that ``path`` is to be written in."""
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")


def require_table(path: Path) -> None:
    """Raises a ValueError unless a table can be written to ``path``: its ending, its folder, and pyarrow for ``.parquet``."""
    if path.suffix not in KINDS:
        raise ValueError(f"cannot write '{path.name}': expected an ending among {', '.join(KINDS)}")
    require_parent(path)
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ValueError("writing .parquet needs pyarrow: pip install pyarrow; or write .npz")


@contextlib.contextmanager
def open_table(path: Path, *, advice: str = "") -> Iterator[Table]:
    """Opens a table for writing: ``.csv``, ``.npz`` or ``.parquet`` by its ending. The file appears when all is written.

    In ``.csv``, texts that a spreadsheet could take for a formula stand behind a single quote (`neutral`); numbers never do.

    Args:
        path: File to write.
        advice: What is safe, and what to do, for the error of a full disk; without it the rows of a ``.csv`` file that
            reached the disk are kept. With it the file is flushed to the disk before it appears.

    Raises:
        ValueError: The ending is another, the folder cannot be written, or pyarrow is missing for ``.parquet``.
    """
    require_table(path)
    with replacing(path, durable=bool(advice)) as part:
        table = KINDS[path.suffix](part)
        try:
            yield table
            table.close()
        except OSError as error:
            what = advice or _keep_rows(table, part, path)
            raise ValueError(f"cannot write {path}: {error.strerror or error}; {what}") from None
        finally:
            with contextlib.suppress(OSError):  # what stopped the writing is already reported
                table.abandon()


def _keep_rows(table: "Table", part: Path, path: Path) -> str:
    """Keeps the rows that reached the disk, where the format can be cut off anywhere; returns what to do."""
    if not isinstance(table, _CSV):
        return "free space, or choose another --out"
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    part.replace(partial)
    return f"the rows so far are in {partial.name}: free space and write the rest, or choose another --out"


class _CSV(Table):
    def __init__(self, path: Path) -> None:
        self.file = path.open("w", newline="", encoding="utf-8")
        self.writer = csv.writer(self.file)
        self.header: list[str] | None = None

    def append(self, columns: Mapping[str, Column]) -> None:
        flat: dict[str, Any] = {}
        for name, values in columns.items():
            if isinstance(values, np.ndarray) and values.ndim == 2:
                flat |= {f"{name}_{d}": values[:, d] for d in range(values.shape[1])}
            else:
                flat[name] = values
        if self.header is None:
            self.header = list(flat)
            self.writer.writerow(map(neutral, self.header))
        self.writer.writerows(zip(*(_as_text(v) for v in flat.values()), strict=True))

    def close(self) -> None:
        self.file.close()

    def abandon(self) -> None:
        self.file.close()


def _as_text(values: Column) -> list[str]:
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        exact = values.dtype == np.float64 and _far_from_zero(values)
        return [repr(v).removesuffix(".0") if exact else f"{v:.7g}" for v in values.tolist()]
    if isinstance(values, np.ndarray) and values.dtype.kind in "biu":
        return [str(v) for v in values]
    return [neutral(str(v)) for v in values]


def _far_from_zero(values: np.ndarray) -> bool:
    """Returns whether seven digits may not tell numbers apart: they vary by less than a hundredth of the largest."""
    known = values[np.isfinite(values)]
    return bool(len(known)) and float(np.abs(known).max()) > 100 * float(np.ptp(known))


def neutral(text: str) -> str:
    """Returns a text as CSV files of this library hold it: behind a single quote where a spreadsheet could take it for a formula.

    These are texts that begin with ``=``, ``+``, ``-``, ``@``, a tab or a line break. `original` is the inverse.

    Example:
        >>> neutral("=1+1.png"), neutral("'=x"), neutral("cat.png")
        ("'=1+1.png", "''=x", 'cat.png')
    """
    return f"'{text}" if FORMULA.match(text) else text


def original(text: str) -> str:
    """Returns the text of which `neutral` gave ``text``.

    Example:
        >>> original("'=1+1.png"), original("'tis.png"), original("cat.png")
        ('=1+1.png', "'tis.png", 'cat.png')
    """
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


class _NPZ(Table):
    """Each column goes to a temporary file of its own; `close` puts them behind numpy's headers into one archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = path.with_name(f"{path.name}s")
        self.parts.mkdir()
        self.files: dict[str, IO[bytes]] = {}
        self.kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.rows = 0

    def append(self, columns: Mapping[str, Column]) -> None:
        for name, values in columns.items():
            array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=np.str_)
            if name not in self.files:
                self.files[name] = (self.parts / name).open("wb+")
            dtype, shape = self.kinds.get(name, (array.dtype, array.shape[1:]))
            self.kinds[name] = (max(dtype, array.dtype, key=lambda d: d.itemsize), shape)
            data = array.tobytes() if array.dtype.kind != "U" else "".join(f"{v}\0" for v in array.ravel()).encode()
            self.files[name].write(data)
        self.rows += len(array)

    def close(self) -> None:
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, file in self.files.items():
                dtype, shape = self.kinds[name]
                file.seek(0)
                blocks: Iterator[bytes]
                if dtype.kind == "U":
                    blocks = (np.asarray(chunk, dtype=dtype).tobytes() for chunk in _strings(file))
                else:
                    blocks = iter(functools.partial(file.read, 1 << 20), b"")
                write_column(archive, name, dtype, (self.rows, *shape), blocks)

    def abandon(self) -> None:
        for file in self.files.values():
            with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses
                file.close()
        shutil.rmtree(self.parts, ignore_errors=True)


def write_column(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[bytes]
) -> None:
    """Writes an array to an open ``.npz`` archive, without the time, so that equal arrays give equal bytes.

    Args:
        archive: Archive to add to.
        name: Name of the array.
        dtype: Its type.
        shape: Its shape.
        blocks: Its bytes in C order.
    """
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as out:
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, header)
        for block in blocks:
            out.write(block)


def _strings(file: IO[bytes]) -> Iterator[list[str]]:
    """Yields the zero-terminated strings of a file, some thousands at a time."""
    rest = b""
    while block := file.read(1 << 18):
        *whole, rest = (rest + block).split(b"\0")
        if whole:
            yield [text.decode() for text in whole]


class _Parquet(Table):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: Any = None

    def append(self, columns: Mapping[str, Column]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({name: _arrow(values) for name, values in columns.items()})
        self.writer = self.writer or pq.ParquetWriter(self.path, table.schema)
        self.writer.write_table(table)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def abandon(self) -> None:
        self.writer = None


def _arrow(values: Column) -> Any:
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    return pa.array(values)


KINDS: dict[str, Callable[[Path], Table]] = {".csv": _CSV, ".npz": _NPZ, ".parquet": _Parquet}
