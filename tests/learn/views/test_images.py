import itertools
import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as V

from vergence.data.config import ViewConfig
from vergence.data.pixels import center_crop
from vergence.learn.views.images import ImageViews, Views, _boxes
from vergence.learn.views.vectors import Marginals, VectorViews

NOTHING = ViewConfig(
    crop=(1.0, 1.0), flip=0.0, jitter_p=0.0, grayscale=0.0, blur=0.0, solarize=0.0, noise=0.0, mask=0.0, scale=0.0
)
EVERYTHING = ViewConfig(flip=0.5, jitter_p=0.8, grayscale=0.3, blur=0.5, solarize=0.3)
FORCED = replace(NOTHING, jitter=(0.8, 0.8, 0.8, 0.5), jitter_p=1.0)
TOO_RARE = 1e-4
DRAWS = 6000


def vector_views(config, mean, std):
    return VectorViews(config, Marginals(mean, std))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=8, channels=3, height=32, width=32, seed=0):
    """Smooth images with black, white and gray parts, where the operations' special cases are."""
    x = torch.rand(n, channels, height, width, generator=seeded(seed), dtype=torch.float32) * 1.6 - 0.3
    x[:, :, :3] = x[:, :1, :3]
    return x.clamp(0, 1)


def neutral(n, **forced):
    """Drawn parameters of n images that change nothing, but for the forced ones."""
    still = {name: torch.zeros(n, dtype=torch.bool) for name in ("flip", "jitter", "grayscale", "blur", "solarize")}
    return still | {
        "area": torch.ones(n, 10), "aspect": torch.ones(n, 10), "place": torch.zeros(n, 2),
        "factors": torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(n, 1), "order": torch.arange(4).repeat(n, 1), "sigma": torch.ones(n),
        **forced,
    }  # fmt: skip


def part_of(draws, part):
    return {name: draw[part] for name, draw in draws.items()}


def close(a, b, tolerance=1e-5):
    return a.shape == b.shape and (a.double() - b.double()).abs().max().item() <= tolerance


# What each operation does, next to torchvision's on one image at a time

JITTER = (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation, V.adjust_hue)


@pytest.mark.parametrize("operation", range(4), ids=["brightness", "contrast", "saturation", "hue"])
@pytest.mark.parametrize("channels", [1, 3])
def test_each_jitter_operation_is_torchvisions(operation, channels):
    x = images(8, channels)
    values = torch.linspace(-0.5, 0.5, 8) if operation == 3 else torch.linspace(0.1, 1.9, 8)
    draws = neutral(8, jitter=torch.ones(8, dtype=torch.bool))
    draws["factors"][:, operation] = values
    y = ImageViews(FORCED, 32).apply(x, draws)
    reference = torch.stack([JITTER[operation](image, value.item()) for image, value in zip(x, values, strict=True)])
    assert close(y, reference)
    assert close(y, x) == (channels == 1 and operation >= 2)


@pytest.mark.parametrize("strengths", [(0.8, 0.8, 0.8, 0.5), (0.8, 0.0, 0.8, 0.5), (0.8, 0.8, 0.8, 0.0), (0.0, 0.0, 0.0, 0.5)])
def test_jitter_in_each_of_the_24_orders_is_torchvisions(strengths):
    views = ImageViews(replace(FORCED, jitter=strengths, jitter_p=0.8), 8)
    x = images(48, height=8, width=8)
    draws = neutral(48) | {name: views.draw(48, seeded())[name] for name in ("jitter", "factors")}
    draws["order"] = torch.tensor(list(itertools.permutations(range(4)))).repeat(2, 1)
    reference = x.clone()
    for i, operation in itertools.product(range(48), range(4)):
        k = draws["order"][i, operation]
        if draws["jitter"][i]:
            reference[i] = JITTER[k](reference[i], draws["factors"][i, k].item())
    y = views.apply(x, draws)
    assert close(y, reference)
    assert not draws["jitter"].all() and torch.equal(y[~draws["jitter"]], x[~draws["jitter"]])


