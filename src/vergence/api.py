"""The library in three calls: `train` makes a run, `load` opens one, and a `Run` embeds, scores and evaluates."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from vergence import assembly, data, recipes, training
from vergence.config import RunConfig
from vergence.data import Data, Items
from vergence.devices import as_device
from vergence.evaluation import features
from vergence.files import open_table
from vergence.methods.paired import PairedMethod
from vergence.objectives.core import DensityObjective
from vergence.runs import RunFolder
from vergence.terminal import bar
from vergence.views import Views

__all__ = ["Run", "load", "train"]

Images = str | Path | np.ndarray | Tensor | Items


def train(
    source: str | RunConfig | None = None,
    *,
    out: str | Path,
    recipe: str = "vje_small",
    resume: bool = False,
    **settings: Any,
) -> "Run":
    """Trains an encoder and an objective, writes a run folder, and returns the run.

    Args:
        source: A built-in data set's name, a path (see `vergence.config.DataConfig`), or a whole run description. When
            resuming it may be left out.
        out: The run folder.
        recipe: Name of the recipe that the settings start from (`vergence.recipes.names`).
        resume: Go on with the run in ``out`` from its last checkpoint. Settings that are given must be those of the run.
        **settings: Fields of the run's description by name, such as ``epochs=20`` or ``encoder="resnet18"``.

    Returns:
        The trained run.

    Raises:
        ValueError: A setting, the data, or the folder is not usable; the message says what to do.
        vergence.training.Interrupted: SIGINT or SIGTERM came; the run can be resumed.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> run = train("digits", out=folder + "/run", epochs=1, limit=256, device="cpu", precision="fp32")
        >>> run.score(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
        torch.Size([2])
    """
    out = Path(out)
    if resume:
        folder = RunFolder.open(out)
        config = folder.config
        _require_unchanged(config, source, settings)
    else:
        config = describe(source, recipe, settings)
        if (out / "config.json").exists():
            raise ValueError(f"{out} already holds a run: continue it with --resume, or choose another --out")
    training.require_shareable(config.fit)
    several = config.fit.devices * config.fit.nodes > 1
    fabric = training.launch(config.fit) if several else None  # the others start over from the command: before the work
    opened = data.open_data(config.data, workers=config.fit.workers)
    mean, std = assembly.statistics(opened.train)
    shape, target_shape = assembly.seen_shape(opened)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed_of(config.fit.seed, "initialise", 0))
        method = assembly.build(config.model, shape, target_shape, mean, std)
    method.to(memory_format=torch.channels_last)
    views = assembly.make_views(opened, config, shape, mean, std)
    training.require_batches(len(opened.train), config.fit)
    fabric = fabric or training.launch(config.fit)
    if not resume:
        facts = assembly.facts(config, opened, shape, target_shape, method, fabric)
        if fabric.is_global_zero:
            folder = RunFolder.create(out, config, facts)
            assembly.write_skipped(out / "skipped.csv", opened.skipped)
        fabric.barrier()
        folder = RunFolder(out, config, facts)
    elif folder.facts["n_train"] != len(opened.train):
        raise ValueError(
            f"the data has changed since the run began: {folder.facts['n_train']} training items then, {len(opened.train)} now"
        )
    return _fit(fabric, method, opened, config, folder, views)


def describe(source: str | RunConfig | None, recipe: str, settings: dict[str, Any]) -> RunConfig:
    """Returns the whole run description of a source, a recipe and changed settings."""
    if source is None:
        raise ValueError("no data was named: give a path or a built-in name, for instance 'digits'")
    base = source if isinstance(source, RunConfig) else recipes.get(recipe)(str(source))
    return recipes.override(base, **settings)


def load(path: str | Path, *, device: str = "auto") -> "Run":
    """Opens a trained run.

    Args:
        path: The run folder.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        ValueError: There is no finished run, it is damaged, or a newer version wrote it.
    """
    folder = RunFolder.open(Path(path))
    where = as_device(device)
    state = folder.load_model()
    method = blank(folder)
    try:
        method.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path}: the model does not fit its description: {str(error).splitlines()[-1].strip()}") from None
    return Run(folder, method.to(where), where)


def blank(folder: RunFolder) -> PairedMethod:
    """Returns an untrained model of a run's description; its input statistics are still to be filled."""
    facts = folder.facts
    channels = facts["shape"][0] + (facts["target_shape"] or [0])[0]
    return assembly.build(folder.config.model, facts["shape"], facts["target_shape"], torch.zeros(channels), torch.ones(channels))


class Run:
    """A trained run.

    Attributes:
        folder: What is on disk.
        method: The model, in evaluation mode.
        device: Where it computes.
    """

    def __init__(self, folder: RunFolder, method: PairedMethod, device: torch.device) -> None:
        self.folder, self.method, self.device = folder, method.eval(), device
        self.method.encoder.to(memory_format=torch.channels_last)

    @property
    def objective(self) -> DensityObjective:
        """The density over embeddings.

        Raises:
            ValueError: The run's objective is not a density.
        """
        if not isinstance(self.method.objective, DensityObjective):
            raise ValueError(f"objective '{self.folder.config.model.objective}' has no density to embed or score with")
        return self.method.objective

    @property
    def size(self) -> int | None:
        """Side of the images that the encoder sees; None for vectors."""
        shape = self.folder.facts["shape"]
        return int(shape[1]) if len(shape) == 3 else None

    def encode(self, images: Images, *, batch_size: int = 256) -> Tensor:
        """Returns the embeddings z, (N, D) float32, of images (N, C, H, W), vectors (N, D), or a path."""
        return features.collect(self.method.encoder, self.items(images), batch_size=batch_size, **self._where())[0]

    @torch.inference_mode()
    def embed(self, images: Images, *, batch_size: int = 256) -> Distribution:
        """Returns what is believed of each item: a distribution over (N, D) with ``mean``, ``variance``, ``sample()``, ..."""
        z = self.encode(images, batch_size=batch_size).to(self.device)
        return self.objective.posterior(self.method.projector(z))

    def score(self, images: Images, how: str | None = None, *, batch_size: int = 256) -> Tensor:
        """Returns how anomalous each item is, (N,); larger is more anomalous. The noise of the samples is fixed.

        Raises:
            ValueError: The objective has no score of that name.
        """
        parts = [scores for _, scores in self._stream(self._scores, self.items(images), batch_size, 0)]
        names = list(parts[0])
        if how is not None and how not in names:
            raise ValueError(f"expected a score among {', '.join(names)}, found '{how}'")
        return torch.cat([part[how or names[0]] for part in parts]).cpu()

    def write_embeddings(self, source: Images, out: Path, *, batch_size: int = 256, workers: int = 2) -> int:
        """Writes name, z, mean, variance and log-density of every item to a ``.npz``, ``.csv`` or ``.parquet`` file.

        Memory does not grow with the number of items. What cannot be read is listed in ``OUT.skipped.csv``.

        Returns:
            The number of rows.
        """
        return self._write(self._embeddings, source, out, batch_size, workers)

    def write_scores(self, source: Images, out: Path, *, batch_size: int = 256, workers: int = 2) -> int:
        """Writes name and every score of every item, larger is more anomalous; otherwise as `write_embeddings`."""
        return self._write(self._scores, source, out, batch_size, workers)

    def _embeddings(self, x: Tensor) -> dict[str, Tensor]:
        z = self.method.encoder(x)
        inner = self.method.projector(z)
        posterior = self.objective.posterior(inner)
        log_density = self.objective.log_prob(inner, inner)
        return {"z": z, "mean": posterior.mean, "variance": posterior.variance, "log_density": log_density}

    def _scores(self, x: Tensor) -> dict[str, Tensor]:
        return self.objective.scores(self.method.projector(self.method.encoder(x)))

    def _stream(
        self, function: Callable[[Tensor], dict[str, Tensor]], items: Items, batch_size: int, workers: int
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        def repeatable(x: Tensor) -> dict[str, Tensor]:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return function(x)

        return features.stream(repeatable, items, batch_size=batch_size, workers=workers, **self._where())

    def _write(
        self, function: Callable[[Tensor], dict[str, Tensor]], source: Images, out: Path, batch_size: int, workers: int
    ) -> int:
        items, rows = self.items(source), 0
        with open_table(out) as table, bar(out.name, len(items)) as advance:
            for index, columns in self._stream(function, items, batch_size, workers):
                names = [items.names[i] for i in index.tolist()]
                table.append({"name": names, **{name: value.float().cpu().numpy() for name, value in columns.items()}})
                rows += len(index)
                advance(len(index))
            if not rows:
                first = items.skipped[0]
                raise ValueError(f"none of the {len(items)} items could be read; the first, {first.name}: {first.reason}")
        listing = out.with_name(f"{out.name}.skipped.csv")
        listing.unlink(missing_ok=True)  # of an earlier call
        assembly.write_skipped(listing, items.skipped)
        return rows

    def items(self, images: Images, *, root: str | None = None) -> Items:
        """Returns anything that can be embedded as items of the run's shape; torchvision's sets from ``root``."""
        if isinstance(images, Items):
            return images
        facts, config = self.folder.facts, self.folder.config.data
        shape = tuple(facts["read_shape"])
        if isinstance(images, (str, Path)):
            return data.open_items(
                str(images), shape=shape, root=root or config.root, download=config.download, holdout=config.holdout
            )
        items = data.from_array(images)
        if len(items.shape) != len(shape) or (len(shape) == 1 and items.shape != shape):
            raise ValueError(f"expected items of shape {shape} as the model was trained on, found {items.shape}")
        return items.shaped(shape) if len(shape) == 3 else items

    def _where(self) -> dict[str, Any]:
        return {"size": self.size, "device": self.device}


def _require_unchanged(config: RunConfig, source: str | RunConfig | None, settings: dict[str, Any]) -> None:
    wanted = recipes.override(config, **settings)
    if source is not None:
        wanted = source if isinstance(source, RunConfig) else recipes.override(wanted, source=str(source))
    was, now = config.to_dict(), wanted.to_dict()
    changed = [
        f"{name} was {was[part][name]!r}, now {now[part][name]!r}"
        for part in was
        for name in was[part]
        if was[part][name] != now[part][name]
    ]
    if changed:
        raise ValueError(
            f"--resume goes on with a run's own settings: {'; '.join(changed)}; leave them out, or start another run"
        )


def _fit(fabric: Any, method: PairedMethod, opened: Data, config: RunConfig, folder: RunFolder, views: Views | None) -> "Run":
    shape = folder.facts["shape"]
    size = shape[1] if len(shape) == 3 else None
    steps = config.fit.epochs * (len(opened.train) // config.fit.batch_size)
    done = 0
    with bar(f"epoch 1/{config.fit.epochs}", steps * config.fit.batch_size, "images") as advance:

        def progress(*, step: int, total: int, epoch: int, row: dict[str, float]) -> None:
            nonlocal done
            note = "  ".join(f"{k} {row[k]:.4g}" for k in row if k not in _UNSHOWN)
            advance((step - done) * config.fit.batch_size, note=note, label=f"epoch {epoch}/{config.fit.epochs}")
            done = step

        training.fit(
            fabric,
            method,
            opened.train,
            views,
            config.fit,
            folder,
            monitor=assembly.online_knn(opened, config.fit, size, fabric.device),
            progress=progress if fabric.is_global_zero else None,
        )
    return Run(folder, method, fabric.device)


_UNSHOWN = {"step", "epoch", "lr", "images_per_second", "std", "variance_cv"}
