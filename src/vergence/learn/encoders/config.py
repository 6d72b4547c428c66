"""Which encoder a run has: one dataclass a kind with its text and its settings; `vergence.learn.encoders.building` builds it.

    text on the command line          dataclass
    ``small``, ``small-deep``         ``Small()``, ``Small(deep=True)``
    ``mlp``, ``identity``             ``MLP()``, ``Identity()``
    ``resnet18-cifar``                ``ResNet("resnet18", stem="cifar")``
    ``timm:NAME,patch_size=4``        ``Timm("NAME", patch_size=4)``
    ``patches:atoms=256``             ``Patches(atoms=256)``
    ``patches-mlp``                   ``PatchesMLP()``
    ``package.module:factory``        ``Factory("package.module:factory")``

`as_encoder` reads texts and what ``config.json`` holds.
"""

import abc
import contextlib
import dataclasses
import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vergence.utils.checks import Checked, expect, from_json, require_choice

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    *("Encoder", "Factory", "Identity", "MLP", "PatchSettings", "Patches", "PatchesMLP", "ResNet", "Small", "Timm"),
    *("as_encoder", "require_image_shape"),
]

LARGE, LARGE_SIDE = 48, 32  # pixels: images of a larger side are resized
SMALL = 16  # pixels: images of a smaller side have smaller patches, and views moved by more
GRID, SIZE_ABOVE, POOL = 6, 2, 2  # windows per side of the maps below a second layer, of its patches, and cells of its pooling
PATCHES_ABOVE = (GRID - SIZE_ABOVE + 1) ** 2  # patches of an image in the second layer
BELOW = 256  # atoms of the first layer that the second one reads, at most
FLAGS = {"True": True, "true": True, "False": False, "false": False}


class Encoder(Checked, abc.ABC):
    """A kind of encoder with its settings.

    Attributes:
        kind: Name of the kind.
        closed_form: Whether it, or a part of it, is fitted in closed form.
        takes_steps: Whether an optimizer trains it, or a part of it.
        ready: Whether it can be used as it comes, without weights from a file.
        standardized: Whether its input is standardized.
    """

    kind = ""
    closed_form, takes_steps, ready, standardized = False, True, False, True

    @property
    def outside(self) -> str | None:
        """Name of the code outside the library that builds it; None for the library's own."""
        return None

    @property
    def title(self) -> str:
        """Name for people: the kind, or the name of code outside the library without its module."""
        return re.sub(r".*[:.]|[#~].*", "", self.outside or self.kind)

    def to_dict(self) -> dict[str, Any]:
        """Returns the kind and the settings, ready for JSON; `as_encoder` reads them."""
        return {"kind": self.kind, **dataclasses.asdict(typing.cast(Any, self))}

    def __str__(self) -> str:
        return self.kind

    def _settings(self) -> list[str]:
        """Returns the settings that differ from the defaults, as text."""
        fields = [f for f in dataclasses.fields(typing.cast(Any, self)) if f.default is not dataclasses.MISSING]
        given = {f.name: value for f in fields if (value := getattr(self, f.name)) != f.default}
        return [f"{key}={value if isinstance(value, bool | str) else format(value, 'g')}" for key, value in given.items()]


def require_image_shape(kind: Encoder, shape: Sequence[int]) -> None:
    """Raises a ValueError unless a shape is that of images, (C, H, W)."""
    advice = "use `encoder='mlp'`, or 'identity' with `freeze=True`, or give a network of your own"
    expect(len(shape) == 3, f"images for encoder '{kind}'", f"items of shape {tuple(shape)}", advice)


@dataclass(frozen=True)
class Small(Encoder):
    """Four or, where it is deep, five convolutions, D = 256 (`vergence.learn.encoders.networks.small_convnet`).

    Attributes:
        deep: Whether there are five: more accurate for about the same time where it learns a closed form.
    """

    deep: bool = False

    kind = "small"

    def __str__(self) -> str:
        return "small-deep" if self.deep else "small"


@dataclass(frozen=True)
class MLP(Encoder):
    """A multilayer perceptron of widths 512, 512, 256, for vectors or small images."""

    kind = "mlp"


@dataclass(frozen=True)
class Identity(Encoder):
    """Vectors as they are."""

    kind, ready, standardized = "identity", True, False


