"""What every objective in the folder must keep: shapes, gradients, symmetry, state, mass, precision, names."""

import importlib.resources
import math
import typing
import warnings

import pytest
import torch
from torch.distributions import Normal

from vergence import objectives
from vergence.densities.gaussian import JointGaussian
from vergence.methods.paired import PairedMethod
from vergence.objectives import DensityObjective, LatentObjective, Objective, PredictiveObjective, core

NAMES = objectives.names()
DENSITIES = [name for name in NAMES if issubclass(objectives.get(name), DensityObjective)]
B, D = 16, 8

SMALLER = {  # options that change no formula: widths of hidden layers, random directions of a step, size of a bank
    "byol": {"hidden": 32},
    "moco": {"hidden": 32},
    "lejepa": {"slices": 32},
    "gmje_smc": {"bank": 64},
    "swav": {"prototypes": 24, "frozen_steps": 0},
}
REFUSE_EQUAL = ("gje", "gmje", "gmje_em", "gmje_gng", "gmje_mdn")  # losses with the determinant of a batch's covariance
REFUSE_ONE = (*REFUSE_EQUAL, "barlow_twins", "byol", "moco", "simsiam", "vicreg")  # or with its variances

every = pytest.mark.parametrize("name", NAMES)
every_density = pytest.mark.parametrize("name", DENSITIES)
on_sphere = pytest.mark.parametrize("name", [name for name in DENSITIES if objectives.get(name).on_sphere])
elsewhere = pytest.mark.parametrize("name", [name for name in DENSITIES if not objectives.get(name).on_sphere])


