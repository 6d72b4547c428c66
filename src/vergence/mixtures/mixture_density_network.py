r"""A network of the context that gives a mixture over the target (Bishop, 1994): GMJE-MDN of arXiv 2603.26799 on fixed data.

The network sees the context c only and gives log-weights a (K), means m (K, T) and log-stds s (K, T), sigma = e^s:

    p(t | c) = sum_k w_k(c) N(t; m_k(c), diag sigma_k(c)^2),   w = softmax(a)
    L = -log p(t | c) = logsumexp_k a_k - logsumexp_k[a_k - 1/2 sum_j ((t_j - m_kj) / sigma_kj)^2 - sum_j s_kj] + (T/2) log 2 pi

and with responsibilities gamma_k = p(k | t, c) the gradients that training uses are

    dL/da = w - gamma,   dL/dm = gamma (m - t) / sigma^2,   dL/ds = gamma (1 - ((t - m) / sigma)^2)

The paper couples this with a marginal loss on the context's embedding. Here contexts are data: that term has no gradient in the
network and is left out. A network that saw the target could put a spike on it; this one cannot (d parameters / d t = 0).

Shapes: R networks that are trained as one batch, B items of a step, K components, T target features, P numbers of a network.
"""

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn import functional as F

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import GaussianMixture
from vergence.mixtures.core import Conditional, Scale, seed_of
from vergence.utils.checks import is_count
from vergence.utils.devices import as_device
from vergence.utils.terminal import late_bar

__all__ = ["MixtureDensityNetwork"]

LOG_STD = (-5.0, 3.0)  # between these, in standardized units
EVERY = 20  # steps between two looks at the likelihood
HELD = 1000  # items that folds hold out together, where there are so many
PATIENCE = 100  # steps without a better held-out likelihood, and as many again as were good
PROBE = 256  # items of a look while the final networks train
ROWS = 4096  # items at a time

Parameters = tuple[Tensor, Tensor, Tensor]


