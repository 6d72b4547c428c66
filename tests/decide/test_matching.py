"""Matches and "no match": the statements in 1,000 simulations, equality with slow formulas, and what is refused."""

import numpy as np
import pytest
import torch
from scipy import stats
from tests.refusals import refuses

from vergence.decide import Matcher, select
from vergence.decide.matching import cosine, likelihood_ratio, matched
from vergence.densities.gaussian import JointGaussian
from vergence.mixtures import ConditionalMixture

SIMULATIONS = 1000
D = 4


def joint(r=0.8):
    """A Gaussian over pairs of D features each, with correlation r."""
    eye = torch.eye(D, dtype=torch.float64)
    S = torch.cat([torch.cat([eye, r * eye], 1), torch.cat([r * eye, eye], 1)])
    return JointGaussian(torch.zeros(2 * D, dtype=torch.float64), S, context=D)


def pairs(n, rng, r=0.8):
    a = rng.normal(size=(n, D))
    return torch.from_numpy(a), torch.from_numpy(r * a + (1 - r * r) ** 0.5 * rng.normal(size=(n, D)))


SCORES = likelihood_ratio(joint().conditional, joint().marginal("target"))


def true_scores(a, b, r=0.8):
    return (joint(r).conditional(a).log_prob(b) - joint(r).marginal("target").log_prob(b)).numpy()


def test_scores_are_the_ratio_of_densities():
    a, b = pairs(7, np.random.default_rng(0))
    found = SCORES(a, b[:5])
    for i in range(7):
        for j in range(5):
            given = stats.multivariate_normal(0.8 * a[i].numpy(), (1 - 0.64) * np.eye(D)).logpdf(b[j].numpy())
            alone = stats.multivariate_normal(np.zeros(D), np.eye(D)).logpdf(b[j].numpy())
            assert float(found[i, j]) == pytest.approx(given - alone)
    assert float(cosine(a, b)[2, 3]) == pytest.approx(float(torch.nn.functional.cosine_similarity(a[2:3], b[3:4])))


@pytest.mark.parametrize("size", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in (10, 100))])
def test_no_match_is_wrong_for_at_most_the_rate_and_candidates_cover(size):
    rng = np.random.default_rng(size)
    wrong, covered = [], []
    for _ in range(SIMULATIONS):
        a, b = pairs(40 + 1, rng)
        others = torch.from_numpy(rng.normal(size=(size - 1, D)))  # of the same kind, and no matches
        gallery = torch.cat([b[40:], others])
        found = matched(SCORES, a[40:], gallery, true_scores(a[:40], b[:40]), a[:40], coverage=0.8, no_match=0.1)
        wrong.append(found.answer[0] == "no match")
        covered.append(0 in found.candidates[0])
    error = (0.1 * 0.9 / SIMULATIONS) ** 0.5
    assert np.mean(wrong) <= 0.1 + 3 * error
    assert np.mean(covered) >= 0.8 - 3 * (0.16 / SIMULATIONS) ** 0.5
    if size == 1:  # the rate is attained where the gallery is the match alone
        assert np.mean(wrong) >= 0.05
        assert np.mean(covered) <= 0.9


@pytest.mark.parametrize("size", [30, pytest.param(1, marks=pytest.mark.slow)])
def test_claiming_a_match_where_there_is_none_is_wrong_for_at_most_the_rate(size):
    rng = np.random.default_rng(100 + size)
    claims = []
    for _ in range(SIMULATIONS):
        a, b = pairs(40, rng)
        gallery, lonely = torch.from_numpy(rng.normal(size=(size, D))), torch.from_numpy(rng.normal(size=(1, D)))
        found = matched(SCORES, lonely, gallery, true_scores(a, b), a, no_match=0.1)
        claims.append(found.answer[0] == "match")
        assert found.claim[0] >= 1 / 41
    assert np.mean(claims) <= 0.1 + 3 * (0.09 / SIMULATIONS) ** 0.5


def test_benjamini_hochberg_over_many_queries_keeps_its_rate_in_simulation():
    rng, rates = np.random.default_rng(3), []
    scores = likelihood_ratio(joint(0.95).conditional, joint(0.95).marginal("target"))
    for _ in range(300):
        a, b = pairs(200 + 40, rng, 0.95)
        lonely = torch.from_numpy(rng.normal(size=(20, D)))
        found = matched(scores, torch.cat([a[200:], lonely]), b[200:], true_scores(a[:200], b[:200], 0.95), a[:200])
        flagged = np.asarray(select(found.p_value, fdr=0.2))
        rates.append(flagged[:40].sum() / max(1, flagged.sum()))
    assert np.mean(rates) <= 0.2 + 2 * np.std(rates) / 300**0.5


