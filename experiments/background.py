"""Pictures of docs/background: what objectives keep, posteriors, the trace trap, conditionals, and the default encoder.

python -m experiments.background             # draws all of docs/figures/background
python -m experiments.background trace_trap  # or those that are named

Everything is computed with the library on small made data and on a photograph that scikit-learn ships.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from experiments.advice.thresholds import alignment_thresholds
from experiments.figures import drawn, pyplot
from experiments.ledger import ROOT
from PIL import Image
from scipy.optimize import minimize

from vergence.densities.polar import radial_nll
from vergence.learn.encoders.dictionary import learn_dictionary, normalized_patches, whitening
from vergence.learn.encoders.patch_maps import cells, pooled
from vergence.learn.objectives.gje import GJE
from vergence.linear import JointEmbedding, Reconstruction
from vergence.mixtures import ConditionalMixture

FOLDER = ROOT / "docs" / "figures" / "background"
BLUE, ORANGE, GREEN, RED, GRAY = "#2a6fbb", "#d9822b", "#3a9150", "#b3403a", "#8a8f98"


def save(fig: Any, name: str, *, dpi: int = 110, quality: int = 82) -> None:
    """Writes a figure as docs/figures/background/NAME.webp, on white."""
    picture = drawn(fig, dpi=dpi, facecolor="white", bbox_inches="tight", pad_inches=0.12)
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{name}.webp"
    picture.convert("RGB").save(file, quality=quality, method=6)
    print(f"wrote {file.name}, {file.stat().st_size / 1024:.0f} KB")


def direction(axis: Any, w: np.ndarray, color: str, label: str, *, length: float = 4.6, style: str = "-") -> None:
    """Draws the direction w as a line through the origin, with its name at the end."""
    w = w / np.linalg.norm(w) * (1 if w[np.abs(w).argmax()] > 0 else -1)
    axis.plot(*np.outer(w * length, [-1, 1]), style, color=color, linewidth=3, label=label)


def what_is_kept() -> None:
    """The one component that each closed form keeps of 2-D items, for three strengths of the views along the nuisance."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4_000, 2)) * [1.0, 2.0]  # across: what matters; upward: a nuisance of four times the variance
    panels = [("views leave the nuisance", 0.0), ("views vary the nuisance", 1.0), ("views vary it much", 16.0)]
    fig, axes = pyplot().subplots(1, 3, figsize=(10.5, 4.1), sharex=True, sharey=True, layout="constrained")
    for axis, (title, nuisance) in zip(axes, panels, strict=True):
        variances = np.array([0.1, nuisance])
        axis.scatter(*x[:500].T, s=5, color=GRAY, alpha=0.5, linewidth=0)
        for item in ([0.9, 1.5], [-1.0, -2.2]):
            views = item + rng.normal(size=(40, 2)) * np.sqrt(variances)
            axis.scatter(*views.T, s=7, color=GREEN, linewidth=0)
        je = JointEmbedding(1, augmentation=variances).fit(x)
        rc = Reconstruction(1, augmentation=variances).fit(x)
        direction(axis, je.components_[0], BLUE, "joint embedding keeps")
        direction(axis, rc.components_[0], ORANGE, "reconstruction keeps", style="--")
        axis.set(title=title, xlim=(-6, 6), ylim=(-6, 6), aspect="equal", xlabel="what matters")
    axes[0].set_ylabel("nuisance of larger variance")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save(fig, "what_is_kept")


def thresholds() -> None:
    """How much of the noise views have to vary before each closed form finds the signal, against the variance of the noise."""
    noise = np.geomspace(0.05, 50, 200)
    found = [alignment_thresholds([4.0, 1.0], [v], 2.0, 0.05) for v in noise]
    je, rc = (np.maximum([getattr(f, name) for f in found], 0) for name in ("joint_embedding", "reconstruction"))
    fig, axis = pyplot().subplots(figsize=(6.4, 3.8), layout="constrained")
    axis.plot(noise, je, color=BLUE, linewidth=2.5, label="joint embedding")
    axis.plot(noise, rc, "--", color=ORANGE, linewidth=2.5, label="reconstruction")
    axis.axvline(found[0].crossover, color=GRAY, linewidth=1)
    axis.annotate(
        "variance of the weakest signal", (found[0].crossover, 0.1), xytext=(6, 0), textcoords="offset points", color="#555b66"
    )
    axis.set(xscale="log", ylim=(-0.1, 5), xlabel="variance of the noise", ylabel=r"least alignment $\alpha^2$ of the views")
    axis.legend(frameon=False, loc="upper left")
    save(fig, "thresholds")


