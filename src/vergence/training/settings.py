"""Every setting of a training as typed keywords, so that editors complete them and mypy checks them.

`vergence.training.config` and `vergence.data.config` say what each means; a test compares names and types.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from vergence.encoders.config import Encoder

if TYPE_CHECKING:
    from torch import nn

    from vergence.objectives.core import Objective

__all__ = ["Settings"]

Network = Union[str, Encoder, "nn.Module", "Callable[[], nn.Module]"]


class Settings(TypedDict, total=False):
    """Settings of `vergence.train`: of the data, of their views, of the model, of the fit."""

    root: str | Path | None
    download: bool
    size: int | None
    holdout: float
    calibration_share: float
    keep_classes: tuple[int, ...] | None
    limit: int | None
    strict: bool

    crop: tuple[float, float]
    flip: float
    jitter: tuple[float, float, float, float]
    jitter_p: float
    grayscale: float
    blur: float
    blur_sigma: tuple[float, float]
    solarize: float
    noise: float
    mask: float
    scale: float

    encoder: Network
    objective: Union[str, "Objective", "type[Objective]"]
    method: str | None
    options: Mapping[str, Any]
    projector: tuple[int, ...]
    projector_norm: Literal["layer", "batch", "batch_last"]
    teacher: float | bool | None
    teacher_schedule: Literal["constant", "cosine"] | None
    target_encoder: Network | None
    distill: str | Encoder | None
    pretrained: bool
    weights: str | Path | None
    init: str | Path | None
    freeze: bool
    input_mean: tuple[float, ...] | None
    input_std: tuple[float, ...] | None

    epochs: int
    distill_epochs: int | None
    batch_size: int
    optimizer: Literal["sgd", "adamw", "lars"]
    betas: tuple[float, float]
    trust: float
    trust_clip: bool
    lr: float
    encoder_lr: float
    weight_decay: float
    warmup_epochs: float
    clip: float | None
    precision: Literal["auto", "fp32", "bf16", "fp64"]
    device: Literal["auto", "cpu", "cuda"]
    devices: int
    nodes: int
    workers: int
    seed: int
    knn_every: int
    checkpoint_seconds: float
    threads: int | None
