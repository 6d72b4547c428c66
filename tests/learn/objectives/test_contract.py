"""What every objective in the folder must keep: shapes, gradients, symmetry, state, mass, precision, options, errors."""

import importlib.resources
import math
import typing
import warnings

import pytest
import torch
from tests import options
from tests.learn.objectives.common import close, gradcheck_of_parameters
from tests.refusals import refuses
from torch.distributions import Laplace, Normal
from torch.nn import functional as F

from vergence.densities.gaussian import JointGaussian
from vergence.learn import objectives
from vergence.learn.methods.paired import PairedMethod
from vergence.learn.objectives import ConditionalObjective, DensityObjective, Objective, PredictiveObjective, core

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


def built(name, dim=D, **settings):
    """Returns an objective, with fewer hidden units and directions than by default."""
    return objectives.get(name)(dim, **{**SMALLER.get(name, {}), **settings})


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
    values = [*objective(za, zb).values()]
    if isinstance(objective, DensityObjective):
        values += [objective.log_prob(zb, za), objective.score(za)]
    return [value.detach() for value in values]


def equal(single, another):
    return all(torch.equal(a, b) for a, b in zip(single, another, strict=True))


def test_the_folder_is_the_register():
    folder = importlib.resources.files("vergence.learn.objectives")
    files = {entry.name.removesuffix(".py") for entry in folder.iterdir() if entry.name.endswith(".py")}
    assert set(NAMES) == files - {"__init__", "core"} and "vje" in NAMES
    for name in NAMES:
        cls = objectives.get(name)
        assert getattr(objectives, cls.__name__) is cls and not cls.__abstractmethods__
        assert [sub for sub in cls.__subclasses__() if sub.__module__.startswith("vergence.")] == []
        assert all(isinstance(value, float) for value in cls.reference.values()) and "\n" not in cls.advice


def test_names_from_outside_and_unknown_ones():
    assert objectives.get(f"{__name__}:Outside") is Outside
    for wrong in ("no_such_package:Outside", f"{__name__}:Missing", f"{__name__}:pair", "math:pi", "core", "nothing like it"):
        refuses("objective", objectives.get, wrong)
    for wrong, hint in (("vjee", "'vje'"), ("masked_autoencoder", "`method`"), ("SimCLR", "'contrastive'")):
        refuses(hint, objectives.get, wrong)


@every
def test_terms_are_finite_scalars_and_everything_gets_gradient(name):
    objective, (za, zb) = built(name), (z.requires_grad_() for z in pair())
    before = za.detach().clone(), zb.detach().clone()
    terms = objective(za, zb)
    assert terms and all(isinstance(term, str) for term in terms) and equal((za, zb), before)
    assert all(value.shape == () and value.dtype == torch.float64 and value.isfinite() for value in terms.values())
    parameters = [p for p in objective.parameters() if p.requires_grad]
    *learned, ga, gb = torch.autograd.grad(sum(terms.values()), [*parameters, za, zb])
    assert all(g.isfinite().all() for g in (*learned, ga, gb))
    a_pair = B * (ga.norm(dim=-1) + gb.norm(dim=-1))
    assert a_pair.median() > 1e-3, "an encoder in front of the objective must learn from a typical pair"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "swav"])  # whose codes get no gradient
def test_gradients_of_parameters_by_differences(name):
    widths = {"vje": 4, "vssl": 4, "jepa": 4, "vi_simsiam": 4, "byol": 4, "moco": 4, "simsiam": 4, "gmje_mdn": 4}
    objective = built(name, 3, **({"hidden": widths[name]} if name in widths else {}))
    if any(p.requires_grad for p in objective.parameters()):
        assert gradcheck_of_parameters(moved(objective), torch.randn(5, 3), torch.randn(5, 3))


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
    for value, reference in zip(outputs(objective.to(dtype), za.to(dtype), zb.to(dtype)), exact, strict=True):
        assert value.dtype == dtype and value.shape == reference.shape and torch.isfinite(value).all()


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


