"""Several levels of features, for instance pixel statistics and embeddings, in one score."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import ndtri
from sklearn.base import clone
from sklearn.utils.validation import check_array, check_is_fitted

from vergence.decide.core import Detector, lower_quantile, positive, take, weights_of
from vergence.decide.density import GaussianDetector, MixtureDetector
from vergence.decide.moments import Tail, uniform
from vergence.decide.neighbors import NeighborDetector
from vergence.mixtures.core import to_numpy
from vergence.utils.checks import expect, require_choice, require_within

__all__ = ["CombinedDetector", "default_detector"]

TIE = 1e-6  # nats for each nat
CENTERS = NeighborDetector(max_items=2000, keep="centers")
Weights = np.ndarray | float  # of the levels, (L,) or one for all


def fisher(log_p: np.ndarray, w: Weights = 1.0) -> np.ndarray:
    """Returns -2 sum w log p over the last axis (Fisher, 1925; weights: Good, 1955)."""
    return np.asarray(-2 * (w * log_p).sum(-1))


def stouffer(log_p: np.ndarray, w: Weights = 1.0) -> np.ndarray:
    """Returns sum w z / sqrt(sum w^2), z = Phi^-1(1 - p), over the last axis (Stouffer, 1949; weights: Lipták, 1958)."""
    z = -ndtri(np.exp(np.clip(log_p, -700.0, -1e-12)))
    return np.asarray((w * z).sum(-1) / np.sqrt(np.sum(np.broadcast_to(w, z.shape[-1:]) ** 2)))


def cauchy(log_p: np.ndarray, w: Weights = 1.0) -> np.ndarray:
    """Returns the signed logarithm of the mean of w / tan(pi p) over the last axis (Liu, Xie, Cauchy combination test, 2020)."""
    mean = (w / np.tan(np.pi * np.exp(np.clip(log_p, -700.0, -1e-12)))).mean(-1)
    return np.asarray(np.sign(mean) * np.log1p(np.abs(mean)))


def least(log_p: np.ndarray, w: Weights = 1.0) -> np.ndarray:
    """Returns -log of the least p / w over the last axis; it wants its own calibration."""
    return np.asarray(-(log_p - np.log(w)).min(-1))


def least_ranked(log_p: np.ndarray, w: Weights = 1.0) -> np.ndarray:
    """Returns `least`, and TIE times the mean of -log p over the last axis, which ranks items that no level finds rare."""
    return np.asarray(least(log_p, w) - TIE * log_p.mean(-1) + 0.0)  # not -0


Rule = Callable[[np.ndarray, Weights], np.ndarray]
COMBINE: dict[str, Rule] = {rule.__name__: rule for rule in (fisher, stouffer, cauchy, least, least_ranked)}


class CombinedDetector(Detector):
    """Detectors on named levels of features, combined through their p-values.

    Each level's score becomes a tail probability p under the scores of calibration items, and the logarithms of p are combined.
    Levels depend on each other, so the result is a score and not a test: ``calibration_scores_`` are for conformal p-values.
    Features are a dictionary of matrices (N, D_level), or one matrix (N, D) with ``columns``.

    Args:
        detectors: Detectors by the name of their level, levels without a detector are not used; or one detector that is cloned
            for every level; None for the distance to the 5th nearest item (`NeighborDetector`).
        columns: Columns of each level in a matrix, slices or lists of indices; None makes the matrix one level, ``features``.
        combine: ``fisher``, ``stouffer``, ``cauchy``, ``least``, or ``least_ranked``, which is ``least`` but without ties.
        weights: Weights of levels by their names, > 0, of which only the ratios matter; 1 for the others. A level of small weight
            decides only where it is much rarer than the others.
        calibration: Share of the items, in [0, 1), that is not fitted to but calibrates the levels; 0 calibrates on the items
            of the fit, whose scores are too small: call `calibrate` then.
        random_state: Seed of the calibration part; the order of the items does not matter.
        contamination: Share of the items of `fit` that `predict` calls outliers, in (0, 0.5].

    Attributes:
        levels_: Names of the levels.
        detectors_: Fitted detector of each level.
        tails_: Calibrated tail of each level's scores.
        calibration_scores_: Anomaly scores (n,) of calibration items that the detectors and tails have not seen; of items of the
            fit where fewer than four are held out.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = {"colors": rng.normal(size=(500, 3)), "z": rng.normal(size=(500, 8))}
        >>> detector = CombinedDetector().fit(X)
        >>> odd = {"colors": np.array([[0.0, 0.0, 0.0]]), "z": np.full((1, 8), 4.0)}
        >>> detector.anomaly_score(odd) > detector.calibration_scores_.max()
        array([ True])
        >>> detector.level(odd).tolist()
        ['z']
    """

    def __init__(
        self,
        detectors: Any = None,
        *,
        columns: Mapping[str, Any] | None = None,
        combine: str = "fisher",
        weights: Mapping[str, float] | None = None,
        calibration: float = 0.2,
        random_state: int | None = 0,
        contamination: float = 0.05,
    ) -> None:
        self.detectors = detectors
        self.columns = columns
        self.combine = combine
        self.weights = weights
        self.calibration = calibration
        self.random_state = random_state
        self.contamination = contamination

    def _fit(self, X: dict[str, np.ndarray], w: np.ndarray | None) -> None:
        require_choice("combine", self.combine, COMBINE)
        require_within("[0, 1)", calibration=self.calibration)
        require_within("(0, inf)", **{f"weights[{name}]": weight for name, weight in (self.weights or {}).items()})
        self.levels_ = list(X)
        unknown = [name for name in self.weights or {} if name not in X]
        expect(not unknown, f"weights of the levels {', '.join(X)}", f"one of {unknown}")
        held = uniform(X, self.random_state) < self.calibration
        if held.sum() < 2 or (~held).sum() < 2:
            held[:] = False
        fitted, v = take(X, ~held), None if w is None else w[~held]
        single = CENTERS if self.detectors is None else self.detectors
        given = single if isinstance(single, Mapping) else dict.fromkeys(X, single)
        self.detectors_ = {name: clone(given[name]).fit(fitted[name], sample_weight=v) for name in self.levels_}
        self._calibrate(*((take(X, held), None if w is None else w[held]) if held.any() else (X, w)))

    def calibrate(self, X: Any, sample_weight: Any = None) -> "CombinedDetector":
        """Calibrates the levels again, on at least 2 typical items that no encoder and no detector was fitted to.

        Half of the items calibrate the levels; the other half's combined scores become ``calibration_scores_``, and their
        quantile the threshold ``offset_`` of `predict`.
        """
        check_is_fitted(self)
        items = self._read(X, reset=False)
        w = self._calibrate(*positive(items, weights_of(sample_weight, items)))
        self.offset_ = lower_quantile(-self.calibration_scores_, w, self.contamination)
        return self

    def _calibrate(self, X: dict[str, np.ndarray], w: np.ndarray | None) -> np.ndarray | None:
        """Calibrates the levels on one half of the items; returns the weights of the others, which are scored."""
        half = uniform(X, self.random_state)
        half = half < np.quantile(half, 0.5)
        if half.sum() < 2 or (~half).sum() < 1:
            half[:] = True
        other = half if half.all() else ~half
        first, v = take(X, half), None if w is None else w[half]
        self.tails_ = {name: vars(Tail(d.anomaly_score(first[name]), v)) for name, d in self.detectors_.items()}
        self.calibration_scores_ = -self._over(take(X, other))
        return None if w is None else w[other]

    def _used(self, X: Mapping[str, Any]) -> list[str]:
        """Returns the names of the levels that have a detector."""
        if not isinstance(self.detectors, Mapping):
            return list(X)
        expect(self.detectors, "detectors by the names of their levels", "none", "name one, or pass None for the default")
        missing = [name for name in self.detectors if name not in X]
        expect(not missing, "the levels of all detectors", f"no {', '.join(missing)} among {', '.join(X)}", "compute it")
        return [name for name in X if name in self.detectors]

    def contributions(self, X: Any) -> dict[str, np.ndarray]:
        """Returns -log p of each level for each item, (N,) by the level's name: how anomalous the item is there."""
        check_is_fitted(self)
        return {name: -values for name, values in self._log_p(self._read(X, reset=False)).items()}

    def level(self, X: Any) -> np.ndarray:
        """Returns the name of the level where each item is most anomalous, (N,)."""
        return np.asarray(np.array(self.levels_)[np.stack(list(self.contributions(X).values())).argmax(0)])

    def combined(self, contributions: np.ndarray) -> np.ndarray:
        """Returns the anomaly scores (N,) of what `contributions` returned, as a matrix (N, L) in the order of ``levels_``."""
        w = np.array([(self.weights or {}).get(name, 1.0) for name in self.levels_])
        return COMBINE[self.combine](-contributions, w)

    def _log_p(self, X: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tails = {name: Tail.of(state) for name, state in self.tails_.items()}
        return {name: tails[name].log_probability(-self.detectors_[name].score_samples(X[name])) for name in self.levels_}

    def _over(self, X: dict[str, np.ndarray]) -> np.ndarray:
        return -self.combined(-np.stack(list(self._log_p(X).values()), -1))

    def _score(self, block: np.ndarray) -> np.ndarray:
        return self._over(self._split(block))

    def _try(self) -> None:
        for detector in self.detectors_.values():
            detector._try()
        scores = self._over({name: np.zeros((1, d.n_features_in_)) for name, d in self.detectors_.items()})
        expect(not np.isnan(scores).any(), "scores that are numbers")

    def _require_settings(self) -> None:
        """Raises a ValueError unless the settings have their types."""
        for name in ("columns", "weights", "detectors"):
            given = getattr(self, name)
            if isinstance(given, Mapping):
                expect(all(isinstance(key, str) for key in given), f"names of levels as text in {name}", list(given))
            expect(name == "detectors" or isinstance(given, Mapping | None), f"{name} to be a dictionary by level or None", given)
        expect(self.columns is None or self.columns, "columns of at least one level", "none", "name them, or leave columns out")
        single = () if self.detectors is None else (self.detectors,)
        for detector in self.detectors.values() if isinstance(self.detectors, Mapping) else single:
            usual = hasattr(detector, "get_params") and not isinstance(detector, type)
            expect(usual, "detectors", detector, "pass one such as GaussianDetector()")

    def _read(self, X: Any, *, reset: bool) -> dict[str, np.ndarray]:
        self._require_settings()
        if not isinstance(X, Mapping) or issparse(X):  # some sparse matrices are dictionaries
            return self._split(super()._read(X, reset=reset))
        named = X and all(isinstance(name, str) for name in X)
        expect(named, "at least one level of features, with names of levels as text", list(X))
        checks: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_min_samples": 2 if reset else 1, "estimator": self}
        used = self._used(X) if reset else [name for name in self.levels_ if name in X]
        items = {name: check_array(to_numpy(X[name]), input_name=name, **checks) for name in used}
        lengths, widths = ({name: values.shape[i] for name, values in items.items()} for i in (0, 1))
        expect(len(set(lengths.values())) <= 1, "the same items at every level", lengths)
        if reset:
            self.n_features_in_ = sum(widths.values())
        else:
            fitted = {name: detector.n_features_in_ for name, detector in self.detectors_.items()}
            expect(widths == fitted, f"levels of {fitted} features as in fit", widths, "compute the same levels")
        return items

    def _split(self, X: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the levels of a matrix."""
        if self.columns is None:
            return dict.fromkeys(self._used({"features": X}), X)
        used = self._used(self.columns)
        try:
            return {name: X[:, columns] for name, columns in self.columns.items() if name in used}
        except IndexError:
            raise ValueError(f"expected columns of {X.shape[1]} features, found others in {self.columns}") from None


TRIMMED = GaussianDetector(trim=0.05)
DEFAULTS: dict[str, dict[str, tuple[Detector, float]]] = {  # detectors of a kind of level and their weights
    "plain": {"density": (TRIMMED, 1.0)},
    "patches": {"neighbors": (NeighborDetector(20, max_items=2000), 1.0)},
    "embedding": {
        "cosine": (NeighborDetector(3, metric="cosine", standardize=False, max_items=2000, keep="centers"), 1.0),
        "centered": (NeighborDetector(3, metric="cosine", max_items=2000, keep="centers"), 0.5),
        "density": (TRIMMED, 0.5),
    },
    "table": {"neighbors": (CENTERS, 1.0), "density": (MixtureDetector(), 0.5)},
    "contaminated": {"density": (GaussianDetector(trim=0.2), 1.0)},
}
PLAIN = ("statistics", "pixels", "inputs")  # levels that need no encoder
KINDS = {**dict.fromkeys(PLAIN, "plain"), "patches": "patches", "z": "embedding", "pretrained": "embedding"}
BESIDE = {"plain": 0.15, "patches": 0.05}  # weights next to an embedding that recognizes views much better than statistics do


def default_detector(
    levels: Iterable[str] = (), *, contaminated: bool = False, relative_error: float = 0.0, **settings: Any
) -> CombinedDetector:
    """Returns the unfitted detector that is used where nothing else is asked for: the least p-value over levels.

    - An embedding, ``z`` or ``pretrained``: Fisher's rule over the cosine distance to the 3rd nearest of 2,000 centers, and with
      a weight of 0.5 each the same distance of the standardized features, and one Gaussian without the least likely twentieth.
    - ``statistics`` of pixels, ``pixels`` or ``inputs`` as they are: one such Gaussian. Next to an embedding their weight is
      r / (1 - r) for its ``relative_error`` r, at least 0.15 and at most 1 / 0.15.
    - The average responses to ``patches``, with a third of that weight: the distance to the 20th nearest of 2,000 items.
    - Other levels are used where there is none of these, as statistics. Without names, for one matrix of features: Fisher's rule
      over the distance to the 5th nearest of 2,000 centers and, with a weight of 0.5, a mixture of Gaussians.

    Args:
        levels: Names of the levels of features that it will be fitted to; none for one matrix.
        contaminated: Whether outliers are among the items of the fit, up to about 5 %: then every level has a Gaussian without
            the least likely fifth of the items, from which clusters do not hide.
        relative_error: How badly the embedding recognizes other views of typical items, >= 0
            (`vergence.learn.evaluation.accuracy.relative_error`). From 0.5 on statistics weigh more than it.
        **settings: Settings of `CombinedDetector` that differ.

    Example:
        >>> default_detector(["statistics", "stage1", "patches"]).detectors
        {'statistics': GaussianDetector(trim=0.05), 'patches': NeighborDetector(max_items=2000, n_neighbors=20)}
        >>> default_detector(["statistics", "z"]).weights, default_detector(["statistics", "z"], relative_error=0.75).weights
        ({'statistics': 0.15}, {'statistics': 3.0})
    """
    require_within("[0, inf)", relative_error=relative_error)
    names: list[Any] = list(levels) if isinstance(levels, Iterable) and not isinstance(levels, str) else [None]
    hint = "leave it out for one matrix, and pass the features to fit"
    expect(all(isinstance(name, str) for name in names), "the names or a dictionary of levels", levels, hint)
    kinds = {name: KINDS[name] for name in names if name in KINDS} or dict.fromkeys(names, "plain")
    detectors: Any = {name: _of_kind("contaminated" if contaminated else kind) for name, kind in kinds.items()}
    weights = None
    if "embedding" in kinds.values() and not contaminated:
        least, r = BESIDE["plain"], relative_error
        odds = min(max(r / (1 - r), least), 1 / least) if r < 1 else 1 / least
        weights = {name: odds / least * BESIDE[kind] for name, kind in kinds.items() if kind in BESIDE}
    detectors = detectors or _of_kind("contaminated" if contaminated else "table")
    return CombinedDetector(detectors, **{"combine": "least_ranked", "weights": weights, **settings})


def _of_kind(kind: str) -> Detector:
    """Returns the unfitted detector of a kind of level."""
    parts: dict[str, Detector] = {name: clone(detector) for name, (detector, _) in DEFAULTS[kind].items()}
    if len(parts) == 1:
        return next(iter(parts.values()))
    weights = {name: weight for name, (_, weight) in DEFAULTS[kind].items() if weight != 1}
    share = 0.0 if kind == "table" else 0.2
    return CombinedDetector(parts, columns=dict.fromkeys(parts, slice(None)), weights=weights, calibration=share)
