"""Unusual pairs: how unusual a target is given its context, by any model of p(target | context).

Shapes: N pairs, C context features, T target features, S samples.
"""

import math
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vergence.densities.gaussian import JointGaussian
from vergence.detection.parts.kinds import numeric
from vergence.mixtures import get
from vergence.mixtures.core import to_numpy
from vergence.utils.checks import require_count, require_within, shown

__all__ = ["ConditionalDetector", "surprise"]

BLOCK = 1 << 22  # numbers of a table of samples
SAMPLES = 16  # that are held at a time
MOST_SAMPLES = 100_000  # of each conditional density
FEWEST = 20  # pairs that calibrate


def surprise(density: Any, target: Tensor, n_samples: int = 64, random_state: int = 0) -> Tensor:
    r"""Returns how unlikely each target is among what its own density predicts, (B,); larger is more unusual.

        s = (-log p(t) - h) / d,    h and d the mean and standard deviation of -log p(T) for T ~ p,

    Unlike -log p(t) it does not call every target of a wide density unusual, and it does not depend on the units of the target.
    Of a Gaussian in T dimensions it is (m^2 - T) / sqrt(2 T), with m the Mahalanobis distance, which is what is
    returned for a `JointGaussian`. Otherwise h and d come from samples of T. Mixtures share the samples' noise, so a pair's value
    does not depend on the other pairs; of distributions of other libraries it does, by the error of the samples.

    Args:
        density: Distribution of batch (B,) over (T,), as of `vergence.mixtures.ConditionalGaussian.conditional`.
        target: (B, T).
        n_samples: S in 2..100,000; the relative error of d is about 1 / sqrt(S).
        random_state: Seed of the samples; the global state of torch is restored.

    Example:
        >>> normal = JointGaussian(torch.zeros(1, 8), 9 * torch.eye(8))
        >>> surprise(normal, torch.tensor([[3.0] * 8])).abs().round(decimals=3).item()  # m^2 = T: as expected
        0.0
    """
    require_count(2, MOST_SAMPLES, n_samples=n_samples)
    require_count(0, random_state=random_state)
    t = numeric("target", target)
    if isinstance(density, JointGaussian):
        h, d = density.entropy(), torch.as_tensor(t.shape[-1] / 2).to(density.loc).sqrt()
    else:
        d, h = torch.std_mean(_usual(density, n_samples, random_state), dim=0)
    s: Tensor = (-density.log_prob(t) - h) / d.clamp(min=torch.finfo(d.dtype).eps)
    return s


def _usual(density: Any, n_samples: int, random_state: int) -> Tensor:
    """Returns -log p(T), (S, B), of samples T, which share their noise over the batch where the density can do so."""
    sample = density.common_samples if hasattr(density, "common_samples") else lambda n: density.sample(torch.Size((n,)))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(random_state)
        sizes = [len(part) for part in torch.arange(n_samples).split(SAMPLES)]  # whatever the batch: the noise depends on them
        return torch.cat([-density.log_prob(sample(n)) for n in sizes])


def _unfitted(estimator: Any) -> Any:
    if estimator is not None and (isinstance(estimator, type) or not hasattr(estimator, "conditional")):
        hint = "pass vergence.mixtures.get(NAME)()"
        raise ValueError(f"expected an estimator of vergence.mixtures, found {shown(estimator)}: {hint}")
    return get("gaussian")() if estimator is None else clone(estimator)


