"""What every GMJE variant with a loss of pairs keeps: losses in loops, gradients, identities, state, collapse."""

import pytest
import torch
from tests.learn.objectives.common import as_em, close
from tests.reference import gmje as slow

from vergence.densities import moments
from vergence.learn.objectives.gje import GJE
from vergence.learn.objectives.gmje import GMJE
from vergence.learn.objectives.gmje_em import GMJEEM
from vergence.learn.objectives.gmje_gng import GMJEGNG

B, D, K = 30, 2, 3
BANK = {"bank": 60, "floor": 0.1}
KINDS = {
    "gradient": (GMJE, {"fit": "gradient", "covariance": "full"}),
    "low rank": (GMJE, {"fit": "gradient", "covariance": "low_rank", "rank": 2}), "online em": (GMJE, {"fit": "em"}),
    "em": (GMJEEM, BANK), "gng": (GMJEGNG, {**BANK, "items_per_node": 10}),
}  # fmt: skip
LOSSES = ("mi_kl", "entropy_kl", "joint_kl", "naive")
PLACEABLE = ("online em", "em")  # kinds whose mixture can be set

every_kind = pytest.mark.parametrize("kind", KINDS)
every_loss = pytest.mark.parametrize("loss", LOSSES)


def place(objective, mixture):
    """Gives an objective the mixture, a list of (weight, mean, covariance)."""
    w, mu, S = (torch.stack([torch.as_tensor(part[i]) for part in mixture]) for i in range(3))
    if isinstance(objective, GMJEEM):
        objective.bank.keep(as_em(mixture))
        return
    prototypes = objective.prototypes
    prototypes.N.copy_(w)
    prototypes.mu.copy_(mu)
    prototypes.S.copy_(S - prototypes.floor**2 * torch.eye(mu.shape[1]))
    prototypes.begun.fill_(True)


def built(kind="gradient", dim=D, components=K, mixture=None, **settings):
    """Returns an objective without shrinkage whose mixture is away from its initial value."""
    torch.manual_seed(1)
    cls, options = KINDS[kind]
    size = {"max_nodes": components + 1} if cls is GMJEGNG else {"components": components}
    objective = cls(dim, **{"shrinkage": 0.0, **options, **size, **settings})
    if kind in PLACEABLE:
        place(objective, mixture or slow.planted(components, 2 * dim))
    elif kind == "gng":
        objective.update(*slow.pair(60, dim))
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return objective


def batch(n=B, dim=D, seed=0):
    return tuple(z.requires_grad_() for z in slow.pair(n, dim, seed))


def joint_log_prob(objective, za, zb):
    return objective.joint().log_prob(torch.cat([za, zb], 1))


@every_kind
@every_loss
def test_the_losses_are_their_definitions(kind, loss):
    objective, (za, zb) = built(kind, loss=loss, eta=0.3, beta=1.7), slow.pair(B, D)
    terms, mixture = objective(za, zb), slow.parts(objective.joint())
    expected = slow.terms(loss, mixture, za, zb, eta=0.3, beta=1.7)
    if loss == "mi_kl" and list(objective.parameters()):
        expected["fit"] = slow.nll(mixture, torch.cat([za, zb], 1))
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        close(terms[name], value)


@every_kind
def test_a_slightly_wrong_mixture_is_noticed(kind):
    objective, (za, zb) = built(kind), slow.pair(B, D)
    (w, mu, S), *rest = slow.parts(objective.joint())
    assert abs(objective(za, zb)["mi"] - slow.terms("mi_kl", [(w, mu, 1.001 * S), *rest], za, zb)["mi"]) > 1e-6


@every_loss
def test_one_component_of_the_batchs_moments_is_gje(loss):
    za, zb = slow.pair(B, D)
    m = moments.batch_moments(torch.cat([za, zb], 1))
    expected = GJE(D, shrinkage=0.0, loss="mi_kl" if loss == "entropy_kl" else loss, eta=0.5, beta=2.0)(za, zb)
    for kind in PLACEABLE:
        terms = built(kind, components=1, mixture=[(1.0, m.mean, m.S)], loss=loss, eta=0.5, beta=2.0)(za, zb)
        assert terms.keys() == expected.keys()
        for name in expected:
            close(terms[name], expected[name], 1e-8)  # the jitter is of the joint covariance here, and of a view's there


@every_kind
@every_loss
def test_gradients_by_differences(kind, loss):
    objective, (za, zb) = built(kind, loss=loss), batch(8)
    names = [name for name, _ in objective.named_parameters()]
    parameters = tuple(p.detach().clone().requires_grad_() for p in objective.parameters())

    def total(a, b, *values, fit=False):
        terms = torch.func.functional_call(objective, dict(zip(names, values, strict=True)), (a, b))
        return sum(value for name, value in terms.items() if (name == "fit") == fit)

    assert torch.autograd.gradcheck(lambda a, b: total(a, b, *parameters), (za, zb))
    if parameters:
        assert torch.autograd.gradcheck(lambda *values: total(za, zb, *values, fit=loss == "mi_kl"), parameters)


