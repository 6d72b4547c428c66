"""The detector of a run: fitted to levels of training items, calibrated on items that no fit has seen, stored without pickle."""

import dataclasses
import itertools
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save
from torch import Tensor
from torch.nn import functional as F

from vergence.encoders.patch_maps import PatchMaps, PatchSettings
from vergence.evaluation import collapse
from vergence.evaluation.levels import Levels
from vergence.methods.core import Method
from vergence.runs.levels import Arrays, Found, sample
from vergence.utils.neighbors import nearest_rows

if TYPE_CHECKING:
    from vergence.detection import CombinedDetector

__all__ = ["FILE", "RunDetector", "fit", "gap", "usable_levels", "warn"]

FILE = "detector.safetensors"
FORMAT = 4  # 1 had no dictionary, 2 no relative error, 3 no settings of a second layer
TYPICAL = 5_000  # items that are shown as nearest typical ones
FOLDS = 5
LITTLE = 0.8  # of the statistics' rank error, from which an embedding knows little more than they do
WIDEST = 8_192  # features of a level, whose covariance takes half a gigabyte then


@dataclass
class RunDetector:
    """A fitted detector with what turns its scores into decisions.

    Attributes:
        detector: The detector over the levels.
        calibration: Anomaly scores (n,) of the calibration items.
        names: Name of each calibration item.
        held_out: Whether no fit has seen the calibration items; otherwise they were training items, each scored by
            a detector that did not see it, behind an encoder that did.
        typical: Normalized embeddings (R, D) of typical training items.
        typical_names: Their names.
        seen: Digests of the items of the fit and the calibration, sorted.
        gap: Share of other training items (of test items where calibration items were training items) with p <= 0.05,
            which is 0.05 for items like those of the calibration; None where it was not measured.
        model: Digest of the model that the detector belongs to.
        notes: What the reader of the scores must know, such as a collapse.
        dictionary: Dictionary of the level ``patches``; None where the encoder has its own, or there is no such level.
        relative_error: How badly the embedding recognizes other views, against statistics of the pixels
            (`vergence.evaluation.recognition.relative_error`); None where there are none, or for a detector of format 2.
    """

    detector: "CombinedDetector"
    calibration: np.ndarray
    names: list[str]
    held_out: bool
    typical: np.ndarray
    typical_names: list[str]
    seen: np.ndarray
    gap: float | None = None
    model: str = ""
    notes: list[str] = field(default_factory=list)
    dictionary: PatchMaps | None = None
    relative_error: float | None = None

    def widths(self) -> dict[str, int]:
        """Returns the number of features of each level that the detector reads."""
        return {name: one.n_features_in_ for name, one in self.detector.detectors_.items()}

    def of_batches(self, method: Method, shape: Sequence[int]) -> Levels:
        """Returns the function of a batch of items that computes the levels which the detector reads.

        Args:
            method: Trained method, in evaluation mode.
            shape: Shape of one item as the encoder sees it, (C, H, W) or (D,).

        Raises:
            ValueError: The dictionary of patches is one of other images.
        """
        first = next(itertools.chain(method.encoder.parameters(), method.encoder.buffers()))
        if self.dictionary is not None:
            _require_images(self.dictionary, shape)
        return Levels(method, shape, None if self.dictionary is None else self.dictionary.to(first.device))

    def scores(self, levels: Mapping[str, Tensor | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the anomaly score of each item (B,), and of each level -log p (B, L), in the order of ``detector.levels_``."""
        if not len(levels["z"]):  # a batch of files of which none could be read
            return np.zeros(0), np.zeros((0, len(self.detector.levels_)))
        found = self.detector.contributions({name: _finite(name, _array(levels[name])) for name in self.detector.levels_})
        each = np.stack(list(found.values()), -1)
        return self.detector.combined(each), each

    def nearest(self, z: np.ndarray, k: int = 3) -> list[str]:
        """Returns the names of the k most similar typical items of each embedding (B, D), separated by ``; ``."""
        if not len(z):
            return []
        bank, directions = torch.from_numpy(self.typical).float(), torch.from_numpy(_normalized(z))
        best = nearest_rows(bank, directions, min(k, len(bank)), directions=True)
        return ["; ".join(self.typical_names[i] for i in row) for row in best.tolist()]

    def content(self) -> bytes:
        """Returns the bytes of a ``.safetensors`` file; see `read`."""
        mine = ("calibration", "typical", "seen")
        arrays = {f"detector/{name}": array for name, array in self.detector.arrays().items()}
        arrays |= {name: getattr(self, name) for name in mine}
        record = {name: value for name, value in vars(self).items() if name not in (*mine, "detector", "dictionary")}
        record |= {"format": FORMAT, "settings": self.detector.settings()}
        if self.dictionary is not None:
            record["dictionary"] = dataclasses.asdict(self.dictionary.settings)
            arrays |= {f"dictionary/{name}": _array(x) for name, x in self.dictionary.state_dict().items()}
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return bytes(save(whole, metadata={"record": json.dumps(record)}))

    @classmethod
    def read(cls, file: Path) -> "RunDetector":
        """Returns the detector of a file that holds `content`; runs no code of the file's.

        Raises:
            ValueError: The file is damaged or of another version.
        """
        from vergence.detection import restore

        with safe_open(file, framework="numpy") as opened:
            record = json.loads((opened.metadata() or {})["record"])
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}
        if record.pop("format") not in range(1, FORMAT + 1):
            raise ValueError("another version wrote it")
        inner, of_patches = (
            {name.removeprefix(start): arrays.pop(name) for name in list(arrays) if name.startswith(start)}
            for start in ("detector/", "dictionary/")
        )
        parts: dict[str, Any] = {"detector": restore("CombinedDetector", record.pop("settings"), inner)}
        if "dictionary" in record:
            parts["dictionary"] = _dictionary(record.pop("dictionary"), of_patches)
        found = cls(**parts, **record, **arrays)
        found.require_whole()
        return found

    def require_whole(self) -> None:
        """Raises a ValueError unless the parts have their types and fit together."""
        for name in ("names", "typical_names", "notes"):
            if not isinstance(getattr(self, name), list) or not all(isinstance(text, str) for text in getattr(self, name)):
                raise ValueError(f"expected {name} to be a list of text, found other values")
        if not isinstance(self.held_out, bool) or not isinstance(self.gap, float | None):
            raise ValueError("expected held_out to be true or false and gap to be a number, found other values")
        if not isinstance(self.relative_error, float | None):
            raise ValueError(f"expected relative_error to be a number, found {self.relative_error!r}")
        for name, kind in (("calibration", np.floating), ("typical", np.floating), ("seen", np.uint64)):
            if not np.issubdtype(getattr(self, name).dtype, kind):
                raise ValueError(f"expected {name} of type {kind.__name__}, found {getattr(self, name).dtype}")
        if np.isnan(self.calibration).any() or (len(self.calibration) and not np.isfinite(self.calibration).any()):
            raise ValueError("expected calibration scores, found NaN or nothing but infinity")
        n, typical = len(self.names), len(self.typical_names)
        if self.calibration.shape != (n,) or self.typical.ndim != 2 or len(self.typical) != typical or not n or not typical:
            raise ValueError(f"{n} calibration items have scores of shape {self.calibration.shape}")

    @property
    def resolution(self) -> int:
        """Typical items against which every level can say how rare a new one is: of the smallest set that calibrates one."""
        rarest = max(float(np.exp(tail["log_share"].min())) for tail in self.detector.tails_.values())
        return max(1, min(len(self.calibration), round(1 / rarest) - 1))

    def with_calibration(self, scores: np.ndarray, names: list[str]) -> "RunDetector":
        """Returns the detector with other calibration items, which no fit has seen."""
        return replace(self, calibration=scores, names=names, held_out=True, gap=None)


def _dictionary(settings: dict[str, Any], arrays: Arrays) -> PatchMaps:
    """Returns a dictionary of patches from its settings and arrays; raises a ValueError where they do not fit together."""
    if not {"filters", "bias"} <= arrays.keys() or arrays["filters"].ndim != 2 or not np.isfinite(arrays["filters"]).all():
        raise ValueError("a dictionary of patches without its atoms")
    known = PatchSettings(**settings)
    channels = arrays["filters"].shape[1] // known.patch**2
    with torch.random.fork_rng(devices=[]):  # its atoms are random before they are set
        maps = PatchMaps(channels, known).float()
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if {name: x.shape for name, x in state.items()} != {name: x.shape for name, x in maps.state_dict().items()}:
        raise ValueError("a dictionary of patches whose atoms do not fit its settings")
    maps.load_state_dict(state)
    return maps


def _require_images(maps: PatchMaps, shape: Sequence[int]) -> None:
    """Raises a ValueError unless a dictionary reads images of ``shape``."""
    if len(shape) != 3 or maps.filters.shape[1] != shape[0] * maps.settings.patch**2:
        raise ValueError(
            f"expected the dictionary of {FILE} to be one of images of shape {tuple(shape)}, found patches of "
            f"{maps.filters.shape[1]} numbers; remove the file, and the detector is fitted again"
        )
    maps.settings.require_size(shape)


def _array(x: Tensor | np.ndarray) -> np.ndarray:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else x


def _finite(name: str, f: np.ndarray) -> np.ndarray:
    """Returns the features of a level; raises a ValueError where they hold NaN or infinity."""
    if broken := int((~np.isfinite(f)).any(1).sum()):
        raise ValueError(
            f"expected finite features, found NaN or infinity at level {name} of {broken} of {len(f)} items; check them"
        )
    return f


def _normalized(z: np.ndarray) -> np.ndarray:
    return F.normalize(torch.from_numpy(np.asarray(z, dtype=np.float32)), dim=1).numpy()


def usable_levels(levels: Arrays) -> tuple[Arrays, list[str]]:
    """Returns the levels whose features are finite, vary, and are at most WIDEST, and one line on each of the others.

    Raises:
        ValueError: There is none.
    """
    notes = []
    for name, f in levels.items():
        if not np.isfinite(f).all():
            notes.append(f"level {name} is left out: it holds NaN or infinity")
        elif f.shape[1] > WIDEST:
            notes.append(f"level {name} is left out: it has {f.shape[1]:,} features, more than {WIDEST:,}")
        elif not np.ptp(f, axis=0).any():
            notes.append(f"level {name} is left out: it is the same for all {len(f)} items")
    left_out = {note.split()[1] for note in notes}
    kept = {name: f for name, f in levels.items() if name not in left_out}
    if not kept:
        raise ValueError(f"expected a level that tells the items apart, found none ({'; '.join(notes)}); give items that differ")
    return kept, notes


def fit(
    training: Found,
    names: Any,
    calibration: tuple[Found, Any] | None,
    dictionary: PatchMaps | None = None,
    relative_error: float | None = None,
) -> RunDetector:
    """Returns a detector that is fitted to training items and calibrated on others.

    Args:
        training: Levels of at least 2 * `FOLDS` training items, with ``z`` among them.
        names: Names of all training items, by the index of ``training``.
        calibration: Levels and all names of the calibration items; None to calibrate on the training items, each scored by
            a detector that was fitted without it.
        dictionary: Dictionary that the level ``patches`` was computed with; kept for the items to come.
        relative_error: How badly the embedding recognizes other views, which decides how much it counts; None for well.

    Raises:
        ValueError: There are too few items, or no level tells them apart.
    """
    from vergence.detection import cross_fit, default_detector

    if len(training.index) < 2 * FOLDS:
        raise ValueError(f"expected at least {2 * FOLDS} items to fit a detector to, found {len(training.index)}; give more")
    levels, notes = usable_levels(training.levels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        detector = default_detector(levels, relative_error=relative_error or 0.0).fit(levels)
        held_out = calibration is not None
        own = detector.anomaly_score(levels)
        found, others = (training, names) if calibration is None else calibration
        scores = cross_fit(detector, levels, FOLDS)[0] if calibration is None else detector.anomaly_score(_only(found, detector))
    z = training.levels["z"]
    if message := collapse.warning(collapse.collapse(torch.from_numpy(z)), dim=z.shape[1]):
        notes.append(message)
    if relative_error is not None and relative_error >= LITTLE:
        better = "little better than" if relative_error < 1 else "no better than"
        notes.append(
            f"the embedding recognizes other views of an item {better} statistics of its pixels do (its rank error is "
            f"{relative_error:.2f} times theirs), so that these decide; more items or a longer training may help"
        )
    usual = np.argsort(own, kind="stable")[: max(1, len(z) * 9 // 10)]
    shown = np.sort(usual[sample(len(usual), TYPICAL).numpy()])
    return RunDetector(
        detector=detector,
        calibration=scores,
        names=[others[i] for i in found.index.tolist()],
        held_out=held_out,
        typical=_normalized(z[shown]).astype(np.float16),
        typical_names=[names[i] for i in training.index[shown].tolist()],
        seen=np.unique(np.concatenate([training.digests, found.digests])),
        gap=None if calibration is None else gap(scores, own),
        notes=notes,
        dictionary=dictionary if "patches" in levels else None,
        relative_error=relative_error,
    )


def _only(found: Found, detector: "CombinedDetector") -> Arrays:
    return {name: found.levels[name] for name in detector.levels_}


def gap(calibration: np.ndarray, scores: np.ndarray) -> float:
    """Returns the share of scores whose p-value is at most 0.05."""
    return float((p_values_of_batch(calibration, scores) <= 0.05).mean())


def p_values_of_batch(calibration: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Returns p-values without warnings: the whole is judged at the end, and a batch may be empty."""
    from vergence.detection import p_values

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(p_values(calibration, scores)) if len(scores) else scores


def warn(notes: list[str]) -> None:
    """Prints each note, once, on stderr."""
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