def test_grayscale_and_solarization_are_torchvisions():
    x, chosen = images(6), torch.tensor([True, False] * 3)
    for name, reference in (
        ("grayscale", lambda image: V.rgb_to_grayscale(image, num_output_channels=3)),
        ("solarize", lambda image: V.solarize(image, threshold=0.5)),
    ):
        y = ImageViews(NOTHING, 32).apply(x, neutral(6, **{name: chosen}))
        assert close(y[::2], torch.stack([reference(image) for image in x[::2]]))
        assert torch.equal(y[1::2], x[1::2]) and not close(y[::2], x[::2], 0.1)


@pytest.mark.parametrize(("size", "kernel"), [(2, 3), (32, 3), (64, 7), (96, 9), (224, 23)])
def test_blur_is_torchvisions(size, kernel):
    x, sigma = images(4, height=size, width=size), torch.tensor([0.1, 0.7, 1.3, 2.0])
    views = ImageViews(NOTHING, size)
    y = views.apply(x, neutral(4, blur=torch.ones(4, dtype=torch.bool), sigma=sigma))
    reference = [V.gaussian_blur(image, [kernel, kernel], [s.item()] * 2) for image, s in zip(x, sigma, strict=True)]
    assert views.kernel == kernel
    assert close(y, torch.stack(reference))


