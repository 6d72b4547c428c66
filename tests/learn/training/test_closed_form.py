"""The recipe ``patches``: equal to the solution by hand, resumed with the same bits, usable as every run, and its bad input."""

import shutil

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.refusals import refuses

import vergence
from vergence.data.arrays import from_array
from vergence.data.config import DataConfig, ViewConfig
from vergence.data.items import batches
from vergence.densities import moments
from vergence.learn.encoders.config import PatchSettings, as_encoder
from vergence.learn.encoders.networks import Standardize
from vergence.learn.encoders.patch_maps import PatchEncoder, SecondLayer
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.gje import GJE
from vergence.learn.runs.embed import write_embeddings
from vergence.learn.runs.page import write_report
from vergence.learn.training import closed_form, loop
from vergence.learn.training.config import FitConfig, RunConfig
from vergence.learn.training.metrics import Recorder
from vergence.learn.views.images import ImageViews
from vergence.utils.devices import cpu_threads

TINY = "patches:atoms=16,patch=3,directions=20,dim=8"
QUICK = {"recipe": "patches", "encoder": TINY, "device": "cpu"}
BEHIND = {"recipe": "patches_vje", "encoder": TINY.replace(":", "-mlp:"), "batch_size": 16, "epochs": 1}
DISTILLED = {"recipe": "distilled_vje", "distill": TINY, "batch_size": 16, "epochs": 1, "distill_epochs": 2}


class Fabric:
    """One process on the CPU."""

    device, global_rank, world_size, is_global_zero = torch.device("cpu"), 0, 1, True

    def barrier(self):
        """Does nothing."""


class Silent(Recorder):
    """Drops everything."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A finished run; tests that change its folder copy it."""
    with torch.random.fork_rng(devices=[]):
        return vergence.train("digits", out=tmp_path_factory.mktemp("digits") / "run", **QUICK)


@pytest.fixture
def copied(digits, tmp_path):
    shutil.copytree(digits.folder.path, tmp_path / "run")
    return vergence.load(tmp_path / "run")


def fitted(x, settings, views):
    net = torch.nn.Sequential(Standardize(torch.zeros(1), torch.ones(1)), PatchEncoder(1, settings))
    method = PairedMethod(net, GJE(settings.dim))
    config = RunConfig(data=DataConfig(source="x"), fit=FitConfig(workers=0))
    closed_form.fit_closed_form(Fabric(), method, from_array(x), views, config, None, Silent())
    return method


def test_the_fit_equals_the_generalized_eigenproblem_by_hand():
    x = np.random.default_rng(0).random((300, 8, 8)).astype(np.float32)
    settings = PatchSettings(atoms=4, patch=3, pool=1, directions=8, dim=3, views=3, shift=0, ridge=0.01, power=1.0)
    views = ImageViews(ViewConfig(crop=(0.9, 1.0), blur=0.0), 8)
    method = fitted(x, settings, views)
    encoder = method.encoder[1]
    f = []  # all 8 features are kept, so that the principal directions are a rotation
    for block, index in enumerate(batches(300, closed_form.BLOCK)):
        seeds = [loop.seed_of(0, "views", block * 3 + j) for j in range(3)]
        part = torch.from_numpy(x)[index, None]
        f.append(torch.stack([encoder.maps(views(part, torch.Generator().manual_seed(seed))) for seed in seeds]))
    f = torch.cat(f, 1)
    mean = f.mean((0, 1))
    within = (f - f.mean(0)).flatten(0, 1)
    within = within.T @ within / (300 * 2)
    c = (f - mean).flatten(0, 1)
    S = c.T @ c / 900 + within / 900
    G = S - within
    S_ridge = S + 0.01 * S.diagonal().mean() * torch.eye(8)
    omega, w = scipy.linalg.eigh(G.numpy(), S_ridge.numpy())
    omega, w = torch.from_numpy(omega[::-1][:3].copy()), torch.from_numpy(w[:, ::-1][:, :3].copy())
    torch.testing.assert_close(encoder.eigenvalues, omega, rtol=1e-6, atol=1e-8)
    z = encoder(torch.from_numpy(x)[:, None].double())
    by_hand = (encoder.maps(torch.from_numpy(x)[:, None].double()) - mean) @ w * omega
    torch.testing.assert_close(z.abs(), by_hand.abs(), rtol=1e-6, atol=1e-8)


