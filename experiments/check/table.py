"""The table of what `check` finds."""

import statistics
from collections.abc import Callable

from experiments.ledger import Row, by_setting, grid, rows
from experiments.plates.table import plates_fact

NAMES = {
    "first": "2,000 photographs, 160 anomalies of six kinds, a heap among them, 120 duplicates",
    "other": "the same, 110 anomalies of six other kinds",
    "mixture": "1,000 photographs, 1 to 100 anomalies of random kinds",
    "few": "2,000 photographs, 10 anomalies",
    "clean": "2,000 photographs alone",
    "faults": "159 photographs of 640 x 480, 30 faults of ten kinds",
    "defects": "400 reference tiles and 236 new ones, 79 local defects",
    "leaks": "120 reference photographs, 20 changed duplicates",
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
            shown[3] = f"{mean(group, lambda r: r['recall'])} of duplicates ({hashes}); {wrong} wrong"
        if "aupro" in group[0]:
            marked = 100 * float(mean(group, lambda r: r["marked_ordinary"]))
            shown[3] = f"AUPRO {mean(group, lambda r: r['aupro'])}; {marked:.0f} % of normal tiles have a region"
        body.append([title, str(len(group)), *shown])
    head = [
        "collection",
        "seeds",
        "AUROC of anomalies",
        "among as many first",
        "flagged of them; false alarms among the flagged",
        "duplicates, regions",
    ]
    return grid(head, body)


SETS = {
    "magnetic_tiles": "magnetic tiles, defects of five kinds",
    "solar_cells": "solar cells, graded by experts",
    "circuits": "circuit boards, each taken again",
    "vectors": "six sets of MVTec-AD as vectors",
}
BASELINES = {"patchcore_like": "nearest cell", "padim_like": "one Gaussian of cells", "subspace_like": "residual of a subspace"}


def real_rows() -> dict[tuple[str, str], list[Row]]:
    return by_setting(rows("check_real"), lambda row: (row["set"], row["encoder"]))


def spread(group: list[Row], name: str) -> str:
    values = [row[name] for row in group]
    return f"{statistics.mean(values):.3f}" + (f" ± {statistics.stdev(values):.3f}" if len(set(values)) > 1 else "")


def real_table() -> str:
    """Lines of ``real.py``: AUROC of anomalies among new images next to a reference, with and without a network."""
    found, body = real_rows(), []
    for name, title in SETS.items():
        if vectors := found.get((name, "given")):
            best = max(("gaussian", "neighbors"), key=lambda other: float(mean(vectors, lambda r: r[other])))
            body.append([title, str(len(vectors)), spread(vectors, "auroc"), "", spread(vectors, best), "", ""])
        if not (auto := found.get((name, "auto"))):
            continue
        others = found.get((name, "baselines"), [])
        best = max(BASELINES, key=lambda other: float(mean(others, lambda r: r[other])))
        flags = f"{mean(auto, lambda r: 100 * r['power'], 0)} %; {mean(auto, false_share, 2)}"
        placed = [row["region_right"] for row in auto if row["region_right"] is not None]
        right = f"{100 * statistics.mean(placed):.0f} %" if placed else ""
        plain = spread(found[name, "patches"], "auroc") if (name, "patches") in found else ""
        body.append(
            [title, str(len(auto)), spread(auto, "auroc"), plain, f"{spread(others, best)} ({BASELINES[best]})", flags, right]
        )
    head = ["set", "splits", "AUROC", "without a network", "best baseline", "flagged of anomalies; false share", "region right"]
    return grid(head, body)


def baselines_table() -> str:
    """Lines of ``real.py``: what the other detectors reach on cells of the same network, and CPU seconds an image."""
    found, body = real_rows(), []
    for name in SETS:
        for encoder in ("auto", "patches"):
            if group := found.get((name, encoder)):
                body.append([name, f"check, {encoder}", spread(group, "auroc"), mean(group, lambda r: r["cpu"])])
        for key, title in BASELINES.items():
            if group := found.get((name, "baselines")):
                body.append([name, title, spread(group, key), ""])
        for key in ("auroc", "gaussian", "neighbors"):
            if group := found.get((name, "given")):
                body.append([name, "check" if key == "auroc" else key, spread(group, key), ""])
    return grid(["set", "detector", "AUROC", "CPU seconds an image"], body)


def facts_table() -> str:
    """Lines of ``real.py`` for the README: pairs that people judged, flags on real defects; and that shards change nothing."""
    found = real_rows()
    pairs = found["copies", "given"][-1]
    body = [
        [
            f"{pairs['judged']} pairs of one photograph, judged by people, among {pairs['others']} other images "
            "([ciFAIR](https://cvjena.github.io/cifair/))",
            f"{pairs['found']} found, {pairs['wrong']} false",
            f"perceptual hash: {pairs['phash_found']} found, {pairs['phash_wrong']} false",
        ]
    ]
    for name in ("magnetic_tiles", "solar_cells", "circuits"):
        auto, others = found[name, "auto"], found[name, "baselines"]
        caught, false = (f"{100 * float(mean(auto, value)):.0f} %" for value in (lambda r: r["power"], false_share))
        ranks = f"{mean(auto, lambda r: r['auroc'], 2)}"
        body.append(
            [
                f"Real defects: {SETS[name].split(',')[0]}; at most 10 % false alarms",
                f"{caught} flagged, {false} of flags false; AUROC {ranks}",
                f"nearest patch of the same network: AUROC {mean(others, lambda r: r['patchcore_like'], 2)}",
            ]
        )
    body.append(plates_fact())
    body.append(["One process, or shards that are merged", "the same file, byte for byte", ""])
    return grid(["measured", "Vergence", "next to it"], body)


def compared(group: list[Row], name: str, title: str) -> str:
    return f"{title} {mean(group, lambda r: r[name])}" if name in group[0] else ""


TABLES = {
    "README.md": {"facts": facts_table},
    "docs/guides/check.md": {"check": real_table},
    "experiments/check/README.md": {"real": baselines_table, "planted": check_table},
}
