"""Passes over the images of a source: what features are learned from a sample, and features and heatmaps of all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.numbers import planes
from vergence.images import features as looks
from vergence.images.regions import some_cells
from vergence.images.result import CheckSettings
from vergence.utils import terminal
from vergence.utils.checks import expect
from vergence.utils.dtypes import Array, Floats, Ints, Singles
from vergence.utils.parts import Parts

SAMPLED, LEARNED = 1_000, 300  # images whose cells are compared with, and that dictionaries are learned from, at most
GONE = "images that can still be read"


class _Tensors(Sequence[Tensor]):
    """Images as tensors in the order of their content, each read when it is asked for."""

    def __init__(self, sources: Sequence[looks.ImageFeatures], most: int) -> None:
        rows = sorted(((one, row) for one in sources for row in range(len(one))), key=lambda at: int(at[0].digest[at[1]]))
        self.rows = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(np.int64))]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        source, row = self.rows[i]
        each = planes(source.pixels(row))
        return looks.as_tensor(each[i % len(each)])


@dataclass(frozen=True)
class Sample:
    """Features of a sample of S images."""

    rows: Ints  # their rows among all images, (S,)
    look: looks.Look  # what gives features
    vectors: Singles  # features of the wholes, (S, D), float32
    _cells: looks.ArrayFile

    def cells(self, sets: Sequence[int]) -> Iterator[list[Tensor]]:
        """Yields the cells (D', r, c) of some sets of each image."""
        for k in range(len(self.rows)):
            yield [torch.from_numpy(self._cells.read(len(self.look.names) * k + j)).float() for j in sets]

    def some_cells(self, j: int) -> list[Floats]:
        """Returns random cells (n, D') of set j of each image."""
        return [some_cells(cells, len(self.rows), k) for k, (cells,) in enumerate(self.cells([j]))]


def look_at(sources: Sequence[looks.ImageFeatures], settings: CheckSettings) -> looks.Look:
    """Returns what gives features: dictionaries are learned from all sources alike, so that no image is nearer to them."""
    images = _Tensors(sources, LEARNED)
    if settings.network is None:
        return looks.PatchExtractor(images, settings.embed)
    return looks.NetworkExtractor(images, settings.network, settings.size)


def sampled(features: looks.ImageFeatures, rows: Ints, settings: CheckSettings, look: looks.Look) -> Sample:
    """Returns the features of the first images of some rows."""
    assert features.images is not None
    rows, images = rows[:SAMPLED], features.images.image_list()
    with terminal.bar("sample", len(rows), late=True) as advance:
        cells, vectors, kept = looks.ArrayFile(), [], list[int]()
        place = dict(zip(features.index[rows].tolist(), rows.tolist(), strict=True))
        for i, (whole, part) in images.map(looks.SamplePass(look), list(place), settings.workers):
            for one in part:
                cells.keep(len(cells), one)
            vectors.append(whole)
            kept.append(place[i])
            advance()
    expect(kept, GONE, "none", "repeat the command")
    return Sample(np.array(kept), look, np.stack(vectors), cells)


@dataclass(frozen=True)
class Judged:
    """Features of the wholes (N, D) of N images, scores (N, S, K), heatmaps (N, S, 32, 32)."""

    vector: Array
    scores: Floats
    heatmap: Array


def region_rows(
    features: looks.ImageFeatures,
    region_pass: looks.RegionPass,
    settings: CheckSettings,
    sample: Sample | None = None,
    kept: Parts | None = None,
) -> Judged:
    """Returns what regions say of each image; of one that has gone meanwhile, what they say of the least anomalous one.

    The features of a ``sample`` of these images, and of others that are equal to them, are not computed again.
    """
    assert features.images is not None
    known: dict[int, dict[str, Any]] = {}
    if sample is not None:
        every = sample.cells(range(len(sample.look.names)))
        for row, vector, cells in zip(sample.rows.tolist(), sample.vectors, every, strict=True):
            known[row] = {"vector": vector, **region_pass.judged(cells, int(features.digest[row]))}
        of_digest = {int(features.digest[row]): one for row, one in known.items()}
        known = {row: of_digest[digest] for row, digest in enumerate(features.digest.tolist()) if digest in of_digest}
    rest = [i for row, i in enumerate(features.index.tolist()) if row not in known]
    columns = looks.rows_of(region_pass, features.images.image_list(), rest, settings.workers, "regions", kept) if rest else {}
    expect(columns or known, GONE, "none", "repeat the command")
    rows = np.concatenate([np.array(list(known), dtype=np.int64), np.searchsorted(features.index, columns.get("index", []))])

    def column(name: str) -> Array:
        parts = [np.stack([one[name] for one in known.values()])] if known else []
        values = np.concatenate([*parts, *([columns[name]] if columns else [])])
        out = np.repeat(values[values.reshape(len(values), -1).sum(1).argmin()][None], len(features), 0)
        out[rows.astype(np.int64)] = values
        return out

    return Judged(column("vector"), column("scores").astype(np.float64), column("heatmap"))
