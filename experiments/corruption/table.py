"""Tables and heat maps of measured.md: accuracies, drops, aligned augmentation, advice.

Of a cell the last row counts. Results are means over seeds. Accuracies are those of the linear probe in percent, on test images
with the corruption of the training images unless `clean` is named. A drop and a gain are between trainings of equal precision.
"""

import itertools
import math
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from experiments import figures
from experiments.ledger import Row, by_setting, grid, rows, share

Table = tuple[list[str], list[list[str]]]
Accuracies = dict[tuple, dict[str, Row]]  # setting -> paradigm -> means over seeds
JOINT = ("byol", "contrastive", "vicreg", "dino", "vje", "gje")
RECONSTRUCTION = ("masked_autoencoder", "denoising_autoencoder", "variational_autoencoder")
PATCHES = {"joint_embedding": "patches, joint embedding", "reconstruction": "patches, reconstruction"}
ORDER = (*JOINT, PATCHES["joint_embedding"], *RECONSTRUCTION, PATCHES["reconstruction"], "supervised")
PAPER_DROPS = {"byol": 12.4, "dino": 10.5, "masked_autoencoder": 25.1}  # ImageNet-100, mean over three corruptions
PAPER_HELPED = {"contrastive": (67.5, 68.75), "vicreg": (85.0, 85.0), "byol": (60.0, 85.0)}  # CIFAR-10, corrupted and clean test
MEASURES = {
    "probe": "probe, corrupted test images",
    "clean_probe": "probe, clean test images",
    "knn30": "kNN, corrupted test images",
    "clean_knn30": "kNN, clean test images",
}
SETTING = ("data", "n_train", "corruption", "severity", "strength")
ENDS = (1, 5)  # severities that a drop is between
LONGER = 5_000  # training images of the settings on which networks were trained for longer, too
CLEAR = 0.5  # points; a smaller difference is a tie, as in experiments/advice/run.py
ADVICE = {"pixels": "advice on pixels", "patches": "advice on patches"}


def flat(measured: list[Row]) -> Iterator[Row]:
    """Yields a row for each paradigm that was measured; the closed forms on patches are two."""
    for row in measured:
        if row["paradigm"] == "patches":
            yield from ({**row, **row[name], "paradigm": title} for name, title in PATCHES.items())
        elif row["paradigm"] != "advice":
            yield row


def largest(measured: list[Row]) -> list[Row]:
    """Returns the rows with the most training images of each data set; longer trainings have a table of their own."""
    usual, most = [row for row in measured if row["n_train"] != LONGER], dict[str, int]()
    for row in usual:
        most[row["data"]] = max(row["n_train"], most.get(row["data"], 0))
    return [row for row in usual if row["n_train"] == most[row["data"]]]


def means(measured: list[Row]) -> Accuracies:
    """Returns by setting and paradigm the accuracies, averaged over seeds, and the precision of the trainings."""
    groups = by_setting(flat(measured), lambda row: (ORDER.index(row["paradigm"]), tuple(row[name] for name in SETTING)))
    every: Accuracies = {}
    for (paradigm, setting), group in sorted(groups.items(), key=lambda pair: pair[0][0]):
        mean = {name: statistics.mean(row[name] for row in group) for name in MEASURES}
        mean |= {"seeds": len(group), "n_test": group[0]["n_test"], "precision": {row.get("precision") for row in group}}
        every.setdefault(setting, {})[ORDER[paradigm]] = mean
    return every


def of_networks(measured: list[Row]) -> list[Row]:
    """Returns the rows of corruptions that a network was trained on; the others have closed forms alone."""
    trained = {(row["data"], row["corruption"]) for row in measured if row["paradigm"] not in ("patches", "advice")}
    return [row for row in measured if (row["data"], row["corruption"]) in trained]


def present(every: Accuracies) -> list[str]:
    """Returns the paradigms that have rows, in their order."""
    return [name for name in ORDER if any(name in of for of in every.values())]


def accuracies_table(measure: str = "probe") -> str:
    """An accuracy by setting and paradigm, of the corruptions that a network was trained on."""
    every = means(largest(of_networks(rows("corruption"))))
    names, body = present(every), []
    for (data, n, kind, severity, strength), of in sorted(every.items()):
        values = [f"{of[name][measure]:.1f}" if name in of else "" for name in names]
        seeds = max(mean["seeds"] for mean in of.values())
        body.append([f"{data}, {n:,}", str(seeds), kind, str(severity), str(strength), *values])
    return grid(["data, images", "seeds", "corruption", "severity", "strength of the aligned view", *names], body)


