"""Optimizers and the learning rate's schedule."""

import math
from typing import Any

import torch
from torch import Tensor

from vergence.learn.methods.core import Method
from vergence.learn.training.config import FitConfig
from vergence.utils.checks import is_count

__all__ = ["build_optimizer", "learning_rate", "load_optimizer", "require_optimizer", "set_learning_rate"]

ENCODERS = ("encoder.", "target_encoder.", "student.")  # parts of methods
# What each optimizer remembers of a parameter.
STATE = {"sgd": {"momentum_buffer"}, "lars": {"momentum_buffer"}, "adamw": {"step", "exp_avg", "exp_avg_sq"}}


def learning_rate(config: FitConfig, step: int, steps_per_epoch: int) -> float:
    """Returns the rate at ``step``: linear warm-up to ``config.lr``, then a cosine to zero."""
    total, warmup = config.epochs * steps_per_epoch, config.warmup_epochs * steps_per_epoch
    if step < warmup:
        return config.lr * min(1.0, (step + 1) / warmup)
    return config.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))


def require_optimizer(config: FitConfig) -> None:
    """Raises a ValueError where the optimizer's package is missing, before the data is read."""
    if config.optimizer == "lars":
        _lars()


def _lars() -> Any:
    try:
        from timm.optim import Lars
    except ImportError:
        raise ValueError("optimizer 'lars' needs timm: pip install timm, or pip install 'vergence[pretrained]'") from None
    return Lars


def load_optimizer(optimizer: Any, state: dict[str, Any], config: FitConfig) -> None:
    """Loads what an optimizer's `state_dict` returned; the settings stay those of ``config``."""
    settings = optimizer.state_dict()["param_groups"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if [group["params"] for group in state["param_groups"]] != [group["params"] for group in settings]:
        raise ValueError(f"expected the optimizer's state of {len(parameters)} parameters, found another number")
    for i, kept in state["state"].items():
        if not is_count(i, 0) or i >= len(parameters):
            raise ValueError(f"expected the optimizer's state of {len(parameters)} parameters, found one of parameter {i!r}")
        if set(kept) != STATE[config.optimizer]:
            raise ValueError(f"expected the state of optimizer '{config.optimizer}', found {', '.join(map(str, kept))}")
        for name, value in kept.items():
            shape = torch.Size() if name == "step" else parameters[i].shape
            if not isinstance(value, Tensor) or value.shape != shape or not value.is_floating_point():
                found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"expected the optimizer's {name} of shape {tuple(shape)}, found {found}")
    optimizer.load_state_dict({"state": state["state"], "param_groups": settings})


def build_optimizer(config: FitConfig, method: Method) -> torch.optim.Optimizer:
    """Returns the optimizer over a method's parameters that require a gradient; `set_learning_rate` sets its rate.

    With ``config.encoder_lr`` other than 1 there are two groups: the encoders' parameters, and those of projectors and objective.
    Parameters that are frozen now are a group of their own, since fused optimizers step all of a group or none. LARS (You et al.,
    2017, arXiv:1708.03888) takes g <- eta |w| / (|g| + wd |w|) (g + wd w) for weights w of two or more dimensions; biases and
    normalization layers, groups of their own, take plain SGD without decay. With ``trust_clip`` a layer's rate is the smaller one
    of that factor and lr, as in solo-learn (LARC), instead of their product.
    """
    frozen = {id(p) for p in method.frozen()}
    parts: dict[tuple[bool, bool], list[Tensor]] = {}
    for name, p in method.named_parameters():
        if p.requires_grad:
            parts.setdefault((id(p) in frozen, config.encoder_lr == 1 or not name.startswith(ENCODERS)), []).append(p)
    scales = {False: config.encoder_lr, True: 1.0}
    groups: list[dict[str, Any]] = [{"params": part, "scale": scales[key[1]]} for key, part in sorted(parts.items())]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True)
    if config.optimizer == "lars":
        plain = [g | {"params": [p for p in g["params"] if p.ndim < 2], "weight_decay": 0.0} for g in groups]
        adapted = [g | {"params": [p for p in g["params"] if p.ndim > 1], "always_adapt": True} for g in groups]
        groups = [g for g in [*adapted, *plain] if g["params"]]
        trust: dict[str, Any] = {"trust_coeff": config.trust, "trust_clip": config.trust_clip}
        optimizer: torch.optim.Optimizer = _lars()(groups, lr=config.lr, momentum=0.9, weight_decay=config.weight_decay, **trust)
        return optimizer
    return torch.optim.SGD(groups, lr=config.lr, momentum=0.9, weight_decay=config.weight_decay, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets each group's learning rate to ``rate`` times the group's scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]
