"""Several processes of ``torch.distributed``, or one."""

import torch

__all__ = ["rank_and_size", "several"]


def rank_and_size() -> tuple[int, int]:
    """Returns this process's rank and the number of processes; (0, 1) where there is one.

    Example:
        >>> rank_and_size()
        (0, 1)
    """
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if ready else (0, 1)


def several() -> bool:
    """Returns whether several processes share the work.

    Example:
        >>> several()
        False
    """
    return rank_and_size()[1] > 1
