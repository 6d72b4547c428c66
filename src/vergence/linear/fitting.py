"""What the linear estimators share: reading items of any kind, moments, the Monte Carlo error, and messages."""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from vergence.data_items import Items
from vergence.linear.moments import Augmentation, Moments, Statistics, blocks, draw, flat

__all__ = ["RANK", "Linear", "covariance_of", "warn_jitter"]

NOISE = 0.1  # the default augmentation's variance, in units of the mean feature variance
RESERVOIR = 512  # items kept to estimate the Monte Carlo error
RANK = 1e-12  # eigenvalues below this share of the largest are zero


class Linear(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What the three have in common: reading, moments, and the map x -> components_ (x - mean_)."""

    augmentation: Any
    n_draws: int
    center: bool
    device: str
    random_state: int
    _moments: Moments | None = None
    _kept: list[tuple[Tensor, Tensor | None]]
    _classes: list[Any] | None

    def fit(self, X: Any, y: Any = None) -> "Linear":
        """Fits in one pass over the items.

        Args:
            X: Items (N, D): an array, a memory-mapped array (read in blocks), a tensor; images (N, C, H, W); Vergence's
                items, such as a folder of images; or an iterable of batches of any of these, each (items, targets) where
                there are targets. uint8 images are divided by 255. In several processes of ``torch.distributed`` each passes
                the same data, reads its own share of it, and gets the one-process answer.
            y: Targets; see the class.

        Returns:
            The estimator.

        Raises:
            ValueError: The items are not finite, of unlike shapes, or fewer than 2; n_components exceeds their rank; the
                augmentation is no covariance, changes the shape, or changes nothing.
        """
        self._moments = None
        return self.partial_fit(X, y)

    def partial_fit(self, X: Any, y: Any = None) -> "Linear":
        """Adds items to those seen so far and solves anew, which is O(D^3) a call; `fit` on an iterable solves once.

        Args:
            X: As in `fit`. In several processes, as a first call only.
            y: As in `fit`.

        Returns:
            The estimator.

        Raises:
            ValueError: As in `fit`, or the number of features differs from what was seen.
        """
        if callable(self.augmentation) and self.n_draws < 2:
            raise ValueError(f"expected n_draws >= 2, to tell an augmentation's mean from its spread, found {self.n_draws}")
        X, y = self._checked(X, y)
        if self._moments is None:
            self._moments, self._kept, self._stride, self._block, self._classes = None, [], 1, 0, None
        self._absorb(X, y)
        moments = self._moments
        if moments is None:
            raise ValueError("expected items, found none: the iterable is empty, or was used up; make a new one")
        moments.reduce(0 if self._classes is None else len(self._classes))
        if moments.n < 2:
            raise ValueError(f"expected at least 2 items, found n_samples = {moments.n}; one item has no covariance")
        found = moments.statistics(centred=self.center)
        self.n_samples_seen_, self.mean_ = found.n, found.mean_seen.cpu().numpy() * self.center
        self._solve(found)
        return self

    def transform(self, X: Any) -> Any:
        """Returns components_ (x - mean_) for each item, (N, K), in the items' own precision.

        Args:
            X: As in `fit`, but not an iterable of batches.

        Raises:
            ValueError: The items are not finite or have another number of features than those of `fit`.
        """
        check_is_fitted(self)
        X, _ = self._checked(X, None, reset=False)
        if not isinstance(X, (Items, np.ndarray, Tensor)):
            raise ValueError("expected items to transform, found an iterable of batches: transform one batch at a time")
        return np.concatenate([self._mapped(x) for _, x, _ in blocks(X)])

    def _mapped(self, raw: Tensor) -> Any:
        x = flat(raw, self._sampler)
        self._require_width(x)
        z = (x.double().cpu().numpy() - self.mean_) @ self.components_.T
        return z.astype(np.float32 if x.dtype == torch.float32 else np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    @property
    def _sampler(self) -> Augmentation | None:
        return self.augmentation if callable(self.augmentation) else None

    # Reading

    def _checked(self, X: Any, y: Any, reset: bool | None = None) -> tuple[Any, Any]:
        """Returns items that `blocks` can read, and targets (N, ...) as an array."""
        reset = self._moments is None if reset is None else reset
        if isinstance(X, Items):
            y = X.labels if y is None else y
        elif isinstance(X, (Tensor, np.memmap)) or getattr(X, "ndim", 2) == 4:
            X = X if isinstance(X, (Tensor, np.memmap)) else np.asarray(X)
            if X.ndim not in (2, 4) or 0 in X.shape:
                raise ValueError(f"expected items (N, D) or images (N, C, H, W), found shape {tuple(X.shape)}")
        elif isinstance(X, Iterable) and not hasattr(X, "shape") and not isinstance(X, (list, tuple)):
            return X, None
        else:
            kind: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": not reset, "reset": reset}
            X = validate_data(self, X, **kind)
        y = None if y is None else np.asarray(y)
        if y is not None and y.shape[:1] != (len(X),):
            raise ValueError(f"expected one target for each item, found shape {y.shape} for {len(X)} items; give as many")
        return X, y

    def _absorb(self, X: Any, y: Any) -> None:
        sampler, device, start = self._sampler, torch.device(self.device), self._block
        for b, items, targets in blocks(X, y):
            raw = items.to(device)
            x, t = flat(raw, sampler), self._targets(targets)
            if self._moments is None:
                self.n_features_in_ = x.shape[1]
                self._moments = Moments(x.shape[1], self.n_draws if sampler else 0, device)
                self._moments.origin = x.double().mean(0)
            self._require_width(x)
            if b < 0:
                continue
            views = draw(raw, sampler, self.n_draws, int(self.random_state), start + b) if sampler is not None else ()
            self._moments.add(x, views, None if t is None else t.to(device))
            self._block = start + b + 1
            if sampler is not None:
                self._keep(raw, t)

    def _targets(self, targets: Any) -> Tensor | None:
        return None

    def _require_width(self, x: Tensor) -> None:
        if x.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {x.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )

    # Solving

    def _solve(self, found: Statistics) -> None:
        raise NotImplementedError

    def _augmented(self, found: Statistics) -> Tensor:
        """Returns S: as sampled, or G plus the augmentation's covariance, which becomes ``augmentation_covariance_``."""
        S = found.S
        if self._sampler is None:
            S = found.G + covariance_of(self.augmentation, found.G, float(found.variance.mean()))
        self.augmentation_covariance_ = (S - found.G).cpu().numpy()
        if bool(found.constant.any()):
            where = found.constant.nonzero().flatten().tolist()
            if len(where) == len(found.constant):
                raise ValueError(f"expected features that vary, found all {len(where)} constant: every item is the same")
            warnings.warn(
                f"{len(where)} of {len(found.constant)} features are constant, such as {where[0]}: they add nothing", stacklevel=4
            )
        return S

    def _number(self, rank: int) -> int:
        """Returns how many components to keep."""
        k: Any = getattr(self, "n_components", None)
        if k is None:
            return rank
        if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
            raise ValueError(f"expected n_components to be a whole number of at least 1, or None for all, found {k!r}")
        if k > rank:
            what = f"the rank of {self.n_samples_seen_} items of {self.n_features_in_} features"
            raise ValueError(f"expected n_components of at most {rank}, {what}, found {k}; lower it or give more items")
        return int(k)

    # Monte Carlo error

    def _keep(self, raw: Tensor, t: Tensor | None) -> None:
        """Keeps every so many items, at most 2 RESERVOIR of them."""
        self._kept.extend((raw[i], None if t is None else t[i]) for i in range(0, len(raw), self._stride))
        while len(self._kept) > 2 * RESERVOIR:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def _error(self, contribution: Any, found: Statistics) -> float:
        """Returns the standard error that sampling the augmentation leaves in the objective, given the items; 0 without.

        The objective is a mean over items and draws of ``contribution``, to first order; its variance among an item's draws
        is measured on the items kept.
        """
        if self._sampler is None or not self._kept:
            return 0.0
        raw = torch.stack([x for x, _ in self._kept])
        views = torch.stack(list(draw(raw, self._sampler, self.n_draws, int(self.random_state), 2**40))).double()
        x = flat(raw, self._sampler).double()
        if self.center:
            x, views = x - found.mean, views - found.mean_seen
        h = contribution(x, views)  # (m, B)
        return float((h.var(0).mean() / (found.n * self.n_draws)).sqrt())


def covariance_of(augmentation: Any, G: Tensor, variance: float) -> Tensor:
    """Returns the covariance (D, D) of an augmentation that is given by numbers; see `JointEmbedding`.

    Args:
        augmentation: The numbers, or None.
        G: Of the items, (D, D): gives size, type and device.
        variance: Mean over the features, of which None takes a tenth.

    Raises:
        ValueError: It is of another size, not finite, not symmetric, or has a negative variance in some direction.
    """
    D = len(G)
    if augmentation is None:
        return torch.eye(D, dtype=G.dtype, device=G.device) * (NOISE * variance)
    a = torch.as_tensor(np.asarray(augmentation, dtype=np.float64), device=G.device)
    if a.ndim == 0:
        a = a.expand(D)
    if tuple(a.shape) not in ((D,), (D, D)) or not bool(a.isfinite().all()):
        raise ValueError(
            f"expected an augmentation as a function, a variance, {D} variances or a covariance ({D}, {D}), "
            f"found numbers of shape {tuple(a.shape)}{'' if bool(a.isfinite().all()) else ' that are not finite'}"
        )
    a = a.diag() if a.ndim == 1 else a
    least, most = (float(v) for v in torch.linalg.eigvalsh(a)[[0, -1]])
    if not bool(torch.allclose(a, a.T, rtol=1e-8, atol=1e-12 * max(most, 1e-300))) or least < -1e-10 * max(most, 0):
        raise ValueError(f"expected a symmetric covariance without negative eigenvalues, found its smallest {least:.3g}")
    return a


def warn_jitter(jitter: float) -> None:
    """Says that S had to be changed, and by how much."""
    if jitter > 0:
        warnings.warn(
            f"S is singular or nearly so (features that repeat each other?): added {jitter:.2g} to its diagonal", stacklevel=5
        )
