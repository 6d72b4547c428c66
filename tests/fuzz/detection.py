"""The detectors of `vergence.decide`, with usual arguments of which some are odd."""

import inspect
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from tests.fuzz import mutations
from tests.fuzz.calls import SCALARS
from tests.fuzz.files import Target
from tests.fuzz.judge import Refused

from vergence import decide

__all__ = ["TARGETS"]

N, D = 40, 4
SCALES = [1e-300, 1e-200, 1e-30, 1e30, 1e200, 1e300]
FORMS = ["array"] * 6 + ["tensor"] * 3 + ["list"]
SPECIAL = {  # values other than arrays of numbers
    "objects": lambda: np.array([{}, None, "a"], object),
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "texts": lambda: ["a"] * N,
    "complex": lambda: torch.ones(N, D, dtype=torch.complex64),
    "sparse": lambda: csr_matrix(np.eye(N, D)),
    "path": lambda: Path("none"),
    "function": lambda: len,
    "set": lambda: {1.0, 2.0},
    "bytes": lambda: b"abc",
    "generator": lambda: np.random.default_rng(0),
    "slice": lambda: slice(None),
}


@st.composite
def _given(draw, arrays):
    """A described array in some form."""
    return {**draw(arrays), "form": draw(st.sampled_from(FORMS))}


def _usual(*shapes, fills=("normal",), dtypes=("<f4", "<f8")):
    return _given(mutations.usual(shapes, dtypes, fills))


@st.composite
def _odd(draw, shapes, special=tuple(SPECIAL)):
    """Another array, one of extreme values, or something else."""
    how = draw(st.sampled_from(["array", "array", "scale", "half", "special", "scalar"]))
    if how == "special":
        return {"special": draw(st.sampled_from(special))}
    if how == "scalar":
        return {"value": draw(SCALARS)}
    if how == "array":
        return draw(_given(mutations.arrays(shapes)))
    array = draw(_usual(*shapes, fills=["normal", "unit"], dtypes=["<f8"]))
    return {**array, "form": "bfloat16"} if how == "half" else {**array, "scale": draw(st.sampled_from(SCALES))}


def _plain(*values):
    return st.sampled_from(values).map(lambda value: {"value": value})


NUMBERS = SCALARS | st.sampled_from([10**6, 10**30, -(10**30), 1e-300, 1 - 1e-16, 1e-16, "bh", 2**31, 2**63])
ODD_SETTING = NUMBERS.map(lambda value: {"value": value})


def _value(given):
    """Returns the value of a description."""
    if "value" in given:
        return given["value"]
    if "special" in given:
        return SPECIAL[given["special"]]()
    x = mutations.build(given)
    with np.errstate(all="ignore"):
        x = x * given["scale"] if "scale" in given else x
    if given["form"] == "list":
        return x.tolist()
    tensor = given["form"] != "array" and x.dtype.kind in "fiub" and x.dtype.isnative and x.dtype.str not in ("<u8", "<u2")
    x = torch.from_numpy(np.array(x)) if tensor else x
    return x.bfloat16() if given["form"] == "bfloat16" else x


FEATURES = _usual((N, D))
ARRAYS = ("bytes", "complex", "ragged", "texts")  # of other objects scikit-learn's contract wants a TypeError
DETECTORS = {
    "GaussianDetector": {"n_components": [None, 2], "shrinkage": [0.5], "trim": [0.0, 0.1], "standardize": [True, False]},
    "MixtureDetector": {"n_components": [1, 2], "n_directions": [2], "reg_covar": [1e-3]},
    "NeighborDetector": {"n_neighbors": [1, 5], "max_items": [None, 10], "keep": ["random"], "metric": ["euclidean", "cosine"]},
}


@st.composite
def _detectors(draw, place):
    kind = draw(st.sampled_from(sorted(DETECTORS)))
    known = DETECTORS[kind]
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=2, unique=True))
    settings = {name: {"value": draw(st.sampled_from(known[name]))} for name in names}
    shapes = [(N, D), (12, D), (2, D), (12,)]
    valid = {
        "kind": st.just(kind),
        "settings": st.just(settings),
        "x": FEATURES,
        "weights": _plain(None) | _usual((N,), fills=["unit", "small_ints"]),
        "query": FEATURES,
        "call": st.sampled_from(["score_samples", "anomaly_score", "decision_function", "predict", "save"]),
    }
    every = [name for name in inspect.signature(getattr(decide, kind)).parameters if name != "self"]
    odd = {
        "settings": st.dictionaries(st.sampled_from(every), ODD_SETTING, min_size=1, max_size=2), "x": _odd(shapes, ARRAYS),
        "weights": _odd([(N,), (12,)], ARRAYS), "query": _odd(shapes, ARRAYS),
    }  # fmt: skip
    return draw(mutations.near(valid, odd, [0, 0, 1, 1, 1, 2]))


def _detect(case, place):
    """Fits and scores a detector; scikit-learn's checks of estimators want a TypeError for features that are not numbers."""
    try:
        _fit_and_score(case, place)
    except TypeError as error:
        if "must be a string or a real number" not in str(error):
            raise
        raise Refused(str(error)) from None


def _fit_and_score(case, place):
    settings = {name: _value(setting) for name, setting in case["settings"].items()}
    model = getattr(decide, case["kind"])(**settings).fit(_value(case["x"]), sample_weight=_value(case["weights"]))
    query = _value(case["query"])
    if case["call"] == "save":
        with place.scratch() as folder:
            model.save(folder / "x.safetensors")
            again = decide.Detector.load(folder / "x.safetensors")
        np.testing.assert_array_equal(again.score_samples(query), model.score_samples(query))
    else:
        scores = getattr(model, case["call"])(query)
        assert not np.isnan(scores).any(), "scores that are not numbers"


TARGETS = [Target("call-detectors", 10, _detectors, _detect, one_line=False)]
