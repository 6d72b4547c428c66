"""Runs on arrays that are no images: series of several channels, spectrograms, volumes and ids of tokens."""

import numpy as np
import pytest
import torch
from tests.refusals import refuses
from torch import nn

import vergence

pytestmark = pytest.mark.float32
QUICK = {"epochs": 1, "batch_size": 32, "device": "cpu", "precision": "fp32", "knn_every": 0, "threads": 1}
R = np.random.default_rng(0)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.last = nn.Embedding(50, 8), nn.Linear(8, 12)

    def forward(self, x):
        return self.last(self.embed(x).mean(1))


def pooled(*first):
    return nn.Sequential(*first, nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten())


def dropped(x, generator):
    return torch.where(torch.rand(x.shape, generator=generator) < 0.2, 0, x)


def noisy(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator)


CASES = {
    "tokens": (R.integers(0, 50, (150, 7)), {"kind": "tokens", "encoder": Words, "views": dropped}),
    "decibels": (
        20 * R.normal(size=(150, 1, 12, 20)),
        {"kind": "array", "encoder": lambda: pooled(nn.Conv2d(1, 8, 3)), "views": noisy},
    ),
    "volumes": (R.normal(size=(150, 2, 4, 5, 6)), {"encoder": lambda: pooled(nn.Conv3d(2, 8, 3)), "views": noisy}),
    "series": (R.integers(-999, 999, (150, 3, 30)).astype(np.int16), {"views": "series", "phases": 0.2}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_an_array_embeds_scores_and_is_opened_again(name, tmp_path, capsys):
    (x, settings), y = CASES[name], np.arange(150) % 2
    run = vergence.train(x, labels=y, out=tmp_path / "run", **settings, **QUICK)
    about, views = run.folder.metadata, settings["views"]
    assert about.kind == ("tokens" if name == "tokens" else "array") and about.read_shape == about.shape == x.shape[1:]
    own = {"encoder": settings.get("encoder"), "views": views if callable(views) else None}
    again = vergence.load(tmp_path / "run", device="cpu", data=x, labels=y, **own)
    np.save(tmp_path / "x.npy", x[:3])
    assert torch.equal(again.embed(tmp_path / "x.npy"), run.embed(x[:3]))
    new = x[:4].copy()
    new[..., 0] = new[..., 1]
    assert vergence.Scorer(again)({"x": [*new, None]})["score"][:4] == pytest.approx(run.anomaly_score(new).numpy(), rel=1e-4)
    assert "z" in vergence.evaluate(again).representations and again.spread(new)[1].shape == (4,)
    refuses("items of shape", run.embed, x[:3, ..., :-1])
    assert "without effect" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("x", "settings", "word"),
    [(R.random((60, 4, 30)), {}, "give `views`.*or 'series'"), (CASES["tokens"][0], {"kind": "tokens"}, "network of your own"),
     (CASES["volumes"][0], {"views": noisy}, "network of your own"),
     (CASES["tokens"][0], {"kind": "tokens", "encoder": Words, "views": noisy}, "of whole numbers")],
)  # fmt: skip
def test_what_an_array_lacks_is_named(x, settings, word):
    refuses(word, vergence.train, x, **settings, **QUICK)


def test_what_is_cut_off_is_said_and_a_function_of_views_has_an_effect(capsys):
    vergence.train(R.random((60, 20, 12)), recipe="vje_small", **QUICK)
    assert "images are seen at 20 x 20 pixels: the middle square, 60% of 20 x 12" in capsys.readouterr().err
    vergence.train(R.random((60, 6)), views=noisy, **QUICK)
    assert "without effect" not in capsys.readouterr().err


def test_views_of_series_make_series_of_arrays_that_could_be_images():
    x = R.random((60, 12, 30), dtype=np.float32)
    run = vergence.train(x, views="series", objective="vicreg", **QUICK)
    assert run.folder.metadata.kind == "array" and run.folder.metadata.shape == (12, 30)
    refuses("say `kind='array'`", vergence.train, x, kind="image", views="series", objective="vicreg", **QUICK)


def test_ids_of_tokens_reach_a_network_before_a_head_of_a_recipe():
    x, settings = CASES["tokens"]
    assert vergence.train(x, objective="vicreg", **settings, **QUICK).embed(x[:2]).shape == (2, 12)
