"""Growing neural gas against the slow reference, step by step; invariants; draws; what it does to units of measure."""

import numpy as np
import pytest
import torch
from tests.reference.neural_gas import Gas

from vergence.densities import neural_gas
from vergence.densities.neural_gas import NeuralGas, nearest_node

SETTINGS = {
    "defaults": ({}, {}),
    "many removals": ({"max_age": 2, "insert_every": 10, "max_nodes": 25}, {"a_max": 2, "lam": 10, "max_nodes": 25}),
    "other values": (
        {"max_age": 5, "insert_every": 25, "max_nodes": 30, "eps_b": 0.1, "eps_n": 0.02, "alpha": 0.3, "decay": 0.98},
        {"a_max": 5, "lam": 25, "max_nodes": 30, "eps_b": 0.1, "eps_n": 0.02, "alpha": 0.3, "d": 0.98},
    ),
}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def stream(n=4000, d=2, seed=0):
    """Signals whose distribution narrows and then drifts: units fall behind and are removed."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    x[n // 3 :, -1] *= 0.3
    x[n // 2 :, 0] += np.linspace(0, 4, n - n // 2)
    return x


def two_squares(n=600):
    x = np.random.default_rng(0).uniform(size=(n, 2))
    x[: n // 2] += 5
    return x


def adapt(gas, x):
    """Adapts a graph to signals in their order; the first two become the first units."""
    x = np.asarray(x)
    if not len(gas.ages):
        gas._first_units(x[:2], x[:2].mean(0))
        x = x[2:]
    gas._adapt(x)
    return gas


@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("setting", SETTINGS)
def test_it_is_the_reference(setting, d):
    ours, theirs = SETTINGS[setting]
    gas, slow = NeuralGas(**ours), Gas(**theirs)
    for part in np.split(stream(d=d), 4):
        adapt(gas, part)
        nodes, errors, ages = (np.array(v) for v in slow.run(part.tolist()).tables())
        assert (gas.signals, gas.insertions, gas.removals) == (slow.signals, slow.insertions, slow.removals)
        assert np.array_equal(gas.ages, ages)
        assert np.allclose(gas.nodes, nodes, 0, 1e-9) and np.allclose(gas.errors, errors, 1e-9, 1e-9)


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_holds_after_every_signal(setting):
    ours, _ = SETTINGS[setting]
    x = stream(1500)
    gas = adapt(NeuralGas(**ours), x[:2])
    for signal in x[2:]:
        adapt(gas, signal[None])
        ages = gas.ages
        assert (ages == ages.T).all() and (ages.diagonal() == -1).all()
        assert (ages >= -1).all() and (ages <= gas.max_age).all()
        assert (ages >= 0).any(1).all()  # nobody is alone
        assert 2 <= len(gas.nodes) == 2 + gas.insertions - gas.removals <= gas.max_nodes
        assert (gas.errors >= 0).all()
    assert gas.signals == 1498


def test_components_are_those_of_the_ages():
    gas = NeuralGas(max_nodes=40).grow(two_squares(), 6000, generator())
    ages, M = gas.ages, len(gas.nodes)
    label = list(range(M))
    for _ in range(M):
        for i, j in np.argwhere(ages >= 0):
            label[i] = label[j] = min(label[i], label[j])
    firsts = sorted(set(label))
    assert gas.components().tolist() == [firsts.index(v) for v in label]


def test_growing_twice_is_growing_once(monkeypatch):
    x = two_squares()
    once = NeuralGas(max_nodes=40).grow(x, 5000, generator())
    g, twice = generator(), NeuralGas(max_nodes=40)
    for n in (1, 0, 4200, 799):
        twice.grow(x, n, g)
    monkeypatch.setattr(neural_gas, "BLOCK", 700)
    blocks = NeuralGas(max_nodes=40).grow(torch.from_numpy(x), 5000, generator())
    for other in (twice, blocks):
        assert (once.nodes == other.nodes).all() and (once.errors == other.errors).all() and (once.ages == other.ages).all()
        assert (once.signals, once.insertions, once.removals) == (other.signals, other.insertions, other.removals)


def test_growing_adapts_to_draws_with_replacement():
    x, g = two_squares(), generator(3)
    gas = NeuralGas(max_nodes=20).grow(x, 3000, g)
    g.manual_seed(3)
    begin = torch.randperm(len(x), generator=g)[:2]
    drawn = torch.randint(len(x), (3000,), generator=g)
    other = adapt(NeuralGas(max_nodes=20), x[torch.cat([begin, drawn])])
    assert (gas.ages == other.ages).all() and np.allclose(gas.nodes, other.nodes, 0, 1e-12)
    assert not np.allclose(gas.nodes, NeuralGas(max_nodes=20).grow(x, 3000, generator(4)).nodes)


def test_a_change_of_units_changes_only_units():
    x = stream(3000)
    gas = adapt(NeuralGas(max_nodes=40), x)
    Q = np.linalg.qr(np.random.default_rng(1).normal(size=(2, 2)))[0]
    other = adapt(NeuralGas(max_nodes=40), 3 * x @ Q + 1e6)  # far from zero too: nothing is lost beyond what the signals lose
    assert (gas.ages == other.ages).all()
    assert np.allclose(3 * gas.nodes @ Q + 1e6, other.nodes, 0, 1e-7) and np.allclose(9 * gas.errors, other.errors, 1e-6)


def test_errors_of_one_unit_that_always_wins():
    """All signals at x, the other unit far away: E_n = d (E_{n-1} + |x - w|^2) and w comes nearer by 1 - eps_b each time."""
    gas = adapt(NeuralGas(insert_every=1000), np.array([[1.0], [100.0]]))
    adapt(gas, np.zeros((40, 1)))
    n = np.arange(40)
    assert np.isclose(gas.nodes[0, 0], 0.8**40) and np.isclose(gas.errors[0], (0.995 ** (40 - n) * 0.8 ** (2 * n)).sum())
    assert np.isclose(gas.nodes[1, 0], 100 * 0.994**39) and gas.errors[1] == 0  # the first signal makes the edge after it moves


def test_the_nearest_node():
    rng = np.random.default_rng(0)
    nodes, x = 1e6 + rng.normal(size=(30, 4)), 1e6 + rng.normal(size=(500, 4))
    expected = [min(range(30), key=lambda k: sum((item - nodes[k]) ** 2)) for item in x]
    assert nearest_node(nodes, x).tolist() == expected
