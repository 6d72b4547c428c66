"""The records that advice consists of, and their JSON form; docs/advice.md lists every field of ``advice.json``."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

__all__ = [
    "Advice",
    "ComponentRow",
    "DirectionRow",
    "Facts",
    "OperationRow",
    "Probed",
    "SizeRow",
    "Spectrum",
    "Verdict",
]

Verdict = Literal["joint_embedding", "reconstruction", "cannot_tell"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the advice is about.

    Attributes:
        items: Items that were read.
        features: D.
        directions: r, principal directions in which both problems are solved.
        variance_kept: Share of the items' variance in these directions, in (0, 1].
        k: Components that the verdict is about.
        draws: Draws of the augmentation per item; 0 where its covariance is given.
        labeled: Items with a label.
        kinds: Distinct labels.
        classes: Names of the classes; empty where the verdict does not use labels.
        chance: Share of the largest class; None where the verdict does not use labels.
        noise: Two standard errors of an accuracy at chance.
        isotropic: Whether the augmentation is noise of equal variance in all directions.
        space: What the features are: ``raw``, the items' own numbers; ``patches``; ``given``, of a function.
        part: Where the test part of the data comes from; empty outside of `vergence.runs.advise`.
        skipped: Files that could not be read.
    """

    items: int
    features: int
    directions: int
    variance_kept: float
    k: int
    draws: int
    labeled: int
    kinds: int
    classes: tuple[str, ...]
    chance: float | None
    noise: float
    isotropic: bool
    space: str = "raw"
    part: str = ""
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """The spectra, each (r,), in descending order.

    Attributes:
        variance: Of the items, in the square of their unit.
        omega: Of joint embedding, in [0, 1].
        phi: Of reconstruction, in the unit of the items.
    """

    variance: tuple[float, ...]
    omega: tuple[float, ...]
    phi: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class DirectionRow:
    """One principal direction of the items.

    Attributes:
        variance: Its share of the variance.
        invariance: Share of the views' second moment in this direction that does not come from the augmentation, in [0, 1].
        label: Share of its variance that lies between classes; None where the verdict does not use labels.
        joint_embedding: R^2 with which the k components of joint embedding predict it.
        reconstruction: R^2 with which the k components of reconstruction predict it.
    """

    variance: float
    invariance: float
    label: float | None
    joint_embedding: float
    reconstruction: float


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Accuracies of least-squares probes on held-out items; all None where the verdict does not use labels.

    Attributes:
        joint_embedding: Accuracy from the components of joint embedding.
        reconstruction: Accuracy from the components of reconstruction.
        pca: Accuracy from principal components; None where it is not measured.
        margin: Accuracy of joint embedding minus that of reconstruction.
        interval: 95 % interval of the margin.
        clear: Whether the margin is at least half a point, and its interval excludes 0 at a level that is divided by the number
            of settings that are compared.
    """

    joint_embedding: float | None = None
    reconstruction: float | None = None
    pca: float | None = None
    margin: float | None = None
    interval: tuple[float, float] | None = None
    clear: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ComponentRow(Probed):
    """One number of components.

    Attributes:
        k: Components.
        overlap: Mean squared canonical correlation of the codes of both methods, in [0, 1].
        pca_ahead: Whether PCA's accuracy is above that of both, with an interval that excludes 0.
    """

    k: int
    overlap: float
    pca_ahead: bool | None = None


@dataclass(frozen=True, kw_only=True)
class OperationRow(Probed):
    """The whole augmentation, or the augmentation without one operation.

    Attributes:
        operation: ``all``, or the operation that is left out.
        strength: Share of the views' variance that comes from the augmentation, in [0, 1].
        unchanged: Overlap of joint embedding's code with that under the whole augmentation.
        alignment: Share of the linearly readable label information that the k components of joint embedding keep, in [0, 1];
            None where nothing is clearly readable.
        alignment_change: Difference of that share from the whole augmentation's.
        alignment_change_se: Its standard error.
    """

    operation: str
    strength: float
    unchanged: float
    alignment: float | None = None
    alignment_change: float | None = None
    alignment_change_se: float | None = None


@dataclass(frozen=True, kw_only=True)
class SizeRow(Probed):
    """The first items only.

    Attributes:
        items: Their number.
        overlap: Overlap of both codes that these items give.
        joint_embedding_settled: Overlap of joint embedding's code with the one that all items give.
        reconstruction_settled: The same for reconstruction.
    """

    items: int
    overlap: float
    joint_embedding_settled: float
    reconstruction_settled: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A recommendation and the measurements that support it.

    Attributes:
        verdict: ``joint_embedding``, ``reconstruction`` or ``cannot_tell``.
        basis: ``labels`` where accuracies were measured, ``spectrum`` where no labels were available.
        margin: With labels, accuracy of joint embedding minus that of reconstruction; without, their overlap at k.
        interval: 95 % interval of the margin, by half-samples of the items; without labels by the jackknife over groups.
        words: The summary in sentences; the last but one says what would change the verdict.
        facts: What the advice is about.
        spectrum: Spectra of both problems and of the items.
        directions: One row per principal direction, the one of most variance first.
        components: One row per number of components.
        augmentations: The whole augmentation, then without each operation, on a part of the items.
        sizes: One row per number of items.
    """

    verdict: Verdict
    basis: Literal["labels", "spectrum"]
    margin: float
    interval: tuple[float, float]
    words: tuple[str, ...]
    facts: Facts
    spectrum: Spectrum
    directions: tuple[DirectionRow, ...]
    components: tuple[ComponentRow, ...]
    augmentations: tuple[OperationRow, ...]
    sizes: tuple[SizeRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain dictionaries and lists, ready for JSON.

        A measurement that was not made has no key. Two keys may hold None: ``label`` of a direction, and with labels
        ``alignment`` of an operation.
        """
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain |= {"facts": _plain(self.facts, "chance"), "spectrum": _plain(self.spectrum)}
        plain |= {"directions": _rows(self.directions, "label"), "components": _rows(self.components)}
        kept = "alignment" if self.basis == "labels" else ""
        return plain | {"augmentations": _rows(self.augmentations, kept), "sizes": _rows(self.sizes)}

    def __str__(self) -> str:
        """Returns the summary, a sentence group per line."""
        return "\n".join(self.words)


def _rows(records: Sequence[Any], kept: str = "") -> list[dict[str, Any]]:
    return [_plain(record, kept) for record in records]


def _plain(record: Any, kept: str = "") -> dict[str, Any]:
    """Returns a record's fields; those that are None are left out, ``kept`` excepted."""
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not None or name == kept}
