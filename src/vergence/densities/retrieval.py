"""Retrieval from a bank: the items of highest density under each component of p(z_b | z_a), and under the whole of it.

Shapes: N contexts, M items in the bank, D features, K components, m modes, n results.
"""

import dataclasses
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
    """Items of a bank retrieved for N contexts, by decreasing density; similar components may retrieve the same items."""

    index: Tensor  # (N, m, n) int64, the n items of highest density under each component
    log_prob: Tensor  # (N, m, n), log-densities of these items under their component, in nats
    weight: Tensor  # (N, m), weights of the components, which sum to 1 if m = K
    ranked: Tensor  # (N, n) int64, the n items of highest density under the whole conditional
    ranked_log_prob: Tensor  # (N, n), log-densities of these items under the whole conditional, in nats

    def table(self) -> Mapping[str, Sequence[int | float]]:
        """Returns one row per context and item of ``ranked``."""
        N, n = self.ranked.shape
        return {
            "context": torch.arange(N).repeat_interleave(n).tolist(),
            "index": self.ranked.flatten().tolist(),
            "log_prob": self.ranked_log_prob.flatten().tolist(),
        }


def retrieve(
    conditional: Callable[[Tensor], Conditional], za: Tensor, bank: Tensor, n: int, modes: int = 3, numbers: int = NUMBERS
) -> Retrieved:
    """Returns the items of a bank with the highest density for each context, block by block; ties keep the bank's order.

    Contexts za are (N, D), the bank (M, D), and n is 1 to M. The function ``conditional`` is that from contexts (B, D) to
    p(z_b | z_a), of batch (B,) over (D,). ``modes`` are the most components to retrieve by, at least 1; a Gaussian has one. About
    so many ``numbers`` are held at a time, at least one context by one item by K.

    Example:
        >>> halves = JointGaussian(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]), context=1)
        >>> retrieve(halves.conditional, torch.tensor([[2.0]]), torch.tensor([[-1.0], [0.9], [2.0]]), n=2).ranked
        tensor([[1, 2]])
    """
    shapes = f"{tuple(za.shape)} and {tuple(bank.shape)}"
    expect(za.ndim == bank.ndim == 2 and za.shape[1] == bank.shape[1] and len(za), "contexts (N, D) and a bank (M, D)", shapes)
    expect(1 <= n <= len(bank) and modes >= 1, f"n from 1 to the bank's {len(bank)} items and modes >= 1", f"{n} and {modes}")
    first = conditional(za[:1])
    common = isinstance(first, MixtureOfGaussians) and first.common is not None
    row = _log_weights(first).shape[-1] * za.shape[1]  # numbers of one context and one item
    contexts = max(1, numbers // (row if common else row * za.shape[1]))  # a covariance for each context
    parts = []
    for z in za.split(64 * contexts if common else contexts):
        parts.append(_retrieve(conditional(z), bank, n, modes, max(1, numbers // (row if common else row * len(z)))))
    return Retrieved(*(torch.cat([part[i] for part in parts]) for i in range(len(dataclasses.fields(Retrieved)))))


def _retrieve(density: Conditional, bank: Tensor, n: int, modes: int, block: int) -> tuple[Tensor, ...]:
    """Returns the fields of `Retrieved` for a density of batch (B,)."""
    weight, k = _log_weights(density).exp().sort(dim=-1, descending=True, stable=True)
    k = k[:, :modes]
    of_mode = of_whole = None
    for start in range(0, len(bank), block):
        by_mode, whole = log_probs(density, bank[start : start + block], k)
        of_mode, of_whole = _best(of_mode, by_mode, start, n), _best(of_whole, whole, start, n)
    assert of_mode is not None and of_whole is not None
    (log_prob, index), (ranked_log_prob, ranked) = of_mode, of_whole
    return index.permute(1, 2, 0), log_prob.permute(1, 2, 0), weight[:, :modes], ranked.T, ranked_log_prob.T


def _log_weights(density: Conditional) -> Tensor:
    """Returns log pi, (B, K)."""
    if isinstance(density, JointGaussian):
        return torch.zeros_like(density.loc[:, :1])
    return density.mixture_distribution.logits


def log_probs(density: Conditional, z: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the log-densities of items (M, D) under components k (B, m), as (M, B, m), and under the whole, as (M, B)."""
    if isinstance(density, MixtureOfGaussians) and density.common is not None:  # one table for all contexts
        parts, logits = density.common.log_prob(z[:, None]).double(), density.mixture_distribution.logits.double()
        top = parts.amax(1, keepdim=True)
        whole = ((parts - top).exp() @ logits.softmax(-1).mT).log() + top
        for some in whole.isneginf().nonzero().split(max(1, NUMBERS // parts.shape[1])):  # underflow: pair by pair
            m, b = some.T
            whole[m, b] = (parts[m] + logits[b]).logsumexp(1)
        return parts[:, k].to(z), whole.to(z)
    if isinstance(density, JointGaussian):
        parts = density.log_prob(z[:, None])[..., None]
    else:
        parts = density.component_distribution.log_prob(z[:, None, None])
    return parts.gather(-1, k.expand(len(parts), *k.shape)), (parts + _log_weights(density)).logsumexp(-1)


def _best(before: tuple[Tensor, Tensor] | None, values: Tensor, start: int, n: int) -> tuple[Tensor, Tensor]:
    """Returns the n largest of the values before and new values (M, ...), which start at index ``start``, and their indices."""
    index = torch.arange(start, start + len(values), device=values.device)
    index = index.view(-1, *(1,) * (values.ndim - 1)).expand_as(values)
    if before is not None:
        values, index = torch.cat([before[0], values]), torch.cat([before[1], index])
    values, order = values.sort(dim=0, descending=True, stable=True)
    return values[:n], index.gather(0, order[:n])
