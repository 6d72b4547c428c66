"""Detectors as settings and arrays, without pickle; a detector may hold others."""

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from vergence.mixtures.storage import parse_object, read_model, write_model
from vergence.utils.names import unknown

__all__ = ["find", "pack", "read_detector", "restore", "unpack", "write_detector"]

CLASSES = {  # what a file may hold, with the module that defines it
    "GaussianDetector": "vergence.detection.gaussian",
    "MixtureDetector": "vergence.detection.mixture",
    "NeighborDetector": "vergence.detection.neighbors",
    "CombinedDetector": "vergence.detection.combined",
    "GaussianMixture": "vergence.mixtures.gaussian_mixture",
}
STATE = re.compile(r"[a-z][a-z0-9_]*_(in_)?")  # names of fitted attributes
Arrays = dict[str, np.ndarray]


def pack(value: Any, name: str = "") -> tuple[Any, Arrays]:
    """Returns a value as JSON, and the arrays that the JSON refers to by their names.

    Args:
        value: Numbers, text, arrays, detectors, and lists and dictionaries of them.
        name: Path of the value, the prefix of its arrays' names.

    Raises:
        ValueError: The value holds something else.

    Example:
        >>> pack({"a": np.zeros(2), "b": [1, "x"]})
        ({'dict': {'a': {'array': 'a'}, 'b': {'list': [1, 'x']}}}, {'a': array([0., 0.])})
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value, {}
    if isinstance(value, np.generic):
        return value.item(), {}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"array": name}, {name: value if min(value.strides, default=0) >= 0 else value.copy()}
    if isinstance(value, np.ndarray):
        return pack(value.tolist(), name)
    if isinstance(value, Mapping):
        return _packed("dict", {str(key): one for key, one in value.items()}, name)
    if isinstance(value, (list, tuple)):
        content, arrays = _packed("list", {str(i): one for i, one in enumerate(value)}, name)
        return {"list" if isinstance(value, list) else "tuple": list(content["list"].values())}, arrays
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}, {}
    if isinstance(value, BaseEstimator) and type(value).__name__ in CLASSES:
        return _pack_estimator(value, name)
    raise ValueError(
        f"expected settings that are numbers, text or arrays, found a {type(value).__name__} in {name}: set a number"
    )


def _packed(kind: str, values: Mapping[str, Any], name: str) -> tuple[Any, Arrays]:
    content: dict[str, Any] = {}
    arrays: Arrays = {}
    for key, one in values.items():
        content[key], found = pack(one, f"{name}.{key}" if name else key)
        arrays |= found
    return {kind: content}, arrays


def _pack_estimator(model: BaseEstimator, name: str) -> tuple[Any, Arrays]:
    settings = model.get_params(deep=False)
    state = {key: value for key, value in vars(model).items() if key not in settings}
    parameters, first = _packed("dict", settings, f"{name}.parameters" if name else "parameters")
    fitted, second = _packed("dict", state, name)
    return {"class": type(model).__name__, "parameters": parameters, "state": fitted}, first | second


def unpack(content: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the value that `pack` described. No code is executed that the content names, apart from the classes above.

    Raises:
        ValueError: The content is not such a description.
    """
    if not isinstance(content, dict):
        return content
    if "class" in content:
        return _unpack_estimator(content, arrays)
    if len(content) != 1 or not content.keys() <= {"array", "dict", "list", "tuple", "slice"}:
        raise ValueError(f"expected an array, list or dictionary, found {', '.join(content) or 'nothing'}")
    kind, inner = next(iter(content.items()))
    if kind == "array":
        if inner not in arrays:
            raise ValueError(f"expected an array {inner}, found none")
        return arrays[inner]
    if kind == "dict":
        return {key: unpack(one, arrays) for key, one in inner.items()}
    values = [unpack(one, arrays) for one in inner]
    if kind == "slice" and not all(one is None or isinstance(one, int) for one in values):
        raise ValueError("expected a slice of whole numbers, found other values")
    return slice(*values) if kind == "slice" else tuple(values) if kind == "tuple" else values


def _unpack_estimator(content: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    name = content["class"]
    kind = find(str(name))
    parameters, state = (unpack(content[key], arrays) for key in ("parameters", "state"))
    if foreign := sorted(parameters.keys() - kind._get_param_names()):
        raise ValueError(f"expected settings of {name} as in this version, found {foreign[0]}: fit it again")
    foreign = [key for key in state if not STATE.fullmatch(key) or hasattr(kind, key)]
    if foreign:  # would hide a method
        raise ValueError(f"expected fitted state of {name}, found {foreign[0]}: fit it again")
    model = kind(**parameters)
    for key, value in state.items():
        setattr(model, key, np.asarray(value, dtype=object) if key == "feature_names_in_" else value)
    return model


def find(name: str) -> Any:
    """Returns a detector's class by its name.

    Raises:
        ValueError: There is no such class; the nearest known name is suggested.
    """
    if name not in CLASSES:
        raise unknown("detector", name, CLASSES)
    return getattr(importlib.import_module(CLASSES[name]), name)


def restore(name: str, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the fitted detector of a class, from its ``settings()`` and ``arrays()``.

    The detector scores one item before it is returned, so that damaged state is found here and not later.

    Args:
        name: Name of the class.
        settings: What ``settings()`` returned.
        arrays: What ``arrays()`` returned.

    Raises:
        ValueError: They do not describe a fitted detector of this class.

    Example:
        >>> from vergence.detection import GaussianDetector
        >>> detector = GaussianDetector().fit(np.random.default_rng(0).normal(size=(50, 3)))
        >>> again = restore("GaussianDetector", detector.settings(), detector.arrays())
        >>> bool((again.score_samples(np.eye(3)) == detector.score_samples(np.eye(3))).all())
        True
    """
    try:
        model = unpack({**settings, "class": name}, arrays)
        if bad := [key for key, array in arrays.items() if not np.isfinite(array).all()]:
            raise ValueError(f"NaN or infinity in {bad[0]}")
        model.try_out()
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected a fitted {name}, found damage ({error}): fit it again") from None
    return model


def write_detector(path: str | Path, detector: Any) -> None:
    """Writes a fitted detector to one ``.safetensors`` file, in one step.

    Raises:
        ValueError: A setting is neither a number nor text nor an array, or the file cannot be written.
    """
    content, arrays = pack(detector)
    write_model(Path(path), content["class"], json.dumps(content["parameters"]), json.dumps(content["state"]), arrays)


def read_detector(path: str | Path) -> Any:
    """Returns the detector of a file. Loading executes no code from the file.

    Raises:
        ValueError: The file is missing, damaged, from another version, or holds no detector.
    """
    head, arrays = read_model(path)
    parameters, state = (parse_object(head[key], path) for key in ("settings", "state"))
    try:
        return restore(head["class"], {"parameters": parameters, "state": state}, arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
