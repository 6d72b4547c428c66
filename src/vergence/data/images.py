"""Image files: listed, and decoded when they are read, by this process or by workers.

An item's name is its path relative to the folder, with ``/`` between folders. A path that is not valid Unicode is written
as ``bytes:`` and its bytes in percent form (``bytes:caf%E9.png``), so that tables, JSON and pages can hold every name and
none is lost; `file_name` returns the path itself.

Symbolic links are followed, and each real file is listed once: under its own path if that lies in the folder, otherwise
under the first link to it. The other links are skipped items.
"""

import abc
import contextlib
import copy
import functools
import io
import math
import os
import signal
import stat
import string
import struct
import sys
import threading
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vergence.data.items import Array, Items, Skipped, Source, at, load, pick, watched
from vergence.data.numbers import Numbers
from vergence.utils.checks import expect

__all__ = ["ImageFiles", "file_name"]

# Only these decoders run: other formats of Pillow start outside programs or read files that are not images.
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "TIFF", "WEBP", "PPM", "AVIF", "JPEG2000", "ICO", "HEIF")
BY_ENDING = {".tga": "TGA"}  # formats without a mark of their own at the start, which other files could be taken for
ORIENTATION = 0x0112  # EXIF's tag
UNREADABLE = (OSError, SyntaxError, ValueError, EOFError)  # what Pillow and files raise
MAX_PIXELS = 178_956_970  # of an image that is decoded, Pillow's own limit: 0.7 GB while it is converted
DECODE_SECONDS = 30.0  # for one image; see `time_limit`
BYTES = "bytes:"
CUT_OFF = ("truncated", "failed to read")  # in the words of Pillow and tifffile
ENDINGS: tuple[str, ...] = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
ENDINGS += (".jpe", ".jfif", ".mpo", ".pnm", ".pbm", ".dib", ".avif", ".heic", ".heif", ".jp2", ".j2k", ".jpx", ".tga", ".ico")
HEIF = (".heic", ".heif")
# of files without an ending
MARKS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"P4\n", b"P5\n", b"P6\n")
PLAIN, SAME_COLOR = 8, 3  # of 255: contrast below which nothing is seen; difference of colors that are the same
FIRST_FRAME, UPPER_BITS = "first of several frames", "upper 8 of 16 bits of color"
DECODE_BATCH = 32
FOLDER_SIZE = 64


def written_name(name: str) -> str:
    r"""Returns a file's name as text that every format can hold.

    A name that is valid Unicode stays as it is. One that is not (on Linux a name is any bytes) becomes ``bytes:`` and its
    bytes in percent form, and so does a name that begins with ``bytes:``; `file_name` undoes it, so nothing is lost.
    """
    with contextlib.suppress(UnicodeEncodeError):
        name.encode()
        if not name.startswith(BYTES):
            return name
    return BYTES + urllib.parse.quote(os.fsencode(name), safe=" " + string.punctuation.replace("%", ""))


def file_name(written: str) -> str:
    r"""Returns the file's name that `written_name` wrote."""
    return os.fsdecode(urllib.parse.unquote_to_bytes(written.removeprefix(BYTES))) if written.startswith(BYTES) else written


D = TypeVar("D", bound="DecodedImages")


