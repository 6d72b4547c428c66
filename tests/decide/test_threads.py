"""What scores in four threads gives the bits that it gives in one: detectors, matches, surprises, networks and runs."""

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import vergence
from vergence.decide import Calibrated, FeatureSets, GaussianDetector, Matcher, MixtureDetector, NeighborDetector, surprise
from vergence.learn.runs import callables
from vergence.mixtures import ConditionalGaussian, ConditionalMixture

RNG = np.random.default_rng(0)
X = RNG.normal(size=(800, 4)).astype(np.float32)
Y = X[:, :3] + 0.3 * RNG.normal(size=(800, 3)).astype(np.float32)
BATCHES = np.split(np.arange(800), 40)
GALLERY = Y[:30]


def sets():
    features = {"near": X[:400], "far": Y[:400]}
    fitted = FeatureSets({"near": GaussianDetector(), "far": NeighborDetector()}).fit(features).calibrate(features)
    return lambda near, far: fitted.anomaly_score({"near": near, "far": far})


def network():
    torch.manual_seed(0)
    parts = torch.nn.Conv2d(3, 4, 8, 8), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Dropout()
    net = torch.nn.Sequential(*parts, torch.nn.Linear(16, 3))
    images = RNG.integers(0, 256, (800, 8, 8, 3), dtype=np.uint8)
    embedder = vergence.Embedder(net, device="cpu", batch_size=3)
    return lambda rows: embedder({"image": images[rows[::4]]})["z"]


def matches():
    matcher = Matcher(n_components=3).fit(X[:600], Y[:600])

    def ways(rows):
        found = matcher.match(X[rows], GALLERY)
        return np.stack([found.best, found.p_value])

    return ways


def of_rows(method, *columns):
    return lambda rows: method(*(column[rows] for column in columns))


def mixture():
    return ConditionalMixture(2, tol=1e-2).fit(X[:400], Y[:400])


def own(density):
    return lambda context, target: surprise(density.conditional(context), torch.from_numpy(target))


WAYS = {
    "Gaussian": lambda: of_rows(GaussianDetector().fit(X).anomaly_score, X),
    "mixture": lambda: of_rows(MixtureDetector(2).fit(X).anomaly_score, X),
    "neighbors": lambda: of_rows(NeighborDetector(5).fit(X).anomaly_score, X),
    "calibrated": lambda: of_rows(Calibrated(NeighborDetector(5)).fit(X).scores, X),
    "feature sets": lambda: of_rows(sets(), X, Y), "network": network, "matches": matches,
    "surprise of a Gaussian": lambda: of_rows(ConditionalGaussian().fit(X, Y).surprise, X, Y),
    "surprise of a mixture": lambda: of_rows(mixture().surprise, X, Y),
    "surprise of a density": lambda: of_rows(own(mixture()), X, Y),
    "samples": lambda: of_rows(functools.partial(mixture().sample, n=3, random_state=0), X),
}  # fmt: skip


def require_same(way, batches):
    """Four threads, each batch twice, give the bits of one."""
    one = [np.asarray(way(batch)) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda batch: np.asarray(way(batch)), batches * 2))
    assert all(map(np.array_equal, many, one * 2))


@pytest.mark.float32
@pytest.mark.parametrize("name", WAYS)
def test_scores_in_threads_are_those_of_one(name):
    require_same(WAYS[name](), BATCHES)


@pytest.mark.float32
@pytest.mark.parametrize("how", [None, "all"])
def test_scores_of_a_run_with_samples_in_threads_are_those_of_one(how, table):
    x = RNG.normal(size=(480, 5)).astype(np.float32)
    names = [None] if how is None else sorted(table.objective.scores(table.method.projector(table.embed(x[:4]))))
    for name in names:
        require_same(lambda part, name=name: table.anomaly_score(part, name), np.split(x, 24))


def test_threads_open_a_run_once(table, monkeypatch):
    opened, load = [], callables.load
    monkeypatch.setattr(callables, "load", lambda *args, **kwargs: opened.append(args) or load(*args, **kwargs))
    callables._opened.cache_clear()
    callables._scoring.cache_clear()
    scorer = vergence.Scorer(table, device="cpu")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(scorer, [{"x": np.zeros((2, 5), np.float32)}] * 8))
    assert len(opened) == 1
