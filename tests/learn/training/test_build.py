"""What a method is built with: the statistics of its inputs."""

import numpy as np
import pytest
import torch

from vergence.data.config import DataConfig, ViewConfig
from vergence.data.items import ArrayItems
from vergence.data.sources import open_data
from vergence.learn.training import build


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_a_feature_varies_or_not_whatever_its_unit(kind, unit):
    r = np.random.default_rng(0)
    x = torch.from_numpy(unit * np.c_[r.normal(size=200), np.full(200, 0.1), 1e3 + r.normal(size=200)]).to(kind)
    _, std = build.statistics(ArrayItems(x))
    torch.testing.assert_close(std[[0, 2]], x[:, [0, 2]].double().std(0, correction=0).to(std), rtol=1e-3, atol=0)
    assert std[1] == 1.0


def test_a_channel_of_one_value_has_deviation_one():
    x = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8)
    x[:, 1] = 7
    mean, std = build.statistics(ArrayItems(x))
    assert std[1] == 1.0 and mean[1].item() == pytest.approx(7 / 255) and 0.2 < std[0] < 0.35


@pytest.mark.parametrize("n", [1, 31, 32, 33, 200])
def test_batches_give_the_statistics_of_all_items(n):
    x = torch.rand(n, 3, 4, 4, dtype=torch.float64) + 100 * torch.arange(3).reshape(3, 1, 1)
    mean, std = build.statistics(ArrayItems(x.float()))
    flat = x.float().double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean, flat.mean(1).float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(std, flat.std(1, correction=0).float(), rtol=1e-5, atol=0)


def test_a_feature_that_is_constant_within_each_batch_alone_varies():
    x = torch.arange(100.0).div(50, rounding_mode="floor")[:, None].repeat(1, 2)
    x[:, 1] = 0.1
    _, std = build.statistics(ArrayItems(x.sort(0).values))
    assert std.tolist() == [0.5, 1.0]


def test_views_leave_a_constant_feature_as_it_is(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 3))
    x[:, 1] = 7.0
    np.save(tmp_path / "x.npy", x)
    opened = open_data(DataConfig(source=str(tmp_path / "x.npy")))
    views = build.make_views(opened, ViewConfig(noise=0.5), (3,))
    _, batch = next(opened.train.stream([torch.arange(20)]))
    changed = views(batch, torch.Generator().manual_seed(0)) != batch
    assert not changed[:, 1].any() and changed[:, [0, 2]].all()
