"""The page of `check`: one file in which images are filtered, sorted, compared, marked and exported; it works without a server.

A page of many images shows a sample: all that stand out, their duplicates and groups, and others at random. Thumbnails lie on
sheets of WebP, whose side follows from their number, so that the page stays below 15 MB.
"""

import functools
import math
import os
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from vergence.data.image_list import LoadedImage
from vergence.decide.conformal import to_label
from vergence.images.marks import at_random
from vergence.images.measurements import HUES, MEASUREMENTS, PROPERTIES, WORDS, is_gray
from vergence.images.plane import standardized
from vergence.images.review import MARKS
from vergence.images.sentences import COMPARED
from vergence.report.rendering import workbench
from vergence.report.tiles import LARGEST, image_of, rounded, sheets, side_of, tile, unit, webp, within
from vergence.utils import terminal
from vergence.utils.dtypes import Bytes, Floats, Ints, Singles
from vergence.utils.files import explained
from vergence.utils.neighbors import nearest_rows

MOST = 20_000  # images on the page
LARGE, SIDE, BYTES = 150, 480, 3e6  # images that are kept large, their longer side in pixels, and bytes of all of them
OTHERS, FIRST = 500, 24  # reference images that are leaked or compared with, and the most anomalous ones, at most
PAIRS = 5_000  # on the page
PAIR = ("path", "duplicate_of", "kind", "agreement", "source")
NEAR, SHOWN_FACTS, REGIONS, FOLDERS = 5, 3, 30, 30
COLOR = (255, 60, 0)  # of heatmaps
NUMBERS = ("score", "p_value", "q_value", "flag", "projection_x", "projection_y")
NAMES = {
    "measurements": "Light, color and sharpness", "whole": "Texture and layout as a whole", "regions": "Regions",
    "details": "Small details", "difference": "Difference from the nearest reference image",
    "vectors": "Your vectors",
}  # fmt: skip
MEANING = {
    "split conformal": (
        "One half of the reference is fitted to, the other half calibrates (split conformal). If new and reference images come "
        "from one source, P(p <= a) <= a for a normal image. Then the share of false alarms holds, on average over folders."
    ),
    "cross-conformal": (
        "All of the reference calibrates, by fits that have not seen the image in question (cross-conformal). If new and "
        "reference images come from one source, P(p <= a) is close to a for a normal image. The theorem bounds it by about 2 a "
        "(Vovk, 2015; Barber et al., 2021)."
    ),
    "twins: an assumption": (
        "Each image is compared with the reference image that shows the same part. The reference has each part once, so it "
        "calibrates nothing: p-values assume that most images are normal. No theorem holds."
    ),
}
SCORES = (
    "A larger score is more anomalous. The q-value is the least false-discovery rate at which an image is flagged. Marked "
    "anomalies count as discoveries (p = 0), so the rate holds for flags and marked anomalies together. Save the marks, then "
    "repeat vergence check with --confirm confirmed.csv."
)
ORDER = (
    "No reference was given, so nothing is flagged. Each image was scored by fits that saw neither it nor a duplicate of it. "
    "Mark images from the top: a for anomaly, n for normal. To estimate how many anomalies are left, sort at random and mark "
    "some from the top. Save the marks, then repeat vergence check with --confirm confirmed.csv."
)
RATED = "Frames show regions that are more anomalous than any region of all but {rate:g} % of normal images."
FRAMED = "Frames show the most anomalous regions: about {rate:g} % of the images have one."
Checked = Any  # a `vergence.images.result.CheckResult`, whose module imports this one


