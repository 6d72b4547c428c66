"""Embeddings at the ends of the floating-point range: a finite value and gradient, or the documented error."""

import pytest
import torch
from tests.learn.objectives.test_contract import REFUSE_EQUAL, built

from vergence.learn import objectives
from vergence.learn.objectives.core import LARGEST

B, D = 32, 8
SCALES = (1e-30, 1e-20, 1e-15, 1e-10, 1e-4, 1.0, 1e4, 1e8, 1e12, 1e20, 1e30)
FEW_SCALES = (1e-30, 1e-10, 1.0, 1e12)
TOO_LARGE = "expected embeddings of at most"
EQUAL = "expected a batch of at least 2 embeddings that differ"
SHAPES = {
    "ordinary": lambda za, zb: (za, zb), "duplicates": lambda za, zb: (za[:2].repeat(B // 2, 1), zb[:2].repeat(B // 2, 1)),
    "constant": lambda za, zb: (torch.ones_like(za), torch.ones_like(zb)), "equal views": lambda za, zb: (za, za.clone()),
    "one feature": lambda za, zb: (za * (torch.arange(D) == 0), zb * (torch.arange(D) == 0)),
    "unlike features": lambda za, zb: (za * UNLIKE, zb * UNLIKE), "far from zero": lambda za, zb: (za + 1000, zb + 1000),
    "few": lambda za, zb: (za[:4], zb[:4]),
    "a zero": lambda za, zb: (za * (torch.arange(B) > 0)[:, None], zb * (torch.arange(B) != 1)[:, None]),
    "an outlier": lambda za, zb: (torch.cat([za[1:], 1e6 * za[:1]]), zb),
}  # fmt: skip
UNLIKE = 10 ** torch.linspace(-8, 8, D, dtype=torch.float64)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
VARIANTS = {
    **{name: (name, {}) for name in objectives.names()},
    "gmje of low rank": ("gmje", {"fit": "gradient", "covariance": "low_rank", "rank": 2}),
    "gmje by gradient": ("gmje", {"fit": "gradient", "covariance": "full"}),
    "gmje_em of low rank": ("gmje_em", {"covariance": "low_rank", "rank": 2}),
    "gmje_mdn, nll": ("gmje_mdn", {"marginal": "nll", "target": "through"}),
    "gmje_smc, cold": ("gmje_smc", {"temperature": 1e-3, "normalize": False, "bank": 24}),
    "contrastive, cold": ("contrastive", {"temperature": 1e-3, "components": "pairs", "normalize": False}),
    "gje, learned": ("gje", {"likelihood": "learned", "covariance": "low_rank"}),
}


def batch(shape, scale, dtype):
    za = torch.randn(B, D, dtype=torch.float64)
    pair = SHAPES[shape](za, za + 0.3 * torch.randn(B, D, dtype=torch.float64))
    return [(scale * z).to(dtype).requires_grad_() for z in pair]


def stepped(objective, za, zb):
    """Returns terms and gradients of a step, and the terms after the update."""
    terms = objective(za, zb)
    inputs = [za, zb, *(p for p in objective.parameters() if p.requires_grad)]
    gradients = torch.autograd.grad(sum(terms.values()), inputs, allow_unused=True)
    with torch.no_grad():
        objective.update(za.detach(), zb.detach())
        after = objective(za, zb)
    return terms, [g for g in gradients if g is not None], after


def shapes_of(variant):
    """Returns the shapes of batches: EM of low rank has no answer to features that differ by 16 orders of magnitude."""
    return [shape for shape in SHAPES if (variant, shape) != ("gmje_em of low rank", "unlike features")]


def require_finite_or_documented(variant, shape, dtype, scales):
    name, options = VARIANTS[variant]
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    for scale in scales:
        torch.manual_seed(0)
        objective = built(name, **options).to(kind)
        za, zb = batch(shape, scale, dtype)
        try:
            terms, gradients, after = stepped(objective, za, zb)
        except ValueError as error:
            require_documented(str(error), name, shape, za, zb)
            continue
        assert all(torch.isfinite(value) for value in terms.values()), (scale, terms)
        assert all(torch.isfinite(g).all() for g in gradients), scale
        assert all(torch.isfinite(value) for value in after.values()), (scale, "after the update", after)


@pytest.mark.parametrize("variant", VARIANTS)
def test_value_and_gradient_are_finite_or_the_error_is_the_documented_one(variant):
    for shape in shapes_of(variant):
        require_finite_or_documented(variant, shape, torch.float32, FEW_SCALES)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize(("variant", "shape"), [(variant, shape) for variant in VARIANTS for shape in shapes_of(variant)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_scale_and_precision_is_finite_or_refused(variant, shape, dtype):
    require_finite_or_documented(variant, shape, dtype, SCALES)


def require_documented(message, name, shape, za, zb):
    """Asserts that an error is one of the two documented ones, raised for a reason."""
    largest = float(max(z.detach().abs().max() for z in (za, zb)))
    spread = float(min((z - z[:1]).detach().abs().max() for z in (za, zb)))
    assert "\n" not in message
    if largest > LARGEST:
        assert TOO_LARGE in message
    else:
        assert EQUAL in message and name in REFUSE_EQUAL
        assert spread < (1e-140 if za.dtype == torch.float64 else 1e-15), shape


def test_ordinary_sizes_are_never_refused():
    for name in objectives.names():
        for scale in (1e-10, 1.0, 1e8):
            stepped(built(name).float(), *batch("ordinary", scale, torch.float32))
