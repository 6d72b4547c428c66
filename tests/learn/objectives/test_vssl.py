"""VSSL against scalar loops, torch's Gaussians, its derived optimum, the moving averages step by step, and planted errors."""

import math

import pytest
import torch
from tests.learn.objectives.common import close, require_caught
from tests.reference import vssl as reference
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional as F

from vergence.learn.objectives import vssl

B, D = 6, 5
LOSSES = ("cosine", "analytic")


def model(**options):
    m = vssl.VSSL(D, hidden=8, **options)
    with torch.no_grad():
        for weight in m.averaged.parameters():
            weight.add_(0.3 * torch.randn_like(weight))  # so that teacher and student differ
    return m


def pair():
    za = torch.randn(B, D)
    return za, za + 0.5 * torch.randn(B, D)


def listed(pair_of_tensors):
    return [x.tolist() for x in pair_of_tensors]


def network(f, weights, z):
    """Returns a head's value from given weights: linear, layer normalization, ReLU, linear."""
    W, b, scale, shift, V, c = weights
    h = z @ W.T + b
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, correction=0, keepdim=True) + f[1].eps).sqrt() * scale + shift
    return h.clamp(min=0) @ V.T + c


def test_loss():
    for loss in LOSSES:
        for beta in (0.0, 0.7):
            m, (za, zb) = model(loss=loss, beta=beta), pair()
            result = m(za.requires_grad_(), zb)
            expected = reference.terms(listed(m.student(za)), listed(m.prior(zb)), loss, beta)
            assert set(result) == set(expected)
            for term in expected:
                close(result[term], expected[term])
            back = reference.terms(listed(m.student(zb)), listed(m.prior(za)), loss, beta)
            from_teacher = m(za.detach(), zb.clone().requires_grad_())  # the method's second call, with a teacher
            both = m(za, zb.requires_grad_())
            for term in expected:
                close(from_teacher[term], back[term])
                close(both[term], (expected[term] + back[term]) / 2)


def test_samples():
    for loss in LOSSES:
        m, (za, zb) = model(loss=loss, likelihood="sample"), pair()
        torch.manual_seed(3)
        result = m(za.requires_grad_(), zb)
        torch.manual_seed(3)
        expected = reference.terms(listed(m.student(za)), listed(m.prior(zb)), loss, 1.0, torch.randn(B, D).tolist())
        for term in expected:
            close(result[term], expected[term])


def test_student_and_teacher():
    """f and v are the student's networks, w the averaged weights' network, and the teacher's mean its embedding."""
    m, z = model(), torch.randn(B, D)
    f, v = m.student(z)
    close(f, network(m.mean, list(m.mean.parameters()), z))
    close(v, F.softplus(network(m.variance, list(m.variance.parameters()), z)) + m.floor)
    mean, w = m.prior(z)
    close(mean, z)
    close(w, F.softplus(network(m.variance, list(m.averaged.parameters()), z)) + m.floor)
    assert (w - v).abs().max() > 1e-3
    plain = model(predictor=False)
    close(plain.student(z)[0], z)


def test_target_is_detached():
    """One-way: no gradient reaches the teacher's embedding; both ways: each has its own direction's alone."""
    for loss in LOSSES:
        m, (za, zb) = model(loss=loss), (z.requires_grad_() for z in pair())
        result = torch.autograd.grad(sum(m(za, zb).values()), (za, zb))
        for z, target, got in ((za, zb, result[0]), (zb, za, result[1])):
            (f, v), (mean, w) = m.student(z), (x.detach() for x in m.prior(target))
            held = reference_torch(loss, f, v, mean.detach(), w.detach()) / 2
            assert got.norm() > 0
            close(got, torch.autograd.grad(held, z)[0])


