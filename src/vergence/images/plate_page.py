"""The page of `check_plate`: plates as heatmaps of wells, and their sites, to filter, sort, open and mark.

A tile shows the channels of a site in hues of their own; an opened site each channel apart, in one range per plate and channel.
"""

import itertools
import math
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vergence.data.image_list import LoadedImage
from vergence.data.sites import METADATA, ROWS
from vergence.images.page import LARGE, opacity
from vergence.images.plate_scores import rows_and_columns
from vergence.images.result import Heatmaps
from vergence.images.site_quality import blocks
from vergence.report.charts import shades
from vergence.report.rendering import workbench
from vergence.report.tiles import image_of, rounded, sheets, side_of, tile, webp
from vergence.utils import terminal
from vergence.utils.checks import counted
from vergence.utils.digests import content_digest
from vergence.utils.dtypes import Array, Bytes, Floats, Ints, Singles

MOST, TOLD = 20_000, 4  # sites on the page; columns of the plate map that it shows
BYTES, LONGEST = 3e6, 900  # of the sites that are kept large, in all, and the longer side of each in pixels
KEYS = {"score": "score", "p": "p_value", "q": "q_value"}  # of the page, and columns
MEANING = [
    "Each site is compared with the control sites of its plate, by measurements of each channel: focus, saturation, background, "
    "evenness of light, debris, bleed and shift between channels, and whether it is empty.",
    "What cells explain, by their number and brightness, and what row, column and rim of the plate explain, is subtracted first: "
    "a treatment that changes cells is not an error.",
    "The rate holds for normal sites that are like those of the control wells. A strong treatment can still look like an error: "
    "open flagged sites of one compound before you drop them.",
    "An opened site shows each channel in the range of the control sites: 1 % of their pixels are black, 0.2 % white. Red marks "
    "parts of a channel that differ from the same part of control sites in sharpness, background or brightest light. Frames mark "
    "what differs more than any part of 95 % of the control sites. Few cells, as after a strong treatment, can mark a channel.",
    "A reason names the error that fits best, and no channel if most channels have it, as an object in all of them.",
    "The p-value of a site is the share of control sites that are at least as anomalous, by fits that have not seen their well. "
    "The q-value is the least false-discovery rate at which the site is flagged. "
    "Where few sites are flagged, a p-value is at least that of the tail of all sites.",
    "Your marks count when you save them and repeat vergence check with --confirm confirmed.csv: anomalies are flagged, normal "
    "sites are not, and control sites marked as anomalies are compared with nothing.",
]
FAINT, WIDE = 0.7, 24  # share of the framed value from which a heatmap is tinted; wells in a line, of those without a place
Found = Any  # a `vergence.images.plates.PlateResult`, whose module imports this one


def write_plate(path: Path, found: Found) -> Path:
    """Writes the page in one step; it loads nothing from elsewhere, and every text in it is escaped. Returns its path."""
    score = np.asarray(found.column("score"))
    rows = np.sort(np.argsort(-score, kind="stable")[:MOST])
    sentences = found.sentences
    return workbench(
        path,
        _data(found, rows),
        title=f"Sites of {', '.join(found.summary['plates'][:3])}",
        sentences=sentences,
        input=f"{counted(len(score), 'site')}, {counted(len(found.source.channels), 'channel')}",
        sampled=f"The {len(rows):,} most anomalous are on this page." if len(rows) < len(score) else "",
        skipped=list(zip(found.skipped["site"], found.skipped["reason"], strict=True)),
        meaning=MEANING,
        plates=[_wells(found, name) for name in found.summary["plates"]],
    )


