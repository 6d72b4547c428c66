"""The robust scores of a folder: the level `summary` by its neighbors, and what it finds that the others do not."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.runs.test_folder import judged, photographs

from vergence.data.items import ArrayItems
from vergence.detection import cross_fit, pixel_statistics
from vergence.detection.neighbors import NeighborDetector
from vergence.detection.robust import FOLDS, RobustDetector
from vergence.runs.folder import FolderLevels

pytestmark = pytest.mark.float32


def test_the_summary_is_that_of_the_whole_image_and_of_its_colors():
    x = photographs(8)
    found = FolderLevels(ArrayItems(x))(x)["summary"]
    assert found.shape == (8, 28)
    torch.testing.assert_close(found[:, :25], pixel_statistics(x, grid=1))
    unit = x.double() / 255
    for i, (a, b) in enumerate(((0, 2), (1, 0), (2, 1))):
        expected = [float((unit[n, a] - unit[n, b]).abs().mean() + 1 / 512) for n in range(8)]
        np.testing.assert_allclose(found[:, 25 + i], np.log(expected), rtol=1e-4)
    gray = x[:, :1]
    assert FolderLevels(ArrayItems(gray))(gray)["summary"].shape == (8, pixel_statistics(gray, grid=1).shape[1])


def test_the_summary_is_scored_by_the_fifth_neighbor_in_other_folds():
    """Slow reference: distances in loops, in units that oddities do not move."""
    x = np.random.default_rng(0).normal(size=(90, 3)) * [1, 10, 100]
    x[:3] += 50
    fold = cross_fit(NeighborDetector(), x, FOLDS, None, 0)[1]
    unit = np.array([np.median(abs(column - np.median(column))) / 0.6744897501960817 for column in x.T])
    t = np.empty(90)
    for i in range(90):
        away = sorted(np.sqrt((((x[i] - x[j]) / unit) ** 2).sum()) for j in range(90) if fold[j] != fold[i])
        t[i] = np.log(away[4])
    expected = (t - np.median(t)) / ((np.quantile(t, 0.75) - np.median(t)) / 0.6744897501960817)
    robust = RobustDetector().fit({"summary": x})
    np.testing.assert_allclose(robust.contributions_.max(1), expected, rtol=1e-6)
    rest = np.flatnonzero(fold == 0)  # which the first fold's detector has not seen
    np.testing.assert_allclose(robust.contributions({"summary": x[rest]})[:, 0], expected[rest], rtol=1e-6)
    assert RobustDetector().fit({"other": x}).contributions_.shape == (90, 1) and not np.allclose(
        RobustDetector().fit({"other": x}).contributions_.max(1), expected
    )


@pytest.mark.slow
def test_some_hundred_photographs_show_gray_dark_and_inverted_ones(tmp_path):
    x, others = photographs(300), photographs(12, seed=9)
    gray = others[:4].float().mean(1, keepdim=True).expand(-1, 3, -1, -1).byte()
    planted = torch.cat([gray, (0.25 * others[4:8].float()).byte(), torch.zeros(1, *x.shape[1:], dtype=torch.uint8)])
    found = judged(tmp_path, torch.cat([x, planted]).numpy())
    odd = np.arange(309) >= 300
    assert roc_auc_score(odd, found.score) > 0.99 and found.flag[odd].all() and found.flag[~odd].sum() <= 2
    assert {found.columns["level"][i] for i in np.flatnonzero(odd)} == {"summary"} and all(
        "summary" in found.columns["reason"][i] for i in np.flatnonzero(odd)
    )
