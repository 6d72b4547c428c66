"""Embeddings of any model in a file, with its own uncertainties: which of them rank the embedding's errors?"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.data.arrays import ARRAY_KEYS, LABEL_KEYS, NAME_KEYS, from_array, labels_of, read_arrays
from vergence.data.items import Array, spaced
from vergence.runs.uncertainty import BANK, ITEMS, ranked, uncertainties
from vergence.training.records import Uncertainty

__all__ = ["Embeddings", "measure", "read"]

FEWEST = 20  # reference items
LARGEST = 1e15  # of a feature, whose square float32 still has
KEYS = ("z", "embeddings", *(key for key in ARRAY_KEYS if key not in ("z", "embeddings")))
VARIANCE, LOG_DENSITY = "variance", "log_density"  # columns that the command embed writes


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of items, their classes, and what a model says of its uncertainty.

    Attributes:
        z: Embeddings (N, D).
        labels: Classes (N,), integers.
        columns: Uncertainties (N,) by name, larger is less certain.
        unused: Names of the arrays in the file that are neither of these.
    """

    z: Tensor
    labels: Tensor
    columns: dict[str, Tensor]
    unused: list[str] = field(default_factory=list)

    def subset(self, index: Tensor) -> "Embeddings":
        """Returns the items of some rows."""
        return Embeddings(self.z[index], self.labels[index], {name: u[index] for name, u in self.columns.items()})


def read(path: Path) -> Embeddings:
    """Reads a ``.npz`` file: ``z`` (N, D), ``label`` (N,), and any columns (N,) of numbers, which are taken for uncertainties.

    Both may have the other names that features and labels have (`vergence.data.arrays.open_arrays`); labels may be text.
    ``log_density`` is larger for more certain items, so its sign is reversed; ``variance`` (N, D) is summed over features.

    Raises:
        ValueError: The file is missing, damaged, of another kind, has no labels of two classes, or a column that is not finite.
    """
    if path.suffix.lower() != ".npz" or not path.is_file():
        what = "give a .npz file" if path.exists() else f"there is no file {path}; check the path"
        raise ValueError(f"expected a .npz file of embeddings z and label, found {path}: {what}")
    names = read_arrays(path, (), 0)[1]
    key, label = (next((key for key in keys if key in names), None) for keys in (KEYS, LABEL_KEYS))
    if key is None or label is None:
        missing = "z" if key is None else "label"
        raise ValueError(f"expected the array {missing} in {path.name}, found {', '.join(names) or 'nothing'}; add it")
    found = read_arrays(path, (key, label), 0)[0]
    if found[key].ndim != 2:
        raise ValueError(f"expected embeddings {key} (N, D) in {path.name}, found shape {found[key].shape}; embed images first")
    items = from_array(found[key], f"{key} of {path.name}")
    z = next(items.stream([torch.arange(len(items))]))[1]
    if float(z.abs().max()) > LARGEST or not bool((z != z[0]).any()):
        raise ValueError(f"expected embeddings that differ, of at most {LARGEST:g}, in {path.name}, found others; rescale them")
    y = _classes(labels_of(found[label], len(z), label, path.name)[0], path.name)
    others = [name for name in names if name not in (key, label)]
    columns = {name: u for name in others if (u := _column(path, name, len(z))) is not None}
    return Embeddings(z, y, columns, [name for name in others if name not in (*NAME_KEYS, *columns)])


def _classes(labels: Tensor, file: str) -> Tensor:
    if bool((labels < 0).any()):
        raise ValueError(
            f"expected a label of each item in {file}, found -1, which is unknown, in {int((labels < 0).sum())} rows"
        )
    if len(labels.unique()) < 2:
        raise ValueError(f"expected labels of at least two classes in {file}, found one; R-AUROC needs items of another class")
    return labels


def _column(path: Path, name: str, n: int) -> Tensor | None:
    """Returns an array of the file as uncertainties (n,); None where it is none.

    Raises:
        ValueError: It holds NaN or infinity.
    """
    try:
        values: Array = read_arrays(path, (name,), 0)[0][name]
    except ValueError:  # Python objects
        return None
    if values.dtype.kind not in "fiub":
        return None
    if name == VARIANCE and values.ndim == 2:
        values = values.sum(axis=1)
    if values.shape != (n,):
        return None
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"expected finite numbers in {name} of {path.name}, found NaN or infinity; repair or drop such rows")
    return torch.from_numpy(-values if name == LOG_DENSITY else values)


def measure(tested: Embeddings, reference: Embeddings | None = None) -> Uncertainty:
    """Returns how well uncertainties rank the errors of at most 2,000 embeddings, beside controls.

    Controls are distances to at most 10,000 reference items. Without a reference, a random half of the items are reference
    items, and the others are tested.

    Raises:
        ValueError: There are fewer than 20 reference items, items of one class alone, or embeddings of different widths.
    """
    if reference is None:
        order = torch.randperm(len(tested.z), generator=torch.Generator().manual_seed(0))
        half = len(order) // 2
        reference, tested = tested.subset(order[:half].sort().values), tested.subset(order[half:].sort().values)
    if reference.z.shape[1] != tested.z.shape[1]:
        raise ValueError(f"expected embeddings of one width, found {tested.z.shape[1]} and {reference.z.shape[1]}; use one model")
    tested, bank = tested.subset(spaced(len(tested.z), ITEMS)), reference.subset(spaced(len(reference.z), BANK))
    if len(bank.z) < FEWEST or len(tested.z) < 2:
        found = f"found {len(bank.z)} and {len(tested.z)}"
        raise ValueError(f"expected at least {FEWEST} reference items and 2 others, {found}; give more")
    if min(len(part.labels.unique()) for part in (tested, bank)) < 2:
        raise ValueError("expected items of two classes or more in both halves, found one; give more items of the others")
    controls = uncertainties(bank.z, tested.z)
    names = tuple(name for name in controls if name not in tested.columns)
    return ranked(tested.columns | controls | tested.columns, tested.z, tested.labels, controls=names)
