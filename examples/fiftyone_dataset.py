"""What `vergence check` wrote, as a dataset of FiftyOne: score, flag, reason, duplicates, and frames as detections.

vergence check FOLDER --out OUT
python examples/fiftyone_dataset.py OUT FOLDER NAME
fiftyone app launch NAME

Needs fiftyone (pip install fiftyone) and its MongoDB. It was run with fiftyone 1.22.1 on a stand-in for MongoDB in memory.
"""

import sys
from pathlib import Path

import pyarrow.parquet as pq

from vergence.data.image_list import open_images

FIELDS = ("score", "flag", "reason", "group", "duplicate_of", "leak_of", "measurements")


def frames(boxes, size):
    """Returns frames [left, top, width, height] in [0, 1] of the column `boxes` of an image of a size (height, width)."""
    each = [[int(value) for value in box.split()] for box in boxes.split("; ") if box]
    height, width = size
    return [[left / width, top / height, (right - left) / width, (bottom - top) / height] for top, left, bottom, right in each]


def rows(out, folder):
    """Yields the fields of each image, and its detections."""
    images = open_images(folder)
    at = {name: i for i, name in enumerate(images.names)}
    for item in pq.read_table(Path(out) / "items.parquet").to_pylist():
        i = at[item["path"]]
        boxes = frames(item["boxes"], images.read(i).size) if item["boxes"] else []
        fields = {"filepath": str(images.path(i).resolve())} | {name: item[name] for name in FIELDS}
        yield fields, [{"label": "anomaly", "bounding_box": box} for box in boxes]


def main(out, folder, name):
    import fiftyone as fo

    dataset = fo.Dataset(name, persistent=True)
    for fields, found in rows(out, folder):
        regions = fo.Detections(detections=[fo.Detection(**box) for box in found])
        dataset.add_sample(fo.Sample(**fields, regions=regions))


if __name__ == "__main__":
    main(*sys.argv[1:])
