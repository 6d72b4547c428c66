"""Published objectives without a density: value and gradient against loops and lightly, planted errors, teachers, limits."""

import math

import pytest
import torch
from lightly import loss as lightly
from lightly.loss.lejepa_loss import SIGReg, lejepa_invariance_loss
from lightly.loss.swav_loss import sinkhorn as lightlys_sinkhorn
from tests.learn.objectives.common import close
from tests.reference import paired as slow
from torch import nn
from torch.nn import functional as F

from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives.barlow_twins import BarlowTwins
from vergence.learn.objectives.byol import BYOL
from vergence.learn.objectives.lejepa import LeJEPA
from vergence.learn.objectives.moco import MoCo, similarities
from vergence.learn.objectives.simsiam import SimSiam
from vergence.learn.objectives.swav import SwAV, sinkhorn
from vergence.learn.objectives.vicreg import VICReg

B, D, K, S, STEP = 6, 3, 4, 4, 1e-5


def pair(n=B):
    g = torch.Generator().manual_seed(0)
    za = torch.randn(n, D, generator=g)
    return za, 0.7 * za + 0.6 * torch.randn(n, D, generator=g)


def spread():
    """Returns embeddings of which some features have a standard deviation above 1, others below."""
    za, zb = pair()
    return za * torch.tensor([0.3, 1.0, 3.0]), zb * torch.tensor([0.4, 1.2, 2.0])


def layers(head):
    """Returns weights of Linear-BatchNorm-ReLU-Linear for the reference, after moving scale and shift from where they start."""
    modules = [m for m in head.modules() if isinstance(m, torch.nn.Linear | torch.nn.BatchNorm1d)]
    first, norm, second = modules[:3]
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(0, 0.3)
    return [(m.weight.tolist(), m.bias.tolist()) for m in (first, norm, second)]


def difference(loss, reference, za, zb):
    """Returns the largest difference of value and gradient between a loss and its reference in loops.

    Args:
        loss: Function of two tensors that require gradient, which returns a scalar.
        reference: Function of lists (za, zb, fixed za, fixed zb); the fixed ones are those that get no gradient.
        za: Embeddings (B, D).
        zb: Embeddings (B, D).
    """
    z = [za.clone().requires_grad_(), zb.clone().requires_grad_()]
    value = loss(*z)
    gradient = torch.stack(torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True))
    fixed = za.tolist(), zb.tolist()
    views = torch.stack([za, zb])
    numeric = torch.zeros_like(views)
    for index in torch.cartesian_prod(*map(torch.arange, views.shape)):
        at, ends = tuple(index.tolist()), []
        for sign in (1, -1):
            moved = views.clone()
            moved[at] += sign * STEP
            ends.append(reference(*moved.tolist(), *fixed))
        numeric[at] = (ends[0] - ends[1]) / (2 * STEP)
    return max(abs(value.item() - reference(*fixed, *fixed)), (gradient - numeric).abs().max().item())


def total(objective, za, zb):
    return sum(objective(za, zb).values())


def cos(x, y):
    return F.cosine_similarity(x, y)


def barlow_twins():
    def correlation(a, b):
        x, y = (F.batch_norm(z, None, None, training=True) for z in (a, b))
        return x.mT @ y / len(a)

    def loss(c, lam=0.3):
        diagonal = c.diagonal()
        return (1 - diagonal).square().sum() + lam * (c.square().sum() - diagonal.square().sum())

    return BarlowTwins(D, redundancy=0.3), lambda za, zb, *_: slow.barlow_twins(za, zb, lam=0.3), {
        "right": lambda a, b: loss(correlation(a, b)),
        "wrong weight": lambda a, b: loss(correlation(a, b), 0.005),
        "divided by B - 1": lambda a, b: loss(correlation(a, b) * len(a) / (len(a) - 1)),
        "not centered": lambda a, b: loss((a / a.std(0)).mT @ (b / b.std(0)) / len(a)),
        "one-sided gradient": lambda a, b: loss(correlation(a, b.detach())),
    }  # fmt: skip


def byol():
    objective = BYOL(D, hidden=4)
    p, weights = objective.predictor, layers(objective.predictor)

    def both(a, b, fixed_a, fixed_b):
        return slow.byol(slow.predictor(a, *weights), slow.predictor(b, *weights), fixed_a, fixed_b)

    return objective, both, {
        "gradient to one target": lambda a, b: (4 - 2 * cos(p(a), b.detach()) - 2 * cos(p(b), a)).mean(),
        "mean of the directions": lambda a, b: 0.5 * (4 - 2 * cos(p(a), b.detach()) - 2 * cos(p(b), a.detach())).mean(),
        "no predictor": lambda a, b: (4 - 2 * cos(a, b.detach()) - 2 * cos(b, a.detach())).mean(),
    }  # fmt: skip


