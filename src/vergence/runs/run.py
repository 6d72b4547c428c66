"""The library in three calls: `train` makes a run, `load` opens one, and a `Run` embeds, scores and evaluates."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from vergence.training import build
from vergence.data import sources
from vergence.training import recipes
from vergence.densities import retrieval
from vergence.training import loop
from vergence.training.config import RunConfig
from vergence.data.items import Items, PairItems
from vergence.data.sources import Data
from vergence.densities.gaussian import GaussianMixture, JointGaussian
from vergence.utils.devices import as_device
from vergence.evaluation import features
from vergence.utils.files import open_table
from vergence.methods.paired import PairedMethod, Side
from vergence.objectives.core import ConditionalObjective, DensityObjective
from vergence.training.folder import RunFolder
from vergence.utils.terminal import bar
from vergence.data.views import Views

__all__ = ["Run", "load", ]

Images = str | Path | np.ndarray | Tensor | Items


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
    method = untrained_method(folder)
    if not any(name.startswith("target_projector.") for name in state):
        method.target_projector = None  # of a run from before second encoders had heads of their own
    try:
        method.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path}: the model does not fit its description: {str(error).splitlines()[-1].strip()}") from None
    return Run(folder, method.to(where), where)


def untrained_method(folder: RunFolder) -> PairedMethod:
    """Returns an untrained model of a run's description; its input statistics are still to be filled."""
    facts = folder.facts
    channels = facts["shape"][0] + (facts["target_shape"] or [0])[0]
    return build.build_method(folder.config.model, facts["shape"], facts["target_shape"], torch.zeros(channels), torch.ones(channels))


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
        return build.crop_side(self.folder.facts, self.folder.facts["shape"])

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
        net = self.method.target_network() if side == "target" else self.method.branch(side)
        return self._collect(net.eval(), images, side, batch_size)[0]

    @torch.inference_mode()
    def conditional(self, context: Images, *, batch_size: int = 256) -> JointGaussian | GaussianMixture:
        """Returns p(z_b | z_a): what is believed of the target behind each of N contexts, over (D,), on the run's device.

        It is a density of the target's embedding in the objective's space: `project` with ``side="target"`` gives points of it.

        Raises:
            ValueError: The objective has no such density.
        """
        objective = self.conditional_objective
        return objective.conditional(self.to_device(self.project(context, batch_size=batch_size)))

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
            z, index = self._collect(self.method.target_network().eval(), bank, "target", batch_size)
        za = self.project(context, batch_size=batch_size)
        found = retrieval.retrieve(objective.conditional, self.to_device(za), self.to_device(z), n, modes)
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
        return self.objective.posterior(self.method.projector(self.to_device(z)))

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
        found = [function(part) for part in build.parts(self.objective, inner)]
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
        build.write_skipped(listing, items.skipped)
        return rows

    def items(self, images: Images, *, root: str | None = None, side: Side = "context") -> Items:
        """Returns anything that can be embedded as items of the run's shape; torchvision's sets from ``root``.

        For ``side="target"`` they are items as the second encoder takes them; of pairs, the targets.
        """
        if isinstance(images, Items):
            return images.target if side == "target" and isinstance(images, PairItems) else images
        config, shape = self.folder.config.data, self.read_shape(side)
        if isinstance(images, np.ndarray | Tensor):
            return build.fitted(sources.from_array(images), shape)
        pairs = side == "target" and build.holds_pairs(Path(images))
        items = sources.open_items(
            str(images),
            shape=self.read_shape() if pairs else shape,
            root=root or config.root,
            download=config.download,
            holdout=config.holdout,
        )
        return build.fitted(items.target, shape) if pairs and isinstance(items, PairItems) else items

    def _collect(self, net: nn.Module, images: Images, side: Side, batch_size: int) -> tuple[Tensor, Tensor]:
        """Returns what a network in evaluation mode makes of items, and the index of those that could be read."""
        return features.collect(net, self.items(images, side=side), batch_size=batch_size, **self.where(side))

    def to_device(self, z: Tensor) -> Tensor:
        """Returns embeddings on the run's device and in the type of its weights."""
        return z.to(next(self.method.parameters()))

    def where(self, side: Side = "context") -> dict[str, Any]:
        """Returns how `vergence.evaluation.features` shows items to a side's encoder: ``size`` of the crop, and ``device``."""
        facts = self.folder.facts
        target = side == "target" and facts.get("target_shape") is not None
        return {"size": build.crop_side(facts, facts["target_shape"] if target else facts["shape"]), "device": self.device}
