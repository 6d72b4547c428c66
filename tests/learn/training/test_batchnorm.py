"""Batch normalization over several processes on a CPU equals torch's, with one process, for every setting."""

import pytest
import torch
from torch import nn

from vergence.learn.training.processes import with_global_batch_norm

pytestmark = pytest.mark.filterwarnings("ignore:.*all_reduce is deprecated:FutureWarning")


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": None}, {"momentum": 0.0}, {"affine": False}, {"track_running_stats": False}]
)
def test_it_equals_torchs_for_one_process(group, settings):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.BatchNorm1d(3, **settings))
    shared = with_global_batch_norm(nn.Sequential(nn.BatchNorm1d(3, **settings)), on_gpu=False)
    for _ in range(3):
        x = 5 + 2 * torch.randn(16, 3)
        torch.testing.assert_close(shared(x), plain(x))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(shared.state_dict()[name], value)
    plain.eval(), shared.eval()
    torch.testing.assert_close(shared(x), plain(x))
