"""A frozen network gives each image its own features in threads, and is left as it was for others."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from vergence.images.frozen import FrozenNetwork

pytestmark = pytest.mark.float32


def network():
    torch.manual_seed(0)
    parts = (nn.Conv2d(3, 4, 8, 8), nn.Conv2d(4, 5, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return FrozenNetwork(nn.Sequential(*parts), "small")


@pytest.mark.parametrize("travelled", [False, True], ids=["own", "of another process"])
def test_features_in_threads_are_those_of_one(travelled):
    net = pickle.loads(pickle.dumps(network())) if travelled else network()
    images = [torch.rand(3, 40, 60) for _ in range(64)]
    ways = [lambda x: torch.cat([part.flatten() for part in net.features(x)]), lambda x: net.embed(x[None, :, :32, :32])]
    one = [way(x) for x in images for way in ways]
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda job: job[1](job[0]), [(x, way) for x in images for way in ways] * 4))
    assert all(map(torch.equal, many, one * 4))


def test_a_network_that_is_used_again_has_one_hook_for_each_stage():
    net = network().network
    before = [len(part._forward_hooks) for part in net.modules()]
    assert FrozenNetwork(net, "again").stages and [len(part._forward_hooks) for part in net.modules()] == before
