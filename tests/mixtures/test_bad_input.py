"""Settings, items and queries that are refused, in one table: each error is a ValueError that names what is wrong."""

import math

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from vergence import mixtures
from vergence.mixtures import ConditionalGaussian, ConditionalMixture, GaussianMixture, GrowingNeuralGas, ParticleMixture

N, D = 40, 3
X = np.random.default_rng(0).normal(size=(N, D))
C, T = X[:, :2], X[:, 2]
SETTINGS = {
    "gaussian": [{"reg_covar": -1.0}, {"reg_covar": math.nan}],
    "mixture": [
        *({"n_components": k} for k in (0, 2.0, True, N + 1)),
        *({"covariance_type": "diag"}, {"covariance_type": "low_rank", "rank": 0}, {"precision": "single"}, {"n_init": 0}),
        *({"max_iter": 0}, {"tol": math.nan}, {"reg_covar": -1.0}),
    ],
    "gng": [
        *({"covariance_type": "tied"}, {"polish": -1}, {"reg_covar": 0.0}, {"reg_covar": math.nan}, {"signals": 0}),
        *({"items_per_node": 0}, {"max_nodes": 1}, {"eps_b": 2.0}),
    ],
    "kernel": [
        *({"length_scale": 0}, {"signal": -1.0}, {"noise": math.nan}, {"tol": 0}, {"n_inducing": 0}, {"search_limit": 1}),
        *({"exact_limit": -1}, {"n_init": 0}, {"max_iter": 0}),
    ],
    "mdn": [
        *({"n_components": k} for k in (0, N + 1, 2.5)),
        *({"hidden": h} for h in ((), (16, 0), "128", 16)),
        *({"init": "kmeans"}, {"lr": 0.0}, {"weight_decay": -1.0}, {"steps": 0}, {"batch_size": 0}, {"n_init": 0}, {"folds": 1}),
        {"lr": 1e30, "folds": 0, "steps": 20, "n_init": 1},
    ],
    "particles": [
        *({"n_particles": 0}, {"batch_size": 0}, {"em_steps": -1}, {"rho": 1.5}, {"u": math.nan}, {"ess_threshold": -1}),
        *({"resampling": "residual"}, {"update": "lifo"}, {"context_bandwidth": 0}, {"target_bandwidth": -1.0}),
    ],
}
MIXTURE = [
    *({"n_components": k} for k in (0, True, 2.0)),
    *({"covariance_type": "dense"}, {"covariance_type": "low_rank", "rank": 0}, {"init_params": "best"}, {"tol": math.nan}),
    *({"reg_covar": -1.0}, {"max_iter": 1.5}, {"n_init": 0}, {"precision": "half"}, {"learning_decay": 1.5}),
    *({"verbose": 1, "verbose_interval": 0}, {"device": "abacus"}, {"weights_init": [0.5, 0.5]}),
    *({"weights_init": [0.5, 0.7, -0.2]}, {"weights_init": [0.5, 0.7, 0.2]}, {"means_init": X[:3, :2]}),
    *({"means_init": X[:3] * np.nan}, {"precisions_init": np.ones(3)}, {"precisions_init": -np.stack([np.eye(D)] * 3)}),
    {"precisions_init": np.stack([np.eye(D) + np.eye(D, k=1)] * 3)},
    {"precisions_init": np.zeros((3, D)), "covariance_type": "diag"},
    {"precisions_init": np.ones((3, D)), "covariance_type": "low_rank"},
]
OF_TYPE = {"verbose": "verbose_interval", "lr": "lr"}  # where not the first setting is wrong


def word(options):
    name = next(iter(options))
    return "rank" if "rank" in options else {**OF_TYPE, "device": "device"}.get(name, name)


@pytest.mark.parametrize(("name", "options"), [(name, options) for name, some in SETTINGS.items() for options in some], ids=str)
def test_settings_of_conditional_models(name, options):
    with pytest.raises(ValueError, match=word(options)):
        mixtures.get(name)(**options).fit(C, T)


@pytest.mark.parametrize("options", MIXTURE, ids=range(len(MIXTURE)))
def test_settings_of_mixtures(options):
    with pytest.raises(ValueError, match="precisions_init|positive definite" if "precisions_init" in options else word(options)):
        GaussianMixture(**{"n_components": 3} | options).fit(X)


