"""Retrieval by a mixture whose contexts share components ranks by the whole density, however far an item lies."""

import torch

from vergence.densities.gaussian import MixtureOfGaussians
from vergence.densities.retrieval import retrieve


def test_items_far_from_a_contexts_components_keep_their_order():
    kernels = torch.tensor([[0.0], [100.0]])

    def conditional(z):
        logits = -(z - kernels.T).square() / 2
        return MixtureOfGaussians(logits, kernels, torch.eye(1))

    za, bank = torch.tensor([[0.5], [99.0]]), torch.tensor([[99.0], [98.0], [97.0], [60.0]])
    found = retrieve(conditional, za, bank, n=4)
    expected = torch.stack([conditional(za.double()).log_prob(item.double().expand(2, 1)) for item in bank], 1)
    order = expected.sort(dim=1, descending=True, stable=True)
    torch.testing.assert_close(found.ranked, order.indices)
    torch.testing.assert_close(found.ranked_log_prob.double(), order.values, rtol=1e-5, atol=1e-4)
