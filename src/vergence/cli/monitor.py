"""``vergence monitor``."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vergence.utils import terminal
from vergence.utils.checks import counted, expect, in_percent, shown

if TYPE_CHECKING:
    from vergence.decide import Monitor as State

KEPT = 1000  # items after which the state of a stream of lines is saved, and the same alarm is printed again


@dataclass(kw_only=True)
class Monitor:
    """Report when the scores of a stream differ from those of calibration items, one line per alarm.

    After an alarm it starts again from the calibration scores; the same alarm is printed once per thousand items, that of
    standard input at once.
    """

    calibration: Annotated[Positional[Path], arg(metavar="CALIBRATION")]
    """Table (.csv, .parquet, ...), .npy or .npz with scores of normal items that no fit has seen."""
    stream: Annotated[Positional[Path], arg(metavar="STREAM")]
    """The same, of new items in their order; or JSON lines, numbers or objects, as .jsonl or, for standard input, as -."""
    state: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: start anew)")] = None
    """File that keeps what was seen, so that the next night continues; it is created if there is none."""
    column: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: score)")] = None
    """Column of the scores."""
    alarm: Annotated[float, arg(help="Probability, over all time, of an alarm though nothing changes.")] = 0.01
    seed: Annotated[int, arg(help="Seed of the random numbers that break ties.")] = 0
    fail_on: Annotated[Literal["nothing", "alarm"], arg(help="What makes the exit code 1.")] = "nothing"
    lower_is_anomalous: bool = False
    """Lower scores are more anomalous, as of log-likelihoods."""


def monitor(command: Monitor) -> None:
    """Runs ``vergence monitor``."""
    sign = -1.0 if command.lower_is_anomalous else 1.0
    state = _state(command, sign)
    printed, kind, skipped, alarms, seen, live = 0, "", 0, 0, 0, str(command.stream) == "-"
    lines: list[str] = []
    for seen, score in enumerate(_scores(command), 1):
        if score != score:
            skipped += 1
        elif state.update([sign * score]):
            alarms += 1
            if state.drift != kind or seen - printed >= KEPT:
                printed, kind = seen, state.drift
                lines.append(f"alarm at item {seen:,}: {kind} ({counted(state.items, 'item')} since the start)")
                if live:
                    print(lines[-1], flush=True)
            state.reset()
        if command.state is not None and live and seen % KEPT == 0:
            state.save(command.state)
    if command.state is not None:
        state.save(command.state)
    if skipped:
        terminal.note(f"{counted(skipped, 'item')} without a number skipped")
    few = f" ({len(lines):,} listed: the same one once in {KEPT:,} items)" if len(lines) < alarms else ""
    print(f"{counted(alarms, 'alarm')} in {counted(seen, 'item')}{few}; {counted(state.items, 'item')} since the last start.")
    print(f"From each start, an alarm without a change has a probability of at most {in_percent(command.alarm)}, over all time.")
    print("".join(f"{line}\n" for line in lines if not live), end="")
    if alarms and command.fail_on == "alarm":
        sys.exit(1)


def _state(command: Monitor, sign: float) -> "State":
    """Returns the state of the file, which must be of the same calibration scores and alarm, or a new one."""
    import numpy as np

    from vergence.decide import Monitor as State
    from vergence.decide.files import read_scores

    new = State(sign * read_scores(command.calibration, command.column), command.alarm, command.seed)
    if command.state is None or not command.state.exists():
        return new
    old = State.load(command.state)
    same = np.array_equal(old.calibration, new.calibration) and (old.alarm, old.seed) == (new.alarm, new.seed)
    expect(same, f"the calibration scores, --alarm and --seed of {command.state}", "others", "name another --state")
    return old


def _scores(command: Monitor) -> Iterator[float]:
    """Yields the scores of the stream; NaN for items without a number."""
    from vergence.decide.files import read_scores

    if str(command.stream) != "-" and command.stream.suffix not in (".jsonl", ".ndjson"):
        yield from read_scores(command.stream, command.column).tolist()
        return
    name, lines = command.column or "score", sys.stdin if str(command.stream) == "-" else command.stream.open(errors="replace")
    with lines:
        for i, line in enumerate(lines, 1):
            if line.strip():
                yield _of_line(line, i, name)


def _of_line(line: str, i: int, name: str) -> float:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        row = line
    value = row.get(name) if isinstance(row, dict) else row
    if value is None or value != value:
        return float("nan")
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    expect(number, f"a number, or an object with {name}, in line {i:,}", shown(value))
    return float(value)
