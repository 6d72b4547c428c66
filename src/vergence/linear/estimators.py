"""Two linear problems as scikit-learn estimators, one pass over data of any size; `vergence.linear.solutions` solves them."""

import warnings
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from vergence.densities.moments import Moments
from vergence.linear.base import RANK, Linear, warn_jitter
from vergence.linear.solutions import joint_embedding, reconstruction
from vergence.utils.checks import expect

__all__ = ["JointEmbedding", "Reconstruction"]

TIE = 1e-9  # eigenvalues of joint embedding nearer than this are equal


class JointEmbedding(Linear):
    r"""Linear joint embedding (theorem 3.2): the directions that are most invariant under an augmentation.

        min_W  1/n sum_i E|W tau_1(x_i) - W tau_2(x_i)|^2   subject to   W S W^T = I

    The minimum is exact for any augmentation with these second moments, mean-preserving or not (remark 4.1). All moments are
    around the means, which amounts to a free intercept.

    Args:
        n_components: K, at most the rank of the items; None for that rank.
        augmentation: None is isotropic noise of a tenth of the mean feature variance. A number or an array (D,) are the
            variances of noise, an array (D, D) its covariance: exact, without sampling. A function f(X, generator) -> X' is
            sampled: X is a tensor of items (B, ...), generator a torch.Generator, as in
            ``lambda X, g: X + torch.randn(X.shape, generator=g, dtype=X.dtype)``; so are Vergence's views.
        n_draws: m, 2 to 1,000,000 draws for each item where the augmentation is sampled.
        device: Device that computes the moments, as torch names it; a function gets items there, and a generator on the CPU.
        random_state: Seed of the draws; None for a random one.

    Attributes:
        components_: W (K, D), the most invariant first, each with its largest entry positive.
        eigenvalues_: omega (K,), the share of a direction's second moment that does not come from the augmentation, in [0, 1].
        objective_: The minimum, 2 sum_i (1 - omega_i).
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


class Reconstruction(Linear):
    r"""Linear reconstruction (theorem 3.1): the directions from which the clean items are best predicted.

        min_{E, D}  1/n sum_i E|x_i - D E tau(x_i)|^2

    Encoder and decoder have free intercepts. Without noise (``augmentation=0.0``) this is principal component analysis.

    The arguments are those of `JointEmbedding`.

    Attributes:
        components_: E (K, D) with E S E^T = I, the strongest first, each with its largest entry positive.
        singular_values_: phi (K,); phi^2 is the variance of the items that a component explains.
        decoder_: D (D, K).
        objective_: The minimum, 1/n |X|^2 - sum_i phi_i^2.
        spectrum_: All D singular values phi.
        target_mean_: Offset that `inverse_transform` adds, (D,).
        augmentation_covariance_, mean_, n_features_in_, n_samples_seen_: As in `JointEmbedding`.

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
        self.target_mean_ = moments.mean.cpu().numpy()
        self.objective_ = float(moments.power - phi[:k].square().sum())

    def inverse_transform(self, Z: Any) -> Any:
        """Returns decoder_ z + target_mean_ for each code z: (N, K) to (N, D)."""
        check_is_fitted(self)
        return np.asarray(Z) @ self.decoder_.T + self.target_mean_
