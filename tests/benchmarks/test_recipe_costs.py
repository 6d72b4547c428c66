"""The operations of the published recipes: counted rightly, for every recipe that needs a GPU, and as their docstrings say."""

import inspect
import re

import ledger
import pytest
import recipe_costs
import torch
from torch import nn

from vergence.training import build, recipes

SHAPE, BATCH = (3, 16, 16), 4


def by_layers(config):
    """Returns a step's operations for an image, layer by layer: 2 a product, forward and for both gradients but the pixels'."""
    method = build.initial_method(config, SHAPE, None, torch.zeros(3), torch.ones(3))
    total = 0.0

    def observe(module, inputs, output):
        nonlocal total
        passes = 2 if inputs[0].shape[1:] == SHAPE else 3
        total += passes * 2 * output.numel() * module.weight[0].numel() / BATCH

    for module in method.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(observe)
    method((torch.rand(BATCH, *SHAPE), torch.rand(BATCH, *SHAPE)), gather=lambda x: x)
    return total


@pytest.mark.float32
def test_the_operations_are_those_of_the_layers_forward_and_backward():
    config = recipes.get("vje_small")("cifar10")
    assert recipe_costs.operations(config, SHAPE) == by_layers(config)


def test_every_recipe_that_we_have_not_run_is_counted_and_says_its_hours():
    own = {name for name in recipes.names() if re.search(r"not (yet )?run by us", inspect.getdoc(recipes.get(name)))}
    assert set(recipe_costs.published()) == own
    hours = {row["recipe"]: row["hours"] for row in ledger.rows("recipe_costs")}
    assert hours.keys() == own
    for name in own:
        said = re.search(r"about ([\d.,]+) GPU-hours? by its operations", inspect.getdoc(recipes.get(name)))
        assert said is not None and said[1] == rounded(hours[name]), (name, rounded(hours[name]))


def rounded(hours):
    return f"{float(f'{hours:.2g}'):,.2g}" if hours < 10 else f"{float(f'{hours:.2g}'):,.0f}"
