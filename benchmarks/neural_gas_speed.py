"""Signals a second of growing neural gas on one core: the library's and the tests' reference in plain Python, taking turns.

python benchmarks/neural_gas_speed.py --out benchmarks/results/neural_gas.jsonl      # half a minute

Both have grown to 100 nodes in 32 features on the same standard normal signals before the clock starts.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from vergence.densities.neural_gas import NeuralGas
from vergence.training.build import commit

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.reference.neural_gas import Gas

NODES, D = 100, 32


def seconds(f: Callable[[], object]) -> float:
    began = time.perf_counter()
    f()
    return time.perf_counter() - began


def measure(rounds: int, signals: int, slow_signals: int) -> dict:
    """Returns medians over rounds, the rates of each, and whether both graphs are the same after the same signals."""
    rng = np.random.default_rng(0)
    begin = rng.normal(size=(2 + 100 * NODES, D))
    ours, twin = (NeuralGas(max_nodes=NODES).adapt(begin) for _ in range(2))
    slow = Gas(max_nodes=NODES).run(begin.tolist())
    rates = []
    for _ in range(rounds):
        x = rng.normal(size=(signals, D))
        few = x[:slow_signals].tolist()
        rates.append((signals / seconds(lambda x=x: ours.adapt(x)), slow_signals / seconds(lambda few=few: slow.run(few))))
        twin.adapt(few)
    found, reference = (statistics.median(column) for column in zip(*rates, strict=True))
    nodes, _, ages = (np.array(v) for v in slow.tables())
    same = bool((twin.ages == ages).all() and np.allclose(twin.nodes, nodes, 0, 1e-9))
    row = {"measurement": "signals / s", "nodes": len(ours.nodes), "d": D, "edges": len(ours.edges), "signals_per_second": found}
    return row | {"reference": reference, "ratio": found / reference, "same": same, "rounds": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--signals", type=int, default=20_000)
    parser.add_argument("--slow-signals", type=int, default=2_000, help="signals a round of the reference")
    parser.add_argument("--out", type=Path, help="append a row to this ledger")
    a = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        row = measure(a.rounds, a.signals, a.slow_signals)
    facts = {"command": "python benchmarks/neural_gas_speed.py", "threads": 1}
    facts |= {"commit": commit(), "torch": torch.__version__, "numpy": np.__version__}
    print(json.dumps(row))
    print(f"ours {row['signals_per_second']:.0f}/s, plain Python {row['reference']:.0f}/s: {row['ratio']:.1f} times")
    if a.out:
        with a.out.open("a") as ledger:
            ledger.write(json.dumps(row | facts) + "\n")


if __name__ == "__main__":
    main()
