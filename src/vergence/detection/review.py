"""What a person said about pictures after looking: odd or fine. The page saves it as a file that ``--confirm`` reads."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vergence.utils.checks import expect, refuse
from vergence.utils.parts import original, read_names

__all__ = ["Review", "after_review"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
VERDICTS = ("odd", "fine", "odd known")


@dataclass(frozen=True)
class Review:
    """Names of pictures by what a person said of them.

    Attributes:
        odd: Pictures that are unusual: no fit sees them, and they are not flagged again.
        fine: Pictures that are ordinary: they are not flagged, and what is less unusual is no longer improbable.
        known: Known pictures that are unusual: they do not calibrate.
    """

    odd: Sequence[str] = ()
    fine: Sequence[str] = ()
    known: Sequence[str] = ()

    @classmethod
    def of(cls, given: "Review | Sequence[str] | Mapping[str, str]") -> "Review":
        """Returns a review of names that are unusual, or of ``odd``, ``fine`` or ``odd known`` by name.

        Example:
            >>> Review.of({"a.png": "odd", "b.png": "fine"})
            Review(odd=['a.png'], fine=['b.png'], known=[])
        """
        if isinstance(given, Review):
            return given
        if not isinstance(given, Mapping):
            return cls(list(given))
        wrong = sorted(set(given.values()) - set(VERDICTS))
        expect(not wrong, f"a verdict of {', '.join(VERDICTS)}", wrong[0] if wrong else "", "correct the confirmations")
        return cls(*([name for name, said in given.items() if said == verdict] for verdict in VERDICTS))

    @classmethod
    def read(cls, file: Path) -> "Review":
        """Returns the review in a file: of columns ``path`` and ``verdict``, or with the name of an outlier on each line."""
        lines = read_names(file)
        if not lines or not lines[0].lower().startswith("path,"):
            return cls(lines)
        rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline="")))
        if any(row.get("path") is None or row.get("verdict") is None for row in rows):
            refuse("columns path and verdict", f"others in {file}", "save the confirmations from the page again")
        return cls.of({original(row["path"]): row["verdict"].strip().lower() for row in rows})

    def places(self, names: Sequence[str], said: str) -> Bools:
        """Returns which items were called ``odd``, ``fine`` or ``known``; all of these must be among the names."""
        among = set(getattr(self, said))
        missing = sorted(among - set(names))
        found = f"{len(missing)} others (first: {missing[0]})" if missing else ""
        expect(not missing, "names of items that are checked", found, "write them as in items.csv")
        return np.array([name in among for name in names], dtype=bool)


def after_review(p: Floats, odd: Bools, fine: Bools) -> Floats:
    """Returns p-values (N,) after a review: at least the share of the pictures that are not odd that is fine and no less unusual.

    The p-value of a picture says how many ordinary ones would be as unusual. Each one that a person found fine is one of these.

    Example:
        >>> p = np.array([0.001, 0.01, 0.2, 0.9])
        >>> after_review(p, np.array([True, False, False, False]), np.array([False, True, False, False])).round(3).tolist()
        [0.001, 0.333, 0.333, 0.9]
    """
    as_odd = np.searchsorted(np.sort(p[fine]), p, side="right")
    return np.asarray(np.maximum(p, as_odd / max(1, int((~odd).sum()))))
