"""What is refused because two things do not fit together; `tests/fuzz/test_each_argument.py` has every argument by itself."""

import math

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from tests.refusals import refuses

from vergence import mixtures
from vergence.mixtures import ConditionalGaussian, ConditionalMixture, GaussianMixture

N = 40
X = np.random.default_rng(0).normal(size=(N, 3))
C, T = X[:, :2], X[:, 2]
SETTINGS = {
    "gaussian": [{"reg_covar": -1.0}, {"reg_covar": math.nan}],
    "mixture": [
        *({"n_components": k} for k in (0, 2.0, True, N + 1)),
        *({"covariance_type": "diag"}, {"covariance_type": "low_rank", "rank": 0}, {"precision": "single"}, {"n_init": 0}),
        *({"max_iter": 0}, {"tol": math.nan}, {"reg_covar": -1.0}),
    ],
    "kernel": [
        *({"tol": 0}, {"n_inducing": 0}, {"search_limit": 1}),
        *({"exact_limit": -1}, {"n_init": 0}, {"max_iter": 0}),
    ],
    "mdn": [
        *({"n_components": k} for k in (0, N + 1, 2.5)),
        *({"hidden": h} for h in ((), (16, 0), "128", 16)),
        *({"lr": 0.0}, {"weight_decay": -1.0}, {"steps": 0}, {"batch_size": 0}, {"n_init": 0}, {"folds": 1}),
        {"lr": 1e30, "folds": 0, "steps": 20, "n_init": 1},
    ],
}
CALLS = {
    "few items with weight": (lambda: GaussianMixture(3).fit(X, sample_weight=np.arange(N) < 2), "n_samples = 2"),
    "contexts of all features": (lambda: GaussianMixture(2).fit(X).condition(X), "contexts"),
    "a feature twice": (lambda: GaussianMixture(2).fit(X).condition(C, features=[0, 0]), "different features"),
    "a constant target": (lambda: ConditionalGaussian().fit(C, np.c_[T, np.ones(N)]), "column 1"),
    "a file of another class": (lambda: ConditionalMixture().load("none"), "no file"),
}


@pytest.mark.parametrize(("name", "options"), [(name, options) for name, some in SETTINGS.items() for options in some], ids=str)
def test_settings_of_conditional_models(name, options):
    refuses("rank" if "rank" in options else next(iter(options)), mixtures.get(name)(**options).fit, C, T)


@pytest.mark.parametrize("name", CALLS)
def test_items_and_queries(name):
    call, text = CALLS[name]
    refuses(text, call)


def test_nothing_is_asked_before_a_fit():
    for method in ("score_samples", "predict", "predict_proba", "condition", "sample", "density"):
        with pytest.raises(NotFittedError):
            getattr(GaussianMixture(), method)(*([] if method in ("sample", "density") else [X]))
    for kind in (ConditionalGaussian, ConditionalMixture):
        with pytest.raises(NotFittedError):
            kind().joint()
