"""The experiment on corrupted images: its views, fixed corruptions, supervised baseline, cells and summaries."""

import argparse

import pytest
import torch
from experiments.corruption import image_corruptions
from experiments.corruption import run as corruption
from experiments.corruption import table as ct
from tests.conftest import torchvision_root
from torch.nn import functional as F

from vergence.data.config import ViewConfig
from vergence.learn.encoders.building import encoder
from vergence.learn.training import build
from vergence.learn.views.images import ImageViews

VIEWS = ViewConfig(blur=0.0)


def some(n=6, side=32):
    return torch.randint(0, 256, (n, 3, side, side), generator=torch.Generator().manual_seed(0)).byte()


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# Views


def test_the_corruption_is_appended_to_the_same_view():
    x, plain = some(), ImageViews(VIEWS, 32)
    views = {s: corruption.CorruptedViews(VIEWS, 32, "gaussian_noise", s) for s in (0, 1, 2)}
    draws = views[0].draw(6, seeded())
    without = {name: draw for name, draw in draws.items() if name != "corruption"}
    assert torch.equal(views[0].apply(x, draws), plain.apply(x, without))
    for strength in (1, 2):
        wanted = image_corruptions.corrupted(plain.apply(x, without), "gaussian_noise", strength, draws["corruption"])
        assert torch.equal(views[strength].apply(x, draws), wanted)
    far = [float((views[s].apply(x, draws) - views[0].apply(x, draws)).abs().mean()) for s in (1, 2)]
    assert 0 < far[0] < far[1]


def test_a_part_of_a_batch_has_the_views_of_the_whole():
    views = corruption.CorruptedViews(VIEWS, 32, "zoom_blur", 2)
    x, draws = some(), views.draw(6, seeded())
    part = views.apply(x[2:4], {name: draw[2:4] for name, draw in draws.items()})
    assert torch.equal(part, views.apply(x, draws)[2:4])


# The data


def test_a_fixed_corruption_follows_from_index_part_and_seed():
    x = some()
    y = corruption.corrupted(x, "gaussian_noise", 3, 0, "train")
    assert torch.equal(corruption.corrupted(x, "gaussian_noise", 3, 0, "train"), y)
    assert torch.equal(corruption.corrupted(x[:3], "gaussian_noise", 3, 0, "train"), y[:3])
    for seed, part in ((1, "train"), (0, "test")):
        assert not torch.equal(corruption.corrupted(x, "gaussian_noise", 3, seed, part), y)
    same = corruption.corrupted(x[:1].repeat(2, 1, 1, 1), "gaussian_noise", 3, 0, "train")
    assert not torch.equal(same[0], same[1]), "each image has its own noise"


# Supervised baseline


@pytest.mark.float32
def test_supervised_is_the_cross_entropy_of_the_head_on_a_view_of_each_step():
    torch.manual_seed(0)
    net = encoder("small", (3, 32, 32), torch.full((3,), 0.5), torch.full((3,), 0.25)).eval()
    views = corruption.CorruptedViews(VIEWS, 32, "pixelate", 1)
    method = corruption.Supervised(net, (3, 32, 32), 4, views)
    x, labels = some(), torch.tensor([0, 1, 2, 3, 0, 1])
    values = []
    for step in (7, 7, 8):
        torch.manual_seed(step)
        values.append(method((x, F.one_hot(labels, 4).float()), gather=lambda z: z)["cross_entropy"])
    torch.manual_seed(7)
    seen = views(x, seeded(int(torch.randint(2**62, ()))))
    torch.testing.assert_close(values[0], F.cross_entropy(method.head(net(seen)), labels))
    assert values[0] == values[1] != values[2]
    values[0].backward()
    assert all(p.grad is not None for p in method.parameters())


# Measurements


