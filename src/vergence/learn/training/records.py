"""What a run folder's JSON files hold, as frozen dataclasses that are checked when they are read; they need no torch.

``docs/reference/run_folder.md`` documents every field.
"""

import dataclasses
import json
import math
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from vergence.utils.checks import Checked, expect, from_json, require_choice
from vergence.utils.terminal import Tabular

__all__ = ["Accuracy", "Anomaly", "Collapse", "Detection", "Evaluation", "EvaluationProtocol", "Kind", "Posterior", "Probe"]
__all__ += ["Representation", "RunMetadata", "Uncertainty", "Weights"]

OBJECTIVE = "random, with those of the objective that was given"
MAX_ITEM = 1 << 28  # numbers of one item: a larger shape is a damaged one

R = TypeVar("R", bound="Record")
Kind = Literal["model", "baseline"]


class Record(Checked):
    """A dataclass with a JSON form."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain dictionaries and lists as JSON has them: tuples are lists, and numbers as keys are text."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(typing.cast(Any, self))))
        return plain

    @classmethod
    def from_dict(cls: type[R], raw: dict[str, Any]) -> R:
        """Builds a record from what `to_dict` returned."""
        return from_json(cls, raw)


class Finite(Checked):
    """A part of a record whose numbers JSON can hold."""

    finite = True


@dataclass(frozen=True, kw_only=True)
class Weights(Checked):
    """The weights that a run starts from."""

    # random; timm, timm's of a name; file; run, another run's; factory, those that a function outside the library set; none for
    # an encoder without weights; objective, random ones but for the objective's, which was given with weights of its own
    source: Literal["random", "timm", "file", "run", "factory", "objective", "none"]
    name: str = ""  # timm's name, the path of the file or of the run, or the factory's name
    file: str = ""  # name of the file that was read; empty for none
    sha256: str = ""  # SHA-256 of that file, in hexadecimal; empty for none
    left_out: tuple[str, ...] = ()  # names of tensors in the file that have no place in the encoder, such as a classifier's
    # whether the file gave the weights of the whole model, projector and objective included, not the encoder's alone
    whole: bool = False

    def in_words(self) -> str:
        """Returns a description in one line.

        Example:
            >>> Weights(source="file", name="a/b.pth", file="b.pth", sha256="0" * 64, left_out=("fc.weight",)).in_words()
            'a/b.pth (SHA-256 000000000000), without fc.weight'
        """
        given = "those of the network that was given" if "#" in str(self.name) else f"those that {self.name} sets"
        fixed = {"random": "random", "none": "none: the encoder has none", "factory": given, "objective": OBJECTIVE}
        if self.source in fixed:
            return fixed[self.source]
        of = {"timm": f"timm's of {self.name}, {self.file}", "run": f"{'all' if self.whole else 'the encoder'} of {self.name}"}
        without = f", without {', '.join(self.left_out)}" if self.left_out else ""
        return f"{of.get(self.source, self.name)} (SHA-256 {self.sha256[:12]}){without}"


@dataclass(frozen=True, kw_only=True)
class RunMetadata(Record):
    """What was found when a training started: the data, the shapes, the machine and the versions."""

    least: typing.ClassVar[dict[str, float]] = {
        **dict.fromkeys(("n_train", "n_test", "n_calibration", "skipped", "parameters"), 0),
        "processes": 1,
    }

    kind: Literal["image", "vector", "pairs", "array", "tokens", "modalities"]
    n_train: int  # number of items that the encoder was trained on
    n_test: int  # number of test items
    read_shape: tuple[int, ...]  # shape of one item as it is read, (C, H, W) or (D,); of the context for pairs
    shape: tuple[int, ...]  # shape of one item as the encoder sees it, after the crop
    target_shape: tuple[int, ...] | None = None  # shape of one target where it differs from the context's; None otherwise
    modalities: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # shapes by name; empty for other data
    classes: tuple[str, ...] = ()  # name of each label 0, 1, ...; empty where there are no labels
    note: str = ""  # how the test part was made
    n_calibration: int = 0  # number of training items that were kept for calibration; 0 for none
    skipped: int = 0  # number of items that could not be read; skipped.csv lists them
    parameters: int = 0  # number of parameters of the whole method, a teacher's included
    weights: Weights | None = None  # weights that the run started from
    columns: tuple[str, ...] = ()  # names of the features of a table; empty for other data
    # digest of the training items (`vergence.learn.training.calibration.content_of`), which a resumed run compares
    content: str = ""
    code: tuple[str, ...] = ()  # digest of what each piece of code outside the library does, by which runs are told apart
    device: str = ""  # device that trained, in words
    processes: int = 1  # number of processes that trained
    precision: str = ""  # Lightning Fabric's name of the arithmetic
    torch: str = ""  # version of torch
    commit: str | None = None  # commit of the library, with a plus where files differed from it; None outside a checkout

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes = {name: getattr(self, name) for name in ("read_shape", "shape", "target_shape")}
        for name, shape in {**shapes, **{f"modalities.{key}": one for key, one in self.modalities.items()}}.items():
            expect(shape is None or isinstance(shape, tuple), f"{name} to be a shape", shape)
            right = len(shape or (1,)) in ((1, 3) if self.kind in ("image", "vector") else range(1, 9))
            if shape is not None and not (right and min(shape) >= 1 and math.prod(shape) <= MAX_ITEM):
                raise ValueError(f"expected {name} to be (C, H, W) or (D,) of at most {MAX_ITEM:,} numbers, found {shape}")

    def item_shape(self, side: str = "context") -> tuple[int, ...]:
        """Returns the shape of one item of a side or a modality as it is read, (C, H, W) or (D,)."""
        if self.modalities and side != "context":
            require_choice("a modality", side, self.modalities)
            return self.modalities[side]
        return self.read_shape if side == "context" else self.target_shape or self.read_shape

    def crop_size(self, side: str = "context") -> int | None:
        """Returns the side of the central crop that a side's encoder sees, in pixels; None for vectors.

        Pairs of images that are not square are not cropped either.
        """
        if self.modalities:
            return None  # they are read as the encoder sees them
        shape = self.target_shape if side == "target" and self.target_shape is not None else self.shape
        square = len(shape) == 3 and self.kind != "array" and (shape[1] == shape[2] or self.kind != "pairs")
        return shape[1] if square else None


@dataclass(frozen=True, kw_only=True)
class EvaluationProtocol(Finite):
    """How an evaluation was made."""

    least: typing.ClassVar[dict[str, float]] = dict.fromkeys(("bank", "test", "epoch", "seconds", "labeled"), 0)

    bank: int  # number of training items that neighbors are searched among
    test: int  # number of test items
    epoch: int  # epoch of the weights: the last
    seed: int
    note: str  # how the test part was made, and what was left out
    seconds: float = 0.0
    objective: str = ""  # name of the run's objective or method
    content: str = ""  # digest of the training items and their labels, those kept for calibration included
    test_content: str = ""  # digest of the test items, their labels and the classes that count
    labeled: int = 0  # number of test items that accuracies are of


@dataclass(frozen=True, kw_only=True)
class Collapse(Finite):
    """How much of the space an embedding of the test items uses; see `vergence.learn.evaluation.collapse.collapse`."""

    std: float  # mean over features of the normalized embedding's standard deviation; 1 is even, 0 is collapsed
    std_min: float  # minimum over features of the same
    effective_rank: float  # effective rank of the embedding, 1 to D
    norm: float  # mean Euclidean norm


@dataclass(frozen=True, kw_only=True)
class Accuracy(Finite):
    """Accuracies of k nearest neighbors, in [0, 1]."""

    least: typing.ClassVar[dict[str, float]] = dict.fromkeys(("majority", "weighted"), 0)
    most: typing.ClassVar[dict[str, float]] = dict.fromkeys(("majority", "weighted"), 1)

    majority: float  # accuracy with one vote for each neighbor
    weighted: float  # accuracy with votes weighted by exp(cosine / 0.07)


@dataclass(frozen=True, kw_only=True)
class Probe(Finite):
    """Accuracies of a linear probe; see `vergence.learn.evaluation.accuracy.linear_probe`."""

    least: typing.ClassVar[dict[str, float]] = dict.fromkeys(("accuracy", "train_accuracy"), 0)
    most: typing.ClassVar[dict[str, float]] = dict.fromkeys(("accuracy", "train_accuracy"), 1)

    accuracy: float  # accuracy on the test items, in [0, 1]
    train_accuracy: float  # accuracy on the training items, in [0, 1]
    iterations: int  # iterations of L-BFGS
    converged: bool  # whether the solver converged


@dataclass(frozen=True, kw_only=True)
class Representation(Finite):
    """The numbers of one representation."""

    least: typing.ClassVar[dict[str, float]] = {"dim": 1, "ridge": 0}
    most: typing.ClassVar[dict[str, float]] = {"ridge": 1}

    kind: Kind  # model, or baseline for what needs no training
    dim: int
    collapse: Collapse | None = None  # how much of the space it uses; None of wide
    # accuracies by the number of neighbors k; None without labels of two classes, and of wide
    knn: dict[int, Accuracy] | None = None
    probe: Probe | None = None  # linear probe; None without labels of two classes, where probes were left out, and of wide
    # of z: which labeled test items knn (of 20 neighbors, or of fewer) and probe are right about, a bit each, in hexadecimal
    right: dict[str, str] = field(default_factory=dict)
    ridge: float | None = None  # accuracy of the ridge probe on the test items, in [0, 1]; None as for probe, but of wide


@dataclass(frozen=True, kw_only=True)
class Posterior(Finite):
    """Statistics of the objective's posterior over the test items."""

    variance_mean: float  # mean variance per feature
    variance_cv: float  # standard deviation of the variances over their mean
    norm_z: float  # mean Euclidean norm of the embedding
    norm_mu: float  # mean Euclidean norm of the posterior mean
    entropy: float  # mean entropy in nats


