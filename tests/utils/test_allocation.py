"""Freed memory that is kept: page faults of repeated large blocks, and what comes back at the end."""

import os
import subprocess
import sys

import pytest
import torch

from vergence.data.items import ArrayItems
from vergence.evaluation import features
from vergence.utils import allocation

pytestmark = pytest.mark.skipif(allocation._glibc() is None, reason="glibc's malloc only")
BLOCK, LEAST = 64 << 20, 32  # bytes of a block, and its least page faults: of pages of 2 MiB, which a system may choose

PROGRAM = """
import resource
from vergence.utils.allocation import kept_memory

def faults(times=10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        b"x" * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1])

print(faults())
with kept_memory():
    faults(1)
    print(faults())
    with kept_memory():
        pass
    print(faults())
    inside = resident()
print(inside - resident())
print(faults())
"""


def measured(**environment):
    """Returns the numbers that the program prints, in a process of its own."""
    clean = {k: v for k, v in os.environ.items() if k not in allocation.VARIABLES}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    return [int(line) for line in run.stdout.split()]


def test_a_freed_block_is_taken_again_without_a_page_fault_and_returned_at_the_end():
    before, kept, nested, returned, after = measured()
    assert before > 9 * LEAST and after > 9 * LEAST, "each of ten blocks is new without the context"
    assert kept < before / 10 and nested < before / 10, "an inner context that ends changes nothing"
    assert returned * os.sysconf("SC_PAGE_SIZE") > 0.9 * BLOCK, "what is free returns when the outermost context ends"


def test_settings_of_the_environment_are_left_as_they_are():
    before, kept, *_ = measured(MALLOC_MMAP_THRESHOLD_=str(1 << 20))
    assert kept > before / 2 > 4 * LEAST


def test_the_context_is_a_context_where_the_library_is_another(monkeypatch):
    monkeypatch.setattr(allocation.sys, "platform", "darwin")
    with allocation.kept_memory():
        assert allocation._open == []


def test_an_error_inside_ends_the_context(monkeypatch):
    for name in allocation.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(KeyError), allocation.kept_memory():
        assert len(allocation._open) == 1
        raise KeyError
    assert allocation._open == []


@pytest.mark.parametrize(("batch_size", "kept"), [(4, [True, True]), (8, [False])])
def test_embeddings_of_several_batches_keep_memory_and_those_of_one_return_none(monkeypatch, batch_size, kept):
    for name in allocation.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    inside = features.stream(lambda x: bool(allocation._open), ArrayItems(torch.zeros(8, 2)), batch_size=batch_size)
    assert [answer for _, answer in inside] == kept
    assert allocation._open == []
