"""Weights that an encoder starts from, of a file (`vergence.images.timm_models` has those of timm).

Reading weights runs no code: files are safetensors, or PyTorch files read with ``weights_only=True``.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vergence.utils.checks import expect, shortened
from vergence.utils.files import read_pytorch

__all__ = ["load_weights", "read_weights"]

NAMED = 3  # keys in a message
ADVICE, SAVE = "give a .safetensors or a PyTorch file", "save the network's state_dict()"
WRAPPED = ("state_dict_ema", "model_ema", "state_dict", "model")  # where checkpoints of trainings hold the weights
CLASSIFIERS = ("fc", "_fc", "head", "heads", "classifier")  # layers that have no place in an encoder


def read_weights(file: Path) -> dict[str, Tensor]:
    """Returns the tensors of a ``.safetensors`` file, or of a PyTorch file, by name; runs no code of the file's.

    Of a checkpoint that holds the weights under ``state_dict`` or ``model`` these are returned; a prefix ``module.`` or
    ``model.`` of all names is removed.
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
    """Returns what a checkpoint holds under the common keys, without a prefix that all names have."""
    while isinstance(raw, dict) and (key := next((key for key in WRAPPED if isinstance(raw.get(key), dict)), None)):
        raw = raw[key]
    for prefix in ("module.", "model."):
        if isinstance(raw, dict) and raw and all(isinstance(name, str) and name.startswith(prefix) for name in raw):
            raw = {name[len(prefix) :]: value for name, value in raw.items()}
    return raw


def load_weights(net: nn.Module, weights: Mapping[str, Tensor], where: str) -> tuple[str, ...]:
    """Puts weights by name into a network, in place; every tensor of the network has to be there.

    A classifier that the network does not have is left out, and step counters of BatchNorm may be missing. Returns the names of
    the tensors that were left out; an error says ``where`` the weights come from.

    Example:
        >>> import torch
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
    bad = {
        "missing": [name for name in wanted if name not in weights and not name.endswith("num_batches_tracked")],
        "of another shape": [
            f"{name} {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
            for name, tensor in wanted.items()
            if name in weights and tensor.shape != weights[name].shape
        ],
        "unexpected": [name for name in extra if name.split(".")[0] not in CLASSIFIERS],
    }
    some = {what: ", ".join(names[:NAMED]) + ", ..." * (len(names) > NAMED) for what, names in bad.items()}
    words = "; ".join(f"{len(names)} {what}: {some[what]}" for what, names in bad.items() if names)
    is_run = any(name.startswith("encoder.") for name in extra)
    hint = "start from a run with `init=RUN`" if is_run else "give the encoder that the file was made for"
    expect(not words, f"the encoder's weights in {where}", words, hint)
    net.load_state_dict({name: weights.get(name, wanted[name]) for name in wanted})
    return tuple(extra)
