"""Growing neural gas in lists and dictionaries: slow, float64, step by step, nothing shared with the library.

B. Fritzke, A growing neural gas network learns topologies, NIPS 7 (1995). A unit keeps its number for life.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Vector = Sequence[float]


def squared_distance(a: Vector, b: Vector) -> float:
    """Returns |a - b|^2."""
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


@dataclass
class Gas:
    """The state, and the parameters by the paper's names.

    Attributes:
        w: The place of each unit.
        E: The error of each unit.
        age: The age of each edge, age[i][j] = age[j][i]; no key where there is no edge.
    """

    max_nodes: int = 100
    lam: int = 100
    eps_b: float = 0.2
    eps_n: float = 0.006
    alpha: float = 0.5
    a_max: int = 50
    d: float = 0.995
    w: dict[int, list[float]] = field(default_factory=dict)
    E: dict[int, float] = field(default_factory=dict)
    age: dict[int, dict[int, int]] = field(default_factory=dict)
    made: int = 0
    signals: int = 0
    insertions: int = 0
    removals: int = 0

    def add(self, place: Vector, error: float) -> int:
        """Adds a unit and returns its number."""
        number, self.made = self.made, self.made + 1
        self.w[number], self.E[number] = [float(v) for v in place], error
        self.age[number] = {}
        return number

    def link(self, i: int, j: int, age: int) -> None:
        """Gives the edge i-j this age; makes it where there was none."""
        self.age[i][j] = self.age[j][i] = age

    def unlink(self, i: int, j: int) -> None:
        """Removes the edge i-j."""
        del self.age[i][j], self.age[j][i]

    def move(self, i: int, x: Vector, eps: float) -> None:
        """Moves unit i toward x by a fraction eps."""
        self.w[i] = [w + eps * (v - w) for w, v in zip(self.w[i], x, strict=True)]

    def signal(self, x: Vector) -> None:
        """Adapts to one signal."""
        first, second = sorted(self.w, key=lambda i: (squared_distance(x, self.w[i]), i))[:2]
        for i, age in list(self.age[first].items()):
            self.link(first, i, age + 1)
        self.E[first] += squared_distance(x, self.w[first])
        self.move(first, x, self.eps_b)
        for i in self.age[first]:
            self.move(i, x, self.eps_n)
        self.link(first, second, 0)
        for i, age in list(self.age[first].items()):  # no other edge has aged
            if age > self.a_max:
                self.unlink(first, i)
        for i in [i for i in self.w if not self.age[i]]:
            del self.w[i], self.E[i], self.age[i]
            self.removals += 1
        self.signals += 1
        if self.signals % self.lam == 0 and len(self.w) < self.max_nodes:
            self.insert()
        for i in self.E:
            self.E[i] *= self.d

    def insert(self) -> None:
        """Puts a unit between the one of the largest error and its neighbor of the largest error."""
        q = max(self.w, key=lambda i: (self.E[i], -i))
        f = max(self.age[q], key=lambda i: (self.E[i], -i))
        self.E[q] *= self.alpha
        self.E[f] *= self.alpha
        r = self.add([(a + b) / 2 for a, b in zip(self.w[q], self.w[f], strict=True)], self.E[q])
        self.insertions += 1
        self.link(q, r, 0)
        self.link(f, r, 0)
        self.unlink(q, f)

    def run(self, signals: Sequence[Vector]) -> "Gas":
        """Adapts to signals in turn; the first two of all become the first units."""
        signals = list(signals)
        while len(self.w) < 2:
            self.add(signals.pop(0), 0.0)
        for x in signals:
            self.signal(x)
        return self

    def tables(self) -> tuple[list[list[float]], list[float], list[list[int]]]:
        """Returns places (M, D), errors (M,) and ages (M, M), -1 where there is no edge, the oldest unit first."""
        units = sorted(self.w)
        ages = [[self.age[i].get(j, -1) for j in units] for i in units]
        return [self.w[i] for i in units], [self.E[i] for i in units], ages
