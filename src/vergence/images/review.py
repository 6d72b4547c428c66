"""What a person said about pictures after looking: odd or fine. The page saves it as a file that ``--confirm`` reads."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vergence.utils.checks import counted, expect, refuse
from vergence.utils.parts import original, read_names

__all__ = ["Review"]

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
        headed = bool(lines) and lines[0].lower().startswith("path,")
        if not headed and not any(line.lower().endswith(tuple(f",{verdict}" for verdict in VERDICTS)) for line in lines):
            return cls(lines)
        columns = None if headed else ("path", "verdict")
        rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline=""), columns))
        if any(row.get("path") is None or row.get("verdict") is None for row in rows):
            refuse("columns path and verdict", f"others in {file}", "save the confirmations from the page again")
        return cls.of({original(row["path"]): row["verdict"].strip().lower() for row in rows})

    def places(self, names: Sequence[str], said: str) -> Bools:
        """Returns which items were called ``odd``, ``fine`` or ``known``, (N,)."""
        among = set(getattr(self, said))
        return np.array([name in among for name in names], dtype=bool)

    def notes(self, names: Sequence[str]) -> list[str]:
        """Returns how many items were reviewed, and which of these are not among the names, in words.

        Example:
            >>> Review(odd=["a.png", "b.png"], fine=["c.png"]).notes(["a.png", "c.png"])[0]
            'Confirmed before and not listed again: 2 odd, 1 fine.'
            >>> Review(odd=["a.png", "b.png"], fine=["c.png"]).notes(["a.png", "c.png"])[1]
            'The confirmations name 1 picture that is not here (first: b.png); names are those of items.csv.'
        """
        reviewed = dict(zip(VERDICTS, (self.odd, self.fine, self.known), strict=True))
        said = ", ".join(f"{len(given):,} {verdict}" for verdict, given in reviewed.items() if given)
        notes = [f"Confirmed before and not listed again: {said}."] if said else []
        if missing := sorted({name for given in reviewed.values() for name in given} - set(names)):
            verb = "is" if len(missing) == 1 else "are"
            here = f"The confirmations name {counted(len(missing), 'picture')} that {verb} not here"
            notes.append(f"{here} (first: {missing[0]}); names are those of items.csv.")
        return notes


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
