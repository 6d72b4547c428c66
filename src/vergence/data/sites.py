"""Sites of microscopy plates: which files belong to one, by a pattern of their names; a site is one item of C channels.

Shapes: a site (C, H, W) of numbers as they are stored; N sites.
"""

import contextlib
import io
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

import numpy as np

from vergence.data import images as decoding
from vergence.data.image_list import ImageList, LoadedImage, opened
from vergence.data.items import Skipped
from vergence.utils.checks import counted, expect, refuse
from vergence.utils.dtypes import Array

__all__ = ["PATTERNS", "Sites", "sites_of"]

WELL, SITE = r"(?:^|[/_ -])(?P<well>[A-Z]\d{1,2})(?:[_-]|/(?=[sf]))", r"(?:s|f|site|field)?(?P<site>\d+)"
PATTERNS = {  # of the names that microscopes write; the first that fits all but a few names is taken
    "Operetta": r"r(?P<row>\d\d)c(?P<column>\d\d)f(?P<site>\d+)p(?P<plane>\d+)-?ch(?P<channel>\d+)",
    "Yokogawa": r"_(?P<well>[A-Z]{1,2}\d\d)_T\d+F(?P<site>\d+)L\d+A\d+Z(?P<plane>\d+)C(?P<channel>\d+)",
    "IN Cell": r"(?<![A-Za-z])(?P<row>[A-Z]{1,2}) - (?P<column>\d+)\((?:fld (?P<site>\d+) )?"
    r"wv (?P<channel>.+?)(?= - | z \d|\))(?:[^)]* z (?P<plane>\d+))?",
    "ImageXpress": r"(?:^|[/_ ])(?P<well>[A-Z]\d\d)(?:[/_]s(?P<site>\d+))?[/_]w(?P<channel>\d)",
    "well, site and channel": rf"{WELL}{SITE}[/_-](?:(?:w|ch|c|C)(?=\d))?(?P<channel>\w+?)\.",
    "channel as folder": rf"(?:^|/)(?:w|[cC]h|[cC]hannel)[_ ]?(?P<channel>\d+)(?=/).*?{WELL}{SITE}(?:\.ome)?\.",
    "well and site": rf"{WELL}{SITE}(?:\.ome)?\.",
}
BY_ROW, BY_WELL = r"r(?P<row>\d+)c(?P<column>\d+)f(?P<site>\d+)", r"(?P<well>[A-P]\d\d)_(?P<site>\d)"  # examples of patterns
METADATA = ("Metadata_Plate", "Metadata_Well", "Metadata_Site")
PARTS = ("plate", "well", "row", "column", "site", "channel", "plane")
COLUMNS, ROWS = 48, [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *(f"A{c}" for c in "ABCDEF")]
GIVEN = "as given"  # name of a pattern of the caller
SOME = 25  # sites that tell type and size of each channel
FARTHEST, DIMMEST = 1_000.0, 0.01  # of a range: where pixels are cut off, and least that floats in [0, 1] fill
MISSED = 0.1  # share of the names that a pattern may leave out
logging.getLogger("tifffile").addHandler(logging.NullHandler())  # what it logs is raised, too


@dataclass(frozen=True)
class Sites:
    """Sites of plates, in the order of plate, well and site.

    Attributes:
        images: The sites (N,), whose pixels are numbers (C, H, W): of 8 or 16 bits as they are stored, others divided by a
            range of all sites. Its columns are ``Metadata_Plate``, ``Metadata_Well`` and ``Metadata_Site``.
        channels: Names of the C channels.
        pattern: Name of the pattern, and the pattern.
        keys: Plate, well and number of each site by its name, of those that lack a channel, too.
        notes: What was chosen in reading, in sentences.
    """

    images: ImageList
    channels: tuple[str, ...]
    pattern: tuple[str, str]
    keys: Mapping[str, tuple[str, str, str]]
    notes: tuple[str, ...] = ()

    def of_plate(self, name: str) -> "Sites":
        """Returns the same sites, all of a plate of another name."""
        of, own = {old: (name, *site[1:]) for old, site in self.keys.items()}, self.images
        names = [" ".join(of[one]) for one in own.names]
        skipped = [replace(one, name=" ".join(of.get(one.name, (one.name,)))) for one in own.skipped]
        images = replace(own, names=names, skipped=skipped, columns=own.columns | {METADATA[0]: [name] * len(own)})
        return replace(self, images=images, keys={" ".join(site): site for site in of.values()})

    @property
    def wells(self) -> list[tuple[str, str]]:
        """Plate and well of each site, (N,)."""
        return list(zip(self.images.columns[METADATA[0]], self.images.columns[METADATA[1]], strict=True))


