"""Where to compute, by name."""

import torch

__all__ = ["as_device", "described"]


def as_device(name: str) -> torch.device:
    """Returns a device that is there; of ``auto``, a GPU if there is one.

    Raises:
        ValueError: torch knows no such device, or finds none.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"expected a device such as cpu or cuda, found '{name}'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device '{name}' was asked for, but torch finds no CUDA device; use cpu")
    return device


def described(device: torch.device) -> str:
    """Returns what computes, in words for a ledger.

    Example:
        >>> described(torch.device("cpu")).startswith("cpu, ")
        True
    """
    return torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
