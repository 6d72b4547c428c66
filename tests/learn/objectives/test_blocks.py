"""Densities over three blocks: any given any others, against slow algebra; losses, and two blocks as before."""

import pytest
import torch
from tests.learn.objectives.common import close

from vergence.learn.objectives.gje import GJE
from vergence.learn.objectives.gmje import GMJE
from vergence.learn.objectives.gmje_em import GMJEEM

D, NAMES = 2, ("a", "b", "c")
KINDS = {
    "gje": lambda: GJE(D, NAMES, momentum=0.5, shrinkage=0.0),
    "learned": lambda: GJE(D, NAMES, likelihood="learned", shrinkage=0.0),
    "gmje": lambda: GMJE(D, NAMES, components=3, shrinkage=0.0),
    "gradient": lambda: GMJE(D, NAMES, components=3, fit="gradient", covariance="full", shrinkage=0.0),
    "gmje_em": lambda: GMJEEM(D, NAMES, components=3, bank=200, shrinkage=0.0),
}
every = pytest.mark.parametrize("kind", KINDS)


def embeddings(n=90):
    shared, side = torch.randn(n, D), torch.randint(2, (n, 1)) * 4.0
    return {name: shared + side * i + 0.4 * torch.randn(n, D) for i, name in enumerate(NAMES)}


def fitted(kind):
    objective, z = KINDS[kind](), embeddings()
    for _ in range(3):
        objective.update(*z.values())
    return objective, z


def slow(mean, S, known, rows):
    """Returns mean and covariance of the features that are not known given rows (B, C) of those that are, one at a time."""
    rest = [i for i in range(3 * D) if i not in known]
    A = S[rest][:, known] @ torch.linalg.inv(S[known][:, known])
    return torch.stack([mean[rest] + A @ (row - mean[known]) for row in rows]), S[rest][:, rest] - A @ S[known][:, rest]


def test_any_block_of_a_gaussian_given_others_is_the_slow_conditional():
    objective, z = fitted("gje")
    joint = objective.joint()
    for names, known in ((("a", "c"), [0, 1, 4, 5]), (("b",), [2, 3])):
        p = objective.given({name: z[name] for name in names})
        mean, S = slow(joint.mean, joint.covariance, known, torch.cat([z[name] for name in names], 1))
        close(p.mean, mean, 1e-9)
        close(p.covariance[0], S, 1e-9)
    gaps = z["c"].clone()
    gaps[:5] = torch.nan
    close(objective.given({"a": z["a"], "c": gaps}, "b").mean[:5], objective.given({"a": z["a"]}, "b").mean[:5], 1e-9)


@every
def test_densities_of_blocks_follow_the_chain_rule_and_agree_in_every_order(kind):
    objective, z = fitted(kind)
    a, b, c = z.values()
    whole = objective.joint().log_prob(torch.cat([a, b, c], 1))
    chain = objective.marginal().log_prob(a) + objective.given({"a": a}, "b").log_prob(b)
    close(chain + objective.given({"a": a, "b": b}).log_prob(c), whole, 1e-9)
    close(objective.given({"c": c}, ("b", "a")).log_prob(torch.cat([b, a], 1)) + objective.density("c").log_prob(c), whole, 1e-9)
    close(objective.given({"b": b}, "a").log_prob(a), objective.density(("b", "a")).conditional(b).log_prob(a), 1e-9)


@every
def test_losses_of_three_blocks_have_gradients_and_do_not_depend_on_their_order(kind):
    objective, z = fitted(kind)
    z = {name: x[:8].clone().requires_grad_() for name, x in z.items()}

    def loss(*x):
        terms = objective.terms(dict(zip(NAMES, x, strict=True)))
        return sum(terms[term] for term in terms if term != "fit")  # of detached embeddings

    assert torch.autograd.gradcheck(loss, tuple(z.values()))
    one, other = objective.terms(z), objective.terms({name: z[name] for name in ("c", "a", "b")})
    assert all(torch.allclose(one[term], other[term]) for term in one)


def test_the_loss_is_the_total_correlation_and_em_never_lowers_the_likelihood():
    z = embeddings()
    objective = GJE(D, NAMES, shrinkage=0.0)
    X = torch.cat(list(z.values()), 1)
    m = torch.cov(X.T, correction=0)
    blocks = sum(m[i : i + D, i : i + D].logdet() for i in range(0, 3 * D, D))
    close(objective.terms(z)["mi"], 0.5 * (m.logdet() - blocks), 1e-3)
    em = GMJEEM(D, NAMES, components=2, bank=90, steps=1)
    em.update(*z.values())
    values = []
    for _ in range(8):
        em.bank.fit(em.bank.mixture(), steps=1)
        values.append(em.joint().log_prob(X).mean().item())
    assert values == sorted(values)


@pytest.mark.parametrize("kind", [GMJEEM, GMJE])
def test_what_blocks_cannot_be_is_refused(kind):
    with pytest.raises(ValueError, match=r"full covariances? of several blocks"):
        kind(D, NAMES, covariance="low_rank", **({} if kind is GMJEEM else {"fit": "gradient"}))
    for z, of, word in (({"d": 0}, "a", "block"), ({"a": 0}, "a", "other ones"), ({}, "a", "other ones")):
        with pytest.raises(ValueError, match=word):
            kind(D, NAMES).given({name: torch.zeros(1, D) for name in z}, of)
