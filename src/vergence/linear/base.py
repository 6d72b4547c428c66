"""The base of the linear estimators: reading items of any kind, moments, and the Monte Carlo error."""

import abc
import copy
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from vergence.data.items import Items, PairItems, spaced
from vergence.densities.moments import Moments, Sums, origin_of
from vergence.linear.reading import Augmentation, as_table, as_tensor, blocks, draw, flat
from vergence.utils.checks import expect, require_choice, require_count, require_numbers
from vergence.utils.devices import as_device, several

__all__ = ["Affine"]

NOISE = 0.1  # the default augmentation's variance, in units of the mean feature variance
RESERVOIR = 512  # items kept to estimate the Monte Carlo error
MOST_DRAWS = 1_000_000  # of an augmentation, for one item
RANK = 1e-12  # eigenvalues below this share of the largest are zero


@dataclass
class State:
    """What an estimator keeps between calls of `partial_fit`."""

    seed: int  # of the draws
    sums: Sums | None = None  # over the items so far
    kept: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)  # items and targets, for the Monte Carlo error
    stride: int = 1  # one of so many items is kept
    block: int = 0  # number of the next block
    classes: list[Any] | None = None  # in the order of the target columns; None where targets are numbers or absent
    width: int = 0  # number of target columns


@dataclass(frozen=True)
class Affine:
    """The augmentation tau(x) = A x + b + noise, without sampling; its mean xbar = A x + b may differ from x (theorem 3.1).

    Attributes:
        matrix: A (D, D), its diagonal (D,), or a number; 1 by default.
        offset: b (D,), or a number; 0 by default.
        covariance: Covariance of the noise (D, D), variances (D,), or a number; 0 by default.

    Example:
        >>> tau = Affine(0.5, covariance=1.0)
        >>> tau.sample(torch.ones(100_000, 1), torch.Generator().manual_seed(0)).mean().round(decimals=1)
        tensor(0.5000)
    """

    matrix: Any = 1.0
    offset: Any = 0.0
    covariance: Any = 0.0

    def parts(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns A (D, D) and b (D,), in the type and on the device of ``like`` (..., D)."""
        D = like.shape[-1]
        A, b = (torch.as_tensor(np.asarray(v, dtype=np.float64)).to(like) for v in (self.matrix, self.offset))
        fits = tuple(A.shape) in ((), (D,), (D, D)) and tuple(b.shape) in ((), (D,)) and A.isfinite().all() and b.isfinite().all()
        expect(fits, f"finite A ({D}, {D}) or ({D},) and b ({D},)", f"shapes {tuple(A.shape)} and {tuple(b.shape)}")
        return (A if A.ndim == 2 else A.expand(D).diag()), b.expand(D)

    def applied(self, moments: Moments, *, centered: bool) -> Moments:
        """Returns the moments with xbar = A x + b in place of x; S is left to the caller."""
        A, b = self.parts(moments.G)
        seen, b = A @ moments.mean + b, (torch.zeros_like(moments.mean) if centered else b)
        cross = torch.outer(A @ moments.mean, b)
        return replace(
            moments,
            mean_seen=seen,
            G=A @ moments.G @ A.T + cross + cross.T + torch.outer(b, b),
            M=moments.M @ A.T + torch.outer(moments.mean, b),
            N=moments.N @ A.T + torch.outer(moments.mean_target, b),
        )

    def sample(self, X: Tensor, generator: torch.Generator) -> Tensor:
        """Returns one sample of the augmentation for each item (B, D)."""
        A, b = self.parts(X)
        covariance = covariance_of(self.covariance, X.new_zeros(X.shape[1], X.shape[1], dtype=torch.float64), 0.0)
        values, vectors = torch.linalg.eigh(covariance)
        root = (vectors * values.clamp(min=0).sqrt()).to(X)
        noise = torch.randn(X.shape, generator=generator, dtype=X.dtype, device=generator.device).to(X.device)
        view: Tensor = X @ A.T + b + noise @ root.T
        return view


class Linear(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, abc.ABC):  # type: ignore[misc]
    """The base of the three estimators: reading, moments, and the map x -> components_ (x - mean_)."""

    augmentation: Any
    n_draws: int
    center: bool
    device: str
    random_state: int | None
    _state: State | None = None

    def fit(self, X: Any, y: Any = None) -> "Linear":
        """Fits in one pass over the items.

        Args:
            X: Items (N, D): an array, a memory-mapped array (read in blocks), a tensor; images (N, C, H, W), of which uint8
                are divided by 255; Vergence's items, such as a folder of images; or an iterable of batches of any of these,
                each (items, targets) where there are targets. In several processes of ``torch.distributed`` each passes the
                same data, reads its own share of it, and gets the one-process answer.
            y: Targets; see the class.
        """
        return self._added(None, X, y)

    def partial_fit(self, X: Any, y: Any = None) -> "Linear":
        """Adds items and targets as of `fit`, solves again, at O(D^3) per call, and returns the estimator.

        In several processes it is the first call only. `fit` on an iterable solves once.
        """
        expect(not several() or self._state is None, "one call of partial_fit in several processes", "another", "fit an iterable")
        return self._added(self._state, X, y)

    @torch.no_grad()
    def _added(self, state: State | None, X: Any, y: Any) -> "Linear":
        """Adds items to those of a state, or to none, and solves; an error leaves the fit as it was."""
        self._require_settings()
        seed = np.random.SeedSequence().generate_state(1)[0] if self.random_state is None else self.random_state
        state = copy.deepcopy(state) or State(int(seed))
        before = dict(self.__dict__)
        try:
            return self._fitted(state, X, y)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _require_settings(self) -> None:
        require_choice("center", self.center, (True, False))
        if self.random_state is not None:
            require_count(0, random_state=self.random_state)
        if callable(self.augmentation):  # one draw does not separate an augmentation's mean from its spread
            require_count(2, MOST_DRAWS, n_draws=self.n_draws)

    def _fitted(self, state: State, X: Any, y: Any) -> "Linear":
        X, y = self._checked(X, y)
        self._absorb(state, X, y)
        sums = state.sums
        expect(sums is not None, "items", "none: the iterable is empty or used up", "make a new one")
        assert sums is not None
        sums.reduce(state.width)
        expect(sums.n >= 2, "at least 2 items", f"n_samples = {sums.n}", "one item has no covariance")
        moments = self._augmented(sums.moments(centered=self.center))
        self.augmentation_covariance_ = (moments.S - moments.G).cpu().numpy()
        self._state, self.n_features_in_ = state, len(moments.mean)
        self.n_samples_seen_, self.mean_ = moments.n, moments.mean_seen.cpu().numpy() * self.center
        self._solve(moments)
        return self

    @torch.no_grad()
    def transform(self, X: Any) -> Any:
        """Returns components_ (x - mean_) for each item, (N, K), in the precision of the items.

        X is as in `fit`, but not an iterable of batches. Files that cannot be read are left out, and listed in X.skipped.
        """
        check_is_fitted(self, "components_")
        X, _ = self._checked(X, None, reset=False)
        indexed = isinstance(X, (Items, np.ndarray, Tensor))
        expect(indexed, "items to transform", "an iterable of batches", "transform one batch at a time")
        return np.concatenate([self._mapped(x) for _, x, _ in blocks(X, shared=False)])

    def _mapped(self, raw: Tensor) -> Any:
        x = flat(raw, self._sampler)
        self._require_width(x, self.n_features_in_)
        expect(x.isfinite().all(), "finite items (without NaN)", "NaN or infinity", "leave those items out, or fill them in")
        z = (x.double().cpu().numpy() - self.mean_) @ self.components_.T + self._shift
        return z.astype(np.float32 if x.dtype == torch.float32 else np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    @property
    def _shift(self) -> Any:
        """The offset that `transform` adds."""
        return 0.0

    @property
    def _sampler(self) -> Augmentation | None:
        return self.augmentation if callable(self.augmentation) else None

    # Reading

    def _checked(self, X: Any, y: Any, reset: bool | None = None) -> tuple[Any, Any]:
        """Returns items that `blocks` can read, and targets (N, ...) as an array."""
        reset = self._state is None if reset is None else reset
        require_numbers(X)
        expect(not isinstance(X, PairItems), "single items and an augmentation", "pairs", "pass one side, X.context or X.target")
        expect(not isinstance(X, (str, Path)), "items", f"the name '{X}'", "open it with vergence.data.sources.open_items")
        if isinstance(X, Items):
            y = X.labels if y is None else y
        elif isinstance(X, (Tensor, np.memmap)) or getattr(X, "ndim", 2) == 4:
            X = as_table(X)
        elif _are_batches(X):
            return X, None
        else:
            kind: dict[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": not reset, "reset": reset}
            X = validate_data(self, X, **kind)
        y = None if y is None else np.asarray(y)
        if y is not None:
            expect(y.shape[:1] == (len(X),), "one target for each item", f"shape {y.shape} for {len(X)} items")
        return X, y

    def _absorb(self, state: State, X: Any, y: Any) -> None:
        sampler = self._sampler
        if y is not None:
            self._targets(state, y)  # all classes, in one order on every process
        indexed = isinstance(X, (Items, np.ndarray, Tensor))
        if indexed and sampler is not None:
            some = spaced(len(X), RESERVOIR).unique()
            if isinstance(X, Items):
                some, raw = next(iter(X.stream(iter([some]))))  # without files that cannot be read
            else:
                raw = as_tensor(X[some.numpy()])
            self._keep(state, raw, self._targets(state, None if y is None else y[some.numpy()]))
        self._absorb_blocks(state, blocks(X, y), keep=not indexed)

    def _absorb_blocks(self, state: State, read: Iterable[tuple[int, Tensor, Any]], *, keep: bool) -> None:
        """Adds blocks to the sums; ``keep`` says whether some of their items are kept for the Monte Carlo error."""
        sampler, device, start = self._sampler, as_device(self.device), state.block
        for b, items, targets in read:
            raw = items.to(device)
            x, t = flat(raw, sampler), self._targets(state, targets)
            if state.sums is None:
                state.sums = Sums(x.shape[1], self.n_draws if sampler else 0, device, origin_of(x), t)
            self._require_width(x, len(state.sums.x))
            if sampler is not None and keep:
                self._keep(state, raw, t)
            if b < 0:
                continue
            views: Iterable[Tensor] = ()
            if sampler is not None:
                views = draw(raw, sampler, self.n_draws, state.seed, start + b)
            state.sums.add(x, views, None if t is None else t.to(device))
            state.block = start + b + 1

    def _targets(self, state: State, targets: Any) -> Tensor | None:
        """Returns targets (B, L) as numbers; None for estimators without targets."""
        return None

    def _require_width(self, x: Tensor, width: int) -> None:
        if x.shape[1] != width:
            raise ValueError(f"X has {x.shape[1]} features, but {type(self).__name__} is expecting {width} features as input")

    # Solving

    @abc.abstractmethod
    def _solve(self, moments: Moments) -> None:
        """Sets the fitted attributes."""

    def _augmented(self, moments: Moments) -> Moments:
        """Returns the moments under the augmentation: as sampled, or those that its numbers give."""
        if self._sampler is None:
            affine = self.augmentation if isinstance(self.augmentation, Affine) else None
            moments = moments if affine is None else affine.applied(moments, centered=self.center)
            numbers = self.augmentation if affine is None else affine.covariance
            S = moments.G + covariance_of(numbers, moments.G, float(moments.variance.mean()))
            moments = replace(moments, S=S, eps=torch.finfo(S.dtype).eps)  # S - G is exact
        elif moments.n * (self.n_draws - 1) < len(moments.G):
            few = f"{moments.n} items with n_draws = {self.n_draws} for {len(moments.G)} features"
            warnings.warn(
                f"few draws of the augmentation: {few}; directions can look invariant by chance; raise n_draws", stacklevel=5
            )
        constant = moments.constant.nonzero().flatten().tolist()
        expect(len(constant) < len(moments.constant), "features that vary", "all constant: every item is the same")
        if constant:
            some = f"{len(constant)} of {len(moments.constant)} features are constant, such as {constant[0]}"
            warnings.warn(f"{some}: they add nothing", stacklevel=4)
        return moments

    def _number(self, rank: int) -> int:
        """Returns how many components to keep."""
        rank = min(rank, self.n_samples_seen_ - bool(self.center))
        k: Any = getattr(self, "n_components", None)
        if k is None:
            return rank
        require_count(1, n_components=k)
        what = f"the rank of {self.n_samples_seen_} items of {self.n_features_in_} features"
        expect(k <= rank, f"n_components of at most {rank}, {what}", k, "lower it or give more items")
        return int(k)

    # Monte Carlo error

    def _keep(self, state: State, raw: Tensor, t: Tensor | None) -> None:
        """Keeps every so many items, at most 2 RESERVOIR of them."""
        rows = range(0, len(raw), state.stride)
        state.kept.extend((raw[i].cpu().clone(), None if t is None else t[i].cpu().clone()) for i in rows)
        while len(state.kept) > 2 * RESERVOIR:
            state.kept, state.stride = state.kept[::2], 2 * state.stride

    def _error(self, contribution: Callable[[Tensor, Tensor], Tensor], moments: Moments) -> float:
        """Returns the standard error that sampling the augmentation leaves in the objective, given the items; 0 without.

        The objective is a mean over items of ``contribution`` (items (B, D), their m views (m, B, D)) -> (B,), to first order and
        for the solution as it is: that a solution of few draws suits those draws better than others is not in the error.
        The variance that a contribution has from its draws is half the mean squared difference of two independent ones.
        """
        state = self._state
        if self._sampler is None or state is None:
            return 0.0
        raw = torch.stack([x for x, _ in state.kept]).to(moments.G.device)
        x = flat(raw, self._sampler).double() - (moments.mean if self.center else 0)
        a, b = (contribution(x, self._views(raw, moments, state.seed, number)) for number in (2**40, 2**40 + 1))
        return float(((a - b).square().mean() / 2 / moments.n).sqrt())

    def _views(self, raw: Tensor, moments: Moments, seed: int, number: int) -> Tensor:
        assert self._sampler is not None
        views = torch.stack(list(draw(raw, self._sampler, self.n_draws, seed, number))).double()
        return views - moments.mean_seen if self.center else views


def _are_batches(X: Any) -> bool:
    """Returns whether X is an iterable of batches rather than a table of numbers."""
    if isinstance(X, (list, tuple)):
        first = X[0] if len(X) else None
        first = first[0] if isinstance(first, (list, tuple)) and len(first) else first
        return getattr(first, "ndim", 0) >= 2
    return isinstance(X, Iterable) and not hasattr(X, "shape")


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
