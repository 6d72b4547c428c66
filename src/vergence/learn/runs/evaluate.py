"""The one declared protocol: a run's numbers with their baselines, from the last epoch, with every setting recorded."""

import copy
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vergence.data.items import Items, spaced
from vergence.data.modalities import with_context
from vergence.data.pixels import resize, to_bytes, to_unit
from vergence.data.sources import Data
from vergence.learn.encoders.networks import standardization
from vergence.learn.encoders.patch_maps import RefinedEncoder, wide_features
from vergence.learn.evaluation import anomaly, features
from vergence.learn.evaluation.accuracy import knn_accuracy, linear_probe, ridge_probe
from vergence.learn.evaluation.collapse import collapse
from vergence.learn.evaluation.uncertainty import equalizer, neighbor_is_right, neighbor_spread
from vergence.learn.objectives.core import DensityObjective
from vergence.learn.runs.rows import MOST_ITEMS, parts, whole
from vergence.learn.runs.run import Run, load
from vergence.learn.training import build, records
from vergence.learn.training.calibration import content_of, digests
from vergence.learn.training.folder import CLOSED_FORM
from vergence.utils import terminal
from vergence.utils.checks import expect, shown
from vergence.utils.digests import digest_of, of_array
from vergence.utils.files import explained, replacing
from vergence.utils.neighbors import nearest

__all__ = ["closed_form_encoder", "evaluate", "untrained_encoder"]

EXAMPLES, QUERIES, NEIGHBORS = 600, 8, 8  # items in the report's map; queries with neighbors, and neighbors of each
VOTERS = (20, 5, 1)  # k of the neighbors whose vote on each item is kept, the first that the training items allow
BATCH = 1024  # embeddings at a time
SAFE = "the model and evaluation.json are safe: free space and repeat the command"
SEEN = "that the run was fitted to or calibrated on"
COMPARED = 100  # training items that are compared with those that the run has seen
RANKED, BANK = 2_000, 10_000  # test items, and training items that they are compared with, at most, whose errors are ranked
PIXELS = 32  # larger images are averaged down to this side for the pixel baselines

Features = dict[str, Tensor]  # name of a representation -> (N, D)


def evaluate(run: Run, *, probes: bool = True, uncertainty: bool = False, wide: bool = False) -> records.Evaluation:
    """Evaluates a run and writes ``evaluation.json`` and ``examples.npz``.

    kNN: full clean training bank, cosine, k in {1, 5, 20, 30, 200}, majority and weighted (T = 0.07). Linear probe: logistic
    regression on frozen features standardized with training statistics; ridge probe: least squares in closed form. All on the
    embedding z and the posterior mean mu, next to an untrained encoder of the same architecture, the encoder before its first
    step (``initial``) where it started from weights that were not random, raw inputs and their PCA. If the run was trained on
    some classes only, the others are the anomalies: AUROC, average precision and false-positive rate at 95 % detection of the
    run's detector, of every score of the objective's own and of every baseline. Without a density there are no mu, no posterior
    and no scores of the objective's own; of pairs the contexts are evaluated.

    Args:
        run: A finished run.
        probes: Whether linear probes are fitted; they take most of the time.
        uncertainty: Whether it is measured which uncertainties rank errors, too (`vergence.learn.evaluation.uncertainty`).
        wide: Whether the ridge probe is fitted to the wide features, too (`vergence.learn.encoders.patch_maps.wide_features`),
            which are 80 KB an image, and twice that while the probe is fitted.

    Returns:
        What ``evaluation.json`` holds.

    Raises:
        ValueError: ``run`` is not a run; its encoder has no wide features; or the labels have one class only, so that there is
            nothing to classify (all else has been written by then).

    Example:
        >>> import vergence
        >>> x = np.random.default_rng(0).normal(size=(300, 4))
        >>> run = vergence.train(x, labels=x[:, 0] > 0, objective="gje", epochs=1, device="cpu")
        >>> evaluate(run, probes=False).representations["z"].knn[5].majority > 0.9
        True
    """
    expect(isinstance(run, Run), "a run", shown(run), "open its folder with vergence.load")
    return _Evaluator(run).evaluate(probes, uncertainty, wide)