@every
@pytest.mark.parametrize("views", [lambda: (torch.randn(1, D), torch.randn(1, D)), lambda: (torch.ones(B, D), torch.ones(B, D))])
def test_a_batch_without_spread_has_a_finite_loss_or_is_refused(name, views):
    """A batch of one, and one of equal embeddings: where a loss has no value, the error says what was expected."""
    za, zb = views()
    refused = []
    hints = typing.get_type_hints(objectives.get(name).__init__)
    chosen = [option for option in ("loss", "likelihood", "marginal") if option in hints]
    for settings in [{}, *({option: value} for option in chosen for value in typing.get_args(hints[option]))]:
        try:
            terms = built(name, **settings)(za, zb)
        except ValueError as error:
            assert "expected a batch of at least 2 embeddings that differ" in str(error) and "\n" not in str(error)
            refused.append(settings)
        else:
            assert all(torch.isfinite(value) for value in terms.values()), settings
    assert ({} in refused) == (name in (REFUSE_ONE if len(za) == 1 else REFUSE_EQUAL))


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


class LaplaceVJE(objectives.get("vje")):
    def likelihood(self, z, s, var):
        return {"laplace": (z - s).abs().sum(-1)}

    def log_constant(self):
        return -self.dim * math.log(2)


def test_another_likelihood_of_vje_is_one_override():
    objective, (za, zb) = LaplaceVJE(D), pair()
    assert sorted(objective(za, zb)) == ["kl", "laplace"]
    scores = objective.scores(zb, samples=0)
    close(scores["joint"], (zb - objective.infer(zb)[0]).abs().sum(-1))
    close(scores["joint"], scores["laplace"])
    mu, var = objective.infer(za)
    s = mu + var.sqrt() * torch.randn(3, 1, D, generator=torch.Generator().manual_seed(1))
    expected = Laplace(s, 1.0).log_prob(zb) + Normal(0.0, 1.0).log_prob(s) - Normal(mu, var.sqrt()).log_prob(s)
    close(objective.log_weights(zb, za, samples=3, generator=torch.Generator().manual_seed(1)), expected.sum(-1), 1e-9)


@pytest.mark.parametrize("name", [n for n in NAMES if issubclass(objectives.get(n), ConditionalObjective)])
def test_another_density_of_an_objective_is_one_override(name):
    """`joint`, or `conditional` and `marginal`: log-density, posterior, scores and samples are those of the override."""
    p = JointGaussian(torch.ones(2 * D), torch.eye(2 * D) + 0.5 * torch.ones(2 * D, 2 * D), context=D)
    kind = objectives.get(name)
    override = {"conditional": lambda self, z: p.conditional(z), "marginal": lambda self: p.marginal("context")}
    if kind.joint is not ConditionalObjective.joint and kind.conditional is ConditionalObjective.conditional:
        override = {"joint": lambda self: p}
    objective, (za, zb) = type(kind.__name__, (kind,), override)(D), pair()
    alone = p.marginal("context").log_prob(za)
    torch.testing.assert_close(objective.log_prob(zb, za), p.log_prob(torch.cat([za, zb], 1)) - alone)
    torch.testing.assert_close(objective.scores(za)["score"], -alone)
    torch.testing.assert_close(objective.posterior(za).mean, p.conditional(za).mean)
    assert abs(objective.sample(4000)[0].mean().item() - 1) < 0.1


@every
def test_state_dict_is_the_whole_state(name):
    """After loading it, another objective computes the same bits, also after more updates, in which banks are refitted."""
    za, zb = pair()
    first, second = moved(built(name)), built(name)
    for _ in range(6):
        first.update(*pair())
    expected = outputs(first, za, zb)
    differ = not equal(outputs(second, za, zb), expected)
    assert differ == bool(first.state_dict()), "a loss without state is a function of the embeddings alone"
    second.load_state_dict(first.state_dict())
    assert equal(outputs(second, za, zb), expected)
    for batch in (pair() for _ in range(6)):
        for i, objective in enumerate((first, second)):
            torch.manual_seed(i)
            objective.update(*batch)
    assert equal(outputs(second, za, zb), outputs(first, za, zb))
    assert stray_tensors(first) == [] and {n for n, _ in first.named_buffers()} <= set(first.state_dict())


