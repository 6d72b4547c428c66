"""A reason for each unusual item: the level that says so, its directions, plain measurements, the nearest typical items.

Shapes: n typical items, m unusual items, D features of a level, k neighbors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vergence.detection.parts.kinds import as_values
from vergence.detection.parts.search import features_of
from vergence.utils.checks import require_count

__all__ = ["Reason", "Reasons"]

EXTREME = 0.005  # share of typical items that are at least as extreme, below which a measurement is part of a reason
NAMED = 2  # directions and measurements that a reason names


@dataclass(frozen=True)
class Reason:
    """Why an item is unusual; see `Reasons.explain`.

    Attributes:
        level: Level with the least p-value.
        p_value: That p-value, on its own: of several levels the least is not a p-value of the whole.
        directions: Principal directions of the level, the ones that deviate most, 0 for that of the largest variance.
        deviations: Their deviations, in standard deviations of the typical items.
        share: Share of the item's squared standardized distance that these directions hold.
        measurements: What a few in a thousand typical items have at most, for instance ``low sharpness``.
        flags: Names of the flags that the item has.
        nearest: Indices of the nearest typical items of that level, the nearest first.
        sentence: All that in plain words.
    """

    level: str
    p_value: float
    directions: tuple[int, ...]
    deviations: tuple[float, ...]
    share: float
    measurements: tuple[str, ...]
    flags: tuple[str, ...]
    nearest: tuple[int, ...]
    sentence: str

    def __str__(self) -> str:
        """Returns the sentence."""
        return self.sentence


class Reasons:
    """Explains unusual items by comparing them with typical ones.

    Args:
        levels: Features (n, D) of typical items, by the name of the level.
        measurements: Measurements (n,) of the typical items by name, as in `vergence.detection.measure`.
        names: Names (n,) of the typical items; their numbers by default.
        directions: Principal directions of a level that are looked at, those of largest variance.
        neighbors: Nearest typical items to name.

    Raises:
        ValueError: The levels differ in the number of items.

    Example:
        >>> z = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 2.0, 1.0])
        >>> reasons = Reasons({"z": z}, neighbors=1)
        >>> print(reasons.explain({"z": torch.tensor([[0.0, 0.0, 9.0]])}, {"z": [0.004]})[0])
        unusual at level 'z' (p = 0.004): 100% of its distance is in direction 2 (8.6 standard deviations); nearest typical
        item: 19
    """

    def __init__(
        self,
        levels: Mapping[str, Any],
        measurements: Mapping[str, Any] | None = None,
        names: Sequence[str] | None = None,
        *,
        directions: int = 64,
        neighbors: int = 3,
    ) -> None:
        require_count(1, directions=directions, neighbors=neighbors)
        self.typical = {name: features_of(name, x) for name, x in levels.items()}
        counts = {len(x) for x in self.typical.values()}
        if len(counts) != 1:
            found = ", ".join(f"{name} {len(x)}" for name, x in self.typical.items())
            raise ValueError(f"expected the same typical items at every level, found {found or 'no level'}")
        self.n, self.neighbors = counts.pop(), neighbors
        self.names = names if names is None else [str(name) for name in names]
        if self.names is not None and len(self.names) != self.n:
            raise ValueError(f"expected a name for each of the {self.n} typical items, found {len(self.names)}")
        self.measured = {k: np.sort(as_values(k, v).cpu().numpy()) for k, v in (measurements or {}).items()}
        self.bases = {name: _basis(x, directions) for name, x in self.typical.items()}

    def explain(
        self,
        levels: Mapping[str, Any],
        p_values: Mapping[str, Any],
        measurements: Mapping[str, Any] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> list[Reason]:
        """Returns the reason for each of m items.

        Args:
            levels: Features (m, D) of the items, for the levels of the constructor.
            p_values: p-values (m,) of each level.
            measurements: Measurements (m,) by name.
            flags: Flags (m,) of bool by name.

        Raises:
            ValueError: Levels are missing, or numbers of items differ.
        """
        missing = [name for name in p_values if name not in self.typical or name not in levels]
        if missing or not p_values:
            raise ValueError(f"expected features of every level with p-values, found none of {', '.join(missing) or 'any'}")
        p = {name: as_values(f"p-values of {name}", values).cpu().numpy() for name, values in p_values.items()}
        x = {name: features_of(name, levels[name]).to(self.typical[name]) for name in p}
        if len({len(v) for v in p.values()} | {len(v) for v in x.values()}) != 1:
            raise ValueError("expected as many p-values as items at every level, found different numbers")
        unusual = {k: self._unusual(k, v) for k, v in (measurements or {}).items() if k in self.measured}
        table = np.stack(list(p.values()))
        best = table.argmin(0)
        reasons: list[Reason] = []
        for i, level in enumerate(np.array(list(p))[best].tolist()):
            words = sorted((share, word) for share, word in (found[i] for found in unusual.values()) if share <= EXTREME)
            named = tuple(word for _, word in words[:NAMED])
            marks = tuple(name for name, values in (flags or {}).items() if bool(values[i]))
            reasons.append(self._reason(level, float(table[best[i], i]), x[level][i], named, marks))
        return reasons

    def _reason(self, level: str, p: float, x: Tensor, words: tuple[str, ...], marks: tuple[str, ...]) -> Reason:
        mean, vectors, scale = self.bases[level]
        z = (x.double() - mean) @ vectors / scale
        order = z.abs().argsort(descending=True)[:NAMED]
        squares = z.square()
        order = order[squares[order] >= 0.1 * squares.sum()] if bool(squares.sum() > 0) else order[:1]
        order = order if len(order) else z.abs().argmax()[None]
        share = float(squares[order].sum() / squares.sum().clamp(min=1e-300))
        k = min(self.neighbors, self.n)
        nearest = (self.typical[level] - x).square().sum(1).topk(k, largest=False).indices.tolist()
        directions, deviations = tuple(order.tolist()), tuple(z[order].tolist())
        near = ", ".join(self.names[i] if self.names else str(i) for i in nearest)
        sentence = _sentence(level, p, directions, deviations, share, (*marks, *words), near, k)
        return Reason(level, p, directions, deviations, share, words, marks, tuple(nearest), sentence)

    def _unusual(self, name: str, values: Any) -> list[tuple[float, str]]:
        """Returns for each item the share of typical items at least as extreme in a measurement, and its name."""
        v, typical = as_values(name, values).cpu().numpy(), self.measured[name]
        below = np.searchsorted(typical, v, side="right") / self.n
        above = 1 - np.searchsorted(typical, v, side="left") / self.n
        return [(min(b, a), f"{'low' if b < a else 'high'} {name}") for b, a in zip(below.tolist(), above.tolist(), strict=True)]


def _basis(x: Tensor, directions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the mean (D,), principal directions (D, d), and their standard deviations (d,), the largest first."""
    mean = x.double().mean(0)
    S = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64, device=x.device)
    for part in x.split(4096):
        S += (part.double() - mean).T @ (part.double() - mean) / len(x)
    values, vectors = torch.linalg.eigh(S)
    kept = min(directions, x.shape[1])
    values, vectors = values[-kept:].flip(0), vectors[:, -kept:].flip(1)
    floor = 1e-6 * values.max().clamp(min=1e-12)
    return mean, vectors, values.clamp(min=floor).sqrt()


def _sentence(
    level: str,
    p: float,
    directions: tuple[int, ...],
    deviations: tuple[float, ...],
    share: float,
    words: tuple[str, ...],
    near: str,
    k: int,
) -> str:
    plural = "directions " if len(directions) > 1 else "direction "
    by = plural + " and ".join(f"{d} ({z:.1f} standard deviations)" for d, z in zip(directions, deviations, strict=True))
    plain = f"; {', '.join(words)}" if words else ""
    where = f"{share:.0%} of its distance is in {by}{plain}"
    return f"unusual at level '{level}' (p = {p:.2g}): {where}; nearest typical item{'s' * (k > 1)}: {near}"
