"""What was found among items that were scored: the one record that terminal, table and page show (`report.findings`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vergence.detection.conformal import Certificate
from vergence.detection.groups import Group
from vergence.utils.terminal import Tabular

__all__ = ["Findings"]


@dataclass(frozen=True)
class Findings(Tabular):
    """What was found, what was flagged and why.

    Attributes:
        columns: What is known of each of R items, by the name of the column, (R,) each: of all items in their order where they
            were judged by themselves; of the strangest 48 where a run scored them, whose others are in the table alone.

            - ``name``; ``score``, larger is more anomalous; ``p_value``; ``q_value``, the least false-discovery rate at which
              the item is reported; ``flag``, whether it is reported.
            - ``level`` that says so; of unusual items ``nearest``, the most similar typical items, separated by ``; ``, and
              ``reason``, in words.
            - Of items judged by themselves: ``measured``, rare plain properties such as ``dark``; ``group``, the most central
              item of the odd group that it belongs to; ``same_as`` and ``similar_to``, the first item that it is a copy or
              nearly a copy of; with another source ``leak``, the item there that equals it or nearly so. Empty for none.
        total: Items that were judged.
        flagged: Items that were flagged.
        fdr: False-discovery rate of the flags.
        certificate: Threshold with a bounded false-positive rate, by which items are flagged instead.
        calibration: Number of typical items whose scores gave the p-values; None where the items were judged by themselves,
            against a tail that is fitted to the less strange ones: an estimate, without a guarantee.
        why_none: Why no item is flagged, in words, where that is so.
        changed: A warning that the items as a whole are unlike the calibration items, so that no rate holds; empty for none.
        unjudged: Items that were not judged, since the run was fitted to or calibrated on equal ones.
        advice: What to do about these.
        groups: Odd groups: clusters of items that are alike and unlike all others; members are rows of ``columns``.
        leak_scope: Which copies of items of another source were looked for.
        notes: What the reader must know.
    """

    columns: Mapping[str, Any]
    total: int
    flagged: int
    fdr: float = 0.1
    certificate: Certificate | None = None
    calibration: int | None = None
    why_none: str = ""
    changed: str = ""
    unjudged: int = 0
    advice: str = ""
    groups: Sequence[Group] = ()
    leak_scope: str = ""
    notes: Sequence[str] = ()

    def table(self) -> Mapping[str, Any]:
        """Returns the columns, the strangest items first."""
        order = np.argsort(-self.score, kind="stable")
        return {name: [values[i] for i in order] for name, values in self.columns.items()}

    @property
    def names(self) -> list[str]:
        """Name of each item in ``columns``."""
        return list(self.columns["name"])

    @property
    def score(self) -> np.ndarray:
        """Score of each item in ``columns``, (R,)."""
        return np.asarray(self.columns["score"])

    @property
    def flag(self) -> np.ndarray:
        """Whether each item in ``columns`` is flagged, (R,) bool."""
        return np.asarray(self.columns["flag"], dtype=bool)

    @property
    def rows(self) -> int:
        """Items that were scored, judged or not."""
        return self.total + self.unjudged

    def strangest(self, n: int) -> list[int]:
        """Returns at most n rows of ``columns``, the strangest first; of an odd group the strangest member alone."""
        order = np.argsort(-self.score, kind="stable")
        group = np.asarray(self.columns.get("group", [""] * len(order)))[order]
        first = group == ""
        first[np.unique(group, return_index=True)[1]] = True
        return [int(i) for i in order[first][:n]]

    def row(self, i: int) -> dict[str, Any]:
        """Returns what is known of one item."""
        return {name: values[i] for name, values in self.columns.items()}
