"""Items in, rows out, in bounded memory: what the verbs share that compute something of every item.

A job that is stopped continues from its finished parts (`vergence.utils.parts`); digests of the model and of the
items tell which parts are its own.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vergence.data import sources
from vergence.data.arrays import holds_pairs
from vergence.data.images import ImageFiles, file_name
from vergence.data.items import ArrayItems, Items, PairItems, Skipped
from vergence.data.shards import EncodedImages
from vergence.data.sources import IN_MEMORY, Data, is_object, open_data
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.learn.encoders import networks
from vergence.learn.evaluation import features
from vergence.learn.evaluation.uncertainty import crop_spread
from vergence.learn.methods.core import Method, Side
from vergence.learn.objectives.core import ConditionalObjective, DensityObjective, Objective
from vergence.learn.runs.calibrated import Collected, sample
from vergence.learn.runs.features import RunFeatures
from vergence.learn.training import build
from vergence.learn.training.calibration import digests
from vergence.learn.training.folder import RunFolder, write_skipped
from vergence.learn.views.images import Views
from vergence.learn.views.vectors import Marginals
from vergence.utils.checks import expect, refuse, require_choice, require_count
from vergence.utils.devices import fixed_noise
from vergence.utils.digests import digest_of, of_array, stamp
from vergence.utils.parts import Derived, open_parts, require_table
from vergence.utils.terminal import bar

__all__ = ["Columns", "Reading", "collected", "objective_scores", "parts", "stream", "write_rows"]

MAX_NUMBERS = 1 << 24  # numbers of a mixture's density, held at a time
MOST_ITEMS, MOST_BYTES = 50_000, 256 << 20  # of the items whose features are held, sampled at random
Images = Any  # what `vergence.data.sources.from_object` opens, or a path or a built-in name
Columns = dict[str, Any]  # name -> tensor (B,) or (B, D), written as float32; an array, or a list of texts, as it is


@dataclass(frozen=True)
class Reading:
    """How items are read.

    ``size`` is the side of the central crop in pixels, None for none; what is computed of ``batch_size`` items at a time is on
    the device; so many ``workers`` decode images.
    """

    size: int | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    batch_size: int = 256
    workers: int = 0


def parts(objective: Objective | DensityObjective, z: Tensor, most: int = 4096) -> tuple[Tensor, ...]:
    """Splits embeddings (N, D) of the objective's space, ``most`` at a time, so that items by components by features stay few."""
    density = objective.conditional(z[:1]) if isinstance(objective, ConditionalObjective) and len(z) else None
    K = density.weights.shape[-1] if isinstance(density, MixtureOfGaussians) else 1
    split: tuple[Tensor, ...] = z.split(max(1, min(most, MAX_NUMBERS // (K * z.shape[1]))))
    return split


def by_parts(function: Callable[[Tensor], Columns], objective: Objective | DensityObjective, z: Tensor) -> Columns:
    """Returns the columns that a function of embeddings (N, D) gives, computed in `parts`."""
    columns = [function(part) for part in parts(objective, z)]
    return {name: torch.cat([part[name] for part in columns]) for name in columns[0]}


def stream(function: Callable[[Tensor], Columns], items: Items, reading: Reading) -> Iterator[tuple[Tensor, Columns]]:
    """Yields (index, columns) of each batch of items; samples have the same noise in every batch."""
    return features.stream_batches(fixed_noise()(function), items, **vars(reading))


def _batches(
    function: Callable[[Tensor], Columns], items: Items, chosen: Tensor, reading: Reading
) -> Iterator[tuple[Tensor, Columns, int, list[tuple[str, str]]]]:
    """Yields of each batch of chosen items index and columns of those that could be read, its size, and the others."""
    part = items.subset(chosen)
    seen = len(part.skipped)
    starts = range(0, len(part), reading.batch_size)
    for start, (index, columns) in zip(starts, stream(function, part, reading), strict=True):
        new, seen = part.skipped[seen:], len(part.skipped)
        yield chosen[index], columns, min(reading.batch_size, len(part) - start), [(one.name, one.reason) for one in new]


def write_rows(
    function: Callable[[Tensor], Columns],
    items: Items,
    out: Path,
    job: Mapping[str, Any],
    reading: Reading,
    derived: Derived | None = None,
    labels: Tensor | None = None,
) -> int:
    """Writes name, label (where there are ``labels`` (N,)) and columns of every item to a file; returns the number of rows.

    The rows are kept in parts next to ``out`` until all are there (see `vergence.utils.parts`): the same call after a kill, a
    signal or a full disk continues from the last part. What cannot be read is listed in ``OUT.skipped.csv``.

    ``job`` is what determines the rows, apart from the items and how they are read: the verb and the model; ``derived`` columns
    are computed when all rows are there.
    """
    require_table(out)  # before the items are read for their digest
    how = {"size": reading.size, "device": reading.device.type, "batch_size": reading.batch_size}
    with open_parts(out, {**job, **how, "source": of_items(items)}, derived=derived) as kept:
        repeated = [(one.name, one.reason) for one in items.skipped]
        with bar(out.name, len(items)) as advance:
            advance(kept.done)
            given = items if len(items) else ArrayItems(torch.zeros(1, *items.shape))  # whose columns are those of no rows
            for index, columns, n, skipped in _batches(function, given, torch.arange(kept.done, len(given)), reading):
                arrays = {name: v.float().cpu().numpy() if isinstance(v, Tensor) else v for name, v in columns.items()}
                if not len(items):
                    kept.append({"name": [], **{name: values[:0] for name, values in arrays.items()}}, 0)
                    break
                label = {} if labels is None else {"label": labels[index].numpy()}
                kept.append({"name": [items.names[i] for i in index.tolist()], **label, **arrays}, n, skipped)
                advance(len(index))
        listed = list(dict.fromkeys(repeated + kept.skipped))
        if not kept.rows and len(items):
            kept.clear()
            refuse("items that can be read", f"none of {len(items)}; the first, {listed[0][0]}: {listed[0][1]}")
        items.skipped = [Skipped(*pair) for pair in listed]
        write_skipped(out.with_name(f"{out.name}.skipped.csv"), items.skipped)
        return kept.rows


def collected(
    features_of: RunFeatures, items: Items, reading: Reading, advance: Callable[[int], None] = lambda n: None
) -> Collected:
    """Returns the features of all items, or of a sample of at most 50,000, or of 256 MiB, where there are more.

    What cannot be read is listed in ``items.skipped``. ``advance`` is called with the number of items of each batch.
    """
    chosen = sample(len(items), max(1, min(MOST_ITEMS, MOST_BYTES // (4 * sum(features_of.widths().values())))))

    def columns(x: Tensor) -> Columns:
        return {"digest": digests(x), **{name: f.cpu().numpy() for name, f in features_of(x).items()}}

    places, rows, listed = [torch.zeros(0, dtype=torch.int64)], list[Columns](), list[Skipped]()
    for part, found, _, skipped in _batches(columns, items, chosen, reading):
        places.append(part)
        rows.append(found)
        listed += [Skipped(*pair) for pair in skipped]
        advance(len(part))
    items.skipped += [one for one in listed if one not in items.skipped]
    index = torch.cat(places)
    expect(len(index), "items that can be read", f"none of {len(items)}", "give others")
    whole = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    own = whole.pop("digest")
    return Collected(whole, index, [items.names[i] for i in index.tolist()], own)


def of_module(module: nn.Module) -> str:
    """Returns a digest of a module's tensors and of its text form.

    Example:
        >>> of_module(nn.Identity()) == of_module(nn.Identity()), of_module(nn.Identity()) == of_module(nn.ReLU())
        (True, False)
    """
    state = module.state_dict()
    return digest_of([repr(module), *(part for name in sorted(state) for part in (name, of_array(state[name])))])


def of_model(folder: RunFolder, method: nn.Module) -> dict[str, Any]:
    """Returns what determines a run's embeddings and scores: a digest of its tensors, and its description."""
    return {"model": of_module(method), "configuration": json.dumps(folder.config.to_dict()["model"], default=repr)}


def of_items(items: Items) -> str:
    """Returns a digest of the items to read: names, sizes and times of files, or the values of an array in memory.

    Of items of one's own, whose values are not known before they are read, it is a random number.
    """
    if isinstance(items, PairItems):
        return digest_of([of_items(side) for side in items.sides.values()])
    if isinstance(items, ArrayItems):
        rows = "" if items.rows is None else of_array(items.rows)
        return digest_of([of_array(items.array), rows, str(items.shape), str(items.dtype)])
    if isinstance(items, EncodedImages):
        return digest_of(items.stamps)
    if isinstance(items, ImageFiles):
        files = (part for name in items.names for part in (name, *stamp(items.folder / file_name(name))))
        return digest_of([str(items.folder.resolve()), str(items.shape), *files])
    return secrets.token_hex(16)


def whole(folder: RunFolder) -> Data:
    """Returns a run's data as they were opened, before a calibration part was taken out."""
    config = folder.config
    lost = config.data.source.startswith(IN_MEMORY) and not folder.given
    what = f"the data of the training, {config.data.source.removeprefix(IN_MEMORY)}, which no file holds"
    expect(not lost, what, advice="open the run in Python with vergence.load(path, data=...)")
    return open_data(config.data, workers=config.fit.workers, **folder.given)


def items_of(folder: RunFolder, images: Images, root: str | None = None, side: Side = "context", gaps: bool = False) -> Items:
    """Returns items of a run's shape; see `vergence.learn.runs.run.Run.items`."""
    config, shape, in_memory = folder.config.data, folder.metadata.item_shape(side), is_object(images)
    if (names := tuple(folder.metadata.modalities)) and in_memory and not isinstance(images, Items):
        name = names[0] if side == "context" else side
        opened = sources.open_items(images if isinstance(images, Mapping) else {name: images})
        assert isinstance(opened, PairItems), "of a dictionary"
        require_choice("a modality", name, opened.sides)
        return sources.with_shape(opened.sides[name], shape, name)
    if isinstance(images, Items):
        return images.target if side == "target" and isinstance(images, PairItems) else images
    source = images if in_memory else sources.as_source(images)
    both = isinstance(images, tuple) and len(images) == 2 if in_memory else holds_pairs(Path(source))
    pairs = side == "target" and both
    how: dict[str, Any] = {"root": root or config.root, "download": config.download, "holdout": config.holdout}
    how |= {"trained_on": config.source, "kind": config.form, "gaps": gaps and not pairs}
    columns = folder.metadata.columns if side == "context" else ()
    items = sources.open_items(source, shape=folder.metadata.item_shape() if pairs else shape, columns=columns, **how)
    if not (pairs and isinstance(items, PairItems)):
        return items
    return sources.with_shape(items.target, shape, "the targets" if in_memory else source)


def views_of(folder: RunFolder, method: Method) -> Views:
    """Returns the random views that a run was trained with."""
    folder.register_code()
    metadata, standardize = folder.metadata, networks.standardization(method.encoder)
    single = metadata.kind not in ("pairs", "modalities")
    expect(single, "a run on single items for random views", f"one on {metadata.kind}", "leave crops out")
    config = folder.config.views

    def marginals() -> Marginals:
        if config.kind == "table" or metadata.kind == "array":  # of which the data alone know
            return build.marginals_of(whole(folder).train, config)
        return Marginals(standardize.mean.flatten(), standardize.std.flatten())

    return build.views_for(metadata.kind, config, metadata.shape, marginals)


def of_crops(encoder: nn.Module, views: Views, x: Tensor, crops: int, seed: int = 0) -> Columns:
    """Returns ``z_crops`` (B, D), the mean direction of the embeddings of random views, and ``spread`` (B,), how they differ.

    There are ``crops`` >= 2 views of each of the items x (B, ...). They follow from the seed, the item's place in the batch and
    the batch's size: with other batches the results differ by the noise of so few views.
    """
    require_count(2, crops=crops)
    generator = torch.Generator().manual_seed(seed)
    mean, spread = crop_spread(torch.stack([encoder(views(x, generator)).float() for _ in range(crops)]))
    return {"z_crops": mean, "spread": spread}


def objective_scores(method: Method, z: Tensor) -> Columns:
    """Returns the scores of the objective's own for embeddings (B, D), by name; none without a density."""
    objective = method.objective
    return by_parts(objective.scores, objective, method.projector(z)) if isinstance(objective, DensityObjective) else {}
