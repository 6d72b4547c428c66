"""GMJE with prototypes: losses against loops, who gets which gradient, closed forms, identities, extremes, collapse."""

import dataclasses
import math

import pytest
import torch
from tests.reference import gmje as slow
from torch.distributions import MultivariateNormal

from vergence.densities import moments
from vergence.objectives.gje import GJE
from vergence.objectives.gmje import GMJE
from vergence.objectives.parts.prototypes import OnlineMixture

B, D, K = 30, 2, 3
FITS = {
    "gradient": {"fit": "gradient", "covariance": "full"},
    "low rank": {"fit": "gradient", "covariance": "low_rank", "rank": 2},
    "em": {"fit": "em"},
}
LOSSES = ["mi_kl", "entropy_kl", "joint_kl", "naive"]

every_fit = pytest.mark.parametrize("kind", FITS)
every_loss = pytest.mark.parametrize("loss", LOSSES)


def close(a, b, tol=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


def placed(prototypes, mixture):
    """Gives stepwise EM's sums the values that make a mixture."""
    w, mu, S = (torch.stack([torch.as_tensor(part[i]) for part in mixture]) for i in range(3))
    eye = torch.eye(mu.shape[1])
    prototypes.N.copy_(w)
    prototypes.mu.copy_(mu)
    prototypes.S.copy_(S - prototypes.floor**2 * eye)
    prototypes.begun.fill_(True)


def built(kind="gradient", dim=D, components=K, **settings):
    """Returns an objective without shrinkage whose components are far from their start."""
    torch.manual_seed(1)
    objective = GMJE(dim, components=components, shrinkage=0.0, **FITS[kind], **settings)
    if isinstance(objective.prototypes, OnlineMixture):
        placed(objective.prototypes, slow.planted(components, 2 * dim))
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return objective


def nll(objective, za, zb):
    """Returns the mean joint negative log-likelihood."""
    return -objective.joint().log_prob(torch.cat([za, zb], 1)).mean()


def batch(n=B, dim=D, seed=0):
    return tuple(z.requires_grad_() for z in slow.pair(n, dim, seed))


# The losses


@every_fit
@every_loss
def test_the_losses_are_their_definitions(kind, loss):
    objective, (za, zb) = built(kind, loss=loss, eta=0.3, beta=1.7), slow.pair(B, D)
    found, mixture = objective(za, zb), slow.parts(objective.joint())
    expected = slow.terms(loss, mixture, za, zb, eta=0.3, beta=1.7)
    if loss == "mi_kl" and kind != "em":
        expected["fit"] = slow.nll(mixture, torch.cat([za, zb], 1))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        close(found[name], value)


@every_fit
def test_a_wrong_mixture_is_told_from_the_right_one(kind):
    objective, (za, zb) = built(kind), slow.pair(B, D)
    w, mu, S = slow.parts(objective.joint())[0]
    wrong = [(w, mu, 1.001 * S), *slow.parts(objective.joint())[1:]]
    assert abs(objective(za, zb)["mi"] - slow.terms("mi_kl", wrong, za, zb)["mi"]) > 1e-6


@every_loss
def test_one_component_of_the_batchs_moments_is_gje(loss):
    za, zb = slow.pair(B, D)
    m = moments.batch_moments(torch.cat([za, zb], 1))
    objective = built("em", components=1, loss=loss, eta=0.5)
    placed(objective.prototypes, [(1.0, m.mean, m.S)])
    mine = "mi_kl" if loss == "entropy_kl" else loss
    found, expected = objective(za, zb), GJE(D, shrinkage=0.0, loss=mine, eta=0.5, beta=2.0)(za, zb)
    assert found.keys() == expected.keys()
    for name in expected:
        close(found[name], expected[name], 1e-8)  # the jitter is of the joint covariance here, and of a view's there


@every_fit
@every_loss
def test_gradients_by_differences(kind, loss):
    objective, (za, zb) = built(kind, loss=loss), batch(8)
    names = [name for name, _ in objective.named_parameters()]
    own = tuple(p.detach().clone().requires_grad_() for p in objective.parameters())

    def total(a, b, *values):
        found = torch.func.functional_call(objective, dict(zip(names, values, strict=True)), (a, b))
        return sum(value for name, value in found.items() if name != "fit")

    def fitted(a, b, *values):
        found = torch.func.functional_call(objective, dict(zip(names, values, strict=True)), (a, b))
        return found["fit"]

    assert torch.autograd.gradcheck(lambda a, b: total(a, b, *own), (za, zb))
    if own and loss == "mi_kl":
        assert torch.autograd.gradcheck(lambda *values: fitted(za, zb, *values), own)
    elif own:
        assert torch.autograd.gradcheck(lambda *values: total(za, zb, *values), own)


@pytest.mark.parametrize("kind", ["gradient", "low rank"])
def test_embeddings_and_prototypes_learn_from_terms_of_their_own(kind):
    """The information has no gradient in the prototypes, and their fit none in the embeddings."""
    objective, (za, zb) = built(kind), batch()
    own = list(objective.parameters())
    found = objective(za, zb)
    for name in ("mi", "kl"):
        *learned, ga, gb = torch.autograd.grad(found[name], [*own, za, zb], allow_unused=True, retain_graph=True)
        assert all(g is None or not g.any() for g in learned) and ga.abs().min() > 0 and gb.abs().min() > 0
    *learned, ga, gb = torch.autograd.grad(found["fit"], [*own, za, zb], allow_unused=True)
    assert ga is None and gb is None and all(g.abs().max() > 1e-3 for g in learned)


@pytest.mark.parametrize("loss", ["entropy_kl", "joint_kl", "naive"])
def test_other_losses_train_both_at_once(loss):
    objective, (za, zb) = built(loss=loss), batch()
    for g in torch.autograd.grad(sum(objective(za, zb).values()), [*objective.parameters(), za, zb]):
        assert g.abs().max() > 1e-4


def test_stepwise_em_has_nothing_to_learn_by_gradient():
    objective, (za, zb) = built("em"), slow.pair(B, D)
    assert not list(objective.parameters()) and "fit" not in objective(za, zb)


# Closed forms (T7)


def closed(objective, Z):
    """Returns minus the responsibilities' share, and pulls gamma Sigma^{-1} (Z - mu), (K, N, D), from the slow reference."""
    mixture = slow.parts(objective.joint())
    gamma = torch.tensor([slow.responsibilities(mixture, z) for z in Z]).T
    pull = torch.stack([torch.linalg.solve(S, (Z - m).T).T for _, m, S in mixture])
    return mixture, gamma, pull


def test_gradients_in_closed_form():
    objective, (za, zb) = built(loss="naive"), batch()
    p, Z = objective.prototypes, torch.cat([za, zb], 1).detach()
    mixture, gamma, pull = closed(objective, Z)
    found = torch.autograd.grad(objective(za, zb)["nll"], [p.logits, p.means, p.shared, p.spread, za, zb])
    close(found[0], torch.tensor([w for w, _, _ in mixture]) - gamma.mean(1), 1e-10)
    close(found[1], -(gamma[..., None] * pull).sum(1) / B, 1e-10)
    inverse = torch.stack([torch.linalg.inv(S) for _, _, S in mixture])
    outer = torch.einsum("kn,kni,knj->kij", gamma, pull, pull)
    dS = (gamma.sum(1)[:, None, None] * inverse - outer) / (2 * B)
    softplus = torch.nn.functional.softplus(p.spread)
    dL = 2 * dS @ (p.shared.tril(-1) + torch.diag_embed(softplus))  # S = L L^T + floor^2 I
    close(found[2], dL.tril(-1), 1e-10)
    close(found[3], dL.diagonal(dim1=1, dim2=2) * torch.sigmoid(p.spread), 1e-10)
    close(torch.cat(found[4:], 1), (gamma[..., None] * pull).sum(0) / B, 1e-10)


def test_the_informations_gradient_in_closed_form():
    """d mi / d Z is the joint density's pull less those of the marginals: the sign of contrastive learning."""
    objective, (za, zb) = built(), batch()
    found = torch.autograd.grad(objective(za, zb)["mi"], [za, zb])
    mixture, gamma, pull = closed(objective, torch.cat([za, zb], 1).detach())
    joint = (gamma[..., None] * pull).sum(0) / B
    for g, z, where in ((found[0], za, slice(0, D)), (found[1], zb, slice(D, None))):
        part, alone = slow.block(mixture, where), torch.zeros(B, D)
        for n, x in enumerate(z.detach()):
            shares = slow.responsibilities(part, x)
            alone[n] = sum(r * torch.linalg.solve(S, x - m) for r, (_, m, S) in zip(shares, part, strict=True))
        close(g, joint[:, where] - alone / B, 1e-10)


# Identities


@every_fit
def test_joint_is_marginal_and_conditional(kind):
    """T4, both for the objective and item by item for the conditional mixture."""
    objective, (za, zb) = built(kind), slow.pair(B, D)
    joint = objective.joint().log_prob(torch.cat([za, zb], 1))
    close(joint, objective.log_prob(zb, za) - objective.score(za), 1e-10)
    found, mixture = objective.conditional(za[:3]), slow.parts(objective.joint())
    for n, z in enumerate(za[:3]):
        gamma = slow.responsibilities(slow.block(mixture, slice(0, D)), z)
        for k, (_, m, S) in enumerate(mixture):
            A = torch.linalg.solve(S[:D, :D], S[:D, D:]).T
            close(found.weights[n, k], gamma[k])
            close(found.component_distribution.mean[n, k], m[D:] + A @ (z - m[:D]))
            close(found.component_distribution.covariance[n, k], S[D:, D:] - A @ S[:D, D:])


def test_an_affine_map_shifts_the_log_density():
    """T21: by log |det B|, and of the conditional by that of the target's block."""
    objective, moved, (za, zb) = built("em"), built("em"), slow.pair(B, D)
    torch.manual_seed(5)
    Ba, Bb, shift = torch.randn(D, D), torch.randn(D, D), torch.randn(2 * D)
    whole = torch.block_diag(Ba, Bb)
    placed(moved.prototypes, [(w, whole @ m + shift, whole @ S @ whole.T) for w, m, S in slow.parts(objective.joint())])
    a, b = za @ Ba.T + shift[:D], zb @ Bb.T + shift[D:]
    before, after = (-nll(o, *z) for o, z in ((objective, (za, zb)), (moved, (a, b))))
    close(before - after, torch.linalg.slogdet(whole)[1])
    close(objective.log_prob(zb, za) - moved.log_prob(b, a), torch.linalg.slogdet(Bb)[1].expand(B))
    close(objective(za, zb)["mi"], moved(a, b)["mi"])  # information is of no units


@pytest.mark.parametrize("kind", ["low rank", "em"])
def test_the_roles_of_the_views_may_be_swapped(kind):
    """T22."""
    objective, other, (za, zb) = built(kind), built(kind), slow.pair(B, D)
    turn = torch.arange(2 * D).roll(D)
    with torch.no_grad():
        if kind == "em":
            p = other.prototypes
            p.mu.copy_(p.mu[:, turn])
            p.S.copy_(p.S[:, turn][:, :, turn])
        else:
            other.prototypes.means.copy_(other.prototypes.means[:, turn])
            other.prototypes.shared[:, D:].neg_()  # the views' difference changes its sign
    close(nll(objective, za, zb), nll(other, zb, za), 1e-12)
    close(sum(objective(za, zb).values()), sum(other(zb, za).values()), 1e-12)


def test_the_order_of_the_components_does_not_matter():
    objective, other, (za, zb) = built("em"), built("em"), slow.pair(B, D)
    placed(other.prototypes, slow.parts(objective.joint())[::-1])
    close(objective.log_prob(zb, za), other.log_prob(zb, za), 1e-12)
    close(objective(za, zb)["mi"], other(za, zb)["mi"], 1e-12)


def test_only_the_likelihood_feels_the_scale_without_the_kl():
    """Scaled with its mixture, nll falls by 2 D log a; the two informations do not move."""
    za, zb, a = *slow.pair(B, D), 0.1
    for loss, term, shift in (("naive", "nll", 2 * D * math.log(a)), ("entropy_kl", "mi", 0.0), ("mi_kl", "mi", 0.0)):
        one, small = built("em", loss=loss, floor=1e-3), built("em", loss=loss, floor=1e-3)
        placed(small.prototypes, [(w, a * m, a * a * S) for w, m, S in slow.parts(one.joint())])
        close(small(a * za, a * zb)[term] - one(za, zb)[term], shift, 1e-8)


# State


def stepped(objective, seeds):
    """Trains the prototypes on batches, and returns everything that they say after."""
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1) if list(objective.parameters()) else None
    for seed in seeds:
        za, zb = slow.pair(B, D, seed)
        if optimizer is not None:
            optimizer.zero_grad()
            sum(objective(za, zb).values()).backward()
            optimizer.step()
        objective.update(za, zb)
    za, zb = slow.pair(B, D, 99)
    return [
        *(v.detach() for v in objective(za, zb).values()),
        objective.log_prob(zb, za).detach(),
        *objective.state_dict().values(),
    ]


