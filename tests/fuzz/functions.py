"""Functions, densities and mixtures with usual arguments, and the odd values that take the place of one of them."""

import functools
import math

import numpy as np
import torch
from torch.distributions import Independent, Normal

from vergence import advise, decide, linear
from vergence.densities import gaussian, neural_gas, particles, power_spherical
from vergence.densities.em import fit as em
from vergence.densities.em.fit import structure
from vergence.images import clusters, statistics
from vergence.learn.encoders import patch_maps
from vergence.learn.evaluation import accuracy, anomaly, collapse, features, judgment
from vergence.mixtures import ConditionalGaussian, GaussianMixture

__all__ = ["FUNCTIONS", "VALUES", "odd"]

VALUES = [None, True, False, 0, 1, -1, 2, 0.5, 1.5, -0.5, math.nan, math.inf, -math.inf, "", "a", [], [1], {}, [None], ["a"]]
VALUES += [[[1.0]], [1.0, math.nan], 10**30, -(10**30), 1e-300, 1e300, 2**63]
NUMBERLESS = {"text": "abc", "None": None, "dictionary": {"a": [1.0]}, "ragged": [[1.0], [1.0, 2.0]]}
NUMBERLESS |= {"number": 7, "object": object(), "objects": np.array([{}], object)}
NUMBERLESS |= {"complex": torch.ones(3, dtype=torch.complex64)}
R = np.random.default_rng(0)
X, SCORES, P = R.normal(size=(40, 4)), R.normal(size=120), R.uniform(size=10)
MANY, FOLDS = R.normal(size=(130, 3)), np.arange(40) % 4
Z, Y, EYE = torch.from_numpy(X[:10]), torch.arange(10) % 2, torch.eye(3, dtype=torch.float64)
IMAGES = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NORMAL = Independent(Normal(torch.zeros(3, 2, dtype=torch.float64), 1.0), 1)
LABELED = {"train": Z, "train_labels": Y, "test": Z, "test_labels": Y}
EM = {"n_components": 2, "n_init": 1, "max_iter": 10, "tol": 1e-3, "reg_covar": 0.0, "precision": "double"}
OF_MIXTURES = {"n_components": 3, "covariance_type": "full", "tol": 0.1, "reg_covar": 1e-6, "max_iter": 3, "n_init": 1, "rank": 2}
OF_MIXTURES |= {"precision": "double", "device": "cpu"}
AUGMENTATION = [0.1, 0.2, 0.3, 0.4]


def of(function, **valid):
    return function, valid


def mixture(**settings):
    return GaussianMixture(**settings).fit(X[:, :3])


C, T = X[:, :2], X[:, 2]
JOINT, CONDITIONAL = GaussianMixture(2, random_state=0).fit(X[:, :3]), ConditionalGaussian().fit(C, T)


def detector(kind):
    return lambda X=X, sample_weight=None, **settings: getattr(decide, kind)(**settings).fit(X, sample_weight=sample_weight)


ALL = {"contamination": 0.05, "random_state": 0}
DETECTORS = {
    "GaussianDetector": {"n_components": 2, "shrinkage": 0.5, "trim": 0.1, "contamination": 0.05},
    "MixtureDetector": {"n_components": 1, "n_directions": 2, "reg_covar": 1e-3, **ALL},
    "NeighborDetector": {"n_neighbors": 3, "max_items": 10, "keep": "random", "metric": "cosine", **ALL},
}


def dictionary(batch, atoms):
    return patch_maps.patch_dictionary([batch], batch.shape[1:], patch_maps.Patches(atoms=atoms, stride=1, pool=1, second=0))


def grow(x):
    return neural_gas.NeuralGas().grow(x.numpy(), 10)


DENSITY = gaussian.MixtureOfGaussians(torch.zeros(2, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64), EYE)