def reference_torch(loss, f, v, m, w):
    """Returns the loss of one direction, beta = 1, by torch's own functions."""
    if loss == "cosine":
        return (3 - 2 * F.cosine_similarity(f, m) - F.cosine_similarity(v, w)).mean()
    q, p = (Independent(Normal(mean, variance.sqrt()), 1) for mean, variance in ((f, v), (m, w)))
    divergence = kl_divergence(q, p)
    return (2 * divergence + q.entropy()).mean()  # the cross-entropy is the divergence and the entropy


def test_teacher_follows():
    """w <- m w + (1 - m) v, weight by weight, once after each step, and never by gradient."""
    m, (za, zb) = model(momentum=0.8), pair()
    teacher, student = [x.clone() for x in m.averaged.parameters()], [x.clone() for x in m.variance.parameters()]
    for step in range(1, 4):
        m.update(za, zb)
        for result, start, goal in zip(m.averaged.parameters(), teacher, student, strict=True):
            close(result, 0.8**step * start + (1 - 0.8**step) * goal)
    assert not any(weight.requires_grad for weight in m.averaged.parameters())


def test_density_after_training():
    """alpha and gamma are of greatest likelihood: no other two scalars give the averaged pairs more."""
    m, (za, zb) = model(), (torch.randn(500, D), None)
    zb = 3 * m.student(za)[0].detach() + 0.2 * torch.randn(500, D)
    m.update(za, zb)  # the first batch has all the weight
    alpha, gamma = m.scales()
    f, v = (x.detach() for x in m.student(za))
    best = m.log_prob(zb, za).mean()
    close(best, Independent(Normal(alpha * f, (gamma * v).sqrt()), 1).log_prob(zb).mean())
    for a, g in ((1.05, 1.0), (0.95, 1.0), (1.0, 1.1), (1.0, 0.9)):
        assert Independent(Normal(a * alpha * f, (g * gamma * v).sqrt()), 1).log_prob(zb).mean() < best - 1e-4
    assert 2.5 < alpha < 3.5
    standardized = ((zb - alpha * f).square() / (gamma * v)).mean()
    close(standardized, 1.0)


def test_closed_forms_are_torch_s_and_the_samples_mean(n=20_000):
    mu, m, v, w = torch.randn(B, D), torch.randn(B, D), torch.rand(B, D) + 0.1, torch.rand(B, D) + 0.1
    q, p = Independent(Normal(mu, v.sqrt()), 1), Independent(Normal(m, w.sqrt()), 1)
    close(vssl.kl_diagonal(mu, v, m, w), kl_divergence(q, p))
    close(vssl.cross_entropy(mu, v, m, w) - vssl.kl_diagonal(mu, v, m, w), q.entropy())
    sampled = -p.log_prob(q.sample((n,)))
    error = sampled.std(0) / math.sqrt(n)
    assert ((sampled.mean(0) - vssl.cross_entropy(mu, v, m, w)) / error).abs().max() < 4.5
    close(vssl.cross_entropy(mu, torch.zeros(B, D), m, w), -p.log_prob(mu))
    close(vssl.kl_diagonal(mu, v, mu, v), torch.zeros(B))


def test_the_cosine_form_sees_directions_alone():
    x, y = torch.rand(B, D), torch.rand(B, D)
    close(vssl.cosine_distance(x, y), 1 - F.cosine_similarity(x, y))
    close(vssl.cosine_distance(1e20 * x, 1e-20 * y), vssl.cosine_distance(x, y))
    close(vssl.cosine_distance(torch.zeros(1, D), y[:1]), [1.0])
    for likelihood, changes in (("expected", False), ("sample", True)):  # of a sample, the scale of the variance is seen
        m, (za, zb) = model(likelihood=likelihood), pair()
        values = []
        for scale in (1.0, 25.0):
            student = m.student
            m.student = lambda z, s=scale, f=student: (f(z)[0], s * f(z)[1])
            torch.manual_seed(0)
            values.append(sum(m(za, zb).values()))
            m.student = student
        assert ((values[0] - values[1]).abs() > 1e-3) == changes


