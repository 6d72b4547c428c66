"""Features of images: statistics of pixels, and the stages of encoders."""

import numpy as np
import pytest
import torch

from vergence.decide import GaussianDetector
from vergence.images.statistics import pixel_statistics
from vergence.learn.encoders.config import Patches
from vergence.learn.encoders.patch_maps import patch_dictionary
from vergence.learn.encoders.patches import PatchFeatures

ROWS = torch.arange(16.0)


def photo(n=200, seed=0):
    """Smooth random images."""
    g = torch.Generator().manual_seed(seed)
    small = torch.rand(n, 3, 4, 4, generator=g, dtype=torch.float32)
    return torch.nn.functional.interpolate(small, (16, 16), mode="bilinear")


def test_statistics_are_those_of_their_names():
    """The first cell's mean, and the image's mean and skewness, computed by numpy."""
    x = photo(3)
    found = pixel_statistics(x).numpy()
    np.testing.assert_allclose(found[:, 0], x[:, 0, :4, :4].mean((1, 2)), rtol=1e-5)
    means = x.numpy().mean((2, 3))
    at = 16 * 3 + 3 * 16
    np.testing.assert_allclose(found[:, at : at + 3], means, rtol=1e-5)


def test_bytes_and_floats_have_the_same_statistics():
    x = (photo() * 255).round().byte()
    assert torch.allclose(pixel_statistics(x), pixel_statistics(x.float() / 255), atol=1e-5)


def test_sizes_and_channels():
    for shape in ((1, 8, 8), (3, 33, 20), (1, 2, 2), (4, 5, 64)):
        found = pixel_statistics(torch.rand(2, *shape))
        assert found.shape[0] == 2 and found.isfinite().all()
    assert pixel_statistics(torch.zeros(2, 3, 8, 8)).isfinite().all()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32),
        lambda x: x * 0.1 + 0.45, lambda x: (x + 0.5).clamp(0, 1), lambda x: x.mean(1, keepdim=True).expand_as(x),
    ],
    ids=["noise", "contrast", "brightness", "gray"],
)  # fmt: skip
def test_a_gaussian_on_statistics_notices_changes_of_an_image(change):
    typical, new = pixel_statistics(photo(2000)), photo(200, seed=1)
    detector = GaussianDetector().fit(typical)
    alike, changed = (detector.anomaly_score(pixel_statistics(x)) for x in (new, change(new)))
    assert np.median(changed) > np.quantile(alike, 0.95)


def test_a_dictionary_of_patches_is_that_of_the_transformer():
    x, settings = photo(60), Patches(atoms=16, patch=4, stride=2, pool=1, second=0)
    maps = patch_dictionary(x.split(7), x.shape[1:], settings).float()
    theirs = PatchFeatures(n_atoms=16, patch_size=4, stride=2, pool=1, n_patches=100_000).fit(x)
    np.testing.assert_allclose(maps(x).numpy(), theirs.transform(x), atol=1e-3)
    settings = Patches(atoms=500, second=0)
    small = patch_dictionary([x[:3, :, :10, :10]], (3, 10, 10), settings).settings
    assert small.patch == 4 and small.atoms == 3 * 49 // 10  # small images have smaller patches, few images fewer atoms
    large = patch_dictionary([torch.rand(3, 3, 64, 80, dtype=torch.float32)], (3, 64, 80), settings).settings
    assert large.side == 32 and large.patch == 6
    with pytest.raises(ValueError, match="distinct patches"):
        patch_dictionary([torch.zeros(2, 3, 8, 8)], (3, 8, 8), settings)
