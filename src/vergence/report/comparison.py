"""The model's results beside those of its controls, column by column."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Comparison", "detections", "representations", "uncertainties"]


@dataclass(frozen=True)
class Comparison:
    """A table of shares.

    Attributes:
        kinds: ``"model"``, or another kind for a control, by the name of the row.
        columns: Share in [0, 1] by the name of the row, by the title of the column; no column is empty.
    """

    kinds: dict[str, str]
    columns: dict[str, dict[str, float]]

    @property
    def of_model(self) -> bool:
        """Whether any row is the model's."""
        return "model" in self.kinds.values()

    def best(self, title: str) -> float:
        """Returns the best value of a column: the smallest rate of false alarms, the largest of everything else."""
        return (min if title.startswith("false alarms") else max)(self.columns[title].values())

    def control_wins(self) -> dict[str, list[str]]:
        """Returns the columns in which controls are strictly better than every row of the model, by the controls' names."""
        wins: dict[str, list[str]] = {}
        for title, column in self.columns.items():
            winners = [name for name, value in column.items() if value == self.best(title)]
            if all(self.kinds[name] != "model" for name in winners):
                wins.setdefault(" and ".join(winners), []).append(title)
        return wins

    def rivals(self, title: str) -> tuple[str | None, str | None]:
        """Returns the first of the model's rows in a column and the best control; None where there is none."""
        column = self.columns[title]
        model = next((name for name in column if self.kinds[name] == "model"), None)
        controls = (name for name in column if self.kinds[name] != "model")
        return model, max(controls, key=column.__getitem__, default=None)


def representations(evaluation: Mapping[str, Any]) -> Comparison:
    """Returns the accuracies of every representation and control: nearest neighbors by k and vote, and the linear probe."""
    found = evaluation.get("representations") or {}
    knn = {name: entry["knn"] for name, entry in found.items() if entry and entry.get("knn")}
    ks = sorted({k for by_k in knn.values() for k in by_k}, key=lambda k: (len(k), k))
    columns = {
        f"k = {k}, {vote}": {name: (by_k.get(k) or {}).get(vote) for name, by_k in knn.items()}
        for vote in ("majority", "weighted")
        for k in ks
    }
    columns["linear probe"] = {name: (entry.get("probe") or {}).get("accuracy") for name, entry in found.items() if entry}
    return _comparison(found, columns)


def detections(evaluation: Mapping[str, Any]) -> Comparison:
    """Returns how well every score and control detects anomalies."""
    found = (evaluation.get("anomaly") or {}).get("scores") or {}
    titles = {"AUROC": "auroc", "average precision": "aupr", "false alarms at 95 % detection": "fpr95"}
    columns = {title: {name: (entry or {}).get(key) for name, entry in found.items()} for title, key in titles.items()}
    return _comparison(found, columns)


def uncertainties(evaluation: Mapping[str, Any]) -> Comparison:
    """Returns which uncertainties rank errors."""
    found = (evaluation.get("uncertainty") or {}).get("scores") or {}
    return _comparison(found, {"errors (R-AUROC)": {name: (entry or {}).get("r_auroc") for name, entry in found.items()}})


def _comparison(found: Mapping[str, Any], columns: Mapping[str, Mapping[str, float | None]]) -> Comparison:
    measured = {title: {name: x for name, x in column.items() if x is not None} for title, column in columns.items()}
    kinds = {name: (entry or {}).get("kind") or "model" for name, entry in found.items()}
    return Comparison(kinds, {title: column for title, column in measured.items() if column})
