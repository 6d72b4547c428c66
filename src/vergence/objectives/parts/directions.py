"""The directions of losses that predict one view's embedding from the other's, and the packages that losses come from."""

import importlib
import importlib.util
from typing import Any

from torch import Tensor

__all__ = ["directions", "lightly_module", "require_package"]


def directions(za: Tensor, zb: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns the pairs (query, target) of a loss, each (B, D): a -> b and b -> a; targets get no gradient.

    A teacher's embeddings are targets alone: where one of the two has no gradient, only the other is a query. So with a teacher,
    whose method calls an objective with (student a, teacher b) and (student b, teacher a), each call has one direction.

    Example:
        >>> import torch
        >>> za, zb = torch.zeros(4, 2, requires_grad=True), torch.ones(4, 2)
        >>> len(directions(za, zb)), len(directions(zb, za)), len(directions(za, za)), len(directions(zb, zb))
        (1, 1, 2, 2)
    """
    both = [(za, zb.detach()), (zb, za.detach())]
    return [pair for pair in both if pair[0].requires_grad] or both


def require_package(kind: str, package: str | None) -> None:
    """Raises a ValueError unless the package that an objective's loss comes from is installed; imports nothing.

    Args:
        kind: The objective's name, for the message.
        package: Name of the package; None for none.
    """
    if package is not None and importlib.util.find_spec(package) is None:
        raise ValueError(f"objective '{kind}' needs {package}: pip install 'vergence[baselines]'")


def lightly_module(kind: str, name: str) -> Any:
    """Returns the module ``lightly.loss.NAME``; importing it takes some seconds, so only losses that are computed do.

    Raises:
        ValueError: lightly is not installed, or too old.
    """
    require_package(kind, "lightly")
    try:
        return importlib.import_module(f"lightly.loss.{name}")
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"objective '{kind}' needs lightly 1.6 or newer ({reason}): pip install 'vergence[baselines]'") from None
