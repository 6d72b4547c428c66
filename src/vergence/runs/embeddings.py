"""Embeddings of any model in a file, with its own uncertainties: which of them rank the embedding's errors?"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vergence.data.arrays import ARRAY_KEYS, LABEL_KEYS, NAME_KEYS, open_arrays, read_arrays
from vergence.data.items import PairItems
from vergence.evaluation import anomaly, uncertainty
from vergence.runs.uncertainty import BANK, ITEMS, from_labels, ranked, share, spaced
from vergence.training.records import Uncertainty

__all__ = ["Embeddings", "measure", "read"]

MEMORY = 1 << 40  # bytes of a .npy file above which it is memory-mapped
FEWEST = 4  # items, half of which may be the reference
VARIANCE, LOG_DENSITY = "variance", "log_density"  # columns that the command embed writes


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of items, their classes, and what a model says of its uncertainty.

    Attributes:
        z: Embeddings (N, D).
        labels: Classes (N,), integers.
        columns: Uncertainties (N,) by name, larger is less certain.
    """

    z: Tensor
    labels: Tensor
    columns: dict[str, Tensor]

    def subset(self, index: Tensor) -> "Embeddings":
        """Returns the items of some rows."""
        return Embeddings(self.z[index], self.labels[index], {name: u[index] for name, u in self.columns.items()})


def read(path: Path) -> Embeddings:
    """Reads a ``.npz`` file: ``z`` (N, D), ``label`` (N,), and any columns (N,) of numbers, which are taken for uncertainties.

    The first two may have the other names that features and labels have (`vergence.data.arrays.open_arrays`); labels may be text.
    ``log_density`` is larger for more certain items, and so its sign changes; ``variance`` (N, D) is summed over features.

    Raises:
        ValueError: The file is missing, damaged, of another kind, has no labels of two classes, or a column that is not finite.
    """
    if path.suffix.lower() != ".npz" or not path.is_file():
        raise ValueError(f"expected a .npz file of embeddings z and label, found {path}; name one that is there")
    items = open_arrays(path, MEMORY).items
    z = next(items.stream([torch.arange(len(items))]))[1]
    if isinstance(items, PairItems) or z.ndim != 2:
        raise ValueError(f"expected embeddings z (N, D) in {path.name}, found images or pairs; embed them first")
    y = items.labels
    if y is None or bool((y < 0).any()) or len(y.unique()) < 2:
        raise ValueError(f"expected the array label in {path.name}, at least two classes; add it: R-AUROC needs to know errors")
    return Embeddings(z, y, _columns(path, len(z)))


def _columns(path: Path, n: int) -> dict[str, Tensor]:
    names = [name for name in read_arrays(path, (), MEMORY)[1] if name not in (*ARRAY_KEYS, *LABEL_KEYS, *NAME_KEYS)]
    found = read_arrays(path, names, MEMORY)[0]
    if found.get(VARIANCE, np.empty(0)).ndim == 2:
        found[VARIANCE] = found[VARIANCE].sum(axis=1)
    found = {name: u for name, u in found.items() if u.shape == (n,) and u.dtype.kind in "fiub"}
    for name, u in found.items():
        if not np.isfinite(u).all():
            raise ValueError(f"expected finite numbers in {name} of {path.name}, found NaN or infinity; repair or drop such rows")
    return {name: torch.as_tensor(u, dtype=torch.float64) * (-1 if name == LOG_DENSITY else 1) for name, u in found.items()}


def measure(tested: Embeddings, reference: Embeddings | None = None) -> Uncertainty:
    """Returns how well uncertainties rank the errors of at most 2,000 embeddings, beside controls.

    Controls compare an embedding with those of at most 10,000 reference items: distances to neighbors and to the mean, and what
    their labels teach. Without a reference, every second item is one, and the others are tested.

    Raises:
        ValueError: There are fewer than four items, or the two have other widths.
    """
    if len(tested.z) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} items, found {len(tested.z)}; give more")
    if reference is None:
        reference, tested = tested.subset(torch.arange(0, len(tested.z), 2)), tested.subset(torch.arange(1, len(tested.z), 2))
    if reference.z.shape[1] != tested.z.shape[1]:
        raise ValueError(f"expected embeddings of one width, found {tested.z.shape[1]} and {reference.z.shape[1]}; use one model")
    tested, bank = tested.subset(spaced(len(tested.z), ITEMS)), reference.subset(spaced(len(reference.z), BANK))
    z, train = tested.z, bank.z
    equal = uncertainty.equalizer(train)
    controls = {
        "neighbor spread": uncertainty.neighbor_spread(equal(train), equal(z)),
        "density of z": anomaly.mahalanobis(train, z),
        "norm of z": -z.norm(dim=1),
        "kNN distance": anomaly.knn_distance(train, z),
        **from_labels(train, bank.labels, z),
    }
    right, right_equal = (uncertainty.neighbor_is_right(space, tested.labels) for space in (z, equal(z)))
    own = {name: ranked(name, u, right, right_equal, kind="model") for name, u in tested.columns.items()}
    return Uncertainty(
        items=len(z),
        crops=0,
        scores=own
        | {name: ranked(name, u, right, right_equal, kind="control") for name, u in controls.items() if name not in own},
        recall_at_1=share(right),
        recall_at_1_equalized=share(right_equal),
        aurc_best=float(uncertainty.risk_coverage((~right).double(), right)[1].mean()),
    )
