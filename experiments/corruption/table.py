"""Summaries of ``results/corruption.jsonl`` for docs/corruption.md: accuracies, drops, aligned augmentation, advice, heat maps.

Each summary returns the header and the lines of a table; without measurements, the table has no lines. If a cell was measured
more than once, the last row counts. Results are averaged over seeds. Accuracies are those of the linear probe in percent, on
test images with the corruption of the training images unless `clean` is named. A drop and a gain are between trainings of equal
precision. The paper's numbers (arXiv:2505.12477, table 1 and appendix D) are marked as such.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from experiments import ledger

Row = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
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


def flat(rows: list[Row]) -> Iterator[Row]:
    """Yields a row for each paradigm that was measured; the closed forms on patches are two."""
    for row in rows:
        if row["paradigm"] == "patches":
            yield from ({**row, **row[name], "paradigm": title} for name, title in PATCHES.items())
        elif row["paradigm"] != "advice":
            yield row


def largest(rows: list[Row]) -> list[Row]:
    """Returns the rows with the most training images of each data set; smaller first runs stay in the ledger.

    Longer trainings are left out: they have a table of their own.
    """
    rows, most = [row for row in rows if row["n_train"] != LONGER], dict[str, int]()
    for row in rows:
        most[row["data"]] = max(row["n_train"], most.get(row["data"], 0))
    return [row for row in rows if row["n_train"] == most[row["data"]]]


def averaged(rows: list[Row]) -> dict[tuple, dict[str, Row]]:
    """Returns the means of the largest runs; see `means`."""
    return means(largest(rows))


def means(rows: list[Row]) -> dict[tuple, dict[str, Row]]:
    """Returns by setting and paradigm the accuracies, averaged over seeds, and the precision of the trainings."""
    last = {(*(row[name] for name in SETTING), row["paradigm"], row["seed"]): row for row in flat(rows)}
    groups: dict[tuple, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for (*setting, paradigm, _), row in last.items():
        groups[tuple(setting)][paradigm].append(row)
    return {
        setting: {
            paradigm: {name: statistics.mean(one[name] for one in some) for name in MEASURES}
            | {"seeds": len(some), "n_test": some[0]["n_test"], "precision": {one.get("precision") for one in some}}
            for paradigm, some in sorted(found.items(), key=lambda pair: ORDER.index(pair[0]))
        }
        for setting, found in groups.items()
    }


def of_networks(rows: list[Row]) -> list[Row]:
    """Returns the rows of corruptions that a network was trained on; the others have closed forms alone."""
    known = {(row["data"], row["corruption"]) for row in rows if row["paradigm"] not in ("patches", "advice")}
    return [row for row in rows if (row["data"], row["corruption"]) in known]


def present(found: dict[tuple, dict[str, Row]]) -> list[str]:
    """Returns the paradigms that have rows, in their order."""
    return [name for name in ORDER if any(name in of for of in found.values())]


def accuracies(rows: list[Row], measure: str = "probe") -> Table:
    """Returns an accuracy by setting and paradigm, of the corruptions that a network was trained on."""
    found = averaged(of_networks(rows))
    names = present(found)
    body = []
    for (data, n, kind, severity, strength), of in sorted(found.items()):
        values = [f"{of[name][measure]:.1f}" if name in of else "" for name in names]
        seeds = max(one["seeds"] for one in of.values())
        body.append([f"{data}, {n:,}", str(seeds), kind, str(severity), str(strength), *values])
    return ["data, images", "seeds", "corruption", "severity", "strength of the aligned view", *names], body


def comparable(a: dict[str, Row], b: dict[str, Row], name: str) -> bool:
    """Returns whether two settings have results of a paradigm, in equal precision."""
    return name in a and name in b and a[name]["precision"] == b[name]["precision"]


def drop(found: dict[tuple, dict[str, Row]], data: str, n: int, kind: str, name: str) -> float | None:
    """Returns 100 (first - fifth) / first of a paradigm without aligned augmentation; None without comparable ends."""
    ends = [found.get((data, n, kind, severity, 0), {}) for severity in ENDS]
    if not comparable(*ends, name):
        return None
    first, fifth = (one[name]["probe"] for one in ends)
    return float(100 * (first - fifth) / first)


def drops(rows: list[Row]) -> Table:
    """Returns the relative drop 100 (first - fifth) / first from severity 1 to 5, in percent, without aligned augmentation.

    Of the corruptions that a network was trained on.
    """
    found = averaged(of_networks(rows))
    pairs = sorted({setting[:3] for setting in found if all((*setting[:3], severity, 0) in found for severity in ENDS)})
    body = []
    for name in present(found):
        values = {}
        for pair in pairs:
            if (lost := drop(found, *pair, name)) is not None:
                values[pair] = lost
        if values:
            paper = f"{PAPER_DROPS[name]:.1f}" if name in PAPER_DROPS else ""
            body.append([name, *(shown(values.get(pair)) for pair in pairs), f"{statistics.mean(values.values()):.1f}", paper])
    columns = [f"{data}, {n:,}: {kind}" for data, n, kind in pairs]
    return ["paradigm", *columns, "mean drop, %", "the paper's mean, ImageNet-100, %"], body


def longer(rows: list[Row]) -> Table:
    """Returns accuracies after fewer and after more epochs, drops without aligned views, and what these add at each severity.

    A gain is that of the largest strength. Paradigms without epochs, the closed forms, have one line.
    """
    rows = [row for row in rows if row["n_train"] == LONGER]
    found = {epochs: means([row for row in rows if row["epochs"] == epochs]) for epochs in {row["epochs"] for row in rows}}
    settings = sorted({setting for of in found.values() for setting in of})
    pairs, cells = dict.fromkeys(setting[:3] for setting in settings), sorted({setting[3:] for setting in settings})
    body = []
    for pair, name, epochs in itertools.product(pairs, ORDER, sorted(found, key=lambda epochs: epochs or 0)):
        of = {setting: one for setting, one in found[epochs].items() if setting[:3] == pair and name in one}
        if of:
            values = {setting[3:]: one[name]["probe"] for setting, one in of.items()}
            changes = [shown(drop(of, *pair, name)), *(shown(gain(values, severity), "+.1f") for severity in ENDS)]
            data, n, kind = pair
            accuracies = [shown(values.get(cell)) for cell in cells]
            body.append([f"{data}, {n:,}", kind, name, str(epochs or ""), *accuracies, *changes])
    columns = [f"severity {s}, strength {k}" for s, k in cells]
    gained = [f"gain at severity {s}, points" for s in ENDS]
    return ["data, images", "corruption", "paradigm", "epochs", *columns, "drop, %", *gained], body


def shown(value: float | None, form: str = ".1f") -> str:
    """Returns a number in a format; nothing for none."""
    return "" if value is None else format(value, form)


def gain(values: dict[tuple[int, int], float], severity: int) -> float | None:
    """Returns what the largest strength of aligned views adds at a severity, in points; None without both."""
    own = {strength: value for (s, strength), value in values.items() if s == severity}
    return own[max(own)] - own[0] if 0 in own and len(own) > 1 else None


def helped(rows: list[Row]) -> Table:
    """Returns how often the best strength above 0 is better than 0, on corrupted and on clean test images."""
    found = averaged(rows)
    body = []
    for name in present(found):
        gains: dict[str, list[float]] = {"probe": [], "clean_probe": []}
        for measure, values in gains.items():
            for (*setting, strength), of in found.items():
                others = [
                    found[key][name][measure]
                    for key in found
                    if key[:-1] == tuple(setting) and key[-1] > 0 and comparable(of, found[key], name)
                ]
                if strength == 0 and name in of and others:
                    values.append(max(others) - of[name][measure])
        if gains["probe"]:
            line = [name, str(len(gains["probe"]))]
            for values, paper in zip(gains.values(), PAPER_HELPED.get(name, (None, None)), strict=True):
                line += [share(sum(v > 0 for v in values), len(values)), f"{statistics.mean(values):+.1f}"]
                line += ["" if paper is None else f"{paper:g} %"]
            body.append(line)
    sides = [[f"{test}: helps (95 %)", "mean gain, points", "the paper's"] for test in ("corrupted test", "clean test")]
    return ["paradigm", "settings", *sides[0], *sides[1]], body


def closed_form_settings(rows: list[Row]) -> dict[tuple, dict[str, Row]]:
    """Returns the accuracies of the settings that have both closed forms."""
    return {setting: of for setting, of in averaged(rows).items() if all(name in of for name in PATCHES.values())}


def lead(of: dict[str, Row]) -> float:
    """Returns by how many points closed-form joint embedding is ahead of reconstruction in a setting."""
    return float(of[PATCHES["joint_embedding"]]["probe"] - of[PATCHES["reconstruction"]]["probe"])


def closed_forms(rows: list[Row]) -> Table:
    """Returns by how many points closed-form joint embedding leads, and the drops of both closed forms, by corruption."""
    found = closed_form_settings(rows)
    strengths = sorted({setting[-1] for setting in found})
    body = []
    for data, n, kind in sorted({setting[:3] for setting in found}):
        own = {setting[3:]: of for setting, of in found.items() if setting[:3] == (data, n, kind)}
        leads = [", ".join(f"{lead(own[s, k]):+.1f}" for k in strengths if (s, k) in own) for s in ENDS]
        lost = [drop(found, data, n, kind, name) for name in PATCHES.values()]
        body.append([f"{data}, {n:,}", kind, *leads, *map(shown, lost)])
    aligned = f"strengths {', '.join(map(str, strengths))}"
    columns = [f"lead at severity {s}, points; {aligned}" for s in ENDS]
    return ["data, images", "corruption", *columns, "joint embedding's drop, %", "reconstruction's drop, %"], body


def winner(a: Row, b: Row) -> str:
    """Returns which of joint embedding and reconstruction is better: a tie below half a point or two standard errors."""
    p, q = a["probe"] / 100, b["probe"] / 100
    error = math.sqrt((p * (1 - p) / a["seeds"] + q * (1 - q) / b["seeds"]) / a["n_test"])
    if abs(p - q) < max(CLEAR / 100, 2 * error):
        return "tie"
    return "joint_embedding" if p > q else "reconstruction"


def winners(rows: list[Row]) -> dict[str, dict[tuple, str]]:
    """Returns the winner of each setting: by the best networks of both kinds, and by the closed forms on patches."""
    closed = closed_form_settings(rows)
    patches = {setting: winner(*(of[name] for name in PATCHES.values())) for setting, of in closed.items()}
    out: dict[str, dict[tuple, str]] = {"networks": {}, "patches": patches}
    for setting, of in averaged(rows).items():
        joint, other = ([of[name] for name in names if name in of] for names in (JOINT, RECONSTRUCTION))
        if joint and other:
            out["networks"][setting] = winner(*(max(some, key=lambda one: one["probe"]) for some in (joint, other)))
    return out


def leads(rows: list[Row]) -> Table:
    """Returns in how many settings joint embedding is ahead of reconstruction, and by how many points, for every measure."""
    found = averaged(rows).values()
    kinds = {"best networks of both kinds": (JOINT, RECONSTRUCTION), "closed forms on patches": [(PATCHES[k],) for k in PATCHES]}
    body = []
    for title, sides in kinds.items():
        whole = [of for of in found if all(any(name in of for name in side) for side in sides)]
        for i, (measure, words) in enumerate(MEASURES.items() if whole else ()):
            best = [[max(of[name][measure] for name in side if name in of) for side in sides] for of in whole]
            lead = sorted(a - b for a, b in best)
            ahead, mean = sum(x > 0 for x in lead), statistics.mean(lead)
            values = [f"{ahead} of {len(lead)}", f"{mean:+.1f}", f"{lead[0]:+.1f} to {lead[-1]:+.1f}"]
            body.append(["" if i else title, words, *values])
    return ["", "measure", "joint embedding ahead", "mean lead, points", "range"], body


def predicted(rows: list[Row]) -> Table:
    """Returns how often the advice named the winner where both are clear, beside constant answers."""
    advice = {
        tuple(row[name] for name in SETTING): row for row in largest(rows) if row["paradigm"] == "advice" and row["seed"] == 0
    }
    titles = {"networks": "best networks of both kinds", "patches": "closed forms on patches"}
    body = []
    for reference, found in winners(rows).items():
        clear = {setting: best for setting, best in found.items() if best != "tie" and setting in advice}
        both = len([setting for setting in found if setting in advice])
        answers = {title: {s: advice[s][name]["verdict"] for s in clear} for name, title in ADVICE.items()}
        answers |= {f"always {kind.replace('_', ' ')}": dict.fromkeys(clear, kind) for kind in PATCHES}
        for i, (title, verdicts) in enumerate(answers.items() if both else ()):
            given = {s: v for s, v in verdicts.items() if v != "cannot_tell"}
            right = sum(v == clear[s] for s, v in given.items())
            first = f"{titles[reference]}: clear in {len(clear)} of {both} settings" if i == 0 else ""
            body.append([first, title, str(len(given)), str(right), share(right, len(given))])
    return ["held against", "answer", "verdicts given", "right", "rate (95 %)"], body


def share(k: int, n: int) -> str:
    """Returns a share in percent with Wilson's interval."""
    if n == 0:
        return "-"
    low, high = binomtest(k, n).proportion_ci(method="wilson")
    return f"{100 * k / n:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def heat_map(
    ax: Any, values: Any, form: str, columns: list[str], names: list[str], bounds: tuple[float, float], colors: str
) -> Any:
    """Draws a matrix (names, columns) with its numbers, and returns the image; a cell that is NaN stays empty."""
    import numpy as np

    image = ax.imshow(values, vmin=bounds[0], vmax=bounds[1], cmap=colors, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            dark = sum(image.cmap(image.norm(value))[:3]) < 1.5
            ax.text(j, i, format(value, form), ha="center", va="center", fontsize=7, color="white" if dark else "black")
    ax.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=7)
    ax.set_yticks(range(len(names)), names, fontsize=7)
    return image


