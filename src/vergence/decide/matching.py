r"""Which target of a gallery belongs to each context, or none of them: candidates and "no match", each with a stated rate.

A score s(a, b) is larger where b is more likely the match of a: of a density log p(b | a) - log p(b) in nats, or the cosine. With
the scores s_1..s_n of true pairs that no fit has seen, p(a, b) = (1 + #{s_i <= s(a, b)}) / (n + 1). For a context like those of
the pairs whose true match b* is in the gallery (DERIVED: exchangeability; Vovk et al. 2005):

- P(p(a, b*) <= alpha) <= alpha, so {b : p(a, b) > alpha} holds b* with probability 1 - alpha at least.
- The best candidate's p is not below that of b*, so "no match" where p(best) <= alpha is wrong for a share alpha at most of the
  contexts that have a match.

In the other direction, let t_i be the largest score in the gallery of a context of the pairs, whose match the gallery lacks. For
a context without a match, p'(a) = (1 + #{t_i >= s(a, best)}) / (n + 1) satisfies P(p' <= alpha) <= alpha: claiming a match where
p' <= alpha is wrong for a share alpha at most of the contexts without one.

Pairs of one target are not n draws: of each group of them one calibrates. Neither statement holds where contexts or gallery come
from another source than the pairs. Shapes: N contexts, M items of the gallery, n pairs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vergence.decide.conformal import counts_of, drift_of_counts, ranked
from vergence.decide.decisions import SHIFTED
from vergence.decide.splits import apart, grouped, one_of_each
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.densities.retrieval import log_probs
from vergence.densities.storage import Stored
from vergence.mixtures.conditional_mixture import ConditionalGaussian
from vergence.mixtures.core import Conditional, to_numpy
from vergence.utils.checks import counted, expect, in_percent, require_array, require_count, require_within
from vergence.utils.terminal import Tabular

__all__ = ["Matcher", "Matches", "likelihood_ratio", "match", "matched"]

FEWEST = 19  # pairs that calibrate, of which the least p-value is 1/20
SHARE = 0.3  # of the pairs that calibrate
KEPT = 2_000  # contexts of pairs that are held to say what a gallery without the match gives
WIDEST, ROWS = 128, 10  # components of each side at most; rows of the fit for each of them
LEAST_VARIANCE = 1e-6  # of a component, in variances of the first
BLOCK, TOGETHER = 1 << 22, 256  # numbers of a block of scores; pairs that are scored together
Scores = Callable[[Tensor, Tensor], Tensor]  # contexts (B, C), gallery (M, T) -> (B, M)


@dataclass(frozen=True, repr=False)
class Matches(Tabular):
    """The answer for each of N contexts.

    Attributes:
        best: Index of the best candidate in the gallery (N,).
        score: Its score (N,).
        p_value: p(a, best) (N,): small where no candidate resembles a match.
        claim: p'(a) (N,): small where a gallery without the match hardly ever has so good a candidate.
        answer: ``match``, ``no match`` or ``unsure`` (N,).
        candidates: Indices of the candidates of each context, the best first; of a match at least one.
        coverage: Least probability that the candidates hold the match, of contexts that have one.
        no_match: Largest share of wrong answers ``no match`` among contexts that have a match, and of wrong answers ``match``
            among those that have none.
        pairs: n.
        shift: Probability that scores of contexts with a match are as low overall.
        known: Contexts that are among those of the pairs that calibrate.
    """

    best: np.ndarray
    score: np.ndarray
    p_value: np.ndarray
    claim: np.ndarray
    answer: np.ndarray
    candidates: list[np.ndarray]
    coverage: float
    no_match: float
    pairs: int
    shift: float
    known: int = 0

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns one row per context."""
        columns = {name: getattr(self, name).tolist() for name in ("best", "score", "p_value", "claim", "answer")}
        return {"context": list(range(len(self.best))), **columns, "candidates": [len(part) for part in self.candidates]}

    @property
    def sentences(self) -> list[str]:
        """What was found, and what it means."""
        counts = {name: int((self.answer == name).sum()) for name in ("match", "no match", "unsure")}
        median, share = sorted(map(len, self.candidates))[len(self.best) // 2], in_percent(self.no_match)
        found = [
            f"{counts['match']:,} of {counted(len(self.best), 'context')} matched, {counts['no match']:,} without a match, "
            f"{counts['unsure']:,} unsure.",
            f'On average at most {share} of contexts with a match are called "no match". At most {share} of those without one '
            "are matched. This holds if contexts and gallery come from the source of the pairs.",
            f"The candidates (median number: {median:,}) contain the match of at least {in_percent(self.coverage)} of contexts "
            "that have one.",
        ]
        if self.shift <= SHIFTED:
            why = "Either many contexts have no match, or they come from another source; then no rate holds."
            found.append(f"The scores are lower overall than those of the pairs (p = {self.shift:.2g}). {why}")
        if self.known:
            known = f"{self.known:,} of {counted(len(self.best), 'context')} equal those of pairs of the fit."
            found.append(f"{known} No rate holds for these pairs: match new contexts.")
        return found


def matched(
    scores: Scores,
    contexts: Tensor,
    gallery: Tensor,
    true: np.ndarray,
    others: Tensor,
    *,
    coverage: float = 0.9,
    no_match: float = 0.05,
) -> Matches:
    """Returns the answer for each of some contexts (N, C) in a gallery (M, T); rates are in (0, 1).

    ``true`` (n,) are scores of true pairs that no fit has seen, ``others`` (n', C) contexts of such pairs without their matches
    in the gallery; at most 2,000 are used.
    """
    require_within("(0, 1)", coverage=coverage, no_match=no_match)
    expect(len(contexts) and len(gallery), "contexts and a gallery", f"{len(contexts)} and {len(gallery)}")
    least = min(no_match, 1 - coverage)
    needed = math.ceil(1 / least * (1 - 1e-12)) - 1
    expect(len(true) >= needed, f"at least {needed} pairs that calibrate for {in_percent(least)}", len(true), "give more")
    k = math.floor((1 - coverage) * (len(true) + 1) * (1 + 1e-12))  # (1 + #{s_i <= s}) / (n + 1) > 1 - coverage: 1 + # > k
    threshold = float(np.sort(true)[k - 1]) if k >= 1 else -math.inf
    null = np.concatenate([np.asarray(part.amax(1).cpu().double()) for part in _blocks(scores, others[:KEPT], gallery)])
    best, top, candidates = [], [], []
    for part in _blocks(scores, contexts, gallery):
        value, index = part.max(1)
        best.append(index.cpu().numpy())
        top.append(value.double().cpu().numpy())
        for row in part:  # the best first
            found = (row.double() >= threshold).nonzero()[:, 0]
            candidates.append(np.asarray(found[row[found].argsort(descending=True, stable=True)].cpu()))
    score = np.concatenate(top)
    p, claim = ranked(-true, -score), ranked(null, score)
    answer = np.where(p <= no_match, "no match", np.where(claim <= no_match, "match", "unsure"))
    one, shift = np.concatenate(best), drift_of_counts(counts_of(p, len(true))).p_value
    near = [torch.cdist(z, others[:KEPT], compute_mode="donot_use_mm_for_euclid_dist").amin(1) for z in contexts.split(1024)]
    known = int((torch.cat(near) <= 100 * torch.finfo(others.dtype).eps * others.norm(dim=1).mean()).sum())  # up to rounding
    candidates = [one[i : i + 1] if answer[i] == "match" and not len(part) else part for i, part in enumerate(candidates)]
    return Matches(one, score, p, claim, answer, candidates, coverage, no_match, len(true), shift, known)


def _blocks(scores: Scores, contexts: Tensor, gallery: Tensor) -> Iterator[Tensor]:
    for part in contexts.split(max(1, BLOCK // max(1, len(gallery)))):
        yield scores(part, gallery)


def likelihood_ratio(
    conditional: Callable[[Tensor], JointGaussian | MixtureOfGaussians], marginal: JointGaussian | MixtureOfGaussians
) -> Scores:
    """Returns the score log p(b | a) - log p(b), in nats, of a conditional density and a marginal one.

    Example:
        >>> joint = JointGaussian(torch.zeros(2), torch.tensor([[1.0, 0.6], [0.6, 1.0]]), context=1)
        >>> scores = likelihood_ratio(joint.conditional, joint.marginal("target"))
        >>> scores(torch.tensor([[2.0]]), torch.tensor([[1.2], [-1.2]]))
        tensor([[ 0.9431, -3.5569]])
    """

    def scores(za: Tensor, zb: Tensor) -> Tensor:
        base, density = marginal.log_prob(zb), conditional(za)
        if isinstance(density, JointGaussian) and density.S.shape[:-1].numel() == 1:
            return _of_one_covariance(density, zb) - base
        parts = [log_probs(density, some) for some in zb.split(max(1, BLOCK // max(1, len(za) * zb.shape[1])))]
        return torch.cat(parts).T - base

    return scores


def _of_one_covariance(density: JointGaussian, zb: Tensor) -> Tensor:
    """Returns log N(b; m_a, S) for means (B, T) and items (M, T), (B, M), by products of whitened matrices."""
    S = density.S.dense().reshape(zb.shape[1], zb.shape[1])
    L = torch.linalg.cholesky(S)
    center = density.loc.mean(0)
    a, b = (torch.linalg.solve_triangular(L, (z - center).T, upper=False).T for z in (density.loc, zb))
    square = (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min(0)
    likelihood: Tensor = -0.5 * (square + 2 * L.diagonal().log().sum() + zb.shape[1] * math.log(2 * math.pi))
    return likelihood


def of_pairs(scores: Scores, za: Tensor, zb: Tensor) -> Tensor:
    """Returns the score of each pair (n,), by the same formula as those of a gallery."""
    return torch.cat([scores(a, b).diagonal() for a, b in zip(za.split(TOGETHER), zb.split(TOGETHER), strict=True)])


def cosine(za: Tensor, zb: Tensor) -> Tensor:
    """Returns the cosine of contexts (B, D) and items (M, D), (B, M)."""
    return torch.nn.functional.normalize(za, dim=1) @ torch.nn.functional.normalize(zb, dim=1).T


@dataclass(eq=False, repr=False)
class Matcher(Stored):
    """Matches of contexts in a gallery, or none, by pairs of vectors of any encoders.

    A share of the pairs calibrates, and pairs of one group are on one side of this split; without groups, those whose contexts or
    targets are near duplicates are. Of each group that calibrates one pair does, at random, so that the rates are those of a
    context of a new group. Of the others, both sides are reduced to their principal components, and a density of their pairs is
    fitted.

    Args:
        model: Estimator of p(target | context) with a joint density, which is cloned: `ConditionalGaussian` by default, or
            `ConditionalMixture`.
        by: ``density`` for log p(b | a) - log p(b), or ``cosine`` where both encoders share a space.
        n_components: Components of each side; by default at most 128 and a tenth of the pairs of the fit.
        share: Share of the pairs that calibrates, in (0, 1).
        random_state: Seed of the split.
        device: ``cpu`` or ``cuda``.

    Attributes:
        calibration_: Scores of the pairs that calibrate (n,).
        others_: Contexts of at most 2,000 of them, in components.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a = rng.normal(size=(600, 4))
        >>> b = a @ rng.normal(size=(4, 5)) + 0.1 * rng.normal(size=(600, 5))
        >>> matcher = Matcher().fit(a[:500], b[:500])
        >>> found = matcher.match(a[500:], b[500:])
        >>> float((found.best == np.arange(100)).mean()) > 0.9, "no match" in matcher.match(a[:1], -b[:1]).answer
        (True, True)
    """

    model: Conditional | None = None
    _: KW_ONLY
    by: Literal["density", "cosine"] = "density"
    n_components: int | None = None
    share: float = SHARE
    random_state: int = 0
    device: str = "cpu"

    def fit(self, context: Any, target: Any, groups: Any = None) -> "Matcher":
        """Fits to true pairs, contexts (N, C) and targets (N, T), of groups (N,) such as patients."""
        require_within("(0, 1)", share=self.share)
        expect(self.by in ("density", "cosine"), "by 'density' or 'cosine'", self.by)
        a, b = _matrix("contexts", context), _matrix("targets", target)
        expect(len(a) == len(b), "as many contexts as targets", f"{len(a)} and {len(b)}")
        fits = self.by == "density" or a.shape[1] == b.shape[1]
        expect(fits, "vectors of one width for the cosine", f"{a.shape[1]} and {b.shape[1]}")
        group = grouped(groups, a, b)
        side = apart(group, self.share, self.random_state)
        own = one_of_each(group, side, self.random_state)
        of = f"at least {FEWEST} pairs that calibrate, of groups, contexts and targets of their own"
        expect(len(own) >= FEWEST, of, len(own), "give more pairs, or a larger share")
        self.n_context_, self.n_target_ = a.shape[1], b.shape[1]
        if self.by == "density":
            (self.center_a_, self.axes_a_), (self.center_b_, self.axes_b_) = (self._axes(z[~side]) for z in (a, b))
            za, zb = self._components(a, "a"), self._components(b, "b")
            estimator = ConditionalGaussian(device=self.device) if self.model is None else clone(self.model)
            self.model_ = estimator.fit(za[~side].numpy(), zb[~side].numpy())
            expect(hasattr(self.model_, "joint"), "a model with a joint density", type(self.model_).__name__, "use a mixture")
        za, zb = self._components(a[own], "a"), self._components(b[own], "b")
        self.calibration_ = of_pairs(self._scores(), za, zb).double().cpu().numpy()
        kept = np.random.default_rng(self.random_state).permutation(len(za))[:KEPT]
        self.others_ = za[torch.from_numpy(np.sort(kept))].cpu().numpy()
        return self

    def match(self, context: Any, gallery: Any, *, coverage: float = 0.9, no_match: float = 0.05) -> Matches:
        """Returns the answer for each context (N, C) in a gallery (M, T), which must not hold matches of the pairs of the fit."""
        a, b = self._sides(context, gallery)
        others = torch.from_numpy(self.others_).to(a)
        return matched(self._scores(), a, b, self.calibration_, others, coverage=coverage, no_match=no_match)

    def scores(self, context: Any, gallery: Any) -> np.ndarray:
        """Returns the score of each context and each item of the gallery, (N, M)."""
        a, b = self._sides(context, gallery)
        return np.asarray(torch.cat(list(_blocks(self._scores(), a, b))).cpu())

    def _sides(self, context: Any, gallery: Any) -> tuple[Tensor, Tensor]:
        check_is_fitted(self, "calibration_")
        a, b = _matrix("contexts", context), _matrix("the gallery", gallery)
        for name, z, width in (("contexts", a, self.n_context_), ("items of the gallery", b, self.n_target_)):
            expect(z.shape[1] == width, f"{name} of {width} numbers, as in fit", z.shape[1], "use the same encoder")
        return self._components(a, "a"), self._components(b, "b")

    def _axes(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and the principal directions (D, k) of vectors."""
        from sklearn.decomposition import PCA

        if self.n_components is not None:
            require_count(n_components=self.n_components)
        k = min(*z.shape, self.n_components or max(1, min(WIDEST, len(z) // ROWS)))
        pca = PCA(k, svd_solver="covariance_eigh" if z.shape[1] <= 1024 else "randomized", random_state=self.random_state).fit(z)
        kept = pca.explained_variance_ > LEAST_VARIANCE * pca.explained_variance_[0]  # others hardly vary in the fit
        expect(kept.any(), "vectors that differ", "equal ones", "give others")
        return pca.mean_, np.ascontiguousarray(pca.components_[kept].T)

    def _components(self, z: np.ndarray, side: str) -> Tensor:
        x = torch.from_numpy(z).to(self.device)
        if self.by == "cosine":
            return x
        center, axes = self._tensors(getattr(self, f"center_{side}_"), getattr(self, f"axes_{side}_"))
        return (x - center) @ axes

    def _scores(self) -> Scores:
        if self.by == "cosine":
            return cosine
        joint = self.model_.joint()
        return likelihood_ratio(joint.conditional, joint.marginal("target"))

    def _try(self) -> None:
        zeros = np.zeros((1, self.n_context_)), np.zeros((1, self.n_target_))
        self.scores(*zeros)


def match(
    context: Any, target: Any, contexts: Any, gallery: Any, *, groups: Any = None, coverage: float = 0.9, no_match: float = 0.05
) -> Matches:
    """Returns which target of a gallery belongs to each context, or none of them, as learned from true pairs.

    Args:
        context: Contexts of true pairs, vectors (n, C).
        target: Their targets, vectors (n, T).
        contexts: New contexts (N, C).
        gallery: Targets (M, T) among which their matches may be.
        groups: Groups of these pairs (n,), as of `Matcher.fit`.
        coverage: Probability that the candidates of a context hold its match, in (0, 1).
        no_match: Largest share of wrong answers, of contexts with and of those without a match, in (0, 1).

    Raises:
        ValueError: The vectors are not matrices of numbers, or too few pairs calibrate.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(220, 3))
        >>> match(x[:200], x[:200] + 1, x[200:], x[200:] + 1).best[:3].tolist()
        [0, 1, 2]
    """
    return Matcher().fit(context, target, groups).match(contexts, gallery, coverage=coverage, no_match=no_match)


def _matrix(name: str, x: Any) -> np.ndarray:
    """Returns finite vectors (N, D) in float64."""
    array = np.asarray(to_numpy(x))
    require_array(name, array, "N", "D")
    return array.astype(np.float64)