@every_fit
def test_a_run_that_is_cut_goes_on_with_the_same_bits(kind):
    whole = stepped(built(kind), range(6))
    first, second = built(kind), GMJE(D, components=K, shrinkage=0.0, **FITS[kind])
    stepped(first, range(3))
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(whole, stepped(second, range(3, 6)), strict=True))


def test_updates_are_of_em_alone():
    za, zb = slow.pair(B, D)
    for kind in FITS:
        objective = built(kind)
        before = [v.clone() for v in objective.state_dict().values()]
        objective.update(za, zb)
        same = all(torch.equal(a, b) for a, b in zip(before, objective.state_dict().values(), strict=True))
        assert same == (kind != "em")


# Extremes (T23)


def extreme(name, dtype):
    """Returns two views of 6 features."""
    za, zb = slow.pair(40, 6)
    found = {
        "huge": (1e4 * za, 1e4 * zb),
        "far": (za + 1e4, zb + 1e4),
        "twice": (za[:20].repeat(2, 1), zb[:20].repeat(2, 1)),
        "few": (za[:4], zb[:4]),
        "two": (za[:2], zb[:2]),
    }[name]
    return tuple(z.to(dtype).requires_grad_() for z in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["huge", "far", "twice", "few", "two"])
@every_fit
def test_extreme_embeddings_have_finite_losses_and_gradients(request, kind, name, dtype):
    torch.manual_seed(0)
    objective, (za, zb) = GMJE(6, components=K, **FITS[kind]).to(dtype), extreme(name, dtype)
    for _ in range(3):
        total = sum(objective(za, zb).values())
        found = [total, *torch.autograd.grad(total, [za, zb, *objective.parameters()])]
        assert all(torch.isfinite(x).all() and x.dtype == dtype for x in found)
        objective.update(za.detach(), zb.detach())
        assert all(math.isfinite(x) for x in objective.diagnostics(za.detach(), zb.detach()).values())


