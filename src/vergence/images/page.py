"""The page of `check`: one file to look at pictures in, filter, sort, compare, confirm and export; it works without a server.

A page of many pictures shows a sample: all that stand out, their copies and groups, and others at random. Thumbnails lie on
sheets of WebP, whose side follows from their number, so that the page stays below 15 MB.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import torch

from vergence.data.pictures import Picture, Pictures
from vergence.decide.conformal import to_label
from vergence.images.features import ImageFeatures
from vergence.images.measurements import MEASUREMENTS, PROPERTIES, WORDS
from vergence.images.plane import standardized
from vergence.images.scores import ReferenceScores
from vergence.report.rendering import render
from vergence.report.tiles import LARGEST, image_of, rounded, sheets, side_of, tile, unit, webp, within
from vergence.utils import terminal
from vergence.utils.neighbors import nearest_rows
from vergence.utils.terminal import Table

__all__ = ["cards_of"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST = 20_000  # pictures on the page
LARGE, SIDE = 150, 480  # pictures that are kept large, and their longer side in pixels
OTHERS, KNOWN = 500, 24  # pictures of the other source that are copied, and of the most unusual ones that calibrate, at most
LISTED, PAIRS = 200, 5_000  # files that could not be read, and pairs, on the page
NEAR, SHOWN_FACTS, REGIONS, FOLDERS = 5, 3, 30, 30
NUMBERS = ("score", "p_value", "q_value", "flag", "projection_x", "projection_y")
NAMES = {
    "measurements": "Light, color and sharpness", "whole": "Layout", "places": "Its most unusual place", "embedding": "Embedding",
    "vectors": "Your vectors",
}  # fmt: skip
BY_ITSELF = (
    "Nothing here is known to be ordinary. Each picture was scored by fits that had seen neither it nor a copy of it. Its "
    "p-value says how often an ordinary picture would be as unusual, if ordinary pictures go on as most of them begin. This is "
    "an estimate, not a guarantee. With known pictures (--against) the rate holds whatever they look like."
)
CALIBRATED = (
    "The p-value of a picture is the share of known pictures, which no fit has seen, that are at least as unusual. If the "
    "pictures come from where the known ones come from, then on average at most the stated share of those to look at is ordinary."
)
SCORES = (
    "The score is -log p over all levels, in nats: larger is more unusual. The q-value is the least false-discovery rate at "
    "which a picture is reported. What you say changes both: unusual pictures are set apart, and pictures that are less unusual "
    "than a fine one are no longer improbable. Save the confirmations and pass them on: --confirm confirmed.csv."
)
MARKED = "A frame marks places that are more unusual than any place of all but {mark:.0%} of ordinary pictures{estimate}."


class Checked(Protocol):
    """What the page reads of a `vergence.images.result.CheckResult`, which documents each member."""

    @property
    def items(self) -> Table: ...
    @property
    def copies(self) -> Table: ...
    @property
    def skipped(self) -> Table: ...
    @property
    def summary(self) -> Mapping[str, Any]: ...
    @property
    def embeddings(self) -> npt.NDArray[np.float32]: ...
    @property
    def pictures(self) -> Pictures: ...
    @property
    def known(self) -> Pictures | None: ...
    @property
    def features(self) -> ImageFeatures: ...
    @property
    def workers(self) -> int: ...
    @property
    def key(self) -> str: ...
    def levels(self) -> Mapping[str, Floats]: ...
    def calibration(self) -> ReferenceScores | None: ...
    def bounds(self) -> list[float] | None: ...
    def marked(self, i: int) -> Sequence[Sequence[float]]: ...
    def pixels(self, i: int) -> Bytes: ...


def write_check(path: Path, found: Checked) -> Path:
    """Writes the page in one step; it loads nothing from the network, and every text in it is escaped. Returns its path."""
    s, rows = found.summary, shown_rows(found)
    skipped = list(zip(found.skipped["path"], found.skipped["reason"], strict=True))
    left = len(found.items) - len(rows)
    return render(
        path,
        "workbench",
        "workbench.html",
        title=f"What is in {s['source']}",
        sentences=s["sentences"],
        looked=s["looked"],
        encoder=s["encoder"],
        sampled=f"{len(rows):,} of {len(found.items):,} are on this page: all that stand out, others at random." if left else "",
        skipped=skipped[:LISTED],
        more_skipped=f"{len(skipped) - LISTED:,} more are listed in skipped.csv." if len(skipped) > LISTED else "",
        meaning=_meaning(s),
        data=_data(found, rows, path),
    )


def shown_rows(found: Checked) -> Ints:
    """Returns the rows of ``items`` on the page, ascending: all of few, else what stands out and a sample of the others."""
    n = len(found.items)
    if n <= MOST:
        return np.arange(n)
    score = np.asarray(found.items["score"], dtype=np.float64)
    special = np.any([[bool(text) for text in found.items[name]] for name in ("group", "duplicate_of", "leak_of")], axis=0)
    order = np.lexsort((np.random.default_rng(0).random(n), -score, ~(np.asarray(found.items["flag"]) > 0), ~special))
    first = order[: MOST // 2]
    rest = np.random.default_rng(0).permutation(order[MOST // 2 :])[: MOST - len(first)]
    return np.sort(np.concatenate([first, rest]))


def _meaning(s: Mapping[str, Any]) -> list[str]:
    if not s["judged"]:
        return ["Copies were looked for: as they are, resized, saved again, cropped, brightened, marked, mirrored or turned."]
    estimate = ", by an estimate" if s["calibration"] is None else ""
    return [BY_ITSELF if s["calibration"] is None else CALIBRATED, SCORES, MARKED.format(mark=s["mark"], estimate=estimate)]


# Data: columns by name; pictures of the other source follow those that were checked


def _data(found: Checked, rows: Ints, path: Path) -> dict[str, Any]:
    items, s = found.items, found.summary
    place = {int(i): k for k, i in enumerate(rows)}
    of_name = {items["path"][i]: k for i, k in place.items()}
    others = _Others(len(rows))
    copies = _copies(found, of_name, others)
    flag = np.asarray(items["flag"])[rows]
    columns = {k: [items[k][i] for i in rows] for k in ("path", "reason", "group", "measurements")}
    heads = {name: g for g, name in enumerate(dict.fromkeys(filter(None, columns["group"])))}
    properties = list(s["properties"])
    order = np.argsort(-np.asarray(items["score"], dtype=np.float64)[rows], kind="stable")
    copied = dict.fromkeys(k for i, j, _ in copies for k in (i, j))
    large = [k for k in dict.fromkeys([*order[: LARGE // 2].tolist(), *copied, *order.tolist()]) if k < len(rows)]
    scores = _scores(found, rows, others)
    tiles = _tiles(found, rows, others.names, set(large[:LARGE]))
    return {
        "n": len(rows),
        "total": len(items),
        **{name: s[name] for name in ("noun", "judged", "fdr", "leaks", "unreadable")},
        "ranked": s["judged"],
        "key": f"vergence {s['source']} {found.key}",
        "start": "flag" if flag.any() else "all",
        "name": [*columns["path"], *others.names],
        "reason": columns["reason"],
        "group": [heads.get(name, -1) for name in columns["group"]],
        "groups": len(heads),
        "properties": [sum(1 << properties.index(name) for name in m.split("; ") if m) for m in columns["measurements"]],
        "propertyNames": [PROPERTIES[name] for name in properties],
        "copies": copies,
        "copied": [int(k in copied) for k in range(len(rows))],
        "leak": [int(bool(items["leak_of"][i])) for i in rows],
        "near": _near(found, rows),
        "regions": _regions(found.embeddings[rows]),
        "folder": _folder(found, path),
        "most": int(min(len(rows), max(50, 3 * flag.sum(), len(rows) // 10))),
        **scores,
        **_measured(found, rows),
        **_folders(columns["path"]),
        **tiles,
    }


def _scores(found: Checked, rows: Ints, others: "_Others") -> dict[str, Any]:
    """Returns columns of numbers, and what calibrates."""
    columns = {
        name: np.asarray(values, dtype=np.float64)[rows] for name, values in found.items.columns.items() if name in NUMBERS
    }
    known = found.calibration()
    return {
        "score": rounded(columns["score"], 5),
        "p": rounded(columns["p_value"], 6),
        "q": rounded(columns["q_value"], 6),
        "flag": columns["flag"].astype(int).tolist(),
        "x": unit(columns["projection_x"]),
        "y": unit(columns["projection_y"]),
        "levels": [[k, NAMES.get(k, k.capitalize()), rounded(v[rows], 4)] for k, v in found.levels().items()],
        "seen": [0] * len(rows) if known is None else known.seen[rows].astype(int).tolist(),
        "calibration": None if known is None else rounded(np.sort(known.scores), 5),
        "known": [] if known is None or found.summary["noun"] != "picture" else _strangest(known, others),
        "bounds": found.bounds(),
    }


class _Others:
    """Pictures of the other source on the page, with their numbers."""

    def __init__(self, first: int) -> None:
        self.names: list[str] = []
        self.first, self._numbers = first, dict[str, int]()

    def number(self, name: str) -> int:
        """Returns the number of a picture, which is on the page from now on."""
        if name not in self._numbers:
            self._numbers[name] = self.first + len(self.names)
            self.names.append(name)
        return self._numbers[name]


def _strangest(calibration: ReferenceScores, others: _Others) -> list[tuple[int, float]]:
    """Returns numbers and scores of the most unusual known pictures that calibrate: what a person should look at."""
    scores = rounded(calibration.scores, 5)
    first = to_label(calibration.scores, min(KNOWN, len(scores)))
    return [(others.number(calibration.names[int(i)]), scores[int(i)]) for i in first]


def _copies(found: Checked, of_name: Mapping[str, int], others: _Others) -> list[tuple[int, int, str]]:
    """Returns pairs of numbers, and the kind of each, the surest first."""
    c = found.copies
    pairs: list[tuple[int, int, str]] = []
    for a, b, kind, other in zip(c["path"], c["copy_of"], c["kind"], c["other"], strict=True):
        inside = b in of_name if other == "no" else len(others.names) < OTHERS
        if a in of_name and inside and len(pairs) < PAIRS:
            pairs.append((of_name[a], of_name[b] if other == "no" else others.number(b), kind))
    return pairs


def _folders(names: Sequence[str]) -> dict[str, Any]:
    """Returns the first folders of the names and the folder of each; none of one folder, or of very many."""
    first = [name.split("/")[0] if "/" in name else "" for name in names]
    found = {name: k for k, name in enumerate(dict.fromkeys(first))}
    if len(found) < 2 or len(found) > FOLDERS:
        return {"folders": []}
    return {"folderWord": "folder", "folders": list(found), "inFolder": [found[name] for name in first]}


def _folder(found: Checked, path: Path) -> str | None:
    """Returns the relative address of the folder of the pictures, where they are files in one."""
    if (folder := found.pictures.folder) is None:
        return None
    try:
        relative = os.path.relpath(folder.resolve(), path.resolve().parent)
    except ValueError:  # another drive
        return None
    return quote(Path(relative).as_posix(), errors="surrogateescape") + "/"


def _near(found: Checked, rows: Ints) -> list[list[int]]:
    """Returns the nearest pictures on the page that are not flagged."""
    ordinary = np.flatnonzero(np.asarray(found.items["flag"])[rows] == 0)
    if len(ordinary) < 2 or not found.embeddings.shape[1]:
        return [[] for _ in rows]
    z = found.embeddings[rows]
    x = torch.from_numpy(standardized(z).astype(np.float32))
    near = nearest_rows(x[torch.from_numpy(ordinary)], x, min(NEAR + 1, len(ordinary))).numpy()
    return [[int(j) for j in ordinary[row] if j != k][:NEAR] for k, row in enumerate(near)]


def _regions(z: npt.NDArray[np.float32]) -> list[int]:
    """Returns a typical picture of each region, of the largest first."""
    from sklearn.cluster import MiniBatchKMeans

    if len(z) < 2 * REGIONS or not z.shape[1] or not z.std():
        return []
    x = standardized(z).astype(np.float32)
    fitted = MiniBatchKMeans(REGIONS, random_state=0, n_init=1, batch_size=1024).fit(x)
    size = np.bincount(fitted.labels_, minlength=REGIONS)
    nearest = [np.flatnonzero(fitted.labels_ == k) for k in np.argsort(-size)]
    centers = fitted.cluster_centers_[np.argsort(-size)]
    return [int(m[np.square(x[m] - c).sum(1).argmin()]) for m, c in zip(nearest, centers, strict=True) if len(m)]


def _measured(found: Checked, rows: Ints) -> dict[str, Any]:
    """Returns plain measurements, and in which of them each picture differs most from the others."""
    table = found.features.measurements[rows]
    empty: dict[str, Any] = {"width": [], "height": [], "light": [], "sharpness": [], "facts": [], "words": []}
    if not table.shape[1]:
        return empty
    at = {name: k for k, name in enumerate(MEASUREMENTS)}
    named = [name for name in WORDS if name in at]
    x = found.features.measurements[:, [at[name] for name in named]]
    share = np.stack([np.searchsorted(np.sort(column), column, side="left") / len(x) for column in x.T], 1)[rows]
    above = np.stack([1 - np.searchsorted(np.sort(column), column, side="right") / len(x) for column in x.T], 1)[rows]
    farther = np.maximum(share, above)
    first = np.argsort(-farther, axis=1, kind="stable")[:, :SHOWN_FACTS]
    facts = [
        [[int(m), int(share[k, m] >= above[k, m]), int(100 * farther[k, m])] for m in ms if farther[k, m] >= 0.8]
        for k, ms in enumerate(first)
    ]
    return {
        "width": table[:, at["width"]].astype(int).tolist(),
        "height": table[:, at["height"]].astype(int).tolist(),
        "light": table[:, at["light_50"]].round(3).tolist(),
        "sharpness": table[:, at["sharpness"]].round(3).tolist(),
        "facts": facts,
        "words": [list(WORDS[name]) for name in named],
    }


# Pictures


@dataclass(frozen=True)
class _PagePass:
    """A picture as a square tile, and, of the pictures of some digests, as a larger WebP."""

    side: int
    large: frozenset[int]

    def __call__(self, picture: Picture) -> tuple[Bytes, str]:
        image = image_of(picture.pixels)
        return tile(image, self.side), webp(within(image, SIDE), 80) if picture.digest in self.large else ""


def _tiles(found: Checked, rows: Ints, others: Sequence[str], large: set[int]) -> dict[str, Any]:
    """Returns sheets of tiles, pictures that are kept large, and their marked places."""
    n = len(rows) + len(others)
    side = side_of(n)
    tiles = np.zeros((n, side, side, 3), dtype=np.uint8)
    big: dict[int, str] = {}
    seen = False
    own = found.pictures if found.summary["noun"] == "picture" else None
    place = {name: i for i, name in enumerate(found.known.names)} if found.known is not None else {}
    of_both = (own, found.features.index[rows].tolist(), 0), (found.known, [place[name] for name in others], len(rows))
    for source, index, first in of_both:
        at = {i: first + k for k, i in enumerate(index)}
        digests = frozenset(found.features.digest[rows[list(large)]].tolist() if first == 0 and large else ())
        look = _PagePass(side, digests)
        with terminal.bar("page", len(index), late=True) as advance:
            for i, (tile, picture) in source.map(look, index, found.workers) if source is not None else ():
                tiles[at[i]] = tile
                seen = True
                if picture:
                    big[at[i]] = picture
                advance()
    marks = {k: [[round(v, 4) for v in box] for box in found.marked(int(rows[k]))] for k in big if found.items["flag"][rows[k]]}
    return {
        **(sheets(tiles) if seen else sheets(tiles[:0])),
        "large": big,
        "marks": {k: boxes for k, boxes in marks.items() if boxes},
    }


# Notebooks


def cards_of(found: Checked, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Returns name, picture as a data URL, and lines about pictures of ``items``, for notebooks."""
    return [_card(found, i) for i in rows]


def _card(found: Checked, i: int) -> dict[str, Any]:
    item = {name: values[i] for name, values in found.items.columns.items()}
    lines = [item["reason"]] if item["reason"] else []
    if found.summary["judged"]:
        lines.append(f"score {item['score']:.1f}, q = {item['q_value']:.2g}")
    lines += [item["measurements"].replace("_", " ")] if item["measurements"] else []
    try:
        picture = f"data:image/webp;base64,{webp(within(image_of(found.pixels(i)), LARGEST), 80)}"
    except (ValueError, AttributeError):  # it has gone meanwhile, or is a vector
        picture = ""
    return {"name": item["path"], "picture": picture, "lines": lines}
