"""Threads: the faster number is chosen, a slowdown leads to a new choice, and a requested number is kept."""

import time

import pytest
import torch

from vergence.utils import threads
from vergence.utils.threads import Threads, choose, using


@pytest.fixture(autouse=True)
def _number():
    with using(torch.get_num_threads()):
        yield


def pretended(cost):
    """Work that takes ``cost[n]`` seconds with n threads."""
    return lambda: time.sleep(cost[torch.get_num_threads()])


@pytest.mark.parametrize(("cost", "expected"), [({1: 0.02, 2: 0.01}, 2), ({1: 0.01, 2: 0.02}, 1)])
def test_the_faster_number_is_chosen_and_set(cost, expected):
    assert choose(pretended(cost), most=2) == expected
    assert torch.get_num_threads() == expected


def test_more_threads_must_pay(monkeypatch):
    monkeypatch.setattr(threads, "_seconds", lambda work, number, limit=0.0: {1: 1.0, 2: 0.99}[number])
    assert choose(lambda: None, most=2) == 1


def test_a_hopeless_number_is_tried_once():
    calls = []

    def work():
        calls.append(torch.get_num_threads())
        time.sleep({1: 0.002, 2: 0.05}[calls[-1]])

    assert choose(work, most=2) == 1
    assert calls.count(2) == 1


def test_where_one_thread_is_all_there_is_nothing_is_tried():
    assert choose(lambda: pytest.fail("tried"), most=1) == 1


def test_a_requested_number_is_kept_without_trials():
    kept = Threads(lambda: pytest.fail("tried"), number=1)
    assert kept.number == 1 and not any(kept.note(s) for s in [0.01] * 10 + [1.0] * 10)


def test_an_earlier_number_is_kept_without_a_first_trial():
    torch.set_num_threads(2)
    assert Threads(lambda: pytest.fail("tried"), start=1).number == 1
    torch.set_num_threads(2)
    assert Threads(lambda: pytest.fail("tried"), start=8).number == 2  # no more than there are


def test_a_slowdown_by_half_leads_to_a_new_choice(monkeypatch):
    monkeypatch.setattr(threads, "REST", 0.0)
    torch.set_num_threads(2)
    cost, lines = {1: 0.004, 2: 0.002}, []
    chosen = Threads(pretended(cost), log=lines.append)
    assert chosen.number == 2
    assert not any(chosen.note(0.002) for _ in range(20))
    cost[2] = 0.1  # another program takes a core
    assert [chosen.note(0.1) for _ in range(8)].count(True) == 1
    assert chosen.number == torch.get_num_threads() == 1
    assert lines == ["2 threads (chosen by measuring)", "1 thread (chosen by measuring)"]


def test_trials_are_rare():
    torch.set_num_threads(2)
    chosen = Threads(pretended({1: 0.002, 2: 0.001}))
    for _ in range(10):
        chosen.note(0.001)
    assert not any(chosen.note(0.1) for _ in range(20))  # within REST of the last trial


def test_zero_threads_are_refused():
    with pytest.raises(ValueError, match="expected threads to be a whole number of at least 1, found 0"):
        Threads(lambda: None, number=0)
