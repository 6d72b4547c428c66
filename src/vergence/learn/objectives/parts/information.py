r"""Information terms of a batch of embeddings: covariance, entropy, KL from the standard normal, mutual information.

A likelihood alone is lowest where an encoder maps everything to one point: scaling embeddings by a adds D log a. The terms here
prevent this collapse. Over a batch with mean m and covariance S (divided by N), all with gradient in the embeddings:

    KL = 1/2 [tr S + |m|^2 - D - log |S|]                           of the batch's Gaussian from N(0, I), for one view
    -I = 1/2 [log |S| - log |S_aa| - log |S_bb|] = 1/2 sum_i log(1 - rho_i^2)     rho: canonical correlations of two views

The KL fixes the scale (its minimum is at S = I, m = 0); the mutual information does not depend on it. With the likelihood under
any other density in place of the batch's Gaussian, -I becomes

    nll - H(a) - H(b),   H = 1/2 log |2 pi e S| of a view

which does not depend on the scale either if the density follows it. All terms are derived here, for arXiv:2603.26799.

Shapes: N pairs, D features. In nats.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians, kl_standard_normal, log_det
from vergence.densities.moments import BatchMoments, batch_moments
from vergence.learn.objectives.core import require_several
from vergence.utils.checks import require_choice, require_within

MixtureLoss = Literal["mi_kl", "entropy_kl", "joint_kl", "naive"]
SMALLEST = (1e-15, 1e-140)  # difference of embeddings: in float32 and half precision, in float64


def kl_views(*views: BatchMoments) -> Tensor:
    """Returns KL_a + KL_b: the divergences of two views, or more, from the standard normal, in nats."""
    return torch.stack([kl_standard_normal(m.mean, m.S) for m in views]).sum()


def mutual_information(m: BatchMoments, split: int) -> Tensor:
    """Returns the Gaussian mutual information of the first ``split`` features and the others in nats, >= 0."""
    a, b = m.block(slice(0, split)), m.block(slice(split, None))
    return 0.5 * (log_det(a.S) + log_det(b.S) - log_det(m.S))


def entropy(m: BatchMoments) -> Tensor:
    """Returns the entropy of the Gaussian of these moments, H = 1/2 log |2 pi e S| in nats.

    Example:
        >>> round(entropy(BatchMoments(torch.zeros(2), torch.eye(2))).item(), 4)
        2.8379
    """
    return 0.5 * (log_det(m.S) + len(m.mean) * (1 + math.log(2 * math.pi)))


def less_entropies(nll: Tensor, views: Iterable[BatchMoments]) -> Tensor:
    """Returns nll - H(a) - H(b) of two views, or more."""
    for m in views:
        nll = nll - entropy(m)
    return nll


def off_diagonal(S: Tensor) -> Tensor:
    """Returns the D (D - 1) entries of a square matrix (D, D) off its diagonal, row by row.

    Example:
        >>> off_diagonal(torch.tensor([[1, 2], [3, 4]])).tolist()
        [2, 3]
    """
    D = len(S)
    return S.flatten()[:-1].view(D - 1, D + 1)[:, 1:].flatten()


def require_spread(*views: Tensor) -> None:
    """Raises a ValueError where a view (B, D) has one embedding or equal ones: its covariance has no determinant.

    Embeddings are equal where they differ by less than 1e-15, or by less than 1e-140 in float64: the inverse of their
    covariance would not be finite. On an accelerator only B is checked, because comparing embeddings would wait for the
    device at every step.

    Example:
        >>> require_spread(torch.ones(4, 2), torch.randn(4, 2))
        Traceback (most recent call last):
        ValueError: expected a batch of at least 2 embeddings that differ, found 4 equal ones: lower the learning rate, or ...
    """
    require_several(views[0])
    on_cpu = [z for z in views if z.device.type == "cpu"]
    if any(bool(((z - z[:1]).abs() < SMALLEST[z.dtype == torch.float64]).all()) for z in on_cpu):
        hint = "lower the learning rate, or check the data"
        raise ValueError(f"expected a batch of at least 2 embeddings that differ, found {len(views[0])} equal ones: {hint}")


def alone(p: JointGaussian | MixtureOfGaussians, *views: Tensor) -> Tensor:
    """Returns log p(z_a) + log p(z_b) of two views, or more, (B, D) each, under a joint density p, (B,)."""
    D = views[0].shape[1]
    return torch.stack([p.marginal(slice(D * i, D * (i + 1))).log_prob(z) for i, z in enumerate(views)]).sum(0)


def pointwise_information(p: MixtureOfGaussians, *views: Tensor) -> Tensor:
    """Returns the mean pointwise mutual information log p(z_a, z_b) / (p(z_a) p(z_b)) in nats, of all where there are more."""
    return -(alone(p, *views) - p.log_prob(torch.cat(views, 1))).mean()


@dataclass(frozen=True)
class PairLoss:
    """The loss of pairs under a density p over [z_a; z_b], with the regularization that prevents collapse.

    With nll = -mean log p(z_a, z_b), and of each view's batch the entropy H and KL = KL(N(batch) || N(0, I)), in nats:

        mi_kl        ``mi`` = -mean log p(z_a, z_b) / (p(z_a) p(z_b)),  ``kl`` = eta (KL_a + KL_b)
        entropy_kl   ``mi`` = nll - H(a) - H(b),                        ``kl`` = eta (KL_a + KL_b)
        joint_kl     ``nll``,                                           ``kl`` = beta (KL_a + KL_b)
        naive        ``nll``: collapses, for study

    Args:
        kind: One of these names.
        eta: Weight of the KL in ``mi_kl`` and ``entropy_kl``, > 0.
        beta: Weight of the KL in ``joint_kl``, > 0.
        shrinkage: Shrinkage of the batch's covariances in H and KL, in [0, 1]; None estimates it.

    Example:
        >>> p = MixtureOfGaussians(torch.zeros(1), torch.zeros(1, 2), torch.eye(2)[None], context=1)    # independent views
        >>> terms = PairLoss("mi_kl")(p, torch.randn(8, 1), torch.randn(8, 1))
        >>> sorted(terms), abs(terms["mi"].item()) < 1e-5
        (['kl', 'mi'], True)
    """

    kind: MixtureLoss
    eta: float = 1.0
    beta: float = 2.0
    shrinkage: float | None = None

    def __post_init__(self) -> None:
        require_settings(self.kind, get_args(MixtureLoss), eta=self.eta, beta=self.beta, shrinkage=self.shrinkage)

    def __call__(self, p: MixtureOfGaussians, *views: Tensor) -> dict[str, Tensor]:
        """Returns the terms for two views (B, D), or more; of ``mi_kl`` p is meant without a gradient of its own."""
        if self.kind == "naive":
            return {"nll": -p.log_prob(torch.cat(views, 1)).mean()}
        require_spread(*views)
        kl = kl_views(*(moments := [batch_moments(z, self.shrinkage) for z in views]))
        if self.kind == "mi_kl":
            return {"mi": -pointwise_information(p, *views), "kl": self.eta * kl}
        nll = -p.log_prob(torch.cat(views, 1)).mean()
        if self.kind == "joint_kl":
            return {"nll": nll, "kl": self.beta * kl}
        return {"mi": less_entropies(nll, moments), "kl": self.eta * kl}


def require_settings(loss: str, losses: Iterable[str], *, eta: float, beta: float, shrinkage: float | None) -> None:
    """Raises a ValueError unless the loss is one of these, its weights are positive, and the shrinkage is None or in [0, 1]."""
    require_choice("loss", loss, losses)
    require_within("(0, inf)", eta=eta, beta=beta)
    if shrinkage is not None:
        require_within("[0, 1]", shrinkage=shrinkage)