class DecodedImages(Items):
    """Images that are decoded when they are read, by this process or by workers: uint8 (C, H, W); the base of their sources."""

    chunk = DECODE_BATCH

    @abc.abstractmethod
    def decoded(self, i: int) -> Array:
        """Returns an image; errors of the file system and of Pillow say why it cannot be read."""

    def shaped(self: D, shape: tuple[int, ...]) -> D:
        """Returns the same images, read in another shape (C, H, W)."""
        other = copy.copy(self)
        other.shape, other.skipped = shape, list(self.skipped)
        return other

    def read(self, index: Tensor | Array) -> tuple[Array, Array, list[Skipped]]:
        """Returns (index, images) of the images that could be decoded, and the others with the reason."""
        kept, images, skipped = [], [], []
        for i in index.tolist():
            try:
                images.append(self.decoded(i))
                kept.append(i)
            except UNREADABLE as error:
                skipped.append(Skipped(self.names[i], reason(error)))
        pixels = np.stack(images) if images else np.empty((0, *self.shape), dtype=np.uint8)
        return np.array(kept, dtype=np.int64), pixels, skipped

    def stream(self, batches: Iterable[Tensor], workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields (index, images) for each index tensor; each batch is decoded by one worker."""
        known = set(self.skipped)
        for kept, images, skipped in map(self.read, batches) if workers == 0 else parallel(self.read, batches, workers):
            self.skipped += [file for file in dict.fromkeys(skipped) if file not in known]
            known.update(skipped)
            yield torch.from_numpy(kept), torch.from_numpy(images)


class ImageFiles(DecodedImages):
    """Images decoded when they are read, by this process or by workers: uint8 (C, H, W) as `decode` returns them.

    Names are paths relative to the folder, as `written_name` writes them. With ``sized``, for a model of arrays, which were not
    resized for its training, `conversion` reports other sizes, too.
    """

    def __init__(
        self, folder: Path, names: Sequence[str], shape: tuple[int, ...], labels: Tensor | None = None, *, sized: bool = False
    ) -> None:
        self.folder, self.names, self.shape, self.dtype = folder, names, shape, torch.uint8
        self.labels, self.skipped, self.sized = labels, [], sized

    @property
    def conversion(self) -> str | None:
        """Color that is lost and, where ``sized``, sizes; a training on files resizes them as well."""
        headers = _headers(self.folder, self.names)
        color, sizes = channels(mode for mode, _ in headers), sorted({size for _, size in headers}) if self.sized else []
        if not sizes or sizes == [self.shape[1:]]:
            return "color to gray" if self.shape[0] == 1 and color == 3 else None
        ends = [sorted({min(side), max(side)}) for side in zip(*sizes, strict=True)]
        words = " x ".join(" to ".join(map(str, end)) for end in ends)
        before = f"{color} x {words}" if len(sizes) == 1 else f"files of {words} pixels"
        return f"{before} to {' x '.join(map(str, self.shape))}"

    def decoded(self, i: int) -> Array:
        return decode(self.folder / file_name(self.names[i]), self.shape)

    def subset(self, index: Tensor) -> "ImageFiles":
        return ImageFiles(self.folder, pick(self.names, index), self.shape, at(self.labels, index), sized=self.sized)


R = TypeVar("R")


class _Reader(Dataset[R]):
    def __init__(self, read: Callable[[Array], R]) -> None:
        self.read = read

    def __getitem__(self, index: Array) -> R:
        return self.read(index)


def parallel(read: Callable[[Array], R], batches: Iterable[Tensor], workers: int) -> Iterator[R]:
    """Yields what ``read`` returns for each index, in order; each batch is read by one of some worker processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loader = DataLoader(
        _Reader(read),
        batch_size=None,
        sampler=(index.numpy() for index in batches),  # through pipes: tensors need shared memory, scarce in containers
        num_workers=min(workers, cores),
        collate_fn=_unchanged,
        worker_init_fn=_obey_parent,
        generator=torch.Generator(),  # with the global one, the results would depend on the number of workers
    )
    with warnings.catch_warnings():
        # Python >= 3.12 warns of forks with threads; the children only decode and take none of the parent's locks.
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        results = iter(loader)
    yield from results


def _unchanged(x: Any) -> Any:
    return x


def _obey_parent(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # reaches the whole group; the parent alone decides how a run ends
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # so that torch reports no death of a worker


def decode(file: Path | IO[bytes], shape: tuple[int, ...], fit: Callable[..., Array] | None = None) -> Array:
    """Returns an image file as uint8 (C, H, W): the largest central part with the aspect of H to W, resized with antialiasing.

    The image is taken as a viewer shows it (`as_shown`); ``fit`` may make other pixels of it. JPEG files are decoded at a reduced
    scale, at least twice the size of the result.
    """
    channels, height, width = shape
    with time_limit(DECODE_SECONDS), opened_image(file) as image:
        image.draft("L" if channels == 1 else "RGB", (2 * max(height, width),) * 2)
        return (fit or image_pixels)(image, shape)


def image_pixels(image: Any, shape: tuple[int, ...]) -> Array:
    """Returns a PIL image as uint8 (C, H, W), fitted to ``shape`` as `decode` does."""
    from PIL import Image, ImageOps

    channels, height, width = shape
    plain = as_shown(image)[0].convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR))
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def as_shown(image: Any) -> tuple[Any, list[str]]:
    """Decodes a PIL image and returns it in mode L or RGB, upright, as a viewer shows it, and what was done to it in words.

    As `as_stored`, but for numbers of more than 8 bits, which are shown by the range of this image. Of several frames the first
    is read.
    """
    from PIL import Image

    several = [FIRST_FRAME] if is_animated(image) else []
    plain, _, done = as_stored(image)
    if plain.mode not in ("L", "RGB"):
        values = np.asarray(plain)
        pixels, changes = Numbers.of([values]).shown(values)
        plain, done = Image.fromarray(pixels), [*done, *changes]
    return plain, [*several, *done]


