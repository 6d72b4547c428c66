"""Compares the speed of Gaussian mixtures and conditional queries with scikit-learn and gmr, in one run on one machine.

python benchmarks/mixture_speed.py [em] [gmr]         # adds rows to results/mixtures.jsonl; about 15 minutes on two cores

em    our GaussianMixture, ``double`` and ``mixed``, and scikit-learn's: same initialization, tolerance and data; in turn.
      50,000 x 128 with K = 10, and 100,000 x 64 with K = 32, full covariances. On a GPU also 1,000,000 x 128, K = 100.
gmr   10,000 queries p(target | context) of a mixture of 10 over 4 + 2 features: ours in one call, gmr's one call for each.
"""

import argparse
import statistics
import time
import warnings

import ledger
import numpy as np
import torch
from sklearn.mixture import GaussianMixture as Reference

from vergence.mixtures import GaussianMixture

SIZES = ((50_000, 128, 10), (100_000, 64, 32))
LARGE, TINY = (1_000_000, 128, 100), (300, 4, 2)


def mixture(N: int, D: int, K: int, seed: int = 0) -> np.ndarray:
    """Returns samples of a mixture whose components overlap."""
    rng = np.random.default_rng(seed)
    mu, A = 0.5 * rng.normal(size=(K, D)), rng.normal(size=(K, D, D)) / D**0.5
    label = rng.integers(K, size=N)
    X = np.empty((N, D))
    for k in range(K):
        X[label == k] = rng.normal(size=((label == k).sum(), D)) @ A[k].T + mu[k]
    return X


def start(X: np.ndarray, K: int) -> dict:
    """Returns the constructor's arguments that fix the initialization: random items, unit covariances."""
    means = X[np.random.default_rng(1).choice(len(X), K, replace=False)]
    given = {"weights_init": np.full(K, 1 / K), "means_init": means, "precisions_init": np.stack([np.eye(X.shape[1])] * K)}
    return given | {"init_params": "random_from_data", "random_state": 0, "tol": 1e-3, "max_iter": 200}


def em(N: int, D: int, K: int, rounds: int) -> dict:
    X = mixture(N, D, K)
    given = start(X, K)
    makers = {
        "scikit-learn": lambda: Reference(K, **given),
        "double": lambda: GaussianMixture(K, **given),
        "mixed": lambda: GaussianMixture(K, precision="mixed", **given),
    }
    seconds, last = {name: [] for name in makers}, {}
    for _ in range(rounds):
        for name, make in makers.items():
            began = time.perf_counter()
            last[name] = make().fit(X)
            seconds[name].append(time.perf_counter() - began)
    reference = last["scikit-learn"]
    row = {"measurement": "em", "n": N, "d": D, "k": K, "rounds": seconds, "tol": given["tol"]}
    row["log_likelihood"] = {name: float(model.lower_bound_) for name, model in last.items()}
    row["iterations"] = {name: int(model.n_iter_) for name, model in last.items()}
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    row["ratio"] = {name: middle["scikit-learn"] / middle[name] for name in ("double", "mixed")}
    row["apart"] = {name: float(abs(last[name].lower_bound_ - reference.lower_bound_)) for name in ("double", "mixed")}
    same = {**given, "max_iter": int(reference.n_iter_), "tol": 0.0}  # mixed goes on for an iteration where the tolerance ends it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ends = [Reference(K, **same).fit(X), *(GaussianMixture(K, precision=p, **same).fit(X) for p in ("double", "mixed"))]
    first, double, mixed = (float(model.lower_bound_) for model in ends)
    row["apart_after_same_iterations"] = {"double": abs(double - first), "mixed": abs(mixed - first)}
    return row


def em_on_gpu() -> dict:
    N, D, K = LARGE
    X = mixture(N, D, K).astype(np.float32)
    model = GaussianMixture(K, device="cuda", precision="mixed", **{**start(X, K), "max_iter": 50})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.perf_counter()
        model.fit(X)
    seconds = time.perf_counter() - began
    row = {"measurement": "em on a GPU", "n": N, "d": D, "k": K, "seconds": seconds, "iterations": model.n_iter_}
    return row | {"log_likelihood": float(model.lower_bound_), "device": torch.cuda.get_device_name()}


def queries(rounds: int, n: int) -> dict:
    from gmr import GMM

    X = mixture(2 * n, 6, 10)
    model = GaussianMixture(10, random_state=0).fit(X)
    reference = GMM(10, priors=model.weights_, means=model.means_, covariances=model.covariances_)
    c = X[:n, :4]
    ours, theirs = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        given = model.condition(c)
        mean = given.mean
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        found = [reference.condition(np.arange(4), x) for x in c]
        theirs.append(time.perf_counter() - began)
    expected = np.stack([m.priors @ m.means for m in found])
    row = {"measurement": "queries", "n": n, "d": 6, "k": 10, "rounds": [ours, theirs], "seconds": statistics.median(ours)}
    row["ratio"] = statistics.median(theirs) / statistics.median(ours)
    return row | {"apart": float(np.abs(mean.numpy() - expected).max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["em", "gmr"])
    parser.add_argument("--rounds", type=int, default=3)
    a = ledger.parse(parser, "mixtures")
    sizes, rounds = ([TINY], 1) if a.tiny else (SIZES, a.rounds)
    jobs = [lambda size=size: em(*size, rounds) for size in sizes] if "em" in a.what else []
    jobs += [em_on_gpu] if "em" in a.what and torch.cuda.is_available() and not a.tiny else []
    jobs += [lambda: queries(rounds, 200 if a.tiny else 10_000)] if "gmr" in a.what else []
    for job in jobs:
        values = job()
        ledger.add(a.out, ledger.row(values, seed=0, peers=("gmr",), device=values.get("device")))


if __name__ == "__main__":
    main()
