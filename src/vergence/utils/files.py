"""Writing files so that a kill or a full disk loses nothing: in one step, and row by row in bounded memory."""

import abc
import contextlib
import csv
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

__all__ = ["Table", "open_table", "replacing"]

Column = np.ndarray | Sequence[str]


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Gives a temporary path beside ``path``; on success it takes ``path``'s place in one step.

    With ``durable`` it is flushed to the disk first, so that not even a power cut leaves half a file. On an error ``path`` is
    untouched and the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        if durable:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Table(abc.ABC):
    """Columns of equal length that grow by rows: (n,) numbers or strings, or (n, D) numbers."""

    @abc.abstractmethod
    def append(self, columns: Mapping[str, Column]) -> None:
        """Adds rows; every call has the same columns."""

    @abc.abstractmethod
    def close(self) -> None:
        """Writes what is left."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Lets go of what is still held; nothing more is written."""


@contextlib.contextmanager
def open_table(path: Path) -> Iterator[Table]:
    """Opens a table for writing: ``.csv``, ``.npz`` or ``.parquet`` by its ending. The file appears when all is written.

    Raises:
        ValueError: The ending is another, the folder cannot be written, or pyarrow is missing for ``.parquet``.
    """
    kinds: dict[str, Callable[[Path], Table]] = {".csv": _CSV, ".npz": _NPZ, ".parquet": _Parquet}
    if path.suffix not in kinds:
        raise ValueError(f"cannot write '{path.name}': expected an ending among {', '.join(kinds)}")
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder")
    with replacing(path, durable=False) as part:
        table = kinds[path.suffix](part)
        try:
            yield table
            table.close()
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}; {_kept(table, part, path)}") from None
        finally:
            with contextlib.suppress(OSError):  # what stopped the writing is already told
                table.abandon()


def _kept(table: "Table", part: Path, path: Path) -> str:
    """Saves the rows that reached the disk, where the format can be cut off anywhere, and says so."""
    if not isinstance(table, _CSV):
        return "free space, or choose another --out"
    kept = path.with_name(f"{path.stem}.partial{path.suffix}")
    part.replace(kept)
    return f"the rows so far are in {kept.name}: free space and write the rest, or choose another --out"


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
            self.writer.writerow(self.header)
        self.writer.writerows(zip(*(_written(v) for v in flat.values()), strict=True))

    def close(self) -> None:
        self.file.close()

    def abandon(self) -> None:
        self.file.close()


def _written(values: Column) -> list[str]:
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return [f"{v:.7g}" for v in values.tolist()]
    return [str(v) for v in values]


class _NPZ(Table):
    """Each column goes to a temporary file of its own; `close` puts them behind numpy's headers into one archive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = tempfile.TemporaryDirectory(dir=path.parent, prefix=".table.")
        self.files: dict[str, IO[bytes]] = {}
        self.kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.rows = 0

    def append(self, columns: Mapping[str, Column]) -> None:
        for name, values in columns.items():
            array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=np.str_)
            if name not in self.files:
                self.files[name] = (Path(self.parts.name) / name).open("wb+")
            dtype, shape = self.kinds.get(name, (array.dtype, array.shape[1:]))
            self.kinds[name] = (max(dtype, array.dtype, key=lambda d: d.itemsize), shape)
            data = array.tobytes() if array.dtype.kind != "U" else "".join(f"{v}\0" for v in array).encode()
            self.files[name].write(data)
        self.rows += len(array)

    def close(self) -> None:
        with zipfile.ZipFile(self.path, "w", allowZip64=True) as archive:
            for name, file in self.files.items():
                dtype, shape = self.kinds[name]
                file.seek(0)
                with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                    header = {"descr": dtype.str, "fortran_order": False, "shape": (self.rows, *shape)}
                    np.lib.format.write_array_header_1_0(out, header)
                    if dtype.kind == "U":
                        for chunk in _strings(file):
                            out.write(np.asarray(chunk, dtype=dtype).tobytes())
                    else:
                        shutil.copyfileobj(file, out, 1 << 20)

    def abandon(self) -> None:
        for file in self.files.values():
            with contextlib.suppress(OSError):  # closing flushes, which a full disk refuses
                file.close()
        self.parts.cleanup()


def _strings(file: IO[bytes]) -> Iterator[list[str]]:
    """Yields the zero-terminated strings of a file, some thousands at a time."""
    rest = b""
    while block := file.read(1 << 18):
        *whole, rest = (rest + block).split(b"\0")
        if whole:
            yield [text.decode() for text in whole]


class _Parquet(Table):
    def __init__(self, path: Path) -> None:
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ValueError("writing .parquet needs pyarrow: pip install 'vergence[parquet]'; or write .npz") from None
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