def test_the_density_is_the_gaussian_of_the_views():
    x = np.random.default_rng(0).random((300, 8, 8)).astype(np.float32)
    settings = PatchSettings(atoms=4, patch=3, pool=1, directions=8, dim=3, ridge=0.0, power=1.0)
    method = fitted(x, settings, ImageViews(ViewConfig(crop=(0.9, 1.0), blur=0.0), 8))
    omega = method.encoder[1].eigenvalues
    S = method.objective.moving.covariance
    torch.testing.assert_close(S[:3, :3], torch.diag(omega**2), atol=1e-8, rtol=0)
    torch.testing.assert_close(S[:3, 3:], torch.diag(omega**3), atol=1e-8, rtol=0)


@pytest.mark.parametrize("n", [200, 9])
def test_principal_directions_are_exact_whichever_products_are_decomposed(n):
    f = torch.randn(n, 12) @ torch.diag(3.0 ** -torch.arange(12.0)) @ torch.linalg.qr(torch.randn(12, 12))[0]
    expected = torch.linalg.svd(f - f.mean(0), full_matrices=False)[2][:3]
    mean, V = moments.principal_directions([part.clone() for part in f.split(7)], 3, torch.float64)
    torch.testing.assert_close(V @ V.T, expected.T @ expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(mean, f.mean(0))


def test_equal_images_leave_directions_finite():
    f = torch.randn(3, 40).repeat(4, 1)
    V = moments.principal_directions(list(f.split(5)), 8, torch.float64)[1]
    assert V.isfinite().all() and (V[:, :2].norm(dim=0) - 1).abs().max() < 1e-8 and V.norm(dim=0).max() < 1.01


def test_moved_images_are_windows_of_the_reflected_image():
    x = torch.rand(60, 2, 8, 12)
    y = closed_form.moved(x, 0.25, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(x, (3, 3, 2, 2), mode="reflect")
    windows = padded.unfold(2, 8, 1).unfold(3, 12, 1)  # (60, 2, 5, 7, 8, 12)
    equal = (windows == y[:, :, None, None]).all(-1).all(-1).all(1)
    assert (equal.sum((1, 2)) == 1).all() and equal.any(0).float().mean() > 0.6  # one window each, from all over the grid


def test_sums_of_parts_are_the_sums_of_the_whole():
    views = [torch.randn(30, 4) for _ in range(3)]
    whole, parts, rest = (moments.ViewSums(4, 3) for _ in range(3))
    whole.add_views(views)
    parts.add_views([v[:11] for v in views])
    rest.load(parts.state())
    rest.add_views([v[11:] for v in views])
    for one, other in zip(whole.view_moments(), rest.view_moments(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [200, 9])
def test_groups_of_features_count_alike_whatever_their_scale(n):
    f = torch.randn(n, 12) @ torch.randn(12, 12) + 3
    c = (f - f.mean(0)).split([5, 7], 1)
    by_hand = torch.cat([part / part.square().sum(1).mean().sqrt() for part in c], 1)
    expected = torch.linalg.svd(by_hand, full_matrices=False)[2][:3]
    gains = torch.cat([1 / part.square().sum(1).mean().sqrt().expand(part.shape[1]) for part in c])
    for scale in (1.0, 100.0):
        g = torch.cat([f[:, :5] * scale, f[:, 5:]], 1)
        mean, V = moments.principal_directions([part.clone() for part in g.split(7)], 3, torch.float64, (5, 7))
        x = (g - mean) @ V
        torch.testing.assert_close(x.abs(), (by_hand @ expected.T).abs(), rtol=1e-6, atol=1e-8)
    _, V = moments.principal_directions([part.clone() for part in f.split(7)], 3, torch.float64, (5, 7))
    torch.testing.assert_close((V / gains[:, None]).norm(dim=0), torch.ones(3))


def test_a_group_without_variation_adds_nothing():
    f = torch.cat([torch.randn(40, 4), torch.full((40, 3), 0.5)], 1)
    _, V = moments.principal_directions([f.clone()], 2, torch.float64, (4, 3))
    assert V.isfinite().all() and not V[4:].any()


def test_a_second_layer_is_learned_from_the_first_maps(tmp_path):
    x = np.random.default_rng(0).random((60, 16, 16)).astype(np.float32)
    settings = PatchSettings(atoms=6, patch=4, directions=20, dim=5, second=7)
    maps = fitted(x, settings, ImageViews(ViewConfig(crop=(1.0, 1.0), blur=0.0), 16)).encoder[1].maps
    parts = [maps.second.patches(maps.layers(torch.from_numpy(x)[:, None].double())[1]).flatten(0, 1)]
    again = SecondLayer(6, 7, 0.25)
    again.learn(parts, torch.Generator().manual_seed(loop.seed_of(0, "patches", 1)))
    for name, tensor in again.state_dict().items():
        torch.testing.assert_close(maps.second.state_dict()[name], tensor)


@pytest.mark.float32
def test_a_finished_run_stays_as_it_is(copied, tmp_path):
    run = copied
    files = [run.folder.path / name for name in ("model.safetensors", "metrics.jsonl")]
    before = [file.read_bytes() for file in files]
    assert [row["step"] for row in run.folder.metrics()] == [1, 2, 3 + -(-run.folder.metadata.n_train // closed_form.BLOCK)]
    for encoder in ({}, {"encoder": TINY}, {"encoder": run.folder.config.model.encoder}):
        vergence.train("digits", out=tmp_path / "run", resume=True, **encoder)
    assert [file.read_bytes() for file in files] == before


@pytest.mark.float32
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"encoder": TINY.replace("dim=8", "dim=9")}, "dim=9"),
        ({"recipe": "vje_small"}, "encoder was 'patches.*, now 'small'; objective was 'gje', now 'vje'"),
    ],
)
def test_a_run_is_not_resumed_with_another_encoder_or_recipe(copied, tmp_path, changes, match):
    refuses(match, vergence.train, "digits", out=tmp_path / "run", resume=True, **changes)


@pytest.mark.float32
def test_a_checkpoint_of_something_else_is_refused(copied, tmp_path):
    for state in ({"step": 2}, {"step": 4, "fitted": [1]}, {"step": 1, "filters": torch.zeros(2)}):
        copied.folder.save_checkpoint({"model": {}, "optimizer": {}, **state})
        refuses("none of this encoder", vergence.train, out=tmp_path / "run", resume=True)


@pytest.mark.float32
def test_the_number_of_threads_is_the_one_that_was_asked_for(tmp_path, monkeypatch):
    used, project = set(), closed_form._Fit._projected

    def counted(self, *arguments):
        used.add(torch.get_num_threads())
        return project(self, *arguments)

    monkeypatch.setattr(closed_form._Fit, "_projected", counted)
    with cpu_threads(2):
        vergence.train("digits", out=tmp_path / "run", threads=1, **QUICK, calibration_share=0.0)
    assert used == {1}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epochs": 3}, "`epochs` applies to networks.*add `recipe='vje_small'`, or leave `epochs` out"),
        ({"batch_size": 64, "lr": 0.1}, "`batch_size`, `lr` apply to networks"),
        ({"options": {"nu": 1.0}}, "`nu` applies to networks"),
        ({"recipe": "patches", "epochs": 3}, "`epochs` applies to networks, and encoder 'patches' is a closed form"),
        ({"encoder": TINY, "lr": 0.1}, "`lr` applies to networks"),
    ],
)
def test_settings_of_networks_are_refused_for_the_closed_form(tmp_path, settings, words):
    refuses(words, vergence.train, "digits", out=tmp_path / "run", device="cpu", limit=200, **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.float32
def test_strengths_of_views_of_another_kind_of_data_are_named(tmp_path, capsys):
    quick = {"device": "cpu", "limit": 200, "epochs": 1, "batch_size": 64, "objective": "gje"}
    vergence.train("digits", out=tmp_path / "images", mask=0.5, flip=0.0, **quick)
    assert "note: without effect on images: mask (of vectors' views)" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32))
    vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "vectors", mask=0.5, flip=0.0, **quick)
    assert "note: without effect on vectors: flip (of images' views)" in capsys.readouterr().err
    np.savez(tmp_path / "p.npz", context=np.load(tmp_path / "x.npy"), target=np.load(tmp_path / "x.npy") + 1)
    vergence.train(str(tmp_path / "p.npz"), out=tmp_path / "pairs", noise=0.5, **quick)
    assert "note: without effect on pairs: noise (pairs are their own views)" in capsys.readouterr().err