def is_animated(image: Any) -> bool:
    """Returns whether an opened image has several frames that are not one image and its previews."""
    try:
        return bool(getattr(image, "is_animated", False)) and image.format != "MPO"
    except UNREADABLE:
        return False


def as_stored(image: Any) -> tuple[Any, Any, list[str]]:
    """Decodes a PIL image; returns it upright as a viewer shows it, and as its samples are stored, and what was done in words.

    What is shown has the mode L or RGB, or one of whole numbers (I) or floats (F) as they are. Colors are those of an embedded
    profile. Transparency is shown on white, or on black where white leaves nothing to see.
    """
    done = [UPPER_BITS] if ";16" in str(getattr(image, "tile", "")) and image.mode in ("LA", "RGB", "RGBA") else []
    orientation, stored = _loaded(image), image
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        stored = image.convert("RGBa").convert("RGBA") if image.mode == "RGBa" else image.convert("RGBA")
        stored = stored if stored.getchannel("A").getextrema()[0] < 255 else stored.convert("RGB")
    elif image.mode in ("1", "P", "RGBX"):
        stored = image.convert("L" if image.mode == "1" else "RGB")
    shown, converted = _in_srgb(stored, image.info.get("icc_profile"))
    if shown.mode == "RGBA":
        shown, changed = _on_ground(shown)
    elif shown.mode in ("L", "RGB") or shown.mode.startswith("I") or shown.mode == "F":
        changed = []
    else:
        shown, changed = shown.convert("RGB"), [f"{shown.mode} to RGB"]
    upright = _upright(shown, orientation)
    turned = [] if upright is shown else ["turned by its EXIF orientation"]
    return upright, upright if stored is shown else _upright(stored, orientation), [*done, *converted, *changed, *turned]


def _in_srgb(image: Any, profile: bytes | None) -> tuple[Any, list[str]]:
    """Returns an image in the colors of sRGB, of which its profile says how."""
    from PIL import ImageCms

    if not profile or image.mode not in ("L", "RGB", "RGBA", "CMYK"):
        return image, []
    try:
        transform = _srgb_transform(profile, image.mode)
    except (ImageCms.PyCMSError, OSError, ImportError):
        return image, ["color profile that cannot be used"]
    if transform is None:
        return image, []
    colors: Any = ImageCms.applyTransform(image, transform)
    return colors.convert("L") if image.mode == "L" else colors, ["color profile converted"]