def comparable(a: dict[str, Row], b: dict[str, Row], name: str) -> bool:
    """Returns whether two settings have results of a paradigm, in equal precision."""
    return name in a and name in b and bool(a[name]["precision"] == b[name]["precision"])


def drop(every: Accuracies, data: str, n: int, kind: str, name: str) -> float | None:
    """Returns 100 (first - fifth) / first of a paradigm without aligned augmentation; None without comparable ends."""
    ends = [every.get((data, n, kind, severity, 0), {}) for severity in ENDS]
    if not comparable(*ends, name):
        return None
    first, fifth = (of[name]["probe"] for of in ends)
    return float(100 * (first - fifth) / first)


def drops(measured: list[Row]) -> Table:
    """Returns header and lines of the drops from severity 1 to 5 in percent, of the corruptions that a network was trained on."""
    every = means(largest(of_networks(measured)))
    pairs = sorted({setting[:3] for setting in every if all((*setting[:3], severity, 0) in every for severity in ENDS)})
    body = []
    for name in present(every):
        lost = [drop(every, *pair, name) for pair in pairs]
        if values := [value for value in lost if value is not None]:
            paper = f"{PAPER_DROPS[name]:.1f}" if name in PAPER_DROPS else ""
            body.append([name, *map(shown, lost), f"{statistics.mean(values):.1f}", paper])
    columns = [f"{data}, {n:,}: {kind}" for data, n, kind in pairs]
    return ["paradigm", *columns, "mean drop, %", "the paper's mean, ImageNet-100, %"], body


def longer_table() -> str:
    """Accuracies after fewer and after more epochs, drops without aligned views, and what these add at each severity.

    A gain is that of the largest strength. Paradigms without epochs, the closed forms, have one line.
    """
    measured = [row for row in rows("corruption") if row["n_train"] == LONGER]
    every_epochs = {row["epochs"] for row in measured}
    found = {epochs: means([row for row in measured if row["epochs"] == epochs]) for epochs in every_epochs}
    settings = sorted({setting for every in found.values() for setting in every})
    pairs, cells = dict.fromkeys(setting[:3] for setting in settings), sorted({setting[3:] for setting in settings})
    body = []
    for pair, name, epochs in itertools.product(pairs, ORDER, sorted(found, key=lambda epochs: epochs or 0)):
        every = found[epochs]
        values = {s[3:]: of[name]["probe"] for s, of in every.items() if s[:3] == pair and name in of}
        if values:
            changes = [shown(drop(every, *pair, name)), *(shown(gain(values, severity), "+.1f") for severity in ENDS)]
            data, n, kind = pair
            body.append([f"{data}, {n:,}", kind, name, str(epochs or ""), *(shown(values.get(cell)) for cell in cells), *changes])
    columns = [f"severity {s}, strength {k}" for s, k in cells]
    gained = [f"gain at severity {s}, points" for s in ENDS]
    return grid(["data, images", "corruption", "paradigm", "epochs", *columns, "drop, %", *gained], body)


def shown(value: float | None, form: str = ".1f") -> str:
    """Returns a number in a format; nothing for none."""
    return "" if value is None else format(value, form)


def gain(values: dict[tuple[int, int], float], severity: int) -> float | None:
    """Returns what the largest strength of aligned views adds at a severity, in points; None without both."""
    by_strength = {strength: value for (s, strength), value in values.items() if s == severity}
    return by_strength[max(by_strength)] - by_strength[0] if 0 in by_strength and len(by_strength) > 1 else None


def gains(every: Accuracies, name: str, measure: str) -> list[float]:
    """Returns what the best strength above 0 adds to an accuracy of a paradigm, in points, of all settings that have both."""
    found = []
    for (*setting, strength), of in every.items():
        others = [other for key, other in every.items() if key[:-1] == tuple(setting) and key[-1] > 0]
        values = [other[name][measure] for other in others if comparable(of, other, name)]
        if strength == 0 and values:
            found.append(max(values) - of[name][measure])
    return found


