"""Threads: the faster number is chosen, a slowdown leads to another trial, and a requested number is kept."""

import os
import time

import pytest
import torch

from vergence.utils import threads
from vergence.utils.threads import Threads, choose, fixed, using


@pytest.fixture(autouse=True)
def _two():
    with using(2):
        yield


@pytest.fixture
def clock(monkeypatch):
    """A clock that only work moves."""
    now = [0.0]
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads.time, "perf_counter", lambda: now[0])
    return now


class Machine:
    """Work that takes ``cost[n]`` seconds with n threads, on a clock of its own."""

    def __init__(self, clock, cost):
        self.clock, self.cost, self.tried = clock, cost, []

    def spend(self):
        self.clock[0] += self.cost[torch.get_num_threads()]

    def trial(self, unit=None):
        self.tried.append(torch.get_num_threads())
        self.spend()

    def work(self, chosen, units):
        """Does units of work; returns the number of threads of each."""
        used = []
        for _ in chosen.over(range(units), self.trial):
            used.append(torch.get_num_threads())
            self.spend()
        return used


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


def test_where_one_thread_is_all_there_is_nothing_is_tried(clock):
    assert choose(lambda: pytest.fail("tried"), most=1) == 1
    machine = Machine(clock, {1: 5.0})
    with using(1), Threads(log=pytest.fail) as chosen:
        assert set(machine.work(chosen, 20)) == {1} and not machine.tried


@pytest.mark.parametrize(("cost", "expected"), [({1: 0.8, 2: 0.4}, 2), ({1: 0.4, 2: 0.8}, 1)])
def test_work_is_tried_after_its_first_second(clock, cost, expected):
    machine, lines = Machine(clock, cost), []
    with Threads(log=lines.append) as chosen:
        used = machine.work(chosen, 20)
        assert chosen.number == torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2, "not restored"
    assert used[:2] == [2, 2] and set(used[3:]) == {expected} and machine.tried == [1] * 4 + [2] * 4
    assert lines == [f"{expected} thread{'s' * (expected > 1)} (chosen by measuring)"]


def test_beside_a_busy_program_one_unit_and_one_trial_are_slow(clock):
    machine = Machine(clock, {1: 0.2, 2: 14.0})
    with Threads() as chosen:
        assert machine.work(chosen, 8) == [2] + [1] * 7
    assert machine.tried.count(2) == 1


def test_short_work_is_left_alone(clock):
    machine = Machine(clock, {1: 0.001, 2: 0.09})
    with Threads(log=pytest.fail) as chosen:
        assert set(machine.work(chosen, 10)) == {2} and not machine.tried


@pytest.mark.parametrize("setting", [{"device": "cuda"}, {}])
def test_other_devices_and_several_processes_are_left_alone(clock, monkeypatch, setting):
    monkeypatch.setattr(threads, "several", lambda: not setting)
    machine = Machine(clock, {2: 5.0})
    with Threads(**setting) as chosen:
        assert set(machine.work(chosen, 20)) == {2}


def test_a_requested_number_is_kept_without_trials(clock):
    machine, lines = Machine(clock, {1: 5.0}), []
    with Threads(1, log=lines.append) as chosen:
        assert set(machine.work(chosen, 40)) == {1}
    assert lines == ["1 thread (as requested)"] and torch.get_num_threads() == 2


def test_a_fixed_number_reaches_all_work_inside(clock):
    machine = Machine(clock, {1: 5.0})
    with fixed(1):
        with Threads() as chosen:
            assert set(machine.work(chosen, 40)) == {1}
        assert torch.get_num_threads() == 1
    with fixed(None), Threads() as chosen:
        assert torch.get_num_threads() == 2 and chosen.measures


def test_an_earlier_number_is_kept_without_a_first_trial(clock):
    machine = Machine(clock, {1: 2.0})
    with Threads(start=1) as chosen:
        assert set(machine.work(chosen, 40)) == {1} and not machine.tried
    with Threads(start=8) as chosen:
        assert chosen.number == 2, "more threads than there are"


def test_a_choice_holds_when_the_context_is_entered_again(clock):
    machine = Machine(clock, {1: 0.2, 2: 14.0})
    chosen = Threads()
    with chosen:
        machine.work(chosen, 4)
    with chosen:
        assert machine.work(chosen, 4) == [1] * 4 and chosen.most == 2


def test_a_slowdown_by_half_leads_to_a_new_choice(clock):
    machine, lines = Machine(clock, {1: 0.4, 2: 0.2}), []
    with Threads(log=lines.append) as chosen:
        assert set(machine.work(chosen, 400)) == {2} and len(machine.tried) == 8, "a trial without a slowdown"
        machine.cost[2] = 10.0  # another program takes a core
        used = machine.work(chosen, 40)
        assert used.count(2) < 8 and chosen.number == torch.get_num_threads() == 1
    assert lines == ["2 threads (chosen by measuring)", "1 thread (chosen by measuring)"]


def test_trials_are_rare(clock):
    machine = Machine(clock, {1: 0.04, 2: 0.02})
    with Threads() as chosen:
        machine.work(chosen, 100)
        machine.cost[2] = 0.3
        machine.work(chosen, 80)
        assert machine.tried.count(1) == 4, "a trial before REST had passed"
        machine.work(chosen, 80)
        assert machine.tried.count(1) == 8


def test_all_threads_are_tried_again_after_a_while(clock):
    machine = Machine(clock, {1: 0.4, 2: 10.0})
    with Threads() as chosen:
        assert machine.work(chosen, 20)[-1] == 1
        machine.cost[2] = 0.2
        assert set(machine.work(chosen, 400)) == {1}
        clock[0] += threads.AGAIN
        assert machine.work(chosen, 20)[-1] == 2


def test_the_number_is_restored_after_an_error():
    with pytest.raises(KeyError), Threads(1):
        raise KeyError
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("zero", [lambda: Threads(0), lambda: fixed(0).__enter__()])
def test_zero_threads_are_refused(zero):
    with pytest.raises(ValueError, match="expected threads to be a whole number of at least 1, found 0"):
        zero()


def test_an_eager_trial_comes_before_the_first_unit(monkeypatch):
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "choose", lambda work, most: work() or 1)
    done = []
    with Threads(eager=True) as chosen:
        for unit in chosen.over("ab", trial=lambda unit: done.append(f"trial {unit}")):
            done.append(f"{unit} with {chosen.number}")
    assert done == ["trial a", "a with 1", "b with 1"]


def test_a_thousand_threads_are_not_started():
    """OpenMP ends the process where the memory of so many threads is not to be had: a run of a larger machine goes on here."""
    most, lines = max(64, 4 * os.cpu_count()), []
    with Threads(most + 1, log=lines.append) as threads:
        assert (threads.number, torch.get_num_threads()) == (most, most)
    assert lines == [f"{most} threads (instead of the {most + 1} requested)"]
    with fixed(most + 1):
        assert torch.get_num_threads() == most
