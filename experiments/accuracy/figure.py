"""Draws accuracy against processor seconds: docs/figures/two_cores.png, from the rows of ``two_cores.py``.

    python -m experiments.accuracy.figure

Each line is one encoder and objective, each point one training, the mean over its seeds; dashed lines are controls that are not
trained. Seconds are those of the processor, for the whole of ``vergence train`` with its detector.
"""

import argparse
import statistics
from collections import defaultdict
from typing import Any

from experiments import ledger

from vergence.encoders.config import as_encoder

Row = ledger.Row
CONTROLS = {"pca_knn30": "PCA of pixels", "pixels_knn30": "pixels", "untrained_knn30": "untrained network"}
TICKS = (30, 60, 120, 240, 480, 960)  # processor seconds
NETWORKS = {"vje": "network, VJE", "gje": "network, GJE", "contrastive": "network, InfoNCE"}
DISTILLED = "network that learns the closed form, VJE"


def groups(rows: list[Row]) -> dict[tuple[str, int], dict[str, dict[str, list[Row]]]]:
    """Returns rows with processor seconds by data set and number of images, line, and point; the newest of each seed."""
    found: dict[Any, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in rows:
        if "point" not in row:
            continue  # older code, of other speed
        closed = row["encoder"].startswith("patches:")
        line, point = ("patches, closed form", row["encoder"]) if closed else (NETWORKS[row["objective"]], str(row["epochs"]))
        if row.get("distill"):
            line, point = DISTILLED, str(row["point"]["distill_epochs"])
        if closed:
            settings = as_encoder(point).complete((3, 32, 32))
            line += ", two layers" if settings.second else f", one layer, stride {settings.stride}"
        found[row["data"], row["limit"]][line][point][row["seed"]] = row
    return {
        panel: {line: {point: list(seeds.values()) for point, seeds in points.items()} for line, points in lines.items()}
        for panel, lines in found.items()
    }


def means(points: dict[str, list[Row]], what: str) -> list[tuple[float, float]]:
    """Returns processor seconds and a value of each point, ascending by seconds: means over seeds."""
    return sorted(
        (statistics.mean(row["cpu_seconds"] for row in seeds), statistics.mean(row[what] for row in seeds))
        for seeds in points.values()
    )


def figure(rows: list[Row]) -> Any:
    """Returns the figure: a panel for each data set and number of images on which networks were measured as well."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {panel: lines for panel, lines in sorted(groups(rows).items()) if lines.keys() & {*NETWORKS.values()}}
    names = sorted({line for lines in panels.values() for line in lines})
    color = {line: f"C{i}" for i, line in enumerate(names)}  # the same in every panel
    fig, axes = plt.subplots(1, len(panels), figsize=(0.6 + 5.8 * len(panels), 3.6), squeeze=False, layout="constrained")
    for ax, ((data, limit), lines) in zip(axes[0], panels.items(), strict=True):
        for line, points in sorted(lines.items()):
            ax.plot(*zip(*means(points, "knn30"), strict=True), marker="o", color=color[line], label=line)
        every = [row for points in lines.values() for seeds in points.values() for row in seeds]
        for i, (name, title) in enumerate(CONTROLS.items()):
            values = [row[name] for row in every if name in row]
            if values:
                ax.axhline(statistics.mean(values), color="0.45", linestyle=("--", ":", "-.")[i], linewidth=1, label=title)
        ax.set(title=f"{data}, {limit:,} images", xlabel="processor seconds", ylabel="kNN (30), %", xscale="log")
        ax.set_xticks(TICKS, [str(tick) for tick in TICKS])
        ax.minorticks_off()
        ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def main() -> None:
    """Draws the figure."""
    args = ledger.parse(argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter))
    fig = figure(ledger.rows("two_cores"))
    if not args.tiny:
        file = ledger.ROOT / "docs" / "figures" / "two_cores.png"
        fig.savefig(file, dpi=110)
        print(f"wrote {file.relative_to(ledger.ROOT)}")


if __name__ == "__main__":
    main()
