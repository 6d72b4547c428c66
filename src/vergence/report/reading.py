"""Reads a run folder for its report: every file as far as it is valid, with a sentence for each that is not.

Nothing in the folder is trusted: sizes are bounded before anything is read, and a value of a wrong type leaves its file out.
"""

import csv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence.training.folder import RunFolder
from vergence.training.records import Evaluation
from vergence.utils.checks import expect
from vergence.utils.files import DAMAGE, read_object

LARGEST = 2**28  # bytes of a file, and of the arrays that an archive unpacks to
CLASS_LIMIT = 2**31  # of a label
UNREADABLE: tuple[type[Exception], ...] = (*DAMAGE, csv.Error)


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder.

    Attributes:
        folder: The run folder, with its description and metadata.
        rows: ``metrics.jsonl``.
        evaluation: ``evaluation.json``; None where there is none.
        examples: Arrays of ``examples.npz``; empty where there are none.
        skipped: Name and reason of each item that could not be read.
        notes: One sentence for each file that is damaged.
    """

    folder: RunFolder
    rows: list[dict[str, Any]]
    evaluation: Evaluation | None
    examples: dict[str, Any]
    skipped: list[tuple[str, str]]
    notes: list[str]


def read(run: Path) -> RunFiles:
    """Reads a run folder; imports nothing that its files name.

    Raises:
        ValueError: ``config.json`` is missing or damaged. A note reports any other file that is damaged.
    """
    folder = RunFolder.open(run, trust_code=True)
    notes: list[str] = []
    return RunFiles(
        folder=folder,
        rows=_part(run / "metrics.jsonl", lambda file: _metrics(folder, file, notes), notes) or [],
        evaluation=_part(run / "evaluation.json", lambda file: Evaluation.from_dict(read_object(file)), notes),
        examples=_part(run / "examples.npz", _examples, notes) or {},
        skipped=_part(run / "skipped.csv", lambda file: folder.skipped(), notes) or [],
        notes=notes,
    )


def _part(file: Path, read: Callable[[Path], Any], notes: list[str]) -> Any:
    """Returns what ``read`` returns; None where there is no file, and where it is damaged, which adds a note."""
    if not file.is_file():
        return None
    try:
        expect((size := file.stat().st_size) <= LARGEST, f"at most {LARGEST:,} bytes", f"{size:,}")
        return read(file)
    except UNREADABLE as error:
        notes.append(f"{file.name} is damaged and left out ({' '.join(str(error).split()) or type(error).__name__}).")
    return None


def _metrics(folder: RunFolder, file: Path, notes: list[str]) -> list[dict[str, Any]]:
    rows = folder.metrics()
    if bad := sum(map(bool, map(str.strip, file.read_text(encoding="utf-8", errors="replace").splitlines()))) - len(rows):
        lost = f"{bad} line(s) of metrics.jsonl could not be read and are left out"
        notes.append(f"{lost} (a killed run leaves an incomplete one).")
    return rows


ARRAYS = {  # name -> kinds of its dtype (NumPy's letters) and number of axes
    "xy": ("f", 2),
    "label": ("iu", 1),
    "score": ("f", 1),
    "name": ("U", 1),
    "anomalous": ("b", 1),
    "thumbnail": ("u", 4),
    "neighbors": ("iu", 2),
}


def _examples(file: Path) -> dict[str, Any]:
    import numpy as np

    with zipfile.ZipFile(file) as archive:
        expect(sum(member.file_size for member in archive.infolist()) <= LARGEST, f"at most {LARGEST:,} bytes of arrays")
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        arrays = {name: np.asarray(archive[name]) for name in archive.files}  # bytes, where a member is no array
    for name, (kinds, ndim) in ARRAYS.items():
        if name in arrays:
            kind, axes = arrays[name].dtype.kind, arrays[name].ndim
            expect(kind in kinds and axes == ndim, f"{ndim} axes of kind {kinds} in {name}", f"{axes} of {arrays[name].dtype}")
    lengths = {
        name: len(arrays[name]) for name in ("xy", "label", "score", "name", *({"anomalous", "thumbnail"} & arrays.keys()))
    }
    n = lengths["xy"]
    expect(len(set(lengths.values())) == 1, "arrays of one length", str(lengths))
    expect(arrays["xy"].shape[1] == 2 and np.isfinite(arrays["xy"]).all(), "two finite coordinates per item in xy")
    label, neighbors, images = arrays["label"], arrays.get("neighbors"), arrays.get("thumbnail")
    expect(not n or -CLASS_LIMIT < int(label.min()) <= int(label.max()) < CLASS_LIMIT, f"labels below {CLASS_LIMIT:,}")
    if neighbors is not None and neighbors.size:
        expect(0 <= neighbors.min() <= neighbors.max() < n, f"neighbors among the {n} items")
    if images is not None:
        right = images.dtype == np.uint8 and images.shape[1] >= 1 and 0 not in images.shape[2:]
        expect(right, "uint8 thumbnails (n, C, height, width)", f"{images.dtype} {images.shape}")
    return arrays