@every_fit
def test_one_pair_has_no_covariance(kind):
    """Terms with a determinant refuse it, without shrinkage and with it; a likelihood alone does not need one."""
    za, zb = slow.pair(1, D)
    for shrinkage in (0.0, None):
        objective = built(kind, loss="joint_kl")
        objective.loss = dataclasses.replace(objective.loss, shrinkage=shrinkage)
        with pytest.raises(ValueError, match="expected a batch of at least 2 embeddings that differ, found 1: raise the batch"):
            objective(za, zb)
    assert torch.isfinite(built(kind, loss="naive")(za, zb)["nll"])


# Collapse (T20)


@pytest.mark.parametrize("fit", ["gradient", "em"])
def test_likelihood_alone_collapses(fit):
    make = lambda: GMJE(3, components=4, fit=fit, loss="naive")  # noqa: E731
    begun = slow.trained(make(), 0)[0]
    assert slow.trained(make(), 300)[0] < begun / 10


@pytest.mark.parametrize("fit", ["gradient", "em"])
def test_information_does_not(fit):
    narrowest, variance = slow.trained(GMJE(3, components=4, fit=fit), 300)
    assert narrowest > 0.3 and 0.5 < variance < 5


# Diagnostics and settings


def test_diagnostics_of_a_mixture_that_fits():
    torch.manual_seed(2)
    objective = built("em")
    za, zb = objective.sample(4000)
    found = objective.diagnostics(za, zb)
    w = objective.joint().weights
    assert found["mahalanobis"] == pytest.approx(1, abs=0.03)
    assert found["components"] == pytest.approx(math.prod(x**-x for x in w.tolist()))
    assert 1 <= found["components"] <= K
    assert found["component_share"] == pytest.approx(found["components"] / K)
    assert found.keys() >= {"variance", "eigenvalue_min", "condition", "information"}
    assert objective.diagnostics(3 * za, 3 * zb)["mahalanobis"] > 2


