"""A detector with the calibration that turns its scores into p-values and reasons, stored without pickle.

It is fitted to feature sets of training items, and calibrated on items that no fit has seen.
"""

import dataclasses
import functools
import itertools
import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save
from torch import Tensor
from torch.nn import functional as F

from vergence.decide.conformal import ranked
from vergence.decide.core import folds_of
from vergence.decide.density import GaussianDetector
from vergence.decide.feature_sets import FeatureSets
from vergence.decide.neighbors import NeighborDetector
from vergence.densities.storage import pack, restore
from vergence.learn.encoders.config import PatchSettings
from vergence.learn.encoders.patch_maps import PatchMaps
from vergence.learn.methods.core import Method
from vergence.learn.runs.features import RunFeatures
from vergence.utils.checks import expect
from vergence.utils.neighbors import nearest_rows

__all__ = ["Collected", "RunDetector", "fit_detector", "run_sets", "usable_features"]

Arrays = dict[str, np.ndarray]
FORMAT = 2
ARRAYS = ("deviations", "normal", "seen")
SHOWN, NEAREST = 5_000, 3  # items that are shown as nearest normal ones, of each item
FOLDS = 5
WIDEST = 8_192  # features of a set, whose covariance takes half a gigabyte then
STATISTICS = GaussianDetector(trim=0.05)
SETS = {
    "pixels": STATISTICS,
    "inputs": STATISTICS,
    "patches": NeighborDetector(20, max_items=2_000),
    "z": NeighborDetector(3, metric="cosine", standardize=False, max_items=2_000, keep="centers"),
}
WEIGHTS = {"pixels": 0.4, "inputs": 0.4, "patches": 0.4}  # next to an embedding


@dataclass(frozen=True)
class Collected:
    """N items that could be read: features (N, D) by feature set, and of each item index, name and uint64 digest."""

    features: Arrays
    index: Tensor
    names: list[str]
    digests: np.ndarray


