r"""Fits a `PatchEncoder` and a joint Gaussian of its views without gradient descent: three passes over images, sums that add up.

1. Dictionary: at most 100,000 patches of at most 4,000 images. Second layer, if there is one: 25 patches of windows of each of at
   most 1,600 images, or of more where it has more than 4,000 atoms.
2. Principal directions V of the features f of at most 3,000 images, or of a third more images than directions, with two layers
   each divided by its length.
3. Joint embedding: m random views of every image, in blocks of at most 250; only sums of x = V^T (f - mean f) and their
   products stay. With G and S of `vergence.linear.solutions` and S' = S + ridge mean(diag S) I, the components
   G w = omega S' w with the largest omega, each times omega^power, are the embedding.

The density is the Gaussian over two views with these moments: covariance W S W^T of each view, and W G W^T between two.

A block's views depend on (seed, number of the block) alone, so that a run that was killed continues from the last pass, or
within the last one from the last checkpoint, with the same result. Several processes share the blocks of the last pass.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vergence.data.items import Items, batches
from vergence.data.pixels import center_crop, to_unit
from vergence.densities.moments import COLUMNS, ViewSums, principal_directions
from vergence.learn.encoders.config import PATCHES_ABOVE, PatchSettings
from vergence.learn.encoders.dictionary import learn_dictionary
from vergence.learn.encoders.patch_maps import PatchEncoder, PatchMaps, sampled_patches
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.gje import GJE
from vergence.learn.training import loop
from vergence.learn.training.config import RunConfig
from vergence.learn.training.metrics import Recorder
from vergence.learn.views.images import Views
from vergence.utils.checks import expect, refuse, shown
from vergence.utils.devices import cpu_threads
from vergence.utils.parts import Shard

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["added", "block_size", "fit_closed_form", "moved", "require_gje", "total_images"]

BLOCK = 250  # images at a time
PIXELS = 1 << 22  # of a block of large images, over all channels
DICTIONARY_FROM, SECOND_FROM, DIRECTIONS_FROM = 4_000, 1_600, 3_000  # images

Progress = Callable[[int, str], None]  # images, name of the pass


def require_gje(config: RunConfig) -> None:
    """Raises a ValueError unless a description with a closed-form encoder has the objective that can be filled in closed form."""
    model = config.model
    filled = model.objective == "gje" and model.options.get("likelihood", "batch") != "learned"
    what, found = "`objective='gje'` with the encoder 'patches', which no optimizer trains", shown(model.objective)
    expect(filled, what, f"{found} with options {model.options}", "leave the objective out")
    if model.projector or model.target_encoder is not None or model.teacher:
        raise ValueError("expected neither projector, teacher nor target_encoder with the encoder 'patches'; leave them out")


def block_size(shape: Sequence[int]) -> int:
    """Returns how many images of ``shape`` are read at a time: fewer where they are large.

    Example:
        >>> block_size((3, 32, 32)), block_size((3, 512, 512))
        (250, 5)
    """
    return max(4, min(BLOCK, PIXELS // math.prod(shape)))


def total_images(n: int, settings: PatchSettings) -> int:
    """Returns how many images `fit` encodes or samples patches from, for its progress."""
    return sum(min(n, limit) for _, _, limit in _passes(settings)) + n * settings.views


def _passes(settings: PatchSettings) -> list[tuple[int, str, int]]:
    """Returns the passes over some of the images: the step at whose end each is saved, its name, its largest number of images."""
    second = [(1, "second layer", _second_from(settings))] if settings.second else []
    return [(1, "dictionary", DICTIONARY_FROM), *second, (2, "directions", directions_from(settings))]


def directions_from(settings: PatchSettings) -> int:
    """Returns the largest number of images that the directions are computed from, a third more than directions at least.

    Example:
        >>> directions_from(PatchSettings()), directions_from(PatchSettings(directions=4500))
        (3000, 6000)
    """
    return max(DIRECTIONS_FROM, 4 * settings.directions // 3)


def _second_from(settings: PatchSettings) -> int:
    """Returns the largest number of images that the second layer is learned from: ten patches for each of its atoms at least."""
    return max(SECOND_FROM, -(-10 * settings.second // PATCHES_ABOVE))


def fit_closed_form(
    fabric: "Fabric",
    method: PairedMethod,
    items: Items,
    views: Views,
    config: RunConfig,
    size: int | None,
    recorder: Recorder,
    progress: Progress = lambda images, label: None,
    shard: Shard | None = None,
) -> None:
    """Fits ``method`` from the recorder's last checkpoint, if it has one, and saves the model.

    Args:
        fabric: The engine that `vergence.learn.training.loop.launch` returned.
        method: A `PatchEncoder` behind its input statistics, and `GJE`; changed in place.
        items: Training images; labels are not read.
        views: Makes random views of a batch.
        config: Description of the run.
        size: Side of the central crop that the encoder sees, in pixels; None for whole images.
        recorder: Keeps checkpoints, metrics and the model; used by the first process only.
        progress: Called with the number of images that are done, and the name of the pass.
        shard: Part of the images whose sums are kept in the checkpoint, for `added`; nothing is solved then.

    Raises:
        vergence.learn.training.loop.Interrupted: SIGINT or SIGTERM came; the finished passes were saved.
        ValueError: The images cannot be read, or do not have as many distinct patches as the dictionary has atoms.
    """
    method.to(fabric.device)
    with loop.stop_signal() as stopped, torch.no_grad():
        _Fit(fabric, method, items, views, config, size, recorder, progress, stopped, shard).run()


@dataclasses.dataclass
class _Fit:
    """One fit: what its passes share."""

    fabric: "Fabric"
    method: PairedMethod
    items: Items
    views: Views
    config: RunConfig
    size: int | None
    recorder: Recorder
    progress: Progress
    stopped: list[int]
    shard: Shard | None = None
    step: int = 0

    def __post_init__(self) -> None:
        self.encoder = next(m for m in self.method.encoder.modules() if isinstance(m, PatchEncoder))
        self.settings, self.maps = self.encoder.settings, self.encoder.maps
        self.block, self.started = block_size(self.items.shape), time.monotonic()
        own = self.maps.filters.dtype
        self._half = torch.bfloat16 if own == torch.float32 else own

    def run(self) -> None:
        """Runs the passes that the checkpoint does not hold."""
        state = self.recorder.load_checkpoint() or {"step": 0}
        _require_state(state, self.method, self.maps)
        self.step = state["step"]
        if self.fabric.is_global_zero:
            self.recorder.drop_rows_after(self.step)
        if "fitted" in state:
            self.method.load_state_dict(state["fitted"])
        else:
            with cpu_threads(self.config.fit.threads or state.get("threads")):
                self._fit(state)
        if self.fabric.is_global_zero and self.shard is None:
            self.recorder.save_model(self.method.state_dict())
        self.fabric.barrier()

    def _fit(self, state: dict[str, Any]) -> None:
        """Runs the passes behind a checkpoint's."""
        for done, label, limit in _passes(self.settings):
            if self.step >= done:
                self.progress(min(len(self.items), limit), label)
        if self.step >= 1:
            self.maps.load_state_dict({name: state[name] for name in self.maps.state_dict()})
        else:
            self.maps.set(*self._dictionary())
            self._second_layer()
            self._save(1)
        if self.step >= 2:
            mean, V = state["mean"], state["directions"]
        else:
            mean, V = self._directions()
            self._save(2, mean=mean, directions=V)
        device = self.fabric.device
        sums = ViewSums(V.shape[1], self.settings.views, device)
        if "sums" in state:
            sums.load(state["sums"])
        self._moments(sums, mean.to(device), V.to(device))

    def _dictionary(self) -> tuple[Tensor, Tensor]:
        seed = loop.seed_of(self.config.fit.seed, "patches", 0) % (1 << 31)
        images = self._images(self._some(DICTIONARY_FROM), "dictionary")
        return learn_dictionary(sampled_patches(images, self.maps, seed=seed), self.settings.atoms)

    def _second_layer(self) -> None:
        layer = self.maps.second
        if layer is None:
            return
        generator = torch.Generator().manual_seed(loop.seed_of(self.config.fit.seed, "patches", 1))
        images = self._images(self._some(_second_from(self.settings)), "second layer")
        parts = [layer.patches(self.maps.layers(x)[1]).flatten(0, 1).to("cpu", self._half) for x in images]
        layer.learn(parts, generator)

    def _directions(self) -> tuple[Tensor, Tensor]:
        """Returns the mean of the features and their principal directions, which are kept in two bytes a number."""
        images = self._images(self._some(directions_from(self.settings)), "directions")
        parts = [self.maps.responses(x).to(self._half) for x in images]
        mean, V = principal_directions(parts, self.settings.directions, self.maps.filters.dtype, self.settings.widths)
        return mean.cpu(), V.cpu()

    def _moments(self, sums: "ViewSums", mean: Tensor, V: Tensor) -> None:
        rank, world = self.fabric.global_rank, self.fabric.world_size
        blocks = list(batches(len(self.items), self.block))
        part = range(len(blocks)) if self.shard is None else self.shard.range(len(blocks), 1)
        start = max(part.start, self.step - 2)
        self.progress((start - part.start) * self.block * self.settings.views, "joint embedding")
        mine = range(start + rank, part.stop, world)
        saved = time.monotonic()
        stream = zip(mine, self.items.stream((blocks[i] for i in mine), workers=self.config.fit.workers), strict=True)
        for i, (_, x) in stream:
            if len(x):
                on_device = x.to(self.fabric.device)
                sums.add_views([self._projected(on_device, i, j, mean, V) for j in range(self.settings.views)])
            self.progress(len(x) * self.settings.views * world, "joint embedding")
            if world == 1 and (self.stopped or time.monotonic() - saved > self.config.fit.checkpoint_seconds):
                self._save(3 + i, mean=mean, directions=V, sums=sums.state())
                saved = time.monotonic()
            self._stop()
        if self.shard is not None:
            share = [self.shard.number, self.shard.of, len(blocks)]
            return self._save(2 + part.stop, mean=mean, directions=V, sums=sums.state(), shard=share)
        sums.reduce()
        self._solve(sums, mean, V)
        last = 3 + len(blocks)
        self._row("joint embedding", last, mean_eigenvalue=float(self.encoder.eigenvalues.mean()))
        self._save(last, fitted=self.method.state_dict())

    def _projected(self, x: Tensor, block: int, view: int, mean: Tensor, V: Tensor) -> Tensor:
        seed = loop.seed_of(self.config.fit.seed, "views", block * self.settings.views + view)
        generator = torch.Generator().manual_seed(seed)
        f: Tensor = self.maps.responses(self.views(moved(x, self.settings.shift, generator), generator))
        f -= mean
        dtype, parts = self.maps.arithmetic(), zip(f.split(COLUMNS, 1), V.split(COLUMNS), strict=True)
        return torch.stack([(part.to(dtype) @ rows.to(dtype)).to(f) for part, rows in parts]).sum(0)

    def _solve(self, sums: "ViewSums", mean: Tensor, V: Tensor) -> None:
        """Sets the affine map and the joint Gaussian from the sums."""
        from vergence.linear.solutions import joint_embedding

        s = self.settings
        center, S, G = sums.view_moments()
        expect(S.diagonal().max() > 0, "images that differ", "features without variation: all images are equal", "give others")
        ridge = s.ridge * S.diagonal().mean() * torch.eye(len(S), dtype=S.dtype, device=S.device)
        W, omega, _ = joint_embedding(G, S + ridge)
        omega = omega[: s.dim]
        W = W[: s.dim] * omega[:, None] ** s.power
        own = self.encoder.weight
        for part, rows in zip(own.split(COLUMNS, 1), V.split(COLUMNS), strict=True):
            part.copy_(W.to(own.dtype) @ rows.to(own.dtype).T)
        self.encoder.offset.copy_(-(own @ mean) - W.to(own.dtype) @ center.to(own.dtype))
        self.encoder.eigenvalues.copy_(omega)
        objective = self.method.objective
        assert isinstance(objective, GJE)
        S, G = W @ S @ W.T, W @ G @ W.T
        moving = objective.moving
        moving.mean.zero_()
        moving.covariance.copy_(torch.cat([torch.cat([S, G], 1), torch.cat([G.T, S], 1)]))
        moving.steps.fill_(sums.n)
        moving.items.fill_(sums.n * s.views)

    def _some(self, limit: int) -> Tensor:
        """Returns the index of at most ``limit`` images, sampled with the seed, in their order."""
        generator = torch.Generator().manual_seed(loop.seed_of(self.config.fit.seed, "sample", limit))
        return torch.randperm(len(self.items), generator=generator)[:limit].sort().values

    def _images(self, index: Tensor, label: str) -> Iterator[Tensor]:
        for _, x in self.items.stream(iter(index.split(self.block)), workers=self.config.fit.workers):
            x = x if self.size is None else center_crop(x, self.size)
            if len(x):
                yield to_unit(x, self.maps.filters.dtype).to(self.fabric.device)
            self.progress(len(x), label)
            self._stop()

    def _stop(self) -> None:
        if self.stopped:
            raise loop.Interrupted(self.stopped[-1], self.step)

    def _save(self, step: int, **state: Any) -> None:
        self.step = step
        if not self.fabric.is_global_zero:
            return
        maps = self.maps.state_dict()
        threads = torch.get_num_threads()
        self.recorder.save_checkpoint({"model": {}, "optimizer": {}, "step": step, "threads": threads, **maps, **state})
        if step <= 2:
            self._row(("dictionary", "directions")[step - 1], step)

    def _row(self, label: str, step: int, **numbers: float) -> None:
        if self.fabric.is_global_zero:
            seconds = round(time.monotonic() - self.started, 1)
            self.recorder.append({"step": step, "epoch": 1, "seconds": seconds, **numbers})
            self.recorder.log(f"{label} after {seconds:g} s")


