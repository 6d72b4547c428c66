r"""A network of the context that gives a mixture over the target (Bishop, 1994): GMJE-MDN of arXiv 2603.26799 on fixed data.

The network sees the context c only. Its outputs are logits a (K), means m (K, T) and log-stds s (K, T), sigma = e^s:

    p(t | c) = sum_k w_k(c) N(t; m_k(c), diag sigma_k(c)^2),   w = softmax(a)
    L = -log p(t | c) = logsumexp_k a_k - logsumexp_k[a_k - 1/2 sum_j ((t_j - m_kj) / sigma_kj)^2 - sum_j s_kj] + (T/2) log 2 pi

The paper adds a marginal loss on the context's embedding. Here contexts are data, so that term has no gradient in the network
and is left out. The parameters do not depend on the target: a network that saw it could put a spike of infinite density on it.

Shapes: R networks trained as one batch, B items of a minibatch, K components, T target features, P parameters of a network.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn import functional as F

from vergence.densities.gaussian import MixtureOfGaussians
from vergence.densities.mixture_head import initial_outputs, mixture, n_outputs, split_outputs
from vergence.densities.particles import systematic
from vergence.mixtures.core import Conditional, Predictive, seed_of, silenced
from vergence.utils.checks import expect, is_count, require_count, require_within
from vergence.utils.devices import as_device
from vergence.utils.terminal import bar

__all__ = ["MixtureDensityNetwork"]

LOG_STD = (-5.0, 3.0)  # limits of s, in standardized units
EVERY = 20  # steps between two evaluations of the likelihood
HELD_OUT = 1000  # items that all folds hold out together, where there are as many
PATIENCE = 100  # training on folds stops at step k > PATIENCE + 2 k_best
PROBE = 256  # items on which the final networks are evaluated during training
ROWS = 4096  # items evaluated at a time

Parameters = tuple[Tensor, Tensor, Tensor]

Pairs = tuple[Tensor, Tensor, Tensor]  # contexts x (N, C) and targets z (N, T) in standardized units, weights (N,); float32


def negative_log_likelihood(a: Tensor, m: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """Returns L in nats, (...), for log-weights (..., K), means and log-stds (..., K, T) and targets (..., T)."""
    T = t.shape[-1]
    joint = a - (0.5 * ((t[..., None, :] - m) * (-s).exp()).square() + s).sum(-1)
    return a.logsumexp(-1) - joint.logsumexp(-1) + T / 2 * math.log(2 * math.pi)


def network(theta: Tensor, x: Tensor, layers: list[tuple[int, int]]) -> Tensor:
    """Returns the outputs (R, B, K (1 + 2 T)) of networks theta (R, P) for contexts (R, B, C): SiLU between linear layers."""
    parts = theta.split([n for i, o in layers for n in (i * o, o)], 1)
    for layer, (i, o) in enumerate(layers):
        x = F.silu(x) if layer else x
        x = torch.baddbmm(parts[2 * layer + 1][:, None], x, parts[2 * layer].unflatten(1, (i, o)))
    return x


def clamped(out: Tensor, K: int) -> Parameters:
    """Returns a, m and s of outputs (..., K (1 + 2 T)), with s clamped to its limits."""
    a, m, s = split_outputs(out, K)
    return a, m, s.clamp(*LOG_STD)


def centers(z: Tensor, K: int, seed: int) -> Tensor:
    """Returns K initial means (K, T): quantiles (k + 1/2) / K for T = 1, k-means centers otherwise."""
    if z.shape[1] == 1:
        return z.quantile((torch.arange(K).to(z) + 0.5) / K, dim=0)
    with silenced(ConvergenceWarning):  # fewer distinct items than K: some centers are equal
        kmeans = KMeans(K, n_init=1, max_iter=50, random_state=seed % 2**32).fit(z.cpu().numpy())
    return torch.from_numpy(kmeans.cluster_centers_).to(z)


def initialized(layers: list[tuple[int, int]], z: Tensor, K: int, seed: int) -> Tensor:
    """Returns initial parameters (P,): torch's, and a last layer with targets z (N, T) as `centers`."""
    g = torch.Generator().manual_seed(seed)
    parts = [(2 * torch.rand(n, generator=g, dtype=z.dtype) - 1) / i**0.5 for i, o in layers for n in (i * o, o)]
    parts[-2] *= 0.1
    parts[-1] = initial_outputs(centers(z, K, seed).cpu())
    return torch.cat(parts).to(z.device)


