"""What a person said about images after looking: anomaly or normal. The page saves it as a file that ``--confirm`` reads."""

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
VERDICTS = ("anomaly", "normal", "reference anomaly")


@dataclass(frozen=True)
class Review:
    """Names of images by what a person said of them.

    Attributes:
        anomaly: Images that are anomalous: no fit sees them, and they are not flagged again.
        normal: Images that are normal: they are not flagged, and what is less anomalous is no longer improbable.
        reference: Reference images that are anomalous: they do not calibrate.
    """

    anomaly: Sequence[str] = ()
    normal: Sequence[str] = ()
    reference: Sequence[str] = ()

    @classmethod
    def of(cls, given: "Review | Sequence[str] | Mapping[str, str]") -> "Review":
        """Returns a review of names of anomalies, or of ``anomaly``, ``normal`` or ``reference anomaly`` by name.

        Example:
            >>> Review.of({"a.png": "anomaly", "b.png": "normal"})
            Review(anomaly=['a.png'], normal=['b.png'], reference=[])
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
        """Returns the review in a file: of columns ``path`` and ``verdict``, or with the name of an anomaly on each line."""
        lines = read_names(file)
        headed = bool(lines) and lines[0].lower().startswith("path,")
        if not headed and not any(line.lower().endswith(tuple(f",{verdict}" for verdict in VERDICTS)) for line in lines):
            return cls(lines)
        columns = None if headed else ("path", "verdict")
        rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"), newline=""), columns))
        if any(row.get("path") is None or row.get("verdict") is None for row in rows):
            refuse("columns path and verdict", f"others in {file}", "save the confirmations from the page again")
        return cls.of({original(row["path"]): row["verdict"].strip().lower() for row in rows})

    def said(self) -> dict[str, str]:
        """Returns what was said of each image, by name."""
        given = zip((self.reference, self.normal, self.anomaly), reversed(VERDICTS), strict=True)
        return {name: verdict for names, verdict in given for name in names}

    def places(self, names: Sequence[str], said: str) -> Bools:
        """Returns which items were called ``anomaly``, ``normal`` or ``reference``, (N,)."""
        among = set(getattr(self, said))
        return np.array([name in among for name in names], dtype=bool)

    def notes(self, names: Sequence[str]) -> list[str]:
        """Returns how many items were reviewed, and which of these are not among the names, in words.

        Example:
            >>> Review(anomaly=["a.png", "b.png"], normal=["c.png"]).notes(["a.png", "c.png"])[0]
            'Confirmed before and not listed again: 2 as anomaly, 1 as normal.'
            >>> Review(anomaly=["a.png", "b.png"], normal=["c.png"]).notes(["a.png", "c.png"])[1]
            'The confirmations name 1 image that is not here (first: b.png); names are those of items.csv.'
        """
        reviewed = dict(zip(VERDICTS, (self.anomaly, self.normal, self.reference), strict=True))
        said = ", ".join(f"{len(given):,} as {verdict}" for verdict, given in reviewed.items() if given)
        notes = [f"Confirmed before and not listed again: {said}."] if said else []
        if missing := sorted({name for given in reviewed.values() for name in given} - set(names)):
            verb = "is" if len(missing) == 1 else "are"
            here = f"The confirmations name {counted(len(missing), 'image')} that {verb} not here"
            notes.append(f"{here} (first: {missing[0]}); names are those of items.csv.")
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
