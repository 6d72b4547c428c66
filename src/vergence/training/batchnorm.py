"""Batch normalization over all processes, so that N processes normalize as one with the whole batch."""

import itertools
from typing import TypeVar

import torch
from torch import Tensor, nn

from vergence.objectives.core import Objective
from vergence.utils.linalg import upcast_half

__all__ = ["with_global_batch_norm"]

M = TypeVar("M", bound=nn.Module)


def with_global_batch_norm(module: M, *, on_gpu: bool) -> M:
    """Makes every batch normalization see all processes' items, in place; torch's own needs a GPU.

    Those of an objective stay as they are: it gets all processes' embeddings.
    """
    gathered = {part for outer in module.modules() if isinstance(outer, Objective) for part in outer.modules()}
    for parent in [part for part in module.modules() if part not in gathered]:
        for name, child in parent.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                new = nn.SyncBatchNorm.convert_sync_batchnorm(child) if on_gpu else _GlobalBatchNorm.of(child)
                setattr(parent, name, new)
    return module


class _GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization with the mean and variance of all processes' items, on any device."""

    @classmethod
    def of(cls, norm: nn.modules.batchnorm._BatchNorm) -> "_GlobalBatchNorm":
        new = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        new.load_state_dict(norm.state_dict())
        for own, theirs in zip(new.parameters(), norm.parameters(), strict=True):
            own.requires_grad_(theirs.requires_grad)  # a teacher's have no gradient
        return new.to(next(itertools.chain(norm.parameters(), norm.buffers())).dtype).train(norm.training)

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim >= 2

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        from torch.distributed.nn.functional import all_reduce

        dims = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        y = upcast_half(x)
        n = y.numel() // y.shape[1] * torch.distributed.get_world_size()
        mean = all_reduce(y.sum(dims)) / n
        centered = y - mean.view(shape)
        var = all_reduce(centered.square().sum(dims)) / n
        with torch.no_grad():
            if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.detach(), rate)
                self.running_var.lerp_(var.detach() * n / (n - 1), rate)
        normal: Tensor = centered * torch.rsqrt(var + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(x.dtype)