def helped_table() -> str:
    """How often the best strength above 0 is better than 0, on corrupted and on clean test images."""
    every, body = means(largest(rows("corruption"))), []
    for name in present(every):
        both = [gains(every, name, measure) for measure in ("probe", "clean_probe")]
        if both[0]:
            line = [name, str(len(both[0]))]
            for values, paper in zip(both, PAPER_HELPED.get(name, (None, None)), strict=True):
                line += [share(sum(v > 0 for v in values), len(values)), f"{statistics.mean(values):+.1f}"]
                line += ["" if paper is None else f"{paper:g} %"]
            body.append(line)
    sides = [[f"{test}: helps (95 %)", "mean gain, points", "the paper's"] for test in ("corrupted test", "clean test")]
    return grid(["paradigm", "settings", *sides[0], *sides[1]], body)


def closed_form_settings(measured: list[Row]) -> Accuracies:
    """Returns the accuracies of the settings that have both closed forms."""
    every = means(largest(measured))
    return {setting: of for setting, of in every.items() if all(name in of for name in PATCHES.values())}


def lead(of: dict[str, Row]) -> float:
    """Returns by how many points closed-form joint embedding is ahead of reconstruction in a setting."""
    return float(of[PATCHES["joint_embedding"]]["probe"] - of[PATCHES["reconstruction"]]["probe"])


def closed_forms_table() -> str:
    """By how many points closed-form joint embedding leads, and the drops of both closed forms, by corruption."""
    every = closed_form_settings(rows("corruption"))
    strengths, body = sorted({setting[-1] for setting in every}), []
    for data, n, kind in sorted({setting[:3] for setting in every}):
        here = {setting[3:]: of for setting, of in every.items() if setting[:3] == (data, n, kind)}
        leads = [", ".join(f"{lead(here[s, k]):+.1f}" for k in strengths if (s, k) in here) for s in ENDS]
        lost = [drop(every, data, n, kind, name) for name in PATCHES.values()]
        body.append([f"{data}, {n:,}", kind, *leads, *map(shown, lost)])
    aligned = f"strengths {', '.join(map(str, strengths))}"
    columns = [f"lead at severity {s}, points; {aligned}" for s in ENDS]
    return grid(["data, images", "corruption", *columns, "joint embedding's drop, %", "reconstruction's drop, %"], body)


def winner(a: Row, b: Row) -> str:
    """Returns which of joint embedding and reconstruction is better: a tie below half a point or two standard errors."""
    p, q = a["probe"] / 100, b["probe"] / 100
    error = math.sqrt((p * (1 - p) / a["seeds"] + q * (1 - q) / b["seeds"]) / a["n_test"])
    if abs(p - q) < max(CLEAR / 100, 2 * error):
        return "tie"
    return "joint_embedding" if p > q else "reconstruction"


def winners(measured: list[Row]) -> dict[str, dict[tuple, str]]:
    """Returns the winner of each setting: by the best networks of both kinds, and by the closed forms on patches."""
    closed = closed_form_settings(measured)
    patches = {setting: winner(*(of[name] for name in PATCHES.values())) for setting, of in closed.items()}
    networks = {}
    for setting, of in means(largest(measured)).items():
        joint, other = ([of[name] for name in names if name in of] for names in (JOINT, RECONSTRUCTION))
        if joint and other:
            networks[setting] = winner(*(max(some, key=lambda mean: mean["probe"]) for some in (joint, other)))
    return {"networks": networks, "patches": patches}


def leads_table() -> str:
    """In how many settings joint embedding is ahead of reconstruction, and by how many points, for every measure."""
    every = means(largest(rows("corruption"))).values()
    kinds = {"best networks of both kinds": (JOINT, RECONSTRUCTION), "closed forms on patches": [(PATCHES[k],) for k in PATCHES]}
    body = []
    for title, sides in kinds.items():
        whole = [of for of in every if all(any(name in of for name in side) for side in sides)]
        for i, (measure, words) in enumerate(MEASURES.items() if whole else ()):
            best = [[max(of[name][measure] for name in side if name in of) for side in sides] for of in whole]
            lead = sorted(a - b for a, b in best)
            values = [f"{sum(x > 0 for x in lead)} of {len(lead)}", f"{statistics.mean(lead):+.1f}"]
            body.append(["" if i else title, words, *values, f"{lead[0]:+.1f} to {lead[-1]:+.1f}"])
    return grid(["", "measure", "joint embedding ahead", "mean lead, points", "range"], body)


