"""The benchmark of tables with a class held out, its peers and its table."""

import detection_peers
import detection_tables
import held_out_classes
import numpy as np
import pytest
from sklearn.datasets import load_wine

from vergence.detection import GaussianDetector, NeighborDetector


def test_a_class_is_held_out_and_everything_else_is_used_once():
    _, y = load_wine(return_X_y=True)
    fitted, tested = held_out_classes.split(y, 1, seed=0)
    assert sorted([*fitted, *tested]) == list(range(len(y)))
    assert 1 not in y[fitted] and (y[tested] == 1).sum() == (y == 1).sum()
    assert 0 <= (y[tested] != 1).sum() - len(fitted) <= 1
    assert not np.array_equal(fitted, held_out_classes.split(y, 1, seed=1)[0])


def test_neighbors_are_those_of_pyod():
    pytest.importorskip("pyod")
    X, y = load_wine(return_X_y=True)
    fitted, tested = held_out_classes.split(y, 0, seed=0)
    for standardize in (True, False):
        theirs = detection_peers.of_pyod(0, standardize=standardize)["pyod KNN"].fit(X[fitted]).anomaly_score(X[tested])
        ours = NeighborDetector(standardize=standardize).fit(X[fitted]).anomaly_score(X[tested])
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_distances_are_those_of_pytorch_ood():
    """Its Mahalanobis distance without labels ranks as one Gaussian without shrinkage."""
    pytest.importorskip("pytorch_ood")
    X = np.random.default_rng(0).normal(size=(300, 5)) @ np.diag([1, 2, 3, 4, 5.0]) + 1
    theirs = detection_peers.of_pytorch_ood()["pytorch-ood Mahalanobis"].fit(X).anomaly_score(X)
    ours = GaussianDetector(shrinkage=0.0).fit(X).anomaly_score(X)
    np.testing.assert_array_equal(np.argsort(ours), np.argsort(theirs))


def test_a_missing_package_is_named_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(detection_peers.MODULES, "pyod", "no_such_module")
    with pytest.raises(SystemExit) as stop:
        detection_peers.require("pyod")
    assert stop.value.code == 2
    assert capsys.readouterr().err == "expected pyod, not installed: run pip install pyod\n"


def test_the_table_has_the_mean_over_sets_of_the_last_rows():
    def row(data, held_out, seed, mine, theirs):
        auroc = {"NeighborDetector": mine, "pyod LOF": theirs, "pyod LOF, raw": theirs}
        return {"data": data, "held_out": held_out, "seed": seed, "auroc": auroc}

    rows = [
        row("a", 0, 0, 0.1, 0.1),
        row("a", 0, 0, 0.8, 0.5),
        row("a", 1, 0, 0.6, 0.5),
        row("b", 0, 0, 1, 0),
        row("b", 0, 1, 1, 0),
    ]
    head, body = detection_tables.held_out_classes(rows)
    assert head == ["detector", "a, 2 classes", "b, 1 classes", "mean"]
    ours = ["`NeighborDetector`", "0.700 ± 0.100", "1.000 ± 0.000", "0.850"]
    assert body == [ours, ["PyOD's LOF", "0.500 ± 0.000", "0.000 ± 0.000", "0.250"]]  # what units do not change has one line
