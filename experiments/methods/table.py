"""Summaries of ``results/methods.jsonl``: every method on the same data and budget, and controls that no gradient trained.

Each summary returns the header and the lines of a table; without measurements, the table has no lines. If a seed was measured
more than once, the last row counts. Values are means over seeds, with the standard deviation where there are several.
"""

import collections
import statistics
from typing import Any

from experiments.ledger import by_setting, plus_minus

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
Group = tuple[Any, ...]
UNCERTAINTIES = ("neighbor spread", "posterior entropy")


def grouped(rows: list[Row]) -> dict[Group, list[Row]]:
    """Returns the rows of all seeds by data, items, epochs, seconds, side, setting and method, in the ledger's order."""

    def key(row: Row) -> Group:
        searched = 0.5 if row["setting"] == "control" else row.get("search_share", 0.5)  # a control has no search
        budget = row["data"], row["n_train"], row["epochs"], row["budget_seconds"], row["set"].get("size"), searched
        return (*budget, row["setting"], row["method"])

    return by_setting(rows, key)


def of_column(rows: list[Row], name: str, digits: int = 1) -> str:
    """Returns the mean of a column; nothing where it was not measured."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return plus_minus(values, digits) if values else ""


def auroc(rows: list[Row]) -> str:
    """Returns the mean AUROC over foreign sets."""
    return plus_minus([statistics.mean(row["auroc"].values()) for row in rows], 3)


def peak(rows: list[Row]) -> str:
    """Returns the median peak memory in MiB."""
    return f"{statistics.median(row['peak_mib'] for row in rows):,.0f}"


def where(key: Group) -> str:
    """Returns data and budget in words."""
    data, n, epochs, seconds, size, *_ = key
    budget = f"{n:,} x {epochs}" if seconds is None else f"{n:,}, {seconds:g} s"
    return f"{data}{'' if size is None else f' at {size} px'}, {budget}"


def every(rows: list[Row]) -> Table:
    """Returns a line for each method and setting, beside its first weights; several searches name their share of epochs."""
    body = []
    groups = grouped(rows)
    searches = collections.Counter((key[:5], *key[6:]) for key in groups)
    for key, found in groups.items():
        share, setting, method = key[-3:]
        control = setting == "control"
        several = searches[key[:5], setting, method] > 1 and not control
        rate = "control" if control else f"{setting}: {found[0]['optimizer']} {found[0]['lr']:g}"
        rate += f" (search over {share:g} of the epochs)" if several else ""
        cells = []
        for name in ("knn30", "probe", "effective_rank"):
            own = of_column(found, name)
            cells.append(own if control else f"{own} ({of_column(found, f'untrained_{name}')})")
        ranked = [plus_minus([row["r_auroc"][u] for row in found], 3) if u in found[0]["r_auroc"] else "" for u in UNCERTAINTIES]
        cells += [auroc(found), *ranked, of_column(found, "images_per_second", 0), peak(found)]
        body.append([where(key), str(len(found)), f"`{method}`", rate, *cells])
    header = ["data, items x epochs", "seeds", "method", "optimizer", "kNN (30), % (untrained)", "probe, % (untrained)"]
    header += ["effective rank (untrained)", "AUROC", "R-AUROC, neighbor spread", "R-AUROC, own entropy"]
    return [*header, "images/s", "peak memory, MiB"], body


def of_budget(rows: list[Row], seconds: float | None, settings: tuple[str, ...] = ("control", "searched")) -> Table:
    """Returns the lines of `every` of some settings of one budget, the best kNN first, without the column of the budget.

    Controls, which nothing trains, are those of any budget in seconds if this one is in seconds.
    """

    def belongs(row: Row) -> bool:
        timed = row["setting"] == "control" and seconds is not None and row["budget_seconds"] is not None
        return row["setting"] in settings and (timed or row["budget_seconds"] == seconds)

    header, body = every(list(filter(belongs, rows)))
    best = sorted(body, key=lambda line: -float(line[4].split()[0]))
    return header[1:], [line[1:] for line in best]


def short(rows: list[Row]) -> Table:
    """Returns a line for each method with the searched optimizer and each control, best kNN first.

    They are those of the budget that most methods have; of the last of these where there are several. Where a method was
    searched for several shares of the epochs, the longest search counts.
    """
    groups = {key: found for key, found in grouped(rows).items() if key[-2] != "published"}
    methods = collections.Counter(budget for budget, _ in dict.fromkeys((key[:5], key[-1]) for key in groups))
    budget = max(reversed(methods), key=methods.__getitem__) if methods else ()
    longest = {key[-1]: key for key in sorted(groups, key=lambda key: float(key[5])) if key[:5] == budget}
    body = []
    for method, key in longest.items():
        found = groups[key]
        name = f"`{method}`" + (" (control)" if key[-2] == "control" else "")
        cells = [of_column(found, "knn30"), of_column(found, "probe"), of_column(found, "effective_rank"), auroc(found)]
        cells += [plus_minus([row["r_auroc"][UNCERTAINTIES[0]] for row in found], 3)]
        line = [name, *cells, of_column(found, "images_per_second", 0), peak(found)]
        body.append((statistics.mean(row["knn30"] for row in found), line))
    best = [line for _, line in sorted(body, key=lambda pair: -pair[0])]
    header = ["method", "kNN (30), %", "linear probe, %", "effective rank", "AUROC, foreign images", "R-AUROC, neighbor spread"]
    return [*header, "images/s", "peak memory, MiB"], best
