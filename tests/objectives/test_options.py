"""Every option of every objective changes what is computed: its terms, their gradients, its state, or the density."""

import pytest
import torch
from tests import options
from tests.objectives.test_contract import SMALLER, outputs, pair

from vergence import objectives

D, STEPS = 8, 3
MIXTURE = {  # option: another value than the default, and the settings under which it has an effect
    "loss": "joint_kl",
    "eta": 2.0,
    "beta": (1.0, {"loss": "joint_kl"}),
    "floor": 0.5,
    "covariance": "low_rank",
    "rank": (2, {"covariance": "low_rank"}),
    "shrinkage": 0.5,
}
OTHER = {
    "barlow_twins": {"redundancy": 0.1, "scale": 0.1},
    "byol": {"hidden": 16},
    "contrastive": {
        **{"temperature": 0.5, "covariance": "diagonal", "weights": ("norm", {"normalize": False}), "components": "pairs"},
        **{"normalize": False, "momentum": 0.5},
    },
    "gje": {
        **{"loss": "naive", "eta": 2.0, "beta": (1.0, {"loss": "joint_kl"}), "likelihood": "ema", "shrinkage": 0.5},
        **{"covariance": ("low_rank", {"likelihood": "learned"}), "stop_gradient": (True, {"loss": "naive"})},
        **{"rank": (2, {"likelihood": "learned", "covariance": "low_rank"}), "momentum": (0.5, {"likelihood": "ema"})},
    },
    "gmje": {
        **MIXTURE,
        **{"components": 3, "fit": "gradient", "momentum": 0.5},
        **{name: (value, {"fit": "gradient"}) for name, value in (("covariance", "low_rank"), ("floor", 0.5))},
        "rank": (2, {"fit": "gradient", "covariance": "low_rank"}),
    },
    "gmje_em": {**MIXTURE, "components": 3, "bank": 24, "steps": 1},
    "gmje_gng": {**MIXTURE, "max_nodes": 2, "items_per_node": 2.0, "insert_every": 7, "bank": (24, {"max_nodes": 4}), "steps": 1},
    "gmje_mdn": {
        **{"components": 3, "hidden": 16, "marginal": "nll", "weight": 2.0, "target": "through", "floor": 0.1, "tied": False},
        "momentum": 0.5,
    },
    "gmje_smc": {
        **{"bank": 24, "temperature": 0.5, "mode": "fifo", "momentum": 0.5, "u": 0.5, "normalize": False},
        **{"ess_threshold": (2.0, {"bank": 24}), "max_age": (1, {"bank": 40})},
        "resampling": ("stratified", {"bank": 24, "ess_threshold": 2.0}),
    },
    "jepa": {"hidden": 16, "tied": False, "momentum": 0.5},
    "lejepa": {"weight": 0.2, "slices": 16, "knots": 9, "t_max": 5.0},
    "moco": {"hidden": 16, "temperature": 0.5, "last_norm": False},
    "simsiam": {"hidden": 16},
    "swav": {"prototypes": 16, "temperature": 0.2, "epsilon": 0.1, "iterations": 1, "frozen_steps": 2},
    "vi_simsiam": {"beta": 2.0, "hidden": 20},
    "vicreg": {"invariance": 2.0, "variance": 2.0, "decorrelation": 2.0},
    "vje": {"nu": 5.0, "beta": 2.0, "hidden": 32, "terms": ("directional", "kl")},
    "vssl": {
        **{"loss": "analytic", "likelihood": "sample", "beta": 2.0, "predictor": False, "hidden": 32, "floor": 0.1},
        "momentum": 0.5,
    },
}


def trace(name, settings):
    """Returns the terms, gradients and state of some steps, and what the objective computes after them."""
    torch.manual_seed(0)
    objective = objectives.get(name)(D, **{**SMALLER.get(name, {}), **settings})
    found = []
    for seed in range(STEPS):
        torch.manual_seed(seed)
        za, zb = (z.requires_grad_() for z in pair())
        terms = objective(za, zb)
        sum(terms.values()).backward()
        with torch.no_grad():
            for p in objective.parameters():
                p -= 0.01 * (p.grad if p.grad is not None else 0)
        objective.update(za.detach(), zb.detach())
        found += [*(term.detach() for term in terms.values()), za.grad, zb.grad, *(v.clone() for v in objective.buffers())]
    return [*found, *outputs(objective, za.detach(), zb.detach()), *objective.state_dict().values()]


@pytest.mark.parametrize(("name", "option"), options.of_register(objectives))
def test_no_option_is_ignored(name, option):
    value, base = other if isinstance(other := OTHER[name][option], tuple) and isinstance(other[1], dict) else (other, {})
    one, another = trace(name, base), trace(name, {**base, option: value})
    assert options.differ(one, another)
