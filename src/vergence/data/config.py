"""Settings of the data and of its random views, as plain dataclasses that do not import torch."""

import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vergence.utils.checks import Checked, did_you_mean, refuse, require_choice, shown

__all__ = ["BUILT_IN", "DataConfig", "ViewConfig", "default_flip", "default_views", "existing"]

IN_MEMORY = "memory: "  # starts the name of data that a program holds
BUILT_IN = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "stl10")

STRENGTHS: dict[str, dict[str, float]] = {
    "features": {},
    "counts": {},
    "spectra": {"noise": 0.1},
    "series": {"noise": 0.1, "mask": 0.1},
    "table": {},
}
Form = Literal["image", "vector", "array", "tokens"]
UNMIRRORED = ("digits", "mnist", "fashion_mnist")  # sets without mirror images: all shoes point to the left


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """Settings of a data source.

    Attributes:
        source: A built-in name (``digits``, ``mnist``, ...), or the path of a folder of images, a ``.npy``, ``.npz`` or
            ``.parquet`` file.
        root: Folder that holds torchvision's data sets.
        download: Whether torchvision may download a missing set.
        size: Side of the square images that the encoder sees, in pixels, at most 8,192; ``None`` keeps an array's own (64 for
            folders).
        holdout: Share of the items held out for evaluation if the source has no test part, in (0, 1).
        calibration_share: Share of the training items that nothing is fitted to, in [0, 1), so that their scores calibrate the
            detector's; 0 keeps none.
        keep_classes: Labels to train on, whole numbers; a folder's classes have 0, 1, ... in the order of their names. The others
            are the anomalies of the evaluation. All by default.
        limit: Largest number of training items, sampled with a fixed seed; no limit by default.
        strict: Whether to refuse unreadable images instead of skipping and listing them.
        form: What an array holds where its shape leaves that open (``kind=`` in Python): ``image``; ``vector``, flattened;
            ``array``, numbers of any shape and range, never cropped or standardized; ``tokens``, ids that stay whole numbers.
    """

    least: typing.ClassVar[dict[str, float]] = {"size": 1, "limit": 2}
    most: typing.ClassVar[dict[str, float]] = {"size": 8192, "limit": 2**40}

    source: str
    root: str | None = None
    download: bool = False
    size: int | None = None
    holdout: float = 0.2
    calibration_share: float = 0.2
    keep_classes: tuple[int, ...] | None = None
    limit: int | None = None
    strict: bool = False
    form: Form | None = None

    @property
    def title(self) -> str:
        """Name for people: that of a file or folder without its path, or what a program holds."""
        return Path(self.source.removeprefix(IN_MEMORY)).name


@dataclass(frozen=True, kw_only=True)
class ViewConfig(Checked):
    """Strengths of the random views; the defaults are MoCo v2's for images.

    Attributes:
        crop: Range of the area of the random resized crop, as shares of the image in (0, 1].
        flip: Probability of a horizontal flip.
        jitter: Strengths of brightness, contrast, saturation and hue.
        jitter_p: Probability of the color jitter.
        grayscale: Probability of grayscale (color images only).
        blur: Probability of Gaussian blur.
        blur_sigma: Range of the blur's standard deviation, in pixels.
        solarize: Probability of solarization (threshold 0.5).
        cover: Rectangles of the image that get a random color in each view, before the crop: top, left, height and width of each
            in pixels, one after the other. For marks that no view changes otherwise, such as a stamp (docs/guides/advice.md).
        kind: Vectors: ``features``, of the three strengths that follow; ``counts``, ``spectra``, ``series`` or ``table``, with
            operations of their own (`vergence.learn.views.vectors`) and default strengths (`default_views`).
        noise: Vectors: standard deviation of additive Gaussian noise, in units of the data's standard deviation.
        mask: Vectors: probability that a feature is replaced by its mean.
        scale: Vectors: standard deviation of the logarithm of a factor per sample.
        thin: Counts: share of each count that is dropped, in [0, 1).
        shift: Spectra: largest shift, as a share of the features, in [0, 1).
        baseline: Spectra: standard deviation of a quadratic baseline's coefficients, in units of the data's.
        window: Series: range of the share of the series that a view shows, in (0, 1].
        warp: Series: standard deviation of the bends of time, as a share of the length.
        phases: Series: share of the frequencies that are moved by a random phase, in [0, 1].
        swap: Table: probability that a value is replaced by another one of its column.
        function: Name of a function of one's own that makes the views instead; `vergence.train` sets it.
        n_views: Views of the whole item, of which a loss is the mean over pairs (docs/how-to/more_views.md).
        local_views: Images: small crops next to them, which are paired with views of the whole image alone.
        local_size: Their side in pixels; by default 3/7 of the images' (96 of 224), rounded to a multiple of 4.
        local_crop: Range of their area, as shares of the image in (0, 1].
    """

    finite = True
    least: typing.ClassVar[dict[str, float]] = {"n_views": 2, "local_views": 0, "local_size": 2}
    most: typing.ClassVar[dict[str, float]] = {"n_views": 256, "local_views": 256, "local_size": 8192}
    of_any = ("n_views", "function")
    # the others are strengths of images' views
    of_vectors = ("kind", "noise", "mask", "scale", "thin", "shift", "baseline", "window", "warp", "phases", "swap")

    crop: tuple[float, float] = (0.2, 1.0)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    jitter_p: float = 0.8
    grayscale: float = 0.2
    blur: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0
    cover: tuple[int, ...] = ()
    kind: Literal["features", "counts", "spectra", "series", "table"] = "features"
    noise: float = 0.3
    mask: float = 0.2
    scale: float = 0.1
    thin: float = 0.5
    shift: float = 0.02
    baseline: float = 0.5
    window: tuple[float, float] = (0.7, 1.0)
    warp: float = 0.05
    phases: float = 0.0
    swap: float = 0.4
    function: str | None = None
    n_views: int = 2
    local_views: int = 0
    local_size: int | None = None
    local_crop: tuple[float, float] = (0.05, 0.4)


def default_views(kind: str) -> dict[str, Any]:
    """Returns the settings of ``--views NAME``: the kind of views, and strengths that differ from the defaults.

    A name ``package.module:function`` is imported, and makes the views (`vergence.learn.views.images.GivenViews`).
    """
    if ":" in kind:
        from vergence.utils.files import load_outside, register_outside

        return {"function": register_outside(load_outside("views", kind, "package.module:function"))}
    require_choice("views", kind, STRENGTHS, "or package.module:function")
    return {"kind": kind, **STRENGTHS[kind]}


def default_flip(source: str) -> float:
    """Returns the probability of a horizontal flip that suits a source: 0 for built-in sets without mirror images, else 0.5.

    Example:
        >>> default_flip("digits"), default_flip("photographs/")
        (0.0, 0.5)
    """
    return 0.0 if source.partition(":")[0] in UNMIRRORED else 0.5


def existing(source: str) -> Path:
    """Returns the path of an existing file or folder."""
    known = f"the path of the data, or one of {', '.join(BUILT_IN)}"
    path = path_of(source) if source.strip() else None
    if path is None:
        near = did_you_mean(source.lower(), BUILT_IN) if Path(source).name == source else ""
        refuse(f"data at {shown(source)}", "no such file or folder", near or f"give {known}")
    return path


def path_of(source: str) -> Path | None:
    """Returns the path of a file or folder; None where there is none, or the text cannot be a path."""
    try:
        path = Path(source).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None