@functools.lru_cache(maxsize=16)
def _srgb_transform(profile: bytes, mode: str) -> Any:
    """Returns what converts colors of a profile to sRGB; None where that changes hardly any, as the profile is that of sRGB."""
    from PIL import Image, ImageCms

    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    out = mode if mode == "RGBA" else "RGB"
    transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, out)
    if mode == "CMYK":
        return transform
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    colors = levels[:, None] if mode == "L" else np.stack(np.meshgrid(levels, levels, levels), -1).reshape(len(levels), -1, 3)
    plain = Image.fromarray(colors).convert(mode)
    after: Any = ImageCms.applyTransform(plain, transform)
    return transform if np.abs(np.asarray(after.convert(mode), dtype=np.int16) - np.asarray(plain)).max() > SAME_COLOR else None


def _on_ground(image: Any) -> tuple[Any, list[str]]:
    """Returns an RGBA image on white, or on black where all would be of nearly one color."""
    from PIL import Image

    white: Any = Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")
    lowest, highest = image.getchannel("A").getextrema()
    if highest - lowest <= PLAIN or any(high - low > PLAIN for low, high in white.getextrema()):
        return white, ["transparency shown on white"]
    black = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("RGB")
    return black, ["transparency shown on black, as all is white on white"]


@contextlib.contextmanager
def opened_image(file: Path | IO[bytes], ending: str | None = None) -> Iterator[Any]:
    """Opens an image of an allowed format and reads its header; Pillow's warnings and libtiff's lines are not shown."""
    from PIL import Image, UnidentifiedImageError

    ending = (file.suffix if isinstance(file, Path) else ending or "").lower()
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(_regular(file)) if isinstance(file, Path) else file
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if ending in (".tif", ".tiff") or data.read(4) in (b"II*\0", b"MM\0*"):
            stack.enter_context(_without_stderr())
        data.seek(0)
        _register_heif()
        formats = [name for name in (*FORMATS, *((BY_ENDING[ending],) if ending in BY_ENDING else ())) if name in Image.OPEN]
        try:
            image = stack.enter_context(Image.open(data, formats=formats))
        except Image.DecompressionBombError:
            raise ValueError(_too_large()) from None
        except UnidentifiedImageError:
            if ending in HEIF and "HEIF" not in Image.OPEN:
                raise ValueError("HEIC needs another package: pip install pillow-heif") from None
            raise
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(_too_large())
        yield image


@functools.cache
def _register_heif() -> None:
    """Lets Pillow know all its formats, and HEIF where another package reads it."""
    from PIL import Image

    Image.init()
    with contextlib.suppress(ImportError):
        import pillow_heif  # type: ignore[import-not-found]

        pillow_heif.register_heif_opener()


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Drops what C libraries print on stderr; errors of Python are raised as ever."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _regular(path: Path) -> IO[bytes]:
    """Opens a regular file; a pipe or a device, which could block or never end, is refused."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    number = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ValueError("not a regular file")
    return os.fdopen(number, "rb")


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises a ValueError when the block takes longer; without effect outside the main thread, and on Windows.

    The block is interrupted when a system call or a step of the decoder returns; Pillow decodes in steps of some KiB.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(number: int, frame: FrameType | None) -> None:
        raise ValueError(f"decoding took longer than {seconds:g} s")

    handler, start = signal.signal(signal.SIGALRM, expired), time.monotonic()
    pending, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if pending:  # somebody else's timer continues
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, pending - (time.monotonic() - start)), interval)


def _loaded(image: Any) -> Any:
    """Decodes an opened image in place and returns its EXIF orientation."""
    from PIL import Image

    try:
        image.load()
        return image.getexif().get(ORIENTATION)
    except Image.DecompressionBombError:
        raise ValueError(_too_large()) from None
    except (IndexError, TypeError, struct.error) as error:
        # Pillow reports these as a broken header when it opens a file, but not when it loads one.
        raise OSError(f"broken image data: {error}") from None


def _upright(image: Any, orientation: Any) -> Any:
    # Pillow's own function also writes the EXIF data back, and fails if other tags are broken.
    from PIL.Image import Transpose

    rotations = {2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE}
    rotations |= {6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90}
    return image.transpose(rotations[orientation]) if orientation in rotations else image


def header(file: Path | IO[bytes]) -> tuple[str, tuple[int, int]] | None:
    """Returns Pillow's name of the pixel format, and height and width, of an image file from its header; None if unreadable."""
    try:
        with time_limit(DECODE_SECONDS), opened_image(file) as image:
            return str(image.mode), (image.height, image.width)
    except UNREADABLE:
        return None


