"""What views share that they should not: fixed marks, few values, properties of files; and ties of joint embedding."""

import numpy as np
import pytest
import torch

from vergence.advice.lighting import lit
from vergence.advice.nuisances import few_values, fixed_marks, followed
from vergence.advice.views import advise
from vergence.data.config import ViewConfig
from vergence.learn.views.images import ImageViews, cover

N, SIDE = 300, 32


def images(n: int = N, seed: int = 0) -> torch.Tensor:
    """Smooth random images of bytes."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randn(n, 1, 6, 6, generator=generator, dtype=torch.float32)
    x = torch.nn.functional.interpolate(small, (SIDE, SIDE), mode="bicubic")
    x = x + 0.05 * torch.randn(x.shape, generator=generator, dtype=torch.float32)
    return (128 + 45 * x).clamp(0, 255).byte()


def stamped(x: torch.Tensor, box: tuple[int, int, int, int]) -> torch.Tensor:
    return cover(x, torch.rand(len(x), 1, generator=torch.Generator().manual_seed(5), dtype=torch.float32), box)


def views() -> ImageViews:
    return ImageViews(ViewConfig(flip=0.0, jitter_p=0.5), SIDE)


@pytest.mark.parametrize(
    "box", [(20, 6, 3, 3), *(pytest.param(box, marks=pytest.mark.slow) for box in ((0, 0, 1, SIDE), (10, 8, 10, 1)))]
)
def test_a_mark_is_named_with_its_region_and_covering_it_changes_the_embedding(box):
    advice = advise(stamped(images(), box), views().__call__, n_draws=6)
    first = advice.shared.fixed_marks[0]
    top, left, height, width = first.box
    assert box[0] <= top + height - 1 and top <= box[0] + box[2] - 1, first
    assert box[1] <= left + width - 1 and left <= box[1] + box[3] - 1, first
    assert first.share > 0.9 > first.others
    assert "cover it: `cover=" in str(advice) and "<p>Start with" in advice._repr_html_()


@pytest.mark.slow
def test_clean_images_have_no_marks():
    for seed in range(2):
        shared = advise(images(seed=seed), views().__call__, n_draws=6).shared
        assert shared.fixed_marks == shared.valued == shared.lights == () and not shared.followed and shared.unchanged == 0


@pytest.mark.parametrize("n", [200, pytest.param(1_200, marks=pytest.mark.slow)])
def test_pixels_that_never_change_are_counted(n):
    x = images(n)
    x[:, :, :2] = 7
    said = advise(x, views().__call__, n_draws=4)
    assert said.shared.constant == 2 * SIDE and f"Constant: {2 * SIDE} features" in str(said)
    assert advise(images(n), views().__call__, n_draws=4).shared.constant == 0


@pytest.mark.slow
def test_a_mark_of_a_plain_function_is_found_too():
    def noisy(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype)

    x = stamped(images(), (20, 6, 4, 4))
    boxes = [mark.box for mark in advise(x, noisy, n_draws=6).shared.fixed_marks]
    assert any(abs(top - 20) <= 3 and abs(left - 6) <= 3 for top, left, _, _ in boxes), boxes


def test_large_images_are_searched_at_a_smaller_size():
    rows, columns = torch.meshgrid(torch.linspace(0, 3, 96), torch.linspace(0, 3, 96), indexing="ij")
    waves = [torch.cos(u * rows + v * columns) for u in range(3) for v in range(3)]
    mark = torch.zeros(96, 96)
    mark[30:36, 60:72] = 1
    top, left, height, width = fixed_marks(torch.stack([*waves, mark]).flatten(1).T, (1, 96, 96))[0].box
    assert (top, left, height, width) == (30, 60, 6, 12)


def test_covering_paints_rectangles_and_leaves_other_operations_as_they_are():
    x = images(8)
    plain, covered = views(), views().changed(cover=(2, 3, 4, 5))
    a, b = (kind.draw(8, torch.Generator().manual_seed(0)) for kind in (plain, covered))
    assert all(torch.equal(a[name], b[name]) for name in a) and b.keys() - a.keys() == {"cover"}
    still = {"crop": (1.0, 1.0), "jitter_p": 0.0, "blur": 0.0}
    y = covered.changed(**still)(x, torch.Generator().manual_seed(0))
    inside = y[:, :, 2:6, 3:8].flatten(2)
    assert torch.allclose(inside, inside[..., :1].expand_as(inside)) and len(inside[:, 0, 0].unique()) == 8
    assert torch.equal(y[:, :, 10:], plain.changed(**still)(x, torch.Generator().manual_seed(0))[:, :, 10:])
    with pytest.raises(ValueError, match="top, left, height and width"):
        views().changed(cover=(1, 2, 3))


def test_few_values_are_found_in_any_rotation_and_continuous_ones_are_not():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(800, 5, generator=generator)
    assert few_values(z) == []
    z[:, 0] = torch.randint(3, (800,), generator=generator) - 1.0
    found = few_values(z @ torch.linalg.qr(torch.randn(5, 5, generator=generator))[0])
    z[:, 0] = torch.randn(800, generator=generator)
    z[7] = 300.0  # one outlier, which has the variance
    assert few_values(z) == []
    assert [len(counts) for counts in found] == [3] and sum(found[0]) == 800


def test_properties_of_files_are_followed_only_where_the_codes_tell_them():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(600, 8, generator=generator)
    folder = ["left" if v > 0 else "right" for v in z[:, 2].tolist()]
    z = z.double()
    assert list(followed(z, {"folder": folder, "date": list(range(600)), "camera": [""] * 600})) == ["folder"]
    assert followed(z[:20], {"folder": folder[:20]}) == {}  # fewer than three items for a direction


def test_ties_of_joint_embedding_are_said():
    # Spectra on baselines: the augmentation leaves 57 of 60 directions as they are.
    r = np.random.default_rng(0)
    t = np.linspace(0, 1, 60)
    B = np.stack([np.ones(60), t, t**2])
    X = r.normal(size=(1500, 3)) * 3 @ B + 0.1 * r.normal(size=(1500, 60))
    Bt = torch.tensor(B)

    def baselines(X: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        return X + (2 * torch.randn(len(X), 3, generator=g, dtype=X.dtype)) @ Bt

    advice = advise(X, baselines, n_components=5)
    assert advice.shared.unchanged == 57 and "leave 57 directions unchanged" in str(advice)


def sounds() -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the bands of four sounds, which are told apart entirely, under another gain each."""
    r = np.random.default_rng(0)
    y = r.integers(4, size=800)
    bands = np.exp(-0.5 * ((np.arange(24) - np.array([4, 9, 14, 19])[y][:, None]) / 1.5) ** 2)
    return 4 * bands + r.normal(size=(800, 1)) + 0.1 * r.normal(size=(800, 24)), y


