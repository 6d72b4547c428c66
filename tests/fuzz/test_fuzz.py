"""Mutated files, arguments and arrays: each case succeeds, or is refused in one line.

docs/reference/guarantees_for_files.md lists what is promised.

`VERGENCE_FUZZ` is the number of cases in all; without it, 2,000 that never change. What is found is kept in `found/`.
"""

import json
import os
import random

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.fuzz import arguments, calls, detection, files
from tests.fuzz.judge import FOUND, Finding, Refused, Tally, keep, run

pytestmark = [pytest.mark.slow, pytest.mark.float32, pytest.mark.filterwarnings("default")]

TARGETS = {target.name: target for target in (*files.TARGETS, *arguments.TARGETS, *calls.TARGETS, *detection.TARGETS)}
LONG = "VERGENCE_FUZZ" in os.environ
CASES = int(os.environ.get("VERGENCE_FUZZ", 2000))
PART = 500  # cases of one test of a long run
COMMON = {
    "deadline": None, "database": None, "phases": [Phase.explicit, Phase.generate], "suppress_health_check": list(HealthCheck),
}  # fmt: skip
PROFILES = {"ci": settings(derandomize=True, **COMMON), "long": settings(**COMMON)}


def shares():
    """Returns the number of cases of each target."""
    whole = sum(target.share for target in TARGETS.values())
    return {name: max(1, round(CASES * target.share / whole)) for name, target in TARGETS.items()}


def parts():
    """Returns (target, cases, number of the part) of all tests."""
    return [(name, min(PART, n - start), start // PART) for name, n in shares().items() for start in range(0, n, PART)]


@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize(("name", "cases", "part"), parts())
def test_hostile_cases(place, name, cases, part):
    target, tally = TARGETS[name], Tally(running=FOUND / f"{name}-ended-{part}.json" if LONG else None)

    @settings(PROFILES["long" if LONG else "ci"], max_examples=cases)
    @given(st.data())
    def try_cases(data):
        tally.add(target, data.draw(target.strategy(place)), place)

    if LONG:
        try_cases = seed(random.SystemRandom().getrandbits(64))(try_cases)
    try_cases()
    stories = keep(target, tally)
    assert not stories, "\n\n".join(stories)


@pytest.mark.parametrize("file", sorted(FOUND.glob("*.json")), ids=lambda file: file.stem)
def test_what_was_found_is_fixed(place, file):
    found = json.loads(file.read_text())
    try:
        run(TARGETS[found["target"]], found["case"], place)
    except (ValueError, Refused):
        return
    except Finding as finding:
        pytest.fail(str(finding))
