"""Weights that an encoder starts from: timm's of its name, or a file's; and the input that such a network expects.

Reading weights runs no code: files are safetensors, or PyTorch files read with ``weights_only=True``.
"""

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
from vergence.utils.names import did_you_mean, quoted
from vergence.utils.outside import read_pytorch

__all__ = ["load_weights", "read_input", "read_weights", "timm_file", "timm_tag"]

PATIENCE = 10.0  # seconds until a server has to answer
NAMED = 3  # keys in a message
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
        raise ValueError(
            f"expected the configuration of encoder '{name}' to have input_size (C, H, W), mean and std as numbers, found "
            f"{str(configuration)[:100]}; correct its default_cfg"
        ) from None
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

    if not file.is_file():
        raise ValueError(f"expected a file of weights at {file}, found no such file; give a .safetensors or a PyTorch file")
    errors = (OSError, EOFError, RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)
    try:
        raw = load_file(file) if file.suffix == ".safetensors" else read_pytorch(file)
    except pickle.UnpicklingError:  # torch's own message says how to run the code
        raise ValueError(
            f"{file} holds something else than tensors, which is not loaded; save the network's state_dict()"
        ) from None
    except (*errors, ArithmeticError, SafetensorError) as error:
        raise ValueError(
            f"{file} cannot be read as weights: {_first_line(error)}; give a .safetensors or a PyTorch file"
        ) from None
    return _checked(_unwrapped(raw), file)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    kind = f"{type(error).__name__} " if isinstance(error, LookupError) else ""  # whose text is only a key
    return kind + lines[0][:200] if lines else type(error).__name__


def _unwrapped(raw: Any) -> Any:
    """Returns what a checkpoint holds under the usual keys, without a prefix that all names have."""
    while isinstance(raw, dict) and (key := next((key for key in WRAPPED if isinstance(raw.get(key), dict)), None)):
        raw = raw[key]
    for prefix in ("module.", "model."):
        if isinstance(raw, dict) and raw and all(isinstance(name, str) and name.startswith(prefix) for name in raw):
            raw = {name[len(prefix) :]: value for name, value in raw.items()}
    return raw


def _checked(raw: Any, file: Path) -> dict[str, Tensor]:
    if not isinstance(raw, dict) or not raw or not all(isinstance(name, str) for name in raw):
        raise ValueError(f"expected tensors by name in {file}, found {type(raw).__name__}; save the network's state_dict()")
    for name, value in raw.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"expected tensors in {file}, found {type(value).__name__} in {name}; save the network's state_dict()"
            )
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"expected finite weights in {file}, found NaN or infinity in {name}; save them again")
    return raw


def load_weights(net: nn.Module, found: Mapping[str, Tensor], where: str) -> tuple[str, ...]:
    """Puts weights into a network; every tensor of the network has to be there.

    A classifier that the network does not have is left out, and step counters of BatchNorm may be missing.

    Args:
        net: The network; changed in place.
        found: Tensors by name.
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
    missing = [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")]
    shapes = [name for name in wanted if name in found and wanted[name].shape != found[name].shape]
    extra = [name for name in found if name not in wanted]
    without_place = [name for name in extra if name.split(".")[0] not in CLASSIFIERS]
    if missing or shapes or without_place:
        described = [f"{name} {tuple(found[name].shape)} instead of {tuple(wanted[name].shape)}" for name in shapes]
        lists = {"missing": missing, "of another shape": described, "unexpected": without_place}
        words = "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in lists.items() if names)
        run = any(name.startswith("encoder.") for name in extra)
        hint = "start from a run with --init RUN" if run else "give the encoder that the file was made for"
        raise ValueError(f"expected the encoder's weights in {where}, found {words}; {hint}")
    net.load_state_dict({name: found.get(name, wanted[name]) for name in wanted})
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
    if configuration is None or not timm.is_model_pretrained(name) or not (configuration.hf_hub_id or configuration.url):
        near = did_you_mean(name, timm.list_pretrained()) or "timm.list_pretrained() lists the names"
        found = f"found {quoted(name)}; {near}, or leave --pretrained out"
        raise ValueError(f"expected a name of timm with pretrained weights, {found}")
    try:
        file = _cached(configuration)
        if file is None:
            _require_answer(configuration)
            timm.create_model(name, pretrained=True)  # fills the cache
            file = _cached(configuration)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot load timm's weights of '{name}': {_first_line(error)}") from None
    if file is None:
        raise ValueError(f"expected timm's weights of '{name}' in its cache after the download, found none; use --weights FILE")
    return file


def _cached(configuration: Any) -> Path | None:
    """Returns the file of a configuration's weights in the cache of the Hugging Face Hub or of torch.hub; None for none."""
    if configuration.hf_hub_id:
        from huggingface_hub import try_to_load_from_cache

        repository, _, revision = configuration.hf_hub_id.partition("@")
        names = (configuration.hf_hub_filename,) if configuration.hf_hub_filename else HF_FILES
        found = (try_to_load_from_cache(repository, one, revision=revision or None) for one in names)
        return next((Path(path) for path in found if isinstance(path, str)), None)
    file = Path(torch.hub.get_dir()) / "checkpoints" / str(configuration.url).rpartition("/")[2]
    return file if file.is_file() else None


def _require_answer(configuration: Any) -> None:
    """Raises a ValueError unless the server that has a configuration's weights answers at all; clients retry for minutes."""
    url = configuration.url
    if configuration.hf_hub_id:
        from huggingface_hub import constants

        url = f"{constants.ENDPOINT}/{configuration.hf_hub_id.partition('@')[0]}"
        if constants.HF_HUB_OFFLINE:
            raise ValueError("they are not in its cache, and HF_HUB_OFFLINE is set; unset it, or use --weights FILE")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE):
            pass
    except urllib.error.HTTPError:
        pass  # an answer: what it means is for timm to say
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"they are not in its cache, and {url.split('/')[2]} does not answer ({reason}); connect to the network, or use "
            "--weights FILE"
        ) from None