def _wells(found: Found, plate: str) -> dict[str, Any]:
    """Returns the wells of a plate as a table: of each its name, its sites, how many are flagged, and its color."""
    wells, control = found.sites["Metadata_Well"], np.asarray(found.sites["Metadata_control"])
    own = [i for i, name in enumerate(found.sites["Metadata_Plate"]) if name == plate]
    flag, scores, members = np.asarray(found.column("flag")), np.asarray(found.column("score")), dict[str, list[int]]()
    for i in own:
        members.setdefault(wells[i], []).append(i)
    at = rows_and_columns(list(members))
    at = at if at.any() else np.stack(np.divmod(np.arange(len(members)), WIDE), 1)  # wells without a place, in their order
    place = dict(zip(members, at.tolist(), strict=True))
    score = np.log1p([scores[rows].max() - scores.min() for rows in members.values()]).tolist()
    color = dict(zip(members, shades(score, *np.quantile(score, (0.05, 0.98)).tolist()), strict=True))
    told = _treatments(found, [rows[0] for rows in members.values()], 0 * flag)
    given = {well: f"{well} ({text})" if text else well for well, text in zip(members, told, strict=True)}
    cells = {
        tuple(place[well]): {
            "name": given[well], "search": f"{plate} {well}", "is_control": bool(control[rows[0]]), "color": color[well],
            "flagged": int(flag[rows].sum()), "sites": len(rows),
        }
        for well, rows in members.items()
    }  # fmt: skip
    down, across = (1 + max(at[k] for at in cells) for k in (0, 1))
    lines = [[cells.get((r, c)) for c in range(across)] for r in range(down)]
    return {"name": plate, "columns": list(range(1, across + 1)), "rows": list(zip(ROWS, lines, strict=False))}


def _data(found: Found, rows: Ints) -> dict[str, Any]:
    """Returns the columns of the page."""
    some, every = rows.tolist(), found.names
    names, reasons = [every[i] for i in some], [found.column("reason")[i] for i in some]
    of_site = [re.split(" in | between ", reason)[0] for reason in reasons]  # without the channel
    flag, order = np.asarray(found.column("flag"))[rows], np.argsort(-np.asarray(found.column("score"))[rows], kind="stable")
    kinds = sorted(set(filter(None, of_site)))
    digest = content_digest(chr(0).join(names).encode("utf-8", "replace")).hex()
    return {
        "n": len(rows), "total": len(found.sites), "noun": "site", "judged": True, "ranked": True, "fixed": True,
        "rate": "calibrated", "fdr": found.summary["fdr"], "key": f"vergence plate {digest}", "name": names, "reason": reasons,
        "start": "flag" if (flag > np.asarray(found.sites["Metadata_control"])[rows]).any() else "all",
        "flag": flag.astype(int).tolist(), "propertyNames": kinds, "shades": shades(range(5), 0, 4),
        "properties": [1 << kinds.index(kind) if kind else 0 for kind in of_site],
        "most": int(min(len(rows), max(50, 3 * flag.sum()))),
        "about": _treatments(found, some, found.column("flag")),
        "marks": [(k, of) for k, name in enumerate(names) if (of := found.summary["marks"].get(name))],
        **{key: rounded(np.asarray(found.column(of))[rows], 6) for key, of in KEYS.items()},
        **_images(found, some, order[:LARGE].tolist()),
    }  # fmt: skip


def _treatments(found: Found, rows: Sequence[int], flag: Any) -> list[str]:
    """Returns what the plate map says of some sites, and of control sites that they stand apart, by the flags of all."""
    control = found.sites["Metadata_control"]
    given = {name.removeprefix("Metadata_"): x for name, x in found.sites.columns.items() if name.startswith("Metadata_")}
    shown = {name: x for name, x in given.items() if f"Metadata_{name}" not in (*METADATA, "Metadata_control")}
    texts = []
    for i in rows:
        named = [f"{name} {x[i]}" for name, x in shown.items() if x[i] != "" and x[i] == x[i]]  # NaN where there is none
        apart = ", stands apart from the others, flagged without a rate" if control[i] and flag[i] else ""
        texts.append(("control well: " if control[i] else "") + ", ".join(named[:TOLD]) + apart)
    return texts


