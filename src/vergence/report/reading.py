"""Reads a run folder for its report: every file as far as it is valid, with a sentence for each that is not.

Nothing in the folder is trusted: sizes are bounded before anything is read, and each value that the report computes with is
checked here, once.
"""

import csv
import json
import typing
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vergence.report.rendering import is_number
from vergence.training.records import Weights
from vergence.utils.files import DAMAGE
from vergence.utils.parts import original

__all__ = ["RunFiles", "read"]

LARGEST = 2**28  # bytes of a file, and of the arrays that an archive unpacks to
CLASS_LIMIT = 2**31  # of a label
UNREADABLE: tuple[type[Exception], ...] = (*DAMAGE, csv.Error)

WEIGHTS = typing.get_type_hints(Weights)
SOURCES = typing.get_args(WEIGHTS["source"])

Shape = Any  # what `_require` compares a value with: a rule, a list of one shape, or an object of shapes by key
Rule = tuple[str, Callable[[Any], bool]]

NUMBER: Rule = ("a finite number", is_number)
COUNT: Rule = ("a whole number", lambda x: isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**63)
TEXT: Rule = ("text", lambda x: isinstance(x, str))
FLAG: Rule = ("true or false", lambda x: isinstance(x, bool))
ANY: Rule = ("any value", lambda x: True)

SOURCE: Rule = ("a source of weights", lambda x: x in SOURCES)