def _sides(context: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns contexts and targets as arrays of one length."""
    c, t = (np.asarray(to_numpy(side)) for side in (context, target))
    if not c.ndim or not t.ndim:
        raise ValueError(f"expected contexts (N, C) and one target for each, found shapes {c.shape} and {t.shape}")
    if len(c) != len(t):
        raise ValueError(f"expected one target per context, found {len(t)} targets and {len(c)} contexts")
    if c.dtype.kind not in "biuf" or t.dtype.kind not in "biuf":
        raise ValueError(f"expected numbers, found contexts of type {c.dtype} and targets of type {t.dtype}: convert them")
    return c, t


class ConditionalDetector(BaseEstimator):  # type: ignore[misc]
    """How unusual a target is for its context: a pair may be odd although both of its sides are ordinary.

    A part of the pairs is kept from the fit to calibrate: its scores, ``calibration_scores_``, make p-values that hold whatever
    the model (`vergence.detection.p_values`), if new pairs come from where these came from. The promise is an average over
    contexts, not one for each context.

    Args:
        estimator: Estimator of p(target | context) of `vergence.mixtures`, or another with ``fit(context, target)`` and
            ``conditional(context)``; a linear Gaussian model by default.
        prefit: Whether the estimator is fitted already, to other pairs; `fit` then only calibrates.
        calibration_share: Share of the pairs that calibrate, in (0, 1).
        n_samples: Samples of each conditional density; see `surprise`.
        contamination: Share of ordinary pairs that `predict` calls outliers, in (0, 0.5].
        random_state: Seed of the split and of the samples.

    Attributes:
        estimator_: The fitted estimator.
        calibration_scores_: `anomaly_score` of the pairs that calibrate, (n,).
        offset_: Threshold of `score_samples`: at most a share ``contamination`` of ordinary pairs lies below it.

    Example:
        >>> from vergence.detection import p_values, select
        >>> r = np.random.default_rng(0)
        >>> context = r.normal(size=(2000, 1))
        >>> target = 2 * context + 0.1 * r.normal(size=(2000, 1))
        >>> detector = ConditionalDetector().fit(context[:1500], target[:1500])
        >>> target[1500:1520] += 1.5  # no unusual targets, but for other contexts
        >>> scores = detector.anomaly_score(context[1500:], target[1500:])
        >>> flagged = select(p_values(detector.calibration_scores_, scores), fdr=0.2)
        >>> bool(flagged[:20].all())
        True
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        prefit: bool = False,
        calibration_share: float = 0.2,
        n_samples: int = 64,
        contamination: float = 0.05,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.prefit = prefit
        self.calibration_share = calibration_share
        self.n_samples = n_samples
        self.contamination = contamination
        self.random_state = random_state

    def fit(self, context: Any, target: Any) -> "ConditionalDetector":
        """Fits the estimator to a part of the pairs and calibrates on the rest.

        Args:
            context: (N, C), an array or tensor.
            target: (N, T) or (N,).

        Raises:
            ValueError: A setting is out of its range, or fewer than 20 pairs would calibrate.
        """
        require_within("(0, 0.5]", contamination=self.contamination)
        require_within("(0, 1)", calibration_share=self.calibration_share)
        require_count(2, MOST_SAMPLES, n_samples=self.n_samples)
        require_count(0, random_state=self.random_state)
        c, t = _sides(context, target)
        order = np.random.default_rng(self.random_state).permutation(len(c))
        held_out = order if self.prefit else order[: int(self.calibration_share * len(c))]
        if len(held_out) < FEWEST:
            raise ValueError(f"expected at least {FEWEST} pairs to calibrate on, found {len(held_out)}; give more")
        if self.prefit and not hasattr(self.estimator, "conditional"):
            raise ValueError(f"expected a fitted estimator of vergence.mixtures, found {shown(self.estimator)}")
        if self.prefit:
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
        else:
            rest = order[len(held_out) :]
            self.estimator_ = _unfitted(self.estimator).fit(c[rest], t[rest])
        self.calibration_scores_ = np.sort(self._scores(c[held_out], t[held_out]))
        n = len(held_out)
        allowed = int(self.contamination * (n + 1))  # calibration scores that may be as large as an outlier's, and the outlier
        self.offset_ = -float(self.calibration_scores_[n - allowed]) if allowed else -math.inf  # too few pairs: no outliers
        return self

    def _scores(self, context: Any, target: Any) -> np.ndarray:
        c, t = (side.astype(np.float64) for side in _sides(context, target))
        if not np.isfinite(t).all():
            raise ValueError("expected finite targets, found NaN or infinity: leave such pairs out")
        t = t.reshape(len(t), -1)
        rows = max(1, BLOCK // (self.n_samples * max(1, t.shape[1])))
        parts = [np.zeros(0)]
        for start in range(0, len(c), rows):
            density = self.estimator_.conditional(c[start : start + rows])
            if density.mean.shape[1:] != t.shape[1:]:
                raise ValueError(f"expected targets of {density.mean.shape[1]} features as in fit, found {t.shape[1]}")
            given = torch.from_numpy(t[start : start + rows]).to(density.mean)
            parts.append(surprise(density, given, self.n_samples, self.random_state).cpu().double().numpy())
        found = np.concatenate(parts)
        if np.isnan(found).any():
            raise ValueError("expected pairs whose squares can be summed, found larger numbers: divide them by a number")
        return found

    def score_samples(self, context: Any, target: Any) -> np.ndarray:
        """Returns how usual each target is for its context, (N,); larger is more usual. It is minus `surprise`."""
        return -self.anomaly_score(context, target)

    def anomaly_score(self, context: Any, target: Any) -> np.ndarray:
        """Returns how unusual each target is for its context, (N,): `surprise`; larger is more unusual.

        Raises:
            ValueError: Shapes do not fit, or values are not finite. NotFittedError, a ValueError, before `fit`.
        """
        check_is_fitted(self)
        return self._scores(context, target)

    def decision_function(self, context: Any, target: Any) -> np.ndarray:
        """Returns `score_samples` minus ``offset_``, (N,): negative for outliers."""
        return self.score_samples(context, target) - self.offset_

    def predict(self, context: Any, target: Any) -> np.ndarray:
        """Returns -1 for pairs that are outliers and 1 for all others, (N,)."""
        return np.where(self.decision_function(context, target) < 0, -1, 1)