@dataclass(frozen=True)
class RunDetector:
    """A fitted detector with what turns its scores into p-values and reasons."""

    sets: FeatureSets  # of one score
    deviations: np.ndarray  # deviations (n, L) of the calibration items; see `vergence.decide.FeatureSets`
    names: list[str]  # name of each calibration item
    # whether no fit has seen the calibration items; otherwise they were training items, each scored by a detector that did not
    # see it, behind an encoder that did
    held_out: bool
    normal: np.ndarray  # normalized embeddings (R, D) of normal training items
    normal_names: list[str]
    seen: np.ndarray  # digests of the items of the fit and the calibration, sorted
    # share of other training items (of test items where calibration items were training items) with p <= 0.05, which is 0.05 for
    # items like those of the calibration; None where it was not measured
    gap: float | None = None
    model: str = ""  # digest of the model that the detector belongs to
    notes: list[str] = field(default_factory=list)  # what the reader of the scores must know, such as a collapse
    # dictionary of the feature set patches; None where the encoder has its own, or there is no such set
    dictionary: PatchMaps | None = None

    @functools.cached_property
    def calibration(self) -> np.ndarray:
        """Anomaly scores (n,) of the calibration items."""
        return self.sets.combined(self.deviations)

    @property
    def feature_sets(self) -> list[str]:
        """Names of the feature sets (L,)."""
        return list(self.sets.detectors)

    def widths(self) -> dict[str, int]:
        """Returns the number of features of each set that the detector reads."""
        return {name: detector.n_features_in_ for name, detector in self.sets.detectors_.items()}

    def of_batches(self, method: Method, shape: Sequence[int]) -> RunFeatures:
        """Returns what computes the features that the detector reads, of items of a shape, (C, H, W) or (D,)."""
        maps = self.dictionary
        if maps is None:
            return RunFeatures(method, shape)
        n, advice = maps.filters.shape[1], "remove the detector's file, and it is fitted again"
        fits = len(shape) == 3 and n == shape[0] * maps.settings.patch**2
        expect(fits, f"the detector's dictionary to be one of images of shape {tuple(shape)}", f"patches of {n} numbers", advice)
        maps.settings.require_size(shape)
        first = next(itertools.chain(method.encoder.parameters(), method.encoder.buffers()))
        return RunFeatures(method, shape, maps.to(first.device))

    def deviations_of(self, features: Mapping[str, Tensor | np.ndarray]) -> np.ndarray:
        """Returns how far each item is from the median of the calibration in each feature set, in deviations, (B, L)."""
        if not len(features["z"]):  # a batch of files of which none could be read
            return np.zeros((0, len(self.feature_sets)))
        return self.sets.deviations({name: _finite(name, features[name]) for name in self.feature_sets})

    def anomaly_score(self, features: Mapping[str, Tensor | np.ndarray]) -> np.ndarray:
        """Returns how anomalous each item is, (B,)."""
        return self.sets.combined(self.deviations_of(features))

    def p_values_by_set(self, deviations: np.ndarray) -> np.ndarray:
        """Returns the p-value of each item by each feature set alone, (B, L)."""
        return np.stack([ranked(own, new) for own, new in zip(self.deviations.T, deviations.T, strict=True)], 1)

    def nearest(self, z: np.ndarray) -> list[str]:
        """Returns the names of the three most similar normal items of each embedding (B, D), separated by ``; ``."""
        if not len(z):
            return []
        bank = torch.from_numpy(self.normal).float()
        best = nearest_rows(bank, torch.from_numpy(_normalized(z)), min(NEAREST, len(bank)), directions=True)
        return ["; ".join(self.normal_names[i] for i in row) for row in best.tolist()]

    def content(self) -> bytes:
        """Returns the bytes of a ``.safetensors`` file; see `read`."""
        sets, own = pack(self.sets)
        arrays = {f"detector/{name}": array for name, array in own.items()}
        arrays |= {name: getattr(self, name) for name in ARRAYS}
        names = [field.name for field in dataclasses.fields(self) if field.name not in (*ARRAYS, "sets", "dictionary")]
        record = {name: getattr(self, name) for name in names}
        record |= {"format": FORMAT, "settings": {"settings": sets["settings"], "state": sets["state"]}}
        if self.dictionary is not None:
            record["dictionary"] = dataclasses.asdict(self.dictionary.settings)
            arrays |= {f"dictionary/{name}": x.cpu().numpy() for name, x in self.dictionary.state_dict().items()}
        whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return bytes(save(whole, metadata={"record": json.dumps(record)}))

    @classmethod
    def read(cls, file: Path) -> "RunDetector":
        """Returns the detector of a file that holds `content`; runs no code of the file's."""
        with safe_open(file, framework="numpy") as stored:
            record = json.loads((stored.metadata() or {})["record"])
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}
        expect(record.pop("format") == FORMAT, f"format {FORMAT}", "a file of another version")
        inner, of_patches = (
            {name.removeprefix(start): arrays.pop(name) for name in list(arrays) if name.startswith(start)}
            for start in ("detector/", "dictionary/")
        )
        members: dict[str, Any] = {"sets": restore("FeatureSets", record.pop("settings"), inner)}
        if "dictionary" in record:
            members["dictionary"] = _dictionary(record.pop("dictionary"), of_patches)
        detector = cls(**members, **record, **arrays)
        detector._require_whole()
        return detector

    def _require_whole(self) -> None:
        """Raises a ValueError unless what was read has its types and fits together."""
        texts = (self.names, self.normal_names, self.notes)
        right = all(isinstance(text, list) and all(isinstance(line, str) for line in text) for text in texts)
        right &= isinstance(self.held_out, bool) and isinstance(self.gap, float | None)
        right &= all(np.issubdtype(x.dtype, np.floating) for x in (self.deviations, self.normal))
        expect(right and self.seen.dtype == np.uint64, "a detector whose parts have their types", "others")
        n, normal, L = len(self.names), len(self.normal_names), len(self.feature_sets)
        whole = self.deviations.shape == (n, L) and self.normal.ndim == 2 and len(self.normal) == normal and n and normal
        expect(whole, f"deviations of {n} calibration items in {L} feature sets", f"shape {self.deviations.shape}")
        expect(np.isfinite(self.deviations).all(), "calibration scores", "NaN or infinity")