@pytest.mark.float32
def test_a_run_evaluates_embeds_scores_and_reports(copied, tmp_path):
    run = copied
    assert run.folder.config.fit.epochs == 1 and run.folder.config.model.encoder.dim == 8
    evaluation = vergence.evaluate(run, probes=False)
    assert evaluation.representations["z"].knn[20].majority > 0.6
    assert evaluation.protocol.note.endswith("; fitted in closed form")
    page = write_report(tmp_path / "run").read_text()
    assert "was computed in closed form from" in page and "Mean eigenvalue" in page
    loaded = vergence.load(tmp_path / "run")
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(loaded.embed(x), run.embed(x)) and loaded.embed(x).shape == (5, 8)
    assert write_embeddings(loaded, x, tmp_path / "z.npz") == 5 == len(loaded.anomaly_score(x))
    assert loaded.sample(3)[0].shape == (3, 8) and loaded.posterior(x).mean.shape == (5, 8)
    flat = torch.full((5, 1, 8, 8), 255, dtype=torch.uint8)
    flat[:, :, ::2, ::3] = 0  # unlike any digit
    digits = next(loaded.items("digits").stream([torch.arange(200)]))[1]
    assert loaded.anomaly_score(flat).min() > loaded.anomaly_score(digits).median()


@pytest.mark.float32
@pytest.mark.parametrize(
    ("x", "settings", "match"),
    [
        (np.zeros((20, 3), np.float32), {}, "expected images for encoder 'patches', found vector data"),
        (np.full((20, 9, 9), 3, np.uint8), {}, "distinct patches for 16 atoms, found 1"),
        (np.full((40, 9, 9), 3, np.uint8), {"encoder": "patches:atoms=1,dim=1"}, "all images are equal; give others"),
        (np.full((40, 16, 16), 3, np.uint8), {"encoder": "patches:atoms=1,dim=1,second=2"}, "all images are equal"),
        (np.zeros((40, 9, 9), np.uint8), {**BEHIND, "target_encoder": "small"}, "expected no target_encoder"),
        (np.zeros((40, 9, 9), np.uint8), {**BEHIND, "batch_size": 64}, "expected a batch of at most the 32"),
        (np.zeros((40, 3), np.float32), DISTILLED, "expected images for `distill`, found vector data"),
        (np.zeros((40, 9, 9), np.uint8), {**DISTILLED, "distill": "patches:patch=12"}, "expected"),
        (np.zeros((40, 9, 9), np.uint8), {**DISTILLED, "batch_size": 64}, "expected a batch of at most the 32"),
        (np.zeros((40, 9, 9), np.uint8), {**DISTILLED, "distill": "patches:leaves=3"}, "leaves"),
        (np.zeros((20, 3, 3, 1), np.uint8), {}, "expected images of at least 4 x 4 pixels"),
        (np.zeros((20, 9, 9), np.uint8), {"objective": "vje"}, "expected `objective='gje'` with the encoder 'patches'"),
        (np.zeros((20, 9, 9), np.uint8), {"projector": (4,)}, "expected neither projector, teacher nor target_encoder"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path, x, settings, match):
    """Of the closed form, of a network behind it, and of one that learns it."""
    np.save(tmp_path / "x.npy", x)
    settings = {**QUICK, **settings} if "recipe" not in settings else {"device": "cpu", **settings}
    refuses(match, vergence.train, str(tmp_path / "x.npy"), out=tmp_path / "run", **settings)


@pytest.mark.float32
def test_what_the_data_reduces_is_noted(tmp_path, capsys):
    x = np.random.default_rng(0).integers(0, 256, (15, 9, 9), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    run = vergence.train(str(tmp_path / "x.npy"), out=tmp_path / "run", recipe="patches", device="cpu")
    err = capsys.readouterr().err
    assert "note: with 12 training images the encoder is smaller: atoms 43 instead of 2048" in err
    assert "dim 11 instead of 512" in err
    assert run.embed(x).shape == (15, 11) and run.embed(x).isfinite().all() and run.anomaly_score(x).isfinite().all()


@pytest.mark.float32
def test_copies_are_mirrored_only_where_views_are(tmp_path):
    for mirrored in (True, False):
        settings = as_encoder("patches:atoms=4,copies=2,mirror=1").fitted((1, 28, 28), 5000, mirrored)
        assert (settings.copies, settings.mirror) == ((2, 1) if mirrored else (1, 0))
        moved = as_encoder("patches:atoms=4,stride=2,copies=2,mirror=1").fitted((1, 28, 28), 5000, mirrored)
        assert (moved.copies, moved.mirror) == (2, int(mirrored))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (30, 16, 16), dtype=np.uint8))
    for flip, mirror in ((0.0, 0), (0.5, 1)):
        name = "patches:atoms=4,directions=6,dim=3,copies=2,mirror=1"
        out = tmp_path / f"run{mirror}"
        run = vergence.train(str(tmp_path / "x.npy"), recipe="patches", encoder=name, out=out, device="cpu", flip=flip)
        assert (run.folder.config.model.encoder.copies, run.folder.config.model.encoder.mirror) == (1 + mirror, mirror)