def _images(found: Found, rows: Sequence[int], large: Sequence[int]) -> dict[str, Any]:
    """Returns a tile of each site; of some a larger image of its channels, with frames and heatmap."""
    side = side_of(len(rows))
    tiles = np.zeros((len(rows), side, side, 3), dtype=np.uint8)
    shown = [found.shown(i) for i in range(len(found.summary["plates"]))]
    plates = [found.summary["plates"].index(found.sites["Metadata_Plate"][i]) for i in rows]
    for k, i in enumerate(rows):
        tiles[k] = tile(image_of(in_bytes(found.small.read(i), shown[plates[k]])), side)
    opened = dict[int, str]()
    with terminal.bar("page", len(large), "sites", late=True) as advance:
        for p, ranges in enumerate(shown):
            at = {int(found.index[rows[k]]): k for k in large if plates[k] == p}
            for i, image in found.source.images.map(_Opened(ranges), list(at), found.workers):
                opened[at[i]] = image
                advance()
    spent = itertools.accumulate(len(opened.get(k, "")) for k in large)
    big = {k: opened[k] for k, total in zip(large, spent, strict=True) if k in opened and total <= BYTES}
    frames = {k: _frames(found.heat[rows[k]], found.threshold) for k in big}
    units = {k: (panels(found.heat[rows[k]], 0) / max(found.threshold, 1e-9) - FAINT) / (1 - FAINT) for k in big}
    return {
        **sheets(tiles), "large": big, "frames": {k: boxes for k, boxes in frames.items() if boxes},
        "heat": {k: b64encode(opacity(heat).tobytes()).decode() for k, heat in units.items()},
        "heatWide": across(found.heat.shape[1]) * found.heat.shape[2],
        "panels": [[name, *corner] for name, corner in zip(found.source.channels, corners(found.heat.shape[1]), strict=True)],
    }  # fmt: skip


@dataclass(frozen=True)
class _Opened:
    """A site as a WebP of its channels next to each other, by the ranges (C, 2) of its plate."""

    ranges: Floats

    def __call__(self, image: LoadedImage) -> str:
        """Returns the image of a site."""
        step = max(1, math.ceil(max(image.size) * across(len(self.ranges)) / LONGEST))
        x = np.stack([blocks(plane.astype(np.float32), step) for plane in image.pixels])
        return webp(image_of(panels(in_bytes(x, self.ranges), 0)[None]), 80)


def in_bytes(x: Array, ranges: Floats) -> Bytes:
    """Returns channels (C, H, W) as bytes by the numbers that are black and white in each, (C, 2)."""
    low, high = (ranges[:, k, None, None] for k in (0, 1))
    return np.asarray(np.clip(256 * (x - low) / np.maximum(high - low, 1e-9), 0, 255), dtype=np.uint8)


def across(channels: int) -> int:
    """Returns the number of channels next to each other."""
    return math.ceil(math.sqrt(channels))


def panels(x: Array, fill: float) -> Array:
    """Returns channels (C, H, W) in rows next to each other.

    Example:
        >>> panels(np.ones((5, 2, 4)), 0).shape
        (4, 12)
    """
    wide = across(len(x))
    high = -(-len(x) // wide)
    full = np.concatenate([x, np.full((wide * high - len(x), *x.shape[1:]), fill, dtype=x.dtype)])
    return np.concatenate([np.concatenate(list(full[r * wide : (r + 1) * wide]), 1) for r in range(high)])


def corners(channels: int) -> list[tuple[float, float]]:
    """Returns top and left of each channel in their image, in [0, 1]."""
    wide = across(channels)
    high = -(-channels // wide)
    return [(c // wide / high, c % wide / wide) for c in range(channels)]


def _frames(heat: Singles, threshold: float) -> list[list[float]]:
    """Returns frames (top, left, bottom, right) in [0, 1] of the image of all channels."""
    wide = across(len(heat))
    size, boxes = np.array([-(-len(heat) // wide), wide] * 2), []
    for one, corner in zip(heat, corners(len(heat)), strict=True):
        boxes += [
            np.round(np.array(corner * 2) + np.array(box) / size, 4).tolist() for box in Heatmaps(one[None], threshold).frames(0)
        ]
    return boxes
