"""``vergence bench``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from vergence.cli import options

__all__ = ["Bench", "bench"]


@dataclass(kw_only=True)
class Bench:
    """Measure throughput of the bare encoder step and of the whole training step, and their ratio."""

    what: Positional[Literal["step", "embed", "score", "objective"]] = "step"
    """The training step; embedding or scoring against the bare forward pass; or an objective's share of a step."""
    encoder: str = "small"
    """Encoder, as for train."""
    objective: str = "vje"
    """Objective; all measures every one of them against one step."""
    dim: int = 128
    """Features of the embeddings that an objective is measured on."""
    size: int = 32
    """Side of the images, in pixels."""
    batch_size: int = 256
    """Images in a step; two views each."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic."""
    device: options.Device = "auto"
    rounds: int = 5
    """Rounds in which the two take turns; medians are printed."""
    out: Path | None = None
    """Ledger file (.jsonl) to add the row to."""


def bench(command: Bench) -> None:
    """Runs ``vergence bench``."""
    from vergence.runs.bench import bench as run_bench

    run_bench(**vars(command))
