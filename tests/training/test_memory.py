"""What a step keeps of an item, and that counting it changes nothing."""

import torch

from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder, projector
from vergence.methods.paired import PairedMethod
from vergence.objectives.vje import VJE
from vergence.training.memory import item_bytes


def method(size, head=()):
    net = encoder("small", (1, size, size), torch.zeros(1), torch.ones(1))
    return PairedMethod(net, VJE(head[-1] if head else 256), projector=projector(256, head) if head else None)


def bytes_of(size, head=()):
    return item_bytes(method(size, head), ImageViews(ViewConfig(), size), (1, size, size))


def test_larger_images_and_heads_keep_more():
    assert bytes_of(32) > 3 * bytes_of(16) > 3 * 2 * 8 * 16 * 16
    assert bytes_of(16, (4096, 32)) > bytes_of(16) + 2 * 8 * 4096


def test_counting_changes_neither_weights_nor_statistics_nor_the_random_state():
    own, views = method(16, (64, 32)), ImageViews(ViewConfig(), 16)
    own.projector.eval()
    before, state = {name: value.clone() for name, value in own.state_dict().items()}, torch.get_rng_state()
    assert item_bytes(own, views, (1, 16, 16)) > 0
    assert all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and own.encoder.training and not own.projector.training
    assert all(p.grad is None for p in own.parameters())


def test_a_frozen_method_keeps_nothing():
    assert item_bytes(method(16).requires_grad_(False), ImageViews(ViewConfig(), 16), (1, 16, 16)) == 0
