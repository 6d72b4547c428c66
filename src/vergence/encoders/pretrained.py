"""Weights that an encoder starts from: timm's of its name, or a file's; and the input that such a network expects.

Reading weights runs no code: files are safetensors, or PyTorch files read with ``weights_only=True``.
"""

import contextlib
import itertools
import pickle
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vergence.encoders.config import MEAN, SIZE, STD, Input
from vergence.encoders.networks import require_timm
from vergence.utils.checks import did_you_mean, expect, shortened, shown
from vergence.utils.files import read_pytorch

__all__ = ["load_weights", "read_weights", "timm_file", "timm_tag"]

PATIENCE = 10.0  # seconds until a server has to answer
NAMED = 3  # keys in a message
ADVICE, SAVE = "give a .safetensors or a PyTorch file", "save the network's state_dict()"
WRAPPED = ("state_dict_ema", "model_ema", "state_dict", "model")  # where checkpoints of trainings hold the weights
CLASSIFIERS = ("fc", "_fc", "head", "heads", "classifier")  # layers that have no place in an encoder
HF_FILES = ("model.safetensors", "pytorch_model.bin")  # as timm looks for them, in this order


def read_input(name: str, configuration: Any) -> Input:
    """Returns the input of a configuration: ``input_size`` (C, H, W), ``mean`` and ``std``; what it leaves out is ImageNet's.

    Raises:
        ValueError: The configuration, a mapping or an object, holds something else than numbers.
    """

    def entry(key: str, default: tuple[Any, ...]) -> tuple[Any, ...]:
        value = configuration.get(key) if isinstance(configuration, Mapping) else getattr(configuration, key, None)
        return default if value is None else tuple(value)

    try:
        _, height, width = (int(n) for n in entry("input_size", (3, SIZE, SIZE)))
        mean, std = (tuple(float(x) for x in entry(key, default)) for key, default in (("mean", MEAN), ("std", STD)))
    except (TypeError, ValueError):
        expected = f"expected the configuration of encoder '{name}' to have input_size (C, H, W), mean and std as numbers"
        raise ValueError(f"{expected}, found {shown(configuration)}; correct its default_cfg") from None
    return Input(min(height, width), mean, std)