def posterior() -> None:
    """Two embeddings of one item in two dimensions, the posterior of one, and how its samples are compared with the other."""
    rng = np.random.default_rng(3)
    za, zb, mu, sd = np.array([2.6, 0.7]), np.array([1.9, 1.6]), np.array([2.1, 1.15]), np.array([0.42, 0.26])
    s = mu + sd * rng.normal(size=(60, 2))
    plt = pyplot()
    fig, axis = plt.subplots(figsize=(6.2, 4.6), layout="constrained")
    t = np.linspace(0, 2 * math.pi, 200)
    axis.plot(np.cos(t), np.sin(t), color=GRAY, linewidth=1)
    axis.annotate("unit circle", (0.02, 1.07), color="#555b66")
    for scale in (1, 2):
        axis.plot(
            mu[0] + scale * sd[0] * np.cos(t),
            mu[1] + scale * sd[1] * np.sin(t),
            color=BLUE,
            linewidth=1.5,
            alpha=1.2 - 0.4 * scale,
        )
    axis.scatter(*s.T, s=8, color=BLUE, alpha=0.55, linewidth=0)
    axis.scatter(*(s / np.linalg.norm(s, axis=1, keepdims=True)).T, s=8, color=BLUE, alpha=0.55, linewidth=0)
    named = [("$z_a$", za, GREEN), (r"$\mu_a$", mu, BLUE), ("$z_b$, target", zb, RED)]
    for name, point, color in named:
        axis.plot(*np.c_[[0, 0], point], color=color, linewidth=1, alpha=0.6)
        axis.scatter(*point, s=46, color=color, zorder=3)
        axis.annotate(name, point, xytext=(7, 5), textcoords="offset points", color=color, fontsize=12)
    axis.scatter(*(zb / np.linalg.norm(zb)), s=46, color=RED, zorder=3)
    axis.annotate(r"posterior $N(\mu_a, \sigma_a^2)$ and samples $s$", (1.3, 2.2), color=BLUE)
    axis.annotate(
        "directions are compared here",
        (0.86, 0.5),
        xytext=(0.95, 0.12),
        color="#555b66",
        arrowprops={"arrowstyle": "-", "color": GRAY},
    )
    axis.set(xlim=(-0.1, 3.6), ylim=(-0.1, 2.4), aspect="equal")
    save(fig, "vje_posterior")


def rest(sine: float, beta: float, nu: float, dim: int) -> float:
    """Returns the variance at rest of VJE's loss for one pair, by minimization; one variance for all features."""

    def loss(free: np.ndarray) -> float:
        length, var = math.exp(free[0]), math.exp(free[1])  # |mu|^2, sigma^2
        size = length + dim * var  # E |s|^2
        q = (2 - 2 * math.sqrt(length / size) * math.sqrt(1 - sine**2)) / var
        kl = 0.5 * (size - dim - dim * math.log(var))
        return 0.5 * (nu + dim) * math.log1p(q / nu) + 0.5 * dim * math.log(var) + beta * kl

    starts = [
        minimize(loss, [math.log(a), math.log(v)], method="Nelder-Mead", options={"maxiter": 4_000})
        for a, v in ((100, 0.3), (100, 0.8))
    ]
    return math.exp(min(starts, key=lambda found: found.fun).x[1])


def equilibrium() -> None:
    """The posterior variance at which VJE's loss rests, for the mean of the views' KL and for their sum."""
    nu, dim = 3.0, 512
    angles = np.linspace(2, 60, 59)
    sine = np.sin(np.radians(angles))
    a = (1 + sine) * dim / nu
    R = (-a + np.sqrt(a**2 + 4 * a * (nu + dim))) / 2
    closed = R / dim * 2 * sine / (1 + sine)
    fig, axis = pyplot().subplots(figsize=(6.4, 3.7), layout="constrained")
    axis.plot(angles, closed, color=BLUE, linewidth=2.5, label="mean of the two KL, closed form")
    some = angles[::6]
    axis.plot(
        some, [rest(math.sin(math.radians(v)), 1.0, nu, dim) for v in some], "o", color=BLUE, label="the same, by minimization"
    )
    axis.plot(
        some,
        [rest(math.sin(math.radians(v)), 2.0, nu, dim) for v in some],
        "--",
        color=ORANGE,
        linewidth=2.5,
        label="sum of the two KL",
    )
    axis.axhspan(0.27, 0.33, color=GREEN, alpha=0.18, linewidth=0)
    axis.annotate("the paper's table 7", (43, 0.285), color=GREEN)
    axis.set(ylim=(0, 1.1), xlabel="angle between posterior mean and target, degrees", ylabel=r"variance $\sigma^2$ at rest")
    axis.legend(frameon=False, loc="upper left", fontsize=9)
    save(fig, "vje_equilibrium")