class Outside(Objective):
    """An objective that lives in a package of its own."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, za, zb):
        return {"squared": (za - zb).square().sum(-1).mean()}


def pair():
    """Returns two views of one thing: correlated embeddings, as after some training."""
    za = torch.randn(B, D)
    return za, za + 0.3 * torch.randn(B, D)


def moved(objective):
    """Returns the objective with every parameter away from its initial value, so that a state not saved would show."""
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return objective


def built(name, dim=D, **options):
    """Returns an objective, with fewer hidden units and directions than by default."""
    return objectives.get(name)(dim, **{**SMALLER.get(name, {}), **options})


def repeated(call, seeds):
    """Returns call() under each seed, (seeds, ...)."""
    out = []
    for seed in seeds:
        torch.manual_seed(seed)
        out.append(call())
    return torch.stack(out).detach()


def outputs(objective, za, zb):
    """Returns everything that an objective computes from a pair, under one seed."""
    torch.manual_seed(3)
    found = [*objective(za, zb).values()]
    if isinstance(objective, DensityObjective):
        found += [objective.log_prob(zb, za), objective.score(za)]
    return [value.detach() for value in found]


# --- the register ---------------------------------------------------------------------------------------------------------


def test_the_folder_is_the_register():
    folder = importlib.resources.files("vergence.objectives")
    files = {entry.name.removesuffix(".py") for entry in folder.iterdir() if entry.name.endswith(".py")}
    assert set(NAMES) == files - {"__init__", "core"} and "vje" in NAMES


@every
def test_class_is_concrete_and_final(name):
    cls = objectives.get(name)
    assert issubclass(cls, Objective) and not cls.__abstractmethods__
    assert [sub for sub in cls.__subclasses__() if sub.__module__.startswith("vergence.")] == []
    assert isinstance(cls(D), Objective)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"expected an objective among .*found 'vjee'.*did you mean 'vje'"):
        objectives.get("vjee")
    with pytest.raises(ValueError, match=r"package\.module:Class"):
        objectives.get("nothing like it")
    with pytest.raises(ValueError, match="core"):
        objectives.get("core")
    with pytest.raises(ValueError, match=r"found 'masked_autoencoder'; methods on images are chosen by --method"):
        objectives.get("masked_autoencoder")
    with pytest.raises(ValueError, match=r"found 'SimCLR'; SimCLR is 'contrastive'"):
        objectives.get("SimCLR")


def test_class_from_outside():
    assert objectives.get(f"{__name__}:Outside") is Outside
    for wrong in ("no_such_package:Outside", f"{__name__}:Missing", f"{__name__}:pair", "math:pi"):
        with pytest.raises(ValueError, match="objective"):
            objectives.get(wrong)


# --- the loss -------------------------------------------------------------------------------------------------------------


@every
def test_terms_are_finite_scalars(name):
    za, zb = pair()
    before = za.clone(), zb.clone()
    terms = built(name)(za, zb)
    assert terms and all(isinstance(term, str) for term in terms)
    for value in terms.values():
        assert value.shape == () and value.dtype == torch.float64 and torch.isfinite(value)
    assert torch.equal(za, before[0]) and torch.equal(zb, before[1])


@every
def test_embeddings_and_parameters_get_gradient(name):
    objective, (za, zb) = built(name), (z.requires_grad_() for z in pair())
    total = sum(objective(za, zb).values())
    parameters = [p for p in objective.parameters() if p.requires_grad]
    *learned, ga, gb = torch.autograd.grad(total, [*parameters, za, zb])
    assert all(torch.isfinite(g).all() for g in (*learned, ga, gb))
    a_pair = B * (ga.norm(dim=-1) + gb.norm(dim=-1))
    assert a_pair.median() > 1e-3, "an encoder in front of the objective must learn from a typical pair"


@every
def test_order_of_the_pairs_does_not_matter(name, n=200):
    objective, (za, zb), order = built(name), pair(), torch.randperm(B)
    n = 2 if torch.equal(*terms_of(objective, za, zb, range(2))) else n  # a loss without noise
    assert same_on_average(terms_of(objective, za, zb, range(n)), terms_of(objective, za[order], zb[order], range(n, 2 * n)))


def terms_of(objective, za, zb, seeds):
    return repeated(lambda: torch.stack(list(objective(za, zb).values())), seeds)


def same_on_average(a, b):
    error = ((a.var(0) + b.var(0)) / len(a)).sqrt()
    return bool(((a.mean(0) - b.mean(0)).abs() <= 4 * error + 1e-9 * (1 + a.mean(0).abs())).all())


def test_the_comparison_sees_an_ordered_loss():
    weights = torch.arange(1.0, B + 1)

    class Ordered(Outside):
        def forward(self, za, zb):
            return {"ordered": (weights * (za + 0.1 * torch.randn(B, D) - zb).square().sum(-1)).mean()}

    objective, (za, zb), order = Ordered(D), pair(), torch.arange(B).flip(0)
    za[-1] += 1
    a, b = terms_of(objective, za, zb, range(100)), terms_of(objective, za[order], zb[order], range(100, 200))
    assert not same_on_average(a, b)


@every
def test_update_and_diagnostics(name):
    objective, (za, zb) = built(name), pair()
    with torch.no_grad():
        assert objective.update(za, zb) is None
        numbers = objective.diagnostics(za, zb)
    assert all(isinstance(key, str) and type(value) is float and math.isfinite(value) for key, value in numbers.items())
    assert not set(numbers) & set(objective(za, zb)), "a diagnostic is never part of the loss"
    assert all(torch.isfinite(value) for value in objective(za, zb).values())


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_follows_the_input(name, dtype):
    objective, (za, zb) = built(name), pair()
    exact = outputs(objective, za, zb)
    found = outputs(objective.to(dtype), za.to(dtype), zb.to(dtype))
    for value, reference in zip(found, exact, strict=True):
        assert value.dtype == dtype and value.shape == reference.shape and torch.isfinite(value).all()


@every
@pytest.mark.parametrize("views", [lambda: (torch.randn(1, D), torch.randn(1, D)), lambda: (torch.ones(B, D), torch.ones(B, D))])
def test_a_batch_without_spread_has_a_finite_loss_or_is_refused(name, views):
    """A batch of one, and one of equal embeddings: where a loss has no value, the error says what was expected."""
    za, zb = views()
    refused = []
    for options in settings(objectives.get(name)):
        objective = built(name, **options)
        try:
            terms = objective(za, zb)
        except ValueError as error:
            assert "expected a batch of at least 2 embeddings that differ, found" in str(error) and "\n" not in str(error)
            refused.append(options)
        else:
            assert all(torch.isfinite(value) for value in terms.values()), options
    assert ({} in refused) == (name in (REFUSE_ONE if len(za) == 1 else REFUSE_EQUAL))


def settings(cls):
    """Returns the options that choose between losses, one setting each."""
    hints = typing.get_type_hints(cls.__init__)
    chosen = [name for name in ("loss", "likelihood", "marginal") if name in hints]
    return [{}, *({name: value} for name in chosen for value in typing.get_args(hints[name]))]


def test_declarations():
    """What a report and a training loop read off the class."""
    for name in NAMES:
        cls = objectives.get(name)
        assert all(isinstance(value, float) for value in cls.reference.values()) and "\n" not in cls.advice
    assert objectives.get("vje").reference == {"variance_mean": 0.3, "variance_cv": 0.75, "prior_variance": 1.0}


@pytest.mark.float32
@pytest.mark.parametrize("name", ["vje", "vssl", "vi_simsiam"])
def test_the_loss_under_autocast_is_that_of_float32(name):
    objective, (za, zb) = built(name), pair()
    torch.manual_seed(2)
    exact = objective(za, zb)
    torch.manual_seed(2)
    with torch.autocast("cpu", torch.bfloat16):
        terms = objective(za, zb)
    for term, value in terms.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, exact[term], rtol=0.02, atol=0.05)


# --- a loop of one's own --------------------------------------------------------------------------------------------------


def own_loop(objective, *, update=True, teacher=True, steps=6):
    """Returns the warnings of a loop of one's own."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            za, zb = pair()
            objective(za.requires_grad_(), zb.requires_grad_(not teacher))
            if update:
                objective.update(za.detach(), zb.detach())
    return [str(w.message) for w in caught if "steps of" in str(w.message)]


