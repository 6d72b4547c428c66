"""The library in three calls: `train` makes a run, `load` opens one, and a `Run` embeds, scores and evaluates."""

import copy
import functools
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from vergence.data.items import Items
from vergence.data.sources import held
from vergence.decide.matching import Matches, likelihood_ratio, matched, of_pairs
from vergence.densities import retrieval
from vergence.learn.encoders.networks import channels_last
from vergence.learn.evaluation import features
from vergence.learn.evaluation.jepa_score import jacobian_score
from vergence.learn.methods.core import Method, Side
from vergence.learn.objectives.core import ConditionalObjective, DensityObjective, Objective, PredictiveObjective
from vergence.learn.runs import detector
from vergence.learn.runs.calibrated import RunDetector, sample
from vergence.learn.runs.rows import MOST_ITEMS, Images, Reading, items_of, objective_scores, of_crops, stream, views_of
from vergence.learn.training import build
from vergence.learn.training.folder import RunFolder, require_known_code, require_new
from vergence.utils.checks import expect, refuse, require_choice, require_count
from vergence.utils.devices import as_device, fixed_noise
from vergence.utils.files import as_path, explained, is_registered, load_outside, register_outside, require_writable
from vergence.utils.neighbors import nearest
from vergence.utils.terminal import Table, Tabular, note

if TYPE_CHECKING:
    from vergence.decide import MixtureDetector

__all__ = ["Neighbors", "Run", "load", "objective_of"]

DETECTOR, JACOBIAN = "detector", "jacobian"  # names of scores that are not the objective's


