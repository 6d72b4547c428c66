"""GMJE by EM on a bank: the fit against loops and its laws, the trap that the bank avoids, losses, state, runs, collapse."""

import itertools
import math

import pytest
import torch
from tests.dying import resumed_with_the_same_bits
from tests.reference import gmje as slow

from vergence.densities import em
from vergence.densities.gaussian import GaussianMixture
from vergence.objectives.gje import GJE
from vergence.objectives.gmje_em import GMJEEM
from vergence.objectives.parts.information import PairLoss
from vergence.runs import run

B, D, K = 60, 2, 3


def close(a, b, tol=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


def as_em(mixture):
    w, mu, S = (torch.stack([torch.as_tensor(part[i]) for part in mixture]) for i in range(3))
    return em.Mixture(w[None], mu[None], S[None])


def built(mixture=None, **settings):
    """Returns an objective without shrinkage that holds a mixture."""
    objective = GMJEEM(D, **({"components": K, "shrinkage": 0.0, "bank": B, "floor": 0.1} | settings))
    objective.bank.keep(as_em(slow.planted(K, 2 * D) if mixture is None else mixture))
    return objective


def joined(za, zb):
    return torch.cat([za, zb], 1)


def nll(objective, za, zb):
    """Returns the mean joint negative log-likelihood."""
    return -objective.joint().log_prob(joined(za, zb)).mean()


def likelihood(objective):
    return objective.joint().log_prob(objective.bank.items()).mean().item()


# The losses


@pytest.mark.parametrize("loss", ["mi_kl", "entropy_kl", "joint_kl", "naive"])
def test_the_losses_are_their_definitions(loss):
    objective, (za, zb) = built(loss=loss, eta=0.3, beta=1.7), slow.pair(30, D)
    found, expected = objective(za, zb), slow.terms(loss, slow.parts(objective.joint()), za, zb, eta=0.3, beta=1.7)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        close(found[name], value)


@pytest.mark.parametrize("loss", ["mi_kl", "entropy_kl", "joint_kl", "naive"])
def test_gradients_by_differences(loss):
    objective = built(loss=loss)
    za, zb = (z.requires_grad_() for z in slow.pair(8, D))
    assert not list(objective.parameters())
    assert torch.autograd.gradcheck(lambda a, b: sum(objective(a, b).values()), (za, zb))


@pytest.mark.parametrize("loss", ["mi_kl", "entropy_kl", "joint_kl", "naive"])
def test_one_component_of_the_batchs_moments_is_gje(loss):
    za, zb = slow.pair(30, D)
    p = slow.gaussian(joined(za, zb))
    objective = built([(1.0, p.loc, p.covariance_matrix)], components=1, loss=loss, eta=0.5, beta=2.0)
    mine = "mi_kl" if loss == "entropy_kl" else loss
    found, expected = objective(za, zb), GJE(D, shrinkage=0.0, loss=mine, eta=0.5, beta=2.0)(za, zb)
    assert found.keys() == expected.keys()
    for name in expected:
        close(found[name], expected[name], 1e-8)  # the jitter is of the joint covariance here, and of a view's there


def test_joint_is_marginal_and_conditional():
    objective, (za, zb) = built(), slow.pair(B, D)
    objective.update(za, zb)
    close(objective.joint().log_prob(joined(za, zb)), objective.log_prob(zb, za) - objective.score(za), 1e-10)


def test_views_may_be_swapped_and_components_reordered():
    za, zb = slow.pair(B, D)
    turn = torch.arange(2 * D).roll(D)
    plain = slow.planted(K, 2 * D)
    swapped = [(w, m[turn], S[turn][:, turn]) for w, m, S in plain]
    found = sum(built()(za, zb).values())
    close(found, sum(built(swapped)(zb, za).values()), 1e-11)
    close(found, sum(built(plain[::-1])(za, zb).values()), 1e-12)


def test_an_affine_map_shifts_the_log_density():
    za, zb = slow.pair(B, D)
    torch.manual_seed(3)
    Ba, Bb, shift = torch.randn(D, D), torch.randn(D, D), torch.randn(2 * D)
    whole = torch.block_diag(Ba, Bb)
    plain = built()
    moved = built([(w, whole @ m + shift, whole @ S @ whole.T) for w, m, S in slow.planted(K, 2 * D)])
    a, b = za @ Ba.T + shift[:D], zb @ Bb.T + shift[D:]
    close(nll(plain, za, zb) + torch.linalg.slogdet(whole)[1], nll(moved, a, b))
    close(plain.log_prob(zb, za) - torch.linalg.slogdet(Bb)[1], moved.log_prob(b, a))
    close(plain(za, zb)["mi"], moved(a, b)["mi"])


# The fit


def test_one_component_is_mean_and_covariance_of_the_bank():
    """T6, with the floor under the variances; the conditional is then the ridge regression of the pairs."""
    objective, (za, zb) = GMJEEM(D, components=1, bank=B, floor=0.2), slow.pair(B, D)
    objective.update(za, zb)
    S = torch.cov(joined(za, zb).T, correction=0) + 0.2**2 * torch.eye(2 * D)
    close(objective.joint().mean, joined(za, zb).mean(0))
    close(objective.joint().covariance, S)
    x, y = za - za.mean(0), zb - zb.mean(0)
    A = torch.linalg.solve(x.T @ x / B + 0.2**2 * torch.eye(D), x.T @ y / B).T
    given = objective.conditional(za[:4])
    close(given.mean, zb.mean(0) + x[:4] @ A.T)
    close(given.covariance[0], S[D:, D:] - A @ S[:D, D:])


def test_fits_never_lower_the_banks_likelihood():
    """T12; the bank's oldest pairs leave, so it is the likelihood on the bank as it stands that may not fall."""
    za, zb, _ = slow.clusters(240, D + 1)
    objective = GMJEEM(D + 1, components=4, bank=240, floor=1e-3, steps=1)
    objective.update(za, zb)
    values = [likelihood(objective)]
    for _ in range(25):
        objective.bank.fit(objective.bank.mixture(), steps=1)
        values.append(likelihood(objective))
    gains = [b - a for a, b in itertools.pairwise(values)]
    assert min(gains) > -1e-6 and values[-1] > values[0] + 0.01


def test_after_an_m_step_the_distances_are_the_features():
    """T12: sum_n r_nk d^T S_k^{-1} d = 2 D N_k for every component, whatever the embeddings are: the trap's mixture form."""
    objective, (za, zb) = built(floor=1e-6), slow.pair(B, D)
    objective.bank.push(joined(za, zb))
    before = objective.bank.mixture()
    r = objective.joint().responsibilities(joined(za, zb))
    objective.bank.fit(before, steps=1)
    p = objective.joint().component_distribution
    far = (r * p.S.quadratic(joined(za, zb)[:, None] - p.loc)).sum(0)
    close(far, 2 * D * r.sum(0), 1e-7)


def refitted(r, Z):
    """Returns the M step as a function of the items that it is scored on."""
    N = r.sum(0)
    mu = r.T @ Z / N[:, None]
    d = Z[:, None] - mu
    S = torch.einsum("nk,nki,nkj->kij", r, d, d) / N[:, None, None]
    return GaussianMixture(N.log(), mu, S)


def test_the_trap_that_the_bank_avoids():
    """Refitted on the batch that it scores, a mixture's distances have no gradient; those of the bank's mixture have."""
    objective, (za, zb) = built(), slow.pair(B, D)
    Z = joined(za, zb).requires_grad_()

    def far(p, r):
        return (r * p.component_distribution.S.quadratic(Z[:, None] - p.component_distribution.loc)).sum()

    r = objective.joint().responsibilities(Z)
    (trapped,) = torch.autograd.grad(far(refitted(r, Z), r), Z, retain_graph=True)
    (free,) = torch.autograd.grad(far(objective.joint(), r), Z)
    assert trapped.abs().max() < 1e-9 and free.abs().max() > 1


def test_the_bank_is_a_constant_of_the_loss():
    """The batch's own gradient is that under the mixture as it is, also where the bank holds this very batch."""
    objective = built(loss="naive")
    za, zb = (z.requires_grad_() for z in slow.pair(B, D))
    objective.update(za.detach(), zb.detach())
    mixture = slow.parts(objective.joint())
    found = torch.cat(torch.autograd.grad(objective(za, zb)["nll"], (za, zb)), 1)
    for n, z in enumerate(joined(za, zb).detach()):
        shares = slow.responsibilities(mixture, z)
        pull = sum(g * torch.linalg.solve(S, z - m) for g, (_, m, S) in zip(shares, mixture, strict=True))
        close(found[n], pull / B, 1e-10)
    assert not objective.bank.items().requires_grad


def test_a_fit_goes_on_from_the_kept_mixture_or_starts_afresh():
    """Whichever is likelier in the end: one component on two clusters is worse than what k-means finds, the truth is not."""
    za, zb, label = slow.clusters(120, 3)
    Z, eye = joined(za, zb), torch.eye(6)
    near = [Z[label == c].mean(0) for c in range(3)]
    worse = [(0.5, Z[label < 2].mean(0), 4 * eye), (0.5, near[2], eye), (1e-6, near[2] + 0.1, eye)]
    best = [(1 / 3, m, 0.2 * eye) for m in near]
    for kept, least in ((worse, 0.1), (best, -1e-9)):
        objective = GMJEEM(3, components=3, bank=60, floor=0.3, steps=2)
        objective.update(za[:60], zb[:60])
        objective.bank.keep(as_em(kept))
        objective.update(za[60:], zb[60:])
        gone_on = slow.em_step(slow.em_step(kept, Z[60:], 0.3**2), Z[60:], 0.3**2)
        assert likelihood(objective) >= -slow.nll(gone_on, Z[60:]) + least


def test_a_mixture_that_a_partition_cannot_find_is_kept():
    """A narrow component within a wide one: k-means cuts them in halves, EM from the kept mixture leaves them."""
    g = torch.Generator().manual_seed(0)
    za, zb = torch.randn(2, 200, D, generator=g) * torch.where(torch.arange(200) % 2 > 0, 0.1, 3.0)[:, None]
    Z, eye = joined(za, zb), torch.eye(2 * D)
    kept = [(0.5, torch.zeros(2 * D), 0.02 * eye), (0.5, torch.zeros(2 * D), 9 * eye)]
    objective = GMJEEM(D, components=2, bank=100, floor=0.1, steps=1)
    objective.update(za[:100], zb[:100])
    objective.bank.keep(as_em(kept))
    objective.update(za[100:], zb[100:])
    close(likelihood(objective), -slow.nll(slow.em_step(kept, Z[100:], 0.1**2), Z[100:]))


def test_planted_clusters_are_found():
    za, zb, label = slow.clusters(300, 3)
    objective = GMJEEM(3, components=3, bank=300)
    objective.update(za, zb)
    found = objective.joint().responsibilities(joined(za, zb)).argmax(1)
    assert len({(a, b) for a, b in zip(found.tolist(), label.tolist(), strict=True)}) == 3
    close(objective.joint().weights, torch.full((3,), 1 / 3), 1e-6)
    assert objective.diagnostics(za, zb)["components"] == pytest.approx(3, abs=1e-6)


def test_a_small_first_batch_gives_few_components():
    for n, expected in ((1, 1), (2, 1), (5, 2), (40, K)):
        objective, (za, zb) = GMJEEM(D, components=K, bank=50), slow.pair(n, D)
        objective.update(za, zb)
        assert int((objective.joint().weights > 0).sum()) == expected
        assert torch.isfinite(objective.joint().log_prob(joined(za, zb))).all()


def test_components_come_once_there_are_pairs_for_them():
    objective = GMJEEM(3, components=3, bank=300)
    for part in zip(*(z.split([2, 298]) for z in slow.clusters(300, 3)[:2]), strict=True):
        objective.update(*part)
    assert int((objective.joint().weights > 0).sum()) == 3


@pytest.mark.parametrize("covariance", ["full", "low_rank"])
def test_fits_follow_the_bank(covariance):
    """Between two fits the density stands still; from one to the next it follows pairs that have moved."""
    objective = GMJEEM(D, components=2, bank=100, covariance=covariance, rank=1)
    za, zb = slow.pair(50, D)
    objective.update(za, zb)
    first = objective.joint().mean
    objective.update(za + 5, zb + 5)  # 100 pairs: doubled
    second = objective.joint().mean
    objective.update(za + 9, zb + 9)
    close(objective.joint().mean, second, 0)
    objective.update(za + 9, zb + 9)  # 200 pairs
    third = objective.joint().mean
    assert first.mean() + 1 < second.mean() < third.mean() - 1
    close(third, joined(za, zb).mean(0) + 9, 0.05)


def test_auto_takes_low_rank_where_there_are_many_features():
    assert GMJEEM(32).bank.rank is None and GMJEEM(33).bank.rank == 8 and GMJEEM(33, covariance="full").bank.rank is None


# State


def stepped(objective, seeds):
    for seed in seeds:
        objective.update(*slow.pair(25, D, seed))
    za, zb = slow.pair(25, D, 99)
    return [*objective(za, zb).values(), objective.log_prob(zb, za), *objective.state_dict().values()]


@pytest.mark.parametrize("covariance", ["full", "low_rank"])
def test_a_run_that_is_cut_goes_on_with_the_same_bits(covariance):
    make = lambda: GMJEEM(D, components=K, bank=60, covariance=covariance, rank=2)  # noqa: E731
    whole = stepped(make(), range(12))
    for cut in (1, 5, 8):
        first, second = make(), make()
        stepped(first, range(cut))
        second.load_state_dict(first.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(whole, stepped(second, range(cut, 12)), strict=True))


RUN = {
    "objective": "gmje_em", "options": {"components": 3, "bank": 96}, "projector": (4,), "epochs": 2, "batch_size": 32,
    "limit": 128, "device": "cpu", "precision": "fp32", "knn_every": 0, "checkpoint_seconds": 0, "calibration_share": 0.0,
}  # fmt: skip


@pytest.mark.float32
def test_a_training_that_dies_ends_with_the_same_bits(tmp_path, monkeypatch):
    state = resumed_with_the_same_bits(GMJEEM, RUN, tmp_path, monkeypatch)
    assert state["model"]["objective.bank._extra_state"].tolist() == [160, 128]
    again = run.load(tmp_path / "dead", device="cpu").method.objective
    assert (again.bank.seen, again.bank.fitted) == (256, 224)


# Extremes, collapse, settings


def test_low_rank_far_from_the_origin():
    za, zb = slow.pair(400, 6)
    found = []
    for far in (0.0, 3000.0):
        objective = GMJEEM(6, components=1, covariance="low_rank", rank=2).to(torch.float32)
        a, b = (za + far).float(), (zb + far).float()
        objective.update(a, b)
        found.append(nll(objective, a, b).item())
    assert found[0] == pytest.approx(found[1], abs=0.05)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["huge", "far", "twice", "few", "two", "all one"])
