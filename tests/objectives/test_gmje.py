"""GMJE with prototypes: who gets which gradient, and gradients in closed form. What all variants keep: test_gmje_variants."""

import pytest
import torch
from tests.objectives.test_gmje_variants import B, D, batch, built, close
from tests.reference import gmje as slow


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
