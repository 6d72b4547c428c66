"""Runs a program and notes the time after each optimizer step, and the network after each epoch; the program knows nothing of it.

    python measure.py PROGRAM SETTINGS.json FOLDER

writes ``FOLDER/result.json`` and ``FOLDER/epoch N.pt``. The time that saving takes is left out.
"""

import json
import resource
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Clock:
    """Times after each step, in processor seconds and by the wall clock, without what `epoch_ended` takes."""

    def __init__(self, steps: int, folder: Path, cuda: bool) -> None:
        self.steps, self.folder, self.cuda = steps, folder, cuda
        self.marks: list[tuple[float, float]] = []
        self.paused = [0.0, 0.0]

    def now(self) -> list[float]:
        if self.cuda:
            torch.cuda.synchronize()
        return [one - pause for one, pause in zip((time.process_time(), time.perf_counter()), self.paused, strict=True)]

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Notes the time; called after each step of any optimizer."""
        due = (len(self.marks) + 1) % self.steps == 0
        self.marks.append((*self.now(),) if due or len(self.marks) < 3 or not self.cuda else self.marks[-1])
        if due:
            before = self.now()
            self.epoch_ended(optimizer)
            self.paused = [pause + after - start for pause, after, start in zip(self.paused, self.now(), before, strict=True)]

    def epoch_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Saves the network whose parameters the optimizer has."""
        from network import built

        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        (net,) = (net for net in built if id(next(net.parameters())) in trained)
        state = {name: x.cpu() for name, x in net.state_dict().items()}
        torch.save(state, self.folder / f"epoch {len(self.marks) // self.steps}.pt")


def main() -> None:
    program, settings, folder = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    clock = Clock(settings["steps"] // settings["epochs"], folder, settings["device"] == "cuda")
    register_optimizer_step_post_hook(clock)
    sys.argv, sys.path[0] = [program, sys.argv[2]], str(Path(program).parent)
    began = clock.now()
    runpy.run_path(program, run_name="__main__")
    used = [end - start for end, start in zip(clock.now(), began, strict=True)]
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) // 1024
    if clock.cuda:
        peak = torch.cuda.max_memory_allocated() >> 20
    marks = [[m - b for m, b in zip(mark, began, strict=True)] for mark in clock.marks]
    (folder / "result.json").write_text(json.dumps({"marks": marks, "program": used, "peak_mib": peak}))


if __name__ == "__main__":
    main()
