"""Tables in the terminal: names are printed as they are."""

import importlib.util
from pathlib import Path

from vergence.report.show import _filled, show_evaluation
from vergence.training.records import Evaluation
from vergence.utils.terminal import table

_SPEC = importlib.util.spec_from_file_location("fixtures_report", Path(__file__).with_name("fixtures_report.py"))
fixtures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixtures)


def test_names_in_square_brackets_are_no_markup(capsys):
    record = fixtures.evaluation()
    record["protocol"] |= {"objective": "vje", "note": "a [/b] note"}
    record["anomaly"]["anomalies"] = ["[/x]", "[red]y"]
    record["representations"]["[bold]z"] = record["representations"]["z"]
    show_evaluation(Evaluation.from_dict(record))
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("a [/b] note", "[/x], [red]y", "[bold]z"))
    assert "mean 0.312, CV 0.77 (in the objective's paper about 0.3 and 0.75)" in printed


def test_a_collapse_is_named_unless_few_items_were_tested(capsys):
    record = fixtures.evaluation()
    record["representations"]["z"]["collapse"]["std"] = 0.01
    for items, named in ((1000, True), (4, False)):
        record["protocol"]["test"] = items
        show_evaluation(Evaluation.from_dict(record))
        assert ("warning: the embedding collapses" in capsys.readouterr().out) == named


def test_the_model_and_its_best_control_are_compared_in_words(capsys):
    record = fixtures.evaluation()
    parts = record["representations"]
    own, control = parts["z"], next(one for one in parts.values() if one["kind"] == "control")
    for one in parts.values():
        one["knn"]["30"]["majority"], one["probe"]["accuracy"] = 0.5, 0.6
    record["protocol"]["test"] = 100
    record["protocol"]["bank"] = 1438
    show_evaluation(Evaluation.from_dict(record))
    printed = capsys.readouterr().out
    assert "1,438 training items, 100 test items" in printed
    assert "z is at least level with every control by kNN 30 and linear probe" in printed and "caution" not in printed
    record["protocol"]["test"] = 40
    show_evaluation(Evaluation.from_dict(record))
    assert "caution: of 40 test items a single one changes an accuracy by 2.5 points\n" in capsys.readouterr().out
    record["protocol"]["test"] = 100
    control["knn"]["30"]["majority"], own["probe"]["accuracy"] = 0.52, 0.7
    show_evaluation(Evaluation.from_dict(record))
    printed = capsys.readouterr().out
    name = next(name for name, one in parts.items() if one is control)
    assert f"a control is better than z by kNN 30: {name}, 0.520 (standard error 0.050), no clear difference" in printed
    assert "on these test items alone a control" in printed and "no clear difference from z's 0.500\n" in printed
    assert "z is at least level with every control by linear probe" in printed
    control["knn"]["30"]["majority"] = 0.56
    show_evaluation(Evaluation.from_dict(record))
    assert f"a control is better than z by kNN 30: {name}, 0.560 (standard error 0.050)\n" in capsys.readouterr().out
    for one in parts.values():
        one["knn"] = one["probe"] = None
    show_evaluation(Evaluation.from_dict(record))
    assert "z is at least level with every control by kNN" not in capsys.readouterr().out


def test_a_name_with_a_newline_or_an_escape_stays_one_line(capsys):
    table("names", ["name", "n"], [["a\nb\x1b[31m.png", 1], ["c.png", 2]])
    lines = capsys.readouterr().out.splitlines()
    assert any("a\ufffdb\ufffd[31m.png" in line for line in lines) and len(lines) == 7 and "\x1b[31m" not in "".join(lines)


def test_columns_without_numbers_are_left_out():
    assert _filled(["name", "kNN", "rank"], [["z", None, 1.0], ["pca", None, None]]) == (
        ["name", "rank"],
        [["z", 1.0], ["pca", None]],
    )
