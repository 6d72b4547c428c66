"""Runs side by side: a row for each setting, mean and deviation over seeds; what cannot be compared is refused."""

import statistics

import numpy as np
import pytest

import vergence
from vergence.cli.commands import main

pytestmark = pytest.mark.float32
QUICK = {"encoder": "small", "epochs": 1, "batch_size": 64, "device": "cpu", "precision": "fp32", "knn_every": 0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one objective, and another objective."""
    folder = tmp_path_factory.mktemp("compared")
    made = {}
    for name, settings in {"a0": {"seed": 0}, "a1": {"seed": 1}, "b": {"objective": "gje"}}.items():
        made[name] = vergence.train("digits", out=folder / name, **{"objective": "vje", **QUICK, **settings})
    return made


def test_seeds_are_one_row_and_numbers_are_those_of_the_evaluations(runs):
    found = vergence.compare(list(runs.values()), probes=False)
    assert found.runs == [2, 1]
    assert [name.split(",")[0] for name in found.name] == ["vje", "gje"]
    table = found.table()
    knn = [runs[name].folder.evaluation().representations["z"].knn[20].majority for name in ("a0", "a1")]
    assert table["knn"][0] == pytest.approx(statistics.fmean(knn))
    assert table["knn_deviation"][0] == pytest.approx(statistics.stdev(knn))
    assert table["knn_deviation"][1] is None
    assert all(seconds > 0 for seconds in table["seconds"])
    assert "probe" not in table


def test_the_command_prints_and_writes_the_table(runs, tmp_path, capsys):
    main(["compare", *(str(run.folder.path) for run in runs.values()), "--out", str(tmp_path / "c.csv"), "--no-probes"])
    out = capsys.readouterr().out
    assert "±" in out
    assert "vje, small" in out
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert lines[0].startswith("name,runs,knn,knn_deviation")
    assert len(lines) == 3


def test_the_figure_has_a_point_for_each_run(runs, tmp_path):
    main(["compare", *(str(run.folder.path) for run in runs.values()), "--figure", str(tmp_path / "c.png"), "--no-probes"])
    assert (tmp_path / "c.png").read_bytes()[1:4] == b"PNG"
    found = vergence.compare(list(runs.values()), probes=False)
    ax = found.plot("effective_rank")
    drawn = [line for line in ax.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in drawn] == [row["effective_rank"] for row in found.values]
    with pytest.raises(ValueError, match="effective_rank"):
        found.plot("probe")


def test_runs_on_other_data_and_no_run_are_refused(runs, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32))
    other = vergence.train(str(tmp_path / "x.npy"), objective="vje", epochs=1, out=tmp_path / "o", device="cpu", encoder="mlp")
    with pytest.raises(ValueError, match="runs on the same data"):
        vergence.compare([runs["b"], other])
    with pytest.raises(ValueError, match="at least 1 run"):
        vergence.compare([])
    with pytest.raises(SystemExit):
        main(["compare", str(tmp_path / "nothing")])
    assert "nothing" in capsys.readouterr().err
