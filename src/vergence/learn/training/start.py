"""How a run starts: from which weights (random ones, timm's, a file's, another run's, a factory's), in which folder."""

import dataclasses
import hashlib
import io
import pickle
import secrets
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from vergence.data.sources import Data
from vergence.images.timm_models import Input, timm_file, timm_model, timm_tag
from vergence.learn.encoders.building import expected_input
from vergence.learn.encoders.config import Identity, Timm
from vergence.learn.encoders.patch_maps import RefinedEncoder
from vergence.learn.encoders.pretrained import load_weights, read_weights
from vergence.learn.methods.core import Method
from vergence.learn.training.config import ModelConfig, RunConfig
from vergence.learn.training.folder import MODEL, RunFolder, write_skipped
from vergence.learn.training.records import RunMetadata, Weights
from vergence.utils import terminal
from vergence.utils.checks import expect, shown
from vergence.utils.digests import of_array
from vergence.utils.files import as_path, is_registered, load_outside, sha256

__all__ = ["configured", "continued", "created", "from_run", "load_start"]


def configured(config: RunConfig) -> RunConfig:
    """Returns the description with the input that its encoder expects where it starts from weights; opens no data.

    The size, mean and deviation of the network's own configuration fill the fields that were not given. Weights are fetched and
    read once, so that errors in them are found before the data are opened.
    """
    model = config.model
    _require_sources(model)
    if model.pretrained:
        assert isinstance(model.encoder, Timm), "see `_require_sources`"
        timm_file(model.encoder.name)
    if model.weights is not None:
        read_weights(as_path(model.weights, "weights"))
    chosen, outside = model.pretrained or model.weights is not None, model.encoder.outside is not None
    own = outside and is_registered(model.encoder.outside or "")  # takes the images of its program
    if model.init is not None or not (chosen or outside):
        return config
    found = expected_input(model.encoder) or (Input() if outside and not own and (chosen or model.freeze) else None)
    if found is None:
        return config
    if model.input_mean is None:
        model = dataclasses.replace(model, input_mean=found.mean, input_std=found.std)
    data = config.data if config.data.size is not None else dataclasses.replace(config.data, size=found.size)
    return dataclasses.replace(config, model=model, data=data)


def _require_sources(model: ModelConfig) -> None:
    """Raises a ValueError unless the sources of weights fit the encoder's name."""
    what, found = "`encoder='timm:NAME'` with `pretrained=True`", shown(str(model.encoder))
    expect(not model.pretrained or isinstance(model.encoder, Timm), what, found, "name one of timm, or use `weights=FILE`")
    if model.pretrained and isinstance(model.encoder, Timm) and model.encoder.settings:
        raise ValueError(f"expected a name of timm without settings with `pretrained`, found '{model.encoder}'; leave them out")
    behind = model.encoder.takes_steps or model.freeze
    fits = not (model.encoder.closed_form and model.starts_from_weights) or (behind and model.init)
    advice = "leave them out, or train a network behind a fitted one with `init=RUN` and `objective='vje'`"
    expect(fits, "no weights for encoder 'patches', which is fitted in closed form", advice=advice)
    if model.weights is not None and isinstance(model.encoder, Identity):
        raise ValueError("expected no weights for encoder 'identity', which has none; leave `weights` out")
    fits = not model.freeze or model.encoder.ready or model.starts_from_weights
    advice = "add `pretrained=True`, `weights=FILE` or `init=RUN`, or train it without `freeze`"
    expect(fits, "weights with `freeze=True`", f"encoder '{model.encoder}' with random ones", advice)


def from_run(run: Path, config: RunConfig, *, source: str | None, root: str | None) -> RunConfig:
    """Returns the description of a new run that starts from another one's weights, with that one's settings.

    Of other data, the other run's size of images is kept, and its choice of items is not. Data and folder of torchvision's data
    sets are those of the other run (in the folder ``run``, with the description ``config``) where they are None.
    """
    model = dataclasses.replace(config.model, pretrained=False, weights=None, init=str(run), distill=None)
    data = config.data
    if source is not None and source != data.source:
        data = type(data)(source=source, root=data.root, size=data.size)
    if root is not None:
        data = dataclasses.replace(data, root=root)
    return dataclasses.replace(config, model=model, data=data)


