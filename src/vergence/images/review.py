"""Marks of a person: anomaly or normal. The page saves them as a file for ``--confirm``."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from vergence.utils.checks import counted, expect, refuse
from vergence.utils.dtypes import Bools, Floats
from vergence.utils.parts import original, read_names

__all__ = ["Review"]

REFERENCE = 40  # images marked normal that may be a reference
MARKS = ("anomaly", "normal", "reference anomaly")
IMAGES = ("image", " and not listed again", "Use the names of items.csv.")  # words for notes
SITES = ("site", " (anomalies are flagged in sites.csv)", "Name plate, well and site.")


@dataclass(frozen=True)
class Review:
    """Names of images by their mark.

    Attributes:
        anomaly: Images that are anomalous: no fit sees them, and they are not flagged again.
        normal: Images that are normal: they are not flagged, and what is less anomalous is no longer improbable.
        reference: Reference images that are anomalous: they do not calibrate.
        ranks: Their ranks in the list in which they were marked, from 1, by name.
    """

    anomaly: Sequence[str] = ()
    normal: Sequence[str] = ()
    reference: Sequence[str] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, given: "Review | Sequence[str] | Mapping[str, str]") -> "Review":
        """Returns a review of names of anomalies, or of ``anomaly``, ``normal`` or ``reference anomaly`` by name.

        Example:
            >>> Review.of({"a.png": "anomaly", "b.png": "normal"})
            Review(anomaly=['a.png'], normal=['b.png'], reference=[], ranks={})
        """
        if isinstance(given, Review):
            return given
        if not isinstance(given, Mapping):
            return cls(list(given))
        wrong = sorted(set(given.values()) - set(MARKS))
        expect(not wrong, f"marks: {', '.join(MARKS)}", wrong[0] if wrong else "", "correct the file")
        anomaly, normal, reference = ([name for name, mark in given.items() if mark == one] for one in MARKS)
        return cls(anomaly, normal, reference)

    @classmethod
    def read(cls, file: Path) -> "Review":
        """Returns the marks in a file: of columns ``path``, ``mark`` and ``rank``, or an anomaly's name on each line."""
        lines = read_names(file)
        headed = bool(lines) and lines[0].lower().startswith("path,")
        if not headed and not any(line.lower().endswith(tuple(f",{mark}" for mark in MARKS)) for line in lines):
            return cls(lines)
        columns = None if headed else ("path", "mark")
        rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline=""), columns))
        if any(row.get("path") is None or row.get("mark") is None for row in rows):
            refuse("columns path and mark", f"others in {file}", "save the marks from the page again")
        review = cls.of({original(row["path"]): row["mark"].strip().lower() for row in rows})
        ranks = {original(row["path"]): row.get("rank") or "" for row in rows}
        return replace(review, ranks={name: int(rank) for name, rank in ranks.items() if rank.isdecimal()})

    def marks(self) -> dict[str, str]:
        """Returns the mark of each image, by name."""
        given = zip((self.reference, self.normal, self.anomaly), reversed(MARKS), strict=True)
        return {name: mark for names, mark in given for name in names}

    def marked(self, names: Sequence[str], mark: str) -> Bools:
        """Returns which items were marked as ``anomaly``, ``normal`` or ``reference``, (N,)."""
        among = set(getattr(self, mark))
        return np.array([name in among for name in names], dtype=bool)

    def notes(self, names: Sequence[str], words: tuple[str, str, str] = IMAGES) -> list[str]:
        """Returns how many items were marked, and which of these are not among the names, in words.

        Example:
            >>> Review(anomaly=["a.png", "b.png"], normal=["c.png"]).notes(["a.png", "c.png"])[1]
            '1 marked image is not here (first: b.png). Use the names of items.csv.'
        """
        reviewed = dict(zip(MARKS, (self.anomaly, self.normal, self.reference), strict=True))
        counts = ", ".join(f"{len(given):,} as {mark}" for mark, given in reviewed.items() if given)
        noun, before, advice = words
        notes = [f"Marked before{before}: {counts}."] if counts else []
        if missing := sorted({name for given in reviewed.values() for name in given} - set(names)):
            verb = "is" if len(missing) == 1 else "are"
            here = f"{counted(len(missing), f'marked {noun}')} {verb} not here"
            notes.append(f"{here} (first: {missing[0]}). {advice}")
        return notes


def after_review(p: Floats, anomaly: Bools, normal: Bools) -> Floats:
    """Returns p-values (N,) after a review: at least the share of images, without anomalies, that are normal and as anomalous.

    The p-value of an image says how many normal ones would be as anomalous. Each one that a person found normal is one of these.

    Example:
        >>> p = np.array([0.001, 0.01, 0.2, 0.9])
        >>> after_review(p, np.array([True, False, False, False]), np.array([False, True, False, False])).round(3).tolist()
        [0.001, 0.333, 0.333, 0.9]
    """
    as_far = np.searchsorted(np.sort(p[normal]), p, side="right")
    return np.asarray(np.maximum(p, as_far / max(1, int((~anomaly).sum()))))