@dataclass(frozen=True)
class ResNet(Encoder):
    """torchvision's ResNet without its classifier: D = 512, 512 or 2048.

    Attributes:
        name: ``resnet18``, ``resnet34`` or ``resnet50``.
        stem: ``cifar`` for a 3x3 convolution of stride 1 without max pooling, ``imagenet`` for torchvision's own; None for
            CIFAR's up to 64 pixels.
    """

    name: Literal["resnet18", "resnet34", "resnet50"]
    stem: Literal["cifar", "imagenet"] | None = None

    kind = "resnet"

    def __str__(self) -> str:
        return self.name + ("" if self.stem is None else f"-{self.stem}")


@dataclass(frozen=True)
class Timm(Encoder):
    """timm's model of a name with pooled features; of a transformer with settings of its own, where None keeps timm's.

    Attributes:
        name: timm's name, such as ``resnet10t``; a tag of pretrained weights chooses the architecture alone.
        patch_size: Side of a patch, in pixels.
        embed_dim: Width of the tokens.
        depth: Number of blocks.
        num_heads: Attention heads.
        class_token: Whether there is a class token.
        dynamic_img_size: Whether other sizes of images than the first are taken.
        global_pool: Embedding: the class token or the mean of the tokens.
    """

    name: str
    patch_size: int | None = None
    embed_dim: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    class_token: bool | None = None
    dynamic_img_size: bool | None = None
    global_pool: Literal["token", "avg"] | None = None

    kind = "timm"
    least: ClassVar[dict[str, float]] = dict.fromkeys(("patch_size", "embed_dim", "depth", "num_heads"), 1)
    most: ClassVar[dict[str, float]] = {"patch_size": 256, "embed_dim": 8192, "depth": 256, "num_heads": 256}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that differ from timm's."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "name" and value is not None}

    def __str__(self) -> str:
        return "timm:" + ",".join([self.name, *self._settings()])