def simsiam():
    objective = SimSiam(D, hidden=4)
    p, weights = objective.predictor, layers(objective.predictor)

    def both(a, b, fixed_a, fixed_b):
        return slow.simsiam(slow.predictor(a, *weights), slow.predictor(b, *weights), fixed_a, fixed_b)

    return objective, both, {
        "gradient to one target": lambda a, b: -0.5 * (cos(p(a), b.detach()) + cos(p(b), a)).mean(),
        "no stopped gradient": lambda a, b: -0.5 * (cos(p(a), b) + cos(p(b), a)).mean(),
        "dot product": lambda a, b: -0.5 * ((p(a) * b.detach()).sum(1) + (p(b) * a.detach()).sum(1)).mean(),
        "both views in one normalization": lambda a, b: -cos(p(torch.cat([a, b])), torch.cat([b, a]).detach()).mean(),
    }  # fmt: skip


def contrast(q, k, tau=0.2):
    return F.cross_entropy(F.normalize(q) @ F.normalize(k).mT / tau, torch.arange(len(q))) * 2 * tau


def other_keys(q, k, positive):
    """The keys of SimCLR, which lightly's loss without a memory bank has: the other views of the query's own network, too."""
    scores = F.normalize(q) @ torch.cat([F.normalize(k), F.normalize(positive)]).mT / 0.2
    scores[:, len(k) :].fill_diagonal_(-math.inf)
    return F.cross_entropy(scores, torch.arange(len(q))) * 0.4


def moco(tau=0.2):
    objective = MoCo(D, hidden=4, temperature=tau)
    p, weights = objective.predictor, layers(objective.predictor)

    def both(a, b, fixed_a, fixed_b):
        return slow.moco(*(slow.predictor(z, *weights, last=True) for z in (a, b)), fixed_a, fixed_b, tau)

    return objective, both, {
        "wrong temperature": lambda a, b: contrast(p(a), b.detach(), 0.1) + contrast(p(b), a.detach(), 0.1),
        "no factor 2 tau": lambda a, b: (contrast(p(a), b.detach()) + contrast(p(b), a.detach())) / 0.4,
        "no last normalization": lambda a, b: contrast(p[0](a), b.detach()) + contrast(p[0](b), a.detach()),
        "keys of SimCLR": lambda a, b: other_keys(p(a), b.detach(), a) + other_keys(p(b), a.detach(), b),
    }  # fmt: skip


def vicreg():
    """Planted errors are also the conventions of the paper and of solo-learn, which differ from the released code's."""

    def terms(a, b):
        s = 25 * (a - b).square().mean()
        v = 25 * 0.5 * sum((1 - (z.var(0) + 1e-4).sqrt()).relu().mean() for z in (a, b))
        return s, v, sum((torch.cov(z.mT).square().sum() - z.var(0).square().sum()) / D for z in (a, b))

    def weighted(s=1.0, v=1.0, c=1.0):
        return lambda a, b: sum(w * term for w, term in zip((s, v, c), terms(a, b), strict=True))

    return VICReg(D), lambda za, zb, *_: sum(slow.vicreg(za, zb)), {
        "right": weighted(),
        "variance of both views added (the paper, solo-learn)": weighted(v=2.0),
        "invariance as a sum over features (the paper)": weighted(s=D),
        "diagonal kept": lambda a, b: sum(terms(a, b)) + sum(z.var(0).square().sum() / D for z in (a, b)),
        "one-sided gradient": lambda a, b: 25 * (a - b.detach()).square().mean() + sum(terms(a, b)[1:]),
    }  # fmt: skip


class Seeded(LeJEPA):
    """LeJEPA whose random directions are always the same."""

    def forward(self, za, zb):
        torch.manual_seed(7)
        return super().forward(za, zb)


def directions(slices=S):
    """Returns the directions that `Seeded` samples."""
    torch.manual_seed(7)
    return F.normalize(torch.randn(D, slices), dim=0).mT.tolist()