@dataclass(frozen=True)
class _Reader:
    """Reads a site: a file of each channel, or one of all; all sites of a plate have the form of most."""

    files: Sequence[Sequence[tuple[str, Any]]]  # of each site, name and content
    forms: tuple[tuple[np.dtype[Any], tuple[int, int]], ...] = ()  # type and size of each channel
    top: float = 0.0  # what pixels are divided by; 0 for none
    order: Sequence[str] = ()  # of channels, by their names in OME data

    def __call__(self, i: int) -> LoadedImage:
        """Returns site i; a ValueError says in one line why it cannot be read, or how it differs from the others."""
        planes = self.planes(i)
        if len(planes) != len(self.forms):
            raise ValueError(f"{counted(len(planes), 'channel')}, where others have {len(self.forms)}")
        for k, (plane, (dtype, size)) in enumerate(zip(planes, self.forms, strict=True), 1):
            if plane.shape != size:
                raise ValueError(f"channel {k} of {_by(plane.shape)} pixels, where others have {_by(size)}")
            if plane.dtype != dtype:
                raise ValueError(f"channel {k} of {_kind(plane.dtype)} pixels, where others have {_kind(dtype)}")
            if not np.isfinite(plane).all():
                raise ValueError(f"channel {k} has a pixel that is not a number (NaN) or infinite")
        own = _ome_names(self.files[i][0][1], len(planes)) if self.order else []
        if own and sorted(own) != sorted(self.order):
            raise ValueError(f"channels {', '.join(own)}, where others have {', '.join(self.order)}")
        x = np.stack([planes[own.index(name)] for name in self.order] if own else planes)
        x = (np.clip(x, -FARTHEST * self.top, FARTHEST * self.top) / self.top).astype(np.float32) if self.top else x
        return LoadedImage(x, x.shape[1:], digest=0)  # sites are known by their names; nothing compares their content

    def planes(self, i: int) -> list[Array]:
        """Returns the channels (H, W) of site i."""
        planes, single = list[Array](), len(self.files[i]) > 1
        for name, content in self.files[i]:
            try:
                bands = stack(content, name)
                if single and len(bands) > 1:
                    raise ValueError(f"{len(bands)} channels in {name}, where one is expected")
                planes += [x.astype(x.dtype.newbyteorder("="), copy=False) for x in bands]
            except decoding.UNREADABLE as error:
                where = f"channel {len(planes) + 1}: " if single else ""
                raise ValueError(f"{where}{decoding.reason(error)}") from None
        return planes


def _kind(dtype: np.dtype[Any]) -> str:
    return {"u": f"{8 * dtype.itemsize}-bit", "i": "signed or 32-bit", "f": "float"}.get(dtype.kind, str(dtype))


def _by(size: Sequence[int]) -> str:
    return " x ".join(f"{side:,}" for side in size)


def stack(content: Any, name: str) -> list[Array]:
    """Returns the channels (H, W) of an image as they are stored; what Pillow cannot read, tifffile may."""
    content = content() if callable(content) else content
    if isinstance(content, np.ndarray):
        return list(content if content.ndim == 3 else content[None])
    try:
        with opened(content, name) as image:
            planes = []
            for k in _frames(content, getattr(image, "n_frames", 1)):
                if k:
                    image.seek(k)
                planes += [np.asarray(band) for band in image.split()]
            return planes
    except decoding.UNREADABLE:
        content = content if isinstance(content, bytes) else content.read_bytes()
        if not content.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
            raise
        return _by_tifffile(content)