FUNCTIONS = {
    "p_values": of(decide.p_values, calibration=SCORES, scores=SCORES[:9]), "select": of(decide.select, p_values=P, fdr=0.1),
    "q_values": of(decide.q_values, p_values=P), "certify": of(decide.certify, calibration=SCORES, threshold=1.0, confidence=0.9),
    "certify a rank": of(functools.partial(decide.certify, SCORES), rank=3),
    "fpr_threshold": of(decide.fpr_threshold, calibration=SCORES, fpr=0.1, confidence=0.9),
    "simultaneous_bounds": of(decide.simultaneous_bounds, p_values=P, n_calibration=120, confidence=0.9),
    "label_trim": of(decide.label_trim, calibration=SCORES, confirmed=[int(SCORES.argmax())], budget=2),
    "tail_p_values": of(decide.tail_p_values, scores=SCORES), "to_label": of(decide.to_label, calibration=SCORES, budget=3),
    "needed_calibration": of(decide.needed_calibration, n_items=100, n_anomalies=5, fdr=0.1),
    "needed_for_fpr": of(decide.needed_for_fpr, fpr=0.01, confidence=0.9),
    "reportable": of(decide.reportable, n_calibration=100, n_items=50, fdr=0.1),
    "surprise": of(functools.partial(decide.surprise, NORMAL), n_samples=8, target=np.zeros((3, 2)), random_state=0),
    "cross_fit": of(decide.cross_fit, detector=decide.GaussianDetector(), X=X, n_folds=2, groups=FOLDS, random_state=0),
    "explain": of(decide.explain, feature_sets=["a"], p_values=[[0.1]], n=9, words=[[]]),
    "Monitor": of(decide.Monitor, calibration=SCORES, alarm=0.1, seed=0),
    "Monitor.update": of(decide.Monitor(SCORES).update, scores=SCORES[:3]),
    **{f"{kind}.fit": of(detector(kind), X=X, sample_weight=np.ones(40)) for kind in DETECTORS},
    **{f"{kind}.settings": of(detector(kind), **settings) for kind, settings in DETECTORS.items()},
    "anomalous_clusters": of(clusters.anomalous_clusters, features=np.tile(X[:30, :2], (4, 1)), random_state=0),
    "pixel_statistics": of(statistics.pixel_statistics, images=IMAGES.numpy(), grid=4),
    "patch_dictionary": of(dictionary, batch=IMAGES, atoms=4), "GaussianMixture": of(mixture, **OF_MIXTURES),
    "GaussianMixture.fit": of(GaussianMixture(3, random_state=0).fit, X=X, sample_weight=np.ones(40)),
    "GaussianMixture.score_samples": of(JOINT.score_samples, X=X[:, :3]),
    "GaussianMixture.condition": of(JOINT.condition, context=C, features=[0, 1]),
    "GaussianMixture.sample": of(JOINT.sample, n_samples=3),
    "ConditionalGaussian.fit": of(ConditionalGaussian().fit, context=C, target=T),
    "ConditionalGaussian.score_samples": of(CONDITIONAL.score_samples, context=C, target=T),
    "ConditionalGaussian.intervals": of(CONDITIONAL.intervals, context=C, level=0.9),
    "JointEmbedding.fit": of(linear.JointEmbedding(2, augmentation=AUGMENTATION).fit, X=X),
    "Reconstruction.fit": of(linear.Reconstruction(2, augmentation=AUGMENTATION).fit, X=X),
    "structure": of(structure, covariance_type="low_rank", rank=2), "em.require_settings": of(em.require_settings, **EM),
    "covariance": of(functools.partial(gaussian.JointGaussian, torch.zeros(3, dtype=torch.float64)), covariance=EYE),
    "log_prob": of(DENSITY.log_prob, value=torch.zeros(5, 3, dtype=torch.float64)),
    "marginal_quantile": of(DENSITY.marginal_quantile, p=0.5),
    "PowerSpherical": of(power_spherical.PowerSpherical, mu=EYE[0], kappa=torch.tensor(1.0)),
    "systematic": of(functools.partial(particles.systematic, n=3), weights=torch.ones(4)),
    "advise": of(functools.partial(advise, MANY, 0.1, n_draws=4), properties={"folder": [0, 1] * 65}),
    "NeuralGas": of(neural_gas.NeuralGas, max_nodes=10, eps_b=0.2, eps_n=0.006, alpha=0.5, decay=0.9),
    "NeuralGas.grow": of(grow, x=Z),
    "knn_accuracy": of(functools.partial(accuracy.knn_accuracy, ks=(1, 5)), **LABELED, temperature=0.1),
    "linear_probe": of(accuracy.linear_probe, **LABELED, l2=1.0),
    "detection": of(anomaly.detection, scores=Z[:, 0], anomalous=Y.bool()),
    "knn_distance": of(anomaly.knn_distance, train=Z, test=Z), "mahalanobis": of(anomaly.mahalanobis, train=Z, test=Z),
    "collapse": of(collapse.collapse, z=Z), "pca": of(features.pca, train=Z, test=Z, dim=2),
    "accuracy_error": of(judgment.accuracy_error, accuracy=0.5, n=3),
    "auroc_error": of(judgment.auroc_error, auroc=0.5, n_anomalies=3, n_others=3),
}  # fmt: skip


def _at_last(x, value):
    y = x.clone() if isinstance(x, torch.Tensor) else x.astype(float)
    y.reshape(-1)[-1:] = value
    return y


def odd(valid):
    """Returns the values that take a valid one's place, by what is odd about them; a NumPy array stands for what people give."""
    if not isinstance(valid, np.ndarray | torch.Tensor):
        return {repr(value): value for value in VALUES} | {"array": np.arange(3000.0), "object": object()}
    found = {"nested": valid[None], "negative": -1 - valid * 1, "equal": valid * 0 + 1}
    if valid.ndim:
        found |= {"short": valid[:-1], "one": valid[:1], "none": valid[:0], "narrow": valid[..., :-1]}
    if valid.ndim > 1:
        found["flat"] = valid[0]
    if isinstance(valid, np.ndarray) or valid.is_floating_point():
        found |= {"NaN": _at_last(valid, math.nan), "infinity": _at_last(valid, math.inf)}
    if valid.ndim == 4:
        found["channels last"] = valid.swapaxes(1, 3)
    if isinstance(valid, np.ndarray):
        found |= NUMBERLESS | {"dates": np.zeros(valid.shape, "M8[s]"), "letters": np.full(valid.shape, "a")}
    return found
