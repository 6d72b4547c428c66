"""`check`: anomalies in a collection of images or vectors, where and why; duplicates, leakage and files that cannot be read.

    source -> first pass over each image -> duplicates -> feature sets, out of fold -> decisions -> CheckResult

With a reference all of it calibrates (`vergence.images.reference`). Without one the images are put in order, and none is flagged
(`vergence.images.order`). Folds and samples follow the images' content, so that names and order do not matter.

Shapes: N images, n of them different from each other; L feature sets; D features of the embedding.
"""

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vergence.data.image_list import ImageList, of_numpy, open_images
from vergence.data.items import RowNames
from vergence.data.pixels import luma, resize
from vergence.data.sources import open_items
from vergence.images.duplicates import Duplicates, find_duplicates
from vergence.images.features import PART, FirstPass, ImageFeatures, SmallImages, rows_of, stamp
from vergence.images.frozen import FrozenNetwork, at_hand, named_network
from vergence.images.labels import names_by
from vergence.images.order import ordered_images, ordered_vectors
from vergence.images.reference import vectors_with_reference, with_reference
from vergence.images.result import ENCODER, ONLY, PATCHES, Anomalies, CheckResult, CheckSettings, result_of
from vergence.images.review import Review
from vergence.utils.checks import counted, expect, refuse
from vergence.utils.dtypes import Bools, Floats, Ints
from vergence.utils.files import explained, require_apart
from vergence.utils.parts import Parts, open_parts

__all__ = ["check"]

WRITTEN = ("items.parquet", "items.csv", "embeddings.npy")  # results that could be read
Named = tuple[Sequence[str] | None, Floats]  # names, None where they are numbers, and vectors (N, D)
VARIABLE = "VERGENCE_ENCODER"  # of the environment: what ``auto`` takes