def influence() -> None:
    """Loss and influence of a residual of the norm, for several degrees of freedom (figure 2 of the VJE paper)."""
    fig, axes = pyplot().subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    r = torch.linspace(-6, 6, 481, requires_grad=True)
    for nu, color in ((1.0, BLUE), (3.0, GREEN), (20.0, ORANGE), (math.inf, RED)):
        loss = radial_nll(10 + r[:, None], torch.full((len(r), 1), 10.0), nu)
        (slope,) = torch.autograd.grad(loss.sum(), r)
        for axis, values in zip(axes, (loss.detach(), slope), strict=True):
            axis.plot(r.detach(), values, color=color, linewidth=2, label=rf"$\nu$ = {nu:g}".replace("inf", r"$\infty$"))
    for axis, (title, most) in zip(axes, (("loss, nats", 8), ("influence: its derivative", 4)), strict=True):
        axis.set(title=title, xlabel="difference of the norms", ylim=(0 if "nats" in title else -most, most))
    axes[0].legend(frameon=False, fontsize=9)
    save(fig, "vje_influence")


def trace_trap() -> None:
    """Loss terms of a joint Gaussian on the same embeddings at several scales, and where each loss has its minimum."""
    torch.manual_seed(0)
    shared = torch.randn(4_096, 4)
    za, zb = (shared + 0.5 * torch.randn(4_096, 4) for _ in range(2))
    za, zb = ((z - z.mean(0)) / z.std(0) for z in (za, zb))
    scales = np.geomspace(0.02, 5, 80)

    def values(**options: Any) -> np.ndarray:
        loss = GJE(4, shrinkage=0.0, **options)
        return np.array([sum(t.item() for t in loss(za * a, zb * a).values()) for a in scales])

    naive, joint, information = values(loss="naive"), values(loss="joint_kl", beta=2.0), values(loss="mi_kl")
    trace, constant = np.full(len(scales), 4.0), 0.5 * 8 * math.log(2 * math.pi)  # 1/2 tr(S^-1 S) = 1/2 of 8 features
    plt = pyplot()
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
    left.plot(scales, naive, color=RED, linewidth=2.5, label="negative log-likelihood")
    left.plot(scales, naive - trace - constant, ":", color=GRAY, linewidth=2.5, label=r"$\frac{1}{2}\log|S|$")
    left.plot(scales, trace, "--", color=BLUE, linewidth=2.5, label="trace term: constant")
    left.set(title="a likelihood alone: smaller is always better", ylabel="nats a pair")
    for value, color, style, name in (
        (joint, ORANGE, "--", "likelihood + 2 KL"),
        (information, GREEN, "-", "information + KL (default)"),
    ):
        right.plot(scales, value - value.min(), style, color=color, linewidth=2.5, label=name)
        right.scatter(scales[value.argmin()], 0, s=50, color=color, zorder=3)
    right.set(title="losses that hold a scale", ylabel="nats above the minimum", ylim=(-1, 25))
    for axis in (left, right):
        axis.set(xscale="log", xlabel="scale of the embeddings")
        axis.legend(frameon=False)
    save(fig, "trace_trap")


def conditional() -> None:
    """Pairs on two branches: the conditional of one Gaussian, and of a mixture, at one context."""
    rng = np.random.default_rng(0)
    x, side = rng.uniform(-1, 1, 2_000), rng.choice([-1.0, 1.0], 2_000)
    y = side * (0.7 + 0.5 * x) + 0.08 * rng.normal(size=2_000)
    models = [ConditionalMixture(k, random_state=0).fit(x[:, None], y) for k in (1, 2)]
    at, grid = 0.4, np.linspace(-2.2, 2.2, 400)
    fig, (left, right) = pyplot().subplots(1, 2, figsize=(9.2, 3.9), sharey=True, width_ratios=[1.5, 1], layout="constrained")
    left.scatter(x, y, s=4, color=GRAY, alpha=0.6, linewidth=0)
    left.axvline(at, color="#20242b", linewidth=1.2)
    line = np.linspace(-1, 1, 60)[:, None]
    left.plot(line, models[0].predict(line), "--", color=ORANGE, linewidth=2.5, label="mean of one Gaussian")
    left.set(xlabel="context", ylabel="target", title="two answers to each context")
    left.legend(frameon=True, loc="upper left", framealpha=0.9)
    for model, color, style, name in ((models[0], ORANGE, "--", "one Gaussian"), (models[1], BLUE, "-", "mixture of two")):
        density = np.exp(model.score_samples(np.full((len(grid), 1), at), grid))
        right.plot(density, grid, style, color=color, linewidth=2.5, label=name)
    right.set(xlabel=f"p(target | context = {at})", title="the conditional at the line")
    right.legend(frameon=False, loc="lower right")
    save(fig, "conditional")