def stray_tensors(module):
    """Returns the attributes that hold a tensor, or a collection of tensors, which no state_dict would save."""
    stray = []
    for path, part in module.named_modules():
        for key, value in vars(part).items():
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else [value]
            if not key.startswith(("_parameters", "_buffers", "_modules")):
                stray += [f"{path}.{key}" for item in items if isinstance(item, torch.Tensor)]
    return stray


def line_mass(log_prob, context, n=2000):
    """Returns the integral of exp(log_prob(., context)) over the line by the midpoint rule in t, z = sinh(t).

    A density of (direction, norm) has the same mass at D = 1: the two directions are the two halves of the line, and the
    change of variables has a factor |z|^(D-1) = 1.
    """
    t = (torch.arange(2 * n) + 0.5) * (14 / n) - 14
    z = torch.sinh(t)[:, None]
    return (log_prob(z, torch.full_like(z, context)).exp() * torch.cosh(t)).sum() * (14 / n)


@pytest.mark.parametrize("name", [name for name in DENSITIES if not objectives.get(name).on_sphere])
@pytest.mark.parametrize("context", [-3.0, 0.1])
def test_mass_on_the_line_is_at_most_one(name, context):
    """A bound by importance sampling may pass the density for some draws of its noise, but not on average over the draws."""
    objective = built(name, 1)
    masses = repeated(lambda: line_mass(objective.log_prob, context), range(2))
    if masses[0] != masses[1]:  # a bound with noise: its mean over draws
        masses = repeated(lambda: line_mass(objective.log_prob, context), range(60))
    assert 0 < masses.mean() <= 1 + 1e-4 + 4 * masses.std() / math.sqrt(len(masses))


def test_the_quadrature_itself():
    for spread in (0.05, 1.0, 30.0):
        assert abs(line_mass(lambda z, c, s=spread: Normal(c[:, 0], s).log_prob(z[:, 0]), 1.0) - 1) < 1e-6


@pytest.mark.parametrize("name", [name for name in DENSITIES if objectives.get(name).on_sphere])
def test_mass_on_the_circle_is_one(name, n=4000):
    """Of a density of directions, which does not depend on the target's scale."""
    objective, angle = objectives.get(name)(2), (torch.arange(n) + 0.5) * (2 * math.pi / n)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    for za in 3 * torch.randn(4, 2):
        masses = [objective.log_prob(r * circle, za.expand_as(circle)).exp().mean() * 2 * math.pi for r in (0.01, 1.0, 50.0)]
        assert all(abs(mass - 1) < 1e-4 for mass in masses)


@every_density
def test_densities_scores_and_posteriors_belong_together(name):
    """p(z_b | z_a) where it is in closed form; of VJE, importance weights have it as their mean instead."""
    objective, (za, zb) = objectives.get(name)(D), pair()
    with torch.no_grad():
        objective.update(za, zb)
    for n in (B, 1):
        for value in (objective.log_prob(zb[:n], za[:n]), objective.score(za[:n])):
            assert value.shape == (n,) and value.dtype == torch.float64 and value.isfinite().all()
    if isinstance(objective, PredictiveObjective):
        p = objective.conditional(za)
        close(p.log_prob(F.normalize(zb, dim=1) if objective.on_sphere else zb), objective.log_prob(zb, za), 1e-9)
        assert p.sample().shape == p.mean.shape == (B, D) and p.sample().isfinite().all()
    else:
        torch.manual_seed(1)
        log_w = objective.log_weights(zb, za, samples=16)
        torch.manual_seed(1)
        close(torch.logsumexp(log_w, 0) - math.log(16), objective.log_prob(zb, za))
    torch.manual_seed(1)
    scores = objective.scores(za)
    torch.manual_seed(1)
    torch.testing.assert_close(next(iter(scores.values())), objective.score(za))
    assert all(isinstance(key, str) and value.shape == (B,) and value.isfinite().all() for key, value in scores.items())
    posterior = objective.posterior(za)
    assert posterior.mean.shape == (B, D) and posterior.variance.expand(B, D).min() > 0
    assert posterior.entropy().expand(B).isfinite().all()