class _Evaluator:
    """A run, its data, and their features: what every part of an evaluation takes.

    ``opened`` are its data without test items that it was fitted to or calibrated on; ``labeled`` masks of the training and the
    test items whose label training kept, None for fewer than two classes; ``train`` and ``test`` features by representation.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, run.folder.config
        opened = self._without_seen(whole(run.folder))
        self.opened = replace(opened, train=with_context(opened.train), test=with_context(opened.test))
        self.labeled = _labeled(self.opened, self.config.data.keep_classes)
        self.train: Features = {}
        self.test: Features = {}

    def evaluate(self, probes: bool, uncertainty: bool, wide: bool) -> records.Evaluation:
        """Returns the record, which it writes together with the examples."""
        started, folder = time.monotonic(), self.run.folder
        net = wide_features(self.run.method.encoder) if wide else None
        representations = self._representations(probes)
        if net is not None:
            representations["wide"] = self._wide(net)
        detected, seen = self._detected()
        record = records.Evaluation(
            protocol=self._protocol(time.monotonic() - started),
            representations=representations,
            posterior=self._posterior() if isinstance(self.run.method.objective, DensityObjective) else None,
            anomaly=self._anomalies(detected),
            uncertainty=self._uncertainty() if uncertainty else None,
        )
        folder.write_json("evaluation.json", record.to_dict())
        self._write_examples(None if detected is None else detected.masked_fill(seen, torch.nan))
        few = self.labeled is None and len(self.opened.classes) == 1 and self.config.data.keep_classes is None
        found = "1: put each class into a folder of its own"
        written = f"what needs no labels is in {folder.path / 'evaluation.json'}"
        expect(not few, "at least 2 labeled classes for a probe", found, written)
        return record

    def _without_seen(self, opened: Data) -> Data:
        """Returns the data; where it has changed since the training, without test items that the run has seen.

        A test part that is held out at random is another one then.
        """
        about = self.run.folder.metadata
        before = about.n_train + about.n_calibration, about.n_test
        self._note_others(opened)
        if before[0] == len(opened.train) and before[1] in (0, len(opened.test)):
            return opened
        try:
            new = (~self._seen(opened.test)).nonzero()[:, 0]
        except ValueError:  # a run that can have no detector
            new = torch.arange(len(opened.test))
        out = len(opened.test) - len(new)
        words = f"{self.config.data.source} has changed since the training: {len(opened.train):,} training and "
        words += f"{len(opened.test):,} test items instead of {before[0]:,} and {before[1]:,}"
        expect(len(new), "test items that are new to the run", f"none: {words}", "restore it, or train again")
        print(f"warning: {words}; {out:,} test items {SEEN} are left out", file=sys.stderr)
        note = f"{opened.note}; the data has changed since the training, {out:,} test items that it knows are left out"
        return replace(opened, test=opened.test.subset(new), note=note)

    def _note_others(self, opened: Data) -> None:
        """Says so where a program gave data whose training items a run with a detector does not know."""
        if not self.run.folder.given or len(opened.train) > MOST_ITEMS:
            return
        some = opened.train.subset(spaced(len(opened.train), COMPARED))
        try:
            same = int(self._seen(some).sum())
        except ValueError:  # a run that can have no detector
            return
        if same < len(some) / 2:
            words = f"the run does not know {len(some) - same} of {len(some)} training items: these are other data than it was"
            print(f"warning: {words} trained on, or labels were given at one of training and loading alone", file=sys.stderr)

    def _seen(self, items: Items) -> Tensor:
        """Returns which items equal one that a run with a detector was fitted to or calibrated on, (N,) bool."""
        size = self.run.folder.metadata.crop_size()
        found = np.concatenate([part for _, part in features.stream_batches(digests, items, size=size)])
        return torch.from_numpy(np.isin(found, self.run.detector().seen))

    def _representations(self, probes: bool) -> dict[str, records.Representation]:
        """Computes the features of every representation, and returns their numbers."""
        networks = _networks(self.run)
        with terminal.bar("evaluate", 3 * len(networks) + 2, "steps") as advance:
            for part, items in ((self.train, self.opened.train), (self.test, self.opened.test)):
                for name, net in networks.items():
                    advance(1)
                    part[name] = features.collect_features(net, items, **self.run.where())[0]
                    if name == "z" and isinstance(self.run.method.objective, DensityObjective):
                        posteriors = (self.run.objective.posterior(z) for z in self._projected(part["z"]))
                        with torch.inference_mode():
                            part["mu"] = torch.cat([one.mean.cpu() for one in posteriors])
            train, test = self.train, self.test
            train["pca"], test["pca"] = features.pca(train["pixels"], test["pixels"], train["z"].shape[1])
            representations = {}
            for name in self.train:
                advance(1, label=f"evaluate {name}")
                representations[name] = self._representation(name, probes)
        return representations

    def _representation(self, name: str, probes: bool) -> records.Representation:
        """Returns spread and, with labels of two classes, accuracies of a representation."""
        train, test = self.train[name], self.test[name]
        neighbors = accuracy = ridge = None
        right: dict[str, Any] = {}
        if (labeled := self._of_classes(train, test)) is not None:
            votes = knn_accuracy(*labeled, each=True)
            neighbors = {
                k: records.Accuracy(**{how: int(x.sum()) / len(x) for how, x in two.items()}) for k, two in votes.items()
            }
            right["knn"] = votes[next(k for k in VOTERS if k in votes)]["majority"]
            if probes:
                numbers = linear_probe(*labeled)
                right["probe"] = numbers.pop("right")
                accuracy, ridge = records.Probe(**numbers), ridge_probe(*labeled)["accuracy"]
        return records.Representation(
            kind="model" if name in ("z", "mu") else "baseline",
            dim=train.shape[1],
            collapse=records.Collapse(**collapse(test)),
            knn=neighbors,
            probe=accuracy,
            right={how: np.packbits(one).tobytes().hex() for how, one in right.items()} if name == "z" else {},
            ridge=ridge,
        )

    def _wide(self, net: nn.Module) -> records.Representation:
        """Returns the accuracy of the ridge probe on the wide features, which are not kept."""
        both = self.opened.train, self.opened.test
        train, test = (features.collect_features(net, some, **self.run.where())[0] for some in both)
        labeled = self._of_classes(train, test)
        ridge = None if labeled is None else ridge_probe(*labeled)["accuracy"]
        return records.Representation(kind="model", dim=train.shape[1], ridge=ridge)

    def _of_classes(self, train: Tensor, test: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Returns features and labels of the labeled training items, and of the test items; None for fewer than two classes."""
        if self.labeled is None:
            return None
        y, true = self.opened.train.labels, self.opened.test.labels
        assert y is not None and true is not None
        a, b = self.labeled
        return train if a.all() else train[a], y[a], test if b.all() else test[b], true[b]  # no copy of all

    def _detected(self) -> tuple[Tensor | None, Tensor]:
        """Returns the detector's score of each test item, and which of them the run has seen.

        Where the run can have no detector, there are no scores, and one line on stderr says why.
        """
        items = self.opened.test
        try:
            detected, seen = self.run.anomaly_score(items), self._seen(items)
        except ValueError as error:
            terminal.note(f"no detector: {error}")
            return None, torch.zeros(len(items), dtype=torch.bool)
        if n := int(seen.sum()):
            high = "" if self.labeled is None else ", which makes accuracies too high"
            terminal.note(f"{n:,} of {len(seen):,} test items equal items {SEEN}{high}; the page shows no scores of these")
        return detected, seen

    def _protocol(self, seconds: float) -> records.EvaluationProtocol:
        model, fit = self.config.model, self.config.fit
        used = "encoder as it came" if model.freeze else "last epoch" if model.takes_steps else "fitted in closed form"
        calibrate = f"; {n:,} training items calibrate" if (n := self.run.folder.metadata.n_calibration) else ""
        end = "no accuracies: fewer than two classes, or no test item of one" if self.labeled is None else used
        done = (row["epoch"] for row in reversed(self.run.folder.metrics()) if "loss" in row)  # fewer where on_step ended them
        return records.EvaluationProtocol(
            bank=len(self.opened.train),
            test=len(self.opened.test),
            epoch=0 if model.freeze else int(next(done, fit.epochs)),
            seed=fit.seed,
            objective=model.method or model.objective,
            content=self._digest(self.opened.train),
            test_content=self._digest(self.opened.test),
            labeled=0 if self.labeled is None else int(self.labeled[1].sum()),
            seconds=round(seconds, 1),
            note=f"{self.opened.note}{calibrate}; {end}",
        )

    def _digest(self, items: Items) -> str:
        """Returns a digest of items, of their labels and of the classes that training kept."""
        labels = [] if items.labels is None else [of_array(items.labels)]
        return digest_of([content_of(items), *labels, str(self.config.data.keep_classes)])[:12]

    def _projected(self, z: Tensor) -> Iterator[Tensor]:
        """Yields embeddings (N, D) in the objective's space, in parts that a mixture of many components can take."""
        for part in z.split(4096):
            yield from parts(self.run.objective, self.run.method.projector(self.run.to_device(part)), BATCH)

    @torch.inference_mode()
    def _posterior(self) -> records.Posterior:
        z, columns = self.test["z"], []
        for part in self._projected(z):
            posterior = self.run.objective.posterior(part)
            columns.append([x.cpu() for x in (posterior.variance, posterior.mean, posterior.entropy())])
        variance, mean, entropy = (torch.cat(column) for column in zip(*columns, strict=True))
        return records.Posterior(
            variance_mean=variance.mean().item(),
            variance_cv=(variance.std() / variance.mean()).item(),
            norm_z=z.norm(dim=1).mean().item(),
            norm_mu=mean.norm(dim=1).mean().item(),
            entropy=entropy.mean().item(),
        )

    def _anomalies(self, detected: Tensor | None) -> records.Anomaly | None:
        """Returns how well every score separates the classes that training left out; None where it kept all."""
        keep, labels, classes = self.config.data.keep_classes, self.opened.test.labels, self.opened.classes
        if keep is None or labels is None:
            return None
        train, test = self.train, {name: z[labels >= 0] for name, z in self.test.items()}
        anomalous = ~torch.isin(labels[labels >= 0], torch.tensor(keep))
        scores: dict[str, tuple[records.Kind, Tensor]] = {}
        if detected is not None:
            scores["detector"] = "model", detected[labels >= 0]
        if isinstance(self.run.method.objective, DensityObjective):
            scores |= {name: ("model", score) for name, score in self._scores(test["z"]).items()}
        names = [name for name in ("z", "untrained", "initial", "pixels", "pca") if name in test]
        scores |= {f"kNN, {name}": ("baseline", anomaly.knn_distance(train[name], test[name])) for name in names}
        names = [name for name in names if name != "pixels"]
        scores |= {f"Mahalanobis, {name}": ("baseline", anomaly.mahalanobis(train[name], test[name])) for name in names}
        return records.Anomaly(
            inliers=tuple(classes[c] for c in keep),
            anomalies=tuple(name for c, name in enumerate(classes) if c not in keep),
            n_inliers=int((~anomalous).sum()),
            n_anomalies=int(anomalous.sum()),
            scores={name: records.Detection(kind=k, **anomaly.detection(s, anomalous)) for name, (k, s) in scores.items()},
        )

    def _uncertainty(self) -> records.Uncertainty | None:
        """Returns how well distances to training items rank errors; None, with a note, where the labels define no errors."""
        y = self.opened.test.labels
        if y is None or bool((y < 0).any()) or len(y.unique()) < 2:
            terminal.note("uncertainties were not ranked: every test item needs a label, of two classes or more")
            return None
        pick = spaced(len(y), RANKED)
        z, bank = self.test["z"][pick], self.train["z"][spaced(len(self.train["z"]), BANK)]
        wrong, equal = ~neighbor_is_right(z, y[pick]), equalizer(bank)
        scores: dict[str, tuple[records.Kind, Tensor]] = {
            "neighbor spread": ("model", neighbor_spread(equal(bank), equal(z))),
            "kNN distance": ("baseline", anomaly.knn_distance(bank, z)),
        }
        some = scores.items() if 0 < int(wrong.sum()) < len(wrong) else ()
        found = {name: records.Detection(kind=kind, **anomaly.detection(u, wrong)) for name, (kind, u) in some}
        return records.Uncertainty(items=len(z), recall_at_1=float((~wrong).double().mean()), scores=found)

    @torch.inference_mode()
    def _scores(self, z: Tensor) -> Features:
        """Returns the scores of the objective's own of embeddings (N, D)."""
        with torch.random.fork_rng(devices=[]):
            columns = []
            for part in self._projected(z):
                torch.manual_seed(0)  # the same noise for every part, as in Run.score
                columns.append(self.run.objective.scores(part))
        return {name: torch.cat([part[name].cpu() for part in columns]) for name in columns[0]}

    def _write_examples(self, detected: Tensor | None) -> None:
        """Writes ``examples.npz``, which the report shows of single items: a map, scores, thumbnails, neighbors."""
        items, path = self.opened.test, self.run.folder.path / "examples.npz"
        chosen = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))[:EXAMPLES].sort().values
        z = self.test["z"][chosen]
        centered = z - z.mean(0)
        xy = centered @ torch.linalg.svd(centered.double(), full_matrices=False)[2][:2].T.float()
        labels = items.labels[chosen] if items.labels is not None else torch.full((len(chosen),), -1)
        columns: dict[str, Any] = {
            "xy": xy.numpy(),
            "label": labels.numpy(),
            "score": (torch.full((len(z),), torch.nan) if detected is None else detected[chosen].float()).numpy(),
            "name": np.asarray([items.names[i] for i in chosen.tolist()], dtype=np.str_),
            "neighbors": nearest(z, z[:QUERIES], min(NEIGHBORS + 1, len(z)))[1].numpy(),
        }
        keep = self.config.data.keep_classes
        if keep is not None:
            columns["anomalous"] = ((labels >= 0) & ~torch.isin(labels, torch.tensor(keep))).numpy()
        if self.run.folder.metadata.kind != "array" and len(self.run.folder.metadata.item_shape()) == 3:
            small = features.stream_batches(_thumbnail, items.subset(chosen), size=self.run.folder.metadata.crop_size())
            columns["thumbnail"] = torch.cat([x for _, x in small]).numpy()
        with explained(path, SAFE), replacing(path) as part, part.open("wb") as file:
            np.savez_compressed(file, **columns)


