"""The description of a run: plain dataclasses, so that the command line answers without loading torch.

Everything that decides a result is here and is written to the run folder's ``config.json``.
"""

import dataclasses
import itertools
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from vergence.data.config import DataConfig, Form, ViewConfig
from vergence.learn.encoders.config import Encoder, Patches, Small, as_encoder
from vergence.utils.checks import Checked, expect, shown

if TYPE_CHECKING:
    from torch import nn

    from vergence.learn.objectives.core import Objective

__all__ = ["FitConfig", "ModelConfig", "RunConfig", "Settings"]

# Upper bounds: a description that exceeds them is refused before anything is allocated.
MOST_WIDTHS, WIDEST, MOST_WEIGHTS = 16, 65_536, 2**30  # of a projector
MOST_CHANNELS = 4  # of an image
MOST_OPTIONS = {  # sizes among the options of the library's objectives and methods
    **{"bank": 2**20, "hidden": 65_536, "steps": 10_000},
    **dict.fromkeys(("components", "max_nodes", "rank"), 4096),
    **{"latent": 65_536, "outputs": 2**20, "bottleneck": 65_536, "targets": 256},
    **dict.fromkeys(("decoder_width", "predictor_width"), 8192),
    **dict.fromkeys(("decoder_depth", "decoder_heads", "predictor_depth", "predictor_heads"), 256),
    **{"prototypes": 65_536, "slices": 65_536, "knots": 4096},
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """Which encoder, and which objective or method.

    Attributes:
        encoder: ``small``, ``mlp``, ``identity`` (features as they are), ``resnet18``, ``resnet34``, ``resnet50``, ``timm:NAME``,
            ``patches`` (closed form), ``patches-mlp`` or ``package.module:factory``, a function that returns a network; with
            settings as in ``patches:atoms=256``. In Python also a dataclass of `vergence.learn.encoders.config`.
        objective: A name from ``vergence.learn.objectives.names()``, ``package.module:Class``, or ``none`` with ``freeze`` or a
            method.
        method: Name of a method on images from ``vergence.learn.methods.names()``, such as ``masked_autoencoder``; ``None`` for
            an objective on pairs of views.
        options: Keyword arguments of the objective or the method. The library's sizes have upper bounds (``MOST_OPTIONS``).
        projector: Widths of a projection head after the encoder; empty for none. A second encoder gets a head of its own. At
            most 16 widths of at most 65,536, with at most 2^30 weights between two of them.
        projector_norm: Normalization in the head: ``layer`` (VJE), ``batch``, or ``batch_last``, also of the head's output.
        teacher: Momentum in [0, 1) of an exponential-moving-average teacher that embeds the targets; ``None`` for the
            objective's own (most have none), ``False`` for no teacher whatever the objective.
        teacher_schedule: ``constant`` keeps the momentum; ``cosine`` raises it to 1 at the last step, as in BYOL; ``None`` for
            the objective's own.
        target_encoder: Encoder of the second view: two encoders even for views of one shape (dual encoders), and for
            objectives with an option ``tied`` two networks, ``tied=False``, unless the options say otherwise. ``None`` shares
            the first where both views are of one shape; where they are not, a second one of the same name is built, or
            ``mlp`` where that name cannot take the shape. Without a projector, a second encoder of another width is followed
            by a linear map to the first one's.
        anchor: Of modalities the one that is in every pair that the objective is trained on; ``None`` for all pairs.
        distill: Closed form, ``patches`` or with settings as in ``patches:atoms=256``, whose embedding the encoder learns to
            predict before the objective's epochs (`vergence.learn.training.staged`); none by default.
        pretrained: Whether the first encoder, ``timm:NAME``, starts from timm's weights of that name.
        weights: File of weights that the first encoder starts from, ``.safetensors`` or a PyTorch file; none by default.
        init: Folder of a run whose weights the model starts from; none by default.
        freeze: Whether the encoder is used as it is, without objective and without training.
        input_mean: Mean per channel that the first encoder subtracts from images in [0, 1]; from the network's configuration
            where it starts from weights, otherwise of the training data.
        input_std: Standard deviation per channel, as ``input_mean``.
    """

    finite = True

    encoder: Encoder = field(default_factory=Small)
    objective: str = "vje"
    method: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    projector: tuple[int, ...] = ()
    projector_norm: Literal["layer", "batch", "batch_last"] = "layer"
    teacher: float | bool | None = None
    teacher_schedule: Literal["constant", "cosine"] | None = None
    target_encoder: Encoder | None = None
    anchor: str | None = None
    distill: Patches | None = None
    pretrained: bool = False
    weights: str | None = None
    init: str | None = None
    freeze: bool = False
    input_mean: tuple[float, ...] | None = None
    input_std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("encoder", "target_encoder", "distill"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_encoder(given))
        kind = self.distill
        closed = kind is None or (kind.closed_form and not kind.takes_steps)
        expect(closed, "distill to be 'patches', or with settings as in 'patches:atoms=256'", shown(str(kind)))
        super().__post_init__()
        _require_widths(self.projector)
        _require_statistics(self.input_mean, self.input_std)
        for name, most in MOST_OPTIONS.items():
            value = 0 if ":" in self.objective else self.options.get(name)
            if isinstance(value, int | float):
                expect(abs(value) <= most, f"option {name} of at most {most:,}", shown(value))
        expect(self.teacher is not True, "teacher to be a momentum such as 0.99, False or None", "True")
        sources = [name for name, source in self.sources.items() if source]
        expect(len(sources) < 2, "one source of weights", " and ".join(f"`{name}`" for name in sources), "leave all but one out")
        alone = {"projector": self.projector, "teacher": self.teacher, "target_encoder": self.target_encoder is not None}
        trained = {"objective": self.objective != "none", **alone}
        if self.freeze:
            _require_without("freeze, which trains nothing", trained)
        if self.method is not None:
            _require_without(f"method '{self.method}', which has its own", {**trained, "freeze": self.freeze})
        if self.distill is not None:  # one encoder, which is trained, learns to predict a closed form
            excluded = {"freeze": self.freeze, f"method '{self.method}'": self.method is not None}
            excluded |= {f"encoder '{self.encoder}'": self.encoder.closed_form, "target_encoder": self.target_encoder is not None}
            _require_without("distill, by which one network learns", excluded)

    @property
    def takes_steps(self) -> bool:
        """Whether an optimizer takes steps: of every encoder, but for a frozen one and one in closed form alone."""
        return not self.freeze and self.encoder.takes_steps

    @property
    def outside(self) -> tuple[str, ...]:
        """Names of code outside the library: an objective ``package.module:Class``, encoders ``package.module:factory``."""
        encoders = [kind.outside for kind in (self.encoder, self.target_encoder) if kind is not None and kind.outside is not None]
        return (*encoders, *([self.objective] if ":" in self.objective else []))

    @property
    def starts_from_weights(self) -> bool:
        """Whether the description names weights that the model starts from."""
        return any(self.sources.values())

    @property
    def sources(self) -> dict[str, str | bool | None]:
        """Where weights may come from, by the name of the setting."""
        return {"pretrained": self.pretrained, "weights": self.weights, "init": self.init}


def _require_without(what: str, excluded: Mapping[str, Any]) -> None:
    """Raises a ValueError where settings are given that another one excludes."""
    names = " and ".join(name for name, given in excluded.items() if given)
    expect(not names, f"no {names} with {what}", advice="leave one of them out")


def _require_statistics(mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    """Raises a ValueError unless there are both statistics of an input or neither, of one length, with deviations above 0."""
    both = (mean is None) == (std is None) and len(mean or ()) == len(std or ()) <= MOST_CHANNELS
    expect(both, "input_mean and input_std, one number per channel each", f"{mean} and {std}", "give both")
    if mean is not None and std is not None:
        usable = mean and all(map(math.isfinite, (*mean, *std))) and min(std) > 0
        expect(usable, "finite input_mean and input_std > 0", f"{mean} and {std}")


def _require_widths(widths: tuple[int, ...]) -> None:
    """Raises a ValueError unless a head of these widths can be allocated."""
    expect(min(widths, default=1) >= 1, "projector widths of at least 1", widths)
    few = len(widths) <= MOST_WIDTHS and max(widths, default=1) <= WIDEST
    expect(few, f"at most {MOST_WIDTHS} projector widths of at most {WIDEST:,}", widths)
    small = all(i * o <= MOST_WEIGHTS for i, o in itertools.pairwise(widths))
    expect(small, f"projector widths with at most {MOST_WEIGHTS:,} weights between two", widths)


@dataclass(frozen=True, kw_only=True)
class FitConfig(Checked):
    """How the parameters are fitted. Numbers have upper bounds (``FitConfig.most``), far above what is of use.

    Attributes:
        epochs: Passes over the training items.
        distill_epochs: Distillation epochs before training. Default 15, or 2,340 steps for small data.
        batch_size: Pairs per step, of all processes together.
        optimizer: ``sgd`` (momentum 0.9), ``adamw`` or ``lars``.
        betas: AdamW's momenta of the gradient and of its square, in [0, 1); masked autoencoders take (0.9, 0.95).
        trust: LARS: coefficient eta of the layers' rates (`vergence.learn.training.optimizers.build_optimizer`).
        trust_clip: LARS: whether a layer's rate is at most ``lr`` (LARC), as in solo-learn.
        lr: Peak learning rate; not rescaled with the batch size.
        encoder_lr: Learning rate of the encoders, as a multiple of ``lr``. Below 1, VJE loses fewer directions
            (``docs/guides/trained.md``).
        weight_decay: Decoupled for ``adamw``, added to the gradient for ``sgd`` and ``lars``.
        warmup_epochs: Epochs of linear warm-up before the cosine decay to zero.
        clip: Largest gradient norm, > 0; ``None`` for no clipping.
        precision: ``auto`` takes bfloat16 autocast where that is faster; ``fp32``, ``bf16``, ``fp64`` force it.
        device: ``auto``, ``cpu`` or ``cuda``.
        devices: Number of processes, one per device.
        nodes: Number of machines.
        workers: Number of processes that decode images of folders that do not fit into memory.
        seed: Seed of the initialization, the order of the data, the views and the samples.
        knn_every: Epochs between online kNN checks on at most 10,000 training items; 0 for none.
        checkpoint_seconds: Least time between two checkpoints, in seconds.
        threads: CPU threads of each process; ``None`` takes OMP_NUM_THREADS, or one per core; a resumed run keeps its number.
        strict: Whether the run stops when the embedding collapses.
    """

    finite = True

    most: typing.ClassVar[dict[str, float]] = {
        **dict.fromkeys(
            ("epochs", "distill_epochs", "warmup_epochs", "knn_every", "lr", "trust", "encoder_lr", "weight_decay"), 1_000_000
        ),
        **{"batch_size": 2**20, "devices": 1024, "nodes": 16_384, "workers": 1024, "threads": 1024, "seed": 2**63 - 1},
    }
    least: typing.ClassVar[dict[str, float]] = {
        **dict.fromkeys(("epochs", "distill_epochs", "batch_size", "devices", "nodes", "threads"), 1),
        **dict.fromkeys(("lr", "trust", "encoder_lr", "weight_decay", "warmup_epochs", "clip"), 0),
        **dict.fromkeys(("workers", "seed", "knn_every", "checkpoint_seconds"), 0),
    }

    epochs: int = 100
    distill_epochs: int | None = None
    batch_size: int = 256
    optimizer: Literal["sgd", "adamw", "lars"] = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    trust: float = 0.001
    trust_clip: bool = False
    lr: float = 0.05
    encoder_lr: float = 1.0
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
    threads: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(all(0 <= beta < 1 for beta in self.betas), "betas in [0, 1)", self.betas)
        expect(self.clip != 0, "clip > 0", "0, which removes every gradient", "None means no clipping")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A complete run description: with the code's version, enough to reproduce the run's numbers."""

    data: DataConfig
    views: ViewConfig = field(default_factory=ViewConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    fit: FitConfig = field(default_factory=FitConfig)

    def to_dict(self) -> dict[str, Any]:
        """Returns nested plain dictionaries, ready for JSON; an infinite option becomes ``"inf"``."""
        raw = dataclasses.asdict(self)
        for name in ("encoder", "target_encoder", "distill"):
            if (kind := getattr(self.model, name)) is not None:
                raw["model"][name] = kind.to_dict()
        raw["model"]["options"] = {k: "inf" if v == math.inf else v for k, v in self.model.options.items()}
        return raw

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> "RunConfig":
        """Builds a run description from what `to_dict` returned; JSON's lists become tuples."""
        parts = {"data": DataConfig, "views": ViewConfig, "model": ModelConfig, "fit": FitConfig}
        try:
            config = cls(**{name: part(**_tuples(raw[name])) for name, part in parts.items()})
            options = {k: math.inf if v == "inf" else v for k, v in _tuples(config.model.options).items()}
            return dataclasses.replace(config, model=dataclasses.replace(config.model, options=options))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a run description: {error}") from None


def _tuples(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}


Network = Union[str, Encoder, "nn.Module", "Callable[[], nn.Module]"]


class Settings(TypedDict, total=False):
    """Every setting of `vergence.train` as a typed keyword, so that editors complete them and mypy checks them.

    The dataclasses say what each means; a test compares names and types.
    """

    root: str | Path | None
    download: bool
    size: int | None
    holdout: float
    calibration_share: float
    keep_classes: tuple[int, ...] | None
    limit: int | None
    strict: bool
    form: Form | None

    crop: tuple[float, float]
    flip: float
    jitter: tuple[float, float, float, float]
    jitter_p: float
    grayscale: float
    blur: float
    blur_sigma: tuple[float, float]
    solarize: float
    cover: tuple[int, ...]
    kind: Literal["features", "counts", "spectra", "series", "table", "image", "vector", "array", "tokens"]
    noise: float
    mask: float
    scale: float
    thin: float
    shift: float
    baseline: float
    window: tuple[float, float]
    warp: float
    phases: float
    swap: float
    n_views: int
    local_views: int
    local_size: int | None
    local_crop: tuple[float, float]

    encoder: Network | tuple[Network, Network]
    objective: Union[str, "Objective", "type[Objective]"]
    method: str | None
    options: Mapping[str, Any]
    projector: tuple[int, ...]
    projector_norm: Literal["layer", "batch", "batch_last"]
    teacher: float | bool | None
    teacher_schedule: Literal["constant", "cosine"] | None
    target_encoder: Network | None
    anchor: str | None
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
