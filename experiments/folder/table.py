"""Tables of a folder that is judged by itself: what is flagged, grouped and found to be copied."""

import statistics

from experiments.ledger import Row, by_setting, grid, rows


def mean(group: list[Row], name: str, digits: int = 0) -> str:
    return f"{statistics.mean(row[name] for row in group):.{digits}f}"


def best_control(group: list[Row]) -> str:
    """Returns the mean AUROC of the control that is best on average over seeds, and its name; nothing where none was measured."""
    measured = [row["controls"] for row in group if "controls" in row]
    if not measured:
        return ""
    means = {name: statistics.mean(values[name] for values in measured) for name in measured[0]}
    name = max(means, key=means.__getitem__)
    return f"{means[name]:.4f} ({name})"


def folder_table() -> str:
    """Lines of ``run.py``: means over the seeds of the last row of each setting."""
    measured = [row for row in rows("folder") if row["n"] in (600, 3000)]
    groups = by_setting(measured, lambda row: (row["kind"] == "cells", row["share"], row["kind"]))
    body = []
    for (cells, share, kind), group in sorted(groups.items()):
        what = f"{100 * share:g} % {kind}" if share else "photographs alone"
        if cells:
            what = f"tiles of blood cells, {100 * share:g} % altered" if share else "tiles of blood cells alone"
        ranked = ["", "", ""]
        if share:
            ranked = [mean(group, "auroc", 4), best_control(group), f"{100 * float(mean(group, 'precision', 4)):.0f} %"]
        counts = [f"{mean(group, f'{what}_odd')} and {mean(group, f'{what}_others')}" for what in ("flagged", "grouped")]
        body.append([what, str(len(group)), *ranked, *counts])
    head = ["planted", "seeds", "AUROC", "AUROC of the best control", "oddities among as many first items"]
    return grid([*head, "flagged: oddities and others", "in groups: oddities and others"], body)


def findings_table() -> str:
    """Lines of the ledger ``folder_findings``, of the last row of each seed."""
    groups = by_setting(
        rows("folder_findings"), lambda row: (row["part"], row.get("kind") or row.get("folder") or row.get("flag"))
    )
    body = []
    for kind in ("digits", "clothes", "noise"):
        group = groups["groups", kind]
        others = f"{statistics.mean(row['members'] - row['found'] for row in group):.0f}"
        body.append([f"odd groups: 60 {kind} among 3,000", f"{mean(group, 'found')} found", f"{others} photographs besides"])
    body.append(["odd groups: photographs alone", f"{mean(groups['groups', 'none'], 'groups', 1)} groups", ""])
    named = {"duplicates": "near-duplicates: 100 copies among 5,000", "planted": "leaks: 150 copies of 5,000 among 1,000 others"}
    for part, title in named.items():
        group = groups[part, None]
        hows = [how for how in ("JPEG", "resized", "brighter", "mirrored", "turned", "shifted") if how in group[-1]]
        kinds = ", ".join(f"{how} {100 * statistics.mean(row[how] for row in group):.0f} %" for how in hows)
        body.append([title, f"{mean(group, 'found')} found ({kinds})", f"{mean(group, 'others')} other pairs"])
    for (part, size), group in groups.items():
        if part == "bursts":
            share = statistics.mean(row["found"] / row["photographs"] for row in group)
            mixed = statistics.mean(row["mixed"] / row["items"] for row in group)
            what = f"copies: {group[-1]['photographs']:,} photographs, {size - 1} of each"
            body.append([what, f"{100 * share:.0f} % with all of their own", f"{100 * mixed:.1f} % of images with another's"])
    (leak,) = groups["leaks", None]
    body.append(["leaks: CIFAR-10 test in CIFAR-100", f"{leak['count']} pair", ""])
    for (part, what), group in groups.items():
        last = group[-1]
        if part == "flags":
            shares = {name: last[name] for name in ("dark", "light", "blurry", "low_information", "grayscale")}
            shown = ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items() if share > 0)
            body.append([f"flags: {what}, {last['items']:,} images", shown or "none", ""])
        if part == "spoiled":
            body.append([f"flags: 100 images made {what}", f"{100 * last['found']:.0f} % found", ""])
    return grid(["what", "result", ""], body)


TABLES = {"docs/detection_measured.md": {"findings": findings_table, "folder": folder_table}}
