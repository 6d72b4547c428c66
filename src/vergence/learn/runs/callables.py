"""A run, or an encoder, as a function of batches of columns: for Ray Data, Daft, Spark, ``datasets.map`` and data loaders.

A batch is a dictionary of columns, an Arrow or pandas table, an iterator of such (Spark), a list of rows (a data loader's
``collate_fn``), or a single column. A column holds images (encoded bytes, ``{bytes, path}``, paths, PIL images, arrays)
or vectors. B rows.
"""

import abc
import contextlib
import functools
import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vergence.data.arrays import from_array
from vergence.data.images import as_shown, decode, image_pixels, reason
from vergence.data.pixels import center_crop, resize
from vergence.data.sources import with_shape
from vergence.data.tables import as_table, read_features
from vergence.images.frozen import FrozenNetwork, named_network
from vergence.learn.runs.run import Run, load
from vergence.learn.runs.score import columns_of
from vergence.learn.training.folder import RunFolder
from vergence.utils.checks import expect, is_out_of_memory, require_choice, require_count
from vergence.utils.devices import as_device, fixed_noise
from vergence.utils.linalg import as_array

__all__ = ["Embedder", "Scorer"]

# Names of a column of items, the first that is there.
COMMON = tuple("image image bytes path file jpg jpeg png webp features z embedding embeddings vector x data".split())
OPENING = threading.RLock()  # threads open a run once, and its detector is kept once
Arrays = dict[str, Any]
Function = Callable[[Tensor], Arrays]


class _OfBatches(abc.ABC):
    """What `Scorer` and `Embedder` share: columns to items, rows that cannot be read, and columns out again."""

    names: ClassVar[Sequence[str]]  # of the columns that come out next to ``error``
    model: "_Run | _Network"

    def __init__(self, column: str | None, batch_size: int) -> None:
        require_count(batch_size=batch_size)
        self.column, self.batch_size = column, batch_size

    def __call__(self, batch: Any) -> Any:
        """Returns the columns of a batch without the items, and those of the outcome; of an iterator, an iterator.

        Rows that are null or cannot be read have NaN, or an empty text, and the reason in ``error``.
        """
        if isinstance(batch, Iterator):
            return map(self, batch)
        columns, back = _columns(batch)
        features = self.model.features if self.column is None else ()
        used = None if features else _chosen(columns, self.column)  # features stay
        rows, errors = _of_features(columns, features) if used is None else _read(columns[used], self.model)
        readable = np.flatnonzero([not error for error in errors])
        found = self._outcome(rows, readable, len(errors))
        return back({name: values for name, values in columns.items() if name != used}, {**found, "error": errors})

    def _outcome(self, rows: Tensor, readable: np.ndarray, n: int) -> Arrays:
        """Returns the columns of all n rows, of which the readable ones are given."""
        function, size = self._function(), self.batch_size
        parts = [(readable[i : i + size], _halved(function, rows[i : i + size])) for i in range(0, len(readable), size)]
        shape, form = self.model.shape(), str(self.model.form)
        read_as = {"tokens": torch.int64, "array": torch.float32}.get(form, torch.uint8 if len(shape) == 3 else torch.float32)
        blank = torch.zeros(1, *shape, dtype=read_as)
        first = parts[0][1] if parts else function(blank)
        whole: Arrays = {}  # what cannot be read has empty texts, or NaN in the type and width of other rows
        for name, like in ((name, np.asarray(first[name])) for name in self.names):
            gap, kind = ("", object) if like.dtype.kind in "OU" else (np.nan, like.dtype)
            whole[name] = np.full((n, *like.shape[1:]), gap, dtype=kind)
        for index, found in parts:
            for name, values in whole.items():
                values[index] = found[name]
        return whole

    @abc.abstractmethod
    def _function(self) -> Function:
        """Returns the function of a batch of items."""