def _by_tifffile(content: bytes) -> list[Array]:
    try:
        import tifffile  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ValueError("a kind of TIFF that needs tifffile: install vergence[microscopy]") from None
    try:
        with tifffile.TiffFile(io.BytesIO(content)) as file:
            n, frames = len(file.pages), _frames(content, len(file.pages))
            if math.prod(file.series[0].shape) * len(frames) > n * decoding.MAX_PIXELS:
                raise ValueError(f"more than {decoding.MAX_PIXELS:,} pixels in all channels")
            x = np.squeeze(file.series[0].asarray() if len(frames) == n else [file.pages[k].asarray() for k in frames])
    except Exception as error:  # tifffile and its codecs raise many kinds
        raise ValueError("the file is cut off" if isinstance(error, IndexError) else decoding.reason(error)) from None
    if x.ndim not in (2, 3):
        raise ValueError(f"{x.ndim} dimensions, where a channel, a row and a column are read")
    return list(x[None] if x.ndim == 2 else np.moveaxis(x, -1, 0) if x.shape[-1] < min(x.shape[:2]) else x)


def sites_of(images: ImageList, *, pattern: str | None = None, channels: Sequence[str] = (), plate: str = "plate") -> Sites:
    """Returns the sites of a plate or of several, of the images of a folder, tar or table; nothing is decoded but a sample.

    Args:
        images: Files, of which each holds one channel or all channels of a site.
        pattern: Regular expression that finds the parts of a name: groups ``well`` (or ``row`` and ``column``), ``site``,
            ``channel`` (none where a file holds all) and perhaps ``plate`` and ``plane``. By default one of `PATTERNS`.
        channels: Names of the channels, in the order of their numbers; by default those in the names, or in the OME data.
        plate: Name of the plate where all files are of one.

    Raises:
        ValueError: No pattern fits, or no site has all channels.

    Example:
        >>> names = [f"B03_s{s}_w{w}.tif" for s in (1, 2) for w in (1, 2)]
        >>> found = sites_of(ImageList(names, [np.zeros((4, 4), dtype=np.uint16)] * 4))
        >>> found.images.names, found.channels, found.pattern[0]
        (['plate B03 1', 'plate B03 2'], ('1', '2'), 'ImageXpress')
    """
    full = [i for i, one in enumerate(images.names) if "_thumb" not in one.lower()] or range(len(images))
    thumbnails = len(images) - len(full)
    images = replace(images, names=[images.names[i] for i in full], contents=[images.contents[i] for i in full])
    name, expression = _pattern(images.names, pattern)
    found = [_parts(re.search(expression, one)) for one in images.names]
    of, skipped = _grouped(images, found, _plates(images.names, found, plate), name)
    number = Counter(channel for site in of.values() for channel in site)
    every = sorted(number, key=lambda text: _number(text)[1:])
    every = [c for c in every if 2 * number[c] > len(of)] or every
    left = [(file, c) for site in of.values() for c in site if c not in every for file, _ in site[c].values()]
    skipped += [Skipped(file, f"channel {c} is not judged") for file, c in left]
    lacking = {key: [c for c in every if c not in site] for key, site in of.items()}
    skipped += [Skipped(" ".join(key), f"no channel {' or '.join(less)}") for key, less in lacking.items() if less]
    keys = sorted((key for key, less in lacking.items() if not less), key=lambda key: (key[0], *map(_number, key[1:])))
    why = ": ".join(["none", *(one.reason for one in skipped[-1:])])
    expect(keys, f"a site with all channels ({', '.join(every)})", why, "give the files of all channels")
    contents = [tuple(_middle(of[key][c]) for c in every) for key in keys]
    sites = ImageList([" ".join(key) for key in keys], contents, [*images.skipped, *skipped], images.ignored, images.folder)
    forms, top = _forms(_Reader(contents), len(keys))
    sites.columns = dict(zip(METADATA, map(list, zip(*keys, strict=True)), strict=True))
    order = _ome_names(contents[0][0][1], len(forms)) if every == [""] else []
    sites.reader = _Reader(contents, forms, top, order)
    own = order or ([str(k + 1) for k in range(len(forms))] if every == [""] else every)
    names = tuple(channels or own)
    expect(len(names) == len({*names}) == len(forms), f"{len(forms)} different names of channels", ", ".join(names), "name each")
    given, known = ([name.lstrip("0") for name in some] for some in (names, own))
    fits = given == known or not {*given} & {*known}
    expect(fits, f"names of channels in the order {', '.join(own)}", ", ".join(names), "leave `channels` out, or correct it")
    c, z, t = (int(_pixels(contents[0][0][1]).get(f"Size{axis}", 0)) for axis in "CZT")
    z, t = (z, t) if len(forms) == len(every) * c else (1, 1)
    planes = max(z, *(len(planes) for site in of.values() for planes in site.values()))
    notes = [f"Channel {c} is not judged; sites that have it: {number[c]:,} of {len(of):,}." for c in number if c not in every]
    notes += [f"Of {planes} planes of a site the middle one is judged."] if planes > 1 else []
    notes += [f"Of {t} times of a site the first is judged."] if t > 1 else []
    notes += [f"{counted(thumbnails, 'thumbnail')} left out."] if thumbnails else []
    notes += [f"Values of {_kind(forms[0][0])} pixels are divided by {top:,.6g}."] if top not in (0, 1) else []
    return Sites(sites, names, (name, expression), {" ".join(key): key for key in of}, tuple(notes))


