"""Every argument of the estimators and of advice takes every odd value, one at a time: success, or one ValueError.

`test_fuzz.py` changes several arguments at random; this goes through all of them in order, with valid values for the rest.
"""

import inspect
import math

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.fuzz import calls, detection, mutations
from tests.fuzz.judge import Finding, Refused, run
from tests.fuzz.place import MODELS

import vergence
from vergence import linear, mixtures

pytestmark = [pytest.mark.slow, pytest.mark.float32, pytest.mark.filterwarnings("default")]

TARGETS = {target.name: target for target in (*calls.TARGETS, *detection.TARGETS)}
VALUES = [None, True, False, 0, 1, -1, 2, 0.5, 1.5, -0.5, math.nan, math.inf, -math.inf, "", "a", [], [1], {}, [None], ["a"]]
VALUES += [[[1.0]], [1.0, math.nan], 10**30, -(10**30), 1e-300, 1e300, 2**63]
NUMBERS = [{"special": name} for name in detection.ARRAYS] + [{"value": value} for value in VALUES]
LINEAR = ("JointEmbedding", "Reconstruction", "Supervised")
ITEMS = ("data", "augmentation")  # arguments of advise that its target names otherwise


def usual(strategy):
    """Returns a valid value."""
    found = []

    @seed(0)
    @settings(max_examples=1, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def draw(value):
        found.append(value)

    draw()
    return found[0]


def array(*shape):
    return usual(mutations.usual([shape]))


def findings(name, cases, place):
    """Returns what happened in the cases that neither succeeded nor were refused, by where it happened."""
    found = {}
    for case in cases:
        try:
            run(TARGETS[name], case, place)
        except (ValueError, Refused):
            continue
        except Finding as finding:
            found.setdefault(finding.where, f"{case}\n{finding.story}")
    return found


@pytest.mark.parametrize("kind", detection.DETECTORS)
def test_detectors(place, kind):
    x, none = usual(detection.FEATURES), {"value": None}
    valid = {"kind": kind, "settings": {}, "x": x, "weights": none, "query": x, "call": "save"}
    names = [name for name in inspect.signature(getattr(detection.detection, kind)).parameters if name != "self"]
    cases = [{**valid, key: value} for key in ("x", "weights", "query") for value in NUMBERS]
    cases += [{**valid, "settings": {name: {"value": value}}} for name in names for value in VALUES]
    assert findings("call-detectors", cases, place) == {}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_mixtures(place, model):
    x = array(40, 2)
    valid = {"model": model, "tensor": False, "context": x, "target": x, "query": x, "call": "predict"}
    names = mixtures.get(model)._get_param_names()
    short = {"steps": 10} if "steps" in names else {}
    cases = ({**valid, "settings": {**short, name: value}} for name in names for value in VALUES)
    assert findings("call-mixtures", cases, place) == {}


@pytest.mark.parametrize("kind", LINEAR)
def test_linear_estimators(place, kind):
    valid = {"kind": kind, "tensor": False, "x": array(40, 6), "y": array(40, 2), "query": array(3, 6)}
    names = getattr(linear, kind)._get_param_names()
    cases = ({**valid, "settings": {name: value}} for name in names for value in VALUES)
    assert findings("call-linear", cases, place) == {}


def test_advice(place):
    valid = {"tensor": False, "x": array(130, 6), "noise": "function"}
    names = [name for name in inspect.signature(vergence.advise).parameters if name not in ITEMS]
    cases = ({**valid, "settings": {name: value}} for name in names for value in VALUES)
    assert findings("call-advise", cases, place) == {}
