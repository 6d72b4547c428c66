"""The library in three calls: `train` makes a run, `load` opens one, and a `Run` embeds, scores and evaluates."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from vergence.data import sources
from vergence.data.arrays import holds_pairs
from vergence.data.items import Items, PairItems
from vergence.data.objects import is_object
from vergence.densities import retrieval
from vergence.evaluation import features
from vergence.evaluation.judgment import collapse_warning
from vergence.methods.core import Method
from vergence.methods.paired import Side
from vergence.objectives.core import ConditionalObjective, DensityObjective, Objective, PredictiveObjective
from vergence.runs import detector, embed
from vergence.runs.detector import Levels, RunDetector
from vergence.runs.rows import MOST_ITEMS, Reading, sample
from vergence.training import build
from vergence.training.folder import RunFolder, require_known_code
from vergence.utils.checks import is_count, require_count
from vergence.utils.devices import as_device
from vergence.utils.files import as_path
from vergence.utils.outside import give

if TYPE_CHECKING:
    from vergence.detection import MixtureDetector

__all__ = ["Run", "load"]

Images = str | Path | np.ndarray | Tensor | Items


def load(
    path: str | Path,
    *,
    device: str = "auto",
    trust_code: bool = False,
    encoder: "nn.Module | Callable[[], nn.Module] | None" = None,
    objective: "type[Objective] | None" = None,
    views: Callable[..., Any] | None = None,
    data: Any = None,
    column: str | Sequence[str] = (),
    labels: Any = None,
) -> "Run":
    """Opens a trained run; runs no code of the folder's.

    Args:
        path: The run folder.
        device: ``auto``, ``cpu`` or ``cuda``.
        trust_code: Whether to import what the run names outside the library: an objective ``package.module:Class``, an encoder
            ``package.module:factory``.
        encoder: Network of one's own that the run was trained with, or the function that returns it; its weights are the run's.
        objective: Class of one's own that the run was trained with.
        views: Function of one's own that made the run's views.
        data: Data of the training, where a program held them; they are needed to evaluate.
        column: Column or columns of these data, as in `vergence.train`.
        labels: Labels of these data.

    Raises:
        ValueError: There is no finished run, it is damaged, a newer version wrote it, or it names code that is not trusted.
    """
    folder = RunFolder.open(as_path(path, "the run folder"), trust_code=True)  # opening imports nothing
    model = folder.config.model
    own = {model.encoder.outside: encoder, model.objective: objective, folder.config.views.function: views}
    for name, value in own.items():
        if name is not None and value is not None:
            give(value, name)
    if not trust_code:
        require_known_code(folder.path, model)
    if data is not None:
        folder.given = {"source": data, "column": column, "labels": labels}
    on = as_device(device)
    state = folder.load_model()
    method = untrained_method(folder)
    try:
        method.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{path}: the model does not fit its description: {str(error).splitlines()[-1].strip()}") from None
    return Run(folder, method.to(on), on)


def untrained_method(folder: RunFolder) -> Method:
    """Returns the method of a run's description with input statistics of 0 and 1; a state is to be loaded into it."""
    metadata = folder.metadata
    channels = metadata.shape[0] + (metadata.target_shape or (0,))[0]
    mean, std = torch.zeros(channels), torch.ones(channels)
    return build.build_method(folder.config.model, metadata.shape, metadata.target_shape, mean, std)