def photograph() -> torch.Tensor:
    """Returns a part of scikit-learn's photograph of a flower, (1, 3, 128, 128) in [0, 1]."""
    from sklearn.datasets import load_sample_image

    whole = (
        Image.fromarray(load_sample_image("flower.jpg")).crop((170, 20, 530, 380)).resize((128, 128), Image.Resampling.LANCZOS)
    )
    return torch.from_numpy(np.array(whole)).permute(2, 0, 1)[None].float() / 255


def learned(x: torch.Tensor, size: int = 6, atoms: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns filters V (K, F) and offsets (K,) of a dictionary of a photograph's patches, and the patch of each atom (K, F)."""
    p = normalized_patches(x, size)[0].double()
    p = p[torch.randperm(len(p), generator=torch.Generator().manual_seed(0))]
    V, offset = learn_dictionary(p, atoms)
    Z = whitening(p)[1]
    return V, offset, V @ torch.linalg.inv(Z @ Z.T)  # d Z^-1: the patch that whitening turns into d


def pictured(patches: torch.Tensor, size: int, columns: int) -> np.ndarray:
    """Returns patches (K, 3 P P) as one picture, each stretched to the range of colors."""
    p = patches.unflatten(1, (3, size, size))
    p = 0.5 + 0.5 * p / p.flatten(1).abs().amax(1)[:, None, None, None]
    p = torch.nn.functional.pad(p, (1, 1, 1, 1), value=1.0).unflatten(0, (-1, columns))
    picture: np.ndarray = p.permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2).numpy()
    return picture


def atoms() -> None:
    """A photograph, and the 64 atoms of a dictionary of its patches."""
    x = photograph()
    fig, axes = pyplot().subplots(1, 2, figsize=(7.6, 3.9), layout="constrained")
    pictures = [
        (x[0].permute(1, 2, 0).numpy(), "a photograph"),
        (pictured(learned(x)[2], 6, 8), "64 patches that stand for all others"),
    ]
    for axis, (picture, title) in zip(axes, pictures, strict=True):
        axis.imshow(picture, interpolation="nearest")
        axis.set(title=title)
        axis.axis("off")
    save(fig, "atoms", quality=88)


def pipeline() -> None:
    """The first layer for three atoms: the patch, its thresholded responses, and their averages in four windows."""
    x = photograph()
    V, offset, patches = learned(x)
    p = normalized_patches(x, 6)[0].double()
    side = x.shape[-1] - 5
    a = torch.nn.functional.softshrink(p @ V.T - offset, 1.0)
    f = pooled(a[None].clone(), cells(side, side, 2).T, a.dtype)[0, 0].unflatten(1, (2, 2))
    spread = a.abs().mean(0)
    shown = spread.argsort(descending=True)[[2, 12, 24]].tolist()
    fig, axes = pyplot().subplots(3, 3, figsize=(6.6, 6.5), layout="constrained", width_ratios=[0.6, 1.2, 0.8])
    for row, k in zip(axes, shown, strict=True):
        row[0].imshow(pictured(patches[[k]], 6, 1), interpolation="nearest")
        row[1].imshow(a[:, k].clamp(min=0).unflatten(0, (side, side)) ** 0.5, cmap="gray", interpolation="nearest")
        row[2].imshow(f[k], cmap="gray", interpolation="nearest", vmin=0, vmax=f[shown].max())
        for i, j in np.ndindex(2, 2):
            bright = f[k, i, j] > 0.5 * f[shown].max()
            row[2].annotate(
                f"{f[k, i, j]:.2f}", (j, i), ha="center", va="center", color="black" if bright else "white", fontsize=11
            )
    for column, title in enumerate(("atom", "where it responds", "four averages: 4 features")):
        axes[0][column].set_title(title, fontsize=11)
    for axis in axes.flat:
        axis.axis("off")
    save(fig, "pipeline", quality=80)


PICTURES: dict[str, Callable[[], None]] = {
    "what_is_kept": what_is_kept,
    "thresholds": thresholds,
    "vje_posterior": posterior,
    "vje_equilibrium": equilibrium,
    "vje_influence": influence,
    "trace_trap": trace_trap,
    "conditional": conditional,
    "atoms": atoms,
    "pipeline": pipeline,
}


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main()
