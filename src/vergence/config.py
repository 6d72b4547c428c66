"""What a run is: plain dataclasses, so that the command line answers without loading torch.

Everything that decides a result is here and is written to the run folder's ``config.json``.
"""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["DataConfig", "FitConfig", "ModelConfig", "RunConfig", "ViewConfig"]


class _Checked:
    """Refuses a field whose value is not of its type, or is below its least one."""

    least: typing.ClassVar[dict[str, float]] = {}

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self)).items():
            if name == "least":
                continue
            value = getattr(self, name)
            if not _fits(value, hint):
                raise ValueError(f"expected {name} to be {_spoken(hint)}, found {value!r}")
            if name in self.least and value is not None and not value >= self.least[name]:
                raise ValueError(f"expected {name} of at least {self.least[name]:g}, found {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, part) for part in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        parts = inner[:1] * len(value) if isinstance(value, tuple) and inner[-1] is Ellipsis else inner
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _spoken(hint: Any) -> str:
    """Returns a type as people say it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_spoken(part) for part in inner)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin is tuple:
        return "numbers (a, b, ...)" if inner[-1] is Ellipsis else f"{len(inner)} numbers ({', '.join('abcd'[: len(inner)])})"
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "True or False",
        type(None): "None",
        dict: "a dictionary",
    }
    return names.get(origin or hint, str(hint))


@dataclass(frozen=True, kw_only=True)
class DataConfig(_Checked):
    """Which data, and how it is read.

    Attributes:
        source: A built-in name (``digits``, ``mnist``, ...), or a path to a folder of images, a ``.npy`` or a ``.npz`` file.
        root: Folder that holds torchvision's data sets.
        download: Whether torchvision may download what is missing.
        size: Side of the square images that the encoder sees, in pixels; ``None`` keeps an array's own (64 for folders).
        holdout: Share of the items held out for evaluation where the source has no test part, in (0, 1).
        keep_classes: Train on these labels only; the others become the anomalies of the evaluation.
        limit: Train on at most so many items, drawn with a fixed seed.
        strict: Refuse unreadable images instead of skipping and listing them.
    """

    least: typing.ClassVar[dict[str, float]] = {"size": 1, "limit": 2}

    source: str
    root: str | None = None
    download: bool = False
    size: int | None = None
    holdout: float = 0.2
    keep_classes: tuple[int, ...] | None = None
    limit: int | None = None
    strict: bool = False


@dataclass(frozen=True, kw_only=True)
class ViewConfig(_Checked):
    """Strengths of the random views; the defaults are MoCo v2's for images.

    Attributes:
        crop: Range of the area of the random resized crop, as shares of the image.
        flip: Probability of a horizontal flip.
        jitter: Strengths of brightness, contrast, saturation and hue.
        jitter_p: Probability of the colour jitter.
        greyscale: Probability of greyscale (colour images only).
        blur: Probability of Gaussian blur.
        blur_sigma: Range of the blur's standard deviation, in pixels.
        solarise: Probability of solarisation (threshold 0.5).
        noise: Vectors: standard deviation of additive Gaussian noise, in units of the data's standard deviation.
        mask: Vectors: probability that a feature is replaced by its mean.
        scale: Vectors: standard deviation of the log of a per-sample factor.
    """

    crop: tuple[float, float] = (0.2, 1.0)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_p: float = 0.8
    greyscale: float = 0.2
    blur: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarise: float = 0.0
    noise: float = 0.3
    mask: float = 0.2
    scale: float = 0.1


@dataclass(frozen=True, kw_only=True)
class ModelConfig(_Checked):
    """Which encoder and which objective.

    Attributes:
        encoder: ``small``, ``resnet18``, ``resnet50``, ``mlp`` or ``timm:NAME``; ``-imagenet`` or ``-cifar`` may follow a
            ResNet's name to choose its stem (by image size otherwise).
        objective: A name from ``vergence.objectives.names()``, or ``package.module:Class``.
        options: Keyword arguments of the objective.
        projector: Widths of a projection head after the encoder; empty for none. A second encoder gets a head of its own.
        teacher: Momentum in [0, 1) of an exponential-moving-average teacher that embeds the targets; ``None`` for the
            objective's own (most have none), ``False`` for no teacher whatever the objective.
        target_encoder: Encoder of the second view, by name: two encoders even for views of one shape (dual encoders), and for
            objectives with an option ``tied`` two networks, ``tied=False``, unless the options say otherwise. ``None`` shares
            the first where both views are of one shape; where they are not, a second one of the same name is built, or
            ``mlp`` where that name cannot take the shape. Without a projector, a second encoder of another width is followed
            by a linear map to the first one's.
    """

    encoder: str = "small"
    objective: str = "vje"
    options: dict[str, Any] = field(default_factory=dict)
    projector: tuple[int, ...] = ()
    teacher: float | bool | None = None
    target_encoder: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.projector, default=1) < 1:
            raise ValueError(f"expected projector widths of at least 1, found {self.projector}")
        if self.teacher is True:
            raise ValueError("expected teacher to be a momentum such as 0.99, False or None, found True")


@dataclass(frozen=True, kw_only=True)
class FitConfig(_Checked):
    """How the parameters are found.

    Attributes:
        epochs: Passes over the training items.
        batch_size: Pairs in a step, over all processes together.
        optimizer: ``sgd`` (momentum 0.9), ``adamw`` or ``lars``.
        lr: Peak learning rate; not rescaled with the batch size.
        weight_decay: Decoupled for ``adamw``, added to the gradient for ``sgd`` and ``lars``.
        warmup_epochs: Epochs of linear warm-up before the cosine decay to zero.
        clip: Largest gradient norm; ``None`` for no clipping.
        precision: ``auto`` takes bfloat16 autocast where the hardware has it; ``fp32``, ``bf16``, ``fp64`` force it.
        device: ``auto``, ``cpu`` or ``cuda``.
        devices: Processes, one a device.
        nodes: Machines.
        workers: Processes that decode images of folders that do not fit into memory.
        seed: Seed of the initialisation, the order of the data, the views and the samples.
        knn_every: Epochs between online kNN checks on at most 10,000 items; 0 for none.
        checkpoint_seconds: Least time between two checkpoints, in seconds.
        strict: Stop the run when the embedding collapses.
    """

    least: typing.ClassVar[dict[str, float]] = {
        **dict.fromkeys(("epochs", "batch_size", "devices", "nodes"), 1),
        **dict.fromkeys(("lr", "weight_decay", "warmup_epochs", "clip", "workers", "seed", "knn_every", "checkpoint_seconds"), 0),
    }

    epochs: int = 100
    batch_size: int = 256
    optimizer: Literal["sgd", "adamw", "lars"] = "sgd"
    lr: float = 0.05
    weight_decay: float = 5e-6
    warmup_epochs: float = 0.0
    clip: float | None = None
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    devices: int = 1
    nodes: int = 1
    workers: int = 2
    seed: int = 0
    knn_every: int = 10
    checkpoint_seconds: float = 30.0
    strict: bool = False


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run: with the code's version, enough to have its numbers again."""

    data: DataConfig
    views: ViewConfig = field(default_factory=ViewConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    fit: FitConfig = field(default_factory=FitConfig)

    def to_dict(self) -> dict[str, Any]:
        """Returns nested plain dictionaries, ready for JSON; an infinite option becomes ``"inf"``."""
        raw = dataclasses.asdict(self)
        raw["model"]["options"] = {k: "inf" if v == math.inf else v for k, v in self.model.options.items()}
        return raw

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> "RunConfig":
        """Builds a run from what `to_dict` gave, JSON's lists turned back into tuples.

        Raises:
            ValueError: A field is unknown or missing.
        """
        parts = {"data": DataConfig, "views": ViewConfig, "model": ModelConfig, "fit": FitConfig}
        try:
            config = cls(**{name: part(**_tuples(raw[name])) for name, part in parts.items()})
            options = {k: math.inf if v == "inf" else v for k, v in _tuples(config.model.options).items()}
            return dataclasses.replace(config, model=dataclasses.replace(config.model, options=options))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a run description: {error}") from None


def _tuples(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
