"""The Python entry points with arrays of odd shapes, types and values, and settings of any type."""

import math

import numpy as np
import torch
from hypothesis import strategies as st
from tests.fuzz import mutations
from tests.fuzz.files import Target
from tests.fuzz.place import MODELS, QUICK

import vergence
from vergence import linear, mixtures
from vergence.cli.options import known_settings
from vergence.learn.objectives import names

__all__ = ["TARGETS"]

SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1, 2, 3, 1000, 0.5, -0.5, 1.5, 1e300, math.inf, math.nan, "a", "", [], [1], {}, [0.1, 1.0]]
)
# Values that are valid but only take time or memory are left out: how large a network may be is for people to say.
TRAIN = [
    name
    for name in known_settings()
    if name not in ("source", "root", "download", "device", "devices", "nodes", "epochs", "options")
]


def _array(description, tensor):
    x = mutations.build(description)
    return torch.from_numpy(np.array(x)) if tensor and x.dtype.kind in "fiub" and x.dtype.isnative and x.dtype != np.uint64 else x


def _embed(case, place):
    run = place.loaded_images if case["images"] else place.loaded
    x = _array(case["x"], case["tensor"])
    result = getattr(run, case["call"])(x, **case["settings"])
    values = result.mean if case["call"] == "posterior" else result
    if values.ndim and len(values) != len(x):
        raise AssertionError(f"{len(values)} rows for {len(x)} items")


def _embed_cases(place):
    kinds = {False: mutations.usual([(3, 6)]), True: mutations.usual([(5, 3, 10, 10), (2, 10, 10, 3)], ["|u1"], ["unit", "one"])}
    calls = st.sampled_from(["embed", "anomaly_score", "posterior"])
    odd = {
        "x": mutations.arrays([(3, 6), (5, 3, 8, 8), (2, 12, 10, 3), (4, 9, 9), (1, 1, 8, 8)]),
        "settings": st.sampled_from([{"batch_size": 1}, {"batch_size": 0}, {"batch_size": -1}, {"batch_size": 2.5}]),
    }

    def of(images):
        valid = {
            "images": st.just(images), "tensor": st.booleans(), "call": calls, "x": kinds[images], "settings": st.just({}),
        }  # fmt: skip
        return mutations.near(valid, odd)

    return st.booleans().flatmap(of)


def _train(case, place):
    with place.scratch() as folder:
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in case["settings"].items()}
        source = str(place.path / case["source"])
        vergence.train(source, out=folder / "run", **{**QUICK, "limit": 40, **settings})


def _train_cases(place):
    """Settings of which none to three have values of any type."""
    settings = st.sampled_from([0, 1, 1, 2, 3]).flatmap(
        lambda n: st.dictionaries(st.sampled_from([*TRAIN, "unknown"]), SCALARS, max_size=n)
    )
    settings = settings.filter(lambda chosen: chosen.get("size") != 1000)  # a network of 1.5 billion weights
    objective = st.sampled_from([{}] + [{"objective": name} for name in names()])
    options = st.dictionaries(
        st.sampled_from(["nu", "dim", "covariance", "n_components", "momentum", "x", "beta"]), SCALARS, max_size=2
    )
    whole = st.tuples(settings, objective, options, st.sampled_from([False, False, True])).map(
        lambda t: {"encoder": "mlp", **t[1], **t[0], **({"options": t[2]} if t[3] else {})}
    )
    return st.fixed_dictionaries({"source": st.sampled_from(["data.npz", "pairs.npz", "data.npy", "photos"]), "settings": whole})


def _fit(case, place):
    kind = mixtures.get(case["model"])
    known = kind._get_param_names()
    settings = {k: v for k, v in {**MODELS[case["model"]], "max_iter": 2, **case["settings"]}.items() if k in known}
    context, target = _array(case["context"], case["tensor"]), _array(case["target"], case["tensor"])
    model = kind(**{**settings, "random_state": 0}).fit(context, target)
    query = _array(case["query"], case["tensor"])
    getattr(model, case["call"])(query, *([target] if case["call"] in ("score", "cdf", "surprise", "score_samples") else []))


def _fit_cases(place):
    def pair(n):
        valid = {
            "model": st.sampled_from(sorted(MODELS)), "tensor": st.booleans(),
            "context": mutations.usual([(n, 2)], fills=["normal", "unit"]), "target": mutations.usual([(n, 2), (n,), (n, 1)]),
            "query": mutations.usual([(n, 2)]),
            "call": st.sampled_from(["predict", "mode", "sample", "intervals", "cdf", "score", "score_samples"]),
            "settings": st.just({}),
        }  # fmt: skip
        odd = {
            "context": mutations.arrays([(n, 2), (n, 1), (n, 6)]),
            "target": mutations.arrays([(n, 2), (n,), (n, 1)]),
            "query": mutations.arrays([(3, 2), (3, 1), (n, 2)]),
            "settings": st.dictionaries(st.sampled_from(["n_components", "max_iter", "tol", "device"]), SCALARS, max_size=1),
        }
        return mutations.near(valid, odd)

    return st.sampled_from([40, 40, 40, 40, 2, 3, 1]).flatmap(pair)


def _linear(case, place):
    kind = getattr(linear, case["kind"])
    model = kind(**case["settings"]).fit(_array(case["x"], case["tensor"]))
    model.transform(_array(case["query"], case["tensor"]))


def _linear_cases(place):
    valid = {
        "kind": st.sampled_from(["JointEmbedding", "Reconstruction"]), "tensor": st.booleans(), "x": mutations.usual([(40, 6)]),
        "query": mutations.usual([(3, 6)]), "settings": st.just({}),
    }  # fmt: skip
    settings = st.dictionaries(
        st.sampled_from(["n_components", "augmentation", "n_draws", "device", "random_state"]), SCALARS, max_size=2
    )
    odd = {
        "x": mutations.arrays([(40, 6), (130, 2), (3, 6), (40, 3, 8, 8)]),
        "query": mutations.arrays([(3, 6), (3, 2)]),
        "settings": settings,
    }
    return mutations.near(valid, odd)


def _advise(case, place):
    noise = case["noise"]
    augmentation = (lambda x, g: x + 0.1 * torch.randn(x.shape, generator=g, dtype=x.dtype)) if noise == "function" else noise
    advice = vergence.advise(_array(case["x"], case["tensor"]), augmentation, **{"n_draws": 4, **case["settings"]})
    str(advice), advice.to_dict()


def _advise_cases(place):
    valid = {
        "tensor": st.booleans(), "x": mutations.usual([(130, 6), (130, 2), (130, 3, 4, 4)]),
        "noise": st.sampled_from(["function", "function", 0.1]), "settings": st.just({}),
    }  # fmt: skip
    names = st.sampled_from(["n_components", "n_draws", "directions", "labels", "random_state", "device"])
    odd = {
        "x": mutations.arrays([(130, 6), (130, 2), (130, 3, 4, 4), (130, 6)]),
        "noise": st.sampled_from([None, [0.1] * 6, -1.0, "x", math.nan]),
        "settings": st.dictionaries(names, SCALARS, max_size=2),
    }
    return mutations.near(valid, odd)


TARGETS = [
    Target("call-embed", 8, _embed_cases, _embed, one_line=False),
    Target("call-train", 6, _train_cases, _train, one_line=False),
    Target("call-mixtures", 10, _fit_cases, _fit, one_line=False),
    Target("call-linear", 10, _linear_cases, _linear, one_line=False),
    Target("call-advise", 5, _advise_cases, _advise, one_line=False),
]
