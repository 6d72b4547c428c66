"""The tables of an evaluation: the record's numbers, one judgment for terminal and page, names printed as they are."""

import math

import pytest
from tests.report import fixtures_report as fixtures

from vergence.learn.evaluation.judgment import accuracy_error, auroc_error
from vergence.learn.runs.tables import rival, show_evaluation, tables, verdict
from vergence.learn.training.records import Evaluation
from vergence.utils.terminal import table


def evaluated(*, items=324, **accuracies):
    """An evaluation whose kNN accuracies and probes are given by representation; others are 0.5."""
    record = fixtures.evaluation()
    record["protocol"]["test"] = items
    for name, part in record["representations"].items():
        value = accuracies.get(name, 0.5)
        part["knn"] = {k: {"majority": value, "weighted": value} for k in ("1", "5", "30")}
        part["probe"]["accuracy"] = value
    return tables(Evaluation.from_dict(record))["accuracies"]


def test_numbers_are_the_records():
    record = fixtures.evaluation()
    shown = tables(Evaluation.from_dict(record))
    assert list(shown) == ["accuracies", "space", "anomalies", "posterior"]
    for name, part in record["representations"].items():
        numbers = {column.title: column.values[name] for column in shown["accuracies"].columns}
        votes = {f"kNN {k}": part["knn"][k]["majority"] for k in ("1", "5", "20", "30", "200")}
        votes |= {f"weighted kNN {k}": part["knn"][k]["weighted"] for k in ("5", "20", "30", "200")}
        assert numbers == {**votes, "linear probe": part["probe"]["accuracy"]}
    false_alarms = shown["anomalies"].column("false alarms at 95 %")
    assert false_alarms.best == min(score["fpr95"] for score in record["anomaly"]["scores"].values())


def test_one_neighbor_has_one_vote_and_one_column():
    titles = [column.title for column in evaluated().columns]
    assert titles == ["kNN 1", "kNN 5", "kNN 30", "weighted kNN 5", "weighted kNN 30", "linear probe"]
    assert "in 6 of 6 columns" in verdict(evaluated(pca=0.9))[1]


@pytest.mark.parametrize("items", [100, 400, 10_000])
@pytest.mark.parametrize("errors", [-2.2, -1.8, 0.0, 1.8, 2.2])
def test_a_control_wins_by_more_than_two_standard_errors_or_not_at_all(items, errors):
    ours = 0.5
    theirs = ours - errors * math.sqrt(2) * accuracy_error(ours, items)  # equal errors to first order
    shown = evaluated(items=items, z=ours, mu=0.4, pca=theirs, pixels=0.1, untrained=0.1)
    wins, words = verdict(shown)
    assert wins == (errors == -2.2) == words.startswith("A baseline is better than the model in 6 of 6 columns: pca in kNN 1")
    assert ("within two standard errors" in words) == (errors == -1.8)
    found = rival(shown, "kNN 30")
    assert found.clear == (abs(errors) == 2.2) and math.copysign(1, found.lead) == (1 if errors >= 0 else -1)


def test_the_best_of_the_models_rows_is_compared_unless_one_is_named():
    shown = evaluated(z=0.6, mu=0.7, pca=0.65)
    assert rival(shown, "kNN 30").model == "mu" and "baseline is better, but within" in rival(shown, "kNN 30", "z").words
    assert rival(shown, "kNN 30").baseline == "pca" and rival(shown, "nothing") is None


def test_detection_is_judged_by_the_error_of_the_auroc():
    record = fixtures.evaluation()
    shown = tables(Evaluation.from_dict(record))["anomalies"]
    found = rival(shown, "AUROC")
    assert found.error == pytest.approx(math.hypot(auroc_error(0.914, 36, 324), auroc_error(0.887, 36, 324)))
    assert not found.clear and rival(shown, "average precision") is None
    record["anomaly"]["scores"]["knn distance on z"]["auroc"] = 0.999
    assert verdict(tables(Evaluation.from_dict(record))["anomalies"])[0]
    record["anomaly"] |= {"n_anomalies": 4, "n_inliers": 5}
    assert not verdict(tables(Evaluation.from_dict(record))["anomalies"])[0]


def test_the_terminal_says_what_the_page_says(capsys):
    record = fixtures.evaluation()
    record["protocol"] |= {"objective": "vje", "note": "a [/b] note", "test": 40}
    record["anomaly"]["anomalies"] = ["[/x]", "[red]y"]
    record["representations"]["[bold]z"] = record["representations"]["z"]
    show_evaluation(Evaluation.from_dict(record))
    printed = " ".join(capsys.readouterr().out.split())
    assert all(name in printed for name in ("a [/b] note", "[/x], [red]y", "[bold]z", "pixels *", "0.3125 │ 0.3"))
    assert "One of 40 test items changes an accuracy by 2.5 points." in printed and "caution" not in printed
    assert "No baseline is clearly better; in linear probe" in printed


def test_a_collapse_is_named_unless_few_items_were_tested(capsys):
    record = fixtures.evaluation()
    record["representations"]["z"]["collapse"]["std"] = 0.01
    for items, named in ((1000, True), (4, False)):
        record["protocol"]["test"] = items
        show_evaluation(Evaluation.from_dict(record))
        assert ("warning: the embedding collapses" in capsys.readouterr().out) == named
    show_evaluation(Evaluation.from_dict(record), "the training ended, but the embedding collapses to a line")
    assert "warning: the training ended, but the embedding collapses to a line\n" in capsys.readouterr().out


def test_a_name_with_a_newline_or_an_escape_stays_one_line(capsys):
    table("names", ["name", "n"], [["a\nb\x1b[31m.png", -math.inf], ["c.png", math.nan]])
    lines = capsys.readouterr().out.splitlines()
    assert any("a\ufffdb\ufffd[31m.png │ -inf" in line for line in lines) and len(lines) == 7 and "\x1b[31m" not in "".join(lines)
