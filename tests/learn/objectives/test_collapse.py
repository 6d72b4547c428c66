"""T20: which losses shrink the embeddings of an encoder that learns, and where others hold their variance."""

import pytest
import torch
from tests.learn.objectives.common import trained
from tests.learn.objectives.test_gmje import KINDS

from vergence.learn.objectives import GJE, GMJEGNG, GMJEMDN

pytestmark = pytest.mark.slow
D = 3


def gje(**settings):
    return lambda: GJE(D, shrinkage=0.0, **settings)


def mdn(**settings):
    return lambda: GMJEMDN(D, **{"components": 3, "hidden": 32, **settings})


def gmje(kind, **settings):
    cls, options = KINDS[kind]
    bank = {"bank": 512} if "bank" in options else {}
    return lambda: cls(D, **options | bank | ({"insert_every": 30} if cls is GMJEGNG else {}) | settings)


def spread(objective, steps, batch):
    """Returns the std of the narrowest direction and the mean variance of new embeddings after a short run."""
    za, zb = trained(objective, steps, batch=batch, new=4000)
    narrowest = torch.linalg.eigvalsh(torch.cov(za.T))[0].clamp(min=0).sqrt()
    return float(narrowest), float((za.var(0).sum() + zb.var(0).sum()) / (2 * D))


COLLAPSE = {  # likelihoods alone, whatever is done to their covariance; the narrowest direction first
    "gje, naive": (gje(loss="naive"), 600, 256),
    "gje, stop-gradient": (gje(loss="naive", stop_gradient=True), 600, 256),
    "gje, moving average": (gje(loss="naive", likelihood="ema"), 600, 256),
    "gje, beta below one": (gje(loss="joint_kl", beta=0.5), 600, 256),
    "mdn, target through": (mdn(marginal="none", target="through"), 400, 128),
    "mdn, learned marginal": (mdn(marginal="nll"), 400, 128),
    **{f"gmje, {kind}": (gmje(kind, loss="naive"), 300, 256) for kind in ("gradient", "online em", "em", "gng")},
}
HOLD = {  # terms that pay for volume hold embeddings at the predicted mean variance, within a share of it
    "gje, eta": (gje(eta=0.1), 600, 256, 1.0, 0.1),
    "gje, joint, beta 2": (gje(loss="joint_kl", beta=2.0), 600, 256, 0.5, 0.1),
    "gje, joint, beta 5": (gje(loss="joint_kl", beta=5.0), 600, 256, 0.8, 0.1),
    "gje, conditional, beta 1": (gje(loss="conditional_kl", beta=1.0), 600, 256, 0.5, 0.1),
    "gje, conditional, beta 2": (gje(loss="conditional_kl", beta=2.0), 600, 256, 0.75, 0.1),
    "mdn, kl": (mdn(marginal="kl"), 400, 128, 1.0, 0.25),
    "mdn, entropy": (mdn(marginal="entropy"), 400, 128, 1.0, 0.25),
}


@pytest.mark.parametrize("case", COLLAPSE)
def test_likelihood_alone_collapses(case):
    build, steps, batch = COLLAPSE[case]
    assert spread(build(), steps, batch)[0] < spread(build(), 0, batch)[0] / 10


@pytest.mark.parametrize("case", HOLD)
def test_information_holds_the_variance(case):
    build, steps, batch, variance, share = HOLD[case]
    assert spread(build(), steps, batch)[1] == pytest.approx(variance, rel=share)


@pytest.mark.parametrize("kind", ["gradient", "online em", "em", "gng"])
def test_information_under_a_mixture_prevents_collapse(kind):
    narrowest, variance = spread(gmje(kind)(), 300, 256)
    assert narrowest > 0.3 and 0.5 < variance < 5


def test_a_constant_target_alone_neither_collapses_nor_holds_the_scale():
    variance = spread(mdn(marginal="none")(), 400, 128)[1]
    assert variance > spread(mdn()(), 0, 128)[1] / 9 and abs(variance**0.5 - 1) > 0.2