def negative_log_likelihood(a: Tensor, m: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """Returns L in nats, (...), for log-weights (..., K), means and log-stds (..., K, T) and targets (..., T)."""
    T = t.shape[-1]
    joint = a - (0.5 * ((t[..., None, :] - m) * (-s).exp()).square() + s).sum(-1)
    return a.logsumexp(-1) - joint.logsumexp(-1) + T / 2 * math.log(2 * math.pi)


def gradients(a: Tensor, m: Tensor, s: Tensor, t: Tensor) -> Parameters:
    """Returns dL/da (..., K), dL/dm and dL/ds (..., K, T), for the same arguments."""
    v = (-s).exp()
    u = (m - t[..., None, :]) * v
    gamma = (a - (0.5 * u.square() + s).sum(-1)).softmax(-1)
    g = gamma[..., None]
    return a.softmax(-1) - gamma, g * u * v, g * (1 - u.square())


def shapes(C: int, hidden: Sequence[int], K: int, T: int) -> list[tuple[int, int]]:
    """Returns (inputs, outputs) of each layer."""
    widths = [C, *hidden, K * (1 + 2 * T)]
    return list(itertools.pairwise(widths))


def network(theta: Tensor, x: Tensor, layers: list[tuple[int, int]]) -> Tensor:
    """Returns the outputs (R, B, K (1 + 2 T)) of networks theta (R, P) for contexts (R, B, C): SiLU between linear layers."""
    parts = theta.split([n for i, o in layers for n in (i * o, o)], 1)
    for layer, (i, o) in enumerate(layers):
        x = F.silu(x) if layer else x
        x = torch.baddbmm(parts[2 * layer + 1][:, None], x, parts[2 * layer].unflatten(1, (i, o)))
    return x


def split(out: Tensor, K: int) -> Parameters:
    """Returns a (..., K), m and s (..., K, T) of outputs; s is not clamped yet."""
    T = (out.shape[-1] // K - 1) // 2
    a, m, s = out.split([K, K * T, K * T], -1)
    return a, m.unflatten(-1, (K, T)), s.unflatten(-1, (K, T))


def clamped(out: Tensor, K: int) -> Parameters:
    """Returns a, m and s of outputs, s within its limits."""
    a, m, s = split(out, K)
    return a, m, s.clamp(*LOG_STD)


def output_gradient(out: Tensor, t: Tensor, K: int) -> Tensor:
    """Returns dL / d outputs, of the shape of the outputs (..., K (1 + 2 T)); zero where s is clamped."""
    a, m, s = split(out, K)
    clamp = s.clamp(*LOG_STD)
    da, dm, ds = gradients(a, m, clamp, t)
    return torch.cat([da, dm.flatten(-2), (ds * (s == clamp)).flatten(-2)], -1)


def centers(z: Tensor, K: int, seed: int) -> Tensor:
    """Returns K starting means (K, T): quantiles (k + 1/2) / K for T = 1, else the centers of k-means."""
    if z.shape[1] == 1:
        return z.quantile((torch.arange(K).to(z) + 0.5) / K, dim=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct items than K: some centers are equal
        found = KMeans(K, n_init=1, max_iter=50, random_state=seed % 2**32).fit(z.cpu().numpy()).cluster_centers_
    return torch.from_numpy(found).to(z)


def start(layers: list[tuple[int, int]], z: Tensor, K: int, init: str, seed: int) -> Tensor:
    """Returns a network (P,): torch's uniform start; the last layer set by the targets z (N, T) unless ``init`` is plain."""
    g = torch.Generator().manual_seed(seed)
    parts = [(2 * torch.rand(n, generator=g, dtype=z.dtype) - 1) / i**0.5 for i, o in layers for n in (i * o, o)]
    if init == "quantile":
        m = centers(z, K, seed).cpu()
        parts[-2] *= 0.1
        parts[-1] = torch.cat([torch.zeros(K).to(m), m.flatten(), torch.full((m.numel(),), -math.log(K)).to(m)])
    return torch.cat(parts).to(z.device)


def adam(theta: Tensor, g: Tensor, m: Tensor, v: Tensor, k: int, lr: float, decay: float = 0.0) -> None:
    """Takes step k = 1, 2, ... of AdamW in place: its moments m and v begin at 0; beta = (0.9, 0.999), epsilon = 1e-8.

        m' = 0.9 m + 0.1 g,  v' = 0.999 v + 0.001 g^2
        theta' = (1 - lr decay) theta - lr m' / (1 - 0.9^k) / (sqrt(v' / (1 - 0.999^k)) + epsilon)

    On one tensor this is as fast as torch.optim's fused kernel, and it spares the seconds that the first optimizer of a process
    takes to import a compiler.
    """
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    theta.mul_(1 - lr * decay)
    theta.addcdiv_(m, (v / (1 - 0.999**k)).sqrt_().add_(1e-8), value=-lr / (1 - 0.9**k))


def annealed(k: int, steps: int) -> int:
    """Returns in how many steps a rate that falls to 0 at their end adds up to as much as that of the first k of ``steps``.

    k + steps / pi sin(pi k / steps): about 2 k for a small k, ``steps`` for the last. A stop at full rate would leave its noise.
    """
    return round(k + steps / math.pi * math.sin(math.pi * k / steps))


def batches(rows: Tensor, size: int, g: torch.Generator) -> Iterator[Tensor]:
    """Yields without end (R, B) of the items rows (R, n): each epoch in a new order, the same places for all networks."""
    n = rows.shape[1]
    size = min(size, n)
    while True:
        for places in torch.randperm(n, generator=g)[: n // size * size].split(size):
            yield rows[:, places.to(rows.device)]


class MixtureDensityNetwork(Conditional):
    """p(target | context) of a network of the context: weights, means and stds of K Gaussians, different for every context.

    Networks overfit small data without bound: the number of steps is chosen by likelihood on held-out folds, and then
    ``n_init`` networks are trained on all items for so long. The best by training likelihood is kept. Networks of one phase,
    folds or restarts, are one batch of one Adam, whose losses add up: their gradients do not mix. They are trained in
    float32; distributions are float64. Order and units of the items change the rounding, and order the minibatches.

    On three separated branches (3000 items; the truth has 5000 others at -0.4835 nats) the defaults reach -0.472 to -0.475 over
    8 seeds; without folds 2000 steps reach the same, and 6 of 8 single restarts do. One context with noise that depends on it:
    0.055 nats above the truth from 300 items, where all 2000 steps without folds end at 0.11; from 100 items 0.2, against 5.

    Args:
        n_components: K, from 1 to N.
        hidden: Widths of the hidden layers, each >= 1.
        steps: Most steps of Adam, >= 1; the learning rate falls to 0 at the last as a cosine.
        batch_size: Items of a step, >= 1; N where there are fewer.
        lr: First learning rate, > 0.
        n_init: Restarts, >= 1.
        init: ``quantile`` starts means at the targets' quantiles (one feature) or k-means centers (more); ``plain`` is torch's
            default, for study. With either, a single restart may end with a component across two branches.
        folds: Held-out parts that choose the number of steps, >= 2; only so many are trained as hold out 1000 items.
            0 takes all ``steps``.
        weight_decay: Of AdamW, >= 0.
        device: Where to compute, as torch names it.
        random_state: Seed.

    Attributes:
        parameters_: (P,), the best network: weights (inputs, outputs) and biases of each layer, for standardized units.
        steps_: Steps taken, with a rate that falls to 0 over them (`annealed`); 0 where the start predicts best.
        train_nll_: (n_init,), in nats and the units of the data.
        best_: Which restart was kept.
        loss_curve_: (L, n_init), training NLL on at most 256 items every 20 steps.
        validation_curve_: (V,), held-out NLL every 20 steps, the mean over folds; empty for ``folds=0``.
        context_mean_, context_std_, target_mean_, target_std_: The standardized units.
        n_features_in_: C.
        n_targets_: T.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, size=(600, 1))
        >>> t = rng.choice([-1, 1], size=600) * (2 + x[:, 0]) + 0.1 * rng.normal(size=600)  # two answers
        >>> model = MixtureDensityNetwork(n_components=2, hidden=(32,), steps=300, n_init=1, random_state=0).fit(x, t)
        >>> weights, means, stds = model.routing([[0.0]])
        >>> sorted(means[0, :, 0].round().tolist()), bool(stds.max() < 0.3)
        ([-2.0, 2.0], True)
    """

    def __init__(
        self,
        *,
        n_components: int = 3,
        hidden: Sequence[int] = (128, 128),
        steps: int = 2000,
        batch_size: int = 256,
        lr: float = 3e-3,
        n_init: int = 3,
        init: str = "quantile",
        folds: int = 5,
        weight_decay: float = 0.0,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.hidden = hidden
        self.steps = steps
        self.batch_size = batch_size
        self.lr = lr
        self.n_init = n_init
        self.init = init
        self.folds = folds
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state

    def _fit(self, c: Tensor, t: Tensor) -> None:
        self._require(len(c))
        context, target = Scale.of(c), Scale.of(t)
        self.context_mean_, self.context_std_ = context.mean.numpy(), context.std.numpy()
        self.target_mean_, self.target_std_ = target.mean.numpy(), target.std.numpy()
        self._x, self._z = context.to(c).float(), target.to(t).float()
        try:
            self._train(torch.Generator().manual_seed(seed_of(self.random_state)))
        finally:
            del self._x, self._z

    def _train(self, g: torch.Generator) -> None:
        """Chooses the number of steps, trains the restarts, keeps the best."""
        unit = float(np.log(self.target_std_).sum())
        self.validation_curve_, self.steps_ = np.empty(0), self.steps
        if self.folds:
            curve = self._on_folds(g)
            self.validation_curve_, self.steps_ = curve + unit, annealed(min(int(curve.argmin()) * EVERY, self.steps), self.steps)
        rows = torch.arange(len(self._x), device=self._x.device)
        probe = rows[torch.randperm(len(rows), generator=g)[:PROBE].to(rows.device)]
        theta, R = self._starts(self.n_init, g), self.n_init
        curves = self._descend(theta, rows.expand(R, -1), probe.expand(R, -1), g, "networks", self.steps_)
        self.loss_curve_ = np.stack(curves) + unit
        self.train_nll_ = self._nll(theta.detach().double(), rows.expand(R, -1)) + unit
        if not np.isfinite(self.train_nll_).any():
            raise ValueError(f"expected a finite likelihood, found none in {R} restarts: lower lr, which is {self.lr}")
        self.best_ = int(np.nanargmin(self.train_nll_))
        self.parameters_ = theta.detach()[self.best_].double().cpu().numpy()

    def _on_folds(self, g: torch.Generator) -> np.ndarray:
        """Returns the held-out NLL every `EVERY` steps, the mean over networks that each leave out other items."""
        N = len(self._x)
        folds = min(self.folds, N)
        held = min(N // folds, HELD)
        order = torch.randperm(N, generator=g).to(self._x.device)
        turned = torch.stack([order.roll(-f * held) for f in range(min(folds, math.ceil(HELD / held)))])
        theta = self._starts(len(turned), g)
        curves = self._descend(theta, turned[:, held:], turned[:, :held], g, "folds", self.steps, patient=True)
        curve: np.ndarray = np.nan_to_num(np.stack(curves).mean(1), nan=np.inf)
        return curve

    def _starts(self, R: int, g: torch.Generator) -> Tensor:
        """Returns networks (R, P) that differ in their seeds."""
        seeds = torch.randint(2**31, (R,), generator=g).tolist()
        return torch.stack([start(self._layers(), self._z, self.n_components, self.init, s) for s in seeds])

    def _descend(
        self,
        theta: Tensor,
        rows: Tensor,
        probe: Tensor,
        g: torch.Generator,
        label: str,
        steps: int,
        patient: bool = False,
    ) -> list[np.ndarray]:
        """Trains networks theta (R, P) in place on items rows (R, n); returns their NLL (R,) on items probe, every 20 steps.

        With ``patient`` it stops where the mean NLL has long not become better.
        """
        curve: list[np.ndarray] = []
        best, good, told = math.inf, 0, 0
        moments = torch.zeros_like(theta), torch.zeros_like(theta)
        drawn, layers = batches(rows, self.batch_size, g), self._layers()
        with late_bar(label, steps, "steps") as advance:
            for k in range(steps + 1):
                if k % EVERY == 0 or k == steps:
                    curve.append(self._nll(theta.detach(), probe))
                    advance(k - told, note=f"NLL {curve[-1].mean():.3f}")
                    told = k
                    best, good = (now, k) if (now := float(curve[-1].mean())) < best else (best, good)
                if k == steps or (patient and k - good > PATIENCE + good):
                    break
                i = next(drawn)
                out = network(theta.requires_grad_(), self._x[i], layers)
                dout = output_gradient(out.detach(), self._z[i], self.n_components) / i.shape[1]
                (slope,) = torch.autograd.grad((dout * out).sum(), theta)  # of a vector it would import sympy
                lr = self.lr * 0.5 * (1 + math.cos(math.pi * k / steps))
                adam(theta.detach(), slope, *moments, k + 1, lr, self.weight_decay)
        return curve

    @torch.no_grad()
    def _nll(self, theta: Tensor, rows: Tensor) -> np.ndarray:
        """Returns the mean NLL (R,) of networks on items (R, n), in standardized units and theta's precision."""
        total: Any = 0
        for i in rows.split(ROWS, 1):
            out = network(theta, self._x[i].to(theta), self._layers())
            total = total + negative_log_likelihood(*clamped(out, self.n_components), self._z[i].to(theta)).double().sum(1)
        nll: np.ndarray = (total / rows.shape[1]).cpu().numpy()
        return nll

    def parameters(self, c: Tensor) -> Parameters:
        """Returns a (B, K), means and log-stds (B, K, T) in standardized units of the target, for contexts (B, C) in data units.

        Differentiable in the contexts.
        """
        theta = torch.from_numpy(self.parameters_).to(c)
        x = Scale(self.context_mean_, self.context_std_).to(c)
        return clamped(network(theta[None], x[None], self._layers())[0], self.n_components)

    def routing(self, context: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns weights (B, K), means and stds (B, K, T) in the units of the data: what the network makes of each context.

        Raises:
            ValueError: As `conditional`.
        """
        with torch.no_grad():
            p = self.conditional(context)
            assert isinstance(p, GaussianMixture)
            parts = p.component_distribution
            return p.weights.cpu().numpy(), parts.mean.cpu().numpy(), parts.variance.sqrt().cpu().numpy()

    def _conditional(self, c: Tensor) -> GaussianMixture:
        a, m, s = self.parameters(c)
        p: GaussianMixture = Scale(self.target_mean_, self.target_std_).back(GaussianMixture(a, m, Diagonal((2 * s).exp())))
        return p

    def _layers(self) -> list[tuple[int, int]]:
        return shapes(self.n_features_in_, self.hidden, self.n_components, self.n_targets_)

    def _width(self) -> int:
        return max(*self.hidden, 8 * self.n_components * (1 + 2 * self.n_targets_))

    def _require(self, N: int) -> None:
        as_device(self.device)
        if not is_count(self.n_components, 1) or self.n_components > N:
            raise ValueError(f"expected n_components from 1 to the {N} items, found {self.n_components}")
        if not isinstance(self.hidden, Sequence) or not self.hidden or not all(is_count(h, 1) for h in self.hidden):
            raise ValueError(f"expected hidden to be one or more widths of at least 1, such as (128, 128), found {self.hidden}")
        for name in ("steps", "batch_size", "n_init"):
            if not is_count(getattr(self, name), 1):
                raise ValueError(f"expected {name} to be a whole number of at least 1, found {getattr(self, name)}")
        if self.init not in ("quantile", "plain"):
            raise ValueError(f"expected init 'quantile' or 'plain', found '{self.init}'")
        if self.folds != 0 and not is_count(self.folds, 2):
            raise ValueError(f"expected folds of at least 2, or 0 to take all steps, found {self.folds}")
        if not self.lr > 0 or not self.weight_decay >= 0:
            raise ValueError(f"expected lr > 0 and weight_decay >= 0, found {self.lr} and {self.weight_decay}")
