"""White cells and platelets among tiles of blood-cell photographs, by encoders that have seen neither.

README.md says how.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments import ledger
from experiments.accuracy.pretrained import PEERS
from experiments.detection.run import encoder_settings
from experiments.one_class.run import of_pixels, of_run
from experiments.photographs import ORDINARY, PLATELET, SIDE, TILE, WHITE_CELL, blood_cells, ordinary_tiles
from experiments.runner import DATA, SEEDS, first, parse, run, some
from experiments.shared import Timer, auroc

import vergence
from vergence.data.arrays import from_array
from vergence.data.config import DataConfig
from vergence.data.sources import open_data
from vergence.decide import p_values, select
from vergence.learn.runs.train import collapse_of

SHOWN, FDR = 50, 0.1
FRAMES = {ORDINARY: "0.6", WHITE_CELL: "tab:blue", PLATELET: "tab:orange"}
ENCODERS = ("pixels", "patches", "vje", "gje", "contrastive", "pretrained")
OPTIONS = {"data_root": DATA, "encoders": some(ENCODERS), "seeds": SEEDS, "draw": False}
TINY_PATCHES = {"encoder": "patches:atoms=16,second=16,directions=32,dim=16,views=2"}


def aurocs(scores: dict[str, np.ndarray], labels: np.ndarray) -> dict[str, Any]:
    """Returns by score the AUROC of all odd tiles and of each kind, and how many of the first 50 are odd."""
    odd = labels != ORDINARY
    kinds = {"auroc": np.full(len(labels), True), "white_cells": labels != PLATELET, "platelets": labels != WHITE_CELL}
    found: dict[str, Any] = {
        name: {how: auroc(odd[among], s[among]) for how, s in scores.items()}
        for name, among in kinds.items()
        if len(set(odd[among])) == 2
    }
    return found | {"odd_of_first_50": {how: int(odd[np.argsort(-s)[:SHOWN]].sum()) for how, s in scores.items()}}


def cells(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Writes the tiles, and yields an encoder and seed each."""
    np.savez(a.scratch / "tiles.npz", **ordinary_tiles(Path(a.data_root), 4 if a.tiny else None))
    torch.manual_seed(0)
    for seed in a.seeds:
        for encoder in a.encoders:
            yield {"encoder": encoder, "tile": TILE, "side": SIDE, "seed": seed}


def measure(a: argparse.Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Trains an encoder on the tiles and ranks the others."""
    timer, encoder, seed, file = Timer(), cell["encoder"], cell["seed"], a.scratch / "tiles.npz"
    with np.load(file) as stored:
        n_train, x, labels = len(stored["x_train"]), stored["x_test"], stored["y_test"]
    test, about = from_array(x), {}
    if encoder == "pixels":
        scores = of_pixels(open_data(DataConfig(source=str(file))), test, seed)
    else:
        settings = encoder_settings(encoder) | {"seed": seed, "device": "cpu"} | (TINY_PATCHES if a.tiny else {})
        trained = vergence.train(str(file), out=a.scratch / f"{encoder} {seed}", trust_code=True, **settings)
        scores, calibration = of_run(trained, test, seed, untrained=encoder == "vje"), trained.detector().calibration
        flags = select(p_values(calibration, scores["detector"]), fdr=FDR)
        about = {"calibration": len(calibration), "reported": int(flags.sum())}
        about |= {"reported_odd": int((labels[flags] != ORDINARY).sum())}
        about |= {"collapse": collapse_of(trained), "epochs": trained.folder.config.fit.epochs}
        if a.draw:
            draw(x, labels, scores["detector"], None if a.tiny else ledger.HERE / "detection" / "blood_cells.png")
    counts = {name: int((labels == kind).sum()) for name, kind in (("n_white_cells", WHITE_CELL), ("n_platelets", PLATELET))}
    counts |= {"n_train": n_train, "n_ordinary": int((labels == ORDINARY).sum())}
    return {**counts, **about, **timer.both(), **aurocs(scores, labels)}


def draw(x: np.ndarray, labels: np.ndarray, scores: np.ndarray, out: Path | None) -> None:
    """Draws the 50 most unusual tiles, the most unusual first, in frames by what they show."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    fig, axes = plt.subplots(5, 10, figsize=(9, 5.1), layout="constrained")
    for ax, i in zip(axes.flat, np.argsort(-scores), strict=False):
        ax.imshow(x[i])
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set(color=FRAMES[int(labels[i])], linewidth=3)
    handles = [Patch(color=color) for color in FRAMES.values()]
    fig.legend(handles, ["neither", "white cell", "platelet"], loc="outside lower center", ncols=3, frameon=False)
    if out is not None:
        fig.savefig(out, dpi=110)


def main() -> None:
    a = parse(__doc__, "blood_cells", OPTIONS, {"encoders": ["patches"], "seeds": first})
    if not (boxes := blood_cells(Path(a.data_root))[1]).exists():
        raise SystemExit(f"expected {boxes} next to the photographs")
    if a.draw:
        a.encoders, a.seeds, a.out = ["patches"], a.seeds[:1], None
    run(a, cells, measure, peers=PEERS)


if __name__ == "__main__":
    main()