def read_weights(file: Path) -> dict[str, Tensor]:
    """Returns the tensors of a ``.safetensors`` file, or of a PyTorch file, by name; runs no code of the file's.

    Of a checkpoint that holds the weights under ``state_dict`` or ``model`` these are returned; a prefix ``module.`` or
    ``model.`` of all names is removed.

    Args:
        file: The file.

    Raises:
        ValueError: The file is missing, damaged, or holds something else than tensors by name, or values that are not finite.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    expect(file.is_file(), f"a file of weights at {file}", "no such file", ADVICE)
    try:
        raw = _unwrapped(load_file(file) if file.suffix == ".safetensors" else read_pytorch(file))
    except pickle.UnpicklingError:  # torch's own message says how to run the code
        raise ValueError(f"{file} holds something else than tensors, which is not loaded; {SAVE}") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be read as weights: {shortened(error)}; {ADVICE}") from None
    by_name = isinstance(raw, dict) and raw and all(isinstance(name, str) for name in raw)
    expect(by_name, f"tensors by name in {file}", type(raw).__name__, SAVE)
    for name, value in raw.items():
        expect(isinstance(value, Tensor), f"tensors in {file}", f"{type(value).__name__} in {name}", SAVE)
        finite = not value.is_floating_point() or value.isfinite().all()
        expect(finite, f"finite weights in {file}", f"NaN or infinity in {name}", "save them again")
    return dict(raw)


def _unwrapped(raw: Any) -> Any:
    """Returns what a checkpoint holds under the usual keys, without a prefix that all names have."""
    while isinstance(raw, dict) and (key := next((key for key in WRAPPED if isinstance(raw.get(key), dict)), None)):
        raw = raw[key]
    for prefix in ("module.", "model."):
        if isinstance(raw, dict) and raw and all(isinstance(name, str) and name.startswith(prefix) for name in raw):
            raw = {name[len(prefix) :]: value for name, value in raw.items()}
    return raw


def load_weights(net: nn.Module, weights: Mapping[str, Tensor], where: str) -> tuple[str, ...]:
    """Puts weights into a network; every tensor of the network has to be there.

    A classifier that the network does not have is left out, and step counters of BatchNorm may be missing.

    Args:
        net: The network; changed in place.
        weights: Tensors by name.
        where: What holds them, for the error.

    Returns:
        Names of the tensors that were left out.

    Raises:
        ValueError: Tensors are missing, of another shape, or have no place; the error names the first of them.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3))
        >>> load_weights(net, {**nn.Sequential(nn.Linear(2, 3)).state_dict(), "fc.weight": torch.zeros(9, 3)}, "x.pth")
        ('fc.weight',)
        >>> load_weights(net, {"0.weight": torch.zeros(3, 4)}, "x.pth")
        Traceback (most recent call last):
        ValueError: expected the encoder's weights in x.pth, found 1 missing: 0.bias; 1 of another shape: 0.weight (3, 4) instead
        of (3, 2); give the encoder that the file was made for
    """
    wanted = net.state_dict()
    extra = [name for name in weights if name not in wanted]
    both = [name for name in wanted if name in weights]
    bad = {
        "missing": [name for name in wanted if name not in weights and not name.endswith("num_batches_tracked")],
        "of another shape": [
            f"{name} {tuple(weights[name].shape)} instead of {tuple(wanted[name].shape)}"
            for name in both
            if wanted[name].shape != weights[name].shape
        ],
        "unexpected": [name for name in extra if name.split(".")[0] not in CLASSIFIERS],
    }
    words = "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in bad.items() if names)
    is_run = any(name.startswith("encoder.") for name in extra)
    hint = "start from a run with --init RUN" if is_run else "give the encoder that the file was made for"
    expect(not words, f"the encoder's weights in {where}", words, hint)
    net.load_state_dict({name: weights.get(name, wanted[name]) for name in wanted})
    return tuple(extra)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")


def timm_tag(name: str) -> str:
    """Returns timm's name of a model with the tag of its weights, the default one's where the name has none.

    Example:
        >>> timm_tag("resnet10t")
        'resnet10t.c3_in1k'
    """
    configuration = require_timm(name).get_pretrained_cfg(name)
    return name if "." in name or configuration is None or not configuration.tag else f"{name}.{configuration.tag}"


def timm_file(name: str) -> Path:
    """Returns the file with timm's weights of a name in timm's own cache; downloads it where it is not there yet.

    Args:
        name: timm's name, with or without a tag.

    Raises:
        ValueError: timm has no weights for the name, or they are not in the cache and the server does not answer.
    """
    timm = require_timm(name)
    configuration = timm.get_pretrained_cfg(name)
    listed = configuration is not None and timm.is_model_pretrained(name) and (configuration.hf_hub_id or configuration.url)
    near = "" if listed else did_you_mean(name, timm.list_pretrained()) or "timm.list_pretrained() lists the names"
    expect(listed, "a name of timm with pretrained weights", shown(name), f"{near}, or leave --pretrained out")
    try:
        return _from_hub(configuration) if configuration.hf_hub_id else _from_url(str(configuration.url))
    except (OSError, RuntimeError, ValueError) as error:
        advice = "connect to the network, or use --weights FILE"
        raise ValueError(f"cannot load timm's weights of '{name}', not in its cache: {shortened(error)}; {advice}") from None


def _from_hub(configuration: Any) -> Path:
    """Returns a configuration's file from the cache of the Hugging Face Hub, or else from the Hub."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    repository, _, revision = configuration.hf_hub_id.partition("@")
    names = (configuration.hf_hub_filename,) if configuration.hf_hub_filename else HF_FILES
    for local, file in itertools.product((True, False), names):
        if not local and not constants.HF_HUB_OFFLINE:
            _require_answer(f"{constants.ENDPOINT}/{repository}")
        try:
            return Path(hf_hub_download(repository, file, revision=revision or None, local_files_only=local))
        except EntryNotFoundError as error:
            reason = error
    raise reason


def _from_url(url: str) -> Path:
    """Returns the file of a URL from torch's cache, or else from its server."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not file.is_file():
        _require_answer(url)
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(file), progress=False)
    return file


def _require_answer(url: str) -> None:
    """Raises an OSError unless a server answers at all; the clients of the Hub try again for minutes."""
    with contextlib.suppress(urllib.error.HTTPError):  # an answer
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
