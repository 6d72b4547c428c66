"""The mixture on a growing neural gas: cells in loops, the data set "Separated Branches", order and units of the items."""

import numpy as np
import pytest
import torch
from tests.mixtures.common import TRUTH, separated

from vergence.densities.em import fit as em
from vergence.mixtures import ConditionalGaussian, GrowingNeuralGas
from vergence.mixtures.growing_neural_gas import _mixture

UNIMODAL = 1.21  # the best one Gaussian per context can do


def model(**settings):
    return GrowingNeuralGas(**{"random_state": 0, **settings})


@pytest.fixture(scope="module")
def train():
    return separated(3000, 0)


@pytest.fixture(scope="module")
def test():
    return separated(5000, 1)


@pytest.fixture(scope="module")
def raw(train):
    """60 nodes after growth, without EM."""
    return model(max_nodes=60, polish=0).fit(*train[:2])


@pytest.fixture(scope="module")
def polished(train):
    return model(max_nodes=30).fit(*train[:2])


def in_loops(X, nodes, reg):
    D = X.shape[1]
    near = [min(range(len(nodes)), key=lambda k: sum((x - nodes[k]) ** 2)) for x in X]
    s2 = sum(sum((x - nodes[k]) ** 2) for x, k in zip(X, near, strict=True)) / len(X) / D
    weights, means, S = [], [], []
    for k, node in enumerate(nodes):
        cell = [x for x, j in zip(X, near, strict=True) if j == k]
        weights.append((len(cell) + 1e-3) / (len(X) + 1e-3 * len(nodes)))
        means.append(sum(cell) / len(cell) if cell else node)
        spread = sum(np.outer(x - means[-1], x - means[-1]) for x in cell) / len(cell) if cell else s2 * np.eye(D)
        S.append(spread + reg * np.eye(D))
    return near, np.array(weights), np.array(means), np.array(S)


@pytest.mark.parametrize("d", [1, 3])
def test_nodes_become_a_mixture_as_in_loops(d):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, d))
    nodes = np.concatenate([rng.normal(size=(12, d)), X[:1], np.full((1, d), 50.0)])  # one at an item, one far from all
    w = rng.integers(1, 4, 80)
    near, *expected = in_loops(np.repeat(X, w, 0), nodes, 1e-3)
    near = np.array(near)[np.cumsum(w) - 1]
    found = _mixture(*(torch.as_tensor(v) for v in (X, w * 1.0, nodes, near)), 1e-3)
    assert 13 not in near and 12 in near and found[0].sum().item() == pytest.approx(1)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b, 1e-12, 1e-12)


def test_a_fit_without_polish_is_the_mixture_of_its_nodes(raw, train):
    Z = np.column_stack(train[:2])
    X, nodes = ((v - Z.mean(0)) / Z.std(0) for v in (Z, raw.nodes_))
    near, weights, means, S = in_loops(X, nodes, 1e-4)
    np.testing.assert_allclose(raw.weights_, weights, 1e-10)
    np.testing.assert_allclose(raw.means_, means * Z.std(0) + Z.mean(0), 1e-8, 1e-10)
    np.testing.assert_allclose(raw.covariances_, S * np.outer(Z.std(0), Z.std(0)), 1e-8, 1e-12)
    assert (raw.labels_ == raw.node_components_[near]).all()


def test_polish_is_em_on_that_mixture(train):
    Z = np.column_stack(train[:2])[:600]
    X = torch.from_numpy((Z - Z.mean(0)) / Z.std(0))
    start, end = (model(max_nodes=12, polish=n).fit(Z[:, :1], Z[:, 1]) for n in (0, 7))
    S = start.covariances_ / np.outer(Z.std(0), Z.std(0))
    arrays = (start.weights_, (start.means_ - Z.mean(0)) / Z.std(0), S)
    weights, means, _ = em.refine(X, *(torch.from_numpy(v) for v in arrays), steps=7, reg_covar=1e-4)
    np.testing.assert_allclose(end.weights_, weights.numpy(), 1e-7)
    np.testing.assert_allclose(end.means_, means.numpy() * Z.std(0) + Z.mean(0), 1e-7, 1e-9)
    log_likelihood = [m.joint().log_prob(torch.from_numpy(Z)).mean() for m in (start, end)]
    assert log_likelihood[1] > log_likelihood[0]
    assert (start.nodes_ == end.nodes_).all()


@pytest.mark.parametrize("name", ["raw", "polished"])
def test_the_graph_is_one(name, request):
    m = request.getfixturevalue(name)
    K = len(m.nodes_)
    assert m.nodes_.shape == m.means_.shape == (K, 2) and len(m.edges_) == len(m.ages_)
    assert ((m.ages_ >= 0) & (m.ages_ <= 50)).all()
    assert (m.edges_[:, 0] < m.edges_[:, 1]).all() and len({tuple(e) for e in m.edges_.tolist()}) == len(m.edges_)
    assert set(m.edges_.flatten()) == set(range(K))  # nobody is alone
    assert (m.node_components_[m.edges_[:, 0]] == m.node_components_[m.edges_[:, 1]]).all()
    assert set(m.node_components_) == set(range(m.n_components_))


def test_components_are_the_branches(train, raw):
    """T19: three in most seeds, and then each is a branch."""
    fits = [raw, *(model(max_nodes=60, polish=0, random_state=s).fit(*train[:2]) for s in range(1, 5))]
    three = [m for m in fits if m.n_components_ == 3]
    assert len(three) >= 3
    for m in three:
        assert len(m.labels_) == len(train[0])
        together = np.array([np.bincount(m.labels_[train[2] == j], minlength=3) for j in range(3)])
        assert together.max(1).sum() > 0.999 * len(train[2]) and set(together.argmax(1)) == {0, 1, 2}


def test_likelihoods_on_the_branches(raw, polished, train, test):
    """NLL on the branches: -0.48 nats for the true density, +1.21 for the best single Gaussian at each context."""
    nll = {"full": -raw.score(*test[:2]), "polished, 30 nodes": -polished.score(*test[:2])}
    assert TRUTH - 0.02 < nll["polished, 30 nodes"] <= -0.40
    assert -0.44 < nll["full"] < -0.37
    assert nll["polished, 30 nodes"] < UNIMODAL < -ConditionalGaussian().fit(*train[:2]).score(*test[:2])


def test_the_order_of_the_items_does_not_matter(train):
    c, t = train[0][:600], train[1][:600]
    order = np.random.default_rng(0).permutation(600)
    one, other = model(max_nodes=20).fit(c, t), model(max_nodes=20).fit(c[order], t[order])
    assert (one.edges_ == other.edges_).all() and (one.labels_[order] == other.labels_).all()
    np.testing.assert_allclose(one.nodes_, other.nodes_, 1e-9, 1e-9)
    np.testing.assert_allclose(one.score_samples(c, t), other.score_samples(c, t), 1e-6, 1e-6)


def test_few_items_make_few_nodes(train):
    c, t = train[0][:100], train[1][:100]
    assert len(model().fit(c, t).nodes_) == 10  # 100 items / (5 x 2 features)
    assert len(model(items_per_node=25).fit(c, t).nodes_) == 4
    assert len(model(items_per_node=2, max_nodes=7).fit(c, t).nodes_) == 7
    assert len(model().fit(c[:2], t[:2]).nodes_) == 2
    assert len(model(max_nodes=50, signals=450, items_per_node=1).fit(c, t).nodes_) == 2 + 4  # one more every 100 signals
