"""Pictures of embeddings: a small decoder of a frozen encoder, and the nearest real picture.

The decoder is a generator in the manner of DCGAN (2015), arXiv:1511.06434: a linear map to a few pixels, then transposed 4x4
convolutions of stride 2 with batch normalization and ReLU, each doubling the side. Unlike there, a 3x3 convolution and a sigmoid
come last, and it is trained by mean squared error against the picture that was embedded. It never changes the run's encoder. Its
output shows the part of a picture that the embedding keeps, and is blurred where several pictures have one embedding.

Shapes: N pictures (C, H, W), D features of the objective's space.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from vergence.data.items import Items, PairItems, batches, contexts
from vergence.data.pixels import center_crop, resize, to_unit
from vergence.encoders.decoder import Decoder
from vergence.evaluation import features
from vergence.methods.paired import Side
from vergence.runs.fitting import training_items
from vergence.runs.run import Images, Run
from vergence.utils.files import explained, replacing, require_parent
from vergence.utils.terminal import bar

__all__ = [
    "decoded",
    "fit_decoder",
    "kept_decoder",
    "load_decoder",
    "nearest_pictures",
    "picture_shape",
    "targets",
    "write_samples",
]

FILE = "decoder.safetensors"
LARGEST = 1 << 28  # numbers of a picture
EPOCHS, BATCH_SIZE, LEARNING_RATE = 30, 64, 2e-3
CONTEXTS = 8  # rows of a grid
DISTANCES = 1 << 24  # held at a time
SAFE = "the trained model is safe: free space and repeat the command, or choose another --out"
SIDE = 32  # smaller pictures are written larger, pixel by pixel


def picture_shape(run: Run) -> tuple[int, int, int]:
    """Returns (C, H, W) of the targets as the encoder sees them.

    Raises:
        ValueError: The targets are not images.
    """
    metadata = run.folder.metadata
    shape = metadata.target_shape or metadata.shape
    if len(shape) != 3:
        found = f"found vectors of {shape[0]} features"
        raise ValueError(f"expected a run whose targets are images, {found}; write a .npz instead")
    return shape[0], shape[1], shape[2]


def targets(run: Run) -> Items:
    """Returns the items that the run's encoder was trained on; of pairs, the targets."""
    items = training_items(run.folder)
    return items.target if isinstance(items, PairItems) else items


def fit_decoder(
    run: Run,
    items: Items | None = None,
    *,
    epochs: int = EPOCHS,
    batch_size: int = BATCH_SIZE,
    lr: float = LEARNING_RATE,
    seed: int = 0,
) -> Decoder:
    """Trains a decoder of the run's frozen embeddings with mean squared error, Adam and a cosine schedule from ``lr`` to zero.

    Args:
        run: A trained run on images; of pairs, the targets are decoded.
        items: Images to learn from; the run's training items by default.
        epochs: Passes over them.
        batch_size: Images in a step.
        lr: Peak learning rate.
        seed: Seed of the weights and of the order.

    Returns:
        The decoder on the run's device, in evaluation mode. It is not written to the run folder: `kept_decoder` does.

    Raises:
        ValueError: The run is not on images, there are fewer than two, or a setting is out of its range.

    Example:
        >>> import tempfile
        >>> from vergence.runs.train import train
        >>> quick = dict(epochs=1, limit=256, device="cpu", precision="fp32")
        >>> run = train("digits", out=tempfile.mkdtemp() + "/run", objective="gje", projector=(16,), **quick)
        >>> decoder = fit_decoder(run, epochs=1)
        >>> with torch.inference_mode():
        ...     decoder(run.sample(5)[1]).shape
        torch.Size([5, 1, 8, 8])
    """
    shape, items = picture_shape(run), targets(run) if items is None else items
    if not (epochs >= 1 and batch_size >= 2 and lr > 0 and len(items) >= 2):
        found = f"found epochs={epochs}, batch_size={batch_size}, lr={lr} and {len(items)} images"
        raise ValueError(f"expected epochs >= 1, batch_size >= 2, lr > 0 and at least 2 images to learn from, {found}")
    z, index = features.collect(run.method.target_network().eval(), items, **run.where("target"))
    items = items.subset(index)
    std, mean = torch.std_mean(z, dim=0, correction=0)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        decoder = Decoder(z.shape[1], shape, mean, torch.where(std > 1e-6, std, 1.0)).to(run.device)
        _fit(decoder, z, items, run, epochs, batch_size, lr)
    return decoder.eval()