def _headers(folder: Path, names: Sequence[str]) -> list[tuple[str, tuple[int, int]]]:
    """Returns the headers of those of up to 256 evenly spaced images that can be read."""
    spaced = names[:: max(1, math.ceil(len(names) / 256))]
    headers = (header(folder / file_name(name)) for name in spaced)
    return [info for info in headers if info is not None]


def channels(modes: Iterable[str]) -> int:
    """Returns 1 if all of some pixel formats, by Pillow's names, are gray; else, or of none, 3."""
    gray = [mode in ("1", "L", "LA", "La", "F") or mode.startswith("I") for mode in modes]
    return 1 if gray and all(gray) else 3


def reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image in a known format"
    text = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    return "the file is cut off" if any(words in text for words in CUT_OFF) else text.splitlines()[0]


def _too_large() -> str:
    return f"more than {MAX_PIXELS:,} pixels; scale it down"


# Folders


def canvas(size: int | None, channels: int) -> tuple[int, tuple[int, int, int]]:
    """Returns the side that an encoder sees of image files, 64 by default, and the shape in which they are read to be cropped."""
    side = size or FOLDER_SIZE
    return side, (channels, math.ceil(side * 8 / 7), math.ceil(side * 8 / 7))


def image_files(folder: Path, names: Sequence[str], size: int | None, shape: tuple[int, ...] | None = None) -> Source:
    """Returns files as items: read as ``shape``, or to be cropped to squares of ``size``, gray if all are by header."""
    if shape is not None:
        return Source(ImageFiles(folder, names, shape))
    side, shape = canvas(size, channels(mode for mode, _ in _headers(folder, names)))
    return Source(ImageFiles(folder, names, shape), size=side)


def listing(path: Path, *, size: int | None = None, shape: tuple[int, ...] | None = None, whole: bool = False) -> Source:
    """Lists the images of a folder, or a single one; hidden files and folders are left out.

    Sub-folders ``train`` and ``test`` (or ``val``) are its parts; what lies next to them is not read, and is listed as skipped.
    The first folder below (a part of) it is an image's class; images next to such folders have the label -1. With fewer than two
    classes there are no labels. Names are sorted within each part. With ``whole``, where every image is wanted and no part is set
    apart, ``val`` is read in addition to ``test``. Size and shape are as of `image_files`.
    """
    parts = [part for part in ("test", "val") if path.is_dir() and (path / part).is_dir() and (path / "train").is_dir()]
    parts = parts if whole else parts[:1]
    names, skipped, _ = images_below(path, ["train", *parts] if parts else [""])
    for entry in _entries(path) if parts else ():
        if entry.name not in ("train", *parts) and (entry.is_dir() or _is_image(entry.name)):
            skipped.append(Skipped(written_name(entry.name), f"next to the parts train/ and {'/ and '.join(parts)}/"))
    expect(names, f"images ({' '.join(ENDINGS)}) in {path}", "none")
    inner = [name.split("/", 1)[1] for name in names] if parts else names
    folders = [name.split("/", 1)[0] if "/" in name else "" for name in inner]
    classes = sorted(set(folders) - {""})
    if all(map(str.isdecimal, classes)):
        classes.sort(key=int)
    opened = image_files(path if path.is_dir() else path.parent, list(map(written_name, names)), size, shape)
    opened.items.skipped = skipped
    if len(classes) >= 2:
        number = {"": -1} | {name: i for i, name in enumerate(classes)}
        opened.items.labels = torch.tensor([number[name] for name in folders])
    test = torch.tensor([not name.startswith("train/") for name in names]) if parts else None
    written = tuple(map(written_name, classes)) if len(classes) >= 2 else ()
    return Source(opened.items, written, test, f"the folder {'/ and '.join(parts)}/" if parts else "", opened.size)


