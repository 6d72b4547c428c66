"""Conditional densities of files: fit, predict, sample and score, for ``vergence density``."""

import csv
import difflib
import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vergence import mixtures
from vergence.utils import terminal
from vergence.utils.files import open_table

__all__ = ["Pairs", "build", "fit", "predict", "read_contexts", "read_pairs", "sample", "score"]

LEVELS = (0.5, 0.9)  # of the intervals whose coverage is shown
ROWS = 1024  # of a file's table that are written at a time
FEW = 20  # held-out items below which nothing is said about them


@dataclass(frozen=True)
class Pairs:
    """Contexts and targets of a file.

    Attributes:
        context: (N, C).
        target: (N, T), or (N,).
        columns: Names of the C context columns, then of the T target columns; of .npz files made of numbers.
    """

    context: np.ndarray
    target: np.ndarray
    columns: tuple[list[str], list[str]]


def read_pairs(path: Path, target: Sequence[str] = ()) -> Pairs:
    """Reads ``context`` and ``target`` of a .npz file, or the columns of a .csv file, of which ``target`` names the targets.

    Raises:
        ValueError: The file is missing, of another kind, holds other arrays or columns, or text where numbers belong.
    """
    if path.suffix == ".csv":
        names, values = _read_csv(path)
        _require_columns(target, names, path)
        if not target or len(target) == len(names):
            has = f"{path.name} has {', '.join(names)}"
            raise ValueError(f"name the columns to predict, and leave some: --target NAME; {has}")
        rest = [name for name in names if name not in set(target)]
        t = values[:, [names.index(name) for name in target]]
        return Pairs(values[:, [names.index(n) for n in rest]], t[:, 0] if len(target) == 1 else t, (rest, list(target)))
    arrays = _read_npz(path, ("context", "target"))
    if target:
        raise ValueError(f"expected --target with a .csv file; {path.name} has its arrays context and target")
    c, t = arrays["context"], arrays["target"]
    c = c[:, None] if c.ndim == 1 else c
    if c.ndim != 2 or t.ndim not in (1, 2) or len(c) != len(t):
        raise ValueError(f"expected context (N, C) and target (N, T) in {path.name}, found shapes {c.shape} and {t.shape}")
    return Pairs(c, t, (_numbered("context", c), _numbered("target", t)))


def read_contexts(path: Path, columns: Sequence[str]) -> np.ndarray:
    """Reads contexts (B, C): the columns of a .csv file by name, ``context`` of a .npz file, or a .npy file.

    Raises:
        ValueError: As `read_pairs`.
    """
    if path.suffix == ".csv":
        names, values = _read_csv(path)
        _require_columns(columns, names, path)
        return np.asarray(values[:, [names.index(name) for name in columns]])
    found = _read_npz(path, ("context",))["context"]
    return found[:, None] if found.ndim == 1 else found


def _numbered(name: str, array: np.ndarray) -> list[str]:
    return [f"{name}_{i}" for i in range(1 if array.ndim == 1 else array.shape[1])]


def _read_csv(path: Path) -> tuple[list[str], np.ndarray]:
    _require_file(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    names = rows[0] if rows else []
    if len(rows) < 2 or len(set(names)) < len(names):
        raise ValueError(f"expected a line of different names and lines of numbers in {path.name}, found {len(rows)} lines")
    for i, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise ValueError(f"line {i} of {path.name}: expected {len(names)} values, found {len(row)}")
    values = [[_number(v, i, n, path) for v, n in zip(row, names, strict=True)] for i, row in enumerate(rows[1:], 2)]
    return names, np.array(values)


def _number(text: str, line: int, name: str, path: Path) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"line {line} of {path.name}: expected a number in column {name}, found '{text}'") from None


def _read_npz(path: Path, keys: Sequence[str]) -> dict[str, np.ndarray]:
    _require_file(path)
    if path.suffix not in (".npz", ".npy"):
        raise ValueError(f"cannot read '{path.name}': expected a .npz, .npy or .csv file")
    try:
        found = np.load(path, allow_pickle=False)
        arrays = {keys[0]: found} if isinstance(found, np.ndarray) else {key: found[key] for key in keys if key in found}
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if missing := [key for key in keys if key not in arrays]:
        raise ValueError(f"expected the arrays {' and '.join(keys)} in {path.name}, found no {missing[0]}")
    if text := [key for key, value in arrays.items() if value.dtype.kind not in "fiub"]:
        raise ValueError(f"expected numbers in {text[0]} of {path.name}, found {arrays[text[0]].dtype}")
    return arrays


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")


def _require_columns(wanted: Sequence[str], names: Sequence[str], path: Path) -> None:
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
            raise ValueError(f"{path.name} has no column {name}; {hint}")


def build(name: str, settings: dict[str, Any]) -> Any:
    """Returns an unfitted model by its short or its file's name, with some settings.

    Raises:
        ValueError: There is no such model or setting; the nearest known name is suggested.

    Example:
        >>> build("mixture", {"n_components": 2})
        ConditionalMixture(n_components=2)
    """
    kind = mixtures.get(name)
    if not hasattr(kind, "conditional"):
        raise ValueError(f"expected a conditional model, found {name}; choose from {', '.join(mixtures.short_names())}")
    known = list(inspect.signature(kind).parameters)
    for setting in settings:
        if setting not in known:
            near = difflib.get_close_matches(setting, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"{kind.__name__} has no setting {setting}; {hint}")
    return kind(**settings)