def check(
    source: Any,
    *,
    against: Any = None,
    out: str | Path | None = None,
    heatmaps: str | Path | None = None,
    leaks: bool = False,
    encoder: str | nn.Module = ENCODER,
    vectors: Any = None,
    against_vectors: Any = None,
    size: int = 256,
    fdr: float = 0.1,
    region_rate: float = 0.05,
    confirmed: Review | Sequence[str] | Mapping[str, str] = (),
    groups: str | Sequence[Any] | None = None,
    labels: str | Sequence[Any] | None = None,
    map: str = "tsne",
    only: str | Sequence[str] = (),
    agreement: float | None = None,
    keep: str | None = None,
    column: str | None = None,
    range: str | Sequence[float] | None = None,
    channel: str | int | None = None,
    root: str | None = None,
    trust_code: bool = False,
    workers: int = 2,
) -> CheckResult:
    """Returns the anomalies among images or vectors, where and why, and which are duplicates of others.

    Args:
        source: Images: a folder of any depth, a file, a list of paths or of PIL images, an array, a ``.parquet`` or ``.csv``
            file with a column of paths or of encoded bytes, a tar, the name of a built-in set, or items of this library. Or
            vectors (N, D) that another model computed: an array, or a ``.npy``, ``.npz`` or ``.parquet`` file.
        against: Reference: normal images or vectors, at least 20 different ones, from which p-values follow. By default there is
            none, and nothing is flagged: the images are in order, the most anomalous first.
        out: Folder in which the results are written, none of it inside the source; None writes nothing.
        heatmaps: Folder for a PNG of each image that is flagged or has an anomalous region, with its heatmap; None for none.
        leaks: Only say which images are duplicates of those in ``against``.
        encoder: ``auto``, the best network on this machine, else patches; ``patches``, which needs no network; ``timm:NAME``,
            ``efficientnet-lite0`` or a folder that ``vergence fetch`` wrote; a run's folder; or a module that maps images
            (B, 3, H, W) to embeddings.
        vectors: Embeddings of the images by any model, as one more feature set: an array (N, D) in their order, or a file, whose
            names are the images' where it has names.
        against_vectors: The same of the images in ``against``.
        size: Pixels of the shorter side at which regions are examined, at most.
        fdr: Share of false alarms among the flags, at most, on average over folders, in (0, 1).
        region_rate: Share of normal images in which any region is framed, at most, in (0, 1).
        confirmed: Marks of a person: names of anomalies, or ``anomaly``, ``normal`` or ``reference anomaly`` by
            name. No fit sees anomalies, neither is flagged again; without a reference, what is less anomalous than a normal one
            is no longer improbable.
        groups: Where an image's part, plate, patient or camera is named: ``folder``, ``prefix`` (the name before its last ``_``,
            ``-``, ``.`` or space), a column of the table, a regular expression, or one of each image. They share folds. Where
            each group has 20 reference images, images are compared with those of their group; otherwise a group counts as one.
            With a reference a pair: those of its images come second.
        labels: Where the label of an image is named, as for ``groups``: images that another label fits better are listed.
        map: How the map of all images is made: ``tsne`` or ``pca``.
        only: ``duplicates``, ``properties`` or both, as a list or with commas: no anomalies are searched, in less time.
        agreement: Least agreement of duplicates that are reported, in (0, 1]; exact ones have 1. By default all are.
        keep: ``best`` to list, in ``remove``, all but the best image of each set of exact and near duplicates.
        column: Column of a table that holds the images.
        range: Numbers that are shown as 0 and 255, such as ``(0, 4095)``: the same for all images. By default the numbers of
            some images decide, of ``against`` where there is one.
        channel: The one channel that is judged: a number from 0, or ``red``, ``green`` or ``blue``. By default all are.
        root: Folder of torchvision's data sets.
        trust_code: Whether a run that ``encoder`` names may import code that is not the library's.
        workers: Processes that read images.

    Raises:
        ValueError: A setting is out of its range, there is no image, or the results cannot be written.

    Example:
        >>> found = check("digits")
        >>> len(found.items["path"]), found.summary["images"]
        (359, 359)
    """
    expect(not leaks or against is not None, "`leaks` with another source", "none", "name it with `against`")
    for place in (Path(folder) for folder in (out, heatmaps) if folder is not None):
        require_apart(place, (source, against), inside=True)
        for file in WRITTEN:
            require_apart(place / file, (source, against, vectors, against_vectors))
    settings = CheckSettings(size, fdr, region_rate, workers, Review.of(confirmed), groups, labels, map)
    parts = tuple(filter(None, only.replace(" ", "").split(",")) if isinstance(only, str) else only) or (ONLY if leaks else ())
    settings = replace(settings, only=parts, agreement=agreement, keep=keep)
    named = [name for name, of in (("groups", groups), ("labels", labels)) if of is not None]
    searched = f"a search for anomalies with `{'` and `'.join(named)}`"
    expect(not (parts and named), searched, f"`{'leaks' if leaks else 'only'}`", "leave one out")
    name = Path(source).name or str(source) if isinstance(source, str | Path) else f"a {type(source).__name__}"
    if (given := _vectors(source)) is not None:
        other = None if against is None else _vectors(against)
        expect(against is None or other is not None, "vectors to compare vectors with", against, "name others")
        alone = not (parts or keep or agreement) and vectors is None and groups is None and labels is None
        expect(alone, "images with these options", "vectors", "leave them out")
        result = _of_vectors(given, other, replace(settings, encoder="none, vectors as given"), name)
        if out is not None:
            result.write(out)
    else:
        expect(against is None or parts != ("properties",), "only duplicates with a reference", "properties", "leave one out")
        both = against is None or (vectors is None) == (against_vectors is None)
        expect(both, "vectors of the images and of the reference", "one of them", "give `vectors` and `against_vectors`, or none")
        expect(against is not None or against_vectors is None, "a reference for `against_vectors`", "none", "give `against`")
        settings = replace(settings, encoder="none") if parts else _with_encoder(settings, encoder, trust_code)
        read: dict[str, Any] = {"root": root, "column": column, "range": range, "channel": channel}
        reference = None if against is None else open_images(against, **read)
        images = open_images(source, **read, like=reference)
        given, folder = (vectors, against_vectors), None if out is None else Path(out)
        result = _of_images(name, images, reference, settings, given, folder)
    if heatmaps is not None:
        result.write_heatmaps(heatmaps)
    return result