@pytest.mark.float32
@pytest.mark.parametrize("paradigm", ["contrastive", "denoising_autoencoder", "supervised"])
@pytest.mark.parametrize("strength", [0, 2])
def test_a_network_trains_on_views_of_its_corruption_and_strength(root, monkeypatch, paradigm, strength):
    class Seen(Exception):
        pass

    def fit(fabric, method, items, views, *more, **settings):
        raise Seen(method.views if paradigm == "supervised" else views)

    monkeypatch.setattr(corruption.loop, "fit", fit)
    parts = corruption.read("fashion_mnist", root, 60, 20, "fog", 3, 0)
    cell = {"data": "fashion_mnist", "corruption": "fog", "severity": 3, "strength": strength, "paradigm": paradigm, "seed": 0}
    with pytest.raises(Seen) as caught:
        corruption.trained(given(), cell, parts)
    (views,) = caught.value.args
    assert (views.kind, views.strength, views.size) == ("fog", strength, 28)
    assert not torch.equal(parts.test, parts.clean)


@pytest.mark.float32
def test_closed_forms_solve_their_own_problems(root, monkeypatch):
    """Against dense sums over the same views and generalized eigenvectors: G against S, and M' M against S."""
    from scipy.linalg import eigh

    monkeypatch.setattr(corruption, "DIRECTIONS", 12)
    monkeypatch.setattr(corruption, "COMPONENTS", 3)
    monkeypatch.setattr(corruption, "measured", lambda parts, train, test, clean: {"z": train.double()})
    parts = corruption.read("fashion_mnist", root, 200, 20, "fog", 3, 0)
    cell = {"data": "fashion_mnist", "corruption": "fog", "severity": 3, "strength": 1, "paradigm": "patches", "seed": 0}
    found = corruption.closed_forms(given(), cell, parts)
    views, g = corruption.views_of(cell, 28), seeded(corruption.loop.seed_of(0, "views", 0))
    maps = corruption.patch_features(parts.train, views, atoms=8, seed=0)
    features = maps(corruption.to_unit(parts.train))
    center, V = corruption.principal_directions([features], 12, torch.float32)
    x = ((features - center) @ V).double()
    v = torch.stack([((maps(corruption.to_unit(views(parts.train, g))) - center) @ V).double() for _ in range(corruption.DRAWS)])
    m, n = v.shape[:2]
    own = v.mean(0)  # of each image's views
    S, mean = torch.einsum("mni,mnj->ij", v, v) / (m * n), v.mean((0, 1))
    G = S - (S - own.T @ own / n) * m / (m - 1)
    G, S = (part + (S - G) / (n * m) - torch.outer(mean, mean) for part in (G, S))
    M = x.T @ own / n - torch.outer(x.mean(0), mean)
    for name, A in {"joint_embedding": G, "reconstruction": M.T @ M}.items():
        W = torch.from_numpy(eigh(A.numpy(), S.numpy())[1][:, -3:].copy())
        wanted, z = (part - part.mean(0) for part in (x @ W, found[name]["z"]))
        left = z - wanted @ torch.linalg.lstsq(wanted, z).solution
        assert float(left.square().mean() / z.square().mean()) < 1e-5, name


# Cells


def given(**changes):
    settings = {"paradigms": list(corruption.PARADIGMS), "seeds": [0], "tested": 1000, "set": {}, "atoms": 8}
    return argparse.Namespace(**{**corruption.GRID, **corruption.SMALL, **settings, "device": "cpu", "threads": None, **changes})


def test_the_whole_grid_has_every_corruption_that_the_images_can_have(capsys):
    todo = list(corruption.cells(given(**corruption.WHOLE)))
    assert len(todo) == (16 + 15) * 5 * 3 * len(corruption.PARADIGMS)
    assert capsys.readouterr().out.startswith("fashion_mnist left out")


def test_every_network_has_the_same_batch_and_epochs_and_the_closed_forms_have_none():
    for cell in corruption.cells(given(data=["cifar10"], corruptions=["fog"], severities=[1], strengths=[0], seeds=[3])):
        if cell["paradigm"] in corruption.RECIPES:
            config = corruption.described(given(), cell)
            assert (config.fit.epochs, config.fit.batch_size, config.fit.seed) == (5, 64, 3)
            build.build_method(config.model, (3, 32, 32), None, torch.full((3,), 0.5), torch.full((3,), 0.25))
            assert (str(config.model.encoder) == "small") == (cell["paradigm"] != "masked_autoencoder")
        else:
            assert cell["epochs"] is None and cell["atoms"] == 8


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(torchvision_root("FashionMNIST", "fashion_mnist", tmp_path_factory))