def _require_state(state: dict[str, Any], method: PairedMethod, maps: PatchMaps) -> None:
    """Raises a ValueError unless a checkpoint has what its step needs."""
    names = (["mean", "directions"] if state["step"] > 1 else []) + (list(maps.state_dict()) if state["step"] else [])
    wanted: Mapping[str, object] = state
    if "fitted" in state:
        wanted, names = state["fitted"] if isinstance(state["fitted"], dict) else {}, list(method.state_dict())
    wrong = [name for name in names if not isinstance(wanted.get(name), Tensor)]
    if wrong:
        raise ValueError(f"the checkpoint is none of this encoder: it has no {shown(wrong[0])}; train again")


def added(checkpoints: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the checkpoint of one process before it solves, from those of all shards, in any order."""
    parts = sorted(checkpoints, key=lambda state: int(state.get("shard", [0])[0]))
    found = [state.get("shard", [0, 0, 0]) for state in parts]
    of, blocks = found[0][1], found[0][2]
    numbers = [share[0] for share in found]
    whole = numbers == list(range(1, of + 1)) and all(share[1:] == [of, blocks] for share in found)
    there = ", ".join(str(n) if n else "one that is not finished" for n in numbers)
    expect(whole, f"{of or len(parts)} finished parts, each once", there, "train those that are missing with `shard`")
    first = parts[0]
    sums = ViewSums(first["sums"]["v"].shape[0], 2)
    total = sums.state()
    for state in parts:
        for name in ("filters", "mean", "directions"):
            if not torch.allclose(state[name], first[name], rtol=1e-4, atol=1e-4 * float(first[name].abs().max())):
                refuse(f"parts with the same {name}", "others", "train all parts on the same data, with the same versions")
        total["n"] += state["sums"]["n"]
        for name in ViewSums.FIELDS:
            total[name] += state["sums"][name].cpu()
    return {**{name: value for name, value in first.items() if name != "shard"}, "sums": total, "step": 2 + blocks}


def moved(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Returns images (B, C, H, W), each moved by whole pixels, up to a share of its sides; the borders are reflected.

    Example:
        >>> x = torch.arange(4.0).view(1, 1, 1, 4)
        >>> moved(x, 0.0, torch.Generator()).flatten().tolist()
        [0.0, 1.0, 2.0, 3.0]
    """
    if share == 0:
        return x
    index = []
    for n in x.shape[2:]:
        most = min(int(n * share), n - 1)
        i = (torch.arange(n) + torch.randint(-most, most + 1, (len(x), 1), generator=generator)).abs()
        index.append((n - 1 - (n - 1 - i).abs()).to(x.device))
    images, channels = (torch.arange(n, device=x.device) for n in x.shape[:2])
    return x[images[:, None, None, None], channels[:, None, None], index[0][:, None, :, None], index[1][:, None, None, :]]