def predicted(measured: list[Row]) -> Table:
    """Returns header and lines: how often the advice named the winner where both are clear, next to constant answers."""
    given = [row for row in largest(measured) if row["paradigm"] == "advice" and row["seed"] == 0]
    advice = {tuple(row[name] for name in SETTING): row for row in given}
    titles = {"networks": "best networks of both kinds", "patches": "closed forms on patches"}
    body = []
    for reference, found in winners(measured).items():
        clear = {setting: best for setting, best in found.items() if best != "tie" and setting in advice}
        both = sum(setting in advice for setting in found)
        answers = {title: {s: advice[s][name]["verdict"] for s in clear} for name, title in ADVICE.items()}
        answers |= {f"always {kind.replace('_', ' ')}": dict.fromkeys(clear, kind) for kind in PATCHES}
        for i, (title, verdicts) in enumerate(answers.items() if both else ()):
            told = {s: v for s, v in verdicts.items() if v != "cannot_tell"}
            right = sum(v == clear[s] for s, v in told.items())
            head = f"{titles[reference]}: clear in {len(clear)} of {both} settings" if i == 0 else ""
            body.append([head, title, str(len(told)), str(right), share(right, len(told))])
    return ["held against", "answer", "verdicts given", "right", "rate (95 %)"], body


TABLES = {
    "experiments/corruption/measured.md": {
        "corrupted": accuracies_table,
        "clean": partial(accuracies_table, "clean_probe"),
        "neighbors": partial(accuracies_table, "knn30"),
        "leads": leads_table,
        "closed_forms": closed_forms_table,
        "drops": lambda: grid(*drops(rows("corruption"))),
        "helped": helped_table,
        "longer": longer_table,
        "predicted": lambda: grid(*predicted(rows("corruption"))),
    }
}

# Figures


def heat_maps(panels: dict[str, np.ndarray], columns: list[str], names: list[str], form: str, **style: Any) -> Any:
    """Returns the figure of matrices (names, columns) with their numbers side by side, by title; NaN stays empty."""
    size = (3.2 + 0.55 * len(columns) * len(panels), 1.8 + 0.3 * len(names))
    fig, axes = figures.pyplot().subplots(1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for ax, (title, values) in zip(axes[0], panels.items(), strict=True):
        image = ax.imshow(values, aspect="auto", **style)
        for (i, j), value in np.ndenumerate(values):
            if not np.isnan(value):
                ax.text(j, i, format(value, form), ha="center", va="center", fontsize=7)
        ax.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=7)
        ax.set_yticks(range(len(names)), names, fontsize=7)
        ax.set_title(title, fontsize=8)
    fig.colorbar(image, ax=axes)
    return fig


def figure(measured: list[Row], data: str) -> Any:
    """Returns the heat maps of a data set: probes of paradigms by corruption and severity, a panel for each strength."""
    every = {setting: of for setting, of in means(largest(measured)).items() if setting[0] == data}
    names, columns = present(every), sorted({setting[1:4] for setting in every})

    def accuracies(strength: int) -> np.ndarray:
        found = [[every.get((data, *column, strength), {}).get(name, {}) for column in columns] for name in names]
        return np.array([[accuracy.get("probe", np.nan) for accuracy in line] for line in found])

    strengths = sorted({setting[4] for setting in every})
    panels = {f"aligned view, strength {s}" if s else "no aligned view": accuracies(s) for s in strengths}
    low, high = np.nanmin([*panels.values()]), np.nanmax([*panels.values()])
    return heat_maps(panels, [f"{kind}, {s}" for _, kind, s in columns], names, ".0f", vmin=low, vmax=high, cmap="summer")


def lead_figure(measured: list[Row]) -> Any:
    """Returns the heat maps of closed-form joint embedding's lead: corruptions by severity and strength, a panel a data set."""
    every = {(data, kind, (s, k)): lead(of) for (data, _, kind, s, k), of in closed_form_settings(measured).items()}
    sets, kinds, columns = (sorted({key[i] for key in every}) for i in range(3))
    most = max(map(abs, every.values()))
    leads = {data: [[every.get((data, kind, column), np.nan) for column in columns] for kind in kinds] for data in sets}
    panels = {f"{data}: severity, strength of the aligned view": np.array(values) for data, values in leads.items()}
    return heat_maps(panels, [f"{s}, {k}" for s, k in columns], kinds, "+.1f", vmin=-most, vmax=most, cmap="PuOr")


def draw(tiny: bool) -> None:
    """Draws the heat maps of every data set that has rows, and those of the closed forms."""
    measured = of_networks(rows("corruption"))
    for data in dict.fromkeys(row["data"] for row in measured):
        figures.save(figure(measured, data), f"corruption/corruption_{data}", tiny=tiny)
    figures.save(lead_figure(rows("corruption")), "corruption/corruption_closed_forms", tiny=tiny)