# --- options: each changes what is computed: terms, gradients, state, or the density --------------------------------------

MIXTURE = {  # option: another value than the default, and the settings under which it has an effect
    **{"loss": "joint_kl", "eta": 2.0, "beta": (1.0, {"loss": "joint_kl"}), "floor": 0.5, "covariance": "low_rank"},
    **{"rank": (2, {"covariance": "low_rank"}), "shrinkage": 0.5},
}
OTHER = {
    "barlow_twins": {"redundancy": 0.1, "scale": 0.1},
    "byol": {"hidden": 16},
    "contrastive": {
        **{"temperature": 0.5, "covariance": "diagonal", "weights": ("norm", {"normalize": False}), "components": "pairs"},
        **{"normalize": False, "momentum": 0.5},
    },
    "gje": {
        **{"loss": "naive", "eta": 2.0, "beta": (1.0, {"loss": "joint_kl"}), "likelihood": "ema", "shrinkage": 0.5},
        **{"covariance": ("low_rank", {"likelihood": "learned"}), "stop_gradient": (True, {"loss": "naive"})},
        **{"rank": (2, {"likelihood": "learned", "covariance": "low_rank"}), "momentum": (0.5, {"likelihood": "ema"})},
    },
    "gmje": {
        **{**MIXTURE, "components": 3, "fit": "gradient", "momentum": 0.5},
        **{name: (value, {"fit": "gradient"}) for name, value in (("covariance", "low_rank"), ("floor", 0.5))},
        "rank": (2, {"fit": "gradient", "covariance": "low_rank"}),
    },
    "gmje_em": {**MIXTURE, "components": 3, "bank": 24, "steps": 1},
    "gmje_gng": {**MIXTURE, "max_nodes": 2, "items_per_node": 2.0, "insert_every": 7, "bank": (24, {"max_nodes": 4}), "steps": 1},
    "gmje_mdn": {
        **{"components": 3, "hidden": 16, "marginal": "nll", "weight": 2.0, "target": "through", "floor": 0.1, "tied": False},
        "momentum": 0.5,
    },
    "gmje_smc": {
        **{"bank": 24, "temperature": 0.5, "mode": "fifo", "momentum": 0.5, "u": 0.5, "normalize": False},
        **{"ess_threshold": (2.0, {"bank": 24}), "max_age": (1, {"bank": 40})},
    },
    "jepa": {"hidden": 16, "tied": False, "momentum": 0.5},
    "lejepa": {"weight": 0.2, "slices": 16, "knots": 9, "t_max": 5.0},
    "moco": {"hidden": 16, "temperature": 0.5, "last_norm": False},
    "simsiam": {"hidden": 16},
    "swav": {"prototypes": 16, "temperature": 0.2, "epsilon": 0.1, "iterations": 1, "frozen_steps": 2},
    "vi_simsiam": {"beta": 2.0, "hidden": 20},
    "vicreg": {"invariance": 2.0, "variance": 2.0, "decorrelation": 2.0},
    "vje": {
        **{"nu": 5.0, "beta": 2.0, "hidden": 32, "likelihood": "plain", "scale": 2.0, "sampled": False},
        "terms": ("directional", "kl"),
    },
    "vssl": {
        **{"loss": "analytic", "likelihood": "sample", "beta": 2.0, "predictor": False, "hidden": 32, "floor": 0.1},
        "momentum": 0.5,
    },
}


def trace(name, settings):
    """Returns the terms, gradients and state of three steps, and what the objective computes after them."""
    torch.manual_seed(0)
    objective, values = built(name, **settings), []
    for seed in range(3):
        torch.manual_seed(seed)
        za, zb = (z.requires_grad_() for z in pair())
        terms = objective(za, zb)
        sum(terms.values()).backward()
        with torch.no_grad():
            for p in objective.parameters():
                p -= 0.01 * (p.grad if p.grad is not None else 0)
        objective.update(za.detach(), zb.detach())
        values += [*(term.detach() for term in terms.values()), za.grad, zb.grad, *(v.clone() for v in objective.buffers())]
    return [*values, *outputs(objective, za.detach(), zb.detach()), *objective.state_dict().values()]


