"""``vergence advise --minutes``: candidates that are tried, judged and best_first."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from vergence.advice.advise import advise_on
from vergence.advice.candidates import Trial, best_first, say_trials
from vergence.cli.commands import main
from vergence.data.config import DataConfig, ViewConfig

pytestmark = pytest.mark.float32


def trial(kind: str, **values: Any) -> Trial:
    plain = {"command": "", "seconds": 1.0, "items": 9, "epochs": 0, "dim": 2, "effective_rank": 2.0, "lidar": 2.0}
    return Trial(kind=kind, **{**plain, "rank_error": 0.1, **values})


def test_candidates_on_vectors_with_labels_are_best_first_and_each_can_be_repeated(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=700)
    x = rng.normal(size=(700, 10)).astype(np.float32)
    x[:, :2] += 3 * np.stack([np.cos(2 * np.pi * y / 3), np.sin(2 * np.pi * y / 3)], 1)
    np.savez(tmp_path / "x.npz", x_train=x[:500], y_train=y[:500], x_test=x[500:], y_test=y[500:])
    data = DataConfig(source=str(tmp_path / "x.npz"))
    advice = advise_on(data, ViewConfig(mask=0.0), out=tmp_path / "out", n_draws=4, minutes=0.02, device="cpu")
    kinds = {one.kind for one in advice.trials}
    assert kinds == {"as_they_are", "closed_form", "joint_embedding", "reconstruction"}
    for one in advice.trials:
        assert 0.6 < one.knn <= 1 and 0.6 < one.probe <= 1 and 0 <= one.rank_error <= 0.5 and one.lidar >= 1, one
        assert one.interval < 0.1
    assert (tmp_path / "out" / "joint_embedding" / "config.json").exists()
    assert "--objective vje" in next(one.command for one in advice.trials if one.kind == "joint_embedding")
    again = advise_on(data, ViewConfig(mask=0.0), out=tmp_path / "out", n_draws=4, minutes=0.02, device="cpu")
    assert {one.kind for one in again.trials} == kinds  # runs of an earlier advice are replaced
    record = json.loads((tmp_path / "out" / "advice.json").read_text())
    assert len(record["trials"]) == 4
    assert "the closed form" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_a_candidate_that_cannot_be_is_left_out_and_the_command_says_why(tmp_path, capsys):
    x = torch.randint(256, (220, 4, 4, 1), generator=torch.Generator().manual_seed(0)).byte().numpy()
    np.save(tmp_path / "x.npy", x)
    main(["advise", str(tmp_path / "x.npy"), "--out", str(tmp_path / "out"), "--minutes", "0.01", "--draws", "4"])
    shown = capsys.readouterr()
    assert "left out: the closed form" in shown.err and "what was tried" in shown.out
    with pytest.raises(SystemExit):
        main(["advise", str(tmp_path / "x.npy"), "--frozen", "small"])
    assert "--minutes" in capsys.readouterr().err


def augment(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + 0.5 * torch.randn(x.shape, generator=generator, dtype=x.dtype)


def test_views_of_ones_own_at_the_command_line(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32))
    own = ["--views", "tests.advice.test_trials:augment"]
    main(["advise", str(tmp_path / "x.npy"), *own, "--out", str(tmp_path / "a"), "--draws", "8"])
    assert "of the variance of a view" in capsys.readouterr().out
    main(["train", str(tmp_path / "x.npy"), *own, "--epochs", "1", "--out", str(tmp_path / "r"), "--device", "cpu"])
    assert json.loads((tmp_path / "r" / "config.json").read_text())["views"]["function"] == "tests.advice.test_trials:augment"
    with pytest.raises(SystemExit):
        main(["advise", str(tmp_path / "x.npy"), "--views", "tests.learn.runs.nothing:augment"])
    assert "package.module:function" in capsys.readouterr().err


def test_close_candidates_cannot_be_told_apart_and_a_clear_one_is_named():
    a = trial("closed_form", knn=0.80, probe=0.82, interval=0.03)
    b = trial("joint_embedding", knn=0.79, probe=0.81, interval=0.03)
    c = trial("reconstruction", knn=0.60, probe=0.61, interval=0.03)
    assert [one.kind for one in best_first([c, b, a])] == ["closed_form", "joint_embedding", "reconstruction"]
    assert "cannot tell the closed form and a network, joint embedding apart" in say_trials([c, b, a])
    assert "the closed form is best, by labels" in say_trials([c, a])
    first = best_first([trial("closed_form", rank_error=0.3), trial("reconstruction", rank_error=0.2)])[0]
    assert first.kind == "reconstruction"
    assert "the vectors as they are" in say_trials([trial("closed_form"), trial("reconstruction")])
    assert "a pretrained network" in say_trials([trial("closed_form", command="vergence train x"), trial("reconstruction")])