def lejepa():
    t, w = torch.linspace(0, 3, 17), torch.full((17,), 2 * 3 / 16)
    w[[0, -1]] /= 2

    def reference(za, zb, *_):
        u = directions()
        return 0.05 * 0.5 * (slow.sigreg(za, u) + slow.sigreg(zb, u)) + 0.95 * slow.invariance(za, zb)

    def statistic(z, weights=w, n=B):
        x = (z @ torch.tensor(directions()).mT)[..., None] * t
        error = (x.cos().mean(-3) - (-0.5 * t**2).exp()).square() + x.sin().mean(-3).square()
        return n * (error * weights * (-0.5 * t**2).exp()).sum(-1).mean()

    def views(a, b):
        return torch.stack([a, b])

    def apart(a, b):
        return (views(a, b) - (a + b) / 2).square().mean()

    return Seeded(D, slices=S), reference, {
        "right": lambda a, b: 0.05 * statistic(views(a, b)) + 0.95 * apart(a, b),
        "rectangle rule": lambda a, b: 0.05 * statistic(views(a, b), torch.full((17,), 2 * 3 / 16)) + 0.95 * apart(a, b),
        "not times B": lambda a, b: 0.05 * statistic(views(a, b), n=1) + 0.95 * apart(a, b),
        "sum over features": lambda a, b: 0.05 * statistic(views(a, b)) + 0.95 * D * apart(a, b),
        "distance of the views": lambda a, b: 0.05 * statistic(views(a, b)) + 0.95 * (a - b).square().mean(),
    }  # fmt: skip


def built_swav(**options):
    torch.manual_seed(1)
    return SwAV(D, **{"prototypes": K, "frozen_steps": 0, **options})


def swav():
    objective = built_swav()
    c = objective.prototypes.tolist()

    def entropy(scores, q, tau=0.1):
        return -(q * (scores / tau).log_softmax(1)).sum(1)

    def swapped(a, b, code=lambda s: sinkhorn(s, 0.05, 3), tau=0.1):
        sa, sb = objective.similarities(a), objective.similarities(b)
        return entropy(sa, code(sb), tau), entropy(sb, code(sa), tau)

    def not_swapped(a, b):
        return sum(entropy(s, sinkhorn(s, 0.05, 3)).mean() for s in map(objective.similarities, (a, b))) / 2

    return objective, lambda a, b, *fixed: slow.swav(a, b, c, *(slow.codes(z, c) for z in fixed)), {
        "right": lambda a, b: sum(swapped(a, b)).mean() / 2,
        "not swapped": not_swapped,
        "sum over pairs": lambda a, b: sum(swapped(a, b)).sum() / 2,
        "no Sinkhorn": lambda a, b: sum(swapped(a, b, lambda s: (s.detach() / 0.05).softmax(1))).mean() / 2,
        "gradient to the codes": lambda a, b: sum(swapped(a, b, lambda s: (s / 0.05).softmax(1))).mean() / 2,
        "one direction": lambda a, b: swapped(a, b)[0].mean(),
    }  # fmt: skip


CASES = (barlow_twins, byol, lejepa, moco, simsiam, swav, vicreg)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_value_and_gradient_are_those_of_the_loops_and_planted_errors_are_seen(case):
    objective, reference, planted = case()
    views = spread() if case is vicreg else pair()
    assert difference(lambda *z: total(objective, *z), reference, *views) < 1e-6
    for error, loss in planted.items():
        apart = difference(loss, reference, *views)
        assert apart < 1e-6 if error == "right" else apart > (5e-5 if case is lejepa else 1e-3), error


def of_lightly(name, objective):
    """Returns lightly's loss with the settings of an objective, as a function of two views."""
    cosine, p = lightly.NegativeCosineSimilarity(), getattr(objective, "predictor", None)

    def both(a, b):
        return cosine(p(a), b.detach()) + cosine(p(b), a.detach())

    def lejepa(a, b):
        torch.manual_seed(7)
        views = torch.stack([a, b])
        return 0.05 * SIGReg(num_vectors=S)(views) + 0.95 * lejepa_invariance_loss(all_proj=views, global_proj=views)

    return {
        "barlow_twins": lightly.BarlowTwinsLoss(0.3), "byol": lambda a, b: 4 + 2 * both(a, b), "lejepa": lejepa,
        "simsiam": lambda a, b: 0.5 * both(a, b),
        "swav": lambda a, b: lightly.SwaVLoss()([objective.similarities(a), objective.similarities(b)], []).squeeze(),
        "vicreg": lightly.VICRegLoss(),
    }[name]  # fmt: skip