@pytest.mark.parametrize("covariance", ["full", "low_rank"])
def test_extreme_embeddings_have_finite_losses_and_gradients(covariance, name, dtype):
    za, zb = slow.pair(40, 6)
    cases = {
        "huge": (1e4 * za, 1e4 * zb),
        "far": (za + 1e4, zb + 1e4),
        "twice": (za[:20].repeat(2, 1), zb[:20].repeat(2, 1)),
        "few": (za[:4], zb[:4]),
        "two": (za[:2], zb[:2]),
        "all one": (za[:1].repeat(40, 1), zb[:1].repeat(40, 1)),
    }
    objective = GMJEEM(6, components=K, covariance=covariance, rank=2).to(dtype)
    if name == "all one":
        objective.loss = PairLoss("naive")  # the others have determinants of the batch's covariance
    za, zb = (z.to(dtype).requires_grad_() for z in cases[name])
    for _ in range(3):
        total = sum(objective(za, zb).values())
        found = [total, *torch.autograd.grad(total, (za, zb))]
        assert all(torch.isfinite(x).all() and x.dtype == dtype for x in found)
        objective.update(za.detach(), zb.detach())
        assert all(math.isfinite(x) for x in objective.diagnostics(za.detach(), zb.detach()).values())


def test_likelihood_alone_collapses():
    make = lambda: GMJEEM(3, components=4, bank=512, loss="naive")  # noqa: E731
    begun = slow.trained(make(), 0)[0]
    assert slow.trained(make(), 300)[0] < begun / 10