def test_the_candidates_are_the_definition():
    rng = np.random.default_rng(4)
    a, b = pairs(60, rng)
    own = true_scores(a[:30], b[:30])
    found = matched(SCORES, a[30:], b[30:], own, a[:30], coverage=0.9)
    scores = SCORES(a[30:], b[30:]).numpy()
    for i in range(30):
        p = (1 + (own[None] <= scores[i][:, None]).sum(1)) / 31
        assert sorted(found.candidates[i]) == np.flatnonzero(p > 1 - 0.9 + 1e-12).tolist()
        assert found.best[i] == scores[i].argmax()
        assert found.p_value[i] == pytest.approx(p[found.best[i]])
    assert [len(part) for part in found.candidates] == found.table()["candidates"]
    few = matched(SCORES, a[30:], b[30:], own, a[:30], coverage=0.1)
    assert {len(few.candidates[i]) for i in np.flatnonzero(few.answer == "match")} == {1}, "a match has a candidate"
    assert "of 30 contexts matched" in found.sentences[0]


def data(n=900, width=(12, 9), seed=0):
    rng = np.random.default_rng(seed)
    cause = rng.normal(size=(n, 5))
    maps = np.random.default_rng(9)
    a = cause @ maps.normal(size=(5, width[0])) + 0.1 * rng.normal(size=(n, width[0]))
    return a, cause @ maps.normal(size=(5, width[1])) + 0.1 * rng.normal(size=(n, width[1]))


@pytest.mark.parametrize("model", [None, ConditionalMixture(2, random_state=0)], ids=["gaussian", "mixture"])
def test_vectors_of_any_encoders_are_matched_and_the_fit_is_stored(model, tmp_path):
    a, b = data()
    matcher = Matcher(model).fit(a[:700], b[:700])
    found = matcher.match(a[700:], np.r_[b[700:800], data(200, seed=5)[1]])
    assert (found.best[:100] == np.arange(100)).mean() > 0.95
    assert (found.answer[:100] == "match").mean() > 0.85
    assert (found.answer[100:] == "no match").mean() > 0.8 and not found.known
    fitted = matcher.match(a[:700], b[:700])
    assert fitted.known == len(matcher.calibration_) and "No rate holds for these pairs" in fitted.sentences[-1]
    matcher.save(tmp_path / "m.safetensors")
    again = Matcher.load(tmp_path / "m.safetensors").match(a[700:], np.r_[b[700:800], data(200, seed=5)[1]])
    np.testing.assert_array_equal(again.answer, found.answer)
    np.testing.assert_allclose(again.score, found.score)


def test_thousands_of_dimensions_go_through_principal_components():
    a, b = data(800, (2000, 1500))
    matcher = Matcher(n_components=5).fit(torch.from_numpy(a[:600]), torch.from_numpy(b[:600]))
    assert matcher.axes_a_.shape == (2000, 5)
    assert (matcher.match(a[600:], b[600:]).best == np.arange(200)).mean() > 0.9


def test_the_cosine_needs_one_space_and_no_fit():
    a, _ = data()
    b = a + 0.01 * np.random.default_rng(1).normal(size=a.shape)
    found = Matcher(by="cosine").fit(a[:600], b[:600]).match(a[600:], b[600:])
    assert (found.best == np.arange(300)).mean() > 0.95
    refuses("one width", Matcher(by="cosine").fit, *data())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, a, b: Matcher().fit(a[:20], b[:20]), "19 pairs that calibrate"),
        (lambda m, a, b: Matcher().fit(a, b[:-1]), "as many contexts as targets"),
        (lambda m, a, b: Matcher().fit(a * np.nan, b), "contexts"), (lambda m, a, b: Matcher(share=1.5).fit(a, b), "share"),
        (lambda m, a, b: Matcher(by="dot").fit(a, b), "'density' or 'cosine'"),
        (lambda m, a, b: m.match(a[:, :3], b), "contexts of 12 numbers"),
        (lambda m, a, b: m.match(a, a), "items of the gallery of 9 numbers"),
        (lambda m, a, b: m.match(a, b, no_match=0.0001), "9999 pairs"), (lambda m, a, b: m.match(a, b, coverage=1.0), "coverage"),
        (lambda m, a, b: m.match(a, b[:0]), "gallery"),
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_refused(call, message):
    a, b = data()
    matcher = Matcher().fit(a[:300], b[:300])
    refuses(message, call, matcher, a, b)


def test_a_gallery_of_one():
    a, b = data()
    matcher = Matcher().fit(a[:600], b[:600])
    found = matcher.match(a[600:602], b[600:601])
    assert found.best.tolist() == [0, 0]
    assert found.answer[0] == "match"
    assert found.answer[1] == "no match"


def test_columns_that_hardly_vary_in_the_fit_do_not_decide():
    a, b = data()
    a, b = np.c_[a, np.zeros(len(a))], np.c_[b, np.zeros(len(b))]
    a[850, -1] = b[850, -1] = 1.0
    matcher = Matcher().fit(a[:700], b[:700])
    assert abs(matcher.scores(a[700:], b[700:])).max() < 1e6
    side = np.isin(a[:, 0], a[:700, 0])
    whole = np.diag(matcher.scores(a[side], b[side]))
    assert np.isin(matcher.calibration_.round(6), whole.round(6)).all()
