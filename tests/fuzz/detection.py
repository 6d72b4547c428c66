"""The functions and detectors of `vergence.detection`, with usual arguments of which some are odd."""

import inspect
import math
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from tests.fuzz import mutations
from tests.fuzz.calls import SCALARS
from tests.fuzz.files import Target
from tests.fuzz.judge import Refused

from vergence import detection

__all__ = ["TARGETS"]

N, M, D = 40, 12, 4
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


# Arguments


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


@st.composite
def _near(draw, valid, odd):
    """As `mutations.near`, with fewer odd parts."""
    n = draw(st.sampled_from([0, 0, 1, 1, 1, 2]))
    changed = draw(st.lists(st.sampled_from(sorted(odd)), min_size=min(n, len(odd)), max_size=n, unique=True))
    return {name: draw(odd[name] if name in changed else part) for name, part in valid.items()}


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
    if "levels" in given:
        return {name: _value(one) for name, one in given["levels"].items()}
    if "pair" in given:
        return tuple(map(_value, given["pair"]))
    x = mutations.build(given)
    with np.errstate(all="ignore"):
        x = x * given["scale"] if "scale" in given else x
    if given["form"] == "list":
        return x.tolist()
    tensor = given["form"] != "array" and x.dtype.kind in "fiub" and x.dtype.isnative and x.dtype.str not in ("<u8", "<u2")
    x = torch.from_numpy(np.array(x)) if tensor else x
    return x.bfloat16() if given["form"] == "bfloat16" else x


# Functions

FEATURES, SCORES, NEW = _usual((N, D)), _usual((N,)), _usual((M,))
LEVELS, IMAGES = _usual((M,), (N,), fills=["unit"]), _usual((M, 3, 8, 8), (M, 1, 16, 12), fills=["unit"])
LABELS = _usual((M,), fills=["small_ints"], dtypes=["<i8"])
FOLDS = _usual((N,), fills=["small_ints"], dtypes=["<i8", "<f4"])
FDR, SEED, CONFIDENCE = _plain(0.1, 0.5), _plain(0, 7, None), _plain(0.95, 0.5)
BYTES = _usual((M, 3, 8, 8), (M, 1, 16, 12), fills=["small_ints"], dtypes=["|u1"])
PICTURES = IMAGES | BYTES
BATCHES = IMAGES.map(lambda images: {"pair": [{**images, "form": "tensor", "dtype": "<f4"}]})
CONFORMAL = {
    "p_values": {"calibration": SCORES, "scores": NEW},
    "select": {"p_values": LEVELS, "fdr": FDR},
    "q_values": {"p_values": LEVELS},
    "needed_calibration": {"n_items": _plain(100, 10**6), "n_odd": _plain(1, 10), "fdr": FDR},
    "reportable": {"n_calibration": _plain(1, 500), "n_items": _plain(1, 1000), "fdr": FDR},
    "simultaneous_bounds": {"p_values": LEVELS, "n_calibration": _plain(N, 1000), "confidence": CONFIDENCE},
    "certify": {"calibration": SCORES, "threshold": _plain(0.5), "confidence": CONFIDENCE},
    "fpr_threshold": {"calibration": SCORES, "fpr": _plain(0.2, 0.5), "confidence": CONFIDENCE},
    "needed_for_fpr": {"fpr": FDR, "confidence": CONFIDENCE},
    "to_label": {"calibration": SCORES, "budget": _plain(1, 3)},
    "label_trim": {"calibration": SCORES, "confirmed": _plain([], [3]), "budget": _plain(N)},
    "tail_p_values": {"scores": _usual((130,), (1000,))},
}
GROUPS = {
    "odd_groups": {
        "features": _usual((130, D)),
        "smallest": _plain(5),
        "directions": _plain(16, None),
        "separation": _plain(1.2),
    },
    "near_duplicates": {"features": FEATURES, "threshold": _plain(0.99)},
    "leaks": {"train": FEATURES, "test": _usual((M, D)), "threshold": _plain(0.99)},
    "similarity_threshold": {"features": FEATURES, "views": FEATURES, "share": _plain(0.95), "deviations": _plain(4.0)},
    "grouped": {"pairs": _plain([[0, 3], [3, 5]]), "n": _plain(6)},
    "outlying_features": {"x": _usual((M, D)), "typical": FEATURES, "names": _plain([], ["a", "b", "c", "d"])},
    "explain": {"levels": _plain(["a", "b"]), "p_values": _usual((M, 2), fills=["unit"]), "n": _plain(100)},
    "extremes": {"measurements": NEW.map(lambda a: {"levels": {"a": a}}), "typical": SCORES.map(lambda a: {"levels": {"a": a}})},
    "look_at": {"n": _plain(1, 1000), "fdr": FDR, "noun": _plain("item")},
    "cross_fit": {"X": FEATURES, "n_folds": _plain(2), "groups": _plain(None) | FOLDS, "random_state": SEED},
    "image_size": {"file": _plain("photos/0.png")},
}
PIXELS = {
    "pixel_statistics": {"images": PICTURES, "grid": _plain(4, 1)},
    "measure": {"images": PICTURES, "sizes": _plain(None) | _usual((M, 2), fills=["one"])},
    "mild_views": {"images": PICTURES},
    "thumbnails": {"images": PICTURES},
    "near_groups": {
        "images": PICTURES,
        "equal": _plain(None) | LABELS,
        "random_state": _plain(0),
    },
    "patch_dictionary": {
        "batches": BATCHES,
        "atoms": _plain(8),
        "stride": _plain(2),
    },
}


