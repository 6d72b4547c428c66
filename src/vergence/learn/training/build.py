"""Builds the parts of a run from its description: method, input statistics, views and metadata."""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vergence.data.config import ViewConfig
from vergence.data.items import Items, PairItems, spaced
from vergence.data.modalities import ModalityItems, missing
from vergence.data.pixels import to_unit
from vergence.data.sources import Data
from vergence.densities.moments import Deviations
from vergence.learn import methods, objectives
from vergence.learn.encoders import building, networks
from vergence.learn.encoders.config import MLP
from vergence.learn.methods.core import Method
from vergence.learn.methods.modalities import ModalityMethod
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.core import Objective
from vergence.learn.training import loop
from vergence.learn.training.calibration import content_of
from vergence.learn.training.config import ModelConfig, RunConfig
from vergence.learn.training.recipes import ATOMS, SETTINGS
from vergence.learn.training.records import RunMetadata, Weights
from vergence.learn.views.images import GivenViews, ImageViews, Views
from vergence.learn.views.vectors import OF_VECTORS, Marginals
from vergence.utils.checks import expect, refuse, require_choice, shown
from vergence.utils.devices import describe_device
from vergence.utils.files import is_registered, load_outside
from vergence.utils.version import commit

__all__ = ["build_method", "initial_encoder", "initial_method", "input_shapes", "make_views", "metadata_of"]
__all__ += ["require_images", "require_method", "require_whole_images", "statistics", "views_for"]

T = TypeVar("T")
OtherShapes = Sequence[int] | Mapping[str, Sequence[int]] | None  # a target's where it is another; all modalities' by name
WORDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}  # checked types of options

STATISTICS_FROM = 10_000  # items that give the input's mean and standard deviation
STATISTICS_BATCH = 32  # of them at a time, in float64: 50 MB for color images of 256 pixels


def build_method(config: ModelConfig, shape: Sequence[int], target_shape: OtherShapes, mean: Tensor, std: Tensor) -> Method:
    """Builds the method of a description.

    ``shape`` is that of one item as the encoder sees it, ``target_shape`` that of the second view where it differs; of modalities
    the shapes of all by name. ``mean`` and ``std`` are those of the input per channel or feature; for pairs of unlike shapes
    followed by the targets'.
    """
    n = shape[0]
    encoder = building.encoder(config.encoder, shape, *input_statistics(config, shape, mean[:n], std[:n]))
    if isinstance(target_shape, Mapping):
        return _modalities(config, encoder, target_shape, mean, std)
    expect(config.anchor is None, "modalities for an anchor", "other data", "leave it out")
    if config.freeze:
        return PairedMethod(encoder, None)
    if config.method is not None:
        require_method(config)
        require_images(config, "image" if len(shape) == 3 else "vector")
        return _with_options(f"method '{config.method}'", methods.get(config.method), (encoder, shape), config.options)
    dim = networks.width(encoder, shape)
    dual = target_shape is not None or config.target_encoder is not None
    second_shape = tuple(shape if target_shape is None else target_shape)
    second = _target_encoder(config, second_shape, mean[-second_shape[0] :], std[-second_shape[0] :]) if dual else None
    objective = _objective(config, (dim, *config.projector)[-1], dual)
    teacher = type(objective).teacher if config.teacher is None else config.teacher
    return PairedMethod(
        encoder,
        objective,
        projector=networks.projector(dim, config.projector, config.projector_norm),
        target_encoder=second,
        target_projector=None if second is None else _target_projector(config, networks.width(second, second_shape), dim),
        teacher=None if teacher is False else teacher,
        schedule=config.teacher_schedule or type(objective).teacher_schedule,
    )


