"""Passes over the images of a source: what features are learned from a sample, and features and heatmaps of all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.images.features import ArrayFile, Extractor, ImageFeatures, RegionPass, SamplePass, rows_of
from vergence.images.regions import some_cells
from vergence.images.result import CheckSettings
from vergence.utils import terminal
from vergence.utils.checks import expect
from vergence.utils.dtypes import Array, Floats, Ints, Singles
from vergence.utils.parts import Parts

SAMPLED = 1_000  # images whose cells are compared with, at most
GONE = "images that can still be read"


@dataclass(frozen=True)
class Sample:
    """Features of a sample of S images."""

    rows: Ints  # their rows among all images, (S,)
    extractor: Extractor  # what gives features
    vectors: Singles  # features of the wholes, (S, D), float32
    _cells: ArrayFile

    def cells(self, sets: Sequence[int]) -> Iterator[list[Tensor]]:
        """Yields the cells (D', r, c) of some sets of each image."""
        for k in range(len(self.rows)):
            yield [torch.from_numpy(self._cells.read(len(self.extractor.names) * k + j)).float() for j in sets]

    def some_cells(self, j: int) -> list[Floats]:
        """Returns random cells (n, D') of set j of each image."""
        return [some_cells(cells, len(self.rows), k) for k, (cells,) in enumerate(self.cells([j]))]


def sampled(features: ImageFeatures, rows: Ints, settings: CheckSettings, extractor: Extractor) -> Sample:
    """Returns the features of the first images of some rows."""
    assert features.images is not None
    rows, images = rows[:SAMPLED], features.images.image_list()
    with terminal.bar("sample", len(rows), "images", late=True) as advance:
        cells, vectors, kept = ArrayFile(), [], list[int]()
        place = dict(zip(features.index[rows].tolist(), rows.tolist(), strict=True))
        for i, (whole, part) in images.map(SamplePass(extractor), list(place), settings.workers):
            for one in part:
                cells.keep(len(cells), one)
            vectors.append(whole)
            kept.append(place[i])
            advance()
    expect(kept, GONE, "none", "repeat the command")
    return Sample(np.array(kept), extractor, np.stack(vectors), cells)


@dataclass(frozen=True)
class RegionRows:
    """Features of the wholes (N, D) of N images, scores (N, S, K), heatmaps (N, S, 32, 32)."""

    vector: Array
    scores: Floats
    heatmap: Array


def region_rows(
    features: ImageFeatures,
    region_pass: RegionPass,
    settings: CheckSettings,
    sample: Sample | None = None,
    kept: Parts | None = None,
) -> RegionRows:
    """Returns what regions say of each image; of one that has gone meanwhile, what they say of the least anomalous one.

    The features of a ``sample`` of these images, and of others that are equal to them, are not computed again.
    """
    assert features.images is not None
    known: dict[int, dict[str, Any]] = {}
    if sample is not None:
        every = sample.cells(range(len(sample.extractor.names)))
        for row, vector, cells in zip(sample.rows.tolist(), sample.vectors, every, strict=True):
            known[row] = {"vector": vector, **region_pass.judged(cells, int(features.digest[row]))}
        of_digest = {int(features.digest[row]): one for row, one in known.items()}
        known = {row: of_digest[digest] for row, digest in enumerate(features.digest.tolist()) if digest in of_digest}
    rest = [i for row, i in enumerate(features.index.tolist()) if row not in known]
    columns = rows_of(region_pass, features.images.image_list(), rest, settings.workers, "regions", kept) if rest else {}
    expect(columns or known, GONE, "none", "repeat the command")
    rows = np.concatenate([np.array(list(known), dtype=np.int64), np.searchsorted(features.index, columns.get("index", []))])

    def column(name: str) -> Array:
        parts = [np.stack([one[name] for one in known.values()])] if known else []
        values = np.concatenate([*parts, *([columns[name]] if columns else [])])
        out = np.repeat(values[values.reshape(len(values), -1).sum(1).argmin()][None], len(features), 0)
        out[rows.astype(np.int64)] = values
        return out

    return RegionRows(column("vector"), column("scores").astype(np.float64), column("heatmap"))