def fit(pairs: Pairs, model: str, out: Path, *, settings: dict[str, Any], holdout: float = 0.2, seed: int = 0) -> dict[str, Any]:
    """Fits a model to a part of the pairs, measures it on the others beside two controls, and writes it.

    Args:
        pairs: Contexts and targets.
        model: As `build` takes it.
        out: File to write, ``.safetensors``.
        settings: Of the model.
        holdout: Share of the pairs, drawn at random, that measure; 0 to fit to all.
        seed: Of the draw and of the model.

    Returns:
        Numbers of items, seconds, and for the model and each control the mean log-density of the held-out targets (nats)
        with its standard error, and the share of them inside the 50 % and 90 % intervals.

    Raises:
        ValueError: The pairs, the settings or ``out`` are not usable.
    """
    if not 0 <= holdout < 1:
        raise ValueError(f"expected a holdout of at least 0, below 1, found {holdout}")
    if out.suffix != ".safetensors" or not out.parent.is_dir() or out.is_dir():
        raise ValueError(f"cannot write {out}: expected a file that ends in .safetensors, in a folder that is there")
    estimator = build(model, {"random_state": seed, **settings})
    order = np.random.default_rng(seed).permutation(len(pairs.context))
    test, train = np.split(order, [int(holdout * len(order))])
    began = time.perf_counter()
    estimator.fit(pairs.context[train], pairs.target[train])
    seconds = time.perf_counter() - began
    estimator.columns_ = list(pairs.columns)
    estimator.save(out)
    found = {"model": type(estimator).__name__, "train": len(train), "test": len(test), "seconds": seconds, "scores": {}}
    if len(test) >= FEW:
        linear = mixtures.get("gaussian")().fit(pairs.context[train], pairs.target[train])
        alone = mixtures.get("gaussian")().fit(np.zeros((len(train), 1)), pairs.target[train])
        c, t = pairs.context[test], pairs.target[test]
        found["scores"] = {
            "model": _scores(estimator, c, t),
            "one Gaussian, linear (control)": _scores(linear, c, t),
            "targets alone, Gaussian (control)": _scores(alone, np.zeros((len(test), 1)), t),
        }
    return found


def _scores(model: Any, c: np.ndarray, t: np.ndarray) -> dict[str, float]:
    log_p, pit = model.score_samples(c, t), model.pit(c, t)
    inside = {f"inside {level:.0%}": float((abs(pit - 0.5) <= level / 2).mean()) for level in LEVELS}
    return {"log_density": float(log_p.mean()), "error": float(log_p.std() / len(log_p) ** 0.5), **inside}


def predict(model: Any, contexts: np.ndarray, out: Path, *, level: float = 0.9) -> int:
    """Writes mean, mode, interval and effective number of answers of each context; returns the rows written."""

    def rows(c: np.ndarray) -> dict[str, np.ndarray]:
        low, high = np.moveaxis(model.intervals(c, level), -1, 0)
        answers = {"mean": model.predict(c), "mode": model.predict_mode(c), "low": low, "high": high}
        given = model.conditional(c)
        if hasattr(given, "mixture_distribution"):
            answers["answers"] = given.mixture_distribution.entropy().exp().cpu().numpy()
        return answers

    return _write(out, "predict", _blocks(contexts), rows)


def sample(model: Any, contexts: np.ndarray, out: Path, *, n: int = 10, seed: int = 0) -> int:
    """Writes n draws for each context, with the row of the context; returns the rows written."""
    rng = np.random.default_rng(seed)
    row = 0

    def rows(c: np.ndarray) -> dict[str, np.ndarray]:
        nonlocal row
        draws = model.sample(c, n, random_state=int(rng.integers(2**31 - 1)))
        which = np.repeat(np.arange(row, row + len(c)), n)
        row += len(c)
        return {"row": which, "target": draws.reshape(len(c) * n, *draws.shape[2:])}

    return n * _write(out, "sample", _blocks(contexts), rows)


def score(model: Any, pairs: Pairs, out: Path) -> int:
    """Writes the log-density (nats) and the PIT of each pair; returns the rows written."""

    def rows(block: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
        return {"log_density": model.score_samples(*block), "pit": model.pit(*block)}

    return _write(out, "score", zip(_blocks(pairs.context), _blocks(pairs.target), strict=True), rows, len(pairs.context))


def _blocks(array: np.ndarray) -> list[np.ndarray]:
    return [array[i : i + ROWS] for i in range(0, len(array), ROWS)]


def _write(out: Path, label: str, blocks: Any, rows: Any, total: int | None = None) -> int:
    blocks = list(blocks)
    total = sum(map(len, blocks)) if total is None else total
    with open_table(out) as table, terminal.bar(label, total=total, unit="rows") as advance:
        for block in blocks:
            table.append(rows(block))
            advance(min(ROWS, total))
    return total