@dataclass(frozen=True, kw_only=True)
class Detection(Finite):
    """How well one score tells anomalies or errors from other test items; see `vergence.learn.evaluation.anomaly.detection`."""

    least: typing.ClassVar[dict[str, float]] = dict.fromkeys(("auroc", "aupr", "fpr95"), 0)
    most: typing.ClassVar[dict[str, float]] = dict.fromkeys(("auroc", "aupr", "fpr95"), 1)

    kind: Kind  # model, or baseline for a score that needs no density
    auroc: float  # area under the ROC curve; 0.5 is chance
    aupr: float  # average precision with the anomalies as positives
    fpr95: float  # share of the other items that are reported where 95 % of the anomalies are


@dataclass(frozen=True, kw_only=True)
class Anomaly(Finite):
    """Detection of the classes that training left out."""

    least: typing.ClassVar[dict[str, float]] = {"n_inliers": 0, "n_anomalies": 0}

    inliers: tuple[str, ...]  # names of the classes that training kept
    anomalies: tuple[str, ...]  # names of the others
    n_inliers: int  # number of test items of the kept classes
    n_anomalies: int  # number of test items of the others
    scores: dict[str, Detection]  # detection by each score, by name


@dataclass(frozen=True, kw_only=True)
class Uncertainty(Finite):
    """How well distances to training items rank errors: test items whose nearest other test item has another class."""

    least: typing.ClassVar[dict[str, float]] = {"items": 1, "recall_at_1": 0}
    most: typing.ClassVar[dict[str, float]] = {"recall_at_1": 1}

    items: int  # number of test items
    recall_at_1: float  # share of them that are not errors
    # detection of the errors by each uncertainty, by name; empty where all items are errors, or none
    scores: dict[str, Detection]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record, Tabular):
    """The numbers of a run with their baselines: what ``evaluation.json`` holds.

    Attributes:
        protocol: How they were made.
        representations: Accuracies and spread by name: z (the embedding), mu (the posterior mean), wide (the features of an
            encoder patches before its affine map, where they were asked for), and the baselines untrained, initial (the encoder
            before its first step, where its weights were not random), pixels and pca.
        posterior: Statistics of the posterior; None where the objective defines no density.
        anomaly: Detection of the classes left out; None where training kept all.
        uncertainty: Which uncertainties rank errors; None where it was not measured.
    """

    protocol: EvaluationProtocol
    representations: dict[str, Representation]
    posterior: Posterior | None = None
    anomaly: Anomaly | None = None
    uncertainty: Uncertainty | None = None
    shares: typing.ClassVar[tuple[str, ...]] = ("knn", "probe", "ridge")

    def table(self) -> dict[str, list[Any]]:
        """Returns a row for each representation: its spread, and accuracies in [0, 1]."""
        parts = self.representations
        columns: dict[str, list[Any]] = {"representation": list(parts), "kind": [part.kind for part in parts.values()]}
        columns["effective_rank"] = [part.collapse and part.collapse.effective_rank for part in parts.values()]
        for k in sorted({k for part in parts.values() for k in part.knn or ()}):
            columns[f"knn_{k}"] = [part.knn[k].majority if part.knn else None for part in parts.values()]
        if any(part.probe for part in parts.values()):
            columns["probe"] = [part.probe.accuracy if part.probe else None for part in parts.values()]
        if any(part.ridge is not None for part in parts.values()):
            columns["ridge"] = [part.ridge for part in parts.values()]
        return columns