class _Run:
    """A run by its path, which is opened on first use in each process."""

    fit = staticmethod(image_pixels)

    def __init__(self, run: Run | str | Path, device: str) -> None:
        self.path, self.device = str((run.folder.path if isinstance(run, Run) else Path(run)).absolute()), device
        RunFolder.open(Path(self.path), trust_code=True)  # a path that is no run is an error here, not in a worker

    def key(self) -> tuple[str, str, int]:
        """Returns what the run is held open by, as long as its file is the same."""
        file = Path(self.path) / "model.safetensors"
        return self.path, self.device, file.stat().st_mtime_ns if file.exists() else 0

    def opened(self) -> Run:
        with OPENING:
            return _opened(*self.key())

    def shape(self) -> tuple[int, ...]:
        return self.opened().folder.metadata.item_shape()

    @property
    def form(self) -> Any:
        """What arrays of items hold; None for what their shape says."""
        return self.opened().folder.config.data.form

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of features, where each has its own."""
        return self.opened().folder.metadata.columns

    def embedding(self) -> Function:
        run = self.opened()
        return _of_run(run, lambda x: {"z": run.method.encoder(x)})


class _Network:
    """An encoder of whole images: its name, or the network itself."""

    features, form = (), None  # images have no names of features

    def __init__(self, encoder: nn.Module | str, device: str) -> None:
        self.device = device
        self.encoder = FrozenNetwork(encoder, type(encoder).__name__) if isinstance(encoder, nn.Module) else encoder

    def opened(self) -> FrozenNetwork:
        with OPENING:
            network = _named(self.encoder) if isinstance(self.encoder, str) else self.encoder
            network.network.to(as_device(self.device))
        return network

    def shape(self) -> tuple[int, ...]:
        side = self.opened().side
        return 3, side, side

    def embedding(self) -> Function:
        network = self.opened()
        return lambda x: {"z": network.embed(x.float() / 255).float().cpu().numpy()}

    @staticmethod
    def fit(image: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a whole image, stretched."""
        x = torch.from_numpy(np.array(as_shown(image)[0].convert("RGB"))).permute(2, 0, 1).float()
        return resize(x[None], *shape[1:])[0].round().byte().numpy()


class Scorer(_OfBatches):
    """Columns of items in; ``score``, ``p_value``, ``feature_set`` and ``error`` as of ``vergence score`` out.

    ``score`` and ``p_value`` are float64 and larger scores are more anomalous; the others are texts. q-values and
    flags need all items: `vergence.decide.q_values`, or ``vergence merge``. It can be pickled, and holds no more than the path
    of the run until it is used. A batch that does not fit into memory is halved.

    Args:
        run: Run, or its folder, which every worker can read.
        column: Column of the items; by default a common name, or the only column. Of a run on a table, its features are read.
        device: ``auto``, ``cpu`` or ``cuda``.
        batch_size: Items at a time.

    Example:
        >>> import tempfile, vergence
        >>> x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
        >>> run = vergence.train(x, objective="gje", epochs=1, out=Path(tempfile.mkdtemp()) / "run", device="cpu")
        >>> out = Scorer(run)({"id": [1, 2, 3], "x": [x[0], x[0] + 99, None]})
        >>> sorted(out), out["error"]
        (['error', 'feature_set', 'id', 'p_value', 'score'], ['', '', 'no value'])
        >>> bool(out["score"][1] > out["score"][0])
        True
    """

    names = ("score", "p_value", "feature_set")

    def __init__(self, run: Run | str | Path, column: str | None = None, *, device: str = "auto", batch_size: int = 256) -> None:
        super().__init__(column, batch_size)
        self.model = _Run(run, device)

    def _function(self) -> Function:
        assert isinstance(self.model, _Run), "see __init__"
        with OPENING:
            return _scoring(*self.model.key())


class Embedder(_OfBatches):
    """Embeddings of items: columns of items in; ``z`` (B, D) float32 and ``error`` out.

    As `Scorer`, for a run, as ``vergence embed`` gives them; or for an encoder of whole images, as ``vergence check`` uses it.

    Args:
        encoder: Run, or its folder; ``timm:NAME`` or a folder that ``vergence fetch`` wrote; or a network that maps images
            (B, 3, H, W) to embeddings.
        column: Column of the items; by default one that is named like images or vectors, or the only column.
        device: ``auto``, ``cpu`` or ``cuda``.
        batch_size: Items at a time.

    Example:
        >>> import vergence
        >>> run = vergence.train(np.random.default_rng(0).normal(size=(300, 4)), objective="gje", epochs=1, device="cpu")
        >>> Embedder(run)({"x": [np.zeros(4), np.ones(4)]})["z"].shape
        (2, 256)
    """

    names = ("z",)

    def __init__(
        self, encoder: Run | nn.Module | str | Path, column: str | None = None, *, device: str = "auto", batch_size: int = 256
    ) -> None:
        super().__init__(column, batch_size)
        if isinstance(encoder, nn.Module):
            self.model = _Network(encoder, device)
        elif isinstance(encoder, Run) or (Path(encoder) / "config.json").is_file():
            self.model = _Run(encoder, device)
        else:
            self.model = _Network(str(encoder), device)

    def _function(self) -> Function:
        return self.model.embedding()


# Functions of a batch


@functools.lru_cache(maxsize=4)
def _opened(path: str, device: str, written: int) -> Run:
    """Returns a run, which stays open in this process as long as its file is the same."""
    return load(path, device=device)


