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
from vergence.utils.files import DAMAGE
from vergence.utils.outside import read_object

__all__ = ["RunFiles", "read"]

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
        if (size := file.stat().st_size) > LARGEST:
            raise ValueError(f"expected at most {LARGEST:,} bytes, found {size:,}")
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


def _examples(file: Path) -> dict[str, Any]:
    import numpy as np

    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > LARGEST:
            raise ValueError(f"expected at most {LARGEST:,} bytes of arrays")
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        arrays = {name: np.asarray(archive[name]) for name in archive.files}  # bytes, where a member is no array
    for name, (kinds, ndim) in ARRAYS.items():
        if name in arrays and (arrays[name].dtype.kind not in kinds or arrays[name].ndim != ndim):
            raise ValueError(f"{name}: expected {ndim} axes of kind {kinds}, found {arrays[name].ndim} of {arrays[name].dtype}")
    _require_consistent(arrays)
    return arrays


# name -> kinds of its dtype (NumPy's letters) and number of axes
ARRAYS = {
    "xy": ("f", 2),
    "label": ("iu", 1),
    "score": ("f", 1),
    "name": ("U", 1),
    "anomalous": ("b", 1),
    "thumbnail": ("u", 4),
    "neighbors": ("iu", 2),
}


def _require_consistent(arrays: dict[str, Any]) -> None:
    import numpy as np

    required = ("xy", "label", "score", "name")
    lengths = {name: len(arrays[name]) for name in (*required, *({"anomalous", "thumbnail"} & arrays.keys()))}
    n = lengths["xy"]
    if len(set(lengths.values())) != 1:
        raise ValueError(f"expected arrays of one length, found {lengths}")
    if arrays["xy"].shape[1] != 2 or not np.isfinite(arrays["xy"]).all():
        raise ValueError("expected two finite coordinates per item in xy")
    if n and not -CLASS_LIMIT < int(arrays["label"].min()) <= int(arrays["label"].max()) < CLASS_LIMIT:
        raise ValueError(f"expected labels below {CLASS_LIMIT:,}")
    neighbors, images = arrays.get("neighbors"), arrays.get("thumbnail")
    if neighbors is not None and neighbors.size and not 0 <= neighbors.min() <= neighbors.max() < n:
        raise ValueError(f"expected neighbors among the {n} items")
    if images is not None and (images.dtype != np.uint8 or images.shape[1] < 1 or 0 in images.shape[2:]):
        raise ValueError(f"expected uint8 thumbnails (n, C, height, width), found {images.dtype} {images.shape}")
