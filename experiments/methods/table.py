"""Tables of every method on the same data and budget, and of baselines that no gradient trained.

If a seed was measured more than once, the last row counts. Values are means over seeds, with the standard deviation of several.
"""

import collections
import statistics
from functools import partial
from typing import Any

from experiments.ledger import Row, by_setting, column, grid, plus_minus, rows

Table = tuple[list[str], list[list[str]]]
Group = tuple[Any, ...]
UNCERTAINTIES = ("neighbor spread", "posterior entropy")


def grouped(measured: list[Row]) -> dict[Group, list[Row]]:
    """Returns the rows of all seeds by data, items, epochs, seconds, side, search, setting and method, in the ledger's order."""

    def key(row: Row) -> Group:
        searched = 0.5 if row["setting"] == "baseline" else row.get("search_share", 0.5)  # a baseline has no search
        budget = row["data"], row["n_train"], row["epochs"], row["budget_seconds"], row["set"].get("size"), searched
        return (*budget, row["setting"], row["method"])

    return by_setting(measured, key)


def auroc(group: list[Row]) -> str:
    """Returns the mean AUROC over foreign sets."""
    return plus_minus([statistics.mean(row["auroc"].values()) for row in group], 3)


def ranked(group: list[Row], uncertainty: str) -> str:
    """Returns the R-AUROC of an uncertainty."""
    return column([row["r_auroc"] for row in group], uncertainty, 3)


def costs(group: list[Row]) -> list[str]:
    """Returns images per second, and the median peak memory in MiB."""
    return [column(group, "images_per_second", 0), f"{statistics.median(row['peak_mib'] for row in group):,.0f}"]


def every(measured: list[Row]) -> Table:
    """Returns a line for each method and setting, next to its first weights; several searches name their share of epochs."""
    body, groups = [], grouped(measured)
    searches = collections.Counter((key[:5], *key[6:]) for key in groups)
    for key, group in groups.items():
        share, setting, method = key[-3:]
        baseline = setting == "baseline"
        rate = "baseline" if baseline else f"{setting}: {group[0]['optimizer']} {group[0]['lr']:g}"
        if searches[key[:5], setting, method] > 1 and not baseline:
            rate += f" (search over {share:g} of the epochs)"
        cells = []
        for name in ("knn30", "probe", "effective_rank"):
            cells.append(column(group, name) + ("" if baseline else f" ({column(group, f'untrained_{name}')})"))
        cells += [auroc(group), *(ranked(group, name) for name in UNCERTAINTIES), *costs(group)]
        body.append([str(len(group)), f"`{method}`", rate, *cells])
    header = ["seeds", "method", "optimizer", "kNN (30), % (untrained)", "probe, % (untrained)", "effective rank (untrained)"]
    return [*header, "AUROC", "R-AUROC, neighbor spread", "R-AUROC, own entropy", "images/s", "peak memory, MiB"], body


def budget_table(seconds: float | None, settings: tuple[str, ...] = ("baseline", "searched")) -> str:
    """The lines of `every` of some settings of one budget, the best kNN first.

    Baselines, which nothing trains, are those of any budget in seconds if this one is in seconds.
    """

    def belongs(row: Row) -> bool:
        timed = row["setting"] == "baseline" and seconds is not None and row["budget_seconds"] is not None
        return row["setting"] in settings and (timed or row["budget_seconds"] == seconds)

    header, body = every(list(filter(belongs, rows("methods"))))
    return grid(header, sorted(body, key=lambda line: -float(line[3].split()[0])))


def short_table() -> str:
    """A line for each method with the searched optimizer and each baseline, best kNN first.

    They are those of the budget that most methods have; of the last of these where there are several. Where a method was
    searched for several shares of the epochs, the longest search counts.
    """
    groups = {key: group for key, group in grouped(rows("methods")).items() if key[-2] != "published"}
    methods = collections.Counter(budget for budget, _ in dict.fromkeys((key[:5], key[-1]) for key in groups))
    budget = max(reversed(methods), key=methods.__getitem__)
    longest = {key[-1]: key for key in sorted(groups, key=lambda key: float(key[5])) if key[:5] == budget}
    body = []
    for method, key in sorted(longest.items(), key=lambda pair: -statistics.mean(row["knn30"] for row in groups[pair[1]])):
        group = groups[key]
        cells = [column(group, name) for name in ("knn30", "probe", "effective_rank")]
        name = f"`{method}`" + (" (baseline)" if key[-2] == "baseline" else "")
        body.append([name, *cells, auroc(group), ranked(group, UNCERTAINTIES[0]), *costs(group)])
    header = ["method", "kNN (30), %", "linear probe, %", "effective rank", "AUROC, foreign images", "R-AUROC, neighbor spread"]
    return grid([*header, "images/s", "peak memory, MiB"], body)


TABLES = {
    "experiments/methods/README.md": {"methods": short_table},
    "experiments/methods/measured.md": {
        "thirty-minutes": partial(budget_table, 1800.0),
        "five-minutes": partial(budget_table, 300.0),
        "thirty-minutes-published": partial(budget_table, 1800.0, ("published",)),
        "five-minutes-published": partial(budget_table, 300.0, ("published",)),
        "steps": partial(budget_table, None),
        "steps-published": partial(budget_table, None, ("published",)),
    },
}
