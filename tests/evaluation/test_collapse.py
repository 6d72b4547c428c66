import pytest
import torch

from vergence.evaluation.collapse import ROWS, collapse, warning
from vergence.evaluation.parts.spread import effective_rank, normalized_std


def test_a_healthy_embedding():
    z = torch.randn(3000, 16) * 2
    found = collapse(z)
    assert found["std"] == pytest.approx(normalized_std(z).mean().item())
    assert found["std_min"] == pytest.approx(normalized_std(z).min().item())
    assert found["std_min"] < found["std"] <= 1
    assert found["effective_rank"] == pytest.approx(effective_rank(z).item())
    assert found["norm"] == pytest.approx(sum(row.norm().item() for row in z) / 3000)
    assert warning(found, 16) is None


def test_the_spectrum_of_many_rows_is_that_of_a_fixed_sample():
    z = torch.randn(ROWS + 3000, 8) * torch.arange(1, 9)
    z = z[z[:, 7].argsort()]  # sorted data: the first rows alone would mislead
    found = collapse(z)
    assert found == collapse(z)
    assert found["effective_rank"] == pytest.approx(effective_rank(z).item(), rel=0.03)
    assert effective_rank(z[:ROWS]).item() != pytest.approx(effective_rank(z).item(), rel=0.03)
    assert found["norm"] == pytest.approx(z.norm(dim=1).mean().item())  # of all rows
    same = z.clone()
    state = torch.get_rng_state()
    collapse(same)
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(same, z)


def test_a_point_is_named():
    for z in (torch.ones(100, 32), 5 + 0.01 * torch.randn(100, 32), torch.zeros(100, 32)):
        assert "one direction" in warning(collapse(z), 32)
    assert collapse(torch.ones(100, 32))["effective_rank"] == 0


def test_a_line_is_named_only_where_there_is_room_for_more():
    z = torch.randn(200, 1) @ torch.ones(1, 16) + 1e-3 * torch.randn(200, 16)
    stats = collapse(z)
    assert stats["std"] > 0.5  # the spread alone would miss it
    assert "to a line (effective rank 1" in warning(stats, 16)
    assert "to a line" in warning(stats)
    assert warning(stats, 8) is not None and warning(stats, 7) is None
    assert warning({"std": 0.0, "effective_rank": 1.0}, 1) is None, "the direction of one feature is its sign"
    assert warning({"std": 0.0, "effective_rank": 1.0}, 2) is not None


@pytest.mark.parametrize(("std", "rank", "found"), [(0.0999, 9, True), (0.1, 9, False), (0.5, 1.999, True), (0.5, 2, False)])
def test_thresholds(std, rank, found):
    line = warning({"std": std, "effective_rank": rank}, 64, "keep beta >= 1")
    assert (line is not None) == found
    if line:
        assert "\n" not in line
        for advice in ("smaller learning rate", "AdamW", "warm-up", "larger batch", "views", "beta >= 1"):
            assert advice in line


def test_mahalanobis_under_the_own_covariance_says_nothing():
    for z in (torch.randn(30, 4), torch.rand(30, 4).exp() * torch.arange(1, 5)):
        c = z - z.mean(0)
        d = (c @ torch.linalg.inv(torch.cov(z.T)) * c).sum(1)
        assert d.mean().item() == pytest.approx(4 * 29 / 30)


def test_not_finite_is_refused():
    with pytest.raises(ValueError, match="NaN or infinity in 3 of 3"):
        collapse(torch.full((3, 2), torch.nan))
