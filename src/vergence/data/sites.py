"""Sites of microscopy plates: which files belong to one, by a pattern of their names; a site is one item of C channels.

Shapes: a site (C, H, W) of numbers as they are stored; N sites.
"""

import io
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

import numpy as np

from vergence.data import images as decoding
from vergence.data.image_list import ImageList, LoadedImage, opened
from vergence.data.items import Skipped
from vergence.utils.checks import counted, expect
from vergence.utils.dtypes import Array

__all__ = ["PATTERNS", "Sites", "sites_of"]

WELL, SITE = r"(?:^|[/_ -])(?P<well>[A-Z]\d{1,2})", r"(?:s|f|site|field)?(?P<site>\d+)"
PATTERNS = {  # of the names that microscopes write; the first that fits all but a few names is taken
    "Operetta": r"r(?P<row>\d\d)c(?P<column>\d\d)f(?P<site>\d+)p(?P<plane>\d+)-?ch(?P<channel>\d+)",
    "Yokogawa": r"_(?P<well>[A-Z]{1,2}\d\d)_T\d+F(?P<site>\d+)L\d+A\d+Z(?P<plane>\d+)C(?P<channel>\d+)",
    "ImageXpress": r"(?:^|[/_ ])(?P<well>[A-Z]\d\d)(?:_s(?P<site>\d+))?_w(?P<channel>\d)(?!.*thumb)",
    "well, site and channel": rf"{WELL}[_-]{SITE}[_-](?:(?:w|ch|c|C)(?=\d))?(?P<channel>\w+?)\.",
    "well and site": rf"{WELL}[_-]{SITE}(?:\.ome)?\.",
}
METADATA = ("Metadata_Plate", "Metadata_Well", "Metadata_Site")
PARTS = ("plate", "well", "row", "column", "site", "channel", "plane")
ROWS = [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *(f"A{c}" for c in "ABCDEF")]
GIVEN = "as given"  # name of a pattern of the caller
SOME = 25  # sites that tell type and size of each channel
MISSED = 0.1  # share of the names that a pattern may leave out


