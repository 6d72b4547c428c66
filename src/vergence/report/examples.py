"""Single items of the test part on the page: the most unusual, a map, nearest neighbors, and a histogram of their scores."""

import math
from collections.abc import Iterable
from typing import Any

from vergence.report.charts import Figure, histogram, scatter, thumbnail
from vergence.report.reading import RunFiles
from vergence.report.rendering import number

__all__ = ["Examples"]

GALLERY, LEGEND = 18, 30  # items a side; classes in a legend


class Examples:
    """The items in ``examples.npz``, by their index.

    Args:
        run: The run's files.

    Attributes:
        n: Number of items.
        scores: Finite scores by item, most unusual first.
        captions: One line about each item.
    """

    def __init__(self, run: RunFiles) -> None:
        self.arrays, self.classes = run.examples, run.folder.metadata.classes
        self.n = len(self.arrays.get("xy", ()))
        finite = {i: float(s) for i, s in enumerate(self.arrays.get("score", ())) if math.isfinite(s)}
        self.scores = dict(sorted(finite.items(), key=lambda item: -item[1]))
        self.captions = [self._caption(i) for i in range(self.n)]

    def gallery(self) -> dict[str, Any] | None:
        """Returns the most unusual and the most typical items; None where no item has a score."""
        order = list(self.scores)
        if not order:
            return None
        n = min(GALLERY, len(order) // 2 or 1)
        return {"unusual": self._shown(order[:n]), "typical": self._shown(order[: -n - 1 : -1])}

    def neighbors(self) -> dict[str, Any] | None:
        """Returns rows of a query and its nearest neighbors, and how many of these have the query's label."""
        rows = self.arrays.get("neighbors")
        if rows is None or not rows.size:
            return None
        label = self.arrays["label"]
        known = rows[label[rows[:, 0]] >= 0]
        same = int((label[known[:, 1:]] == label[known[:, :1]]).sum())
        return {"rows": [self._shown(row, row[0]) for row in rows.tolist()], "same": same, "known": known[:, 1:].size}

    def histogram(self) -> tuple[dict[str, str] | None, dict[str, Figure]]:
        """Returns the words and the figure of the scores' histogram; nothing where no item has a score."""
        if not self.scores:
            return None, {}
        names = ("ordinary items", "anomalies") if "anomalous" in self.arrays else ("items",)
        groups: dict[str, list[float]] = {name: [] for name in names}
        for i, score in self.scores.items():
            groups[names[self._held_out(i)]].append(score)
        words = f"Scores of the examples on this page: {', '.join(f'{len(x)} {name}' for name, x in groups.items())}"
        return {"words": words}, {"scores": histogram(groups, "score, nats (larger is more anomalous)")}

    def map(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Returns the words of the map, and its figure with each item's picture and caption and the slider's order."""
        if not self.n:
            return None, {}
        items = [[thumbnail(self.arrays.get("thumbnail"), i), caption] for i, caption in enumerate(self.captions)]
        order = [*self.scores, *(i for i in range(self.n) if i not in self.scores)]
        return {"n": self.n, "scored": bool(self.scores)}, {"map": self._map_figure(), "items": items, "order": order}

    def _map_figure(self) -> Figure:
        import numpy as np

        xy, label, scored = self.arrays["xy"], self.arrays["label"], list(self.scores)
        groups = [np.flatnonzero(label == value).tolist() for value in np.unique(label)]
        traces = [
            scatter(xy, index, self.captions, self._label(index[0]), k) | {"meta": "label"} for k, index in enumerate(groups)
        ]
        if scored:
            by_score = scatter(xy, scored, self.captions, "score", 0, self.arrays["score"])
            traces.append(by_score | {"meta": "score", "visible": False, "showlegend": False})
        ring = {"size": 18, "symbol": "circle-open", "color": "#000", "line": {"width": 3}}
        chosen = {"meta": "ring", "x": [], "y": [], "mode": "markers", "marker": ring, "showlegend": False, "hoverinfo": "skip"}
        axes = {f"{a}axis": {"title": {"text": f"principal component {i}"}} for a, i in (("x", 1), ("y", 2))}
        layout = {"height": 520, "hovermode": "closest", "showlegend": len(groups) <= LEGEND, **axes}
        return {"data": [*traces, chosen], "layout": layout}

    def _shown(self, index: Iterable[int], query: int | None = None) -> list[dict[str, Any]]:
        """Returns what the page shows of some items; ``other`` marks a label that is not the query's."""
        label = self.arrays["label"]
        return [
            {
                "picture": thumbnail(self.arrays.get("thumbnail"), i),
                "caption": self.captions[i],
                "label": self._label(i) if label[i] >= 0 else str(self.arrays["name"][i]),
                "score": self._score(i),
                "held_out": self._held_out(i),
                "query": i == query,
                "other": query is not None and bool(label[i] != label[query]),
            }
            for i in index
        ]

    def _score(self, i: int) -> float:
        """Returns an item's score; of items that no level finds rare 0, since no more can be read from it."""
        return round(float(self.arrays["score"][i]), 4) + 0.0

    def _held_out(self, i: int) -> bool:
        return "anomalous" in self.arrays and bool(self.arrays["anomalous"][i])

    def _label(self, i: int) -> str:
        label = int(self.arrays["label"][i])
        return "no label" if label < 0 else str(self.classes[label]) if label < len(self.classes) else str(label)

    def _caption(self, i: int) -> str:
        held_out = ", held out as an anomaly" * self._held_out(i)
        return f"{self.arrays['name'][i]}: {self._label(i)}, score {number(self._score(i))}{held_out}"
