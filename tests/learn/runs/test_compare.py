"""Runs side by side: a row for each setting, mean and deviation over seeds, paired intervals; nothing else is one row."""

import statistics
import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.refusals import refuses
from torch import nn

import vergence
from vergence.cli.commands import main
from vergence.learn.runs import compare as comparing
from vergence.learn.runs.evaluate import untrained_encoder
from vergence.learn.training import start
from vergence.utils.files import register_outside

pytestmark = pytest.mark.float32
QUICK = {"encoder": "small", "epochs": 1, "batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}
DIGITS = load_digits()
X = (DIGITS.images.reshape(-1, 64) / 16).astype(np.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one objective, and another objective."""
    folder = tmp_path_factory.mktemp("compared")
    made = {}
    for name, settings in {"a0": {"seed": 0}, "a1": {"seed": 1}, "b": {"objective": "gje"}}.items():
        made[name] = vergence.train("digits", out=folder / name, **{"objective": "vje", **QUICK, **settings})
    return made


def train(out, x=X, **settings):
    plain = {**QUICK, "encoder": "mlp", "objective": "vje", "labels": DIGITS.target, **settings}
    return vergence.train(x, out=out, **plain)


def noisy(strength):
    return lambda x, generator: x + strength * torch.randn(x.shape, generator=generator)


def test_seeds_are_one_row_and_numbers_are_those_of_the_evaluations(runs):
    found = vergence.compare(list(runs.values()), probes=False)
    assert found.runs == [2, 1]
    assert found.name == ["vje", "gje"]
    table = found.table()
    knn = [runs[name].folder.evaluation().representations["z"].knn[20].majority for name in ("a0", "a1")]
    assert table["knn"][0] == pytest.approx(statistics.fmean(knn))
    assert table["knn_deviation"][0] == pytest.approx(statistics.stdev(knn))
    assert table["knn_deviation"][1] is None
    assert all(seconds > 0 for seconds in table["seconds"])
    assert "probe" not in table
    assert "gje: no interval, since its seeds differ" in found.notes


def test_the_command_prints_and_writes_the_table(runs, tmp_path, capsys):
    main(["compare", *(str(run.folder.path) for run in runs.values()), "--out", str(tmp_path / "c.csv"), "--no-probes"])
    out = capsys.readouterr().out
    assert "±" in out and "digits, 359 test items" in out and "note: gje: no interval" in out
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert lines[0].startswith("name,test,train,runs,knn,knn_deviation")
    assert len(lines) == 3


def test_the_figure_has_a_point_for_each_run(runs, tmp_path):
    main(["compare", *(str(run.folder.path) for run in runs.values()), "--figure", str(tmp_path / "c.png"), "--no-probes"])
    assert (tmp_path / "c.png").read_bytes()[1:4] == b"PNG"
    found = vergence.compare(list(runs.values()), probes=False)
    ax = found.plot("effective_rank")
    drawn = [line for line in ax.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in drawn] == [row["effective_rank"] for row in found.values]
    refuses("effective_rank", found.plot, "probe")


def test_no_run_and_an_unknown_baseline_are_refused(runs, tmp_path, capsys):
    refuses("at least 1 run", vergence.compare, [])
    refuses("baseline", vergence.compare, [runs["b"]], baseline="vje")
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "nothing")])
    assert "nothing" in capsys.readouterr().err


TWO = {
    "limit": ({"limit": 300}, {"limit": 1200}, ["vje, limit 300", "vje, limit 1200"]),
    "share": ({"calibration_share": 0.5}, {}, ["vje, calibration share 0.5", "vje, calibration share 0.2"]),
    "classes": ({}, {"keep_classes": (0, 1, 2)}, ["vje, no keep classes", "vje, keep classes (0, 1, 2)"]),
    "option": ({"options": {"nu": 1.0}}, {"options": {"nu": 9.0}}, ["vje, nu 1.0", "vje, nu 9.0"]),
    "network": ({"encoder": nn.Linear(64, 8)}, {"encoder": nn.Linear(64, 9)}, None),
    "views": ({"views": noisy(0.01)}, {"views": noisy(2.0)}, None),
    "data": ({}, {"x": np.random.default_rng(0).normal(size=X.shape).astype(np.float32)}, None),
}


@pytest.mark.parametrize("case", TWO)
def test_runs_that_differ_in_more_than_the_seed_are_rows_of_their_own_with_names_that_say_so(case, tmp_path):
    *settings, names = TWO[case]
    made = [train(tmp_path / f"{i}", **one, seed=i) for i, one in enumerate(settings)]
    found = vergence.compare(made, probes=False)
    assert found.runs == [1, 1] and len(set(found.name)) == 2
    assert names is None or found.name == names
    assert (len(set(found.test)) == 2) == (case in ("data", "classes"))
    assert ("settings on different test items cannot be compared" in found.notes) == (case in ("data", "classes"))
    assert found.difference == [{}, {}]  # one seed each, and others


def test_differences_are_paired_by_item_and_seed_and_curves_are_drawn_over_the_training_items(tmp_path):
    made = [train(tmp_path / f"{n}-{seed}", limit=n, seed=seed, views=noisy(0.1)) for n in (200, 1000) for seed in (0, 1)]
    found = vergence.compare(made)
    assert found.runs == [2, 2] and found.train == [200, 1000] and found.difference[0] == {}
    for measure, (difference, low, high) in found.difference[1].items():
        assert difference == pytest.approx(np.mean(found.values[1][measure]) - np.mean(found.values[0][measure]))
        assert low < difference < high
    rights = [comparing._right([comparing._one(run, False) for run in two], "knn") for two in (made[:2], made[2:])]
    deviation = (rights[1] - rights[0]).mean(0).std() / len(DIGITS.target[:360]) ** 0.5
    _, low, high = found.difference[1]["knn"]
    assert high - low == pytest.approx(2 * 1.96 * deviation, rel=0.1)  # of the normal law, which the bootstrap comes to
    other = vergence.compare(made, baseline="vje, limit 1000")
    assert other.difference[0]["knn"][0] == -found.difference[1]["knn"][0]
    curve, points = found.plot().lines
    assert list(curve.get_xdata()) == [200, 1000] and len(points.get_xdata()) == 4


def test_seeds_that_share_their_first_weights_are_said(tmp_path):
    network = nn.Linear(64, 8)
    found = vergence.compare([train(tmp_path / f"{i}", encoder=network, seed=i) for i in (0, 1)], probes=False)
    assert found.runs == [2] and "start from the same weights" in " ".join(found.notes)
    made = [train(tmp_path / f"f{i}", encoder=lambda: nn.Linear(64, 8), seed=i) for i in (0, 1)]
    found = vergence.compare(made, probes=False)
    assert found.runs == [2] and "start from the same weights" not in " ".join(found.notes)


STRENGTH = 0.1


def reads_a_constant(x, generator):
    return x + STRENGTH * torch.ones(x.shape)


def test_code_is_told_apart_by_what_it_does_and_reads_and_not_by_its_weights(monkeypatch):
    def code(value):
        described = SimpleNamespace(model=SimpleNamespace(outside=()), views=SimpleNamespace(function=register_outside(value)))
        return start._code_of(described)

    for same, other in (
        ((noisy(1), noisy(1)), noisy(2)),
        ((SimpleNamespace(by=1), SimpleNamespace(by=1)), SimpleNamespace(by=2)),
        ((nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 3)),
        ((partial(noisy, 1), partial(noisy, 1)), partial(noisy, 2)),
    ):
        assert code(same[0]) == code(same[1]) != code(other)
    before = code(reads_a_constant)
    monkeypatch.setattr(sys.modules[__name__], "STRENGTH", 0.2)
    assert code(reads_a_constant) != before
    lock = threading.Lock()
    assert code(lambda x: lock)[0].startswith("unread ")


class Shifts:
    def __init__(self, by):
        self.by = by

    def __call__(self, batch, generator):
        return batch + TABLE["strength"] * self.by * torch.randn(batch.shape, generator=generator)


TABLE = {"strength": 0.1}


def test_objects_that_make_views_are_compared_by_what_they_hold_and_read(monkeypatch):
    def row(by):
        made = [train(None, X[:200], labels=DIGITS.target[:200], views=Shifts(by), seed=seed) for seed in (0, 1)]
        return made, vergence.compare(made, probes=False)

    (first, one), (second, _) = row(1), row(2)
    assert one.runs == [2] and vergence.compare([*first, *second], probes=False).runs == [2, 2]
    monkeypatch.setitem(TABLE, "strength", 0.2)
    assert vergence.compare([*first, *row(1)[0]], probes=False).runs == [2, 2]


def test_code_of_one_name_stays_with_its_run():
    few = {"x": X[:200], "labels": DIGITS.target[:200], "objective": "vicreg"}
    made = [train(None, encoder=lambda width=width: nn.Linear(64, width), **few) for width in (16, 2)]
    assert untrained_encoder(made[0])(torch.zeros(1, 64)).shape == (1, 16)
