"""VI-SimSiam against scalar loops, SimSiam's gradient, its optimum in closed form, quadrature and planted errors."""

import math

import pytest
import torch
from tests.densities.test_power_spherical import log_area
from tests.learn.objectives.common import close, descended, require_caught
from tests.reference import power_spherical
from tests.reference import vi_simsiam as reference
from torch import nn
from torch.nn import functional as F

from vergence.densities.power_spherical import PowerSpherical, direction
from vergence.learn.objectives import vi_simsiam

B, D = 6, 5


class Fixed(nn.Module):
    """A predictor that ignores its input: the same raw outputs for every z."""

    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(D + 1))

    def forward(self, z):
        return self.raw.expand(len(z), -1)


def model(**options):
    return vi_simsiam.VISimSiam(D, **options)


def pair():
    return 3 * torch.randn(B, D), 0.2 * torch.randn(B, D)


def listed(m, *views):
    """Returns mu and kappa of each view, as lists."""
    beliefs = [m.posterior(z) for z in views]
    return tuple(q.mu.tolist() for q in beliefs), tuple(q.kappa.tolist() for q in beliefs)


def test_loss():
    for beta in (0.0, 0.7, 1.0):
        m, (za, zb) = model(beta=beta), pair()
        expected = reference.terms((za.tolist(), zb.tolist()), *listed(m, za, zb), beta)
        result = m(za, zb)
        assert set(result) == set(expected)
        for term in expected:
            close(result[term], expected[term])
            close(m(zb, za)[term], expected[term])


def test_target_is_detached():
    za, zb = (z.requires_grad_() for z in pair())
    m = model()
    m.predictor = Fixed()
    assert torch.autograd.grad(sum(m(za, zb).values()), (za, zb), allow_unused=True) == (None, None)


def test_encoder_learns():
    """Through the input of the predictor alone: the gradient is that of the two directions with targets held."""
    za, zb = (z.requires_grad_() for z in pair())
    m = model()
    total = sum(m(za, zb).values())
    assert total.requires_grad
    for z, other, got in zip((za, zb), (zb, za), torch.autograd.grad(total, (za, zb), allow_unused=True), strict=True):
        q = REAL.posterior(m, z)
        single = -q.log_prob(F.normalize(other.detach(), dim=1)) + q.kl_to_uniform()
        assert got is not None and got.norm() > 0
        close(got, torch.autograd.grad(single.mean() / 2, z)[0])


def test_log_prob_and_scores():
    m, (za, zb) = model(), pair()
    mu, kappa = (x[0] for x in listed(m, za))
    for target, result in ((zb, m.log_prob(zb, za)), (za, -m.score(za))):
        expected = [power_spherical.log_prob(reference.unit(t), *q) for t, *q in zip(target.tolist(), mu, kappa, strict=True)]
        close(result, expected)
    _, concentration, entropy = m.scores(za).values()
    close(concentration, [-k for k in kappa])
    close(entropy, [power_spherical.entropy(D, k) for k in kappa])


def test_at_constant_kappa_the_gradient_is_simsiam_s_weighted_by_pair(kappa=3.0):
    """The weight of a pair is kappa / (1 + cos): half of kappa where they agree."""
    prediction, target = torch.randn(B, D, requires_grad=True), torch.randn(B, D)
    q = PowerSpherical(direction(prediction), torch.tensor(kappa))
    result = torch.autograd.grad(-q.log_prob(direction(target)).sum(), prediction)[0]
    cosine = F.cosine_similarity(prediction, target).detach()
    simsiam = torch.tensor([reference.simsiam_gradient(p, t) for p, t in zip(prediction.tolist(), target.tolist(), strict=True)])
    close(result, (kappa / (1 + cosine))[:, None] * simsiam)


