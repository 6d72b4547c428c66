"""Training on several modalities of one item: an encoder for each, and an objective on pairs of them or on all at once."""

import copy
import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vergence.data.modalities import missing
from vergence.learn.encoders.networks import Standardize
from vergence.learn.methods.core import Gather, Side
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.core import Objective
from vergence.utils.checks import expect
from vergence.utils.linalg import upcast_half

__all__ = ["ModalityMethod"]


class ModalityMethod(PairedMethod):
    """Trains an encoder for each of V >= 2 modalities with an objective on their embeddings.

    The terms are means over the pairs of modalities, each over the items that have both, and a pair with fewer than two such
    items is left out of a step. A density over ``blocks`` of these names (`GJE`) takes all modalities at once in a batch where
    none is missing, and is updated with the items that have all; another objective has a copy for each pair. An item enters the
    encoder of a modality that it lacks as the mean, whose embedding takes no part in the loss.

    Args:
        branches: Encoder and head of each modality by name, items (B, ...) -> embeddings (B, D); the first is the context.
        objective: Objective on pairs of embeddings, without a teacher.
        anchor: Name of the modality that is in every pair; None for all pairs.

    Example:
        >>> from vergence.learn.objectives.gje import GJE
        >>> branches = {name: (nn.Linear(5, 8), nn.Identity()) for name in "abc"}
        >>> method = ModalityMethod(branches, GJE(8, tuple("abc")), anchor="b")
        >>> sorted(method(tuple(torch.randn(3, 16, 5)), gather=lambda z: z)), method.pairs
        (['kl', 'mi'], (('a', 'b'), ('b', 'c')))
    """

    def __init__(
        self, branches: Mapping[str, tuple[nn.Module, nn.Module]], objective: Objective, *, anchor: str | None = None
    ) -> None:
        (encoder, head), *others = branches.values()
        super().__init__(encoder, objective, projector=head)
        names, kind = tuple(branches), type(objective).__name__
        expect(objective.teacher is None, "an objective without a teacher for modalities", kind, "gje and vicreg have none")
        self.names, self.anchor = names, anchor
        self.target_encoder = nn.ModuleDict({name: net for name, (net, _) in zip(names[1:], others, strict=True)})
        self.target_projector = nn.ModuleDict({name: head for name, (_, head) in zip(names[1:], others, strict=True)})
        self.pairs = tuple(pair for pair in itertools.combinations(names, 2) if anchor in (None, *pair))
        self.joint = getattr(objective, "blocks", ()) == names
        copies = () if self.joint else self.pairs[1:]
        self.objectives = nn.ModuleDict({"-".join(pair): copy.deepcopy(objective) for pair in copies})
        self._all: dict[str, Tensor] = {}
        self._present: dict[str, Tensor] = {}

    def branch(self, side: Side) -> nn.Sequential:
        """Returns encoder and head of a modality, the first by default."""
        others: Any = self.target_encoder, self.target_projector
        return nn.Sequential(*(part[side] for part in others) if side in others[0] else (self.encoder, self.projector))

    def forward(self, views: tuple[Tensor, ...], gather: Gather) -> dict[str, Tensor]:
        """Returns the objective's terms for the modalities of a batch, of which items may be missing (NaN)."""
        z: dict[str, Tensor] = {}
        for name, x in zip(self.names, views, strict=True):
            gaps, branch = missing(x), self.branch(name)
            z[name] = gather(upcast_half(branch(_filled(x, branch) if x.is_floating_point() else x)))
            self._present[name] = gather((~gaps).to(z[name].dtype)).detach() > 0
        self._all = {name: x.detach() for name, x in z.items()}
        with torch.autocast(next(iter(z.values())).device.type, enabled=False):
            if self.joint and self.anchor is None and all(bool(there.all()) for there in self._present.values()):
                return self._of_pair(self.names, tuple(z.values()))
            found = [self._of_pair(pair, both) for pair in self.pairs if (both := self._both(z, pair)) is not None]
            nothing = 0 * torch.stack([x.sum() for x in z.values()]).sum()  # several processes wait for every gradient
            if not found:
                return {"empty": nothing}
        terms = {term: torch.stack([one[term] for one in found]).mean() for term in found[0]}
        first = next(iter(terms))
        return terms if len(found) == len(self.pairs) else {**terms, first: terms[first] + nothing}

    def _both(self, z: Mapping[str, Tensor], names: tuple[str, ...]) -> tuple[Tensor, ...] | None:
        """Returns the embeddings of some modalities of the items that have all of them; None for fewer than two items."""
        rows = torch.stack([self._present[name] for name in names]).all(0)
        if rows.all():
            return tuple(z[name] for name in names)
        return None if rows.sum() < 2 else tuple(z[name][rows] for name in names)

    def _objective_of(self, pair: tuple[str, ...]) -> Any:
        name = "-".join(pair)
        return self.objectives[name] if name in self.objectives else self.objective

    def _of_pair(self, pair: tuple[str, ...], both: tuple[Tensor, ...]) -> dict[str, Tensor]:
        objective = self._objective_of(pair)
        terms: dict[str, Tensor] = objective.terms(dict(zip(pair, both, strict=True))) if self.joint else objective(*both)
        return terms

    def frozen(self) -> tuple[Tensor, ...]:
        """Returns the objectives' frozen parameters."""
        objectives: Any = self.objectives.values()
        return (*super().frozen(), *itertools.chain(*(one.frozen() for one in objectives)))

    @torch.no_grad()
    def after_step(self) -> None:
        """Updates the objective with the items that have all modalities, or that of each pair with those that have both."""
        for names in (self.names,) if self.joint else self.pairs:
            if (both := self._both(self._all, names)) is not None:
                self._objective_of(names).update(*both)

    def embeddings(self) -> Tensor | None:
        """Returns the last batch's embeddings of the first modality, (B, D), detached, where there are two."""
        first = self._both(self._all, self.names[:1]) if self._all else None
        return None if first is None else first[0]

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Returns the objective's diagnostics of the last batch, of the first pair."""
        both = self._both(self._all, self.names[:2] if self.joint else self.pairs[0])
        return {} if both is None or self.objective is None else self.objective.diagnostics(*both)


def _filled(x: Tensor, branch: nn.Module) -> Tensor:
    """Returns items whose missing values have the mean that an encoder subtracts, or 0."""
    mean = next((layer.mean for layer in branch.modules() if isinstance(layer, Standardize)), x.new_zeros(1))
    return torch.where(x.isnan(), mean[: x.shape[1]].view(1, -1, *[1] * (x.ndim - 2)).to(x), x)
