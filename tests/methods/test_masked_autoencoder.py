import pytest
import torch
from tests.reference import image_methods as reference

from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder
from vergence.methods import masked_autoencoder as module
from vergence.methods.masked_autoencoder import MaskedAutoencoder
from vergence.methods.parts.masks import random_masks

VIT = "timm:vit_tiny_patch16_224,patch_size=4,embed_dim=12,depth=2,num_heads=3"


def built(name=VIT, **options):
    torch.manual_seed(1)
    net = encoder(name, (3, 16, 16), torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.3, 0.2, 0.25])).double()
    return MaskedAutoencoder(net, (3, 16, 16), decoder_width=8, decoder_depth=2, decoder_heads=2, **options).double()


def batch(n=3, seed=0):
    keep, masked = random_masks(n, 16, 0.75, torch.Generator().manual_seed(seed))
    return torch.rand(n, 3, 16, 16), keep, masked


def check(method):
    """Loss and gradient are those of the released code's form in loops: all patches in their places, a mask on the error."""
    x, keep, masked = batch()
    found = method((x, keep, masked), lambda z: z)["reconstruction"]
    standard, vit = method.encoder[0](x), method.encoder[1]
    predicted = []
    for image, index in zip(standard, keep, strict=True):
        tokens = reference.visible_tokens(vit, image, index)
        predicted.append(reference.full_decoder(method.decoder, tokens, index, (4, 4), vit.num_prefix_tokens))
    expected = reference.masked_error(standard, torch.stack(predicted), masked, 4, method.normalize_patches)
    assert torch.allclose(found, expected, rtol=1e-10)
    parameters = [p for p in method.parameters() if p.requires_grad]
    for a, b in zip(torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", [VIT, f"{VIT},class_token=False,global_pool=avg"])
def test_loss_and_gradient_are_those_of_loops(name, normalize):
    check(built(name, normalize_patches=normalize))


def pixels(index, x):
    """Returns a mask (B, 1, H, W) of the pixels of patches of 4 pixels in a grid of 4."""
    grid = torch.zeros(len(x), 16, dtype=torch.bool).scatter_(1, index, True).view(-1, 1, 4, 4)
    return grid.repeat_interleave(4, 2).repeat_interleave(4, 3)


def check_the_mask(method):
    """The encoder sees no masked pixel, and the error has no visible one."""
    x, keep, masked = batch()
    seen = []
    decode = method.decoder.forward
    method.decoder.forward = lambda *a: seen.append(decode(*a)) or seen[-1]
    method((x, keep, masked), lambda z: z)
    method((torch.where(pixels(masked, x), torch.rand_like(x), x), keep, masked), lambda z: z)
    assert torch.equal(seen[0], seen[1]), "a prediction depends on masked pixels"
    target = torch.randn(3, 16, 48)
    other = target.clone().scatter_(1, keep[..., None].expand(-1, -1, 48), 7.0)
    errors = [module.masked_error(t, seen[0], masked) for t in (target, other)]
    assert torch.equal(*errors), "the error depends on visible pixels"
    moved = target.clone().scatter_(1, masked[:, :1, None].expand(-1, -1, 48), 7.0)
    assert (module.masked_error(moved, seen[0], masked) != errors[0]).all()


def test_the_loss_is_on_masked_patches_only():
    check_the_mask(built())


WRONG = {
    "everything seen": ("seen", lambda vit, x, keep: vit.forward_features(x)[:, : keep.shape[1] + 1]),
    "visible in the error": ("masked_error", lambda t, y, masked: (t[:, : y.shape[1]] - y).square().mean((1, 2))),
    "sum for mean": ("masked_error", lambda t, y, masked: (module.gathered(t, masked) - y).square().sum((1, 2))),
    "not normalized": ("normalized", lambda x: x),
}


@pytest.mark.parametrize("name", WRONG)
def test_planted_errors_are_caught(monkeypatch, name):
    monkeypatch.setattr(module, *WRONG[name])
    with pytest.raises(AssertionError):
        check(built(normalize_patches=True))


@pytest.mark.parametrize("name", ["everything seen", "visible in the error"])
def test_masks_that_are_not_applied_are_caught(monkeypatch, name):
    monkeypatch.setattr(module, *WRONG[name])
    with pytest.raises(AssertionError, match="depends on"):
        check_the_mask(built())


def test_three_quarters_of_each_image_are_masked_anew():
    method = built()
    sampler = method.inputs(ImageViews(ViewConfig(), 16))
    x = torch.zeros(5, 3, 16, 16, dtype=torch.uint8)
    _, keep, masked = sampler.apply(x, sampler.draw(5, torch.Generator().manual_seed(0)))
    assert keep.shape == (5, 4) and masked.shape == (5, 12) and len({tuple(row.sort().values.tolist()) for row in keep}) > 1


def test_patches_of_four_pixels_at_32_pixels():
    method = MaskedAutoencoder(encoder(VIT, (3, 32, 32), torch.zeros(3), torch.ones(3)), (3, 32, 32), decoder_width=8,
                               decoder_depth=1, decoder_heads=2)  # fmt: skip
    assert method.grid == (8, 8) and method.side == 4 and method.decoder.positions.shape == (64, 8)


def test_an_image_of_one_patch_is_refused():
    net = encoder(VIT, (3, 4, 4), torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match="an image of at least 2 patches to mask some, found 1, of which a mask_ratio of"):
        MaskedAutoencoder(net, (3, 4, 4), decoder_width=8, decoder_depth=1, decoder_heads=2)