def _dictionary(settings: dict[str, Any], arrays: Arrays) -> PatchMaps:
    """Returns a dictionary of patches from its settings and arrays; raises a ValueError where they do not fit together."""
    atoms = arrays.get("filters", np.zeros(0))
    expect("bias" in arrays and atoms.ndim == 2 and np.isfinite(atoms).all(), "a dictionary of patches", "none")
    given = PatchSettings(**settings)
    with torch.random.fork_rng(devices=[]):  # its atoms are random before they are set
        maps = PatchMaps(atoms.shape[1] // given.patch**2, given).float()
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    shapes, others = ({name: x.shape for name, x in tensors.items()} for tensors in (state, maps.state_dict()))
    expect(shapes == others, "a dictionary of patches whose atoms fit its settings")
    maps.load_state_dict(state)
    return maps


def _finite(name: str, features: Tensor | np.ndarray) -> np.ndarray:
    f = features.detach().cpu().numpy() if isinstance(features, Tensor) else features
    broken = int((~np.isfinite(f)).any(1).sum())
    expect(not broken, "finite features", f"NaN or infinity in feature set {name} of {broken} of {len(f)} items", "check them")
    return f


def _normalized(z: np.ndarray) -> np.ndarray:
    return F.normalize(torch.from_numpy(np.asarray(z, dtype=np.float32)), dim=1).numpy()


def sample(n: int, most: int) -> Tensor:
    """Returns the index of at most ``most`` of n items, in a random order where not all are taken."""
    if n <= most:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:most]


def usable_features(features: Arrays) -> tuple[Arrays, list[str]]:
    """Returns the feature sets that are finite, vary, and have at most 8,192 features, and one line on each of the others."""
    why = {}
    for name, f in features.items():
        if not np.isfinite(f).all():
            why[name] = "it holds NaN or infinity"
        elif f.shape[1] > WIDEST:
            why[name] = f"it has {f.shape[1]:,} features, more than {WIDEST:,}"
        elif not np.ptp(f, axis=0).any():
            why[name] = f"it is the same for all {len(f)} items"
    notes = [f"feature set {name} is left out: {reason}" for name, reason in why.items()]
    some = len(why) < len(features)
    expect(some, "a feature set that tells the items apart", f"none ({'; '.join(notes)})", "give items that differ")
    return {name: f for name, f in features.items() if name not in why}, notes


def run_sets(names: Collection[str]) -> FeatureSets:
    """Returns some feature sets of a run, unfitted."""
    return FeatureSets({name: SETS[name] for name in names}, weights={name: w for name, w in WEIGHTS.items() if name in names})


def fit_detector(training: Collected, held_out: Collected | None, maps: PatchMaps | None = None) -> RunDetector:
    """Returns a detector that is fitted to training items and calibrated on others.

    At least 10 training items have the feature set ``z``. Without ``held_out`` they calibrate, too, each scored by a
    detector that was fitted without it. ``maps`` is the dictionary of the feature set ``patches``, which is stored for new items.
    """
    n = len(training.index)
    expect(n >= 2 * FOLDS, f"at least {2 * FOLDS} items to fit a detector to", n, "give more")
    features, notes = usable_features(training.features)
    calibrating = held_out or training
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sets = run_sets(features).fit(features)
        own = sets.log_distances(features)
        t = sets.out_of_fold(features, folds_of(n, FOLDS)) if held_out is None else sets.log_distances(held_out.features)
    deviations, fitted = sets.scaled(t).standardized(t), sets.combined(sets.standardized(own))
    least = np.argsort(fitted, kind="stable")[: max(1, n * 9 // 10)]
    shown = np.sort(least[sample(len(least), SHOWN).numpy()])
    return RunDetector(
        sets=sets,
        deviations=deviations,
        names=calibrating.names,
        held_out=held_out is not None,
        normal=_normalized(training.features["z"][shown]).astype(np.float16),
        normal_names=[training.names[i] for i in shown.tolist()],
        seen=np.unique(np.concatenate([training.digests, calibrating.digests])),
        gap=None if held_out is None else float((ranked(sets.combined(deviations), fitted) <= 0.05).mean()),
        notes=notes,
        dictionary=maps if "patches" in features else None,
    )