@dataclass(frozen=True)
class Sites:
    """Sites of plates, in the order of plate, well and site.

    Attributes:
        images: The sites (N,), whose pixels are numbers (C, H, W) as they are stored; its columns are ``Metadata_Plate``,
            ``Metadata_Well`` and ``Metadata_Site``.
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
        self.images.columns["Metadata_Plate"] = [name] * len(self.images)
        return replace(self, keys={key: (name, *site[1:]) for key, site in self.keys.items()})

    @property
    def wells(self) -> list[tuple[str, str]]:
        """Plate and well of each site, (N,)."""
        columns = self.images.columns
        return list(zip(columns["Metadata_Plate"], columns["Metadata_Well"], strict=True))


@dataclass(frozen=True)
class _Reader:
    """Reads a site: a file of each channel, or one of all; all sites of a plate have the form of most."""

    images: ImageList
    contents: Sequence[tuple[Any, ...]]
    forms: tuple[tuple[np.dtype[Any], tuple[int, int]], ...] = ()  # type and size of each channel

    def __call__(self, i: int) -> LoadedImage:
        """Returns site i; a ValueError says in one line why it cannot be read, or how it differs from the others."""
        planes = self.planes(i)
        if len(planes) != len(self.forms):
            raise ValueError(f"{counted(len(planes), 'channel')}, where others have {len(self.forms)}")
        for k, (plane, (dtype, size)) in enumerate(zip(planes, self.forms, strict=True), 1):
            if plane.shape != size:
                raise ValueError(f"channel {k} of {_by(plane.shape)} pixels, where others have {_by(size)}")
            if plane.dtype != dtype:
                raise ValueError(f"channel {k} of {8 * plane.dtype.itemsize} bits, where others have {8 * dtype.itemsize}")
        x = np.stack(planes)
        return LoadedImage(x, x.shape[1:], digest=0)  # sites are known by their names; nothing compares their content

    def planes(self, i: int) -> list[Array]:
        """Returns the channels (H, W) of site i."""
        planes = list[Array]()
        for content in self.contents[i]:
            try:
                planes += stack(content, self.images.names[i])
            except decoding.UNREADABLE as error:
                where = f"channel {len(planes) + 1}: " if len(self.contents[i]) > 1 else ""
                raise ValueError(f"{where}{decoding.reason(error)}") from None
        return planes


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
            for k in range(getattr(image, "n_frames", 1)):
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
            if math.prod(file.series[0].shape) > decoding.MAX_PIXELS:
                raise ValueError(f"more than {decoding.MAX_PIXELS:,} pixels in all channels")
            x = np.squeeze(file.series[0].asarray())
    except Exception as error:  # tifffile and its codecs raise many kinds
        raise ValueError(decoding.reason(error)) from None
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
    name, expression = _pattern(images.names, pattern)
    found = [_parts(re.search(expression, one)) for one in images.names]
    plates = _plates(images.names, found, plate)
    of, skipped = _grouped(images, found, plates, name)
    every = sorted({channel for site in of.values() for channel in site}, key=lambda text: _number(text)[1:])
    lacking = {key: [c for c in every if c not in site] for key, site in of.items()}
    skipped += [Skipped(" ".join(key), f"no channel {' or '.join(less)}") for key, less in lacking.items() if less]
    keys = sorted((key for key, less in lacking.items() if not less), key=lambda key: (key[0], *map(_number, key[1:])))
    expect(keys, f"a site with all channels ({', '.join(every)})", "none", "give the files of all channels")
    planes = max(len(planes) for site in of.values() for planes in site.values())
    contents = [tuple(_middle(of[key][c]) for c in every) for key in keys]
    columns = dict(zip(METADATA, map(list, zip(*keys, strict=True)), strict=True))
    sites = ImageList([" ".join(key) for key in keys], contents, [*images.skipped, *skipped], images.ignored, images.folder)
    forms, names = _forms(_Reader(sites, contents), len(keys)), tuple(channels)
    sites.columns, sites.reader = columns, _Reader(sites, contents, forms)
    names = names or (tuple(every) if every != [""] else _ome_names(contents[0][0]) or tuple(map(str, range(1, len(forms) + 1))))
    expect(len(names) == len(forms), f"{len(forms)} names of channels", len(names), "name each")
    numbered = all(re.fullmatch(r"\D?\d+|", one) for one in every)
    fits = numbered or names == tuple(every) or not set(names) & set(every)
    expect(fits, f"names of channels in the order {', '.join(every)}", ", ".join(names), "leave `channels` out, or correct it")
    notes = (f"Of {planes} planes of a site the middle one is judged.",) if planes > 1 else ()
    return Sites(sites, names, (name, expression), {" ".join(key): key for key in of}, notes)


def _grouped(
    images: ImageList, found: Sequence[Mapping[str, str] | None], plates: Sequence[str], pattern: str
) -> tuple[dict[tuple[str, str, str], dict[str, dict[str, Any]]], list[Skipped]]:
    """Returns the contents of each site by channel and plane, and files that are left out; of equal ones the shortest is read."""
    of = dict[tuple[str, str, str], dict[str, dict[str, Any]]]()
    skipped, read, again = list[Skipped](), dict[tuple[str, ...], str](), list[tuple[str, str]]()
    for i in sorted(range(len(found)), key=lambda i: (len(images.names[i]), images.names[i])):
        one, parts = images.names[i], found[i]
        if parts is None:
            skipped.append(Skipped(one, f"its name does not fit the pattern {pattern}"))
            continue
        site = (plates[i], parts["well"], parts["site"])
        other = read.setdefault((*site, parts["channel"], parts["plane"]), one)
        if other is one:
            of.setdefault(site, defaultdict(dict))[parts["channel"]][parts["plane"]] = images.contents[i]
        else:
            again.append((one, other))
            skipped.append(Skipped(one, f"{other} is read as the same well, site and channel"))
    both = " and ".join(again[0]) if again else ""
    few = len(again) <= MISSED * len(found)
    expect(few, "one file for each well, site and channel", both, "give a pattern with the group channel")
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
    listed = ", ".join(PATTERNS)
    raise ValueError(
        f"expected names of sites ({listed}), found '{names[0]}'; give a pattern such as '(?P<well>[A-P]\\d\\d)_(?P<site>\\d)'"
    )


def _parts(match: re.Match[str] | None) -> dict[str, str] | None:
    """Returns well, site, channel, plane and plate of a name; well and numbers without zeros in front of the site."""
    if match is None:
        return None
    groups = match.groupdict()
    found: dict[str, str] = {part: groups.get(part) or "" for part in PARTS}
    if not found["well"]:
        row = found["row"]
        found["well"] = f"{ROWS[int(row) - 1] if row.isdecimal() else row}{found['column']}"
    found["well"] = well_name(found["well"])
    found["site"] = str(int(found["site"])) if found["site"].isdecimal() else found["site"] or "1"
    return found


def well_name(text: str) -> str:
    """Returns the name of a well with two digits.

    Example:
        >>> well_name("b3"), well_name("B-003"), well_name("left")
        ('B03', 'B03', 'left')
    """
    found = re.fullmatch(r"\s*([A-Za-z]{1,2})[-_ ]?0*(\d+)\s*", text)
    return f"{found[1].upper()}{int(found[2]):02d}" if found else text


def _plates(names: Sequence[str], found: Sequence[Mapping[str, str] | None], plate: str) -> list[str]:
    """Returns the plate of each file: of its name, else the first of the folders that differ."""
    folders = [PurePosixPath(name).parts[:-1] for name in names]
    depth = min((k for k in range(min(map(len, folders), default=0)) if len({f[k] for f in folders}) > 1), default=None)
    own = [plate if depth is None else folder[depth] for folder in folders]
    return [parts["plate"] if parts and parts["plate"] else one for parts, one in zip(found, own, strict=True)]


def _number(text: str) -> tuple[int, str, int]:
    """Returns a key by which texts with numbers are in the order of these."""
    letters = text.rstrip("0123456789")
    return (len(letters), letters, int(text[len(letters) :] or 0))


def _middle(planes: Mapping[str, Any]) -> Any:
    ordered = sorted(planes, key=_number)
    return planes[ordered[len(ordered) // 2]]


def _forms(reader: _Reader, n: int) -> tuple[tuple[np.dtype[Any], tuple[int, int]], ...]:
    """Returns type and size of the channels of most of some sites."""
    seen: Counter[Any] = Counter()
    reasons = []
    for i in np.unique(np.linspace(0, n - 1, SOME).astype(int)).tolist():
        try:
            seen[tuple((plane.dtype, plane.shape) for plane in reader.planes(i))] += 1
        except ValueError as error:
            reasons.append(str(error))
    expect(seen, "sites that can be read", f"none of {SOME}" if not reasons else reasons[0], "give others")
    return tuple(seen.most_common(1)[0][0])


def _ome_names(content: Any) -> tuple[str, ...]:
    """Returns the names of the channels in the OME data of a TIFF; none where there are none."""
    content = content() if callable(content) else content
    try:
        with opened(content, "a.tif") as image:
            text = image.tag_v2.get(270, "") if hasattr(image, "tag_v2") else ""
        root = ElementTree.fromstring(text) if "<OME" in text else None
    except (*decoding.UNREADABLE, ElementTree.ParseError):
        return ()
    names = [] if root is None else [e.get("Name") or "" for e in root.iter() if e.tag.endswith("}Channel")]
    return tuple(names) if names and all(names) and len(set(names)) == len(names) else ()
