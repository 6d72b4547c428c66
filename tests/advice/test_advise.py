"""Advice on files: what is read of them, exactly."""

import json

import numpy as np
import pytest
import torch

from vergence.advice.advise import advise_on
from vergence.advice.views import advise
from vergence.cli.commands import main
from vergence.data.config import DataConfig, ViewConfig
from vergence.data.sources import open_data

OFFSET = 1.7e9  # seconds since 1970, which float32 rounds to minutes


def written(folder, kind, x, labels):
    """Writes features as a file of a kind; returns its path."""
    path = folder / f"{kind}.{'parquet' if kind == 'columns' else kind}"
    if kind == "npz":
        np.savez(path, x=x, labels=labels)
    elif kind == "npy":
        np.save(path, x)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({f"f{i}": column for i, column in enumerate(x.T)} | {"label": labels}), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "columns"])
def test_an_offset_of_a_table_changes_no_advice(tmp_path, kind):
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    x = rng.normal(size=(400, 6)) + 3 * np.eye(6)[labels]
    assert np.abs((x + OFFSET).astype(np.float32) - OFFSET - x).max() > 5  # the precondition: float32 loses the table
    found = []
    for offset in (0.0, OFFSET):
        folder = tmp_path / str(offset)
        folder.mkdir()
        data = DataConfig(source=str(written(folder, kind, x + offset, labels)))
        views = ViewConfig(noise=0.2, mask=0.3)
        found.append(advise_on(data, views, out=folder / "advice", n_draws=8, device="cpu"))
    one, other = found
    for row, there in zip(one.augmentations, other.augmentations, strict=True):
        assert there.strength == pytest.approx(row.strength, abs=1e-5) and row.operation == there.operation


def test_double_is_for_vectors_that_float32_rounds(tmp_path):
    """Training reads float32 as before, float32 files and images are never widened, and subsets keep the type."""
    cases = {"double": (np.zeros((8, 3)), torch.float64), "whole": (np.zeros((8, 3), np.int64), torch.float64)}
    cases |= {"single": (np.zeros((8, 3), np.float32), torch.float32), "images": (np.zeros((8, 4, 4)), torch.float32)}
    for name, (array, kind) in cases.items():
        np.save(tmp_path / f"{name}.npy", array)
        config = DataConfig(source=str(tmp_path / f"{name}.npy"))
        exact, usual = open_data(config, double=True).train, open_data(config).train
        assert exact.dtype == kind and usual.dtype == torch.float32, name
        index = torch.tensor([1, 0])
        assert [x.dtype for _, x in exact.subset(index).to("cpu").stream([index])] == [kind]


def test_the_default_augmentation_is_that_of_the_command_line(tmp_path):
    one = advise_on(DataConfig(source="digits"), ViewConfig(flip=0.0), out=tmp_path, n_draws=4, device="cpu")
    other = advise("digits:train", n_draws=4)
    assert one.augmentations == other.augmentations and other.words[0] in one.words and "(crop, jitter, blur)" in other.words[0]
    assert one.words[0].startswith("Linear maps of pixels: As they are 9")


def test_a_file_is_no_folder_for_the_advice(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(ValueError, match=r"cannot write to .*f: File exists; choose another `out`"):
        advise_on(DataConfig(source="digits"), ViewConfig(), out=tmp_path / "f", device="cpu")


def test_a_date_that_the_images_follow_is_named_and_the_page_says_it(tmp_path):
    import os

    from PIL import Image

    rng = np.random.default_rng(0)
    folder = tmp_path / "pictures"
    (folder / "a").mkdir(parents=True)
    for i in range(260):
        pixels = (20 + 0.7 * i + 8 * rng.normal(size=(16, 16))).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "a" / f"{i}.png")
        os.utime(folder / "a" / f"{i}.png", (10_000 + 60 * i, 10_000 + 60 * i))
    data = DataConfig(source=str(folder), size=16)
    advice = advise_on(data, ViewConfig(jitter_p=0.0), out=tmp_path / "out", n_draws=4, device="cpu")
    assert "date" in advice.shared.followed
    assert "The embedding follows the date of the files" in (tmp_path / "out" / "report.html").read_text()


def augment(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x + 0.5 * torch.randn(x.shape, generator=generator, dtype=x.dtype)


@pytest.mark.float32
def test_views_of_ones_own_at_the_command_line(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32))
    own = ["--views", "tests.advice.test_advise:augment"]
    main(["advise", str(tmp_path / "x.npy"), *own, "--out", str(tmp_path / "a"), "--draws", "8"])
    assert "% of a view's variance comes from" in capsys.readouterr().out
    main(["train", str(tmp_path / "x.npy"), *own, "--epochs", "1", "--out", str(tmp_path / "r"), "--device", "cpu"])
    assert json.loads((tmp_path / "r" / "config.json").read_text())["views"]["function"] == "tests.advice.test_advise:augment"
    with pytest.raises(SystemExit):
        main(["advise", str(tmp_path / "x.npy"), "--views", "tests.learn.runs.nothing:augment"])
    assert "package.module:function" in capsys.readouterr().err