def write_check(path: Path, found: Checked) -> Path:
    """Writes the page in one step; it loads nothing from the network, and every text in it is escaped. Returns its path."""
    s, rows = found.summary, shown_rows(found)
    left, weights = len(found.items) - len(rows), ", ".join(f"{name} {w:.2g}" for name, w in s["feature_sets"].items())
    texts = [ORDER, FRAMED] if s["rate"] == "none" else [MEANING[s["rate"]], SCORES, RATED]
    return workbench(
        path,
        _data(found, rows, path),
        title=f"Check of {s['source']}",
        sentences=s["sentences"],
        input=s["input"],
        encoder=f"{s['encoder']}. Feature sets and their weights: {weights}" if weights else s["encoder"],
        sampled=f"{len(rows):,} of {len(found.items):,} are on this page: all with findings, others at random." if left else "",
        skipped=list(zip(found.skipped["path"], found.skipped["reason"], strict=True)),
        meaning=[text.format(rate=100 * s["region_rate"]) for text in (texts if s["judged"] else [COMPARED])],
    )


def shown_rows(found: Checked) -> Ints:
    """Returns the rows of ``items`` on the page, ascending: all of few, else what stands out and a sample of the others."""
    n = len(found.items)
    if n <= MOST:
        return np.arange(n)
    score = np.asarray(found.items["score"], dtype=np.float64)
    special = np.any([[bool(text) for text in found.items[name]] for name in ("group", "duplicate_of", "leak_of")], axis=0)
    special |= np.array([name in found.marks for name in found.items["path"]])
    order = np.lexsort((np.random.default_rng(0).random(n), -score, ~(np.asarray(found.items["flag"]) > 0), ~special))
    first = order[: MOST // 2]
    rest = np.random.default_rng(0).permutation(order[MOST // 2 :])[: MOST - len(first)]
    return np.sort(np.concatenate([first, rest]))


# Data: columns by name; reference images follow those that were checked


def _number(others: dict[str, int], first: int, name: str) -> int:
    return others.setdefault(name, first + len(others))


def _data(found: Checked, rows: Ints, path: Path) -> dict[str, Any]:
    items, s = found.items, found.summary
    of_name = {items["path"][int(i)]: k for k, i in enumerate(rows)}
    others: dict[str, int] = {}  # reference images on the page, with their numbers
    number = functools.partial(_number, others, len(rows))
    pairs = _pairs(found, of_name, number, others)
    flag = np.asarray(items["flag"])[rows]
    columns = {k: [items[k][i] for i in rows] for k in ("path", "reason", "group", "measurements")}
    heads = {name: g for g, name in enumerate(dict.fromkeys(filter(None, columns["group"])))}
    properties = list(s["properties"])
    order = np.argsort(-np.asarray(items["score"], dtype=np.float64)[rows], kind="stable").tolist() if s["judged"] else []
    paired = dict.fromkeys(k for i, j, *_ in pairs for k in (i, j))
    large = [k for k in dict.fromkeys([*order[: LARGE // 2], *paired, *order]) if k < len(rows)]
    scores, marks = _scores(found, rows, number), _marks(found, of_name, number)
    nearest = {k: number(found.nearest()[rows[k]]) for k in large[:OTHERS]} if found.nearest() else {}
    return {
        "n": len(rows),
        "total": len(items),
        **{name: s[name] for name in ("noun", "judged", "rate", "fdr", "leaked", "unreadable", "grouped")},
        "ranked": s["judged"],
        "key": f"vergence {s['source']} {found.key} {np.bitwise_xor.reduce(found.features.digest):x}",
        "marks": marks,
        "start": "flag" if flag.any() else "leak" if s["leaked"] and not s["judged"] else "all",
        "name": [*columns["path"], *others],
        "reason": columns["reason"],
        "group": [heads.get(name, -1) for name in columns["group"]],
        "groups": len(heads),
        "properties": [sum(1 << properties.index(name) for name in m.split("; ") if m) for m in columns["measurements"]],
        "propertyNames": [PROPERTIES[name] for name in properties],
        "duplicates": pairs,
        "nearest": nearest,
        "leak": [int(bool(items["leak_of"][i])) for i in rows],
        "near": _near(found, rows),
        "regions": _regions(found.embeddings[rows]),
        "folder": _folder(found, path),
        "most": int(min(len(rows), max(50, 3 * flag.sum(), len(rows) // 10))),
        **scores,
        **_measured(found, rows),
        **_folders(columns["path"]),
        **_tiles(found, rows, [*others], large[:LARGE]),
    }


def _scores(found: Checked, rows: Ints, number: Callable[[str], int]) -> dict[str, Any]:
    """Returns columns of numbers, how many calibrate, and the first of these by rank."""
    columns = {
        name: np.asarray(values, dtype=np.float64)[rows] for name, values in found.items.columns.items() if name in NUMBERS
    }
    reference = found.calibration()
    unflagged = len(rows) == len(found.items) and found.summary["rate"] == "none" and found.summary["judged"]
    shown = reference is not None and found.summary["noun"] == "image"  # the most anomalous ones, which a person should check
    first = to_label(reference.scores, min(FIRST, len(reference))).tolist() if shown else []
    return {
        "score": rounded(columns["score"], 5),
        **({"p": rounded(columns["p_value"], 6), "q": rounded(columns["q_value"], 6)} if found.summary["rate"] != "none" else {}),
        "flag": columns["flag"].astype(int).tolist(),
        **({of: unit(columns[f"projection_{of}"]) for of in "xy"} if found.embeddings.shape[1] else {}),
        "random": np.argsort(at_random(found.features.digest)).tolist() if unflagged else [],  # the rank of each
        **_labels(found, rows),
        "sets": [[k, NAMES.get(k, k.capitalize()), rounded(v[rows], 4)] for k, v in found.feature_sets().items()],
        "seen": [0] * len(rows) if reference is None else reference.seen[rows].astype(int).tolist(),
        "calibration": None if reference is None else len(reference),
        "reference": [number(reference.names[i]) for i in first],
    }


def _marks(found: Checked, of_name: Mapping[str, int], number: Callable[[str], int]) -> list[tuple[int, str]]:
    """Returns the number and the mark of each image that a person marked before."""
    reference = set(found.reference.names) if found.reference is not None else set()
    own = [(of_name[name], mark) for name, mark in found.marks.items() if name in of_name and mark in MARKS[:2]]
    return own + [(number(name), mark) for name, mark in found.marks.items() if name in reference and mark == MARKS[2]]


def _labels(found: Checked, rows: Ints) -> dict[str, Any]:
    """Returns the best other label of each image, how much better it fits, whether that is shown, and its label."""
    if (labels := found.summary["labels"]) is None:
        return {}
    columns = [[found.items[f"label{of}"][i] for i in rows] for of in ("_other", "_score", "_flag", "")]
    shown = [int(flag or (not labels["compared"] and score > 0)) for _, score, flag, _ in zip(*columns, strict=True)]
    scores = [None if math.isnan(score) else round(float(score), 4) for score in columns[1]]
    return {"label": list(zip(columns[0], scores, shown, columns[3], strict=True)), "trusted": bool(labels["compared"])}


def _pairs(
    found: Checked, of_name: Mapping[str, int], number: Callable[[str], int], others: Mapping[str, int]
) -> list[tuple[int, int, str, float, int]]:
    """Returns pairs of numbers, the kind and the agreement of each, and which to keep, 0 or 1, or -1; the surest first."""
    d, pairs = found.duplicates, list[tuple[int, int, str, float, int]]()
    keep = d.columns.get("keep", [""] * len(d))
    for a, b, kind, r, source, kept in zip(*(d[key] for key in PAIR), keep, strict=True):
        inside = b in of_name if source == "same" else len(others) < OTHERS
        if a in of_name and inside and len(pairs) < PAIRS:
            other = of_name[b] if source == "same" else number(b)
            pairs.append((of_name[a], other, kind, round(float(r), 4), (a, b).index(kept) if kept in (a, b) else -1))
    return pairs


def _folders(names: Sequence[str]) -> dict[str, Any]:
    """Returns the first folders of the names and the folder of each; none of one folder, or of very many."""
    first = [name.split("/")[0] if "/" in name else "" for name in names]
    found = {name: k for k, name in enumerate(dict.fromkeys(first))}
    if len(found) < 2 or len(found) > FOLDERS:
        return {"folders": []}
    return {"folderWord": "folder", "folders": list(found), "inFolder": [found[name] for name in first]}


def _folder(found: Checked, path: Path) -> str | None:
    """Returns the relative address of the folder of the images, where they are files in one."""
    if (folder := found.images.folder) is None:
        return None
    try:
        relative = os.path.relpath(folder.resolve(), path.resolve().parent)
    except ValueError:  # another drive
        return None
    return quote(Path(relative).as_posix(), errors="surrogateescape") + "/"


def _near(found: Checked, rows: Ints) -> list[list[int]]:
    """Returns the nearest images on the page that are not flagged."""
    normal = np.flatnonzero(np.asarray(found.items["flag"])[rows] == 0)
    if len(normal) < 2 or not found.embeddings.shape[1]:
        return [[] for _ in rows]
    z = found.embeddings[rows]
    x = torch.from_numpy(standardized(z).astype(np.float32))
    near = nearest_rows(x[torch.from_numpy(normal)], x, min(NEAR + 1, len(normal))).numpy()
    return [[int(j) for j in normal[row] if j != k][:NEAR] for k, row in enumerate(near)]


def _regions(z: Singles) -> list[int]:
    """Returns the most central image of each region of the map, of the largest first."""
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
    """Returns plain measurements, and in which of them each image differs most from the others."""
    table = found.features.measurements[rows]
    if not table.shape[1]:
        return {"light": [], "sharpness": [], "facts": [], "words": []}
    at = {name: k for k, name in enumerate(MEASUREMENTS)}
    named = [name for name in WORDS if name in at]
    x = found.features.measurements[:, [at[name] for name in named]]
    share = np.stack([np.searchsorted(np.sort(column), column, side="left") / len(x) for column in x.T], 1)[rows]
    above = np.stack([1 - np.searchsorted(np.sort(column), column, side="right") / len(x) for column in x.T], 1)[rows]
    farther = np.maximum(share, above)
    farther[np.ix_(is_gray(table), np.isin(named, HUES))] = 0
    first = np.argsort(-farther, axis=1, kind="stable")[:, :SHOWN_FACTS]
    facts = [
        [[int(m), int(share[k, m] >= above[k, m]), int(100 * farther[k, m])] for m in ms if farther[k, m] >= 0.8]
        for k, ms in enumerate(first)
    ]
    return {
        "light": table[:, at["light_50"]].round(3).tolist(),
        "sharpness": table[:, at["sharpness"]].round(3).tolist(),
        "facts": facts,
        "words": [list(WORDS[name]) for name in named],
    }


# Images


@dataclass(frozen=True)
class _PagePass:
    """An image as a square tile, and, of the images of some digests, as a larger WebP."""

    side: int
    large: frozenset[int]

    def __call__(self, image: LoadedImage) -> tuple[Bytes, str, tuple[int, int]]:
        shown = image_of(image.pixels)
        return tile(shown, self.side), webp(within(shown, SIDE), 80) if image.digest in self.large else "", image.size


def _tiles(found: Checked, rows: Ints, others: Sequence[str], large: Sequence[int]) -> dict[str, Any]:
    """Returns sheets of tiles, sizes, images that are kept large, frames of all images, and heatmaps of the large ones."""
    n = len(rows) + len(others)
    sizes = np.zeros((n, 2), dtype=np.int64)  # height and width
    sizes[: len(rows)] = found.features.measurements[rows][:, :2] if found.features.measurements.shape[1] else 0
    side = side_of(n)
    tiles = np.zeros((n, side, side, 3), dtype=np.uint8)
    big: dict[int, str] = {}
    seen = False
    own = found.images if found.summary["noun"] == "image" else None
    if own is not None and not found.summary["judged"] and found.features.images is not None:
        own = found.features.images.image_list()  # small ones are at hand
    place = {name: i for i, name in enumerate(found.reference.names)} if found.reference is not None else {}
    of_both = (own, found.features.index[rows].tolist(), 0), (found.reference, [place[name] for name in others], len(rows))
    for source, index, first in of_both:
        at = {i: first + k for k, i in enumerate(index)}
        digests = frozenset(found.features.digest[rows[large]].tolist() if first == 0 and large else ())
        page_pass = _PagePass(side, digests)
        with terminal.bar("page", len(index), "images", late=True) as advance:
            for i, (tile, image, size) in source.map(page_pass, index, found.workers) if source is not None else ():
                tiles[at[i]], sizes[at[i]] = tile, sizes[at[i]] if sizes[at[i]].any() else size
                seen = True
                if image:
                    big[at[i]] = image
                advance()
    frames = {k: [[round(v, 4) for v in box] for box in found.frames(int(i))] for k, i in enumerate(rows)}
    spent = np.cumsum([len(big.get(k, "")) for k in large])
    big = {k: big[k] for k, total in zip(large, spent, strict=True) if k in big and total <= BYTES}  # the most anomalous first
    judged = big if found.summary["judged"] else {}
    return {
        **(sheets(tiles) if seen else sheets(tiles[:0])),
        **{name: sizes[:, k].tolist() if sizes.any() else [] for k, name in enumerate(("height", "width"))},
        "large": big,
        "frames": {k: boxes for k, boxes in frames.items() if boxes},
        "heat": {k: b64encode(opacity(found.map(int(rows[k]))).tobytes()).decode() for k in judged},
    }


# Heatmaps


def opacity(heatmap: Floats) -> Bytes:
    """Returns how opaque (32, 32) the color over each cell is, of 255: 80 where a region is framed, at most 160.

    Example:
        >>> opacity(np.array([[0.0, 0.5, 1.0, 9.0]])).tolist()
        [[0, 40, 80, 160]]
    """
    return np.asarray(np.clip(80 * heatmap, 0, 160).round(), dtype=np.uint8)


def write_heatmaps(folder: Path, found: Checked) -> Path:
    """Writes an image with its heatmap for each one that is flagged or has a frame, as a PNG of its name; returns the folder."""
    from PIL import Image

    flag, index = found.items["flag"], found.features.index.tolist()
    for k, i in enumerate(index):
        if not (flag[k] or found.frames(k)):
            continue
        try:
            image = image_of(found.pixels(k)).convert("RGB")
        except ValueError:  # it has gone meanwhile
            continue
        alpha = Image.fromarray(opacity(found.map(k))).resize(image.size, Image.Resampling.BILINEAR)
        image.paste(COLOR, mask=alpha)
        parts = [part for part in Path(found.images.names[i]).parts if part not in ("..", os.sep)]
        file = folder.joinpath(*parts)
        file = file if file.suffix.lower() == ".png" else file.with_name(f"{file.name}.png")
        with explained(folder, "choose another `heatmaps`"):
            file.parent.mkdir(parents=True, exist_ok=True)
            image.save(file)
    return folder


# Notebooks


def card_of(found: Checked, i: int) -> dict[str, Any]:
    """Returns name, image as a data URL, and lines about an image of ``items``, for notebooks."""
    item = {name: values[i] for name, values in found.items.columns.items()}
    lines = [item["reason"]] if item["reason"] else []
    if found.summary["judged"]:
        lines.append(f"score {item['score']:.1f}, q = {item['q_value']:.2g}")
    lines += [item["measurements"].replace("_", " ")] if item["measurements"] else []
    try:
        image = f"data:image/webp;base64,{webp(within(image_of(found.pixels(i)), LARGEST), 80)}"
    except (ValueError, AttributeError):  # it has gone meanwhile, or is a vector
        image = ""
    return {"name": item["path"], "image": image, "lines": lines}
