"""Compares the library's growing neural gas with the tests' reference in plain Python: signals a second on one core, in turn.

python benchmarks/neural_gas_speed.py      # adds a row to results/neural_gas.jsonl; half a minute

Both have grown to 100 nodes in 32 features on the same standard normal signals before timing starts.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import ledger
import numpy as np
import torch
from tests.reference.neural_gas import Gas
from threadpoolctl import threadpool_limits

from vergence.densities.neural_gas import NeuralGas

NODES, D = 100, 32


def seconds(f: Callable[[], object]) -> float:
    began = time.perf_counter()
    f()
    return time.perf_counter() - began


def measure(rounds: int, signals: int, slow_signals: int, nodes: int = NODES) -> dict:
    """Returns medians over rounds, the rates of each, and whether both graphs are the same after the same signals."""
    rng = np.random.default_rng(0)
    begin = rng.normal(size=(2 + 100 * nodes, D))
    ours, twin = (NeuralGas(max_nodes=nodes).adapt(begin) for _ in range(2))
    slow = Gas(max_nodes=nodes).run(begin.tolist())
    rates = []
    for _ in range(rounds):
        x = rng.normal(size=(signals, D))
        few = x[:slow_signals].tolist()
        rates.append((signals / seconds(lambda x=x: ours.adapt(x)), slow_signals / seconds(lambda few=few: slow.run(few))))
        twin.adapt(few)
    found, reference = (statistics.median(column) for column in zip(*rates, strict=True))
    positions, _, ages = (np.array(v) for v in slow.tables())
    same = bool((twin.ages == ages).all() and np.allclose(twin.nodes, positions, 0, 1e-9))
    row = {"measurement": "signals / s", "nodes": len(ours.nodes), "d": D, "edges": len(ours.edges), "signals_per_second": found}
    return row | {"reference": reference, "ratio": found / reference, "same": same, "rounds": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--signals", type=int, default=20_000)
    parser.add_argument("--slow-signals", type=int, default=2_000, help="signals a round of the reference")
    a = ledger.parse(parser, "neural_gas")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        values = measure(1, 200, 50, nodes=10) if a.tiny else measure(a.rounds, a.signals, a.slow_signals)
    ledger.add(a.out, ledger.row(values, seed=0))
    print(f"ours {values['signals_per_second']:.0f}/s, plain Python {values['reference']:.0f}/s: {values['ratio']:.1f} times")


if __name__ == "__main__":
    main()
