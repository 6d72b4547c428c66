"""Trains every objective on random embeddings for many steps, and checks that memory is flat and every value finite.

    python tests/kill/long.py --steps 100000
    python tests/kill/long.py --steps 100000 --objective vje

An encoder of two layers maps random items to embeddings (B=32, D=8). Memory is the resident set after 10 % of the steps and at
the end.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

from vergence.learn import objectives

B, D = 32, 8
GROWTH = 24.0  # MiB that the resident set may grow between 10 % of the steps and the end


def resident():
    """Returns the resident set of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def trained(name, steps, seconds=float("inf")):
    """Trains for some steps or seconds; returns the steps that were done, and memory at 10 % and at the end.

    Raises:
        AssertionError: A term, a parameter or a buffer of the state is not a number.
    """
    torch.manual_seed(0)
    objective, encoder = objectives.get(name)(D), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, D))
    optimizer = torch.optim.AdamW([*encoder.parameters(), *objective.parameters()], lr=1e-3, fused=True)
    memory, started = [], time.monotonic()
    for step in range(1, steps + 1):
        x = torch.randn(B, 16)
        za, zb = encoder(x), encoder(x + 0.3 * torch.randn(B, 16))
        loss = sum(objective(za, zb).values())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            objective.update(za.detach(), zb.detach())
        assert torch.isfinite(loss), f"{name}: the loss is {loss.item()} at step {step}"
        if step == max(1, steps // 10):
            memory.append(resident())
        if time.monotonic() - started > seconds:
            break
    state = {**objective.state_dict(), **encoder.state_dict()}
    assert not any(value.isnan().any() for value in state.values() if value.is_floating_point()), f"{name}: NaN in the state"
    return step, [*memory, resident()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="longest time of an objective")
    parser.add_argument("--objective", choices=objectives.names())
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    grown = []
    for name in [arguments.objective] if arguments.objective else objectives.names():
        started = time.monotonic()
        done, memory = trained(name, arguments.steps, arguments.seconds)
        growth = memory[-1] - memory[0]
        grown += [name] if growth > GROWTH else []
        took = time.monotonic() - started
        print(
            f"{name}: {done} of {arguments.steps} steps in {took:.0f} s, {memory[0]:.0f} MiB, then {growth:+.1f} MiB", flush=True
        )
    if grown:
        sys.exit(f"memory grew by more than {GROWTH:.0f} MiB: {', '.join(grown)}")


if __name__ == "__main__":
    main()
