"""Estimators as settings and arrays in one ``.safetensors`` file, without pickle; an estimator may hold others.

Fitted state is numbers, text, arrays, other estimators, and lists and dictionaries of them, in attributes that end with an
underscore. Loading executes no code from a file: classes are those of `vergence.mixtures` and `vergence.decide`.
"""

import copy
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vergence.utils.checks import expect, refuse, require_choice, shortened, shown
from vergence.utils.devices import as_device
from vergence.utils.files import explained, replacing

__all__ = ["Stored", "restore"]

FORMAT = 1  # version of the file format
ROOMS = ("vergence.mixtures", "vergence.decide")  # with the classes that a file may name; imported when they are needed
WITH_GAPS = "held_out_pit_"  # arrays that are NaN where a target was missing
STATE = re.compile(r"[a-z][A-Za-z0-9_]*_")  # names of fitted attributes
DAMAGE = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError)

Arrays = dict[str, np.ndarray]
T = TypeVar("T", bound="Stored")


class Stored(BaseEstimator):  # type: ignore[misc]
    """An estimator that is saved without pickle."""

    def save(self, path: str | Path) -> None:
        """Writes settings and fitted state to one ``.safetensors`` file, in one step."""
        check_is_fitted(self)
        content, arrays = pack(self)
        head = {"estimator": json.dumps({"format": FORMAT, **content})}
        with explained(Path(path), "choose another path, or free space"), replacing(Path(path)) as part:
            part.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, head))

    @classmethod
    def load(cls: type[T], path: str | Path) -> T:
        """Returns the estimator that `save` wrote."""
        model = read_model(path)
        expect(isinstance(model, cls), f"a {cls.__name__} in {path}", f"a {type(model).__name__}", "load it by that class")
        return cast(T, model)

    def _tensors(self, *values: Any) -> Iterator[Tensor]:
        """Yields fitted arrays as tensors on the device."""
        return (torch.from_numpy(np.asarray(value)).to(as_device(self.device)) for value in values)

    def _try(self) -> None:
        """Uses the fitted state once."""
        self.score_samples(np.zeros((1, self.n_features_in_)))


def find(name: str) -> Any:
    """Returns the class of a model or detector by its name; raises a ValueError that suggests the nearest name."""
    public = {key: getattr(room, key) for room in map(importlib.import_module, ROOMS) for key in room.__all__}
    classes = {key: kind for key, kind in public.items() if isinstance(kind, type) and issubclass(kind, Stored)}
    kinds = {key: kind for key, kind in classes.items() if not inspect.isabstract(kind)}
    require_choice("an estimator", name, kinds)
    return kinds[name]


def pack(value: Any) -> tuple[Any, Arrays]:
    """Returns a value as JSON, and the arrays that the JSON refers to by their names."""
    arrays: Arrays = {}

    def packed(value: Any, *path: str) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            arrays[".".join(path)] = value
            return {"array": ".".join(path)}
        if isinstance(value, (np.generic, np.ndarray)):
            return packed(value.tolist(), *path)
        if isinstance(value, Mapping):
            return {"dict": {str(key): packed(part, *path, str(key)) for key, part in value.items()}}
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [packed(part, *path, str(i)) for i, part in enumerate(value)]}
        if isinstance(value, slice):
            return {"slice": [value.start, value.stop, value.step]}
        if isinstance(value, Stored):
            settings = value.get_params(deep=False)
            state = {key: part for key, part in vars(value).items() if key not in settings}
            parts = {"settings": packed(settings, *path, "settings")["dict"], "state": packed(state, *path)["dict"]}
            return {"class": type(value).__name__, **parts}
        where = ".".join(path).removeprefix("settings.")
        return refuse("settings that are numbers, text or arrays", f"a {type(value).__name__} in {where}", "set a number instead")

    return packed(value), arrays


def unpack(content: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the value that `pack` described; raises a ValueError where the content is not such a description."""
    if not isinstance(content, dict):
        return content
    if "class" in content:
        return _estimator(content, arrays)
    fits = len(content) == 1 and content.keys() <= {"array", "dict", "list", "tuple", "slice"}
    expect(fits, "an array, list or dictionary", ", ".join(content) or "nothing")
    kind, inner = next(iter(content.items()))
    if kind == "array":
        expect(inner in arrays, f"an array {inner}", "none")
        return arrays[inner]
    if kind == "dict":
        return {key: unpack(part, arrays) for key, part in inner.items()}
    values = [unpack(part, arrays) for part in inner]
    if kind == "slice":
        expect(all(value is None or isinstance(value, int) for value in values), "a slice of whole numbers", "other values")
        return slice(*values)
    return values if kind == "list" else tuple(values)


def _estimator(content: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the estimator of a class, settings and state."""
    name = str(content["class"])
    kind = find(name)
    settings, state = ({key: unpack(part, arrays) for key, part in content[of].items()} for of in ("settings", "state"))
    if unknown := sorted(settings.keys() - kind._get_param_names()):
        refuse(f"settings of {name} as in this version", unknown[0])
    if unknown := [key for key in state if hasattr(kind, key) or not STATE.fullmatch(key)]:  # would hide a method
        refuse(f"fitted state of {name}", f"its own '{unknown[0]}'")
    model = kind(**settings)
    for key, value in state.items():
        setattr(model, key, np.asarray(value, dtype=object) if key == "feature_names_in_" else value)
    return model


def restore(name: str, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the fitted estimator of a class, from the ``settings`` and ``state`` that `pack` returned, and its arrays.

    The estimator is used once before it is returned, so that damaged state is found here and not later.
    """
    find(name)  # an unknown class is not damage
    try:
        model = unpack({**content, "class": name}, arrays)
        values = {key: np.nan_to_num(array) if key.endswith(WITH_GAPS) else array for key, array in arrays.items()}
        if broken := [key for key, array in values.items() if not np.isfinite(array).all()]:
            raise ValueError(f"NaN or infinity in {broken[0]}")
        trial = copy.copy(model)
        trial.device = "cpu"  # that of the file may not exist here
        trial._try()
    except DAMAGE as error:
        raise ValueError(f"expected a fitted {name}, found damage: {shortened(error)}; fit the model again") from None
    return model


def read_model(path: str | Path) -> Any:
    """Returns the estimator of a file."""
    expect(Path(path).is_file(), f"a model file at {path}", "a folder" if Path(path).is_dir() else "no file", "check the path")
    try:
        with safe_open(path, framework="numpy") as file:
            record = json.loads((file.metadata() or {}).get("estimator", "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or "which is damaged or of another kind"
        refuse("a model file", f"{path}, {why}", "check the path")
    whole = isinstance(record, dict) and {"format", "class", "settings", "state"} <= record.keys()
    expect(whole, "an estimator of vergence", f"none in {path}")
    version = f"format {shown(record['format'])} in {path}"
    expect(record["format"] == FORMAT, f"format {FORMAT}", version, "upgrade vergence, or fit the model again")
    try:
        return restore(str(record["class"]), {name: record[name] for name in ("settings", "state")}, arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
