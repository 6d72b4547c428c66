"""GMJE on a growing neural gas: islands, how many components there may be, cells in loops, losses, state, runs, collapse."""

import math

import numpy as np
import pytest
import torch
from tests.dying import resumed_with_the_same_bits
from tests.reference import gmje as slow

from vergence.objectives.gmje_gng import GMJEGNG
from vergence.objectives.parts.information import PairLoss

B, D = 60, 2


def close(a, b, tol=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


def built(dim=D, **settings):
    return GMJEGNG(dim, **({"max_nodes": 5, "items_per_node": 10, "bank": B} | settings))


def joined(za, zb):
    return torch.cat([za, zb], 1)


def components(objective):
    return int((objective.joint().weights > 0).sum())


# Growth


@pytest.mark.parametrize("centers", [2, 3, 4])
def test_islands_are_the_planted_clusters(centers):
    za, zb, label = slow.clusters(600, 4, centers)
    objective = built(4, max_nodes=6 * centers, items_per_node=20.0, bank=600, insert_every=300)
    objective.update(za, zb)
    assert int(objective.islands) == centers == objective.diagnostics(za, zb)["islands"]
    r = objective.joint().responsibilities(joined(za, zb))
    shares = torch.stack([r[label == c].sum(0) for c in range(centers)]) / r.sum(0).clamp(min=1e-12)
    assert shares.max(0).values[r.sum(0) > 1].min() > 0.999, "a component lies in one cluster"


def test_one_cloud_is_one_island():
    za, zb = slow.pair(600, 2)
    objective = built(max_nodes=8, bank=600)
    objective.update(za, zb)
    assert int(objective.islands) == 1


@pytest.mark.parametrize(
    ("max_nodes", "items_per_node", "most"), [(5, 10.0, 5), (30, 10.0, 20), (30, 50.0, 4), (30, 1e4, 2), (2, 1.0, 2)]
)
def test_growth_stops(max_nodes, items_per_node, most):
    """At max_nodes, and where a cell would have too few pairs; a gas has at least two units."""
    objective, (za, zb) = built(max_nodes=max_nodes, items_per_node=items_per_node, bank=200), slow.pair(200, D)
    objective.update(za, zb)
    assert components(objective) <= most and components(objective) > most / 2
    assert len(objective.joint().weights) == max_nodes


def test_growth_goes_on_with_the_bank():
    objective = built(max_nodes=20, items_per_node=10.0, bank=400)
    found = []
    for seed in range(8):
        objective.update(*slow.pair(50, D, seed))
        found.append(components(objective))
    assert found[0] <= 5 and found[1] > found[0] and found[-1] > found[1]


def test_without_em_components_are_the_units_cells():
    """Weights, means and covariances of the pairs that are nearest to a unit in standardized units."""
    objective, (za, zb) = built(steps=0, floor=0.2), slow.pair(B, D)
    Z = joined(za * torch.tensor([1.0, 100.0]), zb)
    objective.update(Z[:, :D], Z[:, D:])
    X = ((Z - Z.mean(0)) / Z.std(0, correction=0)).numpy()
    nodes = objective._grown(X).nodes
    cells = {}
    for n, x in enumerate(X):
        cells.setdefault(min(range(len(nodes)), key=lambda m: np.square(nodes[m] - x).sum()), []).append(n)
    expected = sorted((len(c) / B, *Z[c].mean(0).tolist()) for c in cells.values())
    mixture = slow.parts(objective.joint())
    close(sorted((w, *m.tolist()) for w, m, _ in mixture), expected)
    for _, m, S in mixture:
        rows = min(cells.values(), key=lambda c: (Z[c].mean(0) - m).norm().item())
        close(S, torch.cov(Z[rows].T, correction=0).reshape(4, 4) + 0.2**2 * torch.eye(4), 1e-8)


def test_em_after_growth_raises_the_likelihood():
    za, zb = slow.pair(200, D)
    found = []
    for steps in (0, 1, 10):
        objective = built(bank=200, floor=1e-3, steps=steps, max_nodes=4)
        objective.update(za, zb)
        found.append(objective.joint().log_prob(joined(za, zb)).mean().item())
    assert found[0] < found[1] < found[2]


def test_a_fit_is_a_function_of_the_pairs_and_of_how_many_came():
    """Whatever the global seed; with other pairs before, the draws are others."""
    za, zb = slow.pair(B, D)

    def density(seed, before):
        torch.manual_seed(seed)
        objective = built(max_nodes=6)
        for _ in range(before):
            objective.update(za, zb)
        return objective.joint().log_prob(joined(za, zb))

    assert torch.equal(density(1, 1), density(2, 1)) and torch.equal(density(1, 2), density(2, 2))
    assert not torch.equal(density(1, 1), density(1, 2))


def test_growth_leaves_the_global_seed_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    objective = built()
    torch.manual_seed(3)
    objective.update(*slow.pair(B, D))
    assert torch.equal(torch.rand(4), expected)


# The losses


@pytest.mark.parametrize("loss", ["mi_kl", "entropy_kl", "joint_kl", "naive"])
def test_the_losses_are_their_definitions(loss):
    objective, (za, zb) = built(loss=loss, eta=0.3, beta=1.7, shrinkage=0.0), slow.pair(30, D)
    objective.update(za, zb)
    found, expected = objective(za, zb), slow.terms(loss, slow.parts(objective.joint()), za, zb, eta=0.3, beta=1.7)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        close(found[name], value)
    a, b = (z[:8].clone().requires_grad_() for z in (za, zb))
    assert torch.autograd.gradcheck(lambda a, b: sum(objective(a, b).values()), (a, b))
    assert not list(objective.parameters())


def test_joint_is_marginal_and_conditional():
    objective, (za, zb) = built(), slow.pair(B, D)
    objective.update(za, zb)
    close(objective.joint().log_prob(joined(za, zb)), objective.log_prob(zb, za) - objective.score(za), 1e-10)
    a, b = objective.sample(50)
    assert a.shape == b.shape == (50, D) and torch.isfinite(objective.log_prob(b, a)).all()


# State


def stepped(objective, seeds):
    for seed in seeds:
        objective.update(*slow.pair(25, D, seed))
    za, zb = slow.pair(25, D, 99)
    return [*objective(za, zb).values(), objective.log_prob(zb, za), *objective.state_dict().values()]


def test_a_run_that_is_cut_goes_on_with_the_same_bits():
    make = lambda: built(max_nodes=4, insert_every=20)  # noqa: E731
    whole = stepped(make(), range(10))
    for cut in (1, 4, 7):
        first, second = make(), make()
        stepped(first, range(cut))
        second.load_state_dict(first.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(whole, stepped(second, range(cut, 10)), strict=True))


@pytest.mark.float32
def test_a_training_that_dies_ends_with_the_same_bits(tmp_path, monkeypatch):
    run = {
        "objective": "gmje_gng", "options": {"max_nodes": 4, "items_per_node": 10, "bank": 96}, "projector": (4,), "epochs": 2,
        "batch_size": 32, "limit": 128, "device": "cpu", "precision": "fp32", "knn_every": 0, "checkpoint_seconds": 0,
    }  # fmt: skip
    resumed_with_the_same_bits(GMJEGNG, run, tmp_path, monkeypatch)


# Extremes, collapse, settings


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
    objective = built(6, covariance=covariance, rank=2, insert_every=20).to(dtype)
    if name == "all one":
        objective.loss = PairLoss("naive")  # the others have determinants of the batch's covariance
    za, zb = (z.to(dtype).requires_grad_() for z in cases[name])
    for _ in range(3):
        total = sum(objective(za, zb).values())
        found = [total, *torch.autograd.grad(total, (za, zb))]
        assert all(torch.isfinite(x).all() and x.dtype == dtype for x in found)
        objective.update(za.detach(), zb.detach())
        assert all(math.isfinite(x) for x in objective.diagnostics(za.detach(), zb.detach()).values())


def test_a_single_first_pair_is_no_gas():
    """A gas begins on two items."""
    objective, (za, zb) = built(), slow.pair(1, D)
    with pytest.raises(ValueError, match="expected"):
        objective.update(za, zb)


def test_likelihood_alone_collapses():
    make = lambda: built(3, max_nodes=4, bank=512, insert_every=30, loss="naive")  # noqa: E731
    begun = slow.trained(make(), 0)[0]
    assert slow.trained(make(), 300)[0] < begun / 10


def test_information_does_not():
    narrowest, variance = slow.trained(built(3, max_nodes=4, bank=512, insert_every=30), 300)
    assert narrowest > 0.3 and 0.5 < variance < 5


def test_diagnostics_of_a_mixture_that_fits():
    objective, (za, zb) = built(bank=400, floor=0.01, steps=20), slow.pair(400, D)
    objective.update(za, zb)
    found = objective.diagnostics(za, zb)
    assert found["mahalanobis"] == pytest.approx(1, abs=0.02) and 1 <= found["components"] <= components(objective)
    assert found.keys() >= {"islands", "variance", "eigenvalue_min", "condition", "information"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "mi"}, "expected loss among mi_kl, entropy_kl, joint_kl, naive, found 'mi'"),
        ({"beta": 0.0}, "expected beta > 0, found 0.0"),
        ({"max_nodes": 1}, "max_nodes"),
        ({"insert_every": 0}, "insert_every"),
        ({"items_per_node": 0.0}, "expected items_per_node > 0, found 0.0"),
        ({"steps": -1}, "expected steps to be a whole number of at least 0, found -1"),
        ({"floor": -0.1}, "floor > 0"),
        ({"bank": 59}, "expected a bank of at least 60 items, two per component, found 59"),
        ({"covariance": "tied"}, "expected covariance among auto, full, low_rank, found 'tied'"),
        ({"shrinkage": 1.1}, r"expected shrinkage in \[0, 1\], found 1.1"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        GMJEGNG(D, **settings)
