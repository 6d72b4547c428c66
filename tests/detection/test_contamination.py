"""Label-Trim: power back, errors bounded; trimming without looking breaks the bound."""

import numpy as np
import pytest
import torch

from vergence.detection import label_trim, p_values, select, to_label

N, M, ODD, BAD = 1000, 200, 20, 40


def runs(trim, shift, count=150):
    """Returns the mean false-discovery proportion and power with a contaminated calibration that ``trim`` treats."""
    r, proportions, powers = np.random.default_rng(0), [], []
    for _ in range(count):
        calibration, s = r.normal(size=N), r.normal(size=M)
        calibration[:BAD] += shift
        s[:ODD] += shift
        found = select(p_values(trim(calibration), s), 0.1)
        proportions.append(found[ODD:].sum() / max(1, found.sum()))
        powers.append(found[:ODD].mean())
    return np.mean(proportions), np.mean(powers), 3 * np.std(proportions) / count**0.5


def confirmed(calibration):
    shown = to_label(calibration, 60)
    return label_trim(calibration, shown[shown < BAD], 60)


def blind(calibration):
    return np.sort(calibration)[:-60]


def test_confirmed_oddities_give_the_power_back():
    bad, trimmed = runs(lambda c: c, 4.0), runs(confirmed, 4.0)
    assert bad[0] <= 0.1 + bad[2] and bad[1] < 0.05
    assert trimmed[0] <= 0.1 + trimmed[2] and trimmed[1] > 0.8


def test_trimming_without_looking_inflates_errors():
    assert runs(blind, 4.0)[0] > 0.2
    rate, _, error = runs(confirmed, 2.0)
    assert rate <= 0.1 + error


def test_only_what_was_looked_at_is_taken_out():
    x = torch.tensor([0.1, 0.9, 0.5, 0.7])
    assert to_label(x, 2).tolist() == [1, 3] and label_trim(x, [3], 2).tolist() == pytest.approx([0.1, 0.9, 0.5])
    assert label_trim(x.numpy(), torch.tensor([1, 3]), 2).tolist() == pytest.approx([0.1, 0.5])
    assert label_trim(x, [], 2).tolist() == pytest.approx(x.tolist())
    with pytest.raises(ValueError, match=r"among the 2 strangest calibration items, found 1 elsewhere \(first: 2\)"):
        label_trim(x, [1, 2], 2)
    with pytest.raises(ValueError, match="expected calibration items to remain, found all 4 confirmed"):
        label_trim(x, range(4), 4)
    with pytest.raises(ValueError, match="expected a budget of at most the 4 calibration items, found 5"):
        to_label(x, 5)
