"""Retrieval from a bank: the items of highest density under p(z_b | z_a).

Shapes: N contexts, M items in the bank, D features, K components, n results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vergence.densities.gaussian import JointGaussian, MixtureOfGaussians
from vergence.utils.checks import expect
from vergence.utils.terminal import Tabular

__all__ = ["Retrieved", "log_probs", "retrieve"]

Conditional = JointGaussian | MixtureOfGaussians
NUMBERS = 1 << 20  # numbers held at a time: more would not fit the cache


@dataclass(frozen=True, repr=False)
class Retrieved(Tabular):
    """Items of a bank retrieved for N contexts, by decreasing density."""

    ranked: Tensor  # (N, n) int64
    ranked_log_prob: Tensor  # (N, n), their log-densities in nats

    def table(self) -> Mapping[str, Sequence[int | float]]:
        """Returns one row per context and item of ``ranked``."""
        N, n = self.ranked.shape
        return {
            "context": torch.arange(N).repeat_interleave(n).tolist(),
            "index": self.ranked.flatten().tolist(),
            "log_prob": self.ranked_log_prob.flatten().tolist(),
        }


def retrieve(conditional: Callable[[Tensor], Conditional], za: Tensor, bank: Tensor, n: int, numbers: int = NUMBERS) -> Retrieved:
    """Returns the items of a bank with the highest density for each context, block by block; ties keep the bank's order.

    Contexts za are (N, D), the bank (M, D), and n is 1 to M. The function ``conditional`` is that from contexts (B, D) to
    p(z_b | z_a), of batch (B,) over (D,). About so many ``numbers`` are held at a time, at least one context by one item by K.
    """
    shapes = f"{tuple(za.shape)} and {tuple(bank.shape)}"
    expect(za.ndim == bank.ndim == 2 and za.shape[1] == bank.shape[1] and len(za), "contexts (N, D) and a bank (M, D)", shapes)
    expect(1 <= n <= len(bank), f"n from 1 to the bank's {len(bank)} items", n)
    first = conditional(za[:1])
    common = isinstance(first, MixtureOfGaussians) and first.common is not None
    K = first.mixture_distribution.logits.shape[-1] if isinstance(first, MixtureOfGaussians) else 1
    row = K * za.shape[1]  # numbers of one context and one item
    contexts = max(1, numbers // (row if common else row * za.shape[1]))  # a covariance for each context
    parts = []
    for z in za.split(64 * contexts if common else contexts):
        density, block, best = conditional(z), max(1, numbers // (row if common else row * len(z))), None
        for start in range(0, len(bank), block):
            best = _best(best, log_probs(density, bank[start : start + block]), start, n)
        parts.append(best)
    log_prob, ranked = (torch.cat(side, 1).T for side in zip(*filter(None, parts), strict=True))
    return Retrieved(ranked, log_prob)


def log_probs(density: Conditional, z: Tensor) -> Tensor:
    """Returns the log-densities of items (M, D), (M, B)."""
    if isinstance(density, MixtureOfGaussians) and density.common is not None:  # one table for all contexts
        parts, logits = density.common.log_prob(z[:, None]).double(), density.mixture_distribution.logits.double()
        top = parts.amax(1, keepdim=True)
        whole = ((parts - top).exp() @ logits.softmax(-1).mT).log() + top
        for some in whole.isneginf().nonzero().split(max(1, NUMBERS // parts.shape[1])):  # underflow: pair by pair
            m, b = some.T
            whole[m, b] = (parts[m] + logits[b]).logsumexp(1)
        return whole.to(z)
    return density.log_prob(z[:, None])


def _best(before: tuple[Tensor, Tensor] | None, values: Tensor, start: int, n: int) -> tuple[Tensor, Tensor]:
    """Returns the n largest of the values before and new values (M, B), which start at index ``start``, and their indices."""
    index = torch.arange(start, start + len(values), device=values.device)[:, None].expand_as(values)
    if before is not None:
        values, index = torch.cat([before[0], values]), torch.cat([before[1], index])
    values, order = values.sort(dim=0, descending=True, stable=True)
    return values[:n], index.gather(0, order[:n])
