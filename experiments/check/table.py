"""The table of what `check` finds."""

import statistics
from collections.abc import Callable

from experiments.ledger import Row, by_setting, grid, rows

NAMES = {
    "first": "2,000 photographs, 160 outliers of six kinds, a heap among them, 120 copies",
    "other": "the same, 110 outliers of six other kinds",
    "mixture": "1,000 photographs, 1 to 100 outliers of random kinds",
    "few": "2,000 photographs, 10 outliers",
    "clean": "2,000 photographs alone",
    "faults": "159 photographs of 640 x 480, 30 faults of ten kinds",
    "defects": "400 known tiles and 236 new ones, 79 local defects",
    "leaks": "120 known photographs, 20 changed copies",
}
HASHES = {"phash": "pHash", "dhash": "dHash", "cleanvision": "CleanVision"}


def mean(group: list[Row], value: Callable[[Row], float], digits: int = 3) -> str:
    values = [value(row) for row in group if value(row) is not None]
    return f"{statistics.mean(values):.{digits}f}"


def false_share(row: Row) -> float:
    return row["false"] / max(1, row["flagged"])


def check_table() -> str:
    """Lines of ``run.py``: means over the seeds of the last row of each setting."""
    groups = by_setting([row for row in rows("check") if row["n"] != 150], lambda row: row["kind"])
    body = []
    for kind, title in NAMES.items():
        if not (group := groups.get(kind)):
            continue
        if kind == "leaks":
            found, planted, wrong = (sum(row[name] for row in group) for name in ("found", "planted", "wrong"))
            body.append([title, str(len(group)), "", "", "", f"{found} of {planted}; {wrong} wrong"])
            continue
        shown = ["", "", f"{mean(group, lambda r: r['flagged'], 1)} flagged", ""]
        if "auroc" in group[0]:
            auroc = mean(group, lambda r: r.get("auroc"))
            first = f"{100 * float(mean(group, lambda r: r['first'] / r['odd'])):.0f} %"
            caught = f"{mean(group, lambda r: (r['flagged'] - r['false']) / r['odd'] * 100, 0)} %"
            share = f"{caught}; {mean(group, false_share, 2)} (largest {max(map(false_share, group)):.2f})"
            others = compared(group, "ecod_auroc", "ECOD on pixels"), compared(group, "cleanvision_auroc", "CleanVision")
            shown = ["; ".join([auroc, *filter(None, others)]), first, share, ""]
        if "recall" in group[0]:
            hashes = ", ".join(
                f"{title} {mean(group, lambda r, name=name: r[name]['recall'])}"
                for name, title in HASHES.items()
                if name in group[0]
            )
            wrong = sum(row["wrong_pairs"] for row in group)
            shown[3] = f"{mean(group, lambda r: r['recall'])} of copies ({hashes}); {wrong} wrong"
        if "aupro" in group[0]:
            marked = 100 * float(mean(group, lambda r: r["marked_ordinary"]))
            shown[3] = f"AUPRO {mean(group, lambda r: r['aupro'])}; {marked:.0f} % of ordinary tiles marked"
        body.append([title, str(len(group)), *shown])
    head = [
        "collection",
        "seeds",
        "AUROC of outliers",
        "among as many first",
        "flagged of them; ordinary among the flagged",
        "copies, places",
    ]
    return grid(head, body)


def compared(group: list[Row], name: str, title: str) -> str:
    return f"{title} {mean(group, lambda r: r[name])}" if name in group[0] else ""


TABLES = {"docs/guides/check.md": {"check": check_table}}
