"""Settings and embeddings that objectives refuse: one table, by the word that names what is wrong."""

import math

import pytest
import torch

from vergence import objectives
from vergence.objectives import DensityObjective

D = 4
PAIR_LOSS = [{"loss": "mi"}, {"eta": 0.0}, {"beta": -1.0}, {"shrinkage": 1.1}]
MIXTURE = [*PAIR_LOSS, {"floor": 0.0}, {"floor": math.nan}, {"covariance": "diag"}, {"rank": 0}]
BAD = {
    "barlow_twins": [{"redundancy": -1.0}, {"scale": 0.0}],
    "byol": [{"hidden": 0}],
    "contrastive": [
        *({"temperature": value} for value in (0.0, math.inf)),
        *({"covariance": "full"}, {"weights": "learned"}, {"components": "bank"}, {"momentum": 1.0}),
    ],
    "gje": [*PAIR_LOSS, {"covariance": "diagonal"}, {"covariance": "low_rank"}, {"likelihood": "full"}, {"momentum": 1.0}],
    "gmje": [*MIXTURE, {"fit": "sgd"}, {"components": 0}, {"momentum": -0.5}],
    "gmje_em": [*MIXTURE, {"components": 0}, {"bank": 19}, {"steps": 0}],
    "gmje_gng": [*MIXTURE, {"max_nodes": 1}, {"insert_every": 0}, {"items_per_node": 0.0}, {"steps": -1}, {"bank": 59}],
    "gmje_mdn": [
        *({"marginal": "gmm"}, {"target": "ema"}, {"components": 2.5}, {"hidden": 0}, {"weight": 0.0}, {"floor": -1.0}),
        {"momentum": 1.0},
    ],
    "gmje_smc": [
        *({"mode": "lifo"}, {"resampling": "residual"}, {"bank": 0}, {"max_age": 0}, {"temperature": math.nan}),
        *({"ess_threshold": -0.1}, {"momentum": 1.5}, {"u": -0.1}),
    ],
    "jepa": [{"hidden": 1}, {"momentum": 1.0}],
    "lejepa": [{"weight": 2}, {"slices": 0}, {"t_max": 0}],
    "moco": [{"temperature": 0}, {"hidden": 0.5}],
    "simsiam": [{"hidden": 0}],
    "swav": [{"temperature": 0.0}, {"prototypes": 0}],
    "vi_simsiam": [{"beta": math.nan}, {"hidden": 1}],
    "vicreg": [{"variance": -1.0}],
    "vje": [{"nu": 0.0}, {"beta": -1.0}, {"terms": ("angular",)}, {"terms": ()}],
    "vssl": [{"loss": "cosin"}, {"likelihood": "mean"}, {"beta": -1.0}, {"floor": 0.0}, {"hidden": 1}, {"momentum": 1.0}],
}


@pytest.mark.parametrize(("name", "options"), [(name, options) for name in BAD for options in BAD[name]], ids=str)
def test_settings_out_of_range_are_named(name, options):
    with pytest.raises(ValueError, match=f"expected.*{next(iter(options))}") as caught:
        objectives.get(name)(D, **options)
    assert "\n" not in str(caught.value)


def test_every_objective_has_bad_settings_here():
    assert set(BAD) == set(objectives.names())


@pytest.mark.parametrize("name", objectives.names())
def test_embeddings_of_two_shapes_are_refused(name):
    objective = objectives.get(name)(D)
    with pytest.raises(ValueError, match=r"expected two \(B, 4\) embeddings"):
        objective(torch.zeros(4, D), torch.zeros(4, D + 1))
    if isinstance(objective, DensityObjective):
        with pytest.raises(ValueError, match="expected two"):
            objective.log_prob(torch.zeros(4, D), torch.zeros(3, D))


def test_names_and_numbers_of_scores_are_checked():
    vje, z = objectives.get("vje")(D), torch.randn(3, D)
    calls = (
        lambda: vje.score(z, "angular"),
        lambda: vje.score(z, samples=-1),
        lambda: vje.log_prob(z, z, samples=0),
        lambda: objectives.get("vi_simsiam")(D).score(z, "angular"),
    )
    for call in calls:
        with pytest.raises(ValueError, match="expected"):
            call()