@pytest.mark.parametrize("dim", [3, 64, 512])
def test_the_normalizers_cancel_at_beta_one(dim):
    """The docstring's form, its bound at perfect agreement, and an optimum in kappa for any other; below 1 no bound."""
    kappa, n = torch.logspace(-2, 9, 400), 200
    q = PowerSpherical(torch.eye(dim)[0], kappa)
    gap = torch.digamma(kappa[:n] + dim - 1) - torch.digamma(kappa[:n] + (dim - 1) / 2)  # log 2 - E log(1 + t)
    for cosine in (-0.5, 0.0, 0.8, 0.99, 1.0):
        x = torch.cat([torch.tensor([cosine, math.sqrt(1 - cosine**2)]), torch.zeros(dim - 2)])
        likelihood, kl = -q.log_prob(x), q.kl_to_uniform()
        derived = kappa[:n] * (math.log(2) - gap - math.log1p(cosine)) + log_area(dim)
        close((likelihood + kl)[:n], derived, 1e-8)
        if cosine == 1:
            assert ((likelihood + kl).diff() < 1e-6).all()
            assert (likelihood + kl).min() > log_area(dim) - (dim - 1) / 2 - 1e-4
            weak = (likelihood + 0.9 * kl)[n:]
            assert (weak.diff() < 0).all() and weak[-1] < weak[0] - 0.02 * dim
        else:
            assert (likelihood + kl).argmin() < 399 and (likelihood + 0.9 * kl).argmin() < 399


def test_confidence_follows_agreement():
    """Trained alone, the predictor is more concentrated for the group of pairs that agree more, as much as they agree."""
    z, noise = torch.eye(D)[:2].repeat_interleave(256, 0), torch.tensor([0.1, 0.8]).repeat_interleave(256)[:, None]
    m = model(beta=0.0)
    descended(m, lambda: -m.log_prob(z + noise * torch.randn(512, D), z).mean(), 200, 0.02)
    q = m.posterior(z[[0, 256]])
    directions = direction(z + noise * torch.randn(512, D)).unflatten(0, (2, 256))
    assert q.kappa[0] > 5 * q.kappa[1]
    assert (q.mu * z[[0, 256]]).sum(1).min() > 0.9
    close(q.mean.norm(dim=1), directions.mean(1).norm(dim=1), 0.1)
    scores = m.scores(z[[0, 256]])
    assert all(scores[name][1] > scores[name][0] for name in ("concentration", "entropy"))


@pytest.mark.float32
def test_a_target_at_the_antipode_has_a_finite_loss_and_gradient():
    objective = vi_simsiam.VISimSiam(2)
    za = torch.randn(4, 2, requires_grad=True)
    terms = objective(za, -objective.posterior(za).mu.detach())
    gradients = torch.autograd.grad(sum(terms.values()), [za, *objective.parameters()])
    assert all(value.isfinite().all() for value in (*terms.values(), *gradients))
    assert objective.log_prob(-objective.posterior(za).mu, za).isneginf().any(), "of the density itself"


def test_the_length_of_the_mean_is_that_of_the_raw_output():
    """|E u| = s / (1 + s) for s = softplus of the last output, in any dimension."""
    m, (z, _) = model(), pair()
    s = F.softplus(m.predictor(z)[:, -1])
    close(m.posterior(z).mean.norm(dim=1), s / (1 + s))


def variant(first=torch.Tensor.detach, second=torch.Tensor.detach, kl=0.5, both=True):
    """Returns VI-SimSiam with one thing of the loss different."""

    class Variant(REAL):
        def forward(self, za, zb):
            out = {"alignment": 0.0, "kl": 0.0}
            for zi, target in ((za, first(zb)), (zb, second(za)) if both else (za, first(zb))):
                q = self.posterior(zi)
                out["alignment"] = out["alignment"] - q.log_prob(direction(target)).mean() / 2
                out["kl"] = out["kl"] + self.beta * kl * q.kl_to_uniform().mean()
            return out

    return Variant


def override(**methods):
    return lambda: type("Variant", (REAL,), methods)


def stored(z):
    return z


REAL = vi_simsiam.VISimSiam
PLANTED = {
    "one-sided stop-gradient": (test_target_is_detached, lambda: variant(second=stored)),
    "no stop-gradient": (test_encoder_learns, lambda: variant(first=stored, second=stored)),
    "detached input": (test_encoder_learns, override(posterior=lambda self, z: REAL.posterior(self, z.detach()))),
    "doubled KL": (test_loss, lambda: variant(kl=1.0)),
    "one direction": (test_loss, lambda: variant(both=False)),
    "score of the other sign": (test_log_prob_and_scores, override(score=lambda self, *a: -REAL.score(self, *a))),
}


@pytest.mark.parametrize("error", PLANTED)
def test_planted_error_is_caught(error, monkeypatch):
    check, plant = PLANTED[error]
    require_caught((check, "VISimSiam", plant), vi_simsiam, monkeypatch)


def test_the_planting_itself_is_sound(monkeypatch):
    monkeypatch.setattr(vi_simsiam, "VISimSiam", variant())
    for check in (test_loss, test_target_is_detached, test_encoder_learns):
        check()
