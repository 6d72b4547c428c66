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


TYPED = """
from typing import Literal
from vergence.objectives import Objective

class Typed(Objective):
    def __init__(
        self, dim, *, w: float = 1.0, name: str = "a", count: int = 1, may: float | None = None,
        two: tuple[float, ...] = (), kind: Literal["a"] = "a",
    ):
        super().__init__()
        self.dim, self.found = dim, (w, name, count, may, two, kind)

    def forward(self, za, zb):
        return {"distance": (za - zb).square().sum(-1).mean()}
"""


def test_options_have_the_types_of_the_class(tmp_path, monkeypatch):
    (tmp_path / "typed.py").write_text(TYPED)
    monkeypatch.syspath_prepend(str(tmp_path))
    for options in ({"w": 2}, {"w": float("inf"), "name": "abc"}, {"may": None, "two": (1, 2.5)}, {"may": 3}):
        assert set(options.values()) <= set(built("typed:Typed", **options).found)
    for options, words in (
        ({"w": "abc"}, "expected w of objective 'typed:Typed' to be a number, found 'abc'; change it"),
        ({"w": True}, "expected w of objective 'typed:Typed' to be a number, found True"),
        ({"w": None}, "to be a number, found None"),
        ({"name": 3}, "expected name of objective 'typed:Typed' to be text, found 3"),
        ({"count": 1.5}, "to be a whole number, found 1.5"),
    ):
        with pytest.raises(ValueError, match=words):
            built("typed:Typed", **options)