def _labeled(opened: Data, keep_classes: tuple[int, ...] | None) -> tuple[Tensor, Tensor] | None:
    train, test = opened.train.labels, opened.test.labels
    if train is None or test is None:
        return None
    classes = torch.tensor(keep_classes) if keep_classes is not None else train[train >= 0].unique()
    both = torch.isin(train, classes), torch.isin(test, classes)
    return both if len(classes) >= 2 and both[1].any() else None


def _networks(run: Run) -> dict[str, nn.Module]:
    """Returns the encoder and the networks of the baselines, by name."""
    networks = {"z": run.method.encoder}
    if (closed_form := closed_form_encoder(run)) is not None:
        networks["closed_form"] = closed_form
    if any(True for _ in run.method.encoder.parameters()):  # an encoder without weights is what it was before
        networks["untrained"] = untrained_encoder(run)
    if (initial := run.folder.load_initial()) is not None:
        networks["initial"] = _with_state(run, initial)
    vectors = len(run.folder.metadata.shape) == 1
    return networks | {"pixels": nn.Sequential(standardization(run.method.encoder), Pixels()) if vectors else Pixels()}


class Pixels(nn.Module):
    """Images averaged down to 32 x 32 where they are larger, flattened; vectors as they come, with columns of unit variance."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns features (B, D) of items (B, ...)."""
        if x.ndim == 4 and x.shape[-1] > PIXELS:
            x = F.adaptive_avg_pool2d(to_unit(x), PIXELS)
        return features.pixels(x)


