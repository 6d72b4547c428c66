"""Estimators saved as settings and arrays, without pickle."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from vergence.utils.checks import shortened
from vergence.utils.files import explained, replacing
from vergence.utils.names import quoted

__all__ = ["FORMAT", "Stored", "parse_object", "read_model", "write_model"]


FORMAT = 1  # version of the file format

T = TypeVar("T", bound="Stored")


class Stored(BaseEstimator):  # type: ignore[misc]
    """An estimator whose fitted state is numbers, text and arrays in public attributes, saved without pickle."""

    def save(self, path: str | Path) -> None:
        """Writes settings and fitted state to one ``.safetensors`` file, in one step.

        Raises:
            ValueError: A setting is neither a number nor text nor an array, or the file cannot be written.
        """
        check_is_fitted(self)
        where = Path(path)
        arrays, plain = _split(self)
        try:
            settings = json.dumps(self.get_params(deep=False), default=_plain)
        except TypeError as error:
            raise ValueError(
                f"expected settings that are numbers, text or arrays, found a {error}: set a number instead"
            ) from None
        write_model(where, type(self).__name__, settings, json.dumps(plain), arrays)

    @classmethod
    def load(cls: type[T], path: str | Path) -> T:
        """Returns the model that `save` wrote. Loading executes no code from the file.

        Raises:
            ValueError: The file is missing, damaged, from another version, or holds another kind of model.
        """
        head, arrays = read_model(path)
        if head["class"] != cls.__name__:
            raise ValueError(f"expected a {cls.__name__} in {path}, found a {head['class']}: use vergence.mixtures.load")
        settings, state = (parse_object(head[key], path) for key in ("settings", "state"))
        if foreign := settings.keys() - cls._get_param_names():
            known = f"expected settings of {cls.__name__} as in this version"
            raise ValueError(f"{known}, found {', '.join(sorted(foreign))} in {path}: fit the model again")
        model = cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()})
        if names := state.pop("feature_names_in_", None):
            model.feature_names_in_ = np.asarray(names, dtype=object)
        if foreign := [name for name in {**state, **arrays} if hasattr(cls, name)]:  # would hide a method
            raise ValueError(f"expected fitted state in {path}, found {cls.__name__}'s own '{foreign[0]}': fit the model again")
        for name, value in {**state, **arrays}.items():
            setattr(model, name, value)
        model._require_whole(path)
        return model

    def _try(self) -> None:
        """Uses the fitted state once."""
        self.score_samples(np.zeros((1, self.n_features_in_)))

    def _require_whole(self, path: str | Path) -> None:
        """Raises a ValueError if the fitted state that was read from a file cannot be used, as that of a damaged file."""
        trial = copy.copy(self)
        trial.device = "cpu"
        try:
            trial._try()
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:
            reason = shortened(error)
            raise ValueError(f"expected a fitted {type(self).__name__} in {path}, found damage: {reason}; fit it again") from None


def write_model(path: Path, kind: str, settings: str, state: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes an estimator's file in one step.

    Args:
        path: File to write.
        kind: Name of its class.
        settings: Constructor's arguments as JSON.
        state: Fitted numbers and text as JSON.
        arrays: Fitted arrays by name.

    Raises:
        ValueError: The file cannot be written.
    """
    head = {"format": str(FORMAT), "class": kind, "settings": settings, "state": state}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    try:
        with explained(path, "choose another path, or free space"), replacing(path) as part:
            part.write_bytes(_sorted_head(save(tensors, metadata=head)))
    except SafetensorError as error:
        raise ValueError(f"cannot write {path}: {error}") from None


def _sorted_head(content: bytes) -> bytes:
    """Returns a safetensors file with its metadata in the order of their names, which safetensors writes in a random one."""
    end = 8 + int.from_bytes(content[:8], "little")
    head = json.loads(content[8:end])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the arrays start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + content[end:]


def read_model(path: str | Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Returns the metadata and the arrays of a model's file.

    Raises:
        ValueError: The file is missing, damaged, no model, or from another version.
    """
    if not Path(path).is_file():
        raise ValueError(f"expected a model file, found no file {path}: check the path")
    try:
        with safe_open(path, framework="numpy") as file:
            head = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"expected a model file, found {path} damaged or of another kind: {error}") from None
    if not {"format", "class", "settings", "state"} <= head.keys():
        raise ValueError(f"expected an estimator of vergence, found none in {path}")
    if head["format"] != str(FORMAT):
        raise ValueError(
            f"expected format {FORMAT}, found format {quoted(head['format'])} in {path}: upgrade vergence, or fit the model again"
        )
    return head, arrays


def parse_object(text: str, path: str | Path) -> dict[str, Any]:
    """Returns the object of a JSON text in a model's file."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"expected settings and state as JSON objects in {path}, found other text: fit the model again")
    return value


def _plain(value: Any) -> Any:
    """Returns a number or array of numpy as numbers and lists of Python."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(type(value).__name__)


def _split(model: BaseEstimator) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the fitted attributes: arrays, and all others."""
    arrays, plain = {}, {}
    settings = model.get_params(deep=False)
    for name, value in vars(model).items():
        if name in settings:
            continue
        if isinstance(value, np.ndarray) and value.dtype != object:
            arrays[name] = value
        else:
            plain[name] = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    return arrays, plain
