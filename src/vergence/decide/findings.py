"""What was found among items that were scored: the one record that terminal, table and page show (`report.findings`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vergence.decide.conformal import Certificate, at_most, drift_of_counts, reportable
from vergence.utils.checks import EXACT, counted
from vergence.utils.terminal import Tabular

__all__ = ["Findings"]

HELD = 48  # strangest items that are held for the page
COLUMNS = ("name", "score", "p_value", "level", "nearest", "reason", "seen")  # that q-values, flags and the page need
FEW, CHANGED, CERTAIN = 20, 0.2, 0.001  # items; least difference of distributions, and largest p-value, that are reported


@dataclass(frozen=True)
class Findings(Tabular):
    """What was found, what was flagged and why.

    Attributes:
        columns: What is known of each of the R <= 48 strangest items, by the name of the column, (R,) each; the others are in the
            table alone.

            - ``name``; ``score``, larger is more anomalous; ``p_value``; ``q_value``, the least false-discovery rate at which
              the item is reported; ``flag``, whether it is reported.
            - ``level`` that says so; of unusual items ``nearest``, the most similar typical items, separated by ``; ``, and
              ``reason``, in words.
        total: Items that were judged.
        flagged: Items that were flagged.
        fdr: False-discovery rate of the flags.
        certificate: Threshold with a bounded false-positive rate, by which items are flagged instead.
        calibration: Number of typical items whose scores gave the p-values.
        why_none: Why no item is flagged, in words, where that is so.
        changed: A warning that the items as a whole are unlike the calibration items, so that no rate holds; empty for none.
        unjudged: Items that were not judged, since the run was fitted to or calibrated on equal ones.
        advice: What to do about these.
        notes: What the reader must know.
    """

    columns: Mapping[str, Any]
    total: int
    flagged: int
    fdr: float = 0.1
    certificate: Certificate | None = None
    calibration: int = 0
    why_none: str = ""
    changed: str = ""
    unjudged: int = 0
    advice: str = ""
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
        """Returns at most n rows of ``columns``, the strangest first."""
        return [int(i) for i in np.argsort(-self.score, kind="stable")[:n]]

    def row(self, i: int) -> dict[str, Any]:
        """Returns what is known of one item."""
        return {name: values[i] for name, values in self.columns.items()}


class Tally:
    """q-values and flags, which need all p-values k / (n + 1): k is counted part by part, and the strangest items are held.

    Items that the run was fitted to or calibrated on are not judged, since their scores say nothing about new ones: they have the
    q-value 1 and no flag, and do not count. Of n calibration items; by ``certificate`` items are flagged instead of ``fdr``.
    ``strangest`` has the `COLUMNS` of at most 48 judged items.
    """

    needs: ClassVar[Sequence[str]] = COLUMNS
    names: ClassVar[Sequence[str]] = ("q_value", "flag")
    order: ClassVar[Sequence[str]] = (*COLUMNS[:3], *names, *COLUMNS[3:])

    def __init__(self, n: int, fdr: float = 0.1, certificate: Certificate | None = None) -> None:
        self.n, self.fdr, self.certificate = n, fdr, certificate
        self.flagged, self.unjudged = 0, 0
        self.counts = np.zeros(n + 2, dtype=np.int64)
        self.strangest: dict[str, np.ndarray] = {name: np.array([], dtype=float) for name in COLUMNS}

    def see(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts the p-values of some rows, and holds the strangest items."""
        new = np.flatnonzero(columns["seen"] == 0)
        self.unjudged += len(columns["seen"]) - len(new)
        columns = {name: columns[name][new] for name in COLUMNS}
        self.counts += np.bincount(self._rank(columns["p_value"]), minlength=self.n + 2)
        if self.certificate is not None:
            self.flagged += int((columns["score"] > self.certificate.threshold).sum())
        self._hold(columns)

    def add(self, counts: Sequence[tuple[int, int]], unjudged: int, flagged: int, strangest: Mapping[str, Sequence[Any]]) -> None:
        """Adds what another tally saw: how many items have each k, and its `unjudged`, `flagged` and `strangest`."""
        for k, n in counts:
            self.counts[k] += n
        self.unjudged += unjudged
        if self.certificate is not None:
            self.flagged += flagged
        self._hold({name: np.asarray(strangest[name]) for name in COLUMNS})

    def _hold(self, columns: Mapping[str, np.ndarray]) -> None:
        """Counts what is flagged, and holds the strangest items."""
        if self.certificate is None:
            self.flagged = int(self.counts[at_most(self._q_values(), self.fdr)].sum())
        if len(self.strangest["score"]) and len(columns["score"]):
            columns = {name: np.concatenate([self.strangest[name], columns[name]]) for name in COLUMNS}
        elif not len(columns["score"]):
            return
        order = np.argsort(-columns["score"], kind="stable")[:HELD]
        self.strangest = {name: columns[name][order] for name in COLUMNS}

    def columns(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the q-value and the flag of some rows, when all have been seen."""
        rank, new = self._rank(columns["p_value"]), np.asarray(columns["seen"]) == 0
        q = self._q_values()
        flag = at_most(q, self.fdr)[rank] if self.certificate is None else columns["score"] > self.certificate.threshold
        return {"q_value": np.where(new, q[rank], 1.0), "flag": (np.asarray(flag, dtype=bool) & new).astype(np.uint8)}

    def findings(self, notes: Sequence[str] = (), advice: str = "") -> Findings:
        """Returns what was found, when all rows have been seen."""
        rows, total = self.strangest | self.columns(self.strangest), int(self.counts.sum())
        return Findings(
            columns={name: rows[name].tolist() for name in self.order if name != "seen"},
            total=total,
            flagged=self.flagged,
            fdr=self.fdr,
            certificate=self.certificate,
            calibration=self.n,
            why_none=self._why_none(total) if total and not self.flagged else "",
            changed=self._changed(total),
            unjudged=self.unjudged,
            advice=advice,
            notes=notes,
        )

    def _why_none(self, total: int) -> str:
        """Returns why no item is flagged: what the numbers allow, or the least q-value that an item has."""
        if self.counts[:2].any():  # items stranger than all calibration items: with more of these they might be reported
            return str(reportable(self.n, total, self.fdr))
        q = self._q_values()
        least = float(q[self.counts > 0].min())
        many = int(self.counts[q <= least].sum())
        return f"the smallest q-value is {least:.2g}, of {counted(many, 'item')}; the order is still the one to look in"

    def _changed(self, total: int) -> str:
        """Returns a line where the bulk of the items is stranger than the calibration items."""
        if total < FEW or self.n > EXACT:
            return ""
        drift = drift_of_counts(self.counts)  # equal scores make p-values too large, never too small
        if drift.statistic < CHANGED or drift.p_value > CERTAIN:
            return ""
        words = f"{drift.statistic:.0%} of them at least: what is ordinary has changed, or many are unusual"
        return f"warning: the items as a whole are stranger than the calibration items, {words}"

    def _rank(self, p: np.ndarray) -> np.ndarray:
        return np.asarray(np.rint(p * (self.n + 1)), dtype=np.int64)

    def _q_values(self) -> np.ndarray:
        """Returns the q-value of each p-value k / (n + 1), k = 0..n + 1, from the number of items that have it."""
        p = np.arange(self.n + 2) / (self.n + 1)
        q = p * self.counts.sum() / np.maximum(np.cumsum(self.counts), 1)
        return np.asarray(np.minimum(np.minimum.accumulate(q[::-1])[::-1], 1.0))