def test_classes_are_no_nuisance_where_labels_are_given():
    x, y = sounds()

    def gain(X: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        noise = 0.1 * torch.randn(X.shape, generator=g, dtype=X.dtype)
        return X + torch.randn(len(X), 1, generator=g, dtype=X.dtype) + noise

    assert advise(x, gain, n_draws=8).shared.valued  # unions of classes
    labeled = advise(x, gain, labels=y, n_draws=8)
    assert labeled.shared.valued == () and "values" not in str(labeled)
    other = np.random.default_rng(1).integers(4, size=800)  # classes that explain nothing leave the directions where they were
    assert advise(x, gain, labels=other, n_draws=8).shared.valued
    assert labeled.accuracy is not None and labeled.accuracy.as_they_are > 0.99


def photographs(n: int = 600, seed: int = 0) -> torch.Tensor:
    """Smooth images with few edges whose brightness rises as often as it falls."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand(n, 3, 3, 3, generator=generator, dtype=torch.float32)
    blobs = torch.nn.functional.interpolate(small, (16, 16), mode="nearest")
    return (100 + 80 * blobs + 4 * torch.randn(blobs.shape, generator=generator, dtype=torch.float32)).clamp(0, 255).byte()


@pytest.mark.parametrize(("axis", "name"), [(2, "rows"), (3, "columns")])
def test_two_cameras_differ_in_their_gradient_of_light(axis, name):
    x = photographs()
    assert lit(x / 255) == []
    second = torch.rand(len(x), generator=torch.Generator().manual_seed(1)) < 0.5
    ramp = torch.linspace(0.7, 1.3, 16).view((-1, 1) if axis == 2 else (1, -1))
    y = torch.where(second[:, None, None, None], (x * ramp).clamp(0, 255).byte(), x)
    (found,) = lit(y / 255)
    assert found.axis == name and abs(found.share - float(second.double().mean())) < 0.1 and abs(found.gradients[1] - 0.62) < 0.2
    assert lit(y / 255, second.long()) == []  # a property of the classes is none of two cameras
    assert lit(x * ramp / 255) == []  # nor is light that falls on all alike
    said = advise(y, ImageViews(ViewConfig(flip=0.0), 16).__call__, n_draws=4)
    assert [one.axis for one in said.shared.lights] == [name] and "Two groups differ in their light" in str(said)
