import pytest
import torch
from tests.reference import image_methods as reference
from torch import nn

from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder, mlp
from vergence.methods import denoising_autoencoder as module
from vergence.methods.denoising_autoencoder import DenoisingAutoencoder

WHOLE = ViewConfig(crop=(1.0, 1.0), flip=0.0, jitter_p=0.0, grayscale=0.0, blur=0.0)


def built(**options):
    torch.manual_seed(1)
    return DenoisingAutoencoder(encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3])), (1, 8, 8), **options)


def check(method):
    """The loss and its gradient are those of loops."""
    x, item = torch.rand(4, 1, 8, 8) + 0.1, torch.rand(4, 1, 8, 8)
    found = method((x, item), lambda z: z)["reconstruction"]
    expected = reference.squared_error(method.decoder(method.encoder(x)), item)
    assert torch.allclose(found, expected, rtol=1e-10)
    parameters = list(method.parameters())
    for a, b in zip(torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-9)


def test_loss_and_gradient_are_those_of_loops():
    check(built())


@pytest.mark.parametrize("wrong", [
    lambda x, y: (x - y).square().flatten(1).mean(1),
    lambda x, y: (x - y).abs().flatten(1).sum(1),
    lambda x, y: (x.detach() - y).square().flatten(1).sum(1),
], ids=["mean for sum", "absolute", "no gradient"])  # fmt: skip
def test_planted_errors_of_the_loss_are_caught(monkeypatch, wrong):
    monkeypatch.setattr(module, "reconstruction", wrong)
    with pytest.raises((AssertionError, RuntimeError)):
        check(built())


def test_the_linear_case_is_the_linear_theorys_reconstruction():
    from vergence.linear.solutions import reconstruction

    torch.manual_seed(0)
    n, d, k = 400, 5, 2
    X = torch.randn(n, d) @ torch.randn(d, d)
    theta = 0.3 * torch.eye(d)  # covariance of the augmentation, whose sample is exact below
    G = X.T @ X / n
    E, D, phi, _ = reconstruction(G, G + theta)
    root = (0.3 * d) ** 0.5 * torch.eye(d)
    views = torch.cat([X + sign * row for row in root for sign in (1, -1)])  # mean X and covariance theta
    method = DenoisingAutoencoder(nn.Sequential(nn.Identity(), nn.Linear(d, k, bias=False)), (d,))
    method.decoder = nn.Linear(k, d, bias=False)
    method.encoder[1].weight.data, method.decoder.weight.data = E[:k].clone(), D[:, :k].clone()
    loss = method((views, X.repeat(2 * d, 1)), lambda z: z)["reconstruction"]
    assert torch.allclose(loss, G.trace() - phi[:k].square().sum())
    for gradient in torch.autograd.grad(loss, list(method.parameters())):
        assert gradient.abs().max() < 1e-10 * loss


def colored(**options):
    return DenoisingAutoencoder(encoder("small", (3, 8, 8), torch.zeros(3), torch.ones(3)), (3, 8, 8), **options)


def inputs(method, views=WHOLE, n=200):
    x = torch.randint(256, (n, 3, 8, 8), dtype=torch.uint8)
    sampler = method.inputs(ImageViews(views, 8))
    return x.float() / 255, *sampler.apply(x, sampler.draw(n, torch.Generator().manual_seed(0)))


def test_the_input_is_the_view_with_noise_and_the_target_the_item():
    method = colored(noise=0.25)
    x, noisy, item = inputs(method)
    assert torch.equal(item, x)
    noise = (noisy - x).double()
    count = noise.numel()
    assert abs(noise.mean()) < 4 * 0.25 / count**0.5
    assert abs(noise.square().mean() / 0.25**2 - 1) < 4 * (2 / count) ** 0.5
    pairs = noise.flatten(1) @ noise.flatten(1).T / noise[0].numel()
    assert (pairs - pairs.diag().diag()).abs().max() < 6 * 0.25**2 / noise[0].numel() ** 0.5  # each image has its own


def test_masked_pixels_are_black_in_all_channels_and_the_target_keeps_them():
    method = colored(noise=0.0, mask=0.4)
    x, noisy, item = inputs(method)
    black = (noisy == 0).all(1)
    assert torch.equal(noisy, x * ~black[:, None]) and torch.equal(item, x)
    assert abs(black.double().mean() - 0.4) < 4 * (0.24 / black.numel()) ** 0.5


def test_vectors_have_the_decoder_of_the_encoder_mlp():
    method = DenoisingAutoencoder(nn.Sequential(nn.Identity(), mlp((6, 512, 512, 3))), (6,))
    assert [tuple(p.shape) for p in method.decoder.parameters()] == [tuple(p.shape) for p in mlp((3, 512, 512, 6)).parameters()]