class Run:
    """A trained run.

    Attributes:
        folder: The run folder: description, metadata, files.
        method: The trained method, in evaluation mode.
        device: Device of the method.
    """

    def __init__(self, folder: RunFolder, method: Method, device: torch.device) -> None:
        self.folder, self.method, self.device = folder, method.eval(), device
        self._detector: RunDetector | None = None
        for encoder in (self.method.encoder, self.method.target_encoder):
            if encoder is not None:
                encoder.to(memory_format=torch.channels_last)

    @property
    def has_density(self) -> bool:
        """Whether the objective defines a density."""
        return isinstance(self.method.objective, DensityObjective)

    @property
    def collapse(self) -> str | None:
        """What the last row of metrics shows of a collapse, and what to try, in one line; None where it shows none."""
        last = next((row for row in reversed(self.folder.metrics()) if "effective_rank" in row and "std" in row), None)
        width = getattr(self.method.objective, "dim", None)
        return None if last is None else collapse_warning(last, width, self.method.advice())

    @property
    def objective(self) -> DensityObjective:
        """The density over embeddings.

        Raises:
            ValueError: The run's objective defines no density.
        """
        model = self.folder.config.model
        if self.method.objective is None:
            what = "a frozen run" if model.method is None else f"method '{model.method}'"
            raise ValueError(
                f"{what} has no density to embed or score with; train an objective on it: --init RUN --objective vje"
            )
        if not isinstance(self.method.objective, DensityObjective):
            raise ValueError(f"objective '{model.objective}' has no density to embed or score with")
        return self.method.objective

    @property
    def conditional_objective(self) -> ConditionalObjective:
        """The objective, which has p(z_b | z_a) and p(z_a) in closed form.

        Raises:
            ValueError: The run's objective has none.
        """
        if not isinstance(self.method.objective, ConditionalObjective):
            model = self.folder.config.model
            name = f"objective '{model.objective}'" if model.method is None else f"method '{model.method}'"
            lacks = (
                "density p(z_a)" if isinstance(self.method.objective, PredictiveObjective) else "conditional density p(z_b | z_a)"
            )
            raise ValueError(f"{name} has no {lacks} to sample or retrieve with; gje has")
        return self.method.objective

    @property
    def predictive_objective(self) -> PredictiveObjective:
        """The objective, which has p(z_b | z_a) in closed form, of the direction of z_b where it is ``on_sphere``.

        Raises:
            ValueError: The run's objective has none.
        """
        objective = self.method.objective
        return objective if isinstance(objective, PredictiveObjective) else self.conditional_objective

    @property
    def size(self) -> int | None:
        """Side of the images that the encoder sees; None for vectors, and for pairs of images that are not square."""
        return self.folder.metadata.crop_size()

    def read_shape(self, side: Side = "context") -> tuple[int, ...]:
        """Returns the shape of one item of a side as it is read, (C, H, W) or (D,)."""
        metadata = self.folder.metadata
        return metadata.read_shape if side == "context" else metadata.target_shape or metadata.read_shape

    def encode(self, images: Images, *, side: Side = "context", batch_size: int = 256) -> Tensor:
        """Returns the embeddings z, (N, D) float32, of images (N, C, H, W), vectors (N, D), or a path.

        ``side`` selects the encoder where there are two, and the part of pairs that is embedded.
        """
        return self._collect(self.method.branch(side)[0], images, side, batch_size)[0]

    def project(self, images: Images, *, side: Side = "context", batch_size: int = 256) -> Tensor:
        """Returns the embeddings in the objective's space, behind the projector, (N, D) float32; otherwise as `encode`.

        With a teacher, targets are embedded by the teacher, whose embeddings the density describes.
        """
        net = self.method.target_network() if side == "target" else self.method.branch(side)
        return self._collect(net.eval(), images, side, batch_size)[0]

    @torch.inference_mode()
    def conditional(self, context: Images, *, batch_size: int = 256) -> Distribution:
        """Returns p(z_b | z_a), the density of the target's embedding given each of N contexts, over (D,), on the run's device.

        It lives in the objective's space, where `project` with ``side="target"`` embeds targets; it is a density of these
        embeddings' directions for an objective that is ``on_sphere``.

        Raises:
            ValueError: The objective has no such density.
        """
        objective = self.predictive_objective
        return objective.conditional(self.to_device(self.project(context, batch_size=batch_size)))

    @torch.inference_mode()
    def retrieve(
        self,
        context: Images,
        bank: Images | None = None,
        n: int = 1,
        modes: int = 3,
        *,
        bank_embeddings: Tensor | None = None,
        batch_size: int = 256,
    ) -> retrieval.Retrieved:
        """Returns the targets of a bank that are most likely given each context: per component of `conditional`, and in all.

        Args:
            context: N contexts.
            bank: M targets: items, an array or tensor of images or vectors, or a path (of pairs: their targets).
            n: Number of targets to return, 1 to M.
            modes: Maximum number of components to retrieve by, the heaviest first.
            bank_embeddings: Embeddings (M, D) of the targets from `project` with ``side="target"``, instead of ``bank``, so
                that a large bank is embedded once.
            batch_size: Items at a time.

        Raises:
            ValueError: The objective has no such density, ``n`` or ``modes`` is out of range, or there is not exactly one bank.
        """
        objective = self.conditional_objective
        z, index = self._bank(bank, bank_embeddings, batch_size)
        za = self.project(context, batch_size=batch_size)
        found = retrieval.retrieve(objective.conditional, self.to_device(za), self.to_device(z), n, modes)
        columns = {field.name: getattr(found, field.name).cpu() for field in dataclasses.fields(found)}
        return retrieval.Retrieved(**columns | {name: index[columns[name]] for name in ("index", "ranked")})

    def _bank(self, bank: Images | None, embeddings: Tensor | None, batch_size: int) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of a bank's targets (M, D) and their index among the bank's items (M,)."""
        if (bank is None) == (embeddings is None):
            found = "neither" if bank is None else "both"
            raise ValueError(f"expected either bank (items) or bank_embeddings, found {found}; give one of them")
        if bank is not None:
            return self._collect(self.method.target_network().eval(), bank, "target", batch_size)
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
            shape = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings).__name__
            raise ValueError(f"expected bank_embeddings to be a tensor (M, D), found {shape}; pass raw items as bank")
        return embeddings, torch.arange(len(embeddings))

    @torch.inference_mode()
    def sample(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Returns n pairs of embeddings (z_a, z_b) in the objective's space, each (n, D): z_a ~ p(z_a), z_b ~ p(z_b | z_a).

        Raises:
            ValueError: The objective has no such densities, or ``n`` is below 1.
        """
        objective = self.conditional_objective
        if not is_count(n, 1):
            raise ValueError(f"expected n of at least 1, found {n}; give a whole number")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            za, zb = objective.sample(n)
        return za.cpu(), zb.cpu()

    @torch.inference_mode()
    def embed(self, images: Images, *, batch_size: int = 256) -> Distribution:
        """Returns the posterior of each item's latent: a distribution over (N, D) with ``mean``, ``variance``, ``sample()``, ...

        Raises:
            ValueError: The objective defines no density.
        """
        objective = self.objective
        z = self.encode(images, batch_size=batch_size)
        return objective.posterior(self.method.projector(self.to_device(z)))

    def detector(self) -> RunDetector:
        """Returns the run's detector; fits and stores one where there is none, as in runs of earlier versions.

        Raises:
            ValueError: The file is damaged, or there is none and the run's data cannot be opened to fit one.
        """
        if self._detector is None:
            self._detector = detector.loaded_or_fitted(self.folder, self.method, self.device)
        return self._detector

    def score(self, images: Images, how: str | None = None, *, batch_size: int = 256) -> Tensor:
        """Returns how anomalous each item is, (N,); larger is more anomalous.

        Args:
            images: Items, an array or tensor, a built-in name or a path.
            how: Name of one of the objective's own scores (`DensityObjective.scores`), whose noise is fixed. By default the
                score is that of the run's detector, whatever the objective.
            batch_size: Items at a time.

        Raises:
            ValueError: The objective has no score of that name, or the run has no detector and none can be fitted.
        """
        from vergence.runs.score import scores_of

        return scores_of(self, self.items(images), how, batch_size)

    def density(self, images: Images | None = None, *, batch_size: int = 256, **settings: Any) -> "MixtureDetector":
        """Returns a Gaussian mixture that is fitted to the final embeddings z, whatever the objective.

        A density that is trained along with the encoder describes embeddings that still move; one that is fitted afterwards
        covers the embeddings of new items better.

        Args:
            images: Items to fit to; the run's training items by default, at most 50,000 of them.
            batch_size: Items at a time.
            **settings: Of `vergence.detection.MixtureDetector`, such as ``n_components``, which held-out items choose by default.

        Returns:
            The fitted mixture: ``score_samples(run.encode(x))`` are log-densities in nats.

        Raises:
            ValueError: The run's data cannot be opened, or a setting is out of its range.
        """
        from vergence.detection import MixtureDetector

        items = detector.opened(self.folder).train if images is None else self.items(images)
        z = self.encode(items.subset(sample(len(items), MOST_ITEMS)), batch_size=batch_size)
        return MixtureDetector(**settings).fit(z.numpy())

    def levels(self) -> Levels:
        """Returns the function of a batch of items that computes the levels of features that the run's encoder has by itself.

        The run's detector may read a dictionary of patches, too: `RunDetector.of_batches` has all that it reads.
        """
        return Levels(self.method, self.folder.metadata.shape)

    def spread(self, images: Images, *, crops: int = 8, seed: int = 0, batch_size: int = 256) -> tuple[Tensor, Tensor]:
        """Returns how far random views of each item differ in the embedding: their mean direction (N, D) and spread (N,).

        The views are those of training; an item's follow from its place in the batch. The spread lies in [0, 1], see
        `vergence.evaluation.uncertainty.crop_spread`; `docs/uncertainty.md` says what it ranks, and what it does not.

        Raises:
            ValueError: There are fewer than 2 crops, or the run was trained on pairs.
        """
        views, encoder = embed.views_of(self.folder.config, self.folder.metadata, self.method.encoder), self.method.encoder
        found = features.stream_batches(
            lambda x: embed.of_crops(encoder, views, x, crops, seed), self.items(images), batch_size=batch_size, **self.where()
        )
        parts = [columns for _, columns in found]
        mean, spread = (torch.cat([part[name].cpu() for part in parts]) for name in ("z_crops", "spread"))
        return mean, spread

    def write_embeddings(
        self, source: Images, out: str | Path, *, crops: int = 0, batch_size: int = 256, workers: int = 2
    ) -> int:
        """Writes name, z, mean, variance and log-density of every item to a ``.npz``, ``.csv`` or ``.parquet`` file.

        With ``crops`` of 2 or more also ``z_crops`` and ``spread`` (see `spread`). Without a density there are name and z.
        The log-density, log p(z | z) of an item and itself, needs one encoder for both views.
        Memory does not grow with the number of items. What cannot be read is listed in ``OUT.skipped.csv``.
        Finished parts are kept in ``.OUT.parts`` until all is written: the same call after a kill goes on behind them.

        Returns:
            The number of rows.
        """
        views = None
        if crops:
            require_count(2, crops=crops)
            views = embed.views_of(self.folder.config, self.folder.metadata, self.method.encoder)
        reading, items = Reading(**self.where(), batch_size=batch_size, workers=workers), self.items(source)
        return embed.write_embeddings(self.method, items, as_path(out, "out"), reading, self.recorded(), views, crops)

    def write_scores(self, source: Images, out: str | Path, *, fdr: float = 0.1, **settings: Any) -> int:
        """Writes what the detector says of every item: score, p-value, q-value, flag, level, nearest items, reason.

        A larger score is more anomalous. Of the flagged items on average at most a tenth are ordinary; see
        `vergence.runs.score.Calibration` for the other settings. Otherwise as `write_embeddings`.
        """
        from vergence.runs.score import Calibration, score

        return score(self.items(source), Calibration(self, **settings), as_path(out, "out"), fdr=fdr).rows

    def recorded(self) -> dict[str, Any]:
        """Returns the part of the run's description that determines embeddings and scores beside the tensors."""
        return {"configuration": json.dumps(self.folder.config.to_dict()["model"], default=repr)}

    def items(self, images: Images, *, root: str | None = None, side: Side = "context") -> Items:
        """Returns items of the run's shape from anything that can be embedded.

        Args:
            images: Items, an array or tensor, a built-in name or a path.
            root: Folder of torchvision's data sets; the run's by default.
            side: ``target`` for items as the second encoder takes them; of pairs, the targets.
        """
        if isinstance(images, Items):
            return images.target if side == "target" and isinstance(images, PairItems) else images
        config, shape = self.folder.config.data, self.read_shape(side)
        if is_object(images):
            return sources.open_items(images, shape=shape)
        source = sources.as_source(images)
        pairs = side == "target" and holds_pairs(Path(source))
        items = sources.open_items(
            source,
            shape=self.read_shape() if pairs else shape,
            root=root or config.root,
            download=config.download,
            holdout=config.holdout,
            columns=self.folder.metadata.columns if side == "context" else (),
            trained_on=config.source,
        )
        return sources.with_shape(items.target, shape, str(images)) if pairs and isinstance(items, PairItems) else items

    def _collect(self, net: nn.Module, images: Images, side: Side, batch_size: int) -> tuple[Tensor, Tensor]:
        """Returns the outputs of a network in evaluation mode, and the index of the items that could be read."""
        return features.collect_features(net, self.items(images, side=side), batch_size=batch_size, **self.where(side))

    def to_device(self, z: Tensor) -> Tensor:
        """Returns embeddings on the run's device and in the type of its weights."""
        return z.to(next(itertools.chain(self.method.parameters(), self.method.buffers())))

    def where(self, side: Side = "context") -> dict[str, Any]:
        """Returns the settings with which `vergence.evaluation.features` reads items for a side: ``size`` and ``device``."""
        return {"size": self.folder.metadata.crop_size(side), "device": self.device}
