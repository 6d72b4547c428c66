"""Summaries of ``results/corruption.jsonl`` for docs/corruption.md: accuracies, drops, aligned augmentation, advice, heat maps.

Each summary returns the header and the lines of a table; without measurements, the table has no lines. If a cell was measured
more than once, the last row counts. Results are averaged over seeds. Accuracies are those of the linear probe in percent, on
test images with the corruption of the training images unless `clean` is named. The paper's numbers (arXiv:2505.12477, table 1
and appendix D) are marked as such.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ledger
from scipy.stats import binomtest

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
CLEAR = 0.5  # points; a smaller difference is a tie, as in benchmarks/advice_agreement.py
ADVICE = {"pixels": "advice on pixels", "patches": "advice on patches"}


def flat(rows: list[Row]) -> Iterator[Row]:
    """Yields a row for each paradigm that was measured; the closed forms on patches are two."""
    for row in rows:
        if row["paradigm"] == "patches":
            yield from ({**row, **row[name], "paradigm": title} for name, title in PATCHES.items())
        elif row["paradigm"] != "advice":
            yield row


def largest(rows: list[Row]) -> list[Row]:
    """Returns the rows with the most training images of each data set; smaller first runs stay in the ledger."""
    most: dict[str, int] = {}
    for row in rows:
        most[row["data"]] = max(row["n_train"], most.get(row["data"], 0))
    return [row for row in rows if row["n_train"] == most[row["data"]]]


def averaged(rows: list[Row]) -> dict[tuple, dict[str, Row]]:
    """Returns by setting and paradigm the accuracies, averaged over seeds."""
    whole = largest(rows)
    last = {(*(row[name] for name in SETTING), row["paradigm"], row["seed"]): row for row in flat(whole)}
    groups: dict[tuple, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for (*setting, paradigm, _), row in last.items():
        groups[tuple(setting)][paradigm].append(row)
    return {
        setting: {
            paradigm: {name: statistics.mean(one[name] for one in some) for name in MEASURES}
            | {"seeds": len(some), "n_test": some[0]["n_test"]}
            for paradigm, some in sorted(found.items(), key=lambda pair: ORDER.index(pair[0]))
        }
        for setting, found in groups.items()
    }


def present(found: dict[tuple, dict[str, Row]]) -> list[str]:
    """Returns the paradigms that have rows, in their order."""
    return [name for name in ORDER if any(name in of for of in found.values())]


def accuracies(rows: list[Row], measure: str = "probe") -> Table:
    """Returns an accuracy by setting and paradigm."""
    found = averaged(rows)
    names = present(found)
    body = []
    for (data, n, kind, severity, strength), of in sorted(found.items()):
        values = [f"{of[name][measure]:.1f}" if name in of else "" for name in names]
        seeds = max(one["seeds"] for one in of.values())
        body.append([f"{data}, {n:,}", str(seeds), kind, str(severity), str(strength), *values])
    return ["data, images", "seeds", "corruption", "severity", "strength of the aligned view", *names], body


def drops(rows: list[Row]) -> Table:
    """Returns the relative drop 100 (first - fifth) / first from severity 1 to 5, in percent, without aligned augmentation."""
    found = averaged(rows)
    pairs = [
        (data, n, kind) for data, n, kind, severity, s in found if severity == 1 and s == 0 and (data, n, kind, 5, 0) in found
    ]
    body = []
    for name in present(found):
        values = {}
        for data, n, kind in sorted(pairs):
            ends = [found[data, n, kind, severity, 0].get(name) for severity in (1, 5)]
            if all(ends):
                first, fifth = (one["probe"] for one in ends)
                values[data, n, kind] = 100 * (first - fifth) / first
        if values:
            shown = [f"{values[pair]:.1f}" if pair in values else "" for pair in sorted(pairs)]
            paper = f"{PAPER_DROPS[name]:.1f}" if name in PAPER_DROPS else ""
            body.append([name, *shown, f"{statistics.mean(values.values()):.1f}", paper])
    columns = [f"{data}, {n:,}: {kind}" for data, n, kind in sorted(pairs)]
    return ["paradigm", *columns, "mean drop, %", "the paper's mean, ImageNet-100, %"], body


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
                    if key[:-1] == tuple(setting) and key[-1] > 0 and name in found[key]
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


def winner(a: Row, b: Row) -> str:
    """Returns which of joint embedding and reconstruction is better: a tie below half a point or two standard errors."""
    p, q = a["probe"] / 100, b["probe"] / 100
    error = math.sqrt((p * (1 - p) / a["seeds"] + q * (1 - q) / b["seeds"]) / a["n_test"])
    if abs(p - q) < max(CLEAR / 100, 2 * error):
        return "tie"
    return "joint_embedding" if p > q else "reconstruction"


def winners(rows: list[Row]) -> dict[str, dict[tuple, str]]:
    """Returns the winner of each setting: by the best networks of both kinds, and by the closed forms on patches."""
    out: dict[str, dict[tuple, str]] = {"networks": {}, "patches": {}}
    for setting, of in averaged(rows).items():
        joint, other = ([of[name] for name in names if name in of] for names in (JOINT, RECONSTRUCTION))
        if joint and other:
            out["networks"][setting] = winner(*(max(some, key=lambda one: one["probe"]) for some in (joint, other)))
        if all(name in of for name in PATCHES.values()):
            out["patches"][setting] = winner(*(of[name] for name in PATCHES.values()))
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


def figure(rows: list[Row], data: str) -> Any:
    """Returns the heat maps of a data set: paradigms by corruption and severity, a panel for each strength."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    found = {setting: of for setting, of in averaged(rows).items() if setting[0] == data}
    names, columns = present(found), sorted({setting[1:4] for setting in found})
    strengths = sorted({setting[4] for setting in found})
    shape = (3.2 + 0.55 * len(columns) * len(strengths), 1.8 + 0.3 * len(names))
    fig, axes = plt.subplots(1, len(strengths), figsize=shape, sharey=True, squeeze=False, layout="constrained")
    values = [
        [[found.get((data, *column, s), {}).get(name, {}).get("probe", np.nan) for column in columns] for name in names]
        for s in strengths
    ]
    low, high = np.nanmin(values), np.nanmax(values)
    for ax, strength, of in zip(axes[0], strengths, values, strict=True):
        image = ax.imshow(of, vmin=low, vmax=high, cmap="viridis", aspect="auto")
        for (i, j), value in np.ndenumerate(np.array(of)):
            if not np.isnan(value):
                color = "white" if value < (low + high) / 2 else "black"
                ax.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=7, color=color)
        ax.set_xticks(
            range(len(columns)), [f"{kind}, {severity}" for _, kind, severity in columns], rotation=60, ha="right", fontsize=7
        )
        ax.set_yticks(range(len(names)), names, fontsize=7)
        ax.set_title("no aligned view" if strength == 0 else f"aligned view, strength {strength}", fontsize=8)
    fig.colorbar(image, ax=axes, label="linear probe, %")
    return fig


def draw(folder: Path | None) -> None:
    """Draws the heat maps of every data set that has rows into a folder; None draws and writes nothing."""
    rows = ledger.rows("corruption")
    for data in dict.fromkeys(row["data"] for row in flat(rows)):
        fig = figure(rows, data)
        if folder is not None:
            fig.savefig(folder / f"corruption_{data}.png", dpi=110)
            print(f"wrote corruption_{data}.png")