@dataclass(frozen=True)
class Factory(Encoder):
    """What a function outside the library returns (`vergence.learn.encoders.networks.factory_model`).

    Attributes:
        name: ``package.module:factory``.
    """

    name: str

    kind, ready = "factory", True

    @property
    def outside(self) -> str | None:
        return self.name

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Patches(Encoder):
    """Pooled responses to a dictionary of patches and an affine map, in closed form (`vergence.learn.encoders.patch_maps`).

    Attributes:
        atoms: Unit vectors K of the dictionary; None for 2,048, and 512 below a second layer.
        patch: Side P of a patch, in pixels; None for 6, and 4 for images of fewer than 16 pixels.
        stride: Distance of neighboring patches, in pixels.
        side: Shorter side that larger images are resized to, in pixels; 0 keeps their size, None resizes to 32 above 48.
        threshold: Soft threshold theta of the first layer.
        pool: Cells per side of the first layer's pooling; they overlap.
        directions: Principal directions of the features that the joint embedding is solved in.
        dim: Width of the embedding.
        views: Random views of each image, at least 2.
        shift: Share of its sides that a view is moved by at most, with reflected borders, before its other changes; None for
            0.075, and 0.125 for images of fewer than 16 pixels.
        ridge: Regularization of the views' covariance, as a multiple of its mean diagonal.
        power: Exponent of the eigenvalues that the components are multiplied by; None for 2, and 2.5 with a second layer.
        copies: Copies of an image whose embeddings are averaged, after the fit: copy j = 0, 1, ... leaves out the first
            j stride / copies rows and columns, so that its patches lie between those of the image.
        mirror: 1 mirrors every second copy.
        second: Atoms of the second layer; 0 for none, None for 2,048 where the images have room for it: 16 pixels per side.
        second_threshold: Soft threshold of the second layer, in deviations of its responses.

    Example:
        >>> Patches(atoms=64).complete((3, 96, 96)).side, str(Patches(atoms=64))
        (32, 'patches:atoms=64')
    """

    atoms: int | None = None
    patch: int | None = None
    stride: int = 1
    side: int | None = None
    threshold: float = 1.0
    pool: int = 2
    directions: int = 2048
    dim: int = 512
    views: int = 2
    shift: float | None = None
    ridge: float = 0.01
    power: float | None = None
    copies: int = 1
    mirror: int = 0
    second: int | None = None
    second_threshold: float = 0.25

    kind, closed_form, takes_steps, standardized = "patches", True, False, False  # every patch is normalized
    least: ClassVar[dict[str, float]] = {
        **dict.fromkeys(("atoms", "patch", "stride", "pool", "directions", "dim", "copies"), 1),
        **dict.fromkeys(("side", "threshold", "second", "second_threshold", "shift", "ridge", "power", "mirror"), 0),
        "views": 2,
    }
    most: ClassVar[dict[str, float]] = {
        **dict.fromkeys(("patch", "stride", "side", "pool", "views", "copies", "mirror"), 4096),
        **dict.fromkeys(("threshold", "second_threshold", "shift", "ridge", "power"), 1e6),
        **dict.fromkeys(("atoms", "second", "directions", "dim"), 2**24),
    }

    def complete(self, shape: Sequence[int]) -> "PatchSettings":
        """Returns the settings for images of ``shape`` (C, H, W), those that are None from their size."""
        require_image_shape(self, shape)
        side = min(shape[1:])
        sized = {"patch": 4, "shift": 0.125} if side < SMALL else {"patch": 6, "shift": 0.075}
        sized["side"] = LARGE_SIDE if side > LARGE else 0
        one = self._filled({**sized, "atoms": 2048, "power": 2.0, "second": 0})
        two = self._filled({**sized, "atoms": 512, "power": 2.5, "second": 2048})
        roomy = self.second is None and min(two.shrunk(shape[1], shape[2])) >= max(SMALL, two.least_side)
        settings = two if self.second or roomy else one
        settings.require_size(shape)
        return settings

    def _filled(self, defaults: Mapping[str, float]) -> "PatchSettings":
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        filled: dict[str, Any] = {key: defaults[key] if value is None else value for key, value in given.items()}
        return PatchSettings(**filled)

    def with_settings(self, settings: "PatchSettings") -> "Patches":
        """Returns an encoder of this kind with other settings."""
        return type(self)(**dataclasses.asdict(settings))

    def fitted(self, shape: Sequence[int], n: int, mirrored: bool = True) -> "PatchSettings":
        """Returns the settings for n images of ``shape`` (C, H, W): fewer atoms and directions where there are few images.

        A dictionary has at most a tenth as many atoms as there are patches to learn it from, which for the second layer are 25 of
        each image, and the features at most n - 1 directions. Copies are mirrored only where views are, ``mirrored``.

        Example:
            >>> Patches(atoms=16, dim=64).fitted((1, 8, 8), 50).dim
            49
        """
        s = self.complete(shape)
        if not mirrored:  # copies that are neither moved nor mirrored are equal
            s = dataclasses.replace(s, mirror=0, copies=min(s.copies, s.stride))
        s = dataclasses.replace(s, atoms=min(s.atoms, max(2, math.prod(s.positions(shape)) * n // 10)))
        s = dataclasses.replace(s, second=min(s.second, max(2, PATCHES_ABOVE * n // 10)))
        s = dataclasses.replace(s, directions=min(s.directions, n - 1, s.features))
        return dataclasses.replace(s, dim=min(s.dim, s.directions))

    def __str__(self) -> str:
        settings = self._settings()
        return self.kind + (":" + ",".join(settings) if settings else "")


@dataclass(frozen=True, kw_only=True)
class PatchesMLP(Patches):
    """The closed form of `Patches`, and a network behind it that is trained (`patch_maps.RefinedEncoder`)."""

    kind, takes_steps = "patches-mlp", True


@dataclass(frozen=True, kw_only=True)
class PatchSettings(Patches):
    """`Patches` with every setting a number: one layer by default."""

    atoms: int = 2048
    patch: int = 6
    side: int = 0
    shift: float = 0.075
    power: float = 2.0
    second: int = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of features of each layer: 2 K pool^2 of the first, and 8 per atom of the second, if there is one."""
        first, second = 2 * self.atoms * self.pool**2, 2 * self.second * POOL**2
        return (first, second) if second else (first,)

    @property
    def features(self) -> int:
        """Number of features of all layers."""
        return sum(self.widths)

    @property
    def below(self) -> int:
        """Number of atoms whose responses the second layer reads."""
        return min(BELOW, self.atoms) if self.second else 0

    def averaged(self, f: "Tensor", atoms: int | None = None) -> "Tensor":
        """Returns the first layer's part of features f, averaged over cells, (B, 2 K), or of the first ``atoms`` of the K."""
        signs: Tensor = f[:, : self.widths[0]].unflatten(1, (2, self.atoms, self.pool**2))
        return signs[:, :, :atoms].mean(3).flatten(1)

    def positions(self, shape: Sequence[int]) -> tuple[int, int]:
        """Returns the rows and columns of patches of images of ``shape`` (C, H, W)."""
        rows, columns = (max(0, (n - self.patch) // self.stride + 1) for n in self.shrunk(shape[1], shape[2]))
        return rows, columns

    def shrunk(self, height: int, width: int) -> tuple[int, int]:
        """Returns the size that images are resized to: the settings' side, if both of their sides are larger."""
        small = min(height, width)
        if not 0 < self.side < small:
            return height, width
        return round(height * self.side / small), round(width * self.side / small)

    @property
    def least_side(self) -> int:
        """Smallest side of images, in pixels, with a patch of every copy in every cell of the pooling."""
        cells = max(self.pool, GRID if self.second else 1)
        return self.patch + (cells - 1) * self.stride + (self.copies - 1) * self.stride // self.copies

    def require_size(self, shape: Sequence[int]) -> None:
        """Raises a ValueError unless images of ``shape`` (C, H, W), once they are resized, have the least side."""
        side, least = min(self.shrunk(shape[1], shape[2])), self.least_side
        resized = f" that are resized to {side}" if side < min(shape[1:]) else ""
        alone = self.second and dataclasses.replace(self, second=0).least_side <= side
        advice = "use second=0" if alone else "use smaller patches or pools"
        expect(side >= least, f"images of at least {least} x {least} pixels", f"{shape[1]} x {shape[2]}{resized}", advice)


KINDS: dict[str, type[Encoder]] = {kind.kind: kind for kind in (Small, MLP, Identity, ResNet, Timm, Patches, PatchesMLP, Factory)}
TEXTS = ("small", "small-deep", "mlp", "identity", "resnet18", "resnet34", "resnet50", "timm:NAME", "patches", "patches-mlp")


def as_encoder(value: Encoder | str | Mapping[str, Any]) -> Encoder:
    """Returns an encoder from its text on the command line, from what ``config.json`` holds, or as it is.

    Example:
        >>> as_encoder("patches:atoms=64"), as_encoder("resnet18-cifar"), as_encoder({"kind": "small"})
        ... # doctest: +ELLIPSIS
        (Patches(atoms=64, ...), ResNet(name='resnet18', stem='cifar'), Small(deep=False))
    """
    if isinstance(value, Encoder):
        return value
    if isinstance(value, Mapping):
        require_choice("a kind of encoder", value.get("kind"), KINDS)
        return from_json(KINDS[value["kind"]], dict(value), f"encoder '{value['kind']}'")
    expect(isinstance(value, str), "encoder to be a name or one of vergence.learn.encoders", value)
    head, colon, rest = value.partition(":")
    if head in ("patches", "patches-mlp"):
        return KINDS[head](**_settings(KINDS[head], rest))
    if colon and head == "timm":
        name, _, rest = rest.partition(",")
        return Timm(name, **_settings(Timm, rest))
    if colon:
        return Factory(value)
    network, dash, stem = value.partition("-")
    if network.startswith("resnet") and network in TEXTS and stem in (("cifar", "imagenet") if dash else ("",)):
        return ResNet(typing.cast(Any, network), typing.cast(Any, stem or None))
    require_choice("an encoder", value, (*TEXTS, "package.module:factory"))
    return Small(deep=True) if value == "small-deep" else KINDS[value]()


def _settings(kind: type[Encoder], text: str) -> dict[str, Any]:
    """Returns the settings of a text ``KEY=VALUE,KEY=VALUE``; the encoder checks their types."""
    settings = dict(pair.partition("=")[::2] for pair in text.split(",") if pair)
    fields = {field.name: str(field.type) for field in dataclasses.fields(typing.cast(Any, kind))}
    for key in settings:
        require_choice(f"a setting of encoder '{kind.kind}'", key, fields)
    return {key: _value(value, "float" in fields[key]) for key, value in settings.items()}


def _value(text: str, is_float: bool) -> Any:
    """Returns the whole number, number or flag that a text says, or the text."""
    for convert in (*(() if is_float else (int,)), float, FLAGS.__getitem__):
        with contextlib.suppress(ValueError, KeyError):
            return convert(text)
    return text