@pytest.mark.parametrize("case", [case for case in CASES if case is not moco], ids=lambda case: case.__name__)
def test_value_and_gradient_are_lightlys(case):
    """In lightly the knots of LeJEPA's integral are of single precision."""
    objective, tol = case()[0], 1e-6 if case is lejepa else 1e-12
    views = [z.requires_grad_() for z in (spread() if case is vicreg else pair())]
    values = [total(objective, *views), of_lightly(case.__name__, objective)(*views)]
    close(*values, tol)
    for a, b in zip(*(torch.autograd.grad(value, [*views, *objective.parameters()]) for value in values), strict=True):
        close(a, b, tol)


def test_the_weights_of_vicreg_are_lightlys():
    weighted = VICReg(D, invariance=2.0, variance=3.0, decorrelation=5.0)
    close(total(weighted, *spread()), lightly.VICRegLoss(2.0, 3.0, 5.0)(*spread()), 1e-12)


def test_moco_is_lightlys_loss_with_a_memory_bank_of_the_other_keys():
    """For one query, whose negatives lightly takes from its bank."""
    (q, k), loss, losses = pair(8), lightly.NTXentLoss(temperature=0.2, memory_bank_size=(7, D)), []
    for n in range(8):
        loss.memory_bank.bank = F.normalize(torch.cat([k[:n], k[n + 1 :]]))
        loss.memory_bank.bank_ptr = torch.zeros(1, dtype=torch.long)
        losses.append(loss(q[n : n + 1], k[n : n + 1]))
    close(MoCo(D, hidden=4).contrast(q, k), 0.4 * torch.stack(losses).mean(), 1e-6)


def whole(z):
    return z


def with_teacher(objective):
    """Returns a method whose teacher has moved away from its student."""
    torch.manual_seed(2)
    method = PairedMethod(nn.Linear(5, D), objective, teacher=0.9)
    with torch.no_grad():
        method.encoder.weight.add_(0.3 * torch.randn_like(method.encoder.weight))
    return method


@pytest.mark.parametrize("kind", [BYOL, MoCo])
def test_with_a_teacher_students_predict_and_teachers_are_targets(kind):
    """The published loss: both views predicted by the student, targets by the teacher, predictor trained by students alone."""

    def loss(p, target):
        return (2 - 2 * cos(p, target)).mean() if kind is BYOL else contrast(p, target)

    method, views = with_teacher(kind(D, hidden=4)), (torch.randn(B, 5), torch.randn(B, 5))
    q = method.objective.predictor
    (za, zb), (ta, tb) = ([net(x) for x in views] for net in (method.encoder, method.teacher))
    value, expected = sum(method(views, whole).values()), loss(q(za), tb) + loss(q(zb), ta)
    close(value, expected, 1e-12)
    parameters = [*q.parameters(), *method.encoder.parameters()]
    for a, b in zip(*(torch.autograd.grad(x, parameters) for x in (value, expected)), strict=True):
        close(a, b, 1e-9)
    assert (loss(q(za), zb) + loss(q(zb), za) - expected).abs() > 1e-3, "the student's own targets would show"


@pytest.mark.parametrize("kind", [BYOL, SimSiam])
def test_limits_of_the_cosines(kind):
    """Without predictor: equal, orthogonal and opposite directions, at any length."""
    objective, (z, _) = kind(2, hidden=4), pair()
    objective.predictor, z = nn.Identity(), F.pad(z[:, :1] ** 2 + 1, (0, 1))
    least, middle, most = (0.0, 4.0, 8.0) if kind is BYOL else (-1.0, 0.0, 1.0)
    for other, expected in ((3 * z, least), (z.flip(1), middle), (-z, most)):
        close(total(objective, z, other), expected, 1e-12)


def test_limits_of_vicreg():
    terms = VICReg(D)(torch.zeros(B, D), torch.zeros(B, D))  # all equal: each hinge is 1 - sqrt(1e-4), nothing else is left
    assert {name: round(term.item(), 9) for name, term in terms.items()} == {"invariance": 0, "hinge": 24.75, "covariance": 0}
    z = torch.linspace(-3, 3, B)[:, None].expand(B, D)  # one feature D times: each of its D - 1 covariances is the variance
    close(VICReg(D)(z, z)["covariance"], 2 * (D - 1) * z[:, 0].var() ** 2)


def test_barlow_twins_ignores_scale_and_location_of_a_feature():
    g = torch.Generator().manual_seed(0)
    za, zb = torch.randn(2, 64, D, generator=g)
    moved = total(BarlowTwins(D), za * torch.tensor([30.0, 5.0, 100.0]) + 7, zb)
    close(moved, total(BarlowTwins(D), za, zb), 1e-3)