def _grouped(
    images: ImageList, found: Sequence[Mapping[str, str] | None], plates: Sequence[str], pattern: str
) -> tuple[dict[tuple[str, str, str], dict[str, dict[str, Any]]], list[Skipped]]:
    """Returns the contents of each site by channel and plane, and files that are left out; of equal ones the shortest is read."""
    of = dict[tuple[str, str, str], dict[str, dict[str, Any]]]()
    skipped, read, again = list[Skipped](), dict[tuple[str, ...], str](), list[tuple[str, str]]()
    for i in sorted(range(len(found)), key=lambda i: (len(images.names[i]), images.names[i])):
        one, parts = images.names[i], found[i]
        if parts is None or not parts["well"]:
            beyond = parts and f"no plate has row {parts['row']}, column {parts['column']}"
            skipped.append(Skipped(one, beyond or f"its name does not fit the pattern {pattern}"))
            continue
        site = (plates[i], parts["well"], parts["site"])
        other = read.setdefault((*site, parts["channel"], parts["plane"]), one)
        if other is one:
            of.setdefault(site, defaultdict(dict))[parts["channel"]][parts["plane"]] = (one, images.contents[i])
        else:
            again.append((one, other))
            skipped.append(Skipped(one, f"{other} is read as the same well, site and channel"))
    both = " and ".join(again[0]) if again else ""
    few, told = len(again) <= MISSED * len(found), any(parts and parts["channel"] for parts in found)
    advice = "give the files of one time, or another pattern" if told else "give a pattern with the group channel"
    expect(few, "one file for each well, site and channel", both, advice)
    return of, skipped


def _pattern(names: Sequence[str], given: str | None) -> tuple[str, str]:
    """Returns the name of a pattern that fits the names, and the pattern."""
    if given is not None:
        try:
            groups = set(re.compile(given).groupindex)
        except re.error as error:
            raise ValueError(f"expected a regular expression as the pattern, found '{given}': {error}") from None
        known = groups <= set(PARTS) and ("well" in groups or {"row", "column"} <= groups)
        expect(known, f"a pattern with the group well, of the groups {', '.join(PARTS)}", ", ".join(sorted(groups)) or "no group")
        expect(any(re.search(given, one) for one in names), f"names that fit '{given}'", f"'{names[0]}'", "correct the pattern")
        return GIVEN, given
    for name, pattern in PATTERNS.items():
        if sum(re.search(pattern, one) is not None for one in names) >= (1 - MISSED) * len(names):
            return name, pattern
    such = BY_ROW if re.search(r"r\d+c\d+", names[0]) else BY_WELL
    refuse(f"names of sites ({', '.join(PATTERNS)})", f"'{names[0]}'", f"give a pattern such as '{such}'")


def _parts(match: re.Match[str] | None) -> dict[str, str] | None:
    """Returns well, site, channel, plane and plate of a name; well and numbers without zeros in front of the site."""
    if match is None:
        return None
    groups = match.groupdict()
    found: dict[str, str] = {part: groups.get(part) or "" for part in PARTS}
    if not found["well"]:
        row, column = found["row"], found["column"]
        inside = all(0 < int(x) <= most for x, most in ((row, len(ROWS)), (column, COLUMNS)) if x.isdecimal())
        found["well"] = f"{row_name(row)}{column}" if inside else ""
    found["well"] = well_name(found["well"])
    found["site"] = str(int(found["site"])) if found["site"].isdecimal() else found["site"] or "1"
    return found


def row_name(text: str) -> str:
    """Returns the letters of a row of a plate, of its number, too; other texts as they are."""
    return ROWS[int(text) - 1] if text.isdecimal() and 0 < int(text) <= len(ROWS) else text


