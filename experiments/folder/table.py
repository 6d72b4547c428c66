"""Tables of a folder that is judged by itself: what is flagged, grouped and found to be copied; each reads its ledger."""

import statistics
from collections import defaultdict

from experiments.ledger import grid, rows


def best_control(lines: list[dict]) -> str:
    """Returns the mean AUROC of the control that is best on average over seeds, and its name; nothing where none was measured."""
    measured = [row["controls"] for row in lines if "controls" in row]
    if not measured:
        return ""
    means = {name: statistics.mean(one[name] for one in measured) for name in measured[0]}
    name = max(means, key=means.__getitem__)
    return f"{means[name]:.4f} ({name})"


def folder_table() -> str:
    """Lines of ``folder.py``: means over the seeds of the last row of each setting."""
    last = {(row["kind"], row["share"], row["seed"]): row for row in rows("folder") if row["n"] in (600, 3000)}
    found = defaultdict(list)
    for (kind, share, _), row in last.items():
        found[share, kind].append(row)
    body = []
    for (share, kind), lines in sorted(found.items(), key=lambda one: (one[0][1] == "cells", one[0])):

        def mean(name: str, digits: int = 0, lines: list = lines) -> str:
            return f"{statistics.mean(row[name] for row in lines):.{digits}f}"

        cells = kind == "cells"
        what = f"{100 * share:g} % {kind}" if share else "photographs alone"
        if cells:
            what = f"tiles of blood cells, {100 * share:g} % altered" if share else "tiles of blood cells alone"
        ranked = ["", "", ""]
        if share:
            ranked = [mean("auroc", 4), best_control(lines), f"{100 * float(mean('precision', 4)):.0f} %"]
        groups = f"{mean('grouped_odd')} and {mean('grouped_others')}"
        body.append([what, str(len(lines)), *ranked, f"{mean('flagged_odd')} and {mean('flagged_others')}", groups])
    head = [
        "planted",
        "seeds",
        "AUROC",
        "AUROC of the best control",
        "oddities among as many first items",
        "flagged: oddities and others",
        "in groups: oddities and others",
    ]
    return grid(head, body)


def findings_table() -> str:
    """Lines of ``folder_findings.py``, of the last row of each seed."""
    last = {
        (row["part"], row.get("kind") or row.get("folder") or row.get("flag"), row["seed"]): row
        for row in rows("folder_findings")
    }
    found = defaultdict(list)
    for (part, what, _), row in last.items():
        found[part, what].append(row)

    def mean(key: tuple, field: str, digits: int = 0) -> str:
        return f"{statistics.mean(row[field] for row in found[key]):.{digits}f}"

    body = []
    for kind in ("digits", "clothes", "noise"):
        key = ("groups", kind)
        others = f"{statistics.mean(row['members'] - row['found'] for row in found[key]):.0f}"
        body.append([f"odd groups: 60 {kind} among 3,000", f"{mean(key, 'found')} found", f"{others} photographs besides"])
    body.append(["odd groups: photographs alone", f"{mean(('groups', 'none'), 'groups', 1)} groups", ""])
    named = {"duplicates": "near-duplicates: 100 copies among 5,000", "planted": "leaks: 150 copies of 5,000 among 1,000 others"}
    for key in ((part, None) for part in named):
        hows = [how for how in ("JPEG", "resized", "brighter", "mirrored", "turned", "shifted") if how in found[key][-1]]
        kinds = ", ".join(f"{how} {100 * statistics.mean(row[how] for row in found[key]):.0f} %" for how in hows)
        body.append([named[key[0]], f"{mean(key, 'found')} found ({kinds})", f"{mean(key, 'others')} other pairs"])
    for (part, size), lines in found.items():
        if part == "bursts":
            share = statistics.mean(row["found"] / row["photographs"] for row in lines)
            mixed = statistics.mean(row["mixed"] / row["items"] for row in lines)
            what = f"copies: {lines[-1]['photographs']:,} photographs, {size - 1} of each"
            body.append([what, f"{100 * share:.0f} % with all of their own", f"{100 * mixed:.1f} % of images with another's"])
    (leak,) = found["leaks", None]
    body.append(["leaks: CIFAR-10 test in CIFAR-100", f"{leak['count']} pair", ""])
    for (part, what), lines in found.items():
        if part == "flags":
            shares = {name: lines[-1][name] for name in ("dark", "light", "blurry", "low_information", "grayscale")}
            shown = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items() if share > 0)
            body.append([f"flags: {what}, {lines[-1]['items']:,} images", shown or "none", ""])
        if part == "spoiled":
            body.append([f"flags: 100 images made {what}", f"{100 * lines[-1]['found']:.0f} % found", ""])
    return grid(["what", "result", ""], body)
