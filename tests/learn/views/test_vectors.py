"""Views of counts, spectra, series and tables: their moments against samples, their limits, and their use in training."""

import math

import numpy as np
import pytest
import torch
from tests.refusals import refuses

import vergence
from vergence.advice.views import advise
from vergence.data.config import ViewConfig, default_views
from vergence.learn.views.vectors import OF_VECTORS, KindViews, Marginals

D, DRAWS = 7, 40_000


def items(kind: str, n: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64)
    return (4 * x).abs().round() if kind == "counts" else x + 2


def views_of(kind: str, x: torch.Tensor, **strengths: object) -> KindViews:
    return OF_VECTORS[kind](ViewConfig(**{**default_views(kind), **strengths}), Marginals.of(x))


def of_counts(views, M):
    p, mean = 1 - views.config.thin, views.marginals.mean
    return torch.eye(D, dtype=M.dtype), torch.zeros(D, dtype=M.dtype), (mean * (1 - p) / p).diag()


def of_spectra(views, M):
    c, std = views.config, views.marginals.std
    mean, square = math.exp(c.scale**2 / 2), math.exp(2 * c.scale**2)  # of the gain
    most = round(c.shift * D)
    shifts = [torch.arange(D).sub(s).clamp(0, D - 1) for s in range(-most, most + 1)]
    T = torch.stack([torch.eye(D, dtype=M.dtype)[at] for at in shifts])
    A = mean * T.mean(0)
    second = square * torch.einsum("sij,jk,slk->il", T, M, T) / len(T)
    B = views.basis() * c.baseline * std.square().mean().sqrt()
    return A, torch.zeros(D, dtype=M.dtype), second - A @ M @ A.T + B.T @ B + (c.noise * std).square().diag()


def of_tables(views, M):
    p, mean, std = views.config.swap, views.marginals.mean, views.marginals.std
    return (1 - p) * torch.eye(D, dtype=M.dtype), p * mean, (std.square() * (1 - (1 - p) ** 2)).diag()


MOMENTS = {"counts": of_counts, "spectra": of_spectra, "table": of_tables}  # A, b, C: a view has mean A x + b, mean covariance C