def test_limits_of_moco():
    za, _ = pair(16)
    objective = MoCo(D, hidden=4)
    close(objective.contrast(za, torch.ones(16, D)), 0.4 * math.log(16))
    close(objective.contrast(50 * torch.eye(D), torch.eye(D)), 0.4 * math.log(1 + (D - 1) * math.exp(-5)))
    close(similarities(3 * za, za, 0.5).diagonal(), torch.full((16,), 2.0))
    assert objective.diagnostics(za, za) == {"accuracy": 1.0}


def test_the_statistic_of_lejepa_is_the_integral_in_closed_form():
    """With knots up to t = 8, so that nothing of the integral is cut off; at t = 3 about 1 % is."""
    za, zb = pair(12)
    value = Seeded(D, slices=S, knots=400, t_max=8.0, weight=1.0)(za, zb)["sigreg"].item()
    exact = slow.mean(slow.epps_pulley_exact([slow.dot(x, u) for x in z.tolist()]) for z in (za, zb) for u in directions())
    assert value == pytest.approx(exact, rel=1e-5)
    assert total(Seeded(D, slices=S, weight=1.0), za, zb).item() == pytest.approx(exact, rel=0.05)


def test_a_standard_gaussian_has_a_small_statistic_and_others_a_large_one():
    """Under the null the statistic's mean is int (1 - exp(-t^2)) exp(-t^2 / 2) dt = sqrt(2 pi) (1 - 1 / sqrt 3), about 1.06."""
    z, objective = torch.randn(500, D), LeJEPA(D, slices=64, weight=1.0)
    assert objective(z, z)["sigreg"] < 3
    for other in (2 * z, z + 1, 0.1 * z, z.sign(), z[:, :1].expand(-1, D)):
        assert objective(other, other)["sigreg"] > 10
    assert total(LeJEPA(D, slices=S), *pair()) != total(LeJEPA(D, slices=S), *pair()), "directions are new in every step"


@pytest.mark.parametrize("iterations", [1, 3, 30])
def test_sinkhorn_step_by_step(iterations):
    scores = built_swav().similarities(pair()[0]).detach()
    states = list(slow.sinkhorn_steps(scores.tolist(), 0.05, iterations))
    for i in range(iterations):
        columns, rows = states[1 + 2 * i], states[2 + 2 * i]
        assert [sum(slow.column(columns, k)) for k in range(K)] == pytest.approx([1 / K] * K)
        assert [sum(row) for row in rows] == pytest.approx([1 / B] * B)
    codes = sinkhorn(scores, 0.05, iterations)
    close(codes, lightlys_sinkhorn(scores, iterations, 0.05), 1e-12)
    close(codes, B * torch.tensor(states[-1]), 1e-9)
    if iterations == 30:  # both constraints hold in the limit
        close(codes.sum(0), torch.full((K,), B / K), 1e-3)
    prototypes = built_swav().prototypes.tolist()
    expected = [slow.codes(z.tolist(), prototypes, iterations=iterations) for z in pair()]
    loss = slow.swav(*(z.tolist() for z in pair()), prototypes, *expected)
    close(total(built_swav(iterations=iterations), *pair()), loss, 1e-9)


def test_swavs_prototypes_have_the_gradient_of_the_loops():
    objective, (za, zb) = built_swav(), pair()
    gradient = torch.autograd.grad(total(objective, za, zb), objective.prototypes)[0]
    c = objective.prototypes.detach()
    codes = [slow.codes(z.tolist(), c.tolist()) for z in (za, zb)]
    direction = torch.randn(K, D)
    ends = [slow.swav(za.tolist(), zb.tolist(), (c + s * STEP * direction).tolist(), *codes) for s in (1, -1)]
    close((gradient * direction).sum(), (ends[0] - ends[1]) / (2 * STEP), 1e-6)


def test_swavs_prototypes_stay_on_the_sphere_and_learn_after_the_frozen_steps():
    objective, views = built_swav(frozen_steps=2), pair()
    optimizer = torch.optim.SGD(objective.parameters(), lr=5.0)
    for step in range(4):
        assert objective.frozen() == ((objective.prototypes,) if step < 2 else ())
        before = objective.prototypes.detach().clone()
        optimizer.zero_grad()
        total(objective, *views).backward()
        optimizer.step()
        objective.update(*views)
        close(objective.prototypes.norm(dim=1), torch.ones(K))
        assert torch.allclose(objective.prototypes, before) == (step < 2)
    with torch.no_grad():
        objective.prototypes.copy_(F.normalize(torch.ones(K, D)))
    close(total(objective, *pair()), math.log(K))  # equal prototypes say nothing
    close(objective.diagnostics(*pair())["prototypes"], float(K))
