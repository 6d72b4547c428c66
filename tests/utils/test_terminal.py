"""Progress where stderr is no terminal: a line a minute with what is done and what is left, and none of short work."""

import pytest

from vergence.utils import terminal


def test_shares_are_in_percent_and_columns_without_a_value_are_left_out():
    kind = type("Found", (terminal.Table,), {"shares": ("knn",)})
    found = kind({"name": ["a", "b"], "knn_5": [0.5, None], "none": [None, None], "n": [1, 2.5]})
    assert str(found) == "name  knn_5   n\na     50.0 %  1\nb             2.5"
    assert "<th>knn_5</th><th>n</th></tr><tr><td>a</td><td>50.0 %</td><td>1</td></tr>" in found._repr_html_()


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, in a list that a test changes."""
    now = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def advanced(clock, capsys, parts, *, seconds, total, done=0):
    with terminal.bar("scores.npz", total, "images") as advance:
        advance(done)
        for n in parts:
            clock[0] += seconds
            advance(n)
    return capsys.readouterr().err.splitlines()


def test_a_line_a_minute_says_what_is_done_and_left(clock, capsys):
    lines = advanced(clock, capsys, [100] * 25, seconds=10, total=2500)
    assert lines[0] == "scores.npz: 600 of 2,500 images, 4 min left"
    assert lines[-1] == "scores.npz: 2,400 of 2,500 images, 1 min left" and len(lines) == 4


def test_the_time_left_is_that_of_this_job(clock, capsys):
    lines = advanced(clock, capsys, [10] * 2, seconds=60, total=10_000, done=9000)
    assert lines[0] == "scores.npz: 9,010 of 10,000 images, 1 h 39 min left"


@pytest.mark.parametrize("late", [False, True])
def test_short_work_is_quiet(late, clock, capsys):
    with terminal.bar("x", 3, late=late) as advance:
        for _ in range(3):
            clock[0] += 19
            advance()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [30, 40, 60])
def test_a_narrow_terminal_cuts_no_number(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    terminal.table("Models", ["", "nats", "+-", "in 50 %", "in 90 %"], [["linear Gaussian", -1.2481, 0.0774, 0.5333, 0.9333]])
    out = capsys.readouterr().out
    assert all(number in out for number in ("-1.248", "0.077", "0.533", "0.933")) and max(map(len, out.splitlines())) <= width
