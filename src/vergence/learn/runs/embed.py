"""`embed`: embeddings of every item as a table, with what else the run says of each."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from torch import Tensor

from vergence.data.items import Items
from vergence.learn.encoders.patch_maps import wide_features
from vergence.learn.methods.core import Method
from vergence.learn.objectives.core import DensityObjective
from vergence.learn.runs.rows import Columns, Images, Reading, by_parts, of_crops, of_model, views_of, write_rows
from vergence.learn.runs.run import Run
from vergence.learn.runs.shards import shard_written
from vergence.learn.views.images import Views
from vergence.utils.checks import require_count
from vergence.utils.digests import digest_of
from vergence.utils.files import as_path
from vergence.utils.parts import Shard

__all__ = ["embedded", "write_embeddings"]


def write_embeddings(
    run: Run,
    images: Images,
    out: str | Path,
    *,
    crops: int = 0,
    wide: bool = False,
    batch_size: int = 256,
    workers: int = 2,
    shard: Shard | None = None,
    about: Mapping[str, str] = MappingProxyType({}),
    files: int = 0,
) -> int | None:
    """Writes name, label, z, posterior mean and variance, and log-density of every item; returns the number of rows.

    Without labels there is no label, -1 is an unknown one; without a density there are name, label and z. The log-density,
    log p(z | z) of an item and itself, needs one encoder for both views. Memory does not grow with the number of items. What
    cannot be read is listed in ``OUT.skipped.csv``. Finished parts are kept in ``.OUT.parts`` until all is written: the same
    call after a kill continues from them.

    Args:
        run: The run.
        images: Items, as `Run` takes them.
        out: ``.npz``, ``.csv`` or ``.parquet`` file; of a shard the folder of all parts.
        crops: Number of random views of each item, 2 or more, which add ``z_crops`` and ``spread`` (`Run.spread`); 0 for none.
        wide: Whether ``wide`` is written, too (`vergence.learn.encoders.patch_maps.wide_features`).
        batch_size: Items at a time.
        workers: Processes that decode images.
        shard: The part of the items to write; see `vergence.learn.runs.shards.shard_written`.
        about: What the record of a shard says, too: ``run``, ``source`` and ``name`` of the items.
        files: As of `vergence.learn.runs.shards.shard_written`.
    """
    out = as_path(out, "out")
    if crops:
        require_count(2, crops=crops)
    views = views_of(run.folder, run.method) if crops else None
    more = {name: value for name, value in {"crops": crops, "wide": wide}.items() if value}
    job = {"job": "embed", **more, **of_model(run.folder, run.method)}
    reading = Reading(**run.where(), batch_size=batch_size, workers=workers)
    items = run.items(images)
    labeled = not (items.labels is None or bool((items.labels < 0).all()))
    job["labels"] = labeled
    function = embedded(run.method, views, crops, wide)

    def write(some: Items, file: Path) -> int:
        return write_rows(function, some, file, job, reading, labels=some.labels if labeled else None)

    if shard is None:
        return write(items, out)
    kind = {"verb": "embed", "job": digest_of([json.dumps(job, sort_keys=True)]), **about}
    return shard_written(shard, out, items, write, kind, batch_size=batch_size, files=files)


def embedded(method: Method, views: Views | None = None, crops: int = 0, wide: bool = False) -> Callable[[Tensor], Columns]:
    """Returns the function of a batch of items that computes what `write_embeddings` writes of each."""
    objective, more = method.objective, {"wide": wide_features(method.encoder)} if wide else {}

    def belief(z: Tensor) -> Columns:
        assert isinstance(objective, DensityObjective)
        posterior = objective.posterior(z)
        columns = {"mean": posterior.mean, "variance": posterior.variance}
        return columns if method.target_encoder is not None else columns | {"log_density": objective.log_prob(z, z)}

    def columns(x: Tensor) -> Columns:
        z = method.encoder(x)
        written = {"z": z, **{name: net(x) for name, net in more.items()}}
        written |= {} if views is None else of_crops(method.encoder, views, x, crops)
        return written | by_parts(belief, objective, method.projector(z)) if isinstance(objective, DensityObjective) else written

    return columns
