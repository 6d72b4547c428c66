"""What embeddings and numbers allow to say: a collapse, and standard errors."""

import pytest
import torch

from vergence.learn.evaluation.collapse import ROWS, collapse, effective_rank, normalized_std
from vergence.learn.evaluation.judgment import accuracy_error, auroc_error, collapse_warning


def test_the_spectrum_of_many_rows_is_that_of_a_fixed_sample():
    z = torch.randn(ROWS + 3000, 8) * torch.arange(1, 9)
    z = z[z[:, 7].argsort()]  # sorted data: the first rows alone would mislead
    found = collapse(z)
    assert found == collapse(z) and collapse_warning(found, 8) is None
    assert found["std"] == pytest.approx(normalized_std(z).mean().item()) and 0 < found["std_min"] < found["std"] <= 1
    assert found["effective_rank"] == pytest.approx(effective_rank(z).item(), rel=0.03)
    assert effective_rank(z[:ROWS]).item() != pytest.approx(effective_rank(z).item(), rel=0.03)
    assert found["norm"] == pytest.approx(z.norm(dim=1).mean().item())  # of all rows
    same = z.clone()
    state = torch.get_rng_state()
    collapse(same)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(same, z)


def test_a_point_is_named_and_a_line_where_there_is_room_for_more():
    for z in (torch.ones(100, 32), 5 + 0.01 * torch.randn(100, 32), torch.zeros(100, 32)):
        assert "one direction" in collapse_warning(collapse(z), 32)
    assert collapse(torch.ones(100, 32))["effective_rank"] == 0
    z = torch.randn(200, 1) @ torch.ones(1, 16) + 1e-3 * torch.randn(200, 16)
    stats = collapse(z)
    assert stats["std"] > 0.5  # the spread alone would miss it
    assert "to a line (effective rank 1" in collapse_warning(stats, 16)
    assert "to a line" in collapse_warning(stats)
    assert collapse_warning(stats, 8) is not None and collapse_warning(stats, 7) is None
    assert collapse_warning({"std": 0.0, "effective_rank": 1.0}, 1) is None, "the direction of one feature is its sign"
    assert collapse_warning({"std": 0.0, "effective_rank": 1.0}, 2) is not None


@pytest.mark.parametrize(("std", "rank", "found"), [(0.0999, 9, True), (0.1, 9, False), (0.5, 1.999, True), (0.5, 2, False)])
def test_thresholds(std, rank, found):
    line = collapse_warning({"std": std, "effective_rank": rank}, 64, "keep beta >= 1")
    assert (line is not None) == found
    advice = ("smaller learning rate", "AdamW", "warm-up", "larger batch", "views", "Keep beta >= 1")
    assert not line or ("\n" not in line and all(words in line for words in advice))
    assert not line or max(len(sentence.split()) for sentence in line.split(". ")) <= 20


@pytest.mark.parametrize(("n", "m"), [(5, 40), (30, 30), (60, 8)])
def test_the_standard_error_is_that_of_exponential_scores(n, m):
    generator = torch.Generator().manual_seed(0)
    anomalous, others = (torch.empty(20_000, k).exponential_(generator=generator) for k in (n, m))
    found = torch.stack([(3 * a[:, None] > b).double().mean() for a, b in zip(anomalous, others, strict=True)])  # A = 3 / 4
    assert found.mean().item() == pytest.approx(0.75, abs=3e-3)
    assert auroc_error(0.75, n, m) == pytest.approx(found.std().item(), rel=0.03)


def test_the_standard_error_of_an_accuracy_is_that_of_votes():
    votes = torch.rand(20_000, 40, generator=torch.Generator().manual_seed(0)) < 0.875
    assert accuracy_error(0.875, 40) == pytest.approx(votes.double().mean(1).std().item(), rel=0.03)


def test_the_standard_error_of_a_single_pair_and_of_scores_that_separate():
    assert auroc_error(0.5, 1, 1) == 0.5
    assert auroc_error(1.0, 3, 4) == auroc_error(0.0, 3, 4) == 0.0