@every
def test_what_a_loop_has_forgotten_is_named_once(name, monkeypatch):
    monkeypatch.setattr(core, "PATIENCE", 4)
    assert own_loop(built(name)) == []
    forgotten = own_loop(built(name), update=False)
    assert [("without update" in line, "\n" in line) for line in forgotten] == [(True, False)] * built(name).needs_update
    alone = own_loop(built(name), teacher=False)
    assert ["without a teacher" in line for line in alone] == [True] * (objectives.get(name).teacher is not None)


def test_a_method_is_not_watched_for_what_is_forgotten():
    method = PairedMethod(torch.nn.Linear(3, D), built("gje"))
    method.objective.update = None  # never called by forward
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            method((torch.randn(8, 3), torch.randn(8, 3)), gather=lambda z: z)


# --- one function decides -------------------------------------------------------------------------------------------------


class LaplaceVJE(objectives.get("vje")):
    def likelihood(self, z, s, var):
        return {"laplace": (z - s).abs().sum(-1)}

    def log_constant(self):
        return -self.dim * math.log(2)


def test_another_likelihood_of_vje_is_one_override():
    objective, (za, zb) = LaplaceVJE(D), pair()
    terms = objective(za, zb)
    assert sorted(terms) == ["kl", "laplace"]
    mu, var = objective.infer(za)
    scores = objective.scores(zb, samples=0)
    torch.testing.assert_close(scores["joint"], (zb - objective.infer(zb)[0]).abs().sum(-1))
    torch.testing.assert_close(scores["joint"], scores["laplace"])
    noise = torch.randn(3, 1, D, generator=torch.Generator().manual_seed(1))
    s = mu + var.sqrt() * noise
    prior, q = (torch.distributions.Normal(*p) for p in ((torch.zeros(D), torch.ones(D)), (mu, var.sqrt())))
    expected = torch.distributions.Laplace(s, 1.0).log_prob(zb) + prior.log_prob(s) - q.log_prob(s)
    found = objective.log_weights(zb, za, samples=3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found, expected.sum(-1))


@pytest.mark.parametrize("name", [n for n in NAMES if issubclass(objectives.get(n), objectives.ConditionalObjective)])
def test_another_density_of_an_objective_is_one_override(name):
    """`joint`, or `conditional` and `marginal`: log-density, posterior, scores and samples are those of the override."""
    S = torch.eye(2 * D) + 0.5 * torch.ones(2 * D, 2 * D)
    p = JointGaussian(torch.ones(2 * D), S, context=D)
    kind = objectives.get(name)
    one = (
        kind.joint is not objectives.ConditionalObjective.joint
        and kind.conditional is objectives.ConditionalObjective.conditional
    )
    override = {"joint": lambda self: p}
    if not one:
        override = {"conditional": lambda self, z: p.conditional(z), "marginal": lambda self: p.marginal("context")}
    objective, (za, zb) = type(kind.__name__, (kind,), override)(D), pair()
    torch.testing.assert_close(
        objective.log_prob(zb, za), p.log_prob(torch.cat([za, zb], 1)) - p.marginal("context").log_prob(za)
    )
    torch.testing.assert_close(objective.scores(za)["score"], -p.marginal("context").log_prob(za))
    torch.testing.assert_close(objective.posterior(za).mean, p.conditional(za).mean)
    assert abs(objective.sample(4000)[0].mean().item() - 1) < 0.1


# --- the state ------------------------------------------------------------------------------------------------------------


@every
def test_state_dict_is_the_whole_state(name):
    za, zb = pair()
    first, second = moved(built(name)), built(name)
    first.update(za, zb)
    expected = outputs(first, za, zb)
    differ = not all(torch.equal(a, b) for a, b in zip(outputs(second, za, zb), expected, strict=True))
    assert differ == bool(first.state_dict()), "a loss without state is a function of the embeddings alone"
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(outputs(second, za, zb), expected, strict=True))
    assert stray_tensors(first) == [] and {n for n, _ in first.named_buffers()} <= set(first.state_dict())


def stray_tensors(module):
    """Returns the attributes that hold a tensor, or a collection of tensors, which no state_dict would save."""
    found = []
    for path, part in module.named_modules():
        own = {key: value for key, value in vars(part).items() if not key.startswith(("_parameters", "_buffers", "_modules"))}
        for key, value in own.items():
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else [value]
            found += [f"{path}.{key}" for item in items if isinstance(item, torch.Tensor)]
    return found