def torchvision_box(area, aspect, place, height, width):
    """Torchvision's search in a loop, with drawn numbers in place of its own."""
    for share, ratio in zip(area.tolist(), aspect.tolist(), strict=True):
        w, h = round(math.sqrt(share * height * width * ratio)), round(math.sqrt(share * height * width / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(place[0] * (height - h + 1)), int(place[1] * (width - w + 1)), h, w
    h, w = min(height, round(width / (3 / 4))), min(width, round(height * (4 / 3)))
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("height", "width", "size"), [(32, 32, 32), (40, 48, 24), (75, 50, 17), (20, 24, 64), (9, 40, 16)])
@pytest.mark.parametrize("channels", [1, 3])
def test_resized_crop_and_flip_are_torchvisions(height, width, size, channels):
    views, x = ImageViews(replace(NOTHING, crop=(0.08, 1.0), flip=0.5), size), images(40, channels, height, width)
    draws = views.draw(40, seeded(1))
    reference = []
    for i, image in enumerate(x):
        box = torchvision_box(draws["area"][i], draws["aspect"][i], draws["place"][i], height, width)
        crop = V.resized_crop(image, *box, [size, size], antialias=True)
        reference.append(V.horizontal_flip(crop) if draws["flip"][i] else crop)
    assert close(views.apply(x, draws), torch.stack(reference))


@pytest.mark.parametrize(("height", "width"), [(10, 40), (40, 10)])
def test_an_image_that_no_ratio_fits_is_cropped_as_torchvision_crops_it(height, width):
    found = torch.stack(_boxes(ImageViews(replace(NOTHING, crop=(0.9, 1.0)), 8).draw(20, seeded()), height, width), 1)
    params = v2.RandomResizedCrop(8, scale=(0.9, 1.0)).make_params([torch.empty(3, height, width)])
    assert torch.equal(found, found.new_tensor([params[name] for name in ("top", "left", "height", "width")]).expand(20, 4))


def test_all_operations_together_are_torchvisions():
    views, x = ImageViews(EVERYTHING, 32), images(60, height=36, width=40)
    draws = views.draw(60, seeded(2))
    reference = []
    for i, image in enumerate(x):
        box = torchvision_box(draws["area"][i], draws["aspect"][i], draws["place"][i], 36, 40)
        y = V.resized_crop(image, *box, [32, 32], antialias=True).clamp(0, 1)
        y = V.horizontal_flip(y) if draws["flip"][i] else y
        for k in draws["order"][i] if draws["jitter"][i] else ():
            y = JITTER[k](y, draws["factors"][i, k].item())
        y = V.rgb_to_grayscale(y, 3) if draws["grayscale"][i] else y
        y = V.gaussian_blur(y, [3, 3], [draws["sigma"][i].item()] * 2) if draws["blur"][i] else y
        reference.append(y)
    still = draws | {"solarize": torch.zeros(60, dtype=torch.bool)}  # it jumps at 0.5, where rounding decides
    assert close(views.apply(x, still), torch.stack(reference))
    assert all(0 < draws[name].sum() < 60 for name in ("flip", "jitter", "grayscale", "blur", "solarize"))


def alike(ours, theirs):
    return stats.ks_2samp(ours.numpy(), theirs.numpy(), method="asymp").pvalue > TOO_RARE


def crop_facts(boxes, height, width):
    top, left, h, w = (part.double() for part in boxes)
    return {
        "area": h * w / (height * width),
        "aspect": (w / h).log(),
        "vertical": (top + torch.rand(len(top), generator=seeded(5))) / (height - h + 1),
        "horizontal": (left + torch.rand(len(top), generator=seeded(6))) / (width - w + 1),
    }


def torchvision_crops(scale, height, width):
    image, transform = [torch.empty(1, 1).expand(3, height, width)], v2.RandomResizedCrop(32, scale=scale)
    params = [transform.make_params(image) for _ in range(DRAWS)]
    return [torch.tensor([p[name] for p in params]) for name in ("top", "left", "height", "width")]


@pytest.mark.parametrize(("scale", "height", "width"), [((0.2, 1.0), 400, 400), ((0.08, 1.0), 300, 500), ((0.2, 1.0), 32, 32)])
def test_crops_are_distributed_as_torchvisions(scale, height, width):
    draws = ImageViews(replace(NOTHING, crop=scale), 32).draw(DRAWS, seeded(3))
    ours = crop_facts(_boxes(draws, height, width), height, width)
    theirs = crop_facts(torchvision_crops(scale, height, width), height, width)
    assert {name: alike(ours[name], theirs[name]) for name in ours} == dict.fromkeys(ours, True)


@pytest.mark.parametrize("strengths", [(0.4, 0.4, 0.4, 0.1), (0.8, 1.0, 1.5, 0.5)])
def test_factors_are_distributed_as_torchvisions(strengths):
    params = [v2.ColorJitter(*strengths).make_params([]) for _ in range(DRAWS)]
    ours = ImageViews(replace(FORCED, jitter=strengths), 32).draw(DRAWS, seeded(7))["factors"]
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    theirs = torch.tensor([[p[name] for name in names] for p in params])
    doubled = 1 + 2 * (ours - 1)
    doubled[:, 3] = 2 * ours[:, 3]
    for k in range(4):
        assert alike(ours[:, k], theirs[:, k])
        assert not alike(doubled[:, k], theirs[:, k])
    assert stats.spearmanr(ours.numpy()).statistic[~torch.eye(4, dtype=torch.bool).numpy()].max() < 4.5 / math.sqrt(DRAWS)


def test_sigmas_are_distributed_as_torchvisions():
    params = v2.GaussianBlur(3, (0.1, 2.0)).make_params
    theirs = torch.tensor([params([])["sigma"][0] for _ in range(DRAWS)])
    ours = ImageViews(EVERYTHING, 32).draw(DRAWS, seeded(8))["sigma"]
    assert alike(ours, theirs) and not alike(ours * 0.9, theirs) and not alike(ours.square() / 2, theirs)


def order_p_value(order):
    code = (order * torch.tensor([64, 16, 4, 1])).sum(1)
    known = [int((torch.tensor(p) * torch.tensor([64, 16, 4, 1])).sum()) for p in itertools.permutations(range(4))]
    counts = [int((code == k).sum()) for k in known]
    assert sum(counts) == len(order)
    return stats.chisquare(counts).pvalue


def test_each_order_of_the_jitter_is_as_likely():
    order = ImageViews(EVERYTHING, 32).draw(24_000, seeded(9))["order"]
    assert order_p_value(order) > TOO_RARE
    biased = (torch.rand(24_000, 4, generator=seeded(9)) + torch.tensor([0.0, 0.0, 0.0, 0.1])).argsort(1)
    assert order_p_value(biased) < TOO_RARE


def rates_z(ours, theirs):
    pooled = (ours.mean() + theirs.mean()) / 2
    return ((ours.mean() - theirs.mean()) / (pooled * (1 - pooled) * 2 / len(ours)).sqrt()).abs().item()


@pytest.mark.parametrize(
    ("name", "field", "transform"),
    [
        ("flip", "flip", v2.RandomHorizontalFlip(0.3)), ("jitter", "jitter_p", v2.RandomApply([v2.ColorJitter((0.5, 0.5))], 0.3)),
        ("grayscale", "grayscale", v2.RandomGrayscale(0.3)), ("blur", "blur", v2.RandomApply([v2.GaussianBlur(3, 1.0)], 0.3)),
        ("solarize", "solarize", v2.RandomSolarize(0.5, 0.3)),
    ],
)  # fmt: skip
def test_operations_are_as_frequent_as_torchvisions(name, field, transform):
    image = images(1, height=4, width=4)[0]
    theirs = torch.tensor([not torch.equal(transform(image), image) for _ in range(DRAWS)]).double()
    chosen = {
        p: ImageViews(replace(NOTHING, **{field: p}), 32).draw(DRAWS, seeded(10))[name].double() for p in (0.0, 0.3, 0.35, 1.0)
    }
    assert rates_z(chosen[0.3], theirs) < 4 and rates_z(chosen[0.35], theirs) > 4
    assert chosen[0.0].sum() == 0 and chosen[1.0].sum() == DRAWS


def test_the_strengths_do_not_move_the_random_stream():
    weak, strong = (ImageViews(config, 32).draw(50, seeded()) for config in (replace(EVERYTHING, blur=0.0), EVERYTHING))
    assert all(torch.equal(weak[name], strong[name]) for name in weak if name != "blur")


def test_each_image_has_parameters_of_its_own():
    x = images(1).expand(16, -1, -1, -1)
    y = ImageViews(EVERYTHING, 32)(x, seeded())
    assert min((y[i] - y[j]).abs().max() for i, j in itertools.combinations(range(16), 2)) > 0.01


@pytest.mark.parametrize(("channels", "height", "width", "size"), [(3, 32, 32, 32), (1, 28, 28, 28), (3, 50, 40, 48)])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_a_part_of_the_draws_makes_exactly_that_part_of_the_views(channels, height, width, size, form):
    views, x = ImageViews(EVERYTHING, size), images(64, channels, height, width).contiguous(memory_format=form)
    draws = views.draw(64, seeded())
    whole = views.apply(x, draws)
    for part in (slice(0, 32), slice(32, 64), slice(5, 6), slice(10, 27), slice(3, 64, 4)):
        assert torch.equal(views.apply(x[part], part_of(draws, part)), whole[part])


@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_the_generator_alone_decides(kind):
    views: Views = ImageViews(EVERYTHING, 32) if kind == "images" else vector_views(ViewConfig(), torch.zeros(5), torch.ones(5))
    x = images(8) if kind == "images" else torch.randn(8, 5)
    before = torch.get_rng_state()
    first, again, other = (views(x, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(first, again) and torch.equal(first, views(x, seeded(1))) and not torch.equal(first, other)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [2, 20, 32, 50])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_type_range_and_shape(channels, size, dtype):
    x = images(32, channels)
    x = (x * 255).round().to(dtype) if dtype == torch.uint8 else x.to(dtype)
    before = x.clone()
    y = ImageViews(EVERYTHING, size)(x, seeded())
    assert y.shape == (32, channels, size, size) and y.dtype == torch.float32 and y.is_contiguous()
    assert y.min() >= 0 and y.max() <= 1 and torch.equal(x, before)


@pytest.mark.parametrize("config", [NOTHING, EVERYTHING])
def test_channels_last_is_kept_and_changes_nothing(config):
    x = images(8)
    last = x.contiguous(memory_format=torch.channels_last)
    a, b = (ImageViews(config, 32)(part, seeded()) for part in (x, last))
    assert torch.equal(a, b)
    assert a.is_contiguous() and b.is_contiguous(memory_format=torch.channels_last) and not b.is_contiguous()


@pytest.mark.parametrize("config", [NOTHING, replace(EVERYTHING, solarize=0.0)])
def test_bytes_and_floats_agree(config):
    x = (images(16, height=40, width=40) * 255).round().to(torch.uint8)
    views = ImageViews(config, 32)
    assert close(views(x, seeded()), views(x.float() / 255, seeded()), 1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_asked_is_nothing_done(channels):
    x = (images(8, channels) * 255).round().to(torch.uint8)
    views = ImageViews(NOTHING, 32)
    assert torch.equal(views(x, seeded()), x.float() / 255)
    y = views(x.float() / 255, seeded())
    assert torch.equal(y, x.float() / 255) and y.data_ptr() != x.data_ptr()


def test_views_ignore_autocast():
    x, views = images(8), ImageViews(EVERYTHING, 32)
    outside = views(x, seeded())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.bmm(x[0], x[0]).dtype == torch.bfloat16
        assert torch.equal(views(x, seeded()), outside)


def test_views_do_not_wait_for_the_device():
    """The meta device has no values: whatever needs one on the host fails there."""
    x = torch.empty(16, 3, 40, 40, dtype=torch.uint8, device="meta")
    y = ImageViews(EVERYTHING, 32)(x, seeded())
    assert y.shape == (16, 3, 32, 32) and y.device.type == "meta" and y.dtype == torch.float32
    vectors = vector_views(ViewConfig(), torch.zeros(5), torch.ones(5))(torch.empty(4, 5, device="meta"), seeded())
    assert vectors.device.type == "meta"
    with pytest.raises((RuntimeError, NotImplementedError)):
        x[x[:, 0, 0, 0] > 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_makes_the_same_views_without_synchronizing():
    x, views = images(32, height=40, width=40), ImageViews(replace(EVERYTHING, solarize=0.0), 32)
    vectors = vector_views(ViewConfig(), torch.zeros(5), torch.ones(5))
    on_gpu, z = x.cuda(), torch.randn(4, 5)
    z_on_gpu = z.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        y, w = views(on_gpu, seeded()), vectors(z_on_gpu, seeded())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert close(y.cpu(), views(x, seeded())) and close(w.cpu(), vectors(z, seeded()))


def test_vector_views_are_their_formula():
    n, d = 6, 4
    x, mean, std = torch.randn(n, d), torch.randn(d), torch.rand(d) + 0.5
    views = vector_views(ViewConfig(), mean, std)
    draws = views.draw(n, seeded())
    y = views.apply(x, draws)
    for i, k in itertools.product(range(n), range(d)):
        standardized = (x[i, k] - mean[k]) / std[k] * draws["keep"][i, k]
        assert y[i, k].item() == pytest.approx(
            (mean[k] + std[k] * (draws["scale"][i, 0] * standardized + draws["noise"][i, k])).item()
        )
    for part in (slice(0, 3), slice(4, 5)):
        assert torch.equal(views.apply(x[part], part_of(draws, part)), y[part])


def vector_z(sampled, assumed, n=60_000):
    """Largest |z| of the sampled views' mean and variance against the closed form for the assumed strengths."""
    mean, std, x = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.5, 3.0, 1.0]), torch.tensor([2.0, -8.0, 0.0])
    y = vector_views(sampled, mean, std)(x.expand(n, 3), seeded(11))
    z, keep = (x - mean) / std, 1 - assumed.mask
    m = keep * math.exp(assumed.scale**2 / 2) * z
    variance = assumed.noise**2 + keep * math.exp(2 * assumed.scale**2) * z**2 - m**2
    first = y - (mean + std * m)
    second = first**2 - std**2 * variance
    return max((t.mean(0) / (t.std(0) / math.sqrt(n))).abs().max().item() for t in (first, second))


def test_vector_views_have_the_mean_and_variance_of_their_strengths():
    config = ViewConfig(noise=0.3, mask=0.2, scale=0.25)
    assert vector_z(config, config) < 4
    for wrong in (replace(config, noise=0.33), replace(config, mask=0.23), replace(config, scale=0.32)):
        assert vector_z(wrong, config) > 5


def test_a_vector_has_one_factor_and_its_features_have_noise_and_masks_of_their_own():
    x, ones = torch.ones(200, 8), torch.ones(8)
    scaled = vector_views(replace(NOTHING, scale=0.5), 0 * ones, ones)(x, seeded())
    assert torch.equal(scaled, scaled[:, :1].expand(200, 8)) and scaled[:, 0].unique().numel() > 190
    noisy = vector_views(replace(NOTHING, noise=0.5), 0 * ones, ones)(x, seeded())
    assert noisy.unique().numel() > 1500
    masked = vector_views(replace(NOTHING, mask=0.5), 0 * ones, ones)(x, seeded())
    assert set(masked.unique().tolist()) == {0.0, 1.0} and not torch.equal(masked, masked[:, :1].expand(200, 8))


def test_vectors_keep_their_type_and_constant_features_stay():
    mean, std = torch.tensor([1.0, 4.0]), torch.tensor([2.0, 0.0])
    for dtype in (torch.float32, torch.float64):
        y = vector_views(ViewConfig(), mean, std)(torch.tensor([[0.0, 4.0]], dtype=dtype), seeded())
        assert y.dtype == dtype and y[0, 1] == 4
    x = torch.randn(5, 2)
    assert close(vector_views(NOTHING, mean, std)(x, seeded()), x, 1e-12)


@pytest.mark.parametrize(("height", "width"), [(9, 12), (8, 8), (15, 8), (31, 20)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_center_crop_is_torchvisions(height, width, dtype):
    x = (images(2, 3, height, width) * 255).to(dtype)
    y = center_crop(x, 8)
    assert torch.equal(y, V.center_crop(x, [8, 8])) and y.dtype == dtype
    assert (y is x) == ((height, width) == (8, 8))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_center_crop_enlarges_small_images(dtype):
    x = (images(2, 1, 5, 7) * 255).to(dtype)
    y = center_crop(x, 10)
    reference = V.center_crop(V.resize(x.double(), [10, 14], antialias=False), [10, 10])
    assert y.dtype == dtype and close(y, reference, 1e-3 if dtype.is_floating_point else 0.501)


# Bad input

STILL, STANDARD = ImageViews(NOTHING, 32), vector_views(ViewConfig(), torch.zeros(3), torch.ones(3))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: STILL.apply(torch.zeros(2, 32, 32, 3), STILL.draw(2, seeded())), "reorder"),
        (lambda: STILL.apply(torch.zeros(3, 3, 32, 32), STILL.draw(2, seeded())), "2 images"),
        (lambda: STILL.apply(torch.zeros(2, 3, 32, 32, dtype=torch.int32), STILL.draw(2, seeded())), "int32"),
        (lambda: STILL.apply(torch.full((2, 3, 32, 32), 255.0), STILL.draw(2, seeded())), "scale"),
        (lambda: STILL.apply(torch.full((2, 3, 32, 32), math.nan), STILL.draw(2, seeded())), "nan"),
        (lambda: STANDARD.apply(torch.zeros(2, 4), STANDARD.draw(2, seeded())), "floats"),
        (lambda: STANDARD.apply(torch.zeros(2, 3, dtype=torch.int64), STANDARD.draw(2, seeded())), "floats"),
        (lambda: vector_views(ViewConfig(), torch.zeros(3), torch.ones(4)), "mean"),
        (lambda: vector_views(ViewConfig(), torch.zeros(3), torch.tensor([1.0, math.nan, 1.0])), "std"),
        (lambda: ImageViews(NOTHING, 1), "pixels"), (lambda: center_crop(torch.zeros(3, 8, 8), 4), "images"),
        (lambda: replace(NOTHING, mask=math.nan), "finite"),
        *(
            (lambda wrong=wrong: ImageViews(replace(NOTHING, **wrong), 32), next(iter(wrong)))
            for wrong in (
                {"crop": (0.5, 1.5)}, {"crop": (0.9, 0.3)}, {"jitter": (0.4, -0.1, 0.4, 0.1)}, {"jitter": (0.4, 0.4, 0.4, 0.6)},
                {"blur_sigma": (0.0, 1.0)}, {"flip": 1.1}, {"noise": -1.0}, {"scale": -0.1},
            )
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call, word):
    with pytest.raises(ValueError, match=word):
        call()