def _fit(decoder: Decoder, z: Tensor, items: Items, run: Run, epochs: int, batch_size: int, lr: float) -> None:
    steps = epochs * max(1, len(items) // batch_size)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with bar(f"decoder 1/{epochs}", steps * batch_size, "images") as advance:
        for epoch in range(epochs):
            order = torch.randperm(len(items))[: max(1, len(items) // batch_size) * batch_size]
            for index, x in _pictures(items, order.split(batch_size), run):
                error = F.mse_loss(decoder(z[index].to(run.device)), x)
                optimizer.zero_grad(set_to_none=True)
                error.backward()
                optimizer.step()
                schedule.step()
                advance(len(index), label=f"decoder {epoch + 1}/{epochs}")


def _pictures(items: Items, index: Iterable[Tensor], run: Run, side: Side = "target") -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (index, pictures (B, C, H, W) in [0, 1]) on the run's device, cropped as for the side's encoder."""
    size = run.where(side)["size"]
    for i, x in items.stream(iter(index), workers=run.folder.config.fit.workers):
        x = contexts(x) if size is None else center_crop(contexts(x), size)
        yield i, to_unit(x, torch.float32).to(run.device)


def kept_decoder(run: Run, epochs: int | None = None, seed: int = 0) -> Decoder:
    """Returns the decoder in the run folder (``decoder.safetensors``), or trains one and writes it there.

    Args:
        run: A trained run on images.
        epochs: Passes over the training items; None takes any decoder in the folder, or else trains for 30.
        seed: As for `fit_decoder`.
    """
    found = load_decoder(run, epochs)
    if found is not None:
        return found
    epochs = EPOCHS if epochs is None else epochs
    decoder = fit_decoder(run, epochs=epochs, seed=seed)
    settings = {"epochs": epochs, "seed": seed, "dim": decoder.dim, "shape": decoder.shape, "model": _digest(run)}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in decoder.state_dict().items()}
    path = run.folder.path / FILE
    with explained(path, SAFE), replacing(path) as part:
        part.write_bytes(save(state, {"settings": json.dumps(settings)}))
    return decoder


def load_decoder(run: Run, epochs: int | None = None) -> Decoder | None:
    """Returns the decoder in the run folder; None where there is none for this model (and these ``epochs``)."""
    file = run.folder.path / FILE
    if not file.is_file():
        return None
    try:
        with safe_open(file, "pt") as opened:
            settings = json.loads(opened.metadata()["settings"])
            if settings["model"] != _digest(run) or epochs not in (None, settings["epochs"]):
                return None
            if [settings["dim"]] != opened.get_slice("net.0.mean").get_shape() or math.prod(settings["shape"]) > LARGEST:
                return None  # nothing is allocated that the file does not hold
            decoder = Decoder(settings["dim"], settings["shape"])
            decoder.load_state_dict({name: opened.get_tensor(name) for name in opened.keys()})
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError, RuntimeError):
        return None  # a damaged decoder is trained again
    return decoder.to(run.device).eval()


def _digest(run: Run) -> str:
    """Returns a hash of the run's model."""
    digest = hashlib.blake2b(digest_size=16)
    with (run.folder.path / "model.safetensors").open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


@torch.inference_mode()
def decoded(decoder: Decoder, z: Tensor) -> Tensor:
    """Returns the pictures (N, C, H, W) that a decoder gives for embeddings (N, D), on the CPU."""
    device = next(decoder.parameters()).device
    return torch.cat([decoder(part.to(device)).cpu() for part in z.split(256)])


@torch.inference_mode()
def nearest_pictures(run: Run, z: Tensor, items: Items | None = None) -> tuple[Tensor, Tensor]:
    """Returns the real pictures whose projected embeddings are nearest to z, by Euclidean distance.

    Args:
        run: A trained run on images.
        z: Embeddings (N, D) in the objective's space.
        items: Items to search; the run's training items by default, of pairs the targets.

    Returns:
        The pictures (N, C, H, W) in [0, 1] and their int64 index (N,) among the items.
    """
    picture_shape(run)
    items = targets(run) if items is None else items
    bank, index = features.collect(run.method.target_network().eval(), items, **run.where("target"))
    bank = bank.to(run.device)
    near = [torch.cdist(part.to(bank), bank).argmin(1).cpu() for part in z.split(max(1, DISTANCES // len(bank)))]
    found = index[torch.cat(near)]
    return _read(run, items.subset(found)), found


def _read(run: Run, items: Items, side: Side = "target") -> Tensor:
    return torch.cat([x.cpu() for _, x in _pictures(items, batches(len(items), 256), run, side)])


def write_samples(
    run: Run,
    out: Path,
    *,
    n: int | None = None,
    context: Images | None = None,
    decoder: bool = False,
    epochs: int | None = None,
    seed: int = 0,
) -> int:
    """Samples from a run's density and writes embeddings (``.npz``) or pictures of targets (``.png``).

    A ``.npz`` holds za and zb (n, D) in the objective's space; given contexts za (R, D), zb (R, n, D) and their names. A
    ``.png`` is a grid of n targets; given contexts, a row for each: the context, then n samples of its targets.

    Args:
        run: A trained run whose objective has a conditional density.
        out: File to write.
        n: Number of samples, for each context where there are contexts; 64, or 8 for each context, by default.
        context: Items whose first eight are the contexts; None samples contexts as well.
        decoder: Whether pictures come from `kept_decoder`; otherwise they are the nearest real training pictures.
        epochs: Passes of the decoder's training, as for `kept_decoder`; implies ``decoder``.
        seed: Seed of the samples.

    Returns:
        The number of targets that were sampled.

    Raises:
        ValueError: The objective has no such density, the file's ending or folder cannot be used, or the targets are not images.
    """
    n = (64 if context is None else 8) if n is None else n
    _require_writable(run, out, n, decoder or epochs is not None)
    items = None if context is None else _contexts(run, context)
    za, zb = run.sample(n, seed) if items is None else _given(run, items, n, seed)
    if out.suffix == ".npz":
        columns: dict[str, Any] = {"za": za.numpy(), "zb": zb.numpy()}
        columns |= {} if items is None else {"name": np.asarray(list(items.names), dtype=np.str_)}
        with explained(out, SAFE), replacing(out) as part, part.open("wb") as file:
            np.savez(file, **columns)
        return zb.numel() // zb.shape[-1]
    flat = zb.flatten(0, -2)
    shown = decoded(kept_decoder(run, epochs), flat) if decoder or epochs is not None else nearest_pictures(run, flat)[0]
    _write_grid(out, shown, None if items is None else _read_contexts(run, items), n)
    return len(flat)


def _require_writable(run: Run, out: Path, n: int, decoder: bool) -> None:
    _ = run.conditional_objective
    if n < 1:
        raise ValueError(f"expected n of at least 1, found {n}")
    if out.suffix not in (".npz", ".png"):
        raise ValueError(f"cannot write '{out.name}': expected an ending among .npz (embeddings), .png (pictures)")
    require_parent(out)
    if out.suffix == ".png":
        picture_shape(run)
    elif decoder:
        raise ValueError(f"cannot decode into '{out.name}': a .npz holds embeddings; write a .png, or leave the decoder out")


def _contexts(run: Run, context: Images) -> Items:
    """Returns those of the first eight items that can be read."""
    items = run.items(context)
    items = items.subset(torch.arange(min(CONTEXTS, len(items))))
    index = torch.cat([i for i, _ in items.stream(batches(len(items), CONTEXTS))])
    if len(index) == 0:
        raise ValueError(f"none of the first {len(items)} contexts could be read; the first: {items.skipped[0].reason}")
    return items.subset(index)


@torch.inference_mode()
def _given(run: Run, items: Items, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns the contexts' embeddings (R, D), and n samples of the targets' for each (R, n, D)."""
    za = run.project(items)
    density = run.conditional_objective.conditional(run.to_device(za))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return za, density.sample(torch.Size((n,))).transpose(0, 1).cpu().contiguous()


def _read_contexts(run: Run, items: Items) -> Tensor | None:
    """Returns the contexts as pictures (R, C, H, W) of the targets' shape; None where they are not images."""
    if len(run.read_shape()) != 3:
        return None
    channels, height, width = picture_shape(run)
    x = resize(_read(run, items, "context"), height, width)
    return x.expand(-1, channels, -1, -1) if x.shape[1] == 1 else x if channels == 3 else x.mean(1, keepdim=True)


def _write_grid(out: Path, shown: Tensor, contexts: Tensor | None, n: int) -> None:
    """Writes pictures (R n, C, H, W) as a grid; each row of n begins with its context's picture where there is one."""
    from torchvision.utils import save_image

    columns = math.ceil(math.sqrt(n)) if contexts is None and len(shown) == n else n
    if contexts is not None:
        shown = torch.cat([contexts[:, None], shown.unflatten(0, (-1, n))], 1).flatten(0, 1)
        columns = n + 1
    larger = max(1, SIDE // min(shown.shape[2:]))
    shown = shown.repeat_interleave(larger, 2).repeat_interleave(larger, 3)
    with explained(out, SAFE), replacing(out) as part:
        save_image(shown, part, nrow=columns, padding=2, pad_value=1.0, format="png")
