"""Views of vectors: features without an order, counts, spectra, series and tables, by the name in ``ViewConfig.kind``.

Each takes vectors (B, D) and returns views (B, D); series may have channels, (B, C, D).

Shapes: B samples, C channels, D features or points in time.
"""

import abc
import dataclasses
import functools
from typing import Any, ClassVar

import torch
from torch import Tensor

from vergence.data.config import ViewConfig
from vergence.learn.views.images import Views, check_strengths
from vergence.utils.checks import expect

__all__ = ["OF_VECTORS", "KindViews", "Marginals", "VectorViews"]

KNOTS = 4  # of a series' warp
QUANTILES = 101  # that a table's columns are drawn from


@dataclasses.dataclass(frozen=True)
class Marginals:
    """Facts on the columns of the items."""

    mean: Tensor  # (D,) in the unit of each feature, or (C, D) of series
    std: Tensor  # standard deviations >= 0, as ``mean``
    # (Q, D), evenly spaced from the smallest to the largest value; None where no views draw from them
    quantiles: Tensor | None = None

    def __post_init__(self) -> None:
        fits = self.mean.ndim in (1, 2) and self.mean.shape == self.std.shape and bool((self.std >= 0).all())
        found = f"{tuple(self.mean.shape)} and {tuple(self.std.shape)}"
        expect(fits, "mean and std of one shape (D,) or (C, D) with std >= 0", found, "compute them over the training items")

    @classmethod
    def of(cls, x: Tensor) -> "Marginals":
        """Returns the marginals of items (N, D).

        Example:
            >>> Marginals.of(torch.tensor([[0.0], [1.0], [5.0]])).quantiles[[0, 50, 100], 0].tolist()
            [0.0, 1.0, 5.0]
        """
        at = torch.linspace(0, 1, QUANTILES, dtype=x.dtype)
        return cls(x.mean(0), x.std(0, correction=0), torch.quantile(x, at, dim=0))