def _modalities(
    config: ModelConfig, encoder: nn.Module, shapes: Mapping[str, Sequence[int]], mean: Tensor, std: Tensor
) -> ModalityMethod:
    """Returns the method of several modalities, whose first encoder is given; the others and their heads are as of targets."""
    expect(not config.freeze and not config.teacher, "modalities without freeze and teacher", "one", "leave it out")
    require_choice("anchor", config.anchor, (None, *shapes))
    sizes = [shape[0] for shape in shapes.values()]
    statistics = list(zip(shapes.values(), mean.split(sizes), std.split(sizes), strict=True))[1:]
    encoders = [encoder, *(_target_encoder(config, tuple(shape), *part, named=False) for shape, *part in statistics)]
    widths = [networks.width(net, shape) for net, shape in zip(encoders, shapes.values(), strict=True)]
    objective = _objective(config, (widths[0], *config.projector)[-1], True, tuple(shapes))
    heads = [networks.projector(widths[0], config.projector, config.projector_norm)]
    heads += [_target_projector(config, width, widths[0]) or nn.Identity() for width in widths[1:]]
    branches = {name: (net, head) for name, net, head in zip(shapes, encoders, heads, strict=True)}
    return ModalityMethod(branches, objective, anchor=config.anchor)


def require_method(config: ModelConfig) -> None:
    """Raises a ValueError unless a description's method exists and its encoder is a network."""
    assert config.method is not None, "of a method"
    methods.get(config.method)
    if config.encoder.closed_form:
        raise ValueError(f"expected a network for method '{config.method}', found '{config.encoder}'; choose another `encoder`")


def require_images(config: ModelConfig, kind: str) -> None:
    """Raises a ValueError where a method on images, or a first stage in closed form, is to be trained on data of another kind."""
    if config.distill is not None and kind != "image":
        raise ValueError(f"expected images for `distill`, found {kind} data; leave it out, or choose another recipe")
    if config.method is not None and kind != "image" and not (kind == "vector" and methods.get(config.method).vectors):
        raise ValueError(f"expected images for method '{config.method}', found {kind} data; choose an `objective`")


