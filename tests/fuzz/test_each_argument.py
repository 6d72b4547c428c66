"""Every argument takes every odd value, one at a time: success, or one ValueError.

`test_fuzz.py` changes several arguments at random; this goes through all of them in order, with valid values for the rest.
`accepted.json` has the values that the functions accept. A check that is taken out, or a new one, changes them: correct the row
that the test prints if that is meant.
"""

import inspect
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.fuzz import calls, detection, mutations
from tests.fuzz.functions import FUNCTIONS, VALUES, odd
from tests.fuzz.judge import Finding, Refused, run
from tests.fuzz.place import MODELS

import vergence
from vergence import decide, linear, mixtures

pytestmark = [pytest.mark.filterwarnings("ignore")]

ACCEPTED = json.loads((Path(__file__).parent / "accepted.json").read_text())
TARGETS = {target.name: target for target in (*calls.TARGETS, *detection.TARGETS)}
NUMBERS = [{"special": name} for name in detection.ARRAYS] + [{"value": value} for value in VALUES]
LINEAR = ("JointEmbedding", "Reconstruction")
ESTIMATORS = [name for name in FUNCTIONS if "." in name]  # scikit-learn wants a TypeError for features that are no numbers
LIBRARIES = ("surprise", "cross_fit", "systematic", *ESTIMATORS)  # where PyTorch and scikit-learn check, too


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


def check(target, place, cases):
    """Runs all cases; each succeeds or is refused."""
    findings = {}
    for case in cases:
        try:
            run(TARGETS[target], case, place)
        except (ValueError, Refused):
            continue
        except Finding as finding:
            findings.setdefault(finding.where, f"{case}\n{finding.story}")
    assert findings == {}


def of_settings(valid, names, fixed=()):
    """Returns a case for every setting and value."""
    return [{**valid, "settings": {**dict(fixed), name: value}} for name in names for value in VALUES]


@pytest.mark.slow
@pytest.mark.float32
@pytest.mark.parametrize("kind", detection.DETECTORS)
def test_detectors(place, kind):
    x = usual(detection.FEATURES)
    valid = {"kind": kind, "settings": {}, "x": x, "weights": {"value": None}, "query": x, "call": "save"}
    names = [name for name in inspect.signature(getattr(decide, kind)).parameters if name != "self"]
    cases = [{**valid, key: value} for key in ("x", "weights", "query") for value in NUMBERS]
    cases += [{**valid, "settings": {name: {"value": value}}} for name in names for value in VALUES]
    check("call-detectors", place, cases)


@pytest.mark.slow
@pytest.mark.float32
@pytest.mark.parametrize("model", sorted(MODELS))
def test_mixtures(place, model):
    x = array(40, 2)
    valid = {"model": model, "tensor": False, "context": x, "target": x, "query": x, "call": "predict"}
    names = mixtures.get(model)._get_param_names()
    check("call-mixtures", place, of_settings(valid, names, {"steps": 10} if "steps" in names else {}))


@pytest.mark.slow
@pytest.mark.float32
@pytest.mark.parametrize("kind", LINEAR)
def test_linear_estimators(place, kind):
    valid = {"kind": kind, "tensor": False, "x": array(40, 6), "query": array(3, 6)}
    check("call-linear", place, of_settings(valid, getattr(linear, kind)._get_param_names()))


@pytest.mark.slow
@pytest.mark.float32
def test_advice(place):
    valid = {"tensor": False, "x": array(130, 6), "noise": "function"}
    names = [name for name in inspect.signature(vergence.advise).parameters if name not in ("data", "augmentation")]
    check("call-advise", place, of_settings(valid, names))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function, valid = FUNCTIONS[name]
    accepted = {}
    for argument, usual_value in valid.items():
        for text, value in odd(usual_value).items():
            try:
                function(**{**valid, argument: value})
            except TypeError as error:
                assert name in ESTIMATORS and "must be a string or a real number" in str(error), (argument, text)
            except ValueError as error:
                said = str(error)
                named = ("expected" in said or argument in said) and "\n" not in said
                assert named or name in LIBRARIES, (argument, text, said)
            else:
                accepted.setdefault(argument, []).append(text)
    assert accepted == ACCEPTED.get(name), f"of tests/fuzz/accepted.json:\n{json.dumps({name: accepted})}"