@pytest.mark.float32
def test_every_kind_of_paradigm_is_measured(root):
    a = given(data=["fashion_mnist"], corruptions=["pixelate"], severities=[1], strengths=[1], data_root=root, tested=50)
    a.limit, a.epochs, a.batch_size, a.paradigms = 120, 1, 60, ["patches", "denoising_autoencoder", "supervised"]
    patches, *networks = (corruption.measure(a, cell) for cell in corruption.cells(a))
    assert set(patches["joint_embedding"]) == set(patches["reconstruction"])
    assert all(0 <= row["clean_probe"] <= 100 and row["warnings"] == [] for row in networks)


# Summaries


def row(paradigm="byol", severity=1, strength=0, probe=50.0, seed=0, **more):
    values = {"probe": probe, "clean_probe": probe + 1, "knn30": probe - 1, "clean_knn30": probe}
    cell = {"data": "cifar10", "n_train": 2000, "n_test": 1000, "corruption": "fog", "severity": severity, "strength": strength}
    return {**cell, "paradigm": paradigm, "seed": seed, **values, **more}


def advice(pixels, patches, **setting):
    return {**row("advice", **setting), "pixels": {"verdict": pixels}, "patches": {"verdict": patches}}


def test_drops_are_relative_to_severity_one_without_aligned_views():
    """The paper's own numbers of table 1 give its drops."""
    paper = {"pixelate": (64.9, 46.8, 27.9), "gaussian_noise": (61.6, 44.8, 27.3), "zoom_blur": (64.1, 51.3, 20.0)}
    found = [row("dino", 1), row("dino", 3), row("dino", 5, strength=1)]
    for kind, (first, fifth, _) in paper.items():
        ends = zip((1, 3, 5), (first, 55.0, fifth), strict=True)
        found += [row("masked_autoencoder", s, probe=value, corruption=kind) for s, value in ends]
        found += [row("masked_autoencoder", 5, strength=1, probe=1.0, corruption=kind)]
    header, body = ct.drops(found)
    assert [column.split(": ")[1] for column in header[1:-2]] == sorted(paper)
    assert body == [["masked_autoencoder", *(f"{paper[kind][2]:.1f}" for kind in sorted(paper)), "25.0", "25.1"]], (
        "the paper's mean is of rounded drops"
    )


def test_a_winner_is_clear_by_half_a_point_and_two_standard_errors():
    def won(a, b, n, seeds=1):
        return ct.winner(*({"probe": p, "n_test": n, "seeds": seeds} for p in (a, b)))

    assert won(50.4, 50.0, 10**9) == "tie"
    assert won(50.6, 50.0, 10**9) == "joint_embedding"
    assert won(50.0, 54.0, 1000) == "tie", "two standard errors are 4.5 points"
    assert won(50.0, 55.0, 1000) == "reconstruction"
    assert won(50.0, 54.0, 1000, seeds=4) == "reconstruction"


def test_the_advice_is_held_against_clear_winners():
    joint, other, unsure = "joint_embedding", "reconstruction", "cannot_tell"
    found = []
    for severity, (a, b) in enumerate([(60, 50), (60, 50), (50, 60), (50, 50.1)], 1):
        found += [row("byol", severity, probe=20), row("vje", severity, probe=a)]
        found += [row("denoising_autoencoder", severity, probe=b), row("supervised", severity, probe=99)]
    found += [advice(joint, unsure, severity=1), advice(other, joint, severity=2), advice(other, other, severity=3)]
    found += [advice(joint, joint, severity=4)]
    body = ct.predicted(found)[1]
    assert body[0][0] == "best networks of both kinds: clear in 3 of 4 settings"
    assert [line[1:4] for line in body] == [
        ["advice on pixels", "3", "2"],
        ["advice on patches", "2", "2"],
        ["always joint embedding", "3", "2"],
        ["always reconstruction", "3", "1"],
    ]
    assert body[0][4] == "67 % (21 to 94)", "Wilson's interval of 2 in 3"
    both = {"joint_embedding": row(probe=30.0), "reconstruction": row(probe=40.0)}
    found.append(row("patches", severity=1, **both))
    assert ct.predicted(found)[1][4][:4] == ["closed forms on patches: clear in 1 of 1 settings", "advice on pixels", "1", "0"]
