"""Image files: decoded when they are read, by this process or by workers."""

import os
import signal
import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vergence.data.items import Array, Items, Skipped, at, pick

__all__ = ["ImageFiles", "decode", "image_mode"]

# Only these decoders run: other formats of Pillow start outside programs or read what is no image file.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
ORIENTATION = 0x0112  # EXIF's tag


class ImageFiles(Items):
    """Images decoded when they are read, by this process or by workers: uint8 (C, H, W) as `decode` gives them.

    Args:
        folder: Where the files are.
        names: Their paths relative to the folder.
        shape: (C, H, W) of the decoded images, C = 1 (gray) or 3.
        labels: (N,) int64.
    """

    def __init__(self, folder: Path, names: Sequence[str], shape: tuple[int, ...], labels: Tensor | None = None) -> None:
        self.folder = folder
        self.names = names
        self.shape = shape
        self.dtype = torch.uint8
        self.labels = labels
        self.skipped = []

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: Tensor | Array) -> tuple[Array, Array, list[Skipped]]:
        """Returns (index, images) of what could be decoded, and what could not."""
        from PIL import Image

        kept, images, skipped = [], [], []
        for i in index.tolist():
            try:
                images.append(decode(self.folder / self.names[i], self.shape))
                kept.append(i)
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
                skipped.append(Skipped(self.names[i], _reason(error)))
        pixels = np.stack(images) if images else np.empty((0, *self.shape), dtype=np.uint8)
        return np.array(kept, dtype=np.int64), pixels, skipped

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields (index, images) for each index tensor; a batch is one worker's task. See `Items.stream`."""
        for kept, images, skipped in map(self.read, batches) if workers == 0 else _parallel(self, batches, workers):
            if skipped:
                self.skipped[:] = dict.fromkeys([*self.skipped, *skipped])
            yield torch.from_numpy(kept), torch.from_numpy(images)

    def subset(self, index: Tensor) -> "ImageFiles":
        """Returns the files of an index; see `Items.subset`."""
        return ImageFiles(self.folder, pick(self.names, index), self.shape, at(self.labels, index))


class _Reader(Dataset[tuple[Array, Array, list[Skipped]]]):
    def __init__(self, files: ImageFiles) -> None:
        self.files = files

    def __getitem__(self, index: Array) -> tuple[Array, Array, list[Skipped]]:
        return self.files.read(index)


def _parallel(files: ImageFiles, batches: Iterable[Tensor], workers: int) -> Iterator[tuple[Array, Array, list[Skipped]]]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loader = DataLoader(
        _Reader(files),
        batch_size=None,
        # Arrays travel through pipes: tensors would need shared memory, of which containers have little.
        sampler=(index.numpy() for index in batches),
        num_workers=min(workers, cores),
        collate_fn=_unchanged,
        worker_init_fn=_ignore_interrupt,
        # Its own: the loader would draw from the global generator, and a run would depend on the number of workers.
        generator=torch.Generator(),
    )
    with warnings.catch_warnings():
        # Python >= 3.12 warns of forks beside threads; the children only decode and take none of the parent's locks.
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        results = iter(loader)
    yield from results


def _unchanged(x: Any) -> Any:
    return x


def _ignore_interrupt(worker: int) -> None:
    # Ctrl-C reaches the whole group; the parent alone decides how a run ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def decode(path: Path, shape: tuple[int, ...]) -> Array:
    """Returns an image file as uint8 (C, H, W): the largest centerd part of H to W, resized with antialiasing.

    EXIF's orientation is applied, 16-bit grays are reduced to their upper 8 bits, transparency is dropped, and only the
    first frame of several is read. JPEG files are decoded at a reduced scale, of at least twice the result's.

    Args:
        path: A JPEG, PNG, BMP, GIF, TIFF, WebP or PPM file.
        shape: (C, H, W) with C = 1 (gray) or 3 (RGB).

    Raises:
        OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError: The file cannot be read as an image.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    # Pillow warns of odd metadata once a file; an image that decodes is used, one that does not is listed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(path, formats=FORMATS) as image:
            image.draft(mode, (2 * max(height, width),) * 2)
            orientation = _loaded(image)
            plain = _upright(_eight_bit(image), orientation).convert(mode)
    pixels = np.asarray(ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR))
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _loaded(image: Any) -> Any:
    """Decodes an opened image in place and returns its EXIF orientation."""
    try:
        image.load()
        return image.getexif().get(ORIENTATION)
    except (IndexError, TypeError, struct.error) as error:
        # Pillow takes these for a broken header when it opens a file, but lets them pass when it loads one.
        raise OSError(f"broken image data: {error}") from None


def _eight_bit(image: Any) -> Any:
    from PIL import Image

    if image.mode == "F":
        raise ValueError("32-bit float pixels; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) // 256).clip(0, 255).astype(np.uint8))
    return image


def _upright(image: Any, orientation: Any) -> Any:
    # Pillow's own function also writes the EXIF data back, and fails where other tags are broken.
    from PIL.Image import Transpose

    turns = {2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE}
    turns |= {6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90}
    return image.transpose(turns[orientation]) if orientation in turns else image


def image_mode(path: Path) -> str | None:
    """Returns Pillow's name of an image file's pixel format from its header (``L``, ``RGB``, ...), or None if unreadable."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                return str(image.mode)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image in a known format"
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return text.splitlines()[0]