def _cases(functions):
    """Calls of functions of which none, some or all arguments are odd."""

    def of(name):
        arguments = functions[name]
        shapes = [(N, D), (N,), (M,), (M, 3, 8, 8)]
        odd = {key: _odd(shapes) if _is_data(part) else ODD_SETTING for key, part in arguments.items() if key not in FIXED}
        return _near(arguments, odd).map(lambda given: {"call": name, "arguments": given})

    return lambda place: st.sampled_from(sorted(functions)).flatmap(of)


DATA = [BATCHES, LABELS, FEATURES, SCORES, NEW, LEVELS, IMAGES, PICTURES, FOLDS]


FIXED = {"levels", "names"}  # sequences of texts


def _is_data(part):
    return any(part is one for one in DATA) or "_given" in repr(part)


def _call(case, place):
    given = {name: _value(one) for name, one in case["arguments"].items()}
    if case["call"] == "image_size" and given["file"] == "photos/0.png":
        given["file"] = place.path / given["file"]
    if case["call"] == "cross_fit":
        given["detector"] = detection.GaussianDetector()
    _use(getattr(detection, case["call"])(**given), case["call"])


def _use(result, name):
    """Uses the result as a caller would."""
    str(result)
    if name in ("p_values", "q_values", "tail_p_values"):
        p = np.asarray(result)
        assert ((p >= 0) & (p <= 1)).all(), f"p-values {p}"
    if isinstance(result, detection.SimultaneousBounds):
        result.by_length(), result.longest(0.2), result.false_discoveries(np.ones(len(result.p_values), bool))
    if isinstance(result, detection.Measured):
        detection.flags(result)
    if isinstance(result, detection.Certificate):
        numbers = [value for value in vars(result).values() if isinstance(value, float)]
        assert not any(map(math.isnan, numbers)), f"{result!r}"


# Detectors

