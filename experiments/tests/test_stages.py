"""Tests of `experiments.detection.stages`."""

import pytest
import torch
from experiments.detection.stages import stage_features

from vergence.learn.encoders.building import encoder

RESNET = pytest.param("resnet18", 4, marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "n"), [("small", 4), RESNET, ("mlp", 2), ("patches:atoms=8,dim=5", 1)])
def test_stages_of_encoders(name, n):
    net = encoder(name, (3, 16, 16), torch.zeros(3), torch.ones(3)).eval()
    x = torch.rand(4, 3, 16, 16)
    with torch.no_grad():
        found = stage_features(net, x)
        assert list(found) == [*(f"stage{i + 1}" for i in range(n)), "z"]
        assert torch.equal(found["z"], net(x))
    assert all(values.ndim == 2 and len(values) == 4 for values in found.values())
    assert not any(module._forward_hooks for module in net.modules())


class Stacked(torch.nn.Module):
    """Its layers are in a list, which has no output of its own."""

    def __init__(self):
        super().__init__()
        self.layer_norm = torch.nn.LayerNorm(6)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4)])

    def forward(self, x):
        x = self.layer_norm(x)
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_list_of_layers_is_no_stage():
    assert {name: len(z) for name, z in stage_features(Stacked().eval(), torch.rand(5, 6)).items()} == {"stage1": 5, "z": 5}


def test_stages_are_mean_and_deviation_over_positions():
    net = encoder("small", (1, 8, 8), torch.zeros(1), torch.ones(1)).eval()
    x = torch.rand(2, 1, 8, 8)
    with torch.no_grad():
        maps = net[1][:3](net[0](x))
        found = stage_features(net, x)["stage1"]
    expected = torch.cat([maps.mean((2, 3)), maps.flatten(2).std(2, correction=0)], 1)
    assert torch.allclose(found, expected.to(found), atol=1e-5)


@pytest.mark.slow
def test_stages_of_networks_of_timm():
    pytest.importorskip("timm")
    net = encoder("timm:resnet10t", (3, 32, 32), torch.zeros(3), torch.ones(3)).eval()
    with torch.no_grad():
        found = stage_features(net, torch.rand(2, 3, 32, 32))
    assert len(found) > 3 and all(values.ndim == 2 for values in found.values())