FITTED = ConditionalGaussian().fit(C, T)
CALLS = {
    "NaN": (lambda: GaussianMixture(3).fit(np.where(X > 1, np.nan, X)), "NaN"),
    "infinity": (lambda: GaussianMixture(3).fit(np.where(X > 1, np.inf, X)), "infinity"),
    "one axis": (lambda: GaussianMixture(3).fit(X[0]), "2D"),
    "fewer items than components": (lambda: GaussianMixture(3).fit(X[:2]), "n_samples = 2"),
    "one item": (lambda: GaussianMixture(1).partial_fit(X[:1]), "minimum of 2"),
    "few weights": (lambda: GaussianMixture(3).fit(X, sample_weight=np.ones(4)), "sample_weight"),
    "negative weights": (lambda: GaussianMixture(3).fit(X, sample_weight=-np.ones(N)), "weights"),
    "weights of zero": (lambda: GaussianMixture(3).fit(X, sample_weight=np.zeros(N)), "zero|weights"),
    "few items with weight": (lambda: GaussianMixture(3).fit(X, sample_weight=np.arange(N) < 2), "n_samples = 2"),
    "a stream of low rank": (lambda: GaussianMixture(2, covariance_type="low_rank").partial_fit(X), "covariance_type"),
    "other features in a stream": (lambda: GaussianMixture(2).partial_fit(X).partial_fit(X[:, :2]), "2 features"),
    "other features after a fit": (lambda: GaussianMixture(2).fit(X).score_samples(X[:, :2]), "2 features"),
    "other features of a warm start": (lambda: GaussianMixture(2, warm_start=True).fit(X).fit(X[:, :2]), "warm_start"),
    "no samples": (lambda: GaussianMixture(2).fit(X).sample(0), "n_samples"),
    "contexts of all features": (lambda: GaussianMixture(2).fit(X).condition(X), "contexts"),
    "contexts with NaN": (lambda: GaussianMixture(2).fit(X).condition(C * np.nan), "NaN"),
    "a feature twice": (lambda: GaussianMixture(2).fit(X).condition(C, features=[0, 0]), "different features"),
    "a feature that is not there": (lambda: GaussianMixture(2).fit(X).condition(C, features=[0, 3]), "different features"),
    "targets of another length": (lambda: ConditionalGaussian().fit(C, T[1:]), "39 targets"),
    "a constant target": (lambda: ConditionalGaussian().fit(C, np.c_[T, np.ones(N)]), "column 1"),
    "no targets": (lambda: ConditionalGaussian().fit(C, None), "requires y"),
    "contexts of another width": (lambda: FITTED.predict(X), "3 features"),
    "a tensor of another width": (lambda: FITTED.conditional(torch.from_numpy(X)), "contexts"),
    "targets of another width": (lambda: FITTED.score_samples(C, C), "1 features"),
    "a level above 1": (lambda: FITTED.intervals(C, level=1.5), "level"),
    "a file of another class": (lambda: ConditionalMixture().load("none"), "no file"),
    "another width of a stream": (lambda: ParticleMixture().fit(C, T).partial_fit(X, T), "3 features"),
    "settings of a stream": (lambda: ParticleMixture().fit(C, T).set_params(rho=2).partial_fit(C, T), "rho"),
    "a component of other numbers": (lambda: GrowingNeuralGas(signals=200).fit(C, T).predict_component(C, T[1:]), "39 targets"),
}


@pytest.mark.parametrize("name", CALLS)
def test_items_and_queries(name):
    call, text = CALLS[name]
    with pytest.raises(ValueError, match=text):
        call()


def test_nothing_is_asked_before_a_fit():
    for method in ("score_samples", "predict", "predict_proba", "aic", "condition", "sample", "density"):
        with pytest.raises(NotFittedError):
            getattr(GaussianMixture(), method)(*([] if method in ("sample", "density") else [X]))
    for call in (
        GrowingNeuralGas().joint,
        lambda: GrowingNeuralGas().predict_component(C, T),
        lambda: FITTED.__class__().predict(C),
    ):
        with pytest.raises(NotFittedError):
            call()