def annealed(k: int, steps: int) -> int:
    """Returns the length of a cosine schedule whose learning rates add up to those of the first k steps of one of ``steps``.

    k + steps / pi sin(pi k / steps): about 2 k for a small k, ``steps`` for k = steps. A run that stopped at a high learning
    rate would keep its noise; one of this length ends at the rate 0.
    """
    return round(k + steps / math.pi * math.sin(math.pi * k / steps))


def minibatches(rows: Tensor, size: int, g: torch.Generator) -> Iterator[Tensor]:
    """Yields (R, B) of the items rows (R, n) without end: in each epoch a new order, the same positions for all networks."""
    n = rows.shape[1]
    size = min(size, n)
    while True:
        for positions in torch.randperm(n, generator=g)[: n // size * size].split(size):
            yield rows[:, positions.to(rows.device)]


@dataclass(eq=False, repr=False, kw_only=True)
class MixtureDensityNetwork(Conditional):
    """p(target | context) of a network of the context: weights, means and stds of K Gaussians, different for every context.

    Networks overfit small data without bound. The likelihood of held-out folds therefore selects the number of steps; then
    ``n_init`` networks are trained on all items for that many steps, and the one of the highest training likelihood is kept.
    The networks of one phase, folds or restarts, are trained as one batch: their losses add up, so their gradients do not mix.
    Training is in float32; distributions are float64. The order and the units of the items change the rounding, and the order
    changes the minibatches.

    Args:
        n_components: K, from 1 to N.
        hidden: Widths of the hidden layers, each >= 1.
        steps: Maximum number of AdamW steps, >= 1; the learning rate falls to 0 at the last one as a cosine.
        batch_size: Items in a minibatch, >= 1; N where there are fewer.
        lr: Initial learning rate, > 0, at most 1e30.
        n_init: Restarts, >= 1, whose means begin at the targets' quantiles (one feature) or k-means centers (several). A single
            one may end with a component across two branches.
        folds: Folds that select the number of steps, >= 2; only as many are trained as hold out 1000 items together. 0 takes
            all ``steps``.
        weight_decay: Weight decay of AdamW, >= 0.
        device: Where to compute, as torch names it.
        random_state: Seed.

    Attributes:
        parameters_: (P,), the best network: weights (inputs, outputs) and biases of each layer, for standardized units.
        steps_: Steps taken, on a schedule of that length (`annealed`); 0 where the initial network predicts best.
        train_nll_: (n_init,), in nats and the units of the data.
        best_: Index of the restart that was kept.
        loss_curve_: (L, n_init), training NLL on at most 256 items every 20 steps.
        validation_curve_: (V,), held-out NLL every 20 steps, the mean over folds; empty for ``folds=0``.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, size=(600, 1))
        >>> t = rng.choice([-1, 1], size=600) * (2 + x[:, 0]) + 0.1 * rng.normal(size=600)  # two branches
        >>> model = MixtureDensityNetwork(n_components=2, hidden=(32,), steps=300, n_init=1, random_state=0).fit(x, t)
        >>> weights, means, stds = model.routing([[0.0]])
        >>> sorted(means[0, :, 0].round().tolist()), bool(stds.max() < 0.3)
        ([-2.0, 2.0], True)
    """

    n_components: int = 3
    hidden: Sequence[int] = (128, 128)
    steps: int = 2000
    batch_size: int = 256
    lr: float = 3e-3
    n_init: int = 3
    folds: int = 5
    weight_decay: float = 0.0

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        self._require_settings(len(c))
        x, z = self._standardized(c, t, w)
        pairs = x.float(), z.float(), (x.new_ones(len(x)) if w is None else w / w.mean()).float()
        g, unit = torch.Generator().manual_seed(seed_of(self.random_state)), float(np.log(self.target_std_).sum())
        self.validation_curve_, self.steps_ = np.empty(0), self.steps
        if self.folds:
            curve = self._on_folds(pairs, label, g)
            self.validation_curve_, self.steps_ = curve + unit, annealed(min(int(curve.argmin()) * EVERY, self.steps), self.steps)
        rows, R = torch.arange(len(x), device=x.device), self.n_init
        probe = rows[torch.randperm(len(rows), generator=g)[:PROBE].to(rows.device)]
        theta = self._initialized(*pairs[1:], R, g)
        curves = self._train(pairs, theta, rows.expand(R, -1), probe.expand(R, -1), g, self.steps_)
        theta = theta.detach().double()
        nll = self._nll(pairs, theta, rows.expand(R, -1))
        self.loss_curve_, self.train_nll_ = curves + unit, nll + unit
        expect(np.isfinite(nll).any(), "a finite likelihood", f"none in {self.n_init} restarts", f"lower lr, which is {self.lr}")
        self.best_ = int(np.nanargmin(nll))
        self.parameters_ = theta[self.best_].cpu().numpy()

    def _on_folds(self, pairs: Pairs, label: Tensor, g: torch.Generator) -> np.ndarray:
        """Returns the held-out NLL every `EVERY` steps, the mean over networks that each leave out different labels."""
        N = len(pairs[0])
        folds = min(self.folds, N)
        held = min(N // folds, HELD_OUT)
        order = torch.randperm(N, generator=g)
        if len(label.unique()) < N:  # rows of a label lie together
            place = torch.randperm(int(label.max()) + 1, generator=g)
            order = order[place[label[order]].argsort(stable=True)]
        rolled = torch.stack([order.roll(-f * held) for f in range(min(folds, math.ceil(HELD_OUT / held)))])
        both = torch.stack([torch.isin(label[rows[held:]], label[rows[:held]]) for rows in rolled])
        use = 1.0 - both.float()  # rows whose label is on the other side count nothing
        theta = self._initialized(*pairs[1:], len(rolled), g)
        device = pairs[0].device
        rows, use = rolled.to(device), use.to(device)
        curves = self._train(pairs, theta, rows[:, held:], rows[:, :held], g, self.steps, use)
        return np.asarray(np.nan_to_num(curves.mean(1), nan=np.inf))

    def _initialized(self, z: Tensor, w: Tensor, R: int, g: torch.Generator) -> Tensor:
        """Returns networks (R, P) that differ in their seeds."""
        seeds = torch.randint(2**31, (R,), generator=g).tolist()
        if bool((w != w[0]).any()):
            z = z[systematic(w, len(z), g).to(z.device)]
        return torch.stack([initialized(self._layers(), z, self.n_components, s) for s in seeds])

    def _train(
        self, pairs: Pairs, theta: Tensor, rows: Tensor, probe: Tensor, g: torch.Generator, steps: int, use: Tensor | None = None
    ) -> np.ndarray:
        """Trains networks (R, P) in place and returns their NLL (L, R) every `EVERY` steps.

        Each is trained on its ``rows`` (R, n), and evaluated on its ``probe`` (R, m). On folds ``use`` (R, n) is 0 for rows that
        are not trained on, and training stops once the mean NLL has not improved for long (`PATIENCE`).
        """
        folds = use is not None
        curve: list[np.ndarray] = []
        best, best_step, shown = math.inf, 0, 0
        optimizer = torch.optim.AdamW([theta.requires_grad_()], lr=self.lr, weight_decay=self.weight_decay)
        batches = minibatches(torch.arange(rows.shape[1], device=rows.device).expand_as(rows), self.batch_size, g)
        with bar("folds" if folds else "networks", steps, "steps", late=True) as advance:
            for k in range(steps + 1):
                if k % EVERY == 0 or k == steps:
                    curve.append(self._nll(pairs, theta.detach(), probe))
                    mean = float(curve[-1].mean())
                    advance(k - shown, note=f"NLL {mean:.3f}")
                    shown = k
                    best, best_step = (mean, k) if mean < best else (best, best_step)
                if k == steps or (folds and k > PATIENCE + 2 * best_step):
                    break
                at = next(batches)
                i = rows.gather(1, at)
                weight = pairs[2][i] if use is None else pairs[2][i] * use.gather(1, at)
                optimizer.zero_grad()
                (weight * self._losses(theta, pairs[0][i], pairs[1][i])).mean(1).sum().backward()
                optimizer.param_groups[0]["lr"] = self.lr * 0.5 * (1 + math.cos(math.pi * k / steps))
                optimizer.step()
        return np.stack(curve)

    def _losses(self, theta: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """Returns L of networks theta (R, P) on items x (R, B, C) and z (R, B, T), (R, B)."""
        return negative_log_likelihood(*clamped(network(theta, x, self._layers()), self.n_components), z)

    @torch.no_grad()
    def _nll(self, pairs: Pairs, theta: Tensor, rows: Tensor) -> np.ndarray:
        """Returns the mean NLL (R,) of networks (R, P) on items (R, n), in standardized units and theta's precision."""
        total: Any = 0
        for i in rows.split(ROWS, 1):
            total = total + (pairs[2][i] * self._losses(theta, *(v[i].to(theta) for v in pairs[:2]))).double().sum(1)
        return np.asarray((total / pairs[2][rows].double().sum(1)).cpu())

    def parameters(self, c: Tensor) -> Parameters:
        """Returns a (B, K), means and log-stds (B, K, T) in standardized target units, differentiable in the contexts (B, C)."""
        theta = torch.from_numpy(self.parameters_).to(c)
        return clamped(network(theta[None], self._scales()[0].to(c)[None], self._layers())[0], self.n_components)

    def routing(self, context: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns weights (B, K), means and stds (B, K, T) in the units of the data: the mixture of each context."""
        with torch.no_grad():
            p = self.conditional(context)
            assert isinstance(p, MixtureOfGaussians)
            parts = p.component_distribution
            return p.weights.cpu().numpy(), parts.mean.cpu().numpy(), parts.variance.sqrt().cpu().numpy()

    def _predictive(self) -> Predictive:
        target = self._scales()[1]
        return lambda c: target.back(mixture(*self.parameters(c)))

    def _layers(self) -> list[tuple[int, int]]:
        """Returns (inputs, outputs) of each layer."""
        outputs = n_outputs(self.n_components, self.n_targets_)
        return list(itertools.pairwise((self.n_features_in_, *self.hidden, outputs)))

    def _width(self) -> int:
        return max(*self.hidden, 8 * n_outputs(self.n_components, self.n_targets_))

    def _require_settings(self, N: int) -> None:
        as_device(self.device)
        require_count(1, N, n_components=self.n_components)
        widths = isinstance(self.hidden, Sequence) and len(self.hidden) > 0 and all(is_count(h, 1) for h in self.hidden)
        expect(widths, "hidden to be one or more widths of at least 1, such as (128, 128)", self.hidden)
        require_count(1, steps=self.steps, batch_size=self.batch_size, n_init=self.n_init)
        expect(self.folds == 0 or is_count(self.folds, 2), "folds of at least 2, or 0 to take all steps", self.folds)
        require_within("(0, 1e30]", lr=self.lr)  # AdamW computes its steps in float32
        require_within("[0, inf)", weight_decay=self.weight_decay)
