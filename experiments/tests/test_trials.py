"""What experiments/advice tries: each candidate is fitted for a share of the time and judged, and what cannot be is left out."""

import numpy as np
import pytest
import torch
from experiments.advice.trials import best_first, tried

from vergence.data.config import DataConfig, ViewConfig
from vergence.data.sources import open_data

pytestmark = pytest.mark.float32


def test_candidates_on_vectors_with_labels_are_judged_and_each_can_be_repeated(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=700)
    x = rng.normal(size=(700, 10)).astype(np.float32)
    x[:, :2] += 3 * np.stack([np.cos(2 * np.pi * y / 3), np.sin(2 * np.pi * y / 3)], 1)
    np.savez(tmp_path / "x.npz", x_train=x[:500], y_train=y[:500], x_test=x[500:], y_test=y[500:])
    data = DataConfig(source=str(tmp_path / "x.npz"))
    for _ in range(2):  # runs of an earlier call are replaced
        found = tried(data, ViewConfig(mask=0.0), open_data(data), out=tmp_path / "out", minutes=0.02, device="cpu")
    assert {one.kind for one in found} == {"as_they_are", "closed_form", "joint_embedding", "reconstruction"}
    for one in found:
        assert 0.6 < one.knn <= 1 and 0.6 < one.probe <= 1 and 0 <= one.rank_error <= 0.5 and one.lidar >= 1, one
    assert best_first(found)[0].accuracy == max(one.accuracy for one in found)
    assert "--objective vje" in next(one.command for one in found if one.kind == "joint_embedding")


def test_a_candidate_that_cannot_be_is_left_out(tmp_path, capsys):
    x = torch.randint(256, (220, 4, 4, 1), generator=torch.Generator().manual_seed(0)).byte().numpy()
    np.save(tmp_path / "x.npy", x)
    data = DataConfig(source=str(tmp_path / "x.npy"))
    found = tried(data, ViewConfig(), open_data(data), out=tmp_path / "out", minutes=0.01, device="cpu")
    assert "left out: the closed form" in capsys.readouterr().err and "closed_form" not in [one.kind for one in found]
