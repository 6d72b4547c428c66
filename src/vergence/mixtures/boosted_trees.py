r"""Boosted regression trees of a target's location and scale, and one common mixture of its standardized residuals.

For each target, in standardized units, with trees f of the location and g of the logarithm of the scale,

    p(t | c) = sum_k w_k N(t; f(c) + e^{g(c)} m_k, e^{2 g(c)} v_k)

f minimizes squared errors. On rows r_i that its folds held out, g minimizes those of 1/2 log(r_i^2 + mean r^2 / 100), which a few
far rows do not decide. The mixture (w, m, v) is that of r_i / e^{g(c_i)}, with g of other folds. Each forest is the
mean of those of all folds, and has as many trees as predict the held-out rows best.

Trees are scikit-learn's (histograms of gradients; Ke et al., LightGBM, 2017). Their nodes are kept as arrays and evaluated
here, so that a model is saved without pickle.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from vergence.densities.covariance import Diagonal
from vergence.densities.gaussian import MixtureOfGaussians
from vergence.mixtures.core import Conditional, Predictive, seed_of, silenced
from vergence.mixtures.gaussian_mixture import GaussianMixture
from vergence.utils.checks import require_count, require_within
from vergence.utils.limits import check_time

__all__ = ["BoostedTrees"]

FIRST = 25  # trees of the first comparison; each further one has twice as many
FLOOR = 0.01  # share of the mean square that is added to a residual's square
COMPONENTS, MOST_COMPONENTS = 3, 64  # of the residuals of a target, and of all targets together, at most
FEW = 60  # rows below which the residuals of a target are one Gaussian

Array = np.ndarray
Forest = Mapping[str, Any]


def leaf_values(x: Tensor, forest: Mapping[str, Tensor]) -> Tensor:
    """Returns the sum of the trees' values and the base, (B,), at contexts (B, C); NaN takes the branch that training chose."""
    at = forest["roots"].expand(len(x), -1)
    for _ in range(int(forest["depth"])):
        value = x.gather(1, forest["feature"][at])
        left = torch.where(value.isnan(), forest["gap_left"][at], value <= forest["threshold"][at])
        at = torch.where(left, forest["left"][at], forest["right"][at])  # a leaf is its own branch
    return forest["value"][at].sum(1) + forest["base"]


def as_forest(models: Sequence[Any], n: int) -> Forest:
    """Returns the mean of fitted models with their first n trees, as arrays over the nodes of all trees."""
    trees = [trees[0].nodes for model in models for trees in model._predictors[:n]]
    roots = np.cumsum([0, *map(len, trees)], dtype=np.int64)[:-1]
    nodes = np.concatenate(trees) if trees else np.zeros(0, dtype=[("is_leaf", bool)])
    base = np.array(np.mean([float(np.ravel(model._baseline_prediction)[0]) for model in models]))
    if not trees:
        return {"roots": roots, "depth": np.array(0), "base": base, "value": np.zeros(0)}
    itself, first, leaf = np.arange(len(nodes)), np.repeat(roots, [len(tree) for tree in trees]), nodes["is_leaf"] > 0
    branches = {side: np.where(leaf, itself, first + nodes[side]).astype(np.int64) for side in ("left", "right")}
    values = {
        "value": np.where(leaf, nodes["value"], 0.0) / len(models),
        "threshold": np.where(leaf, 0, np.nan_to_num(nodes["num_threshold"])),
    }
    kind = {"feature": nodes["feature_idx"].astype(np.int64), "gap_left": nodes["missing_go_to_left"] > 0}
    return {"roots": roots, "depth": np.array(int(nodes["depth"].max())), "base": base, **branches, **values, **kind}


