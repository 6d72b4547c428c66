"""More than two views of an item: settings, small crops, several functions, and a function that returns all views."""

import numpy as np
import pytest
import torch
from tests.refusals import refuses
from torch import nn

import vergence
from vergence.data.config import ViewConfig
from vergence.learn.methods.core import MultiView
from vergence.learn.views.images import GivenViews, ImageViews
from vergence.learn.views.vectors import Marginals, VectorViews

pytestmark = pytest.mark.float32
QUICK = {"epochs": 1, "batch_size": 16, "device": "cpu", "precision": "fp32", "knn_every": 0, "calibration_share": 0.0}


def made(views, x):
    inputs = MultiView(*views.kinds())
    return inputs.apply(x, inputs.draw(len(x), torch.Generator().manual_seed(0)))


def test_settings_say_how_many_views_and_small_crops():
    x = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8)
    views = made(ImageViews(ViewConfig(n_views=3, local_views=2, local_size=6, local_crop=(0.1, 0.2)), 16), x)
    assert [view.shape[2] for view in views] == [16, 16, 16, 6, 6] and not torch.equal(views[3], views[4])
    two = made(ImageViews(ViewConfig(), 16), x)
    assert all(torch.equal(a, b) for a, b in zip(two, views[:2], strict=True)), "more views change none of the others"
    assert len(made(VectorViews(ViewConfig(n_views=4), Marginals.of(torch.randn(9, 3))), torch.randn(5, 3))) == 4
    refuses("local_crop", ImageViews, ViewConfig(local_crop=(0.5, 0.2)), 16)


def noisy(scale):
    return lambda x, generator: x + scale * torch.randn(x.shape, generator=generator)


@pytest.mark.parametrize(
    "views",
    [
        GivenViews((noisy(0.0), noisy(0.1), noisy(0.2)), (6,)),
        GivenViews(lambda x, generator: [noisy(s)(x, generator) for s in (0.0, 0.1, 0.2)], (6,)),
        GivenViews(lambda item: (item, item + 0.1 * torch.randn(6), item + 0.2 * torch.randn(6)), (6,)),
    ],
)
def test_functions_make_three_views(views):
    x = torch.randn(200, 6)
    first, *others = made(views, x)
    assert torch.equal(first, x) and [round((view - x).std().item(), 1) for view in others] == [0.1, 0.2]
    single = MultiView(views)
    assert len(single.apply(x, single.draw(200, torch.Generator()))) == 1, "a method of one view takes the first"


@pytest.mark.parametrize(
    ("views", "words"),
    [((), "a tuple of functions"), ((noisy(0.1), 3), "a tuple of functions"), (lambda x, g: (x, x[:, :2]), "shape")],
)
def test_what_makes_no_views_is_named(views, words):
    refuses(words, lambda: made(GivenViews(views, (6,)), torch.randn(4, 6)))


def three(x, generator):
    return [noisy(s)(x, generator) for s in (0.1, 0.2, 0.3)]


def test_a_run_has_its_functions_and_says_what_has_no_effect(capsys):
    x, seen = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32), []

    def counted(x, generator):
        seen.append(len(x))
        return noisy(0.3)(x, generator)

    run = vergence.train(x, objective="vicreg", views=(noisy(0.1), noisy(0.2), counted), **QUICK)
    assert run.folder.config.views.n_views == 3 and len(seen) == run.folder.metrics()[-1]["step"] == 4
    assert run.folder.config.views.function.count("+") == 2
    vergence.train(x, objective="vje", views=three, **QUICK)
    capsys.readouterr()
    vergence.train(x, objective="vje", n_views=3, **QUICK)
    assert "without effect" not in capsys.readouterr().err
    refuses("images for local_views", vergence.train, x, objective="vje", local_views=1, **QUICK)
    with pytest.raises(ValueError, match="two views for two encoders"):
        vergence.train(x, objective="vje", target_encoder=nn.Linear(6, 256), encoder="mlp", n_views=3, **QUICK)