def test_information_does_not():
    narrowest, variance = slow.trained(GMJEEM(3, components=4, bank=512), 300)
    assert narrowest > 0.3 and 0.5 < variance < 5


def test_diagnostics_of_a_mixture_that_fits():
    objective, (za, zb) = GMJEEM(D, components=K, bank=400, floor=0.01, steps=20), slow.pair(400, D)
    objective.update(za, zb)
    found = objective.diagnostics(za, zb)
    assert found["mahalanobis"] == pytest.approx(1, abs=0.02) and 1 <= found["components"] <= K
    assert found["component_share"] == pytest.approx(found["components"] / K)
    assert found.keys() >= {"variance", "eigenvalue_min", "condition", "information"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "mi"}, "expected loss among mi_kl, entropy_kl, joint_kl, naive, found 'mi'"),
        ({"eta": 0.0}, "expected eta > 0, found 0.0"),
        ({"floor": 0.0}, "expected floor > 0, found 0.0"),
        ({"components": 0}, "expected components to be a whole number of at least 1"),
        ({"covariance": "diag"}, "expected covariance among auto, full, low_rank, found 'diag'"),
        ({"rank": 0}, "expected rank to be a whole number of at least 1, found 0"),
        ({"bank": 19}, "expected a bank of at least 20 items, two per component, found 19"),
        ({"steps": 0}, "expected steps to be a whole number of at least 1, found 0"),
        ({"shrinkage": -0.1}, r"expected shrinkage in \[0, 1\], found -0.1"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        GMJEEM(D, **settings)


def test_bad_embeddings():
    with pytest.raises(ValueError, match=r"expected two \(B, 2\) embeddings, found \(4, 2\) and \(3, 2\)"):
        GMJEEM(D)(torch.zeros(4, D), torch.zeros(3, D))
