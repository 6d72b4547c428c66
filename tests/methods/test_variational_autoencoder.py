import math

import pytest
import torch
from tests.reference import image_methods as reference
from torch.distributions import Independent, Normal, kl_divergence

from vergence.data.config import ViewConfig
from vergence.data.views import ImageViews
from vergence.encoders.networks import encoder
from vergence.methods import variational_autoencoder as module
from vergence.methods.variational_autoencoder import VariationalAutoencoder, kl_to_prior, negative_log_likelihood


def built(**options):
    torch.manual_seed(1)
    net = encoder("small", (1, 8, 8), torch.tensor([0.5]), torch.tensor([0.3]))
    return VariationalAutoencoder(net, (1, 8, 8), latent=3, **options)


def check(method, beta):
    """Terms and gradients are those of loops, with the noise written out."""
    x, e = torch.rand(4, 1, 8, 8), torch.randn(4, 3)
    found = method((x, e), lambda z: z)
    out = method.head(method.encoder(x))
    mu, log_variance = out[:, :3], out[:, 3:]
    z = torch.stack([m + torch.sqrt(torch.exp(lv)) * noise for m, lv, noise in zip(mu, log_variance, e, strict=True)])
    expected = reference.gaussian_nll(x, method.decoder(z), 0.2), beta * reference.kl(mu, log_variance)
    assert torch.allclose(found["reconstruction"], expected[0], rtol=1e-10) and torch.allclose(
        found["kl"], expected[1], rtol=1e-10
    )
    parameters = list(method.parameters())
    gradients = [torch.autograd.grad(sum(terms), parameters) for terms in (found.values(), expected)]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_terms_and_gradients_are_those_of_loops(beta):
    check(built(beta=beta, deviation=0.2), beta)


@pytest.mark.parametrize(("name", "wrong"), [
    ("kl_to_prior", lambda mu, lv: 0.5 * (mu.square() + lv.exp() - 1 - lv).mean(1)),
    ("kl_to_prior", lambda mu, lv: -0.5 * (mu.square() + lv.exp() - 1 - lv).sum(1)),
    ("negative_log_likelihood", lambda x, y, s: negative_log_likelihood(x, y, s) / x[0].numel()),
    ("negative_log_likelihood", lambda x, y, s: negative_log_likelihood(x, y, s**0.5)),
], ids=["mean for sum of kl", "sign of kl", "mean for sum of pixels", "variance for deviation"])  # fmt: skip
def test_planted_errors_are_caught(monkeypatch, name, wrong):
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(AssertionError):
        check(built(deviation=0.2), 1.0)


def test_both_terms_are_those_of_torch_distributions():
    x, mean = torch.rand(5, 3, 4, 4), torch.rand(5, 3, 4, 4)
    assert torch.allclose(negative_log_likelihood(x, mean, 0.3), -Independent(Normal(mean, 0.3), 3).log_prob(x))
    mu, log_variance = torch.randn(5, 7), torch.randn(5, 7)
    q = Independent(Normal(mu, (0.5 * log_variance).exp()), 1)
    assert torch.allclose(kl_to_prior(mu, log_variance), kl_divergence(q, Independent(Normal(torch.zeros(7), 1.0), 1)))
    assert kl_to_prior(torch.zeros(2, 7), torch.zeros(2, 7)).tolist() == [0, 0]


def test_the_loss_bounds_the_negative_log_likelihood():
    """With a linear decoder p(x) is Gaussian in closed form: the loss is above -log p(x), and equal for the exact posterior."""
    torch.manual_seed(0)
    W, s, x = torch.tensor([[1.0, 1.0], [1.0, 0.8], [0.9, 1.0], [0.2, 0.0]]), 0.5, torch.randn(1, 4)
    precision = torch.eye(2) + W.T @ W / s**2
    exact = torch.linalg.inv(precision)
    truth = -torch.distributions.MultivariateNormal(torch.zeros(4), W @ W.T + s**2 * torch.eye(4)).log_prob(x)
    best, n = (exact @ W.T @ x[0] / s**2), 20_000
    for mu, covariance, equal in ((best, exact, True), (best, torch.diag(1 / precision.diag()), False)):
        z = mu + torch.randn(n, 2) @ torch.linalg.cholesky(covariance).T
        terms = negative_log_likelihood(x.expand(n, -1), z @ W.T, s)
        kl = 0.5 * (mu @ mu + covariance.trace() - 2 - covariance.logdet())
        bound, error = terms.mean() + kl, terms.std() / math.sqrt(n)
        assert abs(bound - truth) < 4 * error if equal else bound > truth + 4 * error


def test_the_noise_is_sampled_for_each_item():
    method = built()
    sampler = method.inputs(ImageViews(ViewConfig(), 8))
    _, e = sampler.apply(torch.zeros(500, 1, 8, 8, dtype=torch.uint8), sampler.draw(500, torch.Generator().manual_seed(0)))
    assert e.shape == (500, 3) and abs(e.mean()) < 4 / 1500**0.5 and abs(e.var() - 1) < 4 * (2 / 1500) ** 0.5
