"""Draws four figures of docs/detection_measured.md from the ledger: docs/figures/detection_*.png.

    python -m experiments.detection.figures

foreign        AUROC of detectors and controls on each foreign set, CIFAR-10 as the typical one
severity       AUROC of two runs' detectors by the severity of a corruption
one_class      AUROC of one class against the other nine, by class
discoveries    false-discovery proportion and power by the level that was asked for

Values are those of the pages' tables: means over seeds, of the newest row of each seed.
"""

import argparse
import statistics
from typing import Any

from experiments.calibration import table as calibration_tables
from experiments import ledger
from experiments.one_class import table as one_class_tables
from experiments import tables

SCORES = {  # of `foreign`: encoder, level and detector by label; a run's detector before its controls
    "patches: vergence score": ("patches", "statistics + patches + z", tables.DEFAULT),
    "patches: kNN on z": ("patches", "z", "kNN"),
    "patches: Gaussian, 64 directions of z": ("patches", "z", "Gaussian, 64 directions"),
    "vje_small: vergence score": ("vje", "statistics + patches + z", tables.DEFAULT),
    "vje_small: kNN on z": ("vje", "z", "kNN"),
    "vje_small: Gaussian, 64 directions of z": ("vje", "z", "Gaussian, 64 directions"),
    "vje_small: VJE's joint score": ("vje", "own_joint", "own score"),
    "ImageNet network: vergence score": ("pretrained", "statistics + patches + z", tables.DEFAULT),
    "ImageNet network: kNN, cosine, on z": ("pretrained", "z", "kNN, cosine"),
    "statistics of the pixels: kNN": ("pixels", "statistics", "kNN"),
    "pixels: kNN, cosine": ("pixels", "pixels", "kNN, cosine, 2,000 items"),
}
ONE_CLASS = {  # of `one_class`: encoder and score by label
    "patches: vergence score": ("patches", "detector"),
    "vje_small: vergence score": ("vje", "detector"),
    "vje_small: VJE's joint score": ("vje", "own joint"),
    "Deep SVDD": ("svdd", "Deep SVDD"),
    "ImageNet network: kNN, cosine, on z": ("pretrained", "z: kNN, cosine"),
    "pixels: kNN, cosine": ("pixels", "pixels: kNN, cosine"),
}
SETTING = {"score": "detector", "calibrated_on": "same part", "data": "cifar10", **calibration_tables.SHOWN}
LEVELS = tuple(map(float, calibration_tables.LEVELS))


def foreign(plt: Any) -> Any:
    """Returns a heat map of AUROC: scores by foreign sets."""
    rows = {(row["encoder"], row["level"], row["detector"]): row for row in tables.foreign_rows("cifar10")}
    shown = {label: rows[key] for label, key in SCORES.items() if key in rows}
    sets = tables.FOREIGN["cifar10"]
    values = [[*(row["auroc"][name] for name in sets), row["mean_foreign"]] for row in shown.values()]
    fig, ax = plt.subplots(figsize=(9, 0.42 * len(values) + 1), layout="constrained")
    ax.imshow(values, vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color="w" if abs(value - 0.5) > 0.3 else "k")
    ax.set_xticks(range(len(sets) + 1), [*(name.replace("_", " ") for name in sets), "mean"], fontsize=8)
    ax.set_yticks(range(len(shown)), list(shown), fontsize=8)
    ax.axvline(len(sets) - 0.5, color="k", linewidth=1)
    ax.set_title("AUROC of foreign images among CIFAR-10 (blue: above chance)", fontsize=10)
    return fig