def input_statistics(config: ModelConfig, shape: Sequence[int], mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and deviation of the first encoder's input: those of the description for images, else ``mean`` and ``std``."""
    if config.input_mean is None or config.input_std is None or len(shape) != 3:
        return mean, std
    return mean.new_tensor(config.input_mean), std.new_tensor(config.input_std)


def _target_encoder(config: ModelConfig, shape: tuple[int, ...], mean: Tensor, std: Tensor, *, named: bool = True) -> nn.Module:
    """Returns the second encoder that is named; else one of the first one's name, or an MLP where that cannot take the shape.

    Without ``named``, for several modalities, it is an MLP too where the one that is named cannot take the shape.
    """
    try:
        return building.encoder(config.target_encoder or config.encoder, shape, mean, std)
    except ValueError:
        if named and config.target_encoder is not None:
            raise
        return building.encoder(MLP(), shape, mean, std)


def _target_projector(config: ModelConfig, width: int, dim: int) -> nn.Module | None:
    """Returns the second encoder's head; without projectors a linear map to the first one's width where the widths differ."""
    if config.projector:
        return networks.projector(width, config.projector, config.projector_norm)
    return None if width == dim else nn.Linear(width, dim)


def _objective(config: ModelConfig, dim: int, dual: bool, blocks: tuple[str, ...] = ()) -> Objective:
    kind = objectives.get(config.objective)
    own = {"tied": False, **({"blocks": blocks} if blocks else {})} if dual else {}
    own = {name: value for name, value in own.items() if name in inspect.signature(kind).parameters}
    return _with_options(f"objective '{config.objective}'", kind, (dim,), config.options, own)


def _with_options(
    what: str,
    kind: Callable[..., T],
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
) -> T:
    """Returns ``kind(*arguments, **options)``; ``own`` are defaults of the options."""
    choices = list(inspect.signature(kind).parameters)[len(arguments) :]
    hints = _hints(kind)
    for name in options:
        if name not in choices and name in ATOMS:
            refuse(f"an option of {what}", name, f"of the encoder patches it is `encoder='patches:{name}={options[name]}'`")
        require_choice(f"an option of {what}", name, choices, also=SETTINGS)
        hint, found = hints.get(name), options[name]
        if hint is not None and hint in WORDS:  # whole numbers are numbers, and true and false are neither
            fits = isinstance(found, (int, float) if hint is float else hint) and isinstance(found, bool) == (hint is bool)
            expect(fits, f"{name} of {what} to be {WORDS[hint]}", repr(found), "change it")
    try:
        return kind(*arguments, **{**(own or {}), **options})
    except TypeError as error:
        raise ValueError(f"{what} cannot take the options {dict(options)}: {error}") from error


def _hints(kind: Callable[..., Any]) -> dict[str, Any]:
    """Returns the types of a class's arguments; none where they cannot be resolved, as may be outside the library."""
    try:
        return typing.get_type_hints(kind.__init__) if inspect.isclass(kind) else {}
    except (NameError, TypeError, AttributeError):
        return {}


def input_shapes(opened: Data) -> tuple[tuple[int, ...], OtherShapes]:
    """Returns the shape of one item as the encoder sees it, after the crop, and those of others (`OtherShapes`)."""
    shape = opened.train.shape
    if isinstance(opened.train, ModalityItems):
        return shape, {name: side.shape for name, side in opened.train.sides.items()}
    if isinstance(opened.train, PairItems):
        target = opened.train.target_shape
        return shape, None if target == shape else target
    return ((shape[0], *2 * (opened.size or shape[1],)) if opened.kind == "image" else shape), None


def initial_method(config: RunConfig, shape: Sequence[int], target_shape: OtherShapes, mean: Tensor, std: Tensor) -> Method:
    """Returns the method before its first step: weights are a function of the seed alone. See `build_method`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(loop.seed_of(config.fit.seed, "initialise", 0))
        method = build_method(config.model, shape, target_shape, mean, std)
        if config.model.takes_steps:
            method.require_views(config.views, shape)
    networks.channels_last(method)
    return method


def require_whole_images(method: Method, shape: Sequence[int], target_shape: OtherShapes) -> None:
    """Raises a ValueError where an encoder of a method would cut off the edge of images of its shape."""
    sides = [(method.encoder, shape)]
    if isinstance(target_shape, Mapping):
        sides = [(method.branch(name)[0], side) for name, side in target_shape.items()]
    elif method.target_encoder is not None:
        sides.append((method.target_encoder, target_shape or shape))
    for net, side in sides:
        if isinstance(net, nn.Sequential) and len(side) == 3:  # statistics of the input, then the network
            networks.require_whole_patches(net[-1], side[1:])


def initial_encoder(config: RunConfig, shape: Sequence[int], mean: Tensor, std: Tensor) -> nn.Module:
    """Returns the encoder of `initial_method`; what a factory returned gets random weights, too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(loop.seed_of(config.fit.seed, "initialise", 0))
        encoder = building.encoder(config.model.encoder, shape, *input_statistics(config.model, shape, mean, std))
        if config.model.encoder.outside:
            networks.reset(encoder)
    return encoder


def statistics(items: Items) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation per channel (images, in [0, 1]) or feature; constant ones get deviation 1.

    They are float64 where the items are, and float32 otherwise. Arrays and tokens stay as they are: 0 and 1, of tokens whole.
    """
    parts = items.sides.values() if isinstance(items, PairItems) else (items,)
    both = zip(parts, _sides(items), strict=True)
    seen = [(side, not part.form, part.dtype if part.form else side.dtype) for part, side in both]
    sides = [(side.mean.to(dtype) * own, side.std() * own, dtype) for side, own, dtype in seen]
    means, deviations = zip(*((mean, torch.where(std == 0, 1.0, std).to(dtype)) for mean, std, dtype in sides), strict=True)
    return torch.cat(means), torch.cat(deviations)


def _sides(items: Items) -> list[Deviations]:
    """Returns the statistics of the items; of pairs, those of the contexts and those of the targets."""
    some = spaced(len(items), STATISTICS_FROM)
    sides: list[Deviations] = []
    for _, x in items.stream(iter(some.split(STATISTICS_BATCH))):
        parts = x if isinstance(x, (tuple, list)) else (x,)
        sides = sides or [Deviations(x.shape[1], torch.float64 if x.dtype == torch.float64 else torch.float32) for x in parts]
        for side, part in zip(sides, parts, strict=True):
            part = part[~missing(part)]
            side.add(to_unit(part, torch.float64).transpose(0, 1).flatten(1).T)
    return sides


def metadata_of(
    config: RunConfig,
    opened: Data,
    shape: Sequence[int],
    target_shape: OtherShapes,
    method: nn.Module,
    weights: Weights | None,
    fabric: Any,
) -> RunMetadata:
    """Returns the metadata of a training that starts: data, shapes, weights, machine and versions."""
    return RunMetadata(
        kind=opened.kind,
        classes=tuple(opened.classes),
        n_train=len(opened.train),
        n_test=len(opened.test),
        n_calibration=0 if opened.calibration is None else len(opened.calibration),
        note=opened.note,
        skipped=len(opened.skipped),
        read_shape=tuple(opened.train.shape),
        shape=tuple(shape),
        target_shape=None if target_shape is None or isinstance(target_shape, Mapping) else tuple(target_shape),
        modalities={name: tuple(one) for name, one in target_shape.items()} if isinstance(target_shape, Mapping) else {},
        parameters=sum(p.numel() for p in method.parameters()),
        weights=weights,
        columns=opened.columns,
        content=content_of(opened.train),
        device=describe_device(fabric.device),
        processes=fabric.world_size,
        precision=loop.precision(config.fit, fabric.device.type),
        torch=torch.__version__,
        commit=commit(),
    )


def views_for(kind: str, config: ViewConfig, shape: Sequence[int], marginals: Callable[[], Marginals]) -> Views:
    """Returns the random views of single items: those of a function of the program's, of images, or of vectors.

    ``kind`` is ``image``, ``vector``, ``array`` or ``tokens``; ``marginals`` is called for vectors alone. A function that the
    program did not give is not imported.
    """
    if (name := config.function) is not None:
        hint = "open the run in Python with vergence.load(path, views=...)"
        expect(is_registered(name), f"the function {shown(name)} of this run's views", advice=hint)
        expect(not config.local_views, "no local_views with views of one's own", config.local_views, "let the functions crop")
        return GivenViews(load_outside("views", name, ""), shape, config.n_views)
    if kind == "image":
        expect(config.kind != "series", "series (N, C, T) for views of series", "images", "say `kind='array'`")
        return ImageViews(config, shape[1])
    own = kind == "vector" or (kind == "array" and config.kind == "series" and len(shape) <= 2)
    advice = "give `views`, a function (batch, generator) -> batch, or 'series' for (N, C, T); or say `kind='image'` of images"
    expect(own, f"views of items of shape {tuple(shape)}, an array or tokens", "none", advice)
    return OF_VECTORS[config.kind](config, marginals())


def make_views(opened: Data, config: ViewConfig, shape: Sequence[int]) -> Views | None:
    """Returns what makes two views of a batch (`views_for`); None for data that comes as pairs or as modalities.

    Constant features of vectors get no noise.
    """
    if opened.kind in ("pairs", "modalities"):
        return None
    return views_for(opened.kind, config, shape, lambda: marginals_of(opened.train, config))


def marginals_of(items: Items, config: ViewConfig) -> Marginals:
    """Returns means and deviations of vectors or of channels of series, and of tables the quantiles of at most 10,000 rows."""
    side = _sides(items)[0]
    mean, std = (x.to(side.dtype).view(-1, *[1] * (len(items.shape) - 1)).expand(items.shape) for x in (side.mean, side.std()))
    found = Marginals(mean, std)
    if config.kind != "table":
        return found
    rows = torch.cat([x for _, x in items.stream(iter(spaced(len(items), STATISTICS_FROM).split(STATISTICS_BATCH)))])
    return dataclasses.replace(found, quantiles=Marginals.of(rows).quantiles)