def test_mahalanobis_is_that_of_the_components_in_loops():
    objective, (za, zb) = built(), slow.pair(B, D)
    mixture, total = slow.parts(objective.joint()), 0.0
    for z in torch.cat([za, zb], 1):
        shares = slow.responsibilities(mixture, z)
        total += sum(r * (z - m) @ torch.linalg.solve(S, z - m) for r, (_, m, S) in zip(shares, mixture, strict=True))
    with torch.no_grad():
        close(objective.diagnostics(za, zb)["mahalanobis"], (total / B / (2 * D)).item())


def test_one_component_is_a_gaussian():
    objective, (za, zb) = built("em", components=1), slow.pair(B, D)
    ((_, mean, S),) = slow.parts(objective.joint())
    close(objective.joint().log_prob(torch.cat([za, zb], 1)), MultivariateNormal(mean, S).log_prob(torch.cat([za, zb], 1)))
    assert objective.diagnostics(za, zb)["components"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "mi"}, "expected loss among mi_kl, entropy_kl, joint_kl, naive, found 'mi'"),
        ({"fit": "sgd"}, "expected fit among auto, em, gradient, found 'sgd'"),
        ({"eta": 0.0}, "expected eta > 0, found 0.0"),
        ({"beta": -1.0}, "expected beta > 0, found -1.0"),
        ({"floor": 0.0}, "expected floor > 0, found 0.0"),
        ({"floor": 1.0, "fit": "gradient"}, r"expected floor in \(0, 1\), found 1.0"),
        ({"components": 0}, "components to be a whole number of at least 1"),
        ({"covariance": "dense"}, "expected covariance among auto, full, low_rank, found 'dense'"),
        ({"rank": 0}, "expected rank to be a whole number of at least 1, found 0"),
        ({"momentum": 1.0}, r"expected momentum in \[0, 1\), found 1.0"),
        ({"momentum": -0.5}, "found -0.5"),
        ({"shrinkage": 2.0}, r"expected shrinkage in \[0, 1\], found 2.0"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        GMJE(D, **settings)


def test_bad_embeddings():
    with pytest.raises(ValueError, match=r"expected two \(B, 2\) embeddings, found \(4, 2\) and \(4, 3\)"):
        GMJE(D)(torch.zeros(4, D), torch.zeros(4, D + 1))
