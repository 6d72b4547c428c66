"""The three linear problems as scikit-learn estimators: any augmentation, data of any size, one pass.

`vergence.linear.solutions` has the solutions, `vergence.densities.moments` the moments.
"""

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vergence.data.items import Items
from vergence.densities.moments import Moments
from vergence.linear.base import RANK, Linear, State, warn_jitter
from vergence.linear.solutions import joint_embedding, reconstruction, supervised
from vergence.utils.checks import expect

__all__ = ["JointEmbedding", "Reconstruction", "Supervised"]

TIE = 1e-9  # eigenvalues of joint embedding nearer than this are equal


@dataclass(eq=False, repr=False)
class Components(Linear):
    """The base of the estimators that keep a number of components."""

    n_components: int | None = None
    _: KW_ONLY
    augmentation: Any = None
    n_draws: int = 16
    center: bool = True
    device: str = "cpu"
    random_state: int | None = 0


class JointEmbedding(Components):
    r"""Linear joint embedding (theorem 3.2): the directions that are most invariant under an augmentation.

        min_W  1/n sum_i E|W tau_1(x_i) - W tau_2(x_i)|^2   subject to   W S W^T = I

    The minimum is exact for any augmentation with these second moments, mean-preserving or not (remark 4.1). With ``center``
    all moments are around the means, which amounts to a free intercept; ``center=False`` is the paper's problem as stated.

    Args:
        n_components: K, at most the rank of the items; None for that rank.
        augmentation: None is isotropic noise of a tenth of the mean feature variance. A number or an array (D,) are the
            variances of noise, an array (D, D) its covariance, and `Affine` also shrinks or shifts the items: exact, without
            sampling. A function f(X, generator) -> X' is sampled: X is a tensor of items (B, ...), generator a torch.Generator,
            as in ``lambda X, g: X + torch.randn(X.shape, generator=g, dtype=X.dtype)``; so are Vergence's views.
        n_draws: m, 2 to 1,000,000 draws for each item where the augmentation is sampled.
        center: Subtract means.
        device: Device that computes the moments, as torch names it; a function gets items there, and a generator on the CPU.
        random_state: Seed of the draws; None for a random one.

    Attributes:
        components_: W (K, D), the most invariant first, each with its largest entry positive.
        eigenvalues_: omega (K,), the share of a direction's second moment that does not come from the augmentation, in [0, 1].
        objective_: The minimum, 2 sum_i (1 - omega_i).
        objective_se_: The standard error that sampling the augmentation leaves in it, given the items; 0.0 without sampling.
        spectrum_: All D eigenvalues omega.
        augmentation_covariance_: Sigma (D, D).
        mean_: Offset that `transform` subtracts, (D,).
        n_features_in_: D.
        n_samples_seen_: N.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(1000, 3)) * [5.0, 1.0, 1.0]
        >>> model = JointEmbedding(1, augmentation=[25.0, 1.0, 0.01]).fit(X)
        >>> np.abs(model.components_).round(1).tolist(), model.eigenvalues_.round(2).tolist()
        ([[0.0, 0.0, 1.0]], [0.99])
        >>> model.transform(X).shape
        (1000, 1)
    """

    def _solve(self, moments: Moments) -> None:
        expect(not moments.unchanged(), "an augmentation that changes the items", "S = G: a tie of all directions", "change it")
        W, omega, jitter = joint_embedding(moments.G, moments.S)
        warn_jitter(jitter)
        k = self._number(int((omega > 1e3 * RANK).sum()))
        if k < len(omega) and omega[k - 1] - omega[k] < TIE:
            warnings.warn(f"components {k} and {k + 1} are equally invariant: which of them is kept is arbitrary", stacklevel=4)
        self.spectrum_ = omega.cpu().numpy()
        self.components_, self.eigenvalues_ = W[:k].cpu().numpy(), self.spectrum_[:k]
        self.objective_ = float(2 * (1 - omega[:k]).sum())
        self.objective_se_ = self._error(lambda x, v: _lagrangian(v @ W[:k].T, omega[:k]), moments)


def _lagrangian(a: Tensor, omega: Tensor) -> Tensor:
    """Returns the contributions (B,) of items with draws a (m, B, K) to the constrained objective, to first order.

    They are -2 sum_k (g_k - omega_k s_k): s is the mean square of an item's draws, g the mean product of two different ones.
    """
    m, s = len(a), a.square().mean(0)
    g = (a.mean(0).square() * m - s) / (m - 1)
    return -2 * (g - omega * s).sum(-1)


