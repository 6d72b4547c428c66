"""timm's networks by name: what they expect of their input, their weights in a cache, and the network itself.

torch is imported where a network is built, so that descriptions of encoders stay light.
"""

import contextlib
import itertools
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vergence.utils.checks import did_you_mean, expect, refuse, shortened, shown

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Input", "read_input", "require_timm", "timm_file", "timm_model", "timm_tag"]

SIZE, MEAN, STD = 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of networks trained on ImageNet
PATIENCE = 10.0  # seconds until a server has to answer
HF_FILES = ("model.safetensors", "pytorch_model.bin")  # as timm tries them, in this order


@dataclass(frozen=True)
class Input:
    """What a network expects of its input."""

    size: int | None = SIZE  # side of the square images, in pixels; None where nothing is known
    mean: tuple[float, ...] = MEAN  # mean per channel of images in [0, 1]
    std: tuple[float, ...] = STD  # standard deviation per channel


def read_input(name: str, configuration: Any) -> Input:
    """Returns the input of a configuration: ``input_size`` (C, H, W), ``mean`` and ``std``; what it leaves out is ImageNet's."""

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


def require_timm(name: str) -> Any:
    """Returns the module timm, where it is installed and has the model ``name``."""
    try:
        import timm
    except ImportError:
        raise ValueError("encoder 'timm:...' needs timm: pip install timm, or pip install 'vergence[pretrained]'") from None
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models()) or "timm.list_models() lists the names"
        refuse("a model of timm", shown(name), hint)
    return timm


def timm_model(
    name: str, channels: int, size: int, weights: Path | None = None, settings: Mapping[str, Any] | None = None
) -> "nn.Module":
    """Returns timm's model with pooled features and random weights, whatever the tag in its name, or those of a file.

    Only names of timm's own registry: nothing is downloaded, and names of the Hugging Face Hub or of folders are refused.
    Vision and Swin transformers use ``size``, the side of the input images in pixels. ``weights`` is a file of timm's own,
    which timm converts for this input; ``settings`` are those of a transformer by timm's names.
    """
    timm, given = require_timm(name), dict(settings or {})
    given |= {"img_size": size} if "vit" in name or "swin" in name else {}
    given |= {"fc_norm": False} if given.get("global_pool") == "avg" else {}  # the tokens are normalized instead
    if weights is not None:
        given["pretrained_cfg_overlay"] = {"file": str(weights), "custom_load": weights.suffix == ".npz"}
    try:
        model: nn.Module = timm.create_model(name, weights is not None, num_classes=0, in_chans=channels, **given)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise ValueError(f"timm cannot build '{name}' for {channels} channels: {shortened(error)}") from None
    return model


def timm_tag(name: str) -> str:
    """Returns timm's name of a model with the tag of its weights, the default one's where the name has none.

    Example:
        >>> timm_tag("resnet10t")
        'resnet10t.c3_in1k'
    """
    configuration = require_timm(name).get_pretrained_cfg(name)
    return name if "." in name or configuration is None or not configuration.tag else f"{name}.{configuration.tag}"


def timm_file(name: str) -> Path:
    """Returns the file with timm's weights of a name, tag or not, in timm's own cache; downloads it where it is not there yet."""
    timm = require_timm(name)
    configuration = timm.get_pretrained_cfg(name)
    listed = configuration is not None and timm.is_model_pretrained(name) and (configuration.hf_hub_id or configuration.url)
    near = "" if listed else did_you_mean(name, timm.list_pretrained()) or "timm.list_pretrained() lists the names"
    expect(listed, "a name of timm with pretrained weights", shown(name), f"{near}, or leave `pretrained` out")
    try:
        return _from_hub(configuration) if configuration.hf_hub_id else _from_url(str(configuration.url))
    except (OSError, RuntimeError, ValueError) as error:
        advice = "connect to the network, or use `weights=FILE`"
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
    import torch

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