def load(
    path: str | Path,
    *,
    device: str = "auto",
    trust_code: bool = False,
    encoder: "nn.Module | Callable[[], nn.Module] | None" = None,
    objective: "type[Objective] | Objective | None" = None,
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
        objective: Class of one's own that the run was trained with, or an instance, of which the run has the options.
        views: Function of one's own that made the run's views.
        data: Data of the training, where a program held them; they are needed to evaluate.
        column: Column or columns of these data, as in `vergence.train`.
        labels: Labels of these data, where the training had them: the test part is chosen with them.

    Raises:
        ValueError: There is no finished run, it is damaged, a newer version wrote it, or it names code that is not trusted; or
            the objective is none of `vergence.learn.objectives`.

    Example:
        >>> import tempfile, vergence
        >>> out = Path(tempfile.mkdtemp()) / "run"
        >>> run = vergence.train(np.random.default_rng(0).normal(size=(300, 4)), objective="gje", epochs=1, out=out)
        >>> load(out).embed(np.zeros((2, 4))).shape
        torch.Size([2, 256])
    """
    folder = RunFolder.open(as_path(path, "the run folder"), trust_code=True)  # opening imports nothing
    model = folder.config.model
    expect(encoder is None or callable(encoder), "a network, or a function that returns it, as encoder", encoder)
    if objective is not None:
        objective = objective if isinstance(objective, type) else type(objective)
        expect(issubclass(objective, Objective), "an objective of vergence.learn.objectives, or its class", objective.__name__)
    for name, value in ((model.encoder.outside, encoder), (model.objective, objective), (folder.config.views.function, views)):
        expect(
            name is not None or value is None, "a run with an encoder or views of your own", f"none in {path}", "leave them out"
        )
        if name is not None and value is not None:
            register_outside(value, name)
    require_known_code(folder.path, model, trust_code)
    if data is not None:
        part = folder.config.data
        folder.given = {"source": held(data, column, part.limit, part.holdout, part.form), "column": column, "labels": labels}
    on = as_device(device)
    state, about = folder.load_model(), folder.metadata
    shape, target = about.shape, about.modalities or about.target_shape
    channels = sum(one[0] for one in about.modalities.values()) or shape[0] + (about.target_shape or (0,))[0]
    statistics = torch.ones(channels, dtype=torch.int64 if about.kind == "tokens" else None)
    try:
        method = build.build_method(model, shape, target, statistics, statistics)  # their values are in the state
        method.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        if encoder is not None:
            given = getattr(encoder, "__name__", type(encoder).__name__)
            refuse(f"the encoder that {path} was trained with", f"{given}, which does not fit", "give the same one")
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"{path}: the model does not fit its description: {str(error).splitlines()[-1].strip()}") from None
    return Run(folder, method.to(on), on)


@dataclass(frozen=True, repr=False)
class Neighbors(Tabular):
    """Most similar items of a bank, for N items, the most similar first.

    Attributes:
        names: Of the items (N,).
        neighbors: Names of the n most similar items of each.
        index: Their index among the bank's items, (N, n) int64.
        similarity: Cosine similarities of the embeddings, (N, n), in [-1, 1].
    """

    names: list[str]
    neighbors: list[list[str]]
    index: Tensor
    similarity: Tensor

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns one row per pair of an item and a neighbor."""
        n = self.index.shape[1]
        return {
            "name": [name for name in self.names for _ in range(n)],
            "neighbor": list(itertools.chain.from_iterable(self.neighbors)),
            "similarity": self.similarity.flatten().tolist(),
        }


class Run:
    """A trained run.

    ``images`` are items as a program has them: a path or a built-in name, an array or a tensor of images or of vectors, a list
    of paths or of PIL images, a pair ``(context, target)``, a table, a `torch.utils.data.Dataset` or loader, or `Items`.

    Attributes:
        folder: The run folder: description, metadata, files.
        method: The trained method, in evaluation mode.
        device: Device of the method.

    Example:
        >>> import vergence
        >>> x = np.random.default_rng(0).normal(size=(300, 4))
        >>> run = vergence.train(x, objective="gje", epochs=1, device="cpu")
        >>> run.embed(x[:2]).shape, run.neighbors(x[:2], x, n=1).index.tolist()
        (torch.Size([2, 256]), [[0], [1]])
    """

    def __init__(self, folder: RunFolder, method: Method, device: torch.device) -> None:
        self.folder, self.method, self.device = folder, method.eval(), device
        self._detector: RunDetector | None = None
        names = (*folder.config.model.outside, *filter(None, [folder.config.views.function]))
        folder.code = {name: load_outside("code", name, "") for name in names if is_registered(name)}
        channels_last(self.method)

    def __repr__(self) -> str:
        model, about = self.folder.config.model, self.folder.metadata
        name = model.method or model.objective
        shape = " x ".join(map(str, about.shape))
        return f"Run('{self.folder.path}': {model.encoder.title}, {name}, {about.n_train:,} items of {about.kind} {shape})"

    def _repr_html_(self) -> str:
        model, about = self.folder.config.model, self.folder.metadata
        row = {"data": self.folder.config.data.title, "items": about.n_train, "encoder": model.encoder.title}
        row |= {"objective": model.method or model.objective, "epochs": self.folder.config.fit.epochs}
        return Table({name: [value] for name, value in row.items()})._repr_html_()

    def embed(self, images: Images, *, side: Side = "context", projected: bool = False, batch_size: int = 256) -> Tensor:
        """Returns the embeddings of N items, (N, D) float32.

        Args:
            images: Items; of modalities a dictionary of them, or those of the ``side``. Missing ones, NaN, have NaN.
            side: Of the encoder where there are two, and of pairs the part that is embedded; of modalities the name.
            projected: Whether embeddings are those of the objective's space, behind the projector. With a teacher, targets are
                then embedded by the teacher, whose embeddings the density describes.
            batch_size: Items at a time.
        """
        net: nn.Module = self.method.branch(side)[0]
        if projected:
            net = self.method.target_network() if side == "target" else self.method.branch(side)
        return self._collect(net.eval(), images, side, batch_size)[0]

    @torch.inference_mode()
    def posterior(self, images: Images, *, batch_size: int = 256) -> Distribution:
        """Returns the posterior of each item's latent: a distribution over (N, D) with ``mean``, ``sample()``, ..."""
        objective = self.objective
        return objective.posterior(self.method.projector(self.to_device(self.embed(images, batch_size=batch_size))))

    def anomaly_score(self, images: Images, how: str | None = None, *, batch_size: int = 256) -> Tensor:
        """Returns how anomalous each item is, (N,); larger is more anomalous.

        For p-values, flags and reasons see `vergence.score`.

        Args:
            images: Items.
            how: Name of one of the objective's own scores (`DensityObjective.scores`), whose noise is fixed, or ``jacobian`` of
                any encoder (`vergence.learn.evaluation.jepa_score`). By default the score is that of the run's detector.
            batch_size: Items at a time.
        """
        reading, method = Reading(**self.where(), batch_size=batch_size), self.method
        if how in (None, DETECTOR):
            fitted = self.detector()
            features_of = fitted.of_batches(method, self.folder.metadata.shape)
            rows = stream(lambda x: {"score": fitted.anomaly_score(features_of(x))}, self.items(images), reading)
            return torch.from_numpy(np.concatenate([batch["score"] for _, batch in rows]))
        net, items, own = method.encoder, self.items(images), how != JACOBIAN
        rows = stream(lambda x: objective_scores(method, net(x)) if own else {JACOBIAN: jacobian_score(net, x)}, items, reading)
        parts = [batch for _, batch in rows]
        if how not in parts[0]:
            require_choice("a score", how, [DETECTOR, JACOBIAN, *parts[0]])
        return torch.cat([part[how] for part in parts]).cpu()

    def neighbors(self, images: Images, bank: Images | None = None, n: int = 5, *, batch_size: int = 256) -> Neighbors:
        """Returns the n most similar items of a bank of each item, by the cosine similarity of their embeddings.

        Args:
            images: N items.
            bank: M items; the run's training items by default.
            n: Number of neighbors, 1 to M.
            batch_size: Items at a time.
        """
        items = self.items(images)
        others = detector.opened(self.folder).train if bank is None else self.items(bank)
        (z, rows), (around, index) = (self._collect(self.method.encoder, part, "context", batch_size) for part in (items, others))
        similarity, nearby = nearest(around, z, n)
        names = [[others.names[i] for i in row] for row in index[nearby].tolist()]
        return Neighbors([items.names[i] for i in rows.tolist()], names, index[nearby], similarity)

    @torch.inference_mode()
    def retrieve(
        self,
        context: Images,
        bank: Images | None = None,
        n: int = 1,
        *,
        bank_embeddings: Tensor | None = None,
        batch_size: int = 256,
    ) -> retrieval.Retrieved:
        """Returns the targets of a bank that are most likely given each context.

        Args:
            context: N contexts.
            bank: M targets: items, an array or tensor of images or vectors, or a path (of pairs: their targets).
            n: Number of targets to return, 1 to M.
            bank_embeddings: Embeddings (M, D) of the targets from `embed` with ``side="target"`` and ``projected``, instead of
                ``bank``, so that a large bank is embedded once.
            batch_size: Items at a time.
        """
        self._require_pairs()
        objective: ConditionalObjective = objective_of(self, ConditionalObjective)
        z, index = self._bank(bank, bank_embeddings, batch_size)
        za = self.embed(context, projected=True, batch_size=batch_size)
        retrieved = retrieval.retrieve(objective.conditional, self.to_device(za), self.to_device(z), n)
        return retrieval.Retrieved(index[retrieved.ranked.cpu()], retrieved.ranked_log_prob.cpu())

    @torch.inference_mode()
    def match(
        self, context: Images, gallery: Images, *, coverage: float = 0.9, no_match: float = 0.05, batch_size: int = 256
    ) -> Matches:
        """Returns which target of a gallery belongs to each context, or none of them; see `vergence.decide.matching`.

        The score is log p(z_b | z_a) - log p(z_b) of the run's density, calibrated by the pairs that the run kept apart:
        one of each group that shares contexts or targets.

        Args:
            context: N contexts.
            gallery: M targets, as `retrieve` takes a bank; without the matches of the run's own pairs.
            coverage: Probability that the candidates of a context hold its match, in (0, 1).
            no_match: Share of wrong answers, at most, of contexts with and of those without a match, in (0, 1).
            batch_size: Items at a time.
        """
        objective: ConditionalObjective = objective_of(self, ConditionalObjective)
        expect(self.folder.metadata.kind == "pairs", "a run that was trained on pairs", self.folder.metadata.kind, "train one")
        pairs = detector.calibrating_pairs(self.folder, detector.opened(self.folder))
        expect(pairs is not None, "a run that kept pairs apart", "none", "train with `calibration_share`")
        joint = objective.joint()
        scores = likelihood_ratio(joint.conditional, joint.marginal("target"))
        za = self.to_device(self._collect(self.method.branch("context").eval(), pairs, "context", batch_size)[0])
        zb = self.to_device(self._collect(self.method.target_network().eval(), pairs, "target", batch_size)[0])
        true = of_pairs(scores, za, zb).double().cpu().numpy()
        contexts = self.to_device(self.embed(context, projected=True, batch_size=batch_size))
        bank = self.to_device(self._bank(gallery, None, batch_size)[0])
        return matched(scores, contexts, bank, true, za, coverage=coverage, no_match=no_match)

    @torch.inference_mode()
    def conditional(self, context: Images, *, of: str | Sequence[str] = (), batch_size: int = 256) -> Distribution:
        """Returns p(z_b | z_a), the density of the target's embedding given each of N contexts, over (D,), on the run's device.

        It lives in the objective's space, where `embed` with ``side="target"`` and ``projected`` embeds targets; it is a density
        of these embeddings' directions for an objective that is ``on_sphere``. Given a dictionary of modalities it is the density
        of those that are named by ``of``, or of all others, given these; missing items, NaN, are integrated over.
        """
        if isinstance(context, Mapping):
            density: ConditionalObjective = objective_of(self, ConditionalObjective)
            z = {side: self.embed(context, side=side, projected=True, batch_size=batch_size) for side in context}
            given: Distribution = density.given({name: self.to_device(part) for name, part in z.items()}, of)
            return given
        objective: PredictiveObjective = objective_of(self, PredictiveObjective)
        return objective.conditional(self.to_device(self.embed(context, projected=True, batch_size=batch_size)))

    @torch.inference_mode()
    def sample(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Returns n pairs of embeddings (z_a, z_b) in the objective's space, each (n, D): z_a ~ p(z_a), z_b ~ p(z_b | z_a)."""
        self._require_pairs()
        objective: ConditionalObjective = objective_of(self, ConditionalObjective)
        require_count(n=n)
        with fixed_noise(seed):
            za, zb = objective.sample(n)
        return za.cpu(), zb.cpu()

    def density(self, images: Images | None = None, *, batch_size: int = 256, **settings: Any) -> "MixtureDetector":
        """Returns a Gaussian mixture that is fitted to the final embeddings z, whatever the objective.

        A density that is trained along with the encoder describes embeddings that still move; one that is fitted afterwards
        covers the embeddings of new items better.

        Args:
            images: Items to fit to; the run's training items by default, at most 50,000 of them.
            batch_size: Items at a time.
            **settings: Of `vergence.decide.MixtureDetector`, such as ``n_components``, which held-out items choose by default.

        Returns:
            The fitted mixture: ``score_samples(run.embed(x))`` are log-densities in nats.
        """
        from vergence.decide import MixtureDetector

        items = detector.opened(self.folder).train if images is None else self.items(images)
        z = self.embed(items.subset(sample(len(items), MOST_ITEMS)), batch_size=batch_size)
        return MixtureDetector(**settings).fit(z.numpy())

    def spread(self, images: Images, *, crops: int = 8, seed: int = 0, batch_size: int = 256) -> tuple[Tensor, Tensor]:
        """Returns how far random views of each item differ in the embedding: their mean direction (N, D) and spread (N,).

        The views are those of training; an item's follow from its place in the batch. The spread lies in [0, 1], see
        `vergence.learn.evaluation.uncertainty.crop_spread`; `docs/guides/uncertainty.md` says what it ranks, and what it does
        not.
        """
        views, encoder, where = views_of(self.folder, self.method), self.method.encoder, self.where()
        function = functools.partial(of_crops, encoder, views, crops=crops, seed=seed)
        parts = [columns for _, columns in features.stream_batches(function, self.items(images), batch_size=batch_size, **where)]
        mean, spread = (torch.cat([columns[name].cpu() for columns in parts]) for name in ("z_crops", "spread"))
        return mean, spread

    def report(self) -> Path:
        """Writes the run's page, ``report.html`` in its folder, and returns its path."""
        from vergence.learn.runs.page import write_report

        return write_report(self.folder.path)

    def save(self, path: str | Path) -> Path:
        """Copies the run folder to a new one, which the run has from then on, and returns its path."""
        path = as_path(path, "the run folder")
        require_new(path)
        require_writable(path)
        with explained(path, "the run itself is safe: choose another folder"):
            shutil.copytree(self.folder.path, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lock", ".*"))
        self.folder = copy.copy(self.folder)
        self.folder.path = path
        return path

    @property
    def objective(self) -> DensityObjective:
        """The density over embeddings."""
        objective: DensityObjective = objective_of(self, DensityObjective)
        return objective

    def detector(self) -> RunDetector:
        """Returns the run's detector; fits and stores one where there is none."""
        if self._detector is None:
            self._detector = detector.loaded_or_fitted(self.folder, self.method, self.device)
        return self._detector

    def items(self, images: Images, *, root: str | None = None, side: Side = "context", gaps: bool = False) -> Items:
        """Returns items of the run's shape, by default with its ``root`` of torchvision's data sets.

        On the ``side`` ``target`` they are as the second encoder takes them; of pairs, the targets. With ``gaps`` files may
        have no rows, and rows of vectors that are not finite. A note says so where reading changes images.
        """
        items = items_of(self.folder, images, root, side, gaps)
        if items.conversion is not None and not isinstance(images, Items):
            note(f"images are changed from {items.conversion}, as the run reads them")
        return items

    def _require_pairs(self) -> None:
        found = self.folder.metadata.modalities
        expect(not found, "a run on pairs or on single items", "one on modalities", "ask conditional({...}, of=...)")

    def _bank(self, bank: Images | None, embeddings: Tensor | None, batch_size: int) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of a bank's targets (M, D) and their index among the bank's items (M,)."""
        both = "neither" if bank is None else "both"
        expect((bank is None) != (embeddings is None), "either bank (items) or bank_embeddings", both, "give one of them")
        if bank is not None:
            return self._collect(self.method.target_network().eval(), bank, "target", batch_size)
        matrix = isinstance(embeddings, Tensor) and embeddings.ndim == 2
        expect(matrix, "bank_embeddings to be a tensor (M, D)", embeddings, "pass raw items as bank")
        assert embeddings is not None
        return embeddings, torch.arange(len(embeddings))

    def _collect(self, net: nn.Module, images: Images, side: Side, batch_size: int) -> tuple[Tensor, Tensor]:
        """Returns the outputs of a network in evaluation mode, and the index of the items that could be read."""
        return features.collect_features(net, self.items(images, side=side), batch_size=batch_size, **self.where(side))

    def to_device(self, z: Tensor) -> Tensor:
        """Returns embeddings on the run's device and in the type of its weights."""
        return z.to(next(itertools.chain(self.method.parameters(), self.method.buffers())))

    def where(self, side: Side = "context") -> dict[str, Any]:
        """Returns the settings with which `vergence.learn.evaluation.features` reads items: ``size`` and ``device``."""
        return {"size": self.folder.metadata.crop_size(side), "device": self.device}


def objective_of(run: Run, kind: type) -> Any:
    """Returns the run's objective, which must be of a kind of density."""
    model, objective = run.folder.config.model, run.method.objective
    name = f"method '{model.method}'" if model.method else "a frozen run" if objective is None else f"'{model.objective}'"
    lacks, advice = "density p(z_b | z_a)", "gje has"
    if kind is DensityObjective:
        lacks, advice = "density", "train one that has, or on this run, with `init=RUN` and `objective='vje'`"
    elif kind is ConditionalObjective and isinstance(objective, PredictiveObjective):
        lacks = "density p(z_a)"
    expect(isinstance(objective, kind), f"an objective with a {lacks}", f"{name}, which has none", advice)
    return objective