ARRAYS = ("bytes", "complex", "ragged", "texts")  # of other objects scikit-learn's contract wants a TypeError
DETECTORS = {
    "GaussianDetector": {"n_components": [None, 2], "shrinkage": ["oas", 0.5], "trim": [0.0, 0.1], "standardize": [True, False]},
    "MixtureDetector": {"n_components": [1, 2], "covariance_type": ["full", "diag"], "n_directions": [2], "reg_covar": [1e-3]},
    "NeighborDetector": {
        "n_neighbors": [1, 5],
        "max_items": [None, 10],
        "keep": ["random", "centers"],
        "metric": ["euclidean", "cosine"],
    },
    "CombinedDetector": {
        "combine": ["least", "least_ranked", "fisher", "cauchy", "stouffer"],
        "weights": [None],
        "calibration": [0.2, 0.0],
        "columns": [None],
    },
}


@st.composite
def _detectors(draw, place):
    kind = draw(st.sampled_from(sorted(DETECTORS)))
    known = DETECTORS[kind]
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=2, unique=True))
    settings = {name: {"value": draw(st.sampled_from(known[name]))} for name in names}
    shapes = [(N, D), (M, D), (2, D), (M,)]
    two = st.fixed_dictionaries({"a": FEATURES, "b": FEATURES}).map(lambda levels: {"levels": levels})
    x = FEATURES if kind != "CombinedDetector" else FEATURES | two
    valid = {
        "kind": st.just(kind),
        "settings": st.just(settings),
        "x": x,
        "weights": _plain(None) | _usual((N,), fills=["unit", "small_ints"]),
        "query": x,
        "call": st.sampled_from(["score_samples", "anomaly_score", "decision_function", "predict", "contributions", "save"]),
    }
    every = [name for name in inspect.signature(getattr(detection, kind)).parameters if name != "self"]
    odd = {
        "settings": st.dictionaries(st.sampled_from(every), ODD_SETTING, min_size=1, max_size=2),
        "x": _odd(shapes, ARRAYS),
        "weights": _odd([(N,), (M,)], ARRAYS),
        "query": _odd(shapes, ARRAYS),
    }
    return draw(_near(valid, odd))


def _detect(case, place):
    """Fits and scores a detector; scikit-learn's checks of estimators want a TypeError for features that are not numbers."""
    try:
        _fit_and_score(case, place)
    except TypeError as error:
        if "must be a string or a real number" not in str(error):
            raise
        raise Refused(str(error)) from None


def _fit_and_score(case, place):
    settings = {name: _value(one) for name, one in case["settings"].items()}
    model = getattr(detection, case["kind"])(**settings).fit(_value(case["x"]), sample_weight=_value(case["weights"]))
    query = _value(case["query"])
    if case["call"] == "contributions" and case["kind"] == "CombinedDetector":
        assert not any(np.isnan(values).any() for values in model.contributions(query).values()), "contributions that are NaN"
        model.level(query)
    elif case["call"] == "save":
        with place.scratch() as folder:
            detection.save_detector(model, folder / "x.safetensors")
            again = detection.load_detector(folder / "x.safetensors")
        np.testing.assert_array_equal(again.score_samples(query), model.score_samples(query))
    else:
        scores = getattr(model, case["call"] if case["call"] != "contributions" else "predict")(query)
        assert not np.isnan(scores).any(), "scores that are not numbers"


# Pairs


@st.composite
def _surprises(draw, place):
    settings = {"target": _usual((3, 2)), "n_samples": _plain(8), "random_state": _plain(0)}
    odd = {"target": _odd([(3, 2), (3,)]), "n_samples": ODD_SETTING, "random_state": ODD_SETTING}
    return draw(_near(settings, odd))


def _surprise(case, place):
    density = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(3, 2), 1.0), 1)
    given = {name: _value(one) for name, one in case.items()}
    detection.surprise(density, **given)


TARGETS = [
    Target("call-conformal", 8, _cases(CONFORMAL), _call, one_line=False),
    Target("call-groups", 5, _cases(GROUPS), _call, one_line=False),
    Target("call-pixels", 4, _cases(PIXELS), _call, one_line=False),
    Target("call-detectors", 10, _detectors, _detect, one_line=False),
    Target("call-surprise", 1, _surprises, _surprise, one_line=False),
]