def images_below(path: Path, parts: Sequence[str] = ("",)) -> tuple[list[str], list[Skipped], dict[str, int]]:
    """Returns the images of the parts of a folder, sorted within each part, the repeated links, and other files by ending."""
    if path.is_file():
        return [path.name], [], {}
    walk = _Walk(path)
    for part in parts:
        walk.visit(part, os.path.realpath(path / part))
    while walk.links:
        waiting, walk.links = walk.links, []
        for name in sorted(waiting):
            walk.visit(name, os.path.realpath(path / name))
    order = {part: i for i, part in enumerate(parts)}
    names = sorted(walk.names, key=lambda name: (order.get(name.split("/", 1)[0], 0), name))
    return names, walk.skipped, dict(sorted(walk.ignored.items(), key=lambda pair: -pair[1]))


@dataclass
class _Walk:
    """Visits each real folder and file below a root once; links are left for later, so that real paths come first."""

    root: Path
    names: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    ignored: dict[str, int] = field(default_factory=dict)  # files that are no images, by their ending

    def visit(self, name: str, real: str) -> None:
        """Lists the image or the folder ``name``, whose resolved path is ``real``."""
        waiting = [(name, real)]
        while waiting:
            name, real = waiting.pop()
            folder = os.path.isdir(real)  # noqa: PTH112
            if not folder and not _is_image(name, real):
                ending = os.path.splitext(name)[1].lower()  # noqa: PTH122
                self.ignored[ending] = self.ignored.get(ending, 0) + 1
                continue
            if real in self.seen:
                self.skipped.append(Skipped(written_name(name), f"a link to {written_name(real)}, which is listed already"))
                continue
            self.seen.add(real)
            if not folder:
                self.names.append(name)
                continue
            for entry in _entries(self.root / name):
                inside = f"{name}/{entry.name}" if name else entry.name
                if entry.is_symlink():
                    self.links.append(inside)
                else:
                    waiting.append((inside, os.path.join(real, entry.name)))  # noqa: PTH118


def _is_image(name: str, real: str = "") -> bool:
    """Returns whether a file is an image by its ending or, where it has none, by its first bytes."""
    if name.lower().endswith(ENDINGS):
        return True
    if not real or "." in os.path.basename(name):  # noqa: PTH119
        return False
    try:
        with _regular(Path(real)) as file:
            start = file.read(12)
    except (OSError, ValueError):
        return False
    return start.startswith(MARKS) or (start[:4] == b"RIFF" and start[8:] == b"WEBP") or start[4:8] == b"ftyp"


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yields the entries of a folder that are not hidden, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        text = f"expected a folder that can be listed, found {folder}: {error.strerror}; check its permissions"
        raise ValueError(text) from None
    yield from (entry for entry in listed if not entry.name.startswith("."))


def readable(files: DecodedImages, *, keep_pixels: bool, strict: bool, workers: int) -> tuple[Items, Tensor]:
    """Decodes every file or encoded image once; returns the readable ones, in memory or as they are, and their int64 index."""
    repeated = len(files.skipped)
    items: Items
    if keep_pixels:
        items, index = load(files, workers)
    else:
        index = torch.cat([index for index, _ in watched(files, workers)])
        items = files.subset(index)
    bad = files.skipped[repeated:]
    examples = ", ".join(f"{file.name} ({file.reason})" for file in bad[:3])
    expect(len(index), f"images in {getattr(files, 'folder', 'the source')}", f"{len(bad)} files that cannot be read: {examples}")
    if strict and bad:
        raise ValueError(f"{len(bad)} of {len(files)} images cannot be read: {examples}; remove them, or leave out `strict`")
    items.skipped = list(files.skipped)
    return items, index
