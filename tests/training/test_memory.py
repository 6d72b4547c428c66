"""What a step keeps of an item, and that counting it changes nothing."""

import pytest
import torch

from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder, projector
from vergence.methods.paired import PairedMethod
from vergence.objectives.vje import VJE
from vergence.training.config import FitConfig
from vergence.training.memory import item_bytes, require_memory


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


def test_the_count_stops_where_one_item_is_too_large():
    own, views = method(64), ImageViews(ViewConfig(), 64)
    before, whole = torch.get_rng_state(), item_bytes(own, views, (1, 64, 64))
    part = item_bytes(own, views, (1, 64, 64), most=whole / 4)
    assert whole / 4 < part < whole and item_bytes(own, views, (1, 64, 64), most=whole) == whole
    assert torch.equal(torch.get_rng_state(), before) and own.training


def test_an_image_larger_than_the_memory_is_refused_early(monkeypatch):
    monkeypatch.setattr("vergence.training.memory.total_memory", lambda device: 1 << 24)
    own, views, cpu = method(256), ImageViews(ViewConfig(), 256), torch.device("cpu")
    require_memory(method(16), ImageViews(ViewConfig(), 16), FitConfig(batch_size=2), (1, 16, 16), cpu)
    with pytest.raises(ValueError, match="more than that of views and of what their gradient needs; lower --batch-size"):
        require_memory(own, views, FitConfig(batch_size=2), (1, 256, 256), cpu)
