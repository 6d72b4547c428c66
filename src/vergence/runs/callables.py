"""A run, or an encoder, as a function of batches of columns: for Ray Data, Daft, Spark, ``datasets.map`` and data loaders.

A batch is a dictionary of columns, an Arrow or pandas table, an iterator of such (Spark), a list of rows (a data loader's
``collate_fn``), or one column by itself. A column holds pictures (encoded bytes, ``{bytes, path}``, paths, PIL images, arrays)
or vectors. B rows.
"""

import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vergence.data.arrays import from_array
from vergence.data.images import DECODE_SECONDS, image_pixels, opened_image, reason, time_limit
from vergence.data.pixels import center_crop, resize
from vergence.data.sources import with_shape
from vergence.data.tables import as_table, read_features
from vergence.encoders.frozen import FrozenNetwork, named_network
from vergence.runs.run import Run, load
from vergence.runs.score import columns_of
from vergence.training.folder import RunFolder
from vergence.utils.checks import expect, is_out_of_memory, require_choice, require_count
from vergence.utils.devices import as_device
from vergence.utils.linalg import as_array

__all__ = ["Embedder", "Scorer"]

USUAL: tuple[str, ...] = (
    "image",
    "picture",
    "bytes",
    "path",
    "file",
    "jpg",
    "jpeg",
    "png",
    "webp",
    "features",
    "z",
    "embedding",
    "embeddings",
)
USUAL += ("vector", "x", "data")  # names of a column of items, the first that is there
Arrays = dict[str, Any]
Function = Callable[[Tensor], Arrays]


class _OfBatches:
    """What `Scorer` and `Embedder` share: columns to items, rows that cannot be read, and columns out again."""

    def __init__(self, column: str | None, device: str, batch_size: int) -> None:
        require_count(batch_size=batch_size)
        self.column, self.device, self.batch_size = column, device, batch_size

    def __call__(self, batch: Any) -> Any:
        """Returns the columns of a batch without the items, and those of the outcome; of an iterator, an iterator.

        Rows that are null or cannot be read have NaN, or an empty text, and the reason in ``error``.

        Raises:
            ValueError: The batch has no column of items.
        """
        if isinstance(batch, Iterator):
            return map(self, batch)
        columns, back = _columns(batch)
        shape, names = self._shape(), self._names()
        if names:
            used = None  # features stay
            rows, errors = _of_features(columns, names)
        else:
            used = _chosen(columns, self.column)
            rows, errors = _read(columns[used], shape, self._image)
        good = np.flatnonzero([not error for error in errors])
        found = self._outcome(rows, good, len(errors))
        return back({name: values for name, values in columns.items() if name != used}, {**found, "error": errors})

    def _outcome(self, rows: Tensor, good: np.ndarray, n: int) -> Arrays:
        """Returns the columns of all n rows, of which the good ones are given."""
        whole = self._empty(n)
        function = self._function()
        for start in range(0, len(good), self.batch_size):
            index = good[start : start + self.batch_size]
            for name, values in _halved(function, rows[start : start + len(index)]).items():
                if name in whole:
                    whole[name][index] = values
        return whole

    # What a kind gives

    def _shape(self) -> tuple[int, ...]:
        """Returns the shape of one item."""
        raise NotImplementedError

    def _names(self) -> tuple[str, ...]:
        """Returns the names of the columns of features, where each has its own."""
        return ()

    def _image(self, image: Any) -> np.ndarray:
        """Returns an opened picture as bytes of the shape."""
        return image_pixels(image, self._shape())

    def _function(self) -> Function:
        """Returns the function of a batch of items."""
        raise NotImplementedError

    def _empty(self, n: int) -> Arrays:
        """Returns the columns of n rows that could not be read."""
        raise NotImplementedError


class _OfRun(_OfBatches):
    """Of a run, which is opened on first use in each process."""

    def __init__(self, run: Run | str | Path, column: str | None, device: str, batch_size: int) -> None:
        super().__init__(column, device, batch_size)
        self.run = str((run.folder.path if isinstance(run, Run) else Path(run)).absolute())
        RunFolder.open(Path(self.run), trust_code=True)  # a path that is no run is an error here, not in a worker

    def _run(self) -> Run:
        file = Path(self.run) / "model.safetensors"
        return _opened(self.run, self.device, file.stat().st_mtime_ns if file.exists() else 0)

    def _shape(self) -> tuple[int, ...]:
        return self._run().read_shape()

    def _names(self) -> tuple[str, ...]:
        return self._run().folder.metadata.columns if self.column is None else ()


