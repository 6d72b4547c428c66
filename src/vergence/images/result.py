"""What `check` found: one table of items, groups, duplicates and a summary, in memory and as files."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.data.image_list import AGAIN, ImageList
from vergence.decide.decisions import Decisions, decided
from vergence.decide.feature_sets import ReferenceScores
from vergence.images.duplicates import SAME, Duplicates, best_of_sets
from vergence.images.features import FILE, NETWORK, ImageFeatures
from vergence.images.frozen import FrozenNetwork
from vergence.images.labels import Labels
from vergence.images.measurements import (
    MEASUREMENTS,
    PROPERTIES,
    common_properties,
    differences_in_words,
    is_gray,
    properties,
    split_in_two,
)
from vergence.images.plane import PLANES, plane, standardized
from vergence.images.regions import region_words
from vergence.images.review import MARKS, REFERENCE, Review
from vergence.images.sentences import sentences_of
from vergence.utils import terminal
from vergence.utils.checks import counted, expect, refuse, require_count, require_within
from vergence.utils.digests import content_digest
from vergence.utils.dtypes import Array, Bools, Bytes, Floats, Ints, Singles
from vergence.utils.files import explained, replacing
from vergence.utils.neighbors import nearest_others
from vergence.utils.parts import named_path, write_table
from vergence.utils.terminal import Table, paragraphs
from vergence.utils.version import __version__

__all__ = ["CheckResult"]

Embed = Callable[[Tensor], Tensor]
Frame = tuple[float, float, float, float]

NEIGHBORS = 5
MOST_COMPARED = 50_000  # images whose neighbors are searched among all
FRAMES = 5  # of an image, at most
RARE = 0.1  # p-value up to which reasons are given, or share of the images where there is none
SIZE = 10  # images of each of two sizes that are reported
FIRST = 3  # images that are named first, and have a reason, or whose label fits least, without a reference
EVERYWHERE = 0.3  # share of the cells of a heatmap that are framed, from which on an image is anomalous everywhere
APART = 5.0  # robust deviations of the score from which on a reference image is itself anomalous
ENCODER, PATCHES = "auto", "patches"
ONLY, KEEP = ("duplicates", "properties"), "best"
PATHS = ("path", "group", "duplicate_of", "leak_of", "keep")  # columns that name files
SET = "set "  # before the name of a feature set, among columns


@dataclass(frozen=True)
class CheckSettings:
    """How images are judged."""

    size: int = 256  # pixels of the shorter side at which regions are judged, at most; images are never enlarged or cropped
    fdr: float = 0.1  # false-discovery rate of the flags, in (0, 1)
    region_rate: float = 0.05  # share of normal images in which any region is framed, at most, in (0, 1)
    workers: int = 2  # processes that read images
    review: Review = field(default_factory=Review)  # marks of a person before
    groups: Any = None  # what tells the group and the label of an image; None for none
    labels: Any = None
    map: str = "tsne"  # how the map of all images is made, one of `vergence.images.plane.PLANES`
    network: FrozenNetwork | None = None  # network whose cells and embedding are judged; None for patches
    embed: Embed | None = None  # what gives embeddings, where ``network`` does not
    encoder: str = PATCHES  # what the encoder is called, and the license of its weights
    only: tuple[str, ...] = ()  # what alone is searched, of `ONLY`; empty for anomalies, too
    agreement: float | None = None  # least agreement of pairs of duplicates that are reported, in (0, 1]; None for all
    keep: str | None = None  # ``best`` to say which image of each set of duplicates to keep; None says nothing

    @property
    def kept(self) -> int:
        """Pixels of the shorter side of the images that later steps read, at most."""
        return self.size if self.network is None else round(NETWORK * self.size)

    def sides(self, reference: bool) -> tuple["CheckSettings", "CheckSettings"]:
        """Returns the settings for the images and for the reference, which have groups and labels of their own."""
        given = self.groups, self.labels
        pairs = [(one, one) if isinstance(one, str | None) else tuple(one) if reference else (one, None) for one in given]
        for pair in pairs:
            expect(len(pair) == 2, "groups or labels of the images, and of the reference", f"{len(pair)} of them", "give a pair")
        return replace(self, groups=pairs[0][0], labels=pairs[1][0]), replace(self, groups=pairs[0][1], labels=pairs[1][1])

    def __post_init__(self) -> None:
        require_count(8, 4096, size=self.size)
        require_within("(0, 1)", fdr=self.fdr, region_rate=self.region_rate)
        require_count(0, workers=self.workers)
        expect(self.map in PLANES, " or ".join(PLANES), self.map, "choose another `map`")
        expect(set(self.only) <= set(ONLY), f"`only` of {' and '.join(ONLY)}", ", ".join(self.only), "correct `only`")
        require_within("(0, 1]", agreement=1.0 if self.agreement is None else self.agreement)
        expect(self.keep in (None, KEEP), f"`keep='{KEEP}'`", self.keep, "correct `keep`")
        pairs = "duplicates" in (self.only or ONLY) or not (self.keep or self.agreement)
        expect(pairs, "duplicates for keep and agreement", f"only {', '.join(self.only)}", "leave one out")


@dataclass(frozen=True)
class Heatmaps:
    """Heatmaps (N, 32, 32), and the value above which a region is framed; infinity where there are too few images for one."""

    values: Singles
    threshold: float

    def units(self, i: int) -> Floats:
        """Returns heatmap i: above 1 a region is framed, or above the largest value of the median image."""
        unit = float(np.median(self.values.max((1, 2)))) if math.isinf(self.threshold) else self.threshold
        return np.asarray(np.exp(self.values[i].astype(np.float64) - unit))

    def framed(self, i: int) -> Bools:
        """Returns which cells (32, 32) of image i are framed."""
        return np.asarray(self.values[i] > self.threshold)

    def frames(self, i: int) -> list[Frame]:
        """Returns frames (top, left, bottom, right) in [0, 1] around the anomalous regions of image i, at most a few."""
        from scipy import ndimage

        m, framed = self.values[i], self.framed(i)
        found = ndimage.find_objects(ndimage.label(framed, structure=np.ones((3, 3)))[0]) if framed.any() else []
        (r, c), first = m.shape, sorted(found, key=lambda part: -m[part].max())[:FRAMES]
        return [(a.start / r, b.start / c, a.stop / r, b.stop / c) for a, b in first]


@dataclass(frozen=True)
class Anomalies:
    """What is anomalous among N items."""

    decisions: Decisions  # what is flagged, with the columns ``score``, ``feature_set``, and -log p of each feature set
    deviations: Floats  # robust deviations (N, M') of the measurements, or of the numbers of vectors
    heatmaps: Heatmaps | None  # where the images are anomalous; None for vectors
    embedding: Singles  # features (N, D) by which neighbors are found
    groups: Sequence[Ints]  # members of anomalous groups, the most central first
    calibration: ReferenceScores | None  # reference items that calibrate; None where none do
    weights: Mapping[str, float]  # weight of each feature set; they add up to 1
    nearest: Sequence[str] = ()  # name of the reference image that each image is compared with; empty for none
    labels: Labels | None = None  # what labels the images fit; None where they have none

    @property
    def rate(self) -> str:
        """What the rate of false alarms rests on."""
        if self.calibration is None:
            return "twins: an assumption" if self.nearest else "none"
        return "cross-conformal" if self.calibration.folds > 1 else "split conformal"

    def beyond(self, reviewed: Bools) -> int:
        """Returns how many of the judged items are less like the reference than all items that calibrate."""
        if self.calibration is None:
            return 0
        least = self.decisions.p_value <= self.calibration.least * (1 + 1e-9)
        return int((least & ~self.calibration.seen & ~reviewed).sum())

    @property
    def expected(self) -> float:
        """How many normal items, of as many as are judged, would be less like the reference than all that calibrate."""
        return 0.0 if self.calibration is None else self.decisions.total * float(self.calibration.least.mean())

    @property
    def in_reference(self) -> list[str]:
        """Names of reference items whose score stands apart, the most anomalous first."""
        if self.calibration is None:
            return []
        s, names = self.calibration.scores, self.calibration.names
        deviation = max(1.4826 * float(np.median(np.abs(s - np.median(s)))), 1e-9)
        return [names[i] for i in np.argsort(-s, kind="stable").tolist() if s[i] > np.median(s) + APART * deviation]

    def flagged_without(self, anomaly: Any = False, normal: Any = False) -> int:
        """Returns how many items are flagged if reference items that stand apart, the largest scores, do not calibrate."""
        grouped = self.calibration is not None and self.calibration.grouped
        if self.calibration is None or grouped or not (out := len(self.in_reference)):
            return self.decisions.flagged
        n, marks = len(self.calibration), {"left_out": self.calibration.seen, "confirmed": anomaly, "normal": normal}
        at_least = np.maximum(np.rint(self.decisions.p_value * (n + 1)) - 1 - out, 0)
        return int(decided((1 + at_least) / (n - out + 1), self.decisions.fdr or 0.0, n - out, **marks).flagged)


@dataclass(frozen=True)
class CheckResult:
    """What was found among images.

    Attributes:
        items: One row for each image that could be read:

            - ``path``; ``score``, larger is more anomalous; ``p_value``; ``q_value``, the least false-discovery rate at which
              the image is flagged; ``flag``, 1 if it is; ``feature_set`` that adds most, and ``reason`` in words.
            - ``group``, the most central image of its anomalous group; ``duplicate_of``, the first image that it is a
              duplicate of; ``leak_of``, the reference image that it is a duplicate of; empty for none.
            - ``measurements``: plain properties such as ``dark``; ``boxes`` around anomalous regions, "top left bottom right" in
              pixels; ``neighbors``, the most similar images; each after the other by ``; ``; ``projection_x`` and
              ``projection_y``, its place on the map.
            - With labels: ``label``, ``label_other``, the best of the others, ``label_score``, above 0 where that fits better,
              and ``label_flag``.
        duplicates: Pairs: ``path``, ``duplicate_of``, ``kind``, ``agreement``, and ``source`` of the second, ``same`` or
            ``reference``; if asked, ``keep``, the image of both to keep, or a better one of their set.
        skipped: ``path`` and ``reason`` of what could not be read.
        groups: Anomalous groups: the members' paths, the most central first.
        embeddings: Features (N, D) by which neighbors were found, float32.
        summary: What was done and found, as numbers and sentences, as in ``summary.json``.
        images, reference: The source, and the reference where there is one.
        features: What the first pass over the items gave.
        marks: The mark of each image by a person before, by name: ``anomaly``, ``normal`` or ``reference anomaly``.
    """

    items: Table
    duplicates: Table
    skipped: Table
    groups: list[list[str]]
    embeddings: Singles
    summary: dict[str, Any]
    images: ImageList = field(repr=False)
    features: ImageFeatures = field(repr=False)
    _anomalies: Anomalies | None = field(repr=False)
    reference: ImageList | None = field(repr=False, default=None)
    workers: int = field(repr=False, default=0)
    remove: Table | None = None  # ``path``, ``keep`` and ``kind`` of images whose duplicate is kept; None where not asked
    marks: Mapping[str, str] = field(repr=False, default_factory=dict)

    def map(self, i: int) -> Floats:
        """Returns how anomalous each cell of image i of ``items`` is, (32, 32): above 1 a region is framed.

        The unit is the threshold of ``region_rate``; with too few images for one, the most anomalous cell of the median image.

        Raises:
            ValueError: The images were not judged.
        """
        if self._anomalies is None or self._anomalies.heatmaps is None:
            refuse("images that were judged", "none", "give images, at least 20")
        return self._anomalies.heatmaps.units(i)

    def frames(self, i: int) -> list[Frame]:
        """Returns frames (top, left, bottom, right) in [0, 1] around the anomalous regions of image i, at most a few."""
        return [] if self._anomalies is None or self._anomalies.heatmaps is None else self._anomalies.heatmaps.frames(i)

    def most_anomalous(self, n: int = 12) -> list[int]:
        """Returns at most n rows of ``items``, the most anomalous first, without those that a person marked before.

        Of an anomalous group there is the most central image alone.
        """
        order = np.argsort(-np.asarray(self.items["score"]), kind="stable")
        group, path = self.items["group"], self.items["path"]
        return [int(i) for i in order if group[i] in ("", path[i]) and self.marks.get(path[i], MARKS[2]) == MARKS[2]][:n]

    @cached_property
    def key(self) -> str:
        """Digest of the paths, by which a browser keeps a person's marks."""
        return content_digest("\0".join(self.items["path"]).encode(errors="surrogateescape")).hex()

    def feature_sets(self) -> Mapping[str, Floats]:
        """Returns -log p (N,) of each feature set; none where nothing was judged."""
        columns = {} if self._anomalies is None else self._anomalies.decisions.columns
        return {name.removeprefix(SET): values for name, values in columns.items() if name.startswith(SET)}

    def calibration(self) -> ReferenceScores | None:
        """Returns the reference items that calibrate; None where there are none."""
        return None if self._anomalies is None else self._anomalies.calibration

    def nearest(self) -> Sequence[str]:
        """Returns the name of the reference image that each image is compared with, (N,); empty where none are compared."""
        return () if self._anomalies is None else self._anomalies.nearest

    def pixels(self, i: int) -> Bytes:
        """Returns image i of ``items``, uint8 (C, H, W); a ValueError says why it cannot be read."""
        return self.images.read(int(self.features.index[i])).pixels

    def report(self, path: str | Path) -> Path:
        """Writes the page, one HTML file that loads nothing from elsewhere, and returns its path."""
        from vergence.images.page import write_check

        return write_check(Path(path), self)

    def write_heatmaps(self, folder: str | Path) -> Path:
        """Writes a PNG with the heatmap over the image for each one that is flagged or has a frame; returns the folder."""
        from vergence.images.page import write_heatmaps

        return write_heatmaps(Path(folder), self)

    def show(self, n: int = 12) -> "Shown":
        """Returns the most anomalous images, for a notebook."""
        from vergence.images.page import card_of

        return Shown([card_of(self, i) for i in self.most_anomalous(n)])

    def write(self, out: str | Path) -> Path:
        """Writes everything to a folder, and returns it; docs/guides/check.md lists the files."""
        folder = Path(out)
        with explained(folder, "choose another `out`"):
            folder.mkdir(parents=True, exist_ok=True)
        write_table(folder / "items.parquet", self.items.columns)
        tables = {"items": self.items, "duplicates": self.duplicates, "skipped": self.skipped, "remove": self.remove}
        normal = [os.path.relpath(path, folder) for path in normal_files(self.images, self.marks)]
        if self.reference is None:
            tables["normal"] = Table({"path": normal}) if normal else None
        for name, table in tables.items():
            if table is not None:
                paths = {key: [*map(named_path, table[key])] for key in PATHS if key in table.columns}
                write_table(folder / f"{name}.csv", {**table.columns, **paths})
            else:  # that of an earlier call says nothing of these images
                (folder / f"{name}.csv").unlink(missing_ok=True)
        with explained(folder, "free space and repeat the command"):
            with replacing(folder / "embeddings.npy") as part, part.open("wb") as file:
                np.save(file, self.embeddings)
            with replacing(folder / "summary.json") as part:
                part.write_text(json.dumps(self.summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")
        self.report(folder / "report.html")
        return folder

    @property
    def sentences(self) -> list[str]:
        """What was found, in sentences, the answer and its condition first."""
        return list(self.summary["sentences"])

    def _repr_html_(self) -> str:
        """Returns the sentences of the summary, and the first rows."""
        first = self.most_anomalous()
        shown = {name: [values[i] for i in first] for name, values in self.items.columns.items()}
        filled = {name: values for name, values in shown.items() if any(value == value and value != "" for value in values)}
        return paragraphs(self.sentences) + Table(filled)._repr_html_()

    def __repr__(self) -> str:
        """Returns the sentences of the summary."""
        return "\n".join(self.sentences)


@dataclass(frozen=True)
class Shown:
    """Images for a notebook."""

    cards: Sequence[Mapping[str, Any]]

    def _repr_html_(self) -> str:
        import html

        return "".join(
            f'<figure style="display:inline-block;margin:4px;width:140px;vertical-align:top"><img src="{card["image"]}" '
            f'style="max-width:128px"><figcaption>{html.escape(str(card["name"]))}<br>'
            f"{html.escape('; '.join(card['lines']))}</figcaption></figure>"
            for card in self.cards
        )


def result_of(
    source: str,
    images: ImageList,
    features: ImageFeatures,
    settings: CheckSettings,
    duplicates: Duplicates,
    anomalies: Anomalies | None,
    notes: Sequence[str],
    reference: ImageList | None = None,
    reference_features: ImageFeatures | None = None,
    leaked: Duplicates | None = None,
) -> CheckResult:
    """Returns the tables of what was found."""
    names, n = features.names, len(features)
    duplicates = duplicates.where(duplicates.agreement >= (settings.agreement or 0.0))
    leaked = leaked and leaked.where(leaked.agreement >= (settings.agreement or 0.0))
    measured = settings.only != ("duplicates",) and features.measurements.shape[1]
    named = properties(features.measurements, (reference_features or features).measurements) if measured else {}
    z: Array = features.vectors if features.vectors is not None and not features.whole.shape[1] else features.whole
    z = anomalies.embedding if anomalies is not None and anomalies.embedding.shape[1] else z  # by which neighbors are found
    pairs, leaks = _all_pairs(names, duplicates, leaked, [] if reference_features is None else reference_features.names)
    x, y = plane(z, settings.map).T
    groups = [] if anomalies is None else anomalies.groups
    heads = {i: names[int(members[0])] for members in groups for i in members.tolist()}
    marks = settings.review.marks()
    listed = np.array([heads.get(i, s) == s and marks.get(s) not in MARKS[:2] for i, s in enumerate(names)], dtype=bool)
    columns = {
        "path": list(names),
        **_judgment(anomalies, n),
        "reason": [""] * n if anomalies is None else _reasons(anomalies, is_gray(features.measurements).tolist(), listed),
        "group": [heads.get(i, "") for i in range(n)],
        "duplicate_of": _first_of(duplicates, names, features.index),
        "leak_of": [leaks.get(i, "") for i in range(n)],
        "measurements": ["; ".join(name for name, has in named.items() if has[i]) for i in range(n)],
        "boxes": _boxes(anomalies, features),
        "neighbors": _neighbors(z, names),
        "projection_x": x,
        "projection_y": y,
        **_labels(anomalies),
    }
    remove = None if settings.keep is None else _removed(duplicates, images, features, pairs)
    skipped = {"path": [s.name for s in images.skipped], "reason": [s.reason for s in images.skipped]}
    members_of = [[names[i] for i in members.tolist()] for members in groups]
    counts = {name: int(has.sum()) for name, has in named.items() if has.any()}
    kinds = _kinds(features, reference_features or features) if named else []
    normal = len(normal_files(images, marks)) if reference is None and anomalies is not None else 0
    notes = [*notes, *kinds, *_of_files(remove, normal)]
    summary = _summary(source, images, features, settings, duplicates, anomalies, reference, leaks, counts, members_of, notes)
    summary["sentences"] = [*map(terminal.wording, sentences_of(summary, pairs, skipped))]
    tables, z, workers = (Table(columns), Table(pairs), Table(skipped)), z.astype(np.float32), settings.workers
    return CheckResult(*tables, members_of, z, summary, images, features, anomalies, reference, workers, remove, marks)


def _all_pairs(
    names: Sequence[str], duplicates: Duplicates, leaked: Duplicates | None, others: Sequence[str]
) -> tuple[dict[str, list[Any]], dict[int, str]]:
    """Returns the columns of all pairs, and for each image that leaked the reference image that is surest its duplicate."""
    pairs = _pairs(duplicates, names, names, "same")
    if leaked is None:
        return pairs, {}
    other = _pairs(leaked, names, others, "reference")
    leaks = {i: others[j] for i, j in reversed(leaked.pairs.tolist())}  # the surest pair stays
    return {name: [*pairs[name], *other[name]] for name in pairs}, leaks


def normal_files(images: ImageList, marks: Mapping[str, str]) -> list[Path]:
    """Returns the files that were marked normal, if they are enough for a reference."""
    paths = [path for name, path in zip(images.names, images.paths, strict=True) if path and marks.get(name) == MARKS[1]]
    return paths if len(paths) >= REFERENCE else []


def _of_files(remove: Table | None, normal: int) -> list[str]:
    """Returns notes on the files remove.csv and normal.csv."""
    notes = [f"The {normal:,} images marked normal can be a reference: `against='normal.csv'`."] if normal else []
    lists = f"remove.csv lists {counted(len(remove), 'duplicate')} to remove" if remove is not None and len(remove) else ""
    return [f"{lists}; the best of each set stays. Nothing was deleted."] * bool(lists) + notes


def _judgment(anomalies: Anomalies | None, n: int) -> dict[str, Any]:
    """Returns the columns of what is flagged."""
    zeros, ones = np.zeros(n), np.ones(n)
    none = {"score": zeros, "p_value": ones, "q_value": ones, "flag": zeros.astype(np.uint8), "feature_set": [""] * n}
    return none if anomalies is None else {name: anomalies.decisions.columns[name] for name in none}


def _labels(anomalies: Anomalies | None) -> dict[str, Any]:
    """Returns the columns of labels."""
    if anomalies is None or anomalies.labels is None:
        return {}
    labels = anomalies.labels
    columns = {"label": labels.given, "label_other": labels.other, "label_score": labels.score}
    return {**columns, "label_flag": labels.flag.astype(np.uint8)}


def _kinds(features: ImageFeatures, reference: ImageFeatures) -> list[str]:
    """Returns notes on common properties, which single out no image, and on what splits the images in two: light or sizes."""
    n, common = len(reference), common_properties(reference.measurements)
    texts = [f"{count:,} of {n:,} {PROPERTIES[name]}" for name, count in common.items() if (name, count) != ("grayscale", n)]
    first = f"Common here, so not reported for each image: {', '.join(texts)}." if texts else ""
    count = Counter(zip(*features.measurements[:, [1, 0]].astype(int).T.tolist(), strict=True)).most_common()
    two = " and ".join(f"{n:,} of {w:,} x {h:,}" for (w, h), n in count) if len(count) == 2 and count[1][1] >= SIZE else ""
    return [*filter(None, [first, split_in_two(features.measurements, MEASUREMENTS), two and f"Two sizes: {two} pixels."])]


def _first_of(duplicates: Duplicates, names: Sequence[str], index: Ints) -> list[str]:
    """Returns for each image the first one in the source that it is a duplicate of; empty for none."""
    first = np.arange(len(names))
    for pair in duplicates.pairs.tolist():
        a, b = sorted(pair, key=lambda k: int(index[k]))
        first[b] = min(int(first[b]), a, key=lambda k: int(index[k]))
    return [names[int(k)] if int(k) != i else "" for i, k in enumerate(first)]


def _pairs(duplicates: Duplicates, names: Sequence[str], others: Sequence[str], source: str) -> dict[str, list[Any]]:
    first, second = (duplicates.pairs.T[::-1] if source == "same" else duplicates.pairs.T).tolist()
    return {
        "path": [names[k] for k in first],
        "duplicate_of": [others[k] for k in second],
        "kind": list(duplicates.kind),
        "agreement": duplicates.agreement.tolist(),
        "source": [source] * len(first),
    }


def _removed(duplicates: Duplicates, images: ImageList, features: ImageFeatures, pairs: dict[str, list[Any]]) -> Table:
    """Returns the images to remove; adds to the columns of all pairs which image to keep.

    Of each set of one label the largest image is kept, then the sharpest, then that of the largest file, then the first by name.
    """
    table, names = dict(zip(MEASUREMENTS, features.measurements.T, strict=True)), features.names
    paired = set(duplicates.pairs.ravel().tolist())
    size = np.array([images.bytes_of(i) if k in paired else 0 for k, i in enumerate(features.index.tolist())])
    first = -np.argsort(np.argsort(names))
    labels = features.labels or [""] * len(names)
    best = best_of_sets(duplicates, labels, table["height"] * table["width"], table["local_sharpness"], size, first)
    equal = features.digest == features.digest[best]
    rows = [(names[i], names[k], "exact" if equal[i] else "near") for i, k in enumerate(best.tolist()) if i != k]
    kept = {name: names[k] for name, k in zip(names, best.tolist(), strict=True)}
    same = zip(pairs["path"], pairs["kind"], pairs["source"], strict=True)
    pairs["keep"] = [kept[path] if kind in SAME and source == "same" else "" for path, kind, source in same]
    return Table({name: [row[k] for row in rows] for k, name in enumerate(("path", "keep", "kind"))})


def _boxes(anomalies: Anomalies | None, features: ImageFeatures) -> list[str]:
    """Returns the frames of each image in pixels of its file."""
    if anomalies is None or anomalies.heatmaps is None:
        return [""] * len(features)
    sides = features.measurements[:, [0, 1, 0, 1]].tolist()
    each = [[np.rint(np.multiply(frame, side)) for frame in anomalies.heatmaps.frames(i)] for i, side in enumerate(sides)]
    return ["; ".join(" ".join(f"{int(value)}" for value in box) for box in boxes) for boxes in each]


def _reasons(anomalies: Anomalies, gray: Sequence[bool], listed: Bools) -> list[str]:
    """Returns why each anomalous image is, from what adds most to its score; without a reference the first ``listed`` (N,)."""
    found, score = anomalies.decisions, anomalies.decisions.columns["score"]
    first = -np.sort(-score[listed])[: max(FIRST, math.ceil(RARE * len(score)))]
    told = found.flag | (score >= first.min(initial=np.inf) if anomalies.rate == "none" else found.p_value <= RARE)
    return [_reason(anomalies, i, gray=gray[i]) if tell else "" for i, tell in enumerate(told.tolist())]


def _reason(anomalies: Anomalies, i: int, *, gray: bool) -> str:
    name, heat = anomalies.decisions.columns["feature_set"][i], anomalies.heatmaps
    others = "the others" if anomalies.rate == "none" else "the reference"
    if name == "vectors":
        return f"its vector lies far from those of {others}"
    of = "reference images" if anomalies.calibration else "images"
    words = differences_in_words(anomalies.deviations[i], MEASUREMENTS[FILE:], gray=gray, others=of)
    if name == "measurements":
        return words or "its brightness, color, sharpness and noise together are unlike those of " + others
    if name == "whole" or heat is None:
        return words or f"its overall texture or layout differs from {others}"
    framed = heat.framed(i)
    where = "everywhere" if framed.mean() > EVERYWHERE else region_words(heat.values[i])
    if name == "difference":
        return " ".join(["differs from its reference image", *anomalies.nearest[i : i + 1], where])
    if where == "everywhere":
        return f"everywhere: {words or 'an unfamiliar texture'}"
    return f"an anomalous region {where}" if framed.any() else f"least like {others} {where}"


def _neighbors(z: Array, names: Sequence[str]) -> list[str]:
    """Returns the most similar other images, by features in units of their deviations."""
    k = min(NEIGHBORS, len(z) - 1)
    if k < 1 or len(z) > MOST_COMPARED or not z.shape[1]:
        return [""] * len(z)
    x = torch.from_numpy(standardized(z).astype(np.float32))
    return ["; ".join(names[j] for j in row) for row in nearest_others(x, k)[1].tolist()]


def _summary(
    source: str,
    images: ImageList,
    features: ImageFeatures,
    settings: CheckSettings,
    duplicates: Duplicates,
    anomalies: Anomalies | None,
    reference: ImageList | None,
    leaks: Mapping[int, str],
    counts: Mapping[str, int],
    groups: Sequence[Sequence[str]],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Returns ``summary.json``; docs/guides/check.md explains its entries."""
    calibration = None if anomalies is None else anomalies.calibration
    marks = [settings.review.marked(features.names, mark) for mark in ("anomaly", "normal")]
    middles = [] if anomalies is None else [np.median(anomalies.deviations[members], 0) for members in anomalies.groups]
    whys = [differences_in_words(one, MEASUREMENTS[FILE:]) if features.measurements.shape[1] else "" for one in middles]
    changes = Counter(one for text in features.changes.tolist() for one in text.split("; ") if one)
    return {
        "version": __version__,
        "source": source,
        "noun": "image" if features.measurements.shape[1] else "vector",
        "images": len(features),
        "unreadable": sum(one.reason != AGAIN for one in images.skipped),
        "ignored": dict(images.ignored),
        "reference": None if reference is None else len(reference),
        "encoder": settings.encoder,
        "feature_sets": {} if anomalies is None else {name: round(w, 4) for name, w in anomalies.weights.items()},
        "input": _input(features, settings, anomalies),
        "judged": anomalies is not None,
        "only": list(settings.only),
        "fdr": settings.fdr,
        "rate": "none" if anomalies is None else anomalies.rate,
        "calibration": None if calibration is None else len(calibration),
        "examples": 0 if calibration is None else calibration.examples,
        "grouped": "" if calibration is None else calibration.grouped,
        "reference_anomalies": [] if anomalies is None else anomalies.in_reference,
        "flagged_without": 0 if anomalies is None else anomalies.flagged_without(*marks),
        "total": 0 if anomalies is None else anomalies.decisions.total,
        "confirmed": int((marks[0] if calibration is None else marks[0] & ~calibration.seen).sum()),
        "beyond": 0 if anomalies is None else anomalies.beyond(marks[0]),
        "expected": 0.0 if anomalies is None else round(anomalies.expected, 4),
        "flagged": 0 if anomalies is None else anomalies.decisions.flagged,
        "region_rate": settings.region_rate,
        "groups": [{"like": one[0], "images": len(one), "why": why} for one, why in zip(groups, whys, strict=True)],
        "duplicates": {kind: duplicates.kind.count(kind) for kind in dict.fromkeys(duplicates.kind)},
        "leaked": len(leaks),
        "labels": _label_summary(features, anomalies, duplicates),
        "properties": dict(counts),
        "changes": {terminal.wording(text): n for text, n in changes.items()},
        "notes": list(notes),
    }


def _label_summary(features: ImageFeatures, anomalies: Anomalies | None, duplicates: Duplicates) -> dict[str, Any] | None:
    """Returns how many labels fit, the first images whose label fits least, and duplicates whose labels are different."""
    if anomalies is None or (labels := anomalies.labels) is None:
        return None
    judged = np.isfinite(labels.score)
    told = labels.flag if labels.flag.any() else labels.beyond if labels.compared else labels.score > 0
    first = [i for i in np.argsort(-labels.score, kind="stable").tolist() if told[i]]
    both = [sorted(pair, key=lambda k: features.names[k]) for pair in duplicates.pairs.tolist()]
    return {
        "images": int(judged.sum()),
        "unjudged": int((~judged).sum()),
        "better": int((labels.score > 0).sum()),
        "flagged": int(labels.flag.sum()),
        "compared": labels.compared,
        "beyond": int(labels.beyond.sum()),
        "expected": round(labels.expected, 4),
        "first": [[features.names[i], labels.given[i], labels.other[i]] for i in (first if labels.compared else first[:FIRST])],
        "unlike": [[features.names[i], features.names[j]] for i, j in both if labels.given[i] != labels.given[j]],
    }


def _input(features: ImageFeatures, settings: CheckSettings, anomalies: Anomalies | None) -> str:
    """Returns how many items were read, and at which sizes images were judged."""
    if not features.measurements.shape[1]:
        return counted(len(features), "vector")
    height, width = (features.measurements[:, k] for k in (0, 1))
    order = np.lexsort((width, height * width))
    sizes = " to ".join(dict.fromkeys(f"{int(width[i]):,} x {int(height[i]):,}" for i in order[[0, -1]]))
    reduced = anomalies is not None and (np.minimum(height, width) > settings.size).any()
    at = f"regions at {settings.size} pixels of the shorter side" if reduced else "at full size"
    return f"{counted(len(features), 'image')} ({sizes} pixels), uncropped, {at}"
