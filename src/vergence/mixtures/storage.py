"""Estimators as settings and arrays in one ``.safetensors`` file, without pickle; an estimator may hold others.

Fitted state is numbers, text, arrays, other estimators, and lists and dictionaries of them, in attributes that end with an
underscore. Loading executes no code from a file: classes are those of `vergence.mixtures` and the detectors below.
"""

import copy
import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from vergence.utils.checks import expect, require_choice, shortened, shown
from vergence.utils.files import explained, replacing

__all__ = ["Stored", "find", "restore"]

FORMAT = 1  # version of the file format
FILES = {  # of each class, which is imported when it is needed
    **dict.fromkeys(("ConditionalGaussian", "ConditionalMixture", "GaussianMixture", "GrowingNeuralGas"), "vergence.mixtures"),
    **dict.fromkeys(("KernelConditional", "MixtureDensityNetwork", "ParticleMixture"), "vergence.mixtures"),
    "GaussianDetector": "vergence.detection.density",
    "MixtureDetector": "vergence.detection.density",
    "NeighborDetector": "vergence.detection.neighbors",
    "CombinedDetector": "vergence.detection.combined",
}
STATE = re.compile(r"[a-z][A-Za-z0-9_]*_")  # names of fitted attributes
DAMAGE = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError)

Arrays = dict[str, np.ndarray]
T = TypeVar("T", bound="Stored")


class Stored(BaseEstimator):  # type: ignore[misc]
    """An estimator that is saved without pickle."""

    def save(self, path: str | Path) -> None:
        """Writes settings and fitted state to one ``.safetensors`` file, in one step.

        Raises:
            ValueError: A setting is neither a number nor text nor an array, or the file cannot be written.
        """
        check_is_fitted(self)
        content, arrays = pack(self)
        head = {"format": str(FORMAT), "class": content["class"]}
        head |= {name: json.dumps(content[name]) for name in ("settings", "state")}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        try:
            with explained(Path(path), "choose another path, or free space"), replacing(Path(path)) as part:
                part.write_bytes(_sorted_head(save(tensors, metadata=head)))
        except SafetensorError as error:
            raise ValueError(f"cannot write {path}: {error}") from None

    @classmethod
    def load(cls: type[T], path: str | Path) -> T:
        """Returns the estimator that `save` wrote.

        Raises:
            ValueError: The file is missing, damaged, from another version, or holds another kind of estimator.
        """
        model = read_model(path)
        kind = type(model).__name__
        expect(isinstance(model, cls), f"a {cls.__name__} in {path}", f"a {kind}", "load it by that class")
        return cast(T, model)

    def _try(self) -> None:
        """Uses the fitted state once."""
        self.score_samples(np.zeros((1, self.n_features_in_)))


def find(name: str) -> Any:
    """Returns the class of a model or detector by its name.

    Raises:
        ValueError: There is no such class; the nearest name is suggested.
    """
    require_choice("an estimator", name, FILES)
    return getattr(importlib.import_module(FILES[name]), name)