class Scorer(_OfRun):
    """How anomalous items are, as of ``vergence score``: columns of items in; ``score``, ``p_value``, ``level``, ``error`` out.

    ``score`` and ``p_value`` are float64 and larger scores are more anomalous; ``level`` and ``error`` are texts. q-values and
    flags need all items: `vergence.detection.q_values`, or ``vergence merge``. It can be pickled, and holds no more than the path
    of the run until it is used. A batch that does not fit into memory is halved.

    Args:
        run: Run, or its folder, which every worker can read.
        column: Column of the items; by default a usual name, or the only column. Of a run on a table, its features are read.
        device: ``auto``, ``cpu`` or ``cuda``.
        batch_size: Items at a time.

    Raises:
        ValueError: There is no such run.

    Example:
        >>> import tempfile, vergence
        >>> x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
        >>> run = vergence.train(x, objective="gje", epochs=1, out=Path(tempfile.mkdtemp()) / "run", device="cpu")
        >>> out = Scorer(run)({"id": [1, 2, 3], "x": [x[0], x[0] + 99, None]})
        >>> sorted(out), out["error"]
        (['error', 'id', 'level', 'p_value', 'score'], ['', '', 'no value'])
        >>> bool(out["score"][1] > out["score"][0])
        True
    """

    def __init__(self, run: Run | str | Path, column: str | None = None, *, device: str = "auto", batch_size: int = 256) -> None:
        super().__init__(run, column, device, batch_size)

    def _function(self) -> Function:
        run = self._run()
        detector = run.detector()
        levels = detector.of_batches(run.method, run.folder.metadata.shape)
        scored = columns_of(run.method, levels, detector, 0.0, False, {})
        return _of_run(run, scored)

    def _empty(self, n: int) -> Arrays:
        return {"score": np.full(n, np.nan), "p_value": np.full(n, np.nan), "level": np.full(n, "", dtype=object)}


class Embedder(_OfBatches):
    """Embeddings of items: columns of items in; ``z`` (B, D) float32 and ``error`` out.

    As `Scorer`, for a run, as ``vergence embed`` gives them; or for an encoder of whole pictures, as ``vergence check`` uses it.

    Args:
        encoder: Run, or its folder; ``timm:NAME`` or a folder that ``vergence fetch`` wrote; or a network that maps pictures
            (B, 3, H, W) to embeddings.
        column: As of `Scorer`.
        device: As there.
        batch_size: As there.

    Raises:
        ValueError: There is no such run or network.
    """

    def __init__(
        self, encoder: Run | nn.Module | str | Path, column: str | None = None, *, device: str = "auto", batch_size: int = 256
    ) -> None:
        super().__init__(column, device, batch_size)
        is_run = isinstance(encoder, Run) or (not isinstance(encoder, nn.Module) and (Path(encoder) / "config.json").is_file())
        self.of_run = _OfRun(encoder, column, device, batch_size) if is_run else None  # type: ignore[arg-type]
        self.encoder = None if is_run else encoder if isinstance(encoder, nn.Module) else str(encoder)
        if isinstance(encoder, nn.Module):
            FrozenNetwork(encoder, type(encoder).__name__)  # one that gives no embedding is an error here

    def _network(self) -> FrozenNetwork:
        if isinstance(self.encoder, nn.Module):
            return FrozenNetwork(self.encoder.to(as_device(self.device)), type(self.encoder).__name__)
        return _named(str(self.encoder), self.device)

    def _shape(self) -> tuple[int, ...]:
        if self.of_run is not None:
            return self.of_run._shape()
        side = self._network().side
        return 3, side, side

    def _names(self) -> tuple[str, ...]:
        return () if self.of_run is None else self.of_run._names()

    def _image(self, image: Any) -> np.ndarray:
        if self.of_run is not None:
            return super()._image(image)
        from vergence.data.images import as_shown

        side = self._network().side  # the whole picture, stretched
        x = torch.from_numpy(np.array(as_shown(image)[0].convert("RGB"))).permute(2, 0, 1).float()
        return resize(x[None], side, side)[0].round().byte().numpy()

    def _function(self) -> Function:
        if self.of_run is not None:
            run = self.of_run._run()
            return _of_run(run, lambda x: {"z": run.method.encoder(x)})
        network = self._network()
        return lambda x: {"z": network.embed(x.float() / 255).float().cpu().numpy()}

    def _empty(self, n: int) -> Arrays:
        probe = self._function()(torch.zeros(1, *self._shape(), dtype=torch.float32 if len(self._shape()) == 1 else torch.uint8))
        return {"z": np.full((n, probe["z"].shape[1]), np.nan, dtype=np.float32)}


# Functions of a batch


@functools.lru_cache(maxsize=4)
def _opened(path: str, device: str, written: int) -> Run:
    """Returns a run, which stays open in this process as long as its file is the same."""
    return load(path, device=device)


@functools.lru_cache(maxsize=2)
def _named(name: str, device: str) -> FrozenNetwork:
    network = named_network(name)
    network.network.to(as_device(device))
    return network


def _of_run(run: Run, function: Function) -> Function:
    size, device = run.where()["size"], run.device

    @torch.inference_mode()
    def outcome(x: Tensor) -> Arrays:
        x = x.to(device)
        x = x if size is None or x.ndim != 4 else center_crop(x, size).to(memory_format=torch.channels_last)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = function(x)
        return {name: v.float().cpu().numpy() if isinstance(v, Tensor) else v for name, v in found.items()}

    return outcome


def _halved(function: Function, x: Tensor) -> Arrays:
    """Returns what a function gives of a batch; of one that does not fit into memory, half by half."""
    try:
        return function(x)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error) or len(x) < 2:
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    parts = [_halved(function, half) for half in x.tensor_split(2)]
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}