def well_name(text: str) -> str:
    """Returns the name of a well with two digits.

    Example:
        >>> well_name("b3"), well_name("B-003"), well_name("left")
        ('B03', 'B03', 'left')
    """
    found = re.fullmatch(r"\s*([A-Za-z]{1,2})[-_ ]?0*(\d+)\s*", text)
    return f"{found[1].upper()}{int(found[2]):02d}" if found else text


def _plates(names: Sequence[str], found: Sequence[Mapping[str, str] | None], plate: str) -> list[str]:
    """Returns the plate of each file: of its name, else the first of the folders that differ and tell no other part."""
    folders = [PurePosixPath(name).parts[:-1] for name in names]
    some = [(folder, parts) for folder, parts in zip(folders, found, strict=True) if parts]
    for k in range(min((len(folder) for folder, _ in some), default=0)):
        differ = len({folder[k] for folder, _ in some})
        pairs = [{(folder[k], parts[part]) for folder, parts in some} for part in PARTS[1:]]
        if differ > 1 and not any(len(each) == differ and len({value for _, value in each}) > 1 for each in pairs):
            return [parts["plate"] or folder[k] if parts else plate for folder, parts in zip(folders, found, strict=True)]
    return [parts["plate"] or plate if parts else plate for parts in found]


def _number(text: str) -> tuple[int, str, int]:
    """Returns a key by which texts with numbers are in the order of these."""
    letters = text.rstrip("0123456789")
    return (len(letters), letters, int(text[len(letters) :] or 0))


def _middle(planes: Mapping[str, Any]) -> Any:
    ordered = sorted(planes, key=_number)
    return planes[ordered[len(ordered) // 2]]


def _forms(reader: _Reader, n: int) -> tuple[tuple[tuple[np.dtype[Any], tuple[int, int]], ...], float]:
    """Returns type and size of the channels of most of some sites, and what their pixels are divided by, 0 for none."""
    seen, reasons = defaultdict[Any, list[float]](list), []
    for i in np.unique(np.linspace(0, n - 1, SOME).astype(int)).tolist():
        try:
            planes = reader.planes(i)
            largest = max(float(x.max(initial=0, where=np.isfinite(x))) for x in planes)
            seen[tuple((x.dtype, x.shape) for x in planes)].append(largest)
        except ValueError as error:
            reasons.append(str(error))
    expect(seen, "sites that can be read", f"none of {SOME}" if not reasons else reasons[0], "give others")
    forms = max(seen, key=lambda form: len(seen[form]))
    dtype, top = np.result_type(*(dtype for dtype, _ in forms)), float(np.median(seen[forms]))
    if dtype.kind not in "ui":
        return forms, 1.0 if DIMMEST <= top <= 1 or top == 0 else top
    return forms, 0.0 if dtype in (np.uint8, np.uint16) else max(top, float(np.iinfo(np.uint16).max))


def _pixels(content: Any) -> ElementTree.Element:
    """Returns what the OME data of a TIFF say of its pixels; an empty element without such data."""
    found = None
    with contextlib.suppress(*decoding.UNREADABLE):
        content = content() if callable(content) else content
        content = content.read_bytes() if isinstance(content, Path) else content
        text = re.search(rb"<OME\b.*?</OME>", content, re.DOTALL) if isinstance(content, bytes) else None
        found = ElementTree.fromstring(text[0]).find("{*}Image/{*}Pixels") if text else None
    return ElementTree.Element("Pixels") if found is None else found


def _ome_names(content: Any, n: int) -> list[str]:
    """Returns the names of n channels in the OME data of a TIFF; none where they are not n different ones."""
    names = [channel.get("Name") or "" for channel in _pixels(content).findall("{*}Channel")]
    return names if len({*names} - {""}) == len(names) == n else []


def _frames(content: Any, n: int) -> list[int]:
    """Returns which of n frames are the channels: by the OME data those of the middle plane and the first time, else all."""
    pixels = _pixels(content if n > 1 else None)
    axes = pixels.get("DimensionOrder", "XYCZT")[:1:-1]  # what changes last is first
    sizes = [int(pixels.get(f"Size{axis}", 0)) for axis in axes]
    if math.prod(sizes) != n:
        return list(range(n))
    t, z, c = map(axes.index, "TZC")
    return list(np.arange(n).reshape(sizes).transpose(t, z, c)[0, sizes[z] // 2].tolist())