def closed_form_encoder(run: Run) -> nn.Module | None:
    """Returns the closed form that a run's encoder refines or learned to predict, on its input statistics; None for none."""
    refined = next((m for m in run.method.encoder.modules() if isinstance(m, RefinedEncoder)), None)
    standardize = standardization(run.method.encoder)
    if refined is not None:
        return nn.Sequential(standardize, refined.closed_form)
    path = run.folder.path / CLOSED_FORM
    if run.folder.config.model.distill is None or not (path / "model.safetensors").exists():
        return None
    return load(path, device="cpu").method.encoder.to(run.device)


def untrained_encoder(run: Run) -> nn.Module:
    """Returns the run's encoder as it was before its first step."""
    standardize, folder = standardization(run.method.encoder), run.folder
    mean, std = standardize.mean.cpu(), standardize.std.cpu()
    folder.register_code()
    return build.initial_encoder(folder.config, folder.metadata.shape, mean, std).to(run.device)


def _with_state(run: Run, state: dict[str, Tensor]) -> nn.Module:
    """Returns a copy of the run's encoder with the encoder's tensors of a state; raises a ValueError for another model's."""
    encoder = copy.deepcopy(run.method.encoder)
    wanted = encoder.state_dict()
    first = {name: state.get(f"encoder.{name}") for name in wanted}
    if any(tensor is None or tensor.shape != wanted[name].shape for name, tensor in first.items()):
        raise ValueError(f"{run.folder.path / 'initial.safetensors'} does not fit the run's description; restore it from a copy")
    encoder.load_state_dict(first)
    return encoder


def _thumbnail(x: Tensor) -> Tensor:
    x = to_unit(x, torch.float32)
    return to_bytes(resize(x, 64, 64) if x.shape[-1] > 64 else x).contiguous()