CONFIG: Shape = {
    "data": {"keep_classes": [ANY]},
    "views": {},
    "model": {"freeze": FLAG, "encoder": TEXT, "objective": TEXT, "method": TEXT, "target_encoder": TEXT},
    "fit": {},
    "metadata": {
        **dict.fromkeys(("n_train", "n_test", "parameters"), COUNT),
        **dict.fromkeys(("kind", "note", "device", "precision", "commit"), TEXT),
        **{key: [ANY] for key in ("shape", "target_shape", "classes")},
        "weights": {"source": SOURCE, "name": TEXT, "file": TEXT, "sha256": TEXT, "left_out": [TEXT], "whole": FLAG},
    },
}
EVALUATION: Shape = {
    "protocol": {"bank": COUNT, "test": COUNT, "note": TEXT},
    "representations": {
        "*": {
            "kind": TEXT,
            "dim": COUNT,
            "knn": {"*": {"majority": NUMBER, "weighted": NUMBER}},
            "probe": {"accuracy": NUMBER, "converged": FLAG},
            "collapse": {"*": NUMBER},
        }
    },
    "posterior": {"*": NUMBER},
    "anomaly": {
        "inliers": [ANY],
        "anomalies": [ANY],
        "n_inliers": COUNT,
        "n_anomalies": COUNT,
        "scores": {"*": {"kind": TEXT, "auroc": NUMBER, "aupr": NUMBER, "fpr95": NUMBER}},
    },
    "uncertainty": {
        **dict.fromkeys(("items", "crops"), COUNT),
        **dict.fromkeys(("recall_at_1", "recall_at_1_crops", "aurc_best"), NUMBER),
        "scores": {"*": {"kind": TEXT, **dict.fromkeys(("r_auroc", "aurc"), NUMBER)}},
        "predictive": {"*": NUMBER},
    },
}


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder.

    Attributes:
        path: The run folder, as it was named.
        config: ``config.json``.
        rows: ``metrics.jsonl``.
        evaluation: ``evaluation.json``; empty where there is none.
        examples: Arrays of ``examples.npz``; empty where there are none.
        skipped: Name and reason of each item that could not be read.
        notes: One sentence for each file that is damaged.
    """

    path: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    evaluation: dict[str, Any]
    examples: dict[str, Any]
    skipped: list[list[str]]
    notes: list[str]

    @property
    def metadata(self) -> dict[str, Any]:
        """What was recorded when training started: classes, counts, shapes, device, versions."""
        metadata: dict[str, Any] = self.config["metadata"]
        return metadata

    @property
    def weights(self) -> str:
        """Which weights the run started from, in words; empty for runs of early versions."""
        found = self.metadata.get("weights") or {}
        given = {key: value for key, value in found.items() if key in WEIGHTS and value is not None}
        left_out = tuple(name for name in found.get("left_out") or () if name is not None)
        return Weights(**{**given, "left_out": left_out}).in_words() if "source" in given else ""


def read(run: Path) -> RunFiles:
    """Reads a run folder.

    Args:
        run: The folder.

    Raises:
        ValueError: ``config.json`` is missing or damaged. A note reports any other file that is damaged.
    """
    notes: list[str] = []
    return RunFiles(
        path=run,
        config=_config(run),
        rows=_part(run / "metrics.jsonl", lambda file: _metrics(file, notes), notes) or [],
        evaluation=_part(run / "evaluation.json", lambda file: _object(file, EVALUATION), notes) or {},
        examples=_part(run / "examples.npz", _examples, notes) or {},
        skipped=_part(run / "skipped.csv", _skipped, notes) or [],
        notes=notes,
    )


def _config(run: Path) -> dict[str, Any]:
    file = run / "config.json"
    if not file.is_file():
        raise ValueError(f"expected a run folder, which 'vergence train' writes; {run} has no config.json")
    try:
        config = _load(file)
        config.setdefault("metadata", config.pop("facts", None))  # "facts" until format 1
        _require(config, CONFIG, "")
        for part in CONFIG:
            if config.get(part) is None:
                raise ValueError(f"no '{part}'")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}); train again, or restore it from a copy") from None
    return config


def _part(file: Path, read: Callable[[Path], Any], notes: list[str]) -> Any:
    """Returns what ``read`` returns; None where there is no file, and where it is damaged, which adds a note."""
    if not file.is_file():
        return None
    try:
        return read(file)
    except UNREADABLE as error:
        notes.append(f"{file.name} is damaged and left out ({' '.join(str(error).split()) or type(error).__name__}).")
    return None


def _bounded(file: Path) -> Path:
    if file.stat().st_size > LARGEST:
        raise ValueError(f"expected at most {LARGEST:,} bytes, found {file.stat().st_size:,}")
    return file


def _object(file: Path, shape: Shape) -> dict[str, Any]:
    record = _load(file)
    _require(record, shape, "")
    return record


def _load(file: Path) -> dict[str, Any]:
    record = json.loads(_bounded(file).read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, found {type(record).__name__}")
    return record


def _require(value: Any, shape: Shape, where: str) -> None:
    """Raises a ValueError unless ``value`` has a shape; null stands for what is absent, and unknown keys are ignored."""
    if value is None:
        return
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected an object, found {_shortened(value)}")
        for key in value:
            if key in shape or "*" in shape:
                _require(value[key], shape.get(key, shape.get("*")), f"{where}.{key}".strip("."))
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list, found {_shortened(value)}")
        for i, entry in enumerate(value):
            _require(entry, shape[0], f"{where}[{i}]")
    elif not shape[1](value):
        raise ValueError(f"{where}: expected {shape[0]}, found {_shortened(value)}")


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _metrics(file: Path, notes: list[str]) -> list[dict[str, Any]]:
    rows, bad = [], 0
    for line in filter(str.strip, _bounded(file).read_text(encoding="utf-8", errors="replace").splitlines()):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        rows += [row] if isinstance(row, dict) else []
        bad += not isinstance(row, dict)
    if bad:
        notes.append(
            f"{bad} line(s) of metrics.jsonl could not be read and are left out (a killed run leaves an incomplete one)."
        )
    return rows


def _examples(file: Path) -> dict[str, Any]:
    import numpy as np

    with zipfile.ZipFile(_bounded(file)) as archive:
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


def _skipped(file: Path) -> list[list[str]]:
    with _bounded(file).open(newline="", encoding="utf-8", errors="replace") as lines:
        return [[original(cell) for cell in row[:2]] for row in list(csv.reader(lines))[1:] if len(row) >= 2]