def test_a_stray_tensor_is_seen():
    objective = Outside(D)
    objective.mean, objective.bank, objective.by_name = torch.zeros(D), [torch.zeros(D)], {"a": torch.zeros(D)}
    assert stray_tensors(objective) == [".mean", ".bank", ".by_name"]


# --- the density ----------------------------------------------------------------------------------------------------------


@every_density
def test_density_and_score_are_one_number_a_row(name):
    objective, (za, zb) = built(name), pair()
    for value in (
        objective.log_prob(zb, za),
        objective.score(za),
        objective.log_prob(zb[:1], za[:1]),
        objective.score(za[:1]),
    ):
        assert value.dtype == torch.float64 and torch.isfinite(value).all()
    assert objective.log_prob(zb, za).shape == objective.score(za).shape == (B,)
    assert objective.log_prob(zb[:1], za[:1]).shape == objective.score(za[:1]).shape == (1,)


def line_mass(log_prob, context, n=2000):
    """Returns the integral of exp(log_prob(., context)) over the line by the midpoint rule in t, z = sinh(t).

    A density of (direction, norm) has the same mass at D = 1: the two directions are the two halves of the line, and the
    change of variables has a factor |z|^(D-1) = 1.
    """
    t = (torch.arange(2 * n) + 0.5) * (14 / n) - 14
    z = torch.sinh(t)[:, None]
    return (log_prob(z, torch.full_like(z, context)).exp() * torch.cosh(t)).sum() * (14 / n)


@elsewhere
@pytest.mark.parametrize("context", [-3.0, 0.1])
def test_mass_on_the_line_is_at_most_one(name, context):
    """A bound by importance sampling may pass the density for some draws of its noise, but not on average over the draws."""
    objective = built(name, 1)
    masses = repeated(lambda: line_mass(objective.log_prob, context), range(2))
    if masses[0] != masses[1]:  # a bound with noise: its mean over draws
        masses = repeated(lambda: line_mass(objective.log_prob, context), range(60))
    assert 0 < masses.mean() <= 1 + 1e-4 + 4 * masses.std() / math.sqrt(len(masses))


@on_sphere
def test_mass_on_the_circle_is_one(name, n=4000):
    """Of a density of directions, which does not depend on the target's scale."""
    objective, angle = objectives.get(name)(2), (torch.arange(n) + 0.5) * (2 * math.pi / n)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    for za in 3 * torch.randn(4, 2):
        masses = [objective.log_prob(r * circle, za.expand_as(circle)).exp().mean() * 2 * math.pi for r in (0.01, 1.0, 50.0)]
        assert all(abs(mass - 1) < 1e-4 for mass in masses)


@every_density
def test_a_conditional_is_the_log_density(name):
    """Where p(z_b | z_a) is in closed form; of VJE, importance weights have it as their mean instead."""
    objective, (za, zb) = objectives.get(name)(D), pair()
    with torch.no_grad():
        objective.update(za, zb)
    if isinstance(objective, PredictiveObjective):
        target = torch.nn.functional.normalize(zb, dim=1) if objective.on_sphere else zb
        p = objective.conditional(za)
        torch.testing.assert_close(p.log_prob(target), objective.log_prob(zb, za), rtol=1e-9, atol=1e-9)
        assert p.sample().shape == p.mean.shape == (B, D) and p.sample().isfinite().all()
    else:
        assert isinstance(objective, LatentObjective)
        torch.manual_seed(1)
        log_w = objective.log_weights(zb, za, samples=16)
        torch.manual_seed(1)
        torch.testing.assert_close(torch.logsumexp(log_w, 0) - math.log(16), objective.log_prob(zb, za))


@every_density
def test_scores_are_named_and_the_first_is_the_default(name):
    objective, (za, _) = objectives.get(name)(D), pair()
    torch.manual_seed(1)
    found = objective.scores(za)
    torch.manual_seed(1)
    torch.testing.assert_close(next(iter(found.values())), objective.score(za))
    assert all(isinstance(key, str) and value.shape == (B,) and value.isfinite().all() for key, value in found.items())


@every_density
def test_the_posterior_has_what_an_evaluation_reads(name):
    objective, (za, _) = objectives.get(name)(D), pair()
    belief = objective.posterior(za)
    assert belief.mean.shape == (B, D) and belief.variance.expand(B, D).min() > 0 and belief.entropy().expand(B).isfinite().all()


def test_the_quadrature_itself():
    for spread in (0.05, 1.0, 30.0):
        assert abs(line_mass(lambda z, c, s=spread: Normal(c[:, 0], s).log_prob(z[:, 0]), 1.0) - 1) < 1e-6