@pytest.mark.parametrize(("name", "option"), options.of_register(objectives))
def test_no_option_is_ignored(name, option):
    value, base = other if isinstance(other := OTHER[name][option], tuple) and isinstance(other[1], dict) else (other, {})
    assert options.differ(trace(name, base), trace(name, {**base, option: value}))


# --- bad input: one table, by the word that names what is wrong -----------------------------------------------------------

PAIR_LOSS = [{"loss": "mi"}, {"eta": 0.0}, {"beta": -1.0}, {"shrinkage": 1.1}]
BAD_MIXTURE = [*PAIR_LOSS, {"floor": 0.0}, {"floor": math.nan}, {"covariance": "diag"}, {"rank": 0}]
BAD = {
    "barlow_twins": [{"redundancy": -1.0}, {"scale": 0.0}],
    "byol": [{"hidden": 0}],
    "contrastive": [
        *({"temperature": value} for value in (0.0, math.inf)),
        *({"covariance": "full"}, {"weights": "learned"}, {"components": "bank"}, {"momentum": 1.0}),
    ],
    "gje": [*PAIR_LOSS, {"covariance": "diagonal"}, {"covariance": "low_rank"}, {"likelihood": "full"}, {"momentum": 1.0}],
    "gmje": [*BAD_MIXTURE, {"fit": "sgd"}, {"components": 0}, {"momentum": -0.5}],
    "gmje_em": [*BAD_MIXTURE, {"components": 0}, {"bank": 19}, {"steps": 0}],
    "gmje_gng": [*BAD_MIXTURE, {"max_nodes": 1}, {"insert_every": 0}, {"items_per_node": 0.0}, {"steps": -1}, {"bank": 59}],
    "gmje_mdn": [
        *({"marginal": "gmm"}, {"target": "ema"}, {"components": 2.5}, {"hidden": 0}, {"weight": 0.0}, {"floor": -1.0}),
        {"momentum": 1.0},
    ],
    "gmje_smc": [
        *({"mode": "lifo"}, {"bank": 0}, {"max_age": 0}, {"temperature": math.nan}),
        *({"ess_threshold": -0.1}, {"momentum": 1.5}, {"u": -0.1}),
    ],
    "jepa": [{"hidden": 1}, {"momentum": 1.0}],
    "lejepa": [{"weight": 2}, {"slices": 0}, {"t_max": 0}],
    "moco": [{"temperature": 0}, {"hidden": 0.5}],
    "simsiam": [{"hidden": 0}],
    "swav": [{"temperature": 0.0}, {"prototypes": 0}],
    "vi_simsiam": [{"beta": math.nan}, {"hidden": 1}],
    "vicreg": [{"variance": -1.0}],
    "vje": [{"nu": 0.0}, {"beta": -1.0}, {"terms": ("angular",)}, {"terms": ()}, {"likelihood": "euclid"}, {"scale": 0.0}],
    "vssl": [{"loss": "cosin"}, {"likelihood": "mean"}, {"beta": -1.0}, {"floor": 0.0}, {"hidden": 1}, {"momentum": 1.0}],
}


@every
def test_bad_settings_and_shapes_are_named(name):
    for settings in BAD[name]:
        refuses(f"expected.*{next(iter(settings))}", objectives.get(name), D, **settings)
    objective = built(name)
    refuses(r"expected two \(B, 8\) embeddings", objective, torch.zeros(4, D), torch.zeros(4, D + 1))
    if name in DENSITIES:
        refuses("expected two", objective.log_prob, torch.zeros(4, D), torch.zeros(3, D))


def test_numbers_of_samples_are_checked():
    vje, z = built("vje"), torch.randn(3, D)
    refuses("expected samples", vje.score, z, samples=-1)
    refuses("expected samples", vje.log_prob, z, z, samples=0)