@pytest.mark.parametrize("kind", ["gradient", "low rank"])
def test_embeddings_and_prototypes_learn_from_terms_of_their_own(kind):
    """The information has no gradient in the prototypes, and their fit none in the embeddings."""
    objective, (za, zb) = built(kind), batch()
    positive = list(objective.parameters())
    result = objective(za, zb)
    for name in ("mi", "kl"):
        *learned, ga, gb = torch.autograd.grad(result[name], [*positive, za, zb], allow_unused=True, retain_graph=True)
        assert all(g is None or not g.any() for g in learned) and ga.abs().min() > 0 and gb.abs().min() > 0
    *learned, ga, gb = torch.autograd.grad(result["fit"], [*positive, za, zb], allow_unused=True)
    assert ga is None and gb is None and all(g.abs().max() > 1e-3 for g in learned)


@pytest.mark.parametrize("loss", ["entropy_kl", "joint_kl", "naive"])
def test_other_losses_train_both_at_once(loss):
    objective, (za, zb) = built(loss=loss), batch()
    for g in torch.autograd.grad(sum(objective(za, zb).values()), [*objective.parameters(), za, zb]):
        assert g.abs().max() > 1e-4


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
    result = torch.autograd.grad(objective(za, zb)["nll"], [p.logits, p.means, p.shared, p.spread, za, zb])
    close(result[0], torch.tensor([w for w, _, _ in mixture]) - gamma.mean(1), 1e-10)
    close(result[1], -(gamma[..., None] * pull).sum(1) / B, 1e-10)
    inverse = torch.stack([torch.linalg.inv(S) for _, _, S in mixture])
    outer = torch.einsum("kn,kni,knj->kij", gamma, pull, pull)
    dS = (gamma.sum(1)[:, None, None] * inverse - outer) / (2 * B)
    softplus = torch.nn.functional.softplus(p.spread)
    dL = 2 * dS @ (p.shared.tril(-1) + torch.diag_embed(softplus))  # S = L L^T + floor^2 I
    close(result[2], dL.tril(-1), 1e-10)
    close(result[3], dL.diagonal(dim1=1, dim2=2) * torch.sigmoid(p.spread), 1e-10)
    close(torch.cat(result[4:], 1), (gamma[..., None] * pull).sum(0) / B, 1e-10)


def test_the_informations_gradient_in_closed_form():
    """d mi / d Z is the joint density's pull less those of the marginals: the sign of contrastive learning."""
    objective, (za, zb) = built(), batch()
    result = torch.autograd.grad(objective(za, zb)["mi"], [za, zb])
    mixture, gamma, pull = closed(objective, torch.cat([za, zb], 1).detach())
    joint = (gamma[..., None] * pull).sum(0) / B
    for g, z, where in ((result[0], za, slice(0, D)), (result[1], zb, slice(D, None))):
        part, alone = slow.block(mixture, where), torch.zeros(B, D)
        for n, x in enumerate(z.detach()):
            shares = slow.responsibilities(part, x)
            alone[n] = sum(r * torch.linalg.solve(S, x - m) for r, (_, m, S) in zip(shares, part, strict=True))
        close(g, joint[:, where] - alone / B, 1e-10)


@every_kind
def test_joint_is_marginal_and_conditional(kind):
    """T4, for the objective, and item by item for the conditional mixture."""
    objective, (za, zb) = built(kind), slow.pair(B, D)
    close(joint_log_prob(objective, za, zb), objective.log_prob(zb, za) - objective.score(za), 1e-10)
    conditional, mixture = objective.conditional(za[:3]), slow.parts(objective.joint())
    for n, z in enumerate(za[:3]):
        gamma = slow.responsibilities(slow.block(mixture, slice(0, D)), z)
        for k, (_, m, S) in enumerate(mixture):
            A = torch.linalg.solve(S[:D, :D], S[:D, D:]).T
            close(conditional.weights[n, k], gamma[k])
            close(conditional.component_distribution.mean[n, k], m[D:] + A @ (z - m[:D]))
            close(conditional.component_distribution.covariance[n, k], S[D:, D:] - A @ S[:D, D:])


@pytest.mark.parametrize("kind", PLACEABLE)
def test_views_may_be_swapped_and_components_reordered(kind):
    """T22."""
    plain, (za, zb), turn = slow.planted(K, 2 * D), slow.pair(B, D), torch.arange(2 * D).roll(D)
    total = sum(built(kind)(za, zb).values())
    swapped = built(kind, mixture=[(w, m[turn], S[turn][:, turn]) for w, m, S in plain])
    close(total, sum(swapped(zb, za).values()), 1e-11)
    close(total, sum(built(kind, mixture=plain[::-1])(za, zb).values()), 1e-12)


def test_only_em_is_fitted_by_updates():
    za, zb = slow.pair(B, D)
    for kind in KINDS:
        objective = built(kind)
        before = [v.clone() for v in objective.state_dict().values()]
        objective.update(za, zb)
        same = all(torch.equal(a, b) for a, b in zip(before, objective.state_dict().values(), strict=True))
        assert same == bool(list(objective.parameters())), kind


@pytest.mark.parametrize("kind", PLACEABLE)
def test_diagnostics_of_a_mixture_that_fits(kind):
    torch.manual_seed(2)
    objective = built(kind)
    za, zb = objective.sample(4000)
    numbers, w = objective.diagnostics(za, zb), objective.joint().weights
    assert numbers["mahalanobis"] == pytest.approx(1, abs=0.03)
    assert numbers["components"] == pytest.approx(w.pow(-w).prod().item())
    assert numbers["component_share"] == pytest.approx(numbers["components"] / K)
    assert numbers.keys() >= {"variance", "eigenvalue_min", "condition", "information"}
    assert objective.diagnostics(3 * za, 3 * zb)["mahalanobis"] > 2
