"""What `vergence check` wrote, for Embedding Atlas: the map with thumbnails, nearest images, scores and reasons.

vergence check FOLDER --out OUT
python examples/embedding_atlas.py OUT FOLDER
embedding-atlas OUT/atlas.parquet --image image --x projection_x --y projection_y --neighbors neighbors

The file was opened with embedding-atlas 0.26.0. FOLDER can be any source of `vergence check`.
"""

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vergence.data.image_list import open_images
from vergence.images.plane import standardized
from vergence.report.tiles import image_of, within

SIDE = 192  # pixels of a thumbnail
NEIGHBORS = pa.struct({"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float64())})
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def neighbors_of(names, neighbors, z):
    """Returns rows of the nearest images, and their distances by features z (N, D) in units of their deviations."""
    row = {name: i for i, name in enumerate(names)}
    for i, text in enumerate(neighbors):
        ids = [row[name] for name in text.split("; ") if name in row]
        yield {"ids": ids, "distances": np.linalg.norm(z[ids] - z[i], axis=1).tolist()}


def thumbnail(images, i):
    """Returns image i as Hugging Face and Embedding Atlas read it from a table."""
    file = io.BytesIO()
    within(image_of(images.read(i).pixels), SIDE).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": images.names[i]}


def main(out, folder):
    items, images = pq.read_table(Path(out) / "items.parquet"), open_images(folder)
    names, at = items["path"].to_pylist(), {name: i for i, name in enumerate(images.names)}
    near = neighbors_of(names, items["neighbors"].to_pylist(), standardized(np.load(Path(out) / "embeddings.npy")))
    columns = {name: items[name] for name in items.column_names} | {
        "neighbors": pa.array(near, NEIGHBORS),
        "image": pa.array([thumbnail(images, at[name]) for name in names], IMAGE),
    }
    pq.write_table(pa.table(columns), Path(out) / "atlas.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