def grown(x: Array, y: Array, w: Array, fold: Array, **settings: Any) -> tuple[Forest, Array]:
    """Returns the forest of targets y (N,) of weights w, and what the folds (N,) predict of the rows that they hold out, (N,)."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    most = settings.pop("trees")
    kind = {"l2_regularization": 1.0, "early_stopping": False, "warm_start": True, **settings}
    empty = [np.isnan(x[fold != k]).all(0) for k in range(fold.max() + 1)]
    x = np.where(np.any(empty, axis=0), 0.0, x)  # what a fold has no value of is not asked
    models, best, n = [HistGradientBoostingRegressor(**kind) for _ in range(fold.max() + 1)], 0, 0
    while (n < most and best > 0.5 * n) or n == 0:
        n, error = min(most, max(FIRST, 2 * n)), np.zeros(1)
        for k, model in enumerate(models):
            check_time()
            train, test = fold != k, fold == k
            model.set_params(max_iter=n).fit(x[train], y[train], w[train])
            error = error + np.array([w[test] @ np.square(guess - y[test]) for guess in _stages(model, x[test])])
        best = int(np.argmin(error))
    held_out = np.empty(len(y))
    for k, model in enumerate(models):
        held_out[fold == k] = next(itertools.islice(_stages(model, x[fold == k]), best, None))
    return as_forest(models, best), held_out


def _stages(model: Any, x: Array) -> Any:
    """Yields what a model predicts with 0, 1, 2, ... trees, (B,)."""
    return itertools.chain([np.full(len(x), np.ravel(model._baseline_prediction)[0])], model.staged_predict(x))


def residual_mixture(e: Array, w: Array, most: int, seed: int) -> Array:
    """Returns weights, means and variances (3, K) of the mixture of residuals e (N,) with the lowest BIC, of at most K = most."""
    unit, N, found = max(float(np.sqrt(w @ e**2 / w.sum())), 1e-12), w.sum(), []
    for K in range(1, 1 + (most if len(e) >= FEW else 1)):
        with silenced(ConvergenceWarning):
            p = GaussianMixture(K, reg_covar=1e-3, random_state=seed).fit(e[:, None] / unit, sample_weight=w)
        found.append(((3 * K - 1) * np.log(N) - 2 * N * p.lower_bound_, p))
    p = min(found, key=lambda one: one[0])[1]
    return np.stack([p.weights_, unit * p.means_[:, 0], unit**2 * p.covariances_[:, 0, 0]])


@dataclass(eq=False, repr=False, kw_only=True)
class BoostedTrees(Conditional):
    """p(target | context) of boosted trees: a mixture of Gaussians whose location and scale follow the context in steps.

    Several targets are independent given the context. Gaps in the contexts need no filling: each split sends them to one side.
    Far from the data an answer is that of the nearest rows.

    Args:
        trees: Maximum number of trees of each forest, >= 1.
        learning_rate: Share of each tree, in (0, 1].
        leaves: Leaves of a tree of the location, >= 2; those of the scale have 4.
        leaf_rows: Rows of a leaf of the location at least, >= 1; of the scale, four times as many.
        folds: Folds that choose the number of trees, >= 2.
        device: Where to predict, as torch names it.
        random_state: Seed of the folds and of `sample`.

    Attributes:
        locations_, scales_: The forests of each target, as arrays over nodes.
        residuals_: (3, K) of each target: weights, means and variances of the standardized residuals.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, size=(600, 2))
        >>> model = BoostedTrees(random_state=0).fit(x, np.sign(x[:, 0]) + 0.1 * rng.normal(size=600))
        >>> model.predict([[-0.5, 0.0], [0.5, 0.0]]).round().tolist()
        [-1.0, 1.0]
    """

    trees: int = 400
    learning_rate: float = 0.1
    leaves: int = 16
    leaf_rows: int = 5
    folds: int = 4
    fits_gaps: ClassVar[bool] = True

    def _fit(self, c: Tensor, t: Tensor, w: Tensor | None, label: Tensor) -> None:
        require_count(1, trees=self.trees, leaf_rows=self.leaf_rows)
        require_count(2, leaves=self.leaves, folds=self.folds)
        require_within("(0, 1]", learning_rate=self.learning_rate)
        x, z = (part.cpu().numpy() for part in self._standardized(c, t, w))
        weight, seed = np.ones(len(x)) if w is None else w.cpu().numpy(), seed_of(self.random_state) % 2**32
        most = max(K for K in range(1, COMPONENTS + 1) if K ** z.shape[1] <= MOST_COMPONENTS or K == 1)
        found = []
        for y in z.T:
            rows = ~np.isnan(y)
            found.append(self._of_one(x[rows], y[rows], weight[rows], label.cpu().numpy()[rows], most, seed))
        self.locations_, self.scales_, self.residuals_ = (list(parts) for parts in zip(*found, strict=True))

    def _of_one(self, x: Array, y: Array, w: Array, label: Array, most: int, seed: int) -> tuple[Forest, Forest, Array]:
        """Returns the forests and the residuals' mixture of one target (N,)."""
        places = np.unique(label, return_inverse=True)[1].reshape(-1)
        places = places if places.max() else np.arange(len(y))  # only one group
        fold = (np.random.default_rng(seed).permutation(places.max() + 1) % self.folds)[places]
        how = {"trees": self.trees, "learning_rate": self.learning_rate, "random_state": seed}
        location, guess = grown(x, y, w, fold, max_leaf_nodes=self.leaves, min_samples_leaf=self.leaf_rows, **how)
        square = np.square(y - guess)
        size = 0.5 * np.log(square + FLOOR * (w @ square / w.sum()) + 1e-16)
        scale, log_s = grown(x, size, w, fold, max_leaf_nodes=4, min_samples_leaf=4 * self.leaf_rows, **how)
        return location, scale, residual_mixture((y - guess) * np.exp(-log_s), w, most, seed)

    def _predictive(self) -> Predictive:
        def tensors(forest: Forest) -> dict[str, Tensor]:
            return dict(zip(forest, self._tensors(*forest.values()), strict=True))

        forests = [[tensors(forest) for forest in side] for side in (self.locations_, self.scales_)]
        parts = list(self._tensors(*self.residuals_))
        grid = torch.cartesian_prod(*(torch.arange(part.shape[1]) for part in parts)).reshape(-1, len(parts))
        logits, mean, variance = (torch.stack([part[i][grid[:, d]] for d, part in enumerate(parts)], 1) for i in range(3))
        context, target = self._scales()

        def predictive(c: Tensor) -> MixtureOfGaussians:
            x = context.to(c)
            f, g = (torch.stack([leaf_values(x, forest) for forest in side], 1)[:, None] for side in forests)
            p = MixtureOfGaussians(logits.log().sum(1).expand(len(c), -1), f + g.exp() * mean, Diagonal((2 * g).exp() * variance))
            return target.back(p)  # type: ignore[no-any-return]

        return predictive

    def _at(self, predictive: Predictive, c: Tensor) -> Any:
        return predictive(c)

    def _width(self) -> int:
        return max(64, *(len(forest["roots"]) for forest in [*self.locations_, *self.scales_]))