@pytest.mark.parametrize("kind", sorted(MOMENTS))
def test_the_moments_of_a_view_are_those_of_samples(kind):
    x = items(kind, 100 if kind == "table" else 6)  # a table's columns are drawn from their quantiles
    views = views_of(kind, x, shift=0.3, scale=0.3)
    A, b, expected = MOMENTS[kind](views, x.T @ x / len(x))
    generator = torch.Generator().manual_seed(1)
    means, covariances = [], []
    for item in x:
        y = views(item.expand(6 * DRAWS // len(x), D), generator)
        means.append(y.mean(0))
        covariances.append(y.T.cov(correction=0))
    scale = x.std()
    assert torch.allclose(torch.stack(means), x @ A.T + b, atol=0.08 * float(scale))
    found = torch.stack(covariances).mean(0)
    assert torch.allclose(found, expected, atol=0.06 * float(expected.diagonal().max()))


@pytest.mark.parametrize("kind", sorted(OF_VECTORS))
def test_without_its_operations_a_view_is_the_item(kind):
    x = items(kind)
    views = views_of(kind, x)
    assert not torch.allclose(views(x, torch.Generator().manual_seed(0)), x)
    still = views.changed(**views.operations)
    assert torch.allclose(still(x, torch.Generator().manual_seed(0)), x)


@pytest.mark.parametrize("kind", sorted(OF_VECTORS))
def test_a_part_of_a_batch_has_the_views_of_that_part(kind):
    x = items(kind)
    views = views_of(kind, x)
    draws = views.draw(len(x), torch.Generator().manual_seed(3))
    half = {name: values[2:] for name, values in draws.items()}
    assert torch.equal(views.apply(x[2:], half), views.apply(x, draws)[2:])


def test_thinned_counts_are_multiples_and_never_more_than_there_were():
    x = items("counts")
    y = views_of("counts", x, thin=0.75)(x, torch.Generator().manual_seed(0))
    assert torch.equal(y * 0.25, (y * 0.25).round()) and bool((0.25 * y <= x).all())
    refuses("counts >= 0", views_of("counts", x), x - 100, torch.Generator())


def test_a_masked_span_is_the_mean_and_a_window_keeps_the_ends_in_order():
    x = torch.arange(100.0).repeat(4, 1) + torch.arange(4.0)[:, None]
    only = {"noise": 0.0, "warp": 0.0, "scale": 0.0}
    masked = OF_VECTORS["series"](ViewConfig(kind="series", window=(1.0, 1.0), mask=0.2, **only), Marginals.of(x))
    y = masked(x, torch.Generator().manual_seed(0))
    assert ((y == x.mean(0)).sum(1) - 20).abs().max() <= 1
    window = OF_VECTORS["series"](ViewConfig(kind="series", window=(0.5, 0.5), mask=0.0, **only), Marginals.of(x))
    y = window(x, torch.Generator().manual_seed(0))
    assert torch.allclose(y.diff(dim=1), torch.full_like(y[:, 1:], 0.5), atol=1e-4)


def test_channels_of_a_series_keep_their_order_in_time():
    x = (
        torch.randn(5, 1, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        * torch.tensor([1.0, 3.0, -2.0])[:, None]
    )
    channels = Marginals(torch.zeros(3, 40, dtype=x.dtype), torch.tensor([1.0, 3.0, 2.0]).double()[:, None].expand(3, 40))
    views = OF_VECTORS["series"](ViewConfig(kind="series", noise=0.0, scale=0.0, phases=0.5), channels)
    draws = views.draw(5, torch.Generator().manual_seed(1))
    y = views.apply(x, draws)
    assert y.shape == x.shape and torch.allclose(y[:, 1], 3 * y[:, 0]) and torch.allclose(y[:, 2], -2 * y[:, 0])
    assert torch.equal(views.apply(x[2:], {name: draw[2:] for name, draw in draws.items()}), y[2:])
    noisy = views.changed(**{**views.operations, "noise": 0.1})
    spread = (noisy(x.expand(5, 3, 40), torch.Generator().manual_seed(2)) - x).std((0, 2))
    assert torch.allclose(spread, 0.1 * channels.std[:, 0], rtol=0.15)
    gains = views.changed(**{**views.operations, "scale": 0.5})(x, torch.Generator().manual_seed(3)) / x
    assert torch.allclose(gains, gains[..., :1].expand_as(gains)) and gains[:, :, 0].std() > 0.1


def test_random_phases_keep_mean_and_spectrum():
    x = items("series", 50)
    views = views_of("series", x)
    y = views.changed(**{**views.operations, "phases": 1.0})(x, torch.Generator().manual_seed(0))
    assert torch.allclose(torch.fft.rfft(y).abs(), torch.fft.rfft(x).abs()) and torch.allclose(y.mean(1), x.mean(1))
    assert (y - x).abs().mean() > 0.5
    refuses("phases in", views.changed, phases=2.0)


@pytest.mark.float32
def test_a_run_and_the_advice_take_views_by_name(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.poisson(3 + 5 * rng.random((300, D))).astype(np.float32)
    run = vergence.train(x, views="counts", out=tmp_path / "run", epochs=1, device="cpu", precision="fp32")
    again = vergence.load(tmp_path / "run", device="cpu")
    assert again.folder.config.views.kind == "counts"
    assert torch.equal(run.embed(x[:3]), again.embed(x[:3]))
    advice = advise(x, OF_VECTORS["spectra"](ViewConfig(kind="spectra"), Marginals.of(torch.from_numpy(x))), n_draws=4)
    assert {row.operation for row in advice.augmentations} <= {"all", "shift", "scale", "baseline", "noise"}
    assert len(advice.augmentations) >= 4
    refuses("spectra", vergence.train, x, views="spectre", epochs=1)
