"""The base of the linear estimators: reading items of any kind, and their moments under an augmentation."""

import abc
import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from typing_extensions import Self

from vergence.data.items import Items, PairItems
from vergence.densities.moments import Moments, Sums, origin_of
from vergence.linear.reading import Augmentation, as_table, blocks, draw, flat
from vergence.utils.checks import expect, require_count, require_numbers
from vergence.utils.devices import as_device

NOISE = 0.1  # the default augmentation's variance, in units of the mean feature variance
MOST_DRAWS = 1_000_000  # of an augmentation, for one item
RANK = 1e-12  # eigenvalues below this share of the largest are zero


@dataclass(eq=False, repr=False)
class Linear(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, abc.ABC):  # type: ignore[misc]
    """The base of the two estimators: settings, reading, moments, and the map x -> components_ (x - mean_)."""

    n_components: int | None = None
    _: KW_ONLY
    augmentation: Any = None
    n_draws: int = 16
    device: str = "cpu"
    random_state: int | None = 0

    @torch.no_grad()
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fits in one pass over the items.

        Args:
            X: Items (N, D): an array, a memory-mapped array (read in blocks), a tensor; images (N, C, H, W), of which uint8
                are divided by 255; or Vergence's items, such as a folder of images.
            y: Not used.
        """
        if self.random_state is not None:
            require_count(0, random_state=self.random_state)
        if self._sampler is not None:  # one draw does not separate an augmentation's mean from its spread
            require_count(2, MOST_DRAWS, n_draws=self.n_draws)
        sums = self._summed(self._checked(X, reset=True))
        expect(sums.n >= 2, "at least 2 items", f"n_samples = {sums.n}", "one item has no covariance")
        moments = self._augmented(sums.moments())
        self.augmentation_covariance_ = (moments.S - moments.G).cpu().numpy()
        self.n_features_in_ = len(moments.mean)
        self.n_samples_seen_, self.mean_ = moments.n, moments.mean_seen.cpu().numpy()
        self._solve(moments)
        return self

    @torch.no_grad()
    def transform(self, X: Any) -> Any:
        """Returns components_ (x - mean_) for each item, (N, K), in the items' precision; X.skipped lists unreadable files."""
        check_is_fitted(self, "components_")
        return np.concatenate([self._mapped(x) for _, x, _ in blocks(self._checked(X, reset=False))])

    def _mapped(self, raw: Tensor) -> Any:
        x = flat(raw, self._sampler)
        if x.shape[1] != self.n_features_in_:
            width = f"{type(self).__name__} is expecting {self.n_features_in_} features as input"
            raise ValueError(f"X has {x.shape[1]} features, but {width}")  # in scikit-learn's words
        expect(x.isfinite().all(), "finite items (without NaN)", "NaN or infinity", "leave those items out, or fill them in")
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

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """Returns items that `blocks` can read."""
        require_numbers(X)
        expect(not isinstance(X, PairItems), "single items and an augmentation", "pairs", "pass one side, X.context or X.target")
        expect(not isinstance(X, (str, Path)), "items", f"the name '{X}'", "open it with vergence.data.sources.open_items")
        expect(not isinstance(X, Iterator), "items as one array", "an iterator", "make an array of them")
        if isinstance(X, Items):
            return X
        if isinstance(X, (Tensor, np.memmap)) or getattr(X, "ndim", 2) == 4:
            return as_table(X)
        return validate_data(self, X, dtype=[np.float64, np.float32], ensure_all_finite=not reset, reset=reset)

    def _summed(self, X: Any) -> Sums:
        """Returns the sums over items and, where the augmentation is sampled, their draws."""
        sampler, device, sums = self._sampler, as_device(self.device), None
        seed = np.random.SeedSequence().generate_state(1)[0] if self.random_state is None else self.random_state
        for b, items, _ in blocks(X):
            raw = items.to(device)
            x = flat(raw, sampler)
            sums = sums or Sums(x.shape[1], self.n_draws if sampler else 0, device, origin_of(x))
            sums.add(x, () if sampler is None else draw(raw, sampler, self.n_draws, int(seed), b))
        assert sums is not None
        return sums

    # Solving

    @abc.abstractmethod
    def _solve(self, moments: Moments) -> None:
        """Sets the fitted attributes."""

    def _augmented(self, moments: Moments) -> Moments:
        """Returns the moments under the augmentation: as sampled, or those that its numbers give."""
        if self._sampler is None:
            S = moments.G + covariance_of(self.augmentation, moments.G, float(moments.variance.mean()))
            moments = replace(moments, S=S, eps=torch.finfo(S.dtype).eps)  # S - G is exact
        elif moments.n * (self.n_draws - 1) < len(moments.G):
            few = f"few draws of the augmentation: {moments.n} items with n_draws = {self.n_draws} for {len(moments.G)} features"
            warnings.warn(f"{few}; directions can look invariant by chance; raise n_draws", stacklevel=4)
        constant = moments.constant.nonzero().flatten().tolist()
        expect(len(constant) < len(moments.constant), "features that vary", "all constant: every item is the same")
        if constant:
            some = f"{len(constant)} of {len(moments.constant)} features are constant, such as {constant[0]}"
            warnings.warn(f"{some}: they add nothing", stacklevel=4)
        return moments

    def _number(self, rank: int) -> int:
        """Returns how many components to keep."""
        rank = min(rank, self.n_samples_seen_ - 1)
        if self.n_components is None:
            return rank
        require_count(1, n_components=self.n_components)
        most = f"n_components of at most {rank}, the rank of {self.n_samples_seen_} items of {self.n_features_in_} features"
        expect(self.n_components <= rank, most, self.n_components, "lower it or give more items")
        return int(self.n_components)


def covariance_of(augmentation: Any, G: Tensor, variance: float) -> Tensor:
    """Returns the covariance of an augmentation by numbers, see `JointEmbedding`, as G (D, D) in size, type and device.

    None is isotropic noise of a tenth of ``variance``, the mean one of the features.
    """
    D = len(G)
    if augmentation is None:
        return torch.eye(D, dtype=G.dtype, device=G.device) * (NOISE * variance)
    try:
        a = torch.as_tensor(np.asarray(augmentation, dtype=np.float64), device=G.device)
    except (TypeError, ValueError):
        kind = type(augmentation).__name__
        raise ValueError(f"expected an augmentation as a function, variances or a covariance, found a {kind}") from None
    if a.ndim == 0:
        a = a.expand(D)
    shapes = f"an augmentation as a function, a finite variance, {D} variances or a covariance ({D}, {D})"
    expect(tuple(a.shape) in ((D,), (D, D)) and a.isfinite().all(), shapes, f"numbers of shape {tuple(a.shape)}")
    a = a.diag() if a.ndim == 1 else a
    least, most = (float(v) for v in torch.linalg.eigvalsh(a)[[0, -1]])
    valid = torch.allclose(a, a.T, rtol=1e-8, atol=1e-12 * max(most, 1e-300)) and least >= -1e-10 * max(most, 0)
    expect(valid, "a symmetric covariance without negative eigenvalues", f"its smallest {least:.3g}")
    return a


def warn_jitter(jitter: float) -> None:
    """Warns that S is singular, and says how much was added to it."""
    if jitter > 0:
        added = f"added {jitter:.2g} of each second moment to its diagonal"
        warnings.warn(f"S is singular or nearly so (are some features sums of others?): {added}", stacklevel=5)