def _with_encoder(settings: CheckSettings, encoder: str | nn.Module, trust_code: bool) -> CheckSettings:
    """Returns the settings with what gives features."""
    if isinstance(encoder, nn.Module):
        return replace(settings, network=FrozenNetwork(encoder, type(encoder).__name__), encoder=type(encoder).__name__)
    encoder = os.environ.get(VARIABLE, ENCODER) if encoder == ENCODER else encoder
    if encoder == PATCHES:
        return replace(settings, encoder=PATCHES)
    if (Path(encoder) / "config.json").is_file():
        from vergence.learn.runs.run import load  # a run as encoder alone needs the trainer

        run = load(Path(encoder), device="cpu", trust_code=trust_code)
        return replace(settings, embed=_RunEmbedding(run.method.encoder, run.folder.metadata.shape), encoder=f"the run {encoder}")
    network = at_hand() if encoder == ENCODER else named_network(encoder)
    if network is None:
        return replace(settings, encoder=f"{PATCHES}, since no network is on this machine (vergence[eyes] brings one)")
    license = f"; license of the weights: {network.license}" if network.license else ""
    return replace(settings, network=network, encoder=f"{network.name}{license}")


class _RunEmbedding:
    """The encoder of a run on whole images, stretched to its size."""

    def __init__(self, encoder: nn.Module, shape: Sequence[int]) -> None:
        expect(len(shape) == 3, "a run of images as encoder", f"one of items of shape {tuple(shape)}", "name another")
        self.encoder, self.shape = encoder.eval(), tuple(shape)

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        first = next(itertools.chain(self.encoder.parameters(), self.encoder.buffers()), x)
        small = resize(x[None], *self.shape[1:]).to(first.dtype)
        z: Tensor = self.encoder(luma(small) if self.shape[0] == 1 else small)
        return z.flatten(1)[0]


def _parts(stack: ExitStack, out: Path | None, job: Mapping[str, Any], step: str, images: ImageList) -> Parts | None:
    """Returns the finished parts of a step on files, behind which the same call goes on; None for others, or without a folder."""
    if out is None or images.folder is None:
        return None
    job = {**job, "step": step, "images": stamp(images)}
    return stack.enter_context(open_parts(out / step, job, every=PART, joined=False))


def _of_images(
    name: str, images: ImageList, reference: ImageList | None, settings: CheckSettings, vectors: tuple[Any, Any], out: Path | None
) -> CheckResult:
    with ExitStack() as stack:
        if out is not None:
            with explained(out, "choose another `out`"):
                out.mkdir(parents=True, exist_ok=True)
        job = {"job": "check", "size": settings.size, "encoder": settings.encoder, "marks": str(settings.review)}
        kept = functools.partial(_parts, stack, out, {**job, "groups": str(settings.groups)})
        paired, (one, other) = "duplicates" in (settings.only or ONLY), settings.sides(reference is not None)
        features = _image_features(images, one, vectors[0], kept("images", images))
        theirs = None if reference is None else _image_features(reference, other, vectors[1], kept("reference", reference))
        duplicates = find_duplicates(features.small, features.digest, features.read) if paired else Duplicates.none()
        anomalies, leaked, others, notes = None, None, list[str](), list[str]()
        if theirs is not None and reference is not None:
            others, given = list(theirs.names), (theirs.small, theirs.digest, theirs.read)
            leaked = find_duplicates(features.small, features.digest, features.read, *given)
            part = not settings.only and np.isin(theirs.digest, features.digest).all()
            if part and (own := _of_reference(features, images, reference, theirs.index)).any():
                leaked = leaked.where(~own[leaked.pairs[:, 0]])
                notes = [f"Not judged: {counted(int(own.sum()), 'image')} of the reference itself."]
            anomalies = None if settings.only else with_reference(features, theirs, settings)
            if anomalies is not None and anomalies.nearest:  # near ones show the same part
                leaked = leaked.where(np.array([kind == "exact" for kind in leaked.kind], dtype=bool))
                if settings.review.marked(features.names, "normal").any():
                    notes.append("What is less anomalous than an image marked normal is not flagged.")
        elif not settings.only:
            anomalies, notes = ordered_images(features, duplicates, settings, kept("regions", images))
        here = [*features.names, *(s.name for s in images.skipped), *others]
        notes += settings.review.notes(here)
        result = result_of(name, images, features, settings, duplicates, anomalies, notes, reference, theirs, leaked)
        if out is not None:
            result.write(out)
    return result


