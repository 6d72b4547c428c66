"""Which uncertainties of any model rank errors? Of a .npz file: z (N, D), label (N,), and a column (N,) for each uncertainty.

    python -m experiments.uncertainty.files EMB.npz [--reference FILE]

A column is larger for less certain items, but for ``log_density``, whose sign is reversed; ``variance`` (N, D) is summed. What
needs no labels stands beside them as a baseline and is compared with the items of a second file, or with a random half of the
first, which is then not tested.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from experiments.uncertainty.scores import BANK, ITEMS, Scores, ranking, uncertainties
from torch import Tensor

from vergence.data.items import spaced
from vergence.learn.evaluation.uncertainty import neighbor_is_right
from vergence.utils import terminal
from vergence.utils.checks import expect


@dataclass(frozen=True)
class Embeddings:
    """Embeddings (N, D), classes (N,) as whole numbers, and uncertainties (N,) by name, larger is less certain."""

    z: Tensor
    labels: Tensor
    columns: Scores

    def subset(self, index: Tensor) -> "Embeddings":
        return Embeddings(self.z[index], self.labels[index], {name: u[index] for name, u in self.columns.items()})


def read(path: Path) -> Embeddings:
    """Returns what a file holds; labels may be text."""
    with np.load(path) as arrays:
        missing = {"z", "label"} - set(arrays)
        expect(not missing, f"the arrays z and label in {path.name}", ", ".join(arrays), "add the other")
        z = torch.from_numpy(arrays["z"].astype(np.float32))
        label = np.unique(arrays["label"], return_inverse=True)[1]
        found = {name: arrays[name] for name in arrays if name not in ("z", "label")}
    if (variance := found.get("variance")) is not None and variance.ndim == 2:
        found["variance"] = variance.sum(1)
    if "log_density" in found:
        found["log_density"] = -found["log_density"]
    columns = {name: torch.from_numpy(u.astype(np.float64)) for name, u in found.items() if u.dtype.kind in "fiub"}
    return Embeddings(z, torch.from_numpy(label), {name: u for name, u in columns.items() if u.shape == (len(z),)})


def ranked(tested: Embeddings, reference: Embeddings | None = None) -> tuple[float, dict[str, dict[str, float]]]:
    """Returns recall at 1 of at most 2,000 items, and how well each uncertainty ranks their errors, by name."""
    if reference is None:
        order = torch.randperm(len(tested.z), generator=torch.Generator().manual_seed(0))
        half = len(order) // 2
        reference, tested = tested.subset(order[:half].sort().values), tested.subset(order[half:].sort().values)
    tested, bank = tested.subset(spaced(len(tested.z), ITEMS)), reference.subset(spaced(len(reference.z), BANK))
    right = neighbor_is_right(tested.z, tested.labels)
    scores = tested.columns | uncertainties(bank.z, tested.z) | tested.columns
    return float(right.double().mean()), {name: ranking(u, right) for name, u in scores.items()}


def main(arguments: list[str] | None = None) -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--reference", type=Path)
    a = parser.parse_args(arguments)
    tested = read(a.file)
    recall, found = ranked(tested, None if a.reference is None else read(a.reference))
    names = {name: name if name in tested.columns else f"{name} (baseline)" for name in found}
    rows = [[names[name], f"{row['auroc']:.3f}", f"{row['aurc']:.3f}"] for name, row in found.items()]
    terminal.table(f"uncertainty; R@1 {recall:.3f}", ["", "R-AUROC", "AURC"], rows)


if __name__ == "__main__":
    main()