def severity(plt: Any) -> Any:
    """Returns AUROC by severity, a panel for each run's detector."""
    found = {row["encoder"]: row for row in tables.foreign_rows("cifar10") if row["detector"] == tables.DEFAULT}
    panels = {label: found[name]["auroc"] for name, label in (("patches", "patches"), ("vje", "vje_small")) if name in found}
    fig, axes = plt.subplots(1, len(panels), figsize=(9, 3.2), sharey=True, squeeze=False, layout="constrained")
    for ax, (label, auroc) in zip(axes[0], panels.items(), strict=True):
        for kind in dict.fromkeys(name.rsplit(" ", 1)[0] for name in auroc if name[-2:-1] == " "):
            ax.plot(range(1, 6), [auroc[f"{kind} {s}"] for s in range(1, 6)], marker="o", label=kind)
        ax.axhline(0.5, color="0.5", linestyle=":", linewidth=1)
        ax.set(title=f"vergence score of a {label} run", xlabel="severity", xticks=range(1, 6))
    axes[0][0].set_ylabel("AUROC against clean CIFAR-10")
    axes[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def one_class(plt: Any) -> Any:
    """Returns AUROC by class, a panel for each data set, with the paper's numbers on CIFAR-10."""
    fig, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    for ax, data in zip(axes, ("cifar10", "fashion_mnist"), strict=True):
        scores = {key[0]: of for key, of in one_class_tables.grouped(ledger.rows("one_class"), data).items() if _plain(key)}
        for i, (label, (encoder, name)) in enumerate(ONE_CLASS.items()):
            of_class = scores.get(encoder, {}).get(name, {})
            if of_class:
                ax.plot(*zip(*_by_class(of_class), strict=True), f"C{i}", marker="o", linestyle="", label=label)
        if data == "cifar10":
            ax.plot(range(10), one_class_tables.PAPER, "k_", markersize=12, label="the paper's ResNet-18 (VJE's joint score)")
        ax.axhline(0.5, color="0.5", linestyle=":", linewidth=1)
        ax.set(title=f"{data}: one class against nine", xlabel="class", xticks=range(10), ylabel="AUROC")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, fontsize=8, loc="outside right upper")
    return fig


def _plain(key: tuple[Any, ...]) -> bool:
    """Returns whether a setting is that of the table of classes, without changes."""
    return not key[2] and one_class_tables.of_classes(key)


def _by_class(of_class: dict[int, list[float]]) -> list[tuple[int, float]]:
    return [(label, statistics.mean(values)) for label, values in sorted(of_class.items())]


def discoveries(plt: Any) -> Any:
    """Returns false-discovery proportion and power by level: a line for each foreign set, means over 100 splits."""
    last = calibration_tables.last(ledger.rows("calibration"))
    shown = [row for row in last if all(row[name] == value for name, value in SETTING.items())]
    encoders = sorted({row["encoder"] for row in shown})
    fig, axes = plt.subplots(2, len(encoders), figsize=(9, 5.4), sharex=True, sharey="row", squeeze=False, layout="constrained")
    for column, encoder in zip(axes.T, encoders, strict=True):
        for row in (row for row in shown if row["encoder"] == encoder):
            found = [row["found"]["bh"][level] for level in calibration_tables.LEVELS]
            error = [2 * one["fdp_error"] for one in found]
            column[0].errorbar(LEVELS, [one["fdp"] for one in found], error, marker="o", capsize=3)
            column[1].plot(LEVELS, [one["power"] for one in found], marker="o", label=row["unusual_set"].replace("_", " "))
        column[0].plot(LEVELS, LEVELS, "k--", linewidth=1, label="what was asked for")
        column[0].set_title(f"vergence score of a {encoder} run", fontsize=10)
        column[1].set(xlabel="false-discovery rate asked for", xticks=LEVELS)
    axes[0][0].set_ylabel("false-discovery proportion")
    axes[1][0].set_ylabel("power")
    axes[0][0].legend(fontsize=8)
    axes[1][-1].legend(fontsize=8)
    return fig


FIGURES = {"foreign": foreign, "severity": severity, "one_class": one_class, "discoveries": discoveries}


def main() -> None:
    """Draws the figures."""
    args = ledger.parse(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for name, draw in FIGURES.items():
        fig = draw(plt)
        if not args.tiny:
            file = ledger.ROOT / "docs" / "figures" / f"detection_{name}.png"
            fig.savefig(file, dpi=100)
            print(f"wrote {file.relative_to(ledger.ROOT)}")


if __name__ == "__main__":
    main()
