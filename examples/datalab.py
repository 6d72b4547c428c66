"""What `vergence check` wrote, in the columns of Datalab (cleanlab 2.9.0) and, for properties of images, CleanVision 0.3.7.

vergence check FOLDER --out OUT
python examples/datalab.py OUT

OUT/datalab.parquet has a row for each image, in the order of items.parquet. As in Datalab, scores are between 0 and 1, and lower
is worse. They are computed in another way, so Datalab's thresholds do not apply:

- outlier_score: the p-value; without a reference the share of all images that are at least as anomalous, and none is an issue.
- near_duplicate_score: 1 minus the largest agreement with another image of the folder; 0 for an exact duplicate.
- near_duplicate_sets: rows of the duplicates, exact ones too, without the image itself.
- is_exact_duplicates_issue, is_dark_issue, ...: as CleanVision names them; they have no scores.
- is_label_issue, label_score: only if labels were checked.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vergence.utils.parts import original

PROPERTIES = ("dark", "light", "extreme_aspect_ratio", "low_information", "blurry", "grayscale", "extreme_size")


def outliers(items):
    score, p = np.array(items["score"]), np.array(items["p_value"])
    at_least = (len(score) - np.searchsorted(np.sort(score), score)) / len(score)
    return {"is_outlier_issue": np.array(items["flag"]) == 1, "outlier_score": np.where(np.isnan(p), at_least, p)}


def duplicates(names, pairs):
    row, least, sets, exact = {name: i for i, name in enumerate(names)}, np.ones(len(names)), [[] for _ in names], set()
    for pair in (pair for pair in pairs if pair["source"] == "same"):
        i, j = row[original(pair["path"])], row[original(pair["duplicate_of"])]
        exact |= {i, j} if pair["kind"] == "exact" else set()
        for k, other in ((i, j), (j, i)):
            sets[k].append(other)
            least[k] = min(least[k], 1 - float(pair["agreement"]))
    near = {"is_near_duplicate_issue": [bool(found) for found in sets], "near_duplicate_score": least.clip(0)}
    return {**near, "near_duplicate_sets": sets, "is_exact_duplicates_issue": [i in exact for i in range(len(names))]}


def main(out):
    items = pq.read_table(Path(out) / "items.parquet").to_pydict()
    with (Path(out) / "duplicates.csv").open(newline="", encoding="utf-8") as file:
        columns = {"path": items["path"], **outliers(items), **duplicates(items["path"], list(csv.DictReader(file)))}
    said = [text.split("; ") for text in items["measurements"]]
    columns |= {f"is_{name.replace('extreme', 'odd')}_issue": [name in words for words in said] for name in PROPERTIES}
    if "label_score" in items:
        columns |= {"is_label_issue": np.array(items["label_flag"]) == 1, "label_score": 1 / (1 + np.exp(items["label_score"]))}
    pq.write_table(pa.table(columns), Path(out) / "datalab.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