# Columns


def _columns(batch: Any) -> tuple[dict[str, Any], Callable[[dict[str, Any], Arrays], Any]]:
    """Returns the columns of a batch, and the function that makes a batch of the same kind of columns, given and new ones."""
    if isinstance(batch, Mapping):
        return dict(batch), lambda kept, new: {**kept, **new}
    if isinstance(batch, list | tuple) and batch and all(isinstance(row, Mapping) for row in batch):
        names = list(dict.fromkeys(name for row in batch for name in row))
        return {name: [row.get(name) for row in batch] for name in names}, lambda kept, new: {**kept, **new}
    if hasattr(batch, "iloc") and hasattr(batch, "columns"):
        return {str(name): batch[name] for name in batch.columns}, lambda kept, new: _pandas(batch, kept, new)
    if hasattr(batch, "schema") and hasattr(batch, "to_pydict"):  # an Arrow table or a batch of records
        return {name: batch.column(name) for name in batch.schema.names}, _arrow
    if (table := as_table(batch)) is not None:
        return {name: table[name] for name in table.column_names}, _arrow
    return {"": batch}, lambda kept, new: {**kept, **new}


def _pandas(batch: Any, kept: dict[str, Any], new: Arrays) -> Any:
    columns = {name: list(v) if getattr(v, "ndim", 1) == 2 else v for name, v in new.items()}
    return batch[list(kept)].assign(**columns)


def _arrow(kept: dict[str, Any], new: Arrays) -> Any:
    import pyarrow as pa

    columns = dict(kept)
    for name, values in new.items():
        flat = getattr(values, "ndim", 1) == 2
        columns[name] = (
            pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
            if flat
            else pa.array(values, pa.string() if name in ("level", "error") else pa.float64())
        )
    return pa.table(columns)


def _chosen(columns: Mapping[str, Any], column: str | None) -> str:
    """Returns the column of items."""
    if column is not None:
        require_choice("a column", column, columns)
        return column
    name = next((name for name in USUAL if name in columns), next(iter(columns)) if len(columns) == 1 else None)
    expect(name is not None, "a column of items", ", ".join(columns) or "none", "name it with column=")
    return str(name)


def _of_features(columns: Mapping[str, Any], names: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Returns the features of the rows without a gap (n, D), and of every row the error."""
    import pyarrow as pa

    x = read_features(pa.table({name: pa.array(_listed(values)) for name, values in columns.items()}), tuple(names), "the batch")
    gaps = np.isnan(x)
    errors = [f"no value of {names[int(row.argmax())]}" if row.any() else "" for row in gaps]
    return torch.from_numpy(x[~gaps.any(1)].astype(np.float32)), errors


def _listed(values: Any) -> list[Any]:
    if isinstance(values, Tensor):
        return list(as_array(values))
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def _read(values: Any, shape: tuple[int, ...], read: Callable[[Any], np.ndarray]) -> tuple[Tensor, list[str]]:
    """Returns the rows that can be read (n, *shape), and of every row the error."""
    if isinstance(values, Tensor | np.ndarray) and values.dtype != object and values.ndim >= 2:
        try:
            return _of_arrays(values, shape), [""] * len(values)
        except ValueError:
            pass  # row by row, which says which one
    rows, errors = [], []
    for value in _listed(values):
        try:
            rows.append(_row(value, shape, read))
            errors.append("")
        except (OSError, SyntaxError, ValueError, TypeError, EOFError) as error:
            errors.append(reason(error))
    return torch.stack(rows) if rows else torch.zeros(0, *shape), errors


def _of_arrays(values: Any, shape: tuple[int, ...]) -> Tensor:
    items = with_shape(from_array(values, "the column"), shape, "the column")
    return items.read(torch.arange(len(items)))


def _row(value: Any, shape: tuple[int, ...], read: Callable[[Any], np.ndarray]) -> Tensor:
    """Returns one item; a ValueError says why it cannot be read."""
    from PIL import Image

    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if value is None or (isinstance(value, float) and np.isnan(value)):
        raise ValueError("no value")
    if isinstance(value, bytes | str | Path | Image.Image):
        if len(shape) != 3:
            raise ValueError(f"a picture, where a vector of {shape[0]} numbers is expected")
        try:
            return torch.from_numpy(np.array(_picture(value, shape, read)))
        except Image.DecompressionBombError as error:
            raise ValueError(reason(error)) from None
    array = as_array(value) if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype == object or not array.ndim:
        raise ValueError(f"a {type(value).__name__}, which is no picture and no vector")
    return _of_arrays(array[None], shape)[0]


def _picture(value: Any, shape: tuple[int, ...], read: Callable[[Any], np.ndarray]) -> np.ndarray:
    from PIL import Image

    if isinstance(value, Image.Image):
        return read(value)
    with time_limit(DECODE_SECONDS), opened_image(io.BytesIO(value) if isinstance(value, bytes) else Path(value)) as image:
        image.draft("L" if shape[0] == 1 else "RGB", (2 * max(shape[1:]),) * 2)
        return read(image)