def pack(value: Any, name: str = "") -> tuple[Any, Arrays]:
    """Returns a value as JSON, and the arrays that the JSON refers to by their names.

    Args:
        value: Numbers, text, arrays, estimators, and lists and dictionaries of them.
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
        content, arrays = _packed({str(key): part for key, part in value.items()}, name)
        return {"dict": content}, arrays
    if isinstance(value, (list, tuple)):
        content, arrays = _packed({str(i): part for i, part in enumerate(value)}, name)
        return {"list" if isinstance(value, list) else "tuple": list(content.values())}, arrays
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}, {}
    if isinstance(value, Stored):
        settings = value.get_params(deep=False)
        state = {key: part for key, part in vars(value).items() if key not in settings}
        parameters, first = _packed(settings, f"{name}.settings" if name else "settings")
        fitted, second = _packed(state, name)
        return {"class": type(value).__name__, "settings": parameters, "state": fitted}, first | second
    kind, where = type(value).__name__, name.removeprefix("settings.")
    raise ValueError(f"expected settings that are numbers, text or arrays, found a {kind} in {where}: set a number instead")


def _packed(values: Mapping[str, Any], name: str) -> tuple[dict[str, Any], Arrays]:
    """Returns the content of each value, and the arrays of all."""
    content: dict[str, Any] = {}
    arrays: Arrays = {}
    for key, part in values.items():
        content[key], inner = pack(part, f"{name}.{key}" if name else key)
        arrays |= inner
    return content, arrays


def unpack(content: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the value that `pack` described.

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
        return {key: unpack(part, arrays) for key, part in inner.items()}
    values = [unpack(part, arrays) for part in inner]
    if kind == "slice" and not all(value is None or isinstance(value, int) for value in values):
        raise ValueError("expected a slice of whole numbers, found other values")
    return slice(*values) if kind == "slice" else tuple(values) if kind == "tuple" else values


def _unpack_estimator(content: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    name = str(content["class"])
    kind = find(name)
    settings, state = ({key: unpack(part, arrays) for key, part in content[part_of].items()} for part_of in ("settings", "state"))
    if foreign := sorted(settings.keys() - kind._get_param_names()):
        raise ValueError(f"expected settings of {name} as in this version, found {foreign[0]}")
    if foreign := [key for key in state if hasattr(kind, key) or not STATE.fullmatch(key)]:  # would hide a method
        raise ValueError(f"expected fitted state of {name}, found its own '{foreign[0]}'")
    model = kind(**settings)
    for key, value in state.items():
        setattr(model, key, np.asarray(value, dtype=object) if key == "feature_names_in_" else value)
    return model


def restore(name: str, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the fitted estimator of a class, from the settings and the state that `pack` returned, and its arrays.

    The estimator is used once before it is returned, so that damaged state is found here and not later.

    Args:
        name: Name of the class.
        content: ``settings`` and ``state``.
        arrays: Arrays by their names.

    Raises:
        ValueError: They do not describe a fitted estimator of this class.

    Example:
        >>> from vergence.detection import GaussianDetector
        >>> detector = GaussianDetector().fit(np.random.default_rng(0).normal(size=(50, 3)))
        >>> again = restore("GaussianDetector", detector.settings(), detector.arrays())
        >>> bool((again.score_samples(np.eye(3)) == detector.score_samples(np.eye(3))).all())
        True
    """
    try:
        model = unpack({**content, "class": name}, arrays)
        if broken := [key for key, array in arrays.items() if not np.isfinite(array).all()]:
            raise ValueError(f"NaN or infinity in {broken[0]}")
        trial = copy.copy(model)
        trial.device = "cpu"  # that of the file may not exist here
        trial._try()
    except DAMAGE as error:
        raise ValueError(f"expected a fitted {name}, found damage: {shortened(error)}; fit the model again") from None
    return model


def read_model(path: str | Path) -> Any:
    """Returns the estimator of a file.

    Raises:
        ValueError: The file is missing, damaged, no estimator's, or from another version.
    """
    expect(Path(path).is_file(), "a model file", f"no file {path}", "check the path")
    try:
        with safe_open(path, framework="numpy") as file:
            head = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"expected a model file, found {path} damaged or of another kind: {error}") from None
    expect({"format", "class", "settings", "state"} <= head.keys(), "an estimator of vergence", f"none in {path}")
    version = f"format {shown(head['format'])} in {path}"
    expect(head["format"] == str(FORMAT), f"format {FORMAT}", version, "upgrade vergence, or fit the model again")
    try:
        return restore(head["class"], {name: _object(head[name]) for name in ("settings", "state")}, arrays)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _object(text: str) -> dict[str, Any]:
    """Returns the object of a JSON text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    expect(isinstance(value, dict), "settings and state as JSON objects", "other text", "fit the model again")
    return dict(value)


def _sorted_head(content: bytes) -> bytes:
    """Returns a safetensors file with its metadata in the order of their names, which safetensors writes in a random one."""
    end = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:end])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the arrays start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + content[end:]