@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_the_analytic_form_shrinks_the_variance(beta):
    """For a fixed teacher the optimum is its mean and beta / (1 + beta) of its variance, as the docstring derives."""
    m, w = torch.randn(3, D), torch.rand(3, D) + 0.5
    mu, v = m.clone().requires_grad_(), (beta / (1 + beta) * w).requires_grad_()

    def loss(mu, v):
        return (vssl.cross_entropy(mu, v, m, w) + beta * vssl.kl_diagonal(mu, v, m, w)).sum()

    for g in torch.autograd.grad(loss(mu, v), (mu, v)):
        close(g, torch.zeros(3, D), 1e-9)
    for _ in range(20):
        assert loss(mu + 0.1 * torch.randn(3, D), v * (0.2 * torch.randn(3, D)).exp()) > loss(mu, v)


def test_the_analytic_form_rewards_a_smaller_scale(a=0.1):
    """D log a, whatever beta, when means and variances of both networks shrink together."""
    mu, m, v, w = torch.randn(B, D), torch.randn(B, D), torch.rand(B, D) + 0.1, torch.rand(B, D) + 0.1
    large, small = (mu, v, m, w), (a * mu, a * a * v, a * m, a * a * w)
    close(vssl.kl_diagonal(*small), vssl.kl_diagonal(*large))
    close(vssl.cross_entropy(*small) - vssl.cross_entropy(*large), torch.full((B,), D * math.log(a)))


def test_scores():
    m, (za, zb) = model(), pair()
    m.update(za, zb)
    result, belief = m.scores(za), m.conditional(za)
    assert list(result) == ["score", "cross_entropy", "variance", "entropy"]
    close(result["score"], -m.marginal().log_prob(za))
    close(result["entropy"], Independent(Normal(belief.mean, belief.variance.sqrt()), 1).entropy())
    close(result["variance"], belief.variance.sum(1))
    rows = zip(*listed(m.student(za)), *listed(m.prior(za)), strict=True)
    close(result["cross_entropy"], [reference.cross_entropy(*row) for row in rows])


def override(**methods):
    return lambda: type("Variant", (REAL,), methods)


def teacher_with_gradient(self, za, zb):
    mu, v = self.student(torch.cat([za, zb]))
    m = torch.cat([zb, za])
    w = F.softplus(self.variance(m)) + self.floor
    if self.loss == "analytic":
        return {"likelihood": vssl.cross_entropy(mu, v, m, w).mean(), "kl": vssl.kl_diagonal(mu, v, m, w).mean()}
    kl = vssl.cosine_distance(mu, m) + vssl.cosine_distance(v, w)
    return {"likelihood": vssl.cosine_distance(mu, m).mean(), "kl": kl.mean()}


def student_as_teacher(self, z):
    return z.detach(), self.student(z)[1].detach()


def one_way(self, za, zb):
    return REAL.forward(self, za, zb.detach())


def uncorrected(self):
    return torch.ones(()), torch.ones(())


REAL = vssl.VSSL
PLANTED = {
    "teacher with gradient": (test_target_is_detached, "VSSL", override(forward=teacher_with_gradient)),
    "one-sided": (test_loss, "VSSL", override(forward=one_way)),
    "the student's own variance as the teacher's": (test_student_and_teacher, "VSSL", override(prior=student_as_teacher)),
    "an average that never moves": (test_teacher_follows, "follow", lambda: lambda *arguments: None),
    "Gaussians exchanged": (test_loss, "kl_diagonal", lambda: lambda mu, v, m, w: REAL_KL(m, w, mu, v)),
    "deviation for variance": (test_samples, "kl_diagonal", lambda: lambda mu, v, m, w: REAL_KL(mu, v.sqrt(), m, w.sqrt())),
    "no correction of the density": (test_density_after_training, "VSSL", override(scales=uncorrected)),
}
REAL_KL = vssl.kl_diagonal


@pytest.mark.parametrize("error", PLANTED)
def test_planted_error_is_caught(error, monkeypatch):
    require_caught(PLANTED[error], vssl, monkeypatch)