def panels(n: int, columns: int, names: int) -> tuple[Any, Any]:
    """Returns a figure of n heat maps side by side, and their axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (3.2 + 0.55 * columns * n, 1.8 + 0.3 * names)
    fig, axes = plt.subplots(1, n, figsize=size, sharey=True, squeeze=False, layout="constrained")
    return fig, axes[0]


def figure(rows: list[Row], data: str) -> Any:
    """Returns the heat maps of a data set: paradigms by corruption and severity, a panel for each strength."""
    import numpy as np

    found = {setting: of for setting, of in averaged(rows).items() if setting[0] == data}
    names, columns = present(found), sorted({setting[1:4] for setting in found})
    strengths = sorted({setting[4] for setting in found})
    values = [
        [[found.get((data, *column, s), {}).get(name, {}).get("probe", np.nan) for column in columns] for name in names]
        for s in strengths
    ]
    bounds = (np.nanmin(values), np.nanmax(values))
    fig, axes = panels(len(strengths), len(columns), len(names))
    for ax, strength, of in zip(axes, strengths, values, strict=True):
        titles = [f"{kind}, {severity}" for _, kind, severity in columns]
        image = heat_map(ax, np.array(of), ".0f", titles, names, bounds, "viridis")
        ax.set_title("no aligned view" if strength == 0 else f"aligned view, strength {strength}", fontsize=8)
    fig.colorbar(image, ax=axes, label="linear probe, %")
    return fig


def lead_figure(rows: list[Row]) -> Any:
    """Returns the heat maps of closed-form joint embedding's lead: corruptions by severity and strength, a panel a data set."""
    import numpy as np

    found = {(data, kind, (s, k)): lead(of) for (data, _, kind, s, k), of in closed_form_settings(rows).items()}
    sets, kinds, columns = (sorted({key[i] for key in found}) for i in range(3))
    most = max(map(abs, found.values()))
    fig, axes = panels(len(sets), len(columns), len(kinds))
    for ax, data in zip(axes, sets, strict=True):
        values = np.array([[found.get((data, kind, column), np.nan) for column in columns] for kind in kinds])
        image = heat_map(ax, values, "+.1f", [f"{s}, {k}" for s, k in columns], kinds, (-most, most), "PuOr")
        ax.set_title(f"{data}: severity, strength of the aligned view", fontsize=8)
    fig.colorbar(image, ax=axes, label="joint embedding ahead, points")
    return fig


def draw(folder: Path | None) -> None:
    """Draws the heat maps of every data set that has rows into a folder; None draws and writes nothing."""
    whole = ledger.rows("corruption")
    rows = of_networks(whole)
    figures = {data: figure(rows, data) for data in dict.fromkeys(row["data"] for row in flat(rows))}
    if closed_form_settings(whole):
        figures["closed_forms"] = lead_figure(whole)
    for name, fig in figures.items() if folder is not None else ():
        fig.savefig(folder / f"corruption_{name}.png", dpi=110)
        print(f"wrote corruption_{name}.png")
