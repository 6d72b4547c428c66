"""What `check` found: one table of items, groups, copies and a summary, in memory and as files beside each other."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from vergence.data.pictures import Pictures
from vergence.densities.moments import leading
from vergence.detection.copies import Copies
from vergence.detection.measurements import MEASUREMENTS, in_words, properties
from vergence.detection.places import place_words
from vergence.runs.looks import PlaceLook
from vergence.utils.checks import counted, expect
from vergence.utils.files import explained, replacing
from vergence.utils.neighbors import nearest_others
from vergence.utils.parts import write_table
from vergence.utils.terminal import Tabular
from vergence.utils.version import __version__

if TYPE_CHECKING:
    from vergence.runs.check import Settings

__all__ = ["Checked", "Columns", "Judged", "Looks", "Places", "checked"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FILE = 4  # measurements that describe a file; the others describe what it shows
NEIGHBORS = 5
MOST_COMPARED = 50_000  # pictures whose neighbors are looked for among all
KINDS = {"equal": "equal", "near": "nearly equal"}
AT_LEAST = 2  # robust deviations that are named


@dataclass(frozen=True)
class Looks:
    """What the first look at N pictures told.

    Attributes:
        index: Their number in the source, (N,).
        names: Their names.
        vectors: Embeddings (N, D) that were given; None for none.
        digest: Digests of their content, (N,).
        changes: What was done to each so that it looks as in a viewer.
        measurements: Table (N, M) of `vergence.detection.measurements.measure`.
        whole: Statistics of each as a whole, (N, 115).
        small: What copies are compared by, (N, ...).
    """

    index: Ints
    names: list[str]
    vectors: Floats | None
    digest: Ints
    changes: npt.NDArray[Any]
    measurements: Floats
    whole: npt.NDArray[np.float32]
    small: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.names)

    def levels(self) -> dict[str, Floats]:
        """Returns features (N, D) by the name of their level."""
        levels = {"measurements": self.measurements[:, FILE:], "whole": self.whole.astype(np.float64)}
        return levels if self.vectors is None else {**levels, "vectors": self.vectors}


@dataclass(frozen=True)
class Places:
    """What the maps of N pictures say: score (N,), largest value (N,), where it is (N, 2) in [0, 1], and mean features (N, D)."""

    score: Floats
    largest: Floats
    where: Floats
    embedding: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Judged:
    """Scores (N,), p-values, q-values, flags and levels of N pictures.

    Attributes:
        deviations: Robust deviations (N, M') of the measurements from what is usual.
        places: What the maps say.
        look: What computes a map.
        threshold: Value of a map above which a place is marked.
        groups: Members of odd groups, the most central first.
        fitted: Different pictures that were fitted to.
        calibration: Known pictures that calibrate; None where the pictures are judged by themselves.
    """

    score: Floats
    p: Floats
    q: Floats
    flag: npt.NDArray[np.bool_]
    level: Sequence[str]
    deviations: Floats
    places: Places
    look: PlaceLook
    threshold: float
    groups: Sequence[Ints]
    fitted: int
    calibration: int | None


@dataclass(frozen=True)
class Columns(Tabular):
    """A table by its columns.

    Example:
        >>> Columns({"path": ["a.png"], "score": [1.5]})["score"]
        [1.5]
    """

    columns: Mapping[str, Sequence[Any]]

    def table(self) -> Mapping[str, Sequence[Any]]:
        """Returns the columns by name."""
        return self.columns

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))


@dataclass(frozen=True)
class Checked:
    """What was found among pictures.

    Attributes:
        items: One row for each picture that could be read:

            - ``path``; ``score`` in nats, larger is odder; ``p_value``; ``q_value``, the least false-discovery rate at which
              the picture is reported; ``flag``, 1 if it is; ``level`` that says so, and ``reason`` in words.
            - ``group``, the most central picture of the odd group that it belongs to; ``duplicate_of``, the first picture that
              it is a copy of; ``leak_of``, the picture of the other source that it is a copy of; empty for none.
            - ``measurements``: plain properties such as ``dark``; ``neighbors``, the most similar pictures, each after the
              other by ``; ``; ``projection_x`` and ``projection_y``, two principal directions of the embedding.
        copies: Pairs of copies: ``path``, ``copy_of``, ``kind``, ``agreement``, and ``other`` whether it is of the other source.
        skipped: ``path`` and ``reason`` of what could not be read.
        groups: Odd groups: the members' paths, the most central first.
        embeddings: Features (N, D) by which neighbors were found, float32.
        summary: What was done and found, as numbers and sentences, as in ``summary.json``.
    """

    items: Columns
    copies: Columns
    skipped: Columns
    groups: list[list[str]]
    embeddings: npt.NDArray[np.float32]
    summary: dict[str, Any]
    _pictures: Pictures = field(repr=False)
    _numbers: Ints = field(repr=False)
    _judged: Judged | None = field(repr=False)

    def map(self, i: int) -> Floats:
        """Returns how odd each cell of picture i of ``items`` is, (r, c), in units of the threshold: above 1 it is marked.

        Raises:
            ValueError: The pictures were not judged, or the picture cannot be read anymore.
        """
        judged = self._judged
        expect(judged is not None, "pictures that were judged", "only copies", "give more pictures, or leave out leaks")
        assert judged is not None
        m, _ = judged.look.map(self._pictures.read(int(self._numbers[i])))
        d = np.exp(m)
        return d if math.isinf(judged.threshold) else np.asarray(np.exp(m - judged.threshold))

    def strangest(self, n: int = 12) -> list[int]:
        """Returns at most n rows of ``items``, the oddest first; of an odd group the most central picture alone."""
        order = np.argsort(-np.asarray(self.items["score"]), kind="stable")
        group, path = self.items["group"], self.items["path"]
        return [int(i) for i in order if not group[i] or group[i] == path[i]][:n]

    def pixels(self, i: int) -> npt.NDArray[np.uint8]:
        """Returns picture i of ``items``, uint8 (C, H, W)."""
        return self._pictures.read(int(self._numbers[i])).pixels

    def report(self, path: str | Path) -> Path:
        """Writes the page, one HTML file that loads nothing from elsewhere, and returns its path."""
        from vergence.report.check import write_check

        return write_check(Path(path), self)

    def show(self, n: int = 12) -> "Shown":
        """Returns the oddest pictures, for a notebook."""
        from vergence.report.check import cards_of

        return Shown(cards_of(self, self.strangest(n)))

    def write(self, out: str | Path) -> Path:
        """Writes ``items.parquet``, ``items.csv``, ``copies.csv``, ``skipped.csv``, ``embeddings.npy``, ``summary.json`` and
        ``report.html`` to a folder, and returns it."""
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

        said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.summary["sentences"])
        return said + self.items._repr_html_()


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


def checked(
    pictures: Pictures,
    looks: Looks,
    settings: "Settings",
    copies: Copies,
    judged: Judged | None,
    known: Pictures | None,
    known_looks: Looks | None,
    leaked: Copies | None,
    notes: Sequence[str],
) -> Checked:
    """Returns the tables of what was found."""
    names, n = looks.names, len(looks)
    named = properties(looks.measurements, None if known_looks is None else known_looks.measurements)
    duplicate = _first_of(copies, names, looks.index)
    leak = [""] * n if leaked is None or known_looks is None else _leaks(leaked, known_looks.names, n)
    z = looks.whole if judged is None else judged.places.embedding
    x, y = _projection(z)
    group = [""] * n
    for members in () if judged is None else judged.groups:
        for i in members.tolist():
            group[i] = names[int(members[0])]
    columns: dict[str, Any] = {
        "path": names,
        "score": np.zeros(n) if judged is None else judged.score,
        "p_value": np.ones(n) if judged is None else judged.p,
        "q_value": np.ones(n) if judged is None else judged.q,
        "flag": np.zeros(n, dtype=np.uint8) if judged is None else judged.flag.astype(np.uint8),
        "level": [""] * n if judged is None else list(judged.level),
        "reason": [""] * n if judged is None else _reasons(judged, pictures, looks),
        "group": group,
        "duplicate_of": duplicate,
        "leak_of": leak,
        "measurements": ["; ".join(name for name, has in named.items() if has[i]) for i in range(n)],
        "neighbors": _neighbors(z, names),
        "projection_x": x,
        "projection_y": y,
    }
    pairs = _pairs(copies, names, names, "no")
    if leaked is not None and known_looks is not None:
        other = _pairs(leaked, names, known_looks.names, "yes")
        pairs = {name: [*pairs[name], *other[name]] for name in pairs}
    skipped = {"path": [s.name for s in pictures.skipped], "reason": [s.reason for s in pictures.skipped]}
    groups = [] if judged is None else [[names[i] for i in members.tolist()] for members in judged.groups]
    summary = _summary(pictures, looks, settings, copies, judged, known, leak, named, groups, notes)
    if judged is None:
        columns["level"] = [""] * n
    return Checked(
        Columns(columns), Columns(pairs), Columns(skipped), groups, z.astype(np.float32), summary, pictures, looks.index, judged
    )


def _first_of(copies: Copies, names: Sequence[str], index: Ints) -> list[str]:
    """Returns for each picture the first one in the source that it is a copy of; empty for none."""
    first = np.arange(len(names))
    for i, j in copies.pairs.tolist():
        a, b = sorted((i, j), key=lambda k: int(index[k]))
        first[b] = min(int(first[b]), a, key=lambda k: int(index[k]))
    return [names[int(k)] if int(k) != i else "" for i, k in enumerate(first)]


def _leaks(leaked: Copies, names: Sequence[str], n: int) -> list[str]:
    leak = [""] * n
    for i, j in reversed(leaked.pairs.tolist()):  # the surest pair comes last and stays
        leak[i] = names[j]
    return leak


def _pairs(copies: Copies, names: Sequence[str], others: Sequence[str], other: str) -> dict[str, list[Any]]:
    i, j = copies.pairs[:, 0].tolist(), copies.pairs[:, 1].tolist()
    first, second = (j, i) if other == "no" else (i, j)
    return {
        "path": [names[k] for k in first],
        "copy_of": [others[k] for k in second],
        "kind": list(copies.kind),
        "agreement": copies.agreement.tolist(),
        "other": [other] * len(first),
    }


def _reasons(judged: Judged, pictures: Pictures, looks: Looks) -> list[str]:
    """Returns why each unusual picture is unusual, in words."""
    names, reasons = MEASUREMENTS[FILE:], []
    for i, level in enumerate(judged.level):
        if not judged.flag[i] and judged.p[i] > 0.1:
            reasons.append("")
        elif level == "places":
            reasons.append(f"an unusual place {_where(judged.places.where[i])}")
        elif level == "vectors":
            reasons.append("an unusual vector")
        else:
            said = in_words(judged.deviations[i], names)
            reasons.append(said if level == "measurements" else f"an unusual layout: {said}")
    return reasons


def _where(place: Floats) -> str:
    grid = np.zeros((3, 3))
    grid[min(2, int(3 * place[0])), min(2, int(3 * place[1]))] = 1
    return place_words(grid)


def _neighbors(z: npt.NDArray[Any], names: Sequence[str]) -> list[str]:
    """Returns the most similar other pictures, by features in units of their deviations."""
    k = min(NEIGHBORS, len(z) - 1)
    if k < 1 or len(z) > MOST_COMPARED:
        return [""] * len(z)
    x = torch.from_numpy(_standardized(z))
    return ["; ".join(names[j] for j in row) for row in nearest_others(x, k)[1].tolist()]


def _standardized(z: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    deviation = z.std(0, dtype=np.float64)
    return np.asarray((z - z.mean(0)) / np.maximum(deviation, 1e-6), dtype=np.float32)


def _projection(z: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Returns the two leading principal components of features."""
    if len(z) < 3:
        return np.zeros(len(z)), np.zeros(len(z))
    two = leading(torch.from_numpy(_standardized(z)).double(), 2).numpy()
    return two[:, 0], two[:, 1] if two.shape[1] > 1 else np.zeros(len(z))


def _summary(
    pictures: Pictures,
    looks: Looks,
    settings: "Settings",
    copies: Copies,
    judged: Judged | None,
    known: Pictures | None,
    leak: Sequence[str],
    named: Mapping[str, npt.NDArray[np.bool_]],
    groups: Sequence[Sequence[str]],
    notes: Sequence[str],
) -> dict[str, Any]:
    sides = looks.measurements[:, :2].min(1)
    changes: dict[str, int] = {}
    for change in "; ".join(filter(None, looks.changes.tolist())).split("; "):
        if change:
            changes[change] = changes.get(change, 0) + 1
    summary: dict[str, Any] = {
        "version": __version__,
        "pictures": len(looks),
        "unreadable": len(pictures.skipped),
        "ignored": dict(pictures.ignored),
        "known": None if known is None else len(known),
        "size": settings.size,
        "reduced": int((sides > settings.size).sum()),
        "judged": judged is not None,
        "fdr": settings.fdr,
        "rate": "none" if judged is None else "estimate" if judged.calibration is None else "split conformal",
        "calibration": None if judged is None else judged.calibration,
        "flagged": 0 if judged is None else int(judged.flag.sum()),
        "mark": settings.mark,
        "groups": [{"like": group[0], "pictures": len(group)} for group in groups],
        "copies": {kind: copies.kind.count(kind) for kind in dict.fromkeys(copies.kind)},
        "leaks": sum(map(bool, leak)),
        "properties": {name: int(has.sum()) for name, has in named.items() if has.any()},
        "changes": changes,
        "notes": list(notes),
    }
    return {**summary, "sentences": _sentences(summary, judged, known)}


def _sentences(s: Mapping[str, Any], judged: Judged | None, known: Pictures | None) -> list[str]:
    """Returns what was found, in sentences, the most important first."""
    said = []
    n, flagged = s["pictures"], s["flagged"]
    if judged is not None and flagged:
        rate = (
            f"about {s['fdr']:.0%} of them may be ordinary: an estimate, since nothing here is known to be ordinary"
            if judged.calibration is None
            else f"on average at most {s['fdr']:.0%} of them are ordinary, if the pictures come from where the known ones came from"
        )
        said.append(f"{counted(flagged, 'picture')} of {n:,} {'is' if flagged == 1 else 'are'} odd; {rate}.")
    elif judged is not None:
        said.append(f"None of {counted(n, 'picture')} is odd at a rate of {s['fdr']:g}; the order is still the one to look in.")
    said += [f"{group['pictures']:,} pictures like {group['like']} form a group of their own." for group in s["groups"]]
    if known is not None:
        leaks = s["leaks"]
        said.append(f"{counted(leaks, 'picture')} {'is' if leaks == 1 else 'are'} in the other source, too, as they are or nearly so.")
    if total := sum(s["copies"].values()):
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in s["copies"].items())
        said.append(f"{counted(total, 'pair')} of copies: {kinds}.")
    if s["properties"]:
        said.append("Plain properties: " + ", ".join(f"{v:,} {k.replace('_', ' ')}" for k, v in s["properties"].items()) + ".")
    if s["unreadable"]:
        said.append(f"{counted(s['unreadable'], 'file')} could not be read; skipped.csv says why.")
    if ignored := s["ignored"]:
        kinds = ", ".join(f"{v:,} {k or 'without an ending'}" for k, v in list(ignored.items())[:5])
        said.append(f"{counted(sum(ignored.values()), 'other file')} no picture: {kinds}.".replace("files no", "files are no").replace("file no", "file is no"))
    if s["changes"]:
        said.append("Read as a viewer shows them: " + ", ".join(f"{v:,} {k}" for k, v in s["changes"].items()) + ".")
    return [*said, *s["notes"]]