class KindViews(Views):
    """Views of one kind of vectors; strengths of other kinds are not used."""

    operations: ClassVar[dict[str, Any]]  # name of each operation -> the strength of `ViewConfig` without it

    def __init__(self, config: ViewConfig, marginals: Marginals) -> None:
        check_strengths(config)
        self.config, self.marginals, self.D, self.n_views = config, marginals, marginals.mean.shape[-1], config.n_views

    def changed(self, **strengths: Any) -> "KindViews":
        """Returns the same views with other strengths, by the names of `ViewConfig`."""
        return type(self)(dataclasses.replace(self.config, **strengths), self.marginals)

    def apply(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Returns the views, of x's shape, type and device, of vectors x (B, D) that sampled parameters describe."""
        shape = (len(next(iter(draws.values()))), *self.marginals.mean.shape)
        expect(x.shape == shape and x.is_floating_point(), f"floats of shape {shape}", f"{x.dtype} {tuple(x.shape)}")
        kinds = {name: x.dtype if value.is_floating_point() else value.dtype for name, value in draws.items()}
        return self.seen(x, {name: value.to(x.device, kinds[name], non_blocking=True) for name, value in draws.items()})

    @abc.abstractmethod
    def seen(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        """Returns the views of vectors that were checked."""


class VectorViews(KindViews):
    """Masking, scaling and noise of feature vectors, on standardized features.

    view = mean + std * (a * m * (x - mean) / std + e), with e ~ N(0, ``noise``^2) for each feature, m = 0 with
    probability ``mask`` for each feature (which leaves its mean and the noise), and log a ~ N(0, ``scale``^2) for each
    sample.

    Example:
        >>> marginals = Marginals(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0]))
        >>> views = VectorViews(ViewConfig(noise=0.0, mask=1.0), marginals)
        >>> views(torch.zeros(1, 2, dtype=torch.float32), torch.Generator().manual_seed(0))
        tensor([[1., 2.]])
    """

    operations: ClassVar[dict[str, Any]] = {"noise": 0.0, "mask": 0.0, "scale": 0.0}

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns ``noise`` (n, D) in units of std, ``keep`` (n, D) and ``scale`` (n, 1), from a CPU generator."""
        c, shape = self.config, (n, self.D)
        return {
            "noise": torch.randn(shape, generator=generator, dtype=torch.float32).mul_(c.noise),
            "keep": torch.rand(shape, generator=generator, dtype=torch.float32) >= c.mask,
            "scale": torch.randn(n, 1, generator=generator, dtype=torch.float32).mul_(c.scale).exp_(),
        }

    def seen(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        mean, std = (part.to(x, non_blocking=True) for part in (self.marginals.mean, self.marginals.std))
        return mean + draws["scale"] * draws["keep"] * (x - mean) + std * draws["noise"]


class CountViews(KindViews):
    r"""Binomial thinning: of each count x only Binomial(x, p) remain, divided by p, with p = 1 - ``thin``.

    A view is what a sensor of shorter exposure, or a shallower sequencing of the same cell, would have counted. E[view | x] = x,
    and the mean covariance is diag(mean) (1 - p) / p. Counts are whole numbers >= 0; fractions are rounded.

    Example:
        >>> views = CountViews(ViewConfig(kind="counts", thin=0.5), Marginals.of(torch.tensor([[4.0, 0.0]] * 2)))
        >>> sorted(set(views(torch.tensor([[1.0, 0.0]] * 50), torch.Generator().manual_seed(0)).flatten().tolist()))
        [0.0, 2.0]
    """

    operations: ClassVar[dict[str, Any]] = {"thin": 0.0}

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns ``seed`` (n,) of each sample's thinning."""
        return {"seed": torch.randint(2**52, (n,), generator=generator)}

    def seen(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        expect(bool((x >= 0).all()), "counts >= 0", "a negative number", "choose other `views`")
        p = 1 - self.config.thin
        y = x.round().cpu()
        for row, seed in zip(y, draws["seed"].tolist(), strict=True):
            row.copy_(torch.binomial(row, torch.full_like(row, p), generator=torch.Generator().manual_seed(seed)))
        return y.to(x) / p


class SpectrumViews(KindViews):
    r"""Shift, gain, baseline and noise of spectra, or of other curves on a regular grid.

        view_j = a x_{j - s} + sum_{q=0}^{2} c_q P_q(j) + e_j

    s is uniform on the whole numbers up to ``shift`` D in both directions (the ends are repeated); log a ~ N(0, ``scale``^2);
    c_q ~ N(0, (``baseline`` sd)^2) on Legendre's polynomials P_q; e_j ~ N(0, (``noise`` sd_j)^2), with sd_j the feature's
    standard deviation and sd their root mean square.

    Example:
        >>> marginals = Marginals.of(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)))
        >>> still = ViewConfig(kind="spectra", shift=0.0, scale=0.0, baseline=0.0, noise=0.0)
        >>> SpectrumViews(still, marginals)(torch.ones(1, 8), torch.Generator())[0, :3]
        tensor([1., 1., 1.])
    """

    operations: ClassVar[dict[str, Any]] = {"shift": 0.0, "scale": 0.0, "baseline": 0.0, "noise": 0.0}

    def basis(self) -> Tensor:
        """Returns the baselines (3, D), Legendre's polynomials on [-1, 1]."""
        t = torch.linspace(-1, 1, self.D, dtype=torch.float64)
        return torch.stack([torch.ones_like(t), t, 1.5 * t**2 - 0.5])

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns ``shift`` (n, 1) in features, ``gain`` (n, 1), ``baseline`` (n, 3) and ``noise`` (n, D)."""
        c, sd = self.config, self.marginals.std.square().mean().sqrt().cpu()
        most = round(c.shift * self.D)
        normal = functools.partial(torch.randn, n, generator=generator, dtype=torch.float64)
        return {
            "shift": torch.randint(-most, most + 1, (n, 1), generator=generator),
            "gain": (c.scale * normal(1)).exp(),
            "baseline": c.baseline * sd * normal(3),
            "noise": c.noise * self.marginals.std.cpu() * normal(self.D),
        }

    def seen(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        at = (torch.arange(self.D, device=x.device) - draws["shift"]).clamp(0, self.D - 1)
        return draws["gain"] * x.gather(1, at) + draws["baseline"] @ self.basis().to(x) + draws["noise"]


class SeriesViews(KindViews):
    """Crop, warp, phases, scaling, jitter and masking of series (B, D) or (B, C, D) of D regular points in time.

    A window of a share of the series in ``window`` is stretched to its whole length; time is warped smoothly, by up to about
    ``warp`` of the length; a share ``phases`` of the frequencies is moved by random phases; the deviation of a channel from its
    mean is multiplied by a, log a ~ N(0, ``scale``^2); each point gets noise of ``noise`` standard deviations; a span of a share
    ``mask`` becomes the mean. Channels share window, warp, phases and span.

    Example:
        >>> marginals = Marginals.of(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)))
        >>> still = ViewConfig(kind="series", window=(1.0, 1.0), warp=0.0, scale=0.0, noise=0.0, mask=0.0)
        >>> SeriesViews(still, marginals)(torch.arange(8.0)[None], torch.Generator())[0, :3].round()
        tensor([0., 1., 2.])
    """

    operations: ClassVar[dict[str, Any]] = {
        "window": (1.0, 1.0),
        **dict.fromkeys(("warp", "phases", "scale", "noise", "mask"), 0.0),
    }

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns the parameters of n series.

        ``at`` (n, D) is the time of each point in [0, D - 1]; ``noise`` (n, [C,] D); ``keep`` (n, D), 0 or 1; ``gain``
        (n, [C,] 1); and where there are ``phases`` the ``turn`` (n, D // 2 + 1) of each frequency, in radians.
        """
        c, D, shape = self.config, self.D, self.marginals.mean.shape
        uniform, normal = (
            functools.partial(draw, n, generator=generator, dtype=torch.float64) for draw in (torch.rand, torch.randn)
        )
        length = c.window[0] + (c.window[1] - c.window[0]) * uniform(1)
        start, t = (1 - length) * uniform(1), torch.linspace(0, 1, D, dtype=torch.float64)
        bends = c.warp * normal(KNOTS)
        waves = torch.stack([torch.sin((k + 1) * torch.pi * t) / (k + 1) for k in range(KNOTS)])  # no bend at the ends
        first = (1 - c.mask) * uniform(1)
        draws = {
            "at": (D - 1) * (start + length * (t + bends @ waves).clamp(0, 1)),
            "noise": c.noise * self.marginals.std.cpu() * normal(*shape),
            "keep": ((t < first) | (t >= first + c.mask)).double(),
            "gain": (c.scale * normal(*shape[:-1], 1)).exp(),
        }
        if c.phases:
            draws["turn"] = 2 * torch.pi * uniform(D // 2 + 1) * (uniform(D // 2 + 1) < c.phases)
            draws["turn"][:, [0, -1]] = 0  # the mean has no phase
        return draws

    def seen(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        at, keep = (draws[name].unsqueeze(1) if x.ndim == 3 else draws[name] for name in ("at", "keep"))
        low = at.floor().long().clamp(0, self.D - 1)
        share, low = at - low, low.expand(x.shape)
        y = (1 - share) * x.gather(-1, low) + share * x.gather(-1, (low + 1).clamp(max=self.D - 1))
        if (turn := draws.get("turn")) is not None:
            turn = turn.unsqueeze(1) if x.ndim == 3 else turn
            y = torch.fft.irfft(torch.fft.rfft(y) * torch.polar(torch.ones_like(turn), turn), n=self.D)
        mean = self.marginals.mean.to(x)
        return mean + keep * draws["gain"] * (y - mean) + draws["noise"]


class TableViews(KindViews):
    r"""Corruption of a table: each value is replaced, with probability ``swap``, by one of another row of its column.

    This is SCARF's view (arXiv:2106.15147); no unit matters. With p = ``swap`` E[view | x] = (1 - p) x + p mean, and the mean
    covariance is diag(sd^2) (1 - (1 - p)^2). Columns are drawn from their quantiles.

    Example:
        >>> marginals = Marginals.of(torch.tensor([[1.0, 5.0], [2.0, 5.0]]))
        >>> TableViews(ViewConfig(kind="table", swap=1.0), marginals)(torch.zeros(1, 2), torch.Generator().manual_seed(0))[0, 1]
        tensor(5.)
    """

    operations: ClassVar[dict[str, Any]] = {"swap": 0.0}

    def draw(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns ``rank`` (n, D), the quantile of what replaces a value, and ``swap`` (n, D), 0 or 1."""
        rank, swap = (torch.rand(n, self.D, generator=generator, dtype=torch.float64) for _ in range(2))
        return {"rank": rank, "swap": (swap < self.config.swap).double()}

    def seen(self, x: Tensor, draws: dict[str, Tensor]) -> Tensor:
        assert self.marginals.quantiles is not None
        q = self.marginals.quantiles.to(x)
        at = draws["rank"] * (len(q) - 1)
        low = at.long().clamp(max=len(q) - 2)
        other = q.gather(0, low) + (at - low) * (q.gather(0, low + 1) - q.gather(0, low))
        return torch.where(draws["swap"] > 0, other, x)


OF_VECTORS: dict[str, type[KindViews]] = {
    "features": VectorViews,
    "counts": CountViews,
    "spectra": SpectrumViews,
    "series": SeriesViews,
    "table": TableViews,
}