def _of_reference(features: ImageFeatures, images: ImageList, reference: ImageList, index: Ints) -> Bools:
    """Returns which images are files of the reference, (N,), if it is a part of the images, as those marked normal are."""
    theirs = {path and path.resolve() for path in (reference.path(i) for i in index.tolist())}
    paths = [path and path.resolve() for path in (images.path(i) for i in features.index.tolist())]
    part = None not in theirs and theirs <= set(paths)
    return np.array([part and path in theirs for path in paths], dtype=bool)


def _image_features(images: ImageList, settings: CheckSettings, vectors: Any, kept: Parts | None) -> ImageFeatures:
    """Returns what the first pass over each image gives, and the images at the size that later steps read."""
    small = SmallImages(images, settings.kept)

    def keep(i: int, row: dict[str, Any]) -> None:
        small.keep(i, row.pop("pixels"), int(row["digest"]))

    first = FirstPass(settings.kept, not settings.only)
    columns: dict[str, Any] = rows_of(first, images, range(len(images)), settings.workers, "images", kept, keep)
    if not columns:
        one = images.skipped[0] if images.skipped else None
        refuse("images that can be read", "none" if one is None else f"none: {one.name} ({one.reason})", "give others")
    index = columns.pop("index")
    some = index.tolist()
    given = None if vectors is None else _vectors_of(vectors, images, some)
    groups, labels = (names_by(images, some, getattr(settings, of), of) for of in ("groups", "labels"))
    names = [images.names[i] for i in some]
    return ImageFeatures(index, names, given, **columns, images=small, groups=groups, labels=labels)


def _vectors_of(vectors: Any, images: ImageList, index: Sequence[int]) -> Floats:
    """Returns the vectors of the images that could be read, by their names where the vectors have names."""
    given = _vectors(vectors)
    if given is None:
        refuse("vectors: an array (N, D), or a .npy, .npz or .parquet file of them", vectors, "give others")
    names, x = given
    if names is None:
        expect(len(x) == len(images), f"one vector for each of {len(images)} images", len(x), "give them with names")
        return np.asarray(x[np.array(index)])
    place = {name: i for i, name in enumerate(names)}
    missing = [images.names[i] for i in index if images.names[i] not in place]
    named = f"none for {len(missing)} (first: {missing[0]})" if missing else ""
    expect(not missing, "a vector for each image, by its name", named, "write names as in items.csv")
    return np.asarray(x[[place[images.names[i]] for i in index]])


# Vectors alone


def _vectors(source: Any) -> Named | None:
    """Returns the names and the vectors of a source; None where it holds no vectors."""
    if isinstance(source, str | Path):
        path = Path(source)
        table = path.suffix.lower() == ".parquet"
        if not table and (path.suffix.lower() not in (".npy", ".npz") or (path.is_file() and of_numpy(path) is not None)):
            return None
        try:
            items = open_items(str(source))
        except ValueError:
            if table:  # perhaps of images
                return None
            raise
    elif isinstance(source, np.ndarray | Tensor) and source.ndim == 2 and getattr(source.dtype, "kind", "f") not in "OUS":
        items = open_items(source)
    else:
        return None
    if len(items.shape) != 1:
        return None
    x = torch.cat([part for _, part in items.stream([torch.arange(len(items))])]).double().numpy()
    return None if isinstance(items.names, RowNames) else list(items.names), x


def _of_vectors(given: Named, reference: Named | None, settings: CheckSettings, name: str) -> CheckResult:
    """Returns what is anomalous among vectors; clusters that lie apart are groups."""
    names, x = given[0] or [str(i) for i in range(len(given[1]))], given[1]
    features = ImageFeatures.of_vectors(names, x)
    images = ImageList(names, [None] * len(names))
    others = [] if reference is None else reference[0] or [str(i) for i in range(len(reference[1]))]
    notes = settings.review.notes([*names, *others])
    if reference is not None:
        anomalies: Anomalies | None = vectors_with_reference(features, others, reference[1], settings)
    else:
        anomalies, first = ordered_vectors(features, settings)
        notes = [*first, *notes]
    return result_of(name, images, features, settings, Duplicates.none(), anomalies, notes)