def load_start(method: Method, config: RunConfig, *, trust_code: bool = False) -> Weights:
    """Puts the weights that a description names into a method with random ones, in place; returns where they come from."""
    found = _load(method, config, trust_code)
    if not found.whole:  # a teacher's own weights are among all of a run
        method.reset_teacher()
    return found


def _load(method: Method, config: RunConfig, trust_code: bool) -> Weights:
    model = config.model
    backbone = method.encoder[1]  # type: ignore[index]  # behind the statistics of the input
    if model.init is not None:
        return _load_run(method, config, as_path(model.init, "init"), trust_code)
    if model.weights is not None:
        file = as_path(model.weights, "weights")
        left_out = load_weights(backbone, read_weights(file), file.name)
        return Weights(source="file", name=model.weights, file=file.name, sha256=sha256(file), left_out=left_out)
    if model.pretrained:
        assert isinstance(model.encoder, Timm), "see `_require_sources`"
        name, file = model.encoder.name, timm_file(model.encoder.name)
        assert model.input_mean is not None and config.data.size is not None, "see `configured`"
        full = timm_model(name, len(model.input_mean), config.data.size, file, model.encoder.settings)
        load_weights(backbone, full.state_dict(), f"timm's weights of '{name}'")
        return Weights(source="timm", name=timm_tag(name), file=file.name, sha256=sha256(file))
    if model.encoder.outside is not None:
        return Weights(source="factory", name=model.encoder.outside)
    return Weights(source="random" if any(True for _ in method.encoder.parameters()) else "none")


def _load_run(method: Method, config: RunConfig, path: Path, trust_code: bool) -> Weights:
    folder = RunFolder.open(path, trust_code=trust_code)
    state = folder.load_model()
    same = _of_model(folder.config.model) == _of_model(config.model)
    encoder: Any = method.encoder  # statistics of the input, then the network
    if isinstance(encoder[1], RefinedEncoder) and not folder.config.model.encoder.takes_steps:
        load_weights(encoder[0], _below(state, "encoder.0."), str(path))
        load_weights(encoder[1].closed_form, _below(state, "encoder.1."), str(path))
    else:
        load_weights(method if same else method.encoder, state if same else _below(state, "encoder."), str(path))
    return Weights(source="run", name=config.model.init or "", file=MODEL, sha256=sha256(path / MODEL), whole=same)


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}


def _of_model(model: ModelConfig) -> ModelConfig:
    """Returns what decides the tensors of a model: its description without the source of its weights and a first stage."""
    return dataclasses.replace(model, pretrained=False, weights=None, init=None, distill=None)


def created(fabric: Any, out: Path, config: RunConfig, metadata: RunMetadata, opened: Data, method: Method) -> RunFolder:
    """Returns a new run folder, which the first process writes, and says which weights the run starts from."""
    metadata = dataclasses.replace(metadata, code=_code_of(config))
    folder = RunFolder(out, config, metadata)
    if fabric.is_global_zero:
        folder = RunFolder.create(out, config, metadata)
        write_skipped(out / "skipped.csv", opened.skipped)
        assert metadata.weights is not None, "of a new run"
        _say_weights(folder, metadata.weights)
        if metadata.weights.source not in ("random", "none") and not config.model.freeze:
            folder.save_initial(method.state_dict())
    fabric.barrier()
    return folder


