"""What densities refuse, one table: by type and the word that matters."""

import math

import numpy as np
import pytest
import torch

from vergence.densities import em
from vergence.densities.em.fit import structure
from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.densities.neural_gas import NeuralGas
from vergence.densities.particles import stratified, systematic
from vergence.densities.power_spherical import PowerSpherical
from vergence.densities.retrieval import retrieve

EM = {"n_components": 2, "n_init": 1, "max_iter": 10, "tol": 1e-3, "reg_covar": 0.0, "precision": "double"}
EYE, ASYMMETRIC = torch.eye(3), torch.eye(3) + torch.eye(3).roll(1, 0).triu() / 2


def mixture():
    return MixtureOfGaussians(torch.zeros(2), torch.zeros(2, 3), EYE)


REFUSED = {
    "covariance of another size": lambda: JointGaussian(torch.zeros(3), torch.eye(4)),
    "context of all features": lambda: JointGaussian(torch.zeros(3), EYE, context=3),
    "conditional without context": lambda: JointGaussian(torch.zeros(3), EYE).conditional(torch.zeros(1)),
    "context of another size": lambda: JointGaussian(torch.zeros(3), EYE, context=1).conditional(torch.zeros(2)),
    "unknown block": lambda: JointGaussian(torch.zeros(3), EYE, context=1).marginal("left"),
    "not definite": lambda: JointGaussian(torch.zeros(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
    "not symmetric": lambda: JointGaussian(torch.zeros(3), ASYMMETRIC),
    "items of another size": lambda: mixture().log_prob(torch.zeros(5, 4)),
    "items that would broadcast": lambda: mixture().log_prob(torch.zeros(5, 1)),
    "quantile at 0": lambda: mixture().marginal_quantile(0.0),
    "quantile at NaN": lambda: mixture().marginal_quantile(math.nan),
    "sphere of R^1": lambda: PowerSpherical(torch.ones(1), torch.tensor(1.0)),
    "negative weights": lambda: systematic(torch.tensor([-1.0, 2.0]), 3),
    "no weight": lambda: stratified(torch.tensor([0.0, 0.0]), 3),
    "weights with NaN": lambda: stratified(torch.tensor([math.nan, 1.0]), 3),
    "unknown structure": lambda: structure("dense"),
    "rank of a fraction": lambda: structure("low_rank", 1.5),
    "no components": lambda: em.require_settings(**EM | {"n_components": 0}),
    "starts of a fraction": lambda: em.require_settings(**EM | {"n_init": 1.5}),
    "negative tolerance": lambda: em.require_settings(**EM | {"tol": -1.0}),
    "ridge of text": lambda: em.require_settings(**EM | {"reg_covar": "small"}),
    "unknown precision": lambda: em.require_settings(**EM | {"precision": "half"}),
    "gas of one unit": lambda: NeuralGas(max_nodes=1),
    "gas that forgets at once": lambda: NeuralGas(decay=0.0),
    "gas that does not move": lambda: NeuralGas(eps_b=0.0),
    "gas on one item": lambda: NeuralGas().grow(np.ones((1, 2)), 10),
    "gas on NaN": lambda: NeuralGas().grow(np.array([[0.0], [np.nan]]), 10),
    "contexts of another width than the bank": lambda: retrieve(None, torch.zeros(2, 3), torch.zeros(4, 2), n=1),
    "more items than the bank": lambda: retrieve(None, torch.zeros(2, 3), torch.zeros(4, 3), n=5),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case):
    with pytest.raises(ValueError, match="expected"):
        REFUSED[case]()