@functools.lru_cache(maxsize=4)
def _scoring(path: str, device: str, written: int) -> Function:
    run = _opened(path, device, written)
    detector = run.detector()
    features_of = detector.of_batches(run.method, run.folder.metadata.shape)
    return _of_run(run, columns_of(run.method, features_of, detector, 0.0, False, {}))


_named = functools.lru_cache(maxsize=2)(named_network)


def _of_run(run: Run, function: Function) -> Function:
    size, device, own = run.where()["size"], run.device, run.folder.config.model.encoder.outside is not None

    @torch.inference_mode()
    def outcome(x: Tensor) -> Arrays:
        x = x.to(device)
        x = x if size is None or x.ndim != 4 else center_crop(x, size).to(memory_format=torch.channels_last)
        with fixed_noise() if own else contextlib.nullcontext():  # the library's encoders have none
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
        return {str(name): batch[name] for name in batch.columns}, lambda kept, new: batch[list(kept)].assign(
            **{name: list(v) if getattr(v, "ndim", 1) == 2 else v for name, v in new.items()}
        )
    if hasattr(batch, "schema") and hasattr(batch, "to_pydict"):  # an Arrow table or a batch of records
        return {name: batch.column(name) for name in batch.schema.names}, _arrow
    if (table := as_table(batch)) is not None:
        return {name: table[name] for name in table.column_names}, _arrow
    return {"": batch}, lambda kept, new: {**kept, **new}


def _arrow(kept: dict[str, Any], new: Arrays) -> Any:
    import pyarrow as pa

    columns = dict(kept)
    for name, values in new.items():
        if getattr(values, "ndim", 1) == 2:
            columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        else:
            columns[name] = pa.array(values, pa.string() if name in ("feature_set", "error") else pa.float64())
    return pa.table(columns)


def _chosen(columns: Mapping[str, Any], column: str | None) -> str:
    if column is not None:
        require_choice("a column", column, columns)
        return column
    name = next((name for name in COMMON if name in columns), next(iter(columns)) if len(columns) == 1 else None)
    expect(name is not None, "a column of items", ", ".join(columns) or "none", "name it with column=")
    return str(name)


def _of_features(columns: Mapping[str, Any], names: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Returns the features of the rows without a gap (n, D), and of every row the error."""
    import pyarrow as pa

    table = pa.table({name: pa.array(_listed(values)) for name, values in columns.items()})
    x = read_features(table, names, "the batch", unknown="refuse")
    gaps = np.isnan(x)
    errors = [f"no value of {names[int(row.argmax())]}" if row.any() else "" for row in gaps]
    return torch.from_numpy(x[~gaps.any(1)].astype(np.float32)), errors


def _listed(values: Any) -> list[Any]:
    if isinstance(values, Tensor):
        return list(as_array(values))
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def _read(values: Any, model: _Run | _Network) -> tuple[Tensor, list[str]]:
    """Returns the rows that can be read (n, *shape), and of every row the error."""
    shape = model.shape()
    if isinstance(values, Tensor | np.ndarray) and values.dtype != object and values.ndim >= 2:
        try:
            return _of_arrays(values, shape, model.form), [""] * len(values)
        except ValueError:
            pass  # row by row, which says which one
    rows, errors = [], []
    for value in _listed(values):
        try:
            rows.append(_row(value, shape, model))
            errors.append("")
        except (OSError, SyntaxError, ValueError, TypeError, EOFError) as error:
            errors.append(reason(error))
    return torch.stack(rows) if rows else torch.zeros(0, *shape), errors


def _of_arrays(values: Any, shape: tuple[int, ...], form: Any) -> Tensor:
    items = with_shape(from_array(values, "the column", kind=form), shape, "the column")
    return items.read(torch.arange(len(items)))


def _row(value: Any, shape: tuple[int, ...], model: _Run | _Network) -> Tensor:
    """Returns one item; a ValueError says why it cannot be read."""
    from PIL import Image

    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if value is None or (isinstance(value, float) and np.isnan(value)):
        raise ValueError("no value")
    if isinstance(value, bytes | str | Path | Image.Image):
        if len(shape) != 3:
            raise ValueError(f"an image, where a vector of {shape[0]} numbers is expected")
        if isinstance(value, Image.Image):
            return torch.from_numpy(np.array(model.fit(value, shape)))
        try:
            pixels = decode(io.BytesIO(value) if isinstance(value, bytes) else Path(value), shape, model.fit)
        except Image.DecompressionBombError as error:
            raise ValueError(reason(error)) from None
        return torch.from_numpy(np.array(pixels))
    array = as_array(value) if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype == object or not array.ndim:
        raise ValueError(f"a {type(value).__name__}, which is neither an image nor a vector")
    return _of_arrays(array[None], shape, model.form)[0]