def continued(out: Path, config: RunConfig, now: RunMetadata, method: Method) -> RunFolder:
    """Returns the folder of a run that is resumed; sets the weights that the run started from."""
    folder = RunFolder.open(out, trust_code=True)  # the caller has asked
    for name in ("n_train", "n_calibration", "shape", "target_shape", "content"):
        before, after = getattr(folder.metadata, name), getattr(now, name)
        if before != after:
            words = "other items of the same number" if name == "content" else f"{name} {after} instead of {before}"
            raise ValueError(f"expected the data that the run started with, found {words}; restore it")
    folder.config = config
    weights = folder.metadata.weights
    if weights is not None and weights.source not in ("random", "none") and not config.model.freeze:
        state = folder.load_initial()
        if state is None:
            raise ValueError(f"{out} was stopped before it kept the weights that it starts from; start it again without `resume`")
        method.load_state_dict(state)
    return folder


def _say_weights(folder: RunFolder, weights: Weights) -> None:
    """Prints and logs which weights a run starts from, unless they are random ones and its encoder's name suggests no others."""
    encoder = folder.config.model.encoder
    tag = encoder.name.partition(".")[2] if isinstance(encoder, Timm) and weights.source == "random" else ""
    if weights.source != "random" or tag:
        hint = f"; the tag '{tag}' chooses none: `pretrained` loads timm's" if tag else ""
        words = f"weights: {weights.in_words()}{hint}"
        print(terminal.wording(words), file=sys.stderr)
        folder.log(words)


# What code outside the library does


def _code_of(config: RunConfig) -> tuple[str, ...]:
    """Returns a digest of each piece of code outside the library that a description names; a random one if it cannot be read."""
    found = []
    for name in (*config.model.outside, *filter(None, [config.views.function])):
        text = _Code(file := io.BytesIO())
        text.fast, text.seen = True, {}  # what is equal has one text, whether it is one object or two
        try:
            text.dump(load_outside("code", name, ""))
            found.append(hashlib.sha256(file.getvalue()).hexdigest()[:12])
        except (AttributeError, RuntimeError, TypeError, ValueError, pickle.PicklingError):
            found.append(f"unread {secrets.token_hex(4)}")
    return tuple(found)


class _Code(pickle.Pickler):
    """Writes what tells code apart: instructions, constants and what they read; no weights, and nothing that libraries hold."""

    seen: dict[int, Any]

    def reducer_override(self, value: Any) -> Any:
        """Returns what a value consists of, in pickle's form of a call, which is never made."""
        if isinstance(value, np.ndarray | Tensor | ModuleType):
            return len, (value.__name__ if isinstance(value, ModuleType) else of_array(value),)
        if isinstance(value, CodeType):
            constants = [sorted(map(repr, part)) if isinstance(part, frozenset) else part for part in value.co_consts]
            return len, (value.co_code, value.co_names, constants)
        if isinstance(value, nn.Module):
            settings = {name: part for name, part in vars(value).items() if not name.startswith("_") and name != "training"}
            return len, (type(value), settings, dict(value.named_children()))
        if not isinstance(value, FunctionType | type):
            return NotImplemented
        file, package = getattr(sys.modules.get(value.__module__), "__file__", ""), value.__module__.partition(".")[0]
        if "-packages" in str(file) or package in (*sys.stdlib_module_names, "vergence") or id(value) in self.seen:
            return len, (value.__module__, value.__qualname__)
        self.seen[id(value)] = value  # kept, so that no other object gets its number
        if isinstance(value, type):
            own = [part for name, part in vars(value).items() if callable(part) or not name.startswith("_")]
            return len, (value.__bases__, [getattr(part, "fget", getattr(part, "__func__", part)) for part in own])
        code, known, cells = value.__code__, value.__globals__, [cell.cell_contents for cell in value.__closure__ or ()]
        names = {name for part in (code, *code.co_consts) if isinstance(part, CodeType) for name in part.co_names}
        fixed = (bool, int, float, str, tuple, list, dict, np.ndarray, Tensor, FunctionType, type)
        read = {name: known[name] for name in sorted(names) if isinstance(known.get(name), fixed)}
        return len, (code, value.__defaults__, value.__kwdefaults__, cells, read)
