"""The operations of the published recipes: counted rightly, for every recipe that needs a GPU."""

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
    config = recipes.get("vje_small")
    assert recipe_costs.operations(config, SHAPE) == by_layers(config)


def test_every_published_recipe_is_counted():
    assert set(recipe_costs.published()) == {row["recipe"] for row in ledger.rows("recipe_costs")} == set(recipes.PUBLISHED)
