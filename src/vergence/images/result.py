"""What `check` found: one table of items, groups, copies and a summary, in memory and as files."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vergence.data.pictures import Pictures
from vergence.decide.conformal import simultaneous_bounds
from vergence.decide.decisions import Decisions
from vergence.images.duplicates import Duplicates
from vergence.images.features import FILE, NETWORK, ImageFeatures
from vergence.images.frozen import FrozenNetwork
from vergence.images.measurements import MEASUREMENTS, PROPERTIES, differences_in_words, properties, typical_properties
from vergence.images.plane import PLANES, plane, standardized
from vergence.images.regions import region_words
from vergence.images.review import Review
from vergence.images.scores import ReferenceScores
from vergence.images.sentences import sentences_of
from vergence.utils.checks import counted, expect, refuse, require_count, require_within
from vergence.utils.digests import content_digest
from vergence.utils.files import explained, replacing
from vergence.utils.neighbors import nearest_others
from vergence.utils.parts import write_table
from vergence.utils.terminal import Table
from vergence.utils.version import __version__

__all__ = ["CheckResult"]

Embed = Callable[[Tensor], Tensor]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NEIGHBORS = 5
MOST_COMPARED = 50_000  # pictures whose neighbors are looked for among all
FRAMES = 5  # of a picture, at most
UNUSUAL = -math.log(0.1)  # score from which on reasons are given
ENCODER, PATCHES = "auto", "patches"
LEVEL = "level "  # before the name of a level, among columns


@dataclass(frozen=True)
class CheckSettings:
    """How pictures are judged.

    Attributes:
        size: Pixels of the shorter side at which places are looked at, at most; pictures are never enlarged or cropped.
        fdr: False-discovery rate of the flags, in (0, 1).
        mark: Share of ordinary pictures in which a place is marked, at most, in (0, 1).
        workers: Processes that read pictures.
        review: What a person said of pictures before.
        map: How the map of all pictures is made, one of `vergence.images.plane.PLANES`.
        network: Network whose places and embedding are judged; None for patches.
        embed: What gives embeddings, where ``network`` does not.
        encoder: What the encoder is called, and the license of its weights.
    """

    size: int = 256
    fdr: float = 0.1
    mark: float = 0.05
    workers: int = 2
    review: Review = field(default_factory=Review)
    map: str = "tsne"
    network: FrozenNetwork | None = None
    embed: Embed | None = None
    encoder: str = PATCHES

    @property
    def kept(self) -> int:
        """Pixels of the shorter side of the images that later steps read, at most."""
        return self.size if self.network is None else round(NETWORK * self.size)

    @property
    def with_network(self) -> bool:
        """Whether anything but patches gives features."""
        return self.network is not None or self.embed is not None

    def __post_init__(self) -> None:
        require_count(8, 4096, size=self.size)
        require_within("(0, 1)", fdr=self.fdr, mark=self.mark)
        require_count(0, workers=self.workers)
        expect(self.map in PLANES, " or ".join(PLANES), self.map, "choose another --map")


@dataclass(frozen=True)
class Heatmaps:
    """Heatmaps (N, 32, 32), and the value above which a region is framed; infinity where there are too few images for one."""

    values: npt.NDArray[np.float32]
    threshold: float

    def units(self, i: int) -> Floats:
        """Returns heatmap i: above 1 a region is framed, or above the largest value of the median image."""
        unit = float(np.median(self.values.max((1, 2)))) if math.isinf(self.threshold) else self.threshold
        return np.asarray(np.exp(self.values[i].astype(np.float64) - unit))

    def framed(self, i: int) -> npt.NDArray[np.bool_]:
        """Returns which cells (32, 32) of image i are framed."""
        return np.asarray(self.values[i] > self.threshold)


@dataclass(frozen=True)
class Anomalies:
    """What is anomalous among N items.

    Attributes:
        decisions: What is flagged, with the columns ``score``, ``level``, and -log p of each level.
        deviations: Robust deviations (N, M') of the measurements, or of the numbers of vectors.
        heatmaps: Where the images are anomalous; None for vectors.
        embedding: Features (N, D) by which neighbors are found.
        groups: Members of anomalous groups, the most central first.
        calibration: Reference items that calibrate; None where none do.
        nearest: Name of the reference image that each image is compared with; empty where images are not compared.
    """

    decisions: Decisions
    deviations: Floats
    heatmaps: Heatmaps | None
    embedding: npt.NDArray[np.float32]
    groups: Sequence[Ints]
    calibration: ReferenceScores | None
    nearest: Sequence[str] = ()


@dataclass(frozen=True)
class CheckResult:
    """What was found among pictures.

    Attributes:
        items: One row for each picture that could be read:

            - ``path``; ``score`` in nats; ``p_value``; ``q_value``, the least false-discovery rate at which
              the picture is reported; ``flag``, 1 if it is; ``level`` that says so, and ``reason`` in words.
            - ``group``, the most central picture of its unusual group; ``duplicate_of``, the first picture that
              it is a copy of; ``leak_of``, the picture of the other source that it is a copy of; empty for none.
            - ``measurements``: plain properties such as ``dark``; ``neighbors``, the most similar pictures, each after the
              other by ``; ``; ``projection_x`` and ``projection_y``, its place on the map.
        copies: Pairs of copies: ``path``, ``copy_of``, ``kind``, ``agreement``, and ``other`` whether it is of the other source.
        skipped: ``path`` and ``reason`` of what could not be read.
        groups: Unusual groups: the members' paths, the most central first.
        embeddings: Features (N, D) by which neighbors were found, float32.
        summary: What was done and found, as numbers and sentences, as in ``summary.json``.
        pictures, known: The source, and the other one where there is one.
        features: What the first look at each item told.
    """

    items: Table
    copies: Table
    skipped: Table
    groups: list[list[str]]
    embeddings: npt.NDArray[np.float32]
    summary: dict[str, Any]
    pictures: Pictures = field(repr=False)
    features: ImageFeatures = field(repr=False)
    _anomalies: Anomalies | None = field(repr=False)
    known: Pictures | None = field(repr=False, default=None)
    workers: int = field(repr=False, default=0)
    _reviewed: frozenset[str] = field(repr=False, default=frozenset())  # pictures that a person has looked at before

    def map(self, i: int) -> Floats:
        """Returns how anomalous each cell of image i of ``items`` is, (32, 32): above 1 a region is framed.

        The unit is the threshold of ``mark``; with too few images for one, the most anomalous cell of the median image.

        Raises:
            ValueError: The images were not judged.
        """
        if self._anomalies is None or self._anomalies.heatmaps is None:
            refuse("pictures that were judged", "none", "give pictures, at least 20")
        return self._anomalies.heatmaps.units(i)

    def marked(self, i: int) -> list[tuple[float, float, float, float]]:
        """Returns frames (top, left, bottom, right) in [0, 1] around the anomalous regions of image i, at most a few."""
        from scipy import ndimage

        if self._anomalies is None or self._anomalies.heatmaps is None:
            return []
        m = self._anomalies.heatmaps.values[i]
        found = ndimage.find_objects(ndimage.label(self._anomalies.heatmaps.framed(i), structure=np.ones((3, 3)))[0])
        (r, c), first = m.shape, sorted(found, key=lambda part: -m[part].max())[:FRAMES]
        return [(a.start / r, b.start / c, a.stop / r, b.stop / c) for a, b in first]

    def strangest(self, n: int = 12) -> list[int]:
        """Returns at most n rows of ``items``, the most unusual first, without those that a person has looked at before.

        Of an unusual group there is the most central picture alone.
        """
        order = np.argsort(-np.asarray(self.items["score"]), kind="stable")
        group, path = self.items["group"], self.items["path"]
        return [int(i) for i in order if group[i] in ("", path[i]) and path[i] not in self._reviewed][:n]

    @cached_property
    def key(self) -> str:
        """Digest of the paths, by which a browser keeps what a person said."""
        return content_digest("\0".join(self.items["path"]).encode(errors="surrogateescape")).hex()

    def levels(self) -> Mapping[str, Floats]:
        """Returns -log p (N,) of each level; none where nothing was judged."""
        columns = {} if self._anomalies is None else self._anomalies.decisions.columns
        return {name.removeprefix(LEVEL): values for name, values in columns.items() if name.startswith(LEVEL)}

    def calibration(self) -> ReferenceScores | None:
        """Returns the known items that calibrate; None where there are none."""
        return None if self._anomalies is None else self._anomalies.calibration

    def bounds(self, most: int = 2_000) -> list[float] | None:
        """Returns how many of the k most unusual items are ordinary, k = 1..most, at most: all at once with 95 % confidence.

        None where the items are judged by themselves: there is only an estimate.
        """
        if (calibration := self.calibration()) is None:
            return None
        p = np.asarray(self.items["p_value"], dtype=np.float64)[~calibration.seen]
        share = simultaneous_bounds(p, len(calibration)).by_length()[:most] if len(p) else np.zeros(0)
        return [round(value, 2) for value in (share * np.arange(1, len(share) + 1)).tolist()]

    def pixels(self, i: int) -> npt.NDArray[np.uint8]:
        """Returns picture i of ``items``, uint8 (C, H, W); a ValueError says why it cannot be read."""
        return self.pictures.read(int(self.features.index[i])).pixels

    def report(self, path: str | Path) -> Path:
        """Writes the page, one HTML file that loads nothing from elsewhere, and returns its path."""
        from vergence.images.page import write_check

        return write_check(Path(path), self)

    def show(self, n: int = 12) -> "Shown":
        """Returns the most unusual pictures, for a notebook."""
        from vergence.images.page import cards_of

        return Shown(cards_of(self, self.strangest(n)))

    def write(self, out: str | Path) -> Path:
        """Writes everything to a folder, and returns it; docs/guides/check.md lists the files."""
        folder = Path(out)
        with explained(folder, "choose another --out"):
            folder.mkdir(parents=True, exist_ok=True)
        for name, table in (("items.parquet", self.items), ("items.csv", self.items), ("copies.csv", self.copies)):
            write_table(folder / name, table.columns)
        write_table(folder / "skipped.csv", self.skipped.columns)
        with explained(folder, "free space and repeat the command"):
            with replacing(folder / "embeddings.npy") as part, part.open("wb") as file:
                np.save(file, self.embeddings)
            with replacing(folder / "summary.json") as part:
                part.write_text(json.dumps(self.summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")
        self.report(folder / "report.html")
        return folder

    def _repr_html_(self) -> str:
        """Returns the sentences of the summary, and the first rows."""
        import html

        paragraphs = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.summary["sentences"])
        return paragraphs + self.items._repr_html_()


@dataclass(frozen=True)
class Shown:
    """Pictures for a notebook."""

    cards: Sequence[Mapping[str, Any]]

    def _repr_html_(self) -> str:
        import html

        return "".join(
            f'<figure style="display:inline-block;margin:4px;width:140px;vertical-align:top"><img src="{card["picture"]}" '
            f'style="max-width:128px"><figcaption>{html.escape(str(card["name"]))}<br>'
            f"{html.escape('; '.join(card['lines']))}</figcaption></figure>"
            for card in self.cards
        )


def result_of(
    source: str,
    pictures: Pictures,
    features: ImageFeatures,
    settings: CheckSettings,
    copies: Duplicates,
    anomalies: Anomalies | None,
    notes: Sequence[str],
    known: Pictures | None = None,
    reference_features: ImageFeatures | None = None,
    leaked: Duplicates | None = None,
) -> CheckResult:
    """Returns the tables of what was found."""
    names, n = features.names, len(features)
    named = _properties(features, reference_features)
    leak = [""] * n if leaked is None or reference_features is None else _leaks(leaked, reference_features.names, n)
    z = _embedding(features, anomalies)
    x, y = plane(z, settings.map).T
    groups = [] if anomalies is None else anomalies.groups
    group = [""] * n
    for members in groups:
        for i in members.tolist():
            group[i] = names[int(members[0])]
    columns = {
        "path": list(names),
        **_judgment(anomalies, n),
        "reason": [""] * n if anomalies is None else _reasons(anomalies),
        "group": group,
        "duplicate_of": _first_of(copies, names, features.index),
        "leak_of": leak,
        "measurements": ["; ".join(name for name, has in named.items() if has[i]) for i in range(n)],
        "neighbors": _neighbors(z, names),
        "projection_x": x,
        "projection_y": y,
    }
    pairs = _pairs(copies, names, names, "no")
    if leaked is not None and reference_features is not None:
        other = _pairs(leaked, names, reference_features.names, "yes")
        pairs = {name: [*pairs[name], *other[name]] for name in pairs}
    skipped = {"path": [s.name for s in pictures.skipped], "reason": [s.reason for s in pictures.skipped]}
    members_of = [[names[i] for i in members.tolist()] for members in groups]
    counts = {name: int(has.sum()) for name, has in named.items() if has.any()}
    notes = [*_typical(reference_features or features), *notes]
    summary = _summary(source, pictures, features, settings, copies, anomalies, known, leak, counts, members_of, notes)
    summary["sentences"] = sentences_of(summary, pairs, skipped)
    tables = Table(columns), Table(pairs), Table(skipped)
    reviewed, z = frozenset([*settings.review.odd, *settings.review.fine]), z.astype(np.float32)
    return CheckResult(*tables, members_of, z, summary, pictures, features, anomalies, known, settings.workers, reviewed)


def _judgment(anomalies: Anomalies | None, n: int) -> dict[str, Any]:
    """Returns the columns of what is flagged."""
    zeros, ones = np.zeros(n), np.ones(n)
    none = {"score": zeros, "p_value": ones, "q_value": ones, "flag": zeros.astype(np.uint8), "level": [""] * n}
    return none if anomalies is None else {name: anomalies.decisions.columns[name] for name in none}


def _properties(features: ImageFeatures, known: ImageFeatures | None) -> dict[str, npt.NDArray[np.bool_]]:
    if not features.measurements.shape[1]:
        return {}
    return properties(features.measurements, None if known is None else known.measurements)


def _typical(usual: ImageFeatures) -> list[str]:
    """Returns what is said of properties that are usual here, which mark no single image; nothing where all are gray."""
    n, found = len(usual), typical_properties(usual.measurements) if usual.measurements.shape[1] else {}
    texts = [f"{count:,} of {n:,} {PROPERTIES[name]}" for name, count in found.items() if (name, count) != ("grayscale", n)]
    return [f"Typical here, so not marked: {', '.join(texts)}."] if texts else []


def _embedding(features: ImageFeatures, anomalies: Anomalies | None) -> npt.NDArray[Any]:
    """Returns the features by which neighbors are found."""
    if anomalies is not None and anomalies.embedding.shape[1]:
        return anomalies.embedding
    return features.vectors if features.vectors is not None and not features.whole.shape[1] else features.whole


def _first_of(copies: Duplicates, names: Sequence[str], index: Ints) -> list[str]:
    """Returns for each picture the first one in the source that it is a copy of; empty for none."""
    first = np.arange(len(names))
    for pair in copies.pairs.tolist():
        a, b = sorted(pair, key=lambda k: int(index[k]))
        first[b] = min(int(first[b]), a, key=lambda k: int(index[k]))
    return [names[int(k)] if int(k) != i else "" for i, k in enumerate(first)]


def _leaks(leaked: Duplicates, names: Sequence[str], n: int) -> list[str]:
    leak = [""] * n
    for i, j in reversed(leaked.pairs.tolist()):  # the surest pair comes last and stays
        leak[i] = names[j]
    return leak


def _pairs(copies: Duplicates, names: Sequence[str], others: Sequence[str], other: str) -> dict[str, list[Any]]:
    i, j = copies.pairs[:, 0].tolist(), copies.pairs[:, 1].tolist()
    first, second = (j, i) if other == "no" else (i, j)
    return {
        "path": [names[k] for k in first],
        "copy_of": [others[k] for k in second],
        "kind": list(copies.kind),
        "agreement": copies.agreement.tolist(),
        "other": [other] * len(first),
    }


def _reasons(anomalies: Anomalies) -> list[str]:
    """Returns why each unusual picture is unusual, in words."""
    told = anomalies.decisions.flag | (anomalies.decisions.columns["score"] >= UNUSUAL)
    return [_reason(anomalies, i) if tell else "" for i, tell in enumerate(told.tolist())]


def _reason(anomalies: Anomalies, i: int) -> str:
    level = anomalies.decisions.columns["level"][i]
    if level in ("places", "regions", "difference") and anomalies.heatmaps is not None:
        return f"an anomalous region {region_words(anomalies.heatmaps.values[i])}"
    if level == "group":
        return "one of a group that lies apart"
    if level.endswith(("vectors", "embedding")):
        return "its embedding lies far from those of the others"
    words = differences_in_words(anomalies.deviations[i], MEASUREMENTS[FILE:])
    return words if level == "measurements" else f"an unusual layout: {words}"


def _neighbors(z: npt.NDArray[Any], names: Sequence[str]) -> list[str]:
    """Returns the most similar other pictures, by features in units of their deviations."""
    k = min(NEIGHBORS, len(z) - 1)
    if k < 1 or len(z) > MOST_COMPARED:
        return [""] * len(z)
    x = torch.from_numpy(standardized(z).astype(np.float32))
    return ["; ".join(names[j] for j in row) for row in nearest_others(x, k)[1].tolist()]


def _summary(
    source: str,
    pictures: Pictures,
    features: ImageFeatures,
    settings: CheckSettings,
    copies: Duplicates,
    anomalies: Anomalies | None,
    known: Pictures | None,
    leak: Sequence[str],
    counts: Mapping[str, int],
    groups: Sequence[Sequence[str]],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Returns ``summary.json``; docs/guides/check.md explains its entries."""
    changes = Counter(one for text in features.changes.tolist() for one in text.split("; ") if one)
    return {
        "version": __version__,
        "source": source,
        "noun": "picture" if features.measurements.shape[1] else "vector",
        "pictures": len(features),
        "unreadable": len(pictures.skipped),
        "ignored": dict(pictures.ignored),
        "known": None if known is None else len(known),
        "encoder": settings.encoder,
        "looked": _looked(features, settings, anomalies),
        "judged": anomalies is not None,
        "fdr": settings.fdr,
        "rate": "none" if anomalies is None else "estimate" if anomalies.calibration is None else "split conformal",
        "calibration": None if anomalies is None or anomalies.calibration is None else len(anomalies.calibration),
        "flagged": 0 if anomalies is None else anomalies.decisions.flagged,
        "mark": settings.mark,
        "groups": [{"like": group[0], "pictures": len(group)} for group in groups],
        "copies": {kind: copies.kind.count(kind) for kind in dict.fromkeys(copies.kind)},
        "leaks": sum(map(bool, leak)),
        "properties": dict(counts),
        "changes": dict(changes),
        "notes": list(notes),
    }


def _looked(features: ImageFeatures, settings: CheckSettings, anomalies: Anomalies | None) -> str:
    """Returns at which size and which part the pictures were judged."""
    if not features.measurements.shape[1]:
        return f"{counted(len(features), 'vector')}, judged as they are"
    height, width = (features.measurements[:, k] for k in (0, 1))
    order = np.lexsort((width, height * width))
    sizes = " to ".join(dict.fromkeys(f"{int(width[i]):,} x {int(height[i]):,}" for i in order[[0, -1]]))
    whole = f"{counted(len(features), 'picture')} of {sizes} pixels, looked at as a whole: measured at full size"
    if anomalies is None:
        return whole
    reduced = int((np.minimum(height, width) > settings.size).sum())
    at = f"at {settings.size} pixels of the shorter side" if reduced else "at full size, too"
    return f"{whole}, places {at}"
