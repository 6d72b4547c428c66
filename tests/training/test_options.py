"""Options of objectives from earlier versions: each builds the objective that it named."""

import pytest
import torch

from vergence.objectives.gje import GJE
from vergence.training.build import build_method
from vergence.training.config import ModelConfig
from vergence.training.options import current_options


def built(objective, **options):
    config = ModelConfig(encoder="mlp", objective=objective, options=options, projector=(4,))
    return build_method(config, (6,), None, torch.zeros(6), torch.ones(6)).objective


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"covariance": "batch", "eta": 0.1}, {"eta": 0.1}),
        ({"covariance": "ema"}, {"likelihood": "ema"}),
        ({"covariance": "learned"}, {"likelihood": "learned"}),
        ({"covariance": "low_rank", "rank": 2}, {"likelihood": "learned", "covariance": "low_rank", "rank": 2}),
    ],
)
def test_the_covariance_of_gje_named_the_likelihoods_source(old, new):
    assert current_options("gje", old) == new == current_options("gje", new)
    found, expected = built("gje", **old), GJE(4, **new)
    assert found.likelihood == expected.likelihood and found.state_dict().keys() == expected.state_dict().keys()


def test_step_sizes_became_momenta():
    assert built("gmje", rate=0.25).prototypes.momentum == 0.75
    assert built("gmje_smc", rho=0.25).rule.rho == 0.25


def test_explicit_options_win_and_others_are_left_alone():
    assert current_options("gje", {"covariance": "low_rank", "likelihood": "ema"})["likelihood"] == "ema"
    assert current_options("contrastive", {"covariance": "diagonal"}) == {"covariance": "diagonal"}
    with pytest.raises(ValueError, match="expected covariance among full, found 'low_rank'"):
        built("gje", covariance="low_rank", likelihood="ema")
    with pytest.raises(ValueError, match="found 'nothing'"):
        built("gje", covariance="nothing")