class Reconstruction(Components):
    r"""Linear reconstruction (theorem 3.1): the directions from which the clean items are best predicted.

        min_{E, D}  1/n sum_i E|x_i - D E tau(x_i)|^2

    With ``center`` encoder and decoder have free intercepts; ``center=False`` is the paper's problem as stated. Without noise
    (``augmentation=0.0``) this is principal component analysis.

    The arguments are those of `JointEmbedding`.

    Attributes:
        components_: E (K, D) with E S E^T = I, the strongest first, each with its largest entry positive.
        singular_values_: phi (K,); phi^2 is the variance of the items that a component explains.
        decoder_: D (D, K).
        objective_: The minimum, 1/n |X|^2 - sum_i phi_i^2.
        spectrum_: All D singular values phi.
        target_mean_: Offset that `inverse_transform` adds, (D,).
        objective_se_, augmentation_covariance_, mean_, n_features_in_, n_samples_seen_: As in `JointEmbedding`.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(1000, 3)) * [5.0, 1.0, 1.0]
        >>> model = Reconstruction(1, augmentation=[25.0, 1.0, 0.01]).fit(X)
        >>> np.abs(model.components_).round(1).tolist(), model.inverse_transform(model.transform(X)).shape
        ([[0.1, 0.0, 0.0]], (1000, 3))
    """

    def _solve(self, moments: Moments) -> None:
        E, D, phi, jitter = reconstruction(moments.M, moments.S)
        warn_jitter(jitter)
        k = self._number(int((phi > 1e3 * RANK * phi[0]).sum()))
        E, D = E[:k], D[:, :k]
        self.spectrum_ = phi.cpu().numpy()
        self.components_, self.decoder_, self.singular_values_ = E.cpu().numpy(), D.cpu().numpy(), self.spectrum_[:k]
        self.target_mean_ = moments.mean.cpu().numpy() * self.center
        self.objective_ = float(moments.power - phi[:k].square().sum())
        self.objective_se_ = self._error(lambda x, v: (x - v @ E.T @ D.T).square().sum(-1).mean(0), moments)

    def inverse_transform(self, Z: Any) -> Any:
        """Returns decoder_ z + target_mean_ for each code z: (N, K) to (N, D)."""
        check_is_fitted(self)
        return np.asarray(Z) @ self.decoder_.T + self.target_mean_


@dataclass(eq=False, repr=False, kw_only=True)
class Supervised(Linear):
    r"""Linear least squares from augmented items to targets, the comparison of the paper (lemma B.1).

        min_V  1/n sum_i E|y_i - V tau(x_i)|^2 = |V|_Sigma^2 + 1/n sum_i |y_i - V xbar_i|^2

    ``y`` holds targets (N,) or (N, L); integers, strings and booleans (N,) are classes, one column each (one-hot); a
    matrix of integers holds numbers. With ``center`` there is a free intercept; ``center=False`` is the paper's problem as
    stated. `transform` gives the predicted targets (N, L).

    The arguments are those of `JointEmbedding`, without ``n_components``.

    Attributes:
        components_: V (L, D).
        classes_: The classes, in the order of the targets; None for targets that are numbers.
        objective_: The minimum.
        target_mean_: Offset that `transform` adds to predictions, (L,).
        objective_se_, augmentation_covariance_, mean_, n_features_in_, n_samples_seen_: As in `JointEmbedding`.

    Example:
        >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
        >>> model = Supervised(augmentation=0.0).fit(X, 2 * X[:, 0] + 1)
        >>> model.transform(np.array([[10.0]])).round(6).tolist(), model.classes_
        ([[21.0]], None)
    """

    augmentation: Any = None
    n_draws: int = 16
    center: bool = True
    device: str = "cpu"
    random_state: int | None = 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    @property
    def _shift(self) -> Any:
        return self.target_mean_

    def _checked(self, X: Any, y: Any, reset: bool | None = None) -> tuple[Any, Any]:
        named = y is not None
        X, y = super()._checked(X, y, reset)
        if reset is None and y is None and isinstance(X, (Items, np.ndarray, Tensor)):
            raise ValueError("Supervised requires y to be passed, but the target y is None")  # in scikit-learn's words
        if isinstance(X, Items) and not named and y is not None:
            expect((y >= 0).all(), "a label for every item", f"{(y < 0).sum()} unknown", "keep those that have one: X.subset")
        return X, y

    def _targets(self, state: State, targets: Any) -> Tensor | None:
        """Returns targets (B, L) as numbers; new classes become new columns."""
        expect(targets is not None, "batches of (items, targets)", "items alone")
        y = np.asarray(targets)
        expect(y.ndim <= 2, "targets (N,) or (N, L)", f"shape {y.shape}")
        expect(y.dtype.kind in "fiubUSO", "targets as numbers or classes", f"type {y.dtype}", "convert them")
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        numbers = y.ndim == 2 or y.dtype.kind == "f"
        alike = not state.width or (numbers == (state.classes is None) and (y.ndim == 1 or y.shape[1] == state.width))
        expect(alike, f"targets as before, {state.width} columns or classes", f"shape {y.shape}, {y.dtype}")
        if numbers:
            t = torch.from_numpy(y.reshape(len(y), -1).astype(np.float64))
            expect(t.isfinite().all(), "finite targets", "NaN or infinity", "leave those items out")
            state.width = t.shape[1]
            return t
        earlier = state.classes or []
        state.classes = earlier + [c for c in np.unique(y).tolist() if c not in set(earlier)]
        state.width = len(state.classes)
        column = {c: i for i, c in enumerate(state.classes)}
        return torch.nn.functional.one_hot(torch.tensor([column[c] for c in y.tolist()]), state.width).double()

    def _solve(self, moments: Moments) -> None:
        V, jitter = supervised(moments.N, moments.S)
        warn_jitter(jitter)
        assert self._state is not None
        classes = self._state.classes
        order = list(range(len(V))) if classes is None else sorted(range(len(V)), key=classes.__getitem__)
        self.classes_ = None if classes is None else np.asarray([classes[i] for i in order])
        self.components_ = V[order].cpu().numpy()
        self.target_mean_ = moments.mean_target[order].cpu().numpy() * self.center
        self.objective_ = float(moments.power_target - (V * moments.N).sum())
        self.objective_se_ = self._error(lambda x, v: self._loss(v, V, moments), moments)

    def _loss(self, v: Tensor, V: Tensor, moments: Moments) -> Tensor:
        assert self._state is not None
        y = V.new_zeros(len(self._state.kept), len(V))
        for row, (_, t) in zip(y, self._state.kept, strict=True):
            assert t is not None
            row[: len(t)] = t  # columns of later classes stay zero
        y = y - moments.mean_target if self.center else y
        return (y - v @ V.T).square().sum(-1).mean(0)
