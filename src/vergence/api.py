"""The library in three calls: `train` makes a run, `load` opens one, and a `Run` embeds, scores and evaluates."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from vergence import assembly, data, recipes, retrieval, training
from vergence.config import RunConfig
from vergence.data import Data, Items, PairItems
from vergence.densities import GaussianMixture, JointGaussian
from vergence.devices import as_device
from vergence.evaluation import features
from vergence.files import open_table
from vergence.methods.paired import PairedMethod, Side
from vergence.objectives.core import ConditionalObjective, DensityObjective
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
    if not any(name.startswith("target_projector.") for name in state):
        method.target_projector = None  # of a run from before second encoders had heads of their own
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
        for encoder in (self.method.encoder, self.method.target_encoder):
            if encoder is not None:
                encoder.to(memory_format=torch.channels_last)

    @property
    def has_density(self) -> bool:
        """Whether the objective is a density: what needs none works without."""
        return isinstance(self.method.objective, DensityObjective)

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
    def conditional_objective(self) -> ConditionalObjective:
        """The objective, which has p(z_b | z_a) and p(z_a) in closed form.

        Raises:
            ValueError: The run's objective has none.
        """
        if not isinstance(self.method.objective, ConditionalObjective):
            name = self.folder.config.model.objective
            raise ValueError(f"objective '{name}' has no conditional density p(z_b | z_a) to sample or retrieve with; gje has")
        return self.method.objective

    @property
    def size(self) -> int | None:
        """Side of the images that the encoder sees; None for vectors, and for pairs of images that are not square."""
        return assembly.crop_side(self.folder.facts, self.folder.facts["shape"])

    def read_shape(self, side: Side = "context") -> tuple[int, ...]:
        """Returns the shape of one item of a side as it is read, (C, H, W) or (D,)."""
        facts = self.folder.facts
        return tuple(facts["read_shape"] if side == "context" else facts["target_shape"] or facts["read_shape"])

    def encode(self, images: Images, *, side: Side = "context", batch_size: int = 256) -> Tensor:
        """Returns the embeddings z, (N, D) float32, of images (N, C, H, W), vectors (N, D), or a path.

        ``side`` chooses the encoder where there are two; of pairs it is the part that is embedded.
        """
        return self._collect(self.method.branch(side)[0], images, side, batch_size)[0]

    def project(self, images: Images, *, side: Side = "context", batch_size: int = 256) -> Tensor:
        """Returns the embeddings in the objective's space, behind the projector, (N, D) float32; otherwise as `encode`.

        With a teacher targets are embedded by it: the density is one of its embeddings.
        """
        net = self.method.answers() if side == "target" else self.method.branch(side)
        return self._collect(net.eval(), images, side, batch_size)[0]

    @torch.inference_mode()
    def conditional(self, context: Images, *, batch_size: int = 256) -> JointGaussian | GaussianMixture:
        """Returns p(z_b | z_a): what is believed of the target behind each of N contexts, over (D,), on the run's device.

        It is a density of the target's embedding in the objective's space: `project` with ``side="target"`` gives points of it.

        Raises:
            ValueError: The objective has no such density.
        """
        objective = self.conditional_objective
        return objective.conditional(self.put(self.project(context, batch_size=batch_size)))

    @torch.inference_mode()
    def retrieve(self, context: Images, bank: Images, n: int, modes: int = 3, *, batch_size: int = 256) -> retrieval.Retrieved:
        """Returns the targets of a bank that are likeliest given each context: per component of `conditional`, and in all.

        Args:
            context: N contexts.
            bank: Items, a NumPy array or a path of M targets (of pairs: their targets); or a tensor (M, D) of embeddings
                that `project` gave with ``side="target"``, so that a large bank is embedded once.
            n: Answers, 1 to M.
            modes: Most components to answer by, the heaviest first.
            batch_size: Items at a time.

        Raises:
            ValueError: The objective has no such density, or ``n`` or ``modes`` is out of range.
        """
        objective = self.conditional_objective
        if isinstance(bank, Tensor) and bank.ndim == 2:
            z, index = bank, torch.arange(len(bank))
        else:
            z, index = self._collect(self.method.answers().eval(), bank, "target", batch_size)
        za = self.project(context, batch_size=batch_size)
        found = retrieval.retrieve(objective.conditional, self.put(za), self.put(z), n, modes)
        columns = {field.name: getattr(found, field.name).cpu() for field in dataclasses.fields(found)}
        return retrieval.Retrieved(**columns | {name: index[columns[name]] for name in ("index", "ranked")})

    @torch.inference_mode()
    def sample(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Returns n pairs of embeddings (z_a, z_b) in the objective's space, each (n, D): z_a ~ p(z_a), z_b ~ p(z_b | z_a).

        Raises:
            ValueError: The objective has no such densities, or ``n`` is below 1.
        """
        objective = self.conditional_objective
        if n < 1:
            raise ValueError(f"expected n of at least 1, found {n}")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            za, zb = objective.sample(n)
        return za.cpu(), zb.cpu()

    @torch.inference_mode()
    def embed(self, images: Images, *, batch_size: int = 256) -> Distribution:
        """Returns what is believed of each item: a distribution over (N, D) with ``mean``, ``variance``, ``sample()``, ..."""
        z = self.encode(images, batch_size=batch_size)
        return self.objective.posterior(self.method.projector(self.put(z)))

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

        An objective without a density leaves name and z. The log-density, log p(z | z) of an item and itself, needs one
        encoder for both views. Memory does not grow with the number of items. What cannot be read is listed in
        ``OUT.skipped.csv``.

        Returns:
            The number of rows.
        """
        return self._write(self._embeddings, source, out, batch_size, workers)

    def write_scores(self, source: Images, out: Path, *, batch_size: int = 256, workers: int = 2) -> int:
        """Writes name and every score of every item, larger is more anomalous; otherwise as `write_embeddings`."""
        _ = self.objective  # says what is missing before anything is read
        return self._write(self._scores, source, out, batch_size, workers)

    def _embeddings(self, x: Tensor) -> dict[str, Tensor]:
        z = self.method.encoder(x)
        if not self.has_density:
            return {"z": z}
        return {"z": z, **self._by_parts(self._beliefs, self.method.projector(z))}

    def _beliefs(self, inner: Tensor) -> dict[str, Tensor]:
        posterior = self.objective.posterior(inner)
        columns = {"mean": posterior.mean, "variance": posterior.variance}
        if self.method.target_encoder is None:
            columns["log_density"] = self.objective.log_prob(inner, inner)
        return columns

    def _scores(self, x: Tensor) -> dict[str, Tensor]:
        return self._by_parts(self.objective.scores, self.method.projector(self.method.encoder(x)))

    def _by_parts(self, function: Callable[[Tensor], dict[str, Tensor]], inner: Tensor) -> dict[str, Tensor]:
        found = [function(part) for part in assembly.parts(self.objective, inner)]
        return {name: torch.cat([columns[name] for columns in found]) for name in found[0]}

    def _stream(
        self, function: Callable[[Tensor], dict[str, Tensor]], items: Items, batch_size: int, workers: int
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        def repeatable(x: Tensor) -> dict[str, Tensor]:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return function(x)

        return features.stream(repeatable, items, batch_size=batch_size, workers=workers, **self.where())

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

    def items(self, images: Images, *, root: str | None = None, side: Side = "context") -> Items:
        """Returns anything that can be embedded as items of the run's shape; torchvision's sets from ``root``.

        For ``side="target"`` they are items as the second encoder takes them; of pairs, the targets.
        """
        if isinstance(images, Items):
            return images.target if side == "target" and isinstance(images, PairItems) else images
        config, shape = self.folder.config.data, self.read_shape(side)
        if isinstance(images, np.ndarray | Tensor):
            return assembly.fitted(data.from_array(images), shape)
        pairs = side == "target" and assembly.holds_pairs(Path(images))
        items = data.open_items(
            str(images),
            shape=self.read_shape() if pairs else shape,
            root=root or config.root,
            download=config.download,
            holdout=config.holdout,
        )
        return assembly.fitted(items.target, shape) if pairs and isinstance(items, PairItems) else items

    def _collect(self, net: nn.Module, images: Images, side: Side, batch_size: int) -> tuple[Tensor, Tensor]:
        """Returns what a network in evaluation mode makes of items, and the index of those that could be read."""
        return features.collect(net, self.items(images, side=side), batch_size=batch_size, **self.where(side))

    def put(self, z: Tensor) -> Tensor:
        """Returns embeddings on the run's device and in the type of its weights."""
        return z.to(next(self.method.parameters()))

    def where(self, side: Side = "context") -> dict[str, Any]:
        """Returns how `vergence.evaluation.features` shows items to a side's encoder: ``size`` of the crop, and ``device``."""
        facts = self.folder.facts
        target = side == "target" and facts.get("target_shape") is not None
        return {"size": assembly.crop_side(facts, facts["target_shape"] if target else facts["shape"]), "device": self.device}


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
    size = assembly.crop_side(folder.facts, folder.facts["shape"])
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
