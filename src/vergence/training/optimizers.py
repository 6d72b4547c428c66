"""Optimizers and the learning rate's schedule."""

import math
from collections.abc import Iterator

import torch
from torch import nn

from vergence.training.config import FitConfig

__all__ = ["LARS", "build_optimizer", "learning_rate"]


def learning_rate(config: FitConfig, step: int, steps_per_epoch: int) -> float:
    """Returns the rate at ``step``: linear warm-up to ``config.lr``, then a cosine to zero.

    Example:
        >>> config = FitConfig(epochs=10, lr=1.0, warmup_epochs=1)
        >>> [round(learning_rate(config, step, 4), 2) for step in (0, 3, 4, 22, 39)]
        [0.25, 1.0, 1.0, 0.5, 0.0]
    """
    total, warmup = config.epochs * steps_per_epoch, config.warmup_epochs * steps_per_epoch
    if step < warmup:
        return config.lr * (step + 1) / warmup
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))


class LARS(torch.optim.SGD):
    """SGD with layer-wise adaptive rates (You et al., 2017), arXiv:1708.03888.

    g <- eta |w| / |g + wd w| (g + wd w) for every weight of two or more dimensions; biases and normalization layers
    take plain SGD without decay. As in the released code of SimCLR and VICReg, eta = 0.001.
    """

    eta = 0.001

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Rescales the gradients, then takes SGD's step."""
        decay = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None and w.ndim > 1:
                    w.grad.add_(w, alpha=group["weight_decay"])
                    norm_w, norm_g = w.norm(), w.grad.norm()
                    trust = torch.where((norm_w > 0) & (norm_g > 0), self.eta * norm_w / norm_g, 1.0)
                    w.grad.mul_(trust)
            group["weight_decay"] = 0.0
        super().step(closure)
        for group, value in zip(self.param_groups, decay, strict=True):
            group["weight_decay"] = value


def build_optimizer(config: FitConfig, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns the optimizer over the parameters that require a gradient."""
    trained = [p for p in parameters if p.requires_grad]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=config.lr, weight_decay=config.weight_decay, fused=True)
    if config.optimizer == "lars":
        return LARS(trained, lr=config.lr, momentum=0.9, weight_decay=config.weight_decay)
    return torch.optim.SGD(trained, lr=config.lr, momentum=0.9, weight_decay=config.weight_decay, fused=True)
